//! The state that the switches and hosts of one part of the network share: time, events, frames and ports.
//! Also contains the behaviour of links.

use std::sync::Arc;

use roce_transport::{Instant, Wc};

use super::egress::CONTROL;
use super::event::Event;
use super::failure::Changes;
use super::frame::{Frame, FrameId, Frames, Kind, Parcel, wire_len};
use super::journal;
use super::place::Place;
use super::port::{DropReason, Held, Owner, PauseStep, Port};
use super::queue::EventQueue;
use super::results::PausePoint;
use super::route::other_end;
use super::scale_up;
use super::settings::{PauseMode, Settings};
use super::ties::TieOrder;
use super::time::Time;
use super::topology::LinkSpec;
use super::trace::Tag;
use super::waits::{SwitchWaits, Wait};

/// The number of completions polled at once.
const COMPLETIONS: usize = 16;

/// The size of the largest datagram.
pub(super) const SCRATCH: usize = 4096 + 128;

/// A frame on its way to another part of the network.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) arrival: Time,
    /// The arrival port, and its number in the whole network.
    port: u32,
    rank: u32,
    parcel: Parcel,
}

#[derive(Debug)]
pub(super) struct World {
    /// The number of this part of the network.
    pub(super) part: u32,
    pub(super) now: Time,
    pub(super) settings: Arc<Settings>,
    pub(super) events: EventQueue<Event>,
    pub(super) ties: TieOrder,
    /// The number of handled events.
    pub(super) handled: u64,
    pub(super) frames: Frames,
    pub(super) ports: Vec<Port>,
    pub(super) changes: Changes,
    /// Frames on their way to each other part, in the order of sending.
    pub(super) outgoing: Vec<Vec<Mail>>,
    pub(super) scale_up: scale_up::Network,
    /// Frames of captured ports that have not been fetched yet.
    pub(super) captured: Vec<Captured>,
    /// Captured ports, by their number in this part.
    pub(super) capture: Vec<u32>,
    /// The name of each port, and whether it belongs to a host.
    pub(super) names: Arc<[(String, bool)]>,
    /// Pause steps, and the number of steps left out.
    pub(super) pauses: Vec<PausePoint>,
    pub(super) pauses_left_out: u64,
    /// The waits inside each switch of this part.
    pub(super) waits: Vec<SwitchWaits>,
    /// The buffer in which engines write a datagram. Hosts take turns.
    pub(super) scratch: Box<[u8; SCRATCH]>,
    /// The buffer in which engines write completions.
    pub(super) completions: Box<[Wc; COMPLETIONS]>,
    /// Whether trace events are kept.
    pub(super) traced: bool,
}

/// A frame that passed a captured port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The time at which the first bit left or the last bit arrived.
    pub time: Time,
    /// The port, as an index into [`Results::ports`](super::Results::ports).
    pub port: u32,
    /// Whether the frame left the port.
    pub outbound: bool,
    /// The content.
    pub content: CapturedContent,
}

