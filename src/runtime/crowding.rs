//! Whether other threads want the processor of a thread that polls.
//!
//! With more threads that poll than processors, a thread that waits for its peer keeps the processor from a thread that has something to
//! do, for a time slice of milliseconds. A thread cannot see that directly, so it tries: now and then it leaves the processor to others
//! with `sched_yield`, and compares the time that passed with the processor time that it was charged for. Where another thread ran, it
//! yields after each look at the device that finds nothing, until a trial finds no other thread.
//!
//! This pays while the others give the processor back as soon. A thread that computes keeps it for a whole time slice, and
//! yielding to it would turn each wait for a peer into milliseconds. So the times are compared: where the others take much more than
//! this thread has had since it last yielded, it stops, and tries again after a while that becomes longer each time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A trial comes after so many looks in vain: two system calls more in some 70 µs.
const TRIAL_INTERVAL: u32 = 128;
/// Where others keep the processor, the next one comes after so many, four times as many each time, up to the longest interval.
const FIRST_PAUSE: u32 = 16 * TRIAL_INTERVAL;
const LONGEST_PAUSE: u32 = FIRST_PAUSE << 6;
/// Others may take so many times what this thread has had, and this much more: a thread that was asleep has some work to do.
const MOST_AWAY: u32 = 4;
const AWAY_AT_LEAST: Duration = Duration::from_micros(500);

thread_local! {
    static CROWDING: Cell<Crowding> = const { Cell::new(Crowding::NEW) };
}

/// What a thread knows of others on its processor.
#[derive(Clone, Copy, Debug)]
struct Crowding {
    /// Looks until the next trial.
    until_trial: u32,
    /// How many follow the next trial in vain.
    pause: u32,
    /// The last trial found another thread.
    is_crowded: bool,
    /// Since when this thread has had the processor, for all that it knows.
    since: Option<Instant>,
}

/// Looked at the device in vain, or at memory that a peer is to write. Returns whether [`share`] is to be called, by a caller without a lock.
#[inline]
pub(super) fn looked_in_vain() -> bool {
    let mut crowding = CROWDING.get();
    let shares = crowding.until_trial <= 1 || crowding.is_crowded;
    if !shares {
        crowding.until_trial -= 1;
        CROWDING.set(crowding);
    }
    shares
}

/// The next look in vain is followed by a trial.
pub(super) fn try_soon() {
    let mut crowding = CROWDING.get();
    if crowding.until_trial <= TRIAL_INTERVAL {
        crowding.until_trial = 1;
        CROWDING.set(crowding);
    }
}

/// Leaves the processor to others.
#[cold]
pub(super) fn share() {
    let mut crowding = CROWDING.get();
    let before = Instant::now();
    crowding.until_trial -= 1;
    if crowding.until_trial > 0 {
        std::thread::yield_now();
        crowding.note_yield(before, Instant::now());
    } else {
        let charged = charged();
        std::thread::yield_now();
        let after = Instant::now();
        crowding.note_trial(before, after, self::charged().saturating_sub(charged));
    }
    CROWDING.set(crowding);
}

/// The processor time of this thread.
fn charged() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

impl Crowding {
    const NEW: Self =
        Self { until_trial: TRIAL_INTERVAL, pause: FIRST_PAUSE, is_crowded: false, since: None };

    /// Left the processor to others at `before`, and had it again at `after`. Returns whether that was too long.
    fn note_yield(&mut self, before: Instant, after: Instant) -> bool {
        let is_too_long = self.since.is_some_and(|since| {
            let had = before.saturating_duration_since(since);
            after.saturating_duration_since(before) > had.saturating_mul(MOST_AWAY) + AWAY_AT_LEAST
        });
        self.since = Some(after);
        if is_too_long {
            self.is_crowded = false;
            self.until_trial = self.pause;
            self.pause = self.pause.saturating_mul(4).min(LONGEST_PAUSE);
        }
        is_too_long
    }

    /// The same with the processor time that the thread was charged for, which tells whether another one ran.
    fn note_trial(&mut self, before: Instant, after: Instant, charged: Duration) {
        if self.note_yield(before, after) {
            return;
        }
        self.until_trial = TRIAL_INTERVAL;
        self.is_crowded = after.saturating_duration_since(before) > charged;
        if !self.is_crowded {
            self.pause = FIRST_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// A thread that last left the processor 100 µs ago, and when it leaves it now.
    fn crowding() -> (Crowding, Instant) {
        let start = Instant::now();
        (Crowding { since: Some(start), ..Crowding::NEW }, start + 100 * MICRO)
    }

    #[test]
    fn another_thread_on_the_processor_is_seen_by_the_time_that_was_not_charged() {
        let (mut crowding, before) = crowding();
        crowding.note_trial(before, before + 5 * MICRO, MICRO);
        assert!(crowding.is_crowded);
        let before = before + 100 * MICRO;
        crowding.note_trial(before, before + MICRO, MICRO);
        assert!(!crowding.is_crowded, "alone again");
        assert_eq!((crowding.until_trial, crowding.pause), (TRIAL_INTERVAL, FIRST_PAUSE));
    }

    /// Each wait for a peer would take a time slice of the other thread.
    #[test]
    fn a_thread_that_keeps_the_processor_is_yielded_to_ever_more_rarely() {
        let (mut crowding, before) = crowding();
        for (trial, pause) in [(0_u32, FIRST_PAUSE), (1, 4 * FIRST_PAUSE), (2, 16 * FIRST_PAUSE)] {
            let before = before + trial * 3_100 * MICRO;
            crowding.note_trial(before, before + 3_000 * MICRO, MICRO);
            assert_eq!((crowding.is_crowded, crowding.until_trial), (false, pause));
        }
        let before = before + 10_000 * MICRO;
        crowding.note_trial(before, before + 5 * MICRO, MICRO);
        assert_eq!((crowding.is_crowded, crowding.pause), (true, 64 * FIRST_PAUSE), "it may still be there");
        assert!(crowding.note_yield(before + 10 * MICRO, before + 3_000 * MICRO));
        assert!(!crowding.is_crowded);
    }

    /// Of as many, each has the processor as long as the others together.
    #[test]
    fn threads_that_take_as_long_as_this_one_are_not_in_the_way() {
        let (mut crowding, mut before) = crowding();
        for _ in 0..10 {
            crowding.note_trial(before, before + 400 * MICRO, MICRO);
            assert!(crowding.is_crowded);
            before += 500 * MICRO;
        }
    }
}
