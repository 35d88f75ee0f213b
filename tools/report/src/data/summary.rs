//! The summary of a run, as rows of a table and as JSON.

use std::collections::BTreeMap;

use roce_scenario::Scenario;
use roce_sim::net::{DropReason, Percentiles, Results, SIZE_CLASSES, SizeRange, Slowdowns, Time};
use serde::{Deserialize, Serialize};

use super::deadlocks::{self, DeadlockSummary};
use super::distribution::Distribution;
use super::expected::Expected;
use super::host_waits::HostWaits;
use super::operations::{self, OperationSummary};
use super::tables::{self, TableSummary};
use super::text::{NOT_MEASURED, congestion_text};
use super::unfinished::Unfinished;

/// The position of a run in its sweep.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct RunIndex {
    /// Index of the combination, starting at 0.
    pub index: usize,
    /// Number of combinations.
    pub of: usize,
}

/// Percentiles of a queue in bytes, over the samples at which it was not empty.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct QueueBytes {
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest queue.
    pub max: u64,
}

/// The slowest and the fastest flow, in bits per second.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct Extremes {
    /// The goodput of the slowest flow.
    pub slowest: f64,
    /// The goodput of the fastest flow.
    pub fastest: f64,
}

/// The slowdown of the flows of a range of sizes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct OfSizes {
    /// Lower bound of the flow sizes, exclusive.
    pub above_bytes: u64,
    /// Upper bound of the flow sizes, inclusive; `None` without a limit.
    pub to_bytes: Option<u64>,
    /// The slowdown of these flows.
    #[serde(flatten)]
    pub slowdown: Distribution,
}

/// The summary of one run. Values that were not measured are `None`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// The name of the scenario.
    pub scenario: String,
    /// Hash of the text of the scenario, which is equal for all runs of a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario_hash: Option<String>,
    /// The position in the sweep; only present for the runs of a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combination: Option<RunIndex>,
    /// The expectations of the scenario; `None` if values were set, or the run was ended early.
    pub expected: Option<Vec<Expected>>,
    /// Values that were set for this run.
    pub set: Vec<(String, String)>,
    /// The seed of all random decisions.
    pub seed: u64,
    /// The version of the program.
    pub version: String,
    /// Hash of the scenario with set values and files, the version, and algorithms of the program.
    pub configuration_hash: String,
    /// Congestion control of `[host]` with all its parameters.
    #[serde(default)]
    pub congestion: String,
    /// Hash of the algorithms that the program added.
    pub algorithm_hash: Option<String>,
    /// Hash of all simulated events.
    pub trace_hash: String,
    /// Simulated events.
    pub events: u64,
    /// Packets with payload that hosts sent.
    pub data_packets: u64,
    /// Simulated time at the end.
    pub end_seconds: f64,
    /// All flows.
    pub flows: usize,
    /// Flows that are not complete.
    pub incomplete: usize,
    /// Flows that failed, run or wait at the end.
    #[serde(flatten)]
    pub unfinished: Unfinished,
    /// Completion times of the complete flows.
    pub completion_seconds: Option<Distribution>,
    /// Completion times relative to those of a flow alone in the network.
    pub slowdown: Option<Distribution>,
    /// Slowdown by named classes of sizes.
    pub slowdown_of_classes: BTreeMap<String, Option<Distribution>>,
    /// Slowdown by logarithmic ranges of sizes.
    pub slowdown_by_size: Vec<OfSizes>,
    /// Completion times and slowdown by table of the scenario.
    #[serde(default)]
    pub tables: Vec<TableSummary>,
    /// Payload that receivers accepted.
    pub delivered_bytes: u64,
    /// Mean goodput of the complete flows.
    pub mean_goodput_bits_per_second: Option<f64>,
    /// Jain's index of their rates.
    pub jain: Option<f64>,
    /// Goodput of the slowest and the fastest flow that ran in the second half of the time.
    pub second_half_bits_per_second: Option<Extremes>,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Expired retransmission timers.
    pub timeouts: u64,
    /// CNPs that receivers sent.
    pub cnps_sent: u64,
    /// CNPs that senders handled.
    pub cnps_handled: u64,
    /// Packets that switches marked CE.
    pub marked: u64,
    /// Packets whose payload switches cut away.
    pub trimmed: u64,
    /// Pauses that ports sent.
    pub pauses: u64,
    /// Time in which ports were paused, all ports and priorities together.
    pub paused_seconds: f64,
    /// Cycles of paused ports that wait for each other.
    #[serde(default)]
    pub deadlocks: Vec<DeadlockSummary>,
    /// The longest queue of a switch.
    pub queue_bytes: Option<QueueBytes>,
    /// The waits of packets at hosts with an application; absent without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_waits: Option<HostWaits>,
    /// Dropped packets by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Collective operations and steps of training; absent without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub collectives: Vec<OperationSummary>,
}

