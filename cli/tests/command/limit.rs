//! `roce limit` in two processes.

use crate::common;
use crate::common::{Running, own_address, roce};
use serde_json::Value;

#[test]
fn frames_arrive_and_tcp_is_measured_beside_them() {
    let (server, client) = (own_address(), own_address());
    let mut command = roce();
    let mut waiting = Running::start(command.args(["limit", "--once", "--device", &format!("udp:{server}")]));
    waiting.wait_for_line("waiting on");
    let options = ["--json", "--tcp", "-n", "20000", "--round-trips", "500", "--device"];
    let finished =
        common::run(&[&["limit", &server.to_string()], &options[..], &[&format!("udp:{client}")]].concat());
    assert!(finished.success, "{finished:?}");
    let document: Value = serde_json::from_str(&finished.stdout).unwrap();
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["size"].as_u64().unwrap()).collect::<Vec<_>>(), [64, 1024, 4096]);
    for row in rows {
        let [sent, arrived] = ["sent", "arrived"].map(|name| row[name].as_u64().unwrap());
        assert!(sent == 20_000 && arrived > 10_000 && arrived <= sent, "{row}");
        assert!(row["bits_per_second"].as_f64().unwrap() > 0.0);
    }
    assert!(document["latency"]["median_seconds"].as_f64().unwrap() > 1e-7, "{document}");
    assert!(document["tcp_bits_per_second"].as_f64().unwrap() > 1e8, "{document}");
    for latency in ["tcp_latency", "tcp_event_latency"] {
        assert!(document[latency]["median_seconds"].as_f64().unwrap() > 1e-7, "{document}");
    }
    assert!(waiting.finish(60).success);
}

#[test]
fn frames_that_the_link_does_not_carry_are_refused() {
    let (server, client) = (own_address(), own_address());
    let mut command = roce();
    let mut waiting = Running::start(command.args(["limit", "--once", "--device", &format!("udp:{server}")]));
    waiting.wait_for_line("waiting on");
    let device = format!("udp:{client}");
    let finished = common::run(&["limit", &server.to_string(), "--device", &device, "-s", "70000"]);
    assert!(!finished.success && finished.stderr.contains("choose 16 to "), "{finished:?}");
}
