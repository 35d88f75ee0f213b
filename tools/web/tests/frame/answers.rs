//! The answers of a real engine.

use roce_packet::{Direction, Frame, OpcodeInfo, Transport};
use serde_json::{Value, json};

use super::{
    build, bytes, document, document_from, example, keys_in, opcodes, over_ipv6, roce_v1, set,
    set_and_repair, state, tagged,
};

fn answer(hex: &str) -> Value {
    document(hex)["answer"].clone()
}

/// Checks the verdict and returns the texts of the replies and the reason.
#[track_caller]
fn handled(hex: &str) -> (Vec<String>, String) {
    let answer = answer(hex);
    assert_eq!(answer["verdict"], "handled", "{answer:#}");
    assert_eq!(answer.get("counter"), None);
    let replies = answer["replies"].as_array().unwrap();
    let texts = replies.iter().map(|reply| reply["text"].as_str().unwrap().to_owned()).collect();
    (texts, answer["why"].as_str().unwrap().to_owned())
}

/// Checks that a frame is dropped without a reply, and returns the counter.
#[track_caller]
fn dropped(hex: &str) -> String {
    let answer = answer(hex);
    assert_eq!(answer["verdict"], "dropped", "{answer:#}");
    assert_eq!(answer["replies"], json!([]));
    answer["counter"].as_str().unwrap().to_owned()
}

#[test]
fn a_write_is_acknowledged() {
    let (replies, why) = handled(&example("WRITE"));
    assert_eq!(replies, ["ACKNOWLEDGE, PSN 5, AETH ACK, MSN 1"]);
    assert!(why.starts_with("The responder writes 13 bytes to 0x100000."), "{why}");
    let (replies, why) = handled(&set_and_repair(&example("WRITE"), "infiniband.bth.a", "0"));
    assert_eq!(replies, [""; 0]);
    assert!(why.contains("AckReq is 0"), "{why}");
}

#[test]
fn a_read_is_answered_with_its_bytes() {
    let (replies, why) = handled(&example("READ request"));
    assert_eq!(replies, ["RDMA READ RESPONSE ONLY, PSN 6, AETH ACK, MSN 1, 1024 bytes of payload"]);
    assert!(why.contains("reads 1024 bytes at 0x100000, and answers with 1 packet "), "{why}");
    let (replies, why) =
        handled(&set_and_repair(&example("READ request"), "infiniband.reth.dmalen", "20000"));
    assert_eq!(replies.len(), 8);
    assert_eq!(replies[0], "RDMA READ RESPONSE FIRST, PSN 6, AETH ACK, MSN 1, 1024 bytes of payload");
    assert_eq!(replies[7], "RDMA READ RESPONSE MIDDLE, PSN 13, 1024 bytes of payload");
    assert!(why.contains("20 packets") && why.contains("The first 8 of them are shown."), "{why}");
    // Such a message would not fit into the memory of a browser.
    let (replies, _) =
        handled(&set_and_repair(&example("READ request"), "infiniband.reth.dmalen", "0x80000000"));
    assert_eq!(replies.len(), 8);
}

#[test]
fn messages_end_in_a_receive() {
    let (replies, why) = handled(&example("SEND with immediate data"));
    assert_eq!(replies, ["ACKNOWLEDGE, PSN 7, AETH ACK, MSN 1"]);
    assert!(why.contains("A receive completes with 8 bytes and the immediate data 00 00 00 2a."), "{why}");
    let (replies, why) = handled(&example("UD SEND"));
    assert_eq!(replies, [""; 0]);
    assert!(why.contains("A receive completes with 48 bytes."), "{why}");
    assert!(why.contains("UD are not acknowledged"), "{why}");
    let (_, why) = handled(&build(&json!({ "opcode": "RC_SEND_ONLY_WITH_INVALIDATE", "payload": "00" })));
    assert!(why.contains("the key 0x00001234 is invalid now"), "{why}");
    let (_, why) =
        handled(&build(&json!({ "opcode": "RC_RDMA_WRITE_ONLY_WITH_IMM", "payload": "00000000" })));
    assert!(why.contains("A receive completes with 4 bytes and the immediate data"), "{why}");
}

#[test]
fn atomics_return_the_old_value() {
    let (replies, _) = handled(&example("FETCH ADD"));
    assert_eq!(replies, ["ATOMIC ACKNOWLEDGE, PSN 9, AETH ACK, MSN 1, old value 0x0000000000000000"]);
    let (replies, _) = handled(&build(&json!({ "opcode": "RC_FLUSH", "psn": 3 })));
    assert_eq!(replies, ["RDMA READ RESPONSE ONLY, PSN 3, AETH ACK, MSN 1"]);
}

