//! `roce demo` as a new user runs it: without root, in any folder.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::common::{
    Finished, Running, as_nobody, has_program, on_idle, own_address, roce, run, skip_unless, tshark,
};
use serde_json::Value;

/// The result of a run.
struct Run {
    capture: PathBuf,
    finished: Finished,
}

/// Runs a demo while no other one runs. The time limit is short, because a demo must be quick.
fn run_alone(command: &mut Command, seconds: u64) -> Finished {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Running::start(command).finish(seconds)
}

/// Returns the run that several tests examine.
fn ordinary_run() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let (finished, folder) = new_run();
        assert!(finished.success, "{}\n{}", finished.stdout, finished.stderr);
        // Use a copy, because static variables are not dropped and the temporary folder would stay behind.
        let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo.pcapng");
        std::fs::copy(folder.path().join("demo.pcapng"), &capture).unwrap();
        Run { capture, finished }
    })
}

/// Runs `roce demo` in a new folder, as the user nobody if this test runs as root.
fn new_run() -> (Finished, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = as_ordinary_user(folder.path());
    command.current_dir(folder.path()).arg("demo");
    command.arg("--device").args([device(), device()]);
    (run_alone(&mut command, 120), folder)
}

fn device() -> String {
    format!("udp:{}", own_address())
}

/// Returns the command as an unprivileged user who may write to `folder`.
fn as_ordinary_user(folder: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return roce();
    }
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let command = as_nobody();
    skip_unless(command.is_some(), "setpriv is not installed; the demo runs as root instead");
    let Some(mut command) = command else { return roce() };
    // The user nobody cannot read the build folder of root.
    let program = folder.join("roce");
    std::fs::copy(env!("CARGO_BIN_EXE_roce"), &program).unwrap();
    command.arg(program);
    command
}

#[test]
fn an_ordinary_user_sees_every_operation_within_half_a_minute() {
    let Finished { stdout, stderr, took, .. } = &ordinary_run().finished;
    assert_eq!(stderr, "");
    // The run is repeated because the machine may be busy.
    let again = std::iter::repeat_with(|| on_idle(new_run().0.took));
    let times: Vec<Duration> = std::iter::once(on_idle(*took))
        .chain(again)
        .take(3)
        .take_while(|took| *took >= Duration::from_secs(30))
        .collect();
    assert!(times.len() < 3, "it took {times:?}");
    assert!(stdout.contains("all contents are correct"), "{stdout}");

    let parts: Vec<&str> = stdout.trim().split("\n\n").collect();
    let part = |number: &str| *parts.iter().find(|part| part.starts_with(number)).unwrap_or(&"");
    let (clean, lossy) = (part("1. "), part("2. "));
    let count = |text: &str, word: &str| text.lines().filter(|line| line.trim().starts_with(word)).count();
    assert_eq!((count(clean, "ok"), count(clean, "lost")), (13, 0), "{clean}");
    // Reliable operations are never lost; the unreliable ones may be.
    assert_eq!(count(lossy, "ok") + count(lossy, "lost"), 13, "{lossy}");
    for line in lossy.lines().filter(|line| line.contains(" RC ")) {
        assert!(line.trim().starts_with("ok") && line.contains("20 of 20"), "{line}");
    }
    assert!(lossy.contains("packets retransmitted"), "{lossy}");
    for (number, rows) in [("3. ", 2), ("4. ", 4)] {
        let table = part(number);
        let found = table.lines().filter(|line| line.trim().starts_with(|c: char| c.is_ascii_digit()));
        // The heading begins with a digit as well.
        assert_eq!(found.count(), rows + 1, "{table}");
    }
}

#[test]
fn every_icrc_in_the_capture_is_good_and_every_transport_is_in_it() {
    let capture = ordinary_run().capture.to_str().unwrap();
    let bad = run(&["dissect", "--bad-icrc", capture]);
    assert!(bad.success, "{}", bad.stderr);
    assert_eq!(bad.stdout, "", "packets with a bad ICRC");
    assert!(bad.stderr.contains(" 0 bad, 0 not checked"), "{}", bad.stderr);
    assert!(!bad.stderr.contains("malformed"), "{}", bad.stderr);

    let all = run(&["dissect", capture]);
    assert!(all.success);
    for opcode in [
        "RC_SEND_FIRST",
        "RC_SEND_ONLY_WITH_IMM",
        "RC_RDMA_WRITE_FIRST",
        "RC_RDMA_WRITE_LAST_WITH_IMM",
        "RC_RDMA_READ_REQUEST",
        "RC_RDMA_READ_RESPONSE_MIDDLE",
        "RC_COMPARE_SWAP",
        "RC_FETCH_ADD",
        "RC_ATOMIC_ACKNOWLEDGE",
        "RC_ATOMIC_WRITE",
        "RC_FLUSH",
        "RC_ACKNOWLEDGE",
        "UC_SEND_FIRST",
        "UC_RDMA_WRITE_LAST_WITH_IMM",
        "UD_SEND_ONLY",
        "UD_SEND_ONLY_WITH_IMM",
    ] {
        assert!(all.stdout.contains(opcode), "no {opcode} in the capture");
    }
}

