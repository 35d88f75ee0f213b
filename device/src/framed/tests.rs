mod floods;
mod rig;
mod vectors;

use std::net::IpAddr;

use roce_packet::pause::PauseRequest;
use roce_packet::{Bth, Encapsulation, Envelope, Frame, FrameHeaders, PauseFrame, UdpHeader, icrc};

use super::port::HEADROOM;
use super::*;
use crate::framed::Unreachable;
use crate::testing::{counter, datagram, is_sealed_for, path, receive_all, send, send_batch};
use rig::{Link, OUR_MAC, PEER_MAC, device, device_of, sent, us, us6};

#[test]
fn frames_have_right_headers_on_both_ip_versions_and_arrive_back() {
    for (from, to) in [(us(1), us(2)), (us6(1), us6(2))] {
        for settings in [FrameSettings::default(), FrameSettings { vlan: Some(7), priority: Some(3) }] {
            let (mut sender, link) = device(1, settings);
            let mut path = path(from, to);
            path.vlan = sender.vlan(path.traffic_class);
            let datagrams = [datagram(&path, 1, 4096), datagram(&path, 2, 0)];
            send(&mut sender, &path, &[&datagrams[0], &datagrams[1]]);
            let frames = sent(&link);
            for (frame, datagram) in frames.iter().zip(&datagrams) {
                let frame = Frame::parse(frame).unwrap();
                assert_eq!((frame.headers.source, frame.headers.destination), (OUR_MAC, PEER_MAC));
                assert_eq!(frame.headers.vlan, settings.vlan.map(|vid| VlanTag { pcp: 3, dei: false, vid }));
                assert_eq!(frame.transport, datagram);
                assert_eq!(frame.path(), path);
                assert!(frame.verify_icrc().unwrap().is_good());
            }
            assert_eq!(frames.len(), 2);

            // The receiving side, whose address is replaced.
            let (mut receiver, link) = device(1, settings);
            receiver.addresses = vec![to];
            link.lock().unwrap().arriving.extend(frames.into_iter().map(|frame| (frame, None, None)));
            let arrived = receive_all(&mut receiver);
            assert_eq!(
                arrived.iter().map(|one| &one.bytes).collect::<Vec<_>>(),
                datagrams.iter().collect::<Vec<_>>()
            );
            assert!(arrived.iter().all(|one| one.path == path));
        }
    }
}

#[test]
fn a_superframe_is_split_as_its_segments_were_sealed() {
    let (mut sender, link) = device(64, FrameSettings::default());
    let way = path(us(1), us(2));
    let datagrams = send_batch(&mut sender, &way, 20, 1024);
    let (frame, split) = link.lock().unwrap().sent.remove(0);
    let split = split.unwrap();
    assert_eq!(usize::from(split.segment_len), datagrams[0].len());
    assert_eq!((split.udp_offset, split.headers_len, split.is_ipv4), (34, 42, true));
    assert_eq!(frame[42..], datagrams.concat());
    // RFC 768: with this sum in the checksum field, the sum over pseudo header and UDP header fits.
    let udp = &frame[34..34 + UdpHeader::LEN];
    assert_ne!(&udp[6..], [0, 0]);

    let (mut receiver, link) = device(64, FrameSettings::default());
    receiver.addresses = vec![us(2)];
    link.lock().unwrap().arriving.push((frame, Some(split.segment_len), None));
    let arrived = receive_all(&mut receiver);
    assert_eq!(arrived.len(), datagrams.len());
    for (index, (one, sent)) in (0..).zip(arrived.iter().zip(&datagrams)) {
        assert_eq!(one.bytes, *sent);
        let known = roce_transport::Identification::Known { identification: index, dont_fragment: true };
        assert_eq!(one.identification, known);
        assert!(is_sealed_for(&way, &one.bytes, index));
    }
}

#[test]
fn what_does_not_belong_into_a_superframe_gets_a_frame_of_its_own() {
    let (mut device, link) = device(64, FrameSettings::default());
    let (to_4, to_6) = (path(us(1), us(2)), path(us6(1), us6(2)));
    let (long, short, other) = (datagram(&to_4, 0, 1024), datagram(&to_4, 1, 64), datagram(&to_6, 2, 2048));
    for (way, bytes) in [(&to_4, &long), (&to_6, &other), (&to_4, &short), (&to_4, &long)] {
        crate::testing::put(&mut device, Instant::ZERO, way, bytes);
    }
    device.flush(Instant::ZERO).unwrap();
    let frames = sent(&link);
    let inside: Vec<_> = frames.iter().map(|frame| Frame::parse(frame).unwrap().transport).collect();
    assert_eq!(inside, [&long[..], &other, &short, &long]);
    assert_eq!(counter(&device, "frame_tx_datagrams"), 4);
}

