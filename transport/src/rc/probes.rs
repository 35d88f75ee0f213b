//! The times of early probes: see [`timeouts`](super::timeouts).

use roce_packet::Psn;

use crate::Instant;

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
    pub(super) probes: u32,
    /// Whether a probe is to be sent.
    pub(super) is_due: bool,
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
    pub(super) fn expired(&mut self) {
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
    pub(super) fn interval(&self, first: Option<u64>) -> u64 {
        let measured = self.round_trip.saturating_add((4 * self.variation).max(LEAST_PROBE_NANOS));
        first.unwrap_or(measured).saturating_mul(1_u64.checked_shl(self.doublings).unwrap_or(u64::MAX))
    }
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
