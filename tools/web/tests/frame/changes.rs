//! Changes of fields and bits.

use std::collections::BTreeSet;

use roce_analysis::walk::{Framed, Walk};
use roce_packet::fields::{Field, Show};
use roce_web::frame;
use serde_json::{Value, json};

use super::{
    build, bytes, document, example, hex, keys_in, opcodes, over_ipv6, roce_v1, set, set_and_repair, state,
    tagged,
};

/// Returns two values of a field as text, in the form in which documents show them.
fn values(field: &Field) -> [String; 2] {
    let width = field.width;
    let len = field.byte_range().len();
    let numbers = [0xa5a5_a5a5_a5a5_a5a5_u64, 0x5a5a_5a5a_5a5a_5a5a].map(|bits| bits >> (64 - width.min(64)));
    match field.show {
        Show::Flag => ["1".to_owned(), "0".to_owned()],
        Show::Decimal => numbers.map(|number| number.to_string()),
        Show::Hex => numbers.map(|number| format!("0x{number:0digits$x}", digits = width.div_ceil(4))),
        Show::Words => ["24".to_owned(), "60".to_owned()],
        Show::Mac => ["02:aa:bb:cc:dd:ee".to_owned(), "ff:ff:ff:ff:ff:ff".to_owned()],
        Show::Ipv4 => ["10.1.2.3".to_owned(), "192.0.2.77".to_owned()],
        Show::Ipv6 => ["2001:db8::5".to_owned(), "fe80::1".to_owned()],
        Show::Bytes => ["a5".repeat(len), "5a".repeat(len)],
    }
}

/// Returns the text of the first field with this key, and the name of its header.
fn shown(document: &Value, key: &str) -> Option<(String, String)> {
    document["explain"]["headers"].as_array().unwrap().iter().find_map(|header| {
        let field = header["fields"].as_array().unwrap().iter().find(|field| field["key"] == key)?;
        Some((field["text"].as_str().unwrap().to_owned(), header["name"].as_str().unwrap().to_owned()))
    })
}

/// Returns a frame to queue pair 1 with a message of connection management.
fn management(attribute: u8) -> String {
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = attribute;
    build(&json!({ "opcode": "UD_SEND_ONLY", "qp": 1, "payload": hex(&mad) }))
}

fn frames() -> Vec<String> {
    let mut frames: Vec<_> = opcodes().map(|opcode| build(&json!({ "opcode": opcode.0 }))).collect();
    frames.extend((0x10..=0x1a).map(management));
    frames.extend([over_ipv6(), roce_v1(), tagged(&example("ACK")), example("CM REQ")]);
    let pause = "0180c2000001020000000001880800010000";
    let pfc = format!("0180c200000102000000000188080101{}", "00".repeat(18));
    frames.extend([format!("{pause:0<120}"), format!("{pfc:0<120}")]);
    frames
}

