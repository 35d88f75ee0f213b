//! The parts of a packet as lines of text, for `roce dissect --tree` and `roce explain`.

use std::io::{self, Write};

use roce_packet::fields::{Field, Header, Value};

use super::fields;
use super::walk::Icrc;
use crate::terminal::{Paint, Style};

/// Prints a title such as `BTH, base transport header: 12 bytes at 42 (IBTA 9.2)`.
pub(crate) fn part_title(
    output: &mut dyn Write,
    style: Style,
    header: &Header,
    start: usize,
    len: usize,
) -> io::Result<()> {
    let Header { name, title, rule, .. } = header;
    let full = header.len_bytes();
    let cut = if len < full { format!(" of {full}") } else { String::new() };
    let plural = if len == 1 { "" } else { "s" };
    let title = if name == title { String::new() } else { format!(", {title}") };
    writeln!(
        output,
        "  {}{title}: {len}{cut} byte{plural} at {start} {}",
        style.paint(Paint::BOLD, name),
        style.paint(Paint::DIM, format_args!("({rule})"))
    )
}

/// Prints a field:
///
/// ```text
///      43  .1.. ....   M                          1
/// ```
pub(crate) fn field_line(
    output: &mut dyn Write,
    field: &Field,
    value: &Value<'_>,
    header: &[u8],
    start: usize,
) -> io::Result<()> {
    const LONGEST: usize = 32;

    let range = field.byte_range();
    let place = match range.len() {
        1 => (start + range.start).to_string(),
        _ => format!("{}-{}", start + range.start, start + range.end - 1),
    };
    let pattern = fields::bit_pattern(field, header).unwrap_or_default();
    let mut text = match value {
        Value::Bytes(bytes) if bytes.len() > LONGEST && bytes.iter().all(|byte| *byte == 0) => {
            format!("{} zeros", bytes.len())
        }
        _ => fields::text(field, value),
    };
    if text.len() > 2 * LONGEST {
        text.truncate(2 * LONGEST);
        text.push_str("...");
    }
    if let Some(note) = fields::note(field, value) {
        text = format!("{text:<12}  {note}");
    }
    let name = field.name;
    writeln!(output, "  {place:>7}  {pattern:<10}  {name:<26} {}", text.trim_end())
}

/// Formats the result of the ICRC check as text.
pub(crate) fn icrc_text(icrc: Icrc, style: Style) -> String {
    match icrc {
        Icrc::Checked(check, _) => {
            let (found, computed) = (check.found.to_le_bytes(), check.computed.to_le_bytes());
            let verdict = match check.is_good() {
                true => style.paint(Paint::GREEN, "good"),
                false => style.paint(Paint::RED, "BAD"),
            };
            let found = format!("found {} (the number 0x{:08x})", spaced(&found), check.found);
            match check.is_good() {
                true => format!("ICRC {verdict}: {found}, as computed"),
                false => {
                    let computed = spaced(&computed);
                    format!("ICRC {verdict}: {found}, computed {computed} (0x{:08x})", check.computed)
                }
            }
        }
        Icrc::Unchecked(reason) => format!("ICRC not checked: {reason}"),
    }
}

/// Formats bytes with spaces between them.
pub(crate) fn spaced(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}
