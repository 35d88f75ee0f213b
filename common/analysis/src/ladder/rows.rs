//! The rows of a ladder.

use super::fold::Folded;
use super::marks::Marks;
use crate::record::Place;

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
        /// How long it waited since a packet, in nanoseconds.
        waited_ns: u64,
        /// That packet: the last copy of the one that it sends again, or a later answer.
        since: Option<Place>,
        /// The first copy, if it is another packet, and the time since then in nanoseconds.
        first: Option<(Place, u64)>,
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
