//! The slowdown of flows by size: the completion time relative to that of the flow alone.

use std::collections::BTreeMap;

use super::flow::FlowResult;

/// Percentiles of measured values by nearest rank: the given share of all values does not exceed a
/// percentile. With fewer than a thousand values, the 99.9th percentile is the largest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// The number of values.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// The smallest value.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The largest value.
    pub max: f64,
}

impl Percentiles {
    /// Returns the percentiles of these values in any order, or `None` without values.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil().max(1.0) as usize;
            values.get(rank - 1).copied().unwrap_or(max)
        };
        let (count, mean) = (values.len(), values.iter().sum::<f64>() / values.len() as f64);
        Some(Self { count, mean, min, p50: at(0.5), p95: at(0.95), p99: at(0.99), p999: at(0.999), max })
    }
}

/// A range of flow sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeRange {
    /// Flows are longer than this number of bytes.
    pub above: u64,
    /// Flows have at most this number of bytes.
    pub to: u64,
}

/// Named ranges of flow sizes, as in the pFabric paper and others after it.
pub const SIZE_CLASSES: [(&str, SizeRange); 3] = [
    ("small", SizeRange { above: 0, to: 100_000 }),
    ("medium", SizeRange { above: 100_000, to: 10_000_000 }),
    ("large", SizeRange { above: 10_000_000, to: u64::MAX }),
];

/// The slowdowns of the complete flows of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Slowdowns {
    /// Slowdowns of all flows.
    pub all: Option<Percentiles>,
    /// Slowdowns of each of [`SIZE_CLASSES`].
    pub classes: [Option<Percentiles>; SIZE_CLASSES.len()],
    /// Slowdowns by logarithmic ranges of sizes, whose ends are 1, 2 and 5 times powers of ten. Ranges
    /// without flows are left out.
    pub ranges: Vec<(SizeRange, Percentiles)>,
}

impl Slowdowns {
    /// Returns the slowdowns of the complete flows.
    #[must_use]
    pub fn of(flows: &[FlowResult]) -> Self {
        let of_range = |range: SizeRange| {
            let inside =
                flows.iter().filter(|flow| range.above < flow.spec.bytes && flow.spec.bytes <= range.to);
            Percentiles::of(inside.filter_map(FlowResult::slowdown).collect())
        };
        let mut ranges: BTreeMap<SizeRange, Vec<f64>> = BTreeMap::new();
        for flow in flows {
            if let Some(slowdown) = flow.slowdown() {
                ranges.entry(range_of(flow.spec.bytes)).or_default().push(slowdown);
            }
        }
        Self {
            all: of_range(SizeRange { above: 0, to: u64::MAX }),
            classes: SIZE_CLASSES.map(|(_, range)| of_range(range)),
            ranges: ranges
                .into_iter()
                .filter_map(|(range, values)| Some((range, Percentiles::of(values)?)))
                .collect(),
        }
    }
}

/// Returns the logarithmic range of a size.
fn range_of(bytes: u64) -> SizeRange {
    let mut above = 0;
    for power in 0..20 {
        for digit in [1_u64, 2, 5] {
            let to = digit.saturating_mul(10_u64.pow(power.min(19)));
            if bytes <= to {
                return SizeRange { above, to };
            }
            above = to;
        }
    }
    SizeRange { above, to: u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values() {
        let found = Percentiles::of((1..=1_000).rev().map(f64::from).collect()).unwrap();
        let expected = Percentiles {
            count: 1_000,
            mean: 500.5,
            min: 1.0,
            p50: 500.0,
            p95: 950.0,
            p99: 990.0,
            p999: 999.0,
            max: 1_000.0,
        };
        assert_eq!(found, expected);
        let one = Percentiles::of(vec![3.0]).unwrap();
        assert_eq!([one.min, one.p50, one.p999, one.max], [3.0; 4]);
        assert_eq!(Percentiles::of(Vec::new()), None);
    }

    #[test]
    fn ranges_are_logarithmic() {
        for (bytes, above, to) in
            [(1, 0, 1), (2, 1, 2), (3, 2, 5), (5, 2, 5), (6, 5, 10), (1_000_000, 500_000, 1_000_000)]
        {
            assert_eq!(range_of(bytes), SizeRange { above, to }, "{bytes}");
        }
        assert_eq!(range_of(u64::MAX).to, u64::MAX);
    }
}
