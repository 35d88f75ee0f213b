//! The responses to READs and atomic operations.

use super::{Changed, Player, ResponseGap};
use crate::record::{Extension, Record};

impl Player<'_> {
    pub(super) fn response(&mut self, index: usize, record: &Record, psn: u64) {
        self.compare(index, record, psn);
        self.last_response = Some(index);
        let read = self.reading.range_mut(..=psn).next_back();
        let found = read.and_then(|(start, expected)| {
            let end = start.saturating_add(self.out.sent.get(start)?.span);
            (psn < end).then_some((expected, end))
        });
        let Some((expected, _)) = found else {
            return self.acknowledge(psn.saturating_add(1), index);
        };
        let before = *expected;
        if psn < before {
            self.out.repeated_responses += 1;
            return;
        }
        *expected = psn.saturating_add(1);
        if psn > before {
            self.pending_gap = Some(self.out.response_gaps.len());
            let count = psn - before;
            self.out.response_gaps.push(ResponseGap { first: before, count, after: index, again: None });
            return;
        }
        if self.pending_gap.is_none() {
            self.acknowledge(psn.saturating_add(1), index);
        }
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
