//! The summary of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::io::Write;

use roce_sim::net::{DropReason, Results, Time};
use roce_sim::scenario::Scenario;
use serde::{Deserialize, Serialize};

use crate::terminal::{Output, Paint};

/// The position of a run in its sweep.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct RunIndex {
    /// Index of the combination, starting at 0.
    pub(super) index: usize,
    /// Number of combinations.
    pub(super) of: usize,
}

/// The summary of one run. Fields that old versions did not write are optional.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(super) struct Summary {
    pub(super) scenario: String,
    /// Hash of the text of the scenario: equal for all runs of a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scenario_hash: Option<String>,
    /// Only present for the runs of a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) combination: Option<RunIndex>,
    /// Values that were set for this run.
    pub(super) set: Vec<(String, String)>,
    pub(super) seed: u64,
    pub(super) version: String,
    /// Hash of the scenario, the files that it names, the set values, seed and version.
    pub(super) configuration_hash: String,
    /// Hash of all simulated events.
    pub(super) trace_hash: String,
    pub(super) events: u64,
    pub(super) data_packets: u64,
    pub(super) end_seconds: f64,
    pub(super) flows: usize,
    pub(super) incomplete: usize,
    /// Completion times: fastest, median, 99th percentile, slowest.
    pub(super) completion_seconds: Option<[f64; 4]>,
    pub(super) mean_goodput_bits_per_second: f64,
    pub(super) jain: f64,
    /// Goodput of the slowest and the fastest flow of those that ran in the second half of the time.
    #[serde(default)]
    pub(super) second_half_bits_per_second: Option<[f64; 2]>,
    pub(super) retransmitted: u64,
    pub(super) timeouts: u64,
    pub(super) cnps_sent: u64,
    pub(super) cnps_handled: u64,
    pub(super) marked: u64,
    pub(super) pauses: u64,
    pub(super) paused_seconds: f64,
    /// The longest queue of a switch in bytes: 50th, 90th and 99th percentile and maximum.
    pub(super) queue_bytes: [u64; 4],
    pub(super) dropped: BTreeMap<String, u64>,
}

/// Hashes that identify a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashes {
    /// Hash of the text of the scenario.
    pub(super) scenario: u64,
    /// Hash of everything that determines the run.
    pub(super) configuration: u64,
}

