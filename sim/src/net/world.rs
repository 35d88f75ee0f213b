//! The state that switches and hosts share: time, events, frames and ports; and the behaviour of links.

use std::sync::Arc;

use roce_transport::Instant;

use super::egress::CONTROL;
use super::failure::{Change, Changes};
use super::frame::{Frame, FrameId, Frames, Kind};
use super::journal;
use super::port::{DropReason, Held, Owner, PauseStep, Port};
use super::queue::EventQueue;
use super::route::other_end;
use super::settings::{PauseMode, Settings};
use super::time::Time;
use super::trace::Trace;

/// A scheduled event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The last bit of a frame arrives at a port.
    Arrive { port: u32, frame: FrameId },
    /// A host has received a frame.
    Taken { host: u32, frame: FrameId },
    /// The link of a port is free.
    Free { port: u32 },
    /// The next deadline of an engine.
    Timer { host: u32 },
    /// A flow starts.
    Start { flow: u32 },
    /// The computation of a task of a host ends.
    Task { host: u32, task: u32 },
    /// A pause may have expired.
    PauseEnds { port: u32, priority: u8 },
    /// A pause that this port requested may need a refresh.
    PauseRefresh { port: u32, priority: u8 },
    /// A pause may have lasted too long.
    Watchdog { port: u32, priority: u8 },
    /// The watchdog enables a queue again.
    Restore { port: u32, priority: u8 },
    /// The latest time for a frame that waits to be overtaken.
    Release { port: u32, frame: FrameId },
    /// A pause storm of a host starts or ends.
    Storm { storm: u32 },
    /// A link fails or works again, or the routes change.
    Change { number: u32 },
    /// Rates and queues are sampled.
    Sample,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Time,
    pub(super) settings: Settings,
    pub(super) events: EventQueue<Event>,
    pub(super) frames: Frames,
    pub(super) ports: Vec<Port>,
    pub(super) changes: Changes,
    pub(super) trace: Trace,
    /// Frames of captured ports that were not fetched yet.
    pub(super) captured: Vec<Captured>,
    /// Ports that are captured.
    pub(super) capture: Vec<u32>,
    /// The name of each port, and whether a host owns it.
    pub(super) names: Arc<[(String, bool)]>,
    /// The number of hosts.
    pub(super) hosts: u32,
    /// Whether trace events are kept.
    pub(super) traced: bool,
}

/// A frame that passed a captured port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The time at which its first bit left or its last bit arrived.
    pub time: Time,
    /// The port, as an index into [`Results::ports`](super::Results::ports).
    pub port: u32,
    /// Whether it left the port.
    pub outbound: bool,
    /// The content.
    pub content: CapturedContent,
}

/// The content of a captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapturedContent {
    /// A RoCE datagram.
    Datagram {
        /// Addresses, and the ECN mark at this port.
        path: roce_packet::Path,
        /// BTH to ICRC; only the headers when payload is implied.
        bytes: Vec<u8>,
        /// The size of the whole datagram in bytes.
        len: usize,
    },
    /// A pause frame.
    Pause {
        /// The paused priority.
        priority: u8,
        /// The duration in units of 512 bit times.
        quanta: u16,
    },
}

impl World {
    pub(super) fn instant(&self) -> Instant {
        self.now.to_instant()
    }

    /// The trace events that follow are of this node, now.
    #[inline]
    pub(super) fn trace_at(&self, owner: Owner) {
        if self.traced {
            let node = match owner {
                Owner::Host(host) => host,
                Owner::Switch(switch) => self.hosts + switch,
            };
            journal::set_place(self.now, node);
        }
    }

    /// Reports a step of a pause.
    pub(super) fn note_pause(&mut self, port: u32, priority: u8, step: PauseStep) {
        let end = &self.ports[port as usize];
        self.trace_at(end.owner);
        let port = self.names.get(port as usize).map_or("", |(name, _)| name);
        match step {
            PauseStep::Sent => tracing::debug!(port, priority, "pause sent"),
            PauseStep::ResumeSent => tracing::debug!(port, priority, "resume sent"),
            PauseStep::Begins => tracing::debug!(port, priority, "pause begins"),
            PauseStep::Resumed => tracing::debug!(port, priority, cause = "resume", "pause ends"),
            PauseStep::Expired => tracing::debug!(port, priority, cause = "expiry", "pause ends"),
            PauseStep::Watchdog => tracing::info!(port, priority, "watchdog empties queue"),
            PauseStep::Restored => tracing::info!(port, priority, "watchdog restores queue"),
        }
    }

