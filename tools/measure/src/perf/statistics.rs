//! Results of measurements.

use roce_exchange::ToolError;
use serde::Serialize;

use crate::harness::statistics::percentile;
use crate::perf::exchange::Report;

/// Bytes in the "MB" of the originals.
const MEBIBYTE: f64 = 1_048_576.0;
/// Bytes in the "Gb" of the originals.
const GIGABIT: f64 = 125_000_000.0;
/// Upper bound for messages, mebibytes or gigabits per second on any machine.
const MOST_PER_S: f64 = 1e12;
/// Maximum number of messages for which the peak is measured, as in the originals. The time of that
/// computation grows with the square of the number.
pub(super) const MOST_FOR_PEAK: u64 = 20_000;

/// The speed of messages.
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
        Self::of(messages_per_s, messages_per_s * size as f64)
    }

    fn of(messages_per_s: f64, bytes_per_s: f64) -> Self {
        let (gigabits_per_s, mebibytes_per_s) = (bytes_per_s * 8.0 / 1e9, bytes_per_s / MEBIBYTE);
        Self { messages_per_s, gigabits_per_s, mebibytes_per_s }
    }

    /// Returns the bandwidth in the unit of the table.
    #[must_use]
    pub fn bandwidth(&self, gigabits: bool) -> f64 {
        if gigabits { self.gigabits_per_s } else { self.mebibytes_per_s }
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

/// The result of a bandwidth test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Measured messages, all queue pairs together.
    pub messages: u64,
    /// The highest rate between the post of one message and the completion of another, if it was measured.
    pub peak: Option<Rate>,
    /// The rate from the first post to the last completion.
    pub average: Rate,
}

impl Bandwidth {
    /// Converts the report of the other side. An original may report in any unit, and no field of a report
    /// names its unit. The unit follows from the bandwidth, the size and the message rate.
    ///
    /// # Errors
    ///
    /// The figures are impossible, or belong to another test.
    pub(super) fn reported(report: &Report, sizes: &[usize], most: Option<u64>) -> Result<Self, ToolError> {
        let refuse = |text: String| {
            Err(ToolError::Peer(format!("{text}; give both sides the same options (-a, -b, -s, --reversed)")))
        };
        let Some(size) = sizes.iter().copied().find(|size| *size as u64 == report.size) else {
            return refuse(format!(
                "reports messages of {} bytes, which this side does not measure",
                report.size
            ));
        };
        if most.is_some_and(|most| report.iterations > most) {
            return refuse(format!("reports {} messages, more than this test has", report.iterations));
        }
        let Report { peak, average, rate, .. } = *report;
        let is_possible = |value: f64| (0.0..MOST_PER_S).contains(&value);
        if ![peak, average, rate * 1e6].into_iter().all(is_possible) {
            return refuse(format!("reports an impossible bandwidth ({average}, {rate} million messages/s)"));
        }
        let bytes_per_s = rate * 1e6 * size as f64;
        let is_of = |unit: &f64| (average * unit - bytes_per_s).abs() <= 0.01 * bytes_per_s;
        let Some(unit) = [MEBIBYTE, GIGABIT].into_iter().find(is_of) else {
            return refuse(format!(
                "reports a bandwidth of {average} with {rate} million messages/s of {size} bytes, which do not fit"
            ));
        };
        let of = |value: f64| Rate::of(value * unit / size.max(1) as f64, value * unit);
        let peak = (peak > 0.0).then(|| of(peak));
        Ok(Self { messages: report.iterations, peak, average: Rate::of(rate * 1e6, average * unit) })
    }
}

/// The times of posts and completions, in nanoseconds, each in order.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) posted: Vec<u64>,
    pub(super) completed: Vec<u64>,
}

impl Times {
    /// Returns the least time per message between a post and a completion, in seconds.
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

/// The result of a latency test: one-way times for SEND and WRITE, round-trip times for READ and atomics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Measured messages.
    pub messages: u64,
    /// The mean, in microseconds.
    pub average_us: f64,
    /// Round trips per second.
    pub per_s: f64,
    /// More statistics, if each time was measured.
    pub distribution: Option<Distribution>,
    /// Each time in the order of the messages, in microseconds.
    #[serde(skip)]
    pub samples_us: Vec<f64>,
}

/// Statistics of times, in microseconds. All of them are measured times, except the standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// The minimum.
    pub least_us: f64,
    /// The maximum.
    pub most_us: f64,
    /// The median.
    pub typical_us: f64,
    /// The standard deviation.
    pub deviation_us: f64,
    /// 99 % of the times are not above this value.
    pub percentile_99_us: f64,
    /// 99.9 % of the times are not above this value.
    pub percentile_99_9_us: f64,
}

impl Latency {
    /// Calculates latencies from the times at which messages were posted; a round trip contains `trips`
    /// messages.
    pub(super) fn from_posts(messages: u64, posts_ns: &[u64], trips: f64) -> Self {
        let samples_us: Vec<f64> =
            posts_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / trips / 1e3).collect();
        let average_us = samples_us.iter().sum::<f64>() / samples_us.len().max(1) as f64;
        let distribution = Distribution::new(&samples_us, average_us);
        let per_s = if average_us > 0.0 { 1e6 / (average_us * trips) } else { 0.0 };
        Self { messages, average_us, per_s, distribution, samples_us }
    }

    /// Calculates the average from a number of messages and a time.
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
    }

    /// Regression: if only one side had --report_gbits with -D, the other side showed 8 Mb/s as 8 MB/s. Keys
    /// read as a report meant messages of 140,737,416,798,388 bytes.
    #[test]
    fn the_unit_of_a_report_follows_from_its_rate_and_the_impossible_is_refused() {
        let mebibytes = Report { size: 1 << 20, iterations: 1000, peak: 0.0, average: 2000.0, rate: 0.002 };
        let gigabits = Report { average: 16.777_216, peak: 20.0, ..mebibytes };
        let reported = |report: &Report| Bandwidth::reported(report, &[4096, 1 << 20], Some(1000));
        for report in [mebibytes, gigabits] {
            let found = reported(&report).unwrap();
            assert!((found.average.mebibytes_per_s - 2000.0).abs() < 1e-6, "{found:?}");
            assert!((found.average.messages_per_s - 2000.0).abs() < 1e-6, "{found:?}");
        }
        assert!((reported(&gigabits).unwrap().peak.unwrap().gigabits_per_s - 20.0).abs() < 1e-9);
        let nothing = Report { size: 4096, ..Report::default() };
        assert_eq!(reported(&nothing).unwrap().average, Rate::default());
        for (wrong, part) in [
            (Report { size: 140_737_416_798_388, ..mebibytes }, "140737416798388 bytes"),
            (Report { iterations: 1001, ..mebibytes }, "1001 messages"),
            (Report { average: 1900.0, ..mebibytes }, "do not fit"),
            (Report { average: f64::NAN, ..mebibytes }, "impossible"),
            (Report { rate: f64::INFINITY, ..mebibytes }, "impossible"),
            (Report { peak: -1.0, ..mebibytes }, "impossible"),
        ] {
            let error = reported(&wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
