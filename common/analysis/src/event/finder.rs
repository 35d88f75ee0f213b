//! What the searches for events share.

use std::collections::{HashMap, HashSet};

use super::kinds::{Event, EventKind};
use super::pauses::{Pause, pauses};
use crate::analysis::Analysis;
use crate::connection::{Connection, View};
use crate::copies::{Crossing, Tap};
use crate::record::{Record, StreamId};
use crate::replay::Replay;

/// Collects events.
pub(super) struct Finder<'a> {
    pub(super) analysis: &'a Analysis,
    pub(super) found: Vec<(u64, Event)>,
    /// How far the clock of a tap is ahead.
    pub(super) offsets: HashMap<Tap, i64>,
    /// Indices of damaged packets by tap.
    pub(super) damaged: HashMap<Tap, Vec<usize>>,
    /// Damaged packets that explain a missing one.
    pub(super) claimed: HashSet<usize>,
    /// First requests of all that were lost between the taps.
    pub(super) lost_first: HashSet<usize>,
    /// The pauses that ports asked for.
    pub(super) pauses: Vec<Pause>,
}

impl<'a> Finder<'a> {
    pub(super) fn new(analysis: &'a Analysis) -> Self {
        let mut offsets = HashMap::new();
        for connection in &analysis.connections {
            let far = connection.view_of(1).map(|view| view.tap);
            let offset = connection.between.as_ref().and_then(|between| between.offset_ns);
            if let (Some(tap), Some(offset)) = (far, offset)
                && !connection.view_of(0).is_some_and(|near| offsets.contains_key(&near.tap))
            {
                offsets.entry(tap).or_insert(offset);
            }
        }
        let mut damaged: HashMap<Tap, Vec<usize>> = HashMap::new();
        for (index, record) in analysis.records.iter().enumerate() {
            if !record.is_sound() {
                damaged.entry(Tap::of(record)).or_default().push(index);
            }
        }
        Self {
            analysis,
            found: Vec::new(),
            offsets,
            damaged,
            claimed: HashSet::new(),
            lost_first: HashSet::new(),
            pauses: pauses(analysis),
        }
    }

    pub(super) fn record(&self, index: usize) -> Option<&'a Record> {
        self.analysis.records.get(index)
    }

    /// Returns the time of a packet by the clock of the first tap.
    pub(super) fn time(&self, index: usize) -> u64 {
        self.record(index).map_or(0, |record| self.on_first_clock(Tap::of(record), record.time_ns))
    }

    /// Returns a time of a tap by the clock of the first tap.
    pub(super) fn on_first_clock(&self, tap: Tap, time_ns: u64) -> u64 {
        let ahead = self.offsets.get(&tap).copied().unwrap_or(0);
        time_ns.saturating_add_signed(ahead.saturating_neg())
    }

    /// Returns whether a pause takes at least half of a time by the clock of the first tap, so that it
    /// explains a silence.
    pub(super) fn is_paused(&self, from_ns: u64, to_ns: u64) -> bool {
        self.pauses.iter().any(|pause| {
            let [start, end] =
                [pause.first_ns, pause.until_ns].map(|time| self.on_first_clock(pause.tap, time));
            let common = end.min(to_ns).saturating_sub(start.max(from_ns));
            common >= to_ns.saturating_sub(from_ns).div_ceil(2)
        })
    }

    /// Adds an event at some packets; the time is that of the first one.
    pub(super) fn push(
        &mut self,
        kind: EventKind,
        side: Option<(usize, usize)>,
        at: &[usize],
        psn: Option<u32>,
        summary: String,
    ) {
        let time = at.first().map_or(0, |index| self.time(*index));
        let at = at.iter().filter_map(|index| self.record(*index)).map(|record| record.place).collect();
        let (connection, end) = (side.map(|side| side.0), side.map(|side| side.1));
        self.found.push((time, Event { kind, connection, end, at, psn, summary }));
    }

    /// Takes a damaged packet that explains why one is missing: of this sender, at this tap, between two
    /// indices of the same file.
    pub(super) fn claim(
        &mut self,
        tap: Tap,
        source: StreamId,
        indices: std::ops::Range<usize>,
    ) -> Option<usize> {
        let sender = self.analysis.streams.get(source)?.key.source;
        let damaged = self.damaged.get(&tap)?;
        let start = damaged.partition_point(|index| *index < indices.start);
        let found =
            damaged.get(start..)?.iter().copied().take_while(|index| *index < indices.end).find(|index| {
                let stream = self
                    .analysis
                    .records
                    .get(*index)
                    .and_then(|record| self.analysis.streams.get(record.stream));
                !self.claimed.contains(index) && stream.is_some_and(|stream| stream.key.source == sender)
            })?;
        self.claimed.insert(found);
        Some(found)
    }
}

/// The requests of one end of a connection, and their answers.
pub(super) struct Side<'a> {
    /// Number of the connection.
    pub(super) number: usize,
    /// The requester.
    pub(super) end: usize,
    /// The requests and the answers.
    pub(super) streams: [Option<StreamId>; 2],
    /// The tap near the requester, and the one near the responder. With one tap, both are that tap.
    pub(super) near: &'a View,
    pub(super) far: &'a View,
    pub(super) requester: &'a Replay,
    pub(super) responder: &'a Replay,
    /// The stream of the requester from the tap near it to the other one, and the opposite stream.
    pub(super) crossings: Option<[&'a Crossing; 2]>,
}

impl<'a> Side<'a> {
    pub(super) fn new(
        finder: &Finder<'a>,
        number: usize,
        connection: &'a Connection,
        end: usize,
    ) -> Option<Self> {
        let connection: &'a Connection = finder.analysis.connections.get(number).or(Some(connection))?;
        let other = 1_usize.checked_sub(end)?;
        let crossings = match &connection.between {
            Some(between) => Some([between.crossings.get(end)?, between.crossings.get(other)?]),
            None => None,
        };
        Some(Self {
            number,
            end,
            streams: [*connection.streams.get(end)?, *connection.streams.get(other)?],
            near: connection.view_of(end)?,
            far: connection.view_of(other)?,
            requester: connection.requester(end)?,
            responder: connection.responder(end)?,
            crossings,
        })
    }

    /// The connection and the requester.
    pub(super) const fn requests(&self) -> Option<(usize, usize)> {
        Some((self.number, self.end))
    }

    /// The connection and the responder.
    pub(super) const fn answers(&self) -> Option<(usize, usize)> {
        Some((self.number, 1 - self.end))
    }
}

/// Returns the 24-bit number of a packet.
pub(super) fn psn_of(finder: &Finder<'_>, index: usize) -> Option<u32> {
    finder.record(index).map(|record| record.psn.get())
}
