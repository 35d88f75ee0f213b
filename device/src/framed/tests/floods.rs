//! A peer that makes this device send to many silent destinations, besides an honest peer.

use std::net::IpAddr;

use super::*;
use crate::framed::held::{MAX_ALTOGETHER, MAX_LOOKS};
use crate::testing::put;

const MICROSECOND: u64 = 1_000;

/// Returns a destination of the flood, which does not answer.
fn silent(number: u32) -> IpAddr {
    IpAddr::from((u32::from_be_bytes([198, 19, 0, 0]) + number).to_be_bytes())
}

/// Commits a datagram to each of these destinations, and flushes.
fn flood(device: &mut FramedDevice, now: Instant, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let way = path(us(1), silent(number));
        put(device, now, &way, &datagram(&way, number, 64));
    }
    device.flush(now).unwrap();
}

#[test]
fn a_destination_that_is_asked_for_during_a_flood_gets_its_datagrams_when_it_answers() {
    let (mut device, link) = device(1, FrameSettings::default());
    let at = |micros: u64| Instant::from_nanos(micros * MICROSECOND);
    flood(&mut device, at(0), 0..6_000);
    let honest = path(us(1), us(60));
    let datagrams: Vec<_> = (0..4).map(|psn| datagram(&honest, psn, 256)).collect();
    for bytes in &datagrams {
        put(&mut device, at(1), &honest, bytes);
    }
    // The flood continues while the honest destination is being resolved.
    for round in 0..20_u32 {
        flood(&mut device, at(10 + u64::from(round)), 6_000 + 10 * round..6_010 + 10 * round);
        assert!(device.held.len() <= MAX_ALTOGETHER);
    }
    assert!(sent(&link).is_empty());
    link.lock().unwrap().neighbours.insert(us(60), Resolution::Known(PEER_MAC));
    // The device checks the honest path within a few milliseconds.
    for round in 0..20 {
        device.flush(at(1_000 + 200 * round)).unwrap();
    }
    let frames = sent(&link);
    let arrived: Vec<_> = frames.iter().map(|frame| Frame::parse(frame).unwrap().transport).collect();
    assert_eq!(arrived, datagrams, "whole and in order");
}

#[test]
fn a_resolved_destination_keeps_its_share_during_a_flood() {
    let (mut device, link) = device(1, FrameSettings::default());
    let honest = path(us(1), us(2));
    for round in 0..1_000_u32 {
        let now = Instant::from_nanos(u64::from(round) * 10 * MICROSECOND);
        let bytes = datagram(&honest, round, 64);
        put(&mut device, now, &honest, &bytes);
        flood(&mut device, now, 20 * round..20 * (round + 1));
        let frames = sent(&link);
        assert_eq!(frames.len(), 1, "round {round}");
        assert_eq!(Frame::parse(&frames[0]).unwrap().transport, bytes);
    }
    assert!(counter(&device, "frame_tx_unresolved") > 10_000);
}

/// Each check costs a lookup of the host, which may ask the kernel.
#[test]
fn a_flood_costs_a_bounded_number_of_lookups_for_each_call() {
    let (mut device, link) = device(1, FrameSettings::default());
    flood(&mut device, Instant::ZERO, 0..6_000);
    for round in 1..100 {
        link.lock().unwrap().lookups = 0;
        device.flush(Instant::from_nanos(round * 200 * MICROSECOND)).unwrap();
        assert!(link.lock().unwrap().lookups <= MAX_LOOKS, "{}", link.lock().unwrap().lookups);
    }
}
