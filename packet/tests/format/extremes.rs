//! Calls every public function that takes a number or a slice with 0, 1 and the largest value. None may
//! panic. Each impossible request returns an error or is truncated to the width of its field.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce_packet::fields::{self, Field, Show};
use roce_packet::mad::{
    CmMad, CmMessage, CmMessageKind, CmMra, CmTimeout, CommId, IpCm, MAD_LEN, MadHeader, PortSpace,
    RejReason, ServiceId, SidrStatus, TransportService, private_data,
};
use roce_packet::pause::{MAX_QUANTA, PRIORITIES, PauseFrame, PauseRequest, pause_duration_ns};
use roce_packet::*;

const NUMBERS: [u64; 6] = [0, 1, 0x7f, 0x7fff_ffff, u32::MAX as u64, u64::MAX];
const SIZES: [usize; 7] = [0, 1, 3, 65_535, 65_536, usize::MAX - 1, usize::MAX];

fn paths() -> Vec<Path> {
    let v4 = IpAddr::V4(Ipv4Addr::BROADCAST);
    let v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let mut paths = Vec::new();
    for (source, destination) in [(v4, v4), (v6, v6), (v4, v6), (v6, v4)] {
        for encapsulation in [Encapsulation::RoceV1, Encapsulation::RoceV2] {
            for vlan in [None, Some(VlanTag { pcp: u8::MAX, dei: true, vid: u16::MAX })] {
                paths.push(Path {
                    encapsulation,
                    source,
                    destination,
                    source_port: u16::MAX,
                    traffic_class: u8::MAX,
                    hop_limit: u8::MAX,
                    flow_label: u32::MAX,
                    vlan,
                });
            }
        }
    }
    paths
}

#[test]
fn numbers_of_24_bits() {
    for value in NUMBERS.map(|value| value as u32) {
        let psn = Psn::new(value);
        for count in NUMBERS.map(|count| count as u32) {
            let other = psn.add(count);
            assert_eq!(other.sub(count), psn);
            assert_eq!(psn.distance_to(other), count & Psn::MASK);
            let _ = (psn.before(other), psn.after(other), psn.next(), Msn::new(value).next());
        }
        assert_eq!(Qpn::from_be_bytes(Qpn::new(value).to_be_bytes()), Qpn::new(value));
        let _ = format!("{psn} {psn:?} {} {:?}", Msn::new(value), Qpn::new(value));
    }
}

#[test]
fn lengths_on_the_wire() {
    assert_eq!(wire_len(0), 84);
    assert_eq!(wire_len(1), 84);
    assert_eq!(wire_len(usize::MAX), usize::MAX, "no frame is that long, and none becomes short");
    for path in paths() {
        for len in SIZES {
            let headers = FrameHeaders::new(&path, u16::MAX, MacAddr::BROADCAST, MacAddr::ZERO, len);
            let mixed = path.source.is_ipv4() != path.destination.is_ipv4();
            let fits = len <= 60_000 && (path.encapsulation == Encapsulation::RoceV1 || !mixed);
            assert!(headers.is_ok() || !fits, "{path:?} {len}");
            let Ok(headers) = headers else { continue };
            for room in [0, 1, FrameHeaders::MAX_LEN] {
                let _ = headers.emit(&mut vec![0; room]);
            }
            let _ = (headers.len_bytes(), headers.path(), headers.envelope(), headers.udp_offset());
        }
        let _ = (path.reply(), path.with_dscp(u8::MAX), path.dscp(), path.ecn());
        let cnp = Cnp { dest_qp: Qpn::MULTICAST, p_key: u16::MAX };
        cnp.emit(&Envelope::new(&Cnp::path(&path, u8::MAX, u8::MAX), u16::MAX), &mut [0; Cnp::LEN]);
    }
}

