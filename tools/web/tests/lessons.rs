//! Plays a student: answers each task right and wrong, and reads the hints.

use roce_web::lessons;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[track_caller]
fn judge(lesson: &str, task: usize, answer: &str) -> Value {
    json(&lessons::check(lesson, task, answer).expect("the task exists"))
}

/// Checks that an answer is right, and that its computation contains a text.
#[track_caller]
fn right(lesson: &str, task: usize, answer: &str, shows: &str) {
    let outcome = judge(lesson, task, answer);
    assert_eq!(outcome["right"], true, "{lesson} {task}: {answer}: {outcome}");
    assert_eq!(outcome["hint"], "", "{lesson} {task}: a right answer needs no hint");
    let text = outcome["shows"].as_str().expect("a text");
    assert!(text.contains(shows), "{lesson} {task}: no `{shows}` in\n{text}");
}

/// Checks that an answer is wrong, and that its hint contains a text.
#[track_caller]
fn wrong(lesson: &str, task: usize, answer: &str, hint: &str) {
    let outcome = judge(lesson, task, answer);
    assert_eq!(outcome["right"], false, "{lesson} {task}: {answer}: {outcome}");
    assert_eq!(outcome["shows"], "", "{lesson} {task}: a wrong answer does not show the right one");
    let text = outcome["hint"].as_str().expect("a text");
    assert!(text.contains(hint), "{lesson} {task}: {answer}: no `{hint}` in `{text}`");
}

#[test]
fn framing() {
    right("framing", 1, "46", "BTH at byte 46");
    wrong("framing", 1, "42", "left out the VLAN tag");
    wrong("framing", 1, "28", "Count from the frame's start");
    wrong("framing", 1, "38", "The UDP header begins there");
    wrong("framing", 1, "47", "counted from 1");
    wrong("framing", 1, "58", "The BTH ends");
    wrong("framing", 1, "12", "Add the lengths of all headers");

    right("framing", 2, "1,082 bytes", "3 of padding and 4 of ICRC: 1082 bytes");
    wrong("framing", 2, "1079", "left out the padding: ");
    wrong("framing", 2, "1078", "left out the ICRC");
    wrong("framing", 2, "1075", "the padding and the ICRC");
    wrong("framing", 2, "1086", "counted the FCS");
    wrong("framing", 2, "1040", "length from the BTH on");

    right("framing", 3, "ImmDt", "RC_RDMA_WRITE_LAST_WITH_IMM");
    wrong("framing", 3, "RETH", "The first packet");
    wrong("framing", 3, "RETH, then ImmDt", "in a single packet");
    wrong("framing", 3, "no header", "without immediate data");

    right("framing", 4, "0x07", "RC_RDMA_WRITE_LAST, PSN");
    wrong("framing", 4, "06", "of the first packet");
    wrong("framing", 4, "08", "of the last packet");
    wrong("framing", 4, "0a", "fits into one packet");
    wrong("framing", 4, "01", "The operation is a WRITE");
    wrong("framing", 4, "7", "Write 2 hexadecimal digits");
}

#[test]
fn icrc() {
    right("icrc", 1, "52", "8 bytes of ones, 28 bytes of IPv4 and UDP, and 16 bytes");
    wrong("icrc", 1, "44", "left out the eight bytes of ones");
    wrong("icrc", 1, "56", "the ICRC itself is not part");
    wrong("icrc", 1, "66", "counted the Ethernet header");
    wrong("icrc", 1, "62", "length of the frame");
    wrong("icrc", 1, "24", "IP and UDP headers are also part");

    right("icrc", 2, "56 bits", "TTL (8)");
    wrong("icrc", 2, "120", "They are not in the frame");
    wrong("icrc", 2, "50", "six reserved bits");
    wrong("icrc", 2, "40", "One of the two checksums");
    wrong("icrc", 2, "48", "The BTH also has a masked byte");
    wrong("icrc", 2, "7", "number of bytes");

    right("icrc", 3, "e0 73 26 d4", "0xd42673e0");
    wrong("icrc", 3, "d42673e0", "reverse order");
    wrong("icrc", 3, "3cc20488", "covers all header fields as they are");
    wrong("icrc", 3, "69a68aa5", "eight bytes of ones before the IP header are missing");
    wrong("icrc", 3, "85023fe2", "the BTH byte after the P_Key");
    wrong("icrc", 3, "5d60ce6d", "The CRC covers the Ethernet header");
    wrong("icrc", 3, "a1b2c3d4", "No known mistake");
    wrong("icrc", 3, "e07326", "Write 8 hexadecimal digits");

    right("icrc", 4, "a NAT replaces the UDP source port", "the ICRC changes");
    wrong("icrc", 4, "a router decrements the TTL", "the field is masked");
    wrong("icrc", 4, "a switch sets the ECN bits to CE", "the field is masked");
    wrong("icrc", 4, "a switch sets FECN in the BTH", "the field is masked");
}

