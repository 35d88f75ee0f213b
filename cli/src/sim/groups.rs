//! Groups of runs of a sweep that differ only in their seed: means with confidence intervals.

use std::fmt::Write as _;
use std::io::Write;

use serde_json::{Map, Value, json};

use super::summary::{NOT_MEASURED, Summary, assignments};
use crate::terminal::{Output, Paint};

/// A figure of a run.
pub(super) struct Metric {
    /// The name in `sweep.csv`, with its unit.
    pub(super) column: &'static str,
    /// The name in JSON, with a base unit.
    pub(super) field: &'static str,
    /// The factor from the base unit to the unit of text and tables.
    pub(super) scale: f64,
    /// The value in a base unit, if it was measured.
    pub(super) of: fn(&Summary) -> Option<f64>,
}

const fn metric(
    column: &'static str,
    field: &'static str,
    scale: f64,
    of: fn(&Summary) -> Option<f64>,
) -> Metric {
    Metric { column, field, scale, of }
}

/// The figures of `sweep.csv`, in the order of its columns.
pub(super) const METRICS: [Metric; 23] = [
    metric("completion_p50_us", "completion_p50_seconds", 1e6, |run| Some(run.completion_seconds?.p50)),
    metric("completion_p99_us", "completion_p99_seconds", 1e6, |run| Some(run.completion_seconds?.p99)),
    metric("completion_max_us", "completion_max_seconds", 1e6, |run| Some(run.completion_seconds?.max)),
    metric("slowdown_p50", "slowdown_p50", 1.0, |run| Some(run.slowdown?.p50)),
    metric("slowdown_p95", "slowdown_p95", 1.0, |run| Some(run.slowdown?.p95)),
    metric("slowdown_p99", "slowdown_p99", 1.0, |run| Some(run.slowdown?.p99)),
    metric("slowdown_p999", "slowdown_p999", 1.0, |run| Some(run.slowdown?.p999)),
    metric("queue_p50_bytes", "queue_p50_bytes", 1.0, |run| Some(run.queue_bytes?.p50 as f64)),
    metric("queue_p90_bytes", "queue_p90_bytes", 1.0, |run| Some(run.queue_bytes?.p90 as f64)),
    metric("queue_p99_bytes", "queue_p99_bytes", 1.0, |run| Some(run.queue_bytes?.p99 as f64)),
    metric("queue_most_bytes", "queue_most_bytes", 1.0, |run| Some(run.queue_bytes?.max as f64)),
    metric("goodput_gbps", "goodput_bits_per_second", 1e-9, |run| run.mean_goodput_bits_per_second),
    metric("total_gbps", "total_bits_per_second", 1e-9, Summary::total_bits_per_second),
    metric("jain", "jain", 1.0, |run| run.jain),
    metric("marked", "marked", 1.0, |run| Some(run.marked as f64)),
    metric("trimmed", "trimmed", 1.0, |run| Some(run.trimmed as f64)),
    metric("cnps_sent", "cnps_sent", 1.0, |run| Some(run.cnps_sent as f64)),
    metric("pauses", "pauses", 1.0, |run| Some(run.pauses as f64)),
    metric("paused_us", "paused_seconds", 1e6, |run| Some(run.paused_seconds)),
    metric("dropped", "dropped", 1.0, |run| Some(run.dropped.values().sum::<u64>() as f64)),
    metric("retransmitted", "retransmitted", 1.0, |run| Some(run.retransmitted as f64)),
    metric("incomplete", "incomplete", 1.0, |run| Some(run.incomplete as f64)),
    metric("failed", "failed", 1.0, |run| Some(run.unfinished.failed as f64)),
];

/// Returns the metric with this column.
pub(super) fn named(column: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.column == column)
}

/// A mean and half of the width of its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) mean: f64,
    /// Half of the width; `None` for a single value.
    pub(super) ci95: Option<f64>,
    pub(super) count: usize,
}

impl Estimate {
    /// Calculates the estimate of these values. Returns `None` without values.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let ci95 = count.checked_sub(2).map(|beyond| {
            let deviation = (squares / (count - 1) as f64).sqrt();
            student(beyond + 1) * deviation / (count as f64).sqrt()
        });
        (count > 0).then_some(Self { mean, ci95, count })
    }
}

/// Returns the 97.5th percentile of Student's t, by degrees of freedom. Between two rows of the table, it
/// returns the larger value.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    match freedom {
        0 => f64::INFINITY,
        1..=30 => TABLE[freedom - 1],
        31..=39 => 2.042,
        40..=59 => 2.021,
        60..=119 => 2.000,
        _ => 1.980,
    }
}

/// Runs with equal set values except the seed.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// The values without the seed.
    pub(super) set: Vec<(String, String)>,
    pub(super) runs: Vec<&'a Summary>,
}

impl Group<'_> {
    pub(super) fn estimate(&self, metric: &Metric) -> Option<Estimate> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| (metric.of)(run)).collect();
        Estimate::of(&values)
    }

    fn to_json(&self) -> Value {
        let mut metrics = Map::new();
        for metric in &METRICS {
            let estimate = self.estimate(metric);
            let value = estimate.map(|of| json!({ "mean": of.mean, "ci95": of.ci95, "count": of.count }));
            metrics.insert(metric.field.to_owned(), value.into());
        }
        json!({ "set": self.set, "runs": self.runs.len(), "metrics": metrics })
    }
}

