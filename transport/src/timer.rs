//! Deadlines: a fixed array per queue pair, one ordered queue across all of them.

use alloc::vec::Vec;

use crate::Instant;

/// What a queue pair can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The local ACK timeout (IBTA 9.7.6.1.3), in watched time
    /// ([`Shared::watched`](crate::shared::Shared::watched)).
    Retry,
    /// The next early retransmission, in watched time.
    Probe,
    /// The oldest packet, which others overtook, counts as lost, in watched time.
    Late,
    /// The delay that an RNR NAK asked for (IBTA 9.7.5.2.8).
    Rnr,
    /// A READ request has its turn ([`EngineConfig::read_rate`](crate::EngineConfig::read_rate)).
    Turn,
    /// The next packet may be sent, or the congestion control has a deadline.
    Pace,
}

/// The number of timers: `Pace` is the last variant, so every `Timer as usize` is an index of an array of
/// this length.
const TIMERS: usize = Timer::Pace as usize + 1;

/// The deadlines of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// [`Instant::FAR_FUTURE`] stands for none.
    at: [Instant; TIMERS],
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { at: [Instant::FAR_FUTURE; TIMERS] }
    }
}

impl Deadlines {
    pub(crate) fn set(&mut self, timer: Timer, deadline: Option<Instant>) {
        self.at[timer as usize] = deadline.unwrap_or(Instant::FAR_FUTURE);
    }

    pub(crate) fn get(&self, timer: Timer) -> Option<Instant> {
        Some(self.at[timer as usize]).filter(|at| *at != Instant::FAR_FUTURE)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The earliest one, if the watched time is `paused` nanoseconds behind the clock.
    #[inline]
    pub(crate) fn next(&self, paused: u64) -> Option<Instant> {
        let earliest = |timers: [Timer; 3]| {
            timers.map(|timer| self.at[timer as usize]).into_iter().fold(Instant::FAR_FUTURE, Ord::min)
        };
        // The far future stays what it is, because the sum saturates.
        let watched = earliest([Timer::Retry, Timer::Probe, Timer::Late]).plus_nanos(paused);
        let next = watched.min(earliest([Timer::Rnr, Timer::Turn, Timer::Pace]));
        Some(next).filter(|at| *at != Instant::FAR_FUTURE)
    }

    /// Whether `timer` is due; disarms it if so.
    pub(crate) fn take_due(&mut self, timer: Timer, now: Instant) -> bool {
        let due = self.get(timer).is_some_and(|deadline| deadline <= now);
        if due {
            self.set(timer, None);
        }
        due
    }
}

/// The deadlines of all queue pairs in order: a binary heap with at most one entry for each.
///
/// Lazy: an acknowledgement moves a deadline later for every packet, so an entry stays where it is and is
/// corrected when it comes up. A queue pair has an entry at or before its deadline, always. The queue stores
/// the deadlines too, so an entry that comes up early does not load the queue pair. With thousands of queue
/// pairs, most entries come up after the answer has arrived, and the queue pair is no longer in any cache.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    heap: Vec<(Instant, u32)>,
    places: Vec<Place>,
}

/// The deadline of one queue pair and its entry in the heap.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// When the entry comes up; [`Instant::FAR_FUTURE`] without an entry.
    queued: Instant,
    /// The next deadline; [`Instant::FAR_FUTURE`] without one.
    deadline: Instant,
    /// Index of the entry in the heap.
    at: usize,
}

impl Place {
    const EMPTY: Self = Self { queued: Instant::FAR_FUTURE, deadline: Instant::FAR_FUTURE, at: usize::MAX };
}

