//! The responses to READs and atomic operations.

use roce_packet::Position;

use super::facts::{Cause, Changed, Resend, ResponseGap, Sent};
use super::player::Player;
use crate::record::{Extension, Record};

/// Number of the last gaps whose responses a requester may wait for.
const MOST_WAITING: usize = 8;
/// Time after which the capture lacks the responses that the requester waited for, in nanoseconds.
const MOST_WAIT_NS: u64 = 1_000_000;

impl Player<'_> {
    pub(super) fn response(&mut self, index: usize, record: &Record, psn: u64) {
        self.compare(index, record, psn);
        self.last_response = Some(index);
        if record.info().is_some_and(|info| info.position == Position::Only) {
            self.out.reads.longest_only = self.out.reads.longest_only.max(record.payload_len);
        }
        let is_dropped = self.waits_for_responses(index, psn);
        let read = self.reading.range_mut(..=psn).next_back();
        let found = read.and_then(|(start, expected)| {
            let sent = self.out.sent.get(start)?;
            let end = start.saturating_add(sent.span);
            (psn < end).then_some((expected, end, *sent))
        });
        let Some((expected, end, sent)) = found else {
            return self.acknowledge(psn.saturating_add(1), index);
        };
        if is_dropped {
            self.out.dropped_responses.insert(index);
            return;
        }
        let before = *expected;
        if psn < before {
            self.out.repeated_responses += 1;
            return;
        }
        *expected = psn.saturating_add(1);
        if psn.saturating_add(1) == end && !self.completes(&sent, record) {
            self.out.reads.wrong_length.push(index);
        }
        if psn > before {
            let count = psn - before;
            self.out.response_gaps.push(ResponseGap { first: before, count, after: index, again: None });
            return;
        }
        let is_open = |gap: &ResponseGap| gap.again.is_none() && gap.first < psn;
        if !self.out.response_gaps.last().is_some_and(is_open) {
            self.acknowledge(psn.saturating_add(1), index);
        }
    }

    /// Notes the responses that an acknowledgement of a later request shows to be missing (IBTA 9.7.5.2.9).
    /// Returns whether there are any. Without a later request for them, only the capture lacks them.
    pub(super) fn passes_over_read(&mut self, index: usize, psn: u64) -> bool {
        let unacknowledged = self.out.unacknowledged;
        let oldest =
            self.reading.range(..=unacknowledged).next_back().map_or(unacknowledged, |(start, _)| *start);
        let missing = self.reading.range(oldest.min(psn)..psn).find_map(|(start, expected)| {
            let end = self.end_of_read(*start)?;
            (*expected < end && end <= psn).then_some((*start, *expected, end))
        });
        let Some((start, first, end)) = missing else { return false };
        if self.waits_for_responses(index, psn) {
            return true;
        }
        if !self.is_requested_after(index, start, end) {
            self.reading.insert(start, end);
            return false;
        }
        let is_known = |gap: &ResponseGap| gap.again.is_none() && gap.first <= first;
        if !self.out.response_gaps.last().is_some_and(is_known) {
            let count = end - first;
            self.out.response_gaps.push(ResponseGap { first, count, after: index, again: None });
        }
        true
    }

    /// Returns whether the requester still waits for earlier responses, which it requested again: the
    /// answer with this PSN belongs to those before, and is dropped. Responses that were captured and
    /// then lost leave no gap, so repeated READs count like those that close one.
    fn waits_for_responses(&self, index: usize, psn: u64) -> bool {
        let gaps = self.out.response_gaps.iter().rev().take(MOST_WAITING);
        let of_gaps = gaps.filter_map(|gap| Some((gap.first, gap.again?)));
        let resends = self.out.resends.iter().rev().take(MOST_WAITING);
        let is_for_read = |resend: &&Resend| matches!(resend.cause, Cause::ImpliedNak(_));
        let of_resends = resends.filter(is_for_read).map(|resend| (resend.psn, resend.at));
        of_gaps.chain(of_resends).any(|(first, again)| {
            let is_open = || {
                let read = self.reading.range(..=first).next_back();
                read.is_some_and(|(start, expected)| {
                    self.end_of_read(*start).is_some_and(|end| *expected < end.min(psn))
                })
            };
            let waited_ns = self.time(index).saturating_sub(self.time(again));
            first < psn && self.train_start < again && waited_ns < MOST_WAIT_NS && is_open()
        })
    }

    /// Returns whether one of the next requests is one for these PSNs.
    fn is_requested_after(&self, index: usize, start: u64, end: u64) -> bool {
        self.later_requests(index)
            .filter_map(|later| self.unwrap_from_base(self.records.get(later)?.psn))
            .any(|psn| (start..end).contains(&psn))
    }

    /// Returns whether the last response has the bytes that the READ lacks.
    fn completes(&self, sent: &Sent, last: &Record) -> bool {
        let request = self.records.get(sent.first).map(|record| record.extension);
        let (Some(Extension::Reth(reth)), Some(mtu)) = (request, self.out.mtu) else { return true };
        let before = (sent.span - 1).saturating_mul(mtu.bytes() as u64);
        before.saturating_add(last.payload_len.into()) == u64::from(reth.dma_len)
    }

    /// Compares a response with an earlier one for the same PSN.
    fn compare(&mut self, index: usize, record: &Record, psn: u64) {
        let Some(before) = self.responses.get(&psn).copied() else {
            self.responses.insert(psn, index);
            return;
        };
        let Some(earlier) = self.records.get(before) else { return };
        let differs = match (earlier.extension, record.extension) {
            (Extension::AtomicAck(_, _, one), Extension::AtomicAck(_, _, other)) => one != other,
            _ => {
                let is_known = earlier.payload_crc != 0 && record.payload_crc != 0;
                // A READ that was resumed has other packet boundaries only at its end.
                is_known
                    && earlier.payload_len == record.payload_len
                    && earlier.payload_crc != record.payload_crc
            }
        };
        if differs {
            self.out.changed.push(Changed { psn, before, now: index });
        }
    }
}
