//! Prints every field of every header on its own line.

use std::io::{self, Write};

use roce_capture::Direction;
use roce_document::dissect::Shown;
use roce_packet::foreign::Text;

use crate::decode::text::{field_line, icrc_text, part_title, spaced};
use crate::decode::walk::{Part, Protocol, Walk};
use crate::terminal::{Output, Paint};

/// Prints one packet, followed by an empty line.
pub(super) fn print(shown: &Shown<'_>, output: &mut Output) -> io::Result<()> {
    let Shown { packet, walk, .. } = *shown;
    let style = output.style;
    let mut head = format!("packet {}: {} bytes", packet.number, packet.original_len);
    if packet.is_snapped() {
        head.push_str(&format!(" on the wire, {} in the file", packet.bytes.len()));
    }
    if let Some(time_ns) = packet.time_ns {
        head.push_str(&format!(", {}", utc(time_ns)));
    }
    if let Some(name) = packet.interface_name {
        head.push_str(&format!(", interface {}", Text::new(name)));
    }
    match packet.direction {
        Direction::Unknown => {}
        Direction::Inbound => head.push_str(", received"),
        Direction::Outbound => head.push_str(", sent"),
    }
    writeln!(output, "{}", style.paint(Paint::BOLD, head))?;
    if let Some(comment) = packet.comment {
        writeln!(output, "  comment: {}", Text::new(comment))?;
    }
    for part in &walk.parts {
        part_title(output, style, part.header, part.start, part.len)?;
        part_fields(output, walk, part)?;
    }
    if let Protocol::Other(name, detail) = &walk.protocol {
        writeln!(output, "  not RoCE: {name}{}{detail}", if detail.is_empty() { "" } else { ", " })?;
    }
    if let Some(packet) = walk.packet() {
        writeln!(output, "  {}", icrc_text(packet.icrc, style))?;
    }
    if let Some(mark) = shown.mark {
        writeln!(output, "  {}", style.paint(Paint::YELLOW, format_args!("{}: {mark}", mark.name())))?;
    }
    if let (Some(error), Protocol::Roce(_) | Protocol::Pause) = (walk.error, &walk.protocol) {
        writeln!(output, "  {}", style.paint(Paint::RED, format_args!("malformed: {error}")))?;
    }
    writeln!(output)
}

/// Prints the fields of a part, or its first bytes if it does not have fields.
fn part_fields(output: &mut Output, walk: &Walk<'_>, part: &Part) -> io::Result<()> {
    const BYTES_SHOWN: usize = 24;

    let bytes = walk.part_bytes(part);
    for field in part.header.fields {
        if let Some(value) = field.value(bytes) {
            field_line(output, field, &value, bytes, part.start)?;
        }
    }
    if part.header.fields.is_empty() {
        let shown = bytes.get(..BYTES_SHOWN).unwrap_or(bytes);
        let more = if shown.len() < bytes.len() { " ..." } else { "" };
        writeln!(output, "           {}{more}", spaced(shown))?;
    }
    Ok(())
}

/// Formats a time as date and time of day in UTC.
fn utc(time_ns: u64) -> String {
    let (seconds, fraction) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from 1 March of year 0, so that the leap day is the last day of its year. 400 years
    // have 146,097 days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}.{fraction:09} UTC", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00.000000000 UTC"),
            (951_782_399, "2000-02-28 23:59:59.000000000 UTC"),
            (951_782_400, "2000-02-29 00:00:00.000000000 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20.000000000 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59.000000000 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00.000000000 UTC"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), expected);
        }
    }
}
