//! A host: an engine and its port.
//!
//! The port polls the engine for the next packet only when the link is free, so the scheduler of the engine
//! determines the order. Up to [`MOST_HELD`] packets of a paused priority wait in the port. Beyond that, the
//! port only polls for acknowledgements and notifications, which have a priority of their own, until the
//! pause ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use roce_packet::{ImmDt, Opcode, Psn, Qpn, RnrTimer};
use roce_transport::congestion::Rate;
use roce_transport::{
    Access, Allowed, Batch, CqId, Engine, EngineConfig, Identification, MAX_RD_ATOMIC, Pacing, PdId, QpAttr,
    QpCapabilities, QpInit, QpOptions, QpState, QpType, RKey, Received, RecvWr, RegionAttributes, SendOp,
    SendWr, Sge, TxSlot, Wc, WcFlags, WcStatus,
};

use super::dependencies::Agenda;
use super::event::Event;
use super::frame::{Frame, FrameId, Kind, host_address};
use super::payload::{Pattern, flow_address};
use super::port::DropReason;
use super::settings::{
    Class, FlowOperation, HostSettings, PRIORITIES, PauseStorm, PayloadMode, ReceiveLimit, Settings,
    classes_of, priority_of,
};
use super::time::Time;
use super::world::World;

/// The maximum number of packets of a paused priority in the port.
const MOST_HELD: usize = 8;
/// The maximum number of queue pairs of a host. Queue pairs of receivers are kept until this limit is
/// reached.
pub(super) const MOST_QUEUE_PAIRS: usize = 65_000;
/// The initial capacity of the completion queue.
const COMPLETION_QUEUE: usize = 1 << 4;
/// The bit of a work request ID that marks a receive. The bits below it are the flow number, and the bits
/// above it the receive number.
const RECEIVE: u64 = 1 << 32;
const RECEIVE_NUMBER: u32 = 33;

/// The access rights of peers to the region of a host.
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

pub(super) struct Host {
    /// The number of the host in the whole network.
    pub(super) number: u32,
    /// The numbers of the host and its port in their part of the network.
    pub(super) index: u32,
    pub(super) port: u32,
    pub(super) engine: Engine,
    pd: PdId,
    cq: CqId,
    region: RegionAttributes,
    pub(super) memory: Arc<Pattern>,
    /// The time of the next queued timer event.
    timer: Time,
    intake: Option<Intake>,
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
    /// Priorities of data, one bit each.
    data: u8,
}

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowEnd {
    /// The end that posts the requests: the sender, or the receiver of a READ.
    Requester,
    /// The other end. `receives` is set if it posts receives.
    Responder { receives: bool },
}

/// Frames that a slow host has not received yet.
#[derive(Debug)]
struct Intake {
    limit: ReceiveLimit,
    waiting: u64,
    busy_until: Time,
    paused: u8,
}

impl Host {
    pub(super) fn new(number: u32, port: u32, line_rate_bps: u64, settings: &Settings) -> Self {
        let mut engine = Engine::new(engine_config(number, line_rate_bps, settings));
        let memory = Arc::new(Pattern::new(settings.payload));
        let pd = engine.allocate_pd().expect("a new engine has room for a protection domain");
        let cq = engine.create_cq(COMPLETION_QUEUE).expect("a new engine has room for a completion queue");
        let access = Access::LOCAL_WRITE | REMOTE;
        let region =
            engine.register(pd, 0, memory.clone(), access).expect("a new engine has room for a region");
        let limit = settings.host.receive_limit;
        let limit = limit.filter(|limit| limit.host.is_none_or(|host| host == number));
        Self {
            number,
            index: number,
            port,
            engine,
            pd,
            cq,
            region,
            memory,
            timer: Time::NEVER,
            intake: limit.map(|limit| Intake { limit, waiting: 0, busy_until: Time::ZERO, paused: 0 }),
            completions: Vec::new(),
            outstanding: 0,
            capacity: COMPLETION_QUEUE,
            retired: VecDeque::new(),
            agenda: Agenda::default(),
            data: settings.data_priorities(),
        }
    }

