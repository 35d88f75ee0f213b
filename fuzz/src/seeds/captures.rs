//! Frames and capture files: one packet of every opcode that two engines exchange.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use roce_capture::{CaptureReader, Direction, PcapWriter};
use roce_packet::{
    Bth, Cnp, Encapsulation, Frame, FrameHeaders, ImmDt, MacAddr, Opcode, Path, PathMtu, Psn, Qpn, VlanTag,
};
use roce_sim::pair::{Pair, Sent, Settings, Side};
use roce_transport::{FlushPlacement, QpType, SendOp, SendWr, UdDestination};

use super::Seeds;
use crate::packet::{Fields, build};

/// Number of bytes taken from a capture in `pcaps/`, and maximum number of captures.
const MOST_CAPTURE: usize = 16 << 10;

pub(super) fn add(seeds: &mut Seeds) {
    let (path, packets) = traffic();
    for (opcode, bytes) in &packets {
        let name = opcode.info().map_or("UNKNOWN", |info| info.name).to_lowercase();
        seeds.insert(("parse", format!("frame-{name}")), frame(&path, bytes));
        seeds.insert(("parse", format!("datagram-{name}")), bytes.clone());
        let covered = &bytes[..bytes.len() - 4];
        seeds.insert(("parse_repaired", name), [&[0, 0, 0, 0], covered].concat());
    }
    let send = &packets[&Opcode::RC_SEND_ONLY];
    for (name, path) in shapes(&path) {
        seeds.insert(("parse", format!("frame-{name}")), frame(&path, send));
    }
    for (index, name) in [(2_u8, "ipv6"), (3, "v1"), (6, "ipv6-tagged"), (0x40, "split")] {
        let covered = &send[..send.len() - 4];
        seeds.insert(("parse_repaired", name.to_owned()), [&[index, 1, 77, 9], covered].concat());
    }
    seeds.insert(("parse", "pause".to_owned()), pause());
    files(seeds, &path, &packets);
    stored_captures(seeds);
}

/// Returns one packet of every opcode, and their path.
fn traffic() -> (Path, BTreeMap<Opcode, Vec<u8>>) {
    let mut found = BTreeMap::new();
    let mut pair = Pair::with_config(roce_transport::EngineConfig::from_number(4), 1 << 13);
    pair.record = true;
    let settings = Settings { mtu: PathMtu::Mtu256, ..Settings::default() };
    let (rc, rc_peer) = pair.connect_with(QpType::Rc, &settings);
    let (uc, uc_peer) = pair.connect_with(QpType::Uc, &settings);
    let (ud, ud_peer) = pair.connect_with(QpType::Ud, &settings);
    for (own, peer) in [(rc, rc_peer), (uc, uc_peer)] {
        for id in 0..8 {
            pair.post_recv(Side::B, peer, id, 0, 700).expect("room for eight");
        }
        for len in [37, 600] {
            for op in operations(&pair, own == rc) {
                let len = if is_single(&op) { 8 } else { len };
                let len = if matches!(op, SendOp::Flush { .. }) { 0 } else { len };
                let element = pair.host(Side::A).memory_range(0, len);
                pair.post_send(Side::A, own, &SendWr::new(1, op, &[element])).expect("room for all");
                pair.drive();
            }
        }
    }
    let to = UdDestination { path: pair.path(Side::A), remote_qpn: ud_peer, remote_qkey: settings.qkey };
    for op in [SendOp::Send, SendOp::SendWithImm(ImmDt([1, 2, 3, 4]))] {
        pair.post_recv(Side::B, ud_peer, 9, 0, 700).expect("room");
        let element = pair.host(Side::A).memory_range(0, 50);
        pair.post_send(Side::A, ud, &SendWr::new(1, op, &[element]).to(to)).expect("room");
        pair.drive();
    }
    let path = pair.path(Side::A);
    for Sent { opcode, bytes, .. } in &pair.sent {
        found.entry(*opcode).or_insert_with(|| bytes.clone());
    }
    found.extend(made_by_hand(&path));
    (path, found)
}

