//! Packets that were damaged on their way. They arrived, with a wrong ICRC, so they do not count as lost.

use std::collections::{HashMap, HashSet};

use roce_packet::Direction;

use crate::connection::{Connection, View};
use crate::record::{Bits, Record, StreamId};

/// Largest deviation of the time of a damaged packet from that of the packet that left, in nanoseconds.
const DAMAGED_NS: u64 = 100_000;

/// Returns the packets of a stream in a view, without copies of a mirror.
fn packets_of<'a>(
    records: &'a [Record],
    view: &'a View,
    stream: Option<StreamId>,
) -> impl Iterator<Item = (usize, &'a Record)> {
    let all = view.indices.iter().filter_map(|index| Some((*index, records.get(*index)?)));
    all.filter(move |(_, record)| Some(record.stream) == stream && !record.bits.contains(Bits::COPY))
}

/// Returns the number of packets that an end sent and that were damaged where they were captured last. A
/// sender that computes every ICRC in a wrong way damages none.
pub(crate) fn damaged(records: &[Record], connection: &Connection, end: usize) -> u64 {
    let stream = connection.streams.get(end).copied().flatten();
    let Some(far) = connection.far_view(end) else { return 0 };
    let lost = connection.lost(records, end).filter(|record| record.is_damaged()).count();
    let (mut good, mut wrong) = (0, 0);
    for (_, record) in packets_of(records, far, stream) {
        good += u64::from(record.bits.contains(Bits::GOOD_ICRC));
        wrong += u64::from(record.is_damaged());
    }
    if good > 0 { wrong.saturating_add(lost as u64) } else { 0 }
}

/// Returns how many of the packets that are missing in some gaps came to the tap damaged. A gap is the index
/// of the packet behind it, and the number of missing packets.
pub(crate) fn in_gaps(
    records: &[Record],
    view: &View,
    stream: Option<StreamId>,
    direction: Direction,
    gaps: impl Iterator<Item = (usize, u64)>,
) -> u64 {
    let mut missing: HashMap<usize, u64> = HashMap::new();
    for (after, count) in gaps {
        *missing.entry(after).or_default() += count;
    }
    // Damaged packets since the last sound one of this direction.
    let (mut before, mut explained) = (0_u64, 0);
    for (index, record) in packets_of(records, view, stream) {
        let is_of_direction = record.info().is_none_or(|info| info.direction == direction);
        if record.is_damaged() {
            before += u64::from(is_of_direction);
        } else if is_of_direction && record.is_sound() {
            explained += missing.get(&index).map_or(0, |count| before.min(*count));
            before = 0;
        }
    }
    explained
}

/// Returns the packets of an end that left the first tap and did not come to the second one, neither sound
/// nor damaged. Packets that left damaged are not among them.
pub(crate) fn lost_between<'a>(
    records: &'a [Record],
    connection: &'a Connection,
    end: usize,
) -> impl Iterator<Item = &'a Record> {
    let crossing = connection.crossing(end);
    // Packets that were damaged at both taps.
    let both = crossing.map_or(&[][..], |crossing| &crossing.both).iter().map(|(_, there)| *there);
    let known: HashSet<usize> =
        both.filter(|there| records.get(*there).is_some_and(Record::is_damaged)).collect();
    let stream = connection.streams.get(end).copied().flatten();
    let arrived = connection.far_view(end).into_iter().flat_map(|far| packets_of(records, far, stream));
    let mut arrived: Vec<(&Record, bool)> = arrived
        .filter(|(index, record)| record.is_damaged() && !known.contains(index))
        .map(|(_, record)| (record, false))
        .collect();
    arrived.sort_by_key(|(record, _)| record.time_ns);
    let delay = crossing.and_then(|crossing| crossing.delay_ns).unwrap_or(0);
    connection.lost(records, end).filter(|record| record.is_sound()).filter(move |record| {
        let expected = record.time_ns.saturating_add_signed(delay);
        let first = arrived.partition_point(|(other, _)| other.time_ns.saturating_add(DAMAGED_NS) < expected);
        let near = arrived.iter_mut().skip(first);
        let mut near = near.take_while(|(other, _)| other.time_ns <= expected.saturating_add(DAMAGED_NS));
        match near.find(|(other, is_taken)| !is_taken && other.wire_len == record.wire_len) {
            Some((_, is_taken)) => {
                *is_taken = true;
                false
            }
            None => true,
        }
    })
}