    /// Whether a port can send now. If not, an event is queued for the time at which it can.
    #[inline]
    pub(super) fn is_free(&mut self, port: u32) -> bool {
        let end = &mut self.ports[port as usize];
        if end.wakes {
            return false;
        }
        if end.busy_until <= self.now {
            return true;
        }
        end.wakes = true;
        let at = end.busy_until;
        self.events.push(at, Event::Free { port });
        false
    }

    /// Queues an event for the time at which the link is free, which may be now.
    #[inline]
    pub(super) fn wake_when_free(&mut self, port: u32) {
        let end = &mut self.ports[port as usize];
        if !end.wakes {
            end.wakes = true;
            let at = end.busy_until.max(self.now);
            self.events.push(at, Event::Free { port });
        }
    }

    /// Starts the transmission of a frame on a free link.
    #[inline]
    pub(super) fn transmit(&mut self, port: u32, id: FrameId) {
        let wire_len = u64::from(self.frames.get(id).wire_len);
        let end = &mut self.ports[port as usize];
        end.busy_until = self.now + Time::to_send(wire_len, end.spec.rate_bps);
        end.stats.tx_frames += 1;
        end.stats.tx_bytes += wire_len;
        let arrival = end.busy_until + end.spec.delay;
        if end.down > 0 {
            return self.discard(port, id, DropReason::LinkDown);
        }
        let faulty = end.faults.is_some();
        if !self.capture.is_empty() {
            self.note(port, id, true);
        }
        if faulty && self.frames.get(id).kind != Kind::Pause {
            self.transmit_faulty(port, id, arrival);
        } else {
            self.events.push(arrival, Event::Arrive { port: other_end(port), frame: id });
        }
    }

    /// Applies the fault plan of the link.
    #[cold]
    fn transmit_faulty(&mut self, port: u32, id: FrameId, arrival: Time) {
        let now = self.instant();
        let frame = self.frames.get(id);
        let (ecn, len) = (frame.ecn(), usize::from(frame.len));
        let Some(faults) = &mut self.ports[port as usize].faults else { return };
        let verdict = faults.injector.inject_headers(now, ecn, self.frames.bytes(id), len);
        // A frame that is lost, or waits to be overtaken itself, overtakes no other.
        let overtakes =
            matches!(&verdict, roce_fault::Verdict::Deliver(delivery) if delivery.reorder.is_none());
        let released = if overtakes { release_overtaken(&mut faults.held) } else { Vec::new() };
        match verdict {
            roce_fault::Verdict::Drop => {
                self.ports[port as usize].stats.drop(DropReason::Link);
                self.frames.remove(id);
            }
            roce_fault::Verdict::Deliver(delivery) => self.deliver(port, id, arrival, &delivery),
        }
        for id in released {
            self.events.push(arrival, Event::Arrive { port: other_end(port), frame: id });
        }
    }

    fn deliver(&mut self, port: u32, id: FrameId, arrival: Time, delivery: &roce_fault::Delivery) {
        let arrival = arrival + Time::from_ns(delivery.delay_ns);
        let there = other_end(port);
        let frame = self.frames.get_mut(id);
        frame.set_traffic_class(frame.traffic_class & !delivery.clears);
        if delivery.mark {
            frame.mark();
        }
        if !delivery.flips.is_empty() {
            self.frames.get_mut(id).kind = Kind::Damaged;
            delivery.flips.apply(self.frames.bytes_mut(id));
        }
        if delivery.duplicate {
            let copy = self.frames.duplicate(id);
            self.events.push(arrival, Event::Arrive { port: there, frame: copy });
        }
        match (delivery.reorder, &mut self.ports[port as usize].faults) {
            (Some(reorder), Some(faults)) => {
                let latest = arrival + Time::from_ns(reorder.hold_ns);
                faults.held.push(Held { frame: id, behind: reorder.behind, latest });
                self.events.push(latest, Event::Release { port, frame: id });
            }
            _ => self.events.push(arrival, Event::Arrive { port: there, frame: id }),
        }
    }

