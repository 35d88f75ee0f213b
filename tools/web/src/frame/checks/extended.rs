//! The checks of the extended headers.

use roce_analysis::walk::{Packet, Walk};
use roce_packet::fields::{self, AETH, ATOMIC_ETH, CNP, DETH, FETH, RETH};
use roce_packet::mad::GSI_Q_KEY;
use roce_packet::{
    Aeth, AtomicEth, CnpDeviations, Datagram, Deth, Feth, FlushSelectivity, Opcode, OpcodeInfo, Operation,
    Position, Qpn, Reth, Syndrome,
};

use super::check::{Check, State};

/// Largest length of a message, in bytes.
const LONGEST_MESSAGE: u32 = 1 << 31;

pub(super) fn check(walk: &Walk<'_>, packet: &Packet<'_>, checks: &mut Vec<Check>) {
    let Some(info) = packet.info else { return };
    if let Some((reth, _)) = bytes_of(walk, &RETH).and_then(|bytes| Reth::parse(bytes).ok()) {
        checks.push(message_length(info, &reth, packet.payload_len));
        if info.operation == Operation::AtomicWrite {
            checks.push(alignment(reth.va));
        }
    }
    if let Some((atomic, _)) = bytes_of(walk, &ATOMIC_ETH).and_then(|bytes| AtomicEth::parse(bytes).ok()) {
        checks.push(alignment(atomic.va));
    }
    if let Some((aeth, _)) = bytes_of(walk, &AETH).and_then(|bytes| Aeth::parse(bytes).ok()) {
        checks.push(syndrome(&aeth));
    }
    if let Some((deth, _)) = bytes_of(walk, &DETH).and_then(|bytes| Deth::parse(bytes).ok())
        && packet.bth.dest_qp() == Qpn::GSI
    {
        checks.push(gsi_q_key(&deth));
    }
    if let Some((feth, _)) = bytes_of(walk, &FETH).and_then(|bytes| Feth::parse(bytes).ok()) {
        checks.push(flush(&feth));
    }
    if packet.bth.opcode() == Opcode::CNP {
        checks.extend(notification(walk));
    }
}

/// Returns the bytes of a header, as far as they are present.
fn bytes_of<'a>(walk: &Walk<'a>, header: &'static fields::Header) -> Option<&'a [u8]> {
    let part = walk.parts.iter().find(|part| !part.is_outer && std::ptr::eq(part.header, header))?;
    Some(walk.part_bytes(part))
}

/// Compares the length of a message with the payload of its first packet.
fn message_length(info: &OpcodeInfo, reth: &Reth, payload_len: Option<usize>) -> Check {
    let len = reth.dma_len;
    if len > LONGEST_MESSAGE {
        let text = format!("DMALen is {len}, but a message has at most 2^31 bytes.");
        return Check::new(("message_length", "Message length", "IBTA 9.7.7"), State::Bad, text);
    }
    let payload = payload_len.unwrap_or(0) as u64;
    let (holds, text) = match (info.operation, info.position) {
        (Operation::Write, Position::Only) => (
            u64::from(len) == payload,
            format!("DMALen is {len}, and the only packet of the message carries {payload} bytes."),
        ),
        (Operation::Write, _) => (
            u64::from(len) > payload,
            format!("DMALen is {len}, and the first packet of the message carries {payload} bytes."),
        ),
        (Operation::AtomicWrite, _) => {
            (len == 8, format!("DMALen is {len}, and an atomic write has 8 bytes."))
        }
        _ => (true, format!("DMALen is {len}, not more than 2^31.")),
    };
    Check::new(("message_length", "Message length", "IBTA 9.7.4.1.6"), State::of(holds), text)
}

fn alignment(va: u64) -> Check {
    let holds = va.is_multiple_of(8);
    let text = match holds {
        true => format!("The address 0x{va:x} is a multiple of 8."),
        false => format!("The address 0x{va:x} is not a multiple of 8, which atomic operations require."),
    };
    Check::new(("alignment", "Alignment", ATOMIC_ETH.rule), State::of(holds), text)
}

fn syndrome(aeth: &Aeth) -> Check {
    let holds = !matches!(aeth.syndrome, Syndrome::Reserved(_));
    let text = format!("The syndrome means: {}.", aeth.syndrome);
    Check::new(("syndrome", "Syndrome", AETH.rule), State::of(holds), text)
}

fn gsi_q_key(deth: &Deth) -> Check {
    let q_key = deth.q_key;
    let text = match q_key {
        GSI_Q_KEY => "The Q_Key is 0x80010000, that of queue pair 1.".to_owned(),
        _ => format!("The Q_Key is 0x{q_key:08x}, but queue pair 1 has 0x80010000."),
    };
    Check::new(("q_key", "Q_Key", "IBTA 10.2.5"), State::of(q_key == GSI_Q_KEY), text)
}

fn flush(feth: &Feth) -> Check {
    let is_known = !matches!(feth.selectivity, FlushSelectivity::Reserved(_));
    let has_placement = feth.global_visibility || feth.persistence;
    let text = match (is_known, has_placement) {
        (true, true) => "Selectivity and placement of the FLUSH are valid.",
        (true, false) => "The FLUSH requires neither visibility nor persistence.",
        (false, _) => "The selectivity of the FLUSH is reserved.",
    };
    Check::new(("flush", "FLUSH", FETH.rule), State::of(is_known && has_placement), text)
}

/// Compares a CNP with the standard form.
fn notification(walk: &Walk<'_>) -> Option<Check> {
    const NAMES: [(CnpDeviations, &str); 8] = [
        (CnpDeviations::BECN_CLEAR, "BECN is 0"),
        (CnpDeviations::FECN_SET, "FECN is 1"),
        (CnpDeviations::MIG_REQ_SET, "MigReq is 1"),
        (CnpDeviations::SOLICITED, "SE is 1"),
        (CnpDeviations::ACK_REQ_SET, "AckReq is 1"),
        (CnpDeviations::PSN_NOT_ZERO, "the PSN is not 0"),
        (CnpDeviations::RESERVED_NOT_ZERO, "the 16 reserved bytes are not 0"),
        (CnpDeviations::PADDED, "PadCnt is not 0"),
    ];
    let bth = walk.parts.iter().find(|part| std::ptr::eq(part.header, &fields::BTH))?;
    let transport = walk.outer.transport.or_else(|| walk.bytes.get(bth.start..))?;
    let deviations = CnpDeviations::of(&Datagram::parse(transport, &[]).ok()?);
    let found: Vec<_> =
        NAMES.iter().filter(|(flag, _)| deviations.contains(*flag)).map(|(_, name)| *name).collect();
    let text = match found.is_empty() {
        true => "The CNP has the standard form.".to_owned(),
        false => {
            format!("The CNP differs from the standard form: {}. Receivers accept it.", found.join(", "))
        }
    };
    Some(Check::new(("cnp", "CNP", CNP.rule), State::of(found.is_empty()), text))
}
