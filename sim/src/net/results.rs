//! The results of a simulation.

use super::application::Application;
use super::flow::{FlowResult, FlowState};
use super::histogram::Histogram;
use super::port::{DropReason, PauseStep, PortStats};
use super::time::Time;
use super::waits::Deadlock;

/// All results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// A hash over all events, which is equal for equal runs.
    pub trace_hash: u64,
    /// The number of handled events.
    pub events: u64,
    /// The time at which the last flow ended or the simulation stopped.
    pub end: Time,
    /// The result of each flow, in the order of the workload.
    pub flows: Vec<FlowResult>,
    /// The end of each task of the schedule, in the order of the schedule. `None` if the task did not end.
    pub task_ends: Vec<Option<Time>>,
    /// The result of each host with an application, in the order of the topology.
    pub hosts: Vec<HostResult>,
    /// The result of each port, in the order of the links of the topology. Each link has two ports.
    pub ports: Vec<PortResult>,
    /// Rates of flows over time.
    pub rates: Vec<RatePoint>,
    /// Sums over all flows over time.
    pub totals: Vec<TotalPoint>,
    /// Queues of ports over time, without points at which the queue was empty.
    pub queues: Vec<QueuePoint>,
    /// Steps of pauses, ordered by time and then by port.
    pub pauses: Vec<PausePoint>,
    /// Cycles of paused ports, in the order in which they began.
    pub deadlocks: Vec<Deadlock>,
    /// The number of pause steps and deadlocks that were left out because there were too many.
    pub pauses_left_out: u64,
    /// The number of points that were left out because there were too many.
    pub points_left_out: u64,
    /// RoCE data packets that hosts sent.
    pub data_packets: u64,
    /// The number of payload bytes that receivers compared with the expected ones, and the number of writes
    /// with a wrong byte. Only real payload is compared.
    pub checked: (u64, u64),
    /// The largest number of frames in the network at the end of a time window. A window is as long as the
    /// minimum time that a frame takes from one switch to another.
    pub most_frames: usize,
}

/// The result of a host with an application.
#[derive(Clone, Debug, PartialEq)]
pub struct HostResult {
    /// The name of the host.
    pub name: String,
    /// The application.
    pub application: Application,
    /// The number of times that a thread checked the device.
    pub polls: u64,
    /// The number of times that a sleeping thread woke up.
    pub wake_ups: u64,
    /// The times in nanoseconds from the arrivals of packets to their handling.
    pub waits: Histogram,
}

/// The result of one end of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct PortResult {
    /// The name, which consists of the node and its neighbour.
    pub name: String,
    /// Whether the port belongs to a host.
    pub is_host: bool,
    /// The counters of the port.
    pub stats: PortStats,
    /// Queued bytes, over the samples at which the queue was not empty.
    pub queue: Histogram,
}

/// The rate of a flow at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatePoint {
    /// The end of the interval.
    pub time: Time,
    /// The number of the flow.
    pub flow: u32,
    /// Payload bits per second that left the sender in the interval, without retransmissions.
    pub goodput_bps: f64,
    /// The rate that the congestion control allows; infinite without a limit.
    pub rate_bps: f64,
    /// The target rate of the congestion control, if the algorithm has one.
    pub target_bps: Option<f64>,
    /// The estimate of congestion, if the algorithm has one.
    pub alpha: Option<f64>,
}

/// The sums over all flows at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TotalPoint {
    /// The end of the interval.
    pub time: Time,
    /// The number of running flows.
    pub flows: usize,
    /// Payload bits per second that left all senders in the interval, without retransmissions. Flows that
    /// ended in the interval are included.
    pub goodput_bps: f64,
    /// Jain's index of the rates of running flows, if one of them sent something.
    pub jain: Option<f64>,
}

/// The sums from which a [`TotalPoint`] is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Total {
    bytes: u64,
    flows: usize,
    sum: f64,
    squares: f64,
}

impl Total {
    /// Starts with the bytes of flows that have ended.
    pub(super) fn new(ended: u64) -> Self {
        Self { bytes: ended, flows: 0, sum: 0.0, squares: 0.0 }
    }

    /// Adds a running flow that has sent this number of bytes.
    pub(super) fn add(&mut self, bytes: u64) {
        let sent = bytes as f64;
        self.bytes += bytes;
        self.flows += 1;
        self.sum += sent;
        self.squares += sent * sent;
    }

