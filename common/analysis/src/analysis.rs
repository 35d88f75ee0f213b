//! Collects the packets of captures, and analyses them.

use std::collections::HashMap;

use roce_packet::outer::Outer;

use crate::connection::{Captures, Connection, connections};
use crate::copies::{Tap, mark_mirrored};
use crate::exchange::{Exchange, exchanges, tap_of};
use crate::icrc::{self, Hints, Tally};
use crate::pairing::{Pair, pairs};
use crate::places::joined;
use crate::record::{CmRecord, Decoded, Packet, PauseRecord, Place, Record, StreamId, decode};
use crate::strays::adopt;
use crate::stream::Streams;

/// Numbers of packets by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All packets.
    pub packets: u64,
    /// RoCE packets with a BTH.
    pub roce: u64,
    /// RoCE packets without a complete BTH.
    pub unreadable: u64,
    /// Packets of other protocols.
    pub foreign: u64,
    /// Pause frames.
    pub pauses: u64,
    /// RoCE packets that a mirror copied.
    pub copies: u64,
    /// RoCE packets without a time.
    pub without_time: u64,
}

/// Collects packets.
#[derive(Clone, Debug)]
pub struct Collector {
    port: u16,
    counts: Counts,
    streams: Streams,
    records: Vec<Record>,
    cm: Vec<CmRecord>,
    pauses: Vec<PauseRecord>,
    line_rate: Option<u64>,
    mistakes: HashMap<StreamId, Tally>,
    captures: u16,
    /// Times of the first and the last packet of each tap, also of other protocols.
    spans: HashMap<Tap, (u64, u64)>,
}

/// Maximum number of wrong ICRCs of a stream that are examined. More do not make the result more certain.
const MOST_EXAMINED: u64 = 1000;

impl Collector {
    /// Creates a collector. `port` is the UDP port of RoCE v2.
    #[must_use]
    pub fn new(port: u16) -> Self {
        Self {
            port,
            counts: Counts::default(),
            streams: Streams::default(),
            records: Vec::new(),
            cm: Vec::new(),
            pauses: Vec::new(),
            line_rate: None,
            mistakes: HashMap::new(),
            captures: 0,
            spans: HashMap::new(),
        }
    }

    /// Sets the number of captures. Without it, a capture without any packet is not known.
    #[must_use]
    pub const fn with_captures(mut self, captures: u16) -> Self {
        self.captures = captures;
        self
    }

    /// Sets the rate of the captured links in bits per second. Without it, the durations of pauses are only
    /// known within limits.
    #[must_use]
    pub const fn with_line_rate(mut self, bits_per_second: u64) -> Self {
        self.line_rate = Some(bits_per_second);
        self
    }

    /// Takes the next packet.
    pub fn add(&mut self, packet: &Packet<'_>) {
        self.counts.packets += 1;
        let tap = Tap { capture: packet.capture, interface: packet.interface };
        let time = packet.time_ns.unwrap_or(0);
        let span = self.spans.entry(tap).or_insert((time, time));
        *span = (span.0.min(time), span.1.max(time));
        let (record, key) = match decode(packet, self.port) {
            Decoded::Roce(record, key) => (record, key),
            Decoded::Cm(record, key, message) => {
                self.cm.push(message);
                (record, key)
            }
            Decoded::Pause(pause) => {
                self.counts.pauses += 1;
                self.pauses.push(pause);
                return;
            }
            Decoded::Unreadable => {
                self.counts.unreadable += 1;
                return;
            }
            Decoded::Foreign => {
                self.counts.foreign += 1;
                return;
            }
        };
        self.counts.roce += 1;
        self.counts.without_time += u64::from(packet.time_ns.is_none());
        let stream = self.streams.add(key, &record);
        if record.is_damaged() {
            let tally = self.mistakes.entry(stream).or_default();
            if tally.wrong() < MOST_EXAMINED {
                let outer = Outer::decode(packet.bytes, packet.link, packet.wire_len, self.port);
                tally.add(&icrc::examine(&outer, &Hints::default()));
            }
        }
        self.records.push(Record { stream, ..record });
    }

    /// Returns the number of packets so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Pairs the streams, and replays each connection.
    #[must_use]
    pub fn analyze(mut self) -> Analysis {
        // Files may overlap in time; within a file, the order of the packets is that of the capture.
        self.records.sort_by_key(|record| record.place.capture);
        self.counts.copies = mark_mirrored(&mut self.records);
        adopt(&mut self.records, &mut self.streams, &mut self.mistakes);
        let pairs = pairs(&self.records, &self.cm, &self.streams);
        self.join_interfaces(&pairs);
        let seen = self.spans.keys().map(|tap| tap.capture.saturating_add(1)).max().unwrap_or(0);
        self.captures = self.captures.max(seen);
        let captures = Captures { count: self.captures, spans: &self.spans };
        let connections = connections(&self.records, &self.streams, &pairs, &captures);
        let exchanges = exchanges(&self.records, &self.cm);
        let Self { counts, streams, records, cm, pauses, line_rate, mistakes, captures, spans, .. } = self;
        Analysis {
            counts,
            streams,
            records,
            cm,
            pauses,
            exchanges,
            connections,
            line_rate,
            mistakes,
            captures,
            spans,
        }
    }

    /// Gives the packets of interfaces that show one place the number of the first of these interfaces.
    fn join_interfaces(&mut self, pairs: &[Pair]) {
        let joined = joined(&self.records, pairs);
        if joined.is_empty() {
            return;
        }
        let number = |tap: Tap| joined.get(&tap).map_or(tap.interface, |first| first.interface);
        for record in &mut self.records {
            record.interface = number(Tap::of(record));
        }
        for record in &mut self.cm {
            record.interface = number(tap_of(record));
        }
        for pause in &mut self.pauses {
            pause.interface = number(Tap { capture: pause.place.capture, interface: pause.interface });
        }
        for (tap, first) in &joined {
            if let (Some(one), Some(all)) = (self.spans.remove(tap), self.spans.get_mut(first)) {
                *all = (all.0.min(one.0), all.1.max(one.1));
            }
        }
    }
}

/// All that is known about the packets of captures. [`crate::verdict`] judges it.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Numbers of packets.
    pub counts: Counts,
    /// The streams.
    pub streams: Streams,
    /// The RoCE packets, by file and number.
    pub records: Vec<Record>,
    /// The messages of connection management.
    pub cm: Vec<CmRecord>,
    /// The pause frames.
    pub pauses: Vec<PauseRecord>,
    /// The exchanges of connection management.
    pub exchanges: Vec<Exchange>,
    /// The connections of RC, XRC and UC queue pairs.
    pub connections: Vec<Connection>,
    /// Rate of the captured links in bits per second, if the caller knows it.
    pub line_rate: Option<u64>,
    /// The causes of the wrong ICRCs of each stream. Streams without wrong ICRCs have no entry.
    pub mistakes: HashMap<StreamId, Tally>,
    /// Number of captures.
    pub captures: u16,
    /// Times of the first and the last packet of each tap in nanoseconds, also of other protocols.
    pub spans: HashMap<Tap, (u64, u64)>,
}

impl Analysis {
    /// Returns where a record is.
    #[must_use]
    pub fn place(&self, index: usize) -> Option<Place> {
        self.records.get(index).map(|record| record.place)
    }

    /// Returns the time from a message to the last packet of its tap in nanoseconds; `None` without times.
    #[must_use]
    pub fn time_left(&self, record: &CmRecord) -> Option<u64> {
        if self.counts.without_time > 0 {
            return None;
        }
        self.spans.get(&tap_of(record))?.1.checked_sub(record.time_ns)
    }
}
