//! The policy of the runtime: which thread watches the device ([`watch`]), how long a call stays in the
//! library ([`stay`]), and which pending packets leave now ([`pending`]).
//!
//! The policy consists of plain values. It has no clock, lock, thread or system call: the runtime reports
//! events with the current time, one method per event, and acts on the decisions. So tests drive it in
//! virtual time ([`models`]). Only [`Watch`] is shared by threads without a lock. Everything that is learned
//! is an [`Experiment`], and all times are in [`Timing`].

mod crowding;
mod experiment;
#[cfg(test)]
mod models;
mod pending;
mod progress;
mod stay;
mod timing;
mod watch;

pub(crate) use crowding::Crowding;
pub(crate) use experiment::{Experiment, Terms};
pub(crate) use pending::{Found, Leave, PendingPackets};
pub(crate) use progress::{Looks, Port, leave, progress};
pub(crate) use stay::{BeforeSleep, Lingering, NextCheck, Recheck, Spin, Stay, plan_sleep};
pub(crate) use timing::Timing;
pub(crate) use watch::{Background, Duty, Shift, Waiting, Watch, Watcher};

use roce_transport::Instant;

/// Empty checks of a quiet device between two further tests whether other threads need the processor.
const LATE_CHECKS: u32 = 16;

/// The part of the policy that the lock of the engine protects.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) pending: PendingPackets,
    pub(crate) lingering: Lingering,
    /// Consecutive checks of the device by polls that found nothing.
    empty_checks: u32,
}

impl Policy {
    pub(crate) fn new(timing: &Timing) -> Self {
        Self { pending: PendingPackets::new(timing), lingering: Lingering::new(timing), empty_checks: 0 }
    }

    /// Records that the application posted requests of `bytes` bytes in total, before which peers have sent
    /// this number of one-sided requests.
    #[inline]
    pub(crate) fn posted(&mut self, now: Instant, requests: usize, bytes: u64, one_sided: u64) -> Leave {
        self.lingering.posted(one_sided);
        self.pending.posted(now, requests, bytes)
    }

    /// Records the outcome of a check of the device by a poll. Returns whether the thread tests soon whether
    /// others need its processor.
    #[inline]
    pub(crate) fn polled(&mut self, watch: &Watch, has_arrived: bool) -> bool {
        let is_rare = watch.checked(&mut self.empty_checks, has_arrived);
        is_rare && self.empty_checks.is_multiple_of(LATE_CHECKS)
    }
}