    /// Prefetches the data that [`Self::receive`] needs first for a frame. Returns a number that depends on
    /// the data.
    #[inline]
    pub(super) fn fetch_receive(&self, frame: &Frame) -> u64 {
        let [_, _, _, _, _, a, b, c, ..] = frame.head;
        let counters = self.engine.qp_counters(Qpn::new(u32::from_be_bytes([0, a, b, c])));
        counters.map_or(0, |counters| counters.rdma_rx_packets)
    }

    /// Handles a frame that arrived at the port.
    #[inline]
    pub(super) fn receive(&mut self, world: &mut World, id: FrameId) {
        if !world.capture.is_empty() {
            world.note(self.port, id, false);
        }
        let frame = world.frames.get(id);
        match frame.kind {
            Kind::Pause => return world.take_pause(self.port, id),
            Kind::Damaged => return world.discard(self.port, id, DropReason::Damaged),
            Kind::Datagram | Kind::Trimmed => {}
        }
        let mut at = world.now;
        if let Some(intake) = &mut self.intake {
            at = intake.take(frame, at);
            let bit = 1 << frame.priority;
            if intake.waiting >= intake.limit.xoff_bytes && intake.paused & bit == 0 {
                intake.paused |= bit;
                let priority = frame.priority;
                world.ports[self.port as usize].stats.pauses_sent += 1;
                world.send_pause(self.port, priority, true);
            }
        }
        at = at + world.settings.host.delay;
        if at > world.now {
            world.events.push(at, Event::Taken { host: self.index, frame: id });
        } else {
            self.take(world, id);
        }
    }

    /// Delivers a frame to the engine.
    #[inline]
    pub(super) fn take(&mut self, world: &mut World, id: FrameId) {
        let frame = world.frames.get(id);
        if let Some(intake) = &mut self.intake {
            intake.waiting = intake.waiting.saturating_sub(frame.buffered_len().into());
            if intake.waiting <= intake.limit.xoff_bytes / 2 {
                for priority in (0..8).filter(|priority| intake.paused >> priority & 1 == 1) {
                    world.send_pause(self.port, priority, false);
                }
                intake.paused = 0;
            }
        }
        let frame = world.frames.get(id);
        let path = frame.path();
        let bytes = world.frames.bytes(id);
        let telemetry = world.frames.telemetry(id);
        let mut received = match world.settings.payload {
            _ if frame.kind == Kind::Trimmed => Received::trimmed(path, bytes),
            PayloadMode::Implied => {
                Received::implied(path, bytes, usize::from(frame.len).saturating_sub(bytes.len()))
            }
            PayloadMode::Real => Received::whole(path, Identification::ABSENT, bytes),
        };
        received.telemetry = telemetry.as_ref();
        world.trace_at(self.number);
        self.engine.handle(world.now.to_instant(), &received);
        world.frames.remove(id);
        self.settle(world);
    }

    /// Handles a timer event.
    pub(super) fn look_at_clock(&mut self, world: &mut World) {
        if self.timer > world.now {
            // An earlier event has already handled the deadline of this one.
            return;
        }
        self.timer = Time::NEVER;
        world.trace_at(self.number);
        self.engine.handle_timeout(world.now.to_instant(), Duration::ZERO);
        self.settle(world);
    }

    /// Collects completions and packets after an input, and schedules the next deadline.
    #[inline]
    pub(super) fn settle(&mut self, world: &mut World) {
        self.fetch_completions(world);
        if world.is_free(self.port) {
            self.send(world);
        }
        self.set_timer(world);
    }

    fn fetch_completions(&mut self, world: &mut World) {
        while self.engine.poll_event().is_some() {}
        while let Ok(count @ 1..) = self.engine.poll_cq(self.cq, &mut world.completions[..]) {
            self.completions.extend_from_slice(&world.completions[..count]);
        }
    }

    /// Queues a timer event for the next deadline of the engine, unless an earlier one is queued.
    #[inline]
    pub(super) fn set_timer(&mut self, world: &mut World) {
        let Some(deadline) = self.engine.poll_timeout() else { return };
        let deadline = Time::from_instant(deadline).max(world.now);
        if deadline < self.timer {
            self.timer = deadline;
            world.events.push(deadline, Event::Timer { host: self.index });
        }
    }

