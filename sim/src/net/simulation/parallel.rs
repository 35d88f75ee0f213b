//! Runs the parts of a network in parallel, each in its own thread.
//!
//! A window begins when [`Simulation`] has given each worker its part, and ends when it has all parts back.
//! During a window, parts do not access each other, so no result depends on the speed of threads. This is the
//! only file of the crate with threads, and does not read a clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use super::Simulation;
use super::part::Part;
use crate::net::time::Time;

/// The number of polls before a thread sleeps: about 20 µs, as long as waking the thread would take.
const LOOKS: u32 = 400;

impl Simulation {
    /// Handles events until about `until` have been handled, on one thread for each part.
    pub(super) fn run_parallel(&mut self, until: u64) {
        let Some(others) = self.parts.len().checked_sub(1) else { return };
        let shared = Shared::new(others);
        std::thread::scope(|scope| {
            // Ends the workers, even if this thread panics.
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
                    // A worker has panicked. This thread panics when the scope ends.
                    return;
                }
            }
        });
    }
}

/// A part and the last time of its window, while a worker owns the part or it is in transit.
type Slot = Option<(Part, Time)>;

/// The state shared by the threads.
struct Shared {
    slots: Vec<Mutex<Slot>>,
    /// The number of windows that have begun, or [`u64::MAX`] at the end.
    begun: Counter,
    /// The number of completed windows, summed over all workers.
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

    /// Runs the part in a slot in each window until the end.
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

/// Locks data that only one thread uses at a time. A panicking thread does not hold this lock.
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

/// Counts the end of a window when it is dropped, even if the worker panics.
struct Ended<'a>(&'a Counter);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.add(1);
    }
}

/// A growing number on which threads can wait. It changes only under the lock, so a thread that finds it too
/// small under the lock is woken by the next change.
#[derive(Default)]
struct Counter {
    count: AtomicU64,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Counter {
    fn add(&self, more: u64) {
        self.change(|count| count + more);
    }

    fn set(&self, count: u64) {
        self.change(|_| count);
    }

    fn change(&self, change: impl FnOnce(u64) -> u64) {
        let guard = lock(&self.mutex);
        self.count.store(change(self.count.load(Ordering::Relaxed)), Ordering::Release);
        drop(guard);
        self.changed.notify_all();
    }

    /// Waits until the number is at least `count`, and returns it.
    fn wait_for(&self, count: u64) -> u64 {
        for _ in 0..LOOKS {
            let now = self.count.load(Ordering::Acquire);
            if now >= count {
                return now;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.mutex);
        loop {
            let now = self.count.load(Ordering::Relaxed);
            if now >= count {
                return now;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
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
