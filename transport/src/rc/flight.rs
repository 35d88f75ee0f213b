//! Request packets that leave one after the other, and what a loss among them says of the rate.

use core::time::Duration;

use roce_packet::Psn;

use crate::congestion::LostAfter;
use crate::time::Instant;

/// More packets than this are forgotten, half of them at a time.
const LONGEST: u32 = 1 << 20;
/// Where fewer were under way at a time, the rate is not why a queue had no room.
pub(super) const FEW_UNDER_WAY: u32 = 8;

/// Packets that left without a loss and without a long pause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// The first packet.
    first: Psn,
    began: Instant,
    /// When the newest packet left.
    last: Instant,
    /// The most packets that were under way at a time.
    under_way: u32,
    /// A probe was sent since the newest packet: what is reported now may have been lost long ago.
    is_probed: bool,
    /// A loss ended it.
    is_over: bool,
}

impl Default for Flight {
    fn default() -> Self {
        let (began, last) = (Instant::ZERO, Instant::ZERO);
        Self { first: Psn::new(0), began, last, under_way: 0, is_probed: false, is_over: true }
    }
}

impl Flight {
    /// The packet at `cursor` leaves, while everything before `una` is answered.
    #[inline]
    pub(super) fn leaves(&mut self, now: Instant, cursor: Psn, una: Psn) {
        if self.is_over || cursor == una && now.since(self.last) > self.last.since(self.began) / 8 {
            *self = Self { first: cursor, began: now, is_over: false, ..Self::default() };
        }
        self.is_probed = false;
        self.last = now;
        self.under_way = self.under_way.max(una.distance_to(cursor) + 1);
        if self.first.distance_to(cursor) >= LONGEST {
            // Only the rate matters, and PSNs come again after 2^24.
            self.first = self.first.add(LONGEST / 2);
            self.began = self.began.plus_nanos(now.since(self.began).as_nanos() as u64 / 2);
        }
    }

    /// A packet was sent again to find out what the peer has.
    pub(super) fn probed(&mut self) {
        self.is_probed = true;
    }

    /// The packet with this PSN was lost, and `cursor` would have been the next to leave. Returns what that says, the first time.
    pub(super) fn lost(&mut self, now: Instant, psn: Psn, cursor: Psn) -> Option<LostAfter> {
        let (packets, sent) = (self.first.distance_to(psn), self.first.distance_to(cursor));
        let is_of_it = !core::mem::replace(&mut self.is_over, true) && packets < sent;
        (is_of_it && self.under_way >= FEW_UNDER_WAY).then(|| {
            // As if they were spaced evenly.
            let whole = self.last.since(self.began).as_nanos() * u128::from(packets) / u128::from(sent);
            let time = Duration::from_nanos(whole as u64);
            let delay = now.since(self.began).saturating_sub(time);
            LostAfter { packets, time, delay, by_timeout: self.is_probed, psn }
        })
    }
}
