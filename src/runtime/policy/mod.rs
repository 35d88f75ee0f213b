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
pub(crate) use pending::{Found, Leave, Owed, Pending};
pub(crate) use progress::{Looks, Port, leave, progress};
pub(crate) use stay::Stay;
pub(crate) use stay::{BeforeSleep, Lingering, NextCheck, Recheck, Spin, plan_sleep};
pub(crate) use timing::Timing;
pub(crate) use watch::Waiting;
pub(crate) use watch::{Background, Duty, Shift, Watch, Watcher};

use roce_transport::Instant;

/// The part of the policy that the lock of the engine protects.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) pending: Pending,
    pub(crate) lingering: Lingering,
    /// Consecutive checks of the device by polls that found nothing.
    pub(crate) empty_checks: u32,
}

impl Policy {
    pub(crate) fn new(timing: &Timing) -> Self {
        Self { pending: Pending::new(timing), lingering: Lingering::new(timing), empty_checks: 0 }
    }

    /// Records that the application posted requests of `bytes` bytes in total, before which peers have sent
    /// this number of one-sided requests.
    #[inline]
    pub(crate) fn posted(&mut self, now: Instant, requests: usize, bytes: u64, one_sided: u64) -> Leave {
        self.lingering.posted(one_sided);
        self.pending.posted(now, requests, bytes)
    }
}
