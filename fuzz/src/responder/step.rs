//! A step of the input, which is one record.

/// BTH: acknowledge request.
pub const FLAG_ACK_REQUEST: u8 = 1;
/// BTH: solicited event.
pub const FLAG_SOLICITED: u8 = 1 << 1;
/// Uses another partition key.
pub const FLAG_OTHER_PARTITION: u8 = 1 << 2;
/// Arrives from another address than the peer's.
pub const FLAG_OTHER_ADDRESS: u8 = 1 << 3;
/// Carries the mark of a congested router.
pub const FLAG_MARKED: u8 = 1 << 4;
/// Arrives in two slices.
pub const FLAG_SPLIT: u8 = 1 << 5;
/// Uses another Q_Key.
pub const FLAG_OTHER_QKEY: u8 = 1 << 6;
/// If the queue pair has failed, it is brought up again first.
pub const FLAG_REVIVE: u8 = 1 << 7;

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A packet arrives.
    Packet,
    /// The queue pair is reset and brought up again.
    Revive,
    /// A receive is posted.
    PostReceive,
    /// Time passes and timeouts are handled.
    Wait,
    /// The region is deregistered.
    Deregister,
    /// The region is registered again, under a new key.
    Register,
    /// The rights of the queue pair are changed.
    Restrict,
    /// The queue pair is moved to the error state.
    Fail,
    /// The window over the windowed region is bound to another part of it.
    Rebind,
}

/// One step of sixteen bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The action, see [`Step::action`].
    pub action: u8,
    /// BTH opcode.
    pub opcode: u8,
    /// Index of the queue pair in [`super::QUEUES`]; larger values are numbers that do not exist.
    pub queue: u8,
    /// Distance from the expected PSN; the smallest value is half of the PSN space.
    pub psn: i8,
    /// `FLAG_*`.
    pub flags: u8,
    /// Index of the region in [`super::REGIONS`].
    pub key: u8,
    /// Changes the key by exclusive or, in the variant (low nibble) and in the number (high nibble).
    pub key_damage: u8,
    /// Distance of the address from the start of the region, modulo 64 KiB and signed.
    pub offset: i16,
    /// Rule for `dma_len`; 0 for the length that the payload requires.
    pub length_rule: u8,
    /// A number for `length_rule`.
    pub length: u16,
    /// Rule for the payload length; 0 for the length that the opcode requires. Bits 6 and 7 are added to
    /// PadCnt.
    pub payload_rule: u8,
    /// A number for `payload_rule`.
    pub payload: u16,
    /// The first byte of the payload, or a value for variation.
    pub fill: u8,
}

impl Step {
    /// Length of a record in bytes.
    pub const LEN: usize = 16;

    /// Reads a record. Every value is legal.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [action, opcode, queue, psn, flags, key, key_damage, rest @ ..] = *bytes;
        let [offset_0, offset_1, length_rule, length_0, length_1, payload_rule, rest @ ..] = rest;
        let [payload_0, payload_1, fill] = rest;
        Self {
            action,
            opcode,
            queue,
            psn: psn.cast_signed(),
            flags,
            key,
            key_damage,
            offset: i16::from_le_bytes([offset_0, offset_1]),
            length_rule,
            length: u16::from_le_bytes([length_0, length_1]),
            payload_rule,
            payload: u16::from_le_bytes([payload_0, payload_1]),
            fill,
        }
    }

    /// Writes the record.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let offset = self.offset.to_le_bytes();
        let length = self.length.to_le_bytes();
        let payload = self.payload.to_le_bytes();
        [
            self.action,
            self.opcode,
            self.queue,
            self.psn.cast_unsigned(),
            self.flags,
            self.key,
            self.key_damage,
            offset[0],
            offset[1],
            self.length_rule,
            length[0],
            length[1],
            self.payload_rule,
            payload[0],
            payload[1],
            self.fill,
        ]
    }

    /// Returns the action of the step. Most values are packets.
    #[must_use]
    pub const fn action(&self) -> Action {
        match self.action {
            0xf0 => Action::Revive,
            0xf1..=0xf5 => Action::PostReceive,
            0xf6 | 0xf7 => Action::Wait,
            0xf8 => Action::Deregister,
            0xf9 | 0xfa => Action::Register,
            0xfb => Action::Restrict,
            0xfc => Action::Fail,
            0xfd => Action::Rebind,
            _ => Action::Packet,
        }
    }
}
