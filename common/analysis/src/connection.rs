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

/// Returns the name of an end.
#[must_use]
pub fn name(end: End) -> String {
    match end.qpn {
        Some(qpn) => format!("{} QP 0x{:x}", end.address, qpn.get()),
        None => end.address.to_string(),
    }
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
    /// take the same time. If packets of only one direction came to both, as if they had taken no time.
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
        self.far_view(end)?.replays.get(end)
    }

    /// Returns what became of the packets of an end between two taps; `None` with one tap.
    #[must_use]
    pub fn crossing(&self, end: usize) -> Option<&Crossing> {
        self.between.as_ref()?.crossings.get(end)
    }

    /// Returns the view of the tap near the other end, where the packets of an end arrive.
    #[must_use]
    pub fn far_view(&self, end: usize) -> Option<&View> {
        self.view_of(1_usize.checked_sub(end)?)
    }

    /// Returns the packets of an end that were lost between two taps; none with one tap.
    pub fn lost<'a>(&self, records: &'a [Record], end: usize) -> impl Iterator<Item = &'a Record> {
        let crossing = self.crossing(end);
        crossing.map_or(&[][..], |crossing| &crossing.lost).iter().filter_map(|index| records.get(*index))
    }
}

/// What is known about the captures as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Captures<'a> {
    /// Their number.
    pub count: u16,
    /// Times of the first and the last packet of each tap, also of other protocols.
    pub spans: &'a HashMap<Tap, (u64, u64)>,
}

/// Builds the connections. The taps of a connection beyond the two with most packets are replayed, but not
/// compared.
#[must_use]
pub fn connections(
    records: &[Record],
    streams: &Streams,
    pairs: &[Pair],
    captures: &Captures<'_>,
) -> Vec<Connection> {
    let mut by_stream: Vec<Vec<usize>> = vec![Vec::new(); streams.len()];
    for (index, record) in records.iter().enumerate() {
        if let Some(indices) = by_stream.get_mut(record.stream.0 as usize) {
            indices.push(index);
        }
    }
    pairs.iter().filter_map(|pair| connection(records, streams, &by_stream, *pair, captures)).collect()
}

fn connection(
    records: &[Record],
    streams: &Streams,
    by_stream: &[Vec<usize>],
    pair: Pair,
    captures: &Captures<'_>,
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
    let transport = forward.transport.or_else(|| backward.and_then(|stream| stream.transport));
    let sights: Vec<Sight<'_>> =
        views.iter().map(|view| Sight { tap: view.tap, indices: &view.indices }).collect();
    let (mut near, mut between) = compare_taps(records, &sights, ids, captures);
    if between.is_none()
        && transport != Some(Transport::Uc)
        && let Some(lost) = nothing_arrived(records, &views, ids, captures)
    {
        (near, between) = lost;
    }
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

/// The packets of two streams in opposite directions at one tap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    /// The tap.
    pub(crate) tap: Tap,
    /// Indices of the records of both streams, in the order of the capture.
    pub(crate) indices: &'a [usize],
}

/// Returns those of some packets that belong to a stream, without copies of a mirror.
fn packets_of(records: &[Record], indices: &[usize], id: Option<StreamId>) -> Vec<usize> {
    let is_one = |index: &usize| {
        let record = records.get(*index);
        record.is_some_and(|record| Some(record.stream) == id && !record.bits.contains(Bits::COPY))
    };
    indices.iter().copied().filter(is_one).collect()
}

/// Returns the comparison of two places if nothing arrived from one at the other: nobody answered the
/// requests, the requester sent them again, and another capture of that time has none of them, or no packet
/// at all.
fn nothing_arrived(
    records: &[Record],
    views: &[View],
    ids: [Option<StreamId>; 2],
    captures: &Captures<'_>,
) -> Option<([usize; 2], Option<Between>)> {
    let replays = || views.iter().flat_map(|view| &view.replays);
    let is_answered = replays().any(|replay| !replay.answers.is_empty());
    if is_answered || replays().all(|replay| replay.timeouts().next().is_none()) {
        return None;
    }
    let all = |view: &View| ids.map(|id| packets_of(records, &view.indices, id));
    let near = match views {
        [only] => {
            let others = (0..captures.count).filter(|capture| *capture != only.tap.capture);
            let mut spans = others.map(|capture| span_of(captures, capture));
            let own = captures.spans.get(&only.tap).copied();
            // A capture of another time, or with another clock, shows nothing.
            let is_of_that_time = |span: Option<(u64, u64)>| match (span, own) {
                (Some((from, to)), Some((first, last))) => from <= last && first <= to,
                _ => true,
            };
            spans.any(is_of_that_time).then_some([0, 0])?
        }
        // Both send, and each place shows only what its own end sends.
        [one, two] => match (all(one), all(two)) {
            ([_, other], [first, _]) if first.is_empty() && other.is_empty() => [0, 1],
            ([first, _], [_, other]) if first.is_empty() && other.is_empty() => [1, 0],
            _ => return None,
        },
        _ => return None,
    };
    let lost = |end: usize| -> Option<Crossing> {
        let view = views.get(*near.get(end)?)?;
        Some(Crossing { lost: packets_of(records, &view.indices, *ids.get(end)?), ..Crossing::default() })
    };
    let between = Between { crossings: [lost(0)?, lost(1)?], offset_ns: None, one_way_ns: None };
    Some((near, Some(between)))
}

