//! The speed of a device without a protocol: frames that look like those of a transfer, sent as fast as possible,
//! and round trips of one frame. Every other speed can be stated as a share of this one, measured in the same run.
//!
//! The frames are WRITEs with a right ICRC, built once; for each one the bytes are copied into the device's slot
//! and a number is put in, as an engine would copy them out of memory. The other side looks at the number in
//! each and returns a credit for every few. There are no queue pairs, no acknowledgements and no checks.

mod frames;
mod run;
mod tcp;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use run::{client, serve};

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Payload bytes of the frames, each measured on its own.
    pub sizes: Vec<usize>,
    /// Frames of each size one way.
    pub frames: u64,
    /// Round trips of the smallest size.
    pub round_trips: u64,
    /// Outstanding frames.
    pub window: u64,
    /// Whether kernel TCP between the same two addresses is measured too.
    pub tcp: bool,
}

/// One size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Payload bytes of a frame.
    pub size: usize,
    /// Bytes of a frame from BTH to ICRC.
    pub datagram_bytes: usize,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that arrived.
    pub arrived: u64,
    /// From the first frame to the last credit, in seconds.
    pub elapsed_s: f64,
    /// Payload that arrived, in 10^9 bits a second.
    pub gigabits_per_s: f64,
    /// Frames that arrived a second.
    pub frames_per_s: f64,
}

/// Half round trips in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The least.
    pub least_us: f64,
    /// The median.
    pub median_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
}

/// All that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The kind of the client's device and of the server's.
    pub kinds: [String; 2],
    /// One way, by size.
    pub rows: Vec<Row>,
    /// Round trips.
    pub latency: Option<Latency>,
    /// Kernel TCP, one way: 10^9 bits a second with 64 KiB writes.
    pub tcp_gigabits_per_s: Option<f64>,
    /// Kernel TCP, round trips of 8 bytes, where no side sleeps.
    pub tcp_latency: Option<Latency>,
    /// The same where both sides sleep in `epoll_wait` until there is something to read.
    pub tcp_event_latency: Option<Latency>,
}

/// The description that each side sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Introduction {
    kind: String,
    address: IpAddr,
    max_payload: usize,
}