fn is_single(op: &SendOp) -> bool {
    matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. })
}

fn operations(pair: &Pair, reliable: bool) -> Vec<SendOp> {
    let rkey = pair.host(Side::B).rkey();
    let remote_addr = pair.host(Side::B).region.addr;
    let imm = ImmDt([0xde, 0xad, 0xbe, 0xef]);
    let mut all = vec![
        SendOp::Send,
        SendOp::SendWithImm(imm),
        SendOp::Write { remote_addr, rkey },
        SendOp::WriteWithImm { remote_addr, rkey, imm },
    ];
    if reliable {
        all.extend([
            SendOp::Read { remote_addr, rkey },
            SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
            SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            SendOp::AtomicWrite { remote_addr, rkey },
            SendOp::Flush {
                remote_addr,
                rkey,
                length: 64,
                placement: FlushPlacement::GLOBAL_VISIBILITY,
                whole_region: false,
            },
        ]);
    }
    all
}

/// Returns packets that the engines do not send: SEND with invalidate without a window, a CNP, RD and XRC.
fn made_by_hand(path: &Path) -> Vec<(Opcode, Vec<u8>)> {
    let mut all = Vec::new();
    let names =
        ["RC_SEND_ONLY_WITH_INVALIDATE", "RC_SEND_LAST_WITH_INVALIDATE", "RD_SEND_ONLY", "XRC_SEND_ONLY"];
    for number in 0..=u8::MAX {
        let Some(info) = Opcode(number).info().filter(|info| names.contains(&info.name)) else { continue };
        let bth = Bth::new(info.opcode, Qpn::new(0x12), Psn::new(7));
        all.push((info.opcode, build(path, &bth, info, &Fields::default(), &[0x55; 21])));
    }
    let mut cnp = [0; Cnp::LEN];
    let envelope = roce_packet::Envelope::new(path, 0);
    Cnp { dest_qp: Qpn::new(0x12), p_key: 0xffff }.emit(&envelope, &mut cnp);
    all.push((Opcode::CNP, cnp.to_vec()));
    all
}

fn frame(path: &Path, datagram: &[u8]) -> Vec<u8> {
    let (from, to) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let headers = FrameHeaders::new(path, 0, to, from, datagram.len()).expect("short, one family");
    let mut bytes = vec![0; FrameHeaders::MAX_LEN];
    let len = headers.emit(&mut bytes).expect("room for the longest headers");
    bytes.truncate(len);
    bytes.extend_from_slice(datagram);
    bytes
}

/// Returns paths with other headers. The ICRC of a datagram is then wrong, which the parser ignores.
fn shapes(path: &Path) -> Vec<(&'static str, Path)> {
    let mapped = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        other => other,
    };
    let vlan = Some(VlanTag { pcp: 3, dei: true, vid: 42 });
    let (source, destination) = (mapped(path.source), mapped(path.destination));
    let ipv6 = Path { source, destination, flow_label: 0xabcde, ..*path };
    let v1 = Path { encapsulation: Encapsulation::RoceV1, ..ipv6 };
    vec![
        ("ipv4-tagged", Path { vlan, ..*path }),
        ("ipv6", ipv6),
        ("ipv6-tagged", Path { vlan, ..ipv6 }),
        ("v1", v1),
        ("v1-tagged", Path { vlan, ..v1 }),
    ]
}

