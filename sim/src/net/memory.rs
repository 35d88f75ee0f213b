//! An estimate of the memory that a run requires, before the run begins.

use std::mem::size_of;

use roce_packet::Telemetry;
use roce_transport::Recovery;

use super::flow::Flow;
use super::frame::{Frame, wire_len};
use super::histogram::Histogram;
use super::nic::MOST_QUEUE_PAIRS;
use super::port::Port;
use super::process::Process;
use super::results::{QueuePoint, RatePoint};
use super::settings::{HostSettings, PayloadMode, Settings};
use super::time::Time;
use super::topology::{NodeKind, Topology};
use super::workload::{FlowSpec, Schedule, Task};

/// The memory required by a run, in parts with different causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The parts.
    pub parts: Vec<MemoryPart>,
}

/// A part of the memory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// The consumer of the memory.
    pub what: String,
    /// The approximate number of bytes that the run always takes.
    pub least: u64,
    /// The number of bytes with full windows, queues and series.
    pub most: u64,
    /// The keys of a scenario that affect this part.
    pub keys: &'static str,
}

impl MemoryEstimate {
    /// Estimates the memory of a run. The description of the network and its flows is excluded, because it
    /// exists already.
    #[must_use]
    pub fn new(topology: &Topology, flows: &[FlowSpec], schedule: &Schedule, settings: &Settings) -> Self {
        let workload = Workload::new(topology, flows, schedule, settings);
        let parts = vec![
            network(topology, settings),
            workload.records(schedule),
            workload.queue_pairs(topology.hosts()),
            workload.packets(topology),
            workload.series(topology),
        ];
        Self { parts }
    }

    /// Returns the approximate number of bytes that the run always takes.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.parts.iter().map(|part| part.least).fold(0, u64::saturating_add)
    }

    /// Returns the number of bytes with full windows, queues and series.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.parts.iter().map(|part| part.most).fold(0, u64::saturating_add)
    }

    /// Returns the part that takes the most memory in any case.
    #[must_use]
    pub fn largest(&self) -> Option<&MemoryPart> {
        self.parts.iter().max_by_key(|part| part.least)
    }

    /// Returns the part that takes the most memory with full windows, queues and series.
    #[must_use]
    pub fn largest_at_most(&self) -> Option<&MemoryPart> {
        self.parts.iter().max_by_key(|part| part.most)
    }
}

/// Bytes of an idle engine. This constant and the next ones were measured;
/// `sim/scenario/tests/footprint.rs` compares estimates with runs.
const ENGINE: u64 = 6_500;
/// Bytes of a switch without its ports.
const SWITCH: u64 = 2_000;
/// Bytes of a port in addition to [`Port`]: its name, and its share of the buffer of a switch.
const OF_PORT: u64 = 300;
/// Bytes of an entry of a routing table, with its share of the sets of ports, which entries of a switch
/// share.
const ROUTE: u64 = 9;
/// Bytes of a queue pair with one outstanding request, of the room for each further completion, and of each
/// further request that was outstanding at once.
const QUEUE_PAIR: u64 = 1_500;
const COMPLETION: u64 = 50;
const REQUEST: u64 = 100;
/// Bytes of the counters of a queue pair that allocates them with the first loss, mark or READ.
const COUNTERS: u64 = 560;
/// Bytes of a task in addition to [`Task`]: in the agenda of its host, and as a part of its flow.
const OF_TASK: u64 = 150;
/// Bytes of a transfer of the scale-up network in addition to its task: at its receiver, and as an event.
const OF_SCALE_UP: u64 = 150;
/// Bytes of a packet without its payload that a responder keeps because an earlier packet is missing.
const EARLY: u64 = 128;
/// Bytes of a packet in flight whose path its sender remembers, in a queue that has grown, and of a path.
const PATH_OF_PACKET: u64 = 24;
const PATH: u64 = 16;

fn bytes_of<T>(count: usize) -> u64 {
    count as u64 * size_of::<T>() as u64
}

fn network(topology: &Topology, settings: &Settings) -> MemoryPart {
    let (hosts, nodes, ports) = (topology.hosts(), topology.nodes.len(), 2 * topology.links.len());
    let switches = (nodes - hosts) as u64;
    let is_host = |node: u32| topology.nodes[node as usize].kind == NodeKind::Host;
    let ends = topology.links.iter().flat_map(|link| [(link.a, link.b), (link.b, link.a)]);
    let mut with_hosts: Vec<u32> =
        ends.filter(|(host, other)| is_host(*host) && !is_host(*other)).map(|(_, switch)| switch).collect();
    with_hosts.sort_unstable();
    with_hosts.dedup();
    // The routes before, during and after each failure. Simultaneous failures share their routes.
    let versions = 1 + 2 * settings.failures.len() as u64;
    let routes = switches * with_hosts.len() as u64 * ROUTE;
    let fixed = hosts as u64 * ENGINE
        + bytes_of::<Process>(settings.with_application(hosts))
        + switches * SWITCH
        + ports as u64 * OF_PORT
        + bytes_of::<Port>(ports)
        + bytes_of::<Histogram>(ports);
    MemoryPart {
        what: format!("{hosts} hosts, {switches} switches and their ports and routes"),
        least: fixed + routes,
        most: fixed + routes * versions,
        keys: "[topology]",
    }
}

