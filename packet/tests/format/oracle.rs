//! Ethernet, VLAN, IPv4, IPv6 and UDP compared with two other implementations: etherparse here, and
//! pnet_packet in its own module. Neither shares code with the other or with `roce-packet`.

mod pnet;

use std::net::IpAddr;

use etherparse::{LinkExtSlice, LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use roce_packet::{
    Encapsulation, Frame, FrameHeaders, Ipv4Header, Ipv6Header, MacAddr, NetworkHeader, NetworkView,
    ParseErrorKind, Path, UdpHeader, VlanTag,
};

/// The properties of a frame that both implementations provide.
#[derive(Debug, PartialEq, Eq)]
struct Description {
    destination: [u8; 6],
    source: [u8; 6],
    vlan: Option<(u8, bool, u16)>,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: Option<u32>,
    identification: Option<u16>,
    dont_fragment: Option<bool>,
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    udp_checksum: u16,
    payload: Vec<u8>,
}

fn ours(frame: &Frame<'_>) -> Description {
    let headers = &frame.headers;
    let path = frame.path();
    let (flow_label, identification, dont_fragment) = match headers.network {
        NetworkHeader::Ipv4 { ip, .. } => (None, Some(ip.identification), Some(ip.dont_fragment)),
        NetworkHeader::Ipv6 { ip, .. } => (Some(ip.flow_label), None, None),
        NetworkHeader::Grh(_) => panic!("etherparse does not know RoCE v1"),
    };
    let udp = headers.network.udp().expect("RoCE v2");
    Description {
        destination: headers.destination.0,
        source: headers.source.0,
        vlan: headers.vlan.map(|tag| (tag.pcp, tag.dei, tag.vid)),
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        flow_label,
        identification,
        dont_fragment,
        addresses: (path.source, path.destination),
        ports: (udp.source_port, udp.destination_port),
        udp_checksum: udp.checksum,
        payload: frame.transport.to_vec(),
    }
}

/// Returns the description by etherparse, or `None` if etherparse rejects the frame. Also returns `None`
/// unless the frame is UDP directly on IP with at most one tag, not fragmented, with consistent lengths and a
/// correct IPv4 checksum. etherparse itself does not check that checksum.
fn theirs(bytes: &[u8], port: u16) -> Option<Description> {
    let packet = SlicedPacket::from_ethernet(bytes).ok()?;
    let Some(LinkSlice::Ethernet2(ethernet)) = packet.link else { return None };
    let vlan = match packet.link_exts.as_slice() {
        [] => None,
        [LinkExtSlice::Vlan(tag)] if ethernet.ether_type() == etherparse::EtherType(0x8100) => Some((
            tag.priority_code_point().value(),
            tag.drop_eligible_indicator(),
            tag.vlan_identifier().value(),
        )),
        _ => return None,
    };
    let Some(TransportSlice::Udp(udp)) = packet.transport else { return None };
    let (ip, ip_payload_len) = match packet.net? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            let parsed = header.to_header();
            if header.ihl() != 5 || ip.is_payload_fragmented() || !ip.extensions().is_empty() {
                return None;
            }
            // The reserved flag is part of the checksum on the wire, but neither implementation keeps it.
            if header.slice()[6] & 0x80 == 0 && parsed.calc_header_checksum() != header.header_checksum() {
                return None;
            }
            let addresses = (header.source_addr().into(), header.destination_addr().into());
            let class = header.dcp().value() << 2 | header.ecn().value();
            let identification = (Some(header.identification()), Some(header.dont_fragment()));
            ((addresses, class, header.ttl(), None, identification), ip.payload().payload.len())
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            if !ip.extensions().is_empty() {
                return None;
            }
            // For etherparse, a length of 0 means "until the end", as in jumbograms.
            if header.payload_length() == 0 {
                return None;
            }
            let addresses = (header.source_addr().into(), header.destination_addr().into());
            let (class, label) = (header.traffic_class(), Some(header.flow_label().value()));
            ((addresses, class, header.hop_limit(), label, (None, None)), ip.payload().payload.len())
        }
        NetSlice::Arp(_) => return None,
    };
    let (addresses, traffic_class, hop_limit, flow_label, (identification, dont_fragment)) = ip;
    if udp.destination_port() != port || usize::from(udp.length()) != ip_payload_len {
        return None;
    }
    Some(Description {
        destination: ethernet.destination(),
        source: ethernet.source(),
        vlan,
        traffic_class,
        hop_limit,
        flow_label,
        identification,
        dont_fragment,
        addresses,
        ports: (udp.source_port(), udp.destination_port()),
        udp_checksum: udp.checksum(),
        payload: udp.payload().to_vec(),
    })
}

/// Returns whether the frame has the flag that both sides drop. Only `roce` can then check the checksum.
fn has_reserved_flag(bytes: &[u8]) -> bool {
    let network = roce_packet::Dissection::new(bytes).network;
    matches!(network, Some(NetworkView::Ipv4(ip)) if ip.reserved_flag())
}

