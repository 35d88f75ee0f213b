//! Complete frames: which are RoCE, which are not, which are broken and where. No frame may cause a panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hex_literal::hex;
use proptest::prelude::*;
use roce_packet::{
    Bth, BthView, BufferTooSmall, Cnp, CnpDeviations, DEFAULT_CNP_DSCP, DEFAULT_CNP_PCP, Datagram,
    Dissection, Ecn, Encapsulation, Frame, FrameHeaders, FrameHeadersError, Gid, Layer, MacAddr,
    NetworkHeader, Opcode, ParseError, ParseErrorKind, Path, Qpn, ROCE_UDP_PORT, VlanTag,
};

/// Congestion notification of a ConnectX-4 Lx, from the test data of scapy (`test/contrib/roce.uts`).
const CNP: &[u8] = &hex!(
    "e41d2dab2bc27cfe90643b320800"
    "45c2003c718c4000401191610a0011010a001201" "000012b700280000"
    "8100ffff4000011800000000" "00000000000000000000000000000000" "82fd002a"
);
/// READ request of a ConnectX-5, from the traces of `wantonsolutions/warm`.
const READ_REQUEST: &[u8] = &hex!(
    "ec0d9a6821ccec0d9a6821a00800"
    "4502003c76cb400040114075c0a80111c0a8010d" "c39a12b700280000"
    "0c40ffff00004fae80000c75" "000055d405f7d50000052b0a00000400" "d68a67ee"
);
/// COMPARE SWAP of a ConnectX-5, from the traces of `wantonsolutions/warm`.
const COMPARE_SWAP: &[u8] = &hex!(
    "ec0d9a6821ccec0d9a6821a00800"
    "4502004876ca40004011406ac0a80111c0a8010d" "c39a12b700340000"
    "1340ffff00004fae80000c74" "000055d405f7b50000052b0a00008f49500808000000000000000800" "02675495"
);
/// RoCE v1 ACK of a Mellanox NIC, from the test data of scapy.
const V1_ACK: &[u8] = &hex!(
    "7cfe90753cd87cfe90753cd88915"
    "6020000000141b4000000000000000000000ffff0f00000200000000000000000000ffff0f000002"
    "1140ffff0000010900a788c0" "00000005" "25f0c038"
);
/// UC SEND Only of two bytes with padding and a real UDP checksum, made by scapy.
const UC_SEND: &[u8] = &hex!(
    "248a07a8fa22248a07a8fa220800"
    "45010040047840004011b4d5c0a80007c0a80007" "c00012b7002caca2"
    "2460ffff000000d300cf1710" "4630818be28935d90e9a95505401be885e500000" "78f353f3"
);
/// ACK of a Mellanox NIC in VLAN 1, from liteeth (`test/test_rocev2.py`).
const VLAN_ACK: &[u8] = &hex!(
    "10e2d5000000b8599f077e2a81000001" "0800"
    "450200309d4e4000401119e4c0aa0102c0aa0132" "fa4f12b7001c0000"
    "1140ffff00deaded00cf7bf7" "00000002" "59caeaf7"
);
/// SEND Only with Immediate of a Huawei NIC, from a capture of `oferby/proxy`. It sets a reserved bit beside
/// FECN and BECN.
const SEND_WITH_IMMEDIATE: &[u8] = &hex!(
    "183d5ebf4371183d5ebf51920800"
    "450200340000400040112d5cc0a84606c0a84604" "004812b700200000"
    "0540ffff1000004580000042" "00000000" "00000001" "3716801d"
);

const SAMPLES: [&[u8]; 7] = [CNP, READ_REQUEST, COMPARE_SWAP, V1_ACK, UC_SEND, VLAN_ACK, SEND_WITH_IMMEDIATE];

/// Offsets of the layers in an untagged IPv4 frame.
const IPV4: usize = 14;
const UDP: usize = 34;
const BTH: usize = 42;

/// Returns an IPv6 frame, which no capture of hardware contains. For those of the kernel, see `golden.rs`.
fn ipv6_frame() -> Vec<u8> {
    frame_for(&Path {
        source: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(),
        destination: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2).into(),
        ..path()
    })
}

fn path() -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        source_port: 0xd431,
        traffic_class: 0b101,
        hop_limit: 63,
        flow_label: 0x1_2345,
        vlan: None,
    }
}

/// Returns a complete frame with a CNP on any path.
fn frame_for(path: &Path) -> Vec<u8> {
    let headers =
        FrameHeaders::new(path, 0x1234, MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]), Cnp::LEN)
            .unwrap();
    let mut transport = [0; Cnp::LEN];
    Cnp { dest_qp: Qpn::new(0x1234), p_key: 0xffff }.emit(&headers.envelope(), &mut transport);
    let frame = Frame { headers, transport: &transport, trailer: &[] };
    let mut out = vec![0; frame.len_bytes()];
    assert_eq!(frame.emit(&mut out), Ok(frame.len_bytes()));
    out
}

