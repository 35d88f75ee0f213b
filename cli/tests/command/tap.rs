//! The commands over TAPs: two processes, each a host of its own, on a bridge in a namespace of this test.

use std::process::Command;

use crate::common::{Finished, Running, TAPS_ON_A_BRIDGE, check_measured, has_program, script, skip_unless};

/// Returns a command that runs a shell script with the functions of [`script`] in its own network namespace,
/// without privilege.
fn in_namespace(body: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", &script(body)]);
    command.env("ROCE", env!("CARGO_BIN_EXE_roce"));
    command
}

#[track_caller]
fn cannot_run() -> bool {
    let tools = has_program("unshare") && has_program("ip");
    if skip_unless(tools, "unshare or ip is not installed; they are in util-linux and iproute2") {
        return true;
    }
    let works = in_namespace("ip tuntap add dev roce0 mode tap").output();
    let works = works.is_ok_and(|output| output.status.success());
    skip_unless(works, "a TAP in a namespace of one's own takes /dev/net/tun and user namespaces")
}

fn measure(tool: &str, server: &str, client: &str, to: &str) {
    let mut command = in_namespace(TAPS_ON_A_BRIDGE);
    command.env("TOOL", tool).env("SERVER", server).env("CLIENT", client).env("TO", to);
    let finished = Running::start(&mut command).finish(60);
    assert!(finished.success, "{finished:?}");
    check_measured(&finished.stdout, "tap");
}

#[test]
fn ping_and_blast_between_two_taps() {
    if cannot_run() {
        return;
    }
    measure("ping", "ip=198.18.0.2/24", "ip=198.18.0.3/24", "198.18.0.2");
    measure("blast", "ip6=2001:db8::2/64", "ip6=2001:db8::3/64", "2001:db8::2");
}

/// Runs `roce limit` between two TAPs. The exchange uses the bridge's own address, so the server must allow
/// the address of the client's TAP.
fn limit(more: &str) -> Finished {
    let mut command = in_namespace(TAPS_ON_A_BRIDGE);
    command
        .env("TOOL", "limit")
        .env("SERVER_OPTIONS", "--listen 198.18.0.1 --allow-peer 198.18.0.3")
        .env("TO", "198.18.0.1");
    command.env("SERVER", "ip=198.18.0.2/24").env("CLIENT", "ip=198.18.0.3/24");
    Running::start(command.env("MORE", more)).finish(60)
}

#[test]
fn kernel_tcp_between_addresses_of_taps_is_refused() {
    if cannot_run() {
        return;
    }
    let refused = limit("--tcp");
    assert!(refused.stderr.contains("are not the kernel's") && !refused.success, "{refused:?}");
}

/// The hosts start without neighbor entries. The receiving host never sends on its own initiative, but must
/// answer address resolution.
#[test]
fn the_limit_of_two_taps() {
    if cannot_run() {
        return;
    }
    // On a busy machine, a round trip takes milliseconds.
    let finished = limit("--round-trips 200");
    assert!(finished.success, "{finished:?}");
    let document = finished.stdout.find('{').and_then(|start| finished.stdout.get(start..)).expect("JSON");
    let document: serde_json::Value = serde_json::from_str(document).expect("JSON");
    assert_eq!(document["kinds"], serde_json::json!(["tap", "tap"]));
    for row in document["rows"].as_array().expect("rows") {
        assert!(row["arrived"].as_u64().unwrap() > 0, "{row}");
    }
    assert!(document["latency"]["median_seconds"].as_f64().unwrap() > 1e-7, "{document}");
}

#[test]
fn a_client_names_the_neighbor_that_does_not_answer() {
    if cannot_run() {
        return;
    }
    let script = r#""$ROCE" ping 198.18.0.9 --device tap:roce0,ip=198.18.0.2/24"#;
    let finished = Running::start(&mut in_namespace(script)).finish(60);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("198.18.0.9 does not answer"), "{}", finished.stderr);
}

#[test]
fn devices_says_whether_taps_can_be_made() {
    if cannot_run() {
        return;
    }
    let tap = |script: &str| {
        let finished = Running::start(&mut in_namespace(script)).finish(60);
        assert!(finished.success, "{finished:?}");
        finished.stdout.lines().find(|line| line.starts_with("tap ")).expect("a line for tap").to_owned()
    };
    let inside = tap(r#"ip link set lo up; "$ROCE" devices"#);
    assert!(inside.contains("usable"), "{inside}");
    // A nested user namespace that has no network of its own has no rights to this network.
    let further_in = tap(r#"ip link set lo up; unshare --user --map-root-user "$ROCE" devices"#);
    assert!(further_in.contains("lacks") && further_in.contains("CAP_NET_ADMIN"), "{further_in}");
}
