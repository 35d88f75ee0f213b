//! The documents of frames and of captured packets.

use proptest::prelude::*;
use roce_capture::{CapturedPacket, Direction, LinkType};
use roce_web::frame;
use serde_json::{Value, json};

use super::{build, bytes, document, document_from, example, hex, keys_in, over_ipv6, set, state, tagged};

fn captured(bytes: &[u8], link_type: LinkType) -> CapturedPacket<'_> {
    CapturedPacket {
        number: 7,
        time_ns: Some(1_500_000_000),
        link_type,
        interface: Some(0),
        interface_name: Some("eth0"),
        direction: Direction::Inbound,
        comment: Some("a comment"),
        original_len: bytes.len() as u32,
        bytes,
    }
}

#[test]
fn the_documents_are_those_of_the_commands() {
    let document = document(&example("WRITE"));
    assert_eq!(document["explain"]["schema"], "roce/explain/1");
    assert_eq!(document["explain"]["from"], "eth");
    assert_eq!(document["explain"]["bytes"], example("WRITE"));
    assert_eq!(document["dissect"]["schema"], "roce/dissect/1");
    assert_eq!(document["dissect"]["frame.number"], 1);
    assert_eq!(document["dissect"]["roce.icrc"], "ok");
    let names: Vec<_> = document["explain"]["headers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|header| header["name"].clone())
        .collect();
    assert_eq!(names, ["Ethernet", "IPv4", "UDP", "BTH", "RETH", "payload", "pad", "ICRC"]);
}

#[test]
fn a_captured_packet_has_the_document_of_its_bytes() {
    let hex = example("READ request");
    let bytes = bytes(&hex);
    let of_packet: Value =
        serde_json::from_str(&frame::framed(&captured(&bytes, LinkType::ETHERNET))).unwrap();
    let of_bytes = document(&hex);
    for key in ["checks", "answer", "covered", "masked"] {
        assert_eq!(of_packet[key], of_bytes[key], "{key}");
    }
    assert_eq!(of_packet["explain"]["headers"], of_bytes["explain"]["headers"]);
    assert_eq!(of_packet["explain"]["frame.number"], 7);
    assert_eq!(of_packet["dissect"]["frame.comment"], "a comment");
    assert_eq!(of_packet["dissect"]["frame.time_epoch"], "1.500000000");
}

#[test]
fn a_packet_that_was_cut_or_has_another_link_is_described() {
    let all = bytes(&example("READ response"));
    let cut = CapturedPacket { original_len: all.len() as u32, ..captured(&all[..64], LinkType::ETHERNET) };
    let document: Value = serde_json::from_str(&frame::framed(&cut)).unwrap();
    assert_eq!(state(&document, "ip_length"), "unknown");
    assert_eq!(state(&document, "icrc"), "unknown");
    assert_eq!(document["answer"]["verdict"], "none");
    let radio: Value = serde_json::from_str(&frame::framed(&captured(&all, LinkType(127)))).unwrap();
    assert_eq!(keys_in(&radio, "bad"), ["structure"]);
    assert_eq!(radio["answer"]["verdict"], "none");
}

#[test]
fn every_first_header_is_understood() {
    let hex = example("ACK");
    for (digits, from, name, first) in [
        (&hex[..], "eth", "eth", "Ethernet"),
        (&hex[..], "ethernet", "eth", "Ethernet"),
        (&hex[..], "auto", "eth", "Ethernet"),
        (&hex[28..], "ip", "ip", "IPv4"),
        (&hex[28..], "auto", "ip", "IPv4"),
        (&hex[68..], "udp", "udp", "UDP"),
        (&hex[84..], "bth", "bth", "BTH"),
        (&hex[84..], "auto", "bth", "BTH"),
    ] {
        let document = document_from(digits, from);
        assert_eq!(document["explain"]["from"], name);
        assert_eq!(document["explain"]["headers"][0]["name"], first);
        assert_eq!(document["dissect"]["infiniband.bth.psn"], 5);
        assert_eq!(keys_in(&document, "bad"), [""; 0], "{document:#}");
        let bth =
            document["explain"]["headers"].as_array().unwrap().iter().find(|header| header["name"] == "BTH");
        let offset = bth.unwrap()["offset"].as_u64().unwrap() as usize;
        assert_eq!(&digits[2 * offset..], &hex[84..]);
    }
}

#[test]
fn wrong_input_is_refused_with_advice() {
    for (digits, from, part) in [
        ("", "auto", "no bytes"),
        ("zz", "auto", "not a hexadecimal digit"),
        ("1", "auto", "odd number of digits"),
        ("11", "tcp", "write auto, ethernet, ip, udp or bth"),
    ] {
        let error = frame::frame(digits, from).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    assert!(frame::frame(&"00".repeat(65_600), "auto").unwrap_err().contains("one frame only"));
    assert!(frame::frame(&"00".repeat(600_000), "auto").unwrap_err().contains("one frame only"));
}

#[test]
fn each_check_finds_its_mistake() {
    let write = example("WRITE");
    for (key, text, check, state_of_check) in [
        ("ip.len", "500", "ip_length", "bad"),
        ("ip.len", "10", "ip_length", "bad"),
        ("ip.checksum", "1", "ip_checksum", "bad"),
        ("ip.ttl", "3", "ip_checksum", "bad"),
        ("ip.hdr_len", "24", "ip_options", "bad"),
        ("ip.flags.mf", "1", "ip_fragment", "bad"),
        ("ip.frag_offset", "2", "ip_fragment", "bad"),
        ("udp.dstport", "4792", "udp_port", "bad"),
        ("udp.length", "20", "udp_length", "bad"),
        ("udp.length", "3", "udp_length", "bad"),
        ("udp.checksum", "1", "udp_checksum", "bad"),
        ("infiniband.bth.tver", "1", "version", "bad"),
        ("infiniband.bth.opcode", "0x15", "opcode", "bad"),
        ("infiniband.bth.opcode", "0xc1", "opcode", "unknown"),
        ("infiniband.bth.opcode", "0x06", "payload", "bad"),
        // Nothing else shows a wrong PadCnt: the sum of payload and padding does not change.
        ("infiniband.bth.padcnt", "2", "message_length", "bad"),
        ("infiniband.bth.p_key", "0x8000", "p_key", "bad"),
        ("infiniband.bth.p_key", "0x8123", "p_key", "unknown"),
        ("infiniband.bth.destqp", "0", "queue_pair", "bad"),
        ("infiniband.bth.destqp", "1", "queue_pair", "bad"),
        ("infiniband.bth.destqp", "0xffffff", "queue_pair", "bad"),
        ("infiniband.bth.reserved7", "1", "reserved", "bad"),
        ("roce.bth.reserved6", "1", "reserved", "bad"),
        ("infiniband.reth.dmalen", "14", "message_length", "bad"),
        ("infiniband.reth.dmalen", "0x80000001", "message_length", "bad"),
        ("infiniband.bth.psn", "6", "icrc", "bad"),
    ] {
        let intact = state(&document(&write), check).to_owned();
        assert_eq!(intact, "good", "{check}");
        let changed = document(&set(&write, key, text));
        assert_eq!(state(&changed, check), state_of_check, "{key} = {text}: {:#}", changed["checks"]);
    }
    for (name, key, text, check) in [
        ("ACK", "infiniband.aeth.syndrome", "0x40", "syndrome"),
        ("FETCH ADD", "infiniband.reth.va", "0x1004", "alignment"),
        ("CM REQ", "infiniband.deth.q_key", "0", "q_key"),
        ("CNP", "infiniband.bth.psn", "1", "cnp"),
        ("CNP", "roce.cnp.reserved", "0x1", "reserved"),
    ] {
        assert_eq!(state(&document(&example(name)), check), "good", "{name}");
        assert_eq!(state(&document(&set(&example(name), key, text)), check), "bad", "{name}: {key}");
    }
    let flush = build(&json!({ "opcode": "RC_FLUSH" }));
    assert_eq!(state(&document(&set(&flush, "roce.feth.selectivity", "2")), "flush"), "bad");
}

/// A byte is missing in the payload, and all lengths say so.
#[test]
fn a_payload_that_is_not_whole_words_is_found() {
    let write = example("WRITE");
    let short = format!("{}{}", &write[..write.len() - 10], &write[write.len() - 8..]);
    let document = document(&super::set_and_repair(&short, "ip.ttl", "9"));
    assert_eq!(keys_in(&document, "bad"), ["structure", "padding", "message_length"]);
    assert_eq!(state(&document, "icrc"), "good");
}

#[test]
fn every_check_has_a_sentence_and_a_rule() {
    for hex in
        [example("WRITE"), example("CNP"), example("CM REQ"), over_ipv6(), tagged(&example("FETCH ADD"))]
    {
        for check in document(&hex)["checks"].as_array().unwrap() {
            let text = check["text"].as_str().unwrap();
            assert!(text.ends_with('.') && !text.contains(".."), "{text}");
            let rule = check["rule"].as_str().unwrap();
            assert!(rule.starts_with("IBTA ") || rule.starts_with("RFC "), "{rule}");
        }
    }
}

/// Returns intact frames of several kinds.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let frames = [example("WRITE"), example("CM REQ"), example("CNP"), over_ipv6(), super::roce_v1()];
    prop::sample::select(frames.map(|frame| bytes(&frame)).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_have_a_document(
        bytes in prop::collection::vec(any::<u8>(), 1..200),
        from in prop::sample::select(vec!["auto", "ethernet", "ip", "udp", "bth"]),
    ) {
        document_from(&hex(&bytes), from);
    }

    #[test]
    fn any_damage_has_a_document(
        mut bytes in any_frame(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(end.index(bytes.len()) + 1);
        }
        let document = document(&hex(&bytes));
        prop_assert!(document["answer"]["why"].as_str().is_some_and(|why| why.ends_with('.')));
        prop_assert_eq!(document["explain"]["length"].as_u64(), Some(bytes.len() as u64));
        let mut packet = captured(&bytes, LinkType::ETHERNET);
        packet.original_len += 10;
        let _: Value = serde_json::from_str(&frame::framed(&packet)).unwrap();
        for format in ["hex", "rust", "scapy", "command"] {
            frame::export(&hex(&bytes), "ethernet", format).unwrap();
        }
    }

    #[test]
    fn any_change_is_made_or_refused(
        bytes in any_frame(),
        index in any::<prop::sample::Index>(),
        text in "[-+x0-9a-f:._ ]{0,12}",
        repair in any::<bool>(),
    ) {
        let document = document(&hex(&bytes));
        let headers = document["explain"]["headers"].as_array().unwrap();
        let keys: Vec<_> = headers.iter().flat_map(|header| header["fields"].as_array().unwrap()).collect();
        let key = keys[index.index(keys.len())]["key"].as_str().unwrap();
        match frame::set_field(&hex(&bytes), "ethernet", key, &text, repair) {
            Ok(changed) => prop_assert_eq!(changed.len(), 2 * bytes.len()),
            Err(error) => prop_assert!(error.contains(key) || error.contains("Ethernet address"), "{}", error),
        }
    }
}