#[test]
fn datagrams_wait_for_an_answer_and_keep_their_order() {
    let (mut device, link) = device(64, FrameSettings::default());
    let way = path(us(1), us(9));
    let datagrams = send_batch(&mut device, &way, 5, 256);
    assert!(sent(&link).is_empty());
    assert!(device.deadline().is_some(), "the held datagram is looked at again");
    // Datagrams to other destinations do not wait for it.
    let other = path(us(1), us(2));
    send(&mut device, &other, &[&datagram(&other, 0, 4)]);
    assert_eq!(sent(&link).len(), 1);
    link.lock().unwrap().neighbours.insert(us(9), Resolution::Known(PEER_MAC));
    let last = datagram(&way, 9, 8);
    send(&mut device, &way, &[&last]);
    let frames = sent(&link);
    let inside: Vec<_> = frames.iter().map(|frame| Frame::parse(frame).unwrap()).collect();
    assert_eq!(inside.len(), 6);
    assert!(
        inside.iter().all(|frame| frame.verify_icrc().unwrap().is_good()),
        "each with its Identification"
    );
    assert!(inside.iter().zip(datagrams.iter().chain([&last])).all(|(frame, sent)| frame.transport == sent));
    assert_eq!(device.deadline(), None);
}

#[test]
fn nobody_there_is_counted_and_does_not_fill_the_memory() {
    let (mut device, link) = device(1, FrameSettings::default());
    let way = path(us(1), us(9));
    let bytes = datagram(&way, 0, 64);
    for _ in 0..1000 {
        send(&mut device, &way, &[&bytes]);
    }
    assert_eq!(counter(&device, "frame_tx_held") + counter(&device, "frame_tx_unresolved"), 1000);
    assert!(counter(&device, "frame_tx_held") <= 200);
    let gone = Resolution::Failed(Unreachable::NoAnswer { next_hop: us(9) });
    link.lock().unwrap().neighbours.insert(us(9), gone);
    device.flush(Instant::ZERO).unwrap();
    assert_eq!(counter(&device, "frame_tx_unreachable"), counter(&device, "frame_tx_held"));
    assert!(sent(&link).is_empty());
    let error = device.bind_source_port(&way, 49_152).unwrap_err().to_string();
    assert!(error.contains("198.18.0.9") && error.contains("does not answer"), "{error}");
}

/// Regression: eight hosts that did not answer took all the room, and blocked the device.
#[test]
fn destinations_that_do_not_answer_hold_up_nobody_else() {
    let (mut device, link) = device(1, FrameSettings::default());
    for silent in 10..50 {
        let way = path(us(1), us(silent));
        let bytes = datagram(&way, 0, 64);
        for _ in 0..200 {
            send(&mut device, &way, &[&bytes]);
        }
    }
    assert_eq!(device.held.len(), 4_096);
    let other = path(us(1), us(2));
    send(&mut device, &other, &[&datagram(&other, 0, 4)]);
    assert_eq!(sent(&link).len(), 1);
    // A datagram to another destination replaces one of the path with the most.
    let new = path(us(1), us(60));
    send(&mut device, &new, &[&datagram(&new, 0, 4)]);
    link.lock().unwrap().neighbours.insert(us(60), Resolution::Known(PEER_MAC));
    send(&mut device, &new, &[&datagram(&new, 1, 4)]);
    assert_eq!(sent(&link).len(), 2);
    assert_eq!(device.held.len(), 4_094);
}

#[test]
fn the_host_is_asked_with_the_latest_time_when_a_path_is_made() {
    let (mut device, link) = device(1, FrameSettings::default());
    let way = path(us(1), us(9));
    let resolved_at = |device: &mut FramedDevice| {
        device.bind_source_port(&way, 49_152).unwrap();
        link.lock().unwrap().resolved_at
    };
    assert_eq!(resolved_at(&mut device), Instant::ZERO);
    device.flush(Instant::from_nanos(5)).unwrap();
    assert_eq!(resolved_at(&mut device), Instant::from_nanos(5));
    device.receive(Instant::from_nanos(7), &mut |_| {}).unwrap();
    assert_eq!(resolved_at(&mut device), Instant::from_nanos(7));
}