/// Totals over the flows of a run.
struct Workload<'a> {
    flows: &'a [FlowSpec],
    settings: &'a Settings,
    /// The minimum of the number of simultaneous flows.
    at_once: u64,
    /// The time in which the busiest host sends or receives all its bytes.
    duration: Time,
    /// Queue pairs of receivers, which are kept.
    receivers: u64,
}

impl<'a> Workload<'a> {
    fn new(topology: &Topology, flows: &'a [FlowSpec], schedule: &Schedule, settings: &'a Settings) -> Self {
        let rates = host_rates(topology);
        let mut is_scheduled = vec![false; flows.len()];
        for flow in schedule.flows() {
            if let Some(place) = is_scheduled.get_mut(flow as usize) {
                *place = true;
            }
        }
        // Bytes in both directions, and flows to each host.
        let mut loads = vec![([0_u64; 2], 0_u64); rates.len()];
        let (mut starts, mut ends) = (Vec::with_capacity(flows.len()), Vec::with_capacity(flows.len()));
        let mut last = Time::ZERO;
        for (flow, is_scheduled) in flows.iter().zip(is_scheduled) {
            for (direction, host) in [flow.source, flow.destination].into_iter().enumerate() {
                let Some(load) = loads.get_mut(host as usize) else { continue };
                load.0[direction] = load.0[direction].saturating_add(flow.bytes);
                load.1 += direction as u64;
            }
            let rate = rates.get(flow.source as usize).copied().unwrap_or(1);
            starts.push(flow.start);
            // The queue pairs of tasks exist from the start of their flow to the end of its last task.
            ends.push(if is_scheduled { Time::NEVER } else { flow.start + Time::to_send(flow.bytes, rate) });
            last = last.max(flow.start);
        }
        let busiest = loads
            .iter()
            .zip(&rates)
            .flat_map(|((bytes, _), rate)| bytes.map(|bytes| Time::to_send(bytes, *rate)));
        let duration = last + busiest.max().unwrap_or(Time::ZERO);
        let receivers = loads.iter().map(|(_, flows)| (*flows).min(MOST_QUEUE_PAIRS as u64)).sum();
        Self { flows, settings, at_once: most_at_once(starts, ends), duration, receivers }
    }

    /// Returns the memory of flows and tasks.
    fn records(&self, schedule: &Schedule) -> MemoryPart {
        let flows = bytes_of::<Flow>(self.flows.len()) + 64 * self.flows.len() as u64;
        let tasks = schedule.tasks().len();
        let scaled_up = schedule.scale_up_transfers() as u64;
        let bytes = flows + bytes_of::<Task>(tasks) + OF_TASK * tasks as u64 + OF_SCALE_UP * scaled_up;
        let keys = "[[flows]], [[collective]], [[training]]";
        let what = format!("{} flows and {tasks} tasks", self.flows.len());
        MemoryPart { what, least: bytes, most: bytes, keys }
    }

    fn queue_pairs(&self, hosts: usize) -> MemoryPart {
        let depth = self.all_hosts().map(|host| u64::from(host.depth)).min().unwrap_or(1);
        let further = depth.saturating_sub(1);
        let most = self.flows.len() as u64;
        let bytes = |requesters: u64, each: u64, of_further: u64| {
            requesters * (each + of_further * further) + self.receivers * each
        };
        MemoryPart {
            what: format!("The queue pairs of {most} flows among {hosts} hosts"),
            least: bytes(self.at_once, QUEUE_PAIR, COMPLETION),
            most: bytes(most, QUEUE_PAIR + COUNTERS, COMPLETION + REQUEST),
            keys: "host.depth, [[flows]], [[collective]], [[training]]",
        }
    }

