//! The NIC of a host: its engine and its port.
//!
//! The port polls the engine for the next packet only when the link is free, so the scheduler of the engine
//! determines the order. Up to [`MOST_HELD`] packets of a paused priority wait in the port. Beyond that, the
//! port only polls for acknowledgements and notifications, which have a priority of their own, until the
//! pause ends. At a host with an application, threads move packets to the port instead.

use std::time::Duration;

use roce_packet::{Opcode, Qpn};
use roce_transport::congestion::Rate;
use roce_transport::{Allowed, Batch, Engine, EngineConfig, Identification, Pacing, Received, TxSlot};

use super::application::Application;
use super::event::Event;
use super::frame::{Frame, FrameId, Kind};
use super::port::DropReason;
use super::receiver::ReceiveLimit;
use super::settings::{Class, PRIORITIES, PauseStorm, PayloadMode, Settings, classes_of, priority_of};
use super::time::Time;
use super::world::World;

/// The maximum number of packets of a paused priority in the port.
const MOST_HELD: usize = 8;
/// The maximum number of queue pairs of a host. Queue pairs of receivers are kept until this limit is
/// reached.
pub(super) const MOST_QUEUE_PAIRS: usize = 65_000;

pub(super) struct Nic {
    /// The number of the host in the whole network.
    pub(super) number: u32,
    /// The numbers of the host and its port in their part of the network.
    pub(super) index: u32,
    pub(super) port: u32,
    pub(super) engine: Engine,
    /// The time of the next queued timer event.
    timer: Time,
    intake: Option<Intake>,
    /// Priorities of data, one bit each.
    data: u8,
}

/// Frames that a slow host has not received yet.
#[derive(Debug)]
struct Intake {
    limit: ReceiveLimit,
    waiting: u64,
    busy_until: Time,
    paused: u8,
}

impl Nic {
    pub(super) fn new(number: u32, port: u32, line_rate_bps: u64, settings: &Settings) -> Self {
        let limit = settings.host.receive_limit;
        let limit = limit.filter(|limit| limit.host.is_none_or(|host| host == number));
        Self {
            number,
            index: number,
            port,
            engine: Engine::new(engine_config(number, line_rate_bps, settings)),
            timer: Time::NEVER,
            intake: limit.map(|limit| Intake { limit, waiting: 0, busy_until: Time::ZERO, paused: 0 }),
            data: settings.data_priorities(),
        }
    }

    /// Prefetches the data that [`Self::handle`] needs first for a frame. Returns a number that depends on
    /// the data.
    #[inline]
    pub(super) fn fetch_receive(&self, frame: &Frame) -> u64 {
        let [_, _, _, _, _, a, b, c, ..] = frame.head;
        self.engine.received_packets(Qpn::new(u32::from_be_bytes([0, a, b, c]))).unwrap_or(0)
    }

