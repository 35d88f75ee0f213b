//! A host: its NIC, the objects of its application, and the process of the application, if it has one.
//!
//! Without a process, the engine handles each frame and each deadline at once, and so does the application
//! with each completion.

use std::collections::VecDeque;
use std::sync::Arc;

use roce_packet::{ImmDt, Psn, Qpn, RnrTimer};
use roce_transport::{
    Access, CqId, MAX_RD_ATOMIC, PdId, QpAttr, QpCapabilities, QpInit, QpOptions, QpState, QpType, RKey,
    RecvWr, RegionAttributes, SendOp, SendWr, Sge, Wc, WcFlags, WcStatus,
};

use super::application::Application;
use super::dependencies::Agenda;
use super::event::Event;
use super::frame::{Frame, FrameId, host_address};
use super::nic::Nic;
use super::payload::{Pattern, address};
use super::process::Process;
use super::results::HostResult;
use super::scale_up::{ScaleUpPort, Sent};
use super::settings::{FlowOperation, HostSettings, Settings};
use super::time::Time;
use super::workload::{TaskId, Transfer};
use super::world::World;

/// The initial capacity of the completion queue.
const COMPLETION_QUEUE: usize = 1 << 4;
/// The bit of a work request ID that marks a receive. The bits below it are the flow number, and the bits
/// above it the receive number.
const RECEIVE: u64 = 1 << 32;
const RECEIVE_NUMBER: u32 = 33;

/// The access rights of peers to the region of a host.
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

pub(super) struct Host {
    pub(super) nic: Nic,
    pd: PdId,
    cq: CqId,
    region: RegionAttributes,
    pub(super) memory: Arc<Pattern>,
    process: Option<Box<Process>>,
    /// Completions that the simulation has not handled yet.
    pub(super) completions: Vec<Wc>,
    /// The largest number of completions that all flows of this host can have at one time.
    outstanding: usize,
    /// The capacity of the completion queue.
    capacity: usize,
    /// Queue pairs of receivers whose flow has ended, oldest first.
    retired: VecDeque<Qpn>,
    /// The tasks of this host.
    pub(super) agenda: Agenda,
    pub(super) scale_up: ScaleUpPort,
}

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowEnd {
    /// The end that posts the requests: the sender, or the receiver of a READ.
    Requester,
    /// The other end. `receives` is set if it posts receives.
    Responder { receives: bool },
}

impl Host {
    pub(super) fn new(number: u32, port: u32, line_rate_bps: u64, settings: &Settings) -> Self {
        let mut nic = Nic::new(number, port, line_rate_bps, settings);
        let engine = &mut nic.engine;
        let memory = Arc::new(Pattern::new(settings.payload));
        let pd = engine.allocate_pd().expect("a new engine has room for a protection domain");
        let cq = engine.create_cq(COMPLETION_QUEUE).expect("a new engine has room for a completion queue");
        let access = Access::LOCAL_WRITE | REMOTE;
        let region =
            engine.register(pd, 0, memory.clone(), access).expect("a new engine has room for a region");
        let occupancy = engine.cq_occupancy(cq).expect("the queue exists");
        let application = settings.application_of(number);
        let process = (application != Application::Immediate)
            .then(|| Box::new(Process::new(application, (cq, occupancy), &settings.host)));
        Self {
            nic,
            pd,
            cq,
            region,
            memory,
            process,
            completions: Vec::new(),
            outstanding: 0,
            capacity: COMPLETION_QUEUE,
            retired: VecDeque::new(),
            agenda: Agenda::default(),
            scale_up: ScaleUpPort::default(),
        }
    }

    /// Starts the threads of the process.
    pub(super) fn start_threads(&mut self, world: &mut World) {
        if let Some(process) = &mut self.process {
            process.start(&self.nic, world);
        }
    }

    /// Handles a frame that arrived at the port.
    #[inline]
    pub(super) fn receive(&mut self, world: &mut World, id: FrameId) {
        if self.nic.accept(world, id) {
            self.take(world, id);
        }
    }

