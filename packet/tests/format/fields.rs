//! The field table of every header: it names every bit once. Any bytes have the same values in the table as
//! in the view or the parser of the header.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use roce_packet::fields::{self, Field, Header, Show, Value};
use roce_packet::mad::{
    CM_CLASS, CM_CLASS_VERSION, CmMad, CmMessage, CmPath, IpCmView, MAD_LEN, MadHeader, MadView,
};
use roce_packet::pause::{MacControlView, PauseFrame, PauseRequest, PauseView, PfcView};
use roce_packet::{
    AethView, AtomicAckEthView, AtomicEthView, Bth, BthView, DethView, EthernetView, FethView, GrhView,
    HeaderSet, IethView, ImmDtView, Ipv4View, Ipv6View, LrhView, Opcode, RdethView, RethView, UdpView,
    VlanView, XrcethView,
};

/// Returns every table with the length of its header.
fn tables() -> Vec<(&'static Header, usize)> {
    let mut tables = vec![
        (&fields::ETHERNET, size_of::<EthernetView>()),
        (&fields::VLAN, size_of::<VlanView>()),
        (&fields::PAUSE, size_of::<MacControlView>() + size_of::<PauseView>()),
        (&fields::PFC, size_of::<MacControlView>() + size_of::<PfcView>()),
        (&fields::LRH, size_of::<LrhView>()),
        (&fields::VCRC, 2),
        (&fields::ERF, 16),
        (&fields::IPV4, size_of::<Ipv4View>()),
        (&fields::IPV6, size_of::<Ipv6View>()),
        (&fields::GRH, size_of::<GrhView>()),
        (&fields::UDP, size_of::<UdpView>()),
        (&fields::BTH, size_of::<BthView>()),
        (&fields::RDETH, size_of::<RdethView>()),
        (&fields::DETH, size_of::<DethView>()),
        (&fields::XRCETH, size_of::<XrcethView>()),
        (&fields::FETH, size_of::<FethView>()),
        (&fields::RETH, size_of::<RethView>()),
        (&fields::ATOMIC_ETH, size_of::<AtomicEthView>()),
        (&fields::AETH, size_of::<AethView>()),
        (&fields::ATOMIC_ACK_ETH, size_of::<AtomicAckEthView>()),
        (&fields::IMMDT, size_of::<ImmDtView>()),
        (&fields::IETH, size_of::<IethView>()),
        (&fields::CNP, roce_packet::Cnp::RESERVED_LEN),
        (&fields::ICRC, roce_packet::icrc::LEN),
        (&fields::TELEMETRY, roce_packet::Telemetry::LEN),
        (&fields::MAD, size_of::<MadView>()),
        // The length includes the bytes of the application, which fill the private data of a REQ.
        (&fields::IP_CM, roce_packet::mad::CmReq::PRIVATE_DATA),
    ];
    let messages = (0..=u16::MAX).filter_map(fields::cm_message);
    tables.extend(messages.map(|message| (message, MAD_LEN - MadHeader::LEN)));
    assert_eq!(tables.len(), 38);
    tables
}

/// Returns bytes for which every condition of every table holds at least once.
fn samples() -> Vec<Vec<u8>> {
    let mapped = |gid: usize| {
        let mut request = vec![0x11; MAD_LEN];
        request[gid..gid + 16].copy_from_slice(&Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets());
        request
    };
    let syndromes =
        [0x00, 0x20, 0x40, 0x60, 0xff].map(|syndrome| [&[syndrome][..], &[0x60; MAD_LEN]].concat());
    let plain = [vec![0; MAD_LEN], vec![0xff; MAD_LEN], mapped(56), mapped(72)];
    plain.into_iter().chain(syndromes).collect()
}

/// Returns whether a field is part of another: its position and its name are within those of the other.
fn is_part(field: &Field, header: &Header) -> bool {
    let is_whole = |whole: &Field| {
        let within = whole.start <= field.start && field.start + field.width <= whole.start + whole.width;
        within && field.key.strip_prefix(whole.key).is_some_and(|rest| rest.starts_with('.'))
    };
    header.fields.iter().any(is_whole)
}

