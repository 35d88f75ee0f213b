//! The explanation as text.

use std::io::{self, Write};

use roce_analysis::icrc::Wrong;
use roce_document::explain::{Explanation, Origin, is_masked};
use roce_document::first_header::FirstHeader;
use roce_packet::fields::EXTENDED;
use roce_packet::foreign::Text;
use roce_packet::{Direction, OpcodeInfo, Operation, PayloadRule, Position, Transport};

use crate::decode::text::{field_line, icrc_text, part_title, spaced};
use crate::decode::walk::{Icrc, Part, Protocol};
use crate::terminal::{Output, Paint};

const LINE: usize = 100;
const BYTES_PER_ROW: usize = 16;

pub(super) fn print(explanation: &Explanation<'_>, output: &mut Output) -> io::Result<()> {
    overview(explanation, output)?;
    dump(explanation, output)?;
    for part in &explanation.walk.parts {
        part_in_full(explanation, part, output)?;
    }
    icrc(explanation, output)?;
    let error = explanation.walk.error;
    if let (Some(error), Protocol::Roce(_) | Protocol::Pause) = (error, &explanation.walk.protocol) {
        let text = format!("malformed: {error}");
        writeln!(output, "\n{}", output.style.paint(Paint::RED, text))?;
    }
    Ok(())
}

/// Prints how the bytes were parsed and the kind of the packet.
fn overview(explanation: &Explanation<'_>, output: &mut Output) -> io::Result<()> {
    let Explanation { bytes, origin, walk, .. } = explanation;
    match *origin {
        Origin::Digits { from, was_guessed } => {
            let other = match from {
                FirstHeader::Eth => "--from ip or --from bth",
                FirstHeader::Ip => "--from eth or --from bth",
                FirstHeader::Bth => "--from eth or --from ip",
            };
            let hint =
                if was_guessed { format!(" (detected; {other} overrides this)") } else { String::new() };
            writeln!(output, "{} bytes, read as {}{hint}.", bytes.len(), from.noun())?;
        }
        Origin::Capture { file, number, link_type } => writeln!(
            output,
            "Packet {number} of {}: {} bytes, link type {link_type}.",
            Text::new(file),
            bytes.len()
        )?,
    }
    match &walk.protocol {
        Protocol::Roce(Some(packet)) => match packet.info {
            Some(info) => wrapped(output, "", &sentence(info)),
            None => wrapped(output, "", &format!("Opcode {} is not assigned.", packet.bth.opcode())),
        },
        Protocol::Roce(None) => writeln!(output, "The packet seems to be RoCE, but its BTH cannot be found."),
        Protocol::Pause => writeln!(output, "The frame is a pause frame."),
        Protocol::Other(name, detail) => {
            let comma = if detail.is_empty() { "" } else { ", " };
            writeln!(output, "The packet is not RoCE: {name}{comma}{detail}.")
        }
    }
}