/// Returns the times of the first and the last packet of a capture.
fn span_of(captures: &Captures<'_>, capture: u16) -> Option<(u64, u64)> {
    let spans = captures.spans.iter().filter(|(tap, _)| tap.capture == capture).map(|(_, span)| *span);
    spans.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
}

/// Decides which of the first two taps is near which end, and compares them.
pub(crate) fn compare_taps(
    records: &[Record],
    sights: &[Sight<'_>],
    ids: [Option<StreamId>; 2],
    captures: &Captures<'_>,
) -> ([usize; 2], Option<Between>) {
    let [one, two, ..] = sights else { return ([0, 0], None) };
    let of = |sight: &Sight<'_>, id| packets_of(records, sight.indices, id);
    let [from0, from1] = ids;
    let range = |tap: Tap| captures.spans.get(&tap).copied();
    // If nothing of a direction arrived, the packets of the other one show how far the clocks differ.
    let crossed = |[near, far]: [&Sight<'_>; 2]| {
        let there = |clock| cross(records, &of(near, from0), &of(far, from0), range(far.tap), clock);
        let back = |clock| cross(records, &of(far, from1), &of(near, from1), range(near.tap), clock);
        match (there(0), back(0)) {
            (one, Crossing { delay_ns: None, .. }) => {
                let ahead = one.delay_ns.unwrap_or(0);
                (one, back(ahead.saturating_neg()))
            }
            (Crossing { delay_ns: None, .. }, other) => {
                let ahead = other.delay_ns.unwrap_or(0).saturating_neg();
                (there(ahead), other)
            }
            both => both,
        }
    };
    let (there, back) = crossed([one, two]);
    if there.both.is_empty() && back.both.is_empty() {
        return ([0, 0], None);
    }
    // The sum of both delays does not depend on the clocks. It is negative if the taps are the other way
    // round.
    let same_clock = one.tap.capture == two.tap.capture;
    let is_turned = match (there.delay_ns, back.delay_ns) {
        (Some(there), Some(back)) => there.saturating_add(back) < 0,
        (Some(there), None) if same_clock => there < 0,
        (None, Some(back)) if same_clock => back < 0,
        // A place that has packets of the other direction, which never came to the other place, is near their
        // sender.
        (Some(_), None) => !of(one, from1).is_empty() && of(two, from1).is_empty(),
        (None, Some(_)) => !of(two, from0).is_empty() && of(one, from0).is_empty(),
        // Packets are lost on their way, so the place with more packets of an end is near it.
        (None, None) => {
            let counts = |id| [of(one, id).len(), of(two, id).len()];
            let ([one0, two0], [one1, two1]) = (counts(from0), counts(from1));
            one0 < two0 || one1 > two1
        }
    };
    let (near, crossings) = if is_turned {
        let (there, back) = crossed([two, one]);
        ([1, 0], [there, back])
    } else {
        ([0, 1], [there, back])
    };
    let [there, back] = &crossings;
    let both = there.delay_ns.zip(back.delay_ns);
    let offset_ns = match (there.delay_ns, back.delay_ns) {
        (Some(there), Some(back)) => Some((there - back) / 2),
        _ if same_clock => Some(0),
        (Some(there), None) => Some(there),
        (None, back) => back.map(i64::saturating_neg),
    };
    let one_way_ns = both.map(|(there, back)| there.saturating_add(back) / 2);
    (near, Some(Between { crossings, offset_ns, one_way_ns }))
}
