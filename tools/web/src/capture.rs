//! A capture file: its packets, its connections, and what they say.

mod analysed;
mod query;
mod series;
mod store;

use std::cell::OnceCell;
use std::io::Cursor;

use roce_analysis::walk::{Protocol, Walk};
use roce_capture::{CaptureError, CaptureReader, CapturedPacket};
use roce_document::dissect::filter::Facts;
use roce_document::dissect::{Flows, Listed, Mark, Row, Shown, Summary};
use roce_document::packet::walk;
use roce_packet::ROCE_UDP_PORT;
use roce_transport::with_causes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::ladder::ladder_json;
use analysed::Analysed;
use query::Query;
use series::{MOST_INTERVALS, Series};
use store::Store;

/// An open capture file.
///
/// Opening decodes each packet once, and keeps its bytes and what a filter compares. The text of a packet is
/// made when it is shown, and the connections are analysed when they are first needed.
#[derive(Debug)]
pub struct Capture {
    name: String,
    store: Store,
    facts: Vec<Facts>,
    counts: Counts,
    /// Why the file contains no RoCE.
    why_empty: Option<String>,
    /// The error behind the last packet, if the file is damaged there.
    damage: Option<String>,
    analysed: OnceCell<Analysed>,
    /// The last filter and the packets that match it.
    selection: Option<Selection>,
}

/// Numbers of packets by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    roce: u64,
    malformed: u64,
    bad_icrc: u64,
}

impl Counts {
    fn add(&mut self, walk: &Walk<'_>) {
        self.roce += u64::from(matches!(walk.protocol, Protocol::Roce(_)));
        let is_ours = !matches!(walk.protocol, Protocol::Other(..));
        self.malformed += u64::from(is_ours && walk.error.is_some());
        self.bad_icrc += u64::from(walk.packet().is_some_and(|packet| packet.icrc.is_bad()));
    }
}

/// The packets that match a filter.
#[derive(Debug)]
struct Selection {
    filter: String,
    /// Indices of the packets, from 0.
    indices: Vec<usize>,
}

/// A packet in the list of packets, with the number of its connection.
#[derive(Debug, Serialize)]
struct RowDocument {
    #[serde(flatten)]
    packet: Listed,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<usize>,
}

impl Capture {
    /// Reads a capture file, pcap or pcapng, also compressed with gzip. `name` is the name of the file. A
    /// file that is damaged in the middle or at its end counts up to there, and the summary says so.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says why no packet can be read, and what to do.
    pub fn open(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let failed = |error: CaptureError| with_causes(&error).to_string();
        let mut reader = CaptureReader::new(Cursor::new(bytes.to_vec()), name).map_err(failed)?;
        let (mut store, mut facts) = (Store::default(), Vec::new());
        let (mut counts, mut flows, mut summary) = (Counts::default(), Flows::default(), Summary::new(false));
        let (mut first_ns, mut damage) = (None, None);
        while let Some(packet) = reader.next_packet() {
            let packet = match packet {
                Ok(packet) => packet,
                // Without any packet, there is nothing to show.
                Err(error) if store.len() == 0 => return Err(failed(error)),
                Err(error) => {
                    damage = Some(failed(error));
                    break;
                }
            };
            let walk = walk(&packet, ROCE_UDP_PORT);
            let first_ns = *first_ns.get_or_insert(packet.time_ns);
            let mark = flows.mark(&packet, &walk);
            summary.count(&packet, &walk, mark);
            counts.add(&walk);
            facts.push(Facts::of(&Shown { packet: &packet, walk: &walk, first_ns, mark }));
            store.add(&packet);
        }
        let why_empty = summary.failure(damage.is_none());
        let (analysed, selection) = (OnceCell::new(), None);
        Ok(Self { name: name.to_owned(), store, facts, counts, why_empty, damage, analysed, selection })
    }

    fn analysed(&self) -> &Analysed {
        self.analysed.get_or_init(|| Analysed::of(&self.store, &self.name, self.damage.is_none()))
    }

    /// Returns the number of packets and their kinds, and the connections with the numbers of their verdicts,
    /// as JSON. `damage` says where the file is damaged, and `why_empty` why it contains no RoCE.
    #[must_use]
    pub fn summary(&self) -> String {
        let times = self.facts.iter().filter_map(|facts| facts.since_first);
        let (first, last) = times.fold((0, 0), |(first, last), time| (time.min(first), time.max(last)));
        let Counts { roce, malformed, bad_icrc } = self.counts;
        let mut summary = json!({
            "name": self.name,
            "packets": self.store.len(),
            "roce": roce,
            "malformed": malformed,
            "bad_icrc": bad_icrc,
            "seconds": seconds(last.saturating_sub(first)),
            "connections": self.analysed().connections,
        });
        let more = [("why_empty", &self.why_empty), ("damage", &self.damage)];
        if let Value::Object(summary) = &mut summary {
            let text =
                |(key, text): (&str, &Option<String>)| Some((key.to_owned(), Value::from(text.as_deref()?)));
            summary.extend(more.into_iter().filter_map(text));
        }
        summary.to_string()
    }

