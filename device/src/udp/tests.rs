use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

use roce_packet::{Ecn, Envelope, Qpn, icrc};
use roce_testing::{in_own_network, skip_unless};
use roce_transport::Identification;

use super::*;
use crate::testing::{
    Arrived, counter, datagram, is_sealed_for, path, put, readable, receive_all, send, send_batch,
};

/// Opens a device on its own port.
#[track_caller]
fn device(spec: &str) -> UdpDevice {
    UdpDevice::open(&format!("{spec},port=0").parse().unwrap()).unwrap()
}

/// Opens two devices that send to each other.
#[track_caller]
fn pair(a: &str, b: &str) -> (UdpDevice, UdpDevice) {
    let (mut a, mut b) = (device(a), device(b));
    a.set_peer_port(b.port());
    b.set_peer_port(a.port());
    (a, b)
}

fn ipv4_pair() -> (UdpDevice, UdpDevice) {
    pair("udp:127.0.0.1", "udp:127.0.0.2")
}

fn has_ipv6() -> bool {
    crate::local_addresses().unwrap().iter().any(|local| local.address == Ipv6Addr::LOCALHOST)
}

fn between(from: &UdpDevice, to: &UdpDevice) -> Path {
    Path { source_port: from.port(), ..path(from.addresses()[0], to.addresses()[0]) }
}

/// Returns arriving datagrams within a second: loopback delivers at once, but a busy machine may not.
#[track_caller]
fn expect(device: &mut UdpDevice, count: usize) -> Vec<Arrived> {
    let mut arrived = Vec::new();
    for _ in 0..1000 {
        arrived.extend(receive_all(device));
        if arrived.len() >= count {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(arrived.len(), count, "{device:?}");
    arrived
}

#[test]
fn datagrams_arrive_over_ipv4() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let sent = [datagram(&there, 1, 0), datagram(&there, 2, 64), datagram(&there, 3, 4096)];
    send(&mut a, &there, &sent.each_ref().map(Vec::as_slice));
    let arrived = expect(&mut b, 3);
    for (arrived, sent) in arrived.iter().zip(&sent) {
        assert_eq!(arrived.bytes, *sent);
        assert_eq!(arrived.path, there);
        assert!(matches!(arrived.identification, Identification::Unknown { .. }));
    }
    let back = between(&b, &a);
    send(&mut b, &back, &[&datagram(&back, 4, 8)]);
    assert_eq!(expect(&mut a, 1)[0].path, back);
    assert_eq!(counter(&a, "udp_tx_datagrams"), 3);
    assert_eq!(counter(&a, "udp_rx_datagrams"), 1);
}

#[test]
fn datagrams_arrive_over_ipv6() {
    if skip_unless(has_ipv6(), "no IPv6 on this machine") {
        return;
    }
    let (mut a, mut b) = pair("udp:[::1]", "udp:::1");
    let there = Path { traffic_class: 0x6a, hop_limit: 3, ..between(&a, &b) };
    let sent = send_batch(&mut a, &there, 40, 1024);
    let arrived = expect(&mut b, 40);
    for (arrived, sent) in arrived.iter().zip(&sent) {
        assert_eq!(arrived.bytes, *sent);
        assert_eq!(arrived.path, there);
        assert_eq!(arrived.identification, Identification::ABSENT);
    }
}

/// A message arrives as one message; the position in it is the Identification that each ICRC was made for.
#[test]
fn superpackets_arrive_whole_with_the_right_hints() {
    let (mut a, mut b) = ipv4_pair();
    if skip_unless(a.report().max_segments > 1 && b.report().gro, "no segmentation offload on this kernel") {
        return;
    }
    let there = between(&a, &b);
    let most = u32::from(a.report().max_segments);
    assert!([64, 128].contains(&most));
    for (count, len, messages) in
        [(10, 4096, 1), (40, 1024, 1), (most, 16, 1), (most + 36, 16, 2), (31, 4096, 3)]
    {
        let before = counter(&a, "udp_tx_messages");
        let sent = send_batch(&mut a, &there, count, len);
        assert_eq!(counter(&a, "udp_tx_messages") - before, messages, "{count} of {len} bytes");
        let arrived = expect(&mut b, count as usize);
        for (arrived, sent) in arrived.iter().zip(&sent) {
            assert_eq!(arrived.bytes, *sent);
            let Identification::Unknown { hint } = arrived.identification else { panic!("{arrived:?}") };
            assert!(is_sealed_for(&there, &arrived.bytes, hint), "hint {hint}");
        }
    }
    assert_eq!(counter(&a, "udp_tx_calls"), 5);
    assert_eq!(counter(&b, "udp_rx_messages"), 8);
}

#[test]
fn a_shorter_datagram_closes_a_superpacket() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let mut sent = Vec::new();
    for (psn, len) in [(0, 1024), (1, 1024), (2, 8), (3, 1024), (4, 2048), (5, 8)] {
        let slot = a.slot().unwrap();
        let whole = len + 16;
        let identification = slot.batch.identification(&there, Qpn::default(), whole);
        let bytes = crate::testing::sealed(&there, psn, len, identification);
        slot.buffer[..whole].copy_from_slice(&bytes);
        a.commit(Instant::ZERO, &Transmit::new(there, Qpn::default(), whole, identification));
        sent.push(bytes);
    }
    a.flush(Instant::ZERO).unwrap();
    let arrived: Vec<_> = expect(&mut b, 6).into_iter().map(|arrived| arrived.bytes).collect();
    assert_eq!(arrived, sent);
    if a.report().max_segments > 1 {
        assert_eq!(counter(&a, "udp_tx_messages"), 3);
    }
}

