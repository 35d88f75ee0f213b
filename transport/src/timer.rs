//! Deadlines: a fixed array per queue pair, one ordered queue across all of them.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use crate::time::Instant;

/// What a queue pair can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The local ACK timeout (IBTA 9.7.6.1.3).
    Retry,
    /// The delay that an RNR NAK asked for (IBTA 9.7.5.2.8).
    Rnr,
}

const TIMERS: usize = Timer::Rnr as usize + 1;

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

    pub(crate) fn next(&self) -> Option<Instant> {
        self.at.iter().flatten().min().copied()
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

/// The order in which queue pairs want to be looked at.
///
/// Lazy: an acknowledgement moves a deadline later for every packet, so an entry stays where it is
/// and is corrected when it comes up. A queue pair has an entry at or before its deadline, always.
#[derive(Debug, Default)]
pub(crate) struct TimerQueue {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl TimerQueue {
    pub(crate) fn push(&mut self, deadline: Instant, position: u32) {
        self.heap.push(Reverse((deadline, position)));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// The next entry that is due, removed.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}
