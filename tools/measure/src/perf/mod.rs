//! Client and server of the bandwidth and latency tests of perftest (`ib_write_bw`, `ib_send_lat` and so on).
//! Both work with the originals.
//!
//! The originals do not check the content of messages. This program does. Between two sides of this program,
//! every message carries its number and a known content. An original sends from buffers of random bytes that
//! never change, so its messages must equal its earlier ones.

mod bandwidth;
mod buffers;
mod connect;
mod content;
mod end;
pub mod exchange;
mod latency;
mod messages;
mod original;
mod receiver;
mod sender;
mod session;
mod sidr;
mod statistics;
mod traffic;
mod verify;

use std::time::Duration;

use roce_exchange::{GRH, ToolError};
use roce_packet::PathMtu;
use roce_transport::QpType;
use serde::Serialize;

use crate::harness::Role;

pub use connect::ConnectMethod;
pub use messages::{LARGEST_MESSAGE, Messages, connect_when_listening};
pub use session::{Row, Session};
pub use statistics::{Bandwidth, Latency, Rate};

/// The TCP port of the originals.
pub const PORT: u16 = 18_515;
/// The largest size of `-a`: 8 MiB.
const LARGEST: usize = 1 << 23;
/// The longest list of `-l`.
const LONGEST_LIST: usize = 128;

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// SEND.
    Send,
    /// RDMA READ.
    Read,
    /// Atomic operations of 8 bytes.
    Atomic,
}

impl Verb {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

/// The quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Test {
    /// Bandwidth.
    #[serde(rename = "bw")]
    Bandwidth,
    /// Latency.
    #[serde(rename = "lat")]
    Latency,
}

impl Test {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Latency => "lat",
        }
    }
}

/// Transport of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Connection {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Which atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AtomicOp {
    /// Adds 1.
    #[serde(rename = "FETCH_AND_ADD")]
    FetchAdd,
    /// Replaces 0 by 0.
    #[serde(rename = "CMP_AND_SWAP")]
    CompareSwap,
}

/// The duration of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// A fixed number of messages on each queue pair.
    Iterations(u64),
    /// A number of seconds, of which a margin at both ends is not measured.
    Seconds {
        /// The whole duration.
        all: u64,
        /// The margin at each end, which is not measured.
        margin: u64,
    },
    /// A test without end, which prints a row after each interval.
    Endless {
        /// Seconds of an interval.
        interval: u64,
    },
}

/// Bytes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// A fixed number of bytes.
    Given(usize),
    /// A number of bytes, or the path MTU if that is less and the transport is UD.
    Default(usize),
    /// Every power of two from 2 bytes to 8 MiB, or to the path MTU for UD.
    All,
}

/// The options of a test. Both sides must agree on some of them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operation.
    pub verb: Verb,
    /// Bandwidth or latency.
    pub test: Test,
    /// The transport.
    pub connection: Connection,
    /// Bytes of a message.
    pub size: Size,
    /// The duration of the test.
    pub length: Length,
    /// Bandwidth: whether both sides send.
    pub bidirectional: bool,
    /// The number of queue pairs.
    pub num_qp: usize,
    /// Outstanding send requests of each queue pair.
    pub tx_depth: usize,
    /// Receives posted on each queue pair.
    pub rx_depth: usize,
    /// The number of send requests for each signaled one.
    pub cq_mod: usize,
    /// Bandwidth: the number of send requests that are posted at once; `None` posts as many as are free, up
    /// to 16.
    pub post_list: Option<usize>,
    /// Bandwidth: maximum number of outstanding send requests of all queue pairs together; `None`: limited by
    /// `tx_depth` only.
    pub in_flight: Option<usize>,
    /// Whether to sleep until completion events arrive.
    pub events: bool,
    /// Outstanding READs and atomics of each queue pair.
    pub out_reads: u8,
    /// Messages up to this number of bytes are posted inline.
    pub inline: usize,
    /// The atomic operation.
    pub atomic: AtomicOp,
    /// Path MTU; `None` is the largest that the link supports.
    pub mtu: Option<PathMtu>,
    /// Index of the GID to send from.
    pub gid_index: Option<usize>,
    /// Whether rdma_cm connects the queue pairs.
    pub rdma_cm: bool,
    /// Whether blocks are exchanged over rdma_cm. If rdma_cm connects the queue pairs, this is always the
    /// case.
    pub comm_rdma_cm: bool,
    /// Whether the server sends and the client receives.
    pub reversed: bool,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Retries after a timeout or a NAK, 0 to 7.
    pub retry_count: u8,
    /// Local ACK timeout, 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Whether rates are in units of 10^9 bits instead of 2^20 bytes.
    pub gigabits: bool,
    /// Whether to measure the peak bandwidth.
    pub peak: bool,
    /// Time limit for the next message.
    pub patience: Duration,
}