#[test]
fn a_full_port_loses_nothing() {
    for max_segments in [1, 64] {
        let (mut device, link) = device(max_segments, FrameSettings::default());
        link.lock().unwrap().room = 2;
        let ways = [path(us(1), us(2)), path(us6(1), us6(2))];
        let mut expected = 0;
        for round in 0..50 {
            for way in &ways {
                let bytes = datagram(way, round, 32);
                while device.slot().is_none() {
                    device.flush(Instant::ZERO).unwrap();
                }
                crate::testing::put(&mut device, Instant::ZERO, way, &bytes);
                expected += 1;
            }
        }
        device.flush(Instant::ZERO).unwrap();
        while device.deadline().is_some() {
            device.flush(Instant::ZERO).unwrap();
        }
        let found: usize = sent(&link)
            .iter()
            .map(|frame| Frame::parse(frame).unwrap().verify_icrc().unwrap().is_good())
            .filter(|good| *good)
            .count();
        assert_eq!(found, expected, "{max_segments} segments");
    }
}

/// A datagram that was held because the port was full does not hold back later ones of the same path.
#[test]
fn a_port_that_was_full_once_loses_nothing_afterwards() {
    let (mut device, link) = device(64, FrameSettings::default());
    link.lock().unwrap().room = 2;
    let way = path(us(1), us(2));
    for psn in 0..1000 {
        while device.slot().is_none() {
            device.flush(Instant::ZERO).unwrap();
        }
        // A longer datagram never joins the batch before it.
        let bytes = datagram(&way, psn, 4 * (psn as usize + 1));
        crate::testing::put(&mut device, Instant::ZERO, &way, &bytes);
        if psn == 500 {
            link.lock().unwrap().room = 3;
        }
    }
    device.flush(Instant::ZERO).unwrap();
    let psns: Vec<u32> = sent(&link)
        .iter()
        .map(|frame| Bth::parse(Frame::parse(frame).unwrap().transport).unwrap().0.psn.get())
        .collect();
    assert_eq!(psns, Vec::from_iter(0..1000));
    assert_eq!(counter(&device, "frame_tx_unresolved"), 0);
}

#[test]
fn a_paused_priority_waits_and_others_go_on() {
    let (mut device, link) = device(1, FrameSettings::default());
    let mut quanta = [None; 8];
    quanta[3] = Some(1000);
    let mut pause = [0; PauseFrame::LEN];
    PauseFrame { source: PEER_MAC, request: PauseRequest::PerPriority(quanta) }.emit(&mut pause);
    link.lock().unwrap().arriving.push((pause.to_vec(), None, None));
    assert!(receive_all(&mut device).is_empty());
    assert_eq!(counter(&device, "rx_prio3_pause"), 1);
    assert_eq!(counter(&device, "rx_prio2_pause"), 0);
    // 1,000 times 512 bits at 1 Gb/s.
    assert_eq!(counter(&device, "rx_prio3_pause_duration"), 512);
    let paused = path(us(1), us(2)).with_dscp(3 << 3);
    let running = path(us(1), us(2)).with_dscp(4 << 3);
    for way in [paused, running, paused] {
        send(&mut device, &way, &[&datagram(&way, 0, 4)]);
    }
    assert_eq!(sent(&link).len(), 1);
    let later = Instant::from_nanos(511_999);
    device.flush(later).unwrap();
    assert!(sent(&link).is_empty());
    assert!(device.deadline().is_some_and(|at| at <= Instant::from_nanos(512_000)));
    device.flush(Instant::from_nanos(512_000)).unwrap();
    assert_eq!(sent(&link).len(), 2);
}

#[test]
fn a_pause_that_is_over_wakes_nobody_again() {
    let (mut device, link) = device(1, FrameSettings::default());
    let mut quanta = [None; 8];
    (quanta[3], quanta[4]) = (Some(10), Some(1000));
    let mut pause = [0; PauseFrame::LEN];
    PauseFrame { source: PEER_MAC, request: PauseRequest::PerPriority(quanta) }.emit(&mut pause);
    link.lock().unwrap().arriving.push((pause.to_vec(), None, None));
    receive_all(&mut device);
    // No datagram has priority 3; one waits for the end of the longer pause.
    let way = path(us(1), us(2)).with_dscp(4 << 3);
    send(&mut device, &way, &[&datagram(&way, 0, 4)]);
    for now in [5_119, 5_120, 100_000, 511_999].map(Instant::from_nanos) {
        device.flush(now).unwrap();
        assert!(device.deadline().is_some_and(|at| now < at), "{:?} after {now:?}", device.deadline());
    }
    assert!(sent(&link).is_empty());
    device.flush(Instant::from_nanos(512_000)).unwrap();
    assert_eq!(sent(&link).len(), 1);
    assert_eq!(device.deadline(), None);
}

