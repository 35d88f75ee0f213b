//! The connections of a capture, each with what every tap shows of it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use roce_packet::{Encapsulation, Qpn, Transport};

use crate::copies::{Crossing, Tap, cross};
use crate::pairing::Pair;
use crate::record::{Bits, Record, StreamId};
use crate::replay::{Half, Replay, replay};
use crate::stream::Streams;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// Its queue pair; `None` if no packet to it was captured.
    pub qpn: Option<Qpn>,
}

/// A connection as one tap shows it.
#[derive(Clone, Debug)]
pub struct View {
    /// The tap.
    pub tap: Tap,
    /// Indices of the records of both streams, in the order of the capture.
    pub indices: Vec<usize>,
    /// The requests of each end, and the answers to them.
    pub replays: [Replay; 2],
}

/// Two taps on one connection.
#[derive(Clone, Debug)]
pub struct Between {
    /// For the stream from end 0 and the one from end 1: from the tap near its sender to the other one.
    pub crossings: [Crossing; 2],
    /// How far the clock of the tap near end 1 is ahead of the other one, in nanoseconds, if both directions
    /// take the same time.
    pub offset_ns: Option<i64>,
    /// Time that a packet needs from one tap to the other, on average of both directions, in nanoseconds.
    pub one_way_ns: Option<i64>,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Both ends; end 0 sent the packet that was captured first.
    pub ends: [End; 2],
    /// The streams from end 0 and from end 1.
    pub streams: [Option<StreamId>; 2],
    /// Transport service.
    pub transport: Transport,
    /// Version of RoCE.
    pub encapsulation: Encapsulation,
    /// The connection as each tap shows it.
    pub views: Vec<View>,
    /// Index of the view of the tap near each end.
    pub near: [usize; 2],
    /// The comparison of two taps.
    pub between: Option<Between>,
}

impl Connection {
    /// Returns what the tap near an end shows. With one tap, this is that tap for both ends.
    #[must_use]
    pub fn view_of(&self, end: usize) -> Option<&View> {
        self.views.get(*self.near.get(end)?)
    }

    /// Returns the requests of an end, as the tap near it shows them: for questions about the requester.
    #[must_use]
    pub fn requester(&self, end: usize) -> Option<&Replay> {
        self.view_of(end)?.replays.get(end)
    }

    /// Returns the requests of an end, as the tap near the other end shows them: for questions about the
    /// responder.
    #[must_use]
    pub fn responder(&self, end: usize) -> Option<&Replay> {
        self.view_of(1_usize.checked_sub(end)?)?.replays.get(end)
    }

    /// Returns the packets of an end that were lost between two taps; none with one tap.
    pub fn lost<'a>(&self, records: &'a [Record], end: usize) -> impl Iterator<Item = &'a Record> {
        let crossing = self.between.as_ref().and_then(|between| between.crossings.get(end));
        crossing.map_or(&[][..], |crossing| &crossing.lost).iter().filter_map(|index| records.get(*index))
    }
}

/// Builds the connections. The taps of a connection beyond the two with most packets are replayed, but not
/// compared.
#[must_use]
pub fn connections(records: &[Record], streams: &Streams, pairs: &[Pair]) -> Vec<Connection> {
    let mut by_stream: Vec<Vec<usize>> = vec![Vec::new(); streams.len()];
    for (index, record) in records.iter().enumerate() {
        if let Some(indices) = by_stream.get_mut(record.stream.0 as usize) {
            indices.push(index);
        }
    }
    let ranges = ranges(records);
    pairs.iter().filter_map(|pair| connection(records, streams, &by_stream, *pair, &ranges)).collect()
}

/// Returns the times of the first and the last packet of each tap.
fn ranges(records: &[Record]) -> HashMap<Tap, (u64, u64)> {
    let mut ranges: HashMap<Tap, (u64, u64)> = HashMap::new();
    for record in records {
        let time = record.time_ns;
        let range = ranges.entry(Tap::of(record)).or_insert((time, time));
        *range = (range.0.min(time), range.1.max(time));
    }
    ranges
}

