//! The values with tick marks, and their labels.

use crate::axis::{Axis, ENDS};

/// A tick mark. A minor one has an empty label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) label: String,
}

/// Maximum number of powers of ten between whose ticks there are minor ones.
const MOST_DECADES_WITH_MINOR: f64 = 6.0;

impl Axis {
    /// Returns tick marks within a range of positions, with about `about` labels.
    pub(crate) fn ticks(self, range: (f64, f64), about: usize) -> Vec<Tick> {
        let tick = |value: f64, label: String| Tick { value, label };
        match self {
            Self::Linear => {
                linear(range, about).into_iter().map(|value| tick(value, number(value))).collect()
            }
            Self::Log => decades(range, about, number),
            Self::Sizes => decades(range, about, size),
            Self::Powers => powers_of_two(range, about, number),
            Self::Bytes => powers_of_two(range, about, bytes),
        }
    }

    /// Returns tick marks whose labels do not overlap along an axis of this length. `extent` returns the
    /// length of a label along the axis.
    pub(crate) fn fitting_ticks(
        self,
        range: (f64, f64),
        length: f64,
        gap: f64,
        extent: impl Fn(&str) -> f64,
    ) -> Vec<Tick> {
        let position = |value: f64| (self.measure(value) - range.0) / (range.1 - range.0) * length;
        let fits = |ticks: &[Tick]| {
            let labels = ticks.iter().filter(|tick| !tick.label.is_empty());
            let mut end = f64::NEG_INFINITY;
            labels.into_iter().all(|tick| {
                let (middle, half) = (position(tick.value), extent(&tick.label) / 2.0);
                let is_free = middle - half >= end;
                end = middle + half + gap;
                is_free
            })
        };
        let most = ((length / (extent("0") + gap)) as usize).clamp(2, 14);
        let candidates = (1..=most).rev().map(|about| self.ticks(range, about));
        let fitting = candidates.into_iter().find(|ticks| fits(ticks));
        fitting.unwrap_or_else(|| {
            // One label always fits.
            let mut ticks = self.ticks(range, 1);
            ticks.iter_mut().skip(1).for_each(|tick| tick.label.clear());
            ticks
        })
    }
}

/// Returns powers of ten with minor ticks between them. If there is room for more labels, 2 and 5 times
/// powers of ten have labels too.
fn decades(range: (f64, f64), about: usize, text: fn(f64) -> String) -> Vec<Tick> {
    let (first, last) = (range.0.floor() as i32, (range.1 + 1e-9).ceil() as i32);
    let is_inside = |value: f64| (range.0 - 1e-9..=range.1 + 1e-9).contains(&value.log10());
    let of_ends = (first..=last).flat_map(|power| ENDS[..3].iter().map(move |end| end * 10_f64.powi(power)));
    let has_ends = range.1 - range.0 <= 3.0 && of_ends.filter(|value| is_inside(*value)).count() <= about;
    let whole = (range.1 + 1e-9).floor() - (range.0 - 1e-9).ceil() + 1.0;
    let step = (whole.max(1.0) as usize).div_ceil(about.max(1)).max(1);
    let has_minor = range.1 - range.0 <= MOST_DECADES_WITH_MINOR;
    let mut ticks = Vec::new();
    for (place, power) in (first..=last).enumerate() {
        for digit in 1..=if has_minor { 9 } else { 1 } {
            let value = f64::from(digit) * 10_f64.powi(power);
            let is_labeled = match digit {
                1 => place % step == 0,
                2 | 5 => has_ends,
                _ => false,
            };
            if is_inside(value) {
                ticks.push(Tick { value, label: if is_labeled { text(value) } else { String::new() } });
            }
        }
    }
    ticks
}

fn powers_of_two(range: (f64, f64), about: usize, text: fn(f64) -> String) -> Vec<Tick> {
    let (first, last) = (range.0.ceil() as i32, (range.1 + 1e-9).floor() as i32);
    let step = ((last - first).max(0) as usize + 1).div_ceil(about.max(1)).max(1);
    let value = |power: i32| 2_f64.powi(power);
    (first..=last)
        .step_by(step)
        .map(|power| Tick { value: value(power), label: text(value(power)) })
        .collect()
}