#[test]
fn offloads_can_be_switched_off() {
    for (a, b) in [("gso=off", "gro=on"), ("gso=on", "gro=off"), ("gso=off", "gro=off")] {
        let (mut a, mut b) = pair(&format!("udp:127.0.0.1,{a}"), &format!("udp:127.0.0.2,{b}"));
        let there = between(&a, &b);
        let sent = send_batch(&mut a, &there, 100, 512);
        let arrived: Vec<_> = expect(&mut b, 100).into_iter().map(|arrived| arrived.bytes).collect();
        assert_eq!(arrived, sent);
        if a.report().max_segments == 1 {
            assert_eq!(a.capabilities().max_segments, 1);
            // Segments are not numbered by the kernel, so all ICRCs are made for 0.
            assert!(sent.iter().all(|bytes| is_sealed_for(&there, bytes, 0)));
        }
    }
}

#[test]
fn congestion_bits_and_hops_survive_for_each_path() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let mut paths = Vec::new();
    for ecn in [Ecn::NotCapable, Ecn::Capable0, Ecn::Capable1, Ecn::CongestionExperienced] {
        for dscp in [0, 26, 63] {
            let hop_limit = 1 + dscp;
            paths.push(Path { hop_limit, ..there.with_dscp(dscp).with_ecn(ecn) });
        }
    }
    for path in &paths {
        put(&mut a, Instant::ZERO, path, &datagram(path, 1, 32));
    }
    a.flush(Instant::ZERO).unwrap();
    let arrived: Vec<_> = expect(&mut b, paths.len()).into_iter().map(|arrived| arrived.path).collect();
    assert_eq!(arrived, paths);
}

