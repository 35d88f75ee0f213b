//! The tables of the crate compared with tables of other implementations.

use roce_packet::{Bth, Direction, HeaderSet, NakCode, Opcode, OpcodeInfo, PayloadRule, RnrTimer, Syndrome};
use serde_json::Value;

/// Reads a file of vectors.
fn vectors(name: &str) -> Value {
    let path = roce_testing::vectors(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is not an array"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}

fn header(name: &str) -> HeaderSet {
    match name {
        "RDETH" => HeaderSet::RDETH,
        "DETH" => HeaderSet::DETH,
        "XRCETH" => HeaderSet::XRCETH,
        "FETH" => HeaderSet::FETH,
        "RETH" => HeaderSet::RETH,
        "AtomicETH" => HeaderSet::ATOMIC_ETH,
        "AETH" => HeaderSet::AETH,
        "AtomicAckETH" => HeaderSet::ATOMIC_ACK_ETH,
        "ImmDt" => HeaderSet::IMMDT,
        "IETH" => HeaderSet::IETH,
        other => panic!("no header is called {other}"),
    }
}

fn payload_rule(text: &str) -> PayloadRule {
    match text {
        "none" => PayloadRule::None,
        "mtu" => PayloadRule::FullMtu,
        "1..mtu" => PayloadRule::OneToMtu,
        "0..mtu" => PayloadRule::ZeroToMtu,
        "8" => PayloadRule::Exactly(8),
        "16 bytes reserved (zero)" => PayloadRule::Exactly(16),
        other => panic!("no payload rule is called {other}"),
    }
}

fn direction(text: &str) -> Direction {
    match text {
        "request" => Direction::Request,
        "response" => Direction::Response,
        "notification" => Direction::Cnp,
        other => panic!("no direction is called {other}"),
    }
}

fn check_opcode(info: &OpcodeInfo, row: &Value, header_lens: &Value) {
    let name = text(&row["name"]);
    assert_eq!(info.name, name);
    assert_eq!(info.payload, payload_rule(text(&row["payload"])), "{name}");
    assert_eq!(info.direction, direction(text(&row["direction"])), "{name}");
    let names: Vec<&str> = array(&row["ext"]).iter().map(text).collect();
    let set = names.iter().fold(HeaderSet::empty(), |set, name| set | header(name));
    assert_eq!(info.headers, set, "{name}");
    let mut offset = Bth::LEN;
    for header_name in names {
        assert_eq!(info.offset_of(header(header_name)), Some(offset), "{header_name} of {name}");
        offset += header_lens[header_name].as_u64().unwrap_or_else(|| panic!("{header_name}")) as usize;
    }
    assert_eq!(info.header_len, offset, "{name}");
    for absent in !set {
        assert_eq!(info.offset_of(absent), None, "{absent:?} of {name}");
    }
}

#[test]
fn opcodes() {
    let vectors = vectors("opcodes.json");
    let mut known = [false; 256];
    for row in array(&vectors["opcodes"]) {
        let value = u8::try_from(row["value"].as_u64().expect("a number")).expect("a byte");
        let info = Opcode(value).info().unwrap_or_else(|| panic!("{row} is not in the table"));
        assert_eq!(info.opcode, Opcode(value));
        check_opcode(info, row, &vectors["ext_bytes"]);
        known[usize::from(value)] = true;
    }
    assert_eq!(known.iter().filter(|known| **known).count(), 86);
    for value in 0..=u8::MAX {
        assert_eq!(Opcode(value).info().is_some(), known[usize::from(value)], "{:?}", Opcode(value));
    }
}

#[test]
fn rnr_timers() {
    let vectors = vectors("rnr_timer.json");
    let table = array(&vectors["ms"]);
    assert_eq!(table.len(), 32);
    for (code, ms) in (0..).zip(table) {
        let timer = RnrTimer::new(code).expect("a code");
        assert_eq!(timer.code(), code);
        let ns = (ms.as_f64().expect("a number") * 1e6).round() as u64;
        assert_eq!(timer.delay_ns(), ns, "code {code}");
    }
    assert_eq!(RnrTimer::new(32), None);
}

#[test]
fn credits() {
    let vectors = vectors("aeth_syndrome.json");
    let table = array(&vectors["credits"]);
    assert_eq!(table.len(), 32);
    for (code, credits) in (0..).zip(table) {
        assert_eq!(Syndrome::credits(code).map(u64::from), credits.as_u64(), "code {code}");
    }
}

#[test]
fn syndromes() {
    let vectors = vectors("aeth_syndrome.json");
    let named = |name: &str| -> (u8, u8) {
        let text = text(&vectors["syndrome"][name]);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let byte = |hex: &str| u8::from_str_radix(hex.trim_start_matches("0x"), 16).expect("hexadecimal");
        (byte(first), byte(last))
    };
    for byte in 0..=u8::MAX {
        let syndrome = Syndrome::from_byte(byte);
        assert_eq!(syndrome.to_byte(), byte);
        let name = match syndrome {
            Syndrome::Ack { credit_code } => {
                assert_eq!(credit_code, byte);
                "ack"
            }
            Syndrome::RnrNak { timer } => {
                assert_eq!(timer.code(), byte - 0x20);
                "rnr_nak"
            }
            Syndrome::Nak(NakCode::PsnSequence) => "nak_psn_sequence",
            Syndrome::Nak(NakCode::InvalidRequest) => "nak_invalid_request",
            Syndrome::Nak(NakCode::RemoteAccess) => "nak_remote_access",
            Syndrome::Nak(NakCode::RemoteOperational) => "nak_remote_operational",
            Syndrome::Nak(NakCode::InvalidRdRequest) => "nak_invalid_rd_request",
            Syndrome::Nak(NakCode::Reserved(code)) => {
                assert!((5..32).contains(&code), "0x{byte:02x}");
                assert_eq!(byte, 0x60 | code);
                continue;
            }
            Syndrome::Reserved(reserved) => {
                assert_eq!(reserved, byte);
                assert!((0x40..0x60).contains(&byte) || byte >= 0x80, "0x{byte:02x}");
                continue;
            }
        };
        let (first, last) = named(name);
        assert!((first..=last).contains(&byte), "0x{byte:02x} is not {name}");
    }
}
