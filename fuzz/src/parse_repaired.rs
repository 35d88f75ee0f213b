//! Frames whose lengths, checksum and ICRC are corrected first, so that they pass the checks of the frame
//! parser, the ICRC, and the recovery of the Identification. They then enter an engine with a live queue pair
//! of every kind.
//!
//! Properties that are checked: a repaired frame parses and its ICRC is correct; after a change of any
//! covered bit it is wrong; the recovered Identification gives the same ICRC; the engine's counters add up.
//!
//! The input consists of four bytes that select the headers, the queue pair, the bit to change and the
//! Identification, followed by the bytes from BTH to padding.

use roce_packet::{
    Bth, Encapsulation, Envelope, Frame, FrameHeaders, MacAddr, NetworkHeader, Path, Qpn, VlanTag, icrc,
};
use roce_transport::{Identification, Received};

use crate::packet::{OWN_ADDRESS, PEER_ADDRESS, check_identity, collect, path};
use crate::responder::Rig;

const PREFIX: usize = 4;
/// Longest datagram in bytes. Neither an engine nor a network has longer ones.
const MOST: usize = 9_000;

/// Runs the target on an input, see the module.
pub fn run(data: &[u8]) {
    let Some((&[shape, target, flip, identification], covered)) = data.split_first_chunk::<PREFIX>() else {
        return;
    };
    if covered.len() < Bth::LEN || covered.len() > MOST {
        return;
    }
    let mut covered = covered.to_vec();
    let mut rig = Rig::new();
    if target < 0xf0 {
        // BTH bytes 5 to 7: the queue pair.
        let number = rig.numbers()[usize::from(target) % rig.numbers().len()];
        covered[5..8].copy_from_slice(&number.to_be_bytes());
    }
    if target & 1 == 0 {
        let expected = rig.expected_psn(Qpn::from_be_bytes([covered[5], covered[6], covered[7]]));
        covered[9..12].copy_from_slice(&expected.to_be_bytes());
    }
    let path = shaped(shape);
    let bytes = assemble(&path, identification, &covered);
    let frame = check_frame(&bytes, flip);
    into_engine(&mut rig, &frame, shape);
}

/// Returns a path with IPv4, IPv6 or RoCE v1, with or without a VLAN tag.
fn shaped(shape: u8) -> Path {
    let mut shaped = path(PEER_ADDRESS, OWN_ADDRESS);
    let mapped = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        other => other,
    };
    match shape & 0b11 {
        0 | 1 => {}
        2 => (shaped.source, shaped.destination) = (mapped(shaped.source), mapped(shaped.destination)),
        _ => shaped.encapsulation = Encapsulation::RoceV1,
    }
    if shape & 0b100 != 0 {
        shaped.vlan = Some(VlanTag { pcp: 3, dei: false, vid: 100 });
    }
    shaped.traffic_class = shape >> 3;
    shaped.flow_label = u32::from(shape) << 4;
    if shape & 0b11 == 0 {
        shaped.flow_label = 0;
    }
    shaped
}

/// Returns the whole frame with correct values of all computable fields.
fn assemble(path: &Path, identification: u8, covered: &[u8]) -> Vec<u8> {
    let (from, to) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let identification = u16::from(identification) * 257;
    let headers = FrameHeaders::new(path, identification, to, from, covered.len() + icrc::LEN)
        .expect("short enough, one address family");
    let mut bytes = vec![0; FrameHeaders::MAX_LEN];
    let len = headers.emit(&mut bytes).expect("room for the longest headers");
    bytes.truncate(len);
    bytes.extend_from_slice(covered);
    bytes.extend_from_slice(&icrc::compute(&headers.envelope(), covered, &[]).to_le_bytes());
    bytes
}

fn check_frame(bytes: &[u8], flip: u8) -> Frame<'_> {
    let frame = Frame::parse(bytes).expect("a repaired frame parses");
    let check = frame.verify_icrc().expect("it has an ICRC");
    assert!(check.is_good(), "a repaired ICRC is good: {check:?}");
    let (start, len) = (frame.headers.len_bytes(), frame.transport.len());
    let position = usize::from(flip) * 31 % (len * 8);
    // The ICRC does not cover the byte with FECN and BECN.
    if position / 8 != 4 {
        let mut damaged = bytes.to_vec();
        damaged[start + position / 8] ^= 1 << (position % 8);
        let damaged = Frame::parse(&damaged).expect("the headers are as before");
        assert!(!damaged.verify_icrc().expect("it has an ICRC").is_good(), "bit {position} flipped");
    }
    if let (Ok(datagram), NetworkHeader::Ipv4 { ip, .. }) = (frame.datagram(), &frame.headers.network) {
        let unknown = frame.envelope().with_identification(0);
        let found = datagram.recover_identification(&unknown).expect("there is one: the sender's");
        assert_eq!(datagram.compute_icrc(&unknown.with_identification(found)), datagram.icrc());
        assert_eq!(found, ip.identification, "16 bits are found without doubt");
    }
    frame
}

/// Passes the frame to the engine, like a device that sees the IP header or one that does not.
fn into_engine(rig: &mut Rig, frame: &Frame<'_>, shape: u8) {
    let envelope: Envelope = frame.envelope();
    let mut path = frame.path();
    if shape & 0b1000_0000 == 0 {
        // Uses the addresses with which the queue pairs are connected.
        path = crate::packet::path(PEER_ADDRESS, OWN_ADDRESS);
    }
    let known = Identification::Known {
        identification: envelope.identification,
        dont_fragment: envelope.dont_fragment,
    };
    rig.grant_everything();
    for identification in [known, Identification::Unknown { hint: 1 }] {
        let (head, tail) = frame.transport.split_at(frame.transport.len() / 2);
        let split = if shape & 0b100_0000 == 0 { (frame.transport, &[][..]) } else { (head, tail) };
        let received = Received::in_pieces(path, identification, [split.0, split.1]);
        let _ = rig.engine.handle(rig.now, &received);
        check_identity(&rig.engine);
        collect(&mut rig.engine, rig.now, |_, _| {});
        while rig.engine.poll_event().is_some() {}
    }
}
