//! Polls of the application's threads: checks of the device, and how long a poll stays.

use std::sync::atomic::Ordering;

use roce_policy::{NextCheck, Stay};
use roce_transport::Instant;

use super::{Locked, Runtime, State, crowding};

impl Runtime {
    /// Records that the application polls, so that the background thread backs off. Returns the time, and
    /// whether a poll of an empty queue checks the device.
    #[inline]
    pub(crate) fn note_poll(&self) -> (Instant, bool) {
        let now = self.clock.now();
        let poll = self.watch.polls(now);
        if poll.wakes {
            self.wake_background();
        }
        (now, poll.checks)
    }

    /// Begins a poll of an empty queue. Returns the locked state and the time, or `None` if the poll does not
    /// check the device: if another thread holds the lock, because that thread makes progress, or if a poll
    /// checked a quiet device shortly before.
    #[inline]
    pub(crate) fn begin_check(&self) -> Option<(Locked<'_>, Instant)> {
        let (now, checks) = self.note_poll();
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        if !checks && !has_failed {
            return None;
        }
        let state = match self.state.try_lock() {
            Some(state) => state,
            // Every poll reports a failure of the device, even while the background thread holds the lock.
            None if has_failed => self.lock_state(),
            None => return None,
        };
        Some((Locked::new(self, state), now))
    }

    /// Records the outcome of a check of the device by a poll.
    #[inline]
    pub(crate) fn note_check(&self, state: &mut State, has_arrived: bool) {
        if state.policy.polled(&self.watch, has_arrived) {
            crowding::try_soon();
        }
    }

    /// Makes progress for an application that keeps checking its memory, so the background thread backs off.
    pub(crate) fn progress_for_memory(&self) {
        self.note_poll();
        self.lock().progress_for_memory();
    }

    /// Yields the processor after an empty poll if other threads need it; the caller holds no lock.
    #[inline]
    pub(crate) fn share_processor(&self) {
        if crowding::needs_yield() {
            let began = self.clock.now();
            self.watch.yields(began);
            crowding::yield_processor();
            self.watch.returns(began, self.clock.now());
        }
    }

    /// Records that the application is about to sleep. The background thread watches the device at once.
    pub(crate) fn note_end_of_polling(&self) {
        if self.watch.stops_polling() {
            self.wake_background();
        }
    }

    /// Stays in a poll that found something until a peer accesses memory here, something else arrives, or a
    /// short time ends.
    #[cold]
    pub(crate) fn linger(&self, stay: Stay) {
        loop {
            self.note_poll();
            let next = {
                let mut state = self.lock();
                let has_arrived = state.progress_for_memory();
                let (now, requests) = (state.nic.now(), state.nic.one_sided_requests());
                state.policy.lingering.checked(stay, now, requests, has_arrived)
            };
            match next {
                NextCheck::Now => self.share_processor(),
                NextCheck::AfterYield => std::thread::yield_now(),
                NextCheck::Never => return,
                // Otherwise the background thread would back off for a while.
                NextCheck::ByBackground => return self.note_end_of_polling(),
            }
            std::hint::spin_loop();
        }
    }
}