#[test]
fn psn() {
    right("psn", 1, "2", "5 packets; the last one has PSN 2");
    right("psn", 1, "0x000002", "");
    wrong("psn", 1, "16777218", "A PSN has 24 bits");
    wrong("psn", 1, "3", "PSN of the next message");
    wrong("psn", 1, "1", "One packet is missing");
    wrong("psn", 1, "5", "the number of packets");

    right("psn", 2, "1003", "NAK PSN sequence error");
    wrong("psn", 2, "1002", "last packet in order");
    wrong("psn", 2, "1004", "showed the gap");
    wrong("psn", 2, "1000", "keeps the packets before the gap");
    wrong("psn", 2, "1009", "does not wait for the end");
    wrong("psn", 2, "3", "Add this number to the first PSN");

    right("psn", 3, "17", "17 packets, 7 of them again");
    wrong("psn", 3, "11", "the lost packet only");
    wrong("psn", 3, "7", "the retransmissions only");
    wrong("psn", 3, "16", "the lost packet itself");
    wrong("psn", 3, "20", "not to the start of the message");
    wrong("psn", 3, "10", "must be sent again");

    right("psn", 4, "1", "2 copies of the SEND arrived");
    wrong("psn", 4, "2", "A duplicate is acknowledged, not executed");
    wrong("psn", 4, "0", "Only the acknowledgement was lost");
}

#[test]
fn timeouts() {
    right("timeouts", 1, "4194", "T is 4194.304 us");
    right("timeouts", 1, "4194.3 us", "");
    wrong("timeouts", 1, "4096", "4.096 us, not 4 us");
    wrong("timeouts", 1, "40.96", "The code is the exponent of 2");
    wrong("timeouts", 1, "4.194", "in milliseconds");
    wrong("timeouts", 1, "8388.6", "twice T");
    wrong("timeouts", 1, "1024", "Multiply it by 4.096 us");

    right("timeouts", 2, "4", "4 copies, then the completion says RETRY_EXC_ERR");
    wrong("timeouts", 2, "3", "The first copy comes before them");
    wrong("timeouts", 2, "5", "nothing is sent");
    wrong("timeouts", 2, "1", "does not fail at the first timeout");

    right("timeouts", 3, "536.87", "RETRY_EXC_ERR");
    right("timeouts", 3, "537 ms", "");
    wrong("timeouts", 3, "469.76", "when the last copy leaves");
    wrong("timeouts", 3, "67.1", "until the first retry");
    wrong("timeouts", 3, "536871", "in microseconds");
    wrong("timeouts", 3, "0.537", "in seconds");
    wrong("timeouts", 3, "4295", "on a device");

    right("timeouts", 4, "the last packet", "RC_RDMA_WRITE_LAST");
    wrong("timeouts", 4, "the first packet", "so a NAK leaves");
    wrong("timeouts", 4, "the fifth packet", "so a NAK leaves");
}

