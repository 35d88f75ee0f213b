//! A ladder as text, at most 100 columns wide.

use std::fmt::Write as _;

use super::fold::Folded;
use super::marks::Marks;
use super::rows::{Arrow, Content, Ladder, Row};
use crate::record::Place;
use crate::words::{duration, thousands};

/// Width of the labels on both sides.
const LABEL: usize = 28;
/// Width of the space between both ends.
const SPACE: usize = 20;

impl Ladder {
    /// Returns the ladder as lines of ASCII characters. The columns are: number of the packet, microseconds
    /// since the first packet, packets of end 0, arrows, packets of end 1.
    ///
    /// `--->` is a packet, `===>` a packet that was sent again, and `---x` a packet that did not arrive.
    #[must_use]
    pub fn to_text(&self) -> String {
        let [left, right] = &self.ends;
        let mut text = format!(
            "{:>7} {:>9} {:>LABEL$} {:^width$} {right}\n",
            "packet",
            "us",
            left,
            "",
            width = SPACE + 2
        );
        for row in &self.rows {
            // Writing to a string cannot fail.
            let _ = row.write(&mut text);
        }
        text
    }
}

impl Content {
    /// Returns what the ladder says about the row beside its arrow, in one line.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Packet(arrow) => words(arrow),
            Self::Missing { first, count, is_lost, .. } => missing(*first, *count, *is_lost),
            Self::Timeout { waited_ns, since, first, .. } => {
                joined("timeout: ", waited(*waited_ns, *since, *first))
            }
            Self::Folded(folded) => joined("", [packets(folded), folded.remarks()]),
        }
    }
}

/// Returns the texts that are not empty, separated by commas.
fn joined(begin: &str, [text, more]: [String; 2]) -> String {
    let separator = if more.is_empty() { "" } else { ", " };
    format!("{begin}{text}{separator}{more}")
}

impl Row {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        let time = self.time_ns.map_or_else(|| "-".to_owned(), microseconds);
        let (number, from, label, line) = match &self.content {
            Content::Packet(arrow) => {
                (arrow.place.to_string(), arrow.from, short_words(arrow), format!("|{}|", drawn(arrow)))
            }
            Content::Missing { from, first, count, is_lost } => {
                let line = if *is_lost { shaft(*from, "-", 'x', "") } else { ". ".repeat(SPACE / 2) };
                ("-".to_owned(), *from, missing(*first, *count, *is_lost), format!("|{line}|"))
            }
            Content::Timeout { end, waited_ns, since, first } => {
                let [label, more] = waited(*waited_ns, *since, *first);
                write_line(text, "-", &time, *end, label, &format!(":{:^SPACE$}:", "timeout"))?;
                if more.is_empty() {
                    return Ok(());
                }
                return write_line(text, "", "", *end, more, &format!(":{:SPACE$}:", ""));
            }
            Content::Folded(folded) => {
                let line = format!(":{:^SPACE$}:", format!("... {} ...", packets(folded)));
                ("...".to_owned(), 1, folded.remarks(), line)
            }
        };
        write_line(text, &number, &time, from, label, &line)
    }
}

/// Writes a line with a label beside an end.
fn write_line(
    text: &mut String,
    number: &str,
    time: &str,
    end: usize,
    label: String,
    line: &str,
) -> std::fmt::Result {
    let label = shortened(label);
    let (left, right) = if end == 0 { (label.as_str(), "") } else { ("", label.as_str()) };
    let row = format!("{number:>7} {time:>9} {left:>LABEL$} {line} {right}");
    writeln!(text, "{}", row.trim_end())
}

/// Returns how long a requester waited: since the packet from which the timeout counts, and since the first
/// copy if that is another packet.
pub(super) fn waited(waited_ns: u64, since: Option<Place>, first: Option<(Place, u64)>) -> [String; 2] {
    let since = match since {
        Some(place) => format!("{} after packet {place}", duration(waited_ns)),
        None => format!("after {}", duration(waited_ns)),
    };
    let first = first.map(|(place, ns)| format!("{} after the first, {place}", duration(ns)));
    [since, first.unwrap_or_default()]
}

/// Returns a time in microseconds with one decimal.
pub(super) fn microseconds(ns: u64) -> String {
    format!("{}.{}", ns / 1_000, ns % 1_000 / 100)
}

/// Returns the label of a packet with its length and its marks.
pub(super) fn words(arrow: &Arrow) -> String {
    let bytes = arrow.bytes.map_or_else(String::new, |bytes| format!(", {} B", thousands(bytes)));
    with_marks(format!("{}{bytes}", arrow.label), arrow)
}

/// Returns the label of a packet with its marks, and with its length if there is room.
fn short_words(arrow: &Arrow) -> String {
    let whole = words(arrow);
    if whole.len() <= LABEL { whole } else { with_marks(arrow.label.clone(), arrow) }
}

fn with_marks(mut text: String, arrow: &Arrow) -> String {
    for word in arrow.marks.words() {
        text.push_str(", ");
        text.push_str(word);
    }
    text
}

/// Returns the label of packets that were not captured.
pub(super) fn missing(first: i64, count: u64, is_lost: bool) -> String {
    let what = if is_lost { "lost" } else { "not captured" };
    match count {
        0 | 1 => format!("PSN {first} {what}"),
        _ => format!("PSN {first} to {} {what}", first.saturating_add_unsigned(count - 1)),
    }
}

/// Returns the number of packets of a folded row.
pub(super) fn packets(folded: &Folded) -> String {
    let count: u64 = folded.packets.iter().sum();
    format!("{} packets", thousands(count))
}

fn drawn(arrow: &Arrow) -> String {
    let line = if arrow.marks.contains(Marks::RESENT) { "=" } else { "-" };
    let end = match (arrow.marks.contains(Marks::LOST), arrow.from) {
        (true, _) => 'x',
        (false, 0) => '>',
        (false, _) => '<',
    };
    shaft(arrow.from, line, end, if arrow.marks.contains(Marks::CE) { "CE" } else { "" })
}

/// Draws an arrow with a note in its middle. One that ends with `x` has half the length.
fn shaft(from: usize, line: &str, end: char, note: &str) -> String {
    let length = if end == 'x' { SPACE / 2 } else { SPACE } - 1;
    let before = (length - note.len()) / 2;
    let line = format!("{}{note}{}", line.repeat(before), line.repeat(length - note.len() - before));
    if from == 0 {
        format!("{:<SPACE$}", format!("{line}{end}"))
    } else {
        format!("{:>SPACE$}", format!("{end}{line}"))
    }
}

/// Cuts a label that is too long.
fn shortened(label: String) -> String {
    if label.len() <= LABEL {
        return label;
    }
    let mut short: String = label.chars().take(LABEL - 1).collect();
    short.push('~');
    short
}
