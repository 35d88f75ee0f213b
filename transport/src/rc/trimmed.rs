//! Trimmed packets, whose payload a congested switch removed: the recovery by requester and responder.
//!
//! For requests, the responder asks for exactly the trimmed packet if both ends use selective repeat.
//! Otherwise it sends an ordinary NAK once no packet before it is missing. A trimmed READ response is
//! requested again by itself with selective repeat, and otherwise from it on, as soon as the requester
//! has the responses before it. A trimmed packet shows that the network works, so it uses up no retry.

use roce_packet::{Bth, OpcodeInfo, Operation, Psn};

use super::loss::LossRecovery as _;
use super::owed::Reply;
use super::requester::RcRequester;
use super::responder::RcResponder;
use crate::congestion::Loss;
use crate::counters::count;
use crate::qp::QpCore;
use crate::shared::Shared;
use crate::sq::{Progress, Wqe};
use crate::verdict::{DropReason, Verdict};

/// Verdict on a trimmed packet that needs no retransmission request.
const NOTHING_TO_ASK: Verdict = Verdict::Dropped(DropReason::Trimmed);

/// Keeps the older of two packets. A known packet before `awaited` is obsolete.
fn keep_oldest(known: &mut Option<Psn>, awaited: Psn, psn: Psn) {
    if known.is_none_or(|known| known.before(awaited) || psn.before(known)) {
        *known = Some(psn);
    }
}

impl RcResponder {
    /// Drops pending reports, for example because the peer sends all requests again.
    pub(super) fn forget_reports(&mut self) {
        self.reports = None;
    }

    /// Tells whether a report is pending.
    pub(super) fn owes_reports(&self) -> bool {
        self.reports.as_ref().is_some_and(|reports| !reports.trimmed.is_empty() || !reports.kept.is_empty())
    }

    /// Keeps the pending report of an early request, before another reply takes its place: the peer counts
    /// each of these requests as in the network until it learns of it.
    pub(super) fn set_kept_aside(&mut self) {
        let Some(Reply::Kept(psn)) = self.reply else { return };
        let expected = self.epsn;
        let reports = self.reports.get_or_insert_default();
        reports.kept.retain(|kept| expected.before(*kept) && *kept != psn);
        reports.kept.push_back(psn);
    }

    /// Handles a trimmed request, of which only the headers arrived.
    pub(crate) fn handle_trimmed(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        (bth, info): (&Bth, &OpcodeInfo),
    ) -> Verdict {
        let psn = bth.psn;
        if psn.before(self.epsn) {
            let is_acknowledged = matches!(info.operation, Operation::Send | Operation::Write);
            if !is_acknowledged || !bth.ack_req && self.reorder.is_none() {
                return NOTHING_TO_ASK;
            }
            // A retransmission of a request that had arrived: its sender only waits for an acknowledgement.
            count!(shared, core, duplicate_request);
            self.owe_acknowledgement(core, shared);
            return Verdict::Handled;
        }
        let goes_back = self.nak_sent && self.reorder.is_none();
        if self.paused || goes_back {
            // A NAK makes the peer send everything again.
            return NOTHING_TO_ASK;
        }
        let Some(reorder) = &self.reorder else {
            keep_oldest(&mut self.reports.get_or_insert_default().first, self.epsn, psn);
            return if self.nak_trimmed(core, shared) { Verdict::Handled } else { NOTHING_TO_ASK };
        };
        if !reorder.is_missing(self.epsn, psn) {
            return NOTHING_TO_ASK;
        }
        let expected = self.epsn;
        let reports = self.reports.get_or_insert_default();
        if reports.trimmed.contains(&psn) {
            return NOTHING_TO_ASK;
        }
        reports.trimmed.retain(|trimmed| !trimmed.before(expected));
        reports.trimmed.push_back(psn);
        Verdict::Handled
    }

    /// With go-back-N, sends the NAK if the expected packet is known to have been trimmed. Returns whether a
    /// trimmed packet is known.
    #[inline]
    pub(super) fn nak_trimmed(&mut self, core: &mut QpCore, shared: &mut Shared) -> bool {
        self.reports.is_some() && self.nak_known_trimmed(core, shared)
    }

    #[inline(never)]
    fn nak_known_trimmed(&mut self, core: &mut QpCore, shared: &mut Shared) -> bool {
        let Some(psn) = self.reports.as_ref().and_then(|reports| reports.first) else { return false };
        if psn.before(self.epsn) {
            self.forget_reports();
            return false;
        }
        if psn == self.epsn {
            self.forget_reports();
            count!(shared, core, out_of_sequence);
            self.nak_sent = true;
            self.reply = Some(Reply::SequenceNak);
        }
        true
    }

