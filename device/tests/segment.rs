//! Tests that joined frames in every tunnel are split as the kernel splits them.

use roce_device::whole::{Offload, finish};
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket, checksum};

const MSS: usize = 700;
const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;

/// Returns the packets of a frame, or `None` if the frame cannot be split.
fn packets(frame: &[u8], offload: &Offload) -> Option<Vec<Vec<u8>>> {
    let mut packets = Vec::new();
    finish(*offload, frame, &mut |packet| packets.push(packet.to_vec())).then_some(packets)
}

/// A header outside the innermost packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outer {
    Ethernet,
    /// An Ethernet header with one VLAN tag.
    Tagged,
    Ip4(u8),
    /// An IPv6 header followed by a destination options header.
    Ip6(u8),
    /// The destination port, and whether there is a checksum.
    Udp(u16, bool),
    /// The flags, and the number of bytes after the first four.
    Gre(u16, usize),
    /// Bytes that stay unchanged.
    Opaque(&'static [u8]),
}

use Outer::{Ethernet, Gre, Ip4, Ip6, Opaque, Tagged, Udp};

const VXLAN: Outer = Opaque(&[8, 0, 0, 0, 0, 0, 72, 0]);
const GENEVE: Outer = Opaque(&[1, 0, 0x65, 0x58, 0, 0, 5, 0, 1, 2, 3, 4]);
const ERSPAN2: Outer = Opaque(&[0x10, 10, 0, 7, 0, 0, 0, 0]);

/// Every kind of tunnel, and tunnels in tunnels.
const TUNNELS: &[(&str, &[Outer])] = &[
    ("VXLAN", &[Ethernet, Ip4(17), Udp(4789, false), VXLAN, Ethernet]),
    ("VXLAN with a checksum", &[Ethernet, Ip4(17), Udp(4789, true), VXLAN, Ethernet]),
    ("VXLAN over IPv6", &[Ethernet, Ip6(17), Udp(4789, true), VXLAN, Ethernet]),
    ("VXLAN on another port, with tags", &[Tagged, Ip4(17), Udp(9999, false), VXLAN, Tagged]),
    ("Geneve with options", &[Ethernet, Ip4(17), Udp(6081, true), GENEVE, Ethernet]),
    ("GRE with IPv4", &[Ethernet, Ip4(47), Gre(0, 0)]),
    ("GRE with a key and a checksum", &[Ethernet, Ip4(47), Gre(0xa000, 8)]),
    ("GRE with Ethernet", &[Ethernet, Ip6(47), Gre(0x2000, 4), Ethernet]),
    ("IPv4 or IPv6 in IPv4", &[Ethernet, Ip4(4)]),
    ("IPv4 or IPv6 in IPv6", &[Ethernet, Ip6(41)]),
    ("FOU", &[Ethernet, Ip4(17), Udp(5555, true)]),
    ("MPLS in Ethernet", &[Ethernet, Opaque(&[0, 1, 0, 64, 0, 1, 1, 64])]),
    ("VXLAN in GRE", &[Ethernet, Ip4(47), Gre(0x8000, 4), Ip4(17), Udp(4789, true), VXLAN, Ethernet]),
];

/// A frame and the offset of each of its headers: outer ones, IP, transport.
struct Built {
    frame: Vec<u8>,
    offsets: Vec<usize>,
    payload: Vec<u8>,
    offload: Offload,
}

fn header_of(outer: Outer, next_is_ip6: bool, behind: Outer) -> Vec<u8> {
    let ether_type: u16 = match behind {
        Ip4(_) => 0x0800,
        Ip6(_) => 0x86dd,
        Opaque(_) => 0x8847,
        _ if next_is_ip6 => 0x86dd,
        _ => 0x0800,
    };
    match outer {
        Ethernet => [&[2; 12][..], &ether_type.to_be_bytes()].concat(),
        Tagged => [&[2; 12][..], &[0x81, 0, 0, 5], &ether_type.to_be_bytes()].concat(),
        Ip4(protocol) => {
            let mut header = vec![0x45, 2, 0, 0, 0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0];
            header.extend([198, 19, 0, 1, 198, 19, 0, 2]);
            header
        }
        Ip6(protocol) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, 60, 64];
            header.extend([0x20; 32]);
            header.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
            header
        }
        Udp(port, has_checksum) => {
            let [high, low] = port.to_be_bytes();
            vec![0xcc, 0xcc, high, low, 0, 0, u8::from(has_checksum), 0]
        }
        Gre(flags, more) => {
            let protocol = if behind == Ethernet { 0x6558 } else { ether_type };
            [&flags.to_be_bytes()[..], &protocol.to_be_bytes(), &vec![7; more]].concat()
        }
        Opaque(bytes) => bytes.to_vec(),
    }
}

