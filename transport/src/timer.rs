//! Deadlines: a fixed array per queue pair, one ordered queue across all of them.

use alloc::vec::Vec;

use crate::time::Instant;

/// What a queue pair can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The local ACK timeout (IBTA 9.7.6.1.3), in watched time ([`Shared::watched`](crate::shared::Shared::watched)).
    Retry,
    /// The next early retransmission, in watched time.
    Probe,
    /// The delay that an RNR NAK asked for (IBTA 9.7.5.2.8).
    Rnr,
    /// The next packet may be sent, or the congestion control has a deadline.
    Pace,
}

/// The number of timers: `Pace` is the last variant, so every `Timer as usize` is an index of an array of this length.
const TIMERS: usize = Timer::Pace as usize + 1;

/// The deadlines of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadlines {
    at: [Option<Instant>; TIMERS],
}

impl Deadlines {
    pub(crate) fn set(&mut self, timer: Timer, deadline: Option<Instant>) {
        self.at[timer as usize] = deadline;
    }

    pub(crate) fn get(&self, timer: Timer) -> Option<Instant> {
        self.at[timer as usize]
    }

    pub(crate) fn clear(&mut self) {
        self.at = [None; TIMERS];
    }

    /// The earliest one, if the watched time is `paused` nanoseconds behind the clock.
    pub(crate) fn next(&self, paused: u64) -> Option<Instant> {
        let watched = [Timer::Retry, Timer::Probe].into_iter().filter_map(|timer| self.get(timer));
        let others = [Timer::Rnr, Timer::Pace].into_iter().filter_map(|timer| self.get(timer));
        watched.map(|at| at.plus_nanos(paused)).chain(others).min()
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

/// The order of the deadlines of all queue pairs: a binary heap with at most one entry for each.
///
/// Lazy: an acknowledgement moves a deadline later for every packet, so an entry stays where it is
/// and is corrected when it comes up. A queue pair has an entry at or before its deadline, always.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    heap: Vec<(Instant, u32)>,
    /// Where in the heap the entry of each queue pair is.
    places: Vec<usize>,
}

/// No entry.
const NOWHERE: usize = usize::MAX;

impl TimerQueue {
    /// Makes room for `count` queue pairs, so that no deadline allocates.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.places.resize(count.max(self.places.len()), NOWHERE);
        self.heap.reserve(self.places.len().saturating_sub(self.heap.len()));
    }

    /// Ensures that `position` has an entry at or before `deadline`.
    pub(crate) fn push(&mut self, deadline: Instant, position: u32) {
        let index = position as usize;
        if index >= self.places.len() {
            self.reserve(index + 1);
        }
        let at = self.places.get(index).copied().unwrap_or(NOWHERE);
        match self.heap.get_mut(at) {
            Some((queued, _)) if *queued <= deadline => {}
            Some((queued, _)) => {
                *queued = deadline;
                self.rise(at);
            }
            None => {
                let at = self.heap.len();
                self.heap.push((deadline, position));
                self.note_place(at);
                self.rise(at);
            }
        }
    }

    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|(deadline, _)| *deadline)
    }

    /// The next entry that is due, removed.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        // `next` found the first entry, so the heap is not empty.
        let entry = self.heap.swap_remove(0);
        if let Some(place) = self.places.get_mut(entry.1 as usize) {
            *place = NOWHERE;
        }
        self.note_place(0);
        self.sink(0);
        Some(entry)
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
            *place = at;
        }
    }

    /// Both are indices of entries: `rise` and `sink` call it after `precedes`, which is false for any other index.
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

    #[test]
    fn entries_come_out_in_order_and_once_each() {
        let mut queue = TimerQueue::default();
        let mut expected = BTreeMap::new();
        let mut state = 1_u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (position, nanos) = ((state >> 33) as u32 % 50, state >> 50);
            queue.push(Instant::from_nanos(nanos), position);
            let earliest = expected.entry(position).or_insert(nanos);
            *earliest = nanos.min(*earliest);
            if state >> 40 & 3 == 0 {
                let (nanos, position) = expected.iter().map(|(p, n)| (*n, *p)).min().unwrap();
                assert_eq!(
                    queue.pop_due(Instant::from_nanos(nanos)),
                    Some((Instant::from_nanos(nanos), position))
                );
                expected.remove(&position);
            }
            assert_eq!(queue.heap.len(), expected.len());
        }
        let mut left: Vec<_> = expected.into_iter().map(|(p, n)| (Instant::from_nanos(n), p)).collect();
        left.sort_unstable();
        for entry in left {
            assert_eq!(queue.pop_due(Instant::FAR_FUTURE), Some(entry));
        }
        assert_eq!(queue.pop_due(Instant::FAR_FUTURE), None);
        assert_eq!(queue.next(), None);
    }
}
