//! The state of a replay.

use std::collections::{BTreeMap, HashMap};

use roce_packet::{Direction, Operation, PathMtu, Position, Psn};

use super::facts::{GapEnd, Half, ORIGIN, Replay};
use crate::record::{Bits, Extension, Record, StreamId};

/// Number of the last gaps that are compared with a NAK or a READ.
pub(super) const MOST_OPEN_GAPS: usize = 256;
/// Maximum number of later requests among which a repetition is looked for.
const MOST_LATER: usize = 512;

/// Maximum number of requests in front of a NAK whose order is compared with that of a later one.
const MOST_EARLIER: usize = 64;
/// Least number of requests behind others from which one sees whether a sender counts its packets.
const FEWEST_STEPS: usize = 3;
/// Maximum number of packets of a host between two requests of a queue pair.
const MOST_BETWEEN: u16 = 0x0fff;

/// State of the replay beside its results.
pub(super) struct Player<'a> {
    pub(super) records: &'a [Record],
    /// The stream of the answers.
    pub(super) answers: Option<StreamId>,
    /// Indices of the requests that count, in order.
    pub(super) requests: Vec<usize>,
    pub(super) out: Replay,
    pub(super) base: Option<Psn>,
    /// Missing PSNs: first, end, and the index in `out.gaps`.
    pub(super) missing: Vec<(u64, u64, usize)>,
    /// The current return: index in `out.resends`, and the PSN that follows next.
    pub(super) run: Option<(usize, u64)>,
    /// The last sequence NAK that no return has answered.
    pub(super) pending_nak: Option<usize>,
    pub(super) pending_rnr: Option<usize>,
    /// Time of the last progress: an acknowledgement of something new.
    pub(super) progress_ns: u64,
    /// Index of the answer that brought it.
    pub(super) progress_at: Option<usize>,
    pub(super) last_request: Option<usize>,
    /// Whether the Identifications of the requests show the order in which they were sent.
    pub(super) is_numbered: bool,
    /// Index of the captured request that was sent last, if they are numbered.
    pub(super) newest: Option<usize>,
    pub(super) last_response: Option<usize>,
    /// PSN of the last answer.
    pub(super) answered: u64,
    /// The first of the answers whose PSNs grow up to the last one. Those to a repeated request begin again
    /// at an earlier PSN.
    pub(super) train_start: usize,
    /// READs that are being answered: by first PSN, the PSN of the next response.
    pub(super) reading: BTreeMap<u64, u64>,
    /// By PSN, the first response: its index.
    pub(super) responses: HashMap<u64, usize>,
    /// First request packet of the oldest message that is not answered: PSNs by end of message.
    pub(super) open_messages: BTreeMap<u64, usize>,
    pub(super) message_start: Option<usize>,
}

impl<'a> Player<'a> {
    pub(super) fn new(records: &'a [Record], indices: &[usize], half: Half) -> Self {
        let is_request = |index: &usize| {
            records.get(*index).is_some_and(|record| {
                Some(record.stream) == half.requests
                    && record.is_sound()
                    && !record.bits.contains(Bits::COPY)
                    && record.info().is_some_and(|info| info.direction == Direction::Request)
            })
        };
        let requests: Vec<usize> = indices.iter().copied().filter(is_request).collect();
        let mtu = path_mtu(records, indices, half, &requests);
        let is_numbered = counts_packets(records, &requests);
        Self {
            records,
            answers: half.answers,
            requests,
            out: Replay { mtu, next: ORIGIN, unacknowledged: ORIGIN, ..Replay::default() },
            base: None,
            missing: Vec::new(),
            run: None,
            pending_nak: None,
            pending_rnr: None,
            progress_ns: 0,
            progress_at: None,
            last_request: None,
            is_numbered,
            newest: None,
            last_response: None,
            answered: 0,
            train_start: 0,
            reading: BTreeMap::new(),
            responses: HashMap::new(),
            open_messages: BTreeMap::new(),
            message_start: None,
        }
    }

    /// Returns the 64-bit form of a PSN that is the closest to the next new one. The first PSN is [`ORIGIN`].
    pub(super) fn unwrap(&mut self, psn: Psn) -> u64 {
        let base = *self.base.get_or_insert(psn);
        self.unwrap_from(base, psn)
    }

    /// Returns the 64-bit form of a PSN like [`unwrap`](Self::unwrap), or `None` before the first request.
    pub(super) fn unwrap_from_base(&self, psn: Psn) -> Option<u64> {
        self.base.map(|base| self.unwrap_from(base, psn))
    }

