//! A hash over all events of a run, which is equal for equal runs.
//!
//! Each port has a hash of its events in their order, which does not depend on the number of threads. At the
//! end, the hashes are combined in the order of the ports.

use super::time::Time;

/// The kind of an event, in the uppermost byte of the number that is hashed. Arrivals have 0 there. No two
/// kinds have the same number, so an event of one kind never counts as one of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    /// A link became free.
    Free = 1,
    /// A host received a frame after a delay.
    Taken = 2,
    /// A timer of a host.
    Timer = 3,
    /// A flow started.
    FlowStart = 4,
    /// A flow ended.
    FlowEnd = 5,
    /// The computation of a task ended.
    Task = 6,
    /// The network changed, because a link or switch failed or returned.
    Change = 7,
    /// A thread of the application of a host made a step.
    Thread = 8,
    /// A transfer left or arrived through the scale-up network.
    ScaleUp = 9,
}

/// The hash so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    hash: u64,
}

impl Trace {
    pub(super) const fn new() -> Self {
        Self { hash: 0x6a09_e667_f3bc_c908 }
    }

    /// Adds two numbers of an event. The order is significant. Each step is reversible, so every event
    /// affects the hash. The recorded hashes of tests depend on this function, so it must not change.
    #[inline]
    pub(super) fn note(&mut self, first: u64, second: u64) {
        let mixed = (self.hash ^ first).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = ((mixed ^ (mixed >> 29)) ^ second).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(23);
    }

    /// Adds an event. `number` is that of its flow, task or change, or 0.
    #[inline]
    pub(super) fn event(&mut self, time: Time, tag: Tag, number: u32) {
        self.note(time.as_ps(), (tag as u64) << 56 | u64::from(number));
    }

    /// Adds a dropped frame at the port with this number. `reason` is the number of the reason.
    pub(super) fn frame_dropped(&mut self, reason: u8, port: u32) {
        self.note(0x0d00 | u64::from(reason), u64::from(port));
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash ^ (self.hash >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn events_that_differ_in_their_kind_only_have_different_hashes() {
        use Tag::{Change, FlowEnd, FlowStart, Free, ScaleUp, Taken, Task, Thread, Timer};
        let tags = [Free, Taken, Timer, FlowStart, FlowEnd, Task, Change, Thread, ScaleUp];
        let hash = |tag| {
            let mut trace = Trace::new();
            trace.event(Time::from_us(1), tag, 5);
            trace.hash()
        };
        let hashes: BTreeSet<u64> = tags.into_iter().map(hash).collect();
        assert_eq!(hashes.len(), tags.len());
    }
}
