//! Tests of the hops that the queue writes into in-band telemetry.

use roce_packet::{Telemetry, TelemetryHop};

use super::*;

const QUEUE: &str = "rate = \"1Gbps\"\ntelemetry = true";

/// Returns a frame with telemetry behind its datagram.
fn with_trailer(path: &Path, psn: u32, telemetry: &Telemetry) -> Vec<u8> {
    let datagram = datagram(path, 7, 9, psn, 1_024);
    frame_of(path, 7, &[&datagram[..], &telemetry.emit()].concat())
}

#[track_caller]
fn telemetry_of(frame: &[u8]) -> Telemetry {
    Frame::parse(frame).unwrap().split_telemetry().expect("the ICRC is right in front of it").1
}

/// Returns the sum over a UDP header, its payload and its pseudo header: all ones if the checksum is correct.
fn udp_sum(frame: &[u8], addresses: std::ops::Range<usize>) -> u16 {
    let udp = &frame[addresses.end..];
    let words = [&frame[addresses], udp].concat();
    let sum: u32 = words.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let total = sum + 17 + udp.len() as u32;
    let folded = (total & 0xffff) + (total >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[test]
fn a_hop_has_the_rate_the_time_what_was_sent_and_what_waits() {
    let mut bridge = bridge(&with_queue(QUEUE));
    let path = path(true);
    let frame = with_trailer(&path, 0, &Telemetry::default());
    for _ in 0..10 {
        give(&mut bridge, 3_000, &frame);
    }
    // A packet without a trailer among them counts as sent and as waiting.
    give(&mut bridge, 3_000, &packet(9, 0, 1_024));
    give(&mut bridge, 3_000, &frame);
    let left = leaving(&mut bridge, 1_000_000);
    let (wire, plain) = (frame.len() as u64 + 24, packet(9, 0, 1_024).len() as u64 + 24);
    assert_eq!(left.len(), 12);
    assert_eq!(left[10], packet(9, 0, 1_024));
    for (index, frame) in left.iter().enumerate().filter(|(index, _)| *index != 10) {
        let sent = if index == 11 { 10 * wire + plain } else { index as u64 * wire };
        let waits = match index {
            0 => 0,
            11 => 0,
            _ => (9 - index as u64) * (wire - 24) + plain - 24 + wire - 24,
        };
        let expected = TelemetryHop::new(1_000_000_000, 3_000 + sent * 8, sent, waits);
        let telemetry = telemetry_of(frame);
        assert_eq!((telemetry.hops(), telemetry.is_complete()), (&[expected][..], true), "packet {index}");
    }
    assert_eq!(bridge.counts(Side::Left).telemetry_stamped, 11);
    // The payload of all packets, without their trailers.
    let payload: u64 = bridge.queue_pairs(Side::Left).map(|one| one.payload_bytes).sum();
    assert_eq!(payload, 12 * 1_024);
}

#[test]
fn checksums_stay_right() {
    let mut tagged = path(true);
    tagged.vlan = Some(VlanTag { pcp: 3, dei: false, vid: 100 });
    for (path, addresses) in [(path(true), 26..34), (tagged, 30..38), (path(false), 22..54)] {
        let mut bridge = bridge(&with_queue(QUEUE));
        let mut filled = Telemetry::default();
        for hop in 0..6 {
            // Without a checksum, which IPv4 and RoCE permit, and with one.
            let plain = with_trailer(&path, 1, &filled);
            let mut summed = plain.clone();
            let field = addresses.end + 6..addresses.end + 8;
            summed[field.clone()].fill(0);
            let sum = !udp_sum(&summed, addresses.clone());
            summed[field.clone()].copy_from_slice(&sum.to_be_bytes());
            give(&mut bridge, 1_000_000 * (hop + 1), &summed);
            give(&mut bridge, 1_000_000 * (hop + 1), &plain);
            let left = leaving(&mut bridge, 1_000_000 * (hop + 1) + 500_000);
            assert_eq!(udp_sum(&left[0], addresses.clone()), 0xffff, "hop {hop}");
            assert_eq!(left[1][field], plain[addresses.end + 6..addresses.end + 8]);
            for frame in &left {
                let telemetry = telemetry_of(frame);
                assert_eq!(telemetry.hops().len() as u64, (hop + 1).min(5));
                assert_eq!(telemetry.is_complete(), hop < 5);
            }
            filled = telemetry_of(&left[0]);
        }
    }
}

/// Checks packets that must not change: an echo, a packet with a wrong ICRC, a packet that only seems to have
/// a trailer, and any packet while telemetry is off.
#[test]
fn what_has_no_room_for_a_hop_passes_unchanged() {
    let path = path(true);
    let echo = with_trailer(&path, 1, &Telemetry::default().echo());
    let fresh = with_trailer(&path, 1, &Telemetry::default());
    let mut damaged = fresh.clone();
    damaged[80] ^= 1;
    let zeros = frame_of(&path, 7, &[&datagram(&path, 7, 9, 1, 64)[..], &[0; 48]].concat());
    let mut on = bridge(&with_queue(QUEUE));
    for frame in [echo, damaged, zeros] {
        give(&mut on, 0, &frame);
        assert_eq!(leaving(&mut on, 1_000_000), [frame]);
    }
    assert_eq!(on.counts(Side::Left).telemetry_stamped, 0);
    for settings in [Settings::default(), with_queue("rate = \"1Gbps\"")] {
        let mut off = bridge(&settings);
        give(&mut off, 0, &fresh);
        assert_eq!(leaving(&mut off, 1_000_000), std::slice::from_ref(&fresh));
    }
}

/// Sends a superpacket of the kernel, whose datagrams have trailers and share one partial checksum.
#[test]
fn datagrams_of_a_superpacket_get_a_hop_each() {
    let path = path(true);
    let telemetry = Telemetry::default().emit();
    let mut joined = Vec::new();
    for psn in 0..3 {
        joined.extend(datagram(&path, 100 + psn as u16, 9, psn, 64));
        joined.extend(telemetry);
    }
    let frame = frame_of(&path, 100, &joined);
    let words = [42_u16, 16 + 64 + 52, 34, 6].map(u16::to_ne_bytes);
    let mut offload = [1, 5, 0, 0, 0, 0, 0, 0, 0, 0];
    offload[2..].copy_from_slice(words.as_flattened());
    let mut bridge = bridge(&with_queue(QUEUE));
    bridge.handle_frame(Instant::ZERO, Side::Left, Offload(offload), &frame);
    let left = leaving(&mut bridge, 1_000_000);
    let times: Vec<u32> = left.iter().map(|frame| telemetry_of(frame).hops()[0].time).collect();
    let wire_ns = (left[0].len() as u32 + 24) * 8;
    assert_eq!(times, [0, wire_ns, 2 * wire_ns]);
}
