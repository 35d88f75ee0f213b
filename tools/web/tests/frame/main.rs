//! Tests of the frames that the page shows.

mod answers;
mod builds;
mod changes;
mod documents;
mod exports;
mod icrcs;

use roce_packet::Opcode;
use roce_web::frame;
use serde_json::{Value, json};

/// Returns the document of an Ethernet frame.
#[track_caller]
fn document(hex: &str) -> Value {
    document_from(hex, "ethernet")
}

#[track_caller]
fn document_from(hex: &str, from: &str) -> Value {
    serde_json::from_str(&frame::frame(hex, from).unwrap()).unwrap()
}

/// Builds a frame.
#[track_caller]
fn build(description: &Value) -> String {
    frame::build(&description.to_string()).unwrap()
}

#[track_caller]
fn set(hex: &str, key: &str, text: &str) -> String {
    frame::set_field(hex, "ethernet", key, text, false).unwrap()
}

#[track_caller]
fn set_and_repair(hex: &str, key: &str, text: &str) -> String {
    frame::set_field(hex, "ethernet", key, text, true).unwrap()
}

/// Returns the state of a check, or "" if the document has no such check.
fn state<'a>(document: &'a Value, key: &str) -> &'a str {
    let checks = document["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["key"] == key);
    check.map_or("", |check| check["state"].as_str().unwrap())
}

/// Returns the keys of the checks in this state.
fn keys_in<'a>(document: &'a Value, state: &str) -> Vec<&'a str> {
    let checks = document["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["state"] == state).map(|check| check["key"].as_str().unwrap()).collect()
}

fn example(name: &str) -> String {
    let examples: Value = serde_json::from_str(&frame::examples()).unwrap();
    let example = examples.as_array().unwrap().iter().find(|example| example["name"] == name);
    example.unwrap_or_else(|| panic!("there is no example {name}"))["hex"].as_str().unwrap().to_owned()
}

fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..=u8::MAX).map(Opcode).filter(|opcode| opcode.info().is_some())
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns an Ethernet frame with a VLAN tag.
fn tagged(frame: &str) -> String {
    format!("{}81006064{}", &frame[..24], &frame[24..])
}

/// Returns a frame of RoCE v1 with a right ICRC.
fn roce_v1() -> String {
    use roce_packet::{Bth, DatagramWriter, Encapsulation, FrameHeaders, MacAddr, Path, Psn, Qpn};

    let path = Path {
        encapsulation: Encapsulation::RoceV1,
        source: [198, 18, 0, 1].into(),
        destination: [198, 18, 0, 2].into(),
        source_port: 0,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 5,
        vlan: None,
    };
    let mut datagram = [0; 64];
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(7)) };
    let mut writer = DatagramWriter::new(&mut datagram, &bth).unwrap();
    writer.payload_slot(6).unwrap().copy_from_slice(b"abcdef");
    let len = writer.len_with_icrc();
    let headers =
        FrameHeaders::new(&path, 0, MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]), len).unwrap();
    writer.finish(&headers.envelope()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).unwrap();
    frame.extend_from_slice(&datagram[..len]);
    hex(&frame)
}

/// Returns a frame over IPv6.
fn over_ipv6() -> String {
    build(&json!({
        "opcode": "RC_RDMA_WRITE_ONLY", "payload": "0102030405", "source": "2001:db8::1", "destination": "2001:db8::2",
    }))
}
