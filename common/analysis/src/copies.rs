//! Packets that were captured more than once: by a mirror of both directions of a port, or at two places.

use std::collections::HashMap;

use roce_packet::{Opcode, Psn};

use crate::record::{Bits, Record, StreamId};

/// Where a packet was captured: the file, and its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tap {
    /// Index of the file.
    pub capture: u16,
    /// Number of the interface.
    pub interface: u16,
}

impl Tap {
    pub(crate) const fn of(record: &Record) -> Self {
        Self { capture: record.place.capture, interface: record.interface }
    }
}

/// What copies of one packet have in common. A retransmission has it too unless it has another
/// Identification, so only the time tells them apart.
type Likeness = (StreamId, Opcode, Psn, u32, u16);

const fn likeness(record: &Record) -> Likeness {
    (record.stream, record.opcode, record.psn, record.icrc, record.identification)
}

/// Longest time between two copies at a mirror, in nanoseconds.
const MIRROR_NS: u64 = 100_000;
/// Share of copies, in per cent, from which a stream counts as captured twice. Losses and retransmissions
/// never repeat nearly every packet; a mirror that takes both sides of a switch does.
const MIRRORED_PERCENT: usize = 45;

/// Marks copies that a mirror made, with [`Bits::COPY`]. Returns their number.
pub fn mark_mirrored(records: &mut [Record]) -> u64 {
    let mut last: HashMap<(Tap, Likeness), usize> = HashMap::new();
    let mut streams: HashMap<(Tap, StreamId), (usize, Vec<usize>)> = HashMap::new();
    for (index, record) in records.iter().enumerate() {
        let tap = Tap::of(record);
        let (count, copies) = streams.entry((tap, record.stream)).or_default();
        *count += 1;
        let before = last.insert((tap, likeness(record)), index).and_then(|before| records.get(before));
        if before.is_some_and(|before| record.time_ns.saturating_sub(before.time_ns) <= MIRROR_NS) {
            copies.push(index);
            // The next one is an original again.
            last.remove(&(tap, likeness(record)));
        }
    }
    let mut marked = 0;
    for (count, copies) in streams.into_values() {
        if copies.len() < 2 || copies.len() * 100 < count * MIRRORED_PERCENT {
            continue;
        }
        for index in copies {
            if let Some(record) = records.get_mut(index) {
                record.bits |= Bits::COPY;
                marked += 1;
            }
        }
    }
    marked
}

/// What two taps saw of one stream.
#[derive(Clone, Debug, Default)]
pub struct Crossing {
    /// Packets at both taps: the index at the first one, and at the second one.
    pub both: Vec<(usize, usize)>,
    /// Packets at the first tap that did not arrive at the second one.
    pub lost: Vec<usize>,
    /// Packets that only the second tap has.
    pub only_second: Vec<usize>,
    /// Median of the time at the second tap less the time at the first one, in nanoseconds.
    pub delay_ns: Option<i64>,
}

/// Compares what two taps saw of one stream.
#[must_use]
pub fn cross(records: &[Record], first: &[usize], second: &[usize]) -> Crossing {
    let by_likeness = |indices: &[usize]| {
        let mut map: HashMap<Likeness, Vec<usize>> = HashMap::new();
        for &index in indices {
            if let Some(record) = records.get(index).filter(|record| !record.bits.contains(Bits::COPY)) {
                map.entry(likeness(record)).or_default().push(index);
            }
        }
        map
    };
    let time = |index: usize| records.get(index).map_or(0, |record| record.time_ns);
    let (one, mut two) = (by_likeness(first), by_likeness(second));
    let mut delays: Vec<i64> = one
        .iter()
        .filter_map(|(key, here)| match (&**here, two.get(key).map(Vec::as_slice)) {
            (&[here], Some(&[there])) => Some(time(there).wrapping_sub(time(here)).cast_signed()),
            _ => None,
        })
        .collect();
    delays.sort_unstable();
    let delay_ns = delays.get(delays.len() / 2).copied();
    let mut crossing = Crossing { delay_ns, ..Crossing::default() };
    let ends = (second.first().map(|index| time(*index)), second.last().map(|index| time(*index)));
    for &index in first {
        let Some(record) = records.get(index).filter(|record| !record.bits.contains(Bits::COPY)) else {
            continue;
        };
        let expected = record.time_ns.wrapping_add_signed(delay_ns.unwrap_or(0));
        let found = two.get_mut(&likeness(record)).and_then(|there| {
            let closest = (0..there.len())
                .min_by_key(|at| there.get(*at).map_or(u64::MAX, |there| time(*there).abs_diff(expected)))?;
            let others = one.get(&likeness(record)).map_or(1, Vec::len);
            let at = *there.get(closest)?;
            // Of several copies at the first tap, the one that is closest in time has arrived.
            (others <= 1 || time(at).abs_diff(expected) <= NEAR_NS).then(|| there.swap_remove(closest))
        });
        match found {
            Some(there) => crossing.both.push((index, there)),
            // The second capture may have begun later or ended earlier.
            None if ends.0 <= Some(expected) && Some(expected) <= ends.1 => crossing.lost.push(index),
            None => {}
        }
    }
    crossing.only_second = two.into_values().flatten().collect();
    crossing.only_second.sort_unstable();
    crossing
}

/// Largest deviation of a packet's delay from the median if a packet with the same content exists, in
/// nanoseconds.
const NEAR_NS: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::records::Traffic;

    #[test]
    fn a_mirror_of_both_sides_doubles_nearly_every_packet() {
        let mut traffic = Traffic::default();
        for psn in 0..20 {
            traffic.request(7, psn);
            // One copy is missing.
            if psn != 5 {
                traffic.request(7, psn);
            }
        }
        assert_eq!(mark_mirrored(&mut traffic.records), 19);
        let copies = traffic.records.iter().filter(|record| record.bits.contains(Bits::COPY)).count();
        assert_eq!(copies, 19);
    }

    #[test]
    fn some_packets_that_come_twice_are_no_mirror() {
        let mut traffic = Traffic::default();
        for psn in 0..20 {
            traffic.request(7, psn);
            if psn % 4 == 0 {
                traffic.request(7, psn);
            }
        }
        assert_eq!(mark_mirrored(&mut traffic.records), 0);
    }

    #[test]
    fn what_only_the_first_tap_has_was_lost_in_between() {
        const AHEAD_NS: u64 = 5_000_000_000;

        let mut traffic = Traffic::default();
        // PSN 3 is lost once, and sent again much later with the same content.
        for psn in [0, 1, 2, 3, 4, 3, 5] {
            traffic.now_ns += 10_000_000;
            traffic.request(7, psn);
        }
        let first: Vec<usize> = (0..7).collect();
        for index in [0, 1, 2, 4, 5, 6] {
            let mut copy = traffic.records[index];
            copy.place.capture = 1;
            copy.time_ns += AHEAD_NS + 700;
            traffic.records.push(copy);
        }
        let second: Vec<usize> = (7..13).collect();
        let crossing = cross(&traffic.records, &first, &second);
        assert_eq!((crossing.lost.as_slice(), crossing.both.len()), ([3].as_slice(), 6));
        assert_eq!(crossing.delay_ns, Some(AHEAD_NS.cast_signed() + 700));
        assert_eq!(crossing.only_second, [0; 0]);
    }
}