    /// Handles a received frame, or leaves it to the threads of the process.
    #[inline]
    pub(super) fn take(&mut self, world: &mut World, id: FrameId) {
        self.nic.end_intake(world, id);
        if let Some(process) = &mut self.process {
            return process.arrive(&self.nic, world, id);
        }
        self.nic.handle(world, id);
        self.settle(world);
    }

    /// Handles a timer event.
    pub(super) fn look_at_clock(&mut self, world: &mut World) {
        if self.nic.look_at_clock(world) {
            self.settle(world);
        }
    }

    /// Makes the step of a thread that is due now. Returns `false` if none is due.
    pub(super) fn step(&mut self, world: &mut World, thread: u32) -> bool {
        let Self { nic, process: Some(process), completions, .. } = self else { return false };
        let is_due = process.step(nic, world, thread);
        process.take_found(completions);
        is_due
    }

    /// Collects completions and packets after an input or after requests were posted, and schedules the next
    /// deadline. Threads of a process collect them later.
    #[inline]
    pub(super) fn settle(&mut self, world: &mut World) {
        if let Some(process) = &mut self.process {
            return process.send_posted(&mut self.nic, world);
        }
        self.fetch_completions(world);
        if world.is_free(self.nic.port) {
            self.nic.send(world);
        }
        self.nic.set_timer(world);
    }

    fn fetch_completions(&mut self, world: &mut World) {
        let engine = &mut self.nic.engine;
        while engine.poll_event().is_some() {}
        while let Ok(count @ 1..) = engine.poll_cq(self.cq, &mut world.completions[..]) {
            self.completions.extend_from_slice(&world.completions[..count]);
        }
    }

    /// Sends on a free link.
    #[inline]
    pub(super) fn send(&mut self, world: &mut World) {
        if self.process.is_some() {
            self.nic.send_queued(world);
            return;
        }
        self.nic.send(world);
        self.nic.set_timer(world);
    }

    /// Returns the result of a host with an application. `names` are the names of all hosts.
    pub(super) fn result(&self, names: &[String]) -> Option<HostResult> {
        let name = names.get(self.nic.number as usize).cloned().unwrap_or_default();
        self.process.as_ref().map(|process| process.result(name))
    }

    /// Creates a queue pair for a flow. [`Self::connect`] connects it.
    pub(super) fn create_qp(&mut self, of_flow: (&HostSettings, bool), end: FlowEnd) -> Option<Qpn> {
        let (settings, is_own) = of_flow;
        let options = QpOptions {
            congestion: is_own.then(|| settings.congestion.clone()),
            recovery: is_own.then_some(settings.recovery),
            paths: is_own.then(|| settings.paths.clone()),
        };
        let depth = settings.depth as usize;
        let sends = end == FlowEnd::Requester;
        let receives = end == FlowEnd::Responder { receives: true };
        let capabilities = QpCapabilities {
            max_send_wr: if sends { depth } else { 1 },
            // Each outstanding request can require a receive, and each receive is posted again when it
            // completes.
            max_recv_wr: if receives { depth } else { 0 },
            max_send_sge: usize::from(sends),
            max_recv_sge: usize::from(receives),
            max_inline: 0,
        };
        let (pd, send_cq, recv_cq) = (self.pd, self.cq, self.cq);
        let qp_type = QpType::Rc;
        let init = QpInit { qp_type, pd, send_cq, recv_cq, srq: None, capabilities, signal_all: false };
        let mut made = self.nic.engine.create_qp_with(&init, &options);
        while made.is_err()
            && let Some(oldest) = self.retired.pop_front()
        {
            let _ = self.nic.engine.destroy_qp(oldest);
            made = self.nic.engine.create_qp_with(&init, &options);
        }
        let qpn = made.ok()?;
        if sends || receives {
            self.make_room(depth);
        }
        Some(qpn)
    }

    /// Extends the completion queue. When flows fail, all their posted requests complete at once.
    fn make_room(&mut self, depth: usize) {
        self.outstanding += depth;
        if self.outstanding > self.capacity {
            let capacity = self.outstanding.next_power_of_two();
            if self.nic.engine.resize_cq(self.cq, capacity).is_ok() {
                self.capacity = capacity;
            }
        }
    }

