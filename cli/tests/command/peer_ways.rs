//! The ways in which `roce peer` reaches a NIC: servers of the original perftest, a listener of rdma_cm, and
//! Ethernet frames of a TAP.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use roce_device::OpenOptions;
use roce_peer::bed::Agent;
use roce_peer::shipped::SHIPPED;
use roce_testing::in_own_network;

use crate::common::{
    Finished, Running, TCP_LISTEN, has_program, has_tcp_socket, own_address, roce, run, skip_unless, within,
};
use crate::peer::{cannot_compile, compile, run_every_script, start_agent};

/// Starts an original program of perftest under `roce run`, as a server. Returns it and its TCP port.
fn start_original(root: &Path, program: &str, nic: &str) -> (Running, u16) {
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let free = TcpListener::bind((nic, 0)).unwrap().local_addr().unwrap().port();
    let mut command = roce();
    command.args(["run", "--device", &format!("udp:{nic}"), "--"]).arg(root.join("usr/bin").join(program));
    command
        .args(["-d", "roce0", "-s", "4096", "-F", "-p", &free.to_string()])
        .env("LD_LIBRARY_PATH", libraries);
    let server = Running::start(&mut command);
    // Its output stays in a buffer, so the kernel's table of sockets tells when it listens.
    let end = Instant::now() + Duration::from_secs(20);
    while !is_listening(free) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    (server, free)
}

/// Returns whether a program listens on a TCP port.
fn is_listening(port: u16) -> bool {
    let port = format!(":{port:04X}");
    has_tcp_socket(|local| local.ends_with(&port), TCP_LISTEN)
}

/// Scripts against the programs of Debian's perftest, each with the operation for which its memory has the
/// rights. A server ends with its connection, so each script has one of its own.
#[test]
fn scripts_run_against_servers_of_the_original_perftest() {
    let root = roce_testing::distribution(env!("CARGO_TARGET_TMPDIR"));
    if skip_unless(root.is_some(), "no packages of a Debian system") {
        return;
    }
    let root = root.expect("checked");
    within(200, move || {
        for (program, scripts) in [
            (
                "ib_write_bw",
                &["write-acknowledged", "gap-one-nak", "key-unknown", "length-above-mtu", "drop-bad-icrc"][..],
            ),
            ("ib_send_bw", &["order-middle-first", "psn-far-behind", "key-unknown"]),
            ("ib_read_bw", &["read-empty", "read-whole-mtu", "read-duplicate-outside"]),
        ] {
            for script in scripts {
                let (nic, own) = (own_address().to_string(), format!("udp:{}", own_address()));
                let (server, port) = start_original(root, program, &nic);
                let finished =
                    run(&["peer", script, "--device", &own, "--perftest", &format!("{nic}:{port}")]);
                assert!(finished.success, "{program}, {script}: {finished:?}");
                assert!(finished.stdout.contains("1 script: 1 passed, 0 failed"), "{finished:?}");
                // The client has left before the test was over, which the server reports.
                server.finish(60);
            }
        }
    });
}

/// Returns the names of the scripts with a result, which is the first word of their line.
fn scripts_with(result: &str, finished: &Finished) -> Vec<String> {
    let lines = finished.stdout.lines().filter_map(|line| line.strip_prefix(result));
    lines.filter_map(|line| line.trim().split(".roce").next()).map(str::to_owned).collect()
}