    /// Drops reports of requests that have been executed.
    pub(super) fn forget_executed(&mut self) {
        let expected = self.epsn;
        let Some(reports) = &mut self.reports else { return };
        reports.trimmed.retain(|trimmed| !trimmed.before(expected));
        reports.kept.retain(|kept| expected.before(*kept));
        if !self.owes_reports() {
            self.forget_reports();
        }
    }

    /// Returns the next report: of a trimmed request that has not arrived since, or of an early one that is
    /// still ahead of the expected one.
    pub(super) fn next_report(&mut self) -> Option<Reply> {
        if self.paused || self.owes_fatal_nak() {
            return None;
        }
        let (expected, reorder) = (self.epsn, self.reorder.as_ref()?);
        let reports = self.reports.as_mut()?;
        while let Some(psn) = reports.trimmed.front().copied() {
            if reorder.is_missing(expected, psn) {
                return Some(Reply::Trimmed(psn));
            }
            reports.trimmed.pop_front();
        }
        while let Some(psn) = reports.kept.front().copied() {
            if expected.before(psn) {
                return Some(Reply::Kept(psn));
            }
            reports.kept.pop_front();
        }
        self.forget_reports();
        None
    }

    /// Records that this report, which [`Self::next_report`] returned, was sent.
    pub(super) fn reported(&mut self, report: Reply) {
        let Some(reports) = &mut self.reports else { return };
        if matches!(report, Reply::Trimmed(_)) {
            reports.trimmed.pop_front();
        } else {
            reports.kept.pop_front();
        }
    }
}

impl RcRequester {
    /// Handles a trimmed response, of which only the headers arrived.
    pub(crate) fn handle_trimmed(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        (bth, info): (&Bth, &OpcodeInfo),
    ) -> Verdict {
        let psn = bth.psn;
        let is_data = matches!(info.operation, Operation::ReadResponse | Operation::AtomicAcknowledge);
        if !is_data || self.una.distance_to(psn) >= self.in_flight() {
            return NOTHING_TO_ASK;
        }
        if self.recovery.selects() {
            return self.on_trimmed_response(core, shared, psn);
        }
        if self.mode.went_back_for(self.una) && psn != self.una {
            // The response left before the retransmitted request, which also covers this response.
            return NOTHING_TO_ASK;
        }
        let known = self.trimmed_response;
        keep_oldest(&mut self.trimmed_response, self.una, psn);
        if self.ask_for_trimmed(core, shared) {
            return Verdict::Handled;
        }
        self.trimmed_response = known;
        NOTHING_TO_ASK
    }

    /// With selective repeat, requests exactly this response again.
    fn on_trimmed_response(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn) -> Verdict {
        let is_awaited = |wqe: &Wqe| wqe.op.awaits_response() && !wqe.requested_to.before(psn);
        let is_awaited = self.request_of(psn).is_some_and(is_awaited);
        if !is_awaited || self.goes_back() || self.mode.is_rnr_pause() {
            return NOTHING_TO_ASK;
        }
        // It proves nothing about the requests before it, because its ICRC cannot be checked.
        if !self.recovery.on_trimmed_response(psn) {
            return NOTHING_TO_ASK;
        }
        count!(shared, core, packet_trimmed_err);
        if self.recovery.begins(self.unsent) {
            count!(shared, core, retransmit_rounds);
            core.lost(shared.now, Loss::Nak);
        }
        // The timer restarts, although nobody vouches for the response: in an incast of READs, the oldest
        // one may be trimmed many times.
        self.arm(core, shared);
        Verdict::Handled
    }

    /// Without selective repeat, requests the oldest missing response again if it is known to have been
    /// trimmed. Returns whether a trimmed response is known that will be requested.
    pub(super) fn ask_for_trimmed(&mut self, core: &mut QpCore, shared: &mut Shared) -> bool {
        let Some(psn) = self.trimmed_response else { return false };
        if self.una.before(psn) {
            // Earlier responses are still on their way.
            return true;
        }
        self.trimmed_response = None;
        if psn != self.una {
            return false;
        }
        let awaits = self.sq.get(self.sq.head()).is_some_and(|wqe| {
            wqe.progress == Progress::Started && wqe.op.awaits_response() && wqe.contains(psn)
        });
        if !awaits || self.cursor == psn || self.mode.is_rnr_pause() {
            return false;
        }
        count!(shared, core, packet_trimmed_err);
        core.lost(shared.now, Loss::Nak);
        self.mode.record_nak(psn);
        self.go_back(core, shared);
        self.arm(core, shared);
        true
    }
}
