//! RoCE in every encapsulation, cut at every place, through `dissect`, `explain` and `inject`.
//! `tools/bridge/src/tests.rs` tests which of them `bridge` recognizes. Wireshark decodes the same packets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::common::{has_program, run, shared, skip_unless, tshark};
use roce_testing::encapsulated::{self, Encapsulated, End, PSN, QPN};
use serde_json::Value;

/// Returns a classic capture file with microseconds.
fn classic(link_type: u32, packets: &[(usize, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, link_type] {
        file.extend_from_slice(&u32::to_be_bytes(word));
    }
    for (index, (wire_len, bytes)) in (0_u32..).zip(packets) {
        for word in [1_700_000_000, index, bytes.len() as u32, *wire_len as u32] {
            file.extend_from_slice(&u32::to_be_bytes(word));
        }
        file.extend_from_slice(bytes);
    }
    file
}

/// One file per link type, with the packets of that link type.
struct Files {
    folder: tempfile::TempDir,
    files: Vec<(PathBuf, Vec<Encapsulated>)>,
}

impl Files {
    fn of(cases: impl IntoIterator<Item = Encapsulated>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut by_link: BTreeMap<u32, Vec<Encapsulated>> = BTreeMap::new();
        for case in cases {
            by_link.entry(case.link_type).or_default().push(case);
        }
        let write = |(link_type, cases): (u32, Vec<Encapsulated>)| {
            let path = folder.path().join(format!("{link_type}.pcap"));
            let packets: Vec<_> = cases.iter().map(|case| (case.wire_len, &case.bytes[..])).collect();
            std::fs::write(&path, classic(link_type, &packets)).unwrap();
            (path, cases)
        };
        let files = by_link.into_iter().map(write).collect();
        Self { folder, files }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn dissect_json(file: &Path) -> Vec<Value> {
    let finished = run(&["dissect", "--json", text(file)]);
    assert!(finished.success, "{}", finished.stderr);
    finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn check_decoded(case: &Encapsulated, packet: &Value, icrc: &str) {
    let name = case.name;
    assert_eq!(packet["infiniband.bth.psn"], PSN, "{name}: {packet}");
    assert_eq!(packet["infiniband.bth.destqp"], QPN, "{name}");
    assert_eq!(packet["roce.icrc"], icrc, "{name}: {packet}");
    assert!(packet["roce.payload_len"].is_u64(), "{name}");
    assert_eq!(packet["roce.error"], Value::Null, "{name}: {packet}");
    let outer = packet["roce.outer"].as_array().map_or(0, Vec::len);
    // Two tags of the same kind are also listed there.
    assert!(outer > 0 || !case.is_in_tunnel, "{name}: {packet}");
    let source = ["ip.src", "ipv6.src", "infiniband.grh.sgid"].map(|key| packet[key].as_str());
    let is_inner = |address: &str| address == "198.18.0.1" || address == "2001:db8::1";
    let is_local = packet["infiniband.lrh.lnh"] == 2 && packet["infiniband.lrh.slid"] == 9;
    assert!(is_local || source.into_iter().flatten().any(is_inner), "{name}: {packet}");
}

/// Regression: RoCE inside tunnels and behind two tags was not found, and options were reported as malformed.
#[test]
fn roce_is_found_in_every_encapsulation() {
    assert!(encapsulated::whole().len() + encapsulated::cut().len() >= 60);
    for (is_damaged, icrc) in [(false, "ok"), (true, "bad")] {
        let cases = encapsulated::whole().into_iter();
        let files = Files::of(cases.map(|case| if is_damaged { case.damaged() } else { case }));
        for (file, cases) in &files.files {
            for (case, packet) in cases.iter().zip(dissect_json(file)) {
                check_decoded(case, &packet, icrc);
                assert_eq!(packet["roce.cut"], Value::Null, "{}", case.name);
            }
            let lines = run(&["dissect", text(file)]);
            let count = cases.len();
            let (good, bad) = if is_damaged { (0, count) } else { (count, 0) };
            assert!(
                lines.stderr.contains(&format!("ICRC: {good} good, {bad} bad, 0 not")),
                "{}",
                lines.stderr
            );
            assert!(!lines.stderr.contains("malformed"), "{}", lines.stderr);
            assert_eq!(lines.stdout.lines().count(), count + 1);
            for (case, line) in cases.iter().zip(lines.stdout.lines().skip(1)) {
                assert_eq!(line.contains(" in "), case.is_in_tunnel, "{}: {line}", case.name);
            }
        }
    }
}

/// Captures that keep 64 to 128 bytes of each packet are read, whatever the encapsulation. Only a packet
/// whose protocol is further behind is not recognized.
#[test]
fn short_snap_lengths_are_no_error() {
    for snap_len in [64, 68, 96, 128] {
        let cases = encapsulated::whole().into_iter().map(|mut case| {
            case.bytes.truncate(snap_len);
            case
        });
        let files = Files::of(cases);
        for (file, cases) in &files.files {
            let finished = run(&["dissect", "--json", text(file)]);
            let is_known = finished.success || finished.stderr.contains("capture at least 128 bytes");
            assert!(is_known && !finished.stderr.contains("malformed"), "{}", finished.stderr);
            let packets = finished.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            for (case, packet) in cases.iter().zip(packets) {
                assert_eq!(packet["roce.error"], Value::Null, "{} at {snap_len}: {packet}", case.name);
                let protocol = packet["roce.protocol"].as_str().unwrap();
                let has_bth = case.bth + 12 <= snap_len;
                assert_eq!(packet["infiniband.bth.psn"].is_u64(), has_bth, "{}: {packet}", case.name);
                assert_eq!(protocol == "InfiniBand", case.is_native(), "{} at {snap_len}", case.name);
            }
        }
    }
}

/// Regression: packets that a mirror had cut were reported as malformed.
#[test]
fn a_cut_packet_is_not_a_damaged_one() {
    let files = Files::of(encapsulated::cut());
    for (file, cases) in &files.files {
        for (case, packet) in cases.iter().zip(dissect_json(file)) {
            check_decoded(case, &packet, "unchecked");
            let cut = match case.end {
                End::Capture => "capture",
                End::Mirror => "mirror",
                End::Fragment => "fragment",
                End::Here => unreachable!("a cut packet"),
            };
            assert_eq!(packet["roce.cut"], cut, "{}: {packet}", case.name);
        }
        let lines = run(&["dissect", text(file)]);
        assert!(!lines.stdout.contains("malformed") && !lines.stdout.contains("BAD"), "{}", lines.stdout);
        let of = |end: End| cases.iter().filter(|case| case.end == end).count();
        let is_ethernet = cases.iter().all(|case| case.link_type == 1);
        for (count, expected) in [
            (of(End::Capture), format!("cut by the capture: {}", of(End::Capture))),
            (of(End::Mirror), format!("cut by a mirror: {} (the ICRC cannot be checked)", of(End::Mirror))),
            (
                of(End::Fragment),
                format!("first fragments: {} (the ICRC cannot be checked)", of(End::Fragment)),
            ),
        ] {
            assert!(count > 0 || !is_ethernet, "{expected}");
            assert_eq!(lines.stderr.contains(&expected), count > 0, "{expected}: {}", lines.stderr);
        }
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |register: u32, byte: &u8| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[test]
fn explain_shows_what_the_icrc_covers_in_every_encapsulation() {
    let files = Files::of(encapsulated::whole().into_iter().chain(encapsulated::cut()));
    for (file, cases) in &files.files {
        for (index, case) in cases.iter().enumerate() {
            let name = case.name;
            let number = (index + 1).to_string();
            let finished = run(&["explain", "--json", text(file), &number]);
            assert!(finished.success, "{name}: {}", finished.stderr);
            let shown: Value = serde_json::from_str(&finished.stdout).unwrap();
            let headers = shown["headers"].as_array().unwrap();
            let bth = headers.iter().find(|header| header["name"] == "BTH").unwrap();
            assert_eq!(bth["offset"], case.bth, "{name}");
            if case.end != End::Here {
                assert_eq!(shown["roce.icrc"], "unchecked", "{name}");
                continue;
            }
            assert_eq!(shown["roce.icrc"], "ok", "{name}");
            let input = shown["roce.icrc_input"].as_str().unwrap();
            let input: Vec<u8> = (0..input.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&input[at..at + 2], 16).unwrap())
                .collect();
            let computed = shown["roce.icrc_computed"].as_u64().unwrap() as u32;
            assert_eq!(crc32(&input).swap_bytes(), computed, "{name}: these are the bytes of the CRC");
            // Headers follow each other without a gap.
            let mut end = headers[0]["offset"].as_u64().unwrap();
            for header in headers {
                assert_eq!(header["offset"], end, "{name}: {}", header["name"]);
                end += header["bytes"].as_str().unwrap().len() as u64 / 2;
            }
        }
    }
}

/// Replays Ethernet frames into a file; returns the output and the frames.
fn inject(folder: &Path, packets: &[(usize, &[u8])]) -> (String, Vec<Vec<u8>>) {
    let (from, to) = (folder.join("from.pcap"), folder.join("to.pcapng"));
    std::fs::write(&from, classic(1, packets)).unwrap();
    let finished = run(&["inject", text(&from), "--dry-run", "--pcap", text(&to)]);
    let mut reader = roce_capture::CaptureReader::open(&to).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().bytes.to_vec());
    }
    (finished.stdout, frames)
}

#[test]
fn inject_repairs_the_icrc_in_every_encapsulation_and_changes_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let ethernet = |cases: Vec<Encapsulated>| -> Vec<Encapsulated> {
        cases.into_iter().filter(|case| case.link_type == 1).collect()
    };
    let whole = ethernet(encapsulated::whole());
    let packets: Vec<_> = whole.iter().map(|case| (case.wire_len, &case.bytes[..])).collect();
    let (_, frames) = inject(folder.path(), &packets);
    for (case, frame) in whole.iter().zip(&frames) {
        assert_eq!(&case.bytes, frame, "{}: it was right", case.name);
    }

    let damaged: Vec<_> = whole.iter().map(Encapsulated::damaged).collect();
    let packets: Vec<_> = damaged.iter().map(|case| (case.wire_len, &case.bytes[..])).collect();
    let (stdout, frames) = inject(folder.path(), &packets);
    assert!(stdout.contains(&format!("ICRC repaired: {}", whole.len())), "{stdout}");
    for (case, frame) in damaged.iter().zip(&frames) {
        let end = case.bytes.len() - 4;
        let differ: Vec<_> = (0..end).filter(|at| frame[*at] != case.bytes[*at]).collect();
        // Apart from the ICRC, only the checksum of GRE differs, because it covers the ICRC.
        assert!(differ.is_empty() || case.name.contains("checksum"), "{}: {differ:?}", case.name);
        assert_ne!(frame[end..], case.bytes[end..], "{}", case.name);
    }
    let repaired = run(&["dissect", text(&folder.path().join("to.pcapng"))]);
    assert!(repaired.stderr.contains(&format!("ICRC: {} good, 0 bad", whole.len())), "{}", repaired.stderr);

    let cut: Vec<_> =
        ethernet(encapsulated::cut()).into_iter().filter(|case| case.end != End::Capture).collect();
    let packets: Vec<_> = cut.iter().map(|case| (case.wire_len, &case.bytes[..])).collect();
    let (stdout, frames) = inject(folder.path(), &packets);
    assert!(
        stdout.contains(&format!("{} not changed: the headers are malformed, or", cut.len())),
        "{stdout}"
    );
    assert!(cut.iter().zip(&frames).all(|(case, frame)| case.bytes == *frame));
}

/// Regression: the last four bytes of an answer of a DNS server were replaced by an ICRC. For a capture
/// without RoCE, the command gave no reason and exited with success.
#[test]
fn packets_that_are_not_roce_are_left_alone_and_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, frame, reason) in encapsulated::foreign() {
        let file = folder.path().join("foreign.pcap");
        std::fs::write(&file, classic(1, &[(frame.len(), &frame)])).unwrap();
        let finished = run(&["dissect", text(&file)]);
        assert_eq!(finished.code, Some(1), "{name}: {}", finished.stderr);
        let error = finished.stderr.lines().last().unwrap();
        assert!(
            error.contains("no packet is RoCE: ") && error.contains(reason),
            "{name}: {}",
            finished.stderr
        );
        let explained = run(&["explain", text(&file), "1"]);
        assert!(
            explained.success && explained.stdout.contains("is not RoCE"),
            "{name}: {}",
            explained.stdout
        );
        let (stdout, frames) = inject(folder.path(), &[(frame.len(), &frame)]);
        assert_eq!(frames, [frame], "{name}");
        let is_named = stdout.contains("1 not changed: sent to UDP port 4791, but not certainly RoCE");
        assert_eq!(is_named, name.contains("DNS"), "{name}: {stdout}");
    }
    let file = folder.path().join("empty.pcap");
    std::fs::write(&file, classic(1, &[])).unwrap();
    let finished = run(&["dissect", text(&file)]);
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("the file has no packets"), "{}", finished.stderr);
    // Another port makes the packets RoCE.
    let (_, frame, _) =
        encapsulated::foreign().into_iter().find(|(name, ..)| name.contains("another port")).unwrap();
    std::fs::write(&file, classic(1, &[(frame.len(), &frame)])).unwrap();
    let finished = run(&["dissect", text(&file), "--port", "4792"]);
    assert!(finished.success && finished.stderr.contains("ICRC: 1 good"), "{}", finished.stderr);
}

