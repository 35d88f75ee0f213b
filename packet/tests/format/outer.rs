//! The decoder of outer headers, compared with hand-made encapsulations and with [`Frame::parse`].

use proptest::prelude::*;
use roce_packet::fields::{self, Header};
use roce_packet::outer::{Cut, Foreign, Link, MAX_LAYERS, Outer};
use roce_packet::{Bth, Frame, Psn, Qpn, ROCE_UDP_PORT};
use roce_testing::encapsulated::{self, Encapsulated, End};

fn link(case: &Encapsulated) -> Link {
    match case.link_type {
        1 => Link::Ethernet,
        101 => Link::Ip,
        113 => Link::LinuxSll,
        276 => Link::LinuxSll2,
        247 => Link::InfiniBand,
        197 => Link::Erf,
        other => panic!("link type {other}"),
    }
}

fn decode(case: &Encapsulated) -> Outer<'_> {
    Outer::decode(&case.bytes, link(case), case.wire_len, ROCE_UDP_PORT)
}

/// Checks the invariants for any bytes.
fn check_any(bytes: &[u8], link: Link, wire_len: usize) {
    let outer = Outer::decode(bytes, link, wire_len, ROCE_UDP_PORT);
    assert!(outer.layers().len() <= MAX_LAYERS);
    assert_eq!(outer.layers().len(), outer.tunnel_layers().len() + outer.inner_layers().len());
    let mut end = outer.link_end;
    for layer in outer.layers() {
        assert_eq!(layer.offset, end, "headers follow each other");
        assert!(layer.len > 0 && layer.offset + layer.len <= bytes.len());
        assert_eq!(outer.layer_bytes(layer).len(), layer.len);
        end += layer.len;
    }
    if let Some(transport) = outer.transport {
        assert_eq!(outer.transport_offset, end);
        assert!(bytes[end..].starts_with(transport));
        assert_eq!(outer.cut.is_some(), transport.len() < outer.transport_len);
        assert!(outer.foreign.is_none());
    }
    let icrc = outer.check_icrc();
    assert!(icrc.is_none() || (outer.transport.is_some() && outer.cut.is_none()));
    let _ = (outer.is_certainly_roce(), outer.is_answer_of_service(), outer.guess(), outer.frame_headers());
    let _ = (outer.addresses(), outer.traffic_class(), outer.envelope());
}

#[test]
fn every_encapsulation_leads_to_the_same_datagram() {
    for case in encapsulated::whole() {
        let (name, outer) = (case.name, decode(&case));
        assert_eq!((outer.error, outer.cut), (None, None), "{name}");
        assert!(outer.foreign.is_none(), "{name}: {:?}", outer.foreign);
        assert_eq!(outer.transport_offset, case.bth, "{name}");
        assert_eq!(outer.transport, Some(case.datagram()), "{name}");
        assert_eq!(!outer.tunnel_layers().is_empty(), case.is_in_tunnel, "{name}");
        assert!(outer.check_icrc().unwrap().check.is_good(), "{name}");
        assert!(outer.is_certainly_roce(), "{name}");
        let (bth, _) = Bth::parse(outer.transport.unwrap()).unwrap();
        assert_eq!(
            (bth.dest_qp, bth.psn),
            (Qpn::new(encapsulated::QPN), Psn::new(encapsulated::PSN)),
            "{name}"
        );
        let damaged = case.damaged();
        assert!(!decode(&damaged).check_icrc().unwrap().check.is_good(), "{name}");
        assert_eq!(outer.is_native_infiniband(), case.is_native(), "{name}");
        assert_eq!(outer.frame_headers().is_none(), case.is_native(), "{name}");
    }
}