    /// Returns the memory of packets in flight, and of packets that wait for a missing one.
    fn packets(&self, topology: &Topology) -> MemoryPart {
        let real = self.settings.payload == PayloadMode::Real;
        let (mut sent, mut kept) = (0_u64, 0_u64);
        for (number, flow) in (0..).zip(self.flows) {
            let host = self.settings.of_flow(number).0;
            let window = match host.recovery {
                Recovery::GoBackN => host.window_packets,
                Recovery::SelectiveRepeat(settings) => host.window_packets.min(settings.cap),
            };
            let packets = host.packets_of(flow.bytes).min(window.into());
            sent += packets;
            if let Recovery::SelectiveRepeat(_) = host.recovery {
                let payload = if real { host.path_mtu.bytes() as u64 } else { 0 };
                kept += packets * (EARLY + payload);
            }
            if host.paths.count() > 1 {
                kept += packets * PATH_OF_PACKET + u64::from(host.paths.count()) * PATH;
            }
        }
        // Not all flows run at the same time.
        let share = |sum: u64| {
            (u128::from(sum) * u128::from(self.at_once) / (self.flows.len() as u128).max(1)) as u64
        };
        let mtu = self.settings.largest_mtu() as u64;
        let frames = share(sent).saturating_mul(2).min(self.room_for_frames(topology));
        let payload = if real { mtu + 80 } else { 0 };
        let each = (size_of::<Frame>() + Telemetry::LEN) as u64 + payload;
        MemoryPart {
            what: format!("{frames} packets in the network, and those that wait for a missing one,"),
            least: 0,
            most: frames.saturating_mul(each).saturating_add(share(kept)),
            keys: "host.window, `cap` of host.recovery, host.paths, switch.buffer, payload",
        }
    }

    /// Returns the number of data packets and acknowledgements that links and buffers hold.
    fn room_for_frames(&self, topology: &Topology) -> u64 {
        let switches = topology.nodes.len() - topology.hosts();
        let on_links = topology.links.iter().map(|link| {
            let bits = link.spec.delay.as_secs_f64() * link.spec.rate_bps as f64;
            ((bits / 8.0) as u64).saturating_mul(2)
        });
        let buffers = self.settings.switch.buffer_bytes.saturating_mul(switches as u64);
        // Both queues of a host with an application.
        let sockets = self.settings.with_application(topology.hosts()) as u64;
        let sockets = self.settings.host.socket_buffer_bytes.saturating_mul(2 * sockets);
        let bytes = on_links.fold(buffers.saturating_add(sockets), u64::saturating_add);
        // There are at most as many acknowledgements as data packets.
        let mtu = self.all_hosts().map(|host| host.path_mtu.bytes()).min().unwrap_or(1_024);
        (bytes / u64::from(wire_len(mtu)) + topology.links.len() as u64).saturating_mul(2)
    }

    fn series(&self, topology: &Topology) -> MemoryPart {
        let measure = &self.settings.measure;
        let until = self.duration.min(self.settings.stop).as_ps();
        let samples = until / measure.interval.as_ps().max(1);
        let points = |each: u64| samples.saturating_mul(each).min(measure.most_points as u64);
        let (rates, queues) = (points(self.at_once), points(2 * topology.links.len() as u64));
        MemoryPart {
            what: format!("{rates} points of rates and {queues} of queues"),
            least: 0,
            most: bytes_of::<RatePoint>(rates as usize) + bytes_of::<QueuePoint>(queues as usize),
            keys: "measure.points, measure.interval",
        }
    }

    fn all_hosts(&self) -> impl Iterator<Item = &HostSettings> {
        std::iter::once(&self.settings.host).chain(&self.settings.profiles)
    }
}

/// Returns the link rate of each host.
pub(super) fn host_rates(topology: &Topology) -> Vec<u64> {
    let mut rates = vec![1; topology.nodes.len()];
    for link in &topology.links {
        for node in [link.a, link.b] {
            rates[node as usize] = link.spec.rate_bps;
        }
    }
    let hosts = topology.nodes.iter().zip(rates).filter(|(node, _)| node.kind == NodeKind::Host);
    hosts.map(|(_, rate)| rate).collect()
}

/// Returns the largest number of overlapping time spans.
fn most_at_once(mut starts: Vec<Time>, mut ends: Vec<Time>) -> u64 {
    starts.sort_unstable();
    ends.sort_unstable();
    let (mut ended, mut most) = (0, 0);
    for (begun, start) in (1..).zip(&starts) {
        while ends.get(ended).is_some_and(|end| end <= start) {
            ended += 1;
        }
        // Flows that start at `Time::NEVER` also end then, including the later ones.
        most = most.max(u64::saturating_sub(begun, ended as u64));
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_overlap() {
        let at = |times: &[u64]| times.iter().map(|time| Time::from_us(*time)).collect::<Vec<_>>();
        assert_eq!(most_at_once(at(&[]), at(&[])), 0);
        assert_eq!(most_at_once(at(&[0, 0, 0]), at(&[5, 5, 6])), 3);
        assert_eq!(most_at_once(at(&[0, 5, 7]), at(&[5, 7, 9])), 1, "one begins when another ends");
        assert_eq!(most_at_once(at(&[6, 0, 1]), at(&[9, 5, 7])), 2);
        assert_eq!(most_at_once(vec![Time::NEVER; 2], vec![Time::NEVER; 2]), 0);
    }
}
