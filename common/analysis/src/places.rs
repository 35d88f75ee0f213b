//! Interfaces of one file that show one place.
//!
//! Some capture files have an interface for each direction of one place: an optical tap has two ports, and
//! the fault bridge writes what comes from each side to an interface of its own. The packets of both
//! directions belong to one place then. Interfaces that show packets of one stream twice are different
//! places.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use roce_packet::Direction;

use crate::copies::Tap;
use crate::pairing::Pair;
use crate::record::{Record, StreamId};

/// Returns, for each interface that shows another direction of the place of an earlier interface, that
/// interface.
pub(crate) fn joined(records: &[Record], pairs: &[Pair]) -> HashMap<Tap, Tap> {
    let interface = records.first().map(|record| record.interface);
    if records.iter().all(|record| Some(record.interface) == interface) {
        return HashMap::new();
    }
    let mut taps: HashMap<StreamId, BTreeSet<Tap>> = HashMap::new();
    let mut answers: BTreeSet<StreamId> = BTreeSet::new();
    for record in records {
        taps.entry(record.stream).or_default().insert(Tap::of(record));
        if record.info().is_some_and(|info| info.direction == Direction::Response) {
            answers.insert(record.stream);
        }
    }
    // Interfaces that show packets of one stream: two places.
    let mut apart: BTreeSet<(Tap, Tap)> = BTreeSet::new();
    for seen in taps.values() {
        apart.extend(seen.iter().flat_map(|one| seen.iter().map(|other| (*one, *other))));
    }
    let mut joined: BTreeMap<Tap, Tap> = BTreeMap::new();
    for pair in pairs {
        let Some(backward) = pair.backward else { continue };
        // Without answers, nothing shows that packets of the other direction belong to them.
        let is_answered = answers.contains(&pair.forward) || answers.contains(&backward);
        let only = |id| taps.get(&id).filter(|seen| seen.len() == 1).and_then(BTreeSet::first).copied();
        let (Some(one), Some(other)) = (only(pair.forward), only(backward)) else { continue };
        let (low, high) = (one.min(other), one.max(other));
        if is_answered && low < high && low.capture == high.capture && !apart.contains(&(low, high)) {
            joined.entry(high).or_insert(low);
        }
    }
    // The first interface of several that belong together.
    let first = |mut tap: Tap| {
        while let Some(earlier) = joined.get(&tap) {
            tap = *earlier;
        }
        tap
    };
    joined.keys().map(|tap| (*tap, first(*tap))).collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::wire::{Sketch, Wire};

    /// Returns the number of places of the connection, and the numbers of its requests and answers at the
    /// first place. `is_there` says on which interfaces packets of a host are.
    fn places(interfaces: [&[u16]; 2]) -> (usize, usize, usize) {
        let mut wire = Wire::default();
        for psn in 0..10 {
            let time = 10_000 * u64::from(psn);
            for (packet, on) in
                [(Sketch::send(1, psn), interfaces[0]), (Sketch::ack(2, psn, psn + 1), interfaces[1])]
            {
                for interface in on {
                    let later = 1000 * u64::from(packet.from) + 2000 * u64::from(*interface);
                    wire.on_interface(*interface, time + later, packet);
                }
            }
        }
        let analysis = wire.analyze();
        let [connection] = &analysis.connections[..] else { panic!("{:?}", analysis.connections) };
        let replay = connection.requester(0).unwrap();
        (connection.views.len(), replay.sent.len(), replay.answers.len())
    }

    /// Regression: a file with an interface for each direction, as the fault bridge writes it, showed
    /// requests without answers and answers without requests.
    #[test]
    fn interfaces_with_one_direction_each_are_one_place() {
        assert_eq!(places([&[0], &[1]]), (1, 10, 10));
        assert_eq!(places([&[1], &[0]]), (1, 10, 10));
        assert_eq!(places([&[0, 1], &[0, 1]]), (2, 10, 10), "two places");
        assert_eq!(places([&[0, 1], &[1]]).0, 2, "the second place has both directions");
    }
}