/// Checks all tables. For any content of a header, the present fields name every bit of it exactly once.
/// Parts of a field name every bit of that field exactly once.
#[test]
fn every_table_names_every_bit_of_its_header_exactly_once() {
    for (header, len) in tables() {
        let name = header.name;
        assert_eq!(header.len_bytes(), len, "{name}");
        let mut seen = BTreeSet::new();
        for sample in samples() {
            let present: Vec<_> =
                header.fields.iter().filter(|field| field.value(&sample[..len]).is_some()).collect();
            seen.extend(present.iter().map(|field| field.key));
            let mut named = vec![0; len * 8];
            let mut named_by_parts = vec![0; len * 8];
            for field in &present {
                let named = if is_part(field, header) { &mut named_by_parts } else { &mut named };
                named[field.start..field.start + field.width].iter_mut().for_each(|count| *count += 1);
            }
            assert!(named.iter().all(|count| *count == 1), "{name}: {named:?}");
            let whole = present.iter().filter(|whole| {
                present.iter().any(|part| {
                    part.key != whole.key && is_part(part, header) && part.key.starts_with(whole.key)
                })
            });
            for whole in whole {
                let bits = &named_by_parts[whole.start..whole.start + whole.width];
                assert!(bits.iter().all(|count| *count == 1), "{name} {}: {bits:?}", whole.name);
            }
        }
        assert_eq!(seen.len(), header.fields.len(), "{name} has a field that no sample shows");
    }
}

#[test]
fn every_field_is_described_and_lies_where_it_can_be_read() {
    for (header, _) in tables() {
        assert!(!header.title.is_empty() && !header.rule.is_empty(), "{}", header.name);
        assert!(header.purpose.ends_with('.'), "{}", header.name);
        for field in header.fields {
            let name = format!("{} {}", header.name, field.name);
            assert!(field.width > 0 && !field.name.is_empty(), "{name}");
            assert!(field.meaning.ends_with('.'), "{name}: {}", field.meaning);
            assert!(field.width <= 64 || (field.start % 8 == 0 && field.width % 8 == 0), "{name}");
            let width = field.width;
            match field.show {
                Show::Flag => assert_eq!(width, 1, "{name}"),
                Show::Mac => assert_eq!(width, 48, "{name}"),
                Show::Ipv4 => assert!(width == 32 || width == 128, "{name}"),
                Show::Ipv6 => assert_eq!(width, 128, "{name}"),
                Show::Decimal | Show::Hex | Show::Words => assert!(width <= 64, "{name}"),
                Show::Bytes => assert!(field.start % 8 == 0 && width % 8 == 0, "{name}"),
            }
        }
    }
}

#[test]
fn a_field_that_is_set_reads_back_and_changes_no_other_bit() {
    for (header, len) in tables() {
        for field in header.fields.iter().filter(|field| (1..=64).contains(&field.width)) {
            let ones = u64::MAX >> (64 - field.width);
            for fill in [0, 0xff] {
                let mut bytes = vec![fill; len];
                let value = 0x9e37_79b9_7f4a_7c15 & ones;
                assert!(field.set(&mut bytes, value), "{}", field.key);
                let unconditional = Field { when: None, show: Show::Hex, ..*field };
                assert_eq!(unconditional.value(&bytes), Some(Value::Number(value)), "{}", field.key);
                let changed = if fill == 0 { ones } else { 0 };
                assert!(field.set(&mut bytes, !changed), "{}", field.key);
                assert!(bytes.iter().all(|byte| *byte == fill), "{}: {bytes:02x?}", field.key);
            }
            let mut short = vec![0; field.byte_range().end - 1];
            assert!(!field.set(&mut short, 1), "{}", field.key);
        }
    }
}

#[test]
fn bytes_of_a_field_that_are_set_read_back() {
    for (header, len) in tables() {
        for field in header.fields.iter().filter(|field| field.width > 64) {
            let mut bytes = vec![0xff; len];
            let value: Vec<u8> = (0..field.width / 8).map(|byte| byte as u8).collect();
            assert!(field.set_bytes(&mut bytes, &value), "{}", field.key);
            assert_eq!(bytes[field.byte_range()], value, "{}", field.key);
            let others = bytes.iter().filter(|byte| **byte == 0xff).count();
            assert_eq!(others, len - value.len(), "{}", field.key);
            assert!(!field.set_bytes(&mut bytes, &value[1..]), "{}", field.key);
            assert!(!field.set_bytes(&mut vec![0; field.byte_range().end - 1], &value), "{}", field.key);
        }
    }
}