/// A packet in the middle of a message fits only after its beginning.
#[test]
fn packets_that_continue_a_message_are_handled() {
    for (opcode, payload, msn) in [
        ("RC_SEND_MIDDLE", "", None),
        ("RC_SEND_LAST", "0102", Some(1)),
        ("RC_RDMA_WRITE_MIDDLE", "", None),
        ("RC_RDMA_WRITE_LAST", "010203", Some(1)),
        ("RC_RDMA_WRITE_LAST_WITH_IMM", "010203", Some(1)),
        ("UC_SEND_LAST", "0102", None),
        ("UC_RDMA_WRITE_MIDDLE", "", None),
        ("UC_RDMA_WRITE_LAST", "0102", None),
    ] {
        let (replies, why) = handled(&build(&json!({ "opcode": opcode, "payload": payload, "psn": 0 })));
        let expected: Vec<_> =
            msn.iter().map(|msn| format!("ACKNOWLEDGE, PSN 0, AETH ACK, MSN {msn}")).collect();
        assert_eq!(replies, expected, "{opcode}: {why}");
        assert!(why.contains("Before this packet, the engine got the first packet"), "{why}");
    }
}

#[test]
fn requests_that_break_a_rule_get_a_nak() {
    let write = example("WRITE");
    for (hex, nak, rule) in [
        (set_and_repair(&write, "infiniband.reth.dmalen", "12"), "invalid request", "IBTA 9.7.4.1.6"),
        (set_and_repair(&write, "infiniband.reth.dmalen", "0x80000001"), "invalid request", "IBTA 9.7.7"),
        (
            set_and_repair(&example("FETCH ADD"), "infiniband.reth.va", "0x1001"),
            "invalid request",
            "IBTA 9.3.4",
        ),
        // The range passes the end of the address space.
        (
            set_and_repair(&write, "infiniband.reth.va", "0xfffffffffffffffc"),
            "remote access error",
            "IBTA 10.6",
        ),
        (build(&json!({ "opcode": "RC_SEND_FIRST", "payload": "00" })), "invalid request", "IBTA 9.7.4.1.6"),
    ] {
        let (replies, why) = handled(&hex);
        assert_eq!(replies.len(), 1, "{why}");
        assert!(replies[0].starts_with("ACKNOWLEDGE, PSN "), "{replies:?}");
        assert!(replies[0].contains(&format!("AETH NAK {nak}, MSN 0")), "{replies:?}");
        assert!(why.contains("refuses the request with a NAK"), "{why}");
        assert_eq!(answer(&hex)["rule"], rule);
    }
}

#[test]
fn frames_that_no_queue_pair_takes_are_dropped() {
    let write = example("WRITE");
    for (hex, counter) in [
        (example("WRITE with a wrong ICRC"), "rx_icrc_encapsulated"),
        (set(&write, "infiniband.bth.psn", "6"), "rx_icrc_encapsulated"),
        (set_and_repair(&write, "infiniband.bth.tver", "1"), "drop_bad_version"),
        (set_and_repair(&write, "infiniband.bth.opcode", "0x1f"), "drop_unknown_opcode"),
        (set_and_repair(&write, "infiniband.bth.opcode", "0x11"), "none"),
        (set_and_repair(&write, "infiniband.bth.opcode", "0x14"), "drop_malformed"),
        (set_and_repair(&write, "infiniband.bth.p_key", "0x8123"), "drop_bad_pkey"),
        (set_and_repair(&write, "infiniband.bth.p_key", "0x7fff"), "handled"),
        (set_and_repair(&write, "infiniband.bth.destqp", "0"), "drop_unknown_qpn"),
        (set_and_repair(&write, "infiniband.bth.destqp", "1"), "drop_bad_opcode_for_qp"),
        (set_and_repair(&write, "infiniband.bth.destqp", "0xffffff"), "drop_no_multicast_member"),
        (set_and_repair(&example("CM REQ"), "infiniband.deth.q_key", "1"), "drop_bad_qkey"),
        (set(&write, "ip.checksum", "1"), "rx_malformed"),
        (set(&write, "udp.length", "20"), "rx_malformed"),
        (set_and_repair(&write, "ip.flags.mf", "1"), "rx_malformed"),
        (
            build(&json!({ "opcode": "UC_RDMA_WRITE_ONLY", "fields": { "infiniband.reth.dmalen": "9" } })),
            "drop_bad_length",
        ),
    ] {
        let answer = answer(&hex);
        let outcome = answer["counter"].as_str().or(answer["verdict"].as_str()).unwrap();
        assert_eq!(outcome, counter, "{answer:#}");
    }
    assert_eq!(dropped(&example("WRITE with a wrong ICRC")), "rx_icrc_encapsulated");
}

