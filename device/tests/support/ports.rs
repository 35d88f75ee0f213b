//! Helpers for the tests of all ports, which are in the modules of `roce-device`: frames, and both ends of a
//! cable.

use std::time::{Duration, Instant as Clock};

use roce_device::Device;
use roce_device::framed::FramedDevice;
use roce_device::framed::port::{FramePort, HEADROOM, Outgoing, Split};
use roce_packet::{FrameHeaders, MacAddr, VlanTag};
use roce_transport::Instant;
use rustix::event::{PollFd, PollFlags, poll};

use crate::testing::{counter, counter_among, datagram, path, put as put_datagram, send_batch};

pub(crate) const NEAR: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const FAR: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(crate) const TAG: VlanTag = VlanTag { pcp: 5, dei: false, vid: 77 };

/// The kind of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) to_far: bool,
    pub(crate) is_ipv4: bool,
    pub(crate) vlan: Option<VlanTag>,
}

pub(crate) const PLAIN: Shape = Shape { to_far: true, is_ipv4: true, vlan: None };

/// Returns a frame with a valid datagram that has `payload` bytes (a multiple of four) behind its BTH.
pub(crate) fn frame(shape: Shape, psn: u32, payload: usize) -> Vec<u8> {
    let addresses = if shape.is_ipv4 { ["198.18.0.1", "198.18.0.2"] } else { ["2001:db8::1", "2001:db8::2"] };
    let mut ends = [(addresses[0], NEAR), (addresses[1], FAR)];
    if !shape.to_far {
        ends.reverse();
    }
    let [(source, source_mac), (destination, destination_mac)] = ends;
    let mut path = path(source.parse().unwrap(), destination.parse().unwrap());
    path.vlan = shape.vlan;
    let bytes = datagram(&path, psn, payload);
    let headers = FrameHeaders::new(&path, 0, destination_mac, source_mac, bytes.len()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    let _ = headers.emit(&mut frame).unwrap();
    frame.extend(bytes);
    frame
}

/// Returns a frame of exactly `len` bytes, regardless of its headers.
pub(crate) fn frame_of_len(shape: Shape, len: usize) -> Vec<u8> {
    let mut bytes = frame(shape, len as u32, 0);
    bytes.resize(len, 0xa5);
    for (index, byte) in bytes.iter_mut().enumerate().skip(70) {
        *byte = (index * 7 + len) as u8;
    }
    bytes
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Includes a tag that the interface removed.
    pub(crate) bytes: Vec<u8>,
    pub(crate) segment_len: Option<u16>,
}

/// Puts a frame into a slot; returns whether the port lent one.
pub(crate) fn put(port: &mut dyn FramePort, bytes: &[u8], split: Option<Split>) -> bool {
    let Some(slot) = port.slot() else { return false };
    // Like a device, put the datagram always at the same position.
    let start = if bytes.len() > 64 { HEADROOM - 42 } else { 0 };
    slot[start..start + bytes.len()].copy_from_slice(bytes);
    port.commit(Outgoing { bytes: start..start + bytes.len(), split });
    true
}

/// Returns whether the kernel has not accepted some frames; ignores work that is due once per second.
pub(crate) fn is_to_be_tried_again(port: &dyn FramePort, now: Instant) -> bool {
    port.deadline().is_some_and(|deadline| deadline < now.plus_nanos(500_000_000))
}

/// Sends frames, and retries while the port is full.
#[track_caller]
pub(crate) fn send(port: &mut dyn FramePort, frames: &[Vec<u8>]) {
    let end = Clock::now() + Duration::from_secs(20);
    let now = Instant::from_nanos(1);
    for bytes in frames {
        while !put(port, bytes, None) {
            port.flush(now).expect("flush");
            assert!(Clock::now() < end, "the port stays full");
        }
    }
    port.flush(now).expect("flush");
    while is_to_be_tried_again(port, now) {
        port.flush(now).expect("flush");
        assert!(Clock::now() < end, "the kernel takes no frames");
    }
}

/// Receives all frames that are available now.
#[track_caller]
pub(crate) fn receive_now(port: &mut dyn FramePort, into: &mut Vec<Arrived>) {
    loop {
        let before = into.len();
        let count = port.receive(&mut |incoming| {
            let mut bytes = [incoming.head, incoming.tail].concat();
            if let Some(tag) = incoming.vlan {
                let [high, low] = tag.to_bits().to_be_bytes();
                bytes.splice(12..12, [0x81, 0, high, low]);
            }
            into.push(Arrived { bytes, segment_len: incoming.segment_len });
        });
        assert_eq!(count.expect("receive"), into.len() - before, "the count is right");
        if into.len() == before {
            return;
        }
    }
}

/// Waits for `count` frames, and 20 ms longer for unexpected frames.
#[track_caller]
pub(crate) fn receive(port: &mut dyn FramePort, count: usize) -> Vec<Arrived> {
    let mut arrived = Vec::new();
    let mut end = Clock::now() + Duration::from_secs(10);
    let mut is_enough = false;
    loop {
        receive_now(port, &mut arrived);
        if arrived.len() >= count && !is_enough {
            (is_enough, end) = (true, Clock::now() + Duration::from_millis(20));
        }
        let left = end.saturating_duration_since(Clock::now());
        if left.is_zero() {
            assert!(arrived.len() == count, "{} frames arrived in place of {count}", arrived.len());
            return arrived;
        }
        wait(port, left);
    }
}

/// Sleeps until the port is readable.
fn wait(port: &dyn FramePort, at_most: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(port.as_fd(), PollFlags::IN)];
    let timeout = at_most.try_into().unwrap();
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

/// Returns the value of a counter of a port.
#[track_caller]
pub(crate) fn port_counter(port: &dyn FramePort, name: &str) -> u64 {
    counter_among(|visit| port.counters(visit), name)
}

/// Sends frames one way and checks that the same frames arrive at the other end.
#[track_caller]
pub(crate) fn check_way(from: &mut dyn FramePort, to: &mut dyn FramePort, frames: &[Vec<u8>]) {
    check_paced_way(from, to, frames, frames.len().max(1));
}

/// Does the same as [`check_way`], with at most `at_once` frames that have not arrived.
#[track_caller]
pub(crate) fn check_paced_way(
    from: &mut dyn FramePort,
    to: &mut dyn FramePort,
    frames: &[Vec<u8>],
    at_once: usize,
) {
    let mut arrived = Vec::new();
    let end = Clock::now() + Duration::from_secs(20);
    for (round, frames) in frames.chunks(at_once).enumerate() {
        while arrived.len() < round * at_once {
            assert!(Clock::now() < end, "{} frames arrived, {} were sent", arrived.len(), round * at_once);
            receive_now(to, &mut arrived);
        }
        send(from, frames);
    }
    arrived.extend(receive(to, frames.len() - arrived.len()));
    for (index, (sent, arrived)) in frames.iter().zip(&arrived).enumerate() {
        assert!(*sent == arrived.bytes, "frame {index} of {} bytes: {:02x?}", sent.len(), arrived.bytes);
        assert_eq!(arrived.segment_len, None);
    }
    // A port does not receive its own frames.
    assert!(receive(from, 0).is_empty());
}

/// Checks every length in both directions, with at most `at_once` frames under way.
pub(crate) fn check_lengths(near: &mut dyn FramePort, far: &mut dyn FramePort, at_once: usize) {
    let there: Vec<Vec<u8>> = (60..=4170).map(|len| frame_of_len(PLAIN, len)).collect();
    let back = Shape { to_far: false, ..PLAIN };
    let back: Vec<Vec<u8>> = (60..=4170).rev().map(|len| frame_of_len(back, len)).collect();
    for (there, back) in there.chunks(300).zip(back.chunks(300)) {
        check_paced_way(near, far, there, at_once);
        check_paced_way(far, near, back, at_once);
    }
}

/// Checks IPv4 and IPv6, with and without tag, RoCE v1 and pause frames. A port that does not report tags is
/// not given any.
pub(crate) fn check_kinds(near: &mut dyn FramePort, far: &mut dyn FramePort, reports_tags: bool) {
    let mut frames = Vec::new();
    let tags = [None, Some(TAG), Some(VlanTag { vid: 0, ..TAG })];
    for is_ipv4 in [true, false] {
        for vlan in tags.into_iter().filter(|tag| tag.is_none() || reports_tags) {
            for payload in [4, 1024, 4096] {
                frames.push(frame(Shape { to_far: true, is_ipv4, vlan }, frames.len() as u32, payload));
            }
        }
    }
    for kind in [[0x89, 0x15], [0x88, 0x08]] {
        let mut other = frame_of_len(PLAIN, 100);
        other[12..14].copy_from_slice(&kind);
        frames.push(other);
    }
    check_way(near, far, &frames);
}

/// Sends datagrams between two devices without known neighbours: over IPv4, IPv6 and link-local addresses,
/// one at a time and in batches.
pub(crate) fn check_devices(near: &mut FramedDevice, far: &mut FramedDevice) {
    let began = Clock::now();
    let now = || Instant::from_nanos(1 + began.elapsed().as_nanos() as u64);
    let ends = [
        ("198.18.0.1", "198.18.0.2"),
        ("2001:db8::1", "2001:db8::2"),
        ("fe80::ff:fe00:1", "fe80::ff:fe00:2"),
    ];
    for (source, destination) in ends {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        assert!(near.addresses().contains(&source) && far.addresses().contains(&destination));
        let mut path = path(source, destination);
        path.vlan = near.vlan(0);
        let mut sent: Vec<Vec<u8>> = (0..10).map(|psn| datagram(&path, psn, 1024)).collect();
        for bytes in &sent {
            put_datagram(near, now(), &path, bytes);
        }
        let mut arrived = Vec::new();
        let mut round = |near: &mut FramedDevice, arrived: &mut Vec<Vec<u8>>| {
            near.flush(now()).expect("flush");
            let count = far.receive(now(), &mut |received| {
                assert_eq!((received.path.source, received.path.destination), (source, destination));
                arrived.push(received.body.pieces().concat());
            });
            count.expect("receive")
        };
        let end = Clock::now() + Duration::from_secs(10);
        while arrived.len() < sent.len() {
            round(near, &mut arrived);
            assert!(Clock::now() < end, "{destination}: {} datagrams of {}", arrived.len(), sent.len());
        }
        // Like the engine: contiguous, as long as the batch accepts them.
        sent.extend(send_batch(near, &path, 40, 1024));
        while arrived.len() < sent.len() {
            round(near, &mut arrived);
            assert!(Clock::now() < end, "{destination}: {} datagrams of {}", arrived.len(), sent.len());
        }
        assert!(arrived == sent, "{destination}");
    }
    assert_eq!(counter(near, "frame_tx_unreachable") + counter(near, "frame_tx_unresolved"), 0);
}

/// Returns frames, and whether a port takes each of them or leaves it to the kernel.
pub(crate) fn what_is_taken() -> Vec<(&'static str, Vec<u8>, bool)> {
    let v4 = || frame(PLAIN, 1, 64);
    let v6 = || frame(Shape { is_ipv4: false, ..PLAIN }, 1, 64);
    let tagged = || frame(Shape { vlan: Some(TAG), ..PLAIN }, 1, 64);
    let changed = |mut bytes: Vec<u8>, at: usize, with: &[u8]| {
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let mut two_tags = tagged();
    two_tags.splice(12..12, [0x81, 0, 0, 5]);
    vec![
        ("RoCE v2 over IPv4", v4(), true),
        ("RoCE v2 over IPv6", v6(), true),
        ("with a tag", tagged(), true),
        ("with a tag over IPv6", frame(Shape { is_ipv4: false, vlan: Some(TAG), ..PLAIN }, 1, 64), true),
        ("with two tags", two_tags, false),
        ("to a group", changed(v4(), 0, &[1, 0, 0x5e, 1, 2, 3]), true),
        ("to another host", changed(v4(), 0, &[2, 0, 0, 0, 0, 9]), false),
        ("another UDP port", changed(v4(), 36, &[0x12, 0xb6]), false),
        ("another UDP port over IPv6", changed(v6(), 56, &[0x12, 0xb6]), false),
        ("from port 4791 only", changed(changed(v4(), 34, &[0x12, 0xb7]), 36, &[0, 53]), false),
        ("TCP", changed(v4(), 23, &[6]), false),
        ("TCP over IPv6", changed(v6(), 20, &[6]), false),
        ("the first fragment", changed(v4(), 20, &[0x20, 0]), false),
        ("a later fragment", changed(v4(), 20, &[0, 3]), false),
        ("not to be fragmented", changed(v4(), 20, &[0x40, 0]), true),
        ("ARP", changed(v4(), 12, &[8, 6]), false),
        ("RoCE v1", changed(v4(), 12, &[0x89, 0x15]), true),
        ("pause", changed(v4(), 12, &[0x88, 0x08]), true),
        ("too short for UDP", v4()[..36].to_vec(), false),
        ("too short for IPv6 and UDP", v6()[..56].to_vec(), false),
    ]
}
