//! Waits of the application's threads, in one engine or several.
//!
//! A waiting thread makes progress itself. It spins for the context's spin time, and again each time
//! something arrived. Then it sleeps until the first of these events:
//!
//! - the descriptor of the device, or of the awaited event, becomes readable;
//! - the caller's timeout ends;
//! - a protocol deadline comes (retransmission, connection management, a device that delays packets);
//! - 500 ms pass, if the awaited event has a descriptor. Without one, another thread may receive the event
//!   unnoticed, so the limit is 1 ms, doubled up to 8 ms while no other thread makes progress;
//! - 1 ms passes, if the device has no descriptor that shows arriving packets.
//!
//! A thread that waits for a descriptor while another one polls ignores the device and rechecks after 250 µs.
//! A device failure ends a wait once the packets that arrived before it are handled.
//!
//! A thread that spins or polls yields the processor after each empty check while others need it
//! ([`crowding`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use arrayvec::ArrayVec;
use roce_policy::{BeforeSleep, Recheck, Spin, Timing, Waiting, Watcher, plan_sleep};
use roce_transport::{Instant, Occupancy, with_causes};

use super::{Runtime, crowding};
use crate::driver::wake::{MOST_DESCRIPTORS, Sleep, Slept};

/// The reason why a wait ended without a result.
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

/// The place and the event that a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitFor<'a> {
    /// The engines, at least one, whose clock is the same. The thread makes progress in each.
    pub(crate) engines: &'a [&'a Runtime],
    /// A descriptor that becomes readable when another thread receives the awaited event.
    pub(crate) event: Option<BorrowedFd<'a>>,
    /// The completion queue that the thread checks.
    pub(crate) queue: Option<&'a Occupancy>,
}

/// The state of a wait between two turns.
#[derive(Debug)]
pub(crate) struct Standing {
    has_begun: bool,
    spin: Spin,
    recheck: Recheck,
    parts: Parts,
}

/// The part of the thread in each engine. A wait in one engine needs no allocation.
#[derive(Debug, Default)]
struct Parts {
    first: Waiting,
    others: Vec<Waiting>,
}

impl Parts {
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiting> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }
}

impl Default for Standing {
    fn default() -> Self {
        let recheck = Recheck::new(&Timing::USUAL);
        Self { has_begun: false, spin: Spin::default(), recheck, parts: Parts::default() }
    }
}

/// The result of one turn of a wait.
pub(crate) enum Turn<'a, T> {
    Found(T),
    /// The thread must sleep before the next turn. After a long turn, the sleep ends at once.
    Sleep(Sleep<'a>),
}

impl Standing {
    /// Ends the wait.
    pub(crate) fn leave(&mut self, engines: &[&Runtime]) {
        for (runtime, waiting) in engines.iter().zip(self.parts.iter_mut()) {
            runtime.leave(waiting);
        }
    }
}

impl<'a> WaitFor<'a> {
    fn now(&self) -> Instant {
        self.engines[0].clock.now()
    }

