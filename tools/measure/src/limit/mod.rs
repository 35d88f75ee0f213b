//! The speed of a device without a protocol: frames like those of a transfer, sent as fast as possible, and
//! round trips of one frame. Every other speed can be stated as a share of this one, measured in the same
//! run.
//!
//! The frames are WRITEs with a valid ICRC, built once. For each frame, the bytes are copied into the
//! device's slot and a number is written, just as an engine copies them out of memory. The other side reads
//! the number of each frame and returns a credit for several frames. There are no queue pairs, no
//! acknowledgements and no checks.

mod frames;
mod run;
mod tcp;

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::harness::statistics::percentile;

pub use run::{client, serve};

/// Time limit for a frame of the other side, and for bytes of kernel TCP.
const PATIENCE: Duration = Duration::from_secs(3);

/// A measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Payload bytes of the frames. Each size is measured separately.
    pub sizes: Vec<usize>,
    /// Frames per size in the one-way measurement.
    pub frames: u64,
    /// Round trips with the smallest size.
    pub round_trips: u64,
    /// Maximum number of outstanding frames.
    pub window: u64,
    /// Whether to measure kernel TCP between the same two addresses, too.
    pub tcp: bool,
}

/// The result for one size.
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
    /// Time from the first frame to the last credit, in seconds.
    pub elapsed_s: f64,
    /// Received payload, in 10^9 bits per second.
    pub gigabits_per_s: f64,
    /// Received frames per second.
    pub frames_per_s: f64,
}

/// Half round trips, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The minimum.
    pub least_us: f64,
    /// The median.
    pub median_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
}

impl Latency {
    /// Returns minimum, median and 99th percentile of a set of times, which must not be empty.
    fn of(times: &mut [f64]) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| percentile(times, share).unwrap_or(f64::NAN);
        Self { least_us: at(0.0), median_us: at(0.5), p99_us: at(0.99) }
    }
}

/// The result of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The device kinds of the client and of the server.
    pub kinds: [String; 2],
    /// The one-way results by size.
    pub rows: Vec<Row>,
    /// The latency of the device.
    pub latency: Option<Latency>,
    /// One-way throughput of kernel TCP with 64 KiB writes, in 10^9 bits per second.
    pub tcp_gigabits_per_s: Option<f64>,
    /// Latency of kernel TCP with messages of 8 bytes. Neither side sleeps.
    pub tcp_latency: Option<Latency>,
    /// Latency of kernel TCP with messages of 8 bytes. Both sides sleep in `epoll_wait` until there is
    /// something to read.
    pub tcp_event_latency: Option<Latency>,
}

/// The description that each side sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Introduction {
    kind: String,
    address: IpAddr,
    max_payload: usize,
}
