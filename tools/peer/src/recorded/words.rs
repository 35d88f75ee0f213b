//! Recorded packets in the words of scripts.

use std::fmt::Write as _;

use roce_packet::{Datagram, Opcode, OpcodeInfo, Operation, Syndrome};

use super::packet::{Recorded, access};
use super::regions::Regions;
use crate::wire::{Slot, describe, is_usual, slots_of};

/// Longer payloads become patterns.
const SHOWN_BYTES: usize = 32;

/// A line of a script.
pub(super) struct Line {
    pub(super) text: String,
}

impl Line {
    /// Adds a word.
    pub(super) fn word(&mut self, word: &str) {
        self.text.push(' ');
        self.text.push_str(word);
    }

    fn field(&mut self, name: &str, value: impl std::fmt::Display) {
        // A closed format never fails on a string.
        let _ = write!(self.text, " {name}={value}");
    }

    /// Begins a line with the name of the packet.
    fn new(statement: &str, bytes: &[u8]) -> Self {
        let described = describe(bytes, None);
        let mut words = described.split(' ');
        let mut line = Self { text: format!("{statement} {}", words.next().unwrap_or_default()) };
        if let Some(code) = words.next().filter(|_| described.starts_with("nak ")) {
            line.word(code);
        }
        line
    }

    /// Returns the line of a packet that the script sends.
    pub(super) fn sent(datagram: &Datagram<'_>, record: &Recorded<'_>, regions: &Regions) -> Self {
        let info = datagram.info();
        let mut line = Self::new("send", record.bytes);
        let access = access(datagram);
        for slot in slots_of(info) {
            let Some(value) = slot.read(record.bytes, info) else { continue };
            match (slot.name, access) {
                ("va", Some((rkey, va, len))) => line.field("va", regions.words(rkey, va, len).0),
                ("rkey", Some((rkey, va, len))) => line.field("rkey", regions.words(rkey, va, len).1),
                _ if is_implied(&slot, value, info, record.bytes) => {}
                ("se" | "ackreq" | "fecn" | "becn", _) if value == 1 => line.word(slot.name),
                (name, _) => line.field(name, value),
            }
        }
        let (head, tail) = datagram.payload();
        let payload = [head, tail].concat();
        if !payload.is_empty() && info.opcode != Opcode::CNP {
            line.field("payload", bytes_of(&payload));
        }
        if record.is_marked {
            line.word("ecn=ce");
        }
        if record.has_wrong_icrc {
            line.word("icrc=wrong");
        }
        line
    }

    /// Returns the line of a packet that the NIC sends, without its MSN.
    pub(super) fn expected(datagram: &Datagram<'_>) -> Self {
        let info = datagram.info();
        let (head, _) = datagram.bytes();
        let mut line = Self::new("expect", head);
        for slot in slots_of(info) {
            let Some(value) = slot.read(head, info) else { continue };
            let is_wanted = match slot.name {
                "psn" => info.opcode != Opcode::CNP,
                "va" | "rkey" | "len" | "add" | "swap" | "compare" | "imm" | "invalidate" => {
                    !is_implied(&slot, value, info, head)
                }
                "timer" => matches!(syndrome(datagram), Some(Syndrome::RnrNak { .. })),
                _ => false,
            };
            if is_wanted {
                line.field(slot.name, value);
            }
        }
        if datagram.payload_len() > 0 && info.opcode != Opcode::CNP {
            line.field("bytes", datagram.payload_len());
        }
        line
    }
}

fn syndrome(datagram: &Datagram<'_>) -> Option<Syndrome> {
    datagram.aeth().map(|aeth| aeth.syndrome)
}

/// Returns whether the field of a sent packet has this value if the script does not name the field.
fn is_implied(slot: &Slot, value: u64, info: &OpcodeInfo, packet: &[u8]) -> bool {
    match slot.name {
        "srcqp" => true,
        // Two names of one field.
        "add" => info.operation != Operation::FetchAdd,
        "swap" | "compare" => info.operation != Operation::CompareSwap,
        _ => is_usual(slot, value, packet, info),
    }
}

/// Returns the line that makes the NIC send the message with these first and last packets.
pub(super) fn post_words(datagram: &Datagram<'_>, last: &Datagram<'_>, id: u32, len: u64) -> String {
    let verb = match datagram.info().operation {
        Operation::Write => "write",
        Operation::ReadRequest => "read",
        Operation::FetchAdd => "fetch_add",
        Operation::CompareSwap => "compare_swap",
        Operation::AtomicWrite => "atomic_write",
        Operation::Flush => "flush",
        _ => "send",
    };
    let mut line = Line { text: format!("post {verb} id={id}") };
    let is_atomic = datagram.atomic_eth().is_some();
    let len = if is_atomic { 8 } else { len };
    if len > 0 && verb != "flush" {
        line.word(&format!("data=local[0..{len}]"));
    }
    if let Some((rkey, va, bytes)) = access(datagram) {
        line.word(&format!("va={va:#x} rkey={rkey:#x}"));
        if verb == "flush" {
            line.field("len", bytes);
        }
    }
    if let Some(atomic) = datagram.atomic_eth() {
        match verb {
            "fetch_add" => line.field("add", atomic.swap_or_add),
            _ => line.word(&format!("compare={} swap={}", atomic.compare, atomic.swap_or_add)),
        }
    }
    if let Some(imm) = last.imm_dt() {
        line.field("imm", u32::from_be_bytes(imm.0));
    }
    if let Some(ieth) = last.ieth() {
        line.field("invalidate", ieth.rkey);
    }
    if last.bth().solicited {
        line.word("solicited");
    }
    line.text
}

/// Returns bytes in the words of scripts. Those of more than 32 bytes are replaced by a pattern.
fn bytes_of(bytes: &[u8]) -> String {
    if let Some(first) = bytes.first().filter(|first| bytes.iter().all(|byte| byte == *first)) {
        return format!("{first:#04x}*{}", bytes.len());
    }
    if bytes.len() > SHOWN_BYTES {
        return format!("pattern[0..{}]", bytes.len());
    }
    let mut text = "hex\"".to_owned();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text + "\""
}