/// Describes an opcode from its row in the table.
fn sentence(info: &OpcodeInfo) -> String {
    if info.operation == Operation::Cnp {
        return "CNP: a congestion notification packet, which the receiver of marked packets sends to their sender."
            .to_owned();
    }
    let operation = match info.operation {
        Operation::Send => "SEND",
        Operation::Write => "RDMA WRITE",
        Operation::ReadRequest => "RDMA READ",
        Operation::ReadResponse => "response to an RDMA READ (or to a FLUSH or ATOMIC WRITE)",
        Operation::Acknowledge => "acknowledgement (ACK or NAK)",
        Operation::AtomicAcknowledge => "response to an atomic operation",
        Operation::CompareSwap => "atomic compare and swap",
        Operation::FetchAdd => "atomic fetch and add",
        Operation::Resync => "RESYNC",
        Operation::Flush => "FLUSH",
        Operation::AtomicWrite => "ATOMIC WRITE",
        Operation::Cnp => "congestion notification",
    };
    let position = match info.position {
        Position::First => "the first of several packets",
        Position::Middle => "a middle packet of several",
        Position::Last => "the last of several packets",
        Position::Only => "the only packet",
    };
    let transport = match info.transport {
        Transport::Rc => "reliable connection",
        Transport::Uc => "unreliable connection",
        Transport::Rd => "reliable datagram",
        Transport::Ud => "unreliable datagram",
        Transport::Xrc => "extended reliable connection",
        Transport::Cnp => "congestion notification",
    };
    let sides = match info.direction {
        Direction::Request => "from requester to responder",
        Direction::Response => "from responder to requester",
        Direction::Cnp => "from receiver to sender",
    };
    let payload = match info.payload {
        PayloadRule::None => "no payload".to_owned(),
        PayloadRule::FullMtu => "exactly one path MTU of payload".to_owned(),
        PayloadRule::OneToMtu => "1 byte to one path MTU of payload".to_owned(),
        PayloadRule::ZeroToMtu => "up to one path MTU of payload".to_owned(),
        PayloadRule::Exactly(len) => format!("{len} bytes of payload"),
    };
    let headers: Vec<_> = EXTENDED
        .iter()
        .filter(|(flag, _)| info.headers.contains(*flag))
        .map(|(_, header)| header.name)
        .collect();
    let headers = if headers.is_empty() { "no further header".to_owned() } else { headers.join(" and ") };
    format!(
        "{}: {operation}, {position} of its message, {sides} ({transport}). The BTH is followed by {headers}, \
         then {payload}.",
        info.name
    )
}

/// Prints all bytes, with each header in its own lines and color.
fn dump(explanation: &Explanation<'_>, output: &mut Output) -> io::Result<()> {
    writeln!(output, "\n{}", output.style.paint(Paint::BOLD, "The bytes"))?;
    let mut shown = 0;
    for (index, part) in explanation.walk.parts.iter().enumerate() {
        let start = part.start;
        // Malformed packets contain bytes that do not belong to any header.
        unclaimed(explanation, shown, start, output)?;
        let paint = color(index);
        for (row, bytes) in explanation.walk.part_bytes(part).chunks(BYTES_PER_ROW).enumerate() {
            let name = if row == 0 { part.header.name } else { "" };
            let line = format!("{name:<13}{:>5}  {}", start + row * BYTES_PER_ROW, spaced(bytes));
            writeln!(output, "  {}", output.style.paint(paint, line))?;
        }
        shown = start + part.len;
    }
    unclaimed(explanation, shown, explanation.bytes.len(), output)
}

fn unclaimed(explanation: &Explanation<'_>, from: usize, to: usize, output: &mut Output) -> io::Result<()> {
    let bytes = explanation.bytes.get(from..to).unwrap_or_default();
    for (row, bytes) in bytes.chunks(BYTES_PER_ROW).enumerate() {
        let name = if row == 0 { "(no header)" } else { "" };
        writeln!(output, "  {name:<13}{:>5}  {}", from + row * BYTES_PER_ROW, spaced(bytes))?;
    }
    Ok(())
}

/// Returns a color that differs from those of the neighboring headers.
fn color(index: usize) -> Paint {
    Paint::CYCLE.into_iter().cycle().nth(index).unwrap_or(Paint::BOLD)
}

/// Prints a header with every field and its meaning.
fn part_in_full(explanation: &Explanation<'_>, part: &Part, output: &mut Output) -> io::Result<()> {
    let start = part.start;
    let style = output.style;
    writeln!(output)?;
    part_title(output, style, part.header, start, part.len)?;
    wrapped(output, "    ", part.header.purpose)?;
    let bytes = explanation.walk.part_bytes(part);
    for field in part.header.fields {
        let Some(value) = field.value(bytes) else { continue };
        field_line(output, field, &value, bytes, start)?;
        let masked = if field.variant { " Masked for the ICRC." } else { "" };
        wrapped(output, "                       ", &format!("{}{masked}", field.meaning))?;
    }
    Ok(())
}