#[test]
fn frames_that_are_no_request_have_no_answer() {
    for (hex, part) in [
        (example("ACK"), "acknowledgement is a response"),
        (example("READ response"), "This is a response"),
        (build(&json!({ "opcode": "RD_SEND_ONLY" })), "reliable datagrams"),
        (build(&json!({ "opcode": "XRC_SEND_ONLY" })), "belongs to XRC"),
        (set(&example("WRITE"), "udp.dstport", "53"), "not RoCE (UDP)"),
        (format!("{:0<120}", "0180c2000001020000000001880800010000"), "pause frame"),
    ] {
        let answer = answer(&hex);
        assert_eq!(answer["verdict"], "none", "{answer:#}");
        assert!(answer["why"].as_str().unwrap().contains(part), "{part}: {answer:#}");
        assert_eq!(answer["replies"], json!([]));
    }
}

#[test]
fn a_notification_slows_the_queue_pair() {
    let (replies, why) = handled(&example("CNP"));
    assert_eq!(replies, [""; 0]);
    assert!(why.contains("DCQCN changes the rate of the queue pair from 100.0 to 50.0 Gb/s"), "{why}");
}

#[test]
fn a_marked_packet_is_answered_with_a_notification() {
    let (replies, why) = handled(&set_and_repair(&example("WRITE"), "ip.dsfield.ecn", "3"));
    assert!(replies.contains(&"CNP for queue pair 0x000100".to_owned()), "{replies:?}");
    assert!(replies.contains(&"ACKNOWLEDGE, PSN 5, AETH ACK, MSN 1".to_owned()), "{replies:?}");
    assert!(why.contains("congestion mark CE"), "{why}");
}

#[test]
fn every_encapsulation_is_answered() {
    for hex in [over_ipv6(), roce_v1(), tagged(&example("WRITE"))] {
        assert_eq!(handled(&hex).0.len(), 1);
    }
    let group = build(&json!({
        "opcode": "UD_SEND_ONLY", "destination": "239.1.2.3", "qp": 0xff_ffff, "payload": "00000000",
    }));
    assert!(handled(&group).1.contains("A receive completes with 44 bytes"));
}

#[test]
fn without_an_ip_header_the_icrc_is_not_checked() {
    let write = example("WRITE with a wrong ICRC");
    for (digits, from) in [(&write[84..], "bth"), (&write[68..], "udp")] {
        let answer = document_from(digits, from)["answer"].clone();
        assert_eq!(answer["verdict"], "handled");
        assert!(answer["why"].as_str().unwrap().contains("The ICRC was not checked"), "{answer:#}");
    }
}

#[test]
fn every_request_fits_its_queue_pair() {
    let is_request = |info: &&OpcodeInfo| {
        info.direction == Direction::Request
            && matches!(info.transport, Transport::Rc | Transport::Uc | Transport::Ud)
    };
    for info in opcodes().map(|opcode| opcode.info().unwrap()).filter(is_request) {
        let (replies, why) =
            handled(&build(&json!({ "opcode": info.opcode.0, "psn": 0xff_ffff, "qp": 0xabcdef })));
        assert!(!why.contains("refuses"), "{}: {why}", info.name);
        let expects_reply = info.transport == Transport::Rc && info.ends_message();
        assert_eq!(!replies.is_empty(), expects_reply, "{}: {replies:?}", info.name);
    }
}

/// The replies are whole frames on the way back, so the page can check their ICRC.
#[test]
fn replies_are_whole_frames() {
    let over = |hex: String| (hex, "ethernet");
    let write = example("WRITE");
    let frames = [
        over(write.clone()),
        over(example("READ request")),
        over(example("FETCH ADD")),
        over(tagged(&write)),
        over(over_ipv6()),
        over(roce_v1()),
        // Marked, so that a CNP leaves as well.
        over(set_and_repair(&write, "ip.dsfield.ecn", "3")),
        (write[28..].to_owned(), "ip"),
        (write[84..].to_owned(), "bth"),
    ];
    for (hex, from) in frames {
        let answer = document_from(&hex, from)["answer"].clone();
        let replies = answer["replies"].as_array().unwrap();
        assert!(!replies.is_empty(), "{from} {hex}: {answer:#}");
        for reply in replies {
            assert_eq!(reply["from"], "ethernet");
            let digits = reply["hex"].as_str().unwrap();
            let document = document(digits);
            assert_eq!(state(&document, "icrc"), "good", "{from} {hex}: {reply}");
            assert_eq!(keys_in(&document, "bad"), [""; 0], "{from} {hex}: {reply}");
            let reply = bytes(digits);
            let frame = Frame::parse(&reply).unwrap();
            if from == "ethernet" {
                let request = bytes(&hex);
                assert_eq!((&reply[..6], &reply[6..12]), (&request[6..12], &request[..6]));
                let request = Frame::parse(&request).unwrap();
                let (way, back) = (request.path(), frame.path().reply());
                assert_eq!((way.source, way.destination), (back.source, back.destination));
                assert_eq!(way.vlan.map(|tag| tag.vid), back.vlan.map(|tag| tag.vid));
            }
        }
    }
}
