//! A sequence ladder: the packets of a connection in their order, as arrows between both ends.
//!
//! [`ladder`] adds what the packets do not show by themselves: which of them were lost or sent again, and
//! where the requester waited. Runs of packets without any of this become one row, so that twenty packets and
//! two million fit a page. [`Ladder::to_text`] and [`Ladder::to_svg`] draw it.

mod events;
mod fold;
mod label;
mod svg;
mod text;

use bitflags::bitflags;

use crate::analysis::Analysis;
use crate::connection::{Connection, End};
use crate::record::Place;

pub use fold::Folded;

/// A sequence ladder.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    /// Names of both ends.
    pub ends: [String; 2],
    /// The rows, from the first packet to the last.
    pub rows: Vec<Row>,
}

/// A row of a ladder.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Time since the first packet in nanoseconds; `None` if the captures have no times.
    pub time_ns: Option<u64>,
    /// What happens.
    pub content: Content,
}

/// What a row of a ladder shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A captured packet.
    Packet(Arrow),
    /// Packets that were not captured.
    Missing {
        /// Index of the end that sent them.
        from: usize,
        /// The first PSN, relative to that of the first request.
        first: i64,
        /// Their number.
        count: u64,
        /// Whether they were lost. Otherwise only the capture lacks them.
        is_lost: bool,
    },
    /// A requester waited for an answer, and then sent again.
    Timeout {
        /// Index of the requester.
        end: usize,
        /// How long it waited, in nanoseconds.
        waited_ns: u64,
    },
    /// Packets that are not shown.
    Folded(Folded),
}

/// A captured packet of a ladder.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrow {
    /// The packet.
    pub place: Place,
    /// Index of the end that sent it.
    pub from: usize,
    /// Operation and PSN.
    pub label: String,
    /// Length of the message in bytes, if the packet shows it.
    pub bytes: Option<u64>,
    /// PSN relative to that of the first request; `None` for a CNP.
    pub psn: Option<i64>,
    /// What is remarkable about it.
    pub marks: Marks,
    /// Whether it is an answer.
    pub is_answer: bool,
}

bitflags! {
    /// What is remarkable about a packet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Marks: u16 {
        /// It did not arrive.
        const LOST = 1;
        /// The requester sent it again.
        const RESENT = 1 << 1;
        /// A NAK for a sequence error.
        const NAK = 1 << 2;
        /// The receiver is not ready.
        const RNR = 1 << 3;
        /// A NAK that refuses a request.
        const REFUSED = 1 << 4;
        /// A congestion notification.
        const CNP = 1 << 5;
        /// The packet has an ECN mark.
        const CE = 1 << 6;
        /// Its ICRC is wrong, or its headers contradict each other.
        const BROKEN = 1 << 7;
        /// The network delivered it twice.
        const DOUBLED = 1 << 8;
        /// Later packets overtook it.
        const LATE = 1 << 9;
    }
}

impl Marks {
    /// Returns the words that follow the label of a packet.
    pub(crate) fn words(self) -> impl Iterator<Item = &'static str> {
        const WORDS: [(Marks, &str); 6] = [
            (Marks::LOST, "lost"),
            (Marks::RESENT, "again"),
            (Marks::CE, "CE"),
            (Marks::BROKEN, "broken"),
            (Marks::DOUBLED, "twice"),
            (Marks::LATE, "late"),
        ];
        WORDS.into_iter().filter(move |(mark, _)| self.contains(*mark)).map(|(_, word)| word)
    }
}

/// Builds the ladder of a connection, as the tap near end 0 shows it. It has at most `most_rows` rows, but at
/// least ten.
#[must_use]
pub fn ladder(analysis: &Analysis, connection: &Connection, most_rows: usize) -> Ladder {
    let events = events::events(analysis, connection);
    let first_ns = events.first().map_or(0, |event| event.time_ns);
    let has_times = analysis.counts.without_time == 0;
    let shown = fold::fold(events, most_rows.max(10));
    let mut psns = label::Psns::new(analysis, connection);
    let rows = shown.into_iter().filter_map(|shown| {
        let (time_ns, content) = match shown {
            fold::Shown::Event(event) => {
                (event.time_ns, label::content(analysis, connection, &event, &mut psns)?)
            }
            fold::Shown::Folded(folded) => (folded.from_ns, Content::Folded(folded)),
        };
        let since_first = time_ns.saturating_sub(first_ns);
        Some(Row { time_ns: has_times.then_some(since_first), content })
    });
    Ladder { ends: connection.ends.map(name), rows: rows.collect() }
}

/// A packet in a chart of PSNs over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Time of the capture in nanoseconds.
    pub time_ns: u64,
    /// Index of the end whose requests have this PSN.
    pub requester: usize,
    /// PSN relative to that of the first request.
    pub psn: i64,
    /// What is remarkable about the packet.
    pub marks: Marks,
    /// Whether it is an answer.
    pub is_answer: bool,
}

/// Returns every packet of a connection except CNPs, as the tap near end 0 shows them, and those that were
/// lost in front of it.
#[must_use]
pub fn points(analysis: &Analysis, connection: &Connection) -> Vec<Point> {
    let mut psns = label::Psns::new(analysis, connection);
    let events = events::events(analysis, connection);
    events.iter().flat_map(|event| label::points(analysis, connection, event, &mut psns)).collect()
}

/// Returns the name of an end.
#[must_use]
pub fn name(end: End) -> String {
    match end.qpn {
        Some(qpn) => format!("{} QP 0x{:x}", end.address, qpn.get()),
        None => end.address.to_string(),
    }
}

/// Formats a whole number with commas between thousands.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration with three digits or more, in the unit that fits.
#[must_use]
pub fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests;