/// The content of a captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapturedContent {
    /// A RoCE datagram.
    Datagram {
        /// The addresses, and the ECN mark at this port.
        path: roce_packet::Path,
        /// The bytes from BTH to ICRC, or only the headers if payload is implied.
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

    /// Assigns the following trace events to this node at the current time.
    #[inline]
    pub(super) fn trace_at(&self, node: u32) {
        if self.traced {
            journal::set_place(self.now, node);
        }
    }

    /// Assigns the following trace events to the owner of this port at the current time. Returns the name of
    /// the port.
    pub(super) fn trace_at_port(&self, port: u32) -> &str {
        let end = &self.ports[port as usize];
        self.trace_at(end.node);
        self.names.get(end.number as usize).map_or("", |(name, _)| name)
    }

    /// Records and reports a pause step.
    pub(super) fn note_pause(&mut self, port: u32, priority: u8, step: PauseStep) {
        self.note_waits(port, priority, step);
        let number = self.ports[port as usize].number;
        let (most, time) = (self.settings.measure.most_points, self.now);
        // Steps at the last recorded time are all kept, so the result does not depend on the parts.
        if self.pauses.len() < most || self.pauses.last().is_some_and(|last| last.time == time) {
            self.pauses.push(PausePoint { time, port: number, priority, step });
        } else {
            self.pauses_left_out += 1;
        }
        let port = self.trace_at_port(port);
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

    /// Begins and ends waits inside a switch after a pause step at one of its ports.
    fn note_waits(&mut self, port: u32, priority: u8, step: PauseStep) {
        let Self { now, ports, frames, waits, .. } = self;
        let Owner::Switch(switch) = ports[port as usize].owner else { return };
        let Some(waits) = waits.get_mut(switch as usize) else { return };
        let (bit, queue) = (1_u8 << priority, usize::from(priority));
        match step {
            PauseStep::Sent if ports[port as usize].asked.xoff & bit == 0 => {
                ports[port as usize].asked.xoff |= bit;
                waits.pausing.push((port, priority));
                for place in 0..waits.paused.len() {
                    let Some((egress, _)) =
                        waits.paused.get(place).copied().filter(|(_, of)| *of == priority)
                    else {
                        continue;
                    };
                    let mut frames_there = ports[egress as usize].egress.queued(queue);
                    if frames_there.any(|id| frames.get(*id).entered == port) {
                        waits.begin(*now, Wait { ingress: port, egress, priority });
                    }
                }
            }
            // This step refreshes a pause.
            PauseStep::Sent => {}
            PauseStep::ResumeSent => {
                ports[port as usize].asked.xoff &= !bit;
                waits.pausing.retain(|pausing| *pausing != (port, priority));
                waits.end(*now, step.into(), |wait| wait.ingress == port && wait.priority == priority);
            }
            PauseStep::Begins => {
                waits.paused.push((port, priority));
                let pausing = waits.pausing.iter().filter(|(_, of)| *of == priority);
                let mut missing: Vec<u32> = pausing.map(|(ingress, _)| *ingress).collect();
                for id in ports[port as usize].egress.queued(queue) {
                    if missing.is_empty() {
                        break;
                    }
                    let ingress = frames.get(*id).entered;
                    if let Some(place) = missing.iter().position(|other| *other == ingress) {
                        missing.swap_remove(place);
                        waits.begin(*now, Wait { ingress, egress: port, priority });
                    }
                }
            }
            PauseStep::Resumed | PauseStep::Expired | PauseStep::Watchdog => {
                if step != PauseStep::Watchdog {
                    waits.paused.retain(|paused| *paused != (port, priority));
                }
                waits.end(*now, step.into(), |wait| wait.egress == port && wait.priority == priority);
            }
            PauseStep::Restored => {}
        }
    }

    /// Notes a frame that arrived at one port and was queued at another, paused port of the same switch.
    #[cold]
    pub(super) fn note_held(&mut self, ingress: u32, egress: u32, priority: u8) {
        if self.ports[ingress as usize].asked.xoff >> priority & 1 == 1
            && let Owner::Switch(switch) = self.ports[egress as usize].owner
            && let Some(waits) = self.waits.get_mut(switch as usize)
        {
            waits.begin(self.now, Wait { ingress, egress, priority });
        }
    }

    /// Prefetches the data that every event of a port needs. An invalid number reads the last port.
    #[inline]
    pub(super) fn fetch_port(&self, port: u32) -> u64 {
        let last = self.ports.len().wrapping_sub(1);
        let port = self.ports.get((port as usize).min(last));
        port.map_or(0, |port| u64::from(port.number) ^ port.egress.bytes())
    }

    /// Returns whether a port can send now. If not, queues an event for the time at which the port is free.
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
        let (at, next) = (end.busy_until, end.next_frame());
        self.events.push(at, Event::Free { port, next });
        false
    }

    /// Queues an event for the time at which the link is free, which can be now.
    #[inline]
    pub(super) fn wake_when_free(&mut self, port: u32) {
        let end = &mut self.ports[port as usize];
        if !end.wakes {
            end.wakes = true;
            let (at, next) = (end.busy_until.max(self.now), end.next_frame());
            self.events.push(at, Event::Free { port, next });
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
            self.arrive(port, arrival, id);
        }
    }

    /// Schedules the arrival of a frame at the other end of the link.
    #[inline]
    pub(super) fn arrive(&mut self, port: u32, arrival: Time, id: FrameId) {
        let end = &self.ports[port as usize];
        let (peer, rank) = (end.peer, self.ties.of_arrival(arrival, other_end(end.number)));
        if peer.part == self.part {
            self.events.push_ranked(arrival, rank, Event::Arrive { port: peer.index, frame: id });
        } else {
            self.send_away(peer, rank, arrival, id);
        }
    }

    #[inline(never)]
    fn send_away(&mut self, peer: Place, rank: u32, arrival: Time, id: FrameId) {
        let parcel = self.frames.take_out(id);
        self.outgoing[peer.part as usize].push(Mail { arrival, port: peer.index, rank, parcel });
    }

    /// Accepts a frame from another part of the network.
    pub(super) fn take_in(&mut self, mail: &Mail) {
        let frame = self.frames.take_in(&mail.parcel);
        self.events.push_ranked(mail.arrival, mail.rank, Event::Arrive { port: mail.port, frame });
    }

    /// Schedules the arrival of a transfer at a host of this part.
    pub(super) fn take_scale_up(&mut self, sent: scale_up::Sent) {
        let event = Event::ScaleUpBegins { host: sent.to.index, task: sent.task };
        self.events.push_ranked(sent.arrival, sent.rank, event);
    }

    /// Applies the fault plan of the link.
    #[cold]
    fn transmit_faulty(&mut self, port: u32, id: FrameId, arrival: Time) {
        let now = self.instant();
        let frame = self.frames.get(id);
        let (ecn, len) = (frame.ecn(), usize::from(frame.len));
        let Some(faults) = &mut self.ports[port as usize].faults else { return };
        let verdict = faults.injector.inject_headers(now, ecn, self.frames.bytes(id), len);
        // Lost frames, and frames that are held to be overtaken, do not overtake others.
        let overtakes =
            matches!(&verdict, roce_fault::Verdict::Deliver(delivery) if delivery.reorder.is_none());
        let released = if overtakes { release_overtaken(&mut faults.held) } else { Vec::new() };
        match verdict {
            roce_fault::Verdict::Drop => {
                self.ports[port as usize].stats.drop(DropReason::Link);
                self.trace_drop(port, DropReason::Link);
                self.frames.remove(id);
            }
            roce_fault::Verdict::Deliver(delivery) => self.deliver(port, id, arrival, &delivery),
        }
        for id in released {
            self.arrive(port, arrival, id);
        }
    }

    fn deliver(&mut self, port: u32, id: FrameId, arrival: Time, delivery: &roce_fault::Delivery) {
        let arrival = arrival + Time::from_ns(delivery.delay_ns);
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
            self.arrive(port, arrival, copy);
        }
        let end = &mut self.ports[port as usize];
        match (delivery.reorder, &mut end.faults) {
            (Some(reorder), Some(faults)) => {
                let latest = arrival + Time::from_ns(reorder.hold_ns);
                // Frames that leave after this time arrive after the held frame.
                let decided = latest - least_time(&end.spec);
                faults.held.push(Held { frame: id, behind: reorder.behind, latest, decided });
                self.events.push(decided, Event::Release { port, frame: id });
            }
            _ => self.arrive(port, arrival, id),
        }
    }

    /// Forwards a frame that is still held.
    pub(super) fn release(&mut self, port: u32, id: FrameId) {
        let now = self.now;
        let Some(faults) = &mut self.ports[port as usize].faults else { return };
        // The event can belong to an earlier frame with the same handle that has been overtaken since.
        let is_due = |held: &Held| held.frame == id && held.decided <= now;
        let Some(at) = faults.held.iter().position(is_due) else { return };
        let held = faults.held.remove(at);
        self.arrive(port, held.latest, id);
    }

    fn trace_drop(&self, port: u32, reason: DropReason) {
        let port = self.trace_at_port(port);
        tracing::trace!(port, reason = reason.name(), "frame dropped");
    }

    /// Drops a frame and counts it at a port.
    pub(super) fn discard(&mut self, port: u32, id: FrameId, reason: DropReason) {
        let end = &mut self.ports[port as usize];
        end.stats.drop(reason);
        end.trace.frame_dropped(reason as u8, end.number);
        self.trace_drop(port, reason);
        self.frames.remove(id);
    }

    /// Pauses a priority at the other end of a port, or ends the pause.
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
                // A network with instant pauses has only one part.
                let peer = self.ports[port as usize].peer.index;
                self.pause(peer, priority, if stop { Time::NEVER } else { Time::ZERO });
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

    /// Returns whether a pause must be refreshed now, provided that it is still required. If it is too early,
    /// queues another event.
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

    /// Handles an arriving pause frame.
    pub(super) fn take_pause(&mut self, port: u32, id: FrameId) {
        let frame = *self.frames.get(id);
        self.frames.remove(id);
        let span = pause_time(frame.quanta(), self.ports[port as usize].spec.rate_bps);
        let until = if frame.quanta() == 0 { Time::ZERO } else { self.now + span };
        self.pause(port, frame.priority, until);
    }

    /// Pauses a priority of a port until a time, or ends the pause if that time has passed.
    fn pause(&mut self, port: u32, priority: u8, until: Time) {
        let now = self.now;
        let end = &mut self.ports[port as usize];
        let watchdog = end.settings.watchdog;
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

    /// Adds an arrival to the trace hash: port, length, BTH and traffic class. The BTH of a damaged frame is
    /// excluded, because its flipped bits differ with implied payload.
    #[inline]
    pub(super) fn note_arrival(&mut self, port: u32, id: FrameId) {
        let frame = self.frames.get(id);
        let [opcode, _, _, _, _, rest @ ..] = frame.head.first_chunk::<12>().copied().unwrap_or_default();
        let [a, b, c, d, e, f, g] = rest;
        let bth =
            if frame.kind == Kind::Damaged { 0 } else { u64::from_le_bytes([opcode, a, b, c, d, e, f, g]) };
        let end = &mut self.ports[port as usize];
        end.trace.note(self.now.as_ps(), u64::from(end.number) << 32 | u64::from(frame.wire_len));
        end.trace.note(bth, u64::from(frame.traffic_class));
    }

    /// Adds an event to the trace hash of a port.
    #[inline]
    pub(super) fn trace(&mut self, port: u32, tag: Tag, number: u32) {
        self.ports[port as usize].trace.event(self.now, tag, number);
    }

    /// Captures a frame if its port is captured.
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
        let port = self.ports[port as usize].number;
        self.captured.push(Captured { time: self.now, port, outbound, content });
    }
}

/// Returns the minimum time from the start of a frame to its arrival at the other end of a link: that of the
/// shortest frame.
pub(super) fn least_time(link: &LinkSpec) -> Time {
    Time::to_send(wire_len(0).into(), link.rate_bps) + link.delay
}

/// Removes and returns the frames that enough others have overtaken.
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

/// Returns the duration of `quanta` units of 512 bit times.
fn pause_time(quanta: u16, rate_bps: u64) -> Time {
    Time::to_send(u64::from(quanta) * 64, rate_bps)
}