impl Plan {
    /// Returns the name of the program that runs on the other side.
    #[must_use]
    pub fn program(&self) -> &'static str {
        match (self.verb, self.test) {
            (Verb::Write, Test::Bandwidth) => "ib_write_bw",
            (Verb::Write, Test::Latency) => "ib_write_lat",
            (Verb::Send, Test::Bandwidth) => "ib_send_bw",
            (Verb::Send, Test::Latency) => "ib_send_lat",
            (Verb::Read, Test::Bandwidth) => "ib_read_bw",
            (Verb::Read, Test::Latency) => "ib_read_lat",
            (Verb::Atomic, Test::Bandwidth) => "ib_atomic_bw",
            (Verb::Atomic, Test::Latency) => "ib_atomic_lat",
        }
    }

    /// Returns the sizes that are measured with this path MTU.
    fn sizes(&self, mtu: PathMtu) -> Result<Vec<usize>, ToolError> {
        let most = if self.connection == Connection::Ud { mtu.bytes() } else { usize::MAX };
        match self.size {
            Size::Given(size) if size > most => Err(ToolError::Plan(format!(
                "{size} bytes do not fit into one UD message with path MTU {most} (-s, -m)"
            ))),
            Size::Given(size) => Ok(vec![size]),
            Size::Default(size) => Ok(vec![size.min(most)]),
            Size::All => {
                let doubled = std::iter::successors(Some(2), |size| Some(size * 2));
                Ok(doubled.take_while(|size| *size <= LARGEST.min(most)).collect())
            }
        }
    }

    /// Returns whether the result of a request is written to the memory of this side.
    fn lands(&self) -> bool {
        matches!(self.verb, Verb::Read | Verb::Atomic)
    }

    /// Returns the number of bytes in front of received messages.
    fn headroom(&self) -> usize {
        if self.connection == Connection::Ud { GRH } else { 0 }
    }

    fn is_reliable(&self) -> bool {
        self.connection == Connection::Rc
    }

    fn iterations(&self) -> Option<u64> {
        match self.length {
            Length::Iterations(iterations) => Some(iterations),
            Length::Seconds { .. } | Length::Endless { .. } => None,
        }
    }

    /// Returns the role of a side in the test, given its role in the exchange.
    pub(super) fn role(&self, role: Role) -> Role {
        if self.reversed { role.other() } else { role }
    }

    /// Returns the settings that must agree, as options.
    fn settings(&self) -> Vec<String> {
        let size = match self.size {
            Size::Given(size) | Size::Default(size) => format!("-s {size}"),
            Size::All => "-a".to_owned(),
        };
        let length = match self.length {
            Length::Iterations(iterations) => format!("-n {iterations}"),
            Length::Seconds { all, .. } => format!("-D {all}"),
            Length::Endless { .. } => "--run_infinitely".to_owned(),
        };
        let flag = |name: &str, is_set: bool| if is_set { name.to_owned() } else { format!("no {name}") };
        let atomic = match (self.verb, self.atomic) {
            (Verb::Atomic, AtomicOp::FetchAdd) => "-A FETCH_AND_ADD",
            (Verb::Atomic, AtomicOp::CompareSwap) => "-A CMP_AND_SWAP",
            _ => "no -A",
        };
        let connection = format!("-c {:?}", self.connection).to_uppercase().replacen("-C", "-c", 1);
        vec![
            self.program().to_owned(),
            connection,
            size,
            length,
            format!("-q {}", self.num_qp),
            flag("-b", self.bidirectional),
            flag("--reversed", self.reversed),
            flag("-R", self.rdma_cm),
            atomic.to_owned(),
        ]
    }

    fn qp_type(&self) -> QpType {
        match self.connection {
            Connection::Rc => QpType::Rc,
            Connection::Uc => QpType::Uc,
            Connection::Ud => QpType::Ud,
        }
    }

    /// Checks whether the plan can be carried out.
    ///
    /// # Errors
    ///
    /// The first value that is out of range, and the option that changes it.
    pub fn check(&self) -> Result<(), ToolError> {
        let refuse = |text: &str| Err(ToolError::Plan(text.to_owned()));
        match (self.connection, self.verb) {
            (Connection::Uc, Verb::Read | Verb::Atomic) => {
                return refuse("UC supports neither READ nor atomics; use -c RC");
            }
            (Connection::Ud, verb) if verb != Verb::Send => {
                return refuse("UD supports only SEND; use -c RC or `roce perf send`");
            }
            (Connection::Uc, _) if self.rdma_cm => {
                return refuse(
                    "rdma_cm does not connect UC queue pairs, neither here nor in perftest; leave out -R or \
                     use -c RC",
                );
            }
            _ => {}
        }
        if self.verb == Verb::Atomic && !matches!(self.size, Size::Given(8) | Size::Default(8)) {
            return refuse("atomic operations have 8 bytes; leave out -s and -a");
        }
        if matches!(self.size, Size::Given(size) if !(1..=1 << 30).contains(&size)) {
            return refuse("choose a size of 1 byte to 1 GiB (-s)");
        }
        match self.length {
            Length::Iterations(count) if !(5..=100_000_000).contains(&count) => {
                return refuse("choose 5 to 100000000 iterations (-n)");
            }
            Length::Seconds { all, margin } if all > 86_400 || all <= margin.saturating_mul(2) => {
                return refuse("choose 1 to 86400 seconds (-D), more than two margins (-f)");
            }
            Length::Endless { interval } if !(1..=86_400).contains(&interval) => {
                return refuse("choose an interval of 1 to 86400 seconds (-D)");
            }
            Length::Seconds { .. } | Length::Endless { .. } if self.size == Size::All => {
                return refuse("-a cannot be combined with -D or --run_infinitely");
            }
            _ => {}
        }
        let is_latency = self.test == Test::Latency;
        if is_latency && (self.bidirectional || self.num_qp != 1) {
            return refuse("-b and -q are for bandwidth tests");
        }
        if !(1..=16_384).contains(&self.num_qp) {
            return refuse("choose 1 to 16384 queue pairs (-q)");
        }
        if !(1..=32_768).contains(&self.tx_depth) || !(1..=32_768).contains(&self.rx_depth) {
            return refuse("choose depths of 1 to 32768 (-t, -r)");
        }
        if !(1..=self.tx_depth).contains(&self.cq_mod) {
            return refuse("choose 1 to the depth of the send queue for -Q");
        }
        self.check_habits()?;
        if self.inline > roce_transport::MAX_INLINE {
            return refuse("at most 512 bytes are posted inline (-I)");
        }
        if !(1..=128).contains(&self.out_reads) {
            return refuse("choose 1 to 128 outstanding reads (-o)");
        }
        Ok(())
    }

    /// Refuses combinations that perftest refuses, too.
    fn check_habits(&self) -> Result<(), ToolError> {
        let refuse = |text: &str| Err(ToolError::Plan(text.to_owned()));
        let is_latency = self.test == Test::Latency;
        if matches!(self.length, Length::Endless { .. }) && (is_latency || self.bidirectional) {
            return refuse("--run_infinitely is for bandwidth tests in one direction");
        }
        if self.events && is_latency && self.verb == Verb::Write {
            return refuse(
                "-e cannot be combined with a latency test of WRITE, whose messages cause no completions",
            );
        }
        if self.reversed && (self.rdma_cm || self.comm_rdma_cm) {
            return refuse("--reversed needs the exchange over TCP; leave out -R and -z");
        }
        if self.in_flight.is_some() && (is_latency || self.post_list.is_some() || self.cq_mod != 1) {
            return refuse("--in-flight is for bandwidth tests that signal every request (-Q 1), without -l");
        }
        if self.in_flight == Some(0) {
            return refuse("choose at least 1 for --in-flight");
        }
        let Some(list) = self.post_list else { return Ok(()) };
        if is_latency {
            return refuse("-l is for bandwidth tests");
        }
        if !(1..=LONGEST_LIST.min(self.tx_depth)).contains(&list) {
            return refuse(
                "choose a list of 1 to 128 requests, at most the depth of the send queue (-l, -t)",
            );
        }
        if !list.is_multiple_of(self.cq_mod) {
            return refuse("the length of the list must be a multiple of -Q (-l)");
        }
        if self.iterations().is_some_and(|iterations| !iterations.is_multiple_of(list as u64)) {
            return refuse("the number of iterations must be a multiple of the length of the list (-n, -l)");
        }
        Ok(())
    }
}