    /// Sends on a free link: a frame that waits in the port, or the next packet of the engine.
    #[inline]
    pub(super) fn send(&mut self, world: &mut World) {
        let port = self.port;
        loop {
            let end = &mut world.ports[port as usize];
            if let Some(queue) = end.egress.next(end.pause.mask, &[Class::Strict; PRIORITIES])
                && let Some(id) = end.egress.pop(queue)
            {
                world.transmit(port, id);
                return world.wake_when_free(port);
            }
            let is_full = |priority: u8| end.egress.len(usize::from(priority)) >= MOST_HELD;
            let settings = &world.settings.host;
            let answers = priority_of(settings.ack_dscp.unwrap_or(settings.dscp));
            if is_full(answers) {
                return;
            }
            let full = (0..PRIORITIES as u8)
                .filter(|priority| self.data >> priority & 1 == 1 && is_full(*priority))
                .fold(0, |bits, priority| bits | 1 << priority);
            let Some(id) = self.next_frame(world, full) else { return };
            let priority = usize::from(world.frames.get(id).priority);
            let World { ports, frames, .. } = world;
            let end = &mut ports[port as usize];
            if end.pause.mask >> priority & 1 == 1 {
                end.enqueue(frames, priority, id);
                continue;
            }
            world.transmit(port, id);
            return world.wake_when_free(port);
        }
    }

    /// Polls the engine for a packet and builds its frame.
    #[inline]
    fn next_frame(&mut self, world: &mut World, full: u8) -> Option<FrameId> {
        world.trace_at(self.number);
        let mut slot = TxSlot::new(&mut world.scratch[..]);
        let implied = world.settings.payload == PayloadMode::Implied;
        if implied {
            slot.batch = &Batch::UNSEALED;
        }
        let allowed = if full == 0 { Allowed::All } else { Allowed::Data(classes_of(!full)) };
        let transmit = self.engine.poll_transmit(world.now.to_instant(), &mut slot, allowed);
        let transmit = transmit.as_ref()?;
        let bytes = world.scratch.get(..transmit.len)?;
        let opcode = Opcode(bytes.first().copied().unwrap_or_default());
        let mut frame = Frame::datagram(&transmit.path, transmit.len)?;
        let settings = &world.settings.host;
        let dscp = match opcode {
            Opcode::RC_ACKNOWLEDGE => settings.ack_dscp,
            _ => None,
        };
        let own = frame.traffic_class;
        frame.set_traffic_class(dscp.map_or(own, |dscp| dscp << 2 | own & 0b11));
        let kept = match opcode.info() {
            Some(info) if implied => bytes.get(..info.header_len)?,
            _ => bytes,
        };
        let id = world.frames.insert(frame);
        world.frames.store(id, kept);
        if let Some(telemetry) = &transmit.telemetry {
            world.frames.add_telemetry(id, telemetry);
        }
        Some(id)
    }

    /// Refreshes a pause that this host requested, if half of its duration is over and the pause is still
    /// required.
    pub(super) fn refresh_pause(&mut self, world: &mut World, priority: u8) {
        let slow = self.intake.as_ref().is_some_and(|intake| intake.paused >> priority & 1 == 1);
        let storms = self.storms(world, priority);
        if world.refresh_is_due(self.port, priority, slow || storms) {
            world.send_pause(self.port, priority, true);
        }
    }

    /// Starts or ends a pause storm of this host.
    pub(super) fn storm(&mut self, world: &mut World, storm: &PauseStorm) {
        let begins = world.now < storm.end;
        if begins {
            world.ports[self.port as usize].stats.pauses_sent += 1;
        } else if self.storms(world, storm.priority) {
            // Another storm of the same priority continues.
            return;
        }
        world.send_pause(self.port, storm.priority, begins);
    }

    /// Returns whether a storm pauses this priority now.
    fn storms(&self, world: &World, priority: u8) -> bool {
        let (number, now) = (self.number, world.now);
        world.settings.storms.iter().any(|storm| {
            storm.host == number && storm.priority == priority && storm.start <= now && now < storm.end
        })
    }

