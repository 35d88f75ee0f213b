//! Builds a network from its description and runs it.
//!
//! The network is divided into parts, which run in parallel in windows of time. No window is longer than a
//! frame takes between parts, so nothing in a window can affect another part in that window. Actions that
//! concern several nodes happen between two windows: the start of a flow, the end of its queue pairs, a
//! change of the network, a sample. The windows follow from the events and the topology as a whole, so they
//! do not depend on the number of parts.

mod build;
mod error;
mod events;
mod exchange;
mod journals;
mod messages;
mod parallel;
mod part;
mod partition;
mod samples;
mod sampling;

use std::sync::Arc;

use roce_packet::{Psn, Qpn};

use self::build::{Whole, build_nodes, build_ports, check_operations, check_settings, node_names};
use self::journals::Journals;
use self::part::Part;
use self::partition::lookahead;
use self::samples::Samples;
use super::dependencies::Agenda;
use super::failure::{Change, Changes, check_failures};
use super::flow::{Flow, FlowCounts, FlowState, Refusal};
use super::host::{FlowEnd, Host};
use super::place::Place;
use super::port::Port;
use super::results::{HostResult, PortResult, QueuePoint, RatePoint, Results};
use super::settings::{FlowOperation, Settings};
use super::ties::TieOrder;
use super::time::Time;
use super::topology::Topology;
use super::trace::{Tag, Trace};
use super::waits::WaitGraph;
use super::workload::{FlowSpec, Schedule, check};
use super::world::Captured;

pub use self::error::BuildError;
pub(super) use self::messages::Reached;

/// The minimum number of events for which threads are started.
const LEAST_PARALLEL: u64 = 20_000;

/// A network with its flows during a run.
pub struct Simulation {
    parts: Vec<Part>,
    settings: Arc<Settings>,
    /// The location of each port, host and flow of the network.
    ports: Vec<Place>,
    hosts: Vec<Place>,
    flows: Arc<Vec<Place>>,
    names: Arc<[(String, bool)]>,
    /// Names of hosts, followed by those of switches.
    node_names: Vec<String>,
    /// Trace events between windows, if trace events are kept.
    journals: Journals,
    /// The ideal completion time of each flow.
    ideal: Vec<Option<Time>>,
    /// The ordered actions between windows, except samples, and the number of completed actions.
    plan: Vec<(Time, Planned)>,
    done: usize,
    next_sample: Time,
    /// The maximum length of a window.
    lookahead: Time,
    /// The time of the last window or of the last action after it.
    now: Time,
    /// The number of events between windows, and their hash.
    handled: u64,
    trace: Trace,
    most_frames: usize,
    is_over: bool,
    end: Time,
    samples: Samples,
    /// The waits of paused ports, up to the last sample.
    waits: WaitGraph,
}

/// An action between windows. Simultaneous actions happen in this order; [`TieOrder`] orders the starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Planned {
    /// A flow starts.
    Start { flow: u32 },
    /// A pause storm of a host starts or ends.
    Storm { storm: u32 },
    /// A link fails or recovers, or the routes change.
    Change { number: u32 },
}

impl Simulation {
    /// Builds a network. No event has been handled yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the network cannot be built as described.
    pub fn new(topology: &Topology, flows: &[FlowSpec], settings: Settings) -> Result<Self, BuildError> {
        Self::with_schedule(topology, flows, &Schedule::new(), settings)
    }

