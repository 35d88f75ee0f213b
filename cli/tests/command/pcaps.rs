//! Tests the captures of this project in `pcaps/`: they are complete, well-formed, and match their
//! descriptions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{Running, has_program, run, skip_unless, tshark};
use roce_capture::CaptureReader;
use roce_packet::{
    Datagram, DatagramWriter, Encapsulation, Frame, NakCode, Opcode, ParseErrorKind, PauseFrame, Qpn,
    Syndrome, Transport, flow,
};

/// Maximum size of a capture, in bytes.
const MOST_BYTES: u64 = 30 << 10;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps"))
}

fn names() -> BTreeSet<String> {
    std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pcapng") || name.ends_with(".pcap"))
        .collect()
}

fn frames(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!packet.is_snapped() && packet.time_ns.is_some());
        frames.push(packet.bytes.to_vec());
    }
    assert!(!frames.is_empty(), "{}: no packets", path.display());
    frames
}

fn of(name: &str) -> Vec<Vec<u8>> {
    frames(&folder().join(format!("{name}.pcapng")))
}

#[test]
fn each_capture_is_small_and_the_manifest_lists_exactly_them() {
    let manifest = std::fs::read_to_string(folder().join("MANIFEST.md")).unwrap();
    let listed: BTreeSet<String> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, names());
    for name in names() {
        let len = std::fs::metadata(folder().join(&name)).unwrap().len();
        assert!(len <= MOST_BYTES, "{name} has {len} bytes");
    }
}

#[test]
fn every_frame_comes_out_as_it_went_in_and_its_icrc_is_good() {
    for name in names() {
        for (number, bytes) in frames(&folder().join(&name)).iter().enumerate() {
            check_frame(bytes, &format!("{name} frame {}", number + 1));
        }
    }
}

#[track_caller]
fn check_frame(bytes: &[u8], name: &str) {
    let frame = match Frame::parse(bytes) {
        Ok(frame) => frame,
        Err(error) if error.kind == ParseErrorKind::NotRoce => {
            let pause = PauseFrame::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut out = [0xa5; PauseFrame::LEN];
            pause.emit(&mut out);
            assert_eq!(out, *bytes, "{name}");
            return;
        }
        Err(error) => panic!("{name}: {error}"),
    };
    let mut out = vec![0xa5; bytes.len()];
    assert_eq!(frame.emit(&mut out), Ok(bytes.len()), "{name}");
    assert_eq!(out, bytes, "{name}");
    let check = frame.verify_icrc().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(check.is_good(), "{name}: {check:x?}");
    let datagram = frame.datagram().unwrap_or_else(|error| panic!("{name}: {error}"));
    // This project never sets a reserved bit, so the datagram can be written again from its fields.
    assert_eq!(rewrite(&datagram, &frame), frame.transport, "{name}");
}

fn rewrite(datagram: &Datagram<'_>, frame: &Frame<'_>) -> Vec<u8> {
    let mut out = vec![0xa5; datagram.len()];
    let mut writer = DatagramWriter::new(&mut out, datagram.bth()).unwrap();
    macro_rules! copy {
        ($($header:ident)+) => {$(
            if let Some(header) = datagram.$header() {
                writer.$header(&header).unwrap();
            }
        )+};
    }
    copy!(deth feth reth atomic_eth aeth atomic_ack_eth imm_dt ieth);
    let (head, tail) = datagram.payload();
    let payload = [head, tail].concat();
    if !payload.is_empty() {
        writer.payload_slot(payload.len()).unwrap().copy_from_slice(&payload);
    }
    let len = writer.finish(&frame.envelope()).unwrap();
    out.truncate(len);
    out
}

fn opcodes(frames: &[Vec<u8>]) -> BTreeSet<u8> {
    frames.iter().map(|bytes| Frame::parse(bytes).unwrap().datagram().unwrap().bth().opcode.0).collect()
}

/// Returns all opcodes of a transport that this project sends.
fn all_of(transport: Transport) -> BTreeSet<u8> {
    (0..=0xff)
        .map(Opcode)
        .filter(|opcode| opcode.info().is_some_and(|info| info.transport == transport))
        .map(|opcode| opcode.0)
        .collect()
}

#[test]
fn every_opcode_is_there() {
    for name in ["rc-operations", "rc-operations-ipv6", "roce-v1", "vlan"] {
        assert_eq!(opcodes(&of(name)), all_of(Transport::Rc), "{name}");
    }
    assert_eq!(opcodes(&of("uc")), all_of(Transport::Uc));
    assert_eq!(opcodes(&of("ud")), all_of(Transport::Ud));
    assert!(opcodes(&of("cnp")).contains(&Opcode::CNP.0));
}

