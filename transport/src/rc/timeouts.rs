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
use super::requester::{LONG_AGO, RcRequester};
use crate::completion::Cause;
use crate::congestion::Loss;
use crate::counters::count;
use crate::io::TxSlot;
use crate::qp::QpCore;
use crate::segment::Sealed;
use crate::shared::Shared;
use crate::sq::Progress;
use crate::time::Instant;
use crate::timer::Timer;

/// Minimum time before the first probe: half of the shortest timeout seen on a ConnectX-6 (8.6 ms). It is as
/// long as a time slice of Linux, so a probe rarely overtakes the acknowledgement of a peer that waits for a
/// processor. It also limits how often the timer of a busy queue pair expires.
const LEAST_PROBE_NANOS: u64 = 4_096 << 10;

/// The state of early retransmission of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// Smoothed round-trip time and its variation in nanoseconds (RFC 6298), 0 before the first sample.
    round_trip: u64,
    variation: u64,
    /// The packet whose answer gives the next sample, and the time at which it left.
    sample: Option<(Psn, Instant)>,
    /// Number of doublings of the probe interval since the last sample. Without doubling, each answer of a
    /// path with a longer round trip than the first interval would come after a probe and give no sample.
    doublings: u32,
    /// Number of probes since the last answer of the peer.
    probes: u32,
    /// Whether a probe is to be sent.
    is_due: bool,
}

impl Early {
    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Records the first transmission of packet `psn`, whose answer was requested.
    #[inline]
    pub(super) fn leaves(&mut self, psn: Psn, now: Instant) {
        if self.sample.is_none() {
            self.sample = Some((psn, now));
        }
    }

    /// Discards the sample when packets are sent again: the answers to the packet and to its copy are
    /// indistinguishable (Karn's algorithm).
    pub(super) fn forget_sample(&mut self) {
        self.sample = None;
    }

    /// Records the end of the interval before a probe.
    fn expired(&mut self) {
        self.forget_sample();
        self.probes = self.probes.saturating_add(1);
        self.doublings = self.doublings.saturating_add(1);
    }

    /// Records a go-back. New probes find out its result.
    pub(super) fn went_back(&mut self) {
        self.forget_sample();
        (self.probes, self.doublings) = (0, 0);
    }

    /// Records that everything before `una` is answered.
    #[inline]
    pub(super) fn answered(&mut self, una: Psn, now: Instant) {
        self.probes = 0;
        let Some((_, left)) = self.sample.filter(|(psn, _)| psn.before(una)) else { return };
        (self.sample, self.doublings) = (None, 0);
        let sample = now.since(left).as_nanos() as u64;
        if self.round_trip == 0 {
            (self.round_trip, self.variation) = (sample.max(1), sample / 2);
        } else {
            self.variation = (3 * self.variation + self.round_trip.abs_diff(sample)) / 4;
            self.round_trip = ((7 * self.round_trip + sample) / 8).max(1);
        }
    }

    /// Returns the interval until the next probe in nanoseconds, doubled after each probe. `first` is the
    /// first interval, if the loss recovery defines one.
    fn interval(&self, first: Option<u64>) -> u64 {
        let measured = self.round_trip.saturating_add((4 * self.variation).max(LEAST_PROBE_NANOS));
        first.unwrap_or(measured).saturating_mul(1_u64.checked_shl(self.doublings).unwrap_or(u64::MAX))
    }
}

impl RcRequester {
    /// Sets the retransmission timer: T = 4.096 µs × 2^timeout (IBTA 9.7.6.1.3), but at least the configured
    /// minimum. 0 disables it. With pacing, a packet that requests an acknowledgement may leave long after
    /// the packets before it, and a retransmission long after the timer expired. The timer therefore starts
    /// with that packet.
    pub(super) fn arm(&mut self, core: &mut QpCore, shared: &Shared) {
        self.early.is_due = false;
        let awaits = self.in_flight() > 0 && self.asked.is_some() && !self.mode.is_held();
        if core.attr.timeout == 0 || !awaits {
            return disarm(core);
        }
        let settings = &shared.config.retransmission;
        let configured = 4096 << core.attr.timeout.max(settings.least_timeout.min(31));
        let of_recovery = self.recovery.timeout(self.in_flight());
        let wait = of_recovery.filter(|_| !settings.early).unwrap_or(configured);
        let watched = shared.watched();
        core.deadlines.set(Timer::Retry, Some(watched.plus_nanos(wait)));
        let probe = settings.early.then(|| self.early.interval(of_recovery)).filter(|probe| *probe < wait);
        core.deadlines.set(Timer::Probe, probe.map(|probe| watched.plus_nanos(probe)));
    }

    /// Handles the expiration of the retransmission timer.
    pub(crate) fn on_retry_timer(&mut self, core: &mut QpCore, shared: &mut Shared) {
        if self.in_flight() == 0 {
            return;
        }
        if !self.spend_retry(core, shared, Cause::AckTimeout) {
            return;
        }
        count!(shared, core, local_ack_timeout_err);
        let retries_left = self.retries_left;
        tracing::debug!(qpn = core.number.get(), psn = self.una.get(), retries_left, "timeout");
        self.lost(core, shared, self.una, Loss::Timeout);
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
        if self.recovery.selects() && !self.awaits_responses() {
            count!(shared, core, roce_adp_retrans);
            self.lost(core, shared, self.una, Loss::Timeout);
            self.resend_after_timeout(core, shared);
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
    core.deadlines.set(Timer::Retry, None);
    core.deadlines.set(Timer::Probe, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(early: &mut Early, nanos: u64) {
        early.leaves(Psn::new(0), Instant::from_nanos(1_000));
        early.answered(Psn::new(1), Instant::from_nanos(1_000 + nanos));
    }

    #[test]
    fn the_first_probe_follows_the_measured_round_trip() {
        let mut early = Early::default();
        assert_eq!(early.interval(None), LEAST_PROBE_NANOS, "nothing is measured");
        sample(&mut early, 20_000_000);
        assert_eq!(early.interval(None), 20_000_000 + 4 * 10_000_000);
        for _ in 0..100 {
            sample(&mut early, 20_000_000);
        }
        assert_eq!(early.interval(None), 20_000_000 + LEAST_PROBE_NANOS, "the same each time");
    }

    #[test]
    fn each_probe_takes_twice_as_long_until_the_peer_answers() {
        let mut early = Early::default();
        (0..3).for_each(|_| early.expired());
        assert_eq!(early.interval(None), 8 * LEAST_PROBE_NANOS);
        assert_eq!(early.interval(Some(100)), 800, "a recovery with a time of its own");
        early.answered(Psn::new(1), Instant::ZERO);
        assert_eq!(early.interval(None), 8 * LEAST_PROBE_NANOS, "which packet it answered is not known");
        sample(&mut early, 0);
        assert_eq!(early.interval(None), 1 + LEAST_PROBE_NANOS);
        (0..100).for_each(|_| early.expired());
        assert_eq!(early.interval(None), u64::MAX);
    }

    #[test]
    fn a_packet_that_was_sent_again_is_no_sample() {
        let mut early = Early::default();
        early.leaves(Psn::new(0), Instant::ZERO);
        early.forget_sample();
        early.answered(Psn::new(1), Instant::from_nanos(1_000_000_000));
        assert_eq!(early.interval(None), LEAST_PROBE_NANOS);
    }
}
