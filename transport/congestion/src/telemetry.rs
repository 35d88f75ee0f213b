//! Common parts of the algorithms with in-band telemetry: a signal from the difference of two trailers, and a
//! window for a base round trip.

use roce_packet::{Telemetry, TelemetryHop};

use crate::Instant;
use crate::{Observation, Rate};

/// Maximum time between two compared trailers in nanoseconds; counters may wrap around in a longer time.
const MOST_APART: u64 = 8_000_000;
/// Number of paths whose last trailer is kept. A fat tree of 1,024 hosts has 64 paths between two pods; there
/// a quarter of the acknowledgements gives a sample.
const MOST_PATHS: usize = 16;
/// A trailer has rates in units of 100 Mb/s, so a port may be half a unit faster.
const HALF_UNIT: f64 = 50e6;
/// A trailer has bytes in units of 64.
const UNIT: f64 = 64.0;

/// The last trailer of each path. Counters of different ports cannot be subtracted, so a trailer is compared
/// with the previous one on its own path. If a network has several paths to a host, the packets of one flow
/// may take all of them.
#[derive(Clone, Debug)]
struct Paths {
    last: [Option<(Instant, Telemetry)>; MOST_PATHS],
}

impl Paths {
    const fn new() -> Self {
        Self { last: [None; MOST_PATHS] }
    }

    /// Stores `telemetry` as the last of its path, and returns the previous one if the two can be compared.
    ///
    /// If more paths are in use than are kept, the trailers of some paths are ignored. Kept paths are not
    /// replaced, because a path that is replaced before its next trailer never gives a sample.
    fn replace(&mut self, now: Instant, telemetry: &Telemetry) -> Option<Telemetry> {
        if telemetry.hops().is_empty() || !telemetry.is_complete() {
            return None;
        }
        let is_near = |at: &Instant| now.as_nanos().saturating_sub(at.as_nanos()) < MOST_APART;
        let is_own = |last: &Option<(Instant, Telemetry)>| {
            last.is_some_and(|(_, before)| before.path() == telemetry.path())
        };
        let is_free = |last: &Option<(Instant, Telemetry)>| last.is_none_or(|(at, _)| !is_near(&at));
        let place = self.last.iter().position(is_own).or_else(|| self.last.iter().position(is_free))?;
        let last = self.last.get_mut(place)?;
        let Some((_, before)) = last.filter(|(at, before)| is_near(at) && before.path() == telemetry.path())
        else {
            *last = Some((now, *telemetry));
            return None;
        };
        if is_older(telemetry, &before) {
            // The acknowledgement was overtaken.
            return None;
        }
        *last = Some((now, *telemetry));
        is_possible(telemetry, &before).then_some(before)
    }
}

/// Tells whether `telemetry` was written before `other`: then a difference of their times wraps around.
fn is_older(telemetry: &Telemetry, other: &Telemetry) -> bool {
    let mut hops = telemetry.hops().iter().zip(other.hops());
    hops.any(|(hop, other)| u64::from(hop.ns_since(other)) > MOST_APART)
}

/// Tells whether the same ports can have written `before` and then `telemetry`: the hops have the same rates,
/// and no port sent more than its rate allows. Two paths whose bits agree by chance do not pass this check.
fn is_possible(telemetry: &Telemetry, before: &Telemetry) -> bool {
    telemetry.hops().len() == before.hops().len()
        && telemetry.hops().iter().zip(before.hops()).all(|(hop, before)| {
            // Times are whole nanoseconds.
            let seconds = (f64::from(hop.ns_since(before)) + 1.0) / 1e9;
            let most = (hop.rate_bps() as f64 + HALF_UNIT) / 8.0 * seconds + UNIT;
            hop.rate == before.rate && hop.bytes_since(before) as f64 <= most
        })
}

/// The largest signal of all hops, averaged over a base round trip.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    paths: Paths,
    pub(crate) average: f64,
    /// Whether the last acknowledgement gave a new value.
    is_new: bool,
}

impl Signal {
    /// Creates a signal of 1: a full line and an empty queue.
    pub(crate) const fn new() -> Self {
        Self { paths: Paths::new(), average: 1.0, is_new: false }
    }

    /// Updates the signal from `telemetry`. `of_hop` computes the signal of a hop from its two stamps, newer
    /// first, and the seconds between them.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        telemetry: &Telemetry,
        base_rtt: f64,
        of_hop: impl Fn(&TelemetryHop, &TelemetryHop, f64) -> f64,
    ) {
        let Some(before) = self.paths.replace(now, telemetry) else { return };
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

    /// Tells whether there was a new value since the last call.
    pub(crate) fn take_new(&mut self) -> bool {
        core::mem::take(&mut self.is_new)
    }
}

/// A window in bytes, and the rate that sends it once in a base round trip.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Base round trip in seconds.
    pub(crate) base_rtt: f64,
    pub(crate) bytes: f64,
    least: f64,
    pub(crate) most: f64,
}

impl Window {
    /// Creates the window of the line for a base round trip in ns. Its minimum is that of `min_rate` in Mb/s.
    pub(crate) fn of_line(line_rate: Rate, base_rtt: u32, min_rate: u32) -> Self {
        let base_rtt = f64::from(base_rtt) / 1e9;
        let most = line_rate.get() as f64 * base_rtt / 8.0;
        let least = (f64::from(min_rate) * 1e6 * base_rtt / 8.0).min(most);
        Self { base_rtt, bytes: most, least, most }
    }

    /// Returns the nearest allowed window.
    pub(crate) fn clamp(&self, bytes: f64) -> f64 {
        bytes.clamp(self.least, self.most)
    }

    fn bits_per_second(&self) -> f64 {
        self.bytes * 8.0 / self.base_rtt
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate::from_float(self.bits_per_second())
    }

    /// Returns the state for plots; `signal` is the average that the window follows.
    pub(crate) fn observe(&self, signal: f64) -> Observation {
        Observation {
            rate: self.bits_per_second(),
            alpha: Some(signal),
            window: Some(self.bytes as u64),
            ..Observation::default()
        }
    }
}
