//! Whole frames from an opcode and fields.

use std::net::IpAddr;

use roce_packet::fields::EXTENDED;
use roce_packet::mad::GSI_Q_KEY;
use roce_packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, BufferTooSmall, Cnp, DatagramWriter, Deth, Encapsulation, Envelope,
    Feth, FlushSelectivity, FrameHeaders, HeaderSet, Ieth, ImmDt, MacAddr, Msn, Opcode, OpcodeInfo,
    Operation, Path, PathMtu, PayloadRule, Position, Psn, Qpn, Rdeth, Reth, Syndrome, Transport, Xrceth,
    icrc,
};
use serde_json::{Map, Value, json};

use super::edit;
use super::input::{Input, Start};
use super::repair::{self, Repair};

/// The keys of a description.
const KEYS: [&str; 8] = ["opcode", "source", "destination", "source_port", "qp", "psn", "fields", "payload"];
const SOURCE_MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x01]);
const DESTINATION_MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x02]);
/// Address and key of the memory that requests name.
const ADDRESS: u64 = 0x10_0000;
const R_KEY: u32 = 0x1234;
/// Bytes of a READ.
const READ_LEN: u32 = 1024;

/// Builds the Ethernet frame of a description.
pub(super) fn build(text: &str) -> Result<Vec<u8>, String> {
    let description: Value = serde_json::from_str(text)
        .map_err(|error| format!("the description of the frame is not JSON: {error}"))?;
    let Value::Object(description) = description else {
        return Err("the description of the frame is not a JSON object; write {\"opcode\": 10}".to_owned());
    };
    if let Some(key) = description.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("a frame has no `{key}`; the keys are {}", KEYS.join(", ")));
    }
    let opcode = opcode(description.get("opcode"))?;
    let payload = match description.get("payload") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) if text.trim().is_empty() => Vec::new(),
        Some(Value::String(text)) => {
            roce_document::bytes::parse(text).map_err(|error| format!("payload: {error}"))?
        }
        Some(_) => return Err("payload is not a text; write its bytes as hexadecimal digits".to_owned()),
    };
    let payload = if payload.is_empty() { shortest_payload(opcode) } else { payload };
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: address(&description, "source", [198, 18, 0, 1])?,
        destination: address(&description, "destination", [198, 18, 0, 2])?,
        source_port: number(&description, "source_port", 49_152, u32::from(u16::MAX))? as u16,
        traffic_class: 0x02,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    let qp = Qpn::new(number(&description, "qp", 0x11, Psn::MASK)?);
    let psn = Psn::new(number(&description, "psn", 0, Psn::MASK)?);
    let bytes = frame(&path, &bth(opcode, qp, psn), &payload)?;
    let fields = field_texts(description.get("fields"))?;
    let pairs = fields.iter().map(|(key, text)| (key.as_str(), text.as_str()));
    let mut input = edit::set_fields(Input { bytes, start: Start::Ethernet }, pairs)?;
    repair::apply(&mut input, &Repair::default());
    Ok(input.bytes)
}

/// Lists the opcodes that are assigned.
pub(super) fn opcodes() -> String {
    let rows = (0..=u8::MAX).filter_map(|value| Opcode(value).info());
    let rows: Vec<_> = rows
        .map(|info| {
            let headers: Vec<_> = EXTENDED
                .iter()
                .filter(|(flag, _)| info.headers.contains(*flag))
                .map(|(_, header)| header.name)
                .collect();
            json!({
                "value": info.opcode.0,
                "name": info.name,
                "transport": transport_name(info.transport),
                "headers": headers,
                "payload": info.payload != PayloadRule::None,
                "payload_rule": rule_name(info.payload),
            })
        })
        .collect();
    Value::Array(rows).to_string()
}

const fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Rd => "RD",
        Transport::Ud => "UD",
        Transport::Cnp => "CNP",
        Transport::Xrc => "XRC",
    }
}

