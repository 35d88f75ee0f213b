//! Damaged packets whose queue pair number is wrong, too: they belong to the connection that their addresses
//! and their PSN fit, not to a connection of their own.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use roce_packet::Encapsulation;

use crate::copies::Tap;
use crate::icrc::Tally;
use crate::record::{Record, StreamId, StreamKey, is_connected};
use crate::stream::Streams;

/// Largest distance of the PSN of a damaged packet from that of the sound packet before or behind it.
const NEAR: u32 = 256;
/// Maximum number of records in each direction among which a sound packet is looked for.
const MOST_LOOKED_AT: usize = 1 << 14;
/// Maximum number of packets of a stream that may be damaged packets of others. A sender that computes every
/// ICRC in a wrong way sends more.
const MOST_PACKETS: u64 = 16;

/// Maximum number of damaged packets that are looked at, which bounds the time: with more, the queue pair
/// number is hardly what was damaged.
const MOST_STRAYS: usize = 4_096;

/// Sender, receiver, and the version of RoCE.
type Hosts = (IpAddr, IpAddr, Encapsulation);

const fn hosts(key: StreamKey) -> Hosts {
    (key.source, key.destination, key.encapsulation)
}

/// Gives damaged packets of streams without any sound packet to the streams that they fit.
pub(crate) fn adopt(records: &mut [Record], streams: &mut Streams, mistakes: &mut HashMap<StreamId, Tally>) {
    let mut is_sound = vec![false; streams.len()];
    for record in records.iter().filter(|record| !record.is_damaged()) {
        if let Some(is_sound) = is_sound.get_mut(record.stream.0 as usize) {
            *is_sound = true;
        }
    }
    let is_known = |id: StreamId| is_sound.get(id.0 as usize).copied().unwrap_or(false);
    let mut by_hosts: HashMap<Hosts, Vec<StreamId>> = HashMap::new();
    for (id, stream) in streams.iter().filter(|(id, _)| is_known(*id)) {
        by_hosts.entry(hosts(stream.key)).or_default().push(id);
    }
    let is_stray = |record: &Record| {
        let is_small = streams.get(record.stream).is_some_and(|stream| stream.packets <= MOST_PACKETS);
        is_small && !is_known(record.stream)
    };
    let all = records.iter().enumerate();
    let strays: Vec<usize> = all.filter(|(_, record)| is_stray(record)).map(|(index, _)| index).collect();
    if strays.len() > MOST_STRAYS {
        return;
    }
    let mut moved: BTreeMap<StreamId, StreamId> = BTreeMap::new();
    for index in strays {
        let Some(from) = records.get(index).map(|record| record.stream) else { continue };
        let Some(key) = streams.get(from).map(|stream| stream.key) else { continue };
        let Some(candidates) = by_hosts.get(&hosts(key)) else { continue };
        let Some(to) = best(records, streams, index, candidates) else { continue };
        streams.hand_over(from, to);
        moved.insert(from, to);
        if let Some(record) = records.get_mut(index) {
            record.stream = to;
        }
    }
    for (from, to) in moved {
        if let Some(tally) = mistakes.remove(&from) {
            mistakes.entry(to).or_default().merge(tally);
        }
    }
}

