//! The expectations of a scenario, evaluated with the figures of its run.

use std::io::Write;

use anyhow::bail;
use roce_sim::net::{FlowResult, Results, Time};
use roce_sim::scenario::{Expect, ExpectedValue, Scenario};
use serde::{Deserialize, Serialize};

use super::groups::METRICS;
use super::operations::OperationSummary;
use super::run::CompletedRun;
use super::summary::{NOT_MEASURED, Summary};
use crate::terminal::{Output, Paint};

/// A condition and the figure of a run.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(super) struct Expected {
    pub(super) metric: String,
    pub(super) relation: String,
    /// The value that the figure is compared with; `None` for a figure that was not measured.
    pub(super) value: Option<f64>,
    /// The name of the figure that it is compared with, if it is not a number.
    pub(super) value_of: Option<String>,
    pub(super) measured: Option<f64>,
    /// Whether the condition is met. A figure that was not measured does not meet it.
    pub(super) met: bool,
}

/// A name, and a function that returns the figure of a `T`.
type Named<T> = (&'static str, fn(&T) -> Option<f64>);

/// Figures that are not among [`METRICS`].
const OF_RUNS: [Named<Summary>; 4] = [
    ("deadlocks", |run| Some(run.deadlocks.len() as f64)),
    ("end_seconds", |run| Some(run.end_seconds)),
    ("second_half_slowest_bits_per_second", |run| Some(run.second_half_bits_per_second?.slowest)),
    ("second_half_fastest_bits_per_second", |run| Some(run.second_half_bits_per_second?.fastest)),
];

/// Figures of one flow; their names follow `flows.N.`.
const OF_FLOWS: [Named<FlowResult>; 4] = [
    ("completion_seconds", |flow| Some(flow.completion_time?.as_secs_f64())),
    ("slowdown", FlowResult::slowdown),
    ("goodput_bits_per_second", |flow| flow.completion_time.map(|_| flow.goodput_bps())),
    ("delivered_bytes", |flow| Some(flow.counts.delivered as f64)),
];

/// A figure of a flow that is computed from the samples: its rate in the second half of the run.
const SECOND_HALF: &str = "second_half_bits_per_second";

/// Figures of one operation; their names follow `collectives.N.`.
const OF_COLLECTIVES: [Named<OperationSummary>; 2] = [
    ("seconds", |operation| operation.seconds),
    ("bus_bits_per_second", |operation| operation.bus_bits_per_second),
];

/// The meaning of a name.
enum Figure<'a> {
    Run(fn(&Summary) -> Option<f64>),
    Flow(usize, &'a str),
    Collective(usize, &'a str),
}

impl<'a> Figure<'a> {
    fn named(name: &'a str, scenario: &Scenario) -> Option<Self> {
        if let Some((number, name)) = element(name, "flows.") {
            let known = OF_FLOWS.iter().map(|(known, _)| *known).chain([SECOND_HALF]);
            let exists = number < scenario.flows.len() && known.into_iter().any(|known| known == name);
            return exists.then_some(Self::Flow(number, name));
        }
        if let Some((number, name)) = element(name, "collectives.") {
            let exists =
                number < scenario.operations.len() && OF_COLLECTIVES.iter().any(|(known, _)| *known == name);
            return exists.then_some(Self::Collective(number, name));
        }
        let metrics = METRICS.iter().map(|metric| (metric.field, metric.of));
        let (_, of) = metrics.chain(OF_RUNS).find(|(known, _)| *known == name)?;
        Some(Self::Run(of))
    }

    fn of(self, results: &Results, summary: &Summary) -> Option<f64> {
        match self {
            Self::Run(of) => of(summary),
            Self::Flow(number, SECOND_HALF) if results.points_left_out == 0 => {
                let half = Time::from_ps(results.end.as_ps() / 2);
                results.goodput_after(u32::try_from(number).ok()?, half)
            }
            Self::Flow(number, name) => {
                let (_, of) = OF_FLOWS.iter().find(|(known, _)| *known == name)?;
                of(results.flows.get(number)?)
            }
            Self::Collective(number, name) => {
                let (_, of) = OF_COLLECTIVES.iter().find(|(known, _)| *known == name)?;
                of(summary.collectives.get(number)?)
            }
        }
    }
}

/// Splits `PREFIXN.REST` into the number and the rest.
fn element<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Checks that all figures exist, before the run.
pub(super) fn check(scenario: &Scenario) -> anyhow::Result<()> {
    for Expect { metric, value, .. } in &scenario.expect {
        let other = match value {
            ExpectedValue::Metric(name) => Some(name),
            ExpectedValue::Number(_) => None,
        };
        for name in [metric].into_iter().chain(other) {
            if Figure::named(name, scenario).is_none() {
                let metrics = METRICS.iter().map(|metric| metric.field);
                let of_runs: Vec<&str> = metrics.chain(OF_RUNS.map(|(known, _)| known)).collect();
                bail!(
                    "[[expect]]: unknown metric {name}; known are {}; for the first flow, flows.0. followed \
                     by {} or {SECOND_HALF}; for the first operation, collectives.0. followed by {}",
                    of_runs.join(", "),
                    OF_FLOWS.map(|(known, _)| known).join(", "),
                    OF_COLLECTIVES.map(|(known, _)| known).join(" or ")
                );
            }
        }
    }
    Ok(())
}

/// Returns the conditions of a scenario with the figures of its run.
pub(super) fn evaluate(scenario: &Scenario, results: &Results, summary: &Summary) -> Vec<Expected> {
    let figure = |name: &str| Figure::named(name, scenario)?.of(results, summary);
    let one = |Expect { metric, relation, value }: &Expect| {
        let measured = figure(metric);
        let (value, value_of) = match value {
            ExpectedValue::Number(number) => (Some(*number), None),
            ExpectedValue::Metric(name) => (figure(name), Some(name.clone())),
        };
        Expected {
            metric: metric.clone(),
            relation: relation.sign().to_owned(),
            value,
            value_of,
            measured,
            met: measured.zip(value).is_some_and(|(figure, value)| relation.holds(figure, value)),
        }
    };
    scenario.expect.iter().map(one).collect()
}

impl Expected {
    /// Returns the condition as text, without the verdict.
    pub(super) fn text(&self) -> String {
        let Self { metric, relation, .. } = self;
        let short =
            |value: Option<f64>| value.map_or_else(|| NOT_MEASURED.to_owned(), |value| shown(metric, value));
        let (measured, value) = (short(self.measured), short(self.value));
        match &self.value_of {
            None => format!("{metric} is {measured}, expected {relation} {value}"),
            Some(name) => format!("{metric} is {measured}, expected {relation} {name}, which is {value}"),
        }
    }

    pub(super) fn verdict(&self) -> &'static str {
        if self.met { "met" } else { "NOT MET" }
    }
}

/// Returns the reason why the expectations of the scenario were not evaluated.
pub(super) fn why_silent(completed: &CompletedRun) -> Option<&'static str> {
    let scenario = &completed.scenario;
    if completed.summary.expected.is_some() || (scenario.expect.is_empty() && scenario.expectation.is_empty())
    {
        return None;
    }
    Some(if completed.is_unchanged {
        "not evaluated, because the run was ended early"
    } else {
        "not evaluated, because options changed values of the scenario"
    })
}