/// Every script that needs no verbs, against queue pairs that rdma_cm connects, with the memory that the
/// listener offers. The listener serves one connection after the other.
#[test]
fn scripts_run_against_a_listener_of_rdma_cm() {
    if cannot_compile() {
        return;
    }
    within(200, || {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(folder.path(), "--rdma-cm-target", &["libibverbs.so.1", "librdmacm.so.1"]);
        let (nic, own) = (own_address().to_string(), format!("udp:{}", own_address()));
        let mut command = roce();
        command.args(["run", "--device", &format!("udp:{nic}"), "--"]).arg(program).args([&nic, "7174"]);
        let mut listener = Running::start(&mut command);
        listener.wait_for_line("listening on port 7174");
        // Two marks are not "at once" in real time.
        let names = SHIPPED.iter().map(|(name, _)| name.trim_end_matches(".roce"));
        let names: Vec<&str> = names.filter(|name| *name != "cnp-interval").collect();
        let ends = ["--device", &own, "--rdma-cm", &nic];
        let finished = Running::start(roce().arg("peer").args(names).args(ends)).finish(150);
        assert!(finished.success, "{finished:?}");
        let passed = scripts_with("ok ", &finished);
        for script in ["write-acknowledged", "gap-one-nak", "read-whole-mtu", "psn-wrap", "msn-in-nak"] {
            assert!(passed.iter().any(|name| name == script), "{script}: {finished:?}");
        }
        // The others ask for verbs.
        assert!(passed.len() >= 45, "{} of {}: {finished:?}", passed.len(), SHIPPED.len());
        let missing = run(&["peer", "gap-one-nak", "--device", &own, "--rdma-cm", &format!("{nic}:7")]);
        assert!(missing.stdout.contains("invalid service ID: no listener"), "{missing:?}");
        listener.interrupt();
        listener.finish(60);
    });
}

/// A server of rping offers no memory, so only scripts without memory apply. It ends with its connection.
#[test]
fn scripts_run_against_a_server_of_rping() {
    within(60, || {
        for (script, text) in [
            ("order-middle-first", "1 script: 1 passed, 0 failed"),
            ("write-acknowledged", "this NIC offers no (other) memory to the script"),
        ] {
            let (nic, own) = (own_address().to_string(), format!("udp:{}", own_address()));
            let mut command = roce();
            command.args(["rping", "-s", "-a", &nic, "--device", &format!("udp:{nic}")]);
            let mut server = Running::start(&mut command);
            server.wait_for_output(Duration::from_secs(20));
            let finished = run(&["peer", script, "--device", &own, "--rdma-cm", &nic]);
            assert!(finished.stdout.contains(text), "{finished:?}");
            server.interrupt();
            server.finish(60);
        }
    });
}

/// The set-up of an RTL simulation: the script and the NIC under test are two programs that open a TAP each,
/// and a bridge carries the Ethernet frames between both. Here the NIC is that of `roce run`, which knows
/// nothing of the script but its frames. The agent has a TCP connection of its own.
#[test]
fn every_script_runs_over_taps() {
    if cannot_compile() {
        return;
    }
    if skip_unless(has_program("ip"), "`ip` is not installed; it is in iproute2") {
        return;
    }
    let lines = [
        "link set lo up",
        "link add br0 type bridge mcast_snooping 0",
        "link set br0 mtu 4200 up",
        "tuntap add dev roce0 mode tap",
        "link set roce0 mtu 4200 master br0 up",
        "tuntap add dev nic0 mode tap",
        "link set nic0 mtu 4200 master br0 up",
    ];
    within(300, move || {
        in_own_network(&lines, || {
            let folder = tempfile::tempdir().unwrap();
            let (running, port) = start_agent(folder.path(), "tap:nic0,ip=198.18.0.2/24");
            let nic = [198, 18, 0, 2].into();
            let mut agent = Agent::connect(([127, 0, 0, 1], port).into(), Some(nic)).unwrap();
            let device = "tap:roce0,ip=198.18.0.1/24";
            let mut opened = roce_device::open(device, OpenOptions::default()).unwrap();
            run_every_script(opened.as_mut(), &mut agent, true);
            drop((opened, agent));
            let control = format!("127.0.0.1:{port}");
            let ends = ["--device", device, "--control", &control, "--nic", "198.18.0.2"];
            let finished = run(&[&["peer", "send-received", "write-acknowledged"], &ends[..]].concat());
            assert!(finished.success, "{finished:?}");
            running.interrupt();
            running.finish(60);
        });
    });
}
