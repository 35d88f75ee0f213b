//! The requester with selective repeat: reports of the responder, and the packets that are sent again.

use roce_packet::Psn;

use super::loss::LossRecovery as _;
use super::mode::Sending;
use super::pieces::{left_of_piece, piece_of};
use super::requester::{RcRequester, Retry};
use crate::congestion::{Loss, PathFeedback, Trim};
use crate::counters::count;
use crate::qp::QpCore;
use crate::shared::Shared;
use crate::sq::{Progress, Wqe};
use crate::verdict::{DropReason, Verdict};

/// Reports of the responder, and control of the cursor by a [`LossRecovery`](super::loss::LossRecovery) that
/// selects packets.
impl RcRequester {
    /// Moves the cursor to a packet that is in flight, or to the first unsent one.
    pub(super) fn seek(&mut self, psn: Psn) {
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get(position) {
            if wqe.progress == Progress::Posted || wqe.contains(psn) {
                break;
            }
            position += 1;
        }
        (self.cursor, self.cursor_wqe) = (psn, position);
    }

    /// During a retransmission, moves the cursor past received packets, and finally to the first unsent one.
    pub(super) fn pass_over_received(&mut self) {
        if !self.recovery.is_resending() || self.cursor == self.unsent {
            return;
        }
        let next = self.recovery.next(self.cursor).unwrap_or(self.unsent);
        if next != self.cursor {
            self.seek(next);
        }
    }

    /// Records that the responder has executed every request up to `psn`, although responses before it are
    /// missing: they may have been overtaken. Their requests need not be sent again.
    pub(super) fn note_executed(&mut self, psn: Psn) {
        let Some(from) = self.recovery.note_executed(psn) else { return };
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get(position).filter(|wqe| wqe.progress != Progress::Posted) {
            position += 1;
            if wqe.is_behind(psn, self.una) {
                break;
            }
            let (last, awaits) = (wqe.last_psn(), wqe.op.awaits_response());
            let last = if psn.before(last) { psn } else { last };
            let mut first = if wqe.is_behind(from, self.una) { wqe.first_psn } else { from };
            while !awaits && wqe.progress == Progress::Started && !last.before(first) {
                self.recovery.note_received(first);
                first = first.next();
            }
        }
    }

    /// Starts or extends a selective retransmission, because `arrived` overtook missing packets. Does nothing
    /// if everything is being sent again.
    pub(super) fn on_overtaken(&mut self, core: &mut QpCore, shared: &mut Shared, arrived: Psn) {
        if self.goes_back() {
            return;
        }
        match self.recovery.overtaken_by(self.unsent, arrived) {
            Some((from, is_first)) => self.resend_overtaken(core, shared, from, is_first),
            None => self.await_late(core, shared),
        }
    }

    /// Begins or continues the retransmission of overtaken packets at `from`. The first one of a loss episode
    /// uses up a retry.
    fn resend_overtaken(&mut self, core: &mut QpCore, shared: &mut Shared, from: Psn, is_first: bool) {
        if is_first && !self.spend_retry(core, shared, Retry::Sequence) {
            return;
        }
        self.resend_from(core, shared, from, is_first);
    }

    /// Begins or continues the retransmission of overtaken packets at `from`.
    pub(super) fn resend_from(&mut self, core: &mut QpCore, shared: &mut Shared, from: Psn, is_first: bool) {
        if is_first {
            let awaits = self.sq.get(self.sq.head()).is_some_and(|wqe| wqe.op.awaits_response());
            if awaits {
                count!(shared, core, implied_nak_seq_err);
            } else {
                count!(shared, core, packet_seq_err);
            }
            count!(shared, core, retransmit_rounds);
            if !self.only_probes_are_missing() {
                self.lost(core, shared, self.una, Loss::Nak);
            }
            self.arm(core, shared);
        }
        if from.before(self.cursor) {
            self.seek(from);
        }
    }

