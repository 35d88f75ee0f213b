//! The errors of a network of an external scheduler.

use core::fmt;

use super::message::Message;
use crate::net::payload::MAX_FLOW;
use crate::net::time::Time;

/// The maximum number of messages that a text names.
const MOST_NAMED: usize = 4;

/// The reason why a call of a [`Network`](super::Network) failed, or why its run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// There is no such rank.
    #[error("there is no rank {rank}; the ranks are 0 to {}", .ranks.saturating_sub(1))]
    NoRank {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// Sender and receiver are equal.
    #[error("rank {rank} cannot exchange a message with itself; copy the bytes without the network")]
    ToItself {
        /// The rank.
        rank: u32,
    },
    /// A message has no bytes.
    #[error("a message from rank {from} to rank {to} has 0 bytes; send at least 1")]
    Empty {
        /// The rank of the sender.
        from: u32,
        /// The rank of the receiver.
        to: u32,
    },
    /// The messages between two ranks have too many bytes.
    #[error(
        "{bytes} bytes from rank {from} to rank {to}, after {sent} bytes, are too many: all messages between two ranks \
         have less than {} bytes; begin another run",
        MAX_FLOW
    )]
    TooMuch {
        /// The rank of the sender.
        from: u32,
        /// The rank of the receiver.
        to: u32,
        /// Bytes of the refused message.
        bytes: u64,
        /// Bytes of the earlier messages.
        sent: u64,
    },
    /// A receive has fewer bytes than its send.
    #[error(
        "the receive of {receive} bytes from rank {from} at rank {to} with tag {tag} is too short for the send of {send} \
         bytes; receive at least as many"
    )]
    Short {
        /// The rank of the sender.
        from: u32,
        /// The rank of the receiver.
        to: u32,
        /// The tag.
        tag: u64,
        /// Bytes of the send.
        send: u64,
        /// Bytes of the receive.
        receive: u64,
    },
    /// No queue pair connects two ranks.
    #[error("no queue pair connects rank {from} with rank {to}: {reason}; examine the links of both")]
    Refused {
        /// The rank of the sender.
        from: u32,
        /// The rank of the receiver.
        to: u32,
        /// The reason.
        reason: &'static str,
    },
    /// A queue pair failed, so messages are lost.
    #[error(
        "the queue pair from rank {from} to rank {to} failed at {at}: {reason}; examine losses and failures of the \
         network, and `timeout` and `retry_cnt` of its hosts"
    )]
    Failed {
        /// The rank of the sender.
        from: u32,
        /// The rank of the receiver.
        to: u32,
        /// The time.
        at: Time,
        /// The status of the completion.
        reason: &'static str,
    },
    /// Nothing is left but sends and receives that match nothing.
    #[error(
        "nothing is left to simulate, but {}; add what is missing, with the same ranks and tag",
        Unmatched(.sends, .receives)
    )]
    Unmatched {
        /// Sends without a receive, oldest first.
        sends: Vec<Message>,
        /// Receives without a send, oldest first.
        receives: Vec<Message>,
    },
    /// The stop time came before the end.
    #[error("the simulation stopped at {at}, while {}; set a later `stop`", Waiting(.waiting))]
    Stopped {
        /// The stop time.
        at: Time,
        /// Messages that had not arrived or were not acknowledged, oldest first.
        waiting: Vec<Message>,
    },
}

/// Sends without a receive, and receives without a send.
struct Unmatched<'a>(&'a [Message], &'a [Message]);

impl fmt::Display for Unmatched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(sends, receives) = self;
        if !sends.is_empty() {
            f.write_str("these sends have no receive: ")?;
            named(f, sends)?;
        }
        if !receives.is_empty() {
            f.write_str(if sends.is_empty() { "" } else { "; " })?;
            f.write_str("these receives have no send: ")?;
            named(f, receives)?;
        }
        Ok(())
    }
}

/// The messages that were in the network at the stop time.
struct Waiting<'a>(&'a [Message]);

impl fmt::Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("tokens were scheduled for later");
        }
        f.write_str("these messages were not complete: ")?;
        named(f, self.0)
    }
}

/// Names the first messages.
fn named(f: &mut fmt::Formatter<'_>, messages: &[Message]) -> fmt::Result {
    for (place, message) in messages.iter().take(MOST_NAMED).enumerate() {
        let separator = if place == 0 { "" } else { ", " };
        let Message { from, to, tag, bytes, .. } = message;
        write!(f, "{separator}{bytes} bytes from rank {from} to rank {to} with tag {tag}")?;
    }
    match messages.len().saturating_sub(MOST_NAMED) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}
