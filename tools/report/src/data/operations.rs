//! The results of collective operations and of training steps.

use std::io::Write;

use roce_scenario::Scenario;
use roce_sim::net::{NodeKind, Results, Time, Topology};
use serde::{Deserialize, Serialize};

use super::text::quoted;

/// Maximum number of operations in the printed summary; `collectives.csv` and `summary.json` contain all of
/// them.
const MOST_ROWS: usize = 8;

/// The result of an operation. A value that does not exist is `None`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct OperationSummary {
    /// The name in the scenario.
    pub name: String,
    /// The repetition, counted from 0.
    pub iteration: u32,
    /// The kind, such as `all-reduce`.
    pub kind: String,
    /// The algorithm, such as `ring`.
    pub algorithm: Option<String>,
    /// The number of hosts that take part.
    pub hosts: usize,
    /// The bytes of the operation.
    pub bytes: u64,
    /// The time when the first host began.
    pub begin_seconds: Option<f64>,
    /// The time until the last host ended.
    pub seconds: Option<f64>,
    /// The algorithm bandwidth as defined by nccl-tests.
    pub algorithm_bits_per_second: Option<f64>,
    /// The bus bandwidth as defined by nccl-tests.
    pub bus_bits_per_second: Option<f64>,
    /// The host that ended last.
    pub last_host: Option<String>,
    /// The delay of that host after the median of all hosts.
    pub behind_median_seconds: Option<f64>,
}

/// Returns the operations of a run, in the order of the scenario.
pub(super) fn summaries(scenario: &Scenario, results: &Results) -> Vec<OperationSummary> {
    let names = host_names(&scenario.topology);
    let one = |operation: &roce_sim::net::Operation| {
        let result = operation.result(&results.task_ends);
        let name_of = |host: u32| names.get(host as usize).copied().unwrap_or_default().to_owned();
        OperationSummary {
            name: operation.name.clone(),
            iteration: operation.iteration,
            kind: operation.kind.name().to_owned(),
            algorithm: operation.algorithm.map(|algorithm| algorithm.name().to_owned()),
            hosts: operation.hosts.len(),
            bytes: operation.bytes,
            begin_seconds: result.begin.map(Time::as_secs_f64),
            seconds: result.time.map(Time::as_secs_f64),
            algorithm_bits_per_second: result.algorithm_bps,
            bus_bits_per_second: result.bus_bps,
            last_host: result.straggler.map(|(host, _)| name_of(host)),
            behind_median_seconds: result.straggler.map(|(_, behind)| behind.as_secs_f64()),
        }
    };
    scenario.operations.iter().map(one).collect()
}

/// Returns the names of hosts, by their numbers.
pub(crate) fn host_names(topology: &Topology) -> Vec<&str> {
    let hosts = topology.nodes.iter().filter(|node| node.kind == NodeKind::Host);
    hosts.map(|node| node.name.as_str()).collect()
}

/// Returns rows for the printed summary.
pub(super) fn rows(operations: &[OperationSummary]) -> Vec<(&'static str, String)> {
    let mut rows: Vec<_> = operations.iter().take(MOST_ROWS).map(|one| ("operation", text(one))).collect();
    if operations.len() > MOST_ROWS {
        let left = operations.len() - MOST_ROWS;
        rows.push(("operation", format!("and {left} more, which are in collectives.csv and summary.json")));
    }
    rows
}

fn text(operation: &OperationSummary) -> String {
    let name = format!("{} {}", operation.name, operation.iteration);
    let Some(seconds) = operation.seconds else { return format!("{name}: not complete at every host") };
    let bus = operation
        .bus_bits_per_second
        .map_or_else(String::new, |rate| format!(", bus bandwidth {:.3} Gb/s", rate / 1e9));
    let last = match (&operation.last_host, operation.behind_median_seconds) {
        (Some(host), Some(behind)) => format!(", last {host}, {:.3} µs after the median", behind * 1e6),
        _ => String::new(),
    };
    format!("{name}: {:.3} ms{bus}{last}", seconds * 1e3)
}

/// Writes one line for each operation.
pub(crate) fn write_csv(file: &mut impl Write, operations: &[OperationSummary]) -> std::io::Result<()> {
    writeln!(
        file,
        "name,iteration,kind,algorithm,hosts,bytes,begin_us,time_us,algorithm_gbps,bus_gbps,last_host,behind_median_us"
    )?;
    let number = |value: Option<f64>, factor: f64| {
        value.map_or_else(String::new, |value| format!("{:.6}", value * factor))
    };
    for one in operations {
        writeln!(
            file,
            "{},{},{},{},{},{},{},{},{},{},{},{}",
            quoted(&one.name),
            one.iteration,
            one.kind,
            one.algorithm.as_deref().unwrap_or_default(),
            one.hosts,
            one.bytes,
            number(one.begin_seconds, 1e6),
            number(one.seconds, 1e6),
            number(one.algorithm_bits_per_second, 1e-9),
            number(one.bus_bits_per_second, 1e-9),
            quoted(one.last_host.as_deref().unwrap_or_default()),
            number(one.behind_median_seconds, 1e6)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(seconds: Option<f64>) -> OperationSummary {
        OperationSummary {
            name: "a, b".to_owned(),
            iteration: 2,
            kind: "all-reduce".to_owned(),
            algorithm: Some("ring".to_owned()),
            hosts: 4,
            bytes: 1_000_000,
            begin_seconds: Some(1e-6),
            seconds,
            algorithm_bits_per_second: seconds.map(|seconds| 8e6 / seconds),
            bus_bits_per_second: seconds.map(|seconds| 12e6 / seconds),
            last_host: seconds.map(|_| "h3".to_owned()),
            behind_median_seconds: seconds.map(|_| 2e-6),
        }
    }

    #[test]
    fn what_did_not_end_has_empty_fields() {
        let mut csv = Vec::new();
        write_csv(&mut csv, &[operation(Some(1e-3)), operation(None)]).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "\"a, b\",2,all-reduce,ring,4,1000000,1.000000,1000.000000,8.000000,12.000000,h3,2.000000",
                "\"a, b\",2,all-reduce,ring,4,1000000,1.000000,,,,,",
            ]
        );
        let rows = rows(&vec![operation(None); 9]);
        assert_eq!(rows[0].1, "a, b 2: not complete at every host");
        assert_eq!(rows[8].1, "and 1 more, which are in collectives.csv and summary.json");
        let text = text(&operation(Some(1e-3)));
        assert_eq!(text, "a, b 2: 1.000 ms, bus bandwidth 12.000 Gb/s, last h3, 2.000 µs after the median");
    }
}
