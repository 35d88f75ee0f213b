//! A host and hand-written frames, in virtual time.

mod tcp;

use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr};
use smoltcp::wire::{Ipv6Packet, Ipv6Repr, checksum};

use super::*;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;

const OWN_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PEER_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xa, 1);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const OWN_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

fn config() -> HostConfig {
    HostConfig {
        mac: OWN_MAC,
        addresses: vec![(OWN_V4.into(), 24), (OWN_V6.into(), 64)],
        gateway_v4: Some(Ipv4Addr::new(198, 18, 0, 254)),
        gateway_v6: None,
        link_mtu: 1500,
        seed: 7,
    }
}

/// Returns a host that has sent all its announcements.
fn quiet_host() -> OwnHost {
    let mut host = OwnHost::new(&config());
    host.advance(at(0));
    for time in [0, 1000, 2000, 3000] {
        sent(&mut host, at(time));
    }
    assert_eq!(host.deadline(), None, "nothing is left to be said");
    host
}

fn sent(host: &mut OwnHost, now: Instant) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 4200];
    let frames =
        std::iter::from_fn(|| host.poll_transmit(now, &mut buffer).map(|len| buffer[..len].to_vec()));
    frames.take(10_000).collect()
}

/// Returns the only frame that is sent.
#[track_caller]
fn only(host: &mut OwnHost, now: Instant) -> Vec<u8> {
    let frames = sent(host, now);
    assert_eq!(frames.len(), 1, "{frames:02x?}");
    frames.into_iter().next().unwrap()
}

fn give(host: &mut OwnHost, now: Instant, frame: &[u8]) {
    // Some frames in two pieces, like AF_XDP.
    let (head, tail) =
        if frame.len().is_multiple_of(2) { (frame, &[][..]) } else { frame.split_at(frame.len() - 1) };
    host.handle_frame(now, &Incoming { head, tail, segment_len: None, vlan: None });
}

fn counter(host: &OwnHost, name: &str) -> u64 {
    let mut found = None;
    host.counters(&mut |known, value| {
        if known == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("there is no counter {name}"))
}

fn ethernet(destination: MacAddr, source: MacAddr, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; EthernetHeader::LEN];
    EthernetHeader { destination, source, ether_type }.emit(&mut header);
    [&header, payload].concat()
}

/// Returns a hand-written ARP frame; RFC 826 has no other fields.
fn arp(operation: u8, from: (MacAddr, Ipv4Addr), to: (MacAddr, Ipv4Addr), destination: MacAddr) -> Vec<u8> {
    let fixed = [0, 1, 8, 0, 6, 4, 0, operation];
    let payload = [&fixed[..], &from.0.0, &from.1.octets(), &to.0.0, &to.1.octets()].concat();
    ethernet(destination, from.0, EtherType::ARP, &payload)
}

fn arp_question(target: Ipv4Addr) -> Vec<u8> {
    arp(1, (PEER_MAC, PEER_V4), (MacAddr::ZERO, target), MacAddr::BROADCAST)
}

fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, next_header: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let repr = Ipv4Repr {
        src_addr: source,
        dst_addr: destination,
        next_header,
        payload_len: payload.len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut Ipv4Packet::new_unchecked(&mut bytes), &ChecksumCapabilities::default());
    bytes.extend(payload);
    ethernet(OWN_MAC, PEER_MAC, EtherType::IPV4, &bytes)
}

fn ipv6(
    to: MacAddr,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hop_limit: u8,
    next_header: IpProtocol,
    payload: &[u8],
) -> Vec<u8> {
    let repr = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header,
        payload_len: payload.len(),
        hop_limit,
    };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut Ipv6Packet::new_unchecked(&mut bytes));
    bytes.extend(payload);
    ethernet(to, PEER_MAC, EtherType::IPV6, &bytes)
}

