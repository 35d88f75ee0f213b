//! What algorithms with in-band telemetry have in common: a signal from the differences of two trailers, and a window for a base round
//! trip.

use roce_packet::{Telemetry, TelemetryHop};

use super::{Observation, Rate};
use crate::time::Instant;

/// Longer apart, the counters of two trailers may have turned over.
const MOST_APART: u64 = 8_000_000;

/// The last trailer that came back.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    last: Option<(Instant, Telemetry)>,
}

impl Path {
    /// Puts `telemetry` in the place of the one before and returns that, if differences between the two mean something: all
    /// hops are in both, as many in one as in the other and of the same rates, and they are not too far apart.
    fn replace(&mut self, now: Instant, telemetry: &Telemetry) -> Option<Telemetry> {
        let (at, before) = self.last.replace((now, *telemetry))?;
        let is_near = now.as_nanos().saturating_sub(at.as_nanos()) < MOST_APART;
        let rates = |of: &Telemetry| of.hops().iter().map(|hop| u32::from(hop.rate)).sum::<u32>();
        let is_same = before.hops().len() == telemetry.hops().len() && rates(&before) == rates(telemetry);
        (is_near && is_same && telemetry.is_complete()).then_some(before)
    }
}

/// The largest signal of all hops, averaged over a base round trip.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    path: Path,
    pub(super) average: f64,
    /// The last acknowledgement brought a new value.
    is_new: bool,
}

impl Signal {
    /// A signal of 1: a full line and an empty queue.
    pub(super) fn new() -> Self {
        Self { path: Path::default(), average: 1.0, is_new: false }
    }

    /// An acknowledgement brought `telemetry`. `of_hop` is the signal of a hop from its two stamps, the newer first, and the seconds
    /// between them.
    pub(super) fn update(
        &mut self,
        now: Instant,
        telemetry: &Telemetry,
        base_rtt: f64,
        of_hop: impl Fn(&TelemetryHop, &TelemetryHop, f64) -> f64,
    ) {
        self.is_new = false;
        let Some(before) = self.path.replace(now, telemetry) else { return };
        let hops = telemetry.hops().iter().zip(before.hops());
        let moved = hops.filter(|(hop, before)| hop.ns_since(before) > 0);
        let largest = moved
            .map(|(hop, before)| {
                let seconds = f64::from(hop.ns_since(before)) / 1e9;
                (of_hop(hop, before, seconds), seconds)
            })
            .reduce(|most, hop| if hop.0 > most.0 { hop } else { most });
        let Some((value, seconds)) = largest else { return };
        let weight = (seconds / base_rtt).min(1.0);
        self.average += weight * (value - self.average);
        self.is_new = true;
    }

    /// Whether there was a new value since the last call.
    pub(super) fn take_new(&mut self) -> bool {
        core::mem::take(&mut self.is_new)
    }
}

/// A window in bytes, and the rate that sends it once in a base round trip.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Seconds.
    pub(super) base_rtt: f64,
    pub(super) bytes: f64,
    least: f64,
    pub(super) most: f64,
}

impl Window {
    /// The window of the line for a base round trip of so many nanoseconds. It falls to that of `min_rate` in Mb/s at least.
    pub(super) fn of_line(line_rate: Rate, base_rtt: u32, min_rate: u32) -> Self {
        let base_rtt = f64::from(base_rtt) / 1e9;
        let most = line_rate.get() as f64 * base_rtt / 8.0;
        let least = (f64::from(min_rate) * 1e6 * base_rtt / 8.0).min(most);
        Self { base_rtt, bytes: most, least, most }
    }

    /// The nearest possible window.
    pub(super) fn clamp(&self, bytes: f64) -> f64 {
        bytes.clamp(self.least, self.most)
    }

    fn bits_per_second(&self) -> f64 {
        self.bytes * 8.0 / self.base_rtt
    }

    pub(super) fn rate(&self) -> Rate {
        Rate::from_float(self.bits_per_second())
    }

    /// The state for plots; `signal` is the average that the window follows.
    pub(super) fn observe(&self, signal: f64) -> Observation {
        Observation {
            rate: self.bits_per_second(),
            alpha: Some(signal),
            window: Some(self.bytes as u64),
            ..Observation::default()
        }
    }
}
