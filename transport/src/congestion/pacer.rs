//! Spaces packets at a rate, exact to the bit.
//!
//! Each packet adds its bits to a debt, which elapsed time reduces at the rate; a packet may leave while
//! there is no debt. A late sender has credit, up to the burst, so coarse timers and rounding to nanoseconds
//! do not reduce the rate. A debt is counted in billionths of a bit: a rate in bits per second times
//! nanoseconds, without a division.

use super::Rate;
use crate::Instant;

/// Billionths of a bit in a byte.
const BYTE: i64 = 8_000_000_000;
/// Maximum burst. In billionths of a bit it is far below 2^63.
pub(super) const MOST_BURST: u32 = 1 << 24;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    debt: i64,
    at: Instant,
    burst: i64,
}

impl Pacer {
    /// Creates a pacer. `burst` is the number of bytes that may leave at once after a pause, in addition to
    /// the one packet that may always leave.
    pub(super) fn new(now: Instant, burst: u32) -> Self {
        Self { debt: 0, at: now, burst: i64::from(burst.min(MOST_BURST)) * BYTE }
    }

    /// Reduces the debt by the amount that `rate` allows for the time since the last call.
    pub(super) fn settle(&mut self, now: Instant, rate: Rate) {
        if rate.is_unlimited() {
            self.debt = 0;
        } else {
            let nanos = now.as_nanos().saturating_sub(self.at.as_nanos());
            let paid = i64::try_from(rate.get().saturating_mul(nanos)).unwrap_or(i64::MAX);
            // Time is exact to a nanosecond, so the credit of one nanosecond is always kept.
            let nanosecond = i64::try_from(rate.get()).unwrap_or(i64::MAX);
            self.debt = self.debt.saturating_sub(paid).max(-self.burst.max(nanosecond));
        }
        self.at = self.at.max(now);
    }

    /// Discards the credit for a burst.
    pub(super) fn forget_credit(&mut self) {
        self.debt = self.debt.max(0);
    }

    /// Charges a packet that left. Call [`Self::settle`] first.
    pub(super) fn charge(&mut self, bytes: u32, rate: Rate) {
        if !rate.is_unlimited() {
            self.debt = self.debt.saturating_add(i64::from(bytes).saturating_mul(BYTE));
        }
    }

    /// Returns the time when the next packet may leave, or `None` for immediately. Call [`Self::settle`]
    /// first.
    pub(super) fn ready_at(&self, rate: Rate) -> Option<Instant> {
        let debt = u64::try_from(self.debt).ok().filter(|debt| *debt > 0 && !rate.is_unlimited())?;
        Some(self.at.plus_nanos(debt.div_ceil(rate.get())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// Sends whenever it may for `nanos`, woken `late` nanoseconds after the requested time. Returns the
    /// bytes.
    fn run(rate: Rate, packet: u32, burst: u32, late: u64, nanos: u64) -> u64 {
        let mut pacer = Pacer::new(at(0), burst);
        let (mut now, mut sent) = (0, 0);
        while now < nanos {
            pacer.settle(at(now), rate);
            match pacer.ready_at(rate) {
                Some(ready) => now = ready.as_nanos() + late,
                None => {
                    pacer.charge(packet, rate);
                    sent += u64::from(packet);
                }
            }
        }
        sent
    }

    #[test]
    fn a_millisecond_is_within_one_packet_of_the_ideal() {
        for gigabits in [1, 10, 40, 100, 400] {
            let rate = Rate::megabits_per_second(gigabits * 1000);
            for packet in [84, 1106, 4200] {
                let ideal = rate.get() / 8 / 1000;
                let sent = run(rate, packet, 0, 0, 1_000_000);
                assert!(sent.abs_diff(ideal) <= u64::from(packet), "{rate}: {sent} of {ideal} bytes");
            }
        }
    }

    #[test]
    fn a_late_timer_costs_no_rate_as_long_as_the_burst_covers_it() {
        let rate = Rate::megabits_per_second(10_000);
        let ideal = rate.get() / 8 / 100;
        // 5 us at 10 Gb/s are 6,250 bytes.
        let sent = run(rate, 1106, 8_192, 5_000, 10_000_000);
        assert!(sent.abs_diff(ideal) <= 2 * 8_192, "{sent} of {ideal} bytes");
        assert!(run(rate, 1106, 0, 5_000, 10_000_000) < ideal / 2);
    }

    #[test]
    fn after_a_pause_no_more_than_the_burst_and_one_packet_leave_at_once() {
        let rate = Rate::megabits_per_second(1_000);
        let mut pacer = Pacer::new(at(0), 3_000);
        pacer.settle(at(1_000_000_000), rate);
        let mut packets = 0;
        while pacer.ready_at(rate).is_none() {
            pacer.charge(1_000, rate);
            packets += 1;
        }
        assert_eq!(packets, 4);
    }

    #[test]
    fn the_slowest_rate_and_the_longest_pause_do_not_overflow() {
        let rate = Rate::bits_per_second(0);
        let mut pacer = Pacer::new(at(0), u32::MAX);
        pacer.settle(at(1), rate);
        pacer.charge(u32::MAX, rate);
        assert!(pacer.ready_at(rate).is_some());
        pacer.settle(Instant::FAR_FUTURE, Rate::bits_per_second(u64::MAX - 1));
        assert_eq!(pacer.ready_at(rate), None);
    }
}