/// Encapsulations that Wireshark 4.0 decodes only with certain settings, if at all. Behind MPLS it guesses
/// whether an Ethernet frame has a control word, and its guesses vary.
const NOT_IN_TSHARK: &[&str] = &[
    "VXLAN on the port of Linux",
    "ERSPAN I",
    "GRE over UDP",
    "MPLS with Ethernet",
    "MPLS with a control word",
];

#[test]
fn wireshark_decodes_the_same_packets() {
    if skip_unless(has_program("tshark"), "tshark is not installed") {
        return;
    }
    // Wireshark waits for the other fragments before it decodes UDP.
    let cut = encapsulated::cut().into_iter().filter(|case| case.end != End::Fragment);
    let files = Files::of(encapsulated::whole().into_iter().chain(cut));
    for (file, cases) in &files.files {
        let fields = ["frame.protocols", "infiniband.bth.psn", "infiniband.bth.destqp"];
        let mut command = tshark();
        command.args(["-n", "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", "-r", text(file)]);
        command.args(fields.iter().flat_map(|field| ["-e", field]));
        let output = command.output().unwrap();
        let rows = String::from_utf8(output.stdout).unwrap();
        let mut refused = BTreeSet::new();
        for (case, row) in cases.iter().zip(rows.lines()) {
            let columns: Vec<_> = row.split('|').collect();
            let agrees = columns[0].contains("infiniband")
                && columns[1] == PSN.to_string()
                && columns[2] == format!("0x{QPN:06x}");
            if !agrees {
                refused.insert((case.name, row));
            }
        }
        let unexpected: Vec<_> = refused.iter().filter(|(name, _)| !NOT_IN_TSHARK.contains(name)).collect();
        assert!(unexpected.is_empty(), "{unexpected:#?}");
    }
    drop(files.folder);
}