#[test]
fn rnr() {
    right("rnr", 1, "1280", "waits 1280 us after the NAK");
    wrong("rnr", 1, "67109", "formula of the local ACK timeout");
    wrong("rnr", 1, "14", "That is the code");
    wrong("rnr", 1, "140", "not multiples of the code");
    wrong("rnr", 1, "1.28", "in milliseconds");

    right("rnr", 2, "655.36", "waits 655.36 ms");
    wrong("rnr", 2, "0", "Code 0 is a time like the others");
    wrong("rnr", 2, "0.01", "time of code 1");
    wrong("rnr", 2, "491.52", "time of code 31");
    wrong("rnr", 2, "655360", "in microseconds");

    right("rnr", 3, "6", "RNR NAK wait 1.28 ms");
    wrong("rnr", 3, "4", "dropped the requests behind the refused one");
    wrong("rnr", 3, "3", "one copy of each SEND");
    wrong("rnr", 3, "9", "repeated once only");

    right("rnr", 4, "without limit", "With rnr_retry 7, the requester repeats without limit");
    wrong("rnr", 4, "seven times", "With 6 it repeats six times");
    wrong("rnr", 4, "six times", "That is right for 6");
    wrong("rnr", 4, "never", "That is right for 0");
}

#[test]
fn every_lesson_is_complete() {
    let all = json(&lessons::all());
    let all = all.as_array().expect("a list");
    let pages = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lessons")).expect("pages");
    let names = pages.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let numbered = names.filter(|name| name.starts_with(|char: char| char.is_ascii_digit())).count();
    assert_eq!(all.len(), numbered, "a lesson for each page with a number");
    for lesson in all {
        let id = lesson["id"].as_str().expect("a name");
        assert!(lesson["minutes"].as_u64().is_some_and(|minutes| (10..=60).contains(&minutes)), "{id}");
        assert!(!lesson["title"].as_str().expect("a title").is_empty(), "{id}");
        assert!(lesson["html"].as_str().expect("HTML").contains("<h3>"), "{id}");
        let tasks = lesson["tasks"].as_array().expect("a list");
        assert!((2..=4).contains(&tasks.len()), "{id} has {} tasks", tasks.len());
        let solution = lessons::solution(id).expect("a solution");
        assert!(lessons::teacher(id).expect("notes").contains("Typical misconceptions"), "{id}");
        for (index, task) in tasks.iter().enumerate() {
            let number = index + 1;
            assert_eq!(task["number"], number, "{id}");
            assert!(
                solution.contains(&format!("<h4>Task {number}</h4>")),
                "{id}: task {number} has no solution"
            );
            check_task(id, number, task);
        }
        assert!(
            lessons::check(id, 0, "1").is_err() && lessons::check(id, tasks.len() + 1, "1").is_err(),
            "{id}"
        );
    }
}

/// Checks that a task accepts exactly one of its choices, and answers anything else with a hint.
fn check_task(lesson: &str, number: usize, task: &Value) {
    let answers: Vec<&str> = match task["kind"].as_str() {
        Some("choice") => {
            task["choices"].as_array().expect("choices").iter().filter_map(Value::as_str).collect()
        }
        Some("number" | "hex" | "text") => vec!["", "?", "18446744073709551616", "\u{1f980}"],
        kind => panic!("{lesson} {number}: {kind:?}"),
    };
    let outcomes: Vec<Value> = answers.iter().map(|answer| judge(lesson, number, answer)).collect();
    let right = outcomes.iter().filter(|outcome| outcome["right"] == true).count();
    assert_eq!(right, usize::from(task["kind"] == "choice"), "{lesson} {number}: {answers:?}");
    for outcome in outcomes.iter().filter(|outcome| outcome["right"] == false) {
        assert_ne!(outcome["hint"], "", "{lesson} {number}");
    }
}

/// The page prints the frame of a task, and the check computes with it.
#[test]
fn frames_of_pages_are_those_of_the_checks() {
    let digits = |text: &str| text.split_whitespace().collect::<String>();
    assert!(digits(include_str!("../../../docs/lessons/01-framing.md")).contains(lessons::framing::FRAME));
    let page = include_str!("../../../docs/lessons/02-icrc.md");
    assert!(digits(page).contains(lessons::icrc::FRAME), "with spaces");
    assert!(page.contains(lessons::icrc::FRAME), "as one line");
}

#[test]
fn unknown_lessons_are_refused() {
    for result in [lessons::check("none", 1, "1"), lessons::solution("none"), lessons::teacher("none")] {
        let error = result.expect_err("no such lesson");
        assert!(error.starts_with("`none` is not a lesson; the lessons are framing, icrc"), "{error}");
    }
}
