//! The parts of a network side by side, each in a thread of its own.
//!
//! A window begins when [`Simulation`] has given each worker its part, and ends when it has them all back. In between no part knows of
//! another one, so no result depends on which thread is faster. This is the only file of the crate with threads; it has no clock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use super::Simulation;
use super::part::Part;
use crate::net::time::Time;

/// How often a thread looks before it sleeps: some twenty microseconds, as long as it would take to wake it.
const LOOKS: u32 = 400;

impl Simulation {
    /// Handles about so many events on as many threads as there are parts.
    pub(super) fn run_parallel(&mut self, until: u64) {
        let Some(others) = self.parts.len().checked_sub(1) else { return };
        let shared = Shared::new(others);
        std::thread::scope(|scope| {
            // It ends the workers, also if this thread panics.
            let _end = End(&shared);
            for worker in 0..others {
                let shared = &shared;
                scope.spawn(move || shared.work(worker));
            }
            let mut windows = 0;
            while let Some(last) = self.next_window(until) {
                windows += 1;
                shared.give(self.parts.drain(1..), last);
                self.parts[0].run(last);
                if !shared.take_back(windows, &mut self.parts) {
                    // A worker has panicked; so does this thread when the scope ends.
                    return;
                }
            }
        });
    }
}

/// A part, and the last time of the window, while it is with a worker or on its way.
type Slot = Option<(Part, Time)>;

/// What the threads share.
struct Shared {
    slots: Vec<Mutex<Slot>>,
    /// The windows that have begun; [`u64::MAX`] at the end.
    begun: Counter,
    /// The sum of the windows that each worker has ended.
    ended: Counter,
}

impl Shared {
    fn new(workers: usize) -> Self {
        Self {
            slots: (0..workers).map(|_| Mutex::new(None)).collect(),
            begun: Counter::default(),
            ended: Counter::default(),
        }
    }

    /// Runs the part in a slot in each window, until the end.
    fn work(&self, worker: usize) {
        for window in 1.. {
            if self.begun.wait_for(window) == u64::MAX {
                return;
            }
            let _ended = Ended(&self.ended);
            let slot = &self.slots[worker];
            let Some((mut part, last)) = lock(slot).take() else { return };
            part.run(last);
            *lock(slot) = Some((part, last));
        }
    }

    /// Begins a window.
    fn give(&self, parts: impl Iterator<Item = Part>, last: Time) {
        for (slot, part) in self.slots.iter().zip(parts) {
            *lock(slot) = Some((part, last));
        }
        self.begun.add(1);
    }

    /// Waits for the end of a window and takes the parts back. Returns whether all of them came.
    fn take_back(&self, windows: u64, parts: &mut Vec<Part>) -> bool {
        self.ended.wait_for(windows * self.slots.len() as u64);
        parts.extend(self.slots.iter().filter_map(|slot| lock(slot).take()).map(|(part, _)| part));
        parts.len() == self.slots.len() + 1
    }
}

/// Locks what only one thread uses at a time. A thread that panics has no lock.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the workers when it is dropped.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.begun.set(u64::MAX);
    }
}

/// Counts the end of a window when it is dropped, also if the worker panics.
struct Ended<'a>(&'a Counter);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.add(1);
    }
}

/// A number that grows, and threads that wait for it.
#[derive(Default)]
struct Counter {
    count: AtomicU64,
    sleepers: AtomicUsize,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Counter {
    fn add(&self, more: u64) {
        self.count.fetch_add(more, Ordering::SeqCst);
        self.wake();
    }

    fn set(&self, count: u64) {
        self.count.store(count, Ordering::SeqCst);
        self.wake();
    }

    /// A thread that goes to sleep says so before it looks for the last time, so one of both sees the other.
    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _lock = lock(&self.mutex);
            self.changed.notify_all();
        }
    }

    /// Waits until the number is at least `count`, and returns it.
    fn wait_for(&self, count: u64) -> u64 {
        for _ in 0..LOOKS {
            let now = self.count.load(Ordering::SeqCst);
            if now >= count {
                return now;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.mutex);
        let now = loop {
            let now = self.count.load(Ordering::SeqCst);
            if now >= count {
                break now;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_sleep_are_woken() {
        let (there, back) = (Counter::default(), Counter::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=2_000 {
                    there.wait_for(round);
                    if round % 100 == 0 {
                        std::thread::sleep(std::time::Duration::from_micros(200));
                    }
                    back.add(1);
                }
            });
            for round in 1..=2_000 {
                there.add(1);
                assert_eq!(back.wait_for(round), round);
            }
        });
    }
}
