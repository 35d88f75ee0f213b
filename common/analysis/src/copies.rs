//! Packets that were captured more than once: by a mirror of both directions of a port, or at two places.

use std::collections::{HashMap, HashSet};

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

/// Returns the likeness of a packet whose ICRC only one tap shows.
const fn without_icrc(record: &Record) -> Likeness {
    (record.stream, record.opcode, record.psn, 0, record.identification)
}

/// Returns the packets that only one of two taps shows with their end, and so with their ICRC: the network
/// fragmented them in between, or one capture has a shorter snap length.
fn cut_at_one(records: &[Record], taps: [&[usize]; 2]) -> HashSet<Likeness> {
    let cut = |indices: &[usize], is_cut: bool| -> HashSet<Likeness> {
        let found = indices.iter().filter_map(|index| records.get(*index));
        let found = found.filter(|record| record.bits.contains(Bits::CUT) == is_cut && record.is_sound());
        found.map(without_icrc).collect()
    };
    let [first, second] = taps;
    let (cut_first, cut_second) = (cut(first, true), cut(second, true));
    if cut_first.is_empty() && cut_second.is_empty() {
        return HashSet::new();
    }
    let (whole_first, whole_second) = (cut(first, false), cut(second, false));
    let both = cut_first.intersection(&whole_second).chain(cut_second.intersection(&whole_first));
    both.copied().collect()
}

/// Longest time between two copies at a mirror, in nanoseconds.
const MIRROR_NS: u64 = 100_000;
/// Share of copies, in per cent, from which a stream counts as captured twice. Losses and retransmissions
/// never repeat nearly every packet; a mirror that takes both sides of a switch does.
const MIRRORED_PERCENT: usize = 45;
/// Number of copies from which their share is enough. Below, a requester may have sent everything again.
const MANY_COPIES: usize = 64;

/// The packets of one stream at one tap.
#[derive(Default)]
struct Repeated {
    packets: usize,
    copies: Vec<usize>,
    /// How often a copy follows an original. A mirror sends each copy soon, a requester sends all packets
    /// again behind the last one.
    runs: usize,
    ends_with_copy: bool,
}

impl Repeated {
    fn is_mirrored(&self) -> bool {
        let copies = self.copies.len();
        copies >= 2
            && copies * 100 >= self.packets * MIRRORED_PERCENT
            && (copies >= MANY_COPIES || copies < 2 * self.runs)
    }
}

/// The packets of a tap of the last [`MIRROR_NS`] at least, and of at most twice that time: a table of all
/// packets would not fit into the cache of a processor.
#[derive(Default)]
struct Recent {
    /// The packets since `since`, and those of the same time before.
    new: HashMap<Likeness, usize>,
    old: HashMap<Likeness, usize>,
    since: u64,
}

impl Recent {
    /// Adds a packet. Returns the index of the last one like it, if it is known.
    fn replace(&mut self, record: &Record, index: usize) -> Option<usize> {
        if record.time_ns.abs_diff(self.since) > MIRROR_NS {
            core::mem::swap(&mut self.new, &mut self.old);
            self.new.clear();
            self.since = record.time_ns;
        }
        let old = self.old.remove(&likeness(record));
        self.new.insert(likeness(record), index).or(old)
    }
}

/// Marks copies that a mirror made, with [`Bits::COPY`]. Returns their number.
pub fn mark_mirrored(records: &mut [Record]) -> u64 {
    let mut taps: HashMap<Tap, Recent> = HashMap::new();
    let mut streams: HashMap<(Tap, StreamId), Repeated> = HashMap::new();
    for (index, record) in records.iter().enumerate() {
        let tap = Tap::of(record);
        let repeated = streams.entry((tap, record.stream)).or_default();
        repeated.packets += 1;
        let recent = taps.entry(tap).or_default();
        let before = recent.replace(record, index).and_then(|before| records.get(before));
        let is_copy = before.is_some_and(|before| record.time_ns.saturating_sub(before.time_ns) <= MIRROR_NS);
        if is_copy {
            repeated.copies.push(index);
            repeated.runs += usize::from(!repeated.ends_with_copy);
            // The next one is an original again.
            recent.new.remove(&likeness(record));
        }
        repeated.ends_with_copy = is_copy;
    }
    let mut marked = 0;
    for repeated in streams.into_values().filter(Repeated::is_mirrored) {
        for index in repeated.copies {
            if let Some(record) = records.get_mut(index) {
                record.bits |= Bits::COPY;
                marked += 1;
            }
        }
    }
    marked
}