/// Returns a priority flow control frame as in IEEE 802.1Qbb.
fn pause() -> Vec<u8> {
    let mut bytes = vec![0x01, 0x80, 0xc2, 0, 0, 0x01, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 0x01, 0x01, 0, 0x08];
    bytes.extend([0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.resize(60, 0);
    bytes
}

/// Adds capture files of both formats.
fn files(seeds: &mut Seeds, path: &Path, packets: &BTreeMap<Opcode, Vec<u8>>) {
    let frames: Vec<Vec<u8>> = packets.values().take(4).map(|bytes| frame(path, bytes)).collect();
    let file = Shared::default();
    let mut writer = PcapWriter::new(file.clone(), "seed", &["left", "right"]).expect("memory");
    for (index, frame) in frames.iter().enumerate() {
        let direction = if index % 2 == 0 { Direction::Outbound } else { Direction::Inbound };
        let comment = (index == 1).then_some("the second");
        let time = 1_700_000_000_000_000_000 + index as u64;
        writer.write(u32::from(index % 2 == 1), time, direction, comment, frame).expect("memory");
    }
    writer.flush().expect("memory");
    drop(writer);
    let pcapng = file.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // `pcap-file` writes in the byte order of this machine; seeds are made on little-endian machines.
    seeds.insert(("pcap", "two-interfaces.pcapng".to_owned()), pcapng);
    for (name, magic, big) in [
        ("microseconds.pcap", 0xa1b2_c3d4_u32, false),
        ("nanoseconds.pcap", 0xa1b2_3c4d, false),
        ("big-endian.pcap", 0xa1b2_c3d4, true),
    ] {
        seeds.insert(("pcap", name.to_owned()), classic(magic, big, &frames));
    }
    seeds.insert(("pcap", "simple-packet.pcapng".to_owned()), simple_packets(&frames[0]));
}

fn classic(magic: u32, big: bool, frames: &[Vec<u8>]) -> Vec<u8> {
    let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let version = if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
    let mut bytes = [word(magic), version, word(0), word(0), word(65_535), word(1)].concat();
    for (index, frame) in frames.iter().enumerate() {
        let len = u32::try_from(frame.len()).expect("short");
        bytes.extend([word(1_700_000_000), word(index as u32), word(len), word(len + 4)].concat());
        bytes.extend(frame);
    }
    bytes
}

/// Returns a big-endian pcapng file with both old kinds of packet blocks and a block of unknown type.
fn simple_packets(frame: &[u8]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let body = [body, &vec![0; body.len().wrapping_neg() % 4]].concat();
        let len = u32::try_from(body.len() + 12).expect("short").to_be_bytes();
        [&kind.to_be_bytes()[..], &len, &body, &len].concat()
    };
    let len = u32::try_from(frame.len()).expect("short").to_be_bytes();
    let section = [&[0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0][..], &[0xff; 8]].concat();
    let old = [&[0, 0, 0, 0, 0, 6, 0, 0, 1, 2, 3, 4][..], &len, &len, frame].concat();
    [
        block(0x0a0d_0d0a, &section),
        block(1, &[0, 1, 0, 0, 0, 0, 0xff, 0xff, 0, 9, 0, 1, 6, 0, 0, 0, 0, 0, 0, 0]),
        block(3, &[&len[..], frame].concat()),
        block(2, &old),
        block(0x0bad, &[1, 2, 3]),
    ]
    .concat()
}

/// Adds the captures in `pcaps/`: the first bytes and the first RoCE frame of each.
fn stored_captures(seeds: &mut Seeds) {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps");
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "pcap" || end == "pcapng"));
    files.sort();
    for file in files.iter().take(8) {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let Ok(bytes) = std::fs::read(file) else { continue };
        if let Some(first) = first_frame(bytes.clone()) {
            seeds.insert(("parse", format!("capture-{stem}")), first);
        }
        if bytes.len() <= MOST_CAPTURE {
            seeds.insert(("pcap", format!("capture-{stem}")), bytes);
        }
    }
}

fn first_frame(bytes: Vec<u8>) -> Option<Vec<u8>> {
    let mut reader = CaptureReader::new(std::io::Cursor::new(bytes), "capture").ok()?;
    while let Some(Ok(packet)) = reader.next_packet() {
        if packet.bytes.len() < 512 && Frame::parse(packet.bytes).is_ok() {
            return Some(packet.bytes.to_vec());
        }
    }
    None
}

/// A file in memory that can be read while another owner writes it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
