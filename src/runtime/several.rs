//! Waits for an event of a completion channel with queues in several engines of a context.
//!
//! The policy is that of [`wait`](super::wait): the thread makes progress in each engine for the context's
//! spin time, then sleeps until a device or the descriptor of the event becomes readable. In each engine it
//! counts as a waiting thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use arrayvec::ArrayVec;

use super::turns::{LONGEST_TURN, Spell, Turn, Turns};
use super::wait::{FIRST_RECHECK, LONGEST_SLEEP, WHILE_POLLED, Watcher};
use super::waiters::Waiting;
use super::{Runtime, WaitFailure};
use crate::driver::wake::{MOST_DESCRIPTORS, Sleep, Slept};

/// Two or more engines.
pub(crate) struct Several<'a>(Vec<&'a Runtime>);

/// A wait for an event that the caller may leave between two turns, see [`Standing::turn`].
#[derive(Debug, Default)]
pub(crate) struct Standing {
    spell: Spell,
    /// The place of the thread in each engine.
    waiting: Vec<Waiting>,
}

/// The result of a turn of a [`Standing`] wait.
pub(crate) enum Stand<'a, T> {
    Found(T),
    /// The caller must sleep before the next turn.
    Sleep(Sleep<'a>),
}

impl<'a> Several<'a> {
    pub(crate) fn new(engines: impl Iterator<Item = &'a Runtime>) -> Self {
        Self(engines.collect())
    }

    pub(crate) fn engines(&self) -> &[&'a Runtime] {
        &self.0
    }

    /// Waits like [`Runtime::wait`], in all of these engines.
    pub(crate) fn wait<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        event: BorrowedFd<'_>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let mut waiting = Vec::new();
        Waiter { engines: &self.0, event, waiting: &mut waiting }.wait(timeout, attempt)
    }
}

impl Standing {
    /// Takes one turn of a wait in these engines: calls `attempt`, makes progress and spins like
    /// [`Several::wait`], but returns instead of sleeping. `slept` tells how the sleep before this turn
    /// ended.
    pub(crate) fn turn<'a, T, E: From<WaitFailure>>(
        &mut self,
        engines: &'a [&'a Runtime],
        slept: Option<Slept>,
        event: BorrowedFd<'a>,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Stand<'a, T>, E> {
        let Self { spell, waiting } = self;
        let mut waiter = Waiter { engines, event, waiting };
        if let Some(slept) = slept {
            waiter.note_sleep(spell, slept);
        }
        Ok(match waiter.turn(spell, None, &mut attempt)? {
            Turn::Found(found) => Stand::Found(found),
            Turn::Pause => Stand::Sleep(Sleep::new(std::iter::empty(), Some(Duration::ZERO))),
            Turn::Sleep => Stand::Sleep(waiter.plan_sleep(None)),
        })
    }

    /// Ends the wait.
    pub(crate) fn leave(&mut self, engines: &[&Runtime]) {
        for (runtime, waiting) in engines.iter().zip(&mut self.waiting) {
            waiting.leave(runtime);
        }
    }
}

/// A thread that waits for an event of any of these engines.
struct Waiter<'a, 'b> {
    engines: &'a [&'a Runtime],
    event: BorrowedFd<'a>,
    waiting: &'b mut Vec<Waiting>,
}

impl<'a> Waiter<'a, '_> {
    fn plan_sleep(&mut self, remaining: Option<Duration>) -> Sleep<'a> {
        let mut descriptors = ArrayVec::<_, MOST_DESCRIPTORS>::new();
        descriptors.push(self.event);
        let mut timeout = remaining.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        for runtime in self.engines {
            // A device that another thread polls is left out, because it would wake this thread at every
            // packet.
            let is_polled = runtime.watcher() == Watcher::Poller;
            let longest = match &runtime.device_descriptor {
                _ if is_polled => WHILE_POLLED,
                None => FIRST_RECHECK,
                Some(device) => {
                    // If no place is left, the background thread of the engine wakes this thread through the
                    // descriptor of the event.
                    let _ = descriptors.try_push(device.as_fd());
                    LONGEST_SLEEP
                }
            };
            let mut state = runtime.lock();
            let now = state.nic.now();
            let deadline = state.deadline().map(|deadline| deadline.since(now));
            timeout = timeout.min(longest).min(deadline.unwrap_or(longest));
            if longest == LONGEST_SLEEP {
                state.nic.watched_until(now, now + timeout);
            }
        }
        for (runtime, waiting) in self.engines.iter().zip(&mut *self.waiting) {
            waiting.renew(runtime, Some(timeout));
        }
        Sleep::new(descriptors, Some(timeout))
    }
}

impl Turns for Waiter<'_, '_> {
    fn begin(&mut self) {
        self.waiting.resize_with(self.engines.len(), Waiting::default);
        for (runtime, waiting) in self.engines.iter().zip(&mut *self.waiting) {
            waiting.renew(runtime, Some(LONGEST_TURN));
        }
    }

    fn leave(&mut self) {
        for (runtime, waiting) in self.engines.iter().zip(&mut *self.waiting) {
            waiting.leave(runtime);
        }
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

    fn plan(&mut self, remaining: Option<Duration>) -> Sleep<'_> {
        self.plan_sleep(remaining)
    }
}
