//! Reduces series over time to the means of spans. With a sample every few packets, single packets would hide
//! the changes of the rate.

use std::collections::BTreeMap;

/// Approximate maximum number of spans of a plot.
const MOST_SPANS: f64 = 300.0;

/// Returns the length of a span for samples every `interval` up to `end`: 1, 2 or 5 times a power of ten
/// intervals. Returns `None` if the number of samples is small enough to draw each.
pub(crate) fn span(interval: f64, end: f64) -> Option<f64> {
    let samples = end / interval;
    if !(interval > 0.0 && samples > MOST_SPANS && samples.is_finite()) {
        return None;
    }
    let least = samples / MOST_SPANS;
    let decade = 10.0_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * decade >= least)?;
    Some(interval * (factor * decade).max(1.0))
}

/// Returns the number of the span that contains a time. The end of a span belongs to it.
pub(crate) fn place(time: f64, span: f64) -> i64 {
    // Times are multiples of the interval, but not exactly.
    (time / span - 1e-6).ceil() as i64
}

/// Returns the mean of each span with samples, at the time of its last sample.
pub(crate) fn means(points: &[(f64, f64)], span: f64) -> Vec<(f64, f64)> {
    let mut spans: BTreeMap<i64, (f64, f64, f64)> = BTreeMap::new();
    for (time, value) in points {
        let (last, sum, count) = spans.entry(place(*time, span)).or_insert((*time, 0.0, 0.0));
        (*last, *sum, *count) = (last.max(*time), *sum + value, *count + 1.0);
    }
    spans.into_values().map(|(last, sum, count)| (last, sum / count)).collect()
}

/// Returns the remark in a title about means over this time in milliseconds.
pub(crate) fn remark(span: Option<f64>) -> String {
    span.map_or_else(String::new, |ms| match ms < 1.0 {
        true => format!(", means of {} µs", (ms * 1e6).round() / 1e3),
        false => format!(", means of {} ms", (ms * 1e3).round() / 1e3),
    })
}

/// Inserts a gap, which has no height, between points that are further apart than `most`.
pub(crate) fn with_gaps<T: Copy>(
    points: &[T],
    time: impl Fn(T) -> f64,
    most: f64,
    gap: impl Fn(f64) -> T,
) -> Vec<T> {
    let mut whole = Vec::with_capacity(points.len());
    let mut before: Option<f64> = None;
    for point in points {
        let now = time(*point);
        if let Some(before) = before.filter(|before| now - before > most) {
            whole.push(gap(before));
        }
        whole.push(*point);
        before = Some(now);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_round_and_few() {
        assert_eq!(span(0.01, 3.0), None);
        for (end, expected) in [(5.0, 0.02), (12.0, 0.05), (90.0, 0.5), (3_000.0, 10.0)] {
            let span = span(0.01, end).unwrap();
            assert!((span - expected).abs() < 1e-9, "{end}: {span}");
            assert!(end / span <= 300.0);
        }
        assert_eq!((span(0.0, 1.0), span(f64::NAN, 1.0), span(1.0, f64::INFINITY)), (None, None, None));
        assert_eq!(remark(Some(0.5)), ", means of 500 µs");
        assert_eq!(remark(Some(2.0)), ", means of 2 ms");
        assert_eq!(remark(None), "");
    }

    #[test]
    fn a_mean_is_that_of_its_span() {
        let points = [(0.1, 1.0), (0.2, 3.0), (0.30000000000000004, 4.0), (0.4, 8.0), (0.9, 7.0)];
        assert_eq!(means(&points, 0.2), [(0.2, 2.0), (0.4, 6.0), (0.9, 7.0)]);
        assert_eq!(means(&[], 0.2), []);
    }

    #[test]
    fn far_points_have_a_gap_between_them() {
        let points =
            with_gaps(&[(1.0, 5.0), (2.0, 6.0), (9.0, 7.0)], |point| point.0, 1.5, |time| (time, f64::NAN));
        assert_eq!(points.len(), 4);
        assert!(points[2].0 == 2.0 && points[2].1.is_nan());
    }
}