#[track_caller]
fn assert_agreement(bytes: &[u8]) {
    let parsed = Frame::parse(bytes);
    let expected = theirs(bytes, 4791);
    match &parsed {
        Ok(frame) => assert_eq!(Some(ours(frame)), expected, "{bytes:02x?}"),
        Err(error) if error.kind == ParseErrorKind::BadChecksum && has_reserved_flag(bytes) => {}
        Err(error) => assert_eq!(None, expected, "{error}: {bytes:02x?}"),
    }
}

#[derive(Debug, Clone)]
struct Sample {
    path: Path,
    source: MacAddr,
    destination: MacAddr,
    identification: u16,
    payload: Vec<u8>,
}

prop_compose! {
    fn sample()(
        ipv4 in any::<Option<([u8; 4], [u8; 4])>>(),
        ipv6: ([u8; 16], [u8; 16]),
        ports_and_class: (u16, u8, u8),
        flow_label in 0..=0xf_ffffu32,
        vlan in proptest::option::of((0..8u8, any::<bool>(), 0..4096u16)),
        addresses: ([u8; 6], [u8; 6]),
        identification: u16,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) -> Sample {
        let (source, destination) = match ipv4 {
            Some((source, destination)) => (source.into(), destination.into()),
            None => (ipv6.0.into(), ipv6.1.into()),
        };
        let (source_port, traffic_class, hop_limit) = ports_and_class;
        let path = Path {
            encapsulation: Encapsulation::RoceV2,
            source,
            destination,
            source_port,
            traffic_class,
            hop_limit,
            flow_label: if ipv4.is_some() { 0 } else { flow_label },
            vlan: vlan.map(|(pcp, dei, vid)| VlanTag { pcp, dei, vid }),
        };
        Sample {
            path,
            source: MacAddr(addresses.0),
            destination: MacAddr(addresses.1),
            identification,
            payload,
        }
    }
}

impl Sample {
    /// Returns the frame as written by `roce`.
    fn emit(&self) -> Vec<u8> {
        let headers = FrameHeaders::new(
            &self.path,
            self.identification,
            self.destination,
            self.source,
            self.payload.len(),
        )
        .unwrap();
        let frame = Frame { headers, transport: &self.payload, trailer: &[] };
        let mut out = vec![0; frame.len_bytes()];
        frame.emit(&mut out).unwrap();
        out
    }

    /// Returns the frame as written by `roce`, with the UDP checksum that RoCE omits.
    fn emit_with_checksum(&self) -> Vec<u8> {
        let bytes = self.emit();
        let mut frame = Frame::parse(&bytes).unwrap();
        let (NetworkHeader::Ipv4 { udp, .. } | NetworkHeader::Ipv6 { udp, .. }) = &mut frame.headers.network
        else {
            unreachable!();
        };
        assert_eq!(udp.checksum, 0);
        udp.checksum = udp.compute_checksum(self.path.source, self.path.destination, &self.payload).unwrap();
        let mut out = vec![0; bytes.len()];
        frame.emit(&mut out).unwrap();
        out
    }

    /// Returns the frame as written by etherparse, with its UDP checksum.
    fn build(&self) -> Vec<u8> {
        let path = &self.path;
        let ip = match (path.source, path.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = etherparse::Ipv4Header::new(
                    0,
                    path.hop_limit,
                    etherparse::IpNumber::UDP,
                    source.octets(),
                    destination.octets(),
                )
                .unwrap();
                header.dscp = path.dscp().try_into().unwrap();
                header.ecn = (path.traffic_class & 3).try_into().unwrap();
                header.identification = self.identification;
                header.dont_fragment = true;
                etherparse::IpHeaders::Ipv4(header, Default::default())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = etherparse::Ipv6Header {
                    traffic_class: path.traffic_class,
                    flow_label: path.flow_label.try_into().unwrap(),
                    payload_length: 0,
                    next_header: etherparse::IpNumber::UDP,
                    hop_limit: path.hop_limit,
                    source: source.octets(),
                    destination: destination.octets(),
                };
                etherparse::IpHeaders::Ipv6(header, Default::default())
            }
            _ => unreachable!(),
        };
        let builder = PacketBuilder::ethernet2(self.source.0, self.destination.0);
        let builder = match path.vlan {
            None => builder.ip(ip),
            Some(tag) => builder
                .vlan(etherparse::VlanHeader::Single(etherparse::SingleVlanHeader {
                    pcp: tag.pcp.try_into().unwrap(),
                    drop_eligible_indicator: tag.dei,
                    vlan_id: tag.vid.try_into().unwrap(),
                    ether_type: etherparse::EtherType(0),
                }))
                .ip(ip),
        };
        let mut out = Vec::new();
        builder.udp(path.source_port, 4791).write(&mut out, &self.payload).unwrap();
        out
    }
}

/// Offset of a byte in the headers. Often it is one that contains a length or fragmentation data in an
/// untagged frame.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![0..66usize, prop::sample::select(vec![14, 16, 17, 18, 19, 20, 38, 39, 58, 59])]
}

