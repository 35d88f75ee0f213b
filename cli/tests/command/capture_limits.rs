//! `--snaplen` and `--pcap-limit` keep a capture small.

use crate::common::{Running, own_address, roce, run};
use serde_json::Value;

/// Captures a transfer of 2 MB with these options. Returns the original and captured length of each packet,
/// and the size of the file.
#[track_caller]
fn capture(options: &[&str]) -> (Vec<[u64; 2]>, u64) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("capture.pcapng").to_str().unwrap().to_owned();
    let (server, client) = (own_address().to_string(), own_address().to_string());
    let mut command = roce();
    let mut waiting = Running::start(command.args(["blast", "--once", "--device", &format!("udp:{server}")]));
    waiting.wait_for_line("waiting on");
    let device = format!("udp:{client}");
    let transfer = ["blast", &server, "--device", &device, "-n", "32", "--timeout", "18", "--pcap", &file];
    let finished = run(&[&transfer[..], options].concat());
    assert!(finished.success, "{finished:?}");
    assert!(waiting.finish(60).success);
    let listed = run(&["dissect", "--json", &file]);
    assert!(listed.success, "{listed:?}");
    let lengths = listed.stdout.lines().map(|line| {
        let packet: Value = serde_json::from_str(line).expect("JSON");
        ["frame.len", "frame.cap_len"]
            .map(|name| find(&packet, name).unwrap_or_else(|| panic!("no {name}: {packet}")))
    });
    (lengths.collect(), std::fs::metadata(&file).unwrap().len())
}

/// Returns a number by its name, at any depth.
fn find(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(map) => {
            map.get(name).and_then(Value::as_u64).or_else(|| map.values().find_map(|inner| find(inner, name)))
        }
        _ => None,
    }
}

#[test]
fn a_snaplen_keeps_the_headers_of_every_packet() {
    let (packets, size) = capture(&["--snaplen", "128"]);
    assert!(packets.len() > 512, "{} packets", packets.len());
    assert!(packets.iter().all(|[len, kept]| *kept == (*len).min(128)), "{:?}", &packets[..8]);
    assert!(packets.iter().any(|[len, _]| *len > 4_000));
    assert!(size < 300 * packets.len() as u64, "{size} bytes");
}

#[test]
fn a_limit_keeps_the_first_packets() {
    let (packets, size) = capture(&["--pcap-limit", "20"]);
    assert_eq!(packets.len(), 20);
    assert!(packets.iter().all(|[len, kept]| len == kept) && size < 100_000, "{size} bytes");
}

#[test]
fn limits_need_a_capture_and_a_number_above_zero() {
    for options in [&["--snaplen", "128"][..], &["--pcap-limit", "1"], &["--pcap", "x", "--snaplen", "0"]] {
        let finished = run(&[&["blast", "127.0.0.1"], options].concat());
        assert!(!finished.success && finished.stderr.contains(options[options.len() - 2]), "{finished:?}");
    }
}