#[test]
fn a_pause_without_end_stops_the_engine_instead_of_filling_the_memory() {
    let (mut device, link) = device(1, FrameSettings::default());
    let mut pause = [0; PauseFrame::LEN];
    PauseFrame { source: PEER_MAC, request: PauseRequest::All(u16::MAX) }.emit(&mut pause);
    link.lock().unwrap().arriving.push((pause.to_vec(), None, None));
    receive_all(&mut device);
    let way = path(us(1), us(2));
    let bytes = datagram(&way, 0, 4);
    let mut taken = 0;
    while device.slot().is_some() {
        crate::testing::put(&mut device, Instant::ZERO, &way, &bytes);
        device.flush(Instant::ZERO).unwrap();
        taken += 1;
    }
    assert_eq!(taken, 32);
    assert_eq!(counter(&device, "rx_global_pause"), 1);
    // A pause of zero quanta ends it.
    PauseFrame { source: PEER_MAC, request: PauseRequest::All(0) }.emit(&mut pause);
    link.lock().unwrap().arriving.push((pause.to_vec(), None, None));
    receive_all(&mut device);
    device.flush(Instant::ZERO).unwrap();
    assert_eq!(sent(&link).len(), 32);
    assert!(device.slot().is_some());
}

/// An engine with a whole window would otherwise send it before it notices the pause.
#[test]
fn where_there_are_pauses_the_device_takes_no_more_until_it_has_looked_for_them() {
    let (mut device, link) = device(1, FrameSettings::default());
    link.lock().unwrap().room = 1000;
    let way = path(us(1), us(2));
    let bytes = datagram(&way, 0, 4);
    let offer = |device: &mut FramedDevice| {
        (0..500)
            .take_while(|_| {
                let is_taken = device.slot().is_some();
                if is_taken {
                    crate::testing::put(device, Instant::ZERO, &way, &bytes);
                    device.flush(Instant::ZERO).unwrap();
                }
                is_taken
            })
            .count()
    };
    assert_eq!(offer(&mut device), 500);
    let mut pause = [0; PauseFrame::LEN];
    PauseFrame { source: PEER_MAC, request: PauseRequest::All(0) }.emit(&mut pause);
    link.lock().unwrap().arriving.push((pause.to_vec(), None, None));
    for _ in 0..3 {
        receive_all(&mut device);
        assert_eq!(offer(&mut device), 64);
    }
}

#[test]
fn frames_of_others_are_counted_and_not_delivered() {
    let (mut device, link) = device(1, FrameSettings { vlan: Some(5), priority: None });
    let frame = |to: IpAddr, vid: Option<u16>| {
        let mut way = path(us(2), to);
        way.vlan = vid.map(|vid| VlanTag { pcp: 0, dei: false, vid });
        let datagram = datagram(&way, 0, 16);
        let headers = FrameHeaders::new(&way, 0, OUR_MAC, PEER_MAC, datagram.len()).unwrap();
        let mut bytes = vec![0; headers.len_bytes()];
        headers.emit(&mut bytes).unwrap();
        bytes.extend(datagram);
        bytes
    };
    let stripped = Some(VlanTag { pcp: 0, dei: false, vid: 5 });
    link.lock().unwrap().arriving = vec![
        (frame(us(1), Some(5)), None, None),
        (frame(us(1), None), None, stripped),
        (frame(us(1), Some(6)), None, None),
        (frame(us(1), None), None, None),
        (frame(us(77), Some(5)), None, None),
        (frame(us(1), Some(5))[..50].to_vec(), None, None),
        (vec![1, 2, 3], None, None),
    ];
    let arrived = receive_all(&mut device);
    assert_eq!(arrived.len(), 2);
    assert!(arrived.iter().all(|one| one.path.vlan == stripped));
    assert_eq!(counter(&device, "frame_rx_wrong_vlan"), 2);
    assert_eq!(counter(&device, "frame_rx_not_for_us"), 1);
    assert_eq!(counter(&device, "frame_rx_malformed"), 2);
}

