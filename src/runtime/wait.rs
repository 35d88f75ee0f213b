//! Who makes progress, and how long a thread sleeps that waits.
//!
//! There is no hardware: a thread that is inside the library runs the protocol. At any time there is one kind of thread
//! that watches the device:
//!
//! | the application | watches the device | the background thread |
//! |---|---|---|
//! | polled in the last 50 µs | the thread that polls | stays away for 250 µs, then looks again |
//! | has a thread in [`Runtime::wait`] | that thread | sleeps until a deadline of the protocol that nobody met |
//! | does neither | the background thread | serves peers and timers |
//!
//! A thread that waits spins for the context's spin time, and again after each time that something arrived, because an
//! answer is often on its way. Then it sleeps until the first of these:
//!
//! - the device's descriptor, or the descriptor of what it waits for, becomes readable;
//! - the caller's timeout ends;
//! - a deadline of the protocol comes (retransmission, connection management, a device that delays);
//! - 50 ms pass, if what it waits for has a descriptor, which any thread makes readable. If it has none, another thread may
//!   take in what this one waits for, so it looks again after 1 ms, and after twice as long each time, up to 8 ms, while
//!   no other thread makes progress;
//! - 1 ms passes, if the device has no descriptor, for then nothing shows what arrives.
//!
//! A device that failed ends a wait, after what arrived before the failure has been looked at.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Runtime;
use crate::driver::wake::wait_readable;

/// While the application polled so recently, the background thread stays away.
const POLLED_RECENTLY: Duration = Duration::from_micros(50);
/// The first time after which a waiting thread looks at what another thread may have taken in.
const FIRST_RECHECK: Duration = Duration::from_millis(1);
/// The longest of these times.
const LONGEST_RECHECK: Duration = Duration::from_millis(8);
/// No thread sleeps longer.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// Why a wait ended without what was waited for.
#[derive(Debug)]
pub(crate) enum WaitFailure {
    TimedOut,
    /// The operating system refused to wait.
    Io(io::Error),
    /// The device failed with this kind and text.
    Device(io::ErrorKind, String),
}

impl From<WaitFailure> for io::Error {
    fn from(failure: WaitFailure) -> Self {
        match failure {
            WaitFailure::TimedOut => io::ErrorKind::TimedOut.into(),
            WaitFailure::Io(error) => error,
            WaitFailure::Device(kind, text) => Self::new(kind, text),
        }
    }
}

/// What the threads of the application do, for the background thread.
#[derive(Debug)]
pub(super) struct Activity {
    origin: Instant,
    /// When the application last polled, in nanoseconds since `origin`; 0 if never.
    last_poll: AtomicU64,
    /// Threads in [`Runtime::wait`].
    waiters: AtomicUsize,
}

/// Which thread watches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watcher {
    /// A thread of the application that polls.
    Poller,
    /// A thread of the application that waits.
    Waiter,
    /// The background thread.
    Background,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self { origin: Instant::now(), last_poll: AtomicU64::new(0), waiters: AtomicUsize::new(0) }
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    pub(super) fn watcher(&self) -> Watcher {
        let last = self.last_poll.load(Ordering::Relaxed);
        if last != 0 && self.now().saturating_sub(last) < POLLED_RECENTLY.as_nanos() as u64 {
            Watcher::Poller
        } else if self.waiters.load(Ordering::Relaxed) > 0 {
            Watcher::Waiter
        } else {
            Watcher::Background
        }
    }
}

/// Counts a thread of the application as a waiter.
struct Waiting<'a>(&'a Runtime);

impl<'a> Waiting<'a> {
    fn new(runtime: &'a Runtime) -> Self {
        runtime.activity.waiters.fetch_add(1, Ordering::Relaxed);
        Self(runtime)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.activity.waiters.fetch_sub(1, Ordering::Relaxed);
        // The background thread sleeps without watching the device while a thread waits.
        self.0.wake_background();
    }
}

/// When a waiting thread looks at what another thread may have taken in.
struct Recheck {
    after: Duration,
    /// How often any thread had made progress at the last look.
    polls: u64,
}

impl Recheck {
    /// How long to sleep now. Between two sleeps a thread makes progress once itself.
    fn next(&mut self, polls: u64) -> Duration {
        let is_alone = polls == self.polls.wrapping_add(1);
        self.after = if is_alone { (2 * self.after).min(LONGEST_RECHECK) } else { FIRST_RECHECK };
        self.polls = polls;
        self.after
    }
}

impl Runtime {
    /// Notes that the application polls, so that the background thread stays away.
    #[inline]
    pub(crate) fn note_poll(&self) {
        self.activity.last_poll.store(self.activity.now(), Ordering::Relaxed);
    }

    /// Calls `attempt` until it gives something, and makes progress in between, see the module. `event` is a descriptor
    /// that becomes readable when another thread takes in what is waited for.
    pub(crate) fn wait<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        event: Option<BorrowedFd<'_>>,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        if let Some(found) = attempt()? {
            return Ok(found);
        }
        let _waiting = Waiting::new(self);
        let started = Instant::now();
        // A time beyond the end of the clock never ends.
        let end = timeout.and_then(|timeout| started.checked_add(timeout));
        let mut spin_end = started + self.spin;
        let mut recheck = Recheck { after: FIRST_RECHECK, polls: 0 };
        loop {
            let (arrived, failure) = {
                let mut state = self.lock();
                let arrived = state.progress();
                (
                    arrived,
                    state.nic.failure().map(|error| WaitFailure::Device(error.kind(), error.to_string())),
                )
            };
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            if let Some(failure) = failure {
                return Err(failure.into());
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitFailure::TimedOut.into());
            }
            if arrived {
                spin_end = now + self.spin;
            }
            if now < spin_end {
                std::hint::spin_loop();
                continue;
            }
            let slept = self.sleep(end.map(|end| end - now), event, &mut recheck);
            if slept.map_err(WaitFailure::Io)? {
                spin_end = Instant::now() + self.spin;
            }
        }
    }

    /// Sleeps, see the module; returns whether a descriptor became readable.
    fn sleep(
        &self,
        remaining: Option<Duration>,
        event: Option<BorrowedFd<'_>>,
        recheck: &mut Recheck,
    ) -> io::Result<bool> {
        let device = self.device_descriptor.as_ref().map(AsFd::as_fd);
        let (deadline, recheck) = {
            let state = self.lock();
            let now = state.nic.now();
            (state.deadline().map(|deadline| deadline.since(now)), recheck.next(state.polls()))
        };
        let longest = match (device, event) {
            (None, _) => FIRST_RECHECK,
            (Some(_), Some(_)) => LONGEST_SLEEP,
            (Some(_), None) => recheck,
        };
        let timeout = [remaining, deadline].into_iter().flatten().fold(longest, Duration::min);
        wait_readable([device, event].into_iter().flatten(), Some(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rechecks_are_rare_only_while_no_other_thread_makes_progress() {
        let mut recheck = Recheck { after: FIRST_RECHECK, polls: 0 };
        let mut after = |polls| recheck.next(polls).as_millis();
        assert_eq!([7, 8, 9, 10, 11, 12].map(&mut after), [1, 2, 4, 8, 8, 8]);
        // Another thread polled as well, or this one spun.
        assert_eq!([14, 15, 17, 20].map(&mut after), [1, 2, 1, 1]);
    }
}