/// Decodes the captures that others reported, if available.
#[test]
fn the_captures_of_others_are_decoded() {
    let Some(folder) = shared("cases/captures") else {
        skip_unless(false, "no captures of other people at ../shared/cases/captures");
        return;
    };
    for (name, status, expected) in [
        ("erspan2", 0, "ICRC: 3 good, 0 bad, 0 not checked"),
        ("vxlan", 0, "ICRC: 3 good, 0 bad, 0 not checked"),
        ("qinq-88a8", 0, "ICRC: 3 good, 0 bad, 0 not checked"),
        ("v4-options", 0, "ICRC: 1 good, 0 bad, 0 not checked"),
        ("v6-hopbyhop", 0, "ICRC: 1 good, 0 bad, 0 not checked"),
        ("erspan2-truncated128", 0, "cut by a mirror: 3"),
        ("gap-mirror", 0, "cut by a mirror: 4"),
        ("gap-snaplen", 0, "cut by the capture: 4"),
        ("tcp-only", 1, "all are TCP"),
        ("dns-to-4791", 1, "no packet is RoCE"),
    ] {
        let file = folder.join(format!("{name}.pcap"));
        let finished = run(&["dissect", text(&file)]);
        assert_eq!(finished.code, Some(status), "{name}: {}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{name}: {}", finished.stderr);
        assert!(!finished.stderr.contains("malformed"), "{name}: {}", finished.stderr);
        if name.starts_with("gap") {
            assert!(finished.stderr.contains("marks: 1 gap (3 packets missing)"), "{}", finished.stderr);
        }
    }
    let dns = run(&["inject", text(&folder.join("dns-to-4791.pcap")), "--dry-run"]);
    assert!(!dns.stdout.contains("repaired"), "{}", dns.stdout);
    assert!(dns.stdout.contains("not certainly RoCE"), "{}", dns.stdout);
}