impl Summary {
    pub(super) fn new(
        scenario: &Scenario,
        set: &[(String, String)],
        hashes: Hashes,
        results: &Results,
    ) -> Self {
        let quantile = |quantile| results.completion_quantile(quantile).map(Time::as_secs_f64);
        let sum = |of: fn(&roce_sim::net::FlowCounts) -> u64| {
            results.flows.iter().map(|flow| of(&flow.counts)).sum()
        };
        let longest =
            results.ports.iter().filter(|port| !port.is_host).max_by_key(|port| port.stats.queue_most);
        let paused =
            results.ports.iter().flat_map(|port| port.stats.paused).fold(Time::ZERO, |sum, time| sum + time);
        let complete = (results.flows.len() - results.incomplete()).max(1);
        Self {
            scenario: scenario.name.clone(),
            scenario_hash: Some(format!("{:016x}", hashes.scenario)),
            combination: None,
            set: set.to_vec(),
            seed: scenario.settings.seed,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration_hash: format!("{:016x}", hashes.configuration),
            trace_hash: format!("{:016x}", results.trace_hash),
            events: results.events,
            data_packets: results.data_packets,
            end_seconds: results.end.as_secs_f64(),
            flows: results.flows.len(),
            incomplete: results.incomplete(),
            completion_seconds: (|| Some([quantile(0.0)?, quantile(0.5)?, quantile(0.99)?, quantile(1.0)?]))(
            ),
            mean_goodput_bits_per_second: results.flows.iter().map(|flow| flow.goodput_bps()).sum::<f64>()
                / complete as f64,
            jain: results.jain(),
            second_half_bits_per_second: second_half(results),
            retransmitted: sum(|counts| counts.retransmitted),
            timeouts: sum(|counts| counts.timeouts),
            cnps_sent: sum(|counts| counts.cnps_sent),
            cnps_handled: sum(|counts| counts.cnps_handled),
            marked: results.sum(|port| port.marked),
            pauses: results.sum(|port| port.pauses_sent),
            paused_seconds: paused.as_secs_f64(),
            queue_bytes: longest.map_or([0; 4], |port| {
                let at = |quantile| port.queue.quantile(quantile);
                [at(0.5), at(0.9), at(0.99), port.stats.queue_most]
            }),
            dropped: DropReason::ALL
                .into_iter()
                .map(|reason| (reason.name().to_owned(), results.dropped(reason)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    /// Rows of name and value, as text.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let none = || "no complete flow".to_owned();
        let of_complete = |text| if self.completion_seconds.is_some() { text } else { none() };
        let times = self.completion_seconds.map_or_else(none, |[fast, median, p99, slow]| {
            let [fast, median, p99, slow] = [fast, median, p99, slow].map(ms);
            format!("{fast:.3} / {median:.3} / {p99:.3} / {slow:.3} ms")
        });
        let [p50, p90, p99, most] = self.queue_bytes.map(|bytes| bytes as f64 / 1e3);
        let dropped: Vec<String> =
            self.dropped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let mut rows = vec![
            ("flows", format!("{} of {} complete", self.flows - self.incomplete, self.flows)),
            ("completion time, min/median/p99/max", times),
            (
                "mean goodput of complete flows",
                of_complete(format!("{:.3} Gb/s", self.mean_goodput_bits_per_second / 1e9)),
            ),
            ("Jain's index of their rates", of_complete(format!("{:.4}", self.jain))),
            ("longest queue, p50/p90/p99/max", format!("{p50:.1} / {p90:.1} / {p99:.1} / {most:.1} KB")),
            (
                "second half, slowest and fastest",
                self.second_half_bits_per_second.map_or_else(
                    || "no running flow".to_owned(),
                    |[slow, fast]| format!("{:.3} / {:.3} Gb/s", slow / 1e9, fast / 1e9),
                ),
            ),
            (
                "marked, CNPs sent, handled",
                format!("{}, {}, {}", self.marked, self.cnps_sent, self.cnps_handled),
            ),
            ("pauses, port time paused", format!("{}, {:.3} ms", self.pauses, ms(self.paused_seconds))),
            ("retransmitted, timeouts", format!("{}, {}", self.retransmitted, self.timeouts)),
            ("dropped", if dropped.is_empty() { "nothing".to_owned() } else { dropped.join(", ") }),
            ("data packets, events", format!("{}, {}", self.data_packets, self.events)),
            ("simulated", format!("{:.3} ms", ms(self.end_seconds))),
            ("trace hash", self.trace_hash.clone()),
            ("configuration hash, seed, version", {
                format!("{}, {}, {}", self.configuration_hash, self.seed, self.version)
            }),
        ];
        for (name, value) in self.set.iter().rev() {
            rows.insert(0, ("set", format!("{name} = {value}")));
        }
        rows
    }

    pub(super) fn print(&self, output: &mut Output) -> std::io::Result<()> {
        writeln!(output, "{}", output.style.paint(Paint::BOLD, &self.scenario))?;
        for (name, value) in self.rows() {
            writeln!(output, "  {name:36} {value}")?;
        }
        Ok(())
    }
}

/// The slowest and the fastest flow of the second half in bits per second, if no samples were left out. The function makes one
/// pass over the samples, because there may be millions of samples and thousands of flows.
fn second_half(results: &Results) -> Option<[f64; 2]> {
    if results.points_left_out > 0 {
        return None;
    }
    let from = Time::from_ps(results.end.as_ps() / 2);
    let mut sums = vec![(0.0, 0_u32); results.flows.len()];
    for point in results.rates.iter().filter(|point| point.time > from) {
        if let Some((sum, count)) = sums.get_mut(point.flow as usize) {
            *sum += point.goodput_bps;
            *count += 1;
        }
    }
    let ran = sums.into_iter().filter(|(_, count)| *count > 0);
    let rates = ran.map(|(sum, count)| sum / f64::from(count));
    rates.fold(None, |range: Option<[f64; 2]>, rate| {
        let [slow, fast] = range.unwrap_or([rate; 2]);
        Some([slow.min(rate), fast.max(rate)])
    })
}

/// Seconds as milliseconds, for people.
fn ms(seconds: f64) -> f64 {
    seconds * 1e3
}

/// Formats values in the syntax of the command line.
pub(super) fn assignments(set: &[(String, String)]) -> String {
    set.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Prints one line per run.
pub(super) fn print_table(output: &mut Output, runs: &[Summary]) -> std::io::Result<()> {
    let width = runs.iter().map(|run| assignments(&run.set).len()).max().unwrap_or(0).max(3);
    let heading = format!(
        "{:width$} {:>9} {:>10} {:>10} {:>7} {:>13} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "set",
        "complete",
        "median ms",
        "slowest ms",
        "Jain",
        "2nd half Gb/s",
        "p90 KB",
        "marked",
        "CNPs",
        "pauses",
        "dropped",
        "resent"
    );
    writeln!(output, "{}", output.style.paint(Paint::BOLD, heading))?;
    for run in runs {
        let [_, median, _, slow] = run.completion_seconds.unwrap_or([f64::NAN; 4]).map(ms);
        let half = run
            .second_half_bits_per_second
            .map_or_else(String::new, |[slow, fast]| format!("{:.2}-{:.2}", slow / 1e9, fast / 1e9));
        writeln!(
            output,
            "{:width$} {:>4}/{:<4} {:>10.3} {:>10.3} {:>7.4} {:>13} {:>10.1} {:>8} {:>8} {:>8} {:>8} {:>8}",
            assignments(&run.set),
            run.flows - run.incomplete,
            run.flows,
            median,
            slow,
            run.jain,
            half,
            run.queue_bytes[1] as f64 / 1e3,
            run.marked,
            run.cnps_sent,
            run.pauses,
            run.dropped.values().sum::<u64>(),
            run.retransmitted
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use roce_sim::net::{FlowCounts, FlowResult, FlowSpec, FlowState, RatePoint};

    use super::*;

    /// Flows with one sample in each half; flow `n` has `n` Gb/s.
    fn results(flows: u32) -> Results {
        let spec = FlowSpec { source: 0, destination: 1, bytes: 1, start: Time::ZERO };
        let flow = FlowResult {
            spec,
            state: FlowState::Running,
            completion_time: None,
            counts: FlowCounts::default(),
        };
        let point = |us: u64, flow: u32| RatePoint {
            time: Time::from_us(us),
            flow,
            goodput_bps: f64::from(flow) * 1e9,
            rate_bps: f64::INFINITY,
            target_bps: None,
            alpha: None,
        };
        Results {
            trace_hash: 0,
            events: 0,
            end: Time::from_us(20),
            flows: vec![flow; flows as usize],
            ports: Vec::new(),
            rates: [10, 20].into_iter().flat_map(|us| (0..flows).map(move |flow| point(us, flow))).collect(),
            queues: Vec::new(),
            points_left_out: 0,
            data_packets: 0,
            checked: (0, 0),
            most_frames: 0,
        }
    }

    /// A pass over all samples for each flow would take 16,000,000,000 steps.
    #[test]
    fn the_second_half_of_many_flows_takes_one_pass() {
        let results = results(90_000);
        let begin = Instant::now();
        assert_eq!(second_half(&results), Some([0.0, 89_999e9]));
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }

    #[test]
    fn the_second_half_agrees_with_single_flows() {
        let results = results(3);
        let from = Time::from_us(10);
        let rates = [0, 2].map(|flow| results.goodput_after(flow, from).unwrap());
        assert_eq!(second_half(&results), Some(rates));
        assert_eq!(second_half(&Results { points_left_out: 1, ..results }), None);
    }
}
