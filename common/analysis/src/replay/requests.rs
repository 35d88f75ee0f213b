//! The requests: which are new, and why others come again.

use roce_packet::{Operation, Syndrome};

use super::facts::{Cause, Gap, GapEnd, ORIGIN, Resend, Sent};
use super::player::{MOST_OPEN_GAPS, Player};
use crate::record::{Extension, Record};

/// A PSN that differs by more than this belongs to another connection of the same queue pairs.
const FAR: u64 = 1 << 20;
/// Longest time in which a network delivers a packet twice or late, in nanoseconds. Retransmission timers of
/// NICs are longer; the shortest is 4.096 µs × 2^T with T = 6.
const NETWORK_NS: u64 = 250_000;
/// No requester reacts to a response within this time of its capture; hardware takes a microsecond.
const REACTION_NS: u64 = 200;
/// Maximum number of responses among which one that a requester reacted to is looked for.
const MOST_RESPONSES: usize = 256;

/// Why a PSN comes again.
enum Again {
    Resend(Cause),
    Overtaken,
    /// The network made a copy of the record with this index.
    Doubled(usize),
    /// It overtook the packet with which the requester starts again.
    Early,
    /// It came before the packet with which the requester starts again, and nothing shows which of both was
    /// sent first.
    Unordered,
}

