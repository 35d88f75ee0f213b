//! Consecutively sent request packets, and what a loss among them indicates about the rate.

use core::time::Duration;

use roce_packet::Psn;

use crate::Instant;
use crate::congestion::LostAfter;

/// Maximum number of recorded packets; half of them are forgotten when it is exceeded.
const LONGEST: u32 = 1 << 20;
/// Minimum number of packets in flight at which a loss indicates that the rate is too high for a queue.
pub(super) const FEW_UNDER_WAY: u32 = 8;

/// A series of packets sent without a loss and without a long pause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// The first packet of the series.
    first: Psn,
    began: Instant,
    /// The time at which the newest packet left.
    last: Instant,
    /// Maximum number of packets in flight at a time.
    under_way: u32,
    /// Whether a probe was sent since the newest packet: a loss reported now may have happened long ago.
    is_probed: bool,
    /// Whether a loss ended the series.
    is_over: bool,
}

impl Default for Flight {
    fn default() -> Self {
        let (began, last) = (Instant::ZERO, Instant::ZERO);
        Self { first: Psn::new(0), began, last, under_way: 0, is_probed: false, is_over: true }
    }
}

impl Flight {
    /// Records that the packet at `cursor` leaves while everything before `una` is answered.
    #[inline]
    pub(super) fn leaves(&mut self, now: Instant, cursor: Psn, una: Psn) {
        if self.is_over || cursor == una && now.since(self.last) > self.last.since(self.began) / 8 {
            *self = Self { first: cursor, began: now, is_over: false, ..Self::default() };
        }
        self.is_probed = false;
        self.last = now;
        self.under_way = self.under_way.max(una.distance_to(cursor) + 1);
        if self.first.distance_to(cursor) >= LONGEST {
            // Only the rate matters, and PSNs repeat after 2^24 packets.
            self.first = self.first.add(LONGEST / 2);
            self.began = self.began.plus_nanos(now.since(self.began).as_nanos() as u64 / 2);
        }
    }

    /// Records that a packet was sent again to find out the state of the peer.
    pub(super) fn probed(&mut self) {
        self.is_probed = true;
    }

    /// Handles the loss of the packet with this PSN; `cursor` is the next packet to send. Returns the
    /// evidence of the loss, once per series.
    pub(super) fn lost(&mut self, now: Instant, psn: Psn, cursor: Psn) -> Option<LostAfter> {
        let (packets, sent) = (self.first.distance_to(psn), self.first.distance_to(cursor));
        let is_of_it = !core::mem::replace(&mut self.is_over, true) && packets < sent;
        (is_of_it && self.under_way >= FEW_UNDER_WAY).then(|| {
            // Assume that the packets were spaced evenly.
            let whole = self.last.since(self.began).as_nanos() * u128::from(packets) / u128::from(sent);
            let time = Duration::from_nanos(whole as u64);
            let delay = now.since(self.began).saturating_sub(time);
            LostAfter { packets, time, delay, by_timeout: self.is_probed, psn }
        })
    }
}
