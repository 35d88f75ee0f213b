//! The time that packets waited at hosts with an application.

use roce_sim::net::{Histogram, Results};
use serde::{Deserialize, Serialize};

/// The waits of packets at all hosts with an application, and the costs of their threads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct HostWaits {
    /// Packets that threads have handled.
    pub packets: u64,
    /// Median of the times from the arrival of a packet to its handling.
    pub p50_seconds: f64,
    /// 99th percentile of these times.
    pub p99_seconds: f64,
    /// Longest of these times.
    pub max_seconds: f64,
    /// Checks of a device.
    pub polls: u64,
    /// Sleeps of threads that ended.
    pub wake_ups: u64,
}

impl HostWaits {
    /// Returns `None` if no host has an application.
    pub(crate) fn new(results: &Results) -> Option<Self> {
        if results.hosts.is_empty() {
            return None;
        }
        let mut waits = Histogram::default();
        results.hosts.iter().for_each(|host| waits.add(&host.waits));
        let seconds = |quantile: f64| waits.quantile(quantile) as f64 / 1e9;
        Some(Self {
            packets: waits.count(),
            p50_seconds: seconds(0.5),
            p99_seconds: seconds(0.99),
            max_seconds: seconds(1.0),
            polls: results.hosts.iter().map(|host| host.polls).sum(),
            wake_ups: results.hosts.iter().map(|host| host.wake_ups).sum(),
        })
    }

    /// Returns the row of the waits in the table of a summary.
    pub(crate) fn row(self) -> (&'static str, String) {
        let [p50, p99, max] = [self.p50_seconds, self.p99_seconds, self.max_seconds].map(|time| time * 1e6);
        ("waits at hosts, p50/p99/max", format!("{p50:.2} / {p99:.2} / {max:.2} us"))
    }
}
