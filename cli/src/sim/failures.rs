//! Errors of runs that ended: flows that failed, and expectations that were not met.

use anyhow::ensure;
use roce_report::{CompletedRun, FAILED_FLOWS, FailedFlow, Summary, assignments};

/// Maximum number of runs in the error of a sweep.
const MOST_RUNS: usize = 8;

/// Returns an error if flows of a run failed.
pub(super) fn ensure_none(run: &Summary) -> anyhow::Result<()> {
    let unfinished = &run.unfinished;
    let first = unfinished.failures.first().map(FailedFlow::text).unwrap_or_default();
    ensure!(
        !unfinished.is_error(),
        "{} of {} flows failed ({}); the first is {first}. If the scenario is about failures, give it an [[expect]] table for \
         the metric {FAILED_FLOWS}",
        unfinished.failed,
        run.flows,
        unfinished.reasons()
    );
    Ok(())
}

/// Returns an error if flows of one of several runs failed.
pub(super) fn ensure_none_of(runs: &[Summary]) -> anyhow::Result<()> {
    let failed: Vec<&Summary> = runs.iter().filter(|run| run.unfinished.is_error()).collect();
    let text = |run: &&Summary| {
        let index =
            run.combination.map_or_else(String::new, |place| format!("combination {}, ", place.index));
        let (set, unfinished) = (assignments(&run.set), &run.unfinished);
        format!("{index}{set}: {} of {} flows ({})", unfinished.failed, run.flows, unfinished.reasons())
    };
    let mut lines: Vec<String> = failed.iter().take(MOST_RUNS).map(text).collect();
    if failed.len() > lines.len() {
        lines.push(format!("and {} more runs", failed.len() - lines.len()));
    }
    ensure!(
        failed.is_empty(),
        "flows failed in {} of {} runs:\n{}",
        failed.len(),
        runs.len(),
        lines.join("\n")
    );
    Ok(())
}

/// Returns an error if the run does not meet the expectations of its scenario.
pub(super) fn ensure_met(completed: &CompletedRun) -> anyhow::Result<()> {
    let expected = completed.summary.expected.as_deref().unwrap_or_default();
    let unmet = expected.iter().filter(|one| !one.met).count();
    let (of, name) = (expected.len(), &completed.scenario.name);
    ensure!(unmet == 0, "the run does not meet {unmet} of the {of} expectations of the scenario {name:?}");
    Ok(())
}