#[test]
fn tshark_reads_every_packet_of_the_capture() {
    if skip_unless(has_program("tshark"), "tshark is not installed") {
        return;
    }
    let capture = &ordinary_run().capture;
    let table = |filter: &str, fields: &[&str]| -> Vec<String> {
        let mut command = tshark();
        command.arg("-r").arg(capture).args(["-Y", filter, "-T", "fields"]);
        for field in fields {
            command.args(["-e", field]);
        }
        let finished = Running::start(&mut command).finish(60);
        assert!(finished.success, "{}", finished.stderr);
        finished.stdout.lines().map(str::to_owned).collect()
    };
    let all = table("udp.port == 4791", &["frame.number", "frame.protocols", "infiniband.bth.opcode"]);
    assert!(all.len() > 500, "only {} packets", all.len());
    for line in &all {
        assert!(line.contains(":infiniband"), "{line}");
        assert!(line.split('\t').nth(2).is_some_and(|opcode| !opcode.is_empty()), "{line}");
    }
    let everything = table("frame", &["frame.number"]);
    assert_eq!(everything.len(), all.len(), "something else than RoCE v2 is in the capture");
    assert_eq!(table("_ws.malformed || _ws.short", &["frame.number", "infiniband.bth.opcode"]), [""; 0]);
}

/// Returns the queue pair numbers, first PSNs and remote keys of a run.
fn numbers(capture: &Path) -> Vec<Value> {
    let finished = run(&["dissect", "--json", capture.to_str().unwrap()]);
    assert!(finished.success, "{}", finished.stderr);
    let mut numbers: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|packet| packet.get("infiniband.reth.r_key").is_some())
        .map(|packet| {
            let field = |name: &str| packet[name].clone();
            [field("infiniband.bth.destqp"), field("infiniband.bth.psn"), field("infiniband.reth.r_key")]
                .into()
        })
        .collect();
    // Retransmissions count once.
    numbers.dedup();
    numbers.truncate(5);
    assert_eq!(numbers.len(), 5, "{numbers:?}");
    numbers
}

#[test]
fn a_seed_gives_the_same_numbers_again_and_json_tells_everything() {
    let folder = tempfile::tempdir().unwrap();
    let capture = |name: &str, seed: Option<&str>| {
        let path = folder.path().join(name);
        let mut command = roce();
        command.args(["demo", "--json", "--pcap"]).arg(&path).args(["--device", &device(), &device()]);
        if let Some(seed) = seed {
            command.args(["--seed", seed]);
        }
        let finished = run_alone(&mut command, 60);
        assert!(finished.success, "{}", finished.stderr);
        let findings: Value = serde_json::from_str(&finished.stdout).expect("JSON and nothing else");
        assert_eq!(findings["operations"].as_array().unwrap().len(), 13);
        assert_eq!(findings["under_loss"].as_array().unwrap().len(), 13);
        assert!(findings["retransmitted_packets"].as_u64() > Some(0), "{findings}");
        assert_eq!(findings["ping"].as_array().unwrap().len(), 2);
        assert_eq!(findings["blast"].as_array().unwrap().len(), 4);
        numbers(&path)
    };
    let first = capture("first.pcapng", Some("77"));
    assert_eq!(first, capture("second.pcapng", Some("77")));
    assert_ne!(first, capture("third.pcapng", None));
}

#[test]
fn impossible_demos_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("missing").join("demo.pcapng");
    let finished = run(&["demo", "--pcap", nowhere.to_str().unwrap(), "--device", &device(), &device()]);
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("missing"), "{}", finished.stderr);
    assert!(finished.stderr.contains("--pcap chooses another file"), "{}", finished.stderr);

    let pcap = folder.path().join("demo.pcapng");
    let taken = own_address();
    let _owner = std::net::UdpSocket::bind((taken, 4791)).unwrap();
    for (near, far) in [(format!("udp:{taken}"), device()), (device(), format!("udp:{taken}"))] {
        let finished = run(&["demo", "--pcap", pcap.to_str().unwrap(), "--device", &near, &far]);
        assert_eq!(finished.code, Some(1), "{}", finished.stdout);
        assert!(
            finished.stderr.contains(&format!("UDP port 4791 of {taken} is taken")),
            "{}",
            finished.stderr
        );
    }
}

/// Runs the demo in its own network namespace, after a script that changes its loopback interface.
fn in_namespace(script: &str) -> Option<Finished> {
    let can = rustix::process::geteuid().is_root() && has_program("unshare") && has_program("ip");
    if skip_unless(can, "network namespaces need root, unshare and ip") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_roce");
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &format!("{script}; exec {program} demo")]).current_dir(folder.path());
    Some(run_alone(&mut command, 180))
}

/// Regression: the demo needed 127.0.0.1 and 127.0.0.2.
#[test]
fn one_loopback_address_of_either_version_is_enough() {
    for script in [
        "ip link set lo up; ip address delete 127.0.0.1/8 dev lo",
        "ip link set lo up; ip address delete 127.0.0.1/8 dev lo; ip address add 127.0.0.1/32 dev lo; ip address delete ::1/128 dev lo",
    ] {
        let Some(finished) = in_namespace(script) else { return };
        assert!(finished.success, "{script}: {}{}", finished.stdout, finished.stderr);
        assert!(finished.stdout.contains("all contents are correct"), "{}", finished.stdout);
    }
}

/// Regression: the demo waited forever for its second process.
#[test]
fn a_loopback_interface_that_is_down_is_named() {
    let Some(finished) = in_namespace("true") else { return };
    assert_eq!(finished.code, Some(1), "{}", finished.stdout);
    assert!(finished.stderr.contains("ip link set lo up"), "{}", finished.stderr);
}

/// Regression: the demo failed in a directory without write permission.
#[test]
fn a_read_only_directory_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = as_ordinary_user(folder.path());
    command
        .current_dir("/")
        .env("TMPDIR", folder.path())
        .args(["demo", "--device"])
        .args([device(), device()]);
    let finished = run_alone(&mut command, 120);
    assert!(finished.success, "{}", finished.stderr);
    let said = format!("The packets are in {}/roce-demo-", folder.path().display());
    assert!(finished.stdout.contains(&said), "{}", finished.stdout);
}
