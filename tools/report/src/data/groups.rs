//! Groups of runs of a sweep that differ only in their seed: means with confidence intervals.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::metrics::{METRICS, Metric};
use super::summary::Summary;
use super::text::{assignments, quoted};

/// A mean and half of the width of its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the width; `None` for a single value.
    pub ci95: Option<f64>,
    /// The number of values.
    pub count: usize,
}

impl Estimate {
    /// Calculates the estimate of these values. Returns `None` without values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
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
pub struct Group<'a> {
    /// The values without the seed.
    pub set: Vec<(String, String)>,
    /// The runs, at least one, in their order in the sweep.
    pub runs: Vec<&'a Summary>,
}

impl Group<'_> {
    /// Returns the estimate of a metric over the runs that measured it.
    #[must_use]
    pub fn estimate(&self, metric: &Metric) -> Option<Estimate> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| (metric.of)(run)).collect();
        Estimate::of(&values)
    }

    /// Returns whether the runs differ in a figure, or `None` for a single run. Numbers of queue pairs follow
    /// from the seed, so runs with equal figures can have different trace hashes.
    #[must_use]
    pub fn seeds_differ(&self) -> Option<bool> {
        let [first, others @ ..] = &self.runs[..] else { return None };
        let figures = first.figures();
        (!others.is_empty()).then(|| others.iter().any(|run| run.figures() != figures))
    }

    /// Returns a warning if the seed has no effect on the figures of the runs.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        if self.seeds_differ() != Some(false) {
            return None;
        }
        let of = if self.set.is_empty() { String::new() } else { format!("{}: ", assignments(&self.set)) };
        let count = self.runs.len();
        Some(format!(
            "{of}all {count} seeds gave the same figures, because nothing in this scenario is random: \
             the seed has no effect through the order of simultaneous frames and starts (ties), paths by hash, \
             random marks, faults or random flows. ± 0 says nothing about other runs"
        ))
    }

    fn to_json(&self) -> Value {
        let mut metrics = Map::new();
        for metric in &METRICS {
            let estimate = self.estimate(metric);
            let value = estimate.map(|of| json!({ "mean": of.mean, "ci95": of.ci95, "count": of.count }));
            metrics.insert(metric.field.to_owned(), value.into());
        }
        let seeds_differ = self.seeds_differ();
        json!({ "set": self.set, "runs": self.runs.len(), "seeds_differ": seeds_differ, "metrics": metrics })
    }
}

/// Returns the groups of these runs, in the order of the first run of each.
#[must_use]
pub fn groups(runs: &[Summary]) -> Vec<Group<'_>> {
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
#[must_use]
pub fn sweep_document(runs: &[Summary]) -> Value {
    let groups: Vec<Value> = groups(runs).iter().map(Group::to_json).collect();
    json!({ "runs": runs, "groups": groups })
}

/// Returns the contents of `sweep.csv`, with one line per run.
pub(crate) fn sweep_csv(runs: &[Summary]) -> String {
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
    fn values_have_no_trailing_zeros() {
        assert_eq!((trimmed(2.5).as_str(), trimmed(1_000.0).as_str()), ("2.5", "1000"));
    }
}
