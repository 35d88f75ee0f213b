//! Processor time, as measured by `getrusage`.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};

/// Processor time of a process during a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUsage {
    /// Time in user mode, in seconds.
    pub user_s: f64,
    /// Time in the kernel, in seconds.
    pub system_s: f64,
    /// Elapsed time, in seconds.
    pub wall_s: f64,
}

impl CpuUsage {
    /// Returns the load in percent of one processor.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.wall_s > 0.0 { (self.user_s + self.system_s) / self.wall_s * 100.0 } else { 0.0 }
    }
}

/// A running measurement.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    started: Instant,
    user_s: f64,
    system_s: f64,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        let (user_s, system_s) = now();
        Self { started: Instant::now(), user_s, system_s }
    }

    pub(crate) fn stop(&self) -> CpuUsage {
        let wall_s = self.started.elapsed().as_secs_f64();
        let (user_s, system_s) = now();
        CpuUsage { user_s: user_s - self.user_s, system_s: system_s - self.system_s, wall_s }
    }
}

fn now() -> (f64, f64) {
    // The call fails only for an unknown `who`.
    getrusage(UsageWho::RUSAGE_SELF).map_or((0.0, 0.0), |usage| {
        let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
        (seconds(usage.user_time()), seconds(usage.system_time()))
    })
}