#[test]
fn no_two_fields_of_a_packet_have_the_same_key() {
    let mut keys = BTreeSet::new();
    for (header, _) in tables() {
        // These headers never share a packet: both kinds of pause frame, and RETH with AtomicETH.
        if header.name == fields::PFC.name || header.name == fields::ATOMIC_ETH.name {
            continue;
        }
        for field in header.fields {
            assert!(keys.insert(field.key), "{} twice", field.key);
        }
    }
}

#[test]
fn every_extended_header_has_the_length_that_the_opcode_table_gives_it() {
    let flags: HeaderSet = fields::EXTENDED.iter().map(|(flag, _)| *flag).collect();
    assert_eq!(flags, HeaderSet::all());
    for (flag, header) in fields::EXTENDED {
        let infos = (0..=255).filter_map(|value| Opcode(value).info());
        for info in infos.filter(|info| info.headers.contains(flag)) {
            let offset = info.offset_of(flag).unwrap();
            let offsets = fields::EXTENDED.iter().filter_map(|(flag, _)| info.offset_of(*flag));
            let end = offsets.filter(|other| *other > offset).min().unwrap_or(info.header_len);
            assert_eq!(header.len_bytes(), end - offset, "{} {}", info.name, header.name);
        }
    }
}

/// The fields that the ICRC omits are those that routers and switches change.
#[test]
fn variant_fields_are_those_that_the_icrc_masks() {
    let keys: Vec<_> = tables()
        .iter()
        .flat_map(|(header, _)| header.fields)
        .filter(|field| field.variant)
        .map(|field| field.key)
        .collect();
    let expected = [
        &["infiniband.lrh.vl"][..],
        &["ip.dsfield.dscp", "ip.dsfield.ecn", "ip.ttl", "ip.checksum"],
        &["ipv6.tclass.dscp", "ipv6.tclass.ecn", "ipv6.flow", "ipv6.hlim"],
        &["infiniband.grh.tclass", "infiniband.grh.flowlabel", "infiniband.grh.hoplmt", "udp.checksum"],
        &["roce.bth.fecn", "roce.bth.becn", "roce.bth.reserved6"],
    ];
    assert_eq!(keys, expected.concat());
    let mut bth = [0; Bth::LEN];
    fields::BTH.mask_variant_fields(&mut bth);
    assert_eq!(bth, [0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0]);
}

/// The result of a view or a parser, in the form of the tables.
enum Read {
    Number(u64),
    Bytes(Vec<u8>),
}

macro_rules! numbers {
    ($($from:ty)*) => {
        $(impl From<$from> for Read {
            fn from(value: $from) -> Self {
                Self::Number(value.into())
            }
        })*
    };
}

numbers! { u8 u16 u32 u64 bool }

impl<const N: usize> From<[u8; N]> for Read {
    fn from(bytes: [u8; N]) -> Self {
        Self::Bytes(bytes.into())
    }
}

/// Compares every present field of a table with the result of the code. A field that only one of the two has
/// is an error, except for reserved bits that the code does not keep.
#[track_caller]
fn compare(header: &Header, bytes: &[u8], read: &[(&str, Read)]) {
    let mut known: BTreeSet<_> = read.iter().map(|(key, _)| *key).collect();
    for field in header.fields {
        let expected = read.iter().find(|(key, _)| *key == field.key);
        let (name, key) = (header.name, field.key);
        match (field.value(bytes), expected) {
            (None, _) => {}
            (Some(Value::Number(found)), Some((_, Read::Number(expected)))) => {
                assert_eq!(found, *expected, "{name} {key}");
            }
            (Some(Value::Bytes(found)), Some((_, Read::Bytes(expected)))) => {
                assert_eq!(found, expected, "{name} {key}");
            }
            (Some(_), None) => assert_eq!(field.name, "reserved", "{name} {key} is not compared"),
            (Some(value), Some(_)) => panic!("{name} {key}: {value:?} is of another kind"),
        }
        known.remove(key);
    }
    assert!(known.is_empty(), "{}: {known:?} are not in the table", header.name);
}

macro_rules! compare {
    ($header:ident, $bytes:expr, $($key:literal: $value:expr,)*) => {
        compare(&fields::$header, $bytes, &[$(($key, Read::from($value))),*])
    };
}

