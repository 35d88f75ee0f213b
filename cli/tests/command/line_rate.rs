//! `--line-rate` on loopback, which does not have a rate of its own.

use crate::common::{Finished, Running, own_address, roce, run};
use serde_json::Value;

/// Runs a measurement with these options of the client; returns its gigabits per second.
#[track_caller]
fn client_rate(tool: &[&str], options: &[&str]) -> f64 {
    let (server, client) = (own_address().to_string(), own_address().to_string());
    let mut command = roce();
    command.args(tool).args(["--device", &format!("udp:{server}")]);
    if tool[0] == "blast" {
        command.arg("--once");
    }
    let mut waiting = Running::start(&mut command);
    waiting.wait_for_line("waiting on");
    let device = format!("udp:{client}");
    let finished = run(&[tool, &[&server, "--device", &device, "--json"], options].concat());
    assert!(finished.success, "{finished:?}");
    assert!(waiting.finish(60).success);
    gigabits(&finished)
}

#[track_caller]
fn gigabits(finished: &Finished) -> f64 {
    let document: Value = serde_json::from_str(&finished.stdout).expect("JSON and nothing else");
    let row = &document["rows"][0];
    let rates = if row["bandwidth"].is_object() { &row["bandwidth"]["average"] } else { row };
    let rate = rates["bits_per_second"].as_f64().map(|rate| rate / 1e9);
    rate.unwrap_or_else(|| panic!("no rate in {row}"))
}

/// Gigabits per second of payload for 0.2 Gb/s on the wire. The lower bound leaves room for a busy machine.
const EXPECTED: std::ops::Range<f64> = 0.05..0.21;

#[test]
fn a_line_rate_limits_with_congestion_control_and_without() {
    // Swift and TIMELY are excluded: they react to delays of microseconds, which a busy machine has without
    // congestion.
    for congestion in ["none", "dcqcn", "dctcp"] {
        let options = ["--line-rate", "200Mbps", "--congestion", congestion, "-n", "120", "--timeout", "18"];
        let rate = client_rate(&["blast"], &options);
        assert!(EXPECTED.contains(&rate), "{congestion}: {rate} Gb/s");
    }
}

#[test]
fn a_line_rate_limits_all_queue_pairs_together() {
    let tool = ["perf", "write", "bw", "-q", "4", "-n", "40", "-s", "65536", "-u", "18"];
    let rate = client_rate(&tool, &["--line-rate", "200Mbps", "--congestion", "dcqcn"]);
    assert!(EXPECTED.contains(&rate), "{rate} Gb/s");
}

#[test]
fn a_rate_without_a_unit_is_refused_with_the_units() {
    for options in [["--line-rate", "10"], ["--congestion", "fixed:10"]] {
        let finished = run(&[&["blast", "127.0.0.1"], &options[..]].concat());
        assert!(!finished.success, "{options:?}");
        for part in ["\"10\" is not a rate", "for example 10Gbps", "bps, Kbps, Mbps, Gbps and Tbps"] {
            assert!(finished.stderr.contains(part), "{options:?}: {}", finished.stderr);
        }
    }
}
