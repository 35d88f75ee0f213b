//! A switch: receives a frame, chooses its egress port, and queues it until that port is free.

mod balance;
mod buffer;

use std::sync::Arc;

use rand_core::Rng as _;
use rand_pcg::Pcg32;
use roce_packet::TelemetryHop;

pub use buffer::BufferTooSmall;

use self::balance::Balancer;
use self::buffer::Buffer;
use super::egress::CONTROL;
use super::event::Event;
use super::frame::{Frame, FrameId, Kind};
use super::port::{DropReason, PauseStep};
use super::rules::{Admission, PortView, SwitchRules};
use super::settings::{Balance, Settings, SwitchSettings};
use super::ties::TieOrder;
use super::time::Time;
use super::topology::LinkSpec;
use super::world::World;
use roce_fault::random::generator;

#[derive(Debug)]
pub(super) struct Switch {
    number: u32,
    buffer: Buffer,
    random: Pcg32,
    balance: Balance,
    balancer: Balancer,
    rules: Option<Box<dyn SwitchRules>>,
    /// The ports of a choice, for the rules.
    seen: Vec<PortView>,
}

impl Switch {
    /// Builds switch `number` with ports that have these settings and links.
    pub(super) fn new(
        number: u32,
        settings: &Settings,
        ports: &[(Arc<SwitchSettings>, LinkSpec)],
    ) -> Result<Self, BufferTooSmall> {
        let own = settings.switch.of_switch(number);
        Ok(Self {
            number,
            buffer: Buffer::new(&own, settings.largest_mtu(), ports)?,
            balance: own.balance,
            random: generator(settings.seed, 0x5_0000 + u64::from(number)),
            balancer: Balancer::new(number, TieOrder::new(settings.ties, settings.seed).first_turn(number)),
            rules: own.rules.as_ref().map(|rules| rules.make(&number)),
            seen: Vec::new(),
        })
    }

    /// Prefetches the data that [`Self::receive`] needs first for a frame, and returns a number that depends
    /// on the data.
    #[inline]
    pub(super) fn fetch_receive(&self, world: &World, frame: &Frame) -> u64 {
        let choices = world.changes.routes().ports(self.number, frame.destination);
        let Some(out) = self.balancer.guess(self.balance, choices, frame) else { return 0 };
        let end = &world.ports[out as usize];
        end.egress.bytes_of(frame.priority.into()) ^ u64::from(end.pause.dropping) ^ u64::from(end.number)
    }

    /// Handles a frame that arrived at one of the ports.
    #[inline]
    pub(super) fn receive(&mut self, world: &mut World, port: u32, id: FrameId) {
        if !world.capture.is_empty() {
            world.note(port, id, false);
        }
        let frame = world.frames.get_mut(id);
        if frame.kind == Kind::Pause {
            world.take_pause(port, id);
            return;
        }
        frame.entered = port;
        if frame.hop_limit <= 1 {
            return world.discard(port, id, DropReason::HopLimit);
        }
        frame.hop_limit -= 1;
        let (priority, len) = (frame.priority, u64::from(frame.buffered_len()));
        let Some(out) = self.egress_port(world, id) else {
            return world.discard(port, id, DropReason::NoRoute);
        };
        let queue = usize::from(priority);
        let (entry, end) = (&world.ports[port as usize], &world.ports[out as usize]);
        if end.pause.dropping >> priority & 1 == 1 {
            return world.discard(out, id, DropReason::Watchdog);
        }
        let asked = self
            .rules
            .as_mut()
            .and_then(|rules| rules.admits(world.now, &world.frames.get(id).view(), &end.view(queue)));
        match asked {
            None | Some(Admission::Queue) => {}
            Some(Admission::Trim) => return self.trim_or_drop(world, (out, out), id, DropReason::Rules),
            Some(Admission::Drop) => return world.discard(out, id, DropReason::Rules),
        }
        if entry.settings.pfc >> priority & 1 == 1 {
            match self.buffer.admit(entry.local as usize, queue, len) {
                None => return self.trim_or_drop(world, (port, out), id, DropReason::Headroom),
                Some(stop) if stop => {
                    world.ports[port as usize].stats.pauses_sent += 1;
                    world.send_pause(port, priority, true);
                }
                Some(_) => {}
            }
        } else {
            let queued = end.egress.bytes_of(queue);
            let local = end.local as usize;
            let above = end.settings.trimming.and_then(|trimming| trimming.above_bytes);
            let is_above = asked.is_none() && above.is_some_and(|above| queued + len > above);
            if is_above && self.trim(world, out, id) {
                return;
            }
            if !self.buffer.admit_lossy(local, queued, len) {
                return self.trim_or_drop(world, (out, out), id, DropReason::Buffer);
            }
        }
        let World { ports, frames, .. } = world;
        ports[out as usize].enqueue(frames, queue, id);
        if ports[out as usize].pause.mask >> priority & 1 == 1 {
            world.note_held(port, out, priority);
        }
        if world.is_free(out) {
            self.send(world, out);
        }
    }

