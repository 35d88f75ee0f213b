//! Client and server of the pingpong programs of libibverbs (`ibv_rc_pingpong`, `ibv_uc_pingpong`,
//! `ibv_ud_pingpong`, `ibv_srq_pingpong`). Both work with the originals.
//!
//! The originals receive into the buffer that they send from, so they echo every message. Therefore the
//! client here sends a different content in each message and checks the echo. The server echoes each message
//! and checks that it has the content of one of the clients.

mod content;
mod run;
mod wire;

use std::time::Duration;

use roce_exchange::{GRH, ToolError};
use roce_packet::PathMtu;
use roce_transport::QpType;

pub use run::Session;

/// The TCP port of the originals.
pub const PORT: u16 = 18_515;
/// The number of queue pairs in the exchange of `ibv_srq_pingpong`, even if it uses fewer.
const MAX_QP: usize = 256;

/// Which of the four programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq => "srq",
        }
    }

    /// Returns the program on the other side.
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

/// The options of a run. Both sides must agree on some of them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program.
    pub kind: Kind,
    /// Bytes of a message; at most the path MTU for UD.
    pub size: usize,
    /// Messages in each direction, all queue pairs together.
    pub iterations: u64,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Number of posted receives.
    pub rx_depth: usize,
    /// Queue pairs, for [`Kind::Srq`]: 1 to 256.
    pub num_qp: usize,
    /// Index of the GID to send from.
    pub gid_index: Option<usize>,
    /// Whether to sleep on completion events.
    pub events: bool,
    /// Local ACK timeout of RC, 4.096 µs × 2^`timeout`; 1 to 31. The originals use 14.
    pub timeout: u8,
    /// Time limit without any progress.
    pub patience: Duration,
}

impl Plan {
    fn qp_type(&self) -> QpType {
        match self.kind {
            Kind::Rc | Kind::Srq => QpType::Rc,
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
        }
    }

    /// Returns the number of bytes from one buffer to the next.
    fn stride(&self) -> usize {
        (self.size + GRH).next_multiple_of(64)
    }

    /// Checks the numbers of the plan.
    ///
    /// # Errors
    ///
    /// The first number that is out of range.
    pub fn check(&self) -> Result<(), ToolError> {
        let refuse = |text: String| Err(ToolError::Plan(text));
        let largest = self.mtu.bytes();
        if self.size == 0 || self.size > 1 << 30 {
            return refuse(format!("messages of {} bytes: choose 1 byte to 1 GiB (-s)", self.size));
        }
        if self.kind == Kind::Ud && self.size > largest {
            return refuse(format!(
                "{} bytes do not fit into one UD message with path MTU {largest} (-s, -m)",
                self.size
            ));
        }
        if self.kind == Kind::Srq && !(1..=MAX_QP).contains(&self.num_qp) {
            return refuse(format!("{} queue pairs: choose 1 to {MAX_QP} (-q)", self.num_qp));
        }
        let receives = if self.kind == Kind::Srq { self.num_qp.max(1) } else { 1 };
        if !(receives..=16_384).contains(&self.rx_depth) {
            return refuse(format!(
                "{} receives: choose at least one for each queue pair (-r)",
                self.rx_depth
            ));
        }
        if self.iterations == 0 {
            return refuse("0 iterations: choose at least one (-n)".to_owned());
        }
        Ok(())
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Payload in both directions.
    pub bytes: u64,
    /// Messages in each direction.
    pub iterations: u64,
    /// Time from the first message to the last, in seconds.
    pub elapsed_s: f64,
    /// Completion events, if they were used.
    pub events: u64,
    /// Messages at the end without an acknowledgement, because the other side had received everything and
    /// exited.
    pub unacknowledged: u64,
    /// Packets that this side retransmitted.
    pub retransmitted_packets: u64,
}