    fn timing(&self) -> &'a Timing {
        &self.engines[0].timing
    }

    /// Returns how long the thread spins before it sleeps.
    fn spin(&self) -> Duration {
        self.engines.iter().map(|runtime| runtime.spin).max().unwrap_or_default()
    }

    /// Calls `attempt` until it returns a value, makes progress in between, and sleeps. A signal does not end
    /// the wait.
    pub(crate) fn wait<T, E: From<WaitFailure>>(
        self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        // A timeout beyond the range of the clock never ends.
        let end = timeout.map(|timeout| self.now() + timeout);
        let mut standing = Standing::default();
        let outcome = self.wait_until(&mut standing, end, &mut attempt);
        standing.leave(self.engines);
        outcome
    }

    fn wait_until<T, E: From<WaitFailure>>(
        self,
        standing: &mut Standing,
        end: Option<Instant>,
        attempt: &mut impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let mut slept = None;
        loop {
            match self.turn(standing, slept, end, attempt)? {
                Turn::Found(found) => return Ok(found),
                Turn::Sleep(sleep) => slept = Some(sleep.sleep().map_err(WaitFailure::Io)?),
            }
        }
    }

    /// Calls `attempt` until it returns a value or it is time to sleep, and makes progress in between.
    /// `slept` tells how the sleep before this turn ended. The thread still counts as waiting afterwards,
    /// until [`Standing::leave`].
    pub(crate) fn turn<T, E: From<WaitFailure>>(
        self,
        standing: &mut Standing,
        slept: Option<Slept>,
        end: Option<Instant>,
        attempt: &mut impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Turn<'a, T>, E> {
        if slept == Some(Slept::Readable) {
            standing.spin.woken(self.now(), self.spin());
        }
        if !std::mem::replace(&mut standing.has_begun, true)
            && let Some(found) = attempt()?
        {
            self.engines.iter().for_each(|runtime| runtime.lock().transmit_postponed(self.now()));
            return Ok(Turn::Found(found));
        }
        let began = self.begin_turn(standing);
        loop {
            let (has_more, failure) = self.progress();
            if let Some(found) = attempt()? {
                return Ok(Turn::Found(found));
            }
            if let Some(failure) = failure {
                return Err(failure.into());
            }
            let now = self.now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitFailure::TimedOut.into());
            }
            if standing.spin.checked(now, has_more, self.spin()) {
                return Ok(Turn::Sleep(self.plan_sleep(standing, end)));
            }
            if now.since(began) >= self.timing().longest_turn {
                return Ok(Turn::Sleep(Sleep::new([], Some(Duration::ZERO))));
            }
            self.engines.iter().for_each(|runtime| runtime.yield_lock());
            if !has_more {
                crowding::yield_if_needed();
            }
            std::hint::spin_loop();
        }
    }

    /// Marks the thread as waiting until it sleeps, and returns the time.
    fn begin_turn(&self, standing: &mut Standing) -> Instant {
        standing.parts.others.resize_with(self.engines.len() - 1, Waiting::default);
        let now = self.now();
        for (runtime, waiting) in self.engines.iter().zip(standing.parts.iter_mut()) {
            runtime.watch.waits(now, waiting, runtime.timing.longest_turn);
        }
        now
    }

    /// Makes progress once. Returns whether more may be ready at once, and the failure of a device.
    fn progress(&self) -> (bool, Option<WaitFailure>) {
        self.engines
            .iter()
            .map(|runtime| runtime.progress_once(self.queue))
            .fold((false, None), |(has_more, failure), (more, failed)| (has_more | more, failed.or(failure)))
    }

    /// Plans the next sleep, and marks the thread as waiting for its duration.
    fn plan_sleep(&self, standing: &mut Standing, end: Option<Instant>) -> Sleep<'a> {
        let now = self.now();
        let mut descriptors = ArrayVec::<_, MOST_DESCRIPTORS>::new();
        descriptors.extend(self.event);
        let mut time = end.map_or(self.timing().longest_sleep, |end| end.since(now));
        let Standing { parts, recheck, .. } = standing;
        for (runtime, waiting) in self.engines.iter().zip(parts.iter_mut()) {
            if descriptors.is_full() {
                // The thread would not see packets of this engine. Its background thread watches the device,
                // and wakes this thread through the event.
                runtime.leave(waiting);
                time = time.min(runtime.timing.longest_recheck);
                continue;
            }
            let device = runtime.device_descriptor.as_ref().map(AsFd::as_fd);
            let is_polled = self.event.is_some() && runtime.watcher() == Watcher::Poller;
            let mut state = runtime.lock();
            let now = state.nic.now();
            let before = BeforeSleep {
                is_polled,
                has_device: device.is_some(),
                has_event: self.event.is_some(),
                polls: state.polls(),
                deadline: state.deadline().map(|deadline| deadline.since(now)),
                remaining: Some(time),
            };
            let sleep = plan_sleep(before, recheck, &runtime.timing);
            time = sleep.time;
            if sleep.watches {
                state.nic.watched_until(now, now + time);
                descriptors.extend(device);
            }
            drop(state);
            runtime.watch.waits(now, waiting, time);
        }
        Sleep::new(descriptors, Some(time))
    }
}

impl Runtime {
    /// Returns which thread watches the device. The caller must not hold the lock.
    pub(super) fn watcher(&self) -> Watcher {
        self.watch.watcher(self.clock.now(), || self.is_locked())
    }

    /// Marks a thread as no longer waiting.
    fn leave(&self, waiting: &mut Waiting) {
        if self.watch.leaves(waiting) {
            self.wake_background();
        }
    }

    /// Calls `attempt` until it returns a value, and makes progress in between, see the module. `event` is a
    /// descriptor that becomes readable when another thread receives the awaited event.
    pub(crate) fn wait<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        event: Option<BorrowedFd<'_>>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        WaitFor { engines: &[self], event, queue: None }.wait(timeout, attempt)
    }

    /// Waits like [`wait`](Self::wait), for completions of the queue with this occupancy.
    pub(crate) fn wait_for_completions<T, E: From<WaitFailure>>(
        &self,
        timeout: Option<Duration>,
        occupancy: &Occupancy,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        WaitFor { engines: &[self], event: None, queue: Some(occupancy) }.wait(timeout, attempt)
    }

    /// Makes progress once, for a thread that checks `queue` next if it is given. Returns whether more may be
    /// ready at once, and the failure of the device.
    fn progress_once(&self, queue: Option<&Occupancy>) -> (bool, Option<WaitFailure>) {
        let mut state = self.lock();
        let has_more = match queue {
            Some(queue) => {
                let now = state.nic.now();
                state.progress_for(now, queue)
            }
            None => state.progress(),
        };
        let text = |error| with_causes(error).to_string();
        let failure = state.nic.failure().map(|error| WaitFailure::Device(error.kind(), text(error)));
        (has_more, failure)
    }
}
