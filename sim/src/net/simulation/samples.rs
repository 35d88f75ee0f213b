//! The samples of rates and queues.

use crate::net::histogram::Histogram;
use crate::net::results::{QueuePoint, RatePoint, TotalPoint};
use crate::net::time::Time;

/// The samples so far, and the state for the next sample.
pub(super) struct Samples {
    /// Queued bytes of each port.
    pub(super) of_ports: Vec<Histogram>,
    pub(super) rates: Vec<RatePoint>,
    pub(super) queues: Vec<QueuePoint>,
    pub(super) totals: Vec<TotalPoint>,
    /// The number of points that were left out.
    pub(super) left_out: u64,
    /// Bytes of ended flows that were sent after the last sample.
    pub(super) ended_bytes: u64,
    /// Running flows, and flows that have ended since the last sample.
    pub(super) running: Vec<u32>,
    pub(super) last: Time,
}

impl Samples {
    pub(super) fn new(ports: usize) -> Self {
        Self {
            of_ports: vec![Histogram::default(); ports],
            rates: Vec::new(),
            queues: Vec::new(),
            totals: Vec::new(),
            left_out: 0,
            ended_bytes: 0,
            running: Vec::new(),
            last: Time::ZERO,
        }
    }
}
