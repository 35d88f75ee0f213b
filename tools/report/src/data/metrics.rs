//! The figures of a summary that have a name, for `sweep.csv`, JSON and expectations.

use super::summary::Summary;

/// A figure of a run.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name in `sweep.csv`, with its unit.
    pub column: &'static str,
    /// The name in JSON, with a base unit.
    pub field: &'static str,
    /// The factor from the base unit to the unit of text and tables.
    pub scale: f64,
    /// The value in a base unit, if it was measured.
    pub of: fn(&Summary) -> Option<f64>,
}

const fn metric(
    column: &'static str,
    field: &'static str,
    scale: f64,
    of: fn(&Summary) -> Option<f64>,
) -> Metric {
    Metric { column, field, scale, of }
}

/// The figures of `sweep.csv`, in the order of its columns.
pub const METRICS: [Metric; 25] = [
    metric("completion_p50_us", "completion_p50_seconds", 1e6, |run| Some(run.completion_seconds?.p50)),
    metric("completion_p99_us", "completion_p99_seconds", 1e6, |run| Some(run.completion_seconds?.p99)),
    metric("completion_max_us", "completion_max_seconds", 1e6, |run| Some(run.completion_seconds?.max)),
    metric("slowdown_p50", "slowdown_p50", 1.0, |run| Some(run.slowdown?.p50)),
    metric("slowdown_p95", "slowdown_p95", 1.0, |run| Some(run.slowdown?.p95)),
    metric("slowdown_p99", "slowdown_p99", 1.0, |run| Some(run.slowdown?.p99)),
    metric("slowdown_p999", "slowdown_p999", 1.0, |run| Some(run.slowdown?.p999)),
    metric("queue_p50_bytes", "queue_p50_bytes", 1.0, |run| Some(run.queue_bytes?.p50 as f64)),
    metric("queue_p90_bytes", "queue_p90_bytes", 1.0, |run| Some(run.queue_bytes?.p90 as f64)),
    metric("queue_p99_bytes", "queue_p99_bytes", 1.0, |run| Some(run.queue_bytes?.p99 as f64)),
    metric("queue_most_bytes", "queue_most_bytes", 1.0, |run| Some(run.queue_bytes?.max as f64)),
    metric("host_wait_p50_us", "host_wait_p50_seconds", 1e6, |run| Some(run.host_waits?.p50_seconds)),
    metric("host_wait_p99_us", "host_wait_p99_seconds", 1e6, |run| Some(run.host_waits?.p99_seconds)),
    metric("goodput_gbps", "goodput_bits_per_second", 1e-9, |run| run.mean_goodput_bits_per_second),
    metric("total_gbps", "total_bits_per_second", 1e-9, Summary::total_bits_per_second),
    metric("jain", "jain", 1.0, |run| run.jain),
    metric("marked", "marked", 1.0, |run| Some(run.marked as f64)),
    metric("trimmed", "trimmed", 1.0, |run| Some(run.trimmed as f64)),
    metric("cnps_sent", "cnps_sent", 1.0, |run| Some(run.cnps_sent as f64)),
    metric("pauses", "pauses", 1.0, |run| Some(run.pauses as f64)),
    metric("paused_us", "paused_seconds", 1e6, |run| Some(run.paused_seconds)),
    metric("dropped", "dropped", 1.0, |run| Some(run.dropped.values().sum::<u64>() as f64)),
    metric("retransmitted", "retransmitted", 1.0, |run| Some(run.retransmitted as f64)),
    metric("incomplete", "incomplete", 1.0, |run| Some(run.incomplete as f64)),
    metric("failed", "failed", 1.0, |run| Some(run.unfinished.failed as f64)),
];

/// Returns the metric with this column.
#[must_use]
pub fn metric_named(column: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.column == column)
}