#[test]
fn a_source_port_is_bound_and_used() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    // A port that is free, and most likely still free after closing.
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    assert_eq!(a.bind_source_port(&there, free).unwrap(), free);
    assert_eq!(a.bind_source_port(&there, free).unwrap(), free, "the second time it is there already");
    assert_eq!(a.sockets.others.len(), 1);
    let own = a.port();
    assert_eq!(a.bind_source_port(&there, own).unwrap(), own);
    let other = Path { source_port: free, ..there };
    put(&mut a, Instant::ZERO, &there, &datagram(&there, 1, 8));
    put(&mut a, Instant::ZERO, &other, &datagram(&other, 2, 8));
    put(&mut a, Instant::ZERO, &there, &datagram(&there, 3, 8));
    a.flush(Instant::ZERO).unwrap();
    let mut ports: Vec<_> = expect(&mut b, 3).iter().map(|arrived| arrived.path.source_port).collect();
    ports.sort_unstable();
    let mut expected = [own, own, free];
    expected.sort_unstable();
    assert_eq!(ports, expected);

    // Datagrams that arrive there are dropped, not queued.
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    other.send_to(&[0; 100], (Ipv4Addr::LOCALHOST, free)).unwrap();
    let socket = &a.sockets.others[0].socket;
    let error = socket.recv(&mut [std::mem::MaybeUninit::uninit(); 8]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_source_port_that_is_taken_becomes_the_main_one() {
    let (mut a, b) = ipv4_pair();
    let there = between(&a, &b);
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    assert_eq!(a.bind_source_port(&there, port).unwrap(), a.port());
    assert_eq!(a.bind_source_port(&there, 0).unwrap(), a.port());
    let foreign = Path { source: "127.0.0.9".parse().unwrap(), ..there };
    let error = a.bind_source_port(&foreign, 50_000).unwrap_err();
    assert!(error.to_string().contains("127.0.0.9"), "{error}");
}

#[test]
fn source_ports_have_a_limit() {
    for most in [0, 1, 64] {
        let (mut a, b) = pair(&format!("udp:127.0.0.1,source_ports={most}"), "udp:127.0.0.2");
        let there = between(&a, &b);
        let mut bind = |wanted| a.bind_source_port(&there, wanted).unwrap();
        let bound: Vec<_> = (20_000..20_200).filter(|wanted| bind(*wanted) == *wanted).collect();
        assert_eq!((bound.len(), bind(20_300)), (most, a.port()));
    }
}

#[test]
fn a_source_port_that_nobody_needs_makes_room_for_another() {
    let (mut a, mut b) = pair("udp:127.0.0.1,source_ports=2", "udp:127.0.0.2");
    let there = between(&a, &b);
    let mut bind = |wanted| a.bind_source_port(&there, wanted).unwrap();
    let bound: Vec<_> = (20_000..20_200).filter(|wanted| bind(*wanted) == *wanted).collect();
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    // A pending datagram keeps its socket.
    let path = |source_port| Path { source_port, ..there };
    put(&mut a, Instant::ZERO, &path(bound[1]), &datagram(&path(bound[1]), 1, 8));
    a.release_source_port(bound[0]);
    assert_eq!(a.bind_source_port(&there, free).unwrap(), a.port());
    a.flush(Instant::ZERO).unwrap();
    assert_eq!(expect(&mut b, 1)[0].path.source_port, bound[1]);
    assert_eq!(a.bind_source_port(&there, free).unwrap(), free);
    // A released port that is requested again before it is closed keeps its socket.
    put(&mut a, Instant::ZERO, &path(free), &datagram(&path(free), 2, 8));
    a.release_source_port(free);
    assert_eq!(a.bind_source_port(&there, free).unwrap(), free);
    a.flush(Instant::ZERO).unwrap();
    assert_eq!(expect(&mut b, 1)[0].path.source_port, free);
    a.release_source_port(bound[1]);
    assert!(a.sockets.find(free).is_some() && a.sockets.find(bound[1]).is_none());
}

/// An ICRC that was made for another header is adapted to the header that leaves.
#[test]
fn an_icrc_follows_the_source_port_that_is_really_used() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let wished = Path { source_port: 1, ..there };
    let sent = send_batch(&mut a, &wished, 5, 256);
    let arrived = expect(&mut b, 5);
    assert_eq!(counter(&a, "udp_tx_resealed"), 5);
    for (index, (arrived, sent)) in arrived.iter().zip(&sent).enumerate() {
        assert_eq!(arrived.path, there);
        assert_ne!(arrived.bytes, *sent);
        let identification = if a.report().max_segments > 1 { index as u16 } else { 0 };
        assert!(is_sealed_for(&there, &arrived.bytes, identification));
    }
}

/// Returns the received form of a datagram whose ICRC was made for this Identification.
fn passed(a: &mut UdpDevice, b: &mut UdpDevice, path: &Path, bytes: &[u8], identification: u16) -> Vec<u8> {
    a.slot().unwrap().buffer[..bytes.len()].copy_from_slice(bytes);
    a.commit(Instant::ZERO, &Transmit::new(*path, Qpn::default(), bytes.len(), identification));
    a.flush(Instant::ZERO).unwrap();
    expect(b, 1).swap_remove(0).bytes
}

#[test]
fn an_icrc_follows_the_identification_that_is_really_used() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let bytes = crate::testing::sealed(&there, 1, 64, 777);
    assert!(is_sealed_for(&there, &passed(&mut a, &mut b, &there, &bytes, 777), 0));
}