    /// Creates a queue pair for a flow. [`Self::connect`] connects it.
    pub(super) fn create_qp(&mut self, of_flow: (&HostSettings, bool), end: FlowEnd) -> Option<Qpn> {
        let (settings, is_own) = of_flow;
        let options = QpOptions {
            congestion: is_own.then(|| settings.congestion.clone()),
            recovery: is_own.then_some(settings.recovery),
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
        let mut made = self.engine.create_qp_with(&init, &options);
        while made.is_err()
            && let Some(oldest) = self.retired.pop_front()
        {
            let _ = self.engine.destroy_qp(oldest);
            made = self.engine.create_qp_with(&init, &options);
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
            if self.engine.resize_cq(self.cq, capacity).is_ok() {
                self.capacity = capacity;
            }
        }
    }

    /// Destroys the queue pair of a requester whose flow has ended.
    pub(super) fn destroy_requester(&mut self, settings: &HostSettings, qpn: Qpn) {
        if self.engine.destroy_qp(qpn).is_ok() {
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
        path.source = host_address(self.number);
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
        world.trace_at(self.number);
        let now = world.now.to_instant();
        [init, rtr, rts].iter().all(|attr| self.engine.modify_qp(now, own, attr).is_ok())
    }

    /// Posts the receives required by SENDs or signalled WRITEs of a flow.
    pub(super) fn post_receives(&mut self, settings: &HostSettings, qpn: Qpn, flow: u32) -> bool {
        (0..settings.depth).all(|number| self.post_receive(settings, qpn, flow, number.into()))
    }

    /// Posts a receive of a flow. For a SEND, the buffer is the place of message `number` in the flow.
    fn post_receive(&mut self, settings: &HostSettings, qpn: Qpn, flow: u32, number: u64) -> bool {
        let wr_id = number << RECEIVE_NUMBER | RECEIVE | u64::from(flow);
        let addr = flow_address(flow).wrapping_add(number.wrapping_mul(settings.message_bytes));
        let element = [Sge { addr, length: settings.message_bytes as u32, lkey: self.region.lkey }];
        let elements = if settings.operation == FlowOperation::Send { &element[..] } else { &[] };
        self.engine.post_recv(qpn, &RecvWr { wr_id, elements }).is_ok()
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

    /// Starts the tasks of this host that can start now. Returns the flows that can post more.
    pub(super) fn begin_tasks(&mut self, world: &mut World) -> Vec<u32> {
        let mut open = Vec::new();
        while let Some(ready) = self.agenda.next_ready() {
            let at = world.now.max(ready.earliest) + ready.compute;
            if at > world.now {
                world.events.push(at, Event::Task { host: self.index, task: ready.task });
            } else {
                open.extend(self.agenda.computed(at, ready.task));
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
        let addr = flow_address(flow) + offset;
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
        world.trace_at(self.number);
        self.engine.post_send(world.now.to_instant(), qpn, &wr).is_ok()
    }

    /// Returns the key of the region for peers.
    pub(super) fn rkey(&self) -> RKey {
        self.region.rkey
    }
}

impl Intake {
    /// Adds an arriving frame and returns the time at which it will have been received.
    fn take(&mut self, frame: &Frame, now: Time) -> Time {
        let len = u64::from(frame.buffered_len());
        self.waiting += len;
        self.busy_until = self.busy_until.max(now) + Time::to_send(len, self.limit.rate_bps);
        self.busy_until
    }
}

fn engine_config(number: u32, line_rate_bps: u64, settings: &Settings) -> EngineConfig {
    let seed = settings.seed.wrapping_mul(0x1_0000_0001).wrapping_add(number.into());
    let mut config = EngineConfig::from_number(seed);
    config.max_outstanding_packets = settings.host.window_packets;
    config.quantum = 1;
    config.max_qp = MOST_QUEUE_PAIRS;
    // RNICs request a READ as a whole.
    config.max_read_packets = 0;
    config.congestion = settings.host.congestion.clone();
    config.notification = settings.host.notification;
    config.recovery = settings.host.recovery;
    config.line_rate = Rate::bits_per_second(line_rate_bps);
    // Timers are exact here, so bursts need not compensate for late timers. Scenarios show losses without
    // congestion control, so losses do not reduce the rate.
    config.pacing = Pacing { burst: 0, preamble: true, after_loss: false };
    config
}