fn rule_name(rule: PayloadRule) -> String {
    match rule {
        PayloadRule::None => "no payload".to_owned(),
        PayloadRule::FullMtu => "exactly the path MTU".to_owned(),
        PayloadRule::OneToMtu => "1 byte up to the path MTU".to_owned(),
        PayloadRule::ZeroToMtu => "0 bytes up to the path MTU".to_owned(),
        PayloadRule::Exactly(len) => format!("exactly {len} bytes"),
    }
}

/// Returns the shortest payload that an opcode allows. A CNP has zeros.
fn shortest_payload(opcode: Opcode) -> Vec<u8> {
    let len = match opcode.info().map(|info| info.payload) {
        None | Some(PayloadRule::None | PayloadRule::ZeroToMtu) => 0,
        Some(PayloadRule::OneToMtu) => 1,
        Some(PayloadRule::FullMtu) => PathMtu::Mtu256.bytes(),
        Some(PayloadRule::Exactly(len)) => len,
    };
    if opcode == Opcode::CNP { vec![0; len] } else { (0..len).map(|index| index as u8).collect() }
}

/// Reads the opcode: its number, or its name.
fn opcode(value: Option<&Value>) -> Result<Opcode, String> {
    let wrong = || "opcode is missing or wrong; write a number from 0 to 255, or a name such as RC_SEND_ONLY";
    let text = match value {
        Some(Value::String(text)) => text.trim(),
        Some(Value::Number(number)) => {
            let number = number.as_u64().and_then(|number| u8::try_from(number).ok());
            return number.map(Opcode).ok_or_else(|| wrong().to_owned());
        }
        _ => return Err(wrong().to_owned()),
    };
    let named = (0..=u8::MAX).map(Opcode).find(|opcode| opcode.name() == Some(text));
    let number = edit::any_number(text).and_then(|number| u8::try_from(number).ok()).map(Opcode);
    named.or(number).ok_or_else(|| wrong().to_owned())
}

fn address(description: &Map<String, Value>, key: &str, default: [u8; 4]) -> Result<IpAddr, String> {
    match description.get(key) {
        None | Some(Value::Null) => Ok(default.into()),
        Some(Value::String(text)) => text.trim().parse().map_err(|_| {
            format!("{key}: `{text}` is not an IP address; write one such as 198.18.0.1 or 2001:db8::1")
        }),
        Some(_) => Err(format!("{key} is not a text; write an IP address such as \"198.18.0.1\"")),
    }
}

fn number(description: &Map<String, Value>, key: &str, default: u32, most: u32) -> Result<u32, String> {
    let number = match description.get(key) {
        None | Some(Value::Null) => return Ok(default),
        Some(Value::Number(number)) => number.as_u64().map(u128::from),
        Some(Value::String(text)) => edit::any_number(text.trim()),
        Some(_) => None,
    };
    let number = number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number <= most);
    number.ok_or_else(|| format!("{key} is not a number from 0 to {most}"))
}

/// Reads the keys of fields with their values as text.
fn field_texts(value: Option<&Value>) -> Result<Vec<(String, String)>, String> {
    let fields = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(fields)) => fields,
        Some(_) => {
            return Err("fields is not an object; write {\"infiniband.reth.va\": \"0x1000\"}".to_owned());
        }
    };
    let text = |(key, value): (&String, &Value)| match value {
        Value::String(text) => Ok((key.clone(), text.clone())),
        Value::Number(number) => Ok((key.clone(), number.to_string())),
        Value::Bool(flag) => Ok((key.clone(), flag.to_string())),
        _ => Err(format!("the value of {key} is not a text; write it in quotation marks")),
    };
    fields.iter().map(text).collect()
}

/// Returns the BTH. The last packet of a request of RC asks for an acknowledgement.
fn bth(opcode: Opcode, qp: Qpn, psn: Psn) -> Bth {
    if opcode == Opcode::CNP {
        return Bth { psn, ..Cnp { dest_qp: qp, p_key: 0xffff }.bth() };
    }
    let asks = |info: &OpcodeInfo| {
        let is_acknowledged = matches!(info.operation, Operation::Send | Operation::Write);
        is_acknowledged && info.ends_message() && matches!(info.transport, Transport::Rc | Transport::Xrc)
    };
    Bth { ack_req: opcode.info().is_some_and(asks), ..Bth::new(opcode, qp, psn) }
}