#[test]
fn an_icrc_in_front_of_telemetry_follows_as_well() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let mut telemetry = roce_packet::Telemetry::default();
    telemetry.push(roce_packet::TelemetryHop::new(1_000_000_000, 5, 64, 128), 1);
    let bytes = [crate::testing::sealed(&there, 1, 64, 777), telemetry.emit().to_vec()].concat();
    let arrived = &passed(&mut a, &mut b, &there, &bytes, 777);
    let (datagram, trailer) = arrived.split_at(bytes.len() - roce_packet::Telemetry::LEN);
    assert!(is_sealed_for(&there, datagram, 0));
    assert_eq!(trailer, telemetry.emit());
}

#[test]
fn a_wrong_icrc_stays_wrong() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let mut bytes = crate::testing::sealed(&there, 1, 64, 777);
    bytes[20] ^= 0x10;
    let arrived = &passed(&mut a, &mut b, &there, &bytes, 777);
    let (body, found) = arrived.split_last_chunk().unwrap();
    let recovered =
        icrc::recover_identification(&Envelope::new(&there, 0), body, &[], u32::from_le_bytes(*found));
    assert_eq!(recovered, None);
}

/// Without segmentation, the kernel does not number datagrams, so ICRCs for 0, 1, 2 … must become those for
/// 0. A send without checksums provokes the refusal on loopback.
#[test]
fn segmentation_that_is_refused_is_given_up() {
    let (mut a, mut b) = ipv4_pair();
    if skip_unless(a.report().max_segments > 1, "no segmentation offload on this kernel") {
        return;
    }
    let there = between(&a, &b);
    let no_checksum = 1_i32;
    // SAFETY: the value outlives the call and its size is given.
    let result = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&a.sockets.main),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const no_checksum).cast(),
            size_of::<i32>() as _,
        )
    };
    assert_eq!(result, 0);
    send_batch(&mut a, &there, 100, 512);
    let arrived = expect(&mut b, 100);
    assert!(arrived.iter().all(|arrived| is_sealed_for(&there, &arrived.bytes, 0)));
    assert_eq!(a.capabilities().max_segments, 1);
    assert_eq!(counter(&a, "udp_tx_refused"), 0);
    // From now on, no batches begin.
    assert_eq!(send_batch(&mut a, &there, 3, 512).len(), 3);
    assert_eq!(expect(&mut b, 3).len(), 3);
}

/// Regression: a superpacket that the kernel refuses with ENOMEM was retried forever.
#[test]
fn a_superpacket_that_is_never_accepted_does_not_stop_the_others() {
    let (a, mut b) = ipv4_pair();
    if skip_unless(a.report().max_segments > 1, "no segmentation offload on this kernel") {
        return;
    }
    let there = between(&a, &b);
    let mut transmitter = Transmitter::new(a.report().max_segments);
    for psn in 0..2 {
        let slot = transmitter.slot().unwrap();
        let identification = slot.batch.identification(&there, Qpn::default(), 116);
        slot.buffer[..116].copy_from_slice(&crate::testing::sealed(&there, psn, 100, identification));
        let transmit = Transmit::new(there, Qpn::default(), 116, identification);
        transmitter.commit(&transmit, &a.sockets);
    }
    assert!((0..5000).all(|_| transmitter.may_retry(libc::EAGAIN)), "EAGAIN is about the socket");
    assert!(!transmitter.may_retry(libc::ENOMEM), "first it is taken apart");
    let attempts = (0..5000).take_while(|_| transmitter.may_retry(libc::ENOMEM)).count();
    assert!((100..2000).contains(&attempts), "{attempts}");
    assert_eq!(transmitter.counters.refused, 1);
    transmitter.flush(Instant::ZERO, &a.sockets).unwrap();
    let arrived = expect(&mut b, 1);
    assert!(is_sealed_for(&there, &arrived[0].bytes, 0));
}

