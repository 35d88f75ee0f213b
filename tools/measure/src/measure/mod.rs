//! The two measurements of MacArthur and Russell, "A Performance Study to Guide RDMA Programming Decisions"
//! (2012): `ping`, a message in each direction in turn, and `blast`, many messages in one direction.
//!
//! One function runs each role; `roce ping`, `roce blast`, `roce demo` and the benches call them. Every
//! message is checked. The stamp in its first bytes is checked when it arrives, the whole content at the end
//! of a size.

mod blast;
mod clients;
mod ping;
mod plan;
mod run;
mod session;
mod usage;
mod work;

pub use clients::{Clients, Ended, Event, Limits, Totals};
pub use plan::{Completion, Op, Plan, Post, Signal, Tool};
pub use run::{DEFAULT_MEMORY, Served, ServerOptions, run_client, serve};
pub use usage::CpuUsage;
pub(crate) use usage::Stopwatch;

use serde::{Deserialize, Serialize};

use crate::harness::statistics::gigabits_per_s;

/// The measurements of one side for one message size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Processor time of this process, with that for other clients of a server, and elapsed time.
    pub cpu: CpuUsage,
    /// Packets that this side retransmitted.
    pub retransmitted_packets: u64,
    /// Expired retransmission timers: early ones and local ACK timeouts.
    pub timeouts: u64,
    /// RNR NAKs that this side received.
    pub rnr_naks: u64,
}

/// The result for one message size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Bytes of a message.
    pub size: usize,
    /// Messages, or round trips.
    pub iterations: u64,
    /// Time from the first post to the last completion, in seconds. In the row of a server: its own time from
    /// the end of the preparation to the last message, or to the report of a client that writes or reads.
    pub elapsed_s: f64,
    /// Payload bits per second, in units of 10^9.
    pub gigabits_per_s: f64,
    /// Messages per second.
    pub messages_per_s: f64,
    /// Microseconds per message: elapsed time / messages for blast, half a round trip for ping.
    pub one_way_us: f64,
    /// Half round trips of ping, in microseconds: minimum, median, 99th percentile, maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentiles_us: Option<[f64; 4]>,
    /// The client's side.
    pub client: Side,
    /// The server's side.
    pub server: Side,
}

impl Row {
    fn new(plan: &Plan, size: usize, elapsed_s: f64, client: Side) -> Self {
        let messages = plan.messages() as f64;
        Self {
            size,
            iterations: plan.iterations,
            elapsed_s,
            gigabits_per_s: gigabits_per_s(size as f64 * messages, elapsed_s),
            messages_per_s: messages / elapsed_s,
            one_way_us: elapsed_s * 1e6 / messages,
            percentiles_us: None,
            client,
            server: Side::default(),
        }
    }
}