/// Returns a joined TCP or UDP frame, as the kernel delivers it.
fn build(outer: &[Outer], is_ip6: bool, is_tcp: bool, len: usize) -> Built {
    let (mut frame, mut offsets) = (Vec::new(), Vec::new());
    for (index, one) in outer.iter().enumerate() {
        offsets.push(frame.len());
        // The last outer header is followed by the innermost IP packet.
        let behind = outer.get(index + 1).copied().unwrap_or(Udp(0, false));
        frame.extend(header_of(*one, is_ip6, behind));
    }
    let protocol = if is_tcp { TCP } else { UDP };
    offsets.push(frame.len());
    let ip =
        if is_ip6 { vec![0x60, 0, 0, 0, 0, 0, protocol, 64] } else { header_of(Ip4(protocol), false, VXLAN) };
    frame.extend(&ip);
    if is_ip6 {
        frame.extend([0x30; 32]);
    }
    let transport = frame.len();
    offsets.push(transport);
    let payload: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
    if is_tcp {
        // Sequence number 0xffff_ff00; CWR, ACK, PSH and FIN; twelve bytes of options.
        frame.extend([0, 80, 0, 81, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0x80, 0x99, 1, 0, 0, 0, 0, 0]);
        frame.extend([1; 12]);
    } else {
        frame.extend([0, 80, 0, 81, 0, 0, 0, 0]);
    }
    let headers = frame.len();
    frame.extend(&payload);
    let field = if is_tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
    let kind = match (is_tcp, is_ip6) {
        (true, false) => 1,
        (true, true) => 4,
        (false, _) => 5,
    };
    let mut offload = [0; Offload::LEN];
    offload[..2].copy_from_slice(&[1, kind]);
    let words = [headers as u16, MSS as u16, transport as u16, field as u16];
    for (place, word) in offload[2..].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Built { frame, offsets, payload, offload: Offload(offload) }
}

/// Checks the lengths and checksums of one packet, and returns its payload.
fn check(built: &Built, outer: &[Outer], is_ip6: bool, is_tcp: bool, packet: &[u8], index: usize) -> Vec<u8> {
    let ip_address = |outer: Outer, at: usize| -> (IpAddress, IpAddress) {
        match outer {
            Ip4(_) => {
                let ip = Ipv4Packet::new_checked(&packet[at..]).unwrap();
                (ip.src_addr().into(), ip.dst_addr().into())
            }
            _ => {
                let ip = Ipv6Packet::new_checked(&packet[at..]).unwrap();
                (ip.src_addr().into(), ip.dst_addr().into())
            }
        }
    };
    for (place, (one, at)) in outer.iter().zip(&built.offsets).enumerate() {
        match *one {
            Ip4(_) => check_ipv4(&packet[*at..], index),
            Ip6(_) => {
                let ip = Ipv6Packet::new_checked(&packet[*at..]).unwrap();
                assert_eq!(ip.total_len(), packet.len() - at);
            }
            Udp(_, has_checksum) => {
                let udp = UdpPacket::new_checked(&packet[*at..]).unwrap();
                assert_eq!(usize::from(udp.len()), packet.len() - at);
                let (from, to) = ip_address(outer[place - 1], built.offsets[place - 1]);
                assert_eq!(udp.checksum() != 0, has_checksum);
                assert!(udp.verify_checksum(&from, &to));
            }
            Gre(flags, _) if flags & 0x8000 != 0 => assert_eq!(checksum::data(&packet[*at..]), 0xffff),
            Gre(..) | Ethernet | Tagged | Opaque(_) => {
                let end = built.offsets[place + 1];
                assert_eq!(packet[*at..end], built.frame[*at..end]);
            }
        }
    }
    let [.., ip, transport] = built.offsets[..] else { unreachable!() };
    if !is_ip6 {
        check_ipv4(&packet[ip..], index);
    }
    let (from, to) = ip_address(if is_ip6 { Ip6(0) } else { Ip4(0) }, ip);
    if !is_tcp {
        let udp = UdpPacket::new_checked(&packet[transport..]).unwrap();
        assert!(udp.verify_checksum(&from, &to) && udp.checksum() != 0);
        assert_eq!(usize::from(udp.len()), packet.len() - transport);
        return udp.payload().to_vec();
    }
    let tcp = TcpPacket::new_checked(&packet[transport..]).unwrap();
    assert!(tcp.verify_checksum(&from, &to));
    assert_eq!(tcp.seq_number().0, 0xffff_ff00_u32.wrapping_add((index * MSS) as u32).cast_signed());
    let is_last = (index + 1) * MSS >= built.payload.len();
    assert_eq!((tcp.fin(), tcp.psh(), tcp.ack()), (is_last, is_last, true));
    assert_eq!(packet[transport + 13] & 0x80 != 0, index == 0, "CWR is in the first packet only");
    tcp.payload().to_vec()
}