/// A change of a byte: any other value, or a slightly larger or smaller one.
#[derive(Clone, Copy, Debug)]
enum Change {
    Set(u8),
    Add(i8),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![any::<u8>().prop_map(Change::Set), (-9i8..=9).prop_map(Change::Add)]
}

/// Runs four times as many cases as other tests. `PROPTEST_CASES` still has an effect.
fn many_cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.saturating_mul(4), ..usual }
}

proptest! {
    #![proptest_config(many_cases())]

    /// Both write the same bytes if the UDP checksum is added, and both parse them.
    #[test]
    fn both_write_the_same_frame(sample in sample()) {
        let theirs_bytes = sample.build();
        let frame = Frame::parse(&theirs_bytes).unwrap();
        assert_agreement(&theirs_bytes);
        prop_assert_eq!(frame.path(), sample.path);

        assert_agreement(&sample.emit());
        prop_assert_eq!(sample.emit_with_checksum(), theirs_bytes);
    }

    /// Both accept and reject the same frames.
    #[test]
    fn both_judge_alike(
        sample in sample(),
        trailer in proptest::collection::vec(any::<u8>(), 0..20),
        damage in proptest::collection::vec((place(), change()), 0..3),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        mend: bool,
    ) {
        let mut bytes = [sample.emit(), trailer].concat();
        for (index, change) in damage {
            if let Some(byte) = bytes.get_mut(index) {
                *byte = match change {
                    Change::Set(new) => new,
                    Change::Add(by) => byte.wrapping_add_signed(by),
                };
            }
        }
        if mend && sample.path.source.is_ipv4() {
            // Otherwise nearly all damage to IPv4 would result in a wrong checksum.
            let at = if sample.path.vlan.is_some() { 18 } else { 14 };
            if let Ok(slice) = etherparse::Ipv4HeaderSlice::from_slice(&bytes[at..]) {
                let checksum = slice.to_header().calc_header_checksum();
                bytes[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        assert_agreement(&bytes);
    }

    /// The three headers separately, with arbitrary bytes.
    #[test]
    fn both_read_the_same_headers(bytes in proptest::collection::vec(any::<u8>(), 0..64), version in 4..=6u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version << 4 | *first & 0xf;
        }
        if let (Ok((ip, rest)), Ok(other)) =
            (Ipv4Header::parse(&bytes), etherparse::Ipv4HeaderSlice::from_slice(&bytes))
        {
            prop_assert_eq!(ip.checksum(), other.to_header().calc_header_checksum());
            prop_assert_eq!(rest.len(), bytes.len() - 20);
        }
        if let Ok((ip, rest)) = Ipv6Header::parse(&bytes) {
            let (other, other_rest) = etherparse::Ipv6Header::from_slice(&bytes).unwrap();
            prop_assert_eq!((ip.traffic_class, ip.flow_label), (other.traffic_class, other.flow_label.value()));
            prop_assert_eq!((ip.payload_length, ip.hop_limit), (other.payload_length, other.hop_limit));
            prop_assert_eq!(ip.next_header, other.next_header.0);
            prop_assert_eq!((ip.source, ip.destination), (other.source.into(), other.destination.into()));
            prop_assert_eq!(rest, other_rest);
            let mut out = [0; Ipv6Header::LEN];
            ip.emit(&mut out);
            prop_assert_eq!(&out[..], &bytes[..Ipv6Header::LEN]);
        }
        if let Ok((udp, rest)) = UdpHeader::parse(&bytes) {
            let (other, other_rest) = etherparse::UdpHeader::from_slice(&bytes).unwrap();
            prop_assert_eq!((udp.source_port, udp.destination_port), (other.source_port, other.destination_port));
            prop_assert_eq!((udp.length, udp.checksum), (other.length, other.checksum));
            prop_assert_eq!(rest, other_rest);
            let mut out = [0; UdpHeader::LEN];
            udp.emit(&mut out);
            prop_assert_eq!(out, other.to_bytes());
        }
    }

    #[test]
    fn both_compute_the_same_udp_checksum(
        source: [u8; 4],
        destination: [u8; 4],
        wide: ([u8; 16], [u8; 16]),
        ports: (u16, u16),
        payload in proptest::collection::vec(any::<u8>(), 0..1500),
    ) {
        let length = (payload.len() + 8) as u16;
        let udp = UdpHeader { source_port: ports.0, destination_port: ports.1, length, checksum: 0 };
        let other = etherparse::UdpHeader { source_port: ports.0, destination_port: ports.1, length, checksum: 0 };
        prop_assert_eq!(
            udp.compute_checksum(source.into(), destination.into(), &payload),
            other.calc_checksum_ipv4_raw(source, destination, &payload).ok()
        );
        prop_assert_eq!(
            udp.compute_checksum(wide.0.into(), wide.1.into(), &payload),
            other.calc_checksum_ipv6_raw(wide.0, wide.1, &payload).ok()
        );
        prop_assert_eq!(udp.compute_checksum(source.into(), wide.0.into(), &payload), None);
    }
}