    /// Returns the number of packets that match a filter, and `count` of them from the index `from` on, as
    /// JSON.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says which condition is wrong.
    pub fn rows(&mut self, filter: &str, from: usize, count: usize) -> Result<String, String> {
        let filter = filter.trim();
        if self.selection.as_ref().is_none_or(|selection| selection.filter != filter) {
            self.selection = Some(self.select(filter)?);
        }
        let indices = self.selection.as_ref().map_or(&[][..], |selection| &selection.indices);
        let shown = indices.iter().skip(from).take(count);
        let mut row = Row::default();
        let rows: Vec<RowDocument> = shown.filter_map(|index| self.row(*index, &mut row)).collect();
        Ok(json!({ "total": indices.len(), "rows": rows }).to_string())
    }

    fn select(&self, filter: &str) -> Result<Selection, String> {
        let query = Query::parse(filter)?;
        for number in &query.connections {
            self.analysed().connection(*number)?;
        }
        let is_in = |index: usize| {
            query.connections.iter().all(|number| self.analysed().connection_of(index) == Some(*number))
        };
        let matches = self.facts.iter().enumerate().filter(|(_, facts)| query.matches(facts));
        let indices = matches.map(|(index, _)| index).filter(|index| is_in(*index)).collect();
        Ok(Selection { filter: filter.to_owned(), indices })
    }

    /// Returns the row of the packet with this index; `row` is memory that it uses.
    fn row(&self, index: usize, row: &mut Row) -> Option<RowDocument> {
        let packet = self.store.get(index)?;
        let walk = walk(&packet, ROCE_UDP_PORT);
        row.fill(&self.shown(&packet, &walk, index), false);
        let connection = self.analysed().connection_of(index);
        Some(RowDocument { packet: Listed::new(packet.number, &walk, row), connection })
    }

    /// Returns a packet with the mark that it has among the others.
    fn shown<'a>(&self, packet: &'a CapturedPacket<'a>, walk: &'a Walk<'a>, index: usize) -> Shown<'a> {
        let mark: Option<Mark> =
            self.facts.get(index).and_then(|facts| facts.transport).and_then(|transport| transport.mark);
        Shown { packet, walk, first_ns: self.store.first_ns(), mark }
    }

    /// Returns the document of the packet with this number, from 1.
    ///
    /// # Errors
    ///
    /// Returns a sentence if there is no packet with this number.
    pub fn packet(&self, number: usize) -> Result<String, String> {
        let found = number.checked_sub(1).and_then(|index| Some((index, self.store.get(index)?)));
        let Some((index, packet)) = found else {
            let count = self.store.len();
            return Err(format!("there is no packet {number}; the file has {count}, numbered from 1"));
        };
        let failed = |error: serde_json::Error| format!("packet {number} cannot be shown: {error}");
        let mut document: Value = serde_json::from_str(&crate::frame::framed(&packet)).map_err(failed)?;
        let walk = walk(&packet, ROCE_UDP_PORT);
        let dissect = serde_json::to_value(self.shown(&packet, &walk, index)).map_err(failed)?;
        if let Value::Object(document) = &mut document {
            // The frame alone knows neither the packets before it nor the file.
            document.insert("dissect".to_owned(), dissect);
            if let Some(Value::Object(explain)) = document.get_mut("explain") {
                explain.insert("file".to_owned(), self.name.clone().into());
            }
        }
        Ok(document.to_string())
    }

    /// Returns the document of `roce analyze --json`.
    #[must_use]
    pub fn analysis(&self) -> String {
        self.analysed().document.clone()
    }

    /// Returns the sequence ladder of the connection with this number, with at most `most_rows` rows but at
    /// least ten.
    ///
    /// # Errors
    ///
    /// Returns a sentence if there is no connection with this number.
    pub fn ladder(&self, connection: usize, most_rows: usize) -> Result<String, String> {
        let analysed = self.analysed();
        let connection = analysed.connection(connection)?;
        Ok(ladder_json(&analysed.captures.analysis, connection, most_rows).to_string())
    }

    /// Returns what both ends of a connection put on the wire, counted in this many equal intervals.
    ///
    /// # Errors
    ///
    /// Returns a sentence if there is no connection with this number, or if the number of intervals is zero
    /// or too large.
    pub fn series(&self, connection: usize, intervals: usize) -> Result<String, String> {
        if !(1..=MOST_INTERVALS).contains(&intervals) {
            return Err(format!("{intervals} intervals; ask for 1 to {MOST_INTERVALS}"));
        }
        let analysed = self.analysed();
        let connection = analysed.connection(connection)?;
        let series = Series::of(&analysed.captures.analysis, connection, intervals);
        serde_json::to_string(&series).map_err(|error| error.to_string())
    }
}

/// Converts nanoseconds to seconds.
fn seconds(ns: i128) -> f64 {
    ns as f64 / 1e9
}
