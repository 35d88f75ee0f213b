//! The file of `--trace`: its events compared with the tables of `docs/reference/json.md`, and its contents
//! for a simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::common::{Finished, Running, roce};
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/reference/json.md");

/// Folders whose events the page lists, with the names of their modules.
const REPORTING: [(&str, &str); 4] = [
    ("transport/src", "roce_transport"),
    ("transport/congestion/src", "roce_congestion"),
    ("sim/src", "roce_sim"),
    ("src", "roce"),
];

/// The levels and the fields of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shape {
    levels: BTreeSet<String>,
    fields: BTreeSet<String>,
}

/// Returns the tables of the page's section about trace events.
fn tables() -> Vec<Vec<[String; 4]>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Trace events")).expect("a section");
    let mut tables = Vec::new();
    let mut is_inside = false;
    for line in section.lines() {
        if !line.starts_with('|') {
            is_inside = false;
            continue;
        }
        if !is_inside {
            tables.push(Vec::new());
        }
        is_inside = true;
        let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        let row = [(); 4].map(|()| cells.next().unwrap_or_default());
        if row[0].starts_with('`') {
            tables.last_mut().expect("a table").push(row);
        }
    }
    assert_eq!(tables.len(), 3, "common fields, events, fields of events");
    tables
}

fn name(cell: &str) -> String {
    cell.trim_matches('`').to_owned()
}

fn names(cell: &str) -> BTreeSet<String> {
    cell.split(',').map(|part| name(part.trim())).filter(|name| !name.is_empty()).collect()
}

fn listed_events() -> BTreeMap<String, Shape> {
    let rows = tables().swap_remove(1);
    let shape = |row: &[String; 4]| Shape {
        levels: row[1].split(", ").map(str::to_owned).collect(),
        fields: names(&row[2]),
    };
    let events: BTreeMap<String, Shape> = rows.iter().map(|row| (name(&row[0]), shape(row))).collect();
    assert_eq!(events.len(), rows.len(), "an event is listed twice");
    events
}

/// Returns the type of each field.
fn types(table: usize) -> BTreeMap<String, String> {
    tables().swap_remove(table).iter().map(|row| (name(&row[0]), row[1].clone())).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the arguments of a macro call from the text after its opening parenthesis, cut at commas outside
/// parentheses and strings.
fn arguments(text: &str) -> Vec<String> {
    let (mut depth, mut is_text, mut found) = (0, false, vec![String::new()]);
    let mut before = ' ';
    for character in text.chars() {
        match character {
            '"' if before != '\\' => is_text = !is_text,
            _ if is_text => {}
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(String::new());
                before = character;
                continue;
            }
            _ => {}
        }
        before = character;
        found.last_mut().expect("never empty").push(character);
    }
    found.iter().map(|argument| argument.trim().to_owned()).filter(|argument| !argument.is_empty()).collect()
}

/// Returns the events of the sources, read from their macros.
fn events_of_the_sources() -> BTreeMap<String, Shape> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut files = Vec::new();
    REPORTING.iter().for_each(|(folder, _)| sources(&root.join(folder), &mut files));
    let mut events: BTreeMap<String, Shape> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        for level in ["trace", "debug", "info", "warn", "error"] {
            let call = format!("tracing::{level}!(");
            for (at, _) in text.match_indices(&call) {
                let mut arguments = arguments(&text[at + call.len()..]);
                let message = arguments.pop().expect("a message");
                let message = message.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
                let message =
                    message.unwrap_or_else(|| panic!("{}: no message behind {level}", file.display()));
                assert!(!message.contains('{'), "{}: {message} has to be a fixed text", file.display());
                let shape = events.entry(message.to_owned()).or_default();
                shape.levels.insert(level.to_owned());
                for argument in arguments {
                    let name = argument.split('=').next().unwrap_or_default();
                    shape.fields.insert(name.trim().trim_start_matches(['%', '?']).to_owned());
                }
            }
        }
    }
    assert!(events.len() > 30, "{}", events.len());
    events
}

#[test]
fn the_page_lists_every_event_of_the_sources_and_no_other() {
    let (listed, found) = (listed_events(), events_of_the_sources());
    for (event, shape) in &found {
        let known = listed.get(event).unwrap_or_else(|| panic!("json.md does not list `{event}`"));
        assert_eq!(known, shape, "json.md says something else of `{event}` (left) than the source");
    }
    let gone: Vec<&String> = listed.keys().filter(|event| !found.contains_key(*event)).collect();
    assert!(gone.is_empty(), "json.md lists events that nothing reports: {gone:?}");
}

#[test]
fn every_field_of_an_event_has_its_type_on_the_page() {
    let explained: BTreeSet<String> = types(2).into_keys().collect();
    let used: BTreeSet<String> = listed_events().into_values().flat_map(|shape| shape.fields).collect();
    assert_eq!(explained, used);
    let common: BTreeSet<String> = types(0).into_keys().collect();
    assert!(common.is_disjoint(&used), "a field would hide one that every event has");
}

