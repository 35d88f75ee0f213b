use std::collections::BTreeSet;

use proptest::prelude::*;
use roce_packet::{
    AethView, AtomicAckEthView, AtomicEthView, BthView, DethView, EthernetView, FethView, GrhView, Ipv4View,
    Ipv6View, RdethView, RethView, UdpView, VlanView, XrcethView,
};

use super::*;

fn all_headers() -> Vec<&'static Header> {
    let outer = [&ETHERNET, &VLAN, &PAUSE, &PFC, &IPV4, &IPV6, &GRH, &UDP, &BTH, &CNP, &ICRC, &MAD, &IP_CM];
    let extended = EXTENDED.iter().map(|(_, header)| *header);
    let messages = (0x10..=0x1a).filter_map(cm_message);
    outer.into_iter().chain(extended).chain(messages).collect()
}

#[test]
fn the_lists_are_complete_and_in_order() {
    for header in all_headers() {
        let mut end = 0;
        let is_message = header.name.contains("CM");
        for field in header.fields {
            let name = format!("{} {}", header.name, field.name);
            assert!(field.width > 0 && !field.name.is_empty(), "{name}");
            assert!(field.meaning.ends_with(['.', ':']), "{name}: {}", field.meaning);
            assert!(field.width <= 64 || (field.start % 8 == 0 && field.width % 8 == 0), "{name}");
            // Messages leave reserved bytes out; a field with a condition shares its bits with another, and
            // the parts of a syndrome come after the whole.
            let shares = field.when.is_some() || field.key.starts_with("infiniband.aeth.syndrome.");
            if !is_message && !shares {
                assert_eq!(field.start, end, "{name} does not begin where the field before it ends");
            }
            if !shares {
                assert!(field.start >= end, "{name}");
            }
            end = end.max(field.start + field.width);
        }
        assert_eq!(end % 8, 0, "{}", header.name);
    }
}

#[test]
fn no_two_fields_of_a_packet_have_the_same_key() {
    let atomic = EXTENDED.iter().find(|(_, header)| header.name == "AtomicETH").unwrap().1;
    let mut keys = BTreeSet::new();
    for header in all_headers() {
        // Never in one packet: both kinds of pause frame, and RETH with AtomicETH.
        if header.name == PFC.name || std::ptr::eq(header, atomic) {
            continue;
        }
        for field in header.fields {
            assert!(keys.insert(field.key), "{} twice", field.key);
        }
    }
}

#[test]
fn every_header_has_the_length_that_the_packet_crate_gives_it() {
    for (flag, header) in EXTENDED {
        let opcode = (0..=255).filter_map(|value| roce_packet::Opcode(value).info());
        for info in opcode.filter(|info| info.headers.contains(flag)) {
            let behind = EXTENDED
                .iter()
                .filter_map(|(flag, _)| info.offset_of(*flag))
                .filter(|offset| *offset > info.offset_of(flag).unwrap())
                .min()
                .unwrap_or(info.header_len);
            assert_eq!(
                header.len_bytes(),
                behind - info.offset_of(flag).unwrap(),
                "{} {}",
                info.name,
                header.name
            );
        }
    }
}

/// The value of a field in a header that has it.
fn value(header: &'static Header, key: &str, bytes: &[u8]) -> u64 {
    let field = header.fields.iter().find(|field| field.key == key).unwrap();
    match field.value(bytes).unwrap() {
        Value::Number(number) => number,
        Value::Bytes(bytes) => bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)),
    }
}

fn extended(name: &str) -> &'static Header {
    EXTENDED.iter().find(|(_, header)| header.name == name).unwrap().1
}

