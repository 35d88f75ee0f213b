//! `roce peer` as a process: against the engine in virtual time, and over UDP against `roce perf`.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use roce_device::{Device, OpenOptions};
use roce_peer::bed::{Agent, run_device};
use roce_peer::output::failure_text;
use roce_peer::run::{Outcome, Record, Report};
use roce_peer::script::{Files, Script};
use roce_peer::shipped::SHIPPED;

use crate::common::{Running, has_program, own_address, roce, run, skip_unless, within};

#[test]
fn all_scripts_pass_against_the_engine() {
    let finished = run(&["peer", "--quiet"]);
    assert!(finished.success, "{finished:?}");
    let expected = format!("{0} scripts: {0} passed, 0 failed\n", SHIPPED.len());
    assert_eq!(finished.stdout, expected);
}

#[test]
fn the_list_has_every_script_with_its_rule() {
    let finished = run(&["peer", "--list"]);
    assert!(finished.success, "{finished:?}");
    for (name, _) in SHIPPED {
        assert!(finished.stdout.contains(name.trim_end_matches(".roce")), "{name}");
    }
    assert!(finished.stdout.contains("IBTA 9.7.5.1.2"));
}

#[test]
fn a_script_that_fails_is_explained_and_sets_the_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (script, xml, pcap) = (path("bad.roce"), path("out.xml"), path("out.pcapng"));
    let text = "# Wrong.\nconnect rc\nsend write_only psn=100 ackreq\nexpect ack psn=101\n";
    fs::write(&script, text).unwrap();
    let finished = run(&["peer", "write-empty", &script, "--junit", &xml, "--pcap", &pcap]);
    assert!(!finished.success, "{finished:?}");
    for part in [
        "ok      write-empty.roce",
        "bad.roce:4: expect ack psn=101",
        "ack psn=100 msn=1: psn is 100, not 101",
        "2 scripts: 1 passed, 1 failed",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {finished:?}");
    }
    let xml = fs::read_to_string(xml).unwrap();
    assert!(xml.contains("tests=\"2\" failures=\"1\"") && xml.contains("psn is 100, not 101"), "{xml}");
    let dissected = run(&["dissect", &pcap]);
    assert!(dissected.stderr.contains("4 packets: 4 RoCE"), "{dissected:?}");
    assert!(dissected.stdout.contains("bad.roce:3: write_only"), "{dissected:?}");
}

fn pcap(name: &str) -> String {
    format!("{}/../pcaps/{name}.pcapng", env!("CARGO_MANIFEST_DIR"))
}

/// Captures of our engine and of a kernel become scripts, which our engine passes.
#[test]
fn a_connection_of_a_capture_is_a_script() {
    let folder = tempfile::tempdir().unwrap();
    for (name, line) in [
        ("rc-loss", "send write_middle "),
        ("rc-rnr", "expect rnr_nak psn="),
        ("rc-read-loss", "expect read_response_first psn="),
        ("rc-refused", "expect nak access psn="),
        ("rxe-fetch-add", "send fetch_add "),
    ] {
        let printed = run(&["peer", "--from", &pcap(name)]);
        assert!(printed.success && printed.stdout.contains(line), "{name}: {printed:?}");
        let script = folder.path().join(format!("{name}.roce"));
        fs::write(&script, printed.stdout).unwrap();
        let played = run(&["peer", script.to_str().unwrap()]);
        assert!(played.success, "{name}: {played:?}");
    }
    // The other end is the NIC's requester.
    let printed = run(&["peer", "--from", &pcap("rc-loss"), "--play", "192.0.2.2"]);
    assert!(printed.stdout.contains("post write id=1 data=local[0.."), "{printed:?}");
    for (arguments, expected) in [
        (vec!["--connection", "7"], "there is no connection 7"),
        (vec!["--play", "192.0.2.9"], "has no end 192.0.2.9; its ends are 192.0.2.1 and 192.0.2.2"),
    ] {
        let failed = run(&[&["peer", "--from", &pcap("rc-loss")], arguments.as_slice()].concat());
        assert!(!failed.success && failed.stderr.contains(expected), "{failed:?}");
    }
    let failed = run(&["peer", "--from", &pcap("uc")]);
    assert!(failed.stderr.contains("no packet of RC"), "{failed:?}");
}

