//! `roce explain` of packets in capture files, and without arguments.

use crate::common;
use crate::common::frames::{frame, write_capture};
use roce_packet::{Opcode, Psn};
use serde_json::Value;

/// Creates a capture of nine packets; the PSN of each is a hundred times its number.
fn capture(folder: &tempfile::TempDir) -> String {
    let path = folder.path().join("nine.pcapng");
    let frames: Vec<Vec<u8>> =
        (1..=9).map(|number| frame(Opcode::RC_SEND_ONLY, Psn::new(number * 100), b"nine")).collect();
    write_capture(&path, &frames);
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_packet_of_a_file_is_explained_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let file = capture(&folder);
    let finished = common::run(&["explain", &format!("{file}:8")]);
    assert!(finished.success, "{finished:?}");
    let first = finished.stdout.lines().next().unwrap();
    assert!(
        first.starts_with("Packet 8 of ") && first.ends_with(": 62 bytes, link type 1 (ETHERNET)."),
        "{first}"
    );
    assert!(finished.stdout.contains("ICRC good"), "{finished:?}");
    let json = common::run(&["explain", "--json", &format!("{file}:8")]);
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&document["frame.number"], &document["link_type"]), (&8.into(), &1.into()));
    let fields = document["headers"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|header| header["fields"].as_array().unwrap());
    let psn = fields.into_iter().find(|field| field["key"] == "infiniband.bth.psn").unwrap();
    assert_eq!(psn["value"], 800);
    // The list has the same numbers.
    let lines = common::run(&["dissect", &file]).stdout;
    let eighth = lines.lines().find(|line| line.trim_start().starts_with("8 ")).unwrap();
    assert!(eighth.contains(" 800 "), "{eighth}");
}

#[test]
fn a_packet_that_is_not_there_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let file = capture(&folder);
    for (argument, expected) in [
        (format!("{file}:10"), "has 9 packets, so there is no packet 10"),
        (format!("{file}:0"), "the first packet of a file has the number 1"),
        (format!("{file}:x"), "expected the number of a packet behind the colon"),
        (file.clone(), "is a file; say which of its packets to explain"),
        (format!("{file}.gone:3"), "cannot be opened"),
        ("zz".to_owned(), "is not a hexadecimal digit"),
    ] {
        let finished = common::run(&["explain", &argument]);
        assert_eq!(finished.code, Some(1), "{argument}");
        assert!(finished.stderr.contains(expected), "{argument}: {}", finished.stderr);
    }
    let finished = common::run(&["explain", "--from", "ip", &format!("{file}:1")]);
    assert!(finished.stderr.contains("--from applies only to hexadecimal digits"), "{finished:?}");
}

#[test]
fn without_an_argument_an_example_is_explained() {
    let finished = common::run(&["explain"]);
    assert!(finished.success, "{finished:?}");
    for part in
        ["an example", "RC_RDMA_WRITE_ONLY", "How the ICRC is computed", "ICRC good", "roce explain 0200"]
    {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
    let json = common::run(&["explain", "--json"]);
    let document: Value = serde_json::from_str(&json.stdout).expect("only JSON");
    assert_eq!(document["roce.opcode"], "RC_RDMA_WRITE_ONLY");
}

#[test]
fn the_mistake_behind_a_wrong_icrc_is_named() {
    let good = frame(Opcode::RC_SEND_ONLY, Psn::new(7), b"nine");
    let hex = |frame: &[u8]| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut swapped = good.clone();
    let at = swapped.len() - 4;
    swapped[at..].reverse();
    let finished = common::run(&["explain", &hex(&swapped)]);
    for part in ["ICRC BAD", "Why the ICRC is wrong", "byte order", "To correct it: write the lowest byte"] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
    let mut damaged = good.clone();
    damaged[at - 2] ^= 0x20;
    let finished = common::run(&["explain", "--json", &hex(&damaged)]);
    let document: Value = serde_json::from_str(&finished.stdout).expect("only JSON");
    let mistakes = document["roce.icrc_mistakes"].as_array().expect("a list");
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert_eq!(mistakes[0]["names"], serde_json::json!(["one bit damaged"]));
    assert_eq!(mistakes[0]["certainty"], "probable");
    let place = format!("byte {} of the packet (payload), bits 0x20", at - 2);
    assert_eq!(mistakes[0]["detail"], place.as_str());
    let finished = common::run(&["explain", &hex(&good)]);
    assert!(!finished.stdout.contains("Why the ICRC"), "{}", finished.stdout);
    let mut random = good;
    random[at..].copy_from_slice(&[0x12, 0x9b, 0x5e, 0x77]);
    let finished = common::run(&["explain", &hex(&random)]);
    assert!(finished.stdout.contains("No known mistake leads to this value"), "{}", finished.stdout);
}
