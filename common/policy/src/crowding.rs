//! Decides whether a polling thread yields its processor to other threads.
//!
//! With more polling threads than processors, a thread that waits for its peer keeps the processor from
//! threads with work, for milliseconds. A thread cannot see this directly. So it makes a trial now and then:
//! it calls `sched_yield` and compares the elapsed time with the processor time that it was charged for. If
//! another thread ran, it yields after each empty check, until a trial finds no other thread.
//!
//! Yielding helps only if the other threads soon return the processor. A thread that computes keeps it for a
//! whole time slice, and each wait for a peer would take milliseconds. So a thread stops yielding if others
//! take much more time than it had since its last yield. It tries again after a pause that grows each time.

use std::time::Duration;

use roce_transport::Instant;

/// Empty checks until the next trial. A trial takes three system calls, about once in 70 µs.
const TRIAL_INTERVAL: u32 = 128;
/// Empty checks until the next trial if others kept the processor, multiplied by 4 each time up to the
/// maximum.
const FIRST_PAUSE: u32 = 16 * TRIAL_INTERVAL;
const LONGEST_PAUSE: u32 = FIRST_PAUSE << 6;
/// Others may take this multiple of the time that this thread had, plus `AWAY_AT_LEAST`: a thread that was
/// asleep has some work to do.
const MOST_AWAY: u32 = 4;
const AWAY_AT_LEAST: Duration = Duration::from_micros(500);
/// Difference between elapsed and charged time that shows another thread. Alone, a sixth of the trials
/// measured up to 20 ns; beside a thread that does nothing but yield, all measured 1,400 ns.
const OF_ANOTHER: Duration = Duration::from_nanos(200);

/// The knowledge of a thread about others on its processor.
#[derive(Clone, Copy, Debug)]
pub struct Crowding {
    /// Empty checks until the next trial.
    until_trial: u32,
    /// Empty checks that follow the next trial if others keep the processor too long.
    pause: u32,
    /// Whether the last trial found another thread.
    is_crowded: bool,
    /// Time since which this thread has had the processor, as far as it knows.
    since: Option<Instant>,
}

impl Crowding {
    /// The state of a thread that knows nothing about others.
    pub const NEW: Self =
        Self { until_trial: TRIAL_INTERVAL, pause: FIRST_PAUSE, is_crowded: false, since: None };

    /// Records an empty check of the device, or of memory that a peer will write. Returns whether the thread
    /// yields.
    #[inline]
    pub fn checked(&mut self) -> bool {
        let yields = self.until_trial <= 1 || self.is_crowded;
        self.until_trial -= u32::from(!yields);
        yields
    }

    /// Makes the next empty check a trial, unless others kept the processor too long lately.
    pub fn try_soon(&mut self) {
        if self.until_trial <= TRIAL_INTERVAL {
            self.until_trial = 1;
        }
    }

    /// Begins a yield. Returns whether it is a trial.
    pub fn begins(&mut self) -> bool {
        self.until_trial -= 1;
        self.until_trial == 0
    }

    /// Records a yield from `before` to `after`. Returns whether others kept the processor too long.
    pub fn note_yield(&mut self, before: Instant, after: Instant) -> bool {
        let is_too_long = self.since.is_some_and(|since| {
            let had = before.since(since);
            after.since(before) > had.saturating_mul(MOST_AWAY) + AWAY_AT_LEAST
        });
        self.since = Some(after);
        if is_too_long {
            self.is_crowded = false;
            self.until_trial = self.pause;
            self.pause = self.pause.saturating_mul(4).min(LONGEST_PAUSE);
        }
        is_too_long
    }

    /// Records a yield during which this thread was charged for `charged`: if more time passed, another
    /// thread ran.
    pub fn note_trial(&mut self, before: Instant, after: Instant, charged: Duration) {
        if self.note_yield(before, after) {
            return;
        }
        self.until_trial = TRIAL_INTERVAL;
        self.is_crowded = after.since(before) > charged + OF_ANOTHER;
        if !self.is_crowded {
            self.pause = FIRST_PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// Returns the state of a thread that last yielded 100 µs ago, and the time of its next yield.
    fn crowding() -> (Crowding, Instant) {
        let start = Instant::from_nanos(1);
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

    /// Regression: the two clocks differed by some nanoseconds in a sixth of the trials, and the thread
    /// yielded after each of the next checks.
    #[test]
    fn clocks_that_differ_a_little_show_no_other_thread() {
        let (mut crowding, before) = crowding();
        crowding.note_trial(before, before + MICRO + Duration::from_nanos(20), MICRO);
        assert!(!crowding.is_crowded);
        let before = before + 100 * MICRO;
        crowding.note_trial(before, before + MICRO + Duration::from_nanos(1_400), MICRO);
        assert!(crowding.is_crowded);
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

    /// Five threads take turns: the others together take four times as long as this one.
    #[test]
    fn threads_that_take_as_long_as_this_one_are_not_in_the_way() {
        let (mut crowding, mut before) = crowding();
        for _ in 0..10 {
            crowding.note_trial(before, before + 400 * MICRO, MICRO);
            assert!(crowding.is_crowded);
            before = before + 500 * MICRO;
        }
    }
}