    /// Builds a network whose flows wait for each other according to a schedule. A flow without tasks begins
    /// at its start. Other flows connect their queue pairs at their start, and their tasks determine the data
    /// and its timing.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::new`], or an error if the schedule does not match the flows.
    pub fn with_schedule(
        topology: &Topology,
        flows: &[FlowSpec],
        schedule: &Schedule,
        settings: Settings,
    ) -> Result<Self, BuildError> {
        topology.check()?;
        let hosts_count = topology.hosts() as u32;
        check(flows, hosts_count)?;
        schedule.check(flows, hosts_count, topology.scale_up)?;
        check_settings(&settings, hosts_count, 2 * topology.links.len())?;
        check_operations(&settings, schedule)?;
        check_failures(topology, &settings.failures).map_err(|(_, error)| error)?;
        let changes = Changes::new(topology, &settings.routes, &settings.failures)?;
        let (ports, names) = build_ports(topology, &settings);
        let (mut hosts, switches) = build_nodes(topology, &ports, &settings)?;
        for (host, agenda) in hosts.iter_mut().zip(Agenda::distribute(schedule, flows, hosts_count as usize))
        {
            host.agenda = agenda;
        }
        let plan = planned(flows, &settings, &changes);
        let names: Arc<[(String, bool)]> = names.into();
        let whole = Whole { ports, hosts, switches, changes, names: Arc::clone(&names) };
        let ideal = whole.ideal_times(flows, &settings);
        let divided = whole.divide(topology, flows, settings);
        let settings = Arc::clone(&divided.parts[0].world.settings);
        let mut simulation = Self {
            parts: divided.parts,
            ports: divided.ports,
            hosts: divided.hosts,
            flows: divided.flows,
            samples: Samples::new(names.len()),
            names,
            node_names: node_names(topology),
            journals: Journals::default(),
            ideal,
            plan,
            done: 0,
            next_sample: settings.measure.interval,
            lookahead: lookahead(topology, schedule),
            now: Time::ZERO,
            handled: 0,
            trace: Trace::new(),
            most_frames: 0,
            is_over: false,
            end: Time::ZERO,
            waits: WaitGraph::default(),
            settings,
        };
        simulation.begin_tasks(schedule);
        simulation.start_threads();
        Ok(simulation)
    }

    /// Starts the tasks that have no dependencies.
    fn begin_tasks(&mut self, schedule: &Schedule) {
        for flow in schedule.flows() {
            if let Some(flow) = self.flow(flow) {
                flow.scheduled = true;
            }
        }
        for part in &mut self.parts {
            for host in &mut part.hosts {
                // No flow is connected yet. The start of a flow posts the requests of tasks that have already
                // begun.
                host.begin_tasks(&mut part.world);
                part.computations_left += host.agenda.computations_left();
            }
            part.find_next();
        }
    }

    /// Starts the threads of applications.
    fn start_threads(&mut self) {
        for part in &mut self.parts {
            for host in &mut part.hosts {
                host.start_threads(&mut part.world);
            }
            part.find_next();
        }
    }

    fn flow(&mut self, number: u32) -> Option<&mut Flow> {
        let place = self.flows.get(number as usize)?;
        self.parts[place.part as usize].flows.get_mut(place.index as usize)
    }

    fn host(&mut self, number: u32) -> &mut Host {
        let place = self.hosts[number as usize];
        &mut self.parts[place.part as usize].hosts[place.index as usize]
    }

    fn port(&self, number: usize) -> &Port {
        let place = self.ports[number];
        &self.parts[place.part as usize].world.ports[place.index as usize]
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.parts.iter().map(|part| part.world.now).fold(self.now, Time::max)
    }

