//! What a capture shows of the events that one NIC counts.

use std::collections::HashMap;
use std::net::IpAddr;

use roce_packet::{Direction, NakCode, Opcode, Operation, Psn, Syndrome};

use crate::analysis::Analysis;
use crate::connection::{Connection, View};
use crate::copies::Tap;
use crate::counters::WireCounts;
use crate::record::{Bits, Record, is_connected};
use crate::replay::{GapEnd, Replay, Sent};
use crate::summary::Requested;

/// Adds a number, or forgets the sum if the number is unknown.
fn add(sum: &mut Option<u64>, more: Option<u64>) {
    *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more));
}

impl WireCounts {
    /// Counts what the NIC with this address should have counted, as the tap near it shows it.
    ///
    /// With several taps, the one near most of its connections decides. Packets that were lost between the
    /// tap and the NIC count as received, so the numbers are exact only at the port of the NIC.
    #[must_use]
    pub fn at(analysis: &Analysis, address: IpAddr) -> Self {
        let Some(tap) = tap_near(analysis, address) else { return Self::default() };
        let mut counts = packets(analysis, address, tap);
        for connection in analysis.connections.iter().filter(|one| is_connected(one.transport)) {
            for end in 0..2 {
                if connection.ends.get(end).is_some_and(|one| one.address == address) {
                    counts.add_requester(connection, end);
                    counts.add_responder(analysis, connection, end);
                }
            }
        }
        counts
    }

    /// Adds what happened to the requests of an end.
    fn add_requester(&mut self, connection: &Connection, end: usize) {
        let has_answers = connection.streams.get(1 - end).copied().flatten().is_some();
        let replay = connection.requester(end).filter(|_| has_answers);
        let counted = |count: fn(&Replay) -> usize| replay.map(|replay| count(replay) as u64);
        add(&mut self.naks_sequence_received, counted(|replay| replay.naks.len()));
        add(&mut self.rnr_naks_received, counted(|replay| replay.rnr.len()));
        add(&mut self.implied_naks, counted(implied_naks));
        add(&mut self.timeouts, counted(|replay| replay.timeouts().count()));
    }

    /// Adds the requests that arrive at an end.
    fn add_responder(&mut self, analysis: &Analysis, connection: &Connection, end: usize) {
        let replay = connection.responder(1 - end);
        let whole = connection.view_of(end).zip(replay.filter(|replay| is_complete(replay)));
        let arrivals = whole.map(|(view, replay)| Arrivals::count(analysis, connection, end, view, replay));
        let arrivals = arrivals.as_ref();
        // Drivers do not say whether a request that comes again counts as another one.
        let clean = arrivals.filter(|one| one.out_of_sequence == Some(0) && one.duplicates == 0);
        add(&mut self.out_of_sequence, arrivals.and_then(|one| one.out_of_sequence));
        add(&mut self.duplicate_requests, arrivals.map(|one| one.duplicates));
        add(&mut self.rnr_naks_sent, replay.map(|replay| replay.rnr.len() as u64));
        add(&mut self.write_requests, clean.map(|one| one.writes));
        add(&mut self.read_requests, clean.map(|one| one.reads));
        add(&mut self.atomic_requests, clean.map(|one| one.atomics));
    }
}

/// Returns the tap near most connections of an address, or one with packets of it.
fn tap_near(analysis: &Analysis, address: IpAddr) -> Option<Tap> {
    let mut taps: HashMap<Tap, usize> = HashMap::new();
    for connection in &analysis.connections {
        for end in (0..2).filter(|end| connection.ends.get(*end).is_some_and(|one| one.address == address)) {
            if let Some(view) = connection.view_of(end) {
                *taps.entry(view.tap).or_default() += 1;
            }
        }
    }
    let near = taps.into_iter().max_by_key(|(tap, count)| (*count, std::cmp::Reverse(*tap)));
    near.map(|(tap, _)| tap).or_else(|| {
        let is_his = |record: &&Record| {
            analysis
                .streams
                .get(record.stream)
                .is_some_and(|stream| stream.key.source == address || stream.key.destination == address)
        };
        analysis.records.iter().find(is_his).map(Tap::of)
    })
}