fn mac(address: MacAddr) -> u64 {
    address.0.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

proptest! {
    #[test]
    fn outer_fields_are_what_the_packet_crate_reads(bytes in prop::array::uniform32(any::<u8>()), more: [u8; 8]) {
        let bytes = &[&bytes[..], &more[..]].concat()[..];
        let (view, _) = EthernetView::from_prefix(bytes).unwrap();
        let get = |key| value(&ETHERNET, key, bytes);
        prop_assert_eq!(get("eth.dst"), mac(view.destination()));
        prop_assert_eq!(get("eth.src"), mac(view.source()));
        prop_assert_eq!(get("eth.type"), u64::from(view.ether_type().0));

        let (view, _) = VlanView::from_prefix(bytes).unwrap();
        let get = |key| value(&VLAN, key, bytes);
        prop_assert_eq!(get("vlan.priority"), u64::from(view.tag().pcp));
        prop_assert_eq!(get("vlan.dei"), u64::from(view.tag().dei));
        prop_assert_eq!(get("vlan.id"), u64::from(view.tag().vid));
        prop_assert_eq!(get("vlan.etype"), u64::from(view.ether_type().0));

        let (view, _) = Ipv4View::from_prefix(bytes).unwrap();
        let get = |key| value(&IPV4, key, bytes);
        prop_assert_eq!(get("ip.version"), u64::from(view.version()));

        prop_assert_eq!(get("ip.hdr_len") * 4, view.header_len() as u64);
        prop_assert_eq!(get("ip.dsfield.dscp") << 2 | get("ip.dsfield.ecn"), u64::from(view.traffic_class()));
        prop_assert_eq!(get("ip.len"), u64::from(view.total_length()));
        prop_assert_eq!(get("ip.frag_offset") * 8, view.fragment_offset() as u64);
        prop_assert_eq!(get("ip.proto"), u64::from(view.protocol()));
        prop_assert_eq!(get("ip.checksum"), u64::from(view.checksum()));
        prop_assert_eq!(get("ip.src"), u64::from(view.source().to_bits()));
        prop_assert_eq!(get("ip.dst"), u64::from(view.destination().to_bits()));

        let (view, _) = Ipv6View::from_prefix(bytes).unwrap();
        let get = |key| value(&IPV6, key, bytes);
        prop_assert_eq!(get("ipv6.tclass.dscp") << 2 | get("ipv6.tclass.ecn"), u64::from(view.traffic_class()));
        prop_assert_eq!(get("ipv6.flow"), u64::from(view.flow_label()));
        prop_assert_eq!(get("ipv6.plen"), u64::from(view.payload_length()));
        prop_assert_eq!(get("ipv6.nxt"), u64::from(view.next_header()));

        let (view, _) = GrhView::from_prefix(bytes).unwrap();
        let get = |key| value(&GRH, key, bytes);
        prop_assert_eq!(get("infiniband.grh.ipver"), u64::from(view.version()));
        prop_assert_eq!(get("infiniband.grh.tclass"), u64::from(view.traffic_class()));
        prop_assert_eq!(get("infiniband.grh.flowlabel"), u64::from(view.flow_label()));
        prop_assert_eq!(get("infiniband.grh.paylen"), u64::from(view.payload_length()));
        prop_assert_eq!(get("infiniband.grh.nxthdr"), u64::from(view.next_header()));
        prop_assert_eq!(get("infiniband.grh.hoplmt"), u64::from(view.hop_limit()));

        let (view, _) = UdpView::from_prefix(bytes).unwrap();
        let get = |key| value(&UDP, key, bytes);
        prop_assert_eq!(get("udp.srcport"), u64::from(view.source_port()));
        prop_assert_eq!(get("udp.dstport"), u64::from(view.destination_port()));
        prop_assert_eq!(get("udp.length"), u64::from(view.length()));
        prop_assert_eq!(get("udp.checksum"), u64::from(view.checksum()));
    }

    #[test]
    fn transport_fields_are_what_the_packet_crate_reads(bytes in prop::array::uniform32(any::<u8>())) {
        let bytes = &bytes[..];
        let (view, _) = BthView::from_prefix(bytes).unwrap();
        let get = |key| value(&BTH, key, bytes);
        prop_assert_eq!(get("infiniband.bth.opcode"), u64::from(view.opcode().0));
        prop_assert_eq!(get("infiniband.bth.se"), u64::from(view.solicited()));
        prop_assert_eq!(get("infiniband.bth.m"), u64::from(view.mig_req()));
        prop_assert_eq!(get("infiniband.bth.padcnt"), u64::from(view.pad_count()));
        prop_assert_eq!(get("infiniband.bth.tver"), u64::from(view.version()));
        prop_assert_eq!(get("infiniband.bth.p_key"), u64::from(view.p_key()));
        prop_assert_eq!(get("roce.bth.fecn"), u64::from(view.fecn()));
        prop_assert_eq!(get("roce.bth.becn"), u64::from(view.becn()));
        prop_assert_eq!(get("roce.bth.reserved6"), u64::from(view.reserved6()));
        prop_assert_eq!(get("infiniband.bth.destqp"), u64::from(view.dest_qp().get()));
        prop_assert_eq!(get("infiniband.bth.a"), u64::from(view.ack_req()));
        prop_assert_eq!(get("infiniband.bth.reserved7"), u64::from(view.reserved7()));
        prop_assert_eq!(get("infiniband.bth.psn"), u64::from(view.psn().get()));

        let (view, _) = RdethView::from_prefix(bytes).unwrap();
        prop_assert_eq!(value(extended("RDETH"), "infiniband.rdeth.eecnxt", bytes), u64::from(view.ee_context()));
        let (view, _) = DethView::from_prefix(bytes).unwrap();
        prop_assert_eq!(value(extended("DETH"), "infiniband.deth.q_key", bytes), u64::from(view.q_key()));
        prop_assert_eq!(value(extended("DETH"), "infiniband.deth.srcqp", bytes), u64::from(view.source_qp().get()));
        let (view, _) = XrcethView::from_prefix(bytes).unwrap();
        prop_assert_eq!(value(extended("XRCETH"), "roce.xrceth.srq", bytes), u64::from(view.srq()));
        let (view, _) = FethView::from_prefix(bytes).unwrap();
        let get = |key| value(extended("FETH"), key, bytes);
        prop_assert_eq!(get("roce.feth.selectivity"), u64::from(view.selectivity()));
        let placement = get("roce.feth.persistence") << 1 | get("roce.feth.global_visibility");
        prop_assert_eq!(get("roce.feth.reserved2") << 2 | placement, u64::from(view.placement_type()));
        let (view, _) = RethView::from_prefix(bytes).unwrap();
        let get = |key| value(extended("RETH"), key, bytes);
        prop_assert_eq!(get("infiniband.reth.va"), view.va());
        prop_assert_eq!(get("infiniband.reth.r_key"), u64::from(view.rkey()));
        prop_assert_eq!(get("infiniband.reth.dmalen"), u64::from(view.dma_len()));
        let (view, _) = AtomicEthView::from_prefix(bytes).unwrap();
        let get = |key| value(extended("AtomicETH"), key, bytes);
        prop_assert_eq!(get("infiniband.reth.va"), view.va());
        prop_assert_eq!(get("infiniband.atomiceth.swapdt"), view.swap_or_add());
        prop_assert_eq!(get("infiniband.atomiceth.cmpdt"), view.compare());
        let (view, _) = AethView::from_prefix(bytes).unwrap();
        prop_assert_eq!(value(extended("AETH"), "infiniband.aeth.syndrome", bytes), u64::from(view.syndrome()));
        prop_assert_eq!(value(extended("AETH"), "infiniband.aeth.msn", bytes), u64::from(view.msn().get()));
        let (view, _) = AtomicAckEthView::from_prefix(bytes).unwrap();
        let original = value(extended("AtomicAckETH"), "infiniband.atomicacketh.origremdt", bytes);
        prop_assert_eq!(original, view.original());
    }

    #[test]
    fn any_bytes_can_be_shown(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for field in all_headers().iter().flat_map(|header| header.fields) {
            field.bit_pattern(&bytes);
            if let Some(value) = field.value(&bytes) {
                field.text(&value);
                field.note_text(&value);
            }
        }
    }
}

#[test]
fn bits_are_drawn_where_they_are() {
    let field = |key| BTH.fields.iter().find(|field| field.key == key).unwrap();
    let bth = [0x04, 0x7f, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0];
    assert_eq!(field("infiniband.bth.m").bit_pattern(&bth).unwrap(), ".1.. ....");
    assert_eq!(field("infiniband.bth.padcnt").bit_pattern(&bth).unwrap(), "..11 ....");
    assert_eq!(field("infiniband.bth.psn").bit_pattern(&bth), None);
    assert_eq!(VLAN.fields[2].bit_pattern(&[0x0f, 0x01]).unwrap(), "bits 4-15");
}
