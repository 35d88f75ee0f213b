//! A completed run.

use roce_scenario::Scenario;
use roce_sim::net::Results;

use super::summary::Summary;

/// A completed run, with everything that its report shows.
#[derive(Debug)]
pub struct CompletedRun {
    /// The scenario with set values.
    pub scenario: Scenario,
    /// The scenario as one text, which repeats the run.
    pub whole: String,
    /// The algorithms that the program added to those of the engine: for each, a line with its name, a hash
    /// of its behavior and a new instance.
    pub added_algorithms: Vec<String>,
    /// Whether all values of the scenario are unchanged.
    pub is_unchanged: bool,
    /// The samples and counters of the simulator.
    pub results: Results,
    /// The summary of the results.
    pub summary: Summary,
}

impl CompletedRun {
    /// Returns the reason why the expectations of the scenario were not evaluated. Returns `None` if they
    /// were, or if there are no expectations.
    #[must_use]
    pub fn why_not_evaluated(&self) -> Option<&'static str> {
        let scenario = &self.scenario;
        if self.summary.expected.is_some() || (scenario.expect.is_empty() && scenario.expectation.is_empty())
        {
            return None;
        }
        Some(if self.is_unchanged {
            "not evaluated, because the run was ended early"
        } else {
            "not evaluated, because options changed values of the scenario"
        })
    }
}