/// Builds a frame whose extended headers have usual values.
fn frame(path: &Path, bth: &Bth, payload: &[u8]) -> Result<Vec<u8>, String> {
    let info = bth.opcode.info();
    let header_len = info.map_or(Bth::LEN, |info| info.header_len);
    let mut datagram = vec![0; header_len + payload.len() + 3 + icrc::LEN];
    let len = match datagram_into(&mut datagram, path, bth, payload) {
        Ok(len) => len,
        Err(error) => return Err(format!("the frame cannot be built: {error}")),
    };
    let datagram = datagram.get(..len).unwrap_or_default();
    let headers = FrameHeaders::new(path, 0, DESTINATION_MAC, SOURCE_MAC, len)
        .map_err(|error| format!("{error}; change the addresses or shorten the payload"))?;
    let mut bytes = vec![0; headers.len_bytes()];
    headers.emit(&mut bytes).map_err(|error| format!("the frame cannot be built: {error}"))?;
    bytes.extend_from_slice(datagram);
    Ok(bytes)
}

/// Writes BTH to ICRC and returns their length.
fn datagram_into(out: &mut [u8], path: &Path, bth: &Bth, payload: &[u8]) -> Result<usize, BufferTooSmall> {
    let mut writer = DatagramWriter::new(out, bth)?;
    if let Some(info) = bth.opcode.info() {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        for (flag, _) in EXTENDED.iter().filter(|(flag, _)| info.headers.contains(*flag)) {
            header_into(&mut writer, info, *flag, (bth.dest_qp, len))?;
        }
    }
    writer.payload_slot(payload.len())?.copy_from_slice(payload);
    writer.finish(&Envelope::new(path, 0))
}

/// Writes one extended header with usual values.
fn header_into(
    writer: &mut DatagramWriter<'_>,
    info: &OpcodeInfo,
    flag: HeaderSet,
    (dest_qp, payload_len): (Qpn, u32),
) -> Result<(), BufferTooSmall> {
    match flag {
        HeaderSet::RDETH => writer.rdeth(&Rdeth { ee_context: 1 }),
        HeaderSet::DETH => {
            let q_key = if dest_qp == Qpn::GSI { GSI_Q_KEY } else { 0x1111_1111 };
            let source_qp = if dest_qp == Qpn::GSI { Qpn::GSI } else { Qpn::new(0x12) };
            writer.deth(&Deth { q_key, source_qp })
        }
        HeaderSet::XRCETH => writer.xrceth(&Xrceth { srq: 1 }),
        HeaderSet::FETH => writer.feth(&Feth {
            global_visibility: true,
            persistence: false,
            selectivity: FlushSelectivity::Range,
        }),
        HeaderSet::RETH => {
            let dma_len = match (info.operation, info.position) {
                (Operation::Write, Position::First) => payload_len.saturating_mul(2),
                (Operation::Write | Operation::AtomicWrite, _) => payload_len,
                _ => READ_LEN,
            };
            writer.reth(&Reth { va: ADDRESS, rkey: R_KEY, dma_len })
        }
        HeaderSet::ATOMIC_ETH => {
            writer.atomic_eth(&AtomicEth { va: ADDRESS, rkey: R_KEY, swap_or_add: 1, compare: 0 })
        }
        HeaderSet::AETH => writer.aeth(&Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) }),
        HeaderSet::ATOMIC_ACK_ETH => writer.atomic_ack_eth(&AtomicAckEth { original: 0 }),
        HeaderSet::IMMDT => writer.imm_dt(&ImmDt([0, 0, 0, 42])),
        _ => writer.ieth(&Ieth { rkey: R_KEY }),
    }
}
