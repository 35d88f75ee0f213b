//! One end of a link: its queues, its pauses, its faults and its counters.

use std::sync::Arc;

use super::egress::Egress;
use super::frame::{FrameId, Frames};
use super::route::other_end;
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

/// Where something is: the part of the network, and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) part: u32,
    pub(super) index: u32,
}

/// One end of a link. What every frame needs is together in one cache line, and in a second one, where `pause` and `egress` meet.
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
    /// The hash of what has happened here.
    pub(super) trace: Trace,
    pub(super) spec: LinkSpec,
    /// The time at which the link is free again.
    pub(super) busy_until: Time,
    /// The number of its host or switch in the whole network, switches behind all hosts.
    pub(super) node: u32,
    /// How many failures keep the link down.
    pub(super) down: u16,
    /// Whether a [`Event::Free`](super::event::Event::Free) for that time is queued.
    pub(super) wakes: bool,
    pub(super) pause: Paused,
    pub(super) egress: Egress<FrameId>,
    pub(super) stats: PortStats,
    /// The settings of the port, if a switch owns it.
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
    /// Priorities that are paused.
    pub(super) mask: u8,
    /// Priorities for which an event is queued that checks the end of the pause.
    pub(super) checks: u8,
    /// Priorities that the watchdog has disabled: their frames are dropped.
    pub(super) dropping: u8,
    /// Priorities for which a watchdog event is queued.
    pub(super) watched: u8,
}

/// A step of a pause, at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseStep {
    /// The port asked its neighbour to pause, or to go on pausing.
    Sent,
    /// The port let its neighbour send again.
    ResumeSent,
    /// The neighbour's request arrived and the port pauses.
    Begins,
    /// The neighbour ended the pause.
    Resumed,
    /// The time of the pause was over.
    Expired,
    /// The watchdog emptied the paused queue and drops what comes for it.
    Watchdog,
    /// The watchdog lets the queue take frames again.
    Restored,
}

impl PauseStep {
    /// The name in results.
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
    /// Priorities that are paused, if a switch owns the port.
    pub(super) xoff: u8,
    /// When each priority was last paused.
    pub(super) last: [Time; PRIORITIES],
}

/// Faults of the link in the direction away from this end.
#[derive(Debug)]
pub(super) struct LinkFaults {
    pub(super) injector: FaultInjector,
    /// Frames that wait to be overtaken.
    pub(super) held: Vec<Held>,
}

/// A frame that waits until others have overtaken it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) frame: FrameId,
    /// The number of frames that still have to overtake it.
    pub(super) behind: u16,
    /// The time at which it arrives if they did not come until then.
    pub(super) latest: Time,
    /// The time at which that is decided: none that overtakes it after this time would arrive before `latest`.
    pub(super) decided: Time,
}

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// No path leads to the destination host.
    NoRoute,
    /// The hop limit reached zero, as in a routing loop.
    HopLimit,
    /// The frames of a lossless priority that arrived after a pause exceeded the headroom.
    Headroom,
    /// The lossy queue was full.
    Buffer,
    /// The fault plan of the link dropped it.
    Link,
    /// The link damaged it, and the receiver's ICRC check failed.
    Damaged,
    /// The watchdog emptied its queue.
    Watchdog,
    /// It was sent over a link that is down.
    LinkDown,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::NoRoute,
        Self::HopLimit,
        Self::Headroom,
        Self::Buffer,
        Self::Link,
        Self::Damaged,
        Self::Watchdog,
        Self::LinkDown,
    ];

    /// The name in results.
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
        }
    }
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames sent, pause frames included.
    pub tx_frames: u64,
    /// Bytes sent, preamble and gap included.
    pub tx_bytes: u64,
    /// Frames marked "congestion experienced" when they left.
    pub marked: u64,
    /// Frames of which the switch kept the headers only, because it had no room for them at this port.
    pub trimmed: u64,
    /// XOFF pause frames sent, refreshes included.
    pub xoff_sent: u64,
    /// Pauses begun by this port.
    pub pauses_sent: u64,
    /// Pauses that stopped this port.
    pub pauses_received: u64,
    /// How long each priority was paused.
    pub paused: [Time; PRIORITIES],
    /// The largest number of queued bytes, all priorities together.
    pub queue_most: u64,
    /// How often the watchdog emptied a queue.
    pub watchdog: u64,
    /// Frames dropped, by reason in the order of [`DropReason::ALL`].
    pub dropped: [u64; 8],
}

impl PortStats {
    pub(super) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Frames dropped, all reasons together.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl Port {
    /// Port `number` of a network of one part.
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

    /// The frame that is sent next if no priority is paused and none has a weight, or [`FrameId::NONE`].
    #[inline]
    pub(super) fn next_frame(&self) -> FrameId {
        self.egress.foremost().copied().unwrap_or(FrameId::NONE)
    }

    /// Queues that hold a frame and are not paused.
    #[inline]
    pub(super) fn sendable(&self) -> u16 {
        self.egress.sendable(self.pause.mask)
    }

    /// How long each priority was paused up to `now`, current pauses included.
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