    /// Returns the 64-bit form of a PSN, given the one that is [`ORIGIN`].
    fn unwrap_from(&self, base: Psn, psn: Psn) -> u64 {
        let next = self.out.next;
        let expected = base.add(u32::try_from(next.wrapping_sub(ORIGIN) & u64::from(Psn::MASK)).unwrap_or(0));
        let ahead = u64::from(expected.distance_to(psn));
        if ahead <= u64::from(Psn::MASK / 2) {
            next.saturating_add(ahead)
        } else {
            next.saturating_sub(u64::from(Psn::MASK) + 1 - ahead)
        }
    }

    /// Returns the indices of the requests behind a record.
    pub(super) fn later_requests(&self, index: usize) -> impl Iterator<Item = usize> {
        let start = self.requests.partition_point(|request| *request <= index);
        self.requests.get(start..).unwrap_or_default().iter().copied().take(MOST_LATER)
    }

    /// Returns the indices of the last requests in front of a record.
    pub(super) fn earlier_requests(&self, index: usize) -> impl Iterator<Item = usize> {
        let end = self.requests.partition_point(|request| *request < index);
        self.requests.get(..end).unwrap_or_default().iter().rev().copied().take(MOST_EARLIER)
    }

    /// Returns the PSN behind the READ that begins at `start`.
    pub(super) fn end_of_read(&self, start: u64) -> Option<u64> {
        Some(start.saturating_add(self.out.sent.get(&start)?.span))
    }

    pub(super) fn time(&self, index: usize) -> u64 {
        self.records.get(index).map_or(0, |record| record.time_ns)
    }

    /// Returns the number of PSNs of a request.
    pub(super) fn span(&self, record: &Record) -> u64 {
        let is_read = record.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        match (record.extension, self.out.mtu) {
            (Extension::Reth(reth), Some(mtu)) if is_read => {
                u64::from(reth.dma_len).div_ceil(mtu.bytes() as u64).max(1)
            }
            _ => 1,
        }
    }

    pub(super) fn finish(mut self) -> Replay {
        let unacknowledged = self.out.unacknowledged;
        for &(_, end, gap) in &self.missing {
            if let Some(gap) = self.out.gaps.get_mut(gap)
                && gap.end == GapEnd::Open
                && end <= unacknowledged
            {
                gap.end = GapEnd::NotCaptured;
            }
        }
        // Packets that were left out are not a gap.
        self.out.gaps.retain(|gap| !gap.is_of_resend || gap.end == GapEnd::Resent);
        self.out
    }
}

/// Returns whether the Identifications of most requests are a little larger than those before.
fn counts_packets(records: &[Record], requests: &[usize]) -> bool {
    let (mut steps, mut forward) = (0_usize, 0);
    for pair in requests.windows(2) {
        let &[one, two] = pair else { continue };
        let (Some(one), Some(two)) = (records.get(one), records.get(two)) else { continue };
        steps += 1;
        let step = two.identification.wrapping_sub(one.identification);
        forward += usize::from(one.was_sent_before(two) == Some(true) && step <= MOST_BETWEEN);
    }
    steps >= FEWEST_STEPS && forward * 4 >= steps * 3
}

/// Determines the path MTU: from packets that must be full, and without any, from the PSNs after READs.
fn path_mtu(records: &[Record], indices: &[usize], half: Half, requests: &[usize]) -> Option<PathMtu> {
    let streams = [half.requests, half.answers];
    let full = indices
        .iter()
        .filter_map(|index| records.get(*index))
        .filter(|record| streams.contains(&Some(record.stream)) && record.is_sound())
        .filter(|record| {
            record.info().is_some_and(|info| matches!(info.position, Position::First | Position::Middle))
        })
        .map(|record| record.payload_len as usize)
        .max();
    full.and_then(PathMtu::from_bytes).or_else(|| mtu_from_reads(records, requests))
}

fn mtu_from_reads(records: &[Record], requests: &[usize]) -> Option<PathMtu> {
    let mut votes = [0_u32; PathMtu::ALL.len()];
    for pair in requests.windows(2) {
        let &[one, two] = pair else { continue };
        let (Some(read), Some(next)) = (records.get(one), records.get(two)) else { continue };
        let is_read = read.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        let Extension::Reth(reth) = read.extension else { continue };
        let distance = read.psn.distance_to(next.psn);
        for (vote, mtu) in votes.iter_mut().zip(PathMtu::ALL) {
            let fits = u64::from(reth.dma_len).div_ceil(mtu.bytes() as u64) == u64::from(distance);
            *vote += u32::from(is_read && distance > 1 && fits);
        }
    }
    let best = votes.iter().zip(PathMtu::ALL).max_by_key(|(votes, _)| **votes)?;
    (*best.0 > 0).then_some(best.1)
}
