//! Time in the simulated network, in whole picoseconds.

use core::fmt;
use core::ops::{Add, Sub};

use roce_transport::Instant;

const PS_PER_NS: u64 = 1_000;
const PS_PER_S: u64 = 1_000_000_000_000;

/// A point in time or a duration, in picoseconds. Sums saturate at 2^64 ps, which is 213 days.
///
/// One byte takes 20 ps at 400 Gb/s, so rounding never makes frames of different ports drift relative to each
/// other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the simulation, or an empty duration.
    pub const ZERO: Self = Self(0);
    /// A time after every event.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates a time from picoseconds.
    #[must_use]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// Creates a time from nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(PS_PER_NS))
    }

    /// Creates a time from microseconds.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000 * PS_PER_NS))
    }

    /// Returns this time in picoseconds.
    #[must_use]
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Returns this time in nanoseconds, rounded down.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.0 / PS_PER_NS
    }

    /// Returns this time in seconds, for output.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / PS_PER_S as f64
    }

    /// Returns the time that `bytes` take at `bits_per_second`, rounded up to a picosecond. A rate of 0 gives
    /// [`NEVER`](Self::NEVER).
    #[must_use]
    pub const fn to_send(bytes: u64, bits_per_second: u64) -> Self {
        if bits_per_second == 0 {
            return Self::NEVER;
        }
        match bytes.checked_mul(8 * PS_PER_S) {
            Some(scaled) => Self(scaled.div_ceil(bits_per_second)),
            None => {
                let wide = (bytes as u128 * (8 * PS_PER_S) as u128).div_ceil(bits_per_second as u128);
                Self(if wide > u64::MAX as u128 { u64::MAX } else { wide as u64 })
            }
        }
    }

    /// Returns the engine's time at this point, in nanoseconds rounded down.
    #[must_use]
    pub const fn to_instant(self) -> Instant {
        Instant::from_nanos(self.as_ns())
    }

    /// Returns the first point at which the engine's time is `instant`.
    #[must_use]
    pub const fn from_instant(instant: Instant) -> Self {
        Self::from_ns(instant.as_nanos())
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Self;

    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Time {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.since(earlier)
    }
}

impl fmt::Display for Time {
    /// Formats the time in the unit that keeps the number short.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, unit) = match self.0 {
            0..1_000 => return write!(f, "{} ps", self.0),
            1_000..1_000_000 => (1e3, "ns"),
            1_000_000..1_000_000_000 => (1e6, "us"),
            1_000_000_000..PS_PER_S => (1e9, "ms"),
            _ => (1e12, "s"),
        };
        write!(f, "{:.3} {unit}", self.0 as f64 / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_a_link() {
        assert_eq!(Time::to_send(1106, 100_000_000_000).as_ps(), 88_480);
        assert_eq!(Time::to_send(1, 400_000_000_000).as_ps(), 20);
        assert_eq!(Time::to_send(1, 3), Time::from_ps(2_666_666_666_667));
        assert_eq!(Time::to_send(1, 0), Time::NEVER);
        assert_eq!(Time::to_send(u64::MAX, 1), Time::NEVER);
        assert_eq!(Time::to_send(10_000_000, 1_000_000_000_000).as_ps(), 80_000_000);
    }

    #[test]
    fn units() {
        assert_eq!(Time::from_us(2), Time::from_ns(2_000));
        assert_eq!(Time::from_ps(1_999).to_instant(), Instant::from_nanos(1));
        assert_eq!(Time::from_instant(Instant::from_nanos(7)).as_ps(), 7_000);
        assert_eq!(Time::from_us(1_500).to_string(), "1.500 ms");
        assert_eq!(Time::from_ns(1).since(Time::from_ns(2)), Time::ZERO);
    }
}