#[test]
fn arguments_of_macros_are_found() {
    let text = "qpn, from = f(a, b), ?to, \"with, comma (and more\") ; next(";
    assert_eq!(arguments(text), ["qpn", "from = f(a, b)", "?to", "\"with, comma (and more\""]);
}

/// Returns whether the type on the page allows a value.
fn allows(kind: &str, value: &Value) -> bool {
    match kind.trim_end_matches(", optional") {
        "any" => true,
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        other => panic!("json.md has the type {other}"),
    }
}

/// Checks lines against the page; returns them.
#[track_caller]
fn check(text: &str, is_simulated: bool) -> Vec<Value> {
    let (events, common, fields) = (listed_events(), types(0), types(2));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        let object = line.as_object().expect("an object");
        let event = object["event"].as_str().expect("a text");
        let shape = events.get(event).unwrap_or_else(|| panic!("json.md does not list {line}"));
        let level = object["level"].as_str().expect("a text").to_lowercase();
        assert!(shape.levels.contains(&level), "{line}");
        assert!(REPORTING.iter().any(|(_, module)| object["target"].as_str().unwrap().starts_with(module)));
        assert_eq!(object.contains_key("node"), is_simulated, "{line}");
        assert!(object.contains_key("time_ns"), "{line}");
        for (name, value) in object {
            let kind = if shape.fields.contains(name) { fields.get(name) } else { common.get(name) };
            let kind = kind.unwrap_or_else(|| panic!("json.md does not list `{name}` of {line}"));
            assert!(allows(kind, value), "`{name}` is not of the type {kind}: {line}");
        }
    }
    lines
}

/// Two senders share one port of a network with pauses, losses, a slow receiver and a watchdog.
const BUSY: &str = r#"
name = "busy"
stop = "4ms"
[topology]
kind = "file"
text = """
host h0 h1 h2 h3 h4
switch s0 s1
link h0 s0 100Gbps 1us drop=0.1%
link h1 s0
link h2 s0
link h3 s1
link h4 s1
link s0 s1
"""
[host]
congestion = "dcqcn:paper"
timeout = 6
[switch]
watchdog = { after = "300us", restore = "300us" }
marking = { kmin = "5KB", kmax = "200KB", pmax = 0.2 }
threshold = { bytes = "50KB" }
[[storm]]
host = "h4"
priority = 3
start = "100us"
end = "1ms"
[[flows]]
kind = "pair"
from = "h0"
to = "h3"
bytes = "4MB"
[[flows]]
kind = "pair"
from = "h1"
to = "h3"
bytes = "4MB"
[[flows]]
kind = "pair"
from = "h2"
to = "h4"
bytes = "2MB"
host = { congestion = "dctcp" }
"#;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::write(place.path("busy.toml"), BUSY).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs the scenario with `--trace` to a file of this name; returns the result and the contents of the
    /// file.
    #[track_caller]
    fn trace(&self, file: &str, options: &[&str]) -> (Finished, String) {
        let mut command = roce();
        command.args(["sim", &self.path("busy.toml"), "--trace", &self.path(file)]).args(options);
        let finished = Running::start(&mut command).finish(60);
        let text = std::fs::read_to_string(self.path(file)).unwrap_or_default();
        (finished, text)
    }
}

