//! One record of the input.

use crate::records::index_of;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Makes a protection domain.
    AllocatePd,
    /// Removes one.
    DeallocatePd,
    /// Makes a completion queue.
    CreateCq,
    /// Resizes one.
    ResizeCq,
    /// Removes one.
    DestroyCq,
    /// Makes a shared receive queue.
    CreateSrq,
    /// Arms its limit.
    ArmSrq,
    /// Removes one.
    DestroySrq,
    /// Registers memory.
    Register,
    /// Deregisters some.
    Deregister,
    /// Makes a window.
    AllocateWindow,
    /// Binds a type 1 window.
    BindWindow,
    /// Removes one.
    DeallocateWindow,
    /// Makes a queue pair.
    CreateQp,
    /// Removes one.
    DestroyQp,
    /// Modifies one with attributes that are mostly right for the next state.
    ModifyQp,
    /// Brings two up to RTS, connected with each other.
    Connect,
    /// Moves one to RESET, SQD, SQE or ERR.
    MoveQp,
    /// Posts a send request.
    PostSend,
    /// Posts a receive.
    PostReceive,
    /// Posts a receive to a shared queue.
    PostSharedReceive,
    /// Polls a completion queue.
    Poll,
    /// Asks for an event.
    Notify,
    /// Time passes and timeouts are handled.
    Wait,
    /// Packets are sent and arrive.
    Drive,
    /// Joins or leaves a multicast group.
    Group,
    /// Asks for everything that can be asked for.
    Query,
}

/// All of them: a record names one by its index.
pub const ACTIONS: [Action; 27] = [
    Action::Drive,
    Action::PostSend,
    Action::PostReceive,
    Action::Connect,
    Action::AllocatePd,
    Action::CreateCq,
    Action::CreateQp,
    Action::Register,
    Action::Poll,
    Action::Wait,
    Action::ModifyQp,
    Action::MoveQp,
    Action::DestroyQp,
    Action::Deregister,
    Action::AllocateWindow,
    Action::BindWindow,
    Action::DeallocateWindow,
    Action::CreateSrq,
    Action::ArmSrq,
    Action::PostSharedReceive,
    Action::DestroySrq,
    Action::ResizeCq,
    Action::DestroyCq,
    Action::DeallocatePd,
    Action::Notify,
    Action::Group,
    Action::Query,
];

/// One step: sixteen bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What happens, by its index in [`ACTIONS`].
    pub action: u8,
    /// Which queue pair.
    pub qp: u8,
    /// Another queue pair.
    pub other: u8,
    /// Which protection domain.
    pub pd: u8,
    /// Which completion queue; the high nibble is that of the receives.
    pub cq: u8,
    /// Which shared receive queue; from 0x80 on none.
    pub srq: u8,
    /// Which region; the high nibble changes the key.
    pub region: u8,
    /// Which window; the high nibble changes the key.
    pub window: u8,
    /// A kind, a state or an operation.
    pub kind: u8,
    /// Flags, rights, or what happens to packets.
    pub flags: u8,
    /// Rights, or a second kind.
    pub rights: u8,
    /// A size or a length.
    pub size: u16,
    /// An address or a number.
    pub number: u16,
    /// Variety.
    pub fill: u8,
}

impl Step {
    /// Bytes of a record.
    pub const LEN: usize = 16;

    /// Reads a record; every value is legal.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [action, qp, other, pd, cq, srq, region, window, kind, flags, rights, rest @ ..] = *bytes;
        let [size_0, size_1, number_0, number_1, fill] = rest;
        let (size, number) = (u16::from_le_bytes([size_0, size_1]), u16::from_le_bytes([number_0, number_1]));
        Self { action, qp, other, pd, cq, srq, region, window, kind, flags, rights, size, number, fill }
    }

    /// Writes the record.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let Self { action, qp, other, pd, cq, srq, region, window, kind, flags, rights, fill, .. } = self;
        let [size_0, size_1] = self.size.to_le_bytes();
        let [number_0, number_1] = self.number.to_le_bytes();
        [
            action, qp, other, pd, cq, srq, region, window, kind, flags, rights, size_0, size_1, number_0,
            number_1, fill,
        ]
    }

    /// What the step does.
    #[must_use]
    pub fn action(&self) -> Action {
        ACTIONS[usize::from(self.action) % ACTIONS.len()]
    }

    /// The record that begins with this action.
    #[must_use]
    pub fn of(action: Action) -> Self {
        Self { action: index_of(&ACTIONS, &action), ..Self::default() }
    }
}
