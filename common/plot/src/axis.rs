//! Axes: the position of a value along an axis, and the values with tick marks.

/// The scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Axis {
    /// A linear scale.
    #[default]
    Linear,
    /// A logarithmic scale with ticks at powers of ten.
    Log,
    /// A logarithmic scale with ticks at powers of two, for counts such as 1 to 128.
    Powers,
    /// A logarithmic scale with ticks at powers of two, for bytes: 512, 4K, 1M.
    Bytes,
    /// A logarithmic scale with ticks at powers of ten, for sizes of flows: 100, 1K, 1M, which are 10^2, 10^3
    /// and 10^6.
    Sizes,
}

impl Axis {
    /// Returns the position of a value along the axis. The position is not finite if the axis cannot show the
    /// value.
    pub(super) fn measure(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log | Self::Sizes if value > 0.0 => value.log10(),
            Self::Powers | Self::Bytes if value > 0.0 => value.log2(),
            Self::Log | Self::Sizes | Self::Powers | Self::Bytes => f64::NAN,
        }
    }

    /// Returns the remark of a label on an axis that is not linear.
    pub(super) fn remark(self) -> &'static str {
        match self {
            Self::Linear => "",
            Self::Log | Self::Powers | Self::Bytes | Self::Sizes => " (logarithmic)",
        }
    }

    /// Returns the range of positions that shows all values. With `from_zero`, a linear axis begins at zero.
    pub(super) fn range(self, values: impl Iterator<Item = f64>, from_zero: bool) -> (f64, f64) {
        let measured = values.map(|value| self.measure(value)).filter(|value| value.is_finite());
        let (least, most) = measured.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        match self {
            Self::Linear if from_zero && least >= 0.0 => (0.0, if most > 0.0 { most * 1.05 } else { 1.0 }),
            _ if least > most => (0.0, 1.0),
            // The range consists of whole powers of ten, so that two axes can be compared.
            Self::Log | Self::Sizes => {
                (least.floor(), if most.ceil() > least.floor() { most.ceil() } else { most + 1.0 })
            }
            _ if least < most => (least, most),
            _ => (least - 0.5, most + 0.5),
        }
    }

    /// Returns about `about` values with tick marks within a range, and their labels.
    pub(super) fn ticks(self, range: (f64, f64), about: usize) -> Vec<(f64, String)> {
        let powers = |base: f64, most: usize| {
            let (first, last) = (range.0.ceil() as i32, (range.1 + 1e-9).floor() as i32);
            let step = (((last - first).max(0) as usize) / most + 1).max(1);
            (first..=last).step_by(step).map(move |power| base.powi(power))
        };
        match self {
            Self::Linear => ticks(range, about).into_iter().map(|value| (value, number(value))).collect(),
            Self::Log => powers(10.0, 10).map(|value| (value, number(value))).collect(),
            Self::Sizes => powers(10.0, 10).map(|value| (value, size(value))).collect(),
            Self::Powers => powers(2.0, 10).map(|value| (value, number(value))).collect(),
            Self::Bytes => powers(2.0, 14).map(|value| (value, bytes(value))).collect(),
        }
    }
}

/// Formats bytes in units of powers of two.
fn bytes(value: f64) -> String {
    in_units(value, 1024.0)
}

/// Formats bytes in units of powers of ten.
pub(super) fn size(value: f64) -> String {
    in_units(value, 1000.0)
}

fn in_units(mut value: f64, step: f64) -> String {
    for unit in ["", "K", "M", "G", "T"] {
        if value < step {
            return format!("{}{unit}", number(value));
        }
        value /= step;
    }
    format!("{}P", number(value))
}

/// Returns about `about` round numbers within a range.
fn ticks((from, to): (f64, f64), about: usize) -> Vec<f64> {
    let rough = (to - from) / about as f64;
    let power = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|round| round * power).find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let first = (from / step).ceil();
    (0..=2 * about)
        .map(|index| (first + index as f64) * step)
        .take_while(|value| *value <= to * (1.0 + 1e-9))
        .collect()
}

/// Formats a number without trailing zeros.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_ticks() {
        assert_eq!(ticks((0.0, 10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(number(0.25), "0.25");
        assert_eq!(number(1200.0), "1200");
    }

    #[test]
    fn powers_are_marked_with_their_units() {
        let labels = |axis: Axis, range: (f64, f64)| {
            axis.ticks(range, 8).into_iter().map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(Axis::Bytes, (9.0, 12.0)), ["512", "1K", "2K", "4K"]);
        assert_eq!(labels(Axis::Powers, (0.0, 3.0)), ["1", "2", "4", "8"]);
        assert_eq!(labels(Axis::Log, (-1.0, 2.0)), ["0.1", "1", "10", "100"]);
        assert_eq!(labels(Axis::Sizes, (2.0, 6.0)), ["100", "1K", "10K", "100K", "1M"]);
        assert!(labels(Axis::Bytes, (0.0, 28.0)).len() <= 15);
        assert_eq!(Axis::Log.range([2.0, 300.0, 0.0].into_iter(), true), (0.0, 3.0));
        assert_eq!(Axis::Bytes.range(std::iter::empty(), false), (0.0, 1.0));
    }
}
