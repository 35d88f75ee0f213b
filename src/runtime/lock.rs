//! The lock guard: what came of a call is delivered when it is dropped, after the mutex is released.
//!
//! Wakers, and the drops of what they own, are foreign code: they may use the context, or release the last handle of it. So
//! none of them runs under the mutex, and no caller has to remember to deliver anything.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use arrayvec::ArrayVec;
use roce_transport::{CqId, Engine, Event};

use super::{Runtime, State};
use crate::cm::service::Wakers;

/// Completion events that are delivered for one locking of the mutex.
const BATCH: usize = 16;

/// Exclusive use of the state.
pub(crate) struct Locked<'a> {
    // The order matters: fields are dropped in it, the mutex is released first.
    state: MutexGuard<'a, State>,
    deliveries: Option<Deliveries<'a>>,
    runtime: &'a Runtime,
}

impl<'a> Locked<'a> {
    #[inline]
    pub(super) fn new(runtime: &'a Runtime, state: MutexGuard<'a, State>) -> Self {
        Self { state, deliveries: None, runtime }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.collect_events();
        if self.state.has_deliveries() {
            self.deliveries = Some(Deliveries::new(self.runtime, &mut self.state));
        }
    }
}

/// Exclusive use of the states of all engines of a context, which are locked in their order. No thread waits for an engine before one
/// that it has locked, so that threads do not wait for each other. What comes of the use is delivered when no engine is locked any more.
pub(crate) struct AllLocked<'a> {
    states: Vec<(MutexGuard<'a, State>, &'a Runtime)>,
}

impl<'a> AllLocked<'a> {
    pub(super) fn new(runtimes: impl Iterator<Item = &'a Runtime>) -> Self {
        Self { states: runtimes.map(|runtime| (runtime.lock_state(), runtime)).collect() }
    }

    /// The engines in their order.
    pub(crate) fn engines(&mut self) -> impl Iterator<Item = &mut Engine> {
        self.states.iter_mut().map(|(state, _)| &mut state.nic.engine)
    }
}

impl Drop for AllLocked<'_> {
    fn drop(&mut self) {
        // Each state is released at the end of its turn, and what is delivered waits for the last.
        let deliveries: Vec<_> = self
            .states
            .drain(..)
            .filter_map(|(mut state, runtime)| {
                state.collect_events();
                state.has_deliveries().then(|| Deliveries::new(runtime, &mut state))
            })
            .collect();
        drop(deliveries);
    }
}

/// What is to be done without the lock.
struct Deliveries<'a> {
    runtime: &'a Runtime,
    completions: ArrayVec<CqId, BATCH>,
    /// There were more completion events than one batch.
    has_more: bool,
    wakers: Option<Wakers>,
    device_failed: bool,
    wake_background: bool,
}

impl<'a> Deliveries<'a> {
    #[cold]
    fn new(runtime: &'a Runtime, state: &mut State) -> Self {
        let mut deliveries = Self {
            runtime,
            completions: ArrayVec::new(),
            has_more: false,
            wakers: None,
            device_failed: false,
            wake_background: false,
        };
        deliveries.collect(state);
        deliveries
    }

    fn collect(&mut self, state: &mut State) {
        while !self.completions.is_full()
            && let Some(event) = state.events.pop_front()
        {
            match event {
                Event::Completion(cq) => self.completions.push(cq),
                // Under the lock, which keeps them in order. Nothing foreign is called.
                Event::Async(event) => self.runtime.async_events.push(event),
            }
        }
        self.has_more = !state.events.is_empty();
        self.wakers = state.take_wakers();
        if state.is_failure_new() {
            state.failure_announced = true;
            self.runtime.activity.note_failure();
            self.device_failed = true;
        }
        if state.background_sleeps_too_long() {
            state.background_sleeps_until = None;
            self.wake_background = true;
        }
    }

    fn deliver(&mut self) {
        for cq in self.completions.drain(..) {
            self.runtime.completion_events.notify(cq);
        }
        if std::mem::take(&mut self.device_failed) {
            self.runtime.completion_events.notify_all();
        }
        if std::mem::take(&mut self.wake_background) {
            self.runtime.wake_background();
        }
        if let Some(wakers) = self.wakers.take() {
            wakers.wake();
        }
    }
}

impl Drop for Deliveries<'_> {
    fn drop(&mut self) {
        self.deliver();
        while self.has_more {
            let mut state = self.runtime.lock_state();
            state.collect_events();
            self.collect(&mut state);
            drop(state);
            self.deliver();
        }
    }
}
