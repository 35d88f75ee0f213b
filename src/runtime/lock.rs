//! The lock guard, which delivers events when it is dropped, after the mutex is released.
//!
//! Wakers, and the drops of objects that they own, are foreign code: they may use the context or release its
//! last handle. So they never run under the mutex, and no caller has to remember to deliver anything.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use roce_transport::{CqId, Engine, Event};

use super::{Runtime, State};
use crate::cm::service::Wakers;

/// Maximum number of completion events delivered per lock of the mutex.
const BATCH: usize = 16;

/// Exclusive access to the state.
pub(crate) struct Locked<'a> {
    // Fields are dropped in this order, so the mutex is released before the deliveries.
    state: MutexGuard<'a, State>,
    deliveries: Option<Deliveries<'a>>,
    runtime: &'a Runtime,
}

impl Runtime {
    /// Locks the state. Dropping the guard delivers the events of the caller's changes.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.lock_state())
    }
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

/// Exclusive access to the states of all engines of a context. Engines are locked in their order, which
/// prevents deadlocks. Events are delivered after all engines are released.
pub(crate) struct AllLocked<'a> {
    states: Vec<(MutexGuard<'a, State>, &'a Runtime)>,
}

impl<'a> AllLocked<'a> {
    pub(super) fn new(runtimes: impl Iterator<Item = &'a Runtime>) -> Self {
        Self { states: runtimes.map(|runtime| (runtime.lock_state(), runtime)).collect() }
    }

    /// Returns the engines in their order.
    pub(crate) fn engines(&mut self) -> impl Iterator<Item = &mut Engine> {
        self.states.iter_mut().map(|(state, _)| &mut state.nic.engine)
    }
}

impl Drop for AllLocked<'_> {
    fn drop(&mut self) {
        // Each iteration releases one state. Nothing is delivered before the last one is released.
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

/// Actions for after the release of the lock.
struct Deliveries<'a> {
    runtime: &'a Runtime,
    completions: ArrayVec<CqId, BATCH>,
    /// Whether there were more completion events than one batch.
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
                // Under the lock, which keeps the events in order. No foreign code is called.
                Event::Async(event) => self.runtime.async_events.push(event),
            }
        }
        self.has_more = !state.events.is_empty();
        self.wakers = state.take_wakers();
        if state.is_failure_new() {
            state.failure_announced = true;
            self.runtime.has_failed.store(true, Ordering::Relaxed);
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