#[test]
fn every_field_of_every_header_shows_the_value_that_was_set() {
    let mut headers = BTreeSet::new();
    for hex in frames() {
        let bytes = bytes(&hex);
        let walk = Walk::new(Framed::ethernet(&bytes), 4791);
        let mut seen = BTreeSet::new();
        for part in &walk.parts {
            for field in part.header.fields {
                if field.value(walk.part_bytes(part)).is_none() || !seen.insert(field.key) {
                    continue;
                }
                headers.insert(part.header.name);
                for text in values(field) {
                    let changed = document(&set(&hex, field.key, &text));
                    let expected = (text, part.header.name.to_owned());
                    // The header of a control frame depends on its opcode.
                    let found = shown(&changed, field.key);
                    let found = found.map(|(text, name)| (text, name.replace("pause", part.header.name)));
                    assert_eq!(found, Some(expected), "{} of {hex}", field.key);
                }
            }
        }
    }
    let expected = [
        "AETH",
        "AtomicAckETH",
        "AtomicETH",
        "BTH",
        "CM APR",
        "CM DREP",
        "CM DREQ",
        "CM LAP",
        "CM MRA",
        "CM REJ",
        "CM REP",
        "CM REQ",
        "CM RTU",
        "CM SIDR_REP",
        "CM SIDR_REQ",
        "CNP",
        "DETH",
        "Ethernet",
        "FETH",
        "GRH",
        "ICRC",
        "IETH",
        "IP CM",
        "IPv4",
        "IPv6",
        "ImmDt",
        "MAD",
        "PFC",
        "RDETH",
        "RETH",
        "UDP",
        "VLAN",
        "XRCETH",
        "pause",
    ];
    assert_eq!(headers.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_change_alone_breaks_the_icrc_and_a_repair_mends_it() {
    for frame in [example("WRITE"), tagged(&example("WRITE")), over_ipv6(), roce_v1(), example("CNP")] {
        let changed = document(&set(&frame, "infiniband.bth.psn", "99"));
        assert_eq!(state(&changed, "icrc"), "bad");
        let repaired = document(&set_and_repair(&frame, "infiniband.bth.psn", "99"));
        assert_eq!(state(&repaired, "icrc"), "good");
        assert_eq!(shown(&repaired, "infiniband.bth.psn").unwrap().0, "99");
    }
}

#[test]
fn a_repair_computes_lengths_and_checksums() {
    let write = example("WRITE");
    // The lengths and the checksum were wrong before.
    let broken = set(&set(&set(&write, "ip.len", "1000"), "udp.length", "3"), "ip.checksum", "1");
    assert_eq!(set_and_repair(&broken, "ip.ttl", "64"), write);
    // A UDP checksum appears as soon as it is not 0, and later changes keep it right.
    let summed = set_and_repair(&set(&write, "udp.checksum", "1"), "ip.src", "10.0.0.1");
    let document = document(&summed);
    assert_eq!(keys_in(&document, "bad"), [""; 0], "{document:#}");
    assert_ne!(shown(&document, "udp.checksum").unwrap().0, "0x0000");
    let over_ipv6 =
        super::document(&set_and_repair(&set(&over_ipv6(), "udp.checksum", "1"), "ipv6.src", "fe80::7"));
    assert_eq!(keys_in(&over_ipv6, "bad"), [""; 0], "{over_ipv6:#}");
}

#[test]
fn a_repair_leaves_the_changed_field_alone() {
    for (key, text, expected) in [
        ("infiniband.invariant.crc", "0x01020304", "0x01020304"),
        ("ip.checksum", "0x1234", "0x1234"),
        ("udp.checksum", "0x1234", "0x1234"),
        ("udp.length", "20", "20"),
        ("ip.len", "60", "60"),
    ] {
        let changed = document(&set_and_repair(&example("WRITE"), key, text));
        assert_eq!(shown(&changed, key).unwrap().0, expected);
    }
}

/// A capture contains the padding of short frames, which no length counts.
#[test]
fn a_repair_keeps_ethernet_padding() {
    let send = build(&json!({ "opcode": "RC_SEND_ONLY" }));
    assert_eq!(send.len() / 2, 58);
    let padded = format!("{send}0000");
    let changed = set_and_repair(&padded, "infiniband.bth.psn", "3");
    assert_eq!(changed, set_and_repair(&send, "infiniband.bth.psn", "3") + "0000");
    assert_eq!(keys_in(&document(&changed), "bad"), [""; 0]);
}

#[test]
fn a_packet_in_a_tunnel_is_repaired_inside_and_outside() {
    let inner = example("WRITE");
    let vxlan = "0800000000002a00";
    let len = 8 + vxlan.len() / 2 + inner.len() / 2;
    let outer = format!("45000000000040004011{}0a0000010a000002", "0000");
    let tunnel = format!("02000000000a02000000000b0800{outer}303912b5{len:04x}ffff{vxlan}{inner}");
    let tunnel = set(&tunnel, "ip.len", &(20 + len).to_string());
    let changed = set_and_repair(&tunnel, "infiniband.bth.psn", "77");
    let document = document(&changed);
    assert_eq!(keys_in(&document, "bad"), [""; 0], "{document:#}");
    assert_eq!(state(&document, "icrc"), "good");
    let headers = document["explain"]["headers"].as_array().unwrap();
    // The checksum of the outer UDP header covers the changed ICRC.
    let udp = bytes(&changed)[34..].to_vec();
    let sum = udp
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
        .sum::<u32>();
    let pseudo = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + len as u32;
    let folded = (sum + pseudo) % 0xffff;
    assert_eq!((headers[3]["name"].as_str(), folded), (Some("VXLAN"), 0));
    let ip: u32 =
        bytes(&changed)[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    assert_eq!(ip % 0xffff, 0);
}

#[test]
fn fields_that_do_not_exist_are_refused() {
    let error =
        |key: &str, text: &str| frame::set_field(&example("ACK"), "auto", key, text, false).unwrap_err();
    assert!(error("infiniband.reth.va", "1").contains("no field infiniband.reth.va"));
    assert!(error("infiniband.aeth.syndrome.timer", "1").contains("other bits decide"));
    assert!(error("infiniband.bth.psn", "0x1000000").contains("0 to 16777215 (0xffffff)"));
    let cut = &example("ACK")[..100];
    assert!(frame::set_field(cut, "ethernet", "infiniband.bth.psn", "1", false).is_err());
}

#[test]
fn a_bit_is_inverted() {
    assert_eq!(frame::set_bit("00ff", 0), Ok("80ff".to_owned()));
    assert_eq!(frame::set_bit("00ff", 15), Ok("00fe".to_owned()));
    assert_eq!(frame::set_bit(&frame::set_bit("1234", 6).unwrap(), 6), Ok("1234".to_owned()));
    assert!(frame::set_bit("00ff", 16).unwrap_err().contains("16 bits; choose a bit from 0 to 15"));
    assert!(frame::set_bit("00ff", usize::MAX).is_err());
}
