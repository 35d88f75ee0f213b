//! The longest time in which nothing came back to an end that sent requests.

use std::ops::Range;

use roce_packet::Direction;

use crate::analysis::Analysis;
use crate::connection::Connection;
use crate::record::{Bits, Place, Record};

/// Shorter times are usual on busy machines.
const LEAST_NS: u64 = 10_000_000;
/// A time is long if it is this multiple of the usual time of an answer.
const TIMES_THE_MEDIAN: u64 = 20;

/// A time in which nothing came back to an end that sent requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// From the first request to the next packet of the other end, in nanoseconds.
    pub ns: u64,
    /// The first request.
    pub from: Place,
    /// The next packet of the other end.
    pub until: Place,
    /// Number of request packets in this time.
    pub requests: u64,
    /// The view of a second tap, if there is one.
    pub beyond: Option<Beyond>,
}

/// A [`Stall`] as a tap near the other end shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// Number of these request packets that were lost on the way there.
    pub lost_requests: u64,
    /// Number of packets of the other end in this time that were lost on the way back.
    pub lost_answers: u64,
}

/// Finds the longest stall of an end, if one is much longer than the usual time of an answer.
pub(crate) fn longest(
    analysis: &Analysis,
    connection: &Connection,
    end: usize,
    median_ns: u64,
) -> Option<Stall> {
    let records = &analysis.records;
    let [own, other] =
        [end, 1_usize.checked_sub(end)?].map(|end| connection.streams.get(end).copied().flatten());
    let (own, other) = (own?, other?);
    let mut open: Option<(&Record, u64)> = None;
    let mut longest: Option<(Stall, Range<u64>)> = None;
    let seen = connection.view_of(end)?.indices.iter().filter_map(|index| records.get(*index));
    for record in seen.filter(|record| !record.bits.contains(Bits::COPY)) {
        if record.stream == own && is_request(record) {
            open = open.map_or(Some((record, 1)), |(first, requests)| Some((first, requests + 1)));
        } else if record.stream == other
            && let Some((first, requests)) = open.take()
        {
            let ns = record.time_ns.saturating_sub(first.time_ns);
            if longest.as_ref().is_none_or(|(longest, _)| ns > longest.ns) {
                let (from, until) = (first.place, record.place);
                let stall = Stall { ns, from, until, requests, beyond: None };
                longest = Some((stall, first.time_ns..record.time_ns));
            }
        }
    }
    let least = LEAST_NS.max(TIMES_THE_MEDIAN.saturating_mul(median_ns));
    let (stall, times_ns) = longest.filter(|(stall, _)| stall.ns >= least)?;
    Some(Stall { beyond: beyond(records, connection, end, &times_ns), ..stall })
}

fn is_request(record: &Record) -> bool {
    record.info().is_some_and(|info| info.direction == Direction::Request)
}

/// Compares with the tap near the other end. `times_ns` are those of the stall at the tap near this end.
fn beyond(records: &[Record], connection: &Connection, end: usize, times_ns: &Range<u64>) -> Option<Beyond> {
    let between = connection.between.as_ref()?;
    // The clock of the tap near end 1 is ahead, so that of the other tap is ahead of this one by so much.
    let ahead = between.offset_ns.unwrap_or(0);
    let ahead = if end == 0 { ahead } else { ahead.saturating_neg() };
    let within = |time_ns: u64| times_ns.contains(&time_ns);
    let lost = |end: usize| connection.lost(records, end);
    Some(Beyond {
        lost_requests: lost(end).filter(|record| is_request(record) && within(record.time_ns)).count() as u64,
        lost_answers: lost(1 - end).filter(|record| within(record.time_ns.wrapping_sub_signed(ahead))).count()
            as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::summary;
    use crate::testing::wire::{Sketch, Wire};

    /// Host 1 sends requests, which are answered after 10 µs. Of PSN 9 there are three more copies, and its
    /// answer comes 40 ms after the first one. `arrives` tells whether those copies come to the second place,
    /// and `answer_is_lost` whether each has an answer that is lost.
    fn stalled(arrives: bool, answer_is_lost: bool) -> Option<Stall> {
        let mut wire = Wire::default();
        let exchange = |wire: &mut Wire, psn: u32, time: u64| {
            wire.add(0, time, Sketch::send(1, psn));
            wire.add(1, time + 1_000, Sketch::send(1, psn));
            wire.add(1, time + 9_000, Sketch::ack(2, psn, psn + 1));
            wire.add(0, time + 10_000, Sketch::ack(2, psn, psn + 1));
        };
        (0..9).for_each(|psn| exchange(&mut wire, psn, 100_000 * u64::from(psn)));
        for time in [1_000_000, 5_000_000, 21_000_000] {
            wire.add(0, time, Sketch::send(1, 9));
            if arrives {
                wire.add(1, time + 1_000, Sketch::send(1, 9));
            }
            if answer_is_lost {
                wire.add(1, time + 9_000, Sketch::ack(2, 9, 10));
            }
        }
        exchange(&mut wire, 9, 40_990_000);
        (10..14).for_each(|psn| exchange(&mut wire, psn, 50_000_000 + 100_000 * u64::from(psn)));
        let analysis = wire.analyze();
        let [first, second] = summary(&analysis, &analysis.connections[0]).requests;
        assert_eq!(second.stall, None, "it requests nothing");
        first.stall
    }

    #[test]
    fn a_stall_says_whether_requests_arrived_and_answers_left() {
        for (arrives, answer_is_lost, lost_requests, lost_answers) in
            [(true, false, 0, 0), (false, false, 3, 0), (true, true, 0, 3)]
        {
            let stall = stalled(arrives, answer_is_lost).expect("a stall");
            assert_eq!((stall.ns, stall.requests), (40_000_000, 4), "{stall:?}");
            assert_eq!(stall.beyond, Some(Beyond { lost_requests, lost_answers }), "{stall:?}");
        }
    }

    #[test]
    fn usual_waits_and_pauses_of_the_requester_are_no_stall() {
        let mut wire = Wire::default();
        for psn in 0..10_u32 {
            // Answers after 1 ms, and half a second between requests.
            let time = 500_000_000 * u64::from(psn);
            wire.add(0, time, Sketch::send(1, psn));
            wire.add(0, time + 1_000_000, Sketch::ack(2, psn, psn + 1));
        }
        // One after 15 ms.
        wire.add(0, 6_000_000_000, Sketch::send(1, 10));
        wire.add(0, 6_015_000_000, Sketch::ack(2, 10, 11));
        let analysis = wire.analyze();
        assert_eq!(summary(&analysis, &analysis.connections[0]).requests[0].stall, None);
    }
}