fn mac(address: roce_packet::MacAddr) -> u64 {
    address.0.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Returns one bit of a value.
fn bit(value: u8, index: usize) -> bool {
    value >> index & 1 != 0
}

fn link_headers(bytes: &[u8]) {
    let (view, _) = EthernetView::from_prefix(bytes).unwrap();
    compare! { ETHERNET, bytes,
        "eth.dst": mac(view.destination()),
        "eth.src": mac(view.source()),
        "eth.type": view.ether_type().0,
    }
    let (view, _) = VlanView::from_prefix(bytes).unwrap();
    compare! { VLAN, bytes,
        "vlan.priority": view.tag().pcp,
        "vlan.dei": view.tag().dei,
        "vlan.id": view.tag().vid,
        "vlan.etype": view.ether_type().0,
    }
    let (view, _) = LrhView::from_prefix(bytes).unwrap();
    compare! { LRH, bytes,
        "infiniband.lrh.vl": view.virtual_lane(),
        "infiniband.lrh.lver": view.version(),
        "infiniband.lrh.sl": view.service_level(),
        "infiniband.lrh.lnh": view.next_header(),
        "infiniband.lrh.dlid": view.destination(),
        "infiniband.lrh.pktlen": view.packet_length(),
        "infiniband.lrh.slid": view.source(),
    }
    let frame = |opcode: u16| {
        let ethernet = [&[0; 12][..], &[0x88, 0x08], &opcode.to_be_bytes()].concat();
        [&ethernet[..], &bytes[..58]].concat()
    };
    let pause = frame(0x0001);
    let PauseRequest::All(quanta) = PauseFrame::parse(&pause).unwrap().request else { panic!("not a pause") };
    compare! { PAUSE, &pause[14..], "macc.opcode": 1_u8, "macc.pause_time": quanta, }
    let pfc = frame(0x0101);
    let PauseRequest::PerPriority(times) = PauseFrame::parse(&pfc).unwrap().request else {
        panic!("not PFC")
    };
    let body = &pfc[14..];
    let enabled = body[3];
    let time = |index: usize| u16::from_be_bytes([body[4 + 2 * index], body[5 + 2 * index]]);
    for (index, found) in times.into_iter().enumerate() {
        assert_eq!(found, bit(enabled, index).then_some(time(index)));
    }
    compare! { PFC, body,
        "macc.opcode": 0x0101_u16,
        "macc.cbfc.enbv.c7": times[7].is_some(),
        "macc.cbfc.enbv.c6": times[6].is_some(),
        "macc.cbfc.enbv.c5": times[5].is_some(),
        "macc.cbfc.enbv.c4": times[4].is_some(),
        "macc.cbfc.enbv.c3": times[3].is_some(),
        "macc.cbfc.enbv.c2": times[2].is_some(),
        "macc.cbfc.enbv.c1": times[1].is_some(),
        "macc.cbfc.enbv.c0": times[0].is_some(),
        "macc.cbfc.pause_time.c0": time(0),
        "macc.cbfc.pause_time.c1": time(1),
        "macc.cbfc.pause_time.c2": time(2),
        "macc.cbfc.pause_time.c3": time(3),
        "macc.cbfc.pause_time.c4": time(4),
        "macc.cbfc.pause_time.c5": time(5),
        "macc.cbfc.pause_time.c6": time(6),
        "macc.cbfc.pause_time.c7": time(7),
    }
}

fn network_headers(bytes: &[u8]) {
    let (view, _) = Ipv4View::from_prefix(bytes).unwrap();
    compare! { IPV4, bytes,
        "ip.version": view.version(),
        "ip.hdr_len": (view.header_len() / 4) as u64,
        "ip.dsfield.dscp": view.traffic_class() >> 2,
        "ip.dsfield.ecn": view.traffic_class() & 0b11,
        "ip.len": view.total_length(),
        "ip.id": view.identification(),
        "ip.flags.rb": view.reserved_flag(),
        "ip.flags.df": view.dont_fragment(),
        "ip.flags.mf": view.more_fragments(),
        "ip.frag_offset": (view.fragment_offset() / 8) as u64,
        "ip.ttl": view.ttl(),
        "ip.proto": view.protocol(),
        "ip.checksum": view.checksum(),
        "ip.src": view.source().to_bits(),
        "ip.dst": view.destination().to_bits(),
    }
    let (view, _) = Ipv6View::from_prefix(bytes).unwrap();
    compare! { IPV6, bytes,
        "ipv6.version": view.version(),
        "ipv6.tclass.dscp": view.traffic_class() >> 2,
        "ipv6.tclass.ecn": view.traffic_class() & 0b11,
        "ipv6.flow": view.flow_label(),
        "ipv6.plen": view.payload_length(),
        "ipv6.nxt": view.next_header(),
        "ipv6.hlim": view.hop_limit(),
        "ipv6.src": view.source().octets(),
        "ipv6.dst": view.destination().octets(),
    }
    let (view, _) = GrhView::from_prefix(bytes).unwrap();
    compare! { GRH, bytes,
        "infiniband.grh.ipver": view.version(),
        "infiniband.grh.tclass": view.traffic_class(),
        "infiniband.grh.flowlabel": view.flow_label(),
        "infiniband.grh.paylen": view.payload_length(),
        "infiniband.grh.nxthdr": view.next_header(),
        "infiniband.grh.hoplmt": view.hop_limit(),
        "infiniband.grh.sgid": view.source().0,
        "infiniband.grh.dgid": view.destination().0,
    }
    let (view, _) = UdpView::from_prefix(bytes).unwrap();
    compare! { UDP, bytes,
        "udp.srcport": view.source_port(),
        "udp.dstport": view.destination_port(),
        "udp.length": view.length(),
        "udp.checksum": view.checksum(),
    }
}

fn transport_headers(bytes: &[u8]) {
    let (view, _) = BthView::from_prefix(bytes).unwrap();
    compare! { BTH, bytes,
        "infiniband.bth.opcode": view.opcode().0,
        "infiniband.bth.se": view.solicited(),
        "infiniband.bth.m": view.mig_req(),
        "infiniband.bth.padcnt": view.pad_count(),
        "infiniband.bth.tver": view.version(),
        "infiniband.bth.p_key": view.p_key(),
        "roce.bth.fecn": view.fecn(),
        "roce.bth.becn": view.becn(),
        "roce.bth.reserved6": view.reserved6(),
        "infiniband.bth.destqp": view.dest_qp().get(),
        "infiniband.bth.a": view.ack_req(),
        "infiniband.bth.reserved7": view.reserved7(),
        "infiniband.bth.psn": view.psn().get(),
    }
    let (view, _) = RdethView::from_prefix(bytes).unwrap();
    compare! { RDETH, bytes,
        "roce.rdeth.reserved": view.reserved(),
        "infiniband.rdeth.eecnxt": view.ee_context(),
    }
    let (view, _) = DethView::from_prefix(bytes).unwrap();
    compare! { DETH, bytes,
        "infiniband.deth.q_key": view.q_key(),
        "roce.deth.reserved": view.reserved(),
        "infiniband.deth.srcqp": view.source_qp().get(),
    }
    let (view, _) = XrcethView::from_prefix(bytes).unwrap();
    compare! { XRCETH, bytes, "roce.xrceth.reserved": view.reserved(), "roce.xrceth.srq": view.srq(), }
    let (view, _) = FethView::from_prefix(bytes).unwrap();
    compare! { FETH, bytes,
        "roce.feth.reserved": view.reserved(),
        "roce.feth.selectivity": view.selectivity(),
        "roce.feth.reserved2": view.placement_type() >> 2,
        "roce.feth.persistence": bit(view.placement_type(), 1),
        "roce.feth.global_visibility": bit(view.placement_type(), 0),
    }
    let (view, _) = RethView::from_prefix(bytes).unwrap();
    compare! { RETH, bytes,
        "infiniband.reth.va": view.va(),
        "infiniband.reth.r_key": view.rkey(),
        "infiniband.reth.dmalen": view.dma_len(),
    }
    let (view, _) = AtomicEthView::from_prefix(bytes).unwrap();
    compare! { ATOMIC_ETH, bytes,
        "infiniband.reth.va": view.va(),
        "infiniband.reth.r_key": view.rkey(),
        "infiniband.atomiceth.swapdt": view.swap_or_add(),
        "infiniband.atomiceth.cmpdt": view.compare(),
    }
    let (view, _) = AethView::from_prefix(bytes).unwrap();
    let low = view.syndrome() & 0x1f;
    compare! { AETH, bytes,
        "infiniband.aeth.syndrome": view.syndrome(),
        "infiniband.aeth.syndrome.reserved": bit(view.syndrome(), 7),
        "infiniband.aeth.syndrome.opcode": view.syndrome() >> 5 & 0b11,
        "infiniband.aeth.syndrome.credit_count": low,
        "infiniband.aeth.syndrome.timer": low,
        "infiniband.aeth.syndrome.error_code": low,
        "infiniband.aeth.syndrome.reserved_value": low,
        "infiniband.aeth.msn": view.msn().get(),
    }
    let (view, _) = AtomicAckEthView::from_prefix(bytes).unwrap();
    compare! { ATOMIC_ACK_ETH, bytes, "infiniband.atomicacketh.origremdt": view.original(), }
    let (view, _) = ImmDtView::from_prefix(bytes).unwrap();
    compare! { IMMDT, bytes, "infiniband.immdt": view.data(), }
    let (view, _) = IethView::from_prefix(bytes).unwrap();
    compare! { IETH, bytes, "infiniband.ieth": view.rkey().to_be_bytes(), }
}

fn management_headers(bytes: &[u8]) {
    let (view, _) = MadView::from_prefix(bytes).unwrap();
    compare! { MAD, bytes,
        "infiniband.mad.baseversion": view.base_version(),
        "infiniband.mad.mgmtclass": view.class(),
        "infiniband.mad.classversion": view.class_version(),
        "infiniband.mad.method": view.method(),
        "infiniband.mad.status": view.status(),
        "infiniband.mad.classspecific": view.class_specific(),
        "infiniband.mad.transactionid": view.transaction_id(),
        "infiniband.mad.attributeid": view.attribute_id(),
        "roce.mad.reserved": view.reserved(),
        "infiniband.mad.attributemodifier": view.attribute_modifier(),
    }
    let (view, rest) = IpCmView::from_prefix(bytes).unwrap();
    let private_data: [u8; 56] = *rest.first_chunk().unwrap();
    compare! { IP_CM, bytes,
        "infiniband.cm.req.ip_cm.majv": view.version() >> 4,
        "infiniband.cm.req.ip_cm.minv": view.version() & 0x0f,
        "infiniband.cm.req.ip_cm.ipv": view.ip_version(),
        "infiniband.cm.req.ip_cm.reserved": view.reserved(),
        "infiniband.cm.req.ip_cm.sport": view.source_port(),
        "infiniband.cm.req.ip_cm.sip4": view.source(),
        "infiniband.cm.req.ip_cm.sip6": view.source(),
        "infiniband.cm.req.ip_cm.dip4": view.destination(),
        "infiniband.cm.req.ip_cm.dip6": view.destination(),
        "infiniband.cm.req.ip_cm.private": private_data,
    }
}

/// Returns the parsed management datagram with this content, and the content that it writes again.
fn parse(attribute_id: u16, content: &[u8]) -> (CmMessage, Vec<u8>) {
    let header = MadHeader {
        class: CM_CLASS,
        class_version: CM_CLASS_VERSION,
        method: 3,
        status: 0,
        class_specific: 0,
        transaction_id: 0,
        attribute_id,
        attribute_modifier: 0,
    };
    let mut head = [0; MadHeader::LEN];
    header.emit(&mut head);
    let mad = CmMad::parse(&[&head, content].concat()).unwrap();
    let mut again = [0; MAD_LEN];
    mad.emit(&mut again);
    (mad.message, again[MadHeader::LEN..].to_vec())
}

fn messages(bytes: &[u8]) {
    for attribute_id in 0x10..=0x18 {
        let (message, again) = parse(attribute_id, bytes);
        let header = fields::cm_message(attribute_id).unwrap();
        assert_eq!(header.name, format!("CM {}", message.name()));
        // Reserved bits are dropped; all other bits are kept.
        for field in header.fields {
            match field.name {
                "reserved" => assert_eq!(field.value(&again), Some(Value::Number(0)), "{}", field.key),
                // The reserved bits of the path in it are dropped.
                "alternate path" => {}
                _ => assert_eq!(field.value(&again), field.value(bytes), "{}", field.key),
            }
        }
        compare_message(&message, bytes);
    }
}

fn compare_message(message: &CmMessage, bytes: &[u8]) {
    match message {
        CmMessage::Req(req) => compare_request(req, bytes),
        CmMessage::Mra(mra) => compare! { MRA, bytes,
            "roce.cm.mra.localcommid": mra.local_comm_id.0,
            "roce.cm.mra.remotecommid": mra.remote_comm_id.0,
            "roce.cm.mra.message": mra.received.bits(),
            "roce.cm.mra.servicetout": mra.service_timeout.code(),
            "roce.cm.mra.private": mra.private_data,
        },
        CmMessage::Rej(rej) => compare! { REJ, bytes,
            "infiniband.cm.rej.localcommid": rej.local_comm_id.0,
            "infiniband.cm.rej.remotecommid": rej.remote_comm_id.0,
            "infiniband.cm.rej.msgrej": rej.rejected.bits(),
            "infiniband.cm.rej.rejinfolen": rej.info_length,
            "infiniband.cm.rej.reason": rej.reason.0,
            "infiniband.cm.rej.ari": rej.info,
            "infiniband.cm.rej.private": rej.private_data,
        },
        CmMessage::Rep(rep) => compare! { REP, bytes,
            "infiniband.cm.rep": rep.local_comm_id.0,
            "infiniband.cm.rep.remotecommid": rep.remote_comm_id.0,
            "infiniband.cm.rep.localqkey": rep.local_q_key,
            "infiniband.cm.rep.localqpn": rep.local_qpn.get(),
            "roce.cm.rep.vendorid.high": rep.vendor_id >> 16,
            "infiniband.cm.rep.localeecn": rep.local_eecn,
            "roce.cm.rep.vendorid.middle": rep.vendor_id >> 8 & 0xff,
            "infiniband.cm.rep.startpsn": rep.starting_psn.get(),
            "roce.cm.rep.vendorid.low": rep.vendor_id & 0xff,
            "infiniband.cm.rep.respres": rep.responder_resources,
            "infiniband.cm.rep.initdepth": rep.initiator_depth,
            "infiniband.cm.rep.tgtackdelay": rep.target_ack_delay.code(),
            "infiniband.cm.rep.failoveracc": rep.failover_accepted,
            "infiniband.cm.rep.e2eflowctrl": rep.flow_control,
            "infiniband.cm.rep.rnrretrcount": rep.rnr_retry_count,
            "infiniband.cm.rep.srq": rep.srq,
            "infiniband.cm.rep.localcaguid": rep.local_ca_guid,
            "infiniband.cm.rep.private": rep.private_data,
        },
        CmMessage::Rtu(rtu) => compare! { RTU, bytes,
            "infiniband.cm.rtu.localcommid": rtu.local_comm_id.0,
            "infiniband.cm.rtu.remotecommid": rtu.remote_comm_id.0,
            "infiniband.cm.rtu.private": rtu.private_data,
        },
        CmMessage::Dreq(dreq) => compare! { DREQ, bytes,
            "infiniband.cm.dreq.localcommid": dreq.local_comm_id.0,
            "infiniband.cm.dreq.remotecommid": dreq.remote_comm_id.0,
            "infiniband.cm.req.remoteqpneecn": dreq.remote_qpn.get(),
            "infiniband.cm.dreq.private": dreq.private_data,
        },
        CmMessage::Drep(drep) => compare! { DREP, bytes,
            "infiniband.cm.drsp.localcommid": drep.local_comm_id.0,
            "infiniband.cm.drsp.remotecommid": drep.remote_comm_id.0,
            "infiniband.cm.drsp.private": drep.private_data,
        },
        CmMessage::SidrReq(req) => compare! { SIDR_REQ, bytes,
            "roce.cm.sidr_req.requestid": req.request_id.0,
            "roce.cm.sidr_req.pkey": req.p_key,
            "roce.cm.sidr_req.serviceid": req.service_id.0,
            "roce.cm.sidr_req.private": req.private_data,
        },
        CmMessage::SidrRep(rep) => compare! { SIDR_REP, bytes,
            "roce.cm.sidr_rep.requestid": rep.request_id.0,
            "roce.cm.sidr_rep.status": rep.status.0,
            "roce.cm.sidr_rep.infolen": rep.info_length,
            "roce.cm.sidr_rep.qpn": rep.qpn.get(),
            "roce.cm.sidr_rep.serviceid": rep.service_id.0,
            "roce.cm.sidr_rep.qkey": rep.q_key,
            "roce.cm.sidr_rep.info": rep.info,
            "roce.cm.sidr_rep.private": rep.private_data,
        },
    }
}

fn compare_request(req: &roce_packet::mad::CmReq, bytes: &[u8]) {
    let CmPath { local_lid, remote_lid, local_gid, remote_gid, flow_label, packet_rate, .. } = req.primary;
    // The table shows the alternate path as a whole. A request with it as its primary path parses it.
    let alternate: [u8; 44] = *bytes[96..].first_chunk().unwrap();
    let moved = [&bytes[..52], &alternate, &bytes[96..]].concat();
    let (CmMessage::Req(other), _) = parse(0x10, &moved) else { panic!("a REQ") };
    assert_eq!(other.primary, req.alternate);
    compare! { REQ, bytes,
        "infiniband.cm.req": req.local_comm_id.0,
        "roce.cm.req.vendorid": req.vendor_id,
        "infiniband.cm.req.serviceid": req.service_id.0,
        "infiniband.cm.req.localcaguid": req.local_ca_guid,
        "infiniband.cm.req.localqkey": req.local_q_key,
        "infiniband.cm.req.localqpn": req.local_qpn.get(),
        "infiniband.cm.req.responderres": req.responder_resources,
        "infiniband.cm.req.localeecn": req.local_eecn,
        "infiniband.cm.req.initdepth": req.initiator_depth,
        "infiniband.cm.req.remoteeecn": req.remote_eecn,
        "infiniband.cm.req.remoteresptout": req.remote_cm_response_timeout.code(),
        "infiniband.cm.req.transpsvctype": req.transport.bits(),
        "infiniband.cm.req.e2eflowctrl": req.flow_control,
        "infiniband.cm.req.startpsn": req.starting_psn.get(),
        "infiniband.cm.req.localresptout": req.local_cm_response_timeout.code(),
        "infiniband.cm.req.retrcount": req.retry_count,
        "infiniband.cm.req.pkey": req.p_key,
        "infiniband.cm.req.pppmtu": req.path_mtu_code,
        "infiniband.cm.req.rdcexist": req.rdc_exists,
        "infiniband.cm.req.rnrretrcount": req.rnr_retry_count,
        "infiniband.cm.req.maxcmretr": req.max_cm_retries,
        "infiniband.cm.req.srq": req.srq,
        "infiniband.cm.req.ext_transport": req.extended_transport,
        "infiniband.cm.req.prim_locallid": local_lid,
        "infiniband.cm.req.prim_remotelid": remote_lid,
        "infiniband.cm.req.prim_localgid_ipv4": local_gid.0,
        "infiniband.cm.req.prim_localgid": local_gid.0,
        "infiniband.cm.req.prim_remotegid_ipv4": remote_gid.0,
        "infiniband.cm.req.prim_remotegid": remote_gid.0,
        "infiniband.cm.req.prim_flowlabel": flow_label,
        "infiniband.cm.req.prim_pktrate": packet_rate,
        "infiniband.cm.req.prim_tfcclass": req.primary.traffic_class,
        "infiniband.cm.req.prim_hoplim": req.primary.hop_limit,
        "infiniband.cm.req.prim_sl": req.primary.sl,
        "infiniband.cm.req.prim_subnetlocal": req.primary.subnet_local,
        "infiniband.cm.req.prim_localacktout": req.primary.local_ack_timeout.code(),
        "roce.cm.req.alternate_path": alternate,
        "infiniband.cm.req.private": req.private_data,
    }
}

#[test]
fn tables_read_samples_as_views_and_parsers_do() {
    for bytes in samples() {
        read_all(&bytes);
    }
}

fn read_all(bytes: &[u8]) {
    let bytes = &bytes[..MAD_LEN - MadHeader::LEN];
    link_headers(bytes);
    network_headers(bytes);
    transport_headers(bytes);
    management_headers(bytes);
    messages(bytes);
}

proptest! {
    #[test]
    fn tables_read_what_views_and_parsers_read(bytes in prop::collection::vec(any::<u8>(), MAD_LEN)) {
        read_all(&bytes);
    }
}
