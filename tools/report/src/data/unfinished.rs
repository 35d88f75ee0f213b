//! The failed flows of a run, and the flows that its stop left unfinished.

use std::collections::BTreeMap;

use roce_scenario::Scenario;
use roce_sim::net::{FlowState, Results};
use serde::{Deserialize, Serialize};

use super::operations::host_names;

/// Maximum number of failed flows in the printed summary.
const MOST_ROWS: usize = 8;
/// Maximum number of failed flows in `summary.json`; `flows.csv` contains all of them.
const MOST_LISTED: usize = 1_000;

/// The metric on which a scenario has a condition if it expects flows to fail.
pub const FAILED_FLOWS: &str = "failed";

/// A flow that failed.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct FailedFlow {
    /// The number of the flow.
    pub flow: usize,
    /// The name of the sending host.
    pub source: String,
    /// The name of the receiving host.
    pub destination: String,
    /// The error status of the queue pair, or the reason of the refusal.
    pub reason: String,
}

/// The flows of a run that did not complete.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Unfinished {
    /// Flows that failed or were refused.
    pub failed: usize,
    /// The number of failed and refused flows for each reason.
    pub failed_by_reason: BTreeMap<String, usize>,
    /// The first failed or refused flows.
    pub failures: Vec<FailedFlow>,
    /// Whether the scenario has a condition on the number of failed flows.
    pub failures_expected: bool,
    /// Flows that were running at the end of the run.
    pub running: usize,
    /// Flows that had not begun.
    pub waiting: usize,
    /// Operations that did not end at all of their hosts.
    pub operations_not_ended: usize,
    /// Whether the scenario says that flows outlast its stop.
    pub open_ended: bool,
}

impl Unfinished {
    pub(super) fn new(scenario: &Scenario, results: &Results) -> Self {
        let names = host_names(&scenario.topology);
        let name = |host: u32| names.get(host as usize).copied().unwrap_or_default().to_owned();
        let mut failed_by_reason = BTreeMap::new();
        let mut failures = Vec::new();
        for (flow, result) in results.failures() {
            let reason = result.state.failure().unwrap_or_default().to_owned();
            *failed_by_reason.entry(reason.clone()).or_default() += 1;
            if failures.len() < MOST_LISTED {
                let (source, destination) = (name(result.spec.source), name(result.spec.destination));
                failures.push(FailedFlow { flow, source, destination, reason });
            }
        }
        Self {
            failed: failed_by_reason.values().sum(),
            failed_by_reason,
            failures,
            failures_expected: scenario.expect.iter().any(|expect| expect.metric == FAILED_FLOWS),
            running: results.in_state(FlowState::Running),
            waiting: results.in_state(FlowState::Waiting),
            operations_not_ended: scenario
                .operations
                .iter()
                .filter(|operation| operation.result(&results.task_ends).time.is_none())
                .count(),
            open_ended: scenario.open_ended,
        }
    }

    /// Returns the row of all flows: how many of them are complete, and the state of the others.
    pub(super) fn text(&self, complete: usize, all: usize) -> String {
        let mut text = format!("{complete} of {all} complete");
        if self.failed > 0 {
            text += &format!(", {} failed ({})", self.failed, self.reasons());
        }
        for (count, state) in [(self.running, "running at the end"), (self.waiting, "not begun")] {
            if count > 0 {
                text += &format!(", {count} {state}");
            }
        }
        text
    }

    /// Returns the reasons of failed flows, each after the number of flows.
    #[must_use]
    pub fn reasons(&self) -> String {
        let reasons = self.failed_by_reason.iter().map(|(reason, count)| format!("{count} {reason}"));
        reasons.collect::<Vec<_>>().join(", ")
    }

    /// Returns rows of name and value: failed flows, and a remark about unfinished ones.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let shown = self.failures.iter().take(MOST_ROWS);
        let mut rows: Vec<_> = shown.map(|failure| ("failed", failure.text())).collect();
        let left = self.failed - rows.len();
        if left > 0 {
            rows.push(("failed", format!("and {left} more, which are in flows.csv (--out DIR)")));
        }
        let unfinished = self.running + self.waiting + self.operations_not_ended;
        if self.open_ended {
            rows.push(("open-ended", "the flows are meant to outlast the run".to_owned()));
        } else if unfinished > 0 {
            let reason =
                "`stop` ends a run; raise it, or set `open_ended = true` if flows are meant to outlast it";
            rows.push(("not open-ended", reason.to_owned()));
        }
        rows
    }

    /// Returns whether failures of this run are an error. They are not if the scenario has a condition on
    /// their number.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.failed > 0 && !self.failures_expected
    }
}

impl FailedFlow {
    /// Returns the flow, its hosts and the reason as text.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { flow, source, destination, reason } = self;
        format!("flow {flow}, {source} to {destination}: {reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unfinished(failed: usize) -> Unfinished {
        let failure = |flow| FailedFlow {
            flow,
            source: "h1".to_owned(),
            destination: "h0".to_owned(),
            reason: "RETRY_EXC_ERR".to_owned(),
        };
        Unfinished {
            failed,
            failed_by_reason: BTreeMap::from([("RETRY_EXC_ERR".to_owned(), failed)]),
            failures: (0..failed).map(failure).collect(),
            ..Unfinished::default()
        }
    }

    #[test]
    fn rows_name_the_first_failures_and_count_the_others() {
        let many = unfinished(20);
        assert_eq!(many.text(3, 23), "3 of 23 complete, 20 failed (20 RETRY_EXC_ERR)");
        let rows = many.rows();
        assert_eq!(rows.len(), MOST_ROWS + 1);
        assert_eq!(rows[0].1, "flow 0, h1 to h0: RETRY_EXC_ERR");
        assert_eq!(rows[MOST_ROWS].1, "and 12 more, which are in flows.csv (--out DIR)");
    }

    #[test]
    fn flows_that_did_not_end_are_not_failures() {
        let stopped = Unfinished { running: 2, waiting: 1, ..Unfinished::default() };
        assert_eq!(stopped.text(0, 3), "0 of 3 complete, 2 running at the end, 1 not begun");
        assert!(!stopped.is_error() && stopped.rows()[0].0 == "not open-ended");
        let open = Unfinished { open_ended: true, ..stopped };
        assert!(!open.is_error() && open.rows()[0].0 == "open-ended");
        assert!(unfinished(1).is_error());
        assert!(!Unfinished { failures_expected: true, ..unfinished(1) }.is_error());
    }
}