    /// Releases a held frame that is still held. Returns whether it was.
    pub(super) fn release(&mut self, port: u32, id: FrameId) -> bool {
        let now = self.now;
        let Some(faults) = &mut self.ports[port as usize].faults else { return false };
        // The event may belong to an earlier frame with the same handle, which was overtaken in time.
        let is_due = |held: &Held| held.frame == id && held.latest <= now;
        let Some(at) = faults.held.iter().position(is_due) else { return false };
        faults.held.remove(at);
        true
    }

    /// Carries out a change of the network.
    pub(super) fn change(&mut self, number: u32) {
        let Some((_, change)) = self.changes.list.get(number as usize).copied() else { return };
        match change {
            Change::Routes { version } => self.changes.reroute(version),
            Change::Down { link } | Change::Up { link } => {
                for port in [2 * link, 2 * link + 1] {
                    let down = &mut self.ports[port as usize].down;
                    let step = if matches!(change, Change::Down { .. }) { 1 } else { -1 };
                    *down = down.saturating_add_signed(step);
                }
            }
        }
    }

    /// Drops a frame and counts it at a port.
    pub(super) fn discard(&mut self, port: u32, id: FrameId, reason: DropReason) {
        self.ports[port as usize].stats.drop(reason);
        self.trace.note(0x0d00 | reason as u64, u64::from(port));
        self.frames.remove(id);
    }

    /// Pauses a priority of the other end of a port, or ends the pause.
    pub(super) fn send_pause(&mut self, port: u32, priority: u8, stop: bool) {
        let quanta = if stop { roce_packet::pause::MAX_QUANTA } else { 0 };
        let stats = &mut self.ports[port as usize].stats;
        stats.xoff_sent += u64::from(stop);
        self.note_pause(port, priority, if stop { PauseStep::Sent } else { PauseStep::ResumeSent });
        match self.settings.switch.pause {
            PauseMode::Frames => {
                let frame = self.frames.insert(Frame::pause(priority, quanta));
                self.ports[port as usize].enqueue(&self.frames, CONTROL, frame);
                if stop {
                    self.plan_refresh(port, priority);
                }
                self.wake_when_free(port);
            }
            PauseMode::Instant => {
                self.pause(other_end(port), priority, if stop { Time::NEVER } else { Time::ZERO });
            }
        }
    }

    /// Schedules the refresh of a pause at half of its duration.
    fn plan_refresh(&mut self, port: u32, priority: u8) {
        let end = &mut self.ports[port as usize];
        end.asked.last[usize::from(priority)] = self.now;
        if end.asked.refreshes >> priority & 1 == 0 {
            end.asked.refreshes |= 1 << priority;
            let half = refresh_time(end.spec.rate_bps);
            self.events.push(self.now + half, Event::PauseRefresh { port, priority });
        }
    }

    /// Whether a pause has to be refreshed now, if it is still needed. If it is too early, another event is queued.
    pub(super) fn refresh_is_due(&mut self, port: u32, priority: u8, is_paused: bool) -> bool {
        let end = &mut self.ports[port as usize];
        end.asked.refreshes &= !(1 << priority);
        let due = end.asked.last[usize::from(priority)] + refresh_time(end.spec.rate_bps);
        if is_paused && due > self.now {
            end.asked.refreshes |= 1 << priority;
            self.events.push(due, Event::PauseRefresh { port, priority });
        }
        is_paused && due <= self.now
    }

    /// Handles a pause frame that arrived.
    pub(super) fn take_pause(&mut self, port: u32, id: FrameId) {
        let frame = *self.frames.get(id);
        self.frames.remove(id);
        let span = pause_time(frame.quanta(), self.ports[port as usize].spec.rate_bps);
        let until = if frame.quanta() == 0 { Time::ZERO } else { self.now + span };
        self.pause(port, frame.priority, until);
    }

