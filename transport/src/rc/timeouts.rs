//! Retransmission of unanswered packets: early probes, then the local ACK timeout (IBTA 9.7.6.1.3).
//!
//! A probe is one packet, first the newest one. A responder that misses an earlier packet answers with a NAK,
//! and one that has all packets acknowledges again, so either answer shows its position. A responder reports
//! a gap only once, and that NAK may have been lost. Every second probe is therefore the oldest packet, which
//! a responder always answers. Probes use up no retry, and only probes are sent again until the peer has
//! answered: a peer that is not scheduled finds few copies when it returns.

use roce_packet::Psn;

use super::loss::LossRecovery as _;
use super::mode::Sending;
use super::requester::{LONG_AGO, RcRequester, Retry};
use crate::congestion::Loss;
use crate::counters::count;
use crate::io::TxSlot;
use crate::qp::QpCore;
use crate::segment::Sealed;
use crate::shared::Shared;
use crate::sq::Progress;
use crate::timer::Timer;

impl RcRequester {
    /// Sets the retransmission timer: T = 4.096 µs × 2^timeout (IBTA 9.7.6.1.3), but at least the configured
    /// minimum. 0 disables it. With pacing, a packet that requests an acknowledgement may leave long after
    /// the packets before it, and a retransmission long after the timer expired. The timer therefore starts
    /// with that packet, and with a repeated READ request that waits for its turn.
    pub(super) fn arm(&mut self, core: &mut QpCore, shared: &Shared) {
        self.early.is_due = false;
        let awaits = self.in_flight() > 0 && self.asked.is_some() && !self.mode.is_held();
        if core.attr.timeout == 0 || !awaits {
            return disarm(core);
        }
        let settings = &shared.config.retransmission;
        let configured = Self::configured_timeout(core, shared);
        let of_recovery = self.recovery.timeout(self.in_flight());
        let wait = of_recovery.filter(|_| !settings.early).unwrap_or(configured);
        let repeats = self.read_turn.filter(|_| self.cursor != self.unsent);
        let turn = repeats.map_or(0, |turn| turn.at.since(shared.now).as_nanos() as u64);
        let start = shared.watched().plus_nanos(turn);
        core.deadlines.set(Timer::Retry, Some(start.plus_nanos(wait)));
        let probe = settings.early.then(|| self.early.interval(of_recovery)).filter(|probe| *probe < wait);
        core.deadlines.set(Timer::Probe, probe.map(|probe| start.plus_nanos(probe)));
        self.await_late(core, shared);
    }

    /// Starts the timer of a late packet, if it is not running.
    pub(super) fn await_late(&self, core: &mut QpCore, shared: &Shared) {
        let lateness = self.recovery.lateness().filter(|_| core.deadlines.get(Timer::Retry).is_some());
        let begun = core.deadlines.get(Timer::Late);
        let due = lateness.map(|wait| begun.unwrap_or(shared.watched().plus_nanos(wait)));
        core.deadlines.set(Timer::Late, due);
    }

    /// Handles the expiration of the timer of a late packet: what others overtook is lost. Like the timeouts
    /// of selective repeat, this uses up no retry with early retransmission.
    pub(crate) fn on_late_timer(&mut self, core: &mut QpCore, shared: &mut Shared) {
        // Without the other timer, the queue pair may have failed just now.
        if self.in_flight() == 0 || self.goes_back() || core.deadlines.get(Timer::Retry).is_none() {
            return;
        }
        let Some((from, is_first)) = self.recovery.on_late(self.unsent) else { return };
        tracing::debug!(qpn = core.number.get(), psn = from.get(), "late packets count as lost");
        let is_free = !is_first || shared.config.retransmission.early;
        if is_free || self.spend_retry(core, shared, Retry::Sequence) {
            self.resend_from(core, shared, from, is_first);
        }
    }

    /// Returns the configured retransmission timeout, in nanoseconds.
    pub(super) fn configured_timeout(core: &QpCore, shared: &Shared) -> u64 {
        4096 << core.attr.timeout.max(shared.config.retransmission.least_timeout.min(31))
    }