/// Returns an ICMPv6 message with its checksum.
fn icmpv6(source: Ipv6Addr, destination: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    message[2..4].fill(0);
    let pseudo = checksum::pseudo_header_v6(&source, &destination, IpProtocol::Icmpv6, message.len() as u32);
    let sum = !checksum::combine(&[pseudo, checksum::data(&message)]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Returns a neighbour solicitation (135) or advertisement (136) with an address option.
fn discovery(
    kind: u8,
    flags: u8,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    mac: Option<MacAddr>,
    hop_limit: u8,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    if let Some(mac) = mac {
        message.extend([kind - 134, 1]);
        message.extend(mac.0);
    }
    let to = MacAddr::for_multicast(destination.into()).unwrap_or(OWN_MAC);
    ipv6(to, source, destination, hop_limit, IpProtocol::Icmpv6, &icmpv6(source, destination, message))
}

#[test]
fn its_start_announces_every_address_and_looks_for_others_with_it() {
    let mut host = OwnHost::new(&config());
    assert_eq!(host.addresses(), [OWN_V4.into(), OWN_V6.into(), IpAddr::from(OWN_LINK_LOCAL)]);
    let frames = sent(&mut host, at(0));
    let probe = arp(1, (OWN_MAC, Ipv4Addr::UNSPECIFIED), (MacAddr::ZERO, OWN_V4), MacAddr::BROADCAST);
    let announcement = arp(1, (OWN_MAC, OWN_V4), (MacAddr::ZERO, OWN_V4), MacAddr::BROADCAST);
    assert_eq!(frames[..2], [probe, announcement.clone()]);
    // For each IPv6 address a probe, an advertisement to all and a report of the group.
    let kinds: Vec<_> = frames[2..].iter().map(|frame| frame[14 + 40]).collect();
    assert_eq!(kinds, [135, 136, 135, 136, 58, 58], "{frames:02x?}");
    assert_eq!(frames[2][..6], [0x33, 0x33, 0xff, 0x0a, 0, 1]);
    assert_eq!(frames[3][..6], [0x33, 0x33, 0, 0, 0, 1]);

    assert_eq!(host.deadline(), Some(at(1000)), "the groups once more");
    assert_eq!(sent(&mut host, at(1000)).len(), 2);
    assert_eq!(host.deadline(), Some(at(2000)));
    let again = sent(&mut host, at(2000));
    assert_eq!(again[0], announcement);
    assert_eq!(again.len(), 3);
    assert_eq!(host.deadline(), None);
}

#[test]
fn arp_questions_for_its_address_are_answered_and_others_are_not() {
    let mut host = quiet_host();
    give(&mut host, at(4000), &arp_question(OWN_V4));
    assert_eq!(only(&mut host, at(4000)), arp(2, (OWN_MAC, OWN_V4), (PEER_MAC, PEER_V4), PEER_MAC));
    give(&mut host, at(4000), &arp_question(Ipv4Addr::new(198, 18, 0, 9)));
    assert_eq!(sent(&mut host, at(4000)), Vec::<Vec<u8>>::new());
    // The asking host is known now.
    assert_eq!(host.resolve(at(4000), PEER_V4.into()), Resolution::Known(PEER_MAC));
    // A host that probes the address gets an answer, and is not learned.
    let probe = arp(1, (PEER_MAC, Ipv4Addr::UNSPECIFIED), (MacAddr::ZERO, OWN_V4), MacAddr::BROADCAST);
    sent(&mut host, at(4000));
    give(&mut host, at(4001), &probe);
    let reply = arp(2, (OWN_MAC, OWN_V4), (PEER_MAC, Ipv4Addr::UNSPECIFIED), PEER_MAC);
    assert_eq!(only(&mut host, at(4001)), reply);
}

#[test]
fn an_ipv4_neighbour_is_asked_for_by_arp() {
    let mut host = quiet_host();
    assert_eq!(host.resolve(at(4000), PEER_V4.into()), Resolution::Pending);
    assert!(host.deadline().is_some_and(|deadline| deadline <= at(4000)), "at once");
    assert_eq!(
        only(&mut host, at(4000)),
        arp(1, (OWN_MAC, OWN_V4), (MacAddr::ZERO, PEER_V4), MacAddr::BROADCAST)
    );
    give(&mut host, at(4010), &arp(2, (PEER_MAC, PEER_V4), (OWN_MAC, OWN_V4), OWN_MAC));
    assert_eq!(host.resolve(at(4010), PEER_V4.into()), Resolution::Known(PEER_MAC));
    assert_eq!(host.deadline(), None);
    // After half a minute of use, the neighbour is asked again, by unicast.
    assert_eq!(host.resolve(at(34_011), PEER_V4.into()), Resolution::Known(PEER_MAC));
    assert_eq!(only(&mut host, at(34_011)), arp(1, (OWN_MAC, OWN_V4), (MacAddr::ZERO, PEER_V4), PEER_MAC));
}

#[test]
fn other_networks_are_reached_through_the_gateway() {
    let mut host = quiet_host();
    let far = IpAddr::from([203, 0, 113, 9]);
    let gateway = Ipv4Addr::new(198, 18, 0, 254);
    assert_eq!(host.resolve(at(4000), far), Resolution::Pending);
    assert_eq!(
        only(&mut host, at(4000)),
        arp(1, (OWN_MAC, OWN_V4), (MacAddr::ZERO, gateway), MacAddr::BROADCAST)
    );
    give(&mut host, at(4001), &arp(2, (PEER_MAC, gateway), (OWN_MAC, OWN_V4), OWN_MAC));
    assert_eq!(host.resolve(at(4001), far), Resolution::Known(PEER_MAC));
    let other = "2001:db8:1::9".parse().unwrap();
    assert_eq!(host.resolve(at(4001), other), Resolution::Failed(Unreachable::NoRoute));
    assert_eq!(host.resolve(at(4001), OWN_V4.into()), Resolution::Failed(Unreachable::NoRoute));
}

#[test]
fn a_neighbour_that_does_not_answer_is_given_up_with_its_name() {
    let mut host = quiet_host();
    for second in 4..7 {
        assert_eq!(host.resolve(at(second * 1000), PEER_V4.into()), Resolution::Pending);
        only(&mut host, at(second * 1000));
    }
    assert_eq!(sent(&mut host, at(7000)), Vec::<Vec<u8>>::new());
    let Resolution::Failed(reason) = host.resolve(at(7000), PEER_V4.into()) else { panic!("not given up") };
    assert_eq!(reason, Unreachable::NoAnswer { next_hop: PEER_V4.into() });
}

#[test]
fn ipv6_neighbours_are_asked_and_answered_by_neighbour_discovery() {
    let mut host = quiet_host();
    assert_eq!(host.resolve(at(4000), PEER_V6.into()), Resolution::Pending);
    let group = solicited_node(PEER_V6);
    let mut expected = discovery(135, 0, OWN_V6, group, PEER_V6, Some(OWN_MAC), 255);
    expected[6..12].copy_from_slice(&OWN_MAC.0);
    assert_eq!(only(&mut host, at(4000)), expected);
    let advertisement = discovery(136, 0x60, PEER_V6, OWN_V6, PEER_V6, Some(PEER_MAC), 255);
    give(&mut host, at(4001), &advertisement);
    assert_eq!(host.resolve(at(4001), PEER_V6.into()), Resolution::Known(PEER_MAC));

    let peer = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
    for target in [OWN_V6, OWN_LINK_LOCAL] {
        let question = discovery(135, 0, peer, solicited_node(target), target, Some(PEER_MAC), 255);
        give(&mut host, at(4002), &question);
        let mut answer = discovery(136, 0x60, target, peer, target, Some(OWN_MAC), 255);
        answer[..6].copy_from_slice(&PEER_MAC.0);
        answer[6..12].copy_from_slice(&OWN_MAC.0);
        assert_eq!(only(&mut host, at(4002)), answer);
    }
    assert_eq!(host.resolve(at(4002), peer.into()), Resolution::Known(PEER_MAC));
}

#[test]
fn neighbour_discovery_from_beyond_a_router_is_ignored() {
    let mut host = quiet_host();
    let question = discovery(135, 0, PEER_V6, solicited_node(OWN_V6), OWN_V6, Some(PEER_MAC), 254);
    give(&mut host, at(4000), &question);
    let mut broken = discovery(135, 0, PEER_V6, solicited_node(OWN_V6), OWN_V6, Some(PEER_MAC), 255);
    *broken.last_mut().unwrap() ^= 1;
    give(&mut host, at(4000), &broken);
    assert_eq!(sent(&mut host, at(4000)), Vec::<Vec<u8>>::new());
    assert_eq!((counter(&host, "host_rx_ignored"), counter(&host, "host_rx_malformed")), (1, 1));
}

#[test]
fn somebody_else_with_its_address_is_noticed() {
    let mut host = quiet_host();
    give(&mut host, at(4000), &arp(2, (PEER_MAC, OWN_V4), (OWN_MAC, Ipv4Addr::UNSPECIFIED), OWN_MAC));
    assert_eq!(counter(&host, "host_address_conflicts"), 1);
    give(
        &mut host,
        at(4000),
        &discovery(136, 0x20, OWN_V6, messages::ALL_NODES, OWN_V6, Some(PEER_MAC), 255),
    );
    assert_eq!(counter(&host, "host_address_conflicts"), 2);
    // A host that probes the address gets an answer.
    let probe = discovery(135, 0, Ipv6Addr::UNSPECIFIED, solicited_node(OWN_V6), OWN_V6, None, 255);
    give(&mut host, at(4000), &probe);
    assert_eq!(counter(&host, "host_address_conflicts"), 3);
    let answer = only(&mut host, at(4000));
    assert_eq!((&answer[..6], answer[54]), (&[0x33, 0x33, 0, 0, 0, 1][..], 136));
    // None of this created a neighbour with an address of this host.
    assert_eq!(counter(&host, "host_neighbours"), 0);
}

#[test]
fn pings_are_answered() {
    let mut host = quiet_host();
    let checksums = ChecksumCapabilities::default();
    give(&mut host, at(4000), &arp_question(OWN_V4));
    sent(&mut host, at(4000));
    let echo = Icmpv4Repr::EchoRequest { ident: 5, seq_no: 6, data: b"who is there" };
    let mut bytes = vec![0; echo.buffer_len()];
    echo.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes[..]), &checksums);
    give(&mut host, at(4001), &ipv4(PEER_V4, OWN_V4, IpProtocol::Icmp, &bytes));
    let frames = sent(&mut host, at(4001));
    let answer = frames.iter().find(|frame| frame[12..14] == [8, 0]).expect("an answer");
    assert_eq!(answer[..6], PEER_MAC.0);
    let packet = Ipv4Packet::new_checked(&answer[14..]).unwrap();
    assert!(packet.verify_checksum());
    let icmp = Icmpv4Packet::new_checked(packet.payload()).unwrap();
    let expected = Icmpv4Repr::EchoReply { ident: 5, seq_no: 6, data: b"who is there" };
    assert_eq!(Icmpv4Repr::parse(&icmp, &checksums), Ok(expected));

    let echo = Icmpv6Repr::EchoRequest { ident: 5, seq_no: 6, data: b"v6" };
    let mut bytes = vec![0; echo.buffer_len()];
    echo.emit(&PEER_V6, &OWN_V6, &mut Icmpv6Packet::new_unchecked(&mut bytes[..]), &checksums);
    let request = ipv6(OWN_MAC, PEER_V6, OWN_V6, 64, IpProtocol::Icmpv6, &bytes);
    give(&mut host, at(4002), &request);
    // The neighbour is asked first, and the answer waits meanwhile.
    assert_eq!(only(&mut host, at(4002))[54], 135);
    give(&mut host, at(4003), &discovery(136, 0x60, PEER_V6, OWN_V6, PEER_V6, Some(PEER_MAC), 255));
    assert_eq!(only(&mut host, at(4003))[54], 129);
}

