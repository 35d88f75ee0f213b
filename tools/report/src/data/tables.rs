//! The flows of each table of a scenario.

use roce_scenario::{Scenario, Traffic};
use roce_sim::net::{FlowResult, FlowState, Percentiles, Results, Time};
use serde::{Deserialize, Serialize};

use super::distribution::Distribution;
use super::text::NOT_MEASURED;

/// Maximum number of tables in the printed summary; `summary.json` contains all of them.
const MOST_ROWS: usize = 8;

/// The results of the flows of a table: `[[flows]]`, `[[collective]]` or `[[training]]`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct TableSummary {
    /// The name of the table, or its key in the file, such as `flows.0`.
    pub name: String,
    /// The kind, such as `incast`, `all-reduce` or `pipeline`.
    pub kind: String,
    /// The name of its operations, if it has any.
    pub collective: Option<String>,
    /// Flows of the table.
    pub flows: usize,
    /// Flows that are not complete.
    pub incomplete: usize,
    /// Completion times of the complete flows.
    pub completion_seconds: Option<Distribution>,
    /// Completion times relative to those of a flow alone in the network.
    pub slowdown: Option<Distribution>,
}

/// Returns the results of each table, in the order of the flows.
pub(super) fn summaries(scenario: &Scenario, results: &Results) -> Vec<TableSummary> {
    let one = |table: &Traffic| {
        let flows = results.flows.get(table.flows.clone()).unwrap_or_default();
        let times = flows.iter().filter_map(|flow| flow.completion_time).map(Time::as_secs_f64);
        let slowdowns = flows.iter().filter_map(FlowResult::slowdown);
        TableSummary {
            name: table.name.clone(),
            kind: table.kind.to_owned(),
            collective: table.collective.clone(),
            flows: flows.len(),
            incomplete: flows.iter().filter(|flow| flow.state != FlowState::Complete).count(),
            completion_seconds: Percentiles::of(times.collect()).map(Distribution::from),
            slowdown: Percentiles::of(slowdowns.collect()).map(Distribution::from),
        }
    };
    scenario.tables.iter().map(one).collect()
}

/// Returns rows for the printed summary. A single table has the figures of all flows, so it has no row.
pub(super) fn rows(tables: &[TableSummary]) -> Vec<(&'static str, String)> {
    if tables.len() < 2 {
        return Vec::new();
    }
    let mut rows: Vec<_> = tables.iter().take(MOST_ROWS).map(|table| ("table", text(table))).collect();
    if tables.len() > MOST_ROWS {
        let left = tables.len() - MOST_ROWS;
        rows.push(("table", format!("and {left} more, which are in summary.json")));
    }
    rows
}

fn text(table: &TableSummary) -> String {
    let TableSummary { name, kind, flows, incomplete, completion_seconds, slowdown, .. } = table;
    let figures = |of: Option<Distribution>, scale: f64, digits: usize| {
        of.map_or_else(
            || NOT_MEASURED.to_owned(),
            |Distribution { mean, p50, p99, .. }| {
                let [mean, p50, p99] = [mean, p50, p99].map(|value| value * scale);
                format!("{mean:.digits$} / {p50:.digits$} / {p99:.digits$}")
            },
        )
    };
    let unit = if completion_seconds.is_some() { " ms" } else { "" };
    format!(
        "{name} ({kind}): {} of {flows} complete, mean/p50/p99 {}{unit}, slowdown {}",
        flows - incomplete,
        figures(*completion_seconds, 1e3, 3),
        figures(*slowdown, 1.0, 2)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, values: Option<Vec<f64>>) -> TableSummary {
        let of = |scale: f64| {
            let scaled = values.clone()?.into_iter().map(|value| value * scale).collect();
            Percentiles::of(scaled).map(Distribution::from)
        };
        TableSummary {
            name: name.to_owned(),
            kind: "incast".to_owned(),
            collective: None,
            flows: 3,
            incomplete: 3 - values.as_ref().map_or(0, Vec::len),
            completion_seconds: of(1e-3),
            slowdown: of(1.0),
        }
    }

    #[test]
    fn a_row_has_the_figures_of_its_table() {
        let tables = [table("a", Some(vec![1.0, 2.0, 6.0])), table("b", None)];
        let rows: Vec<String> = rows(&tables).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            rows,
            [
                "a (incast): 3 of 3 complete, mean/p50/p99 3.000 / 2.000 / 6.000 ms, slowdown 3.00 / 2.00 / 6.00",
                "b (incast): 0 of 3 complete, mean/p50/p99 –, slowdown –",
            ]
        );
    }

    #[test]
    fn one_table_has_no_row_and_many_have_a_limit() {
        let tables = vec![table("a", Some(vec![1.0])); MOST_ROWS + 2];
        assert!(rows(&tables[..1]).is_empty());
        assert_eq!(rows(&tables).last().unwrap().1, "and 2 more, which are in summary.json");
    }
}