impl Player<'_> {
    pub(super) fn request(&mut self, index: usize, record: &Record) {
        let mut psn = self.unwrap(record.psn);
        let span = self.span(record);
        let next = self.out.next;
        if psn > next.saturating_add(FAR) || psn.saturating_add(FAR) < next {
            psn = self.begin_again(psn, index);
        } else if psn > next {
            self.gap(next, psn, index);
        }
        if psn >= self.out.next {
            self.new_request(index, record, psn, span);
        } else {
            self.old_request(index, record, psn, span);
        }
        self.last_request = Some(index);
        let is_newer = |newest: usize| {
            self.records.get(newest).is_none_or(|newest| record.was_sent_before(newest) != Some(true))
        };
        if self.newest.is_none_or(is_newer) {
            self.newest = Some(index);
        }
    }

    /// Begins another connection of the same queue pairs. Returns the PSN of its first request, which is
    /// larger than all before.
    fn begin_again(&mut self, psn: u64, index: usize) -> u64 {
        const CYCLE: u64 = 1 << 24;
        let mut start = psn;
        while start <= self.out.next {
            start = start.saturating_add(CYCLE);
        }
        self.missing.clear();
        self.reading.clear();
        self.open_messages.clear();
        (self.run, self.pending_nak, self.pending_rnr) = (None, None, None);
        self.out.next = start;
        self.out.unacknowledged = start;
        self.out.beginnings.push((start, index));
        start
    }

    fn gap(&mut self, first: u64, end: u64, after: usize) {
        self.missing.push((first, end, self.out.gaps.len()));
        let is_of_resend = end <= self.out.next;
        self.out.gaps.push(Gap { first, count: end - first, after, is_of_resend, end: GapEnd::Open });
    }

    fn new_request(&mut self, index: usize, record: &Record, psn: u64, span: u64) {
        let info = record.info();
        if let Some((resend, expected)) = self.run.take()
            && let Some(resend) = self.out.resends.get_mut(resend)
            && matches!(resend.cause, Cause::Timeout { .. })
            && expected == psn
            && info.is_some_and(|info| !info.starts_message())
        {
            resend.went_on = Some(index);
        }
        if info.is_some_and(|info| info.starts_message()) || self.message_start.is_none() {
            self.message_start = Some(index);
        }
        let ends_message = info.is_some_and(|info| info.ends_message());
        let end = psn.saturating_add(span);
        if ends_message {
            self.open_messages.insert(end, self.message_start.take().unwrap_or(index));
        }
        if info.is_some_and(|info| info.operation == Operation::ReadRequest) {
            self.reading.insert(psn, psn);
            self.out.reads.requests += 1;
            if let Extension::Reth(reth) = record.extension {
                self.out.reads.longest = self.out.reads.longest.max(reth.dma_len);
            }
        }
        self.out.sent.insert(psn, Sent { span, first: index, last: index, times: 1, ends_message });
        self.out.next = end;
        let in_flight = end.saturating_sub(self.out.unacknowledged.max(ORIGIN));
        self.out.most_in_flight = self.out.most_in_flight.max(in_flight);
        if let Some(refusal) = self.out.refusals.last_mut() {
            refusal.later_requests += 1;
        }
    }

    fn old_request(&mut self, index: usize, record: &Record, psn: u64, span: u64) {
        let before = self.out.sent.get(&psn).map(|sent| sent.last);
        let continues = self.run.filter(|run| run.1 == psn || self.skips(record, *run, psn));
        let again = match continues {
            Some(_) => None,
            None => Some(self.why_again(index, record, psn, span, before)),
        };
        let is_resend = matches!(again, None | Some(Again::Resend(_)));
        self.fill(psn, if is_resend { GapEnd::Resent } else { GapEnd::Overtaken });
        match (continues, again) {
            (Some((resend, expected)), _) => {
                if psn > expected {
                    self.gap(expected, psn, index);
                }
                self.continue_resend(resend, psn, span);
            }
            (None, Some(Again::Resend(cause))) => {
                self.begin_resend(index, psn, span, cause);
            }
            (None, Some(Again::Doubled(first))) => self.out.doubled.push((first, index)),
            (None, Some(Again::Overtaken) | None) => self.out.overtaken.push(index),
            (None, Some(Again::Early)) => {}
            (None, Some(Again::Unordered)) => self.out.unordered.push(index),
        }
        self.note(index, record, psn, span);
    }

    /// Notes that a request was captured again, or that it was captured late.
    fn note(&mut self, index: usize, record: &Record, psn: u64, span: u64) {
        let is_read = record.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        if is_read {
            self.ask_again(index, psn, span);
        }
        if is_read && let Some((start, expected)) = self.reading.range_mut(..=psn).next_back() {
            let end = self.out.sent.get(start).map_or(*start, |sent| start.saturating_add(sent.span));
            if psn < end || *start == psn {
                *expected = psn;
            }
            if psn < end && *start != psn {
                // The end of a READ is requested again; the READ keeps its range.
                let start = *start;
                return self.check_resumption(index, record, start, psn);
            }
        }
        let ends_message = record.info().is_some_and(|info| info.ends_message());
        let new = Sent { span, first: index, last: index, times: 0, ends_message };
        let sent = self.out.sent.entry(psn).or_insert(new);
        sent.times += 1;
        sent.last = index;
        let is_new = sent.times == 1;
        if is_read && is_new {
            self.reading.insert(psn, psn);
        }
        let end = psn.saturating_add(span);
        if is_new && ends_message && end > self.out.unacknowledged {
            let start = self.start_of_message(psn).unwrap_or(index);
            self.open_messages.insert(end, start);
        }
    }

    /// Returns the record of the first captured packet of the message that a packet ends.
    fn start_of_message(&self, psn: u64) -> Option<usize> {
        let before = self.out.sent.range(..psn).rev().take_while(|(_, sent)| !sent.ends_message);
        before.last().map(|(_, sent)| sent.first)
    }

    /// Checks the address and the length of a READ that was requested again from a later PSN on.
    fn check_resumption(&mut self, index: usize, record: &Record, start: u64, psn: u64) {
        let first = self.out.sent.get(&start).map(|sent| sent.first);
        let original = first.and_then(|first| self.records.get(first)).map(|record| record.extension);
        let (Some(Extension::Reth(whole)), Extension::Reth(rest), Some(mtu), Some(first)) =
            (original, record.extension, self.out.mtu, first)
        else {
            return;
        };
        let skipped = (psn - start).saturating_mul(mtu.bytes() as u64);
        let fits = rest.va == whole.va.wrapping_add(skipped)
            && u64::from(rest.dma_len).saturating_add(skipped) == u64::from(whole.dma_len)
            && rest.rkey == whole.rkey;
        if !fits {
            self.out.reads.wrong_resumption.push((index, first));
        }
    }

    fn begin_resend(&mut self, index: usize, psn: u64, span: u64, cause: Cause) {
        let number = self.out.resends.len();
        let first = self.out.sent.get(&psn).map(|sent| sent.first);
        let is_known = self.out.has_acknowledgement();
        let was_answered = is_known && psn.saturating_add(span) <= self.out.unacknowledged;
        self.out.resends.push(Resend {
            psn,
            at: index,
            packets: 1,
            needless: u64::from(was_answered),
            cause,
            first,
            was_answered,
            went_on: None,
        });
        self.run = Some((number, psn.saturating_add(span)));
        match cause {
            Cause::Nak(_) => {
                if let Some(nak) = self.pending_nak.take().and_then(|nak| self.out.naks.get_mut(nak)) {
                    nak.resend = Some(number);
                }
            }
            Cause::Rnr(_) => {
                if let Some(rnr) = self.pending_rnr.take().and_then(|rnr| self.out.rnr.get_mut(rnr)) {
                    rnr.again = Some(index);
                }
            }
            Cause::ImpliedNak(_) | Cause::Timeout { .. } => {}
        }
    }

    /// Returns whether the requester goes on sending again at a PSN behind the expected one: packets in
    /// between were lost before this place, or left out because the receiver has them. A requester that
    /// nobody asks returns to the oldest PSN without an answer, which lies before. One that probes sends the
    /// oldest and the newest packet by turns, each after a timeout of its own.
    fn skips(&self, record: &Record, (resend, expected): (usize, u64), psn: u64) -> bool {
        let resend = self.out.resends.get(resend);
        let may_probe = resend.is_some_and(|resend| matches!(resend.cause, Cause::Timeout { .. }));
        let is_probe = may_probe && self.quiet(record) > NETWORK_NS;
        psn > expected && self.asked(psn, 1).is_none() && !is_probe
    }

    /// Returns the time since the last request.
    fn quiet(&self, record: &Record) -> u64 {
        record.time_ns.saturating_sub(self.last_request.map_or(0, |last| self.time(last)))
    }

    /// Notes the missing responses that a repeated READ asks for.
    fn ask_again(&mut self, index: usize, psn: u64, span: u64) {
        for gap in self.out.response_gaps.iter_mut().rev().take(MOST_OPEN_GAPS) {
            if gap.again.is_none() && (psn..psn.saturating_add(span)).contains(&gap.first) {
                gap.again = Some(index);
            }
        }
    }

    fn continue_resend(&mut self, resend: usize, psn: u64, span: u64) {
        let end = psn.saturating_add(span);
        if let Some(resend) = self.out.resends.get_mut(resend) {
            resend.packets += 1;
            resend.needless += u64::from(end <= self.out.unacknowledged);
        }
        self.run = Some((resend, end));
    }

    fn why_again(&self, index: usize, record: &Record, psn: u64, span: u64, before: Option<usize>) -> Again {
        if let Some(again) = self.why_late(record, psn, span, before) {
            return again;
        }
        // The end of a READ is requested again, so this is not the first copy of anything.
        let resumes = before.is_none() && self.is_inside_read(psn);
        if before.is_none() && !resumes && self.comes_again(index, record, psn.saturating_add(span)) {
            // A NAK asks for it, but the answer to the NAK follows: this is the first copy, which others
            // overtook.
            return Again::Overtaken;
        }
        if let Some(cause) = self.asked(psn, span) {
            return Again::Resend(cause);
        }
        if before.is_some_and(|before| self.is_late(index, before, psn, span)) {
            return Again::Overtaken;
        }
        let now = record.time_ns;
        let quiet = self.quiet(record);
        let end = psn.saturating_add(span);
        // The packets behind it were sent before, too.
        let goes_on = end < self.out.next && self.following(index) == Some(end);
        let earlier = before.and_then(|before| self.records.get(before));
        let since = before.map_or(quiet, |before| now.saturating_sub(self.time(before)));
        let without_progress = now.saturating_sub(self.progress_ns);
        let waited_ns = since.min(without_progress);
        let counts_from =
            if without_progress < since { self.progress_at } else { before.or(self.last_request) };
        let is_read = record.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        let timeout = Again::Resend(match self.last_response {
            // The requester did not wait, so it misses responses that this place has seen.
            Some(response) if is_read && waited_ns < NETWORK_NS => Cause::ImpliedNak(response),
            _ => Cause::Timeout { waited_ns, since: counts_from },
        });
        // A NAK for another PSN: the requester starts again at the wrong place.
        let answers_nak = self.pending_nak.and_then(|nak| self.out.naks.get(nak));
        if let Some(nak) = answers_nak {
            match self.order_of_start(index, record, nak.psn) {
                Some(Some(true)) => return Again::Early,
                Some(None) if goes_on => return Again::Unordered,
                _ if goes_on => return Again::Resend(Cause::Nak(nak.at)),
                _ => {}
            }
        }
        match (before, earlier) {
            (Some(first), Some(earlier)) => {
                let is_same = earlier.icrc == record.icrc && earlier.identification == record.identification;
                // A requester that numbers its packets gives another number to a packet that it sends again.
                let is_numbered = record.identification != 0 && is_same;
                // Later responses came in between, so the requester asks again for those that it misses.
                let has_responses = is_read && self.has_responses(psn, first, now);
                if is_same
                    && !has_responses
                    && (is_numbered && since < 1000 * NETWORK_NS || since < NETWORK_NS && !goes_on)
                {
                    Again::Doubled(first)
                } else {
                    timeout
                }
            }
            _ if resumes || quiet > NETWORK_NS => timeout,
            _ => Again::Overtaken,
        }
    }

    /// Returns why a packet comes that was sent before one that was captured earlier, as its Identification
    /// shows. `None` if the order is that of the capture, or not known.
    fn why_late(&self, record: &Record, psn: u64, span: u64, before: Option<usize>) -> Option<Again> {
        let was_before = |other: usize| {
            let other = self.records.get(other).filter(|_| self.is_numbered);
            other.is_some_and(|other| record.was_sent_before(other) == Some(true))
        };
        if !self.newest.is_some_and(was_before) {
            return None;
        }
        let is_copy = |before: usize| {
            let earlier = self.records.get(before);
            earlier.is_some_and(|earlier| earlier.identification == record.identification)
        };
        if before.is_some_and(is_copy) {
            return None;
        }
        match self.asked(psn, span) {
            // Packets of the time before the NAK left after this one, so it is the first copy.
            Some(cause @ (Cause::Nak(nak) | Cause::Rnr(nak)))
                if !self.earlier_requests(nak).any(was_before) =>
            {
                Some(Again::Resend(cause))
            }
            _ => Some(Again::Overtaken),
        }
    }

    /// Looks for the packet that a NAK asks for shortly behind another one. If it is there, returns whether
    /// it was sent before the other one; `None` if that is not known.
    fn order_of_start(&self, index: usize, record: &Record, asked: u64) -> Option<Option<bool>> {
        let start = self.later_requests(index).filter_map(|later| self.records.get(later)).find(|later| {
            self.unwrap_from_base(later.psn) == Some(asked)
                && later.time_ns.saturating_sub(record.time_ns) < NETWORK_NS
        })?;
        Some(start.was_sent_before(record).filter(|_| self.is_numbered))
    }

    /// Returns whether responses to a READ or to later ones came since its first copy, early enough for the
    /// requester to react. Others may follow them closely.
    fn has_responses(&self, psn: u64, first: usize, now_ns: u64) -> bool {
        let is_early =
            |response: usize| response > first && now_ns.saturating_sub(self.time(response)) >= REACTION_NS;
        let mut earlier = (psn..=self.answered).take(MOST_RESPONSES);
        self.answered >= psn
            && (self.last_response.is_some_and(is_early)
                || earlier.any(|psn| self.responses.get(&psn).copied().is_some_and(is_early)))
    }

    /// Returns whether a PSN belongs to a READ that was captured, but is not its first one.
    fn is_inside_read(&self, psn: u64) -> bool {
        let read = self.reading.range(..psn).next_back();
        read.and_then(|(start, _)| self.end_of_read(*start)).is_some_and(|end| psn < end)
    }

    /// Returns whether a request follows again soon, before the responder asks for it again.
    fn comes_again(&self, index: usize, record: &Record, end: u64) -> bool {
        let again = self.later_requests(index).find(|later| {
            self.records.get(*later).is_some_and(|later| {
                later.psn == record.psn
                    && later.time_ns.saturating_sub(record.time_ns) < NETWORK_NS
                    && !(self.is_numbered && later.was_sent_before(record) == Some(true))
            })
        });
        let asks = |between: &Record| {
            Some(between.stream) == self.answers
                && between.psn == record.psn
                && matches!(between.answer(), Some((Syndrome::Nak(_) | Syndrome::RnrNak { .. }, _)))
        };
        // A requester that returns goes on with the next packet; a late packet is alone.
        let returns = |at: usize| self.following(at) == Some(end);
        if returns(index) && again.is_some_and(|again| !returns(again)) {
            return false;
        }
        again.is_some_and(|again| !self.records.get(index..again).unwrap_or_default().iter().any(asks))
    }

    /// Returns who asked for a PSN.
    fn asked(&self, psn: u64, span: u64) -> Option<Cause> {
        let nak = self.pending_nak.and_then(|nak| self.out.naks.get(nak)).filter(|nak| nak.psn == psn);
        if let Some(nak) = nak {
            return Some(Cause::Nak(nak.at));
        }
        let rnr = self.pending_rnr.and_then(|rnr| self.out.rnr.get(rnr)).filter(|rnr| rnr.psn == psn);
        if let Some(rnr) = rnr {
            return Some(Cause::Rnr(rnr.at));
        }
        let mut gaps = self.out.response_gaps.iter().rev().take(MOST_OPEN_GAPS);
        gaps.find(|gap| gap.again.is_none() && (psn..psn.saturating_add(span)).contains(&gap.first))
            .map(|gap| Cause::ImpliedNak(gap.after))
    }

    /// Returns the PSN of the request after this one.
    fn following(&self, index: usize) -> Option<u64> {
        let record = self.records.get(self.later_requests(index).next()?)?;
        self.unwrap_from_base(record.psn)
    }

    /// Returns whether a packet that was missing, and was sent again, comes after its retransmission.
    fn is_late(&self, index: usize, before: usize, psn: u64, span: u64) -> bool {
        let since = self.time(index).saturating_sub(self.time(before));
        let is_only = self.out.sent.get(&psn).is_some_and(|sent| sent.times == 1);
        let end = psn.saturating_add(span);
        // The return has sent nothing but this packet so far, and goes on with the next one.
        let starts_twice = self.run.is_some_and(|(resend, next)| {
            next == end && self.out.resends.get(resend).is_some_and(|resend| resend.psn == psn)
        });
        let is_alone = self.following(index) != Some(end) || starts_twice;
        // Packets before the first captured one leave no gap. The NAK shows that this one was missing.
        let was_missing = |resend: &Resend| {
            resend.psn == psn && !resend.was_seen() && matches!(resend.cause, Cause::Nak(_))
        };
        is_only
            && is_alone
            && since < NETWORK_NS
            && (self.resent_gap(psn).is_some() || self.out.resends.last().is_some_and(was_missing))
    }

    /// Returns the last gap with this PSN that a retransmission has filled.
    fn resent_gap(&self, psn: u64) -> Option<usize> {
        let is_of = |gap: &Gap| {
            gap.end == GapEnd::Resent && (gap.first..gap.first.saturating_add(gap.count)).contains(&psn)
        };
        let position = self.out.gaps.iter().rev().take(MOST_OPEN_GAPS).position(is_of)?;
        Some(self.out.gaps.len() - 1 - position)
    }

    /// Notes that the network did not lose a packet that was sent again.
    fn fill_late(&mut self, psn: u64) {
        let gap = self.resent_gap(psn);
        if let Some(gap) = gap.and_then(|gap| self.out.gaps.get_mut(gap)).filter(|gap| gap.count == 1) {
            gap.end = GapEnd::Overtaken;
        }
    }

    /// Removes a PSN from the missing ones.
    fn fill(&mut self, psn: u64, end: GapEnd) {
        let Some(position) = self.missing.iter().position(|(first, end, _)| (*first..*end).contains(&psn))
        else {
            if end == GapEnd::Overtaken {
                self.fill_late(psn);
            }
            return;
        };
        let (first, last, gap) = self.missing.swap_remove(position);
        if first < psn {
            self.missing.push((first, psn, gap));
        }
        if psn + 1 < last {
            self.missing.push((psn + 1, last, gap));
        }
        if let Some(gap) = self.out.gaps.get_mut(gap)
            && gap.end == GapEnd::Open
        {
            gap.end = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::{NakCode, Syndrome};

    use crate::analysis::Analysis;
    use crate::replay::{Cause, GapEnd, ORIGIN};
    use crate::testing::wire::{Sketch, Wire};
    use crate::verdict::{Outcome, Verdict, of_connection};

    fn nak(psn: u32) -> Sketch {
        Sketch::answer(2, psn, Syndrome::Nak(NakCode::PsnSequence), psn)
    }

    /// Regression: a request that others overtook counted as the answer to the NAK that its gap caused, and
    /// the answer itself as a timeout.
    #[test]
    fn a_late_request_is_not_the_answer_to_its_nak() {
        let mut wire = Wire::default();
        for (time, psn) in [(0, 0), (1, 2), (2, 3)] {
            wire.at_us(time, Sketch::send(1, psn));
        }
        wire.at_us(3, nak(1));
        wire.at_us(4, Sketch::send(1, 1));
        for psn in 1..5 {
            wire.at_us(6 + u64::from(psn), Sketch::send(1, psn));
        }
        wire.at_us(20, Sketch::ack(2, 4, 5));
        let analysis = wire.analyze();
        let replay = &analysis.connections[0].views[0].replays[0];
        assert_eq!(replay.overtaken, [4], "{replay:?}");
        assert_eq!(replay.gaps[0].end, GapEnd::Overtaken);
        let [resend] = &replay.resends[..] else { panic!("one return: {:?}", replay.resends) };
        assert!(matches!(resend.cause, Cause::Nak(3)), "{resend:?}");
        assert_eq!((resend.at, resend.packets), (5, 3));
    }

    /// Regression: a packet that the network doubled counted as a timeout if the next new one followed.
    #[test]
    fn a_doubled_request_before_new_ones_is_not_a_timeout() {
        let mut wire = Wire::default();
        for (time, psn) in [(0, 0), (1, 1), (2, 1), (3, 2)] {
            wire.at_us(time, Sketch::send(1, psn));
        }
        wire.at_us(5, Sketch::ack(2, 2, 3));
        let analysis = wire.analyze();
        let replay = &analysis.connections[0].views[0].replays[0];
        assert_eq!(replay.doubled, [(1, 2)]);
        assert!(replay.resends.is_empty(), "{:?}", replay.resends);
    }

    /// Plays requests (time in microseconds, PSN, Identification) around a NAK for PSN 1 at 10 us.
    fn around_nak(is_numbered: bool, sent: &[(u64, u32, u16)]) -> Analysis {
        let mut wire = Wire::default();
        let mut has_nak = false;
        for &(time, psn, identification) in sent {
            if time > 10 && !has_nak {
                wire.at_us(10, nak(1));
                has_nak = true;
            }
            wire.at_us(time, Sketch::send(1, psn).numbered(if is_numbered { identification } else { 0 }));
        }
        wire.at_us(2_000, Sketch::ack(2, 4, 5));
        wire.analyze()
    }

    fn restart_of(analysis: &Analysis) -> Verdict {
        let verdicts = of_connection(analysis, &analysis.connections[0]);
        verdicts.into_iter().find(|verdict| verdict.rule.key == "restart").expect("a return")
    }

    /// Regression: a late packet between its own retransmission and the next packet counted as lost, and as a
    /// timeout.
    #[test]
    fn a_late_request_inside_the_return_is_not_lost() {
        let sent =
            [(0, 0, 1), (1, 2, 3), (2, 3, 4), (3, 4, 5), (20, 1, 6), (21, 1, 2), (22, 2, 7), (23, 3, 8)];
        let sent = [&sent[..], &[(24, 4, 9)]].concat();
        for is_numbered in [false, true] {
            let analysis = around_nak(is_numbered, &sent);
            let replay = &analysis.connections[0].views[0].replays[0];
            // Without Identifications, either of the two packets may be the late one.
            assert_eq!(replay.overtaken, [if is_numbered { 6 } else { 5 }], "{replay:?}");
            assert_eq!((replay.gaps.len(), replay.gaps[0].end), (1, GapEnd::Overtaken));
            let [resend] = &replay.resends[..] else { panic!("one return: {:?}", replay.resends) };
            assert_eq!((resend.packets, resend.cause), (4, Cause::Nak(4)));
            assert_eq!(restart_of(&analysis).outcome, Outcome::Pass);
        }
    }

    /// Regression: packets that were late counted as a start at the wrong PSN. Without Identifications, a
    /// late packet and a wrong start look alike.
    #[test]
    fn a_late_request_before_the_return_is_not_a_wrong_start() {
        let late = |first, again| {
            let sent = [(0, 0, 1), (1, 4, 5), (300, 2, first), (301, 3, first + 1), (400, 1, again)];
            [&sent[..], &[(700, 2, again + 1), (701, 3, again + 2), (702, 4, again + 3)]].concat()
        };
        for (is_numbered, sent, outcome) in [
            (true, late(3, 6), Outcome::Pass),
            (false, late(3, 6), Outcome::Unknown),
            // Sent in the order of the capture: the requester starts at PSN 2.
            (true, late(6, 8), Outcome::Fail),
        ] {
            let verdict = restart_of(&around_nak(is_numbered, &sent));
            assert_eq!(verdict.outcome, outcome, "{is_numbered}: {verdict:?}");
            assert_eq!(verdict.parties[0].to_string(), "requester 198.18.0.1 QP 0x11");
        }
    }

    /// The second packet of the return overtook the first one.
    #[test]
    fn a_return_in_another_order_is_one_return() {
        let sent =
            [(0, 0, 1), (1, 2, 3), (2, 3, 4), (3, 4, 5), (20, 2, 7), (21, 1, 6), (22, 3, 8), (23, 4, 9)];
        let analysis = around_nak(true, &sent);
        let replay = &analysis.connections[0].views[0].replays[0];
        let [resend] = &replay.resends[..] else { panic!("one return: {:?}", replay.resends) };
        assert_eq!((resend.psn, resend.cause), (ORIGIN + 1, Cause::Nak(4)));
        assert_eq!(restart_of(&analysis).outcome, Outcome::Pass);
    }
}
