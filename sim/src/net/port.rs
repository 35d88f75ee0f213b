//! One end of a link: what waits for it, what holds it up, what it has seen.

use rand_pcg::Pcg32;

use super::frame::{Fifo, FrameId, Frames};
use super::settings::PRIORITIES;
use super::time::Time;
use super::topology::LinkSpec;
use roce_fault::FaultInjector;

/// The queue of pause frames: before all others, never paused.
pub(super) const CONTROL: usize = PRIORITIES;

/// Whose port it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Host(u32),
    Switch(u32),
}

/// One end of a link.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) owner: Owner,
    /// Its number among the ports of its owner.
    pub(super) local: u32,
    pub(super) spec: LinkSpec,
    /// When the link is free again.
    pub(super) busy_until: Time,
    /// Whether an event will come then.
    pub(super) wakes: bool,
    /// Queues that hold something, one bit each; bit 8 is the queue of pause frames.
    pub(super) waiting: u16,
    pub(super) queues: [Fifo; PRIORITIES + 1],
    pub(super) pause: Paused,
    pub(super) asked: Asked,
    pub(super) turns: Turns,
    pub(super) faults: Option<Box<LinkFaults>>,
    pub(super) stats: PortStats,
}

/// What the other end asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Paused {
    /// Priorities that stand still.
    pub(super) mask: u8,
    /// Priorities for which an event will look whether the time is over.
    pub(super) checks: u8,
    /// Priorities that a watchdog has taken out: their frames are dropped.
    pub(super) dropping: u8,
    /// Priorities that a watchdog will look at.
    pub(super) watched: u8,
    pub(super) until: [Time; PRIORITIES],
    pub(super) since: [Time; PRIORITIES],
}

/// What this end asked the other for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// Priorities for which an event will look whether to ask again.
    pub(super) refreshes: u8,
    /// When each was last asked to stop.
    pub(super) last: [Time; PRIORITIES],
}

/// Deficit round robin: what each weighted queue may still send, and whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    pub(super) deficit: [u32; PRIORITIES],
    pub(super) next: u8,
    /// Whether that queue has been given its share of this turn.
    pub(super) granted: bool,
}

/// What goes wrong on the way from this end.
#[derive(Debug)]
pub(super) struct LinkFaults {
    pub(super) injector: FaultInjector,
    /// Frames that others are to overtake.
    pub(super) held: Vec<Held>,
}

/// A frame that waits until others have overtaken it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) frame: FrameId,
    /// How many still.
    pub(super) behind: u16,
    /// When it goes even if they did not come.
    pub(super) latest: Time,
}

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// No path leads to its host.
    NoRoute,
    /// It went in circles.
    HopLimit,
    /// A lossless priority sent more after a pause than the headroom holds.
    Headroom,
    /// A lossy queue was full.
    Buffer,
    /// Lost on the link, as its fault plan says.
    Link,
    /// Damaged on the link, found by the ICRC of the receiver.
    Damaged,
    /// It waited in a queue that the watchdog emptied.
    Watchdog,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::NoRoute,
        Self::HopLimit,
        Self::Headroom,
        Self::Buffer,
        Self::Link,
        Self::Damaged,
        Self::Watchdog,
    ];

    /// As results call it.
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
        }
    }
}

/// What a port has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames sent, pause frames included.
    pub tx_frames: u64,
    /// Bytes sent, preamble and gap included.
    pub tx_bytes: u64,
    /// Frames marked "congestion experienced" as they left.
    pub marked: u64,
    /// Pause frames sent that ask to stop, first ones and refreshes.
    pub xoff_sent: u64,
    /// Pauses begun by this port.
    pub pauses_sent: u64,
    /// Pauses that stopped this port.
    pub pauses_received: u64,
    /// How long each priority stood still.
    pub paused: [Time; PRIORITIES],
    /// The most bytes that waited, of all priorities together.
    pub queue_most: u64,
    /// Times that the watchdog struck.
    pub watchdog: u64,
    /// Frames dropped, by reason in the order of [`DropReason::ALL`].
    pub dropped: [u64; 7],
}

impl PortStats {
    pub(super) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Frames dropped for whatever reason.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl Port {
    pub(super) fn new(owner: Owner, local: u32, spec: LinkSpec, faults: Option<FaultInjector>) -> Self {
        Self {
            owner,
            local,
            spec,
            busy_until: Time::ZERO,
            wakes: false,
            waiting: 0,
            queues: [Fifo::EMPTY; PRIORITIES + 1],
            pause: Paused::default(),
            asked: Asked::default(),
            turns: Turns::default(),
            faults: faults.map(|injector| Box::new(LinkFaults { injector, held: Vec::new() })),
            stats: PortStats::default(),
        }
    }

    /// Queues that hold something and may send.
    #[inline]
    pub(super) fn sendable(&self) -> u16 {
        self.waiting & !u16::from(self.pause.mask)
    }

    /// How long it has stood still until `now`, each priority by itself, pauses that last included.
    pub(super) fn paused_until(&self, now: Time) -> [Time; PRIORITIES] {
        let mut paused = self.stats.paused;
        for (priority, span) in paused.iter_mut().enumerate() {
            if self.pause.mask >> priority & 1 == 1 {
                *span = *span + now.since(self.pause.since[priority]);
            }
        }
        paused
    }

    /// Bytes in all queues but that of pause frames.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.queues.iter().take(PRIORITIES).map(|queue| queue.bytes).sum()
    }

    #[inline]
    pub(super) fn enqueue(&mut self, frames: &mut Frames, queue: usize, frame: FrameId) {
        self.queues[queue].push(frames, frame);
        self.waiting |= 1 << queue;
        if queue != CONTROL {
            self.stats.queue_most = self.stats.queue_most.max(self.queued_bytes());
        }
    }

    #[inline]
    pub(super) fn dequeue(&mut self, frames: &Frames, queue: usize) -> Option<FrameId> {
        let frame = self.queues[queue].pop(frames);
        if self.queues[queue].is_empty() {
            self.waiting &= !(1 << queue);
        }
        frame
    }
}

/// A generator of its own for every place that draws, so that one more draw here changes nothing there.
pub(super) fn generator(seed: u64, place: u64) -> Pcg32 {
    use rand_core::SeedableRng;
    Pcg32::seed_from_u64(seed.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}
