use std::net::Ipv4Addr;

use roce_packet::Frame;

use super::*;
use crate::kept::Kept;
use crate::memory::MemoryDevice;
use crate::testing::{counter, path, receive_all, sealed, send, send_batch};
use crate::udp::{UdpDevice, UdpSpec};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

#[track_caller]
fn good_frame(bytes: &[u8]) -> Frame<'_> {
    let frame = Frame::parse(bytes).unwrap();
    assert!(frame.verify_icrc().unwrap().is_good(), "{frame:?}");
    frame
}

/// Sockets do not report the Identification; the segments of a superpacket were sealed for 0, 1, 2 ….
#[test]
fn identifications_are_found_out_from_the_icrc() {
    let open = |address: &str| UdpDevice::open(&address.parse::<UdpSpec>().unwrap()).unwrap();
    let (mut a, b) = (open("udp:127.0.0.1,port=0"), open("udp:127.0.0.2,port=0"));
    a.set_peer_port(b.port());
    let path = Path { source_port: a.port(), ..path(a.addresses()[0], b.addresses()[0]) };
    let joined = a.capabilities().max_segments > 1;
    let (left, right) = (Kept::default(), Kept::default());
    let mut a = PcapDevice::new(Box::new(a), Box::new(left.clone()));
    let mut b = PcapDevice::new(Box::new(b), Box::new(right.clone()));
    send_batch(&mut a, &path, 6, 1000);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(receive_all(&mut b).len(), 6);
    let frames = |kept: &Kept| {
        let frames = kept.seen();
        frames.iter().map(|(.., frame)| frame.clone()).collect::<Vec<_>>()
    };
    assert_eq!(frames(&left), frames(&right));
    for (index, bytes) in (0..).zip(frames(&right)) {
        let frame = good_frame(&bytes);
        assert_eq!(frame.envelope().identification, if joined { index } else { 0 });
        assert!(frame.envelope().dont_fragment);
    }
    // Batches pass through the wrapper.
    assert_eq!(counter(&a, "udp_tx_messages"), if joined { 1 } else { 6 });
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (time, direction, ..) = left.seen()[0].clone();
    assert!(now - time < 60_000_000_000, "{time} is not today");
    assert_eq!(direction, Direction::Outbound);
}

#[test]
fn what_was_damaged_is_shown_with_a_comment() {
    let kept = Kept::default();
    let recorder = PcapDevice::new(Box::new(MemoryDevice::pair(A, B).unwrap().0), Box::new(kept.clone()));
    let path = path(A, B);
    let receive = |bytes: &[u8], head_len: usize, identification| {
        let (head, tail) = bytes.split_at(head_len);
        lock(&recorder.recorder).received(0, &Received::in_pieces(path, identification, [head, tail]));
        kept.seen().pop().unwrap()
    };
    let unknown = Identification::Unknown { hint: 3 };
    // A peer that counts its packets, with the datagram split at every position.
    let bytes = sealed(&path, 1, 64, 0xbeef);
    for head_len in 12..=bytes.len() {
        let (.., comment, frame) = receive(&bytes, head_len, unknown);
        assert_eq!(comment, None);
        assert_eq!(good_frame(&frame).envelope().identification, 0xbeef);
    }
    // In-band telemetry behind the ICRC, from a peer of this project.
    let with_telemetry = [sealed(&path, 1, 64, 9), Telemetry::default().emit().to_vec()].concat();
    for head_len in 12..=with_telemetry.len() {
        let (.., comment, frame) = receive(&with_telemetry, head_len, unknown);
        assert_eq!(comment, None, "{head_len}");
        let (rest, _) = Frame::parse(&frame).unwrap().split_telemetry().unwrap();
        assert_eq!(rest.envelope().identification, 9);
    }
    let mut damaged = bytes.clone();
    damaged[30] ^= 0x01;
    let (.., comment, frame) = receive(&damaged, damaged.len(), unknown);
    assert!(comment.unwrap().contains("ICRC is wrong"));
    assert_eq!(Frame::parse(&frame).unwrap().transport, damaged);
    // Known headers are recorded unchanged.
    let known = Identification::Known { identification: 9, dont_fragment: false };
    let (.., frame) = receive(&damaged, damaged.len(), known);
    let envelope = Frame::parse(&frame).unwrap().envelope();
    assert_eq!((envelope.identification, envelope.dont_fragment), (9, false));
    // Too short for an ICRC.
    let (.., comment, _) = receive(&[1, 2], 2, unknown);
    assert!(comment.is_some());
    assert_eq!(counter(&recorder, "pcap_damaged"), 2);
}

#[test]
fn paths_without_frames_are_counted() {
    let kept = Kept::default();
    let mut device = PcapDevice::new(Box::new(MemoryDevice::pair(A, B).unwrap().0), Box::new(kept.clone()));
    let mixed = path(A, "::1".parse().unwrap());
    send(&mut device, &mixed, &[&[0; 16]]);
    assert_eq!(counter(&device, "pcap_unframed"), 1);
    assert!(kept.seen().is_empty());
}

#[test]
fn ethernet_addresses_come_from_ip_addresses() {
    for (ip, expected) in [
        ("10.1.2.3", "02:00:0a:01:02:03"),
        ("fe80::1:2", "02:00:00:01:00:02"),
        ("239.1.2.3", "01:00:5e:01:02:03"),
    ] {
        assert_eq!(ethernet_address(ip.parse().unwrap()).to_string(), expected);
    }
}
