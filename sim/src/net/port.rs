//! One end of a link: queues, pauses, faults and counters.

use std::sync::Arc;

use super::egress::Egress;
use super::frame::{FrameId, Frames};
use super::place::Place;
use super::route::other_end;
use super::rules::PortView;
use super::settings::{PRIORITIES, SwitchSettings};
use super::time::Time;
use super::topology::LinkSpec;
use super::trace::Trace;
use roce_fault::FaultInjector;

/// The node that a port belongs to, by its number in its part of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Host(u32),
    Switch(u32),
}

/// One end of a link. The fields that every frame needs fill one cache line, and a second one where `pause`
/// and `egress` meet.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Port {
    pub(super) owner: Owner,
    /// The other end of the link.
    pub(super) peer: Place,
    /// The number of this port in the whole network.
    pub(super) number: u32,
    /// The number of this port among the ports of its owner.
    pub(super) local: u32,
    /// The hash of the events at this port.
    pub(super) trace: Trace,
    pub(super) spec: LinkSpec,
    /// The time at which the link becomes free.
    pub(super) busy_until: Time,
    /// The number of the host or switch in the whole network. Switches are numbered after all hosts.
    pub(super) node: u32,
    /// The number of failures that keep the link down.
    pub(super) down: u16,
    /// Whether an [`Event::Free`](super::event::Event::Free) for that time is queued.
    pub(super) wakes: bool,
    pub(super) pause: Paused,
    pub(super) egress: Egress<FrameId>,
    pub(super) stats: PortStats,
    /// The settings of the port, if it belongs to a switch.
    pub(super) settings: Arc<SwitchSettings>,
    pub(super) asked: Asked,
    pub(super) faults: Option<Box<LinkFaults>>,
}

/// The pauses that the other end requested.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Paused {
    pub(super) until: [Time; PRIORITIES],
    pub(super) since: [Time; PRIORITIES],
    /// Paused priorities.
    pub(super) mask: u8,
    /// Priorities for which an event that checks the end of the pause is queued.
    pub(super) checks: u8,
    /// Priorities that the watchdog has disabled, so that their frames are dropped.
    pub(super) dropping: u8,
    /// Priorities for which a watchdog event is queued.
    pub(super) watched: u8,
}

/// A step of a pause at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseStep {
    /// The port requested or refreshed a pause of its neighbour.
    Sent,
    /// The port allowed its neighbour to send again.
    ResumeSent,
    /// The request of the neighbour arrived, and the port pauses.
    Begins,
    /// The neighbour ended the pause.
    Resumed,
    /// The duration of the pause ended.
    Expired,
    /// The watchdog emptied the paused queue and drops further frames.
    Watchdog,
    /// The watchdog allows the queue to accept frames again.
    Restored,
}

impl PauseStep {
    /// Returns the name of the step in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "pause_sent",
            Self::ResumeSent => "resume_sent",
            Self::Begins => "begins",
            Self::Resumed => "resumed",
            Self::Expired => "expired",
            Self::Watchdog => "watchdog",
            Self::Restored => "restored",
        }
    }
}

/// The pauses that this end requested.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// Priorities for which a refresh event is queued.
    pub(super) refreshes: u8,
    /// Paused priorities, if the port belongs to a switch.
    pub(super) xoff: u8,
    /// The time at which each priority was last paused.
    pub(super) last: [Time; PRIORITIES],
}

/// Faults of the link in the direction away from this end.
#[derive(Debug)]
pub(super) struct LinkFaults {
    pub(super) injector: FaultInjector,
    /// Frames that are held until others overtake them.
    pub(super) held: Vec<Held>,
}

/// A frame that is held until others have overtaken it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) frame: FrameId,
    /// The number of frames that must still overtake the held frame.
    pub(super) behind: u16,
    /// The time at which the frame arrives if too few frames overtake it.
    pub(super) latest: Time,
    /// The time after which no departing frame can arrive before `latest`.
    pub(super) decided: Time,
}