    /// Destroys the queue pair of a requester whose flow has ended.
    pub(super) fn destroy_requester(&mut self, settings: &HostSettings, qpn: Qpn) {
        if self.nic.engine.destroy_qp(qpn).is_ok() {
            self.outstanding = self.outstanding.saturating_sub(settings.depth as usize);
        }
    }

    /// Retires the queue pair of a responder whose flow has ended. A retired queue pair can be destroyed to
    /// make room.
    pub(super) fn retire(&mut self, qpn: Qpn) {
        self.retired.push_back(qpn);
    }

    /// Moves a queue pair to RTS, like a connection manager outside the network.
    pub(super) fn connect(
        &mut self,
        world: &World,
        settings: &HostSettings,
        own: Qpn,
        host: u32,
        peer: Qpn,
    ) -> bool {
        let mut path = Frame::pause(0, 0).path();
        path.source = host_address(self.nic.number);
        path.destination = host_address(host);
        path.hop_limit = 64;
        // The engine sets ECN-capable transport if congestion control is on.
        path.traffic_class = settings.dscp << 2;
        path.source_port = roce_packet::flow::SourcePortRule::QpPair.port(&roce_packet::flow::FlowInputs {
            local: own,
            remote: peer,
            flow_label: 0,
            connection: None,
        });
        let reads = match settings.operation {
            // A READ in pieces has several requests.
            FlowOperation::Read if settings.reads.packets > 0 || settings.reads.policy.is_some() => {
                MAX_RD_ATOMIC
            }
            FlowOperation::Read => settings.depth.min(MAX_RD_ATOMIC.into()) as u8,
            FlowOperation::Write | FlowOperation::Send => 1,
        };
        let init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(REMOTE),
            ..QpAttr::to_state(QpState::Init)
        };
        let rtr = QpAttr {
            path: Some(path),
            path_mtu: Some(settings.path_mtu),
            dest_qpn: Some(peer),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(reads),
            min_rnr_timer: RnrTimer::new(12),
            ..QpAttr::to_state(QpState::Rtr)
        };
        let rts = QpAttr {
            sq_psn: Some(Psn::new(0)),
            timeout: Some(settings.timeout),
            retry_cnt: Some(settings.retry_cnt),
            rnr_retry: Some(7),
            max_rd_atomic: Some(reads),
            ..QpAttr::to_state(QpState::Rts)
        };
        world.trace_at(self.nic.number);
        let now = world.now.to_instant();
        [init, rtr, rts].iter().all(|attr| self.nic.engine.modify_qp(now, own, attr).is_ok())
    }

    /// Posts the receives required by SENDs or signalled WRITEs of a flow.
    pub(super) fn post_receives(&mut self, settings: &HostSettings, qpn: Qpn, flow: u32) -> bool {
        (0..settings.depth).all(|number| self.post_receive(settings, qpn, flow, number.into()))
    }

    /// Posts a receive of a flow. For a SEND, the buffer is the place of message `number` in the flow.
    fn post_receive(&mut self, settings: &HostSettings, qpn: Qpn, flow: u32, number: u64) -> bool {
        let wr_id = number << RECEIVE_NUMBER | RECEIVE | u64::from(flow);
        let addr = address(flow, number.wrapping_mul(settings.message_bytes));
        let element = [Sge { addr, length: settings.message_bytes as u32, lkey: self.region.lkey }];
        let elements = if settings.operation == FlowOperation::Send { &element[..] } else { &[] };
        self.nic.engine.post_recv(qpn, &RecvWr { wr_id, elements }).is_ok()
    }

    /// Handles the completion of a receive. Returns `false` for other completions.
    pub(super) fn take_arrival(&mut self, settings: &Settings, wc: &Wc) -> bool {
        if wc.wr_id & RECEIVE == 0 {
            return false;
        }
        if wc.status == WcStatus::Success {
            let flow = wc.wr_id as u32;
            let own = settings.of_flow(flow).0;
            let next = (wc.wr_id >> RECEIVE_NUMBER) + u64::from(own.depth);
            // Posting fails only if the queue pair has failed in the meantime, and then the flow fails.
            let _ = self.post_receive(own, wc.qpn, flow, next);
            if wc.flags.contains(WcFlags::WITH_IMM) {
                self.agenda.arrived(flow, u32::from_be_bytes(wc.imm.0));
            }
        }
        true
    }

    /// Handles the end of the computation of a task. Returns its flow, which can post more.
    pub(super) fn computed(&mut self, world: &mut World, task: u32) -> Option<u32> {
        match self.agenda.computed(world.now, task)? {
            Transfer::Flow { flow, .. } => Some(flow),
            Transfer::ScaleUp { to, bytes } => {
                self.scale_up(world, task, to, bytes);
                None
            }
        }
    }

    /// Sends the transfer of a task as soon as those before it have left.
    fn scale_up(&mut self, world: &mut World, task: u32, to: u32, bytes: u64) {
        let Some(spec) = world.scale_up.spec else { return };
        let Some(place) = world.scale_up.hosts.get(to as usize).copied() else { return };
        let begin = self.scale_up.send.max(world.now);
        self.scale_up.send = begin + Time::to_send(bytes, spec.rate_bps);
        world.events.push(self.scale_up.send, Event::ScaledUp { host: self.nic.index, task });
        let arrival = begin + spec.delay;
        let rank = world.ties.of_arrival(arrival, world.ports[self.nic.port as usize].number);
        world.scale_up.sent.push(Sent { to: place, arrival, rank, task: self.agenda.number(task) });
    }

    /// Receives a transfer as soon as those before it have arrived.
    pub(super) fn begin_scale_up(&mut self, world: &mut World, task: TaskId) {
        let Some(spec) = world.scale_up.spec else { return };
        let begin = self.scale_up.receive.max(world.now);
        self.scale_up.receive = begin + Time::to_send(self.agenda.scaled_up_bytes(task), spec.rate_bps);
        world.events.push(self.scale_up.receive, Event::ScaleUpEnds { host: self.nic.index, task });
    }

    /// Starts the tasks of this host that can start now. Returns the flows that can post more.
    pub(super) fn begin_tasks(&mut self, world: &mut World) -> Vec<u32> {
        let mut open = Vec::new();
        while let Some(ready) = self.agenda.next_ready() {
            let at = world.now.max(ready.earliest) + ready.compute;
            if at > world.now {
                world.events.push(at, Event::Task { host: self.nic.index, task: ready.task });
            } else {
                open.extend(self.computed(world, ready.task));
            }
        }
        open
    }

    /// Posts one request of a flow for the given offset and length. `signal` adds immediate data that makes
    /// the arrival visible to the receiver.
    pub(super) fn post(
        &mut self,
        world: &World,
        (qpn, flow): (Qpn, u32),
        operation: FlowOperation,
        rkey: RKey,
        range: (u64, u32),
        signal: Option<u32>,
    ) -> bool {
        let (offset, length) = range;
        let addr = address(flow, offset);
        let element = [Sge { addr, length, lkey: self.region.lkey }];
        let imm = signal.map(|part| ImmDt(part.to_be_bytes()));
        let op = match (operation, imm) {
            (FlowOperation::Write, None) => SendOp::Write { remote_addr: addr, rkey },
            (FlowOperation::Write, Some(imm)) => SendOp::WriteWithImm { remote_addr: addr, rkey, imm },
            (FlowOperation::Send, None) => SendOp::Send,
            (FlowOperation::Send, Some(imm)) => SendOp::SendWithImm(imm),
            (FlowOperation::Read, _) => SendOp::Read { remote_addr: addr, rkey },
        };
        let wr = SendWr::new(flow.into(), op, &element);
        if let Some(process) = &mut self.process {
            process.note_post(length.into());
        }
        world.trace_at(self.nic.number);
        self.nic.engine.post_send(world.now.to_instant(), qpn, &wr).is_ok()
    }

    /// Returns the key of the region for peers.
    pub(super) fn rkey(&self) -> RKey {
        self.region.rkey
    }
}
