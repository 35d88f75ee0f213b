//! The pingpong programs of libibverbs (`ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong`,
//! `ibv_srq_pingpong`), client and server: they talk to the originals.
//!
//! The originals receive into the buffer that they send from, so whatever they are sent comes back to whoever sent
//! it. The client here therefore sends something else in each message and checks the echo; the server sends back
//! what it was sent and checks that it is a content that one of the clients sends.

mod content;
mod run;
mod wire;

use std::net::IpAddr;
use std::time::Duration;

use roce_packet::PathMtu;
use roce_transport::{Cause, WcStatus};

use roce::observe::advice;
use roce::verbs::{VerbsError, WaitError};

pub use run::{Role, Session};

/// The TCP port of the originals.
pub const PORT: u16 = 18_515;
/// Queue pairs that `ibv_srq_pingpong` always talks about, however many it uses.
const MAX_QP: usize = 256;

/// Which of the four programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Reliable connections that share a receive queue.
    Srq,
}

impl Kind {
    /// The program that it talks to.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Rc => "ibv_rc_pingpong",
            Self::Uc => "ibv_uc_pingpong",
            Self::Ud => "ibv_ud_pingpong",
            Self::Srq => "ibv_srq_pingpong",
        }
    }
}

/// What both sides must agree on, and what each chooses.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which program.
    pub kind: Kind,
    /// Bytes of a message; at most the path MTU for UD.
    pub size: usize,
    /// Messages each way; all queue pairs together.
    pub iterations: u64,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Receives posted at a time.
    pub rx_depth: usize,
    /// Queue pairs, for [`Kind::Srq`]: 1 to 256.
    pub num_qp: usize,
    /// Index of the GID to send from.
    pub gid_index: Option<usize>,
    /// Whether to sleep on completion events.
    pub events: bool,
    /// Local ACK timeout of RC, 4.096 µs times 2^`timeout`; 1 to 31. The originals have 14.
    pub timeout: u8,
    /// How long nothing may happen before it is given up.
    pub patience: Duration,
}

/// Why a pingpong failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PingpongError {
    /// A number of the plan is out of range.
    #[error("{0}")]
    Plan(String),
    /// The exchange over TCP.
    #[error("{what}: {error}; does {program} with the same options run on the other side?")]
    Exchange {
        /// What was being done.
        what: &'static str,
        /// The program that should be there.
        program: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
    /// The other side did not tell where it is.
    #[error("the other side sent no GID; start {program} there with -g INDEX (`ibv_devinfo -v` lists GIDs)")]
    NoGid {
        /// The program there.
        program: &'static str,
    },
    /// The other side uses another kind of address.
    #[error(
        "the other side has the GID of {remote}, which this device has no address to reach from; choose a GID of the \
         other IP version there (-g), or another --device here"
    )]
    GidMismatch {
        /// Its address.
        remote: IpAddr,
    },
    /// A verb.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Waiting failed.
    #[error(transparent)]
    Wait(WaitError),
    /// Nothing happened.
    #[error(
        "nothing came for {} s after {sent} messages sent and {received} received; {}",
        .patience.as_secs(),
        if *.reliable { "see whether the other side still runs" } else { "a lost message ends a pingpong without retransmission" }
    )]
    Stalled {
        /// Messages sent.
        sent: u64,
        /// Messages received.
        received: u64,
        /// How long it was waited.
        patience: Duration,
        /// Whether the transport retransmits.
        reliable: bool,
    },
    /// A work request failed.
    #[error("a work request failed with {} ({cause:?}): {}", .status.name(), advice(*.status, *.cause))]
    Completion {
        /// How.
        status: WcStatus,
        /// Why.
        cause: Cause,
    },
    /// A message arrived with the wrong content.
    #[error(
        "message {message} is wrong at byte {at}, which is {found:#04x}; no damage on the way does that, so record it with \
         --pcap and report it"
    )]
    Content {
        /// Which.
        message: u64,
        /// Where.
        at: usize,
        /// What was found.
        found: u8,
    },
    /// A message of another length.
    #[error("message {message} has {found} bytes instead of {expected}; give both sides the same size (-s)")]
    Length {
        /// Which.
        message: u64,
        /// How long it should be.
        expected: usize,
        /// How long it is.
        found: usize,
    },
}

/// What a run measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Payload both ways.
    pub bytes: u64,
    /// Messages each way.
    pub iterations: u64,
    /// From the first message to the last, in seconds.
    pub elapsed_s: f64,
    /// Completion events, if they were used.
    pub events: u64,
    /// Messages at the end that nobody acknowledged: the other side had sent all of its own and left.
    pub unacknowledged: u64,
    /// Packets that this side sent again.
    pub retransmitted_packets: u64,
}
