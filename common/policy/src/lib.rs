//! The waiting policy of `roce`: which thread watches the device ([`Watch`]), how long a call stays in the
//! library ([`Lingering`], [`Spin`]), and which pending packets leave now ([`PendingPackets`]).
//!
//! The policy consists of plain values. It has no clock, lock, thread or system call: its caller reports
//! events with the current time, one method per event, and acts on the decisions. So the library uses it on a
//! machine, and its tests and the hosts of a simulation use it in virtual time. Only [`Watch`] is shared by
//! threads without a lock. Everything that is learned is an [`Experiment`], and all times are in [`Timing`].
//!
//! ```
//! use roce_policy::{Timing, Watch, Watcher};
//! use roce_transport::Instant;
//!
//! let watch: Watch = Watch::new(&Timing::USUAL);
//! let at = |micros: u64| Instant::from_nanos(micros * 1_000);
//! watch.polls(at(100));
//! assert_eq!(watch.watcher(at(120), || false), Watcher::Poller);
//! assert_eq!(watch.watcher(at(200), || false), Watcher::Background);
//! ```
//!
//! The crate does not know what a packet contains, and moves none: a [`Port`] does that for it.
#![forbid(unsafe_code)]

mod budget;
mod crowding;
mod experiment;
#[cfg(test)]
mod models;
mod pending;
mod progress;
mod stay;
pub mod threads;
mod timing;
mod watch;

pub use budget::Budget;
pub use crowding::Crowding;
pub use experiment::{Experiment, Terms};
pub use pending::{AfterCheck, Found, Leave, PendingPackets};
pub use progress::{Looks, Port, leave, progress};
pub use stay::{BeforeSleep, Lingering, NextCheck, Recheck, SleepFor, Spin, Stay, plan_sleep};
pub use timing::Timing;
pub use watch::{Background, Duty, Poll, Shift, Waiting, Watch, Watcher, Word};

use std::time::Duration;

use roce_transport::Instant;

/// Longest time that requests wait for others, on a usual machine. The background thread backs off from a
/// polling application for less.
const LONGEST_DELAY: Duration = Duration::from_millis(3);
/// Empty checks of a quiet device between two further tests whether other threads need the processor.
const LATE_CHECKS: u32 = 16;

/// The part of the policy that the lock of the engine protects.
#[derive(Debug)]
pub struct Policy {
    /// Decides which pending packets leave.
    pub pending: PendingPackets,
    /// Decides how long polls stay.
    pub lingering: Lingering,
    /// Consecutive checks of the device by polls that found nothing.
    empty_checks: u32,
}

impl Policy {
    /// Creates the state of an engine that has not sent or received anything.
    #[must_use]
    pub fn new(timing: &Timing) -> Self {
        Self { pending: PendingPackets::new(timing), lingering: Lingering::new(timing), empty_checks: 0 }
    }

    /// Records that the application posted requests of `bytes` bytes in total, before which peers have sent
    /// this number of one-sided requests. `sleep` is the end of the background thread's sleep, if it sleeps.
    ///
    /// Requests do not wait while that thread sleeps on: the answer to a request that does not leave cannot
    /// wake it.
    #[inline]
    pub fn posted(
        &mut self,
        now: Instant,
        requests: usize,
        bytes: u64,
        one_sided: u64,
        sleep: Option<Instant>,
    ) -> Leave {
        self.lingering.posted(one_sided);
        if sleep.is_some_and(|until| until.since(now) > LONGEST_DELAY) {
            return self.pending.sends(now);
        }
        self.pending.posted(now, requests, bytes)
    }

    /// Records the outcome of a check of the device by a poll. Returns whether the thread tests soon whether
    /// others need its processor.
    #[inline]
    pub fn polled(&mut self, watch: &Watch, has_arrived: bool) -> bool {
        let is_rare = watch.checked(&mut self.empty_checks, has_arrived);
        is_rare && self.empty_checks.is_multiple_of(LATE_CHECKS)
    }
}