fn connection(
    records: &[Record],
    streams: &Streams,
    by_stream: &[Vec<usize>],
    pair: Pair,
    ranges: &HashMap<Tap, (u64, u64)>,
) -> Option<Connection> {
    let forward = streams.get(pair.forward)?;
    let backward = pair.backward.and_then(|id| streams.get(id));
    let ends = [
        End { address: forward.key.source, qpn: backward.map(|stream| stream.key.qpn) },
        End { address: forward.key.destination, qpn: Some(forward.key.qpn) },
    ];
    let ids = [Some(pair.forward), pair.backward];
    let mut taps: BTreeMap<Tap, Vec<usize>> = BTreeMap::new();
    for index in ids.iter().flatten().filter_map(|id| by_stream.get(id.0 as usize)).flatten() {
        let record = records.get(*index)?;
        taps.entry(Tap::of(record)).or_default().push(*index);
    }
    let mut views: Vec<View> = taps
        .into_iter()
        .map(|(tap, mut indices)| {
            indices.sort_unstable();
            let [from0, from1] = ids;
            let replays = [
                replay(records, &indices, Half { requests: from0, answers: from1 }),
                replay(records, &indices, Half { requests: from1, answers: from0 }),
            ];
            View { tap, indices, replays }
        })
        .collect();
    views.sort_by_key(|view| std::cmp::Reverse(view.indices.len()));
    let (near, between) = compare_taps(records, &views, ids, ranges);
    let transport = forward.transport.or_else(|| backward.and_then(|stream| stream.transport));
    Some(Connection {
        ends,
        streams: ids,
        transport: transport?,
        encapsulation: forward.key.encapsulation,
        views,
        near,
        between,
    })
}

/// Decides which of two taps is near which end, and compares them.
fn compare_taps(
    records: &[Record],
    views: &[View],
    ids: [Option<StreamId>; 2],
    ranges: &HashMap<Tap, (u64, u64)>,
) -> ([usize; 2], Option<Between>) {
    let [one, two, ..] = views else { return ([0, 0], None) };
    let of = |view: &View, id: Option<StreamId>| -> Vec<usize> {
        let is_one = |index: &usize| {
            let record = records.get(*index);
            record.is_some_and(|record| Some(record.stream) == id && !record.bits.contains(Bits::COPY))
        };
        view.indices.iter().copied().filter(is_one).collect()
    };
    let [from0, from1] = ids;
    let range = |tap: Tap| ranges.get(&tap).copied();
    let (range_one, range_two) = (range(one.tap), range(two.tap));
    let there = cross(records, &of(one, from0), &of(two, from0), range_two);
    let back = cross(records, &of(two, from1), &of(one, from1), range_one);
    if there.both.is_empty() && back.both.is_empty() {
        return ([0, 0], None);
    }
    // The sum of both delays does not depend on the clocks. It is negative if the taps are the other way
    // round.
    let same_clock = one.tap.capture == two.tap.capture;
    let is_turned = match (there.delay_ns, back.delay_ns) {
        (Some(there), Some(back)) => there.saturating_add(back) < 0,
        (Some(there), None) => same_clock && there < 0,
        (None, Some(back)) => same_clock && back < 0,
        (None, None) => false,
    };
    let (near, crossings) = if is_turned {
        let there = cross(records, &of(two, from0), &of(one, from0), range_one);
        let back = cross(records, &of(one, from1), &of(two, from1), range_two);
        ([1, 0], [there, back])
    } else {
        ([0, 1], [there, back])
    };
    let [there, back] = &crossings;
    let both = there.delay_ns.zip(back.delay_ns);
    let offset_ns = match both {
        Some((there, back)) => Some((there - back) / 2),
        None => same_clock.then_some(0),
    };
    let one_way_ns = both.map(|(there, back)| there.saturating_add(back) / 2);
    (near, Some(Between { crossings, offset_ns, one_way_ns }))
}