/// Returns about `about` round numbers within a range.
fn linear((from, to): (f64, f64), about: usize) -> Vec<f64> {
    let rough = (to - from) / about.max(1) as f64;
    let power = 10.0_f64.powf(rough.log10().floor());
    let step = ENDS.into_iter().map(|round| round * power).find(|step| *step >= rough * (1.0 - 1e-9));
    let step = step.unwrap_or(rough);
    let first = (from / step).ceil();
    (0..=2 * about.max(1))
        .map(|index| (first + index as f64) * step)
        .take_while(|value| *value <= to * (1.0 + 1e-9))
        .collect()
}

/// Formats bytes in units of powers of two.
fn bytes(value: f64) -> String {
    in_units(value, 1024.0)
}

/// Formats bytes in units of powers of ten.
fn size(value: f64) -> String {
    in_units(value, 1000.0)
}

fn in_units(mut value: f64, step: f64) -> String {
    for unit in ["", "K", "M", "G", "T"] {
        if value < step * (1.0 - 1e-9) {
            return format!("{}{unit}", number(value));
        }
        value /= step;
    }
    format!("{}P", number(value))
}

/// Formats a number without trailing zeros. Very small and very large numbers have an exponent.
pub(crate) fn number(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e6).contains(&value.abs()) {
        let text = format!("{value:.2e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.'));
    }
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis, range: (f64, f64), about: usize) -> Vec<String> {
        let ticks = axis.ticks(range, about).into_iter();
        ticks.map(|tick| tick.label).filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn round_ticks() {
        assert_eq!(linear((0.0, 10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((number(0.25).as_str(), number(1200.0).as_str()), ("0.25", "1200"));
        assert_eq!(
            (number(1e-4).as_str(), number(2.5e6).as_str(), number(-0.0).as_str()),
            ("1e-4", "2.5e6", "0")
        );
    }

    #[test]
    fn powers_are_marked_with_their_units() {
        assert_eq!(labels(Axis::Bytes, (9.0, 12.0), 8), ["512", "1K", "2K", "4K"]);
        assert_eq!(labels(Axis::Powers, (0.0, 3.0), 8), ["1", "2", "4", "8"]);
        assert_eq!(labels(Axis::Log, (-1.0, 2.0), 4), ["0.1", "1", "10", "100"]);
        assert_eq!(labels(Axis::Sizes, (2.0, 6.0), 8), ["100", "1K", "10K", "100K", "1M"]);
        assert!(labels(Axis::Bytes, (0.0, 28.0), 14).len() <= 15);
    }

    #[test]
    fn a_short_logarithmic_axis_has_labels_between_powers() {
        assert_eq!(labels(Axis::Log, (0.0, 50_f64.log10()), 8), ["1", "2", "5", "10", "20", "50"]);
        assert_eq!(labels(Axis::Log, (0.0, 50_f64.log10()), 3), ["1", "10"]);
        let minor = Axis::Log.ticks((0.0, 2.0), 3);
        assert_eq!(minor.len(), 19, "1 to 10 and 20 to 100");
    }

    #[test]
    fn labels_do_not_overlap() {
        for length in [20.0, 60.0, 200.0, 600.0] {
            for (axis, range) in [
                (Axis::Linear, (0.0, 1234.0)),
                (Axis::Log, (-3.0, 7.0)),
                (Axis::Sizes, (0.0, 1.3)),
                (Axis::Bytes, (0.0, 30.0)),
            ] {
                let extent = |label: &str| 6.0 * label.len() as f64;
                let ticks = axis.fitting_ticks(range, length, 4.0, extent);
                let place = |tick: &Tick| (axis.measure(tick.value) - range.0) / (range.1 - range.0) * length;
                let shown: Vec<&Tick> = ticks.iter().filter(|tick| !tick.label.is_empty()).collect();
                assert!(!shown.is_empty(), "{axis:?} {length}");
                for pair in shown.windows(2) {
                    let room = (extent(&pair[0].label) + extent(&pair[1].label)) / 2.0;
                    assert!(place(pair[1]) - place(pair[0]) >= room, "{axis:?} {length}: {pair:?}");
                }
            }
        }
    }
}