/// Prints how the ICRC is computed.
fn icrc(explanation: &Explanation<'_>, output: &mut Output) -> io::Result<()> {
    let Some(icrc) = explanation.icrc() else { return Ok(()) };
    let style = output.style;
    writeln!(output, "\n{}", style.paint(Paint::BOLD, "How the ICRC is computed"))?;
    let covered = explanation.covered();
    if let Icrc::Checked(check, _) = icrc {
        let ones = explanation.ones();
        let start = if ones.is_empty() {
            "the packet from the local route header to the padding, because it has no GRH"
        } else {
            "eight bytes of ones, which replace the local route header of a native InfiniBand packet, and over \
             the packet from layer 3 to the padding"
        };
        let text = format!(
            "The ICRC is the CRC-32 of Ethernet over {start}. Every field that may change on the path is replaced \
             by ones; bytes with such fields are in brackets."
        );
        wrapped(output, "  ", &text)?;
        let marked = |bytes: &[u8], is_masked: &dyn Fn(usize) -> bool| brackets(bytes, is_masked, style);
        if !ones.is_empty() {
            writeln!(output, "  {:<18} {}", "", marked(ones, &|_| true))?;
        }
        let mut count = ones.len();
        for (part, bytes) in &covered {
            count += bytes.len();
            for (row, chunk) in bytes.chunks(BYTES_PER_ROW).enumerate() {
                let name = if row == 0 { part.header.name } else { "" };
                let first = row * BYTES_PER_ROW;
                let text = marked(chunk, &|index| is_masked(part, first + index));
                writeln!(output, "  {name:<13}{:>5} {text}", part.start + first)?;
            }
        }
        writeln!(output, "  CRC-32 of these {count} bytes: 0x{:08x}", check.computed)?;
        writeln!(output, "  sent least significant byte first: {}", spaced(&check.computed.to_le_bytes()))?;
    }
    writeln!(output, "  {}", icrc_text(icrc, style))?;
    match explanation.wrong_icrc() {
        Some(wrong) => mistakes(&wrong, output),
        None => Ok(()),
    }
}

/// Prints the mistakes that lead to a wrong ICRC.
fn mistakes(wrong: &Wrong, output: &mut Output) -> io::Result<()> {
    let style = output.style;
    writeln!(output, "\n{}", style.paint(Paint::BOLD, "Why the ICRC is wrong"))?;
    if wrong.findings.is_empty() {
        return wrapped(
            output,
            "  ",
            "No known mistake leads to this value: neither a field that is not masked, nor another CRC, nor \
             another value of one field, nor one damaged byte.",
        );
    }
    for finding in &wrong.findings {
        let paint = if finding.is_definite() { Paint::RED } else { Paint::YELLOW };
        let mark = if finding.is_definite() { "" } else { " (probably)" };
        writeln!(output, "  {}", style.paint(paint, format!("{}{mark}", finding.name())))?;
        wrapped(output, "    ", &finding.explanation())?;
        wrapped(output, "    ", &format!("To correct it: {}.", finding.fix()))?;
    }
    Ok(())
}

/// Formats bytes in columns, with the masked ones in brackets.
fn brackets(bytes: &[u8], is_masked: &dyn Fn(usize) -> bool, style: crate::terminal::Style) -> String {
    let mut text = String::new();
    let mut before = false;
    for (index, byte) in bytes.iter().enumerate() {
        let masked = is_masked(index);
        text.push(match (before, masked) {
            (false, true) => '[',
            (true, false) => ']',
            _ => ' ',
        });
        let digits = format!("{byte:02x}");
        if masked {
            text.push_str(&style.paint(Paint::REVERSE, digits).to_string());
        } else {
            text.push_str(&digits);
        }
        before = masked;
    }
    if before {
        text.push(']');
    }
    text
}

/// Prints a text, wrapped to the line length.
fn wrapped(output: &mut Output, indent: &str, text: &str) -> io::Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.len() + 1 + word.len() > LINE {
            writeln!(output, "{indent}{}", output.style.paint(Paint::DIM, &line))?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(output, "{indent}{}", output.style.paint(Paint::DIM, line))
}
