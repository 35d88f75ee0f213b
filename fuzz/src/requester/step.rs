//! A step of the input, which is one record.

/// SEND: requests a solicited event.
pub const FLAG_SOLICITED: u8 = 1;
/// Waits for earlier READs and atomics.
pub const FLAG_FENCE: u8 = 1 << 1;
/// Posts the bytes inline.
pub const FLAG_INLINE: u8 = 1 << 2;
/// The answer arrives from another address.
pub const FLAG_OTHER_ADDRESS: u8 = 1 << 3;
/// The answer arrives in two slices.
pub const FLAG_SPLIT: u8 = 1 << 4;
/// The answered packet stays in the list, so that it can be answered again.
pub const FLAG_KEEP: u8 = 1 << 5;
/// If the queue pair has failed, it is brought up again first.
pub const FLAG_REVIVE: u8 = 1 << 7;

/// The settings of the engine and the queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of outstanding PSNs.
    pub window: u32,
    /// Packets in each part of a READ; 0 for whole READs.
    pub read_packets: u32,
    /// Maximum number of concurrent READs and atomics.
    pub rd_atomic: u8,
    /// Number of retries after timeouts and after RNR NAKs.
    pub retries: u8,
}

impl Settings {
    /// Reads each setting from two bits of the byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Self {
        let pick = |shift: u8| usize::from(byte >> shift & 3);
        Self {
            window: [64, 1, 3, 8][pick(0)],
            read_packets: [2, 0, 1, 128][pick(2)],
            rd_atomic: [4, 1, 2, 16][pick(4)],
            retries: [6, 0, 1, 3][pick(6)],
        }
    }
}

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A work request is posted.
    Post,
    /// The peer answers.
    Answer,
    /// Time passes; with a length of 0, until the next timeout.
    Wait,
    /// The queue pair is reset and brought up again.
    Revive,
    /// The queue pair is drained.
    Drain,
    /// The queue pair resumes sending.
    Resume,
    /// The region for responses is deregistered.
    Deregister,
    /// The region for responses is registered again.
    Register,
    /// The queue pair is moved to the error state.
    Fail,
}

/// One step of sixteen bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The action, see [`Step::action`].
    pub action: u8,
    /// Post: index of the operation in [`super::OPERATIONS`]. Answer: an opcode, if `rule` requires it.
    pub operation: u8,
    /// `FLAG_*`.
    pub flags: u8,
    /// Answer: distance from the correct PSN; the smallest value is half of the PSN space.
    pub psn: i8,
    /// Answer: position of the unanswered packet, from the oldest.
    pub pick: u8,
    /// Answer: number of skipped response packets of a READ.
    pub skip: u8,
    /// Answer: 0 for an ACK, otherwise the syndrome byte.
    pub syndrome: u8,
    /// Answer: 0 for the correct opcode, 1 for an acknowledgement, 2 for the opcode in `operation`.
    pub rule: u8,
    /// Post: length of the message in bytes. Wait: nanoseconds, shifted by `fill`.
    pub length: u16,
    /// Answer: rule for the payload length; 0 for the correct length.
    pub payload_rule: u8,
    /// Answer: a number for `payload_rule`.
    pub payload: u16,
    /// Post: the local key; 0 for the correct one.
    pub key: u8,
    /// The first byte of the payload, or a value for variation.
    pub fill: u8,
    /// Post: end of the first element.
    pub cut: u8,
}

impl Step {
    /// Length of a record in bytes.
    pub const LEN: usize = 16;

    /// Reads a record. Every value is legal.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [action, operation, flags, psn, pick, skip, syndrome, rule, rest @ ..] = *bytes;
        let [length_0, length_1, payload_rule, payload_0, payload_1, key, fill, cut] = rest;
        Self {
            action,
            operation,
            flags,
            psn: psn.cast_signed(),
            pick,
            skip,
            syndrome,
            rule,
            length: u16::from_le_bytes([length_0, length_1]),
            payload_rule,
            payload: u16::from_le_bytes([payload_0, payload_1]),
            key,
            fill,
            cut,
        }
    }

    /// Writes the record.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let (length, payload) = (self.length.to_le_bytes(), self.payload.to_le_bytes());
        [
            self.action,
            self.operation,
            self.flags,
            self.psn.cast_unsigned(),
            self.pick,
            self.skip,
            self.syndrome,
            self.rule,
            length[0],
            length[1],
            self.payload_rule,
            payload[0],
            payload[1],
            self.key,
            self.fill,
            self.cut,
        ]
    }

    /// Returns the action of the step.
    #[must_use]
    pub const fn action(&self) -> Action {
        match self.action {
            0x60..=0xdf => Action::Answer,
            0xe0..=0xe7 => Action::Wait,
            0xe8 => Action::Revive,
            0xe9 => Action::Drain,
            0xea | 0xeb => Action::Resume,
            0xec => Action::Deregister,
            0xed => Action::Register,
            0xee => Action::Fail,
            0xf0..=0xff => Action::Answer,
            _ => Action::Post,
        }
    }
}
