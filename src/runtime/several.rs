//! Waiting for something that any of several engines of a context may bring: an event of a completion channel that has queues in each.
//!
//! The policy is that of [`wait`](super::wait): the thread makes progress in each of the engines for the context's spin time, then sleeps
//! until the device of one, or the descriptor of what it waits for, becomes readable. To each engine it is a thread that waits there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::turns::Turns;
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
        Waiter { engines: &self.0, event }.wait(false, timeout, attempt)
    }

    /// As [`Runtime::wait_interruptibly`].
    pub(crate) fn wait_interruptibly<T, E: From<WaitFailure>>(
        &self,
        event: BorrowedFd<'_>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        Waiter { engines: &self.0, event }.wait(true, None, attempt)
    }
}

/// A thread that waits for an event of any of them.
struct Waiter<'a> {
    engines: &'a [&'a Runtime],
    event: BorrowedFd<'a>,
}

impl<'a> Turns for Waiter<'a> {
    type Waiting = Vec<Waiting<'a>>;

    fn begin(&self) -> Vec<Waiting<'a>> {
        self.engines.iter().map(|runtime| Waiting::new(runtime)).collect()
    }

    fn spin(&self) -> Duration {
        self.engines.iter().map(|runtime| runtime.spin).max().unwrap_or_default()
    }

    fn transmit_postponed(&self) {
        self.engines.iter().for_each(|runtime| runtime.lock().transmit_postponed());
    }

    fn progress(&self) -> (bool, Option<WaitFailure>) {
        self.engines
            .iter()
            .map(|runtime| runtime.progress_once(None))
            .fold((false, None), |(has_more, failure), (more, failed)| (has_more | more, failed.or(failure)))
    }

    fn yield_lock(&self) {
        self.engines.iter().for_each(|runtime| runtime.yield_lock());
    }

    fn sleep(&mut self, remaining: Option<Duration>) -> io::Result<Slept> {
        let mut descriptors = vec![self.event];
        let mut timeout = remaining.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        for runtime in self.engines {
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
