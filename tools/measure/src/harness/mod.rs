//! Code that the measurements share: waiting, connections to original programs, checks, and statistics.

mod check;
mod drops;
mod peer;
pub(crate) mod statistics;
mod text;
mod wait;

pub(crate) use check::{check_completion, check_length, check_order};
pub(crate) use drops::DropWatch;
pub(crate) use peer::{PeerQueuePair, await_silence, connect_as_originals, connect_from};
pub(crate) use text::padded;
pub(crate) use wait::{CompletionWait, NAP, SPINNING, spin, wait_for_event, wait_spinning};

/// The role of a side in a test between two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client connects to the server, and writes first.
    Client,
    /// The server listens.
    Server,
}

impl Role {
    /// Returns the role of the other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
