//! The look of each series, and the points that are drawn.

use crate::axis::Axis;
use crate::chart::{Axes, Chart, Figure, MOST_LINES, Mark};

/// Colors of Okabe and Ito, which people with any color vision can tell apart, in an order in which
/// neighbors also differ in lightness. Their yellow is left out, because it is too light for a line.
pub(crate) const COLORS: [&str; 7] =
    ["#0072b2", "#e69f00", "#000000", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"];
/// These colors on a dark page.
pub(crate) const DARK_COLORS: [&str; 7] =
    ["#4da9e8", "#f0b429", "#f2f2f2", "#2fc497", "#ff8a47", "#8fd0f7", "#e29bc4"];

/// Lengths of strokes and gaps, relative to the width of the line. The first line is solid.
const DASHES: [&[f64]; 4] = [&[], &[5.0, 2.5], &[1.2, 2.0], &[6.0, 2.0, 1.2, 2.0]];

const MARKS: [Mark; 6] = [Mark::Circle, Mark::Square, Mark::Triangle, Mark::Diamond, Mark::Cross, Mark::Plus];

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    /// Index into [`COLORS`].
    pub(crate) color: usize,
    pub(crate) dash: &'static [f64],
    pub(crate) mark: Mark,
}

/// Returns the look of a series. The first [`MOST_LINES`] differ in their dash or their mark.
pub(crate) fn look(index: usize) -> Look {
    let at = |count: usize| index % count;
    Look { color: at(COLORS.len()), dash: DASHES[at(DASHES.len())], mark: MARKS[at(MARKS.len())] }
}

/// The indexes of all lines of a figure. Lines with equal names in several charts have one index.
#[derive(Debug)]
pub(crate) struct Series {
    /// Names, and how many lines of the same chart have the name before.
    names: Vec<(String, usize)>,
}

impl Series {
    pub(crate) fn of(figure: &Figure) -> Self {
        let mut names: Vec<(String, usize)> = Vec::new();
        for chart in &figure.charts {
            for index in 0..chart.lines.len().min(MOST_LINES).max(chart.bands.len()) {
                if let Some(key) = key(chart, index)
                    && !names.contains(&key)
                {
                    names.push(key);
                }
            }
        }
        Self { names }
    }

    /// Returns the index of a line, or of the band without a line.
    pub(crate) fn index(&self, chart: &Chart, line: usize) -> usize {
        let place = key(chart, line).and_then(|key| self.names.iter().position(|known| *known == key));
        place.unwrap_or(line)
    }

    /// Returns the index of the first series that is not a line.
    pub(crate) fn after_lines(&self, chart: &Chart) -> usize {
        chart.lines.len().min(MOST_LINES)
    }
}

/// Returns the key of a line. Rows of a chart with names have one look.
fn key(chart: &Chart, index: usize) -> Option<(String, usize)> {
    let name = &chart.lines.get(index)?.name;
    let before = chart.lines.iter().take(index).filter(|line| line.name == *name).count();
    Some((name.clone(), before))
}

/// The number of columns into which long lines are thinned.
const COLUMNS: usize = 900;

/// Returns whether the axes can show a point.
pub(crate) fn is_shown((x, y): (f64, f64), axes: Axes) -> bool {
    axes.x.measure(x).is_finite() && axes.y.measure(y).is_finite()
}

/// Returns the parts of a line between its gaps, with the points that the chart draws.
pub(crate) fn parts(points: &[(f64, f64)], axes: Axes) -> Vec<Vec<(f64, f64)>> {
    let shown = |part: &[(f64, f64)]| -> Vec<(f64, f64)> {
        part.iter().copied().filter(|point| is_shown(*point, axes)).collect()
    };
    let parts: Vec<_> =
        points.split(|(_, y)| y.is_nan()).map(shown).filter(|part| !part.is_empty()).collect();
    let count = parts.iter().map(Vec::len).sum();
    parts.into_iter().map(|part| thinned(part, count)).collect()
}

/// Returns the parts of a band between its gaps.
pub(crate) fn band_parts(points: &[(f64, f64, f64)], axes: Axes) -> Vec<Vec<(f64, f64, f64)>> {
    // A logarithmic axis cuts a band at its lower end.
    let low = |y: f64| if axes.y == Axis::Linear { y } else { y.max(f64::MIN_POSITIVE) };
    let shown = |part: &[(f64, f64, f64)]| -> Vec<(f64, f64, f64)> {
        let all = part.iter().map(|(x, from, to)| (*x, low(*from), *to));
        all.filter(|(x, from, to)| is_shown((*x, *from), axes) && is_shown((*x, *to), axes)).collect()
    };
    let is_gap = |(_, from, to): &(f64, f64, f64)| from.is_nan() || to.is_nan();
    points.split(is_gap).map(shown).filter(|part| !part.is_empty()).collect()
}