    pub(super) fn point(self, time: Time, interval: Time) -> TotalPoint {
        let jain = (self.squares > 0.0).then(|| self.sum * self.sum / (self.squares * self.flows as f64));
        let goodput_bps = self.bytes as f64 * 8.0 / interval.as_secs_f64();
        TotalPoint { time, flows: self.flows, goodput_bps, jain }
    }
}

/// A queue at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePoint {
    /// The time of the sample.
    pub time: Time,
    /// The port, as an index into [`Results::ports`].
    pub port: u32,
    /// Queued bytes of all priorities.
    pub bytes: u64,
    /// Frames marked so far.
    pub marked: u64,
    /// The time for which the port has been paused so far, summed over all priorities.
    pub paused: Time,
}

/// A step of a pause at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PausePoint {
    /// The time of the step.
    pub time: Time,
    /// The port, as an index into [`Results::ports`].
    pub port: u32,
    /// The priority.
    pub priority: u8,
    /// The kind of the step.
    pub step: PauseStep,
}

impl Results {
    /// Returns the completion times of all complete flows in ascending order.
    #[must_use]
    pub fn completion_times(&self) -> Vec<Time> {
        let mut times: Vec<Time> = self.flows.iter().filter_map(|flow| flow.completion_time).collect();
        times.sort_unstable();
        times
    }

    /// Returns the completion time that the share `quantile` of all complete flows does not exceed.
    #[must_use]
    pub fn completion_quantile(&self, quantile: f64) -> Option<Time> {
        let times = self.completion_times();
        let wanted = (quantile * times.len() as f64).ceil().max(1.0) as usize;
        times.get(wanted - 1).or(times.last()).copied()
    }

    /// Returns the number of flows that are not complete.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.flows.iter().filter(|flow| flow.state != FlowState::Complete).count()
    }

    /// Returns the flows that failed or were refused, with their numbers.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &FlowResult)> {
        self.flows.iter().enumerate().filter(|(_, flow)| flow.state.failure().is_some())
    }

    /// Returns the number of flows in this state.
    #[must_use]
    pub fn in_state(&self, state: FlowState) -> usize {
        self.flows.iter().filter(|flow| flow.state == state).count()
    }

    /// Returns the number of frames dropped for this reason, summed over all ports.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.ports.iter().map(|port| port.stats.dropped[reason as usize]).sum()
    }

    /// Returns the sum of a counter over all ports.
    pub fn sum(&self, of: impl Fn(&PortStats) -> u64) -> u64 {
        self.ports.iter().map(|port| of(&port.stats)).sum()
    }

    /// Returns the switch port that had the longest queue, if a sample found a queue there.
    #[must_use]
    pub fn longest_queue(&self) -> Option<&PortResult> {
        let ports = self.ports.iter().filter(|port| !port.is_host);
        ports.max_by_key(|port| port.stats.queue_most).filter(|port| port.queue.count() > 0)
    }

    /// Returns the port from one node to another.
    #[must_use]
    pub fn port(&self, from: &str, to: &str) -> Option<&PortResult> {
        let name = port_name(from, to);
        self.ports.iter().find(|port| port.name == name)
    }

    /// Returns the mean rate of a flow after `from` in payload bits per second, without retransmissions, or
    /// `None` if no sample found the flow running after `from`.
    #[must_use]
    pub fn goodput_after(&self, flow: u32, from: Time) -> Option<f64> {
        let points = self.rates.iter().filter(|point| point.flow == flow && point.time > from);
        let (sum, count) = points.fold((0.0, 0), |(sum, count), point| (sum + point.goodput_bps, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Returns Jain's index of the rates of all complete flows: 1 if all are equal, 1/n if one flow has the
    /// whole rate.
    #[must_use]
    pub fn jain(&self) -> f64 {
        let rates: Vec<f64> =
            self.flows.iter().map(FlowResult::goodput_bps).filter(|rate| *rate > 0.0).collect();
        let (sum, squares) = rates.iter().fold((0.0, 0.0), |(sum, squares), r| (sum + r, squares + r * r));
        if squares > 0.0 { sum * sum / (squares * rates.len() as f64) } else { 0.0 }
    }
}

/// Returns the name in results of the port of `from` towards `to`.
#[must_use]
pub fn port_name(from: &str, to: &str) -> String {
    format!("{from}->{to}")
}
