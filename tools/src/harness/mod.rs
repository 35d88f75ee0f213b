//! Code that the tools share: verbs objects, waiting, the content of messages, statistics, and one error
//! type.

pub(crate) mod content;
mod drops;
mod error;
mod peer;
mod resources;
pub(crate) mod statistics;
mod text;
mod wait;

use crate::exchange::Exchange;

pub(crate) use drops::DropWatch;
pub use error::ToolError;
pub(crate) use error::{check_completion, check_length, check_order};
pub(crate) use peer::{
    GRH, PeerQueuePair, await_silence, connect_as_originals, connect_from, source_address,
};
pub(crate) use resources::{CompletionQueues, Requirements, Resources, put, take};
pub(crate) use text::padded;
pub(crate) use wait::{CompletionWait, NAP, SPINNING, spin, wait_for_event, wait_spinning};

/// Sends the other side the reason why this side fails, unless the other side has ended.
pub(crate) fn tell_failure<T>(exchange: &mut Exchange, outcome: &Result<T, ToolError>) {
    if let Err(error) = outcome
        && !error.is_end_of_peer()
    {
        exchange.fail(&error.to_string());
    }
}

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