/// Counts what single packets show.
fn packets(analysis: &Analysis, address: IpAddr, tap: Tap) -> WireCounts {
    let mut counts = WireCounts::nothing();
    let mut wrong_icrcs = Some(0);
    let at_tap = |record: &&Record| Tap::of(record) == tap && !record.bits.contains(Bits::COPY);
    for record in analysis.records.iter().filter(at_tap) {
        let Some(stream) = analysis.streams.get(record.stream) else { continue };
        let is_cnp = record.opcode == Opcode::CNP && record.is_sound();
        if stream.key.source == address {
            add(&mut counts.packets_sent, Some(1));
            add(&mut counts.cnps_sent, Some(u64::from(is_cnp)));
        }
        if stream.key.destination == address {
            let is_checked = record.bits.intersects(Bits::GOOD_ICRC | Bits::BAD_ICRC);
            let is_wrong = record.is_damaged();
            add(&mut counts.packets_received, Some(1));
            add(&mut counts.cnps_received, Some(u64::from(is_cnp)));
            add(&mut counts.ecn_marked, Some(u64::from(record.ecn() == 0b11 && record.is_sound())));
            add(&mut wrong_icrcs, is_checked.then_some(u64::from(is_wrong)));
        }
    }
    WireCounts { wrong_icrcs, ..counts }
}

/// Returns the number of responses that show missing ones which the requester asks for again.
fn implied_naks(replay: &Replay) -> usize {
    let requested = Requested::new(replay);
    let missing = replay.response_gaps.iter().filter(|gap| requested.covers(gap)).count();
    missing + requested.behind_the_tap(replay) as usize
}

/// Returns whether the capture has all requests that arrived.
fn is_complete(replay: &Replay) -> bool {
    replay.gaps.iter().all(|gap| !matches!(gap.end, GapEnd::NotCaptured | GapEnd::Open))
}

/// Requests as they arrive at a responder.
#[derive(Default)]
struct Arrivals {
    /// The PSN that the responder expects.
    expected: Option<Psn>,
    /// Whether the responder discards requests until the one that it was not ready for comes again.
    is_waiting: bool,
    /// Requests ahead of the expected one. `None` if drivers differ in whether they count them.
    out_of_sequence: Option<u64>,
    duplicates: u64,
    writes: u64,
    reads: u64,
    atomics: u64,
}

impl Arrivals {
    fn count(analysis: &Analysis, connection: &Connection, end: usize, view: &View, replay: &Replay) -> Self {
        let stream = |end: usize| connection.streams.get(end).copied().flatten();
        let (own, other) = (stream(end), stream(1 - end));
        let span = |sent: &Sent| Some((analysis.records.get(sent.first)?.psn, sent.span));
        let spans: HashMap<Psn, u64> = replay.sent.values().filter_map(span).collect();
        let mut arrivals = Self { out_of_sequence: Some(0), ..Self::default() };
        for index in &view.indices {
            let Some(record) = analysis.records.get(*index) else { continue };
            if record.bits.contains(Bits::COPY) || !record.is_sound() {
                continue;
            }
            let is_request = record.info().is_some_and(|info| info.direction == Direction::Request);
            if is_request && Some(record.stream) == other {
                let span = spans.get(&record.psn).copied().unwrap_or(1);
                arrivals.request(record, u32::try_from(span).unwrap_or(1));
            } else if Some(record.stream) == own {
                match record.answer() {
                    Some((Syndrome::RnrNak { .. }, _)) => {
                        (arrivals.expected, arrivals.is_waiting) = (Some(record.psn), true);
                    }
                    // The queue pair is in ERR, and later requests are not counted.
                    Some((Syndrome::Nak(code), _)) if code != NakCode::PsnSequence => break,
                    _ => {}
                }
            }
        }
        arrivals
    }

    fn request(&mut self, record: &Record, span: u32) {
        match self.expected {
            Some(expected) if record.psn.after(expected) => {
                // Behind an RNR NAK, some NICs count such requests and others do not.
                self.out_of_sequence =
                    self.out_of_sequence.filter(|_| !self.is_waiting).map(|count| count + 1);
            }
            Some(expected) if record.psn != expected => self.duplicates += 1,
            _ => {
                self.expected = Some(record.psn.add(span));
                self.is_waiting = false;
                let Some(info) = record.info().filter(|info| info.starts_message()) else { return };
                match info.operation {
                    Operation::Write => self.writes += 1,
                    Operation::ReadRequest => self.reads += 1,
                    Operation::CompareSwap | Operation::FetchAdd => self.atomics += 1,
                    _ => {}
                }
            }
        }
    }
}
