//! One record of the input.

use crate::records::index_of;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A peer asks for a connection.
    Req,
    /// A peer accepts.
    Rep,
    /// A peer is ready.
    Rtu,
    /// A peer refuses.
    Rej,
    /// A peer asks for patience.
    Mra,
    /// A peer ends a connection.
    Dreq,
    /// A peer confirms the end.
    Drep,
    /// A peer asks for a service.
    SidrReq,
    /// A peer answers such a question.
    SidrRep,
    /// A peer sends a message of its own again.
    Repeat,
    /// The application asks for a connection.
    Connect,
    /// The application asks for a service.
    Resolve,
    /// The application accepts.
    Accept,
    /// The application refuses.
    Reject,
    /// The application is ready.
    Ready,
    /// The application asks for patience.
    Delay,
    /// A packet came before the RTU.
    FirstPacket,
    /// The application disconnects.
    Disconnect,
    /// The application lets go.
    Release,
    /// The application answers a question.
    Answer,
    /// The application begins to listen, or ends it.
    Listen,
    /// Time passes; with a time of 0 until the next deadline.
    Wait,
}

/// All of them: a record names one by its index.
pub const ACTIONS: [Action; 22] = [
    Action::Req,
    Action::Rep,
    Action::Rtu,
    Action::Rej,
    Action::Mra,
    Action::Dreq,
    Action::Drep,
    Action::SidrReq,
    Action::SidrRep,
    Action::Repeat,
    Action::Connect,
    Action::Resolve,
    Action::Accept,
    Action::Reject,
    Action::Ready,
    Action::Delay,
    Action::FirstPacket,
    Action::Disconnect,
    Action::Release,
    Action::Answer,
    Action::Listen,
    Action::Wait,
];

/// One step: eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What happens, by its index in [`ACTIONS`].
    pub action: u8,
    /// Which connection, message or service, counted back from the latest.
    pub which: u8,
    /// Which peer; of an answer, how far from the right one.
    pub peer: u8,
    /// Changes the number that the peer gives the connection.
    pub id: u8,
    /// A reason, a kind or a status.
    pub kind: u8,
    /// A time as its code.
    pub time: u8,
    /// Which byte of the message is damaged.
    pub at: u8,
    /// What is turned round in it; 0 leaves the message alone.
    pub damage: u8,
}

impl Step {
    /// Bytes of a record.
    pub const LEN: usize = 8;

    /// Reads a record; every value is legal.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [action, which, peer, id, kind, time, at, damage] = *bytes;
        Self { action, which, peer, id, kind, time, at, damage }
    }

    /// Writes the record.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let Self { action, which, peer, id, kind, time, at, damage } = self;
        [action, which, peer, id, kind, time, at, damage]
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