#[test]
fn a_missing_end_is_no_error_wherever_it_begins() {
    for case in encapsulated::cut() {
        let expected = match case.end {
            End::Here => None,
            End::Capture => Some(Cut::Capture),
            End::Mirror => Some(Cut::Mirror),
            End::Fragment => Some(Cut::Fragment),
        };
        let outer = decode(&case);
        assert_eq!((outer.cut, outer.error), (expected, None), "{}", case.name);
        assert!(outer.transport.is_some() && outer.check_icrc().is_none(), "{}", case.name);
    }
    for case in encapsulated::whole() {
        for len in 0..case.bth + case.datagram().len() {
            for (wire_len, expected) in [(case.wire_len, Cut::Capture), (len, Cut::Mirror)] {
                let outer = Outer::decode(&case.bytes[..len], link(&case), wire_len, ROCE_UDP_PORT);
                assert_eq!(outer.error, None, "{} at {len}", case.name);
                assert_eq!(outer.cut, Some(expected), "{} at {len}", case.name);
                assert!(!outer.check_icrc().is_some_and(|icrc| icrc.check.is_good()));
            }
        }
    }
}

/// An LRH alone proves that a packet is native InfiniBand. Contradictions in it are errors.
#[test]
fn an_lrh_is_enough_and_is_checked() {
    let cases = encapsulated::whole();
    let native = |name: &str| cases.iter().find(|case| case.name == name).unwrap().bytes.clone();
    let (local, global) = (native("InfiniBand"), native("InfiniBand with a GRH"));
    let decode = |bytes: &[u8]| {
        let outer = Outer::decode(bytes, Link::InfiniBand, bytes.len(), ROCE_UDP_PORT);
        (outer.error.map(|error| error.to_string()), outer.foreign.is_some(), outer.transport.is_some())
    };
    for packet in [&local, &global] {
        for kept in 8..packet.len() {
            let outer = Outer::decode(&packet[..kept], Link::InfiniBand, packet.len(), ROCE_UDP_PORT);
            assert!(outer.foreign.is_none() && outer.transport.is_some(), "{kept}");
            assert_eq!(outer.lrh.unwrap().source(), 9);
        }
    }
    let changed = |packet: &[u8], at: usize, value: u8| {
        let mut packet = packet.to_vec();
        packet[at] = value;
        decode(&packet)
    };
    let error = |found: (Option<String>, bool, bool)| found.0.unwrap();
    assert_eq!(error(changed(&local, 0, 0x01)), "LRH at byte 0: wrong version, 0 expected, 1 found");
    assert_eq!(error(changed(&local, 5, 1)), "LRH at byte 4: inconsistent length, 8 bytes needed, 4 found");
    assert_eq!(
        error(changed(&global, 8 + 5, 47)),
        "GRH at byte 12: inconsistent length, 48 bytes needed, 47 found"
    );
    // Raw packets have no BTH.
    for next in [0, 1] {
        assert_eq!(changed(&local, 1, next), (None, true, false));
    }
    // The virtual lane may change on the path, but nothing else in the LRH.
    let mut lane = local.clone();
    lane[0] = 0xf0;
    let good = |bytes: &[u8]| {
        Outer::decode(bytes, Link::InfiniBand, bytes.len(), ROCE_UDP_PORT)
            .check_icrc()
            .unwrap()
            .check
            .is_good()
    };
    assert!(good(&lane));
    lane[7] ^= 1;
    assert!(!good(&lane), "the source LID is covered");
}

#[test]
fn other_packets_have_a_reason() {
    for (name, frame, _) in encapsulated::foreign() {
        let outer = Outer::decode(&frame, Link::Ethernet, frame.len(), ROCE_UDP_PORT);
        assert!(outer.foreign.is_some() || outer.is_answer_of_service(), "{name}");
        assert!(!outer.is_certainly_roce(), "{name}");
        if name == "forty headers" {
            assert!(matches!(outer.foreign, Some(Foreign::TooDeep)), "{:?}", outer.foreign);
        }
    }
}

