//! `roce peer` as a process: against the engine in virtual time, and over UDP against `roce perf`.

use std::fs;
use std::time::Duration;

use crate::common::{Running, own_address, roce, run, within};

#[test]
fn all_scripts_pass_against_the_engine() {
    let finished = run(&["peer", "--quiet"]);
    assert!(finished.success, "{finished:?}");
    let expected = format!("{0} scripts: {0} passed, 0 failed\n", roce_peer::shipped::SHIPPED.len());
    assert_eq!(finished.stdout, expected);
}

#[test]
fn the_list_has_every_script_with_its_rule() {
    let finished = run(&["peer", "--list"]);
    assert!(finished.success, "{finished:?}");
    for (name, _) in roce_peer::shipped::SHIPPED {
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
        (vec!["write-empty", "--device", "udp:127.0.0.1,port=0"], "give --perftest SERVER, or --nic ADDRESS"),
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
