//! The comparison with pnet_packet. It judges no frame, so this module states what a sound frame has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pnet_packet::Packet;
use pnet_packet::ethernet::{EtherType, EtherTypes, EthernetPacket, MutableEthernetPacket};
use pnet_packet::ip::IpNextHeaderProtocols;
use pnet_packet::ipv4::{self, Ipv4Flags, Ipv4Packet, MutableIpv4Packet};
use pnet_packet::ipv6::{Ipv6Packet, MutableIpv6Packet};
use pnet_packet::udp::{self, MutableUdpPacket, UdpPacket};
use pnet_packet::vlan::{ClassOfService, MutableVlanPacket, VlanPacket};
use proptest::prelude::*;
use roce_packet::{Ecn, Frame, MacAddr};

use super::{Description, Sample, many_cases, ours, sample};

const ETHERNET_LEN: usize = 14;
const VLAN_LEN: usize = 4;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;

/// What pnet_packet reads of layers 3 and 4.
struct Inner {
    traffic_class: u8,
    ecn: u8,
    hop_limit: u8,
    flow_label: Option<u32>,
    identification: Option<u16>,
    dont_fragment: Option<bool>,
    addresses: (IpAddr, IpAddr),
    udp: Vec<u8>,
    /// The UDP checksum that this frame should have, if it has one.
    udp_checksum: u16,
}

/// Reads an IPv4 packet, and asserts that its header is one of RoCE and its lengths and checksum are right.
#[track_caller]
fn read_ipv4(bytes: &[u8]) -> Inner {
    let ip = Ipv4Packet::new(bytes).expect("an IPv4 header");
    assert_eq!((ip.get_version(), ip.get_header_length(), ip.get_fragment_offset()), (4, 5, 0));
    assert_eq!(ip.get_flags() & !Ipv4Flags::DontFragment, 0);
    assert_eq!(ip.get_next_level_protocol(), IpNextHeaderProtocols::Udp);
    assert_eq!(ip.get_checksum(), ipv4::checksum(&ip));
    assert_eq!(usize::from(ip.get_total_length()), IPV4_LEN + ip.payload().len());
    let (source, destination) = (ip.get_source(), ip.get_destination());
    let udp = UdpPacket::new(ip.payload()).expect("a UDP header");
    Inner {
        traffic_class: ip.get_dscp() << 2 | ip.get_ecn(),
        ecn: ip.get_ecn(),
        hop_limit: ip.get_ttl(),
        flow_label: None,
        identification: Some(ip.get_identification()),
        dont_fragment: Some(ip.get_flags() & Ipv4Flags::DontFragment != 0),
        addresses: (source.into(), destination.into()),
        udp_checksum: udp::ipv4_checksum(&udp, &source, &destination),
        udp: udp.packet().to_vec(),
    }
}

/// Reads an IPv6 packet, and asserts that UDP follows directly and its length is right.
#[track_caller]
fn read_ipv6(bytes: &[u8]) -> Inner {
    let ip = Ipv6Packet::new(bytes).expect("an IPv6 header");
    assert_eq!((ip.get_version(), ip.get_next_header()), (6, IpNextHeaderProtocols::Udp));
    assert_eq!(usize::from(ip.get_payload_length()), ip.payload().len());
    let (source, destination) = (ip.get_source(), ip.get_destination());
    let udp = UdpPacket::new(ip.payload()).expect("a UDP header");
    Inner {
        traffic_class: ip.get_traffic_class(),
        ecn: ip.get_traffic_class() & 3,
        hop_limit: ip.get_hop_limit(),
        flow_label: Some(ip.get_flow_label()),
        identification: None,
        dont_fragment: None,
        addresses: (source.into(), destination.into()),
        udp_checksum: udp::ipv6_checksum(&udp, &source, &destination),
        udp: udp.packet().to_vec(),
    }
}

/// Returns every field that pnet_packet reads, and the ECN bits. Asserts that each checksum in the frame,
/// where there is one, is the one that pnet_packet computes.
#[track_caller]
fn theirs(bytes: &[u8]) -> (Description, u8) {
    let ethernet = EthernetPacket::new(bytes).expect("an Ethernet header");
    let (mut kind, mut network, mut vlan) = (ethernet.get_ethertype(), ethernet.payload().to_vec(), None);
    if kind == EtherTypes::Vlan {
        let tag = VlanPacket::new(ethernet.payload()).expect("a tag");
        let dei = tag.get_drop_eligible_indicator() == 1;
        vlan = Some((tag.get_priority_code_point().0, dei, tag.get_vlan_identifier()));
        (kind, network) = (tag.get_ethertype(), tag.payload().to_vec());
    }
    let inner = match kind {
        EtherTypes::Ipv4 => read_ipv4(&network),
        EtherTypes::Ipv6 => read_ipv6(&network),
        other => panic!("{other} is neither IPv4 nor IPv6"),
    };
    let udp = UdpPacket::new(&inner.udp).expect("a UDP header");
    assert_eq!(usize::from(udp.get_length()), inner.udp.len());
    if udp.get_checksum() != 0 {
        assert_eq!(udp.get_checksum(), on_the_wire(inner.udp_checksum));
    }
    let addresses = [ethernet.get_destination(), ethernet.get_source()].map(<[u8; 6]>::from);
    let description = Description {
        destination: addresses[0],
        source: addresses[1],
        vlan,
        traffic_class: inner.traffic_class,
        hop_limit: inner.hop_limit,
        flow_label: inner.flow_label,
        identification: inner.identification,
        dont_fragment: inner.dont_fragment,
        addresses: inner.addresses,
        ports: (udp.get_source(), udp.get_destination()),
        udp_checksum: udp.get_checksum(),
        payload: udp.payload().to_vec(),
    };
    (description, inner.ecn)
}