    /// Accepts a frame that arrived at the port. Returns whether the frame has been received now; otherwise
    /// an event is queued for the time at which it will have been, or the frame is gone.
    #[inline]
    pub(super) fn accept(&mut self, world: &mut World, id: FrameId) -> bool {
        if !world.capture.is_empty() {
            world.note(self.port, id, false);
        }
        let frame = world.frames.get(id);
        match frame.kind {
            Kind::Pause => {
                world.take_pause(self.port, id);
                return false;
            }
            Kind::Damaged => {
                world.discard(self.port, id, DropReason::Damaged);
                return false;
            }
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
        let is_later = at > world.now;
        if is_later {
            world.events.push(at, Event::Taken { host: self.index, frame: id });
        }
        !is_later
    }

    /// Records that a frame has been received, which makes room for others.
    #[inline]
    pub(super) fn end_intake(&mut self, world: &mut World, id: FrameId) {
        let frame = world.frames.get(id);
        if let Some(intake) = &mut self.intake {
            intake.waiting = intake.waiting.saturating_sub(frame.buffered_len().into());
            if intake.waiting <= intake.limit.xoff_bytes / 2 {
                let paused = std::mem::take(&mut intake.paused);
                for priority in (0..8).filter(|priority| paused >> priority & 1 == 1) {
                    if !self.wants_pause(world, priority) {
                        world.send_pause(self.port, priority, false);
                    }
                }
            }
        }
    }

    /// Passes a received frame to the engine.
    #[inline]
    pub(super) fn handle(&mut self, world: &mut World, id: FrameId) {
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
    }

    /// Handles a timer event. Returns whether a deadline has come.
    pub(super) fn look_at_clock(&mut self, world: &World) -> bool {
        if self.timer > world.now {
            // An earlier event has already handled the deadline of this one.
            return false;
        }
        self.timer = Time::NEVER;
        self.handle_timeout(world);
        true
    }

    /// Handles expired deadlines of the engine.
    #[inline]
    pub(super) fn handle_timeout(&mut self, world: &World) {
        world.trace_at(self.number);
        self.engine.handle_timeout(world.now.to_instant(), Duration::ZERO);
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
            if self.send_queued(world) {
                return;
            }
            let end = &mut world.ports[port as usize];
            let is_full = |priority: u8| end.egress.len(usize::from(priority)) >= MOST_HELD;
            let settings = &world.settings.host;
            let answers = priority_of(settings.ack_dscp.unwrap_or(settings.dscp));
            if is_full(answers) {
                return;
            }
            let full = (0..PRIORITIES as u8)
                .filter(|priority| self.data >> priority & 1 == 1 && is_full(*priority))
                .fold(0, |bits, priority| bits | 1 << priority);
            let allowed = if full == 0 { Allowed::All } else { Allowed::Data(classes_of(!full)) };
            let Some(id) = self.next_frame(world, allowed) else { return };
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

    /// Sends a frame that waits in the port on a free link. Returns whether there was one.
    #[inline]
    pub(super) fn send_queued(&mut self, world: &mut World) -> bool {
        let end = &mut world.ports[self.port as usize];
        let queue = end.egress.next(end.pause.mask, &[Class::Strict; PRIORITIES]);
        let Some(id) = queue.and_then(|queue| end.egress.pop(queue)) else { return false };
        world.transmit(self.port, id);
        world.wake_when_free(self.port);
        true
    }

    /// Moves packets of the engine to the port, while they are allowed and the port has fewer than
    /// `room_bytes` bytes. `sent` is told of the length of each datagram, and returns whether more may
    /// follow. Returns whether the port is full.
    pub(super) fn hand_over(
        &mut self,
        world: &mut World,
        allowed: Allowed,
        room_bytes: u64,
        mut sent: impl FnMut(usize) -> bool,
    ) -> bool {
        let is_full = loop {
            if world.ports[self.port as usize].egress.bytes() >= room_bytes {
                break true;
            }
            let Some(id) = self.next_frame(world, allowed) else { break false };
            let World { ports, frames, .. } = world;
            let frame = frames.get(id);
            let (priority, len) = (usize::from(frame.priority), usize::from(frame.len));
            ports[self.port as usize].enqueue(frames, priority, id);
            if !sent(len) {
                break false;
            }
        };
        if world.is_free(self.port) {
            self.send_queued(world);
        }
        is_full
    }

    /// Polls the engine for a packet and builds its frame.
    #[inline]
    fn next_frame(&mut self, world: &mut World, allowed: Allowed) -> Option<FrameId> {
        world.trace_at(self.number);
        let mut slot = TxSlot::new(&mut world.scratch[..]);
        let implied = world.settings.payload == PayloadMode::Implied;
        if implied {
            slot.batch = &Batch::UNSEALED;
        }
        let transmit = self.engine.poll_transmit(world.now.to_instant(), &mut slot, allowed);
        let transmit = transmit.as_ref()?;
        let bytes = world.scratch.get(..transmit.len)?;
        let opcode = Opcode(bytes.first().copied().unwrap_or_default());
        let mut frame = Frame::datagram(&transmit.path, transmit.len)?;
        let settings = &world.settings.host;
        let dscp = match opcode {
            Opcode::RC_ACKNOWLEDGE => settings.ack_dscp,
            Opcode::RC_RDMA_READ_REQUEST => settings.reads.dscp,
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
        let wants_pause = self.wants_pause(world, priority);
        if world.refresh_is_due(self.port, priority, wants_pause) {
            world.send_pause(self.port, priority, true);
        }
    }

    /// Starts or ends a pause storm of this host.
    pub(super) fn storm(&mut self, world: &mut World, storm: &PauseStorm) {
        let begins = world.now < storm.end;
        if begins {
            world.ports[self.port as usize].stats.pauses_sent += 1;
        } else if self.wants_pause(world, storm.priority) {
            return;
        }
        world.send_pause(self.port, storm.priority, begins);
    }

    /// Returns whether this priority stays paused: too many frames wait to be taken, or a storm pauses it.
    fn wants_pause(&self, world: &World, priority: u8) -> bool {
        let is_slow = self.intake.as_ref().is_some_and(|intake| intake.paused >> priority & 1 == 1);
        is_slow || self.storms(world, priority)
    }

    /// Returns whether a storm pauses this priority now.
    fn storms(&self, world: &World, priority: u8) -> bool {
        let (number, now) = (self.number, world.now);
        world.settings.storms.iter().any(|storm| {
            storm.host == number && storm.priority == priority && storm.start <= now && now < storm.end
        })
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
    config.max_read_packets = settings.host.reads.packets;
    if let Some(factor) = settings.host.reads.rate {
        config.read_rate = Rate::bits_per_second((line_rate_bps as f64 * factor) as u64);
    }
    config.pulls = settings.host.reads.policy.clone();
    config.congestion = settings.host.congestion.clone();
    config.notification = settings.host.notification;
    config.recovery = settings.host.recovery;
    config.paths = settings.host.paths.clone();
    config.line_rate = Rate::bits_per_second(line_rate_bps);
    // Timers are exact here unless threads must handle them, so bursts need not compensate for late timers.
    // Scenarios show losses without congestion control, so losses do not reduce the rate.
    let burst =
        if settings.application_of(number) != Application::Immediate { Pacing::default().burst } else { 0 };
    config.pacing = Pacing { burst, preamble: true, after_loss: false };
    config
}