/// Returns the corners of a line that keeps its height up to the next point. It begins at zero at the first
/// one.
pub(crate) fn stepped(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut height = 0.0;
    let corners = |(x, y): &(f64, f64)| [(*x, std::mem::replace(&mut height, *y)), (*x, *y)];
    points.iter().flat_map(corners).collect()
}

/// Returns the points that have marks: each of a few, some of many, and each that is alone in its part. The
/// marks of many points stand at other places for each series, so that they do not hide each other.
pub(crate) fn marked(parts: &[Vec<(f64, f64)>], series: usize, most: usize) -> Vec<(f64, f64)> {
    const OF_MANY: usize = 7;
    let count: usize = parts.iter().map(Vec::len).sum();
    if count <= most {
        return parts.concat();
    }
    let step = count.div_ceil(OF_MANY).max(1);
    let first = step * (2 * (series % 4) + 1) / 8;
    let alone = parts.iter().filter(|part| part.len() == 1).flatten();
    let some = parts.iter().filter(|part| part.len() > 1).flatten().skip(first).step_by(step);
    alone.chain(some).copied().collect()
}

/// Thins a part of a line of `whole` points. Of a long line, it keeps the lowest and the highest point of
/// each column, so that no peak is lost.
fn thinned(points: Vec<(f64, f64)>, whole: usize) -> Vec<(f64, f64)> {
    if whole <= 2 * COLUMNS {
        return points;
    }
    let mut kept = Vec::with_capacity(2 * COLUMNS);
    for column in points.chunks(whole.div_ceil(COLUMNS)) {
        let low = column.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let high = column.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut both: Vec<(f64, f64)> = low.into_iter().chain(high).copied().collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both.dedup();
        kept.extend(both);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_own_dash_and_mark() {
        for one in 0..MOST_LINES {
            for other in 0..one {
                let (a, b) = (look(one), look(other));
                assert!(a.dash != b.dash || a.mark != b.mark, "{one} {other}: {a:?}");
            }
        }
        assert_eq!((look(0).dash.len(), look(0).mark), (0, Mark::Circle));
    }

    /// Without color, the first four lines still differ clearly in lightness from their neighbors.
    #[test]
    fn neighbors_differ_in_lightness() {
        let lightness = |color: &str| {
            let channel = |at: usize| f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap());
            (0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)) / 255.0
        };
        for pair in COLORS.windows(2).take(3) {
            assert!((lightness(pair[0]) - lightness(pair[1])).abs() > 0.15, "{pair:?}");
        }
        assert!(COLORS.iter().all(|color| lightness(color) < 0.72), "they are visible on white");
        assert!(DARK_COLORS.iter().all(|color| lightness(color) > 0.5), "they are visible on black");
    }

    #[test]
    fn peaks_survive_thinning() {
        let points: Vec<(f64, f64)> =
            (0..100_000).map(|i| (f64::from(i), f64::from(u32::from(i == 54_321)))).collect();
        let kept = thinned(points.clone(), points.len());
        assert!(kept.len() <= 2 * COLUMNS && kept.contains(&(54_321.0, 1.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 <= b.0));
    }

    #[test]
    fn a_distribution_is_steps_from_zero() {
        assert_eq!(
            stepped(&[(1.0, 50.0), (3.0, 100.0)]),
            [(1.0, 0.0), (1.0, 50.0), (3.0, 50.0), (3.0, 100.0)]
        );
    }

    #[test]
    fn many_points_have_few_marks() {
        let long: Vec<(f64, f64)> = (0..500).map(|x| (f64::from(x), 1.0)).collect();
        let parts = vec![long, vec![(900.0, 2.0)]];
        let marks = marked(&parts, 0, 20);
        assert!((6..=9).contains(&marks.len()) && marks.contains(&(900.0, 2.0)), "{marks:?}");
        assert_ne!(marks[1], marked(&parts, 1, 20)[1]);
        assert_eq!(marked(&parts[1..], 3, 20), [(900.0, 2.0)]);
    }
}
