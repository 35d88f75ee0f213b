//! Calculations on measurements.

/// Returns the value that a share of the sorted values does not exceed (nearest rank).
pub(crate) fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Returns the rate in units of 10^9 payload bits per second.
pub(crate) fn gigabits_per_s(bytes: f64, seconds: f64) -> f64 {
    bytes * 8.0 / seconds / 1e9
}
