//! The error of the tools.

use std::time::Duration;

use roce::observe::{Explanation, explain, with_causes};
use roce::verbs::{Cause, ConnectionError, Context, VerbsError, WaitError, WorkError};

use crate::error::ExchangeError;
use crate::exchange::Exchange;

/// The reason why a tool failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The plan cannot be carried out, or the sides cannot agree on one.
    #[error("{0}")]
    Plan(String),
    /// The exchange with our own tool on the other side failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The exchange with an original program failed.
    #[error(
        "cannot exchange {what} with the other side (check that {program} runs there with the same options, \
         and read its messages)"
    )]
    Handshake {
        /// The block or message that was exchanged.
        what: &'static str,
        /// The program that is expected on the other side.
        program: &'static str,
        /// The cause.
        #[source]
        error: std::io::Error,
    },
    /// Connection management failed.
    #[error("cannot connect a queue pair with rdma_cm")]
    Connection(#[from] ConnectionError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Waiting failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A device, a socket or the output failed.
    #[error("{what}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The cause.
        #[source]
        error: std::io::Error,
    },
    /// This side dropped packets while the exchange failed.
    #[error("{drops}")]
    Dropped {
        /// The counters, their meaning and the remedy.
        drops: String,
        /// The failure.
        #[source]
        error: Box<Self>,
    },
    /// No message and no acknowledgement arrived for too long.
    #[error(
        "no message or acknowledgement was accepted for {} s: {progress}; {}",
        .patience.as_secs(),
        if *.is_reliable {
            "check that the other side still runs, locate lost packets with `roce doctor`, and record both \
             sides with --pcap"
        } else {
            "UC and UD do not retransmit, so one lost message can stop both sides; repeat the test"
        }
    )]
    Stalled {
        /// The progress of the tool.
        progress: String,
        /// The time limit.
        patience: Duration,
        /// Whether the transport retransmits.
        is_reliable: bool,
    },
    /// A work request failed. The text is that of the [`WorkError`] with advice, so the error is no source.
    /// The explanation of the queue pair has several lines, which only a terminal shows.
    #[error(
        "{}{}",
        explain(.0),
        if .0.wc.cause == Cause::AckTimeout { "; `roce doctor` shows where packets are lost" } else { "" }
    )]
    Completion(WorkError, Option<Box<Explanation>>),
    /// A message has the wrong content.
    #[error(
        "message {message} of {size} bytes on queue pair {qp} is wrong at byte {at}, which is {found:#04x}; the ICRC \
         detects damage in the network, so record the run with --pcap and report it"
    )]
    Content {
        /// The queue pair, counted from 0.
        qp: usize,
        /// The message, counted from 0.
        message: u64,
        /// Bytes of the message.
        size: usize,
        /// The offset of the first wrong byte.
        at: usize,
        /// The value of that byte.
        found: u8,
    },
    /// A message has the wrong length.
    #[error("message {message} has {found} bytes instead of {expected}; give both sides the same size (-s)")]
    Length {
        /// The message, counted from 0.
        message: u64,
        /// The expected length.
        expected: usize,
        /// The actual length.
        found: usize,
    },
    /// Messages arrived out of order.
    #[error(
        "message {found} arrived instead of message {expected}; a reliable connection keeps the order, so record the \
         run with --pcap and report it"
    )]
    Order {
        /// The number of the expected message.
        expected: u64,
        /// The number of the message that arrived.
        found: u64,
    },
    /// The device does not send packets.
    #[error(
        "the device did not send the posted packets within {} s; the neighbour may not answer (`ip neigh`), or the link \
         is down (`ip link`)",
        .patience.as_secs()
    )]
    NotSent {
        /// The time limit.
        patience: Duration,
    },
    /// Messages were lost, or operations were not executed exactly once.
    #[error("{0}")]
    Verification(String),
    /// The peer failed, disconnected, or sent something unexpected.
    #[error("the other side {0}")]
    Peer(String),
}

/// Sends the other side the reason why this side fails, unless the other side has ended.
pub fn tell_failure<T>(exchange: &mut Exchange, outcome: &Result<T, ToolError>) {
    if let Err(error) = outcome
        && !error.is_end_of_peer()
    {
        exchange.fail(&with_causes(error).to_string());
    }
}

impl ToolError {
    /// Returns whether the other side has ended, so that this side need not send it a notice.
    #[must_use]
    pub fn is_end_of_peer(&self) -> bool {
        match self {
            Self::Exchange(error) => error.is_end_of_peer(),
            Self::Dropped { error, .. } => error.is_end_of_peer(),
            _ => false,
        }
    }

    /// Returns the error of a failed work request of this context.
    #[must_use]
    pub fn of_completion(context: &Context, error: WorkError) -> Self {
        Self::Completion(error, context.why(error.wc.qpn).map(Box::new))
    }

    /// Returns the explanation of the queue pair of a failed work request.
    #[must_use]
    pub fn explanation(&self) -> Option<&Explanation> {
        match self {
            Self::Completion(_, explanation) => explanation.as_deref(),
            Self::Dropped { error, .. } => error.explanation(),
            _ => None,
        }
    }

    /// Returns whether lost packets may be the cause. A wrong plan and a failure of this machine have other
    /// causes.
    #[must_use]
    pub const fn may_follow_from_drops(&self) -> bool {
        !matches!(self, Self::Plan(_) | Self::Verbs(_) | Self::Io { .. } | Self::Dropped { .. })
    }

    /// Converts the error of a wait for completions. `stalled` creates the error of a timeout.
    pub fn of_wait(error: WaitError, stalled: impl FnOnce() -> Self) -> Self {
        match error {
            WaitError::TimedOut => stalled(),
            error => Self::Wait(error),
        }
    }
}