/// Returns the stream that a damaged packet fits: its PSN is near that of the sound packet before or behind
/// it. Of several streams, the one from whose queue pair number the fewest bits differ.
fn best(records: &[Record], streams: &Streams, index: usize, candidates: &[StreamId]) -> Option<StreamId> {
    let stray = records.get(index)?;
    let info = stray.info().filter(|info| is_connected(info.transport))?;
    let is_like = |record: &&Record| {
        record.is_sound()
            && Tap::of(record) == Tap::of(stray)
            && record
                .info()
                .is_some_and(|other| (other.transport, other.direction) == (info.transport, info.direction))
    };
    // The distances to the closest packets of each candidate.
    let mut fitting: BTreeMap<StreamId, bool> = BTreeMap::new();
    let mut look = |found: &mut dyn Iterator<Item = &Record>, is_before: bool| {
        let mut left = candidates.to_vec();
        for record in found.take(MOST_LOOKED_AT).filter(is_like) {
            let Some(at) = left.iter().position(|id| *id == record.stream) else { continue };
            let id = left.swap_remove(at);
            let distance =
                if is_before { record.psn.distance_to(stray.psn) } else { stray.psn.distance_to(record.psn) };
            *fitting.entry(id).or_default() |= distance <= NEAR;
            if left.is_empty() {
                break;
            }
        }
    };
    look(&mut records.get(..index)?.iter().rev(), true);
    look(&mut records.get(index + 1..)?.iter(), false);
    let qpn = streams.get(stray.stream)?.key.qpn.get();
    let differing = |id: StreamId| Some((streams.get(id)?.key.qpn.get() ^ qpn).count_ones());
    let mut fitting: Vec<(u32, StreamId)> = fitting
        .into_iter()
        .filter(|(_, fits)| *fits)
        .filter_map(|(id, _)| Some((differing(id)?, id)))
        .collect();
    fitting.sort_unstable();
    match fitting[..] {
        [(_, only)] => Some(only),
        [(least, first), (next, _), ..] if least < next => Some(first),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{EventKind, events};
    use crate::summary::summary;
    use crate::testing::wire::{Sketch, Wire};

    /// Regression: a packet whose queue pair number was damaged made a connection of its own.
    #[test]
    fn a_damaged_queue_pair_number_makes_no_connection() {
        let mut wire = Wire::default();
        for psn in 0..4 {
            let sketch = Sketch::send(1, psn);
            match psn {
                1 => wire.with_another_qpn(u64::from(psn), sketch),
                _ => wire.at_us(psn.into(), sketch),
            }
        }
        wire.at_us(10, Sketch::ack(2, 0, 1));
        for psn in 1..4 {
            wire.at_us(100_000 + u64::from(psn), Sketch::send(1, psn));
        }
        wire.at_us(100_010, Sketch::ack(2, 3, 4));
        let analysis = wire.analyze();
        let [connection] = &analysis.connections[..] else { panic!("{:?}", analysis.connections) };
        let found = summary(&analysis, connection);
        assert_eq!((found.damaged, found.requests[0].lost), ([1, 0], 0), "{found:?}");
        let stream = connection.streams[0].unwrap();
        assert_eq!(analysis.mistakes[&stream].wrong(), 1);
        let found = events(&analysis);
        let damaged = found.iter().find(|event| event.kind == EventKind::Corrupted).expect("damaged");
        assert_eq!((damaged.connection, damaged.end, damaged.psn), (Some(0), Some(0), Some(1)));
    }

    /// The time for a capture of random packets is bounded.
    #[test]
    fn many_damaged_queue_pair_numbers_are_left_alone() {
        const QPN: usize = 14 + 20 + 8 + 5;

        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 0));
        wire.at_us(1, Sketch::ack(2, 0, 1));
        for number in 0..=super::MOST_STRAYS as u32 {
            let mut frame = Sketch::send(1, 1).frame(&[]);
            frame[QPN..QPN + 3].copy_from_slice(&(number + 0x100).to_be_bytes()[1..]);
            wire.raw(0, u64::from(number + 2) * 1000, frame);
        }
        assert_eq!(wire.analyze().connections.len(), super::MOST_STRAYS + 2);
    }

    /// A packet that fits no connection stays apart: nothing says whose it is.
    #[test]
    fn a_damaged_packet_with_a_strange_psn_stays_apart() {
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 0));
        wire.with_another_qpn(1, Sketch::send(1, 90_000));
        wire.at_us(2, Sketch::ack(2, 0, 1));
        assert_eq!(wire.analyze().connections.len(), 2);
    }
}