/// Hashes that identify a run.
#[derive(Clone, Copy, Debug)]
pub struct Hashes {
    /// Hash of the text of the scenario.
    pub scenario: u64,
    /// Hash of everything that determines the run.
    pub configuration: u64,
    /// Hash of the algorithms that the program added.
    pub algorithm: Option<u64>,
}

impl Summary {
    /// Summarizes a run of a scenario with these set values.
    #[must_use]
    pub fn new(scenario: &Scenario, set: &[(String, String)], hashes: Hashes, results: &Results) -> Self {
        let sum = |of: fn(&roce_sim::net::FlowCounts) -> u64| {
            results.flows.iter().map(|flow| of(&flow.counts)).sum()
        };
        let paused =
            results.ports.iter().flat_map(|port| port.stats.paused).fold(Time::ZERO, |sum, time| sum + time);
        let rates: Vec<f64> = results
            .flows
            .iter()
            .filter(|flow| flow.completion_time.is_some())
            .map(|flow| flow.goodput_bps())
            .collect();
        let times = results.completion_times().into_iter().map(Time::as_secs_f64).collect();
        let slowdowns = Slowdowns::of(&results.flows);
        Self {
            scenario: scenario.name.clone(),
            scenario_hash: Some(format!("{:016x}", hashes.scenario)),
            combination: None,
            expected: None,
            set: set.to_vec(),
            seed: scenario.settings.seed,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            configuration_hash: format!("{:016x}", hashes.configuration),
            congestion: congestion_text(&scenario.settings.host.congestion),
            algorithm_hash: hashes.algorithm.map(|hash| format!("{hash:016x}")),
            trace_hash: format!("{:016x}", results.trace_hash),
            events: results.events,
            data_packets: results.data_packets,
            end_seconds: results.end.as_secs_f64(),
            flows: results.flows.len(),
            incomplete: results.incomplete(),
            unfinished: Unfinished::new(scenario, results),
            completion_seconds: Percentiles::of(times).map(Distribution::from),
            slowdown: slowdowns.all.map(Distribution::from),
            slowdown_of_classes: SIZE_CLASSES
                .iter()
                .zip(slowdowns.classes)
                .map(|((name, _), of)| ((*name).to_owned(), of.map(Distribution::from)))
                .collect(),
            slowdown_by_size: slowdowns.ranges.into_iter().map(of_sizes).collect(),
            tables: tables::summaries(scenario, results),
            delivered_bytes: sum(|counts| counts.delivered),
            mean_goodput_bits_per_second: Percentiles::of(rates).map(|rates| rates.mean),
            jain: results.flows.iter().any(|flow| flow.goodput_bps() > 0.0).then(|| results.jain()),
            second_half_bits_per_second: second_half(results),
            retransmitted: sum(|counts| counts.retransmitted),
            timeouts: sum(|counts| counts.timeouts),
            cnps_sent: sum(|counts| counts.cnps_sent),
            cnps_handled: sum(|counts| counts.cnps_handled),
            marked: results.sum(|port| port.marked),
            trimmed: results.sum(|port| port.trimmed),
            pauses: results.sum(|port| port.pauses_sent),
            paused_seconds: paused.as_secs_f64(),
            deadlocks: deadlocks::summaries(results),
            queue_bytes: results.longest_queue().map(|port| {
                let at = |quantile| port.queue.quantile(quantile);
                QueueBytes { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: port.stats.queue_most }
            }),
            host_waits: HostWaits::new(results),
            dropped: DropReason::ALL
                .into_iter()
                .map(|reason| (reason.name().to_owned(), results.dropped(reason)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            collectives: operations::summaries(scenario, results),
        }
    }

    /// Returns the summary without what identifies the run: seed, hashes and set values. Runs with equal
    /// figures do not differ in any result of the summary.
    #[must_use]
    pub(super) fn figures(&self) -> Self {
        Self {
            combination: None,
            expected: None,
            set: Vec::new(),
            seed: 0,
            configuration_hash: String::new(),
            trace_hash: String::new(),
            ..self.clone()
        }
    }

    /// Returns the payload received per second, all flows together.
    #[must_use]
    pub fn total_bits_per_second(&self) -> Option<f64> {
        (self.end_seconds > 0.0).then(|| self.delivered_bytes as f64 * 8.0 / self.end_seconds)
    }

    /// Returns rows of name and value, as text.
    #[must_use]
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let none = || NOT_MEASURED.to_owned();
        let times = self.completion_seconds.map_or_else(none, |of| {
            let [min, median, p99, max] = [of.min, of.p50, of.p99, of.max].map(ms);
            format!("{min:.3} / {median:.3} / {p99:.3} / {max:.3} ms")
        });
        let goodput = self.mean_goodput_bits_per_second;
        let goodput = goodput.map_or_else(none, |rate| format!("{:.3} Gb/s", rate / 1e9));
        let queue = self.queue_bytes.map_or_else(none, |QueueBytes { p50, p90, p99, max }| {
            let [p50, p90, p99, max] = [p50, p90, p99, max].map(|bytes| bytes as f64 / 1e3);
            format!("{p50:.1} / {p90:.1} / {p99:.1} / {max:.1} KB")
        });
        let dropped: Vec<String> =
            self.dropped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let mut rows = vec![
            ("flows", self.unfinished.text(self.flows - self.incomplete, self.flows)),
            ("completion time, min/median/p99/max", times),
            ("slowdown, median/p95/p99/p99.9", slowdown_text(self.slowdown)),
            ("mean goodput of complete flows", goodput),
            ("Jain's index of their rates", self.jain.map_or_else(none, |jain| format!("{jain:.4}"))),
            ("longest queue, p50/p90/p99/max", queue),
            (
                "second half, slowest and fastest",
                self.second_half_bits_per_second.map_or_else(none, |Extremes { slowest, fastest }| {
                    format!("{:.3} / {:.3} Gb/s", slowest / 1e9, fastest / 1e9)
                }),
            ),
            (
                "marked, CNPs sent, handled",
                format!("{}, {}, {}", self.marked, self.cnps_sent, self.cnps_handled),
            ),
            ("pauses, port time paused", format!("{}, {:.3} ms", self.pauses, ms(self.paused_seconds))),
            ("retransmitted, timeouts", format!("{}, {}", self.retransmitted, self.timeouts)),
            ("trimmed", self.trimmed.to_string()),
            ("dropped", if dropped.is_empty() { "nothing".to_owned() } else { dropped.join(", ") }),
            ("data packets, events", format!("{}, {}", self.data_packets, self.events)),
            ("simulated", format!("{:.3} ms", ms(self.end_seconds))),
            ("trace hash", self.trace_hash.clone()),
            ("configuration hash, seed, version", {
                format!("{}, {}, {}", self.configuration_hash, self.seed, self.version)
            }),
        ];
        if let Some(place) = rows.iter().position(|(name, _)| name.starts_with("slowdown")) {
            let parts = self.class_rows().into_iter().chain(tables::rows(&self.tables));
            rows.splice(place + 1..place + 1, parts);
        }
        if let Some(place) = rows.iter().position(|(name, _)| name.starts_with("pauses")) {
            let waits = self.host_waits.map(HostWaits::row);
            rows.splice(place + 1..place + 1, deadlocks::rows(&self.deadlocks).into_iter().chain(waits));
        }
        rows.splice(2..2, operations::rows(&self.collectives));
        rows.splice(1..1, self.unfinished.rows());
        rows.splice(0..0, self.set.iter().map(|(name, value)| ("set", format!("{name} = {value}"))));
        rows
    }

    /// Returns a row for each class of sizes, unless there is only one, which has the values of all flows.
    fn class_rows(&self) -> Vec<(&'static str, String)> {
        let of_class = |name: &'static str| Some((name, self.slowdown_of_classes.get(name).copied()??));
        let classes: Vec<(&'static str, Distribution)> =
            SIZE_CLASSES.iter().filter_map(|(name, _)| of_class(name)).collect();
        let row = |(name, of): (&'static str, Distribution)| {
            (class_row(name), format!("{}, {} flows", slowdown_text(Some(of)), of.count))
        };
        if classes.len() > 1 { classes.into_iter().map(row).collect() } else { Vec::new() }
    }
}

fn slowdown_text(of: Option<Distribution>) -> String {
    of.map_or_else(
        || NOT_MEASURED.to_owned(),
        |Distribution { p50, p95, p99, p999, .. }| format!("{p50:.2} / {p95:.2} / {p99:.2} / {p999:.2}"),
    )
}

/// Returns the name of the row of a class.
fn class_row(class: &str) -> &'static str {
    match class {
        "small" => "  of flows up to 100 KB",
        "medium" => "  of flows up to 10 MB",
        _ => "  of longer flows",
    }
}

fn of_sizes((range, slowdown): (SizeRange, Percentiles)) -> OfSizes {
    let to_bytes = Some(range.to).filter(|to| *to < u64::MAX);
    OfSizes { above_bytes: range.above, to_bytes, slowdown: slowdown.into() }
}

/// Returns the slowest and the fastest flow of the second half in bits per second, if no samples were left
/// out. It makes one pass over the samples, because there may be millions of samples and thousands of flows.
fn second_half(results: &Results) -> Option<Extremes> {
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
    rates.fold(None, |range: Option<Extremes>, rate| {
        let Extremes { slowest, fastest } = range.unwrap_or(Extremes { slowest: rate, fastest: rate });
        Some(Extremes { slowest: slowest.min(rate), fastest: fastest.max(rate) })
    })
}

/// Converts seconds to milliseconds.
fn ms(seconds: f64) -> f64 {
    seconds * 1e3
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use roce_sim::net::{FlowCounts, FlowResult, FlowSpec, FlowState, RatePoint};

    use super::*;

    /// Returns flows with one sample in each half; flow `n` has `n` Gb/s.
    fn results(flows: u32) -> Results {
        let spec = FlowSpec { source: 0, destination: 1, bytes: 1, start: Time::ZERO };
        let flow = FlowResult {
            spec,
            state: FlowState::Running,
            completion_time: None,
            ideal: None,
            counts: FlowCounts::default(),
            queue_pairs: Default::default(),
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
            task_ends: Vec::new(),
            hosts: Vec::new(),
            ports: Vec::new(),
            rates: [10, 20].into_iter().flat_map(|us| (0..flows).map(move |flow| point(us, flow))).collect(),
            totals: Vec::new(),
            queues: Vec::new(),
            pauses: Vec::new(),
            deadlocks: Vec::new(),
            pauses_left_out: 0,
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
        assert_eq!(second_half(&results), Some(Extremes { slowest: 0.0, fastest: 89_999e9 }));
        assert!(roce_testing::on_idle(begin.elapsed()) < Duration::from_secs(10), "{:?}", begin.elapsed());
    }

    #[test]
    fn the_second_half_agrees_with_single_flows() {
        let results = results(3);
        let from = Time::from_us(10);
        let [slowest, fastest] = [0, 2].map(|flow| results.goodput_after(flow, from).unwrap());
        assert_eq!(second_half(&results), Some(Extremes { slowest, fastest }));
        assert_eq!(second_half(&Results { points_left_out: 1, ..results }), None);
    }
}
