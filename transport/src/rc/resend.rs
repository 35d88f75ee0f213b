//! The requester with selective repeat: reports of the responder, and the packets that are sent again.

use roce_packet::Psn;

use super::loss::LossRecovery as _;
use super::requester::{RcRequester, Retry};
use crate::congestion::{Loss, Trim};
use crate::counters::count;
use crate::qp::QpCore;
use crate::shared::Shared;
use crate::sq::Progress;
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
        let next = self.recovery.next(self.una, self.cursor).unwrap_or(self.unsent);
        if next != self.cursor {
            self.seek(next);
        }
    }

    /// Tells whether a READ or atomic is in flight, whose response must arrive in order.
    pub(super) fn awaits_responses(&self) -> bool {
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get(position).filter(|wqe| wqe.progress != Progress::Posted) {
            if wqe.progress == Progress::Started && wqe.op.awaits_response() {
                return true;
            }
            position += 1;
        }
        false
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
        if self.awaits_responses() {
            return self.on_sequence_nak(core, shared, psn);
        }
        let advance = match self.advance_before(core, shared, psn) {
            Ok(advance) => advance,
            Err(verdict) => return verdict,
        };
        let (una, unsent) = (self.una, self.unsent);
        // If everything is being sent again, no packets are selected.
        let goes_back = self.cursor != unsent;
        if una != psn || goes_back && !self.recovery.is_resending() {
            return advance.verdict(DropReason::StaleResponse);
        }
        let Some((from, is_first)) = self.recovery.on_received(una, unsent, received) else {
            return Verdict::Handled;
        };
        if is_first {
            if !self.spend_retry(core, shared, Retry::Sequence) {
                return Verdict::Handled;
            }
            count!(shared, core, packet_seq_err);
            count!(shared, core, retransmit_rounds);
            self.lost(core, shared, psn, Loss::Nak);
            self.arm(core, shared);
        }
        if from.before(self.cursor) {
            self.seek(from);
        }
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
        if !in_flight || self.mode.is_rnr_pause() {
            return advance.verdict(DropReason::StaleResponse);
        }
        if self.awaits_responses() {
            // The queue goes back, as for any loss while a READ is in flight, once no packet before the
            // trimmed one is missing.
            if trimmed != una || self.mode.went_back_for(una) || self.cursor == una {
                return advance.verdict(DropReason::StaleResponse);
            }
            count!(shared, core, packet_trimmed_err);
            self.lost(core, shared, trimmed, Loss::Nak);
            self.mode.record_nak(una);
            self.go_back(core, shared);
            self.arm(core, shared);
            return Verdict::Handled;
        }
        let goes_back = self.cursor != unsent && !self.recovery.is_resending();
        if goes_back && !trimmed.before(self.cursor) {
            return advance.verdict(DropReason::StaleResponse);
        }
        let Some(is_repeated) = self.recovery.on_trimmed(trimmed) else {
            return advance.verdict(DropReason::StaleResponse);
        };
        count!(shared, core, packet_trimmed_err);
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

    /// After a timeout, retransmits the packets not reported as received. Returns `false` if it cannot.
    pub(super) fn resend_after_timeout(&mut self, core: &mut QpCore, shared: &mut Shared) -> bool {
        if !self.recovery.selects() || self.awaits_responses() {
            return false;
        }
        count!(shared, core, retransmit_rounds);
        self.recovery.on_timeout(self.una, self.unsent);
        self.seek(self.una);
        self.mode.hold();
        true
    }
}