fn check_ipv4(packet: &[u8], index: usize) {
    let ip = Ipv4Packet::new_checked(packet).unwrap();
    assert!(ip.verify_checksum());
    assert_eq!(usize::from(ip.total_len()), packet.len());
    assert_eq!(ip.ident(), 0xfffe_u16.wrapping_add(index as u16));
}

#[test]
fn joined_packets_in_every_tunnel_are_split() {
    let plain: (&str, &[Outer]) = ("no tunnel", &[Ethernet]);
    for (name, outer) in TUNNELS.iter().chain([&plain]) {
        for (is_ip6, is_tcp, len) in
            [(false, true, 5000), (true, true, 4 * MSS), (false, false, 2001), (true, false, MSS + 1)]
        {
            let built = build(outer, is_ip6, is_tcp, len);
            let packets = packets(&built.frame, &built.offload)
                .unwrap_or_else(|| panic!("{name}, IPv6 {is_ip6}, TCP {is_tcp}: not split"));
            assert_eq!(packets.len(), len.div_ceil(MSS), "{name}");
            let mut payload = Vec::new();
            for (index, packet) in packets.iter().enumerate() {
                payload.extend(check(&built, outer, is_ip6, is_tcp, packet, index));
            }
            assert!(payload == built.payload, "{name}: other bytes");
        }
    }
}

#[test]
fn the_checksum_of_a_single_packet_is_completed_and_its_padding_stays() {
    let outer = &[Ethernet, Ip4(17), Udp(4789, true), VXLAN, Ethernet];
    let built = build(outer, false, true, 6);
    // The lengths are right, because the frame was not joined.
    let mut frame = packets(&built.frame, &built.offload).unwrap().remove(0);
    let expected = frame.clone();
    let [.., transport] = built.offsets[..] else { unreachable!() };
    frame[transport + TCP_CHECKSUM] ^= 0xff;
    frame.extend([0xaa; 3]);
    let single = built.offload.of_one();
    let [finished] = &packets(&frame, &single).unwrap()[..] else { panic!("not one packet") };
    assert_eq!(finished[..expected.len()], expected);
    assert_eq!(finished[expected.len()..], [0xaa; 3]);
}

#[test]
fn what_cannot_be_finished_is_left_alone() {
    let shared = build(&[Ethernet, Ip4(47), Gre(0x1000, 4)], false, true, 5000);
    assert!(packets(&shared.frame, &shared.offload).is_none(), "packets would share a sequence number");
    let built = build(&[Ethernet, Ip4(47), Gre(0, 0)], false, true, 5000);
    assert!(packets(&built.frame, &Offload::NONE).is_none(), "nothing to do");
    let mut other = built.offload;
    other.0[1] = 3;
    assert!(packets(&built.frame, &other).is_none(), "UDP that becomes fragments");
    other = built.offload;
    other.0[4..6].fill(0);
    assert!(packets(&built.frame, &other).is_none(), "segments of no length");
    // Arbitrary bytes never cause a panic.
    for (_, outer) in TUNNELS {
        let built = build(outer, true, true, 100);
        for cut in 0..built.frame.len() {
            packets(&built.frame[..cut], &built.offload);
        }
        for at in 0..built.frame.len() - 100 {
            for value in [0, 1, 0x0f, 0x45, 0x4f, 0x60, 0xff] {
                let mut frame = built.frame.clone();
                frame[at] = value;
                packets(&frame, &built.offload);
            }
        }
    }
}

#[test]
fn mirrored_frames_in_erspan_are_finished() {
    let outer = &[Ethernet, Ip4(47), Gre(0x1000, 4), ERSPAN2, Ethernet];
    let mut built = build(outer, false, false, 64);
    let gre = built.offsets[2];
    built.frame[gre + 2..gre + 4].copy_from_slice(&[0x88, 0xbe]);
    assert!(packets(&built.frame, &built.offload.of_one()).is_some());
}