/// On a link with 1500 bytes, longer datagrams are dropped, and datagrams sent with them arrive.
#[test]
fn what_is_longer_than_the_link_is_dropped_alone() {
    in_own_network(&["link set lo mtu 1500 up"], || {
        let (mut a, mut b) = ipv4_pair();
        assert_eq!(a.report().link_mtu, 1500);
        let there = between(&a, &b);
        // Another hop limit, so that no superpacket holds both kinds.
        let aside = Path { hop_limit: 9, ..there };
        put(&mut a, Instant::ZERO, &aside, &datagram(&aside, 7, 1024));
        // Without room for the surrounding headers.
        send_batch(&mut a, &there, 3, 1500);
        assert_eq!(counter(&a, "udp_tx_too_long"), 3);
        assert_eq!(counter(&a, "udp_tx_refused"), 0);
        let most = a.report().max_segments;
        assert_eq!(a.capabilities().max_segments, most, "it is not segmentation that failed");
        assert_eq!(a.capabilities().max_datagram, 1500 - IPV4_AND_UDP);
        // The longest datagram that fits: 1500 with BTH, ICRC and the surrounding headers.
        send_batch(&mut a, &there, 3, 1500 - IPV4_AND_UDP - 16);
        let arrived = expect(&mut b, 4);
        assert_eq!(arrived[0].path.hop_limit, 9);
        assert!(arrived[1..].iter().all(|arrived| arrived.bytes.len() == 1500 - IPV4_AND_UDP));
    });
}

#[test]
fn paths_that_a_socket_cannot_take_are_counted() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    for bad in [
        Path { source: "127.0.0.9".parse().unwrap(), ..there },
        Path { destination: "::1".parse().unwrap(), ..there },
        Path { encapsulation: roce_packet::Encapsulation::RoceV1, ..there },
    ] {
        put(&mut a, Instant::ZERO, &bad, &datagram(&there, 1, 8));
    }
    // A datagram longer than a slot, and one without a slot.
    a.slot().unwrap();
    a.commit(Instant::ZERO, &Transmit::new(there, Qpn::default(), MAX_DATAGRAM + 1, 0));
    a.commit(Instant::ZERO, &Transmit::new(there, Qpn::default(), 16, 0));
    send(&mut a, &there, &[&datagram(&there, 2, 8)]);
    assert_eq!(expect(&mut b, 1).len(), 1);
    assert_eq!(counter(&a, "udp_tx_bad_path"), 5);
}

#[test]
fn a_peer_that_is_gone_is_no_error() {
    let (mut a, b) = ipv4_pair();
    let there = between(&a, &b);
    drop(b);
    for _ in 0..10 {
        send_batch(&mut a, &there, 20, 256);
        assert_eq!(receive_all(&mut a).len(), 0);
    }
}

#[test]
fn a_full_device_says_so_and_everything_leaves_in_order() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    // Different paths prevent joining.
    let mut count = 0_u32;
    while let Some(slot) = a.slot() {
        let path = there.with_dscp((count % 2) as u8);
        let bytes = datagram(&path, count, 8);
        slot.buffer[..bytes.len()].copy_from_slice(&bytes);
        a.commit(Instant::ZERO, &Transmit::new(path, Qpn::default(), bytes.len(), 0));
        count += 1;
    }
    assert_eq!(count, 128);
    a.flush(Instant::ZERO).unwrap();
    assert!(a.slot().is_some());
    let psns: Vec<u8> = expect(&mut b, 128).iter().map(|arrived| arrived.bytes[11]).collect();
    assert!(psns.is_sorted(), "{psns:?}");
}

#[test]
fn the_descriptor_is_readable_while_something_waits() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    assert!(!readable(&b));
    send(&mut a, &there, &[&datagram(&there, 1, 8)]);
    expect_readable(&b);
    expect(&mut b, 1);
    assert!(!readable(&b));
}