    /// Handles the expiration of the retransmission timer.
    pub(crate) fn on_retry_timer(&mut self, core: &mut QpCore, shared: &mut Shared) {
        if self.in_flight() == 0 {
            return;
        }
        if !self.spend_retry(core, shared, Retry::Timeout) {
            return;
        }
        count!(shared, core, local_ack_timeout_err);
        let retries_left = self.retries_left;
        tracing::debug!(qpn = core.number.get(), psn = self.una.get(), retries_left, "timeout");
        self.lost(core, shared, self.una, Loss::Timeout);
        self.blame_oldest(shared.now);
        self.mode.time_out();
        if !self.resend_after_timeout(core, shared) {
            self.go_back(core, shared);
        }
        self.arm(core, shared);
    }

    /// Handles the expiration of the probe timer: the peer has not answered for longer than usual.
    pub(crate) fn on_probe_timer(&mut self, core: &mut QpCore, shared: &mut Shared) {
        if self.in_flight() == 0 || core.deadlines.get(Timer::Retry).is_none() {
            return;
        }
        self.early.expired();
        if self.recovery.selects() {
            count!(shared, core, roce_adp_retrans);
            self.lost(core, shared, self.una, Loss::Timeout);
            self.blame_oldest(shared.now);
            if !self.resend_after_timeout(core, shared) {
                self.go_back(core, shared);
            }
        } else {
            // During a go-back, the remaining packets of the retransmission serve as the probe.
            self.early.is_due = self.cursor == self.unsent;
        }
        let of_recovery = self.recovery.timeout(self.in_flight());
        let next = shared.watched().plus_nanos(self.early.interval(of_recovery));
        let is_earlier = core.deadlines.get(Timer::Retry).is_some_and(|retry| next < retry);
        core.deadlines.set(Timer::Probe, is_earlier.then_some(next));
    }

    /// Returns the packet that the next probe repeats.
    fn probed_packet(&self) -> Psn {
        let newest = self.unsent.sub(1);
        if self.early.probes.is_multiple_of(2) {
            return self.una;
        }
        let mut position = self.sq.head();
        while let Some(wqe) = self.sq.get(position).filter(|wqe| wqe.progress != Progress::Posted) {
            if wqe.progress == Progress::Started && wqe.contains(newest) && wqe.op.awaits_response() {
                // Its request is one packet with the first PSN of the response, or of the awaited piece.
                return if wqe.first_psn.before(self.una) { self.una } else { wqe.first_psn };
            }
            position += 1;
        }
        newest
    }

    /// Writes the due probe, if it may leave now.
    #[cold]
    pub(super) fn transmit_probe(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        let (cursor, cursor_wqe) = (self.cursor, self.cursor_wqe);
        self.seek(self.probed_packet());
        let psn = self.cursor;
        let is_sent = |wqe: &crate::sq::Wqe| wqe.progress == Progress::Started && wqe.contains(psn);
        let mut sealed = None;
        if self.in_flight() > 0 && self.sq.get(self.cursor_wqe).is_some_and(is_sent) {
            self.since_ack_request = LONG_AGO;
            sealed = self.transmit_at_cursor(core, shared, slot, Sending::Probe);
            self.early.is_due &= sealed.is_none();
        } else {
            self.early.is_due = false;
        }
        (self.cursor, self.cursor_wqe) = (cursor, cursor_wqe.max(self.sq.head()));
        if sealed.is_some() {
            self.flight.probed();
            count!(shared, core, roce_adp_retrans);
            tracing::debug!(qpn = core.number.get(), psn = psn.get(), "early retransmission");
        }
        sealed
    }
}

/// Stops the retransmission timers because no answer is awaited.
pub(super) fn disarm(core: &mut QpCore) {
    for timer in [Timer::Retry, Timer::Probe, Timer::Late] {
        core.deadlines.set(timer, None);
    }
}