#[test]
fn errors_name_the_line_or_the_missing_option() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("typo.roce");
    fs::write(&script, "connect rc\nsned ack psn=1\n").unwrap();
    for (arguments, expected) in [
        (vec![script.to_str().unwrap()], "typo.roce:2: there is no statement `sned`; did you mean `send`?"),
        (vec!["no-such-script"], "no-such-script is neither a file nor a script of this program"),
        (
            vec!["write-empty", "--device", "udp:127.0.0.1,port=0"],
            "give --control NIC, --perftest SERVER, --rdma-cm NIC, or --nic",
        ),
    ] {
        let finished = run(&[&["peer"], arguments.as_slice()].concat());
        assert!(!finished.success, "{finished:?}");
        assert!(finished.stderr.contains(expected), "{finished:?}");
    }
}

/// Scripts against another process over UDP, connected by the exchange of perftest. The checks of memory and
/// counters are left out there, and every packet and answer is as in virtual time.
#[test]
fn scripts_run_over_udp_against_a_server_of_perftest() {
    for (script, unchecked) in [
        ("write-acknowledged", 2),
        ("gap-one-nak", 1),
        ("psn-far-behind", 0),
        ("key-unknown", 3),
        ("drop-bad-icrc", 2),
        ("length-above-mtu", 1),
    ] {
        within(60, move || over_udp(script, unchecked));
    }
}

#[track_caller]
fn over_udp(script: &str, unchecked: usize) {
    let (nic, own) = (own_address(), own_address());
    let [nic_device, own_device] = [nic, own].map(|address| format!("udp:{address}"));
    let mut server = Running::start(roce().args(["perf", "write", "bw", "-s", "4096", "-d", &nic_device]));
    // The server listens before the script connects.
    server.wait_for_output(Duration::from_secs(20));
    let finished = run(&["peer", script, "--device", &own_device, "--perftest", &nic.to_string()]);
    assert!(finished.success, "{script}: {finished:?}");
    let checks = match unchecked {
        0 => String::new(),
        1 => "(1 check is".to_owned(),
        count => format!("({count} checks are"),
    };
    assert!(finished.stdout.contains(&checks), "{script}: {finished:?}");
    assert_eq!(finished.stdout.contains("not possible here"), unchecked > 0, "{script}: {finished:?}");
    // The client has left before the test was over, which the server reports.
    server.finish(60);
}

/// A script that needs verbs of the NIC does not apply to a NIC that has no verbs here.
#[test]
fn a_script_that_posts_requests_does_not_apply_without_verbs() {
    let (nic, own) = (own_address(), own_address());
    let device = format!("udp:{own}");
    let stated = ["--nic", &nic.to_string(), "--nic-qp", "0x11", "--nic-va", "0x1000", "--nic-rkey", "7"];
    let finished = run(&[&["peer", "request-write", "--device", &device], &stated[..]].concat());
    assert!(!finished.success, "{finished:?}");
    assert!(finished.stdout.contains("1 script: 0 passed, 0 failed, 1 not applicable"), "{finished:?}");
    assert!(finished.stdout.contains("this NIC cannot be asked to"), "{finished:?}");
    assert!(finished.stderr.contains("expects PSN 100, sends from PSN 500"), "{finished:?}");
}

/// Scripts that do not apply to verbs of `roce` behind a UDP socket: it does not send from or to other
/// addresses, the headers of the distribution know neither ATOMIC WRITE nor FLUSH, and verbs choose no
/// congestion control.
const INAPPLICABLE: [&str; 7] = [
    "atomic-write",
    "flush",
    "drop-source-address",
    "drop-destination-address",
    "source-port",
    "cnp-received",
    "cnp-unknown-qp",
];

/// Returns whether a script failed because the NIC sent a packet again that it had sent before: `roce run`
/// repeats requests after 4 ms, and this test may take longer between two packets.
fn is_repetition(report: &Report) -> bool {
    let Outcome::Failed(failure) = &report.outcome else { return false };
    let mut sent = report.records.iter().filter(|record| !record.is_sent);
    sent.any(|record| {
        let is_equal = |other: &&Record| !other.is_sent && other.text == record.text;
        failure.found.starts_with(&record.text) && report.records.iter().filter(is_equal).count() > 1
    })
}

/// Returns a script without its checks of counters: `roce run` shows no counters of the engine in files.
fn without_counters(text: &str) -> Script {
    let lines = text.lines().filter(|line| !line.starts_with("counter "));
    let text = lines.collect::<Vec<_>>().join("\n");
    Script::load("a.roce", &Files::of([("a.roce", text.as_str())])).unwrap()
}

