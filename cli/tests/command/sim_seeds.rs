//! `roce sim --seeds`: what the seed decides, and a warning if it decides nothing.

use crate::common::{Finished, Running, roce};
use serde_json::Value;

/// Equal senders that start together. Nothing is drawn at random, but their frames meet at the switch.
const INCAST: &str = r#"
name = "incast"
[topology]
kind = "star"
hosts = 5
[switch]
marking = { off = true }
[host]
congestion = "hpcc"
[[flows]]
kind = "incast"
degree = 4
to = "h4"
bytes = "200KB"
"#;

/// One flow, whose packets meet nothing.
const ALONE: &str = r#"
name = "alone"
[topology]
kind = "point-to-point"
[[flows]]
kind = "pair"
from = "h0"
to = "h1"
bytes = "100KB"
"#;

fn sim(scenario: &str, options: &[&str]) -> Finished {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("scenario.toml"), scenario).unwrap();
    let mut command = roce();
    command.current_dir(place.path()).args(["sim", "scenario.toml", "--seeds", "3"]).args(options);
    let finished = Running::start(&mut command).finish(60);
    assert!(finished.success, "{finished:?}");
    finished
}

fn group(scenario: &str, options: &[&str]) -> Value {
    let finished = sim(scenario, &[options, &["--json"]].concat());
    let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    document["groups"][0].clone()
}

const WARNING: &str =
    "warning: all 3 seeds gave the same figures, because nothing in this scenario is random";

/// Regression: the intervals of an incast with HPCC were ± 0, because ties were always in the order of ports.
#[test]
fn simultaneous_frames_make_seeds_differ() {
    let of_seed = group(INCAST, &[]);
    assert_eq!(of_seed["seeds_differ"], true, "{of_seed}");
    let spread = of_seed["metrics"]["completion_max_seconds"]["ci95"].as_f64().unwrap();
    let median = of_seed["metrics"]["completion_p50_seconds"]["ci95"].as_f64().unwrap();
    assert!(spread > 0.0 || median > 0.0, "{of_seed}");
    assert!(!sim(INCAST, &[]).stdout.contains("warning:"));
    let of_port = group(INCAST, &["--set", "ties=port"]);
    assert_eq!(of_port["seeds_differ"], false, "{of_port}");
}

#[test]
fn a_warning_says_that_seeds_do_not_differ() {
    let finished = sim(ALONE, &[]);
    assert!(finished.stdout.contains(WARNING), "{}", finished.stdout);
    assert_eq!(group(ALONE, &[])["seeds_differ"], false);
    // The warning names the values of its group.
    let swept = sim(ALONE, &["--sweep", "flows.0.bytes=1KB,2KB"]);
    assert!(swept.stdout.contains("warning: flows.0.bytes=2KB: all 3 seeds"), "{}", swept.stdout);
}