/// Returns a copy with some bytes replaced.
fn patched(frame: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[offset..offset + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Returns a copy with some bytes replaced and a correct IPv4 header checksum.
fn patched_ipv4(frame: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = patched(frame, offset, bytes);
    frame[IPV4 + 10..IPV4 + 12].fill(0);
    let header_len = usize::from(frame[IPV4] & 0xf) * 4;
    let sum: u32 = frame[IPV4..IPV4 + header_len]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[IPV4 + 10..IPV4 + 12].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Asserts that `Frame` and `Dissection` reject a frame at this offset.
#[track_caller]
fn assert_refused(frame: &[u8], layer: Layer, kind: ParseErrorKind, offset: usize) -> ParseError {
    let error = Frame::parse(frame).expect_err("this frame is to be refused");
    assert_eq!((error.layer, error.kind, error.offset), (layer, kind, offset), "{error}");
    assert_eq!(Dissection::new(frame).error, Some(error));
    assert_eq!(Dissection::new(frame).is_not_roce(), kind == ParseErrorKind::NotRoce);
    error
}

mod sound_frames {
    use super::*;

    #[test]
    fn verify_and_come_out_as_they_were() {
        for bytes in SAMPLES.map(<[u8]>::to_vec).into_iter().chain([ipv6_frame()]) {
            let frame = Frame::parse(&bytes).unwrap();
            let check = frame.verify_icrc().unwrap();
            assert!(check.is_good(), "{check:x?}");
            assert_eq!(frame.datagram().unwrap().icrc(), check.found);
            let mut out = vec![0; bytes.len()];
            assert_eq!(frame.emit(&mut out), Ok(bytes.len()));
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn say_what_is_in_them() {
        let frame = Frame::parse(READ_REQUEST).unwrap();
        let NetworkHeader::Ipv4 { ip, udp } = frame.headers.network else { panic!("IPv4") };
        assert_eq!(frame.headers.source.to_string(), "ec:0d:9a:68:21:a0");
        assert_eq!(frame.headers.destination.to_string(), "ec:0d:9a:68:21:cc");
        assert_eq!((ip.total_length, ip.identification, ip.ttl, ip.dont_fragment), (60, 0x76cb, 64, true));
        assert_eq!((udp.source_port, udp.destination_port, udp.length, udp.checksum), (0xc39a, 4791, 40, 0));
        assert_eq!(frame.headers.network_offset(), IPV4);
        assert_eq!(frame.headers.udp_offset(), Some(UDP));
        assert_eq!(frame.headers.len_bytes(), BTH);
        let path = frame.path();
        assert_eq!(path.source, Ipv4Addr::new(192, 168, 1, 17));
        assert_eq!(path.destination, Ipv4Addr::new(192, 168, 1, 13));
        assert_eq!((path.source_port, path.ecn(), path.vlan), (0xc39a, Ecn::Capable0, None));
        let datagram = frame.datagram().unwrap();
        assert_eq!(datagram.bth().opcode, Opcode::RC_RDMA_READ_REQUEST);
        assert_eq!(datagram.reth().unwrap().dma_len, 0x400);
        assert_eq!(datagram.recover_identification(&frame.envelope()), Some(0x76cb));
    }

    /// Reserved bits are accepted and stay in the frame, but are not written again.
    #[test]
    fn with_a_reserved_bit() {
        let frame = Frame::parse(SEND_WITH_IMMEDIATE).unwrap();
        let datagram = frame.datagram().unwrap();
        assert_eq!(BthView::from_prefix(frame.transport).unwrap().0.reserved6(), 0x10);
        assert_eq!(datagram.imm_dt().unwrap().0, [0; 4]);
        assert_eq!(datagram.payload(), (&[0, 0, 0, 1][..], &[][..]));
        let mut bth = [0; Bth::LEN];
        datagram.bth().emit(&mut bth);
        assert_eq!(bth[..], patched(frame.transport, 4, &[0])[..Bth::LEN]);
    }

    #[test]
    fn of_a_vlan() {
        let frame = Frame::parse(VLAN_ACK).unwrap();
        assert_eq!(frame.path().vlan, Some(VlanTag { pcp: 0, dei: false, vid: 1 }));
        assert_eq!(frame.headers.len_bytes(), BTH + 4);
        // The ICRC does not cover the tag.
        let frame = patched(VLAN_ACK, 14, &[0xf2, 0x34]);
        let frame = Frame::parse(&frame).unwrap();
        assert_eq!(frame.path().vlan, Some(VlanTag { pcp: 7, dei: true, vid: 0x234 }));
        assert!(frame.verify_icrc().unwrap().is_good());
    }

    #[test]
    fn of_roce_v1() {
        let frame = Frame::parse(V1_ACK).unwrap();
        let path = frame.path();
        assert_eq!(path.encapsulation, Encapsulation::RoceV1);
        assert_eq!(path.source, Ipv4Addr::new(15, 0, 0, 2));
        assert_eq!(frame.headers.udp_offset(), None);
        assert_eq!(frame.headers.len_bytes(), 54);
    }

    /// Ethernet pads short frames to 60 bytes. The length in IP or the GRH determines the end of the packet.
    #[test]
    fn keep_their_trailer() {
        for sample in SAMPLES {
            let padded = [sample, &[0, 0, 0, 7]].concat();
            let frame = Frame::parse(&padded).unwrap();
            assert_eq!(frame.trailer, [0, 0, 0, 7]);
            assert!(frame.verify_icrc().unwrap().is_good());
            let mut out = vec![0; 100];
            assert_eq!(frame.emit(&mut out), Ok(padded.len()));
            assert_eq!(out[..padded.len()], padded);
        }
    }

    /// A device may divide a frame anywhere after the headers.
    #[test]
    fn in_two_slices() {
        for sample in SAMPLES {
            let padded = [sample, &[9; 5]].concat();
            for bytes in [sample, &padded] {
                let whole = Frame::parse(bytes).unwrap();
                for cut in 0..=bytes.len() {
                    let (head, tail) = bytes.split_at(cut);
                    let split = Frame::parse_split(head, tail, ROCE_UDP_PORT);
                    if cut < whole.headers.len_bytes() {
                        assert_eq!(split.unwrap_err().kind, ParseErrorKind::Truncated, "{cut}");
                        continue;
                    }
                    let split = split.unwrap();
                    assert_eq!(split.headers, whole.headers);
                    assert_eq!([split.head, split.tail].concat(), whole.transport, "{cut}");
                    if let Ok(datagram) = Datagram::parse(split.head, split.tail) {
                        assert_eq!(datagram.compute_icrc(&split.headers.envelope()), datagram.icrc());
                    }
                }
                // One byte less than the IP header requires.
                let (head, tail) = sample[..sample.len() - 1].split_at(60);
                let error = Frame::parse_split(head, tail, ROCE_UDP_PORT).unwrap_err();
                assert_eq!(error, Frame::parse(&sample[..sample.len() - 1]).unwrap_err());
            }
        }
    }

    /// A dissection contains the available bytes of a packet that a capture truncated.
    #[test]
    fn cut_by_a_capture() {
        for len in BTH..READ_REQUEST.len() {
            let dissection = Dissection::of_part(&READ_REQUEST[..len], READ_REQUEST.len(), ROCE_UDP_PORT);
            assert_eq!(dissection.error, None);
            assert_eq!(dissection.transport, Some(&READ_REQUEST[BTH..len]));
            assert_eq!(dissection.transport_len, READ_REQUEST.len() - BTH);
            assert!(dissection.headers().is_ok());
            let error = dissection.into_frame().unwrap_err();
            assert_eq!(
                (error.layer, error.kind, error.offset),
                (Layer::Payload, ParseErrorKind::Truncated, BTH)
            );
            assert_eq!((error.need, error.have), (READ_REQUEST.len() - BTH, len - BTH));
        }
    }

    #[test]
    fn on_another_port() {
        let bytes = patched(CNP, UDP + 2, &4792u16.to_be_bytes());
        assert_refused(&bytes, Layer::Udp, ParseErrorKind::NotRoce, UDP + 2);
        let frame = Frame::parse_on_port(&bytes, 4792).unwrap();
        assert_eq!(frame.envelope().destination_port, 4792);
        // The ICRC covers the port.
        assert!(!frame.verify_icrc().unwrap().is_good());
        assert_eq!(Frame::parse_on_port(CNP, 4792).unwrap_err().kind, ParseErrorKind::NotRoce);
    }

    /// A sender may leave DF clear. The ICRC covers the flag.
    #[test]
    fn without_dont_fragment() {
        let bytes = patched_ipv4(CNP, IPV4 + 6, &[0, 0]);
        let frame = Frame::parse(&bytes).unwrap();
        assert!(!frame.envelope().dont_fragment);
        assert!(!frame.verify_icrc().unwrap().is_good());
    }

    #[test]
    fn need_room() {
        let frame = Frame::parse(CNP).unwrap();
        for have in 0..CNP.len() {
            let expected = BufferTooSmall { need: CNP.len(), have };
            assert_eq!(frame.emit(&mut vec![0; have]), Err(expected));
            if have < BTH {
                let expected = BufferTooSmall { need: BTH, have };
                assert_eq!(frame.headers.emit(&mut vec![0; have]), Err(expected));
            }
        }
    }
}

mod other_traffic {
    use super::*;

    /// Frames of other protocols, as a host receives them.
    #[test]
    fn is_not_roce() {
        let kind = ParseErrorKind::NotRoce;
        assert_refused(&patched(CNP, 12, &[0x08, 0x06]), Layer::Ethernet, kind, 12); // ARP
        assert_refused(&patched(CNP, 12, &[0x88, 0xcc]), Layer::Ethernet, kind, 12); // LLDP
        assert_refused(&patched(CNP, 12, &[0x88, 0x08]), Layer::Ethernet, kind, 12); // pause
        assert_refused(&patched(CNP, 12, &[0x00, 0x3c]), Layer::Ethernet, kind, 12); // 802.3 with a length
        assert_refused(&patched(CNP, 12, &[0x88, 0xa8]), Layer::Ethernet, kind, 12); // service tag
        assert_refused(&patched(VLAN_ACK, 16, &[0x08, 0x06]), Layer::Vlan, kind, 16);
        assert_refused(&patched(VLAN_ACK, 16, &[0x81, 0x00]), Layer::Vlan, kind, 16); // second tag
        assert_refused(&patched(CNP, IPV4 + 9, &[6]), Layer::Ipv4, kind, IPV4 + 9); // TCP
        assert_refused(&patched(CNP, UDP + 2, &[0, 53]), Layer::Udp, kind, UDP + 2); // DNS
        assert_refused(&patched(VLAN_ACK, UDP + 6, &[0, 53]), Layer::Udp, kind, UDP + 6);
        assert_refused(&patched(&ipv6_frame(), 14 + 6, &[58]), Layer::Ipv6, kind, 14 + 6); // ICMPv6
        assert_refused(&patched(&ipv6_frame(), 14 + 40 + 2, &[0, 53]), Layer::Udp, kind, 14 + 40 + 2);
    }

    /// A damaged frame of another protocol is not RoCE, whatever error came first.
    #[test]
    fn is_not_roce_even_if_broken() {
        let dns = patched(CNP, UDP + 2, &[0, 53]);
        let kind = ParseErrorKind::NotRoce;
        let wrong_checksum = patched(&dns, IPV4 + 10, &[0, 0]);
        assert_refused(&wrong_checksum, Layer::Udp, kind, UDP + 2);
        let fragment = patched_ipv4(&dns, IPV4 + 6, &[0x20, 0]);
        assert_refused(&fragment, Layer::Udp, kind, UDP + 2);
        let too_long = patched_ipv4(&dns, IPV4 + 2, &[0x10, 0]);
        assert_refused(&too_long, Layer::Udp, kind, UDP + 2);
        let tcp_with_options = patched(&patched(CNP, IPV4 + 9, &[6]), IPV4, &[0x48]);
        assert_refused(&tcp_with_options, Layer::Ipv4, kind, IPV4 + 9);
    }
}

mod broken_frames {
    use super::*;
    use ParseErrorKind::{BadChecksum, BadLength, BadVersion, Truncated, Unsupported};

    /// For a truncation at any byte, the error names the incomplete layer and its offset.
    #[test]
    fn cut_anywhere() {
        for sample in SAMPLES.map(<[u8]>::to_vec).into_iter().chain([ipv6_frame()]) {
            let headers = Frame::parse(&sample).unwrap().headers;
            let (l3, bth) = (headers.network_offset(), headers.len_bytes());
            let (layer, fixed_len) = match headers.network {
                NetworkHeader::Ipv4 { .. } => (Layer::Ipv4, 20),
                NetworkHeader::Ipv6 { .. } => (Layer::Ipv6, 40),
                NetworkHeader::Grh(_) => (Layer::Grh, 40),
            };
            for len in 0..sample.len() {
                let cut = &sample[..len];
                let error = match len {
                    ..14 => assert_refused(cut, Layer::Ethernet, Truncated, 0),
                    _ if len < l3 => assert_refused(cut, Layer::Vlan, Truncated, 14),
                    // The header itself, or the packet with the length in its length field.
                    _ => assert_refused(cut, layer, Truncated, l3),
                };
                let need = match len {
                    ..14 => 14,
                    _ if len < l3 => 4,
                    _ if len < l3 + fixed_len => fixed_len,
                    _ => sample.len() - l3,
                };
                assert_eq!(error.need, need, "{len}");
                assert_eq!(error.have, len - error.offset, "{len}");
                // The dissection contains every available header and the available part of the datagram.
                let dissection = Dissection::new(cut);
                assert_eq!(dissection.ethernet.is_some(), len >= 14, "{len}");
                assert_eq!(dissection.network.is_some(), len >= l3 + fixed_len, "{len}");
                assert_eq!(dissection.udp.is_some(), headers.udp_offset().is_some_and(|at| len >= at + 8));
                let expected = cut.get(bth..);
                assert_eq!(dissection.transport, expected, "{len}");
                assert_eq!(dissection.trailer, [0u8; 0], "{len}");
            }
        }
    }

    #[test]
    fn shorter_than_a_datagram() {
        for len in 0..16u8 {
            let bytes = patched_ipv4(CNP, IPV4 + 2, &[0, 28 + len]);
            let bytes = patched(&bytes, UDP + 4, &[0, 8 + len]);
            let frame = Frame::parse(&bytes).unwrap();
            assert_eq!(frame.transport.len(), usize::from(len));
            let error = frame.verify_icrc().unwrap_err();
            assert_eq!((error.layer, error.kind, error.offset), (Layer::Bth, Truncated, BTH));
            assert_eq!((error.need, error.have), (16, len.into()));
            // The offset of errors in the datagram also counts from the start of the frame.
            let error = frame.datagram().unwrap_err();
            assert!(error.offset >= BTH && error.kind == Truncated, "{error}");
        }
    }

    /// Published against kernel rxe on 2023-05-18: the UDP header of a runt packet was counted as payload, so
    /// a length was wrong by eight. The lengths of IP, UDP and the frame must agree.
    #[test]
    fn rxe_2023_05_18_udp_header_counted_as_payload() {
        let datagram_len = CNP.len() - BTH;
        for delta in -(datagram_len as isize)..=64 {
            if delta == 0 {
                continue;
            }
            let udp_len = (8 + datagram_len).checked_add_signed(delta).unwrap();
            let bytes = patched(CNP, UDP + 4, &(udp_len as u16).to_be_bytes());
            let error = assert_refused(&bytes, Layer::Udp, BadLength, UDP + 4);
            assert_eq!((error.need, error.have), (8 + datagram_len, udp_len));
            // Ethernet padding does not compensate for it.
            let padded = [&bytes[..], &[0; 100]].concat();
            assert_refused(&padded, Layer::Udp, BadLength, UDP + 4);
            let dissection = Dissection::new(&padded);
            assert_eq!(dissection.transport.unwrap().len(), datagram_len.min(udp_len - 8));
        }
        // Lengths that are too small for the UDP header.
        for udp_len in 0..8 {
            let bytes = patched(CNP, UDP + 4, &[0, udp_len]);
            let error = assert_refused(&bytes, Layer::Udp, BadLength, UDP + 4);
            assert_eq!((error.need, error.have), (8, udp_len.into()));
            assert_eq!(Dissection::new(&bytes).transport, Some(&[][..]));
        }
    }

    /// The opposite error: according to IP, the packet ends earlier or later than according to UDP.
    #[test]
    fn ip_length_disagrees() {
        for total_len in 0..20 {
            let bytes = patched_ipv4(CNP, IPV4 + 2, &[0, total_len]);
            let error = assert_refused(&bytes, Layer::Ipv4, BadLength, IPV4 + 2);
            assert_eq!((error.need, error.have), (20, total_len.into()));
        }
        // The Ethernet padding cannot contain a UDP header.
        for total_len in 20..28 {
            let bytes = patched_ipv4(CNP, IPV4 + 2, &[0, total_len]);
            let error = assert_refused(&bytes, Layer::Udp, Truncated, UDP);
            assert_eq!((error.need, error.have), (8, usize::from(total_len) - 20));
            assert!(Dissection::new(&bytes).udp.is_none());
        }
        for total_len in 28..60 {
            let bytes = patched_ipv4(CNP, IPV4 + 2, &[0, total_len]);
            assert_refused(&bytes, Layer::Udp, BadLength, UDP + 4);
        }
        let bytes = patched_ipv4(CNP, IPV4 + 2, &[0, 61]);
        assert_refused(&bytes, Layer::Ipv4, Truncated, IPV4);
        let bytes = [&bytes[..], &[0]].concat();
        assert_refused(&bytes, Layer::Udp, BadLength, UDP + 4);
        let bytes = patched(&ipv6_frame(), 14 + 4, &[0, 39]);
        assert_refused(&bytes, Layer::Udp, BadLength, 14 + 40 + 4);
        let bytes = patched(&ipv6_frame(), 14 + 4, &[0, 41]);
        assert_refused(&bytes, Layer::Ipv6, Truncated, 14);
        let bytes = patched(&ipv6_frame(), 14 + 4, &[0, 0]);
        assert_refused(&bytes, Layer::Udp, Truncated, 14 + 40);
        let bytes = patched(V1_ACK, 14 + 4, &[0, 21]);
        assert_refused(&bytes, Layer::Grh, Truncated, 14);
    }

    #[test]
    fn of_another_version() {
        for version in (0..16).filter(|version| *version != 4) {
            let bytes = patched(CNP, IPV4, &[version << 4 | 5]);
            let error = assert_refused(&bytes, Layer::Ipv4, BadVersion, IPV4);
            assert_eq!((error.need, error.have), (4, version.into()));
        }
        for version in (0..16).filter(|version| *version != 6) {
            let error = assert_refused(&patched(V1_ACK, 14, &[version << 4]), Layer::Grh, BadVersion, 14);
            assert_eq!((error.need, error.have), (6, version.into()));
            assert_refused(&patched(&ipv6_frame(), 14, &[version << 4]), Layer::Ipv6, BadVersion, 14);
        }
        let error = assert_refused(&patched(V1_ACK, 14 + 6, &[17]), Layer::Grh, Unsupported, 14 + 6);
        assert_eq!((error.need, error.have), (0x1b, 17));
    }

    #[test]
    fn with_a_wrong_checksum() {
        for bit in 0..16 {
            let wrong = (0x9161u16 ^ 1 << bit).to_be_bytes();
            let bytes = patched(CNP, IPV4 + 10, &wrong);
            let error = assert_refused(&bytes, Layer::Ipv4, BadChecksum, IPV4 + 10);
            assert_eq!((error.need, error.have), (0x9161, u16::from_be_bytes(wrong).into()));
            // The layers after it are available nevertheless.
            assert_eq!(Dissection::new(&bytes).transport, Some(&CNP[BTH..]));
        }
    }

    /// A UDP checksum may be 0, correct or wrong: the ICRC does not cover it and protects better.
    #[test]
    fn any_udp_checksum_will_do() {
        for checksum in [[0, 0], [0xac, 0xa2], [0xde, 0xad], [0xff, 0xff]] {
            let bytes = patched(UC_SEND, UDP + 6, &checksum);
            assert!(Frame::parse(&bytes).unwrap().verify_icrc().unwrap().is_good());
        }
    }

    #[test]
    fn with_ipv4_options() {
        for ihl in 0..5 {
            let bytes = patched(CNP, IPV4, &[0x40 | ihl]);
            let error = assert_refused(&bytes, Layer::Ipv4, BadLength, IPV4);
            assert_eq!((error.need, error.have), (20, usize::from(ihl) * 4));
        }
        for words in 1..=10u8 {
            let options = vec![1; usize::from(words) * 4]; // no-operation
            let bytes = [&CNP[..UDP], &options, &CNP[UDP..]].concat();
            let bytes = patched(&bytes, IPV4, &[0x45 + words]);
            let bytes = patched_ipv4(&bytes, IPV4 + 2, &[0, 60 + words * 4]);
            let error = assert_refused(&bytes, Layer::Ipv4, Unsupported, IPV4 + 20);
            assert_eq!((error.need, error.have), (20, 20 + options.len()));
            let dissection = Dissection::new(&bytes);
            assert_eq!(dissection.udp_offset, UDP + options.len());
            assert_eq!(dissection.transport, Some(&CNP[BTH..]));
            // Options that exceed the frame.
            let error = assert_refused(&bytes[..UDP + 3], Layer::Ipv4, Unsupported, IPV4 + 20);
            assert_eq!(error.have, 20 + options.len());
            // The error does not matter in a packet for another port.
            let dns = patched(&bytes, UDP + options.len() + 2, &[0, 53]);
            assert_refused(&dns, Layer::Udp, ParseErrorKind::NotRoce, UDP + options.len() + 2);
        }
    }

    /// The first fragment of a datagram to the RoCE port is rejected. The other fragments contain no port.
    #[test]
    fn fragments() {
        let first = patched_ipv4(CNP, IPV4 + 6, &[0x20, 0x00]);
        assert_refused(&first, Layer::Ipv4, Unsupported, IPV4 + 6);
        assert_eq!(Dissection::new(&first).transport, Some(&CNP[BTH..]));
        let middle = patched_ipv4(CNP, IPV4 + 6, &[0x20, 0x01]);
        assert_refused(&middle, Layer::Ipv4, ParseErrorKind::NotRoce, IPV4 + 6);
        let last = patched_ipv4(CNP, IPV4 + 6, &[0x1f, 0xff]);
        assert_refused(&last, Layer::Ipv4, ParseErrorKind::NotRoce, IPV4 + 6);
    }

    /// Returns a frame with an extension header of type `next` and a correct length field.
    fn with_extension(next: u8, extension: &[u8]) -> Vec<u8> {
        let frame = ipv6_frame();
        let mut bytes = [&frame[..54], extension, &frame[54..]].concat();
        bytes[14 + 6] = next;
        bytes[14 + 5] += extension.len() as u8;
        bytes
    }

    #[test]
    fn ipv6_fragments_and_other_extension_headers() {
        let refused = |next, extension: &[u8], kind| {
            assert_refused(&with_extension(next, extension), Layer::Ipv6, kind, 14 + 6);
        };
        // Fragment headers: an atomic fragment, a first one, and two from the middle.
        refused(44, &[17, 0, 0, 0, 1, 2, 3, 4], Unsupported);
        refused(44, &[17, 0, 0, 1, 1, 2, 3, 4], Unsupported);
        refused(44, &[17, 0, 0, 8, 1, 2, 3, 4], ParseErrorKind::NotRoce);
        refused(44, &[17, 0, 1, 0, 1, 2, 3, 4], ParseErrorKind::NotRoce);
        // Options of 8 and of 16 bytes, and two headers in sequence.
        refused(0, &[17, 0, 1, 4, 0, 0, 0, 0], Unsupported);
        refused(60, &[17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Unsupported);
        refused(0, &[43, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0], Unsupported);
        // ICMPv6 after options is not RoCE.
        refused(0, &[58, 0, 1, 4, 0, 0, 0, 0], ParseErrorKind::NotRoce);
        // An endless chain.
        refused(0, &[0; 128], ParseErrorKind::NotRoce);
        // An extension header that exceeds the frame.
        refused(0, &[17, 255, 1, 4, 0, 0, 0, 0], ParseErrorKind::NotRoce);
        for len in 54..54 + 8 + 8 {
            let bytes = &with_extension(0, &[17, 0, 1, 4, 0, 0, 0, 0])[..len];
            assert!(Dissection::new(bytes).is_not_roce(), "{len}");
        }
    }
}

mod headers_of_a_path {
    use super::*;

    #[test]
    fn of_two_ip_versions_cannot_be() {
        let mixed = Path { destination: Ipv6Addr::LOCALHOST.into(), ..path() };
        for path in [mixed, mixed.reply()] {
            let error = FrameHeaders::new(&path, 0, MacAddr::ZERO, MacAddr::ZERO, 20).unwrap_err();
            assert_eq!(error, FrameHeadersError::MixedAddressFamilies);
            // In a GRH, both addresses are GIDs.
            let path = Path { encapsulation: Encapsulation::RoceV1, ..path };
            assert!(FrameHeaders::new(&path, 0, MacAddr::ZERO, MacAddr::ZERO, 20).is_ok());
        }
    }

    #[test]
    fn have_16_bits_for_a_length() {
        let longest = |path: &Path, len| FrameHeaders::new(path, 0, MacAddr::ZERO, MacAddr::ZERO, len);
        let v1 = Path { encapsulation: Encapsulation::RoceV1, ..path() };
        let v6 =
            Path { source: Ipv6Addr::LOCALHOST.into(), destination: Ipv6Addr::LOCALHOST.into(), ..path() };
        for (path, most) in [(path(), 65_535 - 28), (v6, 65_535 - 8), (v1, 65_535)] {
            assert!(longest(&path, most).is_ok());
            for len in [most + 1, usize::MAX] {
                assert_eq!(longest(&path, len), Err(FrameHeadersError::TooLong { datagram_len: len }));
            }
        }
    }

    #[test]
    fn are_at_most_66_bytes() {
        let v6 = Path {
            source: Ipv6Addr::LOCALHOST.into(),
            destination: Ipv6Addr::LOCALHOST.into(),
            vlan: Some(VlanTag::default()),
            ..path()
        };
        let headers = FrameHeaders::new(&v6, 0, MacAddr::ZERO, MacAddr::ZERO, 20).unwrap();
        assert_eq!(headers.len_bytes(), FrameHeaders::MAX_LEN);
        assert_eq!(FrameHeaders::MAX_LEN, 66);
    }
}

mod congestion_notification {
    use super::*;

    #[test]
    fn is_what_hardware_sends() {
        let frame = Frame::parse(CNP).unwrap();
        let datagram = frame.datagram().unwrap();
        let cnp = Cnp::parse(&datagram).unwrap();
        assert_eq!(cnp, Cnp { dest_qp: Qpn::new(0x118), p_key: 0xffff });
        assert_eq!(CnpDeviations::of(&datagram), CnpDeviations::empty());
        let mut out = [0xa5; Cnp::LEN];
        cnp.emit(&frame.envelope(), &mut out);
        assert_eq!(out, CNP[BTH..]);
        assert_eq!(frame.path().dscp(), DEFAULT_CNP_DSCP);
        assert_eq!(frame.path().ecn(), Ecn::Capable0);
    }

    #[test]
    fn takes_the_way_back() {
        let data = Path { vlan: Some(VlanTag { pcp: 3, dei: false, vid: 7 }), ..path() };
        let back = Cnp::path(&data.with_ecn(Ecn::CongestionExperienced), DEFAULT_CNP_DSCP, DEFAULT_CNP_PCP);
        assert_eq!((back.source, back.destination), (data.destination, data.source));
        assert_eq!(back.traffic_class, 0xc2);
        assert_eq!(back.vlan, Some(VlanTag { pcp: 6, dei: false, vid: 7 }));
        assert_eq!(Cnp::path(&path(), 26, 4).vlan, None);
    }

    /// CNPs of other implementations may have deviations and are still CNPs.
    #[test]
    fn with_deviations_is_one() {
        let cases = [
            (1, 0xc0, CnpDeviations::SOLICITED | CnpDeviations::MIG_REQ_SET),
            (1, 0x20, CnpDeviations::PADDED),
            (4, 0x00, CnpDeviations::BECN_CLEAR),
            (4, 0xff, CnpDeviations::FECN_SET),
            (4, 0x7f, CnpDeviations::empty()),
            (8, 0x80, CnpDeviations::ACK_REQ_SET),
            (8, 0x7f, CnpDeviations::empty()),
            (11, 1, CnpDeviations::PSN_NOT_ZERO),
            (27, 1, CnpDeviations::RESERVED_NOT_ZERO),
        ];
        for (offset, byte, expected) in cases {
            let bytes = patched(CNP, BTH + offset, &[byte]);
            match Frame::parse(&bytes).unwrap().datagram() {
                Ok(datagram) => {
                    assert_eq!(CnpDeviations::of(&datagram), expected, "byte {offset}");
                    assert_eq!(Cnp::parse(&datagram).unwrap().dest_qp, Qpn::new(0x118));
                }
                // Padding replaces reserved bytes, so fewer than 16 remain.
                Err(error) => assert_eq!(expected, CnpDeviations::PADDED, "{error}"),
            }
        }
    }

    #[test]
    fn is_nothing_else() {
        let datagram = Frame::parse(READ_REQUEST).unwrap().datagram().unwrap();
        let error = Cnp::parse(&datagram).unwrap_err();
        assert_eq!((error.layer, error.kind, error.have), (Layer::Cnp, ParseErrorKind::UnknownOpcode, 0x0c));
    }
}

fn ip_pair() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(Ipv4Addr, Ipv4Addr)>().prop_map(|(a, b)| (a.into(), b.into())),
        any::<(Ipv6Addr, Ipv6Addr)>().prop_map(|(a, b)| (a.into(), b.into())),
    ]
}

prop_compose! {
    fn any_path()(
        (source, destination) in ip_pair(),
        is_v1: bool,
        source_port: u16,
        traffic_class: u8,
        hop_limit: u8,
        flow_label in 0..=0xf_ffffu32,
        vlan in proptest::option::of((0..8u8, any::<bool>(), 0..4096u16)),
    ) -> Path {
        let is_ipv4 = source.is_ipv4();
        // RoCE v1 has GIDs. IPv4-mapped GIDs are parsed as IPv4 addresses.
        let canonical = |address| if is_v1 { Gid::from_ip(address).to_ip() } else { address };
        let (source, destination) = (canonical(source), canonical(destination));
        Path {
            encapsulation: if is_v1 { Encapsulation::RoceV1 } else { Encapsulation::RoceV2 },
            source,
            destination,
            source_port: if is_v1 { 0 } else { source_port },
            traffic_class,
            hop_limit,
            flow_label: if is_ipv4 && !is_v1 { 0 } else { flow_label },
            vlan: vlan.map(|(pcp, dei, vid)| VlanTag { pcp, dei, vid }),
        }
    }
}

proptest! {
    #[test]
    fn a_path_survives_the_wire(path in any_path(), identification: u16, trailer in proptest::collection::vec(any::<u8>(), 0..32)) {
        let bytes = frame_for(&path);
        let headers = Frame::parse(&bytes).unwrap().headers;
        prop_assert_eq!(headers.path(), path);
        let headers = FrameHeaders::new(&path, identification, headers.destination, headers.source, Cnp::LEN).unwrap();
        let mut transport = [0; Cnp::LEN];
        Cnp { dest_qp: Qpn::new(1), p_key: 1 }.emit(&headers.envelope(), &mut transport);
        let frame = Frame { headers, transport: &transport, trailer: &trailer };
        let mut out = vec![0; frame.len_bytes()];
        frame.emit(&mut out).unwrap();
        let parsed = Frame::parse(&out).unwrap();
        prop_assert_eq!(parsed, frame);
        prop_assert!(parsed.verify_icrc().unwrap().is_good());
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        walk(&bytes);
    }

    /// Random bytes rarely get past the EtherType, so this test damages real frames.
    #[test]
    fn no_damage_panics(
        which in 0..=SAMPLES.len(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in any::<prop::sample::Index>(),
        cut: bool,
    ) {
        let mut bytes = SAMPLES.get(which).map_or_else(ipv6_frame, |sample| sample.to_vec());
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if cut {
            bytes.truncate(len.index(bytes.len()));
        }
        walk(&bytes);
    }
}

/// Calls every function that parses a frame. Checks that the output of an accepted frame equals its input.
fn walk(bytes: &[u8]) {
    let dissection = Dissection::new(bytes);
    if let Some(transport) = dissection.transport {
        let whole = dissection.transport_offset + transport.len() + dissection.trailer.len();
        assert_eq!(whole, bytes.len());
    }
    match Frame::parse(bytes) {
        Ok(frame) => {
            let mut out = vec![0; bytes.len()];
            assert_eq!(frame.emit(&mut out), Ok(bytes.len()));
            // Only the reserved flag of IPv4 and the checksum, which depends on it, are not kept.
            if !matches!(dissection.network, Some(roce_packet::NetworkView::Ipv4(ip)) if ip.reserved_flag()) {
                assert_eq!(out, bytes);
            }
            let _ = frame.verify_icrc();
            if let Ok(datagram) = frame.datagram() {
                let _ = (Cnp::parse(&datagram), CnpDeviations::of(&datagram));
            }
        }
        Err(error) => {
            assert!(error.offset <= bytes.len(), "{error}");
            assert!(!error.to_string().is_empty());
        }
    }
    let _ = roce_packet::PauseFrame::parse(bytes);
}
