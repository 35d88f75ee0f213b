//! Frames from opcodes and fields.

use roce_packet::Opcode;
use roce_web::frame;
use serde_json::{Value, json};

use super::{build, document, keys_in, opcodes, state};

#[test]
fn every_opcode_builds_a_frame_without_a_bad_check() {
    for opcode in opcodes() {
        for addresses in [["198.18.0.1", "198.18.0.2"], ["2001:db8::1", "2001:db8::2"]] {
            let [source, destination] = addresses;
            let hex = build(&json!({ "opcode": opcode.0, "source": source, "destination": destination }));
            let document = document(&hex);
            assert_eq!(keys_in(&document, "bad"), [""; 0], "{opcode}: {document:#}");
            assert_eq!(document["explain"]["roce.opcode"], opcode.name().unwrap());
            assert_eq!(state(&document, "icrc"), "good");
            assert_eq!(state(&document, "structure"), "good");
        }
    }
}

#[test]
fn opcodes_are_those_of_the_table() {
    let rows: Value = serde_json::from_str(&frame::opcodes()).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), opcodes().count());
    let row = rows.iter().find(|row| row["value"] == 0x0b).unwrap();
    assert_eq!(row["name"], "RC_RDMA_WRITE_ONLY_WITH_IMM");
    assert_eq!(row["transport"], "RC");
    assert_eq!(row["headers"], json!(["RETH", "ImmDt"]));
    assert_eq!(row["payload"], true);
    let ack = rows.iter().find(|row| row["name"] == "RC_ACKNOWLEDGE").unwrap();
    assert_eq!((&ack["headers"], &ack["payload"]), (&json!(["AETH"]), &json!(false)));
}

#[test]
fn a_description_sets_every_key() {
    let hex = build(&json!({
        "opcode": "0x0a", "source": "10.0.0.1", "destination": "10.0.0.2", "source_port": 50_000, "qp": "0x123456",
        "psn": 16_777_215, "payload": "01 02 03", "fields": { "infiniband.reth.va": "0x7f00", "infiniband.bth.se": true, "ip.ttl": 9 },
    }));
    let document = document(&hex);
    assert_eq!(keys_in(&document, "bad"), [""; 0], "{document:#}");
    let dissect = &document["dissect"];
    for (key, value) in [
        ("ip.src", json!("10.0.0.1")),
        ("ip.dst", json!("10.0.0.2")),
        ("udp.srcport", json!(50_000)),
        ("infiniband.bth.destqp", json!(0x12_3456)),
        ("infiniband.bth.psn", json!(16_777_215)),
        ("infiniband.bth.padcnt", json!(1)),
        ("infiniband.bth.se", json!(true)),
        ("infiniband.reth.va", json!("0x0000000000007f00")),
        ("infiniband.reth.dmalen", json!(3)),
        ("ip.ttl", json!(9)),
        ("roce.payload_len", json!(3)),
    ] {
        assert_eq!(dissect[key], value, "{key}: {dissect:#}");
    }
}

/// Students build frames with opcodes that do not exist.
#[test]
fn an_opcode_that_is_not_assigned_is_built_and_reported() {
    let document = document(&build(&json!({ "opcode": 0x1f, "payload": "00000000" })));
    assert_eq!(keys_in(&document, "bad"), ["structure", "opcode"]);
    assert_eq!(state(&document, "icrc"), "good");
    assert!(Opcode(0x1f).info().is_none());
}

#[test]
fn wrong_descriptions_name_the_key() {
    for (description, part) in [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "opcode is missing"),
        (r#"{"opcode": 256}"#, "0 to 255"),
        (r#"{"opcode": "RC_FOO"}"#, "RC_SEND_ONLY"),
        (r#"{"opcode": 4, "pns": 1}"#, "no `pns`; the keys are opcode, source"),
        (r#"{"opcode": 4, "psn": 16777216}"#, "psn is not a number from 0 to 16777215"),
        (r#"{"opcode": 4, "qp": -1}"#, "qp is not a number"),
        (r#"{"opcode": 4, "source_port": 65536}"#, "source_port is not a number from 0 to 65535"),
        (r#"{"opcode": 4, "source": "localhost"}"#, "source: `localhost` is not an IP address"),
        (r#"{"opcode": 4, "source": "::1"}"#, "not of the same IP version"),
        (r#"{"opcode": 4, "payload": 1}"#, "payload is not a text"),
        (r#"{"opcode": 4, "payload": "xyz"}"#, "payload: line 1, character 1"),
        (r#"{"opcode": 4, "fields": []}"#, "fields is not an object"),
        (r#"{"opcode": 4, "fields": {"a": []}}"#, "the value of a"),
        (r#"{"opcode": 4, "fields": {"infiniband.reth.va": 1}}"#, "no field infiniband.reth.va"),
    ] {
        let error = frame::build(description).unwrap_err();
        assert!(error.contains(part), "{description}: {error}");
    }
    let long = format!(r#"{{"opcode": 4, "payload": "{}"}}"#, "00".repeat(65_500));
    assert!(frame::build(&long).unwrap_err().contains("shorten the payload"));
}

#[test]
fn examples_are_right_except_for_the_wrong_one() {
    let examples: Value = serde_json::from_str(&frame::examples()).unwrap();
    let mut names = Vec::new();
    for example in examples.as_array().unwrap() {
        let name = example["name"].as_str().unwrap();
        let text = frame::frame(example["hex"].as_str().unwrap(), example["from"].as_str().unwrap()).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let expected: &[&str] = if name == "WRITE with a wrong ICRC" { &["icrc"] } else { &[] };
        assert_eq!(keys_in(&document, "bad"), expected, "{name}: {document:#}");
        assert!(example["about"].as_str().unwrap().ends_with('.'));
        names.push(name.to_owned());
    }
    assert_eq!(names.len(), 15, "{names:?}");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 15, "each name occurs once");
}

#[test]
fn the_wrong_icrc_has_a_name() {
    let document = document(&super::example("WRITE with a wrong ICRC"));
    let checks = document["checks"].as_array().unwrap();
    let icrc = checks.iter().find(|check| check["key"] == "icrc").unwrap();
    let text = icrc["text"].as_str().unwrap();
    assert!(text.contains("The mistake is \"byte order\"."), "{text}");
    assert!(text.contains("Write the lowest byte of the CRC first."), "{text}");
    assert_eq!(icrc["rule"], "IBTA 7.8.1, A17.3");
}
