//! The expectations of a scenario, evaluated with the figures of its run.

use roce_scenario::{Expect, ExpectedValue, Scenario};
use roce_sim::net::{FlowResult, Results, Time};

use super::expected::Expected;
use super::metrics::METRICS;
use super::operations::OperationSummary;
use super::summary::Summary;

/// A name, and a function that returns the figure of a `T`.
type Named<T> = (&'static str, fn(&T) -> Option<f64>);

/// Figures that are not among [`METRICS`].
const OF_RUNS: [Named<Summary>; 5] = [
    ("deadlocks", |run| Some(run.deadlocks.len() as f64)),
    ("operations_not_ended", |run| Some(run.unfinished.operations_not_ended as f64)),
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

/// An expectation names a figure that does not exist. The message lists the figures that do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnknownMetric(String);

/// Checks that all figures exist, before the run.
///
/// # Errors
///
/// A figure does not exist.
pub fn check_expectations(scenario: &Scenario) -> Result<(), UnknownMetric> {
    for Expect { metric, value, .. } in &scenario.expect {
        let other = match value {
            ExpectedValue::Metric(name) => Some(name),
            ExpectedValue::Number(_) => None,
        };
        for name in [metric].into_iter().chain(other) {
            if Figure::named(name, scenario).is_none() {
                let metrics = METRICS.iter().map(|metric| metric.field);
                let of_runs: Vec<&str> = metrics.chain(OF_RUNS.map(|(known, _)| known)).collect();
                return Err(UnknownMetric(format!(
                    "[[expect]]: unknown metric {name}; known are {}; for the first flow, flows.0. followed \
                     by {} or {SECOND_HALF}; for the first operation, collectives.0. followed by {}",
                    of_runs.join(", "),
                    OF_FLOWS.map(|(known, _)| known).join(", "),
                    OF_COLLECTIVES.map(|(known, _)| known).join(" or ")
                )));
            }
        }
    }
    Ok(())
}

/// Returns the conditions of a scenario with the figures of its run.
#[must_use]
pub fn evaluate_expectations(scenario: &Scenario, results: &Results, summary: &Summary) -> Vec<Expected> {
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