#[test]
fn the_envelopes_are_those_that_the_names_say() {
    for (name, is_so) in [
        ("roce-v1", (|frame| frame.path().encapsulation == Encapsulation::RoceV1) as fn(&Frame<'_>) -> bool),
        ("vlan", |frame| frame.path().vlan.is_some_and(|tag| (tag.pcp, tag.vid) == (3, 100))),
        ("rc-operations-ipv6", |frame| frame.path().source.is_ipv6()),
        ("rc-operations", |frame| frame.path().source.is_ipv4() && frame.path().vlan.is_none()),
    ] {
        for bytes in of(name) {
            assert!(is_so(&Frame::parse(&bytes).unwrap()), "{name}");
        }
    }
    assert!(of("ud").iter().any(|bytes| Frame::parse(bytes).unwrap().path().destination.is_multicast()));
}

/// Returns the PSNs of the requests in order, and the syndromes of the answers.
fn story(name: &str) -> (Vec<u32>, Vec<Syndrome>) {
    let (mut psns, mut syndromes) = (Vec::new(), Vec::new());
    for bytes in of(name) {
        let frame = Frame::parse(&bytes).unwrap();
        let datagram = frame.datagram().unwrap();
        match datagram.aeth() {
            Some(aeth) => syndromes.push(aeth.syndrome),
            None => psns.push(datagram.bth().psn.get()),
        }
    }
    (psns, syndromes)
}

#[test]
fn loss_is_answered_and_repaired() {
    let (psns, syndromes) = story("rc-loss");
    assert!(syndromes.contains(&Syndrome::Nak(NakCode::PsnSequence)), "{syndromes:?}");
    let first = psns[0];
    let count = |offset| psns.iter().filter(|psn| **psn == first + offset).count();
    // The capture does not contain the lost packets; the packets after them were retransmitted.
    assert_eq!((count(0), count(2), count(8)), (1, 1, 1), "{psns:?}");
    assert!(count(7) >= 2, "{psns:?}");

    let (_, syndromes) = story("rc-rnr");
    let rnr = syndromes.iter().filter(|syndrome| matches!(syndrome, Syndrome::RnrNak { .. })).count();
    assert!(rnr >= 2, "{syndromes:?}");
    assert!(matches!(syndromes.last(), Some(Syndrome::Ack { .. })), "{syndromes:?}");

    let (_, syndromes) = story("rc-refused");
    assert_eq!(syndromes, [Syndrome::Nak(NakCode::RemoteAccess), Syndrome::Nak(NakCode::InvalidRequest)]);

    let requests = of("rc-read-loss")
        .iter()
        .filter(|bytes| {
            Frame::parse(bytes).unwrap().datagram().unwrap().bth().opcode == Opcode::RC_RDMA_READ_REQUEST
        })
        .count();
    assert!(requests >= 2, "the READ is asked for again from the lost response on");
}

/// Returns source port, destination queue pair and opcode of the frames that the kernel's Soft-RoCE sent.
fn of_soft_roce(name: &str) -> Vec<(u16, Qpn, Opcode)> {
    let kernel: std::net::IpAddr = "2001:db8::2".parse().unwrap();
    let frames = of(name);
    let frames = frames.iter().map(|bytes| Frame::parse(bytes).unwrap());
    let sent = frames.filter(|frame| frame.path().source == kernel);
    sent.map(|frame| {
        let bth = *frame.datagram().unwrap().bth();
        (frame.path().source_port, bth.dest_qp, bth.opcode)
    })
    .collect()
}

#[test]
fn soft_roce_asks_as_we_expect_and_takes_our_answers() {
    for (name, opcode, answer) in [
        ("rxe-fetch-add", Opcode::RC_FETCH_ADD, Opcode::RC_ATOMIC_ACKNOWLEDGE),
        ("rxe-atomic-write", Opcode::RC_ATOMIC_WRITE, Opcode::RC_RDMA_READ_RESPONSE_ONLY),
    ] {
        let asked = of_soft_roce(name);
        assert_eq!(asked.len(), 46, "{name}");
        let answers: Vec<_> = of(name)
            .iter()
            .map(|bytes| *Frame::parse(bytes).unwrap().datagram().unwrap().bth())
            .filter(|bth| bth.opcode == answer)
            .collect();
        // The capture contains no retransmissions, so each request has one response.
        assert_eq!(answers.len(), 46, "{name}");
        let theirs = answers[0].dest_qp;
        for (port, ours, asked) in asked {
            assert_eq!(asked, opcode, "{name}");
            let expected = flow::flow_label_to_port(flow::qp_pair_flow_label(theirs, ours));
            assert_eq!(port, expected, "{name}: the source port of {theirs:?} to {ours:?}");
        }
    }
    let sent = of_soft_roce("rxe-ud");
    assert_eq!(sent.len(), 18);
    assert!(sent.iter().all(|(_, _, opcode)| *opcode == Opcode::UD_SEND_ONLY_WITH_IMM));
}

#[test]
fn our_own_tool_finds_nothing_wrong() {
    for name in names().iter().filter(|name| *name != "pause.pcapng") {
        let finished = run(&["dissect", "--bad-icrc", folder().join(name).to_str().unwrap()]);
        assert!(finished.success && finished.stdout.is_empty(), "{name}: {finished:?}");
        assert!(finished.stderr.contains(" 0 bad, 0 not checked"), "{name}: {}", finished.stderr);
        assert!(!finished.stderr.contains("malformed"), "{name}: {}", finished.stderr);
    }
}

#[test]
fn tshark_finds_nothing_wrong() {
    if skip_unless(has_program("tshark"), "tshark is not installed") {
        return;
    }
    for name in names() {
        let mut command = tshark();
        command.arg("-r").arg(folder().join(&name)).args(["-T", "fields", "-e", "frame.protocols"]);
        command.args(["-e", "_ws.malformed", "-e", "_ws.short"]);
        let finished = Running::start(&mut command).finish(60);
        assert!(finished.success, "{name}: {}", finished.stderr);
        let expected = if name == "pause.pcapng" { "macc" } else { "infiniband" };
        for line in finished.stdout.lines() {
            assert!(line.contains(expected), "{name}: {line}");
            assert!(line.ends_with("\t\t"), "{name}: {line}");
        }
    }
}
