//! The threads that wait in an engine. The background thread leaves the device to them.
//!
//! A signal handler may jump out of a wait (`siglongjmp`), and then no destructor runs. So a waiting thread
//! has a place only until a time, which it extends before each sleep. An expired place is free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Runtime;
use super::wait::LONGEST_SLEEP;

/// Number of threads that are counted. For further ones the background thread serves as well, which only
/// costs time.
const PLACES: usize = 16;
/// Extra time for a thread that has slept until its time, so that it can get a processor and extend its time.
const MARGIN: Duration = Duration::from_millis(20);

/// Time until which a thread waits in each place, in nanoseconds of the engine's clock. A past time is the
/// time at which a thread left the place; 0 if no thread had it.
#[derive(Debug, Default)]
pub(super) struct Waiters([AtomicU64; PLACES]);

impl Waiters {
    /// Returns whether any thread waits.
    pub(super) fn are_any(&self, now: u64) -> bool {
        self.0.iter().any(|until| until.load(Ordering::SeqCst) > now)
    }

    /// Returns whether a thread has left its place within `time`.
    pub(super) fn have_left_within(&self, now: u64, time: Duration) -> bool {
        let since = now.saturating_sub(time.as_nanos() as u64).max(1);
        self.0.iter().any(|until| (since..=now).contains(&until.load(Ordering::SeqCst)))
    }

    /// Returns how long it takes until all current times have expired.
    pub(super) fn longest(&self, now: u64) -> Duration {
        let last = self.0.iter().map(|until| until.load(Ordering::SeqCst)).max();
        Duration::from_nanos(last.unwrap_or(0).saturating_sub(now))
    }
}

/// The place of a thread that waits.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    place: usize,
    /// The time that this thread wrote there; 0 if it has no place.
    until: u64,
}

impl Waiting {
    /// Marks the thread as waiting for `time` from now on, at most [`LONGEST_SLEEP`], which is also the
    /// default.
    pub(super) fn renew(&mut self, runtime: &Runtime, time: Option<Duration>) {
        let (places, now) = (&runtime.activity.waiters.0, runtime.activity.now());
        let until = now + (time.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP) + MARGIN).as_nanos() as u64;
        if self.until != 0 && replace(&places[self.place], self.until, until) {
            self.until = until;
            return;
        }
        loop {
            // The place that has been free longest, because the others show which threads left recently.
            let known = places.iter().map(|place| place.load(Ordering::SeqCst)).enumerate();
            let free = known.filter(|(_, known)| *known <= now).min_by_key(|(_, known)| *known);
            let Some((place, known)) = free else {
                *self = Self::default();
                return;
            };
            // Otherwise another thread has taken the place.
            if replace(&places[place], known, until) {
                *self = Self { place, until };
                return;
            }
        }
    }

    /// Marks the thread as no longer waiting.
    pub(super) fn leave(&mut self, runtime: &Runtime) {
        let until = std::mem::take(&mut self.until);
        if until != 0 && replace(&runtime.activity.waiters.0[self.place], until, runtime.activity.now()) {
            runtime.note_leave();
        }
    }
}

fn replace(place: &AtomicU64, known: u64, new: u64) -> bool {
    place.compare_exchange(known, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}
