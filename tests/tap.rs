//! The commands over TAPs: two processes, each a host of its own, on a bridge in a namespace that this test made.

mod common;

use std::process::Command;

use common::{Running, has_program, skip_unless};

/// What runs in the namespace: a server and a client, each with a TAP, and the bridge between them.
const SCRIPT: &str = r#"
    set -e
    ip link set lo up
    ip link add br0 type bridge mcast_snooping 0
    ip link set br0 mtu 4200 up
    "$ROCE" "$TOOL" --device "tap:roce2,$SERVER,mtu=4200" --once &
    server=$!
    trap 'kill $server 2>/dev/null || true' EXIT
    for name in roce2 roce3; do
        if [ $name = roce3 ]; then
            "$ROCE" "$TOOL" "$TO" --device "tap:roce3,$CLIENT,mtu=4200" -n 50 --json &
            client=$!
        fi
        tries=0
        until ip link set $name master br0 2>/dev/null; do
            tries=$((tries + 1))
            [ $tries -lt 200 ]
            sleep 0.02
        done
    done
    wait $client
    wait $server
"#;

/// A command that runs a shell script in a network namespace of its own, without privilege.
fn in_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c", script]);
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
    let mut command = in_namespace(SCRIPT);
    command.env("TOOL", tool).env("SERVER", server).env("CLIENT", client).env("TO", to);
    let finished = Running::start(&mut command).finish(60);
    assert!(finished.success, "{finished:?}");
    let start = finished.stdout.find('{').expect("JSON");
    let end = finished.stdout.rfind('}').expect("JSON");
    let document: serde_json::Value = serde_json::from_str(&finished.stdout[start..=end]).expect("JSON");
    assert_eq!(document["device"], "tap");
    assert_eq!(document["plan"]["path_mtu"], 4096);
    assert_eq!(document["rows"][0]["iterations"], 50);
}

#[test]
fn ping_and_blast_between_two_taps() {
    if cannot_run() {
        return;
    }
    measure("ping", "ip=198.18.0.2/24", "ip=198.18.0.3/24", "198.18.0.2");
    measure("blast", "ip6=2001:db8::2/64", "ip6=2001:db8::3/64", "2001:db8::2");
}

#[test]
fn a_client_that_finds_nobody_says_who_does_not_answer() {
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
    // In a namespace further in without a network of its own, the right to this network is gone.
    let further_in = tap(r#"ip link set lo up; unshare --user --map-root-user "$ROCE" devices"#);
    assert!(further_in.contains("lacks") && further_in.contains("CAP_NET_ADMIN"), "{further_in}");
}
