//! `roce doctor` in two processes: it reports a healthy path, and names each problem.

mod faults;
mod network;

use std::process::Command;

use crate::common::{Finished, Running, has_program, own_address, roce, run, script, skip_unless};
use serde_json::Value;

/// Runs the doctor with these faults on the packets that each side sends; returns its JSON output.
#[track_caller]
fn examine(client_faults: &str, server_faults: &str) -> (Finished, Value) {
    let (server, client) = (own_address().to_string(), own_address().to_string());
    let mut command = roce();
    command.args(["doctor", "--once", "--device", &format!("udp:{server}"), "--fault", server_faults]);
    let mut waiting = Running::start(command.args(["--seed", "1"]));
    waiting.wait_for_line("waiting on");
    let device = format!("udp:{client}");
    let options = ["--device", &device, "--fault", client_faults, "--seed", "2", "--json"];
    let finished = run(&[&["doctor", &server], &options[..]].concat());
    assert!(waiting.finish(60).success);
    let document: Value = serde_json::from_str(&finished.stdout).expect("JSON and nothing else");
    assert_eq!(finished.code, Some(i32::from(document["healthy"] == false)), "{finished:?}");
    (finished, document)
}

fn findings(document: &Value) -> &Vec<Value> {
    document["findings"].as_array().expect("findings")
}

/// Returns the finding of a step.
#[track_caller]
fn finding<'a>(document: &'a Value, step: &str) -> &'a Value {
    let found = findings(document).iter().find(|finding| finding["step"] == step);
    found.unwrap_or_else(|| panic!("no {step} in {document}"))
}

/// Checks that a step found a problem with this text and suggests a remedy.
#[track_caller]
fn names(document: &Value, step: &str, parts: &[&str]) {
    let finding = finding(document, step);
    assert_eq!(finding["outcome"], "problem", "{finding}");
    let text = finding["text"].as_str().unwrap();
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    assert!(finding["remedy"].as_str().is_some_and(|remedy| remedy.len() > 20), "{finding}");
    assert_eq!(document["healthy"], false);
}

#[test]
fn a_healthy_path_is_reported_as_healthy() {
    let (finished, document) = examine("none", "none");
    assert!(finished.success, "{document}");
    assert_eq!(document["problems"], 0);
    assert!(document["verdict"].as_str().unwrap().contains("in both directions"), "{document}");
    for step in [
        "device",
        "mtu",
        "route",
        "udp_port",
        "exchange",
        "arrival",
        "icrc",
        "loss",
        "dscp",
        "ecn",
        "source_port",
        "path_mtu",
        "round_trip",
    ] {
        assert_eq!(finding(&document, step)["outcome"], "ok", "{document}");
    }
    assert_eq!(finding(&document, "flow_label")["outcome"], "not_tested");
    assert!(finding(&document, "path_mtu")["text"].as_str().unwrap().contains("256, 512, 1024, 2048, 4096"));
}

#[test]
fn damage_is_found_in_either_direction() {
    for (client, server) in [("corrupt=5%", "none"), ("none", "corrupt=5%")] {
        let (_, document) = examine(client, server);
        names(&document, "icrc", &["a wrong ICRC in", "packets from"]);
        // Only one of the two directions has the fault.
        assert!(!finding(&document, "icrc")["text"].as_str().unwrap().contains(" and "), "{document}");
    }
}

#[test]
fn losses_are_found_and_their_direction_is_named() {
    for (client, server) in [("drop=5%", "none"), ("none", "drop=5%")] {
        let (_, document) = examine(client, server);
        names(&document, "loss", &["of 2048 packets from"]);
        assert!(finding(&document, "loss")["remedy"].as_str().unwrap().contains("one-way"), "{document}");
    }
    let (_, document) = examine("drop=5%", "drop=5%");
    names(&document, "loss", &[" and "]);
}

#[test]
fn one_dead_direction_is_distinguished_from_two() {
    let (_, document) = examine("drop=100%", "none");
    names(&document, "arrival", &["one direction fails"]);
    let (_, document) = examine("drop=100%", "drop=100%");
    names(&document, "arrival", &["no RoCE packet arrives in either direction"]);
}

#[test]
fn a_black_hole_for_large_packets_is_found() {
    let hole = "rule:len=1100-65535,action=drop";
    for (client, server) in [(hole, "none"), ("none", hole)] {
        let (_, document) = examine(client, server);
        names(
            &document,
            "path_mtu",
            &["1024 works, 2048, 4096 does not", "black hole", "larger packets from"],
        );
    }
}

#[test]
fn changes_of_the_traffic_class_are_reported() {
    let (_, document) = examine("rule:action=clear-ecn", "none");
    names(&document, "ecn", &["ECT(0) becomes not-ECT", "CE becomes not-ECT"]);
    assert_eq!(finding(&document, "dscp")["outcome"], "ok");
    let (_, document) = examine("none", "rule:action=clear-dscp");
    names(&document, "dscp", &["26 becomes 0", "48 becomes 0"]);
    assert_eq!(finding(&document, "ecn")["outcome"], "ok");
    let (_, document) = examine("ecn=100%", "ecn=100%");
    names(&document, "ecn", &["40 of 40 packets were marked CE from"]);
}

