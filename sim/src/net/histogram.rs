//! Percentiles of many values in little memory. The width of a bucket grows with the value, and each value is
//! within 1.6 % of the middle of its bucket.

/// The number of bits kept below the highest bit of a value.
const PRECISION: u32 = 5;
const STEPS: u64 = 1 << PRECISION;

/// A histogram of integer values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
    most: u64,
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        let index = Self::index(value);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] = self.counts[index].saturating_add(1);
        self.total += 1;
        self.most = self.most.max(value);
    }

    /// Counts the values of another histogram.
    pub fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.total += other.total;
        self.most = self.most.max(other.most);
    }

    fn index(value: u64) -> usize {
        if value < STEPS {
            return value as usize;
        }
        let shift = value.ilog2() - PRECISION;
        (u64::from(shift + 1) * STEPS + (value >> shift) - STEPS) as usize
    }

    /// Returns the middle of a bucket.
    fn value(index: usize) -> u64 {
        let index = index as u64;
        if index < STEPS {
            return index;
        }
        let shift = index / STEPS - 1;
        let low = (STEPS + index % STEPS) << shift;
        low + ((1 << shift) >> 1)
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the largest value.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Returns the distinct bucket values in ascending order, each with the number of values up to it. Each
    /// value is within 1.6 % of the recorded values, and the last one is exact.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> {
        let counted = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.scan(0, |seen, (index, count)| {
            *seen += u64::from(*count);
            let value = if *seen == self.total { self.most } else { Self::value(index).min(self.most) };
            Some((value, *seen))
        })
    }

    /// Returns the value that the share `quantile` of all values does not exceed, or 0 if there are no
    /// values.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> u64 {
        let wanted = (quantile * self.total as f64).ceil().max(1.0) as u64;
        if wanted >= self.total {
            return self.most;
        }
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return Self::value(index).min(self.most);
            }
        }
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|value| histogram.record(value));
        for (quantile, expected) in [(0.5, 50_000.0), (0.9, 90_000.0), (0.99, 99_000.0)] {
            let found = histogram.quantile(quantile) as f64;
            assert!((found / expected - 1.0).abs() < 0.02, "{quantile}: {found}");
        }
        assert_eq!(
            (histogram.quantile(1.0), histogram.count(), histogram.most()),
            (100_000, 100_000, 100_000)
        );
        assert_eq!(Histogram::default().quantile(0.5), 0);
        let steps: Vec<(u64, u64)> = histogram.steps().collect();
        assert!(steps.is_sorted() && steps[0] == (1, 1) && steps.last() == Some(&(100_000, 100_000)));
        assert_eq!(Histogram::default().steps().next(), None);
    }

    #[test]
    fn a_sum_counts_the_values_of_both() {
        let of = |values: std::ops::Range<u64>| {
            let mut histogram = Histogram::default();
            values.for_each(|value| histogram.record(value));
            histogram
        };
        let (mut small, mut large) = (of(0..10), of(10..5_000));
        large.add(&of(0..10));
        small.add(&of(10..5_000));
        assert_eq!((&large, &small), (&of(0..5_000), &of(0..5_000)));
    }

    #[test]
    fn every_value_is_near_its_bucket() {
        for value in (0..64).chain((6..63).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])) {
            let middle = Histogram::value(Histogram::index(value));
            assert!(middle.abs_diff(value) as f64 <= value as f64 * 0.032, "{value} {middle}");
        }
    }
}
