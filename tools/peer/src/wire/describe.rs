//! One line for a packet, with the words of scripts.

use std::fmt::Write as _;

use roce_packet::{
    Aeth, Datagram, Envelope, HeaderSet, NakCode, Opcode, OpcodeInfo, ParseError, Path, Syndrome,
};

use super::names::{Slot, nak_name, short_name, slots_of};

/// A defect of a packet that no NIC may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The packet does not parse.
    Malformed(ParseError),
    /// The ICRC is wrong.
    Icrc,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "malformed ({error})"),
            Self::Icrc => f.write_str("with a wrong ICRC"),
        }
    }
}

/// Returns the defect of a packet, if it has one. The ICRC may belong to any IPv4 Identification unless the
/// device saw it.
#[must_use]
pub fn fault_of(packet: &[u8], path: &Path, identification: Option<u16>) -> Option<Fault> {
    let datagram = match Datagram::parse(packet, &[]) {
        Ok(datagram) => datagram,
        Err(error) => return Some(Fault::Malformed(error)),
    };
    let envelope = Envelope::new(path, identification.unwrap_or(0));
    let is_right = datagram.icrc() == datagram.compute_icrc(&envelope);
    let is_recovered = identification.is_none() && datagram.recover_identification(&envelope).is_some();
    (!is_right && !is_recovered).then_some(Fault::Icrc)
}

/// Describes a packet. `psn` is its sequence number in the numbers of the script.
#[must_use]
pub fn describe(packet: &[u8], psn: Option<u64>) -> String {
    let Some(info) = packet.first().and_then(|opcode| Opcode(*opcode).info()) else {
        return match packet.first() {
            Some(opcode) => format!("opcode=0x{opcode:02x}, which is not assigned ({} bytes)", packet.len()),
            None => "an empty packet".to_owned(),
        };
    };
    let mut text = name(packet, info);
    for slot in slots_of(info) {
        let Some(value) = slot.read(packet, info) else { continue };
        // `add` is another name of `swap`.
        if slot.name == "add" || is_usual(&slot, value, packet, info) {
            continue;
        }
        let value = if slot.name == "psn" { psn.unwrap_or(value) } else { value };
        // A closed format never fails on a string.
        let _ = match slot.name {
            "se" | "fecn" | "ackreq" | "visible" | "persistent" if value == 1 => {
                write!(text, " {}", slot.name)
            }
            "va" | "rkey" | "qkey" | "srcqp" | "pkey" | "syndrome" | "imm" | "invalidate" => {
                write!(text, " {}={value:#x}", slot.name)
            }
            _ => write!(text, " {}={value}", slot.name),
        };
    }
    match Datagram::parse(packet, &[]) {
        Ok(datagram) if datagram.payload_len() > 0 && info.opcode != Opcode::CNP => {
            let _ = write!(text, " bytes={}", datagram.payload_len());
        }
        Ok(_) => {}
        Err(error) => {
            let _ = write!(text, " ({error})");
        }
    }
    text
}

/// Returns whether a field of a packet has the value that a script need not name.
pub(crate) fn is_usual(slot: &Slot, value: u64, packet: &[u8], info: &OpcodeInfo) -> bool {
    match slot.name {
        "opcode" | "qp" | "pad" => true,
        "migreq" => value == u64::from(info.opcode != Opcode::CNP),
        "becn" => value == u64::from(info.opcode == Opcode::CNP),
        "pkey" => value == 0xffff,
        "psn" => info.opcode == Opcode::CNP && value == 0,
        // The name of the packet says it.
        "syndrome" => matches!(value >> 5, 0 | 1 | 3),
        "timer" => !is_rnr(packet, info),
        "credits" => value == 0x1f || !is_ack(packet, info),
        "se" | "tver" | "fecn" | "reserved6" | "reserved7" | "ackreq" => value == 0,
        _ => false,
    }
}

fn aeth(packet: &[u8], info: &OpcodeInfo) -> Option<Aeth> {
    let bytes = packet.get(info.offset_of(HeaderSet::AETH)?..)?;
    Aeth::parse(bytes).ok().map(|(aeth, _)| aeth)
}

fn is_rnr(packet: &[u8], info: &OpcodeInfo) -> bool {
    aeth(packet, info).is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::RnrNak { .. }))
}

fn is_ack(packet: &[u8], info: &OpcodeInfo) -> bool {
    aeth(packet, info).is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }))
}

/// Returns the name of the packet, for an ACKNOWLEDGE with its kind.
fn name(packet: &[u8], info: &OpcodeInfo) -> String {
    let is_answer = info.operation == roce_packet::Operation::Acknowledge;
    match aeth(packet, info).map(|aeth| aeth.syndrome).filter(|_| is_answer) {
        Some(Syndrome::RnrNak { .. }) => "rnr_nak".to_owned(),
        Some(Syndrome::Nak(code)) => match (nak_name(code), code) {
            (Some(name), _) => format!("nak {name}"),
            (None, NakCode::Reserved(code)) => format!("nak of reserved code {code}"),
            (None, code) => format!("nak {code}"),
        },
        _ => short_name(info),
    }
}