#[test]
fn a_simulation_writes_what_the_help_promises_with_time_and_place() {
    let place = Place::new();
    let (finished, text) = place.trace("one.json", &["--trace-level", "trace"]);
    assert!(finished.success, "{}", finished.stderr);
    let lines = check(&text, true);
    let times: Vec<u64> = lines.iter().map(|line| line["time_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted() && *times.last().unwrap() <= 4_000_000, "{:?}", times.last());
    let found: BTreeSet<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    let promised = [
        "CNP sent",
        "CNP received",
        "rate cut",
        "rate increase",
        "stage",
        "window cut",
        "window increase",
        "retransmission",
        "go back",
        "timeout",
        "packet dropped",
        "frame dropped",
        "pause sent",
        "resume sent",
        "pause begins",
        "pause ends",
        "watchdog empties queue",
        "watchdog restores queue",
        "flow begins",
        "flow ends",
        "state",
    ];
    let missing: Vec<&&str> = promised.iter().filter(|event| !found.contains(**event)).collect();
    assert!(missing.is_empty(), "{missing:?} are not among {found:?}");
    // Places: congestion of a flow is at its source; pauses are at ports of the node.
    let qpn_of_flow_0 =
        lines.iter().find(|line| line["event"] == "flow begins" && line["flow"] == 0).unwrap();
    assert_eq!((&qpn_of_flow_0["node"], &qpn_of_flow_0["peer"]), (&"h0".into(), &"h3".into()));
    let cuts = lines.iter().filter(|line| line["event"] == "rate cut" && line["qpn"] == qpn_of_flow_0["qpn"]);
    assert!(cuts.clone().count() > 0 && cuts.clone().any(|line| line["node"] == "h0"));
    for line in lines.iter().filter(|line| line["event"] == "pause begins") {
        let (node, port) = (line["node"].as_str().unwrap(), line["port"].as_str().unwrap());
        assert!(port.starts_with(&format!("{node}->")), "{line}");
    }
}

/// The trace contains as many events as the engines have counted.
#[test]
fn a_trace_misses_no_event_that_is_counted() {
    let place = Place::new();
    let (finished, text) = place.trace("one.json", &["--json", "--trace-level", "trace"]);
    let summary: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let lines = check(&text, true);
    let count = |event: &str| lines.iter().filter(|line| line["event"] == event).count() as u64;
    assert_eq!(Some(count("CNP sent")), summary["cnps_sent"].as_u64());
    assert_eq!(Some(count("retransmission")), summary["retransmitted"].as_u64());
    assert_eq!(Some(count("timeout")), summary["timeouts"].as_u64());
    let handled = lines.iter().filter(|line| line["event"] == "CNP received" && line["handled"] == true);
    assert_eq!(Some(handled.count() as u64), summary["cnps_handled"].as_u64());
    let dropped: u64 = summary["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert!(dropped > 0 && count("frame dropped") == dropped, "{dropped}");
    let of_switches = |line: &&Value| line["node"].as_str().unwrap().starts_with('s');
    assert!(lines.iter().filter(of_switches).any(|line| line["event"] == "pause sent"));
    // Tracing does not change the run.
    let untraced = Running::start(roce().args(["sim", &place.path("busy.toml"), "--json"])).finish(60);
    let untraced: Value = serde_json::from_str(&untraced.stdout).expect("JSON");
    assert_eq!(untraced["trace_hash"], summary["trace_hash"]);
}

#[test]
fn the_same_run_writes_the_same_bytes() {
    let place = Place::new();
    let (_, one) = place.trace("one.json", &["--trace-level", "trace"]);
    let (_, other) = place.trace("other.json", &["--trace-level", "trace"]);
    assert!(one.len() > 50_000, "{}", one.len());
    assert!(one == other, "the files differ");
    for threads in ["2", "4"] {
        let (_, other) = place.trace("other.json", &["--trace-level", "trace", "--threads", threads]);
        assert!(one == other, "the file of {threads} threads differs");
    }
}

#[test]
fn levels_leave_out_what_is_below_them_and_nothing_else() {
    let place = Place::new();
    let of = |level: &str| {
        let (finished, text) = place.trace("one.json", &["--trace-level", level]);
        assert!(finished.success, "{}", finished.stderr);
        check(&text, true)
    };
    let all = of("trace");
    for (level, kept) in [("debug", 3), ("info", 2), ("warn", 1), ("error", 0)] {
        let order = ["ERROR", "WARN", "INFO", "DEBUG"];
        let is_kept = |line: &&Value| order[..=kept].contains(&line["level"].as_str().unwrap());
        let expected: Vec<Value> = all.iter().filter(is_kept).cloned().collect();
        assert_eq!(of(level), expected, "{level}");
    }
    assert!(all.iter().any(|line| line["level"] == "INFO"));
}

#[test]
fn a_run_that_fails_has_its_events_up_to_there() {
    let place = Place::new();
    let out = place.path("out");
    std::fs::create_dir(&out).unwrap();
    // The capture encounters a full disk during the run.
    std::os::unix::fs::symlink("/dev/full", Path::new(&out).join("h0.pcapng")).unwrap();
    let (finished, text) = place.trace("one.json", &["--out", &out, "--pcap-port", "h0"]);
    assert!(!finished.success, "{}", finished.stdout);
    let lines = check(&text, true);
    assert!(lines.iter().any(|line| line["event"] == "flow begins"), "{text}");
}

#[test]
fn a_trace_of_a_sweep_is_that_of_one_combination() {
    let place = Place::new();
    let sweep = ["--sweep", "host.congestion=none,dcqcn:paper"];
    let (finished, _) = place.trace("one.json", &sweep);
    assert!(!finished.success && finished.stderr.contains("--index"), "{}", finished.stderr);
    let out = place.path("out");
    let (finished, text) = place.trace("one.json", &[&sweep[..], &["--index", "1", "--out", &out]].concat());
    assert!(finished.success, "{}", finished.stderr);
    let (_, single) = place.trace("other.json", &["--set", "host.congestion=dcqcn:paper"]);
    assert!(!text.is_empty() && text == single);
}

#[test]
fn events_on_a_wire_have_the_same_names_fields_and_units() {
    let place = Place::new();
    let file = place.path("wire.json");
    let demo = ["demo", "--trace", &file, "--trace-level", "trace"];
    let finished = Running::start(roce().current_dir(place.0.path()).args(demo)).finish(120);
    assert!(finished.success, "{}", finished.stderr);
    let text = std::fs::read_to_string(&file).unwrap();
    let of_library: Vec<&str> = text
        .lines()
        .filter(|line| REPORTING.iter().any(|(_, module)| line.contains(&format!("\"target\":\"{module}::"))))
        .collect();
    let lines = check(&of_library.join("\n"), false);
    for event in ["state", "retransmission", "early retransmission"] {
        assert!(lines.iter().any(|line| line["event"] == event), "{event}");
    }
}