/// Returns the groups of these runs, in the order of the first run of each.
pub(super) fn groups(runs: &[Summary]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in runs {
        let set: Vec<_> = run.set.iter().filter(|(name, _)| name != "seed").cloned().collect();
        match groups.iter_mut().find(|group| group.set == set) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { set, runs: vec![run] }),
        }
    }
    groups
}

/// Returns the JSON document of a sweep.
pub(super) fn document(runs: &[Summary]) -> Value {
    let groups: Vec<Value> = groups(runs).iter().map(Group::to_json).collect();
    json!({ "runs": runs, "groups": groups })
}

/// The columns of the table of seeds: heading, metric, digits.
const COLUMNS: [(&str, &str, usize); 8] = [
    ("median us", "completion_p50_us", 1),
    ("p99 us", "completion_p99_us", 1),
    ("slowdown p50", "slowdown_p50", 3),
    ("p95", "slowdown_p95", 3),
    ("p99", "slowdown_p99", 3),
    ("p99.9", "slowdown_p999", 3),
    ("queue p90 B", "queue_p90_bytes", 0),
    ("total Gb/s", "total_gbps", 2),
];

/// Prints one line per group with several seeds: means with 95 % confidence intervals.
pub(super) fn print_seeds(output: &mut Output, runs: &[Summary]) -> std::io::Result<()> {
    let mut groups = groups(runs);
    groups.retain(|group| group.runs.len() > 1);
    if groups.is_empty() {
        return Ok(());
    }
    let width = groups.iter().map(|group| assignments(&group.set).len()).max().unwrap_or(0).max(3);
    let mut heading = format!("\n{:width$} {:>5}", "set", "seeds");
    for (title, ..) in COLUMNS {
        // Writing to a string cannot fail.
        let _ = write!(heading, " {title:>19}");
    }
    writeln!(output, "{}", output.style.paint(Paint::BOLD, heading))?;
    for group in groups {
        write!(output, "{:width$} {:>5}", assignments(&group.set), group.runs.len())?;
        for (_, column, digits) in COLUMNS {
            let estimate = named(column).and_then(|metric| Some((group.estimate(metric)?, metric.scale)));
            let text = estimate.map_or_else(
                || NOT_MEASURED.to_owned(),
                |(Estimate { mean, ci95, .. }, scale)| {
                    let around =
                        ci95.map_or_else(String::new, |half| format!(" ± {:.digits$}", half * scale));
                    format!("{:.digits$}{around}", mean * scale)
                },
            );
            write!(output, " {text:>19}")?;
        }
        writeln!(output)?;
    }
    writeln!(output, "means and 95 % confidence intervals (Student's t) over seeds")
}

/// Returns the contents of `sweep.csv`, with one line per run.
pub(super) fn sweep_csv(runs: &[Summary]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in runs.iter().flat_map(|run| &run.set) {
        if name != "seed" && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut text = "run".to_owned();
    for name in names.iter().copied().chain(["seed"]).chain(METRICS.iter().map(|metric| metric.column)) {
        text.push(',');
        text.push_str(&quoted(name));
    }
    text.push('\n');
    for (number, run) in runs.iter().enumerate() {
        let _ = write!(text, "{}", run.combination.map_or(number, |place| place.index));
        for name in &names {
            let value = run.set.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
            let _ = write!(text, ",{}", quoted(value));
        }
        let _ = write!(text, ",{}", run.seed);
        for metric in &METRICS {
            let value = (metric.of)(run).map_or_else(String::new, |value| trimmed(value * metric.scale));
            let _ = write!(text, ",{value}");
        }
        text.push('\n');
    }
    text
}

/// Formats a value with at most six digits after the point.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Quotes a field as specified in RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the interval of 2, 4, 4, 5, calculated by hand: mean 3.75, deviation 1.2583, t = 3.182.
    #[test]
    fn the_interval_is_that_of_student() {
        let estimate = Estimate::of(&[2.0, 4.0, 4.0, 5.0]).unwrap();
        assert_eq!((estimate.mean, estimate.count), (3.75, 4));
        assert!((estimate.ci95.unwrap() - 3.182 * 1.258_305_7 / 2.0).abs() < 1e-6, "{estimate:?}");
        assert_eq!(Estimate::of(&[7.0]), Some(Estimate { mean: 7.0, ci95: None, count: 1 }));
        assert_eq!(Estimate::of(&[]), None);
        let falls = (1..300).map(student).collect::<Vec<f64>>();
        assert!(falls.is_sorted_by(|a, b| a >= b));
    }

    #[test]
    fn values_with_commas_are_quoted() {
        assert_eq!(quoted("dcqcn:paper,rpg_ai_rate=40"), "\"dcqcn:paper,rpg_ai_rate=40\"");
        assert_eq!(quoted("{ kmin = \"5KB\" }"), "\"{ kmin = \"\"5KB\"\" }\"");
        assert_eq!(
            (trimmed(2.5).as_str(), trimmed(1_000.0).as_str(), quoted("40")),
            ("2.5", "1000", "40".to_owned())
        );
    }
}
