//! Builds a network from its description and runs it.

mod build;
mod events;
mod tasks;

use roce_packet::Psn;
use roce_transport::congestion::Observation;

use self::build::{build_nodes, build_ports, check_operations, check_settings, node_names};
use super::failure::{Changes, check_failures};
use super::flow::{Flow, FlowCounts, FlowState};
use super::frame::Frames;
use super::histogram::Histogram;
use super::host::{FlowEnd, Host};
use super::ideal::{Alone, Network};
use super::journal::Journal;
use super::port::Owner;
use super::queue::EventQueue;
use super::results::{PortResult, QueuePoint, RatePoint, Results, Total, TotalPoint};
use super::route::{RouteError, other_end};
use super::settings::{FlowOperation, Settings};
use super::switch::{BufferTooSmall, Switch};
use super::time::Time;
use super::topology::{Topology, TopologyError};
use super::trace::Trace;
use super::workload::{FlowSpec, Schedule, WorkloadError, check};
use super::world::{Captured, Event, World};

/// Why a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The topology is unusable.
    #[error("topology: {0}")]
    Topology(#[from] TopologyError),
    /// A route is impossible.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A switch cannot be built.
    #[error("switch {name}: {error}")]
    Buffer {
        /// The name of the switch.
        name: String,
        /// The reason.
        error: BufferTooSmall,
    },
    /// A flow is impossible.
    #[error("workload: {0}")]
    Workload(#[from] WorkloadError),
    /// A setting is out of its range.
    #[error("{0}")]
    Setting(String),
}

/// A network with its flows, at some point of a run.
pub struct Simulation {
    world: World,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    flows: Vec<Flow>,
    /// Flows that run, and flows that have ended since the last sample.
    running: Vec<u32>,
    /// Flows that have not ended.
    unfinished: usize,
    /// Tasks without a transfer that have not ended.
    computations_left: usize,
    /// Names of hosts and, behind them, of switches.
    node_names: Vec<String>,
    /// Trace events, if they are kept.
    journal: Journal,
    queues: Vec<Histogram>,
    rate_points: Vec<RatePoint>,
    queue_points: Vec<QueuePoint>,
    totals: Vec<TotalPoint>,
    /// Bytes of ended flows that were sent after the last sample.
    ended_bytes: u64,
    points_left_out: u64,
    last_sample: Time,
    end: Time,
}

impl Simulation {
    /// Builds a network. No event has been handled yet.
    ///
    /// # Errors
    ///
    /// The network cannot be built as described.
    pub fn new(topology: &Topology, flows: &[FlowSpec], settings: Settings) -> Result<Self, BuildError> {
        Self::with_schedule(topology, flows, &Schedule::new(), settings)
    }

    /// Builds a network whose flows wait for each other as a schedule says. A flow without tasks begins at its start. The
    /// queue pairs of the others are connected at their start; what they send, and when, is that of their tasks.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], or the schedule does not match the flows.
    pub fn with_schedule(
        topology: &Topology,
        flows: &[FlowSpec],
        schedule: &Schedule,
        settings: Settings,
    ) -> Result<Self, BuildError> {
        topology.check()?;
        let hosts_count = topology.hosts() as u32;
        check(flows, hosts_count)?;
        schedule.check(flows, hosts_count)?;
        check_settings(&settings, hosts_count, 2 * topology.links.len())?;
        check_operations(&settings, schedule)?;
        check_failures(topology, &settings.failures).map_err(|(_, error)| error)?;
        let changes = Changes::new(topology, &settings.routes, &settings.failures)?;
        let (ports, names) = build_ports(topology, settings.seed);
        let (hosts, switches) = build_nodes(topology, &ports, &settings)?;
        let slot_len = settings.largest_mtu() + 80;
        let capture = settings.measure.capture.clone();
        let world = World {
            now: Time::ZERO,
            events: EventQueue::new(),
            frames: Frames::new(slot_len),
            ports,
            changes,
            trace: Trace::new(),
            captured: Vec::new(),
            capture,
            names: names.into(),
            hosts: hosts_count,
            traced: false,
            settings,
        };
        let mut simulation = Self {
            hosts,
            switches,
            flows: flows.iter().copied().map(Flow::new).collect(),
            running: Vec::new(),
            unfinished: flows.len(),
            computations_left: 0,
            queues: vec![Histogram::default(); world.names.len()],
            node_names: node_names(topology),
            journal: Journal::default(),
            rate_points: Vec::new(),
            queue_points: Vec::new(),
            totals: Vec::new(),
            ended_bytes: 0,
            points_left_out: 0,
            last_sample: Time::ZERO,
            end: Time::ZERO,
            world,
        };
        simulation.plan();
        simulation.plan_tasks(schedule, flows);
        Ok(simulation)
    }

    /// Queues the events that are known from the start.
    fn plan(&mut self) {
        let events = &mut self.world.events;
        for (number, flow) in (0..).zip(&self.flows) {
            events.push(flow.spec.start, Event::Start { flow: number });
        }
        for (number, storm) in (0..).zip(&self.world.settings.storms) {
            events.push(storm.start, Event::Storm { storm: number });
            events.push(storm.end, Event::Storm { storm: number });
        }
        for (number, (time, _)) in (0..).zip(&self.world.changes.list) {
            events.push(*time, Event::Change { number });
        }
        events.push(self.world.settings.measure.interval, Event::Sample);
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.world.now
    }

    /// The number of flows that have ended, and of all flows.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.flows.len() - self.unfinished, self.flows.len())
    }

    /// The rates sampled so far, oldest first.
    #[must_use]
    pub fn rates(&self) -> &[RatePoint] {
        &self.rate_points
    }

    /// The queues sampled so far, oldest first; points with an empty queue are not kept.
    #[must_use]
    pub fn queues(&self) -> &[QueuePoint] {
        &self.queue_points
    }

    /// The name of a port of [`Self::queues`].
    #[must_use]
    pub fn port_name(&self, port: u32) -> &str {
        self.world.names.get(port as usize).map_or("", |(name, _)| name)
    }

    /// Handles up to `most` events. Returns `false` when all flows have ended or the stop time is reached.
    pub fn run(&mut self, most: u64) -> bool {
        if self.world.traced { self.run_traced(most) } else { self.run_untraced(most) }
    }

    #[inline]
    fn run_untraced(&mut self, most: u64) -> bool {
        for _ in 0..most {
            if self.unfinished == 0 && self.computations_left == 0 {
                return false;
            }
            let Some((time, event)) = self.world.events.pop() else { return self.stop() };
            if time > self.world.settings.stop {
                return self.stop();
            }
            self.world.now = self.world.now.max(time);
            self.handle(event);
        }
        true
    }

    /// No event is left.
    fn stop(&mut self) -> bool {
        self.end = self.world.settings.stop.min(self.world.now.max(self.end));
        (self.unfinished, self.computations_left) = (0, 0);
        false
    }

    /// Runs until all flows have ended or the stop time is reached.
    pub fn run_to_end(&mut self) {
        while self.run(1 << 20) {}
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        let world = &mut self.world;
        let time = world.now.as_ps();
        match event {
            Event::Arrive { port, frame } => {
                world.note_arrival(port, frame);
                match world.ports[port as usize].owner {
                    Owner::Switch(switch) => self.switches[switch as usize].receive(world, port, frame),
                    Owner::Host(host) => {
                        self.hosts[host as usize].receive(world, frame);
                        self.look_at(host);
                    }
                }
            }
            Event::Free { port } => {
                world.trace.event(time, 1 << 56 | u64::from(port));
                world.ports[port as usize].wakes = false;
                match world.ports[port as usize].owner {
                    Owner::Switch(switch) => self.switches[switch as usize].send(world, port),
                    Owner::Host(host) => {
                        let host = &mut self.hosts[host as usize];
                        host.send(world);
                        host.set_timer(world);
                    }
                }
            }
            Event::Taken { host, frame } => {
                world.trace.event(time, 2 << 56 | u64::from(host));
                self.hosts[host as usize].take(world, frame);
                self.look_at(host);
            }
            Event::Timer { host } => {
                world.trace.event(time, 3 << 56 | u64::from(host));
                self.hosts[host as usize].look_at_clock(world);
                self.look_at(host);
            }
            Event::Start { flow } => self.start(flow),
            Event::Task { host, task } => {
                world.trace.event(time, 6 << 56 | u64::from(host) << 32 | u64::from(task));
                self.end_computation(host, task);
            }
            Event::Sample => self.sample(),
            other => self.handle_rare(other),
        }
    }

    fn handle_rare(&mut self, event: Event) {
        let world = &mut self.world;
        match event {
            Event::Change { number } => {
                world.trace.event(world.now.as_ps(), 6 << 56 | u64::from(number));
                world.change(number);
            }
            Event::PauseEnds { port, priority } => world.check_pause(port, priority),
            Event::PauseRefresh { port, priority } => match world.ports[port as usize].owner {
                Owner::Switch(switch) => self.switches[switch as usize].refresh_pause(world, port, priority),
                Owner::Host(host) => self.hosts[host as usize].refresh_pause(world, priority),
            },
            Event::Watchdog { port, priority } => {
                if let Owner::Switch(switch) = world.ports[port as usize].owner {
                    self.switches[switch as usize].watch(world, port, priority);
                }
            }
            Event::Restore { port, priority } => {
                if let Owner::Switch(switch) = world.ports[port as usize].owner {
                    self.switches[switch as usize].restore(world, port, priority);
                }
            }
            Event::Release { port, frame } if world.release(port, frame) => {
                world.events.push(world.now, Event::Arrive { port: other_end(port), frame });
            }
            Event::Storm { storm } => {
                if let Some(storm) = world.settings.storms.get(storm as usize).copied() {
                    self.hosts[storm.host as usize].storm(world, &storm);
                }
            }
            _ => {}
        }
    }

    /// Handles the new completions of a host.
    #[inline]
    fn look_at(&mut self, host: u32) {
        while let Some(wc) = self.hosts[host as usize].completions.pop() {
            if self.hosts[host as usize].take_arrival(&self.world.settings, &wc) {
                self.proceed(host, None);
                continue;
            }
            let number = wc.wr_id as u32;
            let Some(flow) = self.flows.get_mut(number as usize) else { continue };
            if flow.state != FlowState::Running {
                continue;
            }
            if wc.status != roce_transport::WcStatus::Success {
                self.finish(number, FlowState::Failed(wc.status));
                continue;
            }
            flow.completed += u64::from(wc.byte_len);
            flow.outstanding -= 1;
            let (completed, scheduled) = (flow.completed, flow.scheduled);
            if completed >= flow.spec.bytes {
                self.finish(number, FlowState::Complete);
            } else {
                self.post(number);
                self.hosts[host as usize].settle(&mut self.world);
            }
            if scheduled {
                let now = self.world.now;
                self.hosts[host as usize].agenda.acknowledged(now, number, completed);
                self.proceed(host, None);
            }
        }
    }

    /// Creates and connects the queue pairs of a flow and posts its first WRITEs.
    fn start(&mut self, number: u32) {
        self.world.trace.event(self.world.now.as_ps(), 4 << 56 | u64::from(number));
        let spec = self.flows[number as usize].spec;
        let (source, destination) = (spec.source as usize, spec.destination as usize);
        if !self.world.changes.routes_of_all().joins(spec.source, spec.destination) {
            return self.finish(number, FlowState::Refused);
        }
        let of_flow = self.world.settings.of_flow(number);
        let settings = of_flow.0;
        let watches = self.hosts[destination].agenda.watches(number);
        let operation = settings.operation;
        let receives = watches || operation == FlowOperation::Send;
        let ends = operation.order([FlowEnd::Requester, FlowEnd::Responder { receives }]);
        let Some(own) = self.hosts[source].create_qp(of_flow, ends[0]) else {
            return self.finish(number, FlowState::Refused);
        };
        self.flows[number as usize].source_qpn = own;
        let Some(peer) = self.hosts[destination].create_qp(of_flow, ends[1]) else {
            return self.finish(number, FlowState::Refused);
        };
        self.flows[number as usize].destination_qpn = peer;
        let connected = self.hosts[destination].connect(&self.world, settings, peer, spec.source, own)
            && self.hosts[source].connect(&self.world, settings, own, spec.destination, peer)
            && (!receives || self.hosts[destination].post_receives(settings, peer, number));
        if !connected {
            return self.finish(number, FlowState::Refused);
        }
        self.flows[number as usize].connected = true;
        self.trace_begin(number);
        self.post(number);
        let [requester, _] = operation.order([source, destination]);
        self.hosts[requester].settle(&mut self.world);
    }

    fn finish(&mut self, number: u32, state: FlowState) {
        self.unfinished -= 1;
        let now = self.world.now;
        let counts = self.counts_of(number);
        let flow = &mut self.flows[number as usize];
        (flow.counts, flow.state, flow.end) = (counts, state, now);
        if state == FlowState::Complete {
            flow.counts.delivered = flow.spec.bytes;
            self.ended_bytes += flow.spec.bytes.saturating_sub(flow.sampled);
        }
        flow.connected = false;
        self.end = self.end.max(now);
        self.world.trace.event(now.as_ps(), 5 << 56 | u64::from(number));
        self.trace_end(number, state);
        // The requester no longer needs its queue pair. The responder keeps its own for now, because copies of packets may
        // still arrive.
        let flow = &self.flows[number as usize];
        let settings = self.world.settings.of_flow(number).0;
        let [(requester, own), (responder, peer)] = flow.ends(settings.operation);
        self.hosts[requester as usize].destroy_requester(settings, own);
        self.hosts[responder as usize].retire(peer);
    }

    /// The counters of the queue pairs of a flow.
    fn counts_of(&self, number: u32) -> FlowCounts {
        let flow = &self.flows[number as usize];
        let sender = &self.hosts[flow.spec.source as usize].engine;
        let receiver = &self.hosts[flow.spec.destination as usize].engine;
        let (Some(sent), Some(received)) =
            (sender.qp_counters(flow.source_qpn), receiver.qp_counters(flow.destination_qpn))
        else {
            return FlowCounts::default();
        };
        let settings = self.world.settings.of_flow(number).0;
        if settings.operation == FlowOperation::Read {
            let unanswered = receiver.unanswered_psn(flow.destination_qpn).unwrap_or(Psn::new(0));
            return flow.counts_of_reads(sent, received, unanswered, settings);
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

    fn sample(&mut self) {
        let now = self.world.now;
        let interval = now.since(self.last_sample);
        self.last_sample = now;
        self.sample_rates(now, interval);
        if now >= self.world.settings.measure.warm_up {
            self.sample_queues(now);
        }
        self.world.events.push(now + self.world.settings.measure.interval, Event::Sample);
    }

    fn sample_rates(&mut self, now: Time, interval: Time) {
        let overhead = u64::from(super::frame::DATAGRAM_OVERHEAD);
        let flows = &self.flows;
        self.running.retain(|number| flows[*number as usize].state == FlowState::Running);
        let mut total = Total::new(std::mem::take(&mut self.ended_bytes));
        for number in &self.running {
            let flow = &mut self.flows[*number as usize];
            let engine = &self.hosts[flow.spec.source as usize].engine;
            let Some(counters) = engine.qp_counters(flow.source_qpn) else { continue };
            // A sender sends no acknowledgements, so all its packets are data.
            let new = counters.rdma_tx_packets - counters.retransmitted_packets;
            let bytes =
                (counters.rdma_tx_bytes - counters.retransmitted_bytes).saturating_sub(new * overhead);
            let sent = bytes.saturating_sub(flow.sampled);
            flow.sampled = bytes;
            total.add(sent);
            if self.rate_points.len() >= self.world.settings.measure.most_points {
                self.points_left_out += 1;
                continue;
            }
            let unlimited = Observation { rate: f64::INFINITY, ..Observation::default() };
            let seen = engine.congestion(now.to_instant(), flow.source_qpn).unwrap_or(unlimited);
            self.rate_points.push(RatePoint {
                time: now,
                flow: *number,
                goodput_bps: sent as f64 * 8.0 / interval.as_secs_f64(),
                rate_bps: seen.rate,
                target_bps: seen.target_rate,
                alpha: seen.alpha,
            });
        }
        if self.totals.len() < self.world.settings.measure.most_points {
            self.totals.push(total.point(now, interval));
        } else {
            self.points_left_out += 1;
        }
    }

    fn sample_queues(&mut self, now: Time) {
        for (number, port) in (0..).zip(&self.world.ports) {
            let bytes = port.egress.bytes();
            if bytes == 0 {
                continue;
            }
            self.queues[number as usize].record(bytes);
            if self.queue_points.len() >= self.world.settings.measure.most_points {
                self.points_left_out += 1;
                continue;
            }
            let paused = port.paused_until(now).iter().fold(Time::ZERO, |sum, span| sum + *span);
            let marked = port.stats.marked;
            self.queue_points.push(QueuePoint { time: now, port: number, bytes, marked, paused });
        }
    }

    /// Removes and returns the frames captured since the last call.
    pub fn take_captured(&mut self) -> Vec<Captured> {
        std::mem::take(&mut self.world.captured)
    }

    /// The completion time of each flow if it were alone.
    fn ideal_times(&self) -> Vec<Option<Time>> {
        let World { changes, ports, settings, .. } = &self.world;
        let routes = changes.routes_of_all();
        let hosts: Vec<u32> = self.hosts.iter().map(|host| host.port).collect();
        let alone = (0..).zip(&self.flows).map(|(number, flow)| Alone {
            spec: flow.spec,
            host: settings.of_flow(number).0,
            signals: self.hosts[flow.spec.source as usize].agenda.signals(number),
        });
        let mut times = Network { routes, ports, hosts: &hosts, settings: &settings.host }
            .times(&alone.collect::<Vec<_>>());
        for (number, time) in (0..).zip(&mut times) {
            // The parts of such a flow wait for others, so its time says nothing of the network.
            let flow = &self.flows[number as usize];
            time.take_if(|_| self.hosts[flow.spec.source as usize].agenda.has_parts(number));
        }
        times
    }

    /// Ends the simulation and returns its results.
    #[must_use]
    pub fn results(mut self) -> Results {
        for number in 0..self.flows.len() as u32 {
            if self.flows[number as usize].state == FlowState::Running {
                self.flows[number as usize].counts = self.counts_of(number);
            }
        }
        let now = self.world.now;
        for port in &mut self.world.ports {
            port.stats.paused = port.paused_until(now);
            port.stats.queue_most = port.egress.most_bytes();
        }
        let ideal = self.ideal_times();
        let names = self.world.names.iter().cloned();
        let ports = names.zip(self.world.ports.iter()).zip(self.queues);
        let checked = self.hosts.iter().map(|host| host.memory.checked());
        let mut task_ends = vec![None; self.hosts.iter().map(|host| host.agenda.len()).sum()];
        for (task, end) in self.hosts.iter().flat_map(|host| host.agenda.ends()) {
            task_ends[task as usize] = Some(end);
        }
        let flows: Vec<_> = self.flows.iter().zip(ideal).map(|(flow, ideal)| flow.result(ideal)).collect();
        Results {
            trace_hash: self.world.trace.hash(),
            events: self.world.trace.events(),
            // Before the end of the run, this is the current time.
            end: if self.unfinished > 0 { now } else { self.end },
            data_packets: flows.iter().map(|flow| flow.counts.packets).sum(),
            flows,
            task_ends,
            ports: ports
                .map(|(((name, is_host), port), queue)| PortResult {
                    name,
                    is_host,
                    stats: port.stats,
                    queue,
                })
                .collect(),
            rates: self.rate_points,
            totals: self.totals,
            queues: self.queue_points,
            points_left_out: self.points_left_out,
            checked: checked.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)),
            most_frames: self.world.frames.live().1,
        }
    }
}