#[test]
fn parsers_of_nothing_and_of_ones() {
    for len in [0, 1, 2, 3, 4, 13, 14, 16, 40, 256, 4096] {
        for byte in [0, 1, 0xff] {
            let bytes = vec![byte; len];
            let _ = (Bth::parse(&bytes), Aeth::parse(&bytes), Deth::parse(&bytes), Reth::parse(&bytes));
            let _ = (AtomicEth::parse(&bytes), AtomicAckEth::parse(&bytes), Feth::parse(&bytes));
            let _ = (ImmDt::parse(&bytes), Ieth::parse(&bytes), Rdeth::parse(&bytes), Xrceth::parse(&bytes));
            let _ = (Ipv4Header::parse(&bytes), Ipv6Header::parse(&bytes), Grh::parse(&bytes));
            let _ = (UdpHeader::parse(&bytes), EthernetHeader::parse(&bytes), VlanHeader::parse(&bytes));
            let _ = (PauseFrame::parse(&bytes), CmMad::parse(&bytes), MadHeader::parse(&bytes));
            let _ = (IpCm::parse(&bytes), Datagram::parse(&bytes, &bytes), Datagram::parse(&bytes, &[]));
            for frame_len in SIZES {
                let _ = Dissection::of_part(&bytes, frame_len, u16::MAX).headers();
            }
            let _ = Frame::parse_split(&bytes, &bytes, 0);
        }
    }
}

#[test]
fn writers_of_any_length() {
    let bth = Bth { pad_count: u8::MAX, ..Bth::new(Opcode(0xff), Qpn::new(u32::MAX), Psn::new(u32::MAX)) };
    for room in [0, 1, 15, 16, 17, 64] {
        for len in SIZES {
            let mut buffer = vec![0; room];
            let Ok(mut writer) = DatagramWriter::new(&mut buffer, &bth) else { continue };
            let fits = writer.payload_slot(len).is_ok();
            assert!(!fits || len < room, "{len} bytes in {room}");
            let _ =
                writer.atomic_eth(&AtomicEth { va: u64::MAX, rkey: u32::MAX, swap_or_add: 0, compare: 1 });
            assert!(writer.len_with_icrc() <= room);
            for path in paths().into_iter().take(1) {
                let _ = DatagramWriter::new(&mut vec![0; room], &bth)
                    .map(|it| it.finish(&Envelope::new(&path, 0)));
            }
        }
    }
}

#[test]
fn checks_of_any_bytes() {
    for path in paths() {
        let envelope = Envelope::new(&path, u16::MAX);
        for (head, tail) in [(0, 0), (1, 0), (0, 1), (4, 0), (70_000, 70_000)] {
            let (head, tail) = (vec![0xff; head], vec![0xff; tail]);
            let found = icrc::compute(&envelope, &head, &tail);
            let _ = icrc::Seed::new(&envelope).compute(0, &head, &tail);
            let _ = icrc::recover_identification(&envelope, &head, &tail, found ^ 1);
        }
    }
    for len in SIZES {
        for difference in NUMBERS {
            let _ = icrc::identification_from_difference(difference as u32, len);
        }
    }
    let udp = UdpHeader { source_port: 0, destination_port: u16::MAX, length: u16::MAX, checksum: 0 };
    let address = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    assert!(udp.compute_checksum(address, address, &vec![0xff; 1 << 20]).is_some());
}