    /// Trims a frame that does not fit at port `out`. A frame that cannot be trimmed is dropped and counted
    /// at port `at`.
    #[cold]
    fn trim_or_drop(&mut self, world: &mut World, (at, out): (u32, u32), id: FrameId, reason: DropReason) {
        if !self.trim(world, out, id) {
            world.discard(at, id, reason);
        }
    }

    /// Trims a frame and queues its headers, which are dropped if they do not fit either. Returns whether the
    /// frame could be trimmed.
    #[cold]
    fn trim(&mut self, world: &mut World, out: u32, id: FrameId) -> bool {
        let Some(trimming) = world.ports[out as usize].settings.trimming else { return false };
        if !world.frames.trim(id, &trimming) {
            return false;
        }
        let frame = world.frames.get(id);
        let (queue, len) = (usize::from(frame.priority), u64::from(frame.buffered_len()));
        let end = &world.ports[out as usize];
        let dropping = end.pause.dropping >> queue & 1 == 1;
        if dropping || !self.buffer.admit_lossy(end.local as usize, end.egress.bytes_of(queue), len) {
            let reason = if dropping { DropReason::Watchdog } else { DropReason::Buffer };
            world.discard(out, id, reason);
            return true;
        }
        let World { ports, frames, .. } = world;
        ports[out as usize].stats.trimmed += 1;
        ports[out as usize].enqueue(frames, queue, id);
        let port = world.trace_at_port(out);
        tracing::trace!(port, "frame trimmed");
        if world.is_free(out) {
            self.send(world, out);
        }
        true
    }

    /// Chooses one of the ports that lead to the frame's host.
    #[inline]
    fn egress_port(&mut self, world: &World, id: FrameId) -> Option<u32> {
        let frame = world.frames.get(id);
        let choices = world.changes.routes().ports(self.number, frame.destination);
        if self.rules.is_some()
            && choices.len() > 1
            && let Some(chosen) = self.ask_for_port(world, frame, choices)
        {
            return Some(chosen);
        }
        self.balancer.choose(self.balance, choices, frame, &world.ports, world.now, &mut self.random)
    }

    /// Returns the port that the rules choose.
    #[cold]
    fn ask_for_port(&mut self, world: &World, frame: &Frame, choices: &[u32]) -> Option<u32> {
        let queue = usize::from(frame.priority);
        self.seen.clear();
        self.seen.extend(choices.iter().map(|port| world.ports[*port as usize].view(queue)));
        let chosen = self.rules.as_mut()?.choose(world.now, &frame.view(), &self.seen)?;
        choices.get(chosen).or(choices.last()).copied()
    }

    /// Sends the next frame of a port whose link is free.
    #[inline]
    pub(super) fn send(&mut self, world: &mut World, out: u32) {
        let end = &mut world.ports[out as usize];
        let Some(queue) = end.egress.next(end.pause.mask, &end.settings.scheduling) else { return };
        let Some(id) = end.egress.pop(queue) else { return };
        if queue != CONTROL {
            self.leave(world, out, queue, id);
            if world.frames.get(id).has_telemetry {
                let end = &world.ports[out as usize];
                let now = world.now.as_ps() / 1_000;
                let hop = TelemetryHop::new(end.spec.rate_bps, now, end.stats.tx_bytes, end.egress.bytes());
                let port = end.number;
                world.frames.stamp(id, hop, port);
            }
        }
        world.transmit(out, id);
        if world.ports[out as usize].sendable() != 0 {
            world.wake_when_free(out);
        }
    }