    /// Returns the number of packets of a READ to request at the cursor, for the first time or again.
    pub(super) fn piece_at_cursor(&self, shared: &Shared, wqe: &Wqe, sending: Sending) -> u32 {
        let whole = left_of_piece(shared, wqe.psns, wqe.first_psn.distance_to(self.cursor));
        // If the responder has not executed the request, this may be the first one that arrives: a whole one.
        let (first, _) = piece_of(shared, wqe, self.cursor);
        let first = if first.before(self.una) { self.una } else { first };
        let is_executed = self.recovery.executed().is_some_and(|executed| !executed.before(first));
        match sending {
            // A response shows that the request was executed.
            Sending::Trimmed => 1,
            Sending::Next if is_executed && self.is_resending(sending) => {
                self.recovery.missing_from(self.cursor, whole)
            }
            Sending::Next | Sending::Probe => whole,
        }
    }

    /// Tells whether everything is being sent again, so that no packets are selected.
    pub(super) fn goes_back(&self) -> bool {
        self.cursor != self.unsent && !self.recovery.is_resending()
    }

    /// Handles a report that the responder kept `received` and misses `psn`.
    pub(super) fn on_selective_nak(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        psn: Psn,
        received: Psn,
    ) -> Verdict {
        if !self.recovery.selects() {
            return Verdict::Dropped(DropReason::ReservedSyndrome);
        }
        self.arrived(shared, received);
        let advance = match self.advance_before(core, shared, psn) {
            Ok(advance) => advance,
            Err(verdict) => return verdict,
        };
        if psn.before(self.una) || !self.awaits(received) || self.goes_back() {
            return advance.verdict(DropReason::StaleResponse);
        }
        if let Some(wqe) = self.request_of(received) {
            if wqe.op.awaits_response() {
                let (_, last) = piece_of(shared, wqe, received);
                self.recovery.note_kept(received, last);
            } else {
                self.recovery.note_received(received);
            }
        }
        self.on_overtaken(core, shared, received);
        Verdict::Handled
    }

    /// Handles a report that `trimmed` was trimmed and that `expected` is the oldest missing packet.
    pub(super) fn on_trimmed_report(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        (expected, trimmed): (Psn, Psn),
    ) -> Verdict {
        if !self.recovery.selects() {
            return Verdict::Dropped(DropReason::ReservedSyndrome);
        }
        let advance = match self.advance_before(core, shared, expected) {
            Ok(advance) => advance,
            Err(verdict) => return verdict,
        };
        let (una, unsent) = (self.una, self.unsent);
        let in_flight = una.distance_to(trimmed) < una.distance_to(unsent);
        let is_request = self.request_of(trimmed).is_some_and(|wqe| !wqe.op.awaits_response());
        if !in_flight || !is_request || self.mode.is_rnr_pause() {
            return advance.verdict(DropReason::StaleResponse);
        }
        if self.goes_back() && !trimmed.before(self.cursor) {
            return advance.verdict(DropReason::StaleResponse);
        }
        let Some(is_repeated) = self.recovery.on_trimmed(trimmed) else {
            return advance.verdict(DropReason::StaleResponse);
        };
        count!(shared, core, packet_trimmed_err);
        self.report(shared.now, trimmed, PathFeedback::Trimmed);
        if self.asked == Some(trimmed) {
            // Its request for an acknowledgement is lost, so the next packet may leave and ask.
            self.asked = None;
        }
        let bytes = core.mtu() as u64;
        if let Some(control) = &mut core.control {
            control.trimmed(shared.now, Trim { bytes, is_repeated });
        }
        if self.recovery.begins(unsent) {
            count!(shared, core, retransmit_rounds);
            self.lost(core, shared, trimmed, Loss::Nak);
        }
        // A report proves that the peer is alive, so the timer restarts.
        self.arm(core, shared);
        Verdict::Handled
    }

    /// After a timeout, retransmits the packets not reported as received. Returns `false` if it cannot,
    /// because everything is being sent again.
    pub(super) fn resend_after_timeout(&mut self, core: &mut QpCore, shared: &mut Shared) -> bool {
        if !self.recovery.selects() || self.goes_back() {
            return false;
        }
        count!(shared, core, retransmit_rounds);
        self.recovery.on_timeout(self.unsent);
        self.seek(self.una);
        self.mode.hold();
        true
    }
}
