//! Results of `roce sim` by table of the scenario.

use std::collections::BTreeMap;

use crate::common::{Finished, Running, roce};
use serde_json::Value;

/// Background traffic and bursts, as in studies of tail latency.
const MIXED: &str = r#"
name = "background and incast"
stop = "40ms"
[topology]
kind = "leaf-spine"
leaves = 4
spines = 2
hosts = 4
rate = "25Gbps"
fabric_rate = "100Gbps"
[host]
congestion = "dcqcn:hpcc"
[[flows]]
kind = "poisson"
name = "background"
load = 0.3
duration = "2ms"
sizes = "websearch"
[[flows]]
kind = "incast"
name = "incast"
degree = 10
bytes = "100KB"
shuffle = 1
period = "1ms"
count = 2
"#;

const TRAINING: &str = r#"
name = "operations"
[topology]
kind = "star"
hosts = 4
[[flows]]
kind = "pair"
from = "h0"
to = "h1"
bytes = "10KB"
[[collective]]
kind = "all-gather"
bytes = "40KB"
[[training]]
kind = "data-parallel"
name = "a, b"
bytes = "40KB"
layers = 2
bucket = "20KB"
forward = "1us"
backward = "2us"
"#;

/// A finished run with its directory.
struct Run {
    dir: tempfile::TempDir,
    finished: Finished,
}

impl Run {
    #[track_caller]
    fn new(scenario: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("scenario.toml"), scenario).unwrap();
        let mut command = roce();
        command.current_dir(dir.path()).args(["sim", "scenario.toml", "--out", "out"]);
        let finished = Running::start(&mut command).finish(60);
        assert!(finished.success, "{finished:?}");
        Self { dir, finished }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("out").join(name)).unwrap()
    }

    /// Returns the tables of the summary.
    fn tables(&self) -> Vec<Value> {
        let summary: Value = serde_json::from_str(&self.read("summary.json")).unwrap();
        summary["tables"].as_array().unwrap().clone()
    }

    /// Returns the flows as maps from columns to values.
    fn flows(&self) -> Vec<BTreeMap<String, String>> {
        let text = self.read("flows.csv");
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap().split(',').collect();
        let row = |line: &str| names.iter().copied().map(str::to_owned).zip(cells(line)).collect();
        lines.map(row).collect()
    }
}

/// Returns the cells of a line of a CSV file. Cells in quotes may contain commas.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            other => cells.last_mut().unwrap().push(other),
        }
    }
    cells
}

/// The flows of each table can be selected by their column, and the summary has the same figures.
#[test]
fn background_and_incast_are_told_apart() {
    let run = Run::new(MIXED);
    let (tables, flows) = (run.tables(), run.flows());
    let named: Vec<&str> = tables.iter().map(|table| table["name"].as_str().unwrap()).collect();
    assert_eq!(named, ["background", "incast"]);
    assert_eq!((&tables[0]["kind"], &tables[1]["flows"]), (&"poisson".into(), &20.into()));
    for table in &tables {
        let name = table["name"].as_str().unwrap();
        let own: Vec<_> = flows.iter().filter(|flow| flow["table"] == name).collect();
        assert_eq!((table["flows"].as_u64().unwrap(), &table["incomplete"]), (own.len() as u64, &0.into()));
        for (column, figure, scale) in
            [("completion_us", "completion_seconds", 1e-6), ("slowdown", "slowdown", 1.0)]
        {
            let mut values: Vec<f64> = own.iter().map(|flow| flow[column].parse().unwrap()).collect();
            values.sort_by(f64::total_cmp);
            let at = |share: f64| values[(share * values.len() as f64).ceil() as usize - 1] * scale;
            let mean = values.iter().sum::<f64>() / values.len() as f64 * scale;
            for (part, value) in [("mean", mean), ("p50", at(0.5)), ("p99", at(0.99))] {
                let found = table[figure][part].as_f64().unwrap();
                assert!((found / value - 1.0).abs() < 1e-3, "{name}: {part} of {figure}: {found}, {value}");
            }
            assert_eq!(table[figure]["count"].as_u64(), Some(own.len() as u64));
        }
    }
    let slowdown = |table: &Value| table["slowdown"]["p50"].as_f64().unwrap();
    assert!(slowdown(&tables[1]) > 2.0 * slowdown(&tables[0]), "ten flows share a link: {tables:?}");
    assert!(flows.iter().all(|flow| flow["source"].starts_with('h') && flow["collective"].is_empty()));
    let page = run.read("report.html");
    for begin in ["background (poisson): ", "incast (incast): 20 of 20 complete, mean/p50/p99 "] {
        assert!(
            run.finished.stdout.contains(&format!("  table {:30} {begin}", "")),
            "{}",
            run.finished.stdout
        );
        assert!(page.contains(&format!("<td>table</td><td>{begin}")), "{page}");
    }
}

#[test]
fn flows_of_collectives_and_training_name_their_operations() {
    let run = Run::new(TRAINING);
    let text = |name: &str| run.tables().iter().map(|table| table[name].clone()).collect::<Vec<Value>>();
    assert_eq!(text("name"), ["flows.0", "collective.0", "a, b"]);
    assert_eq!(text("kind"), ["pair", "all-gather", "data-parallel"]);
    assert_eq!(text("collective"), [Value::Null, "all-gather".into(), "a, b".into()]);
    let flows = run.flows();
    assert_eq!((flows[0]["source"].as_str(), flows[0]["destination"].as_str()), ("h0", "h1"));
    assert_eq!((flows[0]["table"].as_str(), flows[0]["collective"].as_str()), ("flows.0", ""));
    let operations = run.read("collectives.csv");
    for (table, name) in [("collective.0", "all-gather"), ("a, b", "a, b")] {
        let own: Vec<_> = flows.iter().filter(|flow| flow["table"] == table).collect();
        assert!(own.len() >= 4 && own.iter().all(|flow| flow["collective"] == name), "{flows:?}");
        let named = |line: &str| cells(line)[0] == name;
        assert!(operations.lines().skip(1).any(named), "{operations}");
    }
}
