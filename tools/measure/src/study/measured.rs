//! The measurements of a cell.

use serde::{Deserialize, Serialize};

use crate::measure::Row;

/// The measurements of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Path MTU in bytes; 0 for TCP.
    pub path_mtu: usize,
    /// Messages or round trips of all workers.
    pub iterations: u64,
    /// Time from the first message to the last completion, in seconds.
    pub elapsed_s: f64,
    /// Payload in 10^9 bits per second; for ping, in both directions.
    pub gigabits_per_s: f64,
    /// Messages per second; for ping, in both directions.
    pub messages_per_s: f64,
    /// Microseconds per message: half a mean round trip for ping, the whole for READ, elapsed / messages for
    /// blast.
    pub one_way_us: f64,
    /// Minimum, median, 99th percentile and maximum in microseconds, if each message was timed.
    pub percentiles_us: [Option<f64>; 4],
    /// Processor time of the client in percent of one processor.
    pub client_cpu: Option<f64>,
    /// Processor time of the server, in percent of one processor.
    pub server_cpu: Option<f64>,
    /// Load of other processes meanwhile, in percent of one processor. The study fills it in.
    pub others_cpu: Option<f64>,
    /// Packets that both sides retransmitted.
    pub retransmitted_packets: u64,
    /// Expired retransmission timers of both sides: early ones and local ACK timeouts.
    pub timeouts: u64,
    /// RNR NAKs that both sides received.
    pub rnr_naks: u64,
}

impl Measured {
    /// Returns the measurements of a row.
    pub(super) fn of(row: &Row, path_mtu: usize) -> Self {
        Self {
            path_mtu,
            iterations: row.iterations,
            elapsed_s: row.elapsed_s,
            gigabits_per_s: row.gigabits_per_s,
            messages_per_s: row.messages_per_s,
            one_way_us: row.one_way_us,
            percentiles_us: row.percentiles_us.map_or([None; 4], |values| values.map(Some)),
            client_cpu: Some(row.client.cpu.percent()),
            server_cpu: Some(row.server.cpu.percent()),
            others_cpu: None,
            retransmitted_packets: row.client.retransmitted_packets + row.server.retransmitted_packets,
            timeouts: row.client.timeouts + row.server.timeouts,
            rnr_naks: row.client.rnr_naks + row.server.rnr_naks,
        }
    }

    /// Combines the measurements of several workers that ran at the same time, in one process per side.
    /// `wall_s` is the time from their common start until the last worker had its report.
    pub(super) fn together(all: &[Self], wall_s: f64) -> Self {
        let sum = |value: fn(&Self) -> f64| all.iter().map(value).sum::<f64>();
        let iterations: u64 = all.iter().map(|one| one.iterations).sum();
        // Each worker measured the processor time of its whole process.
        let cpu = |value: fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = all.iter().filter_map(value).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let count = |value: fn(&Self) -> u64| all.iter().map(value).sum();
        Self {
            path_mtu: all.first().map_or(0, |one| one.path_mtu),
            iterations,
            elapsed_s: wall_s,
            gigabits_per_s: sum(|one| one.gigabits_per_s * one.elapsed_s) / wall_s,
            messages_per_s: sum(|one| one.messages_per_s * one.elapsed_s) / wall_s,
            one_way_us: wall_s * 1e6 / iterations.max(1) as f64,
            percentiles_us: [None; 4],
            client_cpu: cpu(|one| one.client_cpu),
            server_cpu: cpu(|one| one.server_cpu),
            others_cpu: None,
            retransmitted_packets: count(|one| one.retransmitted_packets),
            timeouts: count(|one| one.timeouts),
            rnr_naks: count(|one| one.rnr_naks),
        }
    }

    pub(super) fn median(&self) -> Option<f64> {
        self.percentiles_us[1]
    }

    pub(super) fn one_way(&self) -> Option<f64> {
        Some(self.one_way_us)
    }

    pub(super) fn rate(&self) -> Option<f64> {
        Some(self.messages_per_s)
    }

    pub(super) fn speed(&self) -> Option<f64> {
        Some(self.gigabits_per_s)
    }

    pub(super) fn cpu_of_client(&self) -> Option<f64> {
        self.client_cpu
    }

    /// Returns the load of both sides, in percent of a processor.
    pub(super) fn cpu(&self) -> Option<f64> {
        Some(self.client_cpu? + self.server_cpu?)
    }

    pub(super) fn cpu_per_gigabit(&self) -> Option<f64> {
        Some(self.cpu()? / self.gigabits_per_s)
    }
}
