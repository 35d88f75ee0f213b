//! The distribution of a quantity of a run.

use roce_sim::net::Percentiles;
use serde::{Deserialize, Serialize};

/// Percentiles of a quantity.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct Distribution {
    /// Number of values.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest value.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest value.
    pub max: f64,
}

impl From<Percentiles> for Distribution {
    fn from(of: Percentiles) -> Self {
        let Percentiles { count, mean, min, p50, p95, p99, p999, max } = of;
        Self { count, mean, min, p50, p95, p99, p999, max }
    }
}
