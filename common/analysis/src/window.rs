//! Requests under way over time, and the silences between packets.

use std::collections::{BTreeMap, VecDeque};

use roce_packet::{Direction, Operation, Syndrome};

use crate::connection::{Connection, View};
use crate::record::{Bits, Record};
use crate::replay::{ORIGIN, Replay};

/// A silence is at least this multiple of the median time between packets.
const MULTIPLE: u64 = 10;
/// A silence takes at least this time, in nanoseconds: packets of one burst have nearly equal times.
const SHORTEST_NS: u64 = 10_000;

/// A time without packets of a requester and its responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Index of the packet before it.
    pub before: usize,
    /// Index of the packet after it.
    pub after: usize,
    /// Its length in nanoseconds.
    pub ns: u64,
    /// Number of PSNs that were under way. If it is 0, the requester had nothing to send.
    pub under_way: u64,
    /// Whether an answer ended it.
    pub ends_with_answer: bool,
}

/// What was under way from one requester.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Largest number of PSNs under way.
    pub most: u64,
    /// Mean number of PSNs under way, weighted by time.
    pub mean: f64,
    /// Largest number of READs and atomic operations under way.
    pub most_reads: usize,
    /// Index of the packet at which most READs were under way.
    pub most_reads_at: usize,
    /// Time from the first packet to the last one, in nanoseconds.
    pub elapsed_ns: u64,
    /// Median time between packets, in nanoseconds.
    pub median_ns: u64,
    /// The silences.
    pub silences: Vec<Silence>,
}

/// Change of the window at a packet.
#[derive(Clone, Copy)]
enum Step {
    /// All PSNs below it are sent; whether it is a READ or an atomic operation.
    Sent(u64, bool),
    /// All PSNs below it are acknowledged.
    Acknowledged(u64),
}

/// Returns the window of the requests of `end`, as a tap shows it. Returns `None` without requests or
/// answers.
#[must_use]
pub fn window(records: &[Record], connection: &Connection, view: &View, end: usize) -> Option<Window> {
    let replay = view.replays.get(end)?;
    if replay.sent.is_empty() || replay.answers.is_empty() {
        return None;
    }
    let steps = steps(records, replay);
    let packets = packets(records, connection, view, end);
    let mut window = Window::default();
    let (mut sent, mut acknowledged) = (ORIGIN, ORIGIN);
    let mut reads = VecDeque::new();
    let mut beginnings = replay.beginnings.iter().peekable();
    let (mut weighted, mut last): (f64, Option<(usize, u64)>) = (0.0, None);
    let mut gaps = Vec::with_capacity(packets.len());
    for (index, is_answer) in packets {
        let now = records.get(index)?.time_ns;
        let under_way = sent.saturating_sub(acknowledged);
        if let Some((before, then)) = last {
            let ns = now.saturating_sub(then);
            weighted += under_way as f64 * ns as f64;
            window.elapsed_ns += ns;
            gaps.push(Silence { before, after: index, ns, under_way, ends_with_answer: is_answer });
        }
        last = Some((index, now));
        while let Some((begin, _)) = beginnings.next_if(|(_, at)| *at <= index) {
            // Nothing of the connection before is under way.
            acknowledged = acknowledged.max(*begin);
            reads.clear();
        }
        match steps.get(&index) {
            Some(Step::Sent(limit, is_read)) => {
                sent = sent.max(*limit);
                if *is_read {
                    reads.push_back(*limit);
                }
            }
            Some(Step::Acknowledged(limit)) => {
                acknowledged = acknowledged.max(*limit);
                while reads.front().is_some_and(|read| *read <= acknowledged) {
                    reads.pop_front();
                }
            }
            None => {}
        }
        window.most = window.most.max(sent.saturating_sub(acknowledged));
        if reads.len() > window.most_reads {
            (window.most_reads, window.most_reads_at) = (reads.len(), index);
        }
    }
    window.mean = if window.elapsed_ns > 0 { weighted / window.elapsed_ns as f64 } else { 0.0 };
    let mut lengths: Vec<u64> = gaps.iter().map(|gap| gap.ns).collect();
    lengths.sort_unstable();
    window.median_ns = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
    let limit = window.median_ns.saturating_mul(MULTIPLE).max(SHORTEST_NS);
    window.silences = gaps.into_iter().filter(|gap| gap.ns > limit).collect();
    Some(window)
}

fn steps(records: &[Record], replay: &Replay) -> BTreeMap<usize, Step> {
    let is_read = |index: usize| {
        records.get(index).and_then(Record::info).is_some_and(|info| {
            matches!(info.operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd)
        })
    };
    let sent = replay
        .sent
        .iter()
        .map(|(psn, sent)| (sent.first, Step::Sent(psn.saturating_add(sent.span), is_read(sent.first))));
    let answers = replay.answers.iter().filter_map(|answer| {
        let (syndrome, _) = records.get(answer.at)?.answer()?;
        let is_refusal = matches!(syndrome, Syndrome::Nak(_) | Syndrome::RnrNak { .. });
        Some((answer.at, Step::Acknowledged(answer.psn.saturating_add(u64::from(!is_refusal)))))
    });
    sent.chain(answers).collect()
}

/// Returns the requests of one end and their answers, in order.
fn packets(records: &[Record], connection: &Connection, view: &View, end: usize) -> Vec<(usize, bool)> {
    let [from0, from1] = connection.streams;
    let (own, other) = if end == 0 { (from0, from1) } else { (from1, from0) };
    let kind = |index: &usize| {
        let record = records.get(*index).filter(|record| !record.bits.contains(Bits::COPY))?;
        match record.info()?.direction {
            Direction::Request if Some(record.stream) == own => Some((*index, false)),
            Direction::Response if Some(record.stream) == other => Some((*index, true)),
            _ => None,
        }
    };
    view.indices.iter().filter_map(kind).collect()
}
