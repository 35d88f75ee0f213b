//! Every shipped script against the engine, in virtual time.

use roce_peer::bed::{EngineNic, run_virtual};
use roce_peer::output::{failure_text, junit, write_capture};
use roce_peer::run::{Outcome, Report};
use roce_peer::script::{Files, Script};
use roce_peer::shipped::{SHIPPED, shipped};

#[track_caller]
fn script(text: &str) -> Script {
    Script::load("a.roce", &Files::of([("a.roce", text)])).unwrap()
}

fn run(text: &str) -> Report {
    run_virtual(&script(text), &mut EngineNic::new(1))
}

/// Returns the expectation and the finding of a script that must fail.
#[track_caller]
fn failure(text: &str) -> (String, String) {
    match run(text).outcome {
        Outcome::Failed(failure) => (failure.expected, failure.found),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_script_passes_against_the_engine() {
    assert!(SHIPPED.len() >= 80, "{} scripts", SHIPPED.len());
    let mut wrong = Vec::new();
    for (name, _) in SHIPPED {
        let script = shipped(name).unwrap().unwrap();
        for seed in [1, 2] {
            for mut nic in [EngineNic::new(seed), EngineNic::new(seed).over_ipv6()] {
                let report = run_virtual(&script, &mut nic);
                if let Some(text) = failure_text(&report) {
                    wrong.push(format!("{name}, seed {seed}\n{text}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} scripts failed:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_script_has_a_title_and_a_rule() {
    for (name, _) in SHIPPED {
        let script = shipped(name).unwrap().unwrap();
        assert!(script.title.ends_with('.'), "{name}: the first line is a sentence that says what is shown");
        let rules: Vec<&str> = script.rules().collect();
        assert!(rules.iter().any(|rule| rule.starts_with("IBTA ")), "{name}: {rules:?}");
    }
}

/// Equal seeds make equal runs, packet by packet.
#[test]
fn runs_are_repeatable() {
    let script = shipped("request-timeout").unwrap().unwrap();
    let packets = || {
        let report = run_virtual(&script, &mut EngineNic::new(7));
        report.records.into_iter().map(|record| (record.at, record.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(packets(), packets());
}

#[test]
fn failures_say_what_was_expected_and_what_arrived() {
    let begin = "connect rc\nsend write_only psn=100 ackreq\n";
    for (end, expected, found) in [
        ("expect ack psn=101 within 1ms", "ack psn=101 within 1ms", "ack psn=100 msn=1: psn is 100, not 101"),
        ("expect nak access psn=100", "nak access psn=100", "its syndrome is 0x1f (ACK)"),
        ("expect read_response_only psn=100", "read_response_only psn=100", "it is not read_response_only"),
        ("expect ack psn=100 msn=2..5", "ack psn=100 msn=2..5", "msn is 1, not in 2..5"),
        ("expect ack psn!=100", "ack psn!=100", "psn is 100"),
        ("expect nothing for 1ms", "nothing for 1ms", "ack psn=100 msn=1 after 0.000 ms"),
        ("expect ack after 1ms within 2ms", "ack after 1ms within 2ms", "too early"),
        ("ignore 1\nexpect ack within 2ms", "ack within 2ms", "nothing arrived within 2.000 ms"),
        ("ignore 2", "ignore 2", "only 1 packets arrived"),
        ("expect ack\ncheck state == err", "check state == err", "the queue pair is in RTS"),
        ("expect ack\ncounter duplicate_request += 1", "counter duplicate_request += 1", "grew by 0"),
        ("expect ack as a\ncheck a.msn == 2", "check a.msn == 2", "the left side is 1, the right side is 2"),
        (
            "expect ack\ncompletion id=1 success within 1ms",
            "completion id=1 success within 1ms",
            "no completion",
        ),
        ("expect ack\nsend ack psn=1 syndrome=256", "a step that can be carried out", "the field has 8 bits"),
        ("expect ack\nwait 5", "a step that can be carried out", "5 is not a time; add a unit, such as 5ms"),
        ("wait 1ms", "no more packets", "ack psn=100 msn=1"),
    ] {
        let (was_expected, was_found) = failure(&format!("{begin}{end}"));
        assert_eq!(was_expected, expected, "{end}");
        assert!(was_found.contains(found), "{end}: {was_found}");
    }
}

#[test]
fn a_failure_shows_its_line_its_rule_and_the_packets_before() {
    let report = run("rule \"IBTA 9.7\"\nconnect rc\nsend write_only psn=100 ackreq\nexpect ack psn=99");
    let text = failure_text(&report).unwrap();
    for part in [
        "a.roce:4: expect ack psn=99",
        "rule:     IBTA 9.7",
        "expected: ack psn=99",
        "script -> write_only ackreq psn=100",
        "NIC    <- ack psn=100 msn=1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(junit(&[report]).contains("failures=\"1\""));
}

/// A loop cannot run forever, and a NIC that does not answer ends a script in time.
#[test]
fn every_script_ends() {
    let (_, found) = failure("connect rc\nrepeat 1000000 {\nrepeat 1000000 {\nlet a = 1\n}\n}");
    assert!(found.contains("more than 1000000 steps"), "{found}");
    let (_, found) = failure("connect rc\nexpect ack");
    assert!(found.contains("nothing arrived within 1000.000 ms"), "{found}");
    assert!(
        run("let a = 3\nrepeat 0 {\nlet a = a + 1\n}\nrepeat a as i {\nlet b = i\n}\ncheck b == 2")
            .has_passed()
    );
}

#[test]
fn values_of_a_packet_are_variables() {
    let text = "connect rc reads=4
memory local 64 bytes
post read id=1 data=local[0..16] va=0x1000 rkey=7
expect read_request as r
send read_response_only psn=r.psn msn=1 payload=0x33*r.len
completion id=1 success bytes=r.len
check r.va == 0x1000
check local[0..16] == 0x33";
    let report = run(text);
    assert!(report.has_passed(), "{report:?}");
}

#[test]
fn a_capture_has_every_packet_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pcapng");
    let report = run("connect rc\nsend write_only psn=100 ackreq\nexpect ack");
    write_capture(&file, &[report]).unwrap();
    let mut reader = roce_capture::CaptureReader::open(&file).unwrap();
    let mut comments = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let frame = roce_packet::Frame::parse(packet.bytes).unwrap();
        assert!(frame.verify_icrc().unwrap().is_good());
        comments.push(packet.comment.unwrap().to_owned());
    }
    assert_eq!(
        comments,
        ["a.roce:2: write_only ackreq psn=100 va=0x0 rkey=0x0 len=0", "a.roce:3: ack psn=100 msn=1"]
    );
}