/// The packets of one stream at two taps.
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

/// Compares what two taps saw of one stream. `range` is the time of the first and the last packet of any
/// stream at the second tap. `ahead_ns` is how far its clock is ahead of the first one if no packet came to
/// both.
#[must_use]
pub fn cross(
    records: &[Record],
    first: &[usize],
    second: &[usize],
    range: Option<(u64, u64)>,
    ahead_ns: i64,
) -> Crossing {
    let cut = cut_at_one(records, [first, second]);
    let by_likeness = |indices: &[usize]| {
        let mut map: HashMap<Likeness, Vec<usize>> = HashMap::new();
        for &index in indices {
            if let Some(record) = records.get(index).filter(|record| !record.bits.contains(Bits::COPY)) {
                let is_cut = !cut.is_empty() && record.is_sound() && cut.contains(&without_icrc(record));
                let likeness = if is_cut { without_icrc(record) } else { likeness(record) };
                map.entry(likeness).or_default().push(index);
            }
        }
        map
    };
    let time = |index: usize| records.get(index).map_or(0, |record| record.time_ns);
    let (one, two) = (by_likeness(first), by_likeness(second));
    let mut delays: Vec<i64> = one
        .iter()
        .filter_map(|(key, here)| match (&**here, two.get(key).map(Vec::as_slice)) {
            (&[here], Some(&[there])) => Some(time(there).wrapping_sub(time(here)).cast_signed()),
            _ => None,
        })
        .collect();
    delays.sort_unstable();
    let delay_ns = delays.get(delays.len() / 2).copied();
    let expected = |index: usize| time(index).wrapping_add_signed(delay_ns.unwrap_or(ahead_ns));
    let mut crossing = Crossing { delay_ns, ..Crossing::default() };
    let mut unmatched: Vec<usize> = Vec::new();
    for (key, here) in &one {
        let there = two.get(key).map(Vec::as_slice).unwrap_or_default();
        let (pairs, lost) = assign(here, there, &expected, &time);
        crossing.both.extend(pairs);
        unmatched.extend(lost);
    }
    let arrived: HashSet<usize> = crossing.both.iter().map(|(_, there)| *there).collect();
    crossing.only_second = two.into_values().flatten().filter(|index| !arrived.contains(index)).collect();
    // The second capture may have begun later or ended earlier.
    let is_within =
        |index: &usize| range.is_some_and(|(start, end)| (start..=end).contains(&expected(*index)));
    crossing.lost = unmatched.into_iter().filter(is_within).collect();
    crossing.both.sort_unstable();
    crossing.lost.sort_unstable();
    crossing.only_second.sort_unstable();
    crossing
}