#[test]
fn the_host_gets_and_sends_what_is_not_roce_without_its_tag() {
    let (mut device, link) = device(1, FrameSettings { vlan: Some(5), priority: Some(2) });
    let arp = |tag: &[u8]| [&[0xff; 6][..], &[2; 6], tag, &[0x08, 0x06], &[7; 28]].concat();
    link.lock().unwrap().arriving.push((arp(&[0x81, 0x00, 0x00, 0x05]), None, None));
    link.lock().unwrap().arriving.push((arp(&[0x81, 0x00, 0x00, 0x06]), None, None));
    device.receive(Instant::ZERO, &mut |_| panic!("no datagram")).unwrap();
    assert_eq!(link.lock().unwrap().host_frames, [arp(&[])]);
    assert_eq!(counter(&device, "frame_rx_wrong_vlan"), 1);
    link.lock().unwrap().host_sends.push(arp(&[]));
    device.flush(Instant::ZERO).unwrap();
    assert_eq!(sent(&link), [arp(&[0x81, 0x00, 0x40, 0x05])]);
}

#[test]
fn what_goes_to_ourselves_comes_back_without_the_wire() {
    let (mut device, link) = device(64, FrameSettings::default());
    let way = path(us(1), us(1));
    let datagrams = send_batch(&mut device, &way, 3, 512);
    assert_eq!(device.deadline(), Some(Instant::ZERO));
    let arrived = receive_all(&mut device);
    assert!(arrived.iter().zip(&datagrams).all(|(one, sent)| one.bytes == *sent));
    assert_eq!(arrived.len(), 3);
    assert!(sent(&link).is_empty());
}

#[test]
fn roce_v1_goes_to_the_address_in_the_gid() {
    let (mut device, link) = device(64, FrameSettings::default());
    let ends = [OUR_MAC, PEER_MAC].map(|mac| IpAddr::V6(Gid::link_local(mac).to_ipv6()));
    let mut way = path(ends[0], ends[1]);
    way.encapsulation = Encapsulation::RoceV1;
    way.source_port = 0;
    let mut bytes = datagram(&way, 0, 512);
    let body = bytes.len() - icrc::LEN;
    let value = icrc::compute(&Envelope::new(&way, 0), &bytes[..body], &[]);
    bytes[body..].copy_from_slice(&value.to_le_bytes());
    send(&mut device, &way, &[&bytes]);
    let frames = sent(&link);
    let frame = Frame::parse(&frames[0]).unwrap();
    assert_eq!((frame.headers.destination, frame.path()), (PEER_MAC, way));
    assert!(frame.verify_icrc().unwrap().is_good());
    // This device also receives the frame.
    link.lock().unwrap().arriving.push((frames[0].clone(), None, None));
    device.addresses.retain(|address| *address != ends[0]);
    device.addresses.push(ends[1]);
    assert_eq!(receive_all(&mut device)[0].path, way);
    assert_eq!(HEADROOM, 66);
}

#[test]
fn nobody_is_asked_for_an_address_that_the_destination_tells() {
    let (mut device, link) = device(1, FrameSettings::default());
    let peer = IpAddr::V6(Gid::link_local(PEER_MAC).to_ipv6());
    let gone = Resolution::Failed(Unreachable::NoAnswer { next_hop: peer });
    link.lock().unwrap().neighbours.insert(peer, gone);
    let mut way = path(IpAddr::V6(Gid::link_local(OUR_MAC).to_ipv6()), peer);
    assert!(device.bind_source_port(&way, 49_152).is_err());
    way.encapsulation = Encapsulation::RoceV1;
    device.bind_source_port(&way, 49_152).unwrap();
    // An address without EUI-64 does not determine the Ethernet address.
    let gone = Resolution::Failed(Unreachable::NoRoute);
    link.lock().unwrap().neighbours.insert(us6(9), gone);
    way.destination = us6(9);
    assert!(device.bind_source_port(&way, 49_152).is_err());
}

#[test]
fn multicast_has_its_own_addresses_and_needs_joining() {
    let (mut device, link) = device(1, FrameSettings::default());
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let way = path(us(1), group);
    send(&mut device, &way, &[&datagram(&way, 0, 4)]);
    let frames = sent(&link);
    assert_eq!(frames[0][..6], [0x01, 0x00, 0x5e, 1, 2, 3]);
    for (joined, count) in [(false, 0), (true, 1), (false, 0)] {
        device.set_multicast(group, joined).unwrap();
        link.lock().unwrap().arriving.push((frames[0].clone(), None, None));
        let mut delivered = 0;
        device.receive(Instant::ZERO, &mut |_| delivered += 1).unwrap();
        assert_eq!(delivered, count);
    }
}