    /// Pauses a priority of a port until a time, or ends its pause if that time has passed.
    fn pause(&mut self, port: u32, priority: u8, until: Time) {
        let now = self.now;
        let watchdog = self.settings.switch.watchdog;
        let end = &mut self.ports[port as usize];
        let (bit, index) = (1_u8 << priority, usize::from(priority));
        if until <= now {
            return self.resume(port, priority, PauseStep::Resumed);
        }
        end.pause.until[index] = until;
        let mut begins = false;
        if end.pause.mask & bit == 0 {
            end.pause.mask |= bit;
            end.pause.since[index] = now;
            end.stats.pauses_received += 1;
            begins = true;
            if let (Some(watchdog), Owner::Switch(_)) = (watchdog, end.owner)
                && end.pause.watched & bit == 0
            {
                end.pause.watched |= bit;
                self.events.push(now + watchdog.after, Event::Watchdog { port, priority });
            }
        }
        if end.pause.checks & bit == 0 && until != Time::NEVER {
            end.pause.checks |= bit;
            self.events.push(until, Event::PauseEnds { port, priority });
        }
        if begins {
            self.note_pause(port, priority, PauseStep::Begins);
        }
    }

    fn resume(&mut self, port: u32, priority: u8, step: PauseStep) {
        let now = self.now;
        let end = &mut self.ports[port as usize];
        let (bit, index) = (1_u8 << priority, usize::from(priority));
        if end.pause.mask & bit == 0 {
            return;
        }
        end.pause.mask &= !bit;
        let span = now.since(end.pause.since[index]);
        end.stats.paused[index] = end.stats.paused[index] + span;
        self.note_pause(port, priority, step);
        self.wake_when_free(port);
    }

    /// Checks whether a pause has expired.
    pub(super) fn check_pause(&mut self, port: u32, priority: u8) {
        let end = &mut self.ports[port as usize];
        let (bit, index) = (1_u8 << priority, usize::from(priority));
        end.pause.checks &= !bit;
        let until = end.pause.until[index];
        if end.pause.mask & bit == 0 {
            return;
        }
        if until <= self.now {
            return self.resume(port, priority, PauseStep::Expired);
        }
        end.pause.checks |= bit;
        self.events.push(until, Event::PauseEnds { port, priority });
    }

    /// Adds an arrival to the trace hash: port, length, BTH and traffic class. The BTH of a damaged frame does not count, because
    /// with implied payload other bits are flipped.
    #[inline]
    pub(super) fn note_arrival(&mut self, port: u32, id: FrameId) {
        let frame = self.frames.get(id);
        let [opcode, _, _, _, _, rest @ ..] = frame.head.first_chunk::<12>().copied().unwrap_or_default();
        let [a, b, c, d, e, f, g] = rest;
        let bth =
            if frame.kind == Kind::Damaged { 0 } else { u64::from_le_bytes([opcode, a, b, c, d, e, f, g]) };
        self.trace.event(self.now.as_ps(), u64::from(port) << 32 | u64::from(frame.wire_len));
        self.trace.note(bth, u64::from(frame.traffic_class));
    }

    /// Captures a frame if the port is captured.
    pub(super) fn note(&mut self, port: u32, id: FrameId, outbound: bool) {
        if !self.capture.contains(&port) {
            return;
        }
        let frame = self.frames.get(id);
        let content = match frame.kind {
            Kind::Pause => CapturedContent::Pause { priority: frame.priority, quanta: frame.quanta() },
            _ => CapturedContent::Datagram {
                path: frame.path(),
                bytes: self.frames.bytes(id).to_vec(),
                len: usize::from(frame.len),
            },
        };
        self.captured.push(Captured { time: self.now, port, outbound, content });
    }
}

/// Removes the frames that enough others have overtaken.
fn release_overtaken(held: &mut Vec<Held>) -> Vec<FrameId> {
    let mut released = Vec::new();
    held.retain_mut(|held| {
        held.behind = held.behind.saturating_sub(1);
        if held.behind == 0 {
            released.push(held.frame);
        }
        held.behind > 0
    });
    released
}

fn refresh_time(rate_bps: u64) -> Time {
    Time::from_ps(pause_time(roce_packet::pause::MAX_QUANTA, rate_bps).as_ps() / 2)
}

/// The duration of so many units of 512 bit times.
fn pause_time(quanta: u16, rate_bps: u64) -> Time {
    Time::to_send(u64::from(quanta) * 64, rate_bps)
}
