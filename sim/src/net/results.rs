//! What a simulation found out.

use super::flow::{FlowResult, FlowState};
use super::histogram::Histogram;
use super::port::{DropReason, PortStats};
use super::time::Time;

/// Everything that came out of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// A hash over all that happened: equal for equal runs.
    pub trace_hash: u64,
    /// Events that were worked on.
    pub events: u64,
    /// When the last flow ended, or the simulation was stopped.
    pub end: Time,
    /// One of each flow, in the order of the workload.
    pub flows: Vec<FlowResult>,
    /// One of each port: two for each link of the topology, in its order.
    pub ports: Vec<PortResult>,
    /// Rates of flows over time.
    pub rates: Vec<RatePoint>,
    /// Queues of ports over time; points at which a queue was empty are left out.
    pub queues: Vec<QueuePoint>,
    /// Points that were left out because there were too many.
    pub points_left_out: u64,
    /// RoCE data packets that hosts sent.
    pub data_packets: u64,
    /// Bytes of payload that receivers compared with what they should be (real payload only), and writes in which they
    /// differed.
    pub checked: (u64, u64),
    /// The most frames that were under way at one time.
    pub most_frames: usize,
}

/// What happened at one end of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct PortResult {
    /// The node and its neighbour.
    pub name: String,
    /// Whether a host owns it.
    pub is_host: bool,
    /// What it counted.
    pub stats: PortStats,
    /// Bytes that waited, at the samples at which any did.
    pub queue: Histogram,
}

/// The rate of a flow at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatePoint {
    /// The end of the interval.
    pub time: Time,
    /// Which flow.
    pub flow: u32,
    /// Payload bits a second that left its sender for the first time in the interval.
    pub goodput_bps: f64,
    /// The rate that its congestion control allows; infinite without limit.
    pub rate_bps: f64,
    /// The rate that it wants to come back to, where there is such a thing.
    pub target_bps: Option<f64>,
    /// Its estimate of congestion, where there is such a thing.
    pub alpha: Option<f64>,
}

/// A queue at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePoint {
    /// When.
    pub time: Time,
    /// Which port, by its place in [`Results::ports`].
    pub port: u32,
    /// Bytes that waited, of all priorities.
    pub bytes: u64,
    /// Frames marked so far.
    pub marked: u64,
    /// How long it has stood still so far, all priorities together.
    pub paused: Time,
}

impl Results {
    /// Completion times of all complete flows, shortest first.
    #[must_use]
    pub fn completion_times(&self) -> Vec<Time> {
        let mut times: Vec<Time> = self.flows.iter().filter_map(|flow| flow.completion_time).collect();
        times.sort_unstable();
        times
    }

    /// The completion time that the part `quantile` of all complete flows does not exceed.
    #[must_use]
    pub fn completion_quantile(&self, quantile: f64) -> Option<Time> {
        let times = self.completion_times();
        let wanted = (quantile * times.len() as f64).ceil().max(1.0) as usize;
        times.get(wanted - 1).or(times.last()).copied()
    }

    /// Flows that are not complete.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.flows.iter().filter(|flow| flow.state != FlowState::Complete).count()
    }

    /// Frames dropped everywhere for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.ports.iter().map(|port| port.stats.dropped[reason as usize]).sum()
    }

    /// The sum of something over all ports.
    pub fn sum(&self, of: impl Fn(&PortStats) -> u64) -> u64 {
        self.ports.iter().map(|port| of(&port.stats)).sum()
    }

    /// The port from one node to another.
    #[must_use]
    pub fn port(&self, from: &str, to: &str) -> Option<&PortResult> {
        let name = port_name(from, to);
        self.ports.iter().find(|port| port.name == name)
    }

    /// Payload bits a second that a flow sent for the first time after `from`, in the mean of the samples at which it ran;
    /// `None` if there are none.
    #[must_use]
    pub fn goodput_after(&self, flow: u32, from: Time) -> Option<f64> {
        let points = self.rates.iter().filter(|point| point.flow == flow && point.time > from);
        let (sum, count) = points.fold((0.0, 0), |(sum, count), point| (sum + point.goodput_bps, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Jain's index of the rates of all complete flows: 1 when all are equal, 1/n when one has everything.
    #[must_use]
    pub fn jain(&self) -> f64 {
        let rates: Vec<f64> =
            self.flows.iter().map(FlowResult::goodput_bps).filter(|rate| *rate > 0.0).collect();
        let (sum, squares) = rates.iter().fold((0.0, 0.0), |(sum, squares), r| (sum + r, squares + r * r));
        if squares > 0.0 { sum * sum / (squares * rates.len() as f64) } else { 0.0 }
    }
}

/// How results call the port of `from` towards `to`.
#[must_use]
pub fn port_name(from: &str, to: &str) -> String {
    format!("{from}->{to}")
}
