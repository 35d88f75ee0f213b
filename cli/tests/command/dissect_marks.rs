//! Tests `roce dissect`: headings, names of opcodes, and the marks for gaps, repetitions and wrong ICRCs.

use std::io::Write;
use std::process::Command;

use crate::common;
use crate::common::frames::{frame, frame_on, pcapng_header, pcapng_packet, write_capture};
use roce_packet::{Opcode, Psn};
use serde_json::Value;

/// Returns the output of `roce dissect` for a capture of these frames.
#[track_caller]
fn dissect(frames: &[Vec<u8>], options: &[&str]) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.pcapng");
    write_capture(&path, frames);
    let mut arguments = vec!["dissect", path.to_str().unwrap()];
    arguments.extend_from_slice(options);
    let finished = common::run(&arguments);
    assert!(finished.success, "{finished:?}");
    (finished.stdout, finished.stderr)
}

fn write_only(psn: u32) -> Vec<u8> {
    frame(Opcode::RC_RDMA_WRITE_ONLY, Psn::new(psn), b"hello")
}

#[test]
fn the_heading_names_every_column_and_is_one_line_for_other_programs_too() {
    let frames = [write_only(1), write_only(2)];
    let (lines, _) = dissect(&frames, &[]);
    let heading: Vec<&str> = lines.lines().next().unwrap().split_whitespace().collect();
    let expected = [
        "#",
        "seconds",
        "source",
        ">",
        "destination",
        "opcode",
        "QP",
        "PSN",
        "bytes",
        "SMA",
        "ICRC",
        "mark",
        "headers",
    ];
    assert_eq!(heading, expected);
    assert_eq!(lines.lines().filter(|line| line.starts_with('#')).count(), 1);
    // Every column has a value for each packet.
    for line in lines.lines().skip(1) {
        let values: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(values[5..12], ["RC_RDMA_WRITE_ONLY", "0x12", values[7], "5", "-M-", "ok", "-"], "{line}");
    }
}

#[test]
fn lines_json_and_explain_have_one_name_for_an_opcode() {
    let frames = [write_only(7)];
    let (lines, _) = dissect(&frames, &[]);
    let (json, _) = dissect(&frames, &["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let name = json["roce.opcode"].as_str().unwrap();
    assert_eq!(name, "RC_RDMA_WRITE_ONLY");
    assert!(lines.lines().nth(1).unwrap().split_whitespace().any(|word| word == name), "{lines}");
    let digits: String = frames[0].iter().map(|byte| format!("{byte:02x}")).collect();
    let explained = common::run(&["explain", &digits]).stdout;
    assert!(explained.contains(&format!("{name}: RDMA WRITE")), "{explained}");
}

#[test]
fn gaps_repetitions_and_wrong_icrcs_are_marked_in_every_form() {
    let mut damaged = write_only(3);
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    // 3 arrives damaged, so its receiver discards it. 5 is lost. Then all packets from 3 on are
    // retransmitted.
    let mut frames = vec![write_only(2), damaged];
    frames.extend([4, 6, 3, 4, 5, 6, 7].map(write_only));
    frames.push(write_only(5_000_000));
    let expected = ["-", "-", "gap", "gap", "late", "repeat", "late", "repeat", "-", "jump"];

    let (lines, summary) = dissect(&frames, &[]);
    let marks: Vec<&str> =
        lines.lines().skip(1).map(|line| line.split_whitespace().nth(11).unwrap()).collect();
    assert_eq!(marks, expected, "{lines}");
    let third = lines.lines().nth(3).unwrap();
    assert!(third.contains("1 packet is missing before it: PSN 3"), "{third}");
    assert!(lines.lines().nth(2).unwrap().contains(" BAD "), "{lines}");
    assert!(summary.contains("marks: 2 gap, 1 jump, 2 late, 2 repeat (2 packets missing)\n"), "{summary}");

    let (json, _) = dissect(&frames, &["--json"]);
    let packets: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let marks: Vec<&str> = packets.iter().map(|packet| packet["roce.mark"].as_str().unwrap_or("-")).collect();
    assert_eq!(marks, expected);
    assert_eq!((&packets[2]["roce.missing"], &packets[2]["roce.missing_psn"]), (&1.into(), &3.into()));

    let (tree, _) = dissect(&frames, &["--tree"]);
    assert!(tree.contains("\n  gap: 1 packet is missing before it: PSN 5\n"), "{tree}");
    // A filter omits lines and does not change any mark.
    let (one, _) = dissect(&frames, &["--psn", "6"]);
    assert!(one.lines().nth(2).unwrap().contains(" repeat"), "{one}");
}

/// The captures of kernels show their faults: packets were dropped in two of them.
#[test]
fn the_marks_of_the_captures_of_kernels_are_right() {
    let folder = common::kernel_captures();
    for (name, marks) in [
        ("rc-write-lost-requests.pcap.gz", "marks: 5 gap, 5 late, 274 repeat (5 packets missing)\n"),
        ("rc-read-lost-responses.pcap.gz", "marks: 4 gap, 3 late, 254 repeat (3 packets missing)\n"),
        ("rc-write-bw-5003.pcap.gz", ""),
        ("k612-rc-read-5003.pcap.gz", ""),
        ("rc-atomic-fadd.pcap", ""),
        ("ud-pingpong-900.pcap", ""),
    ] {
        let file = folder.join(name);
        let finished = common::run(&["dissect", file.to_str().unwrap()]);
        let found = finished.stderr.lines().find(|line| line.starts_with("marks"));
        assert_eq!(found.map_or(String::new(), |line| format!("{line}\n")), marks, "{name}");
    }
}

/// Long comments of control characters, each of which is printed as five characters, and many flows. A file
/// is read in advance to determine the widths of the columns; a pipe is not.
#[test]
fn memory_is_bounded_whatever_a_file_or_a_pipe_contains() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.pcapng");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    pcapng_header(&mut file).unwrap();
    let comment = "\u{1}".repeat(65_000);
    for _ in 0..450 {
        pcapng_packet(&mut file, &write_only(1), Some(&comment)).unwrap();
    }
    for flow in 0..20_000_u32 {
        let source = std::net::Ipv4Addr::from_bits(0xc612_0000 + flow);
        let path = roce_packet::Path { source: source.into(), ..common::frames::path() };
        let frame = frame_on(&path, Opcode::RC_SEND_ONLY, Psn::new(1), b"");
        pcapng_packet(&mut file, &frame, None).unwrap();
    }
    file.flush().unwrap();
    for input in ["\"$FILE\"", "- < \"$FILE\""] {
        // 96 MB of address space; the comments alone would take 145 MB.
        let script = format!("ulimit -v 98304; exec \"$ROCE\" dissect {input} > /dev/null");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("ROCE", env!("CARGO_BIN_EXE_roce")).env("FILE", &path);
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{input}: {}: {stderr}", output.status);
        assert!(stderr.contains("20450 packets"), "{input}: {stderr}");
    }
}