/// Regression: the header checksum, which the ICRC does not cover, hid a wrong length, and two flags were not
/// covered. The ICRC of such packets counted as correct.
#[test]
fn every_covered_bit_before_the_bth_breaks_the_icrc() {
    let mut flipped = 0;
    for case in encapsulated::whole() {
        let outer = decode(&case);
        let (start, end) = (outer.network_offset, outer.transport_offset);
        if outer.udp.is_none() || outer.extensions_len > 0 {
            continue;
        }
        let mut masked = vec![0; case.bytes.len()];
        for layer in outer.layers().iter().filter(|layer| layer.offset >= start) {
            layer.header.mask_variant_fields(&mut masked[layer.offset..layer.offset + layer.len]);
        }
        for bit in start * 8..end * 8 {
            let mut bytes = case.bytes.clone();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            let changed = Outer::decode(&bytes, link(&case), case.wire_len, ROCE_UDP_PORT);
            let is_good = changed.check_icrc().is_some_and(|icrc| icrc.check.is_good());
            let is_masked = masked[bit / 8] & 0x80 >> (bit % 8) != 0;
            assert_eq!(is_good, is_masked, "{}: bit {bit}", case.name);
            flipped += 1;
        }
    }
    assert!(flipped > 28 * 8 * 10, "{flipped} bits");
}

/// The strict parser for receivers and this decoder agree on every frame that both can parse.
#[test]
fn it_agrees_with_the_parser_of_receivers() {
    let mut agreed = 0;
    for case in encapsulated::whole().into_iter().filter(|case| case.link_type == 1) {
        let Ok(frame) = Frame::parse(&case.bytes) else { continue };
        let outer = decode(&case);
        assert_eq!(outer.transport, Some(frame.transport), "{}", case.name);
        assert_eq!(outer.envelope(), Some(frame.envelope()), "{}", case.name);
        assert_eq!(outer.frame_headers(), Some(frame.headers), "{}", case.name);
        agreed += 1;
    }
    assert_eq!(agreed, 4, "IPv4, IPv6, RoCE v1 and one tag");
}

/// The tables of headers that occur only in tunnels name every bit once.
#[test]
fn tables_of_tunnel_headers_name_every_bit_once() {
    let tables: [(&Header, usize); 17] = [
        (&fields::SERVICE_VLAN, 4),
        (&fields::MPLS, 4),
        (&fields::CONTROL_WORD, 4),
        (&fields::GRE, 4),
        (&fields::GRE_CHECKSUM, 4),
        (&fields::GRE_KEY, 4),
        (&fields::GRE_SEQUENCE, 4),
        (&fields::ERSPAN_II, 8),
        (&fields::ERSPAN_III, 12),
        (&fields::VXLAN, 8),
        (&fields::VXLAN_GPE, 8),
        (&fields::GENEVE, 8),
        (&fields::HOP_BY_HOP, 2),
        (&fields::ROUTING, 2),
        (&fields::DESTINATION_OPTIONS, 2),
        (&fields::FRAGMENT, 8),
        (&fields::AUTHENTICATION, 12),
    ];
    for (header, len) in tables {
        assert_eq!(header.len_bytes(), len, "{}", header.name);
        let mut named = vec![0; len * 8];
        for field in header.fields {
            named[field.start..field.start + field.width].iter_mut().for_each(|count| *count += 1);
            assert!(field.meaning.ends_with('.'), "{} {}", header.name, field.name);
        }
        assert!(named.iter().all(|count| *count == 1), "{}: {named:?}", header.name);
        assert!(header.purpose.ends_with('.') && !header.rule.is_empty(), "{}", header.name);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        more in 0_usize..100,
    ) {
        let cooked = [Link::LinuxSll, Link::LinuxSll2];
        for link in [Link::Ethernet, Link::Ip, Link::AddressFamily, Link::InfiniBand, Link::Erf].into_iter().chain(cooked) {
            check_any(&bytes, link, bytes.len() + more);
        }
    }

    #[test]
    fn damaged_encapsulations_are_decoded_without_panic(
        index: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len: prop::sample::Index,
    ) {
        let mut cases = encapsulated::whole();
        let mut case = cases.swap_remove(index.index(cases.len()));
        let link = link(&case);
        for (at, value) in changes {
            let at = at.index(case.bytes.len());
            case.bytes[at] = value;
        }
        check_any(&case.bytes, link, case.bytes.len());
        let len = len.index(case.bytes.len());
        check_any(&case.bytes[..len], link, case.bytes.len());
        check_any(&case.bytes[..len], link, len);
    }
}
