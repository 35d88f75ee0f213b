//! The answers: progress, refusals, and what they ask for.

use roce_packet::{NakCode, Operation, Syndrome};

use super::facts::{Answer, Refusal, RnrNak, SequenceNak};
use super::player::{MOST_OPEN_GAPS, Player};
use crate::record::Record;

impl Player<'_> {
    pub(super) fn answer(&mut self, index: usize, record: &Record) {
        if self.base.is_none() {
            // The requests were not captured.
            return;
        }
        let psn = self.unwrap(record.psn);
        let has_syndrome = record.answer();
        if has_syndrome.is_some() {
            self.out.answers.push(Answer { psn, at: index, after_request: self.last_request });
        }
        if psn >= self.out.next {
            self.out.unsent.push(index);
            return;
        }
        if psn <= self.answered {
            self.train_start = index;
        }
        self.answered = psn;
        let operation = record.info().map(|info| info.operation);
        match has_syndrome {
            None | Some((Syndrome::Ack { .. } | Syndrome::Reserved(_), _)) => {
                if matches!(operation, Some(Operation::ReadResponse | Operation::AtomicAcknowledge)) {
                    self.response(index, record, psn);
                } else if !self.passes_over_read(index, psn) {
                    self.acknowledge(psn.saturating_add(1), index);
                }
            }
            Some((Syndrome::Nak(NakCode::PsnSequence), _)) => self.sequence_nak(index, psn),
            Some((Syndrome::RnrNak { timer }, _)) => {
                self.acknowledge(psn, index);
                self.pending_rnr = Some(self.out.rnr.len());
                self.out.rnr.push(RnrNak { psn, at: index, timer, again: None });
            }
            Some((Syndrome::Nak(code), _)) => {
                self.acknowledge(psn, index);
                self.out.refusals.push(Refusal { psn, at: index, code, later_requests: 0 });
            }
        }
    }

    /// All PSNs below `limit` are acknowledged.
    pub(super) fn acknowledge(&mut self, limit: u64, index: usize) {
        if limit <= self.out.unacknowledged {
            return;
        }
        self.out.unacknowledged = limit;
        self.progress_ns = self.time(index);
        self.progress_at = Some(index);
        while let Some((end, start)) = self.open_messages.first_key_value().map(|(end, start)| (*end, *start))
            && end <= limit
        {
            self.open_messages.remove(&end);
            self.out.messages.push((start, index));
        }
    }

    fn sequence_nak(&mut self, index: usize, psn: u64) {
        let was_acknowledged = self.out.has_acknowledgement() && psn < self.out.unacknowledged;
        let sent = self.out.sent.get(&psn);
        let later = psn.saturating_add(sent.map_or(0, |sent| sent.span));
        // Each copy of the packet that was sent may have found the receiver behind, and is NAKed once. Copies
        // that were lost before this place are counted by their gaps.
        let gaps = self.out.gaps.iter().rev().take(MOST_OPEN_GAPS);
        let lost = gaps.filter(|gap| (gap.first..gap.first + gap.count).contains(&psn)).count();
        let copies = sent.map_or(0, |sent| sent.times as usize) + lost;
        let before = self.out.naks.iter().rev().take_while(|nak| nak.psn == psn);
        let earlier = self.out.naks.last().filter(|_| before.count() >= copies.max(1));
        let nak = SequenceNak {
            psn,
            at: index,
            repeats: earlier.map(|nak| nak.at),
            has_later: self.out.next > later,
            was_acknowledged,
            was_seen: sent.is_some(),
            follows_rnr: self.out.rnr.last().is_some_and(|rnr| rnr.psn == psn),
            resend: None,
        };
        self.acknowledge(psn, index);
        self.pending_nak = Some(self.out.naks.len());
        self.out.naks.push(nak);
    }
}