/// Prints the expectations of the scenario, and whether the run meets them.
pub(super) fn print(completed: &CompletedRun, output: &mut Output) -> std::io::Result<()> {
    if let Some(reason) = why_silent(completed) {
        writeln!(output, "  {:36} {reason}", "expected")?;
    }
    let Some(expected) = &completed.summary.expected else { return Ok(()) };
    if !completed.scenario.expectation.is_empty() {
        writeln!(output, "  {:36} {}", "expected", completed.scenario.expectation)?;
    }
    for one in expected {
        let paint = if one.met { Paint::GREEN } else { Paint::RED };
        let verdict = output.style.paint(paint, one.verdict()).to_string();
        writeln!(output, "  {:36} {verdict}: {}", "", one.text())?;
    }
    Ok(())
}

/// Returns an error if the run does not meet the expectations of its scenario.
pub(super) fn ensure_met(completed: &CompletedRun) -> anyhow::Result<()> {
    let expected = completed.summary.expected.as_deref().unwrap_or_default();
    let unmet = expected.iter().filter(|one| !one.met).count();
    let (of, name) = (expected.len(), &completed.scenario.name);
    anyhow::ensure!(
        unmet == 0,
        "the run does not meet {unmet} of the {of} expectations of the scenario {name:?}"
    );
    Ok(())
}

/// Formats a figure with four digits, in a human-readable unit.
fn shown(metric: &str, value: f64) -> String {
    let units = [("bits_per_second", 1e-9, " Gb/s"), ("seconds", 1e3, " ms"), ("bytes", 1e-3, " KB")];
    let (_, scale, unit) = units.into_iter().find(|(end, ..)| metric.ends_with(end)).unwrap_or(("", 1.0, ""));
    format!("{}{unit}", (value * scale * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_name_the_figure() {
        let expected = |metric: &str, relation: &str, value, measured| Expected {
            metric: metric.into(),
            relation: relation.into(),
            value: Some(value),
            value_of: None,
            measured,
            met: false,
        };
        assert_eq!(expected("dropped", "=", 0.0, Some(12.0)).text(), "dropped is 12, expected = 0");
        assert_eq!(expected("jain", ">", 0.9, None).text(), "jain is \u{2013}, expected > 0.9");
        let other =
            Expected { value_of: Some("flows.1.slowdown".into()), ..expected("p", "<", 2.5, Some(2.0)) };
        assert_eq!(other.text(), "p is 2, expected < flows.1.slowdown, which is 2.5");
        assert_eq!(shown("flows.0.goodput_bits_per_second", 3.4e10), "34 Gb/s");
        assert_eq!(shown("completion_max_seconds", 0.012_345_678), "12.3457 ms");
        assert_eq!(shown("queue_p50_bytes", 190_464.0), "190.464 KB");
    }
}