#[test]
fn codes_and_rules() {
    for value in 0..=u8::MAX {
        let _ = (Syndrome::from_byte(value), Syndrome::credits(value), NakCode::from_code(value).code());
        let _ =
            (RnrTimer::new(value).map(RnrTimer::delay_ns), PathMtu::from_code(value), Ecn::from_bits(value));
        let _ = (Opcode(value).info(), Opcode(value).name(), FlushSelectivity::from_bits(value).bits());
        let _ = (CmTimeout::new(value).nanos(), TransportService::from_bits(value), SidrStatus(value).name());
        let _ = format!("{} {}", Opcode(value), CmTimeout::new(value));
        assert!(Syndrome::Ack { credit_code: value }.to_byte() < 0x20);
        assert!(NakCode::Reserved(value).code() < 0x20 && FlushSelectivity::Reserved(value).bits() < 4);
        let _ = CmMessageKind::from_bits(value);
        if let Some(info) = Opcode(value).info() {
            for flags in [HeaderSet::empty(), HeaderSet::all(), HeaderSet::from_bits_retain(u16::MAX)] {
                let _ = info.offset_of(flags);
            }
        }
    }
    for value in SIZES {
        let _ = PathMtu::from_bytes(value);
        let error = ParseError::truncated(Layer::Bth, value, value, value).moved_by(usize::MAX);
        assert_eq!(error.offset, usize::MAX);
        let _ = format!("{error} {}", BufferTooSmall { need: value, have: value });
    }
    for number in NUMBERS {
        let (short, word) = (number as u16, number as u32);
        let _ = (EtherType(short).name(), RejReason(short).name(), PortSpace::from_number(short));
        let _ = (flow::flow_label_to_port(word), flow::rdma_cm_flow_label(short, short));
        let (one, other) = (Qpn::new(word), Qpn::new(u32::MAX));
        for rule in SourcePortRule::ALL {
            let inputs = flow::FlowInputs {
                local: one,
                remote: other,
                flow_label: word,
                connection: Some((short, u16::MAX)),
            };
            let _ = rule.port(&inputs);
        }
        let _ = format!("{} {}", ServiceId(number), CommId(word));
        assert!(
            ServiceId(number)
                .port()
                .is_none_or(|(space, port)| ServiceId::of_port(space, port) == ServiceId(number))
        );
        for speed in NUMBERS {
            let _ = pause_duration_ns(short, speed);
        }
        let _ = VlanTag::from_bits(short).to_bits();
    }
    assert_eq!(pause_duration_ns(MAX_QUANTA, 0), u64::MAX);
    for request in [PauseRequest::All(u16::MAX), PauseRequest::PerPriority([Some(u16::MAX); PRIORITIES])] {
        let mut bytes = [0; PauseFrame::LEN];
        let frame = PauseFrame { source: MacAddr::BROADCAST, request };
        frame.emit(&mut bytes);
        assert_eq!(PauseFrame::parse(&bytes), Ok(frame));
    }
}

#[test]
fn messages_with_every_field_at_its_largest() {
    let parsed = CmMad::parse(&{
        let mut bytes = [0; MAD_LEN];
        let mra = CmMra {
            local_comm_id: CommId(u32::MAX),
            remote_comm_id: CommId(0),
            received: CmMessageKind::Reserved,
            service_timeout: CmTimeout::new(u8::MAX),
            private_data: [0xff; CmMra::PRIVATE_DATA],
        };
        CmMad::new(u64::MAX, CmMessage::Mra(mra)).emit(&mut bytes);
        bytes
    });
    assert_eq!(parsed.map(|mad| mad.transaction_id), Ok(u64::MAX));
    assert_eq!(private_data::<0>(&[1; 9]), [0_u8; 0]);
    assert_eq!(private_data::<4>(&[]), [0; 4]);
    assert_eq!(private_data::<4>(&[7; 1 << 16]), [7; 4]);
}

/// Fields with usual positions, and one that is in no table.
#[test]
fn fields_of_any_place_and_width() {
    let bth = fields::BTH.fields[0];
    for start in SIZES {
        for width in SIZES {
            for show in [Show::Decimal, Show::Bytes] {
                let field = Field { start, width, show, when: None, ..bth };
                for len in [0, 1, 8, 64] {
                    let header = vec![0xff; len];
                    let value = field.value(&header);
                    let inside = start.checked_add(width).is_some_and(|end| end <= len * 8);
                    assert!(inside || value.is_none(), "{start} {width} in {len} bytes: {value:?}");
                }
            }
        }
    }
    for header in [&fields::BTH, &fields::AETH, &fields::REQ, &fields::PFC] {
        for len in [0, 1, 4096] {
            header.mask_variant_fields(&mut vec![0; len]);
        }
        for note in header.fields.iter().filter_map(|field| field.note) {
            for number in NUMBERS {
                let mut text = String::new();
                assert!(note(number, &mut text).is_ok());
            }
        }
    }
}
