//! Properties of single packets.

use std::collections::{BTreeMap, HashMap};

use roce_packet::{Opcode, Psn};

use super::finder::Finder;
use super::kinds::EventKind;
use crate::copies::Tap;
use crate::record::{Bits, Record, StreamId};

/// A stream in which more than half of the packets, and at least this number, have a property has one event
/// for all of them.
const MANY: usize = 8;

/// Properties that a NIC may give to all of its packets.
const WHOLE_STREAMS: [EventKind; 3] =
    [EventKind::ReservedBits, EventKind::WrongPKey, EventKind::BrokenHeader];

pub(super) fn find(finder: &mut Finder<'_>) {
    let originals = originals(finder);
    let sides = sides(finder);
    let keys = keys(finder);
    let mut elsewhere: HashMap<(StreamId, Opcode, Psn, u32, EventKind), Tap> = HashMap::new();
    let mut grouped: BTreeMap<(StreamId, EventKind), Vec<usize>> = BTreeMap::new();
    for (index, record) in finder.analysis.records.iter().enumerate() {
        if record.bits.contains(Bits::COPY) {
            continue;
        }
        for kind in properties(record, keys.get(&record.stream).copied()) {
            let original = originals.get(&index).and_then(|original| finder.record(*original));
            let was_so = original.is_some_and(|original| {
                properties(original, keys.get(&original.stream).copied()).contains(&kind)
            });
            if was_so {
                continue;
            }
            if !sides.contains_key(&record.stream) {
                // Streams without a connection are not compared, so equal packets count once.
                let content = (record.stream, record.opcode, record.psn, record.icrc, kind);
                let tap = *elsewhere.entry(content).or_insert_with(|| Tap::of(record));
                if tap != Tap::of(record) {
                    continue;
                }
            }
            if WHOLE_STREAMS.contains(&kind) {
                grouped.entry((record.stream, kind)).or_default().push(index);
                continue;
            }
            let at: Vec<usize> = std::iter::once(index).chain(originals.get(&index).copied()).collect();
            let psn = (kind != EventKind::Cnp).then_some(record.psn.get());
            finder.push(kind, sides.get(&record.stream).copied(), &at, psn, text(kind, record));
        }
    }
    for ((stream, kind), indices) in grouped {
        let whole = finder.analysis.streams.get(stream).map_or(0, |stream| stream.packets);
        let is_whole = indices.len() >= MANY && 2 * indices.len() as u64 > whole;
        let side = sides.get(&stream).copied();
        if is_whole && let Some(record) = indices.first().and_then(|index| finder.record(*index)) {
            let text = format!("{}, as in {} packets of the stream", text(kind, record), indices.len());
            finder.push(kind, side, &indices, Some(record.psn.get()), text);
            continue;
        }
        for index in indices {
            let Some(record) = finder.record(index) else { continue };
            finder.push(kind, side, &[index], Some(record.psn.get()), text(kind, record));
        }
    }
    classes(finder);
}

/// Returns what is not normal about a packet. `p_key` is that of its stream.
fn properties(record: &Record, p_key: Option<u16>) -> Vec<EventKind> {
    let bits = record.bits;
    if bits.contains(Bits::BAD_ICRC) {
        // Nothing in a damaged packet is certain.
        return vec![EventKind::Corrupted];
    }
    let mut found = Vec::new();
    if bits.contains(Bits::BROKEN) {
        found.push(EventKind::BrokenHeader);
    }
    if bits.contains(Bits::RESERVED) {
        found.push(EventKind::ReservedBits);
    }
    // The highest bit is the kind of membership, not the partition.
    if p_key.is_some_and(|p_key| (p_key ^ record.p_key) & 0x7fff != 0) {
        found.push(EventKind::WrongPKey);
    }
    if bits.contains(Bits::FRAGMENT) {
        found.push(EventKind::Fragment);
    }
    if record.ecn() == 3 {
        found.push(EventKind::EcnMark);
    }
    if record.opcode == Opcode::CNP {
        found.push(EventKind::Cnp);
    }
    found
}

fn text(kind: EventKind, record: &Record) -> String {
    let (opcode, psn) = (record.opcode, record.psn);
    match kind {
        EventKind::Corrupted => format!("{opcode} {psn} has a wrong ICRC"),
        EventKind::BrokenHeader => format!("the headers of {opcode} {psn} contradict each other"),
        EventKind::ReservedBits => format!("{opcode} {psn} has reserved bits set"),
        EventKind::WrongPKey => format!("{opcode} {psn} has P_Key 0x{:04x}", record.p_key),
        EventKind::Fragment => format!("{opcode} {psn} is a fragment of an IP datagram"),
        EventKind::EcnMark => format!("{opcode} {psn} has an ECN mark"),
        _ => "a congestion notification".to_owned(),
    }
}

/// For each packet at a second tap, the packet at the first one.
fn originals(finder: &Finder<'_>) -> HashMap<usize, usize> {
    let between = finder.analysis.connections.iter().filter_map(|connection| connection.between.as_ref());
    let both = between.flat_map(|between| &between.crossings).flat_map(|crossing| &crossing.both);
    both.map(|(here, there)| (*there, *here)).collect()
}

/// For each stream, its connection and the end that sends it.
fn sides(finder: &Finder<'_>) -> HashMap<StreamId, (usize, usize)> {
    let mut sides = HashMap::new();
    for (number, connection) in finder.analysis.connections.iter().enumerate() {
        for (end, stream) in connection.streams.iter().enumerate() {
            sides.extend(stream.map(|stream| (stream, (number, end))));
        }
    }
    sides
}

/// Returns the P_Key that most packets of each stream have.
fn keys(finder: &Finder<'_>) -> HashMap<StreamId, u16> {
    let mut counts: HashMap<StreamId, BTreeMap<u16, u64>> = HashMap::new();
    for record in finder.analysis.records.iter().filter(|record| record.is_sound()) {
        *counts.entry(record.stream).or_default().entry(record.p_key).or_default() += 1;
    }
    let most = |counts: BTreeMap<u16, u64>| counts.into_iter().max_by_key(|(_, count)| *count);
    counts.into_iter().filter_map(|(stream, counts)| Some((stream, most(counts)?.0))).collect()
}

/// DSCPs that differ between the taps: one event for each stream and change.
fn classes(finder: &mut Finder<'_>) {
    let analysis = finder.analysis;
    for (number, connection) in analysis.connections.iter().enumerate() {
        let crossings = connection.between.iter().flat_map(|between| &between.crossings);
        for (end, crossing) in crossings.enumerate() {
            let mut changes: BTreeMap<(u8, u8), Vec<[usize; 2]>> = BTreeMap::new();
            for &(here, there) in &crossing.both {
                let (Some(one), Some(two)) = (finder.record(here), finder.record(there)) else { continue };
                if one.dscp() != two.dscp() {
                    changes.entry((one.dscp(), two.dscp())).or_default().push([here, there]);
                }
            }
            for ((from, to), packets) in changes {
                let Some(first) = packets.first() else { continue };
                let psn = finder.record(first[0]).map(|record| record.psn.get());
                let count = packets.len();
                let text = format!("the network changes the DSCP from {from} to {to} ({count} packets)");
                finder.push(EventKind::DscpChanged, Some((number, end)), first, psn, text);
            }
        }
    }
}
