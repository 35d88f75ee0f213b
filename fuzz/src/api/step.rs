//! A step of the input, which is one record.

use crate::records::index_of;

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allocates a protection domain.
    AllocatePd,
    /// Deallocates a protection domain.
    DeallocatePd,
    /// Creates a completion queue.
    CreateCq,
    /// Resizes a completion queue.
    ResizeCq,
    /// Destroys a completion queue.
    DestroyCq,
    /// Creates a shared receive queue.
    CreateSrq,
    /// Arms the limit of a shared receive queue.
    ArmSrq,
    /// Destroys a shared receive queue.
    DestroySrq,
    /// Registers memory.
    Register,
    /// Deregisters memory.
    Deregister,
    /// Allocates a window.
    AllocateWindow,
    /// Binds a type 1 window.
    BindWindow,
    /// Deallocates a window.
    DeallocateWindow,
    /// Creates a queue pair.
    CreateQp,
    /// Destroys a queue pair.
    DestroyQp,
    /// Modifies a queue pair, with attributes that are mostly right for the next state.
    ModifyQp,
    /// Connects two queue pairs with each other, up to RTS.
    Connect,
    /// Moves a queue pair to RESET, SQD, SQE, RTS or ERR.
    MoveQp,
    /// Posts a send request.
    PostSend,
    /// Posts a receive.
    PostReceive,
    /// Posts a receive to a shared queue.
    PostSharedReceive,
    /// Polls a completion queue.
    Poll,
    /// Requests a notification.
    Notify,
    /// Advances the time and handles timeouts.
    Wait,
    /// Sends and delivers packets.
    Drive,
    /// Joins or leaves a multicast group.
    Group,
    /// Calls all query functions.
    Query,
}

/// All actions. A record contains the index of its action.
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

/// One step of sixteen bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Index of the action in [`ACTIONS`].
    pub action: u8,
    /// The queue pair.
    pub qp: u8,
    /// Another queue pair.
    pub other: u8,
    /// The protection domain.
    pub pd: u8,
    /// The completion queue; the high nibble is that of the receives.
    pub cq: u8,
    /// The shared receive queue; from 0x80 on, there is no such queue.
    pub srq: u8,
    /// The region; the high nibble changes the key.
    pub region: u8,
    /// The window; the high nibble changes the key.
    pub window: u8,
    /// A kind, a state or an operation.
    pub kind: u8,
    /// Flags, rights, or the fate of packets.
    pub flags: u8,
    /// Rights, or a second kind.
    pub rights: u8,
    /// A size or a length.
    pub size: u16,
    /// An address or a number.
    pub number: u16,
    /// A value for variation.
    pub fill: u8,
}

impl Step {
    /// Length of a record in bytes.
    pub const LEN: usize = 16;

    /// Reads a record. Every value is legal.
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

    /// Returns the action of the step.
    #[must_use]
    pub fn action(&self) -> Action {
        ACTIONS[usize::from(self.action) % ACTIONS.len()]
    }

    /// Returns a record of this action, with all other fields 0.
    #[must_use]
    pub fn of(action: Action) -> Self {
        Self { action: index_of(&ACTIONS, &action), ..Self::default() }
    }
}
