//! Scales: the position of a value along an axis, and the range of an axis.

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

/// The first digits at which a logarithmic axis may begin and end.
pub(crate) const ENDS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];

impl Axis {
    /// Returns a logarithmic scale if the values span more than two powers of ten, so that a linear scale
    /// would hide the small ones. Returns the linear scale if a value is zero or negative.
    #[must_use]
    pub fn for_values(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = ends(values.filter(|value| value.is_finite()));
        if least > 0.0 && most > 100.0 * least { Self::Log } else { Self::Linear }
    }

    /// Returns the position of a value along the axis. The position is not finite if the axis cannot show the
    /// value.
    pub(crate) fn measure(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log | Self::Sizes if value > 0.0 => value.log10(),
            Self::Powers | Self::Bytes if value > 0.0 => value.log2(),
            Self::Log | Self::Sizes | Self::Powers | Self::Bytes => f64::NAN,
        }
    }

    /// Returns the range of positions that shows all values. A linear axis without negative values begins at
    /// zero. A logarithmic axis of powers of ten begins and ends at 1, 2 or 5 times a power of ten.
    pub(crate) fn range(self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let measured = values.map(|value| self.measure(value)).filter(|value| value.is_finite());
        let (least, most) = ends(measured);
        match self {
            _ if least > most => (0.0, 1.0),
            Self::Linear if least >= 0.0 => (0.0, if most > 0.0 { most * 1.05 } else { 1.0 }),
            Self::Log | Self::Sizes => {
                let (low, high) = (end_below(least), end_above(most));
                (low, if high > low { high } else { low + ENDS[1].log10() })
            }
            _ if least < most => (least, most),
            _ => (least - 0.5, most + 0.5),
        }
    }
}

/// Returns the least and the largest value; infinity and minus infinity without values.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let none = (f64::INFINITY, f64::NEG_INFINITY);
    values.fold(none, |(least, most), value| (least.min(value), most.max(value)))
}

/// Tolerance of logarithms.
const CLOSE: f64 = 1e-9;

fn end_below(log: f64) -> f64 {
    let decade = (log + CLOSE).floor();
    let below = |end: &&f64| end.log10() <= log - decade + CLOSE;
    decade + ENDS.iter().rev().find(below).map_or(0.0, |end| end.log10())
}

fn end_above(log: f64) -> f64 {
    let decade = (log + CLOSE).floor();
    let above = |end: &&f64| end.log10() >= log - decade - CLOSE;
    decade + ENDS.iter().find(above).map_or(1.0, |end| end.log10())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_over_two_decades_is_logarithmic() {
        let axis = |values: &[f64]| Axis::for_values(values.iter().copied());
        assert_eq!(axis(&[1.0, 100.0]), Axis::Linear);
        assert_eq!(axis(&[1.0, 101.0, f64::NAN]), Axis::Log);
        assert_eq!(axis(&[0.0, 1.0, 1e6]), Axis::Linear, "a logarithmic axis cannot show zero");
        assert_eq!((axis(&[-1.0, 1e6]), axis(&[])), (Axis::Linear, Axis::Linear));
    }

    #[test]
    fn logarithmic_ranges_end_at_round_values() {
        let range = |values: &[f64]| {
            let (low, high) = Axis::Log.range(values.iter().copied());
            (10_f64.powf(low), 10_f64.powf(high))
        };
        let is = |(low, high): (f64, f64), (least, most): (f64, f64)| {
            assert!((low / least - 1.0).abs() < 1e-6 && (high / most - 1.0).abs() < 1e-6, "{low} {high}");
        };
        is(range(&[2.0, 300.0, 0.0]), (2.0, 500.0));
        is(range(&[1.0, 100.0]), (1.0, 100.0));
        is(range(&[0.7, 0.9]), (0.5, 1.0));
        is(range(&[10.0]), (10.0, 20.0));
        assert_eq!(Axis::Bytes.range(std::iter::empty()), (0.0, 1.0));
        assert_eq!(Axis::Linear.range([0.0].into_iter()), (0.0, 1.0));
    }
}