/// Finds which of several packets with equal content has arrived as which: those whose delay is the closest
/// to the expected one first. Returns the pairs, and the packets that have not arrived.
fn assign(
    here: &[usize],
    there: &[usize],
    expected: &impl Fn(usize) -> u64,
    time: &impl Fn(usize) -> u64,
) -> (Vec<(usize, usize)>, Vec<usize>) {
    // Nearly every packet comes once.
    if let (&[one], &[two]) = (here, there) {
        return (vec![(one, two)], Vec::new());
    }
    let mut candidates: Vec<(u64, usize, usize)> = Vec::new();
    for &one in here {
        let wanted = expected(one);
        let middle = there.partition_point(|two| time(*two) < wanted);
        let close = there.iter().skip(middle.saturating_sub(CANDIDATES)).take(2 * CANDIDATES);
        candidates.extend(close.map(|two| (time(*two).abs_diff(wanted), one, *two)));
    }
    candidates.sort_unstable();
    let in_order = || here.iter().copied().zip(there.iter().copied());
    let closest = candidates.first().map_or(0, |(deviation, ..)| *deviation);
    let closest_in_order = in_order().map(|(one, two)| time(two).abs_diff(expected(one))).min();
    // If all have arrived, they usually have in order. If one was late, so that its retransmission was
    // earlier, then the latter has the usual delay, and in order none would.
    if here.len() == there.len() && closest_in_order.is_none_or(|in_order| closest >= in_order / CLOSER) {
        return (in_order().collect(), Vec::new());
    }
    let (mut pairs, mut used) = (Vec::new(), (HashSet::new(), HashSet::new()));
    let is_single = here.len() == 1;
    for (deviation, one, two) in candidates {
        if (is_single || deviation <= NEAR_NS) && !used.0.contains(&one) && !used.1.contains(&two) {
            used.0.insert(one);
            used.1.insert(two);
            pairs.push((one, two));
        }
    }
    // The others had an unusual delay. What has arrived has left, so as few are lost as possible.
    let late = there.iter().copied().filter(|two| !used.1.contains(two));
    let mut rest = here.iter().copied().filter(|one| !used.0.contains(one));
    pairs.extend(late.zip(rest.by_ref()).map(|(two, one)| (one, two)));
    (pairs, rest.collect())
}