    /// Releases the buffer space of a frame that leaves, and marks the frame.
    #[inline]
    fn leave(&mut self, world: &mut World, out: u32, queue: usize, id: FrameId) {
        self.give_back(world, queue, id);
        let end = &world.ports[out as usize];
        let mut left = end.egress.bytes_of(queue);
        if let Some(rate) = end.settings.marking_rate_bps {
            // Queues with the same length in time get the same share of marks at every rate.
            left = (u128::from(left) * u128::from(rate) / u128::from(end.spec.rate_bps.max(1))) as u64;
        }
        let asked = self
            .rules
            .as_mut()
            .and_then(|rules| rules.marks(world.now, &world.frames.get(id).view(), &end.view(queue)));
        let marking = end.settings.marking[queue];
        if asked.unwrap_or_else(|| marking.marks(left, || self.random.next_u32())) {
            let frame = world.frames.get_mut(id);
            if frame.ecn().is_capable() {
                frame.mark();
                world.ports[out as usize].stats.marked += 1;
            }
        }
    }

    fn give_back(&mut self, world: &mut World, queue: usize, id: FrameId) {
        let frame = world.frames.get(id);
        let (entered, len, priority) = (frame.entered, u64::from(frame.buffered_len()), frame.priority);
        let entry = &world.ports[entered as usize];
        if entry.settings.pfc >> priority & 1 == 1 {
            if self.buffer.release(entry.local as usize, queue, len) {
                world.send_pause(entered, priority, false);
            }
        } else {
            self.buffer.release_lossy(len);
        }
    }

    /// Refreshes a pause that this switch requested, if half of its duration is over and the pause is still
    /// required.
    pub(super) fn refresh_pause(&mut self, world: &mut World, port: u32, priority: u8) {
        let local = world.ports[port as usize].local as usize;
        let is_paused = self.buffer.is_paused(local, usize::from(priority));
        if world.refresh_is_due(port, priority, is_paused) {
            world.send_pause(port, priority, true);
        }
    }

    /// Empties the queue of a port that has been paused for longer than the watchdog allows.
    pub(super) fn watch(&mut self, world: &mut World, out: u32, priority: u8) {
        let Some(watchdog) = world.ports[out as usize].settings.watchdog else { return };
        let (bit, queue) = (1_u8 << priority, usize::from(priority));
        let now = world.now;
        let end = &mut world.ports[out as usize];
        let (since, is_paused) = (end.pause.since[queue], end.pause.mask & bit != 0);
        end.pause.watched &= !bit;
        if !is_paused || end.pause.dropping & bit != 0 {
            return;
        }
        if now.since(since) < watchdog.after || end.egress.len(queue) == 0 {
            // This pause began later than the pause that queued the event, or no frame is waiting.
            end.pause.watched |= bit;
            let at = (since + watchdog.after).max(now + Time::from_ns(1_000));
            world.events.push(at, Event::Watchdog { port: out, priority });
            return;
        }
        end.stats.watchdog += 1;
        end.pause.dropping |= bit;
        // Noted before the frames leave, so that the watchdog is the recorded cause that ends waits.
        world.note_pause(out, priority, PauseStep::Watchdog);
        while let Some(id) = world.ports[out as usize].egress.pop(queue) {
            self.give_back(world, queue, id);
            world.discard(out, id, DropReason::Watchdog);
        }
        world.events.push(now + watchdog.restore, Event::Restore { port: out, priority });
    }

    /// Ends the action of the watchdog on a queue, and watches the queue again if it is still paused.
    pub(super) fn restore(&mut self, world: &mut World, out: u32, priority: u8) {
        let Some(watchdog) = world.ports[out as usize].settings.watchdog else { return };
        let (bit, queue, now) = (1_u8 << priority, usize::from(priority), world.now);
        let end = &mut world.ports[out as usize];
        end.pause.dropping &= !bit;
        world.note_pause(out, priority, PauseStep::Restored);
        let end = &mut world.ports[out as usize];
        if end.pause.mask & bit != 0 {
            end.stats.paused[queue] = end.stats.paused[queue] + now.since(end.pause.since[queue]);
            end.pause.since[queue] = now;
            end.pause.watched |= bit;
            world.events.push(now + watchdog.after, Event::Watchdog { port: out, priority });
        }
    }
}