/// Returns a UDP checksum as it is sent: 0 means "none", so the other zero of ones' complement replaces it.
/// pnet_packet leaves this to its caller.
const fn on_the_wire(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// Returns the frame as written by pnet_packet, with its checksums.
fn build(sample: &Sample) -> Vec<u8> {
    let path = &sample.path;
    let mac = |address: MacAddr| address.0.into();
    let kind = if path.source.is_ipv4() { EtherTypes::Ipv4 } else { EtherTypes::Ipv6 };
    let datagram = match (path.source, path.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => build_ipv4(sample, source, destination),
        (IpAddr::V6(source), IpAddr::V6(destination)) => build_ipv6(sample, source, destination),
        _ => unreachable!("a sample has addresses of one family"),
    };
    let tagged: (EtherType, Vec<u8>) = match path.vlan {
        None => (kind, datagram),
        Some(tag) => {
            let mut bytes = vec![0; VLAN_LEN + datagram.len()];
            let mut vlan = MutableVlanPacket::new(&mut bytes).expect("room for a tag");
            vlan.set_priority_code_point(ClassOfService(tag.pcp));
            vlan.set_drop_eligible_indicator(tag.dei.into());
            vlan.set_vlan_identifier(tag.vid);
            vlan.set_ethertype(kind);
            vlan.set_payload(&datagram);
            (EtherTypes::Vlan, bytes)
        }
    };
    let mut bytes = vec![0; ETHERNET_LEN + tagged.1.len()];
    let mut ethernet = MutableEthernetPacket::new(&mut bytes).expect("room for a header");
    ethernet.set_destination(mac(sample.destination));
    ethernet.set_source(mac(sample.source));
    ethernet.set_ethertype(tagged.0);
    ethernet.set_payload(&tagged.1);
    bytes
}

fn build_ipv4(sample: &Sample, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let udp = build_udp(sample, |udp| udp::ipv4_checksum(udp, &source, &destination));
    let mut bytes = vec![0; IPV4_LEN + udp.len()];
    let mut ip = MutableIpv4Packet::new(&mut bytes).expect("room for a header");
    ip.set_version(4);
    ip.set_header_length(5);
    ip.set_dscp(sample.path.dscp());
    ip.set_ecn(sample.path.ecn().bits());
    ip.set_total_length((IPV4_LEN + udp.len()) as u16);
    ip.set_identification(sample.identification);
    ip.set_flags(Ipv4Flags::DontFragment);
    ip.set_ttl(sample.path.hop_limit);
    ip.set_next_level_protocol(IpNextHeaderProtocols::Udp);
    ip.set_source(source);
    ip.set_destination(destination);
    ip.set_payload(&udp);
    ip.set_checksum(ipv4::checksum(&ip.to_immutable()));
    bytes
}

fn build_ipv6(sample: &Sample, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    let udp = build_udp(sample, |udp| udp::ipv6_checksum(udp, &source, &destination));
    let mut bytes = vec![0; IPV6_LEN + udp.len()];
    let mut ip = MutableIpv6Packet::new(&mut bytes).expect("room for a header");
    ip.set_version(6);
    ip.set_traffic_class(sample.path.traffic_class);
    ip.set_flow_label(sample.path.flow_label);
    ip.set_payload_length(udp.len() as u16);
    ip.set_next_header(IpNextHeaderProtocols::Udp);
    ip.set_hop_limit(sample.path.hop_limit);
    ip.set_source(source);
    ip.set_destination(destination);
    ip.set_payload(&udp);
    bytes
}

fn build_udp(sample: &Sample, checksum: impl Fn(&UdpPacket<'_>) -> u16) -> Vec<u8> {
    let mut bytes = vec![0; UDP_LEN + sample.payload.len()];
    let mut udp = MutableUdpPacket::new(&mut bytes).expect("room for a header");
    udp.set_source(sample.path.source_port);
    udp.set_destination(4791);
    udp.set_length((UDP_LEN + sample.payload.len()) as u16);
    udp.set_payload(&sample.payload);
    udp.set_checksum(on_the_wire(checksum(&udp.to_immutable())));
    bytes
}

proptest! {
    #![proptest_config(many_cases())]

    /// pnet_packet reads every field of our frames, computes the checksums that they have, and finds the
    /// four values of ECN. Padding behind the packet changes nothing.
    #[test]
    fn pnet_reads_what_we_write(
        sample in sample(),
        ecn in 0..4u8,
        padding in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let sample = Sample { path: sample.path.with_ecn(Ecn::from_bits(ecn)), ..sample };
        for mut bytes in [sample.emit(), sample.emit_with_checksum()] {
            bytes.extend(&padding);
            let frame = Frame::parse(&bytes).unwrap();
            prop_assert_eq!(theirs(&bytes), (ours(&frame), ecn));
        }
    }

    /// We read every field of the frames of pnet_packet, and write the same bytes.
    #[test]
    fn we_read_what_pnet_writes(sample in sample(), ecn in 0..4u8) {
        let sample = Sample { path: sample.path.with_ecn(Ecn::from_bits(ecn)), ..sample };
        let bytes = build(&sample);
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(frame.path(), sample.path);
        prop_assert_eq!(frame.path().ecn().bits(), ecn);
        prop_assert_eq!(ours(&frame), theirs(&bytes).0);
        prop_assert_eq!(frame.transport, &sample.payload[..]);
        prop_assert_eq!(sample.emit_with_checksum(), bytes);
    }
}
