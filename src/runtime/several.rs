//! Waiting for something that any of several engines of a context may bring: an event of a completion channel that has queues in each.
//!
//! The policy is that of [`wait`](super::wait): the thread makes progress in each of the engines for the context's spin time, then sleeps
//! until the device of one, or the descriptor of what it waits for, becomes readable. To each engine it is a thread that waits there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::wait::{FIRST_RECHECK, LONGEST_SLEEP, WHILE_POLLED, Waiting, Watcher};
use super::{Runtime, WaitFailure};
use crate::driver::wake::{Slept, sleep_until_readable};

/// Two engines or more.
pub(crate) struct Several<'a>(Vec<&'a Runtime>);

impl<'a> Several<'a> {
    pub(crate) fn new(engines: impl Iterator<Item = &'a Runtime>) -> Self {
        Self(engines.collect())
    }

    /// As [`Runtime::wait`].
    pub(crate) fn wait<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        event: BorrowedFd<'_>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.wait_unless(false, timeout, event, attempt)
    }

    /// As [`Runtime::wait_interruptibly`].
    pub(crate) fn wait_interruptibly<T, E: From<WaitFailure>>(
        &self,
        event: BorrowedFd<'_>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.wait_unless(true, None, event, attempt)
    }

    fn wait_unless<T, E: From<WaitFailure>>(
        &self,
        is_interruptible: bool,
        timeout: Option<Duration>,
        event: BorrowedFd<'_>,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        if let Some(found) = attempt()? {
            self.0.iter().for_each(|runtime| runtime.lock().transmit_postponed());
            return Ok(found);
        }
        let _waiting: Vec<_> = self.0.iter().map(|runtime| Waiting::new(runtime)).collect();
        let spin = self.0.iter().map(|runtime| runtime.spin).max().unwrap_or_default();
        let started = Instant::now();
        // A time beyond the end of the clock never ends.
        let end = timeout.and_then(|timeout| started.checked_add(timeout));
        let mut spin_end = started.checked_add(spin);
        loop {
            let (has_more, failure) = self.progress();
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
            if has_more {
                spin_end = now.checked_add(spin);
            }
            // What is left over from the last call is sent at once, also by a thread that does not spin.
            if has_more || spin_end.is_none_or(|end| now < end) {
                self.0.iter().for_each(|runtime| runtime.yield_lock());
                std::hint::spin_loop();
                continue;
            }
            match self.sleep(end.map(|end| end - now), event).map_err(WaitFailure::Io)? {
                Slept::Readable => spin_end = Instant::now().checked_add(spin),
                Slept::Interrupted if is_interruptible => return Err(WaitFailure::Interrupted.into()),
                Slept::Interrupted | Slept::Out => {}
            }
        }
    }

    /// Makes progress in each of them. Returns whether there may be more to do at once, and the failure of a device.
    fn progress(&self) -> (bool, Option<WaitFailure>) {
        let (mut has_more, mut failure) = (false, None);
        for runtime in &self.0 {
            let mut state = runtime.lock();
            has_more |= state.progress();
            if let Some(error) = state.nic.failure() {
                failure = Some(WaitFailure::Device(error.kind(), error.to_string()));
            }
        }
        (has_more, failure)
    }

    fn sleep(&self, remaining: Option<Duration>, event: BorrowedFd<'_>) -> io::Result<Slept> {
        let mut descriptors = vec![event];
        let mut timeout = remaining.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        for runtime in &self.0 {
            // Not what another thread polls anyway: this one would wake at every packet.
            let is_polled = runtime.watcher() == Watcher::Poller;
            let longest = match &runtime.device_descriptor {
                _ if is_polled => WHILE_POLLED,
                None => FIRST_RECHECK,
                Some(device) => {
                    descriptors.push(device.as_fd());
                    LONGEST_SLEEP
                }
            };
            let state = runtime.lock();
            let now = state.nic.now();
            let deadline = state.deadline().map(|deadline| deadline.since(now));
            timeout = timeout.min(longest).min(deadline.unwrap_or(longest));
        }
        sleep_until_readable(descriptors, Some(timeout))
    }
}