/// The reason why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// No path leads to the destination host.
    NoRoute,
    /// The hop limit reached zero, as in a routing loop.
    HopLimit,
    /// The frames of a lossless priority that arrived after a pause exceeded the headroom.
    Headroom,
    /// The lossy queue was full, or the receive queue of a host with an application.
    Buffer,
    /// The fault plan of the link dropped the frame.
    Link,
    /// The link damaged the frame, and the receiver's ICRC check failed.
    Damaged,
    /// The watchdog emptied the queue of the frame.
    Watchdog,
    /// The frame was sent over a link that is down.
    LinkDown,
    /// The rules of a program dropped the frame ([`SwitchRules`](super::SwitchRules)).
    Rules,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::NoRoute,
        Self::HopLimit,
        Self::Headroom,
        Self::Buffer,
        Self::Link,
        Self::Damaged,
        Self::Watchdog,
        Self::LinkDown,
        Self::Rules,
    ];

    /// Returns the name of the reason in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::HopLimit => "hop_limit",
            Self::Headroom => "headroom",
            Self::Buffer => "buffer",
            Self::Link => "link",
            Self::Damaged => "damaged",
            Self::Watchdog => "watchdog",
            Self::LinkDown => "link_down",
            Self::Rules => "rules",
        }
    }
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames sent, including pause frames.
    pub tx_frames: u64,
    /// Bytes sent, including preamble and gap.
    pub tx_bytes: u64,
    /// Frames marked "congestion experienced" on departure.
    pub marked: u64,
    /// Frames of which the switch kept the headers only, because they did not fit into the buffer at this
    /// port.
    pub trimmed: u64,
    /// XOFF pause frames sent, including refreshes.
    pub xoff_sent: u64,
    /// Pauses requested by this port.
    pub pauses_sent: u64,
    /// Pauses that stopped this port.
    pub pauses_received: u64,
    /// The time for which each priority was paused.
    pub paused: [Time; PRIORITIES],
    /// The largest number of queued bytes, summed over all priorities.
    pub queue_most: u64,
    /// The number of times that the watchdog emptied a queue.
    pub watchdog: u64,
    /// Frames dropped by reason, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl PortStats {
    pub(super) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Returns the number of dropped frames, summed over all reasons.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl Port {
    /// Creates port `number` of a network with one part.
    pub(super) fn new(
        number: u32,
        owner: Owner,
        local: u32,
        spec: LinkSpec,
        settings: Arc<SwitchSettings>,
        faults: Option<FaultInjector>,
    ) -> Self {
        Self {
            owner,
            number,
            node: 0,
            peer: Place { part: 0, index: other_end(number) },
            trace: Trace::new(),
            local,
            spec,
            busy_until: Time::ZERO,
            down: 0,
            wakes: false,
            egress: Egress::default(),
            settings,
            pause: Paused::default(),
            asked: Asked::default(),
            faults: faults.map(|injector| Box::new(LinkFaults { injector, held: Vec::new() })),
            stats: PortStats::default(),
        }
    }

    /// Returns what the rules of a switch see, for a frame in this queue.
    pub(super) fn view(&self, queue: usize) -> PortView {
        PortView {
            number: self.number,
            rate_bps: self.spec.rate_bps,
            queued_bytes: self.egress.bytes(),
            own_queue_bytes: self.egress.bytes_of(queue),
        }
    }

    /// Returns the frame that is sent next if no priority is paused or weighted, or [`FrameId::NONE`].
    #[inline]
    pub(super) fn next_frame(&self) -> FrameId {
        self.egress.foremost().copied().unwrap_or(FrameId::NONE)
    }

    /// Returns the non-empty queues that are not paused.
    #[inline]
    pub(super) fn sendable(&self) -> u16 {
        self.egress.sendable(self.pause.mask)
    }

    /// Returns the time for which each priority was paused up to `now`, including current pauses.
    pub(super) fn paused_until(&self, now: Time) -> [Time; PRIORITIES] {
        let mut paused = self.stats.paused;
        for (priority, span) in paused.iter_mut().enumerate() {
            if self.pause.mask >> priority & 1 == 1 {
                *span = *span + now.since(self.pause.since[priority]);
            }
        }
        paused
    }

    #[inline]
    pub(super) fn enqueue(&mut self, frames: &Frames, queue: usize, frame: FrameId) {
        self.egress.push(queue, frames.get(frame).buffered_len(), frame);
    }
}