#[track_caller]
fn expect_readable(device: &UdpDevice) {
    for _ in 0..1000 {
        if readable(device) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("nothing came");
}

#[test]
fn multicast_reaches_those_that_joined() {
    // The loopback interface has neither the flag nor the route, and the test does not touch real links.
    let lines = [
        "link set lo up",
        "link add roce-test0 type veth peer name roce-test1",
        "address add 198.18.0.1/24 dev roce-test0",
        "address add 2001:db8::1/64 dev roce-test0 nodad",
        "link set roce-test0 up",
        "link set roce-test1 up",
    ];
    in_own_network(&lines, || {
        multicast_on("127.0.0.1", "239.255.77.1");
        multicast_on("198.18.0.1", "239.255.77.1");
        multicast_on("[2001:db8::1]", "ff15::7701");
    });
}

#[track_caller]
fn multicast_on(address: &str, group: &str) {
    let (mut a, mut b) = (device(&format!("udp:{address}")), device(&format!("udp:{address}")));
    let group: IpAddr = group.parse().unwrap();
    a.set_peer_port(b.port());
    let there = Path { destination: group, ..between(&a, &b) };
    let sent = datagram(&there, 1, 64);
    send(&mut a, &there, &[&sent]);
    assert_eq!(receive_all(&mut b).len(), 0);

    b.set_multicast(group, true).unwrap();
    b.set_multicast(group, true).expect("joining twice is joining once");
    send(&mut a, &there, &[&sent]);
    assert_eq!(counter(&a, "udp_tx_refused"), 0, "there is a route for multicast on {address}");
    expect_readable(&b);
    let arrived = expect(&mut b, 1);
    assert_eq!(arrived[0].path, there);
    assert_eq!(arrived[0].bytes, sent);
    // Its own address still works.
    let direct = between(&a, &b);
    send(&mut a, &direct, &[&datagram(&direct, 2, 64)]);
    assert_eq!(expect(&mut b, 1)[0].path, direct);

    b.set_multicast(group, false).unwrap();
    send(&mut a, &there, &[&sent]);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(receive_all(&mut b).len(), 0);
    assert!(b.set_multicast("127.0.0.1".parse().unwrap(), true).is_err());
}

#[test]
fn garbage_is_passed_on_for_the_engine_to_judge() {
    let (a, mut b) = ipv4_pair();
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for len in [0, 1, 11, 5000] {
        other.send_to(&vec![7; len], ("127.0.0.2", b.port())).unwrap();
    }
    let lens: Vec<_> = expect(&mut b, 4).iter().map(|arrived| arrived.bytes.len()).collect();
    assert_eq!(lens, [0, 1, 11, 5000]);
    assert_eq!(counter(&a, "udp_tx_datagrams"), 0);
}

#[test]
fn what_the_kernel_had_to_drop_is_known() {
    let (mut a, mut b) = pair("udp:127.0.0.1,gso=off", "udp:127.0.0.2,buffer=4096");
    let there = between(&a, &b);
    for _ in 0..10 {
        send_batch(&mut a, &there, 100, 1024);
    }
    let arrived = receive_all(&mut b).len();
    assert!(arrived < 1000);
    // The next datagram carries the count.
    send_batch(&mut a, &there, 1, 8);
    expect(&mut b, 1);
    assert_eq!(counter(&b, "udp_rx_overflow"), 1000 - arrived as u64);
}

#[test]
fn a_ring_that_goes_round_keeps_what_waits() {
    let (mut a, mut b) = ipv4_pair();
    let there = between(&a, &b);
    let mut transmitter = Transmitter::new(a.report().max_segments);
    let mut next = 0_u32;
    let mut arrived = Vec::new();
    // Varying amounts reach the end of the area in every way; each round sends only some datagrams.
    for round in 0..4000_u32 {
        for _ in 0..round % 90 {
            let len = if next % 50 < 20 { 1000 } else { (next as usize * 52) % 4096 };
            let Some(slot) = transmitter.slot() else { break };
            let whole = 16 + len;
            let identification = slot.batch.identification(&there, Qpn::default(), whole);
            let bytes = crate::testing::sealed(&there, next, len, identification);
            slot.buffer[..whole].copy_from_slice(&bytes);
            let transmit = Transmit::new(there, Qpn::default(), whole, identification);
            transmitter.commit(&transmit, &a.sockets);
            next += 1;
        }
        transmitter.flush_some(&a.sockets, (round % 5) as usize);
        arrived.extend(receive_all(&mut b));
    }
    while transmitter.flush_some(&a.sockets, 1) > 0 {
        arrived.extend(receive_all(&mut b));
    }
    std::thread::sleep(std::time::Duration::from_millis(5));
    arrived.extend(receive_all(&mut b));
    assert_eq!(arrived.len(), next as usize);
    assert!(next > 5000, "{next}");
    for (psn, arrived) in arrived.iter().enumerate() {
        let (body, found) = arrived.bytes.split_last_chunk().unwrap();
        let psn_found = u32::from_be_bytes([0, body[9], body[10], body[11]]);
        assert_eq!(psn_found as usize, psn);
        let envelope = Envelope::new(&there, 0);
        let found = u32::from_le_bytes(*found);
        assert!(icrc::recover_identification(&envelope, body, &[], found).is_some(), "PSN {psn}");
    }
    // Keep the peer's port in use until here.
    a.flush(Instant::ZERO).unwrap();
}
