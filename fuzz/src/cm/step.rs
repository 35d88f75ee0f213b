//! A step of the input, which is one record.

use crate::records::index_of;

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A peer requests a connection.
    Req,
    /// A peer accepts.
    Rep,
    /// A peer is ready.
    Rtu,
    /// A peer rejects.
    Rej,
    /// A peer requests more time.
    Mra,
    /// A peer disconnects.
    Dreq,
    /// A peer confirms a disconnect.
    Drep,
    /// A peer sends a service query.
    SidrReq,
    /// A peer answers a service query.
    SidrRep,
    /// A peer repeats a message of its own.
    Repeat,
    /// The application requests a connection.
    Connect,
    /// The application sends a service query.
    Resolve,
    /// The application accepts.
    Accept,
    /// The application rejects.
    Reject,
    /// The application is ready.
    Ready,
    /// The application requests more time.
    Delay,
    /// A packet arrives before the RTU.
    FirstPacket,
    /// The application disconnects.
    Disconnect,
    /// The application releases a connection.
    Release,
    /// The application answers a service query.
    Answer,
    /// The application begins or stops to listen.
    Listen,
    /// Time passes; with a time of 0, until the next deadline.
    Wait,
}

/// All actions. A record contains the index of its action.
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

/// One step of eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Index of the action in [`ACTIONS`].
    pub action: u8,
    /// The connection, message or service, counted back from the latest.
    pub which: u8,
    /// The peer. For an answer, its distance from the right peer.
    pub peer: u8,
    /// Changes the number that the peer gives to the connection.
    pub id: u8,
    /// A reason, a kind or a status.
    pub kind: u8,
    /// An encoded time.
    pub time: u8,
    /// Position of the damaged byte of the message.
    pub at: u8,
    /// Value for an exclusive or with that byte; 0 does not change the message.
    pub damage: u8,
}

impl Step {
    /// Length of a record in bytes.
    pub const LEN: usize = 8;

    /// Reads a record. Every value is legal.
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