#[test]
fn pings_from_everywhere_do_not_push_out_a_neighbour_in_use() {
    let mut host = quiet_host();
    host.resolve(at(4000), PEER_V6.into());
    give(&mut host, at(4000), &discovery(136, 0x60, PEER_V6, OWN_V6, PEER_V6, Some(PEER_MAC), 255));
    sent(&mut host, at(4000));
    let echo = Icmpv6Repr::EchoRequest { ident: 5, seq_no: 6, data: b"v6" };
    for number in 0..2 * neighbours::CAPACITY as u16 {
        let now = at(4001).plus_nanos(number.into());
        let source = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 7, number);
        let mut bytes = vec![0; echo.buffer_len()];
        echo.emit(
            &source,
            &OWN_V6,
            &mut Icmpv6Packet::new_unchecked(&mut bytes[..]),
            &ChecksumCapabilities::default(),
        );
        give(&mut host, now, &ipv6(OWN_MAC, source, OWN_V6, 64, IpProtocol::Icmpv6, &bytes));
        sent(&mut host, now);
    }
    assert_eq!(counter(&host, "host_neighbours"), neighbours::CAPACITY as u64);
    assert_eq!(host.resolve(at(4002), PEER_V6.into()), Resolution::Known(PEER_MAC));
}

#[test]
fn what_is_for_others_or_makes_no_sense_gets_no_answer() {
    let mut host = quiet_host();
    let checksums = ChecksumCapabilities::default();
    let echo = Icmpv4Repr::EchoRequest { ident: 5, seq_no: 6, data: b"x" };
    let mut bytes = vec![0; echo.buffer_len()];
    echo.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes[..]), &checksums);
    let good = ipv4(PEER_V4, OWN_V4, IpProtocol::Icmp, &bytes);
    let mut to_other = good.clone();
    to_other[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    let mut from_group = good.clone();
    from_group[6] |= 1;
    let mut from_us = good.clone();
    from_us[6..12].copy_from_slice(&OWN_MAC.0);
    let mut fragment = good.clone();
    fragment[14 + 6] = 0x20;
    let broadcast = Ipv4Addr::new(198, 18, 0, 255);
    for frame in [
        to_other,
        from_group,
        from_us,
        fragment,
        ipv4(PEER_V4, broadcast, IpProtocol::Icmp, &bytes),
        ipv4(Ipv4Addr::new(224, 0, 0, 1), OWN_V4, IpProtocol::Icmp, &bytes),
        ipv4(Ipv4Addr::UNSPECIFIED, OWN_V4, IpProtocol::Icmp, &bytes),
        ipv4(OWN_V4, OWN_V4, IpProtocol::Icmp, &bytes),
        ipv4(PEER_V4, Ipv4Addr::new(198, 18, 0, 7), IpProtocol::Icmp, &bytes),
        // RoCE that the device could not parse.
        ipv4(PEER_V4, OWN_V4, IpProtocol::Udp, &[0x12, 0xb7, 0x12, 0xb7, 0, 12, 0, 0, 1, 2, 3, 4]),
        good[..20].to_vec(),
        vec![],
        ethernet(OWN_MAC, PEER_MAC, EtherType::ROCE_V1, &[0; 60]),
    ] {
        give(&mut host, at(4000), &frame);
        assert_eq!(sent(&mut host, at(4000)), Vec::<Vec<u8>>::new(), "{frame:02x?}");
    }
    assert_eq!(counter(&host, "host_rx_ignored") + counter(&host, "host_rx_malformed"), 13);
}