/// Factor by which a delay must be closer to the usual one to show that packets changed their order.
const CLOSER: u64 = 4;
/// Number of packets before and after the expected time that are compared.
const CANDIDATES: usize = 3;
/// Largest deviation of a packet's delay from the median if several packets have its content, in
/// nanoseconds.
const NEAR_NS: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::records::Traffic;
    use crate::testing::wire::{Sketch, Wire};

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

    /// Regression: the clocks of two interfaces of one file may differ by any time.
    #[test]
    fn copies_are_found_at_each_interface_by_its_own_clock() {
        let mut traffic = Traffic::default();
        for psn in 0..20 {
            for _ in 0..4 {
                traffic.request(7, psn);
            }
        }
        for (index, record) in traffic.records.iter_mut().enumerate() {
            record.interface = (index % 2) as u16;
            record.time_ns = index as u64 * 1_000 + (index % 2) as u64 * 1_000_000_000;
        }
        assert_eq!(mark_mirrored(&mut traffic.records), 40);
    }

    /// Regression: a requester that sent everything again within 100 µs counted as a mirror.
    #[test]
    fn a_requester_that_sends_everything_again_is_no_mirror() {
        let mut traffic = Traffic::default();
        for psn in [0, 1, 2, 3, 0, 1, 2, 3] {
            traffic.request(7, psn);
        }
        assert_eq!(mark_mirrored(&mut traffic.records), 0);
        for psn in [4, 4, 5, 5, 6, 6, 7, 7, 8, 8] {
            traffic.request(8, psn);
        }
        assert_eq!(mark_mirrored(&mut traffic.records), 5);
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
        let crossing = cross(&traffic.records, &first, &second, Some((0, u64::MAX)), 0);
        assert_eq!((crossing.lost.as_slice(), crossing.both.len()), ([3].as_slice(), 6));
        assert_eq!(crossing.delay_ns, Some(AHEAD_NS.cast_signed() + 700));
        assert_eq!(crossing.only_second, [0; 0]);
    }

    /// Regression: of packets that a network delayed by different times, those with retransmissions of equal
    /// bytes counted as lost, although all copies had arrived.
    #[test]
    fn of_as_many_copies_as_were_sent_none_is_lost() {
        let mut traffic = Traffic::default();
        let mut both = |sent: u64, arrived: u64, psn: u32| {
            traffic.now_ns = sent;
            traffic.request(7, psn);
            let mut copy = *traffic.records.last().unwrap();
            copy.place.capture = 1;
            copy.time_ns = arrived;
            copy
        };
        let mut there: Vec<Record> =
            (0..5).map(|psn| both(1000 * u64::from(psn), 1000 * u64::from(psn) + 700, psn)).collect();
        // The first copy comes 30 ms late, behind its two retransmissions, of which one is 20 ms late.
        there.push(both(10_000_000, 40_000_000, 9));
        there.push(both(12_000_000, 12_000_700, 9));
        there.push(both(14_000_000, 34_000_000, 9));
        there.sort_by_key(|record| record.time_ns);
        let first: Vec<usize> = (0..8).collect();
        traffic.records.extend(there);
        let second: Vec<usize> = (8..16).collect();
        let crossing = cross(&traffic.records, &first, &second, Some((0, u64::MAX)), 0);
        assert_eq!((crossing.both.len(), crossing.lost.len(), crossing.only_second.len()), (8, 0, 0));
    }

    /// Regression: of a packet and its retransmission with equal bytes, the retransmission counted as lost if
    /// it followed within 5 ms, because the lost packet was compared first.
    #[test]
    fn the_retransmission_arrives_and_the_first_copy_is_lost() {
        let mut wire = Wire::default();
        for psn in 0..10_u32 {
            let time = 1000 * u64::from(psn);
            wire.add(0, time, Sketch::send(1, psn));
            if psn != 4 {
                wire.add(1, time + 2000, Sketch::send(1, psn));
            }
        }
        wire.add(1, 12_000, Sketch::ack(2, 9, 1));
        wire.add(0, 14_000, Sketch::ack(2, 9, 1));
        wire.add(0, 20_000, Sketch::send(1, 4));
        wire.add(1, 22_000, Sketch::send(1, 4));
        let analysis = wire.analyze();
        let between = analysis.connections[0].between.as_ref().unwrap();
        assert_eq!(between.crossings[0].delay_ns, Some(2000));
        assert_eq!(between.crossings[0].lost, [4], "{between:?}");
        assert_eq!(between.crossings[1].lost, [], "{between:?}");
    }

    /// Regression: packets that one capture has without their end, such as first fragments, counted as lost,
    /// because their ICRC is missing.
    #[test]
    fn a_packet_without_its_end_is_the_one_that_left_whole() {
        let mut traffic = Traffic::default();
        for psn in 0..5 {
            traffic.request(7, psn);
        }
        let first: Vec<usize> = (0..5).collect();
        for index in 0..5 {
            let mut copy = traffic.records[index];
            copy.place.capture = 1;
            copy.time_ns += 700;
            if index % 2 == 0 {
                copy.bits = Bits::CUT | Bits::FRAGMENT;
                copy.icrc = 0;
            }
            traffic.records.push(copy);
        }
        let second: Vec<usize> = (5..10).collect();
        let crossing = cross(&traffic.records, &first, &second, Some((0, u64::MAX)), 0);
        assert_eq!((crossing.both.len(), crossing.lost.len(), crossing.only_second.len()), (5, 0, 0));
        let crossing = cross(&traffic.records, &second, &first, Some((0, u64::MAX)), 0);
        assert_eq!((crossing.both.len(), crossing.lost.len()), (5, 0));
    }

    /// Regression: the last packet of a stream was not counted as lost, because no later one of the stream
    /// showed that the second capture had gone on.
    #[test]
    fn the_last_packet_of_a_stream_can_be_lost() {
        let mut wire = Wire::default();
        for psn in 0..10_u32 {
            let time = 10_000 * u64::from(psn);
            wire.add(0, time, Sketch::send(1, psn));
            wire.add(1, time + 2000, Sketch::send(1, psn));
            wire.add(1, time + 3000, Sketch::ack(2, psn, psn + 1));
            if psn != 9 {
                wire.add(0, time + 5000, Sketch::ack(2, psn, psn + 1));
            }
        }
        wire.add(0, 200_000, Sketch::send(1, 9));
        wire.add(1, 202_000, Sketch::send(1, 9));
        let analysis = wire.analyze();
        let connection = &analysis.connections[0];
        let lost = &connection.between.as_ref().unwrap().crossings[1].lost;
        assert_eq!(lost.len(), 1, "{lost:?}");
    }
}
