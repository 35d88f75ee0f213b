//! `roce dissect --write` and `--follow`: captures that are written, and captures that still grow.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::common::frames::{frame, write_capture};
use crate::common::{Running, kernel_captures, roce, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roce_capture::{CaptureReader, Direction, PcapWriter};
use roce_packet::{Opcode, Psn};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Everything that a file says about a packet, except its number.
#[derive(Debug, PartialEq)]
struct Packet {
    time_ns: Option<u64>,
    link_type: u32,
    interface: Option<String>,
    direction: Direction,
    comment: Option<String>,
    original_len: u32,
    bytes: Vec<u8>,
}

fn read(file: &Path) -> Vec<Packet> {
    let mut reader = CaptureReader::open(file).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        packets.push(Packet {
            time_ns: packet.time_ns,
            link_type: packet.link_type.0,
            interface: packet.interface_name.map(str::to_owned),
            direction: packet.direction,
            comment: packet.comment.map(str::to_owned),
            original_len: packet.original_len,
            bytes: packet.bytes.to_vec(),
        });
    }
    packets
}

#[test]
fn the_selected_packets_are_written_with_all_their_properties() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.pcapng"), folder.path().join("to.pcapng"));
    let mut writer = PcapWriter::create(&from, &["left", "right"]).unwrap();
    for psn in 0..20 {
        let frame = frame(Opcode::RC_SEND_ONLY, Psn::new(psn), &[psn as u8; 40]);
        let comment = (psn % 3 == 0).then(|| format!("packet {psn}"));
        let direction = if psn % 2 == 0 { Direction::Inbound } else { Direction::Outbound };
        let time_ns = 1_700_000_000_000_000_007 + u64::from(psn);
        writer.write(psn % 2, time_ns, direction, comment.as_deref(), &frame).unwrap();
    }
    drop(writer);
    let all = read(&from);
    let finished = run(&["dissect", text(&from), "--psn", "5..9", "--write", text(&to)]);
    assert!(finished.success && finished.stdout.is_empty(), "{finished:?}");
    assert!(finished.stderr.contains("20 packets, 5 written"), "{finished:?}");
    assert_eq!(read(&to), all[5..10]);
    // Without a filter it is a copy, from a pcap file too.
    for file in [from.clone(), kernel_captures().join("rc-send-rnr.pcap")] {
        let finished = run(&["dissect", text(&file), "--write", text(&to)]);
        assert!(finished.success, "{finished:?}");
        assert_eq!(read(&to), read(&file));
    }
    // The file that is read is not overwritten.
    let finished = run(&["dissect", text(&from), "--write", text(&from)]);
    assert!(!finished.success && finished.stderr.contains("choose another one"), "{finished:?}");
    assert_eq!(read(&from), all);
    let finished = run(&["dissect", text(&from), "--write", "/nonexistent/x.pcapng"]);
    assert!(finished.stderr.contains("choose a directory that exists"), "{finished:?}");
}

/// Returns the pieces of a file, which end in the middle of headers and packets.
fn pieces(file: &[u8]) -> Vec<&[u8]> {
    let len = file.len();
    [0..10, 10..len / 3, len / 3..len / 2 + 1, len / 2 + 1..len].map(|range| &file[range]).to_vec()
}

#[test]
fn a_growing_file_is_followed_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let pcapng = folder.path().join("whole.pcapng");
    let frames: Vec<_> = (0..3).map(|psn| frame(Opcode::RC_SEND_ONLY, Psn::new(psn), &[7; 40])).collect();
    write_capture(&pcapng, &frames);
    let mut classic = [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65_535, 1].map(u32::to_be_bytes).concat();
    for frame in &frames {
        classic.extend(
            [1_700_000_000, 0, frame.len() as u32, frame.len() as u32].map(u32::to_be_bytes).concat(),
        );
        classic.extend(frame);
    }
    for (name, whole) in [("pcapng", std::fs::read(&pcapng).unwrap()), ("pcap", classic)] {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let growing = folder.path().join(format!("growing.{name}"));
            let mut file = File::create(&growing).unwrap();
            let mut command = roce();
            let mut running = Running::start(command.args(["dissect", "--follow", text(&growing)]));
            for piece in pieces(&whole) {
                file.write_all(piece).unwrap();
                file.flush().unwrap();
            }
            running.wait_for_line(" 3 ");
            // The last packet is incomplete when the user ends the command.
            let record = match name {
                "pcap" => 16 + frames[2].len(),
                _ => u32::from_le_bytes(*whole.last_chunk().unwrap()) as usize,
            };
            file.write_all(&whole[whole.len() - record..][..record - 20]).unwrap();
            kill(Pid::from_raw(running.pid() as i32), signal).unwrap();
            let finished = running.finish(60);
            assert!(finished.success, "{name}: {finished:?}");
            assert!(finished.stderr.contains("3 packets: 3 RoCE"), "{name}: {finished:?}");
        }
    }
}

#[test]
fn following_ends_at_the_limit_and_says_when_a_file_shrinks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.pcapng");
    let frames: Vec<_> = (0..3).map(|psn| frame(Opcode::RC_SEND_ONLY, Psn::new(psn), &[7; 40])).collect();
    write_capture(&file, &frames);
    let finished = run(&["dissect", "--follow", text(&file), "--limit", "2"]);
    assert!(finished.success && finished.stdout.lines().count() == 3, "{finished:?}");
    let mut command = roce();
    let mut running = Running::start(command.args(["dissect", "--follow", text(&file)]));
    running.wait_for_line(" 3 ");
    OpenOptions::new().write(true).open(&file).unwrap().set_len(30).unwrap();
    let finished = running.finish(60);
    assert!(!finished.success && finished.stderr.contains("the file became shorter"), "{finished:?}");
    let finished = run(&["dissect", "--follow", "-"]);
    assert!(finished.stderr.contains("--follow needs a file"), "{finished:?}");
}
