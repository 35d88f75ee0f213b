//! What algorithms with in-band telemetry have in common: the trailer before, for differences.

use roce_packet::Telemetry;

use crate::time::Instant;

/// Longer apart, the counters of two trailers may have turned over.
const MOST_APART: u64 = 8_000_000;

/// The last trailer that came back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    last: Option<(Instant, Telemetry)>,
}

impl Path {
    /// Puts `telemetry` in the place of the one before and returns that, if differences between the two mean something: all
    /// hops are in both, as many in one as in the other and of the same rates, and they are not too far apart.
    pub(super) fn replace(&mut self, now: Instant, telemetry: &Telemetry) -> Option<Telemetry> {
        let (at, before) = self.last.replace((now, *telemetry))?;
        let is_near = now.as_nanos().saturating_sub(at.as_nanos()) < MOST_APART;
        let rates = |of: &Telemetry| of.hops().iter().map(|hop| u32::from(hop.rate)).sum::<u32>();
        let is_same = before.hops().len() == telemetry.hops().len() && rates(&before) == rates(telemetry);
        (is_near && is_same && telemetry.is_complete()).then_some(before)
    }
}