    /// Returns the number of threads of a run: [`Settings::threads`], or fewer if the network cannot be
    /// divided into as many parts.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.parts.len()
    }

    /// Returns the number of flows that have ended, and the number of all flows.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        let left = if self.is_over { 0 } else { self.unfinished() };
        (self.flows.len() - left, self.flows.len())
    }

    fn unfinished(&self) -> usize {
        self.parts.iter().map(|part| part.unfinished).sum()
    }

    /// Returns the number of handled events so far.
    #[must_use]
    pub fn handled_events(&self) -> u64 {
        self.parts.iter().map(|part| part.world.handled).fold(self.handled, u64::wrapping_add)
    }

    /// Returns the rates sampled so far, oldest first.
    #[must_use]
    pub fn rates(&self) -> &[RatePoint] {
        &self.samples.rates
    }

    /// Returns the queues sampled so far, oldest first. Points with an empty queue are not kept.
    #[must_use]
    pub fn queues(&self) -> &[QueuePoint] {
        &self.samples.queues
    }

    /// Returns the name of a port of [`Self::queues`].
    #[must_use]
    pub fn port_name(&self, port: u32) -> &str {
        self.names.get(port as usize).map_or("", |(name, _)| name)
    }

    /// Handles at least `most` events, up to the end of a time window. Returns `false` when all flows have
    /// ended or the stop time is reached.
    pub fn run(&mut self, most: u64) -> bool {
        let until = self.handled_events().saturating_add(most);
        if self.parts.len() > 1 && most >= LEAST_PARALLEL {
            self.run_parallel(until);
            return !self.is_over;
        }
        while let Some(last) = self.next_window(until) {
            for part in &mut self.parts {
                part.run(last);
            }
        }
        !self.is_over
    }

    /// Runs until all flows have ended or the stop time is reached.
    pub fn run_to_end(&mut self) {
        while self.run(1 << 20) {}
    }

    /// Carries out the actions before the next window, and returns the last time of that window. Returns
    /// `None` if `until` events have been handled or the run is over.
    fn next_window(&mut self, until: u64) -> Option<Time> {
        self.exchange();
        self.end_flows();
        let stop = self.settings.stop;
        while !self.is_over {
            let left: usize = self.parts.iter().map(|part| part.unfinished + part.computations_left).sum();
            if left == 0 {
                self.is_over = true;
                self.end = self.parts.iter().map(|part| part.end).fold(self.end, Time::max);
                break;
            }
            if self.handled_events() >= until {
                break;
            }
            let next = self.parts.iter().map(|part| part.next).min().unwrap_or(Time::NEVER);
            let planned = self.plan.get(self.done).map_or(self.next_sample, |(time, _)| *time);
            let planned = planned.min(self.next_sample);
            if next.min(planned) > stop || next.min(planned) == Time::NEVER {
                self.stop();
                break;
            }
            let instant = Time::from_ps(1);
            if planned > next {
                return Some((next + self.lookahead).min(planned).min(stop + instant) - instant);
            }
            self.do_planned(planned);
        }
        None
    }

    /// Ends the run at the stop time.
    fn stop(&mut self) {
        self.end = self.settings.stop.min(self.parts.iter().map(|part| part.end).fold(self.now(), Time::max));
        self.is_over = true;
    }

    /// Carries out the actions at a time, before the events of nodes.
    fn do_planned(&mut self, now: Time) {
        self.now = now;
        for part in &mut self.parts {
            part.world.now = now;
        }
        self.journals.enter_planned();
        while let Some((_, planned)) = self.plan.get(self.done).filter(|(time, _)| *time <= now) {
            let planned = *planned;
            self.done += 1;
            self.handled += 1;
            match planned {
                Planned::Start { flow } => self.start(flow),
                Planned::Storm { storm } => self.storm(storm),
                Planned::Change { number } => self.change(number),
            }
        }
        self.journals.leave_planned();
        self.end_flows();
        if self.next_sample <= now {
            self.handled += 1;
            self.sample();
            self.next_sample = now + self.settings.measure.interval;
        }
        for part in &mut self.parts {
            part.find_next();
        }
    }

    /// Creates and connects the queue pairs of a flow and posts its first requests.
    fn start(&mut self, number: u32) {
        let settings = Arc::clone(&self.settings);
        let place = self.flows[number as usize];
        let part = &mut self.parts[place.part as usize];
        let spec = part.flows[place.index as usize].spec;
        let requester = part.flows[place.index as usize].requester;
        part.world.trace(part.hosts[requester as usize].nic.port, Tag::FlowStart, number);
        let refusal = if !part.world.changes.routes_of_all().joins(spec.source, spec.destination) {
            Some(Refusal::NoPath)
        } else if self.connect(number, &spec, &settings).is_none() {
            Some(Refusal::NoQueuePair)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.parts[place.part as usize].finish(number, FlowState::Refused(refusal));
        }
        let part = &mut self.parts[place.part as usize];
        part.flows[place.index as usize].connected = true;
        self.trace_begin(number);
        let part = &mut self.parts[place.part as usize];
        part.post(number);
        part.hosts[requester as usize].settle(&mut part.world);
    }

    /// Creates and connects the queue pairs of a flow.
    fn connect(&mut self, number: u32, spec: &FlowSpec, settings: &Settings) -> Option<()> {
        let of_flow = settings.of_flow(number);
        let settings = of_flow.0;
        let operation = settings.operation;
        let watches = self.host(spec.destination).agenda.watches(number);
        let receives = watches || operation == FlowOperation::Send;
        let ends = operation.order([FlowEnd::Requester, FlowEnd::Responder { receives }]);
        self.trace_at(spec.source);
        let own = self.host(spec.source).create_qp(of_flow, ends[0])?;
        self.flow(number)?.source_qpn = own;
        self.trace_at(spec.destination);
        let peer = self.host(spec.destination).create_qp(of_flow, ends[1])?;
        let [_, responder] = operation.order([spec.source, spec.destination]);
        let rkey = self.host(responder).rkey();
        let flow = self.flow(number)?;
        (flow.destination_qpn, flow.rkey) = (peer, rkey);
        let mut connect = |host: u32, own: Qpn, other: u32, peer: Qpn| {
            let place = self.hosts[host as usize];
            let part = &mut self.parts[place.part as usize];
            part.hosts[place.index as usize].connect(&part.world, settings, own, other, peer)
        };
        let connected = connect(spec.destination, peer, spec.source, own)
            && connect(spec.source, own, spec.destination, peer)
            && (!receives || self.host(spec.destination).post_receives(settings, peer, number));
        connected.then_some(())
    }

    fn storm(&mut self, storm: u32) {
        let Some(storm) = self.settings.storms.get(storm as usize).copied() else { return };
        let place = self.hosts[storm.host as usize];
        let part = &mut self.parts[place.part as usize];
        part.hosts[place.index as usize].nic.storm(&mut part.world, &storm);
    }

    /// Applies a change of the network.
    fn change(&mut self, number: u32) {
        self.trace.event(self.now, Tag::Change, number);
        let list = &self.parts[0].world.changes.list;
        let Some((_, change)) = list.get(number as usize).copied() else { return };
        match change {
            Change::Routes { version } => {
                self.parts.iter_mut().for_each(|part| part.world.changes.reroute(version));
            }
            Change::Down { link } | Change::Up { link } => {
                for port in [2 * link, 2 * link + 1] {
                    let place = self.ports[port as usize];
                    let port = &mut self.parts[place.part as usize].world.ports[place.index as usize];
                    let step = if matches!(change, Change::Down { .. }) { 1 } else { -1 };
                    port.down = port.down.saturating_add_signed(step);
                }
            }
        }
    }

    /// Reads the counters of ended flows and releases their queue pairs.
    fn end_flows(&mut self) {
        if self.parts.iter().all(|part| part.ended.is_empty()) {
            return;
        }
        let mut ended: Vec<u32> = self.parts.iter_mut().flat_map(|part| part.ended.drain(..)).collect();
        ended.sort_by_cached_key(|number| (self.flow(*number).map(|flow| flow.end), *number));
        let settings = Arc::clone(&self.settings);
        self.journals.enter_ended();
        for number in ended {
            self.trace_end(number);
            let counts = self.counts_of(number);
            let Some(flow) = self.flow(number) else { continue };
            flow.counts = counts;
            if flow.state == FlowState::Complete {
                flow.counts.delivered = flow.spec.bytes;
                let left = flow.spec.bytes.saturating_sub(flow.sampled);
                self.samples.ended_bytes += left;
            }
            // The requester no longer needs its queue pair. The responder keeps its queue pair for now,
            // because duplicates of packets can still arrive.
            let settings = settings.of_flow(number).0;
            let Some(flow) = self.flow(number) else { continue };
            let [(requester, own), (responder, peer)] = flow.ends(settings.operation);
            self.host(requester).destroy_requester(settings, own);
            self.host(responder).retire(peer);
        }
        self.journals.leave_ended();
    }

    /// Returns the counters of the queue pairs of a flow.
    fn counts_of(&self, number: u32) -> FlowCounts {
        let place = self.flows[number as usize];
        let flow = &self.parts[place.part as usize].flows[place.index as usize];
        let engine = |host: u32| {
            let place = self.hosts[host as usize];
            &self.parts[place.part as usize].hosts[place.index as usize].nic.engine
        };
        let (sender, receiver) = (engine(flow.spec.source), engine(flow.spec.destination));
        let (Some(sent), Some(received)) =
            (sender.qp_counters(flow.source_qpn), receiver.qp_counters(flow.destination_qpn))
        else {
            return FlowCounts::default();
        };
        let settings = self.settings.of_flow(number).0;
        if settings.operation == FlowOperation::Read {
            let unanswered = receiver.unanswered_psn(flow.destination_qpn).unwrap_or(Psn::new(0));
            return flow.counts_of_reads(&sent, &received, unanswered, settings);
        }
        FlowCounts {
            packets: sent.rdma_tx_packets,
            retransmitted: sent.retransmitted_packets,
            timeouts: sent.local_ack_timeout_err,
            marked: received.np_ecn_marked_roce_packets,
            cnps_sent: received.np_cnp_sent,
            cnps_handled: sent.rp_cnp_handled,
            out_of_sequence: received.out_of_sequence,
            delivered: flow.delivered(
                sent.rdma_tx_packets - sent.retransmitted_packets,
                receiver.query_qp(flow.destination_qpn).map_or(Psn::new(0), |attributes| attributes.rq_psn),
                settings,
            ),
        }
    }

    /// Removes and returns the frames captured since the last call, ordered by time and then by port.
    pub fn take_captured(&mut self) -> Vec<Captured> {
        let mut captured: Vec<Captured> =
            self.parts.iter_mut().flat_map(|part| part.world.captured.drain(..)).collect();
        captured.sort_by_key(|captured| (captured.time, captured.port));
        captured
    }

    /// Ends the simulation and returns its results.
    #[must_use]
    pub fn results(mut self) -> Results {
        self.gather_waits();
        let (deadlocks, deadlocks_left_out) = std::mem::take(&mut self.waits).into_deadlocks();
        let (pauses, pauses_left_out) = self.take_pauses();
        let pauses_left_out = pauses_left_out + deadlocks_left_out;
        for number in 0..self.flows.len() as u32 {
            let is_running = self.flow(number).is_some_and(|flow| flow.state == FlowState::Running);
            if is_running {
                let counts = self.counts_of(number);
                self.flow(number).into_iter().for_each(|flow| flow.counts = counts);
            }
        }
        let (now, trace_hash) = (self.now(), self.trace_hash());
        let mut ports = Vec::with_capacity(self.names.len());
        let queues = std::mem::take(&mut self.samples.of_ports);
        for (number, ((name, is_host), queue)) in self.names.iter().zip(queues).enumerate() {
            let (name, is_host) = (name.clone(), *is_host);
            let port = self.port(number);
            let mut stats = port.stats;
            (stats.paused, stats.queue_most) = (port.paused_until(now), port.egress.most_bytes());
            ports.push(PortResult { name, is_host, stats, queue });
        }
        let hosts = || self.parts.iter().flat_map(|part| &part.hosts);
        let mut task_ends = vec![None; hosts().map(|host| host.agenda.len()).sum()];
        for (task, end) in hosts().flat_map(|host| host.agenda.ends()) {
            task_ends[task as usize] = Some(end);
        }
        let mut with_application: Vec<(u32, HostResult)> =
            hosts().filter_map(|host| Some((host.nic.number, host.result(&self.node_names)?))).collect();
        with_application.sort_by_key(|(number, _)| *number);
        let checked = hosts().map(|host| host.memory.checked());
        let checked = checked.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let flow = |place: &Place| &self.parts[place.part as usize].flows[place.index as usize];
        let flows: Vec<_> =
            self.flows.iter().zip(&self.ideal).map(|(place, ideal)| flow(place).result(*ideal)).collect();
        Results {
            trace_hash,
            events: self.handled_events(),
            // Before the end of the run, this is the current time.
            end: if self.is_over { self.end } else { now },
            data_packets: flows.iter().map(|flow| flow.counts.packets).sum(),
            flows,
            task_ends,
            hosts: with_application.into_iter().map(|(_, result)| result).collect(),
            ports,
            rates: self.samples.rates,
            totals: self.samples.totals,
            queues: self.samples.queues,
            pauses,
            deadlocks,
            pauses_left_out,
            points_left_out: self.samples.left_out,
            checked,
            most_frames: self.most_frames,
        }
    }
}

/// Returns the ordered actions between windows.
fn planned(flows: &[FlowSpec], settings: &Settings, changes: &Changes) -> Vec<(Time, Planned)> {
    let starts = (0..).zip(flows).map(|(number, flow)| (flow.start, Planned::Start { flow: number }));
    let storms = (0..).zip(&settings.storms).flat_map(|(storm, when)| {
        [(when.start, Planned::Storm { storm }), (when.end, Planned::Storm { storm })]
    });
    let changes = (0..).zip(&*changes.list).map(|(number, (time, _))| (*time, Planned::Change { number }));
    let mut plan: Vec<_> = starts.chain(storms).chain(changes).collect();
    let ties = TieOrder::new(settings.ties, settings.seed);
    let rank = |time, planned| match planned {
        Planned::Start { flow } => ties.of_start(time, flow),
        // Starts come first.
        Planned::Storm { .. } | Planned::Change { .. } => u32::MAX,
    };
    plan.sort_unstable_by(|(time, one), (other_time, other)| {
        let by_rank = || rank(*time, *one).cmp(&rank(*other_time, *other));
        time.cmp(other_time).then_with(by_rank).then_with(|| one.cmp(other))
    });
    plan
}