impl TimerQueue {
    /// Makes room for `count` queue pairs, so that no deadline allocates.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.places.resize(count.max(self.places.len()), Place::EMPTY);
        self.heap.reserve(self.places.len().saturating_sub(self.heap.len()));
    }

    /// Sets the next deadline of the queue pair at `index`. The caller has reserved room for that index.
    #[inline]
    pub(crate) fn set(&mut self, index: usize, deadline: Option<Instant>) {
        let Some(place) = self.places.get_mut(index) else { return };
        place.deadline = deadline.unwrap_or(Instant::FAR_FUTURE);
        if place.deadline < place.queued {
            self.push(index);
        }
    }

    /// Adds an entry at the deadline of the queue pair, or moves its entry there.
    fn push(&mut self, index: usize) {
        let (Some(place), Ok(position)) = (self.places.get_mut(index), u32::try_from(index)) else { return };
        let has_entry = place.queued != Instant::FAR_FUTURE;
        place.queued = place.deadline;
        let (at, queued) = (if has_entry { place.at } else { self.heap.len() }, place.queued);
        match self.heap.get_mut(at) {
            Some(entry) => entry.0 = queued,
            None => {
                place.at = at;
                self.heap.push((queued, position));
            }
        }
        self.rise(at);
    }

    /// Returns when the next entry comes up, which may be before the next deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|(queued, _)| *queued)
    }

    /// Removes the earliest deadline that is due at `now`, and returns the index of its queue pair.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<usize> {
        while self.next()? <= now {
            // `next` found the first entry, so the heap is not empty.
            let (queued, position) = self.heap.swap_remove(0);
            let index = position as usize;
            self.note_place(0);
            self.sink(0);
            let Some(place) = self.places.get_mut(index) else { continue };
            place.queued = Instant::FAR_FUTURE;
            if place.deadline == queued {
                place.deadline = Instant::FAR_FUTURE;
                return Some(index);
            }
            if place.deadline < Instant::FAR_FUTURE {
                self.push(index);
            }
        }
        None
    }

    /// Whether the entry at `a` comes before the one at `b`. Equal deadlines go by position, so that the
    /// order is the same in every run.
    fn precedes(&self, a: usize, b: usize) -> bool {
        match (self.heap.get(a), self.heap.get(b)) {
            (Some(a), Some(b)) => a < b,
            _ => false,
        }
    }

    fn note_place(&mut self, at: usize) {
        if let Some((_, position)) = self.heap.get(at)
            && let Some(place) = self.places.get_mut(*position as usize)
        {
            place.at = at;
        }
    }

    /// Both are indices of entries: `rise` and `sink` call it after `precedes`, which is false for any other
    /// index.
    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note_place(a);
        self.note_place(b);
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.precedes(at, (at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let child = if self.precedes(right, left) { right } else { left };
            if !self.precedes(child, at) {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    /// The earliest deadline; of equal ones, that of the first queue pair.
    fn earliest(expected: &BTreeMap<usize, u64>) -> Option<(u64, usize)> {
        expected.iter().map(|(index, nanos)| (*nanos, *index)).min()
    }

    /// Deadlines are set, moved either way and taken back, and come out when they are due and only then, each
    /// once, in order.
    #[test]
    fn deadlines_come_out_when_they_are_due_and_once_each() {
        let mut queue = TimerQueue::default();
        queue.reserve(50);
        let mut expected = BTreeMap::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (index, nanos) = ((state >> 33) as usize % 50, (state >> 50) + 1);
            if state >> 42 & 7 == 0 {
                queue.set(index, None);
                expected.remove(&index);
            } else {
                queue.set(index, Some(Instant::from_nanos(nanos)));
                expected.insert(index, nanos);
            }
            assert!(
                queue.next().map(Instant::as_nanos) <= earliest(&expected).map(|(nanos, _)| nanos)
                    || expected.is_empty()
            );
            if state >> 40 & 3 == 0
                && let Some((nanos, index)) = earliest(&expected)
            {
                assert_eq!(queue.pop_due(Instant::from_nanos(nanos - 1)), None);
                assert_eq!(queue.pop_due(Instant::from_nanos(nanos)), Some(index));
                expected.remove(&index);
            }
            assert!(queue.heap.len() <= 50, "one entry for each");
        }
        while let Some((nanos, index)) = earliest(&expected) {
            assert_eq!(queue.pop_due(Instant::from_nanos(nanos)), Some(index));
            expected.remove(&index);
        }
        assert_eq!(queue.pop_due(Instant::from_nanos(u64::MAX - 1)), None);
        assert_eq!(queue.next(), None, "no entry without a deadline is left");
    }
}