#[test]
fn nobody_hears_from_a_flood_of_arp_more_than_the_limits_allow() {
    let mut host = quiet_host();
    host.resolve(at(4000), PEER_V4.into());
    sent(&mut host, at(4000));
    give(&mut host, at(4000), &arp(2, (PEER_MAC, PEER_V4), (OWN_MAC, OWN_V4), OWN_MAC));
    for number in 0..50_000_u32 {
        let [_, a, b, c] = number.to_be_bytes();
        // Addresses of the network repeat; addresses of other networks are ignored.
        let from = (MacAddr([2, 9, 9, a, b, c]), Ipv4Addr::new(198, 18, (number % 3) as u8, c));
        give(&mut host, at(4000), &arp(1, from, (MacAddr::ZERO, OWN_V4), MacAddr::BROADCAST));
    }
    assert!(counter(&host, "host_neighbours") <= 256);
    assert_eq!(sent(&mut host, at(4000)).len(), MOST_MESSAGES);
    assert!(counter(&host, "host_overflows") > 40_000);
    // The neighbour in use is still known, although frames with its address may be forged.
    assert!(matches!(host.resolve(at(4001), PEER_V4.into()), Resolution::Known(_)));
}

#[test]
fn groups_are_joined_reported_and_left() {
    let mut host = quiet_host();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    host.set_multicast(group.into(), true).unwrap();
    host.set_multicast(group.into(), true).unwrap();
    let report = only(&mut host, at(4000));
    assert_eq!(report[..6], [0x01, 0x00, 0x5e, 1, 2, 3]);
    // IHL 6 for the router alert, TTL 1, IGMP; a version 2 report of the group.
    assert_eq!((report[14], report[14 + 8], report[14 + 9]), (0x46, 1, 2));
    assert_eq!((report[14 + 24], &report[14 + 28..]), (0x16, &group.octets()[..]));
    let packet = Ipv4Packet::new_checked(&report[14..]).unwrap();
    assert!(packet.verify_checksum());
    assert_eq!(checksum::data(packet.payload()), 0xffff);
    assert_eq!(only(&mut host, at(5000)), report, "said twice");
    assert_eq!(sent(&mut host, at(60_000)), Vec::<Vec<u8>>::new());

    // A query with 0.1 s of time: the maximum response time is in tenths of a second.
    let mut query = vec![0x11, 1, 0, 0, 0, 0, 0, 0];
    let sum = !checksum::data(&query);
    query[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ipv4(PEER_V4, Ipv4Addr::new(224, 0, 0, 1), IpProtocol::Igmp, &query);
    frame[..6].copy_from_slice(&[0x01, 0x00, 0x5e, 0, 0, 1]);
    give(&mut host, at(60_000), &frame);
    let due = host.deadline().expect("an answer");
    assert!(due > at(60_000) && due <= at(60_100), "{due}");
    assert_eq!(only(&mut host, at(60_100)), report);

    host.set_multicast(group.into(), false).unwrap();
    assert_eq!(sent(&mut host, at(61_000)), Vec::<Vec<u8>>::new(), "one member is left");
    host.set_multicast(group.into(), false).unwrap();
    let leave = only(&mut host, at(61_000));
    assert_eq!((leave[14 + 24], &leave[..6]), (0x17, &[0x01, 0x00, 0x5e, 0, 0, 2][..]));
    assert!(host.set_multicast(group.into(), false).is_err());
    assert!(host.set_multicast(PEER_V4.into(), true).is_err());
}

#[test]
fn ipv6_groups_are_joined_by_the_record_that_means_joining() {
    let mut host = quiet_host();
    let group: Ipv6Addr = "ff0e::1234".parse().unwrap();
    host.set_multicast(group.into(), true).unwrap();
    let report = only(&mut host, at(4000));
    assert_eq!(report[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
    let packet = Ipv6Packet::new_checked(&report[14..]).unwrap();
    assert_eq!((packet.src_addr(), packet.hop_limit()), (OWN_LINK_LOCAL, 1));
    let message = &packet.payload()[8..];
    // MLDv2 report with one record: CHANGE_TO_EXCLUDE_MODE without sources means all sources.
    assert_eq!((message[0], message[7], message[8]), (143, 1, 4));
    assert_eq!(message[12..], group.octets());
    let icmp = Icmpv6Packet::new_checked(message).unwrap();
    assert!(icmp.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
    only(&mut host, at(5000));

    let querier: Ipv6Addr = "fe80::9".parse().unwrap();
    let mut query = vec![130, 0, 0, 0, 0, 100, 0, 0];
    query.extend([0; 16]);
    query.extend([2, 125, 0, 0]);
    let query = icmpv6(querier, messages::ALL_NODES, query);
    let body = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &query].concat();
    let to = MacAddr::for_multicast(messages::ALL_NODES.into()).unwrap();
    give(&mut host, at(60_000), &ipv6(to, querier, messages::ALL_NODES, 1, IpProtocol::HopByHop, &body));
    let answers = sent(&mut host, at(60_100));
    assert_eq!(answers.len(), 3, "the group and those of the two addresses");
    assert!(answers.iter().all(|answer| answer[14 + 40 + 8 + 8] == 2), "MODE_IS_EXCLUDE");

    host.set_multicast(group.into(), false).unwrap();
    assert_eq!(only(&mut host, at(61_000))[14 + 40 + 8 + 8], 3, "CHANGE_TO_INCLUDE_MODE of nothing");
}

#[test]
fn there_is_a_limit_to_groups() {
    let mut host = quiet_host();
    let group = |number: u16| IpAddr::V4(Ipv4Addr::from_bits(0xef00_0000 + u32::from(number)));
    let joined = (0..1000).take_while(|number| host.set_multicast(group(*number), true).is_ok()).count();
    assert_eq!(joined, groups::CAPACITY - 2);
    let frames = sent(&mut host, at(4000));
    assert_eq!(frames.len(), joined);
}

#[test]
fn a_superframe_is_not_for_the_host() {
    let mut host = quiet_host();
    let frame = arp_question(OWN_V4);
    host.handle_frame(at(4000), &Incoming { head: &frame, tail: &[], segment_len: Some(8), vlan: None });
    assert_eq!(sent(&mut host, at(4000)), Vec::<Vec<u8>>::new());
}

#[test]
fn a_buffer_that_is_too_small_loses_a_message_and_nothing_else() {
    let mut host = quiet_host();
    give(&mut host, at(4000), &arp_question(OWN_V4));
    assert_eq!(host.poll_transmit(at(4000), &mut [0; 20]), None);
    give(&mut host, at(4000), &arp_question(OWN_V4));
    only(&mut host, at(4000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// No frame stops the host, and its answers are bounded.
    #[test]
    fn no_frame_harms(
        frames in proptest::collection::vec((0..9_usize, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..120)), 1..24),
    ) {
        let mut host = quiet_host();
        let listening = host.listen(80).unwrap().0;
        for (kind, protocol, mut bytes) in frames {
            let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
            let frame = match kind {
                0 => bytes,
                1 => ethernet(OWN_MAC, PEER_MAC, EtherType::ARP, &bytes),
                2 => ethernet(MacAddr::BROADCAST, PEER_MAC, EtherType::IPV4, &bytes),
                3 => ethernet(OWN_MAC, PEER_MAC, EtherType::IPV6, &bytes),
                4 => ipv4(PEER_V4, OWN_V4, IpProtocol::from(protocol), &bytes),
                5 => ipv6(OWN_MAC, PEER_V6, OWN_V6, 255, IpProtocol::from(protocol), &bytes),
                6 | 7 => {
                    // With a valid checksum and a type that may be known.
                    bytes.resize(bytes.len().max(24), 0);
                    bytes[0] = if kind == 6 { 128 + protocol % 16 } else { 133 + protocol % 5 };
                    let message = icmpv6(link_local, OWN_V6, bytes);
                    ipv6(OWN_MAC, link_local, OWN_V6, 255, IpProtocol::Icmpv6, &message)
                }
                _ => {
                    let body = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &bytes].concat();
                    ipv6(OWN_MAC, link_local, OWN_V6, 1, IpProtocol::HopByHop, &body)
                }
            };
            give(&mut host, at(4000), &frame);
            prop_assert!(sent(&mut host, at(4001)).len() <= 8);
        }
        sent(&mut host, at(100_000));
        let accepted = host.accept(listening).map(|_| ()).map_err(|error| error.kind());
        prop_assert_eq!(accepted, Err(io::ErrorKind::WouldBlock));
    }
}