/// Compiles a C program that an option of `roce peer` prints, with these libraries of the distribution.
pub(crate) fn compile(folder: &std::path::Path, option: &str, libraries: &[&str]) -> std::path::PathBuf {
    let root = roce_testing::distribution(env!("CARGO_TARGET_TMPDIR")).expect("checked");
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    let printed = run(&["peer", option]);
    assert!(printed.success, "{printed:?}");
    fs::write(&source, &printed.stdout).unwrap();
    let place = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,--allow-shlib-undefined", "-o"]);
    compiler.arg(&program).arg(&source).arg("-I").arg(root.join("usr/include"));
    compiler.args(libraries.iter().map(|library| place.join(library)));
    let compiled = Running::start(&mut compiler).finish(60);
    assert!(compiled.success, "{compiled:?}");
    program
}

/// Returns whether the tests of C programs must be skipped.
#[track_caller]
pub(crate) fn cannot_compile() -> bool {
    let root = roce_testing::distribution(env!("CARGO_TARGET_TMPDIR"));
    skip_unless(root.is_some() && has_program("cc"), "no packages of a Debian system, or no C compiler")
}

/// Starts the agent that `roce peer --agent` prints on the libraries of `roce run`. Returns the agent and its
/// port.
pub(crate) fn start_agent(folder: &std::path::Path, device: &str) -> (Running, u16) {
    let program = compile(folder, "--agent", &["libibverbs.so.1"]);
    let mut command = roce();
    command.args(["run", "--device", device, "--"]).arg(program).arg("0");
    let mut agent = Running::start(&mut command);
    let line = agent.wait_for_line("listening on port");
    let port = line.rsplit(' ').next().and_then(|port| port.trim().parse().ok()).expect("a port");
    (agent, port)
}

/// Runs every script through an agent on verbs of `roce`. Over a device that sends from any port, one more
/// script applies.
pub(crate) fn run_every_script(device: &mut dyn Device, agent: &mut Agent, sends_from_any_port: bool) {
    let is_inapplicable =
        |name: &str| INAPPLICABLE.contains(&name) && !(sends_from_any_port && name == "source-port");
    let mut wrong = Vec::new();
    for (name, text) in SHIPPED {
        let script = without_counters(text);
        let slack_ns = 5_000_000_000;
        let name = name.trim_end_matches(".roce");
        let is_right = |report: &Report| match report.outcome {
            Outcome::Passed => !is_inapplicable(name),
            Outcome::Inapplicable(_) => is_inapplicable(name),
            Outcome::Failed(_) => is_repetition(report),
        };
        // On a busy machine, a request to the NIC can overtake a packet.
        let mut attempts = (0..3).map(|_| run_device(&script, device, slack_ns, agent).unwrap());
        let mut report = attempts.next().unwrap();
        while !is_right(&report)
            && let Some(again) = attempts.next()
        {
            report = again;
        }
        if !is_right(&report) {
            let text = failure_text(&report).unwrap_or_else(|| format!("{:?}\n", report.outcome));
            wrong.push(format!("{name} {text}"));
        }
    }
    assert!(wrong.is_empty(), "{} scripts:\n{}", wrong.len(), wrong.join(""));
}

/// Every script against verbs of `roce` in another process, with everything that scripts ask of the NIC.
#[test]
fn an_agent_controls_verbs_for_every_script() {
    if cannot_compile() {
        return;
    }
    within(300, || {
        let folder = tempfile::tempdir().unwrap();
        let nic = own_address();
        let (running, port) = start_agent(folder.path(), &format!("udp:{nic}"));
        let address = SocketAddr::new(nic.into(), port);
        let mut agent = Agent::connect(address, None).unwrap();
        let device = format!("udp:{}", own_address());
        let mut device = roce_device::open(&device, OpenOptions::default()).unwrap();
        run_every_script(device.as_mut(), &mut agent, false);
        // The command does it too.
        let (own, control) = (format!("udp:{}", own_address()), address.to_string());
        let finished =
            run(&["peer", "send-received", "write-acknowledged", "--device", &own, "--control", &control]);
        assert!(finished.success, "{finished:?}");
        assert!(finished.stdout.contains("2 scripts: 2 passed, 0 failed"), "{finished:?}");
        drop(agent);
        running.interrupt();
        running.finish(60);
    });
}

#[test]
fn an_agent_that_is_missing_is_named() {
    let (own, nic) = (own_address(), own_address());
    let device = format!("udp:{own}");
    let control = format!("{nic}:9");
    let finished = run(&["peer", "write-empty", "--device", &device, "--control", &control]);
    assert!(!finished.success, "{finished:?}");
    assert!(finished.stderr.contains(&format!("the agent at {control}: cannot connect")), "{finished:?}");
}