#[test]
fn packets_out_of_order_are_found() {
    let (_, document) = examine("reorder=5%", "none");
    names(&document, "loss", &["out of order"]);
}

#[test]
fn a_closed_udp_port_is_reported() {
    let (nobody, own) = (own_address().to_string(), own_address());
    let finished = run(&["doctor", &nobody, "--device", &format!("udp:{own}")]);
    assert_eq!(finished.code, Some(1));
    for part in [
        "ICMP port unreachable",
        "nothing is listening on TCP port 18520",
        "no answer",
        "unhealthy: 2 problems",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {finished:?}");
    }
}

#[test]
fn a_peer_without_a_doctor_is_asked_through_rdma_cm() {
    let (server, own) = (own_address().to_string(), own_address());
    let mut command = roce();
    let mut waiting = Running::start(command.args(["rping", "-s", "-a", &server]));
    waiting.wait_for_line("waiting on");
    let device = format!("udp:{own}");
    let options = ["doctor", &server, "--device", &device, "--json"];
    // No service listens on the default port. The request does not disturb rping.
    for (more, part) in [(&[][..], "REJ, reason 8"), (&["--port", "7174"], "accepted (REP)")] {
        let finished = run(&[&options[..], more].concat());
        assert!(finished.success, "{finished:?}");
        let document: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(finding(&document, "exchange")["outcome"], "not_tested");
        let text = finding(&document, "rdma_cm")["text"].as_str().unwrap();
        assert!(text.contains(part), "{text}");
    }
    // A peer whose answers are damaged.
    let mut command = roce();
    let damaging = own_address().to_string();
    let mut damaged =
        Running::start(command.args(["rping", "-s", "-a", &damaging, "--fault", "rule:action=corrupt:300"]));
    damaged.wait_for_line("waiting on");
    let finished = run(&["doctor", &damaging, "--device", &device, "--json"]);
    let document: Value = serde_json::from_str(&finished.stdout).unwrap();
    names(&document, "rdma_cm", &["wrong ICRC"]);
}

#[test]
fn another_tool_on_the_port_is_detected() {
    let (server, own) = (own_address().to_string(), own_address());
    let mut command = roce();
    let mut waiting = Running::start(command.args(["ping", "--device", &format!("udp:{server}")]));
    waiting.wait_for_line("waiting on");
    let finished = run(&["doctor", &server, "--device", &format!("udp:{own}"), "--json"]);
    let document: Value = serde_json::from_str(&finished.stdout).unwrap();
    names(&document, "exchange", &["ended early"]);
    assert!(waiting.is_alive());
}

/// Runs on a virtual cable, where neighbours and frames are visible.
#[test]
fn on_a_cable_neighbours_and_frames_are_seen() {
    const SCRIPT: &str = r#"
        set -e
        ip link set lo up
        ip link add v0 type veth peer name v1
        unshare -n sleep 60 & inner=$!
        trap 'kill $inner' EXIT
        retry has_own_network $inner
        ip link set v1 netns $inner
        there="nsenter -t $inner -n"
        ip addr add 198.18.0.1/24 dev v0
        ip -6 addr add 2001:db8::1/64 dev v0 nodad
        $there ip addr add 198.18.0.2/24 dev v1
        $there ip -6 addr add 2001:db8::2/64 dev v1 nodad
        ip link set v0 up
        $there ip link set v1 up
        "$ROCE" doctor 198.18.0.77 && exit 1
        said=$(mktemp)
        $there "$ROCE" doctor --device raw:v1 -x 4 --once >$said & server=$!
        trap 'kill $inner $server 2>/dev/null || true; rm -f $said' EXIT
        retry grep -q 'waiting on' $said
        "$ROCE" doctor 2001:db8::2 --device raw:v0 -x 4
        wait $server
        cat $said
    "#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", &script(SCRIPT)]);
    command.env("ROCE", env!("CARGO_BIN_EXE_roce"));
    let mut trial = Command::new("unshare");
    let works = trial
        .args(["--user", "--map-root-user", "--net", "ip", "link", "add", "v0", "type", "veth"])
        .output();
    let works = works.is_ok_and(|output| output.status.success()) && has_program("nsenter");
    if skip_unless(works, "a virtual cable takes user namespaces, iproute2 and nsenter") {
        return;
    }
    let finished = Running::start(&mut command).finish(60);
    assert!(finished.success, "{finished:?}");
    for part in [
        "does not answer address resolution on v0",
        "through v0 to the neighbour, Ethernet address",
        "GID 4 (2001:db8::1, RoCE v2) is used",
        "0x69ce5 is kept in both directions",
        "with 256, 512, 1024, every byte",
    ] {
        assert!(finished.stdout.contains(part), "`{part}` is not in {}", finished.stdout);
    }
}
