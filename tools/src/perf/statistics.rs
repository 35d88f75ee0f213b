//! Figures from what was measured.

use serde::Serialize;

use crate::harness::statistics::percentile;

/// Bytes in the "MB" of the originals.
const MEBIBYTE: f64 = 1_048_576.0;
/// With more messages than this the originals look for no peak either: it takes their square.
pub(super) const MOST_FOR_PEAK: u64 = 20_000;

/// Speed of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    /// Messages per second.
    pub messages_per_s: f64,
    /// Payload bits per second, in units of 10^9.
    pub gigabits_per_s: f64,
    /// Payload bytes per second, in units of 2^20.
    pub mebibytes_per_s: f64,
}

impl Rate {
    pub(super) fn new(size: usize, messages: f64, seconds: f64) -> Self {
        let messages_per_s = if seconds > 0.0 { messages / seconds } else { 0.0 };
        let bytes = messages_per_s * size as f64;
        Self { messages_per_s, gigabits_per_s: bytes * 8.0 / 1e9, mebibytes_per_s: bytes / MEBIBYTE }
    }

    /// In the unit that the table is in.
    #[must_use]
    pub fn bandwidth(&self, gigabits: bool) -> f64 {
        if gigabits { self.gigabits_per_s } else { self.mebibytes_per_s }
    }

    /// From what another side reports.
    pub(super) fn reported(gigabits: bool, bandwidth: f64, millions: f64) -> Self {
        let bytes = if gigabits { bandwidth * 1e9 / 8.0 } else { bandwidth * MEBIBYTE };
        Self {
            messages_per_s: millions * 1e6,
            gigabits_per_s: bytes * 8.0 / 1e9,
            mebibytes_per_s: bytes / MEBIBYTE,
        }
    }
}

impl std::ops::Add for Rate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            messages_per_s: self.messages_per_s + other.messages_per_s,
            gigabits_per_s: self.gigabits_per_s + other.gigabits_per_s,
            mebibytes_per_s: self.mebibytes_per_s + other.mebibytes_per_s,
        }
    }
}

/// What a bandwidth test measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Messages that count, all queue pairs together.
    pub messages: u64,
    /// The most between the post of one message and the completion of another, if it was looked for.
    pub peak: Option<Rate>,
    /// From the first post to the last completion.
    pub average: Rate,
}

/// When messages were posted and completed, in nanoseconds, in the order of either.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) posted: Vec<u64>,
    pub(super) completed: Vec<u64>,
}

impl Times {
    /// The least time for each message between a post and a completion, in seconds.
    pub(super) fn least(&self) -> Option<f64> {
        let mut least = f64::INFINITY;
        for (first, posted) in self.posted.iter().enumerate() {
            for (count, completed) in self.completed.iter().skip(first).enumerate() {
                let time = completed.saturating_sub(*posted) as f64 / (count + 1) as f64;
                least = least.min(time);
            }
        }
        (least.is_finite() && least > 0.0).then_some(least / 1e9)
    }
}

/// What a latency test measured: times of one way for SEND and WRITE, of a round trip for READ and atomics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Messages that count.
    pub messages: u64,
    /// The mean, in microseconds.
    pub average_us: f64,
    /// Round trips per second.
    pub per_s: f64,
    /// More of it when each time was taken.
    pub distribution: Option<Distribution>,
    /// Each time in the order of the messages, in microseconds.
    #[serde(skip)]
    pub samples_us: Vec<f64>,
}

/// Times, in microseconds. All of them are times that were measured, but for the standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// The least.
    pub least_us: f64,
    /// The most.
    pub most_us: f64,
    /// The median.
    pub typical_us: f64,
    /// Standard deviation.
    pub deviation_us: f64,
    /// 99 of 100 are not above this.
    pub percentile_99_us: f64,
    /// 999 of 1,000 are not above this.
    pub percentile_99_9_us: f64,
}

impl Latency {
    /// From the points in time at which messages were posted; `trips` of them make a round trip.
    pub(super) fn from_posts(messages: u64, posts_ns: &[u64], trips: f64) -> Self {
        let samples_us: Vec<f64> =
            posts_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / trips / 1e3).collect();
        let average_us = samples_us.iter().sum::<f64>() / samples_us.len().max(1) as f64;
        let distribution = Distribution::new(&samples_us, average_us);
        let per_s = if average_us > 0.0 { 1e6 / (average_us * trips) } else { 0.0 };
        Self { messages, average_us, per_s, distribution, samples_us }
    }

    /// From a number of messages in a time.
    pub(super) fn from_count(messages: u64, seconds: f64, trips: f64) -> Self {
        let average_us = if messages > 0 { seconds * 1e6 / trips / messages as f64 } else { 0.0 };
        let per_s = if seconds > 0.0 { messages as f64 / seconds } else { 0.0 };
        Self { messages, average_us, per_s, distribution: None, samples_us: Vec::new() }
    }
}

impl Distribution {
    fn new(samples: &[f64], average: f64) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let variance =
            sorted.iter().map(|sample| (sample - average).powi(2)).sum::<f64>() / sorted.len() as f64;
        Some(Self {
            least_us: *sorted.first()?,
            most_us: *sorted.last()?,
            typical_us: percentile(&sorted, 0.5)?,
            deviation_us: variance.sqrt(),
            percentile_99_us: percentile(&sorted, 0.99)?,
            percentile_99_9_us: percentile(&sorted, 0.999)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let posts: Vec<u64> = (0..=1000_u64).map(|n| n * (n + 1) / 2 * 2000).collect();
        let latency = Latency::from_posts(1001, &posts, 2.0);
        let found = latency.distribution.unwrap();
        assert_eq!((found.least_us, found.most_us, found.typical_us), (1.0, 1000.0, 500.0));
        assert_eq!((found.percentile_99_us, found.percentile_99_9_us), (990.0, 999.0));
        assert!((latency.average_us - 500.5).abs() < 1e-9);
        assert!((found.deviation_us - 288.675).abs() < 0.01, "{found:?}");
        assert_eq!(Latency::from_posts(1, &[5], 2.0).distribution, None);
    }

    #[test]
    fn the_peak_is_the_best_stretch() {
        let times = Times { posted: vec![0, 10, 100, 110], completed: vec![1000, 1010, 1020, 1030] };
        assert_eq!(times.least(), Some(1030.0 / 4.0 / 1e9));
        let times = Times { posted: vec![0, 900, 1000], completed: vec![500, 1100, 1200] };
        assert_eq!(times.least(), Some(150.0 / 1e9), "the last two");
        assert_eq!(Times::default().least(), None);
    }

    #[test]
    fn rates_are_in_the_units_of_the_originals() {
        let rate = Rate::new(1 << 20, 1000.0, 0.5);
        assert_eq!((rate.mebibytes_per_s, rate.messages_per_s), (2000.0, 2000.0));
        assert!((rate.bandwidth(true) - 16.777_216).abs() < 1e-9);
        let reported = Rate::reported(false, 2000.0, 0.002);
        assert!((reported.gigabits_per_s - rate.gigabits_per_s).abs() < 1e-9);
        assert!((rate + reported).messages_per_s > 3999.9);
    }
}
