//! Charts of lines and points as SVG, with the features that reports of measurements, simulations and
//! captures need.
//!
//! A [`Chart`] is data; [`Chart::to_svg`] returns its text, which may stand in a file or inside HTML. Equal
//! charts give equal texts. The crate uses only the standard library, and reads and writes nothing.
#![forbid(unsafe_code)]

mod axis;

use std::collections::HashSet;
use std::fmt::Write as _;

pub use axis::Axis;

use axis::number;

/// A chart of lines over a common axis. A linear axis begins at zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// The title above the plot.
    pub title: String,
    /// The label of the lower axis, with its unit.
    pub x_label: String,
    /// The label of the left axis, with its unit.
    pub y_label: String,
    /// The lines. The chart draws only the first [`MOST_LINES`], and says so.
    pub lines: Vec<Line>,
    /// Areas behind the lines; each has the color of the line with its index.
    pub bands: Vec<Band>,
    /// Single points in front of the lines. Their colors follow those of the lines; the legend has no row for
    /// an empty list.
    pub dots: Vec<Dots>,
    /// The axes of [`Self::to_svg`].
    pub axes: Axes,
    /// Whether a line keeps its height from one point to the next, and begins at zero, like a distribution.
    pub steps: bool,
    /// The end of the left axis even if there are larger values; see [`Self::cut_peaks`].
    pub top: Option<f64>,
}

/// An area between two heights.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// The name in the legend.
    pub name: String,
    /// The points by rising x: x, lower and upper height. A height that is not a number is a gap in the area.
    pub points: Vec<(f64, f64, f64)>,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The name in the legend.
    pub name: String,
    /// The points by rising x. A height that is not a number is a gap in the line. Infinite heights are left
    /// out.
    pub points: Vec<(f64, f64)>,
}

/// Single points, which no line connects.
#[derive(Clone, Debug, PartialEq)]
pub struct Dots {
    /// The name in the legend.
    pub name: String,
    /// The points in any order. Of points in the same place, the chart draws one.
    pub points: Vec<(f64, f64)>,
    /// The sign at each point.
    pub sign: Sign,
}

/// The sign at a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sign {
    /// A filled circle.
    #[default]
    Circle,
    /// A diagonal cross.
    Cross,
}

/// The axes of a chart; linear by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Axes {
    /// The lower axis.
    pub x: Axis,
    /// The left axis.
    pub y: Axis,
}

/// Maximum number of lines that a reader can tell apart.
pub const MOST_LINES: usize = 12;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 340.0;
/// The left, top and bottom margins.
const MARGINS: (f64, f64, f64) = (70.0, 36.0, 48.0);
/// The minimum and maximum of the right margin, which contains the legend, and the part of it that is not
/// text.
const LEGEND: (f64, f64, f64) = (170.0, 400.0, 46.0);
/// The approximate width of a letter of the legend.
const LETTER: f64 = 6.3;
/// Lines with at most this many points show each point, so that a line of one point is visible.
const MOST_MARKS: usize = 40;
/// The opacity of a band.
const BAND_OPACITY: f64 = 0.22;
/// The number of columns into which long lines are thinned.
const COLUMNS: usize = 900;
const COLORS: [&str; MOST_LINES] = [
    "#1b6ca8", "#d1495b", "#3a7d44", "#e08e1b", "#6f4e9c", "#1c9a9a", "#a8471b", "#7a7a2c", "#c2569b",
    "#4a4a4a", "#5b8def", "#9c6b4e",
];

impl Chart {
    /// Returns the chart as a complete document, which may also stand inside HTML.
    #[must_use]
    pub fn to_svg(&self) -> String {
        self.to_svg_with(self.axes)
    }

    /// Cuts the left axis if less than a hundredth of all points would flatten the others, and says so in the
    /// plot.
    pub fn cut_peaks(&mut self) {
        let points = self.lines.iter().take(MOST_LINES).flat_map(|line| &line.points);
        let mut heights: Vec<f64> = points.map(|(_, y)| *y).filter(|y| y.is_finite()).collect();
        heights.sort_by(f64::total_cmp);
        let usual = heights.len().checked_sub(1).and_then(|last| heights.get(last * 99 / 100));
        if let (Some(usual), Some(most)) = (usual, heights.last())
            && *usual > 0.0
            && *most > 4.0 * usual
        {
            self.top = Some(1.5 * usual);
        }
    }

    /// Returns the text below the title.
    fn remark(&self) -> Option<String> {
        let top = self.top?;
        let points = self.lines.iter().take(MOST_LINES).flat_map(|line| &line.points);
        let most = points.map(|(_, y)| *y).filter(|y| y.is_finite()).fold(0.0, f64::max);
        Some(format!(
            "The axis is cut at {}; the highest peak is {}.",
            number(rounded(top)),
            number(rounded(most))
        ))
    }

    /// Returns the chart with other axes. Values that a logarithmic axis cannot show, such as zero, are left
    /// out.
    #[must_use]
    pub fn to_svg_with(&self, axes: Axes) -> String {
        let mut svg = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut svg, axes);
        svg
    }

    fn write(&self, svg: &mut String, axes: Axes) -> std::fmt::Result {
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">"
        )?;
        writeln!(svg, "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>")?;
        let (left, top, bottom) = MARGINS;
        writeln!(
            svg,
            "<text x=\"{left}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}</text>",
            escape(&self.title)
        )?;
        if let Some(remark) = self.remark() {
            writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"22\" text-anchor=\"end\" font-size=\"11\" fill=\"#a33\">{remark}</text>",
                WIDTH - 10.0
            )?;
        }
        let scale = Scale::of(self, axes);
        let right = scale.right;
        scale.write_grid(svg)?;
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (left + WIDTH - right) / 2.0,
            HEIGHT - 10.0,
            escape(&self.x_label) + axes.x.remark()
        )?;
        let middle = (top + HEIGHT - bottom) / 2.0;
        writeln!(
            svg,
            "<text transform=\"translate(16 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(&self.y_label) + axes.y.remark()
        )?;
        for (band, color) in self.bands.iter().zip(COLORS) {
            write_band(svg, &scale, band, color)?;
        }
        for (line, color) in self.lines.iter().zip(COLORS) {
            write_line(svg, &scale, line, color, self.steps)?;
        }
        for (dots, color) in self.dots.iter().zip(self.colors_of_dots()) {
            write_dots(svg, &scale, dots, color)?;
        }
        self.write_legend(svg, right)?;
        writeln!(svg, "</svg>")
    }

    fn colors_of_dots(&self) -> impl Iterator<Item = &'static str> {
        COLORS.into_iter().cycle().skip(self.lines.len().min(MOST_LINES))
    }

    fn write_legend(&self, svg: &mut String, right: f64) -> std::fmt::Result {
        let top = MARGINS.1;
        let lines = self.lines.iter().zip(COLORS).map(|(line, color)| (&line.name, color, (3, 1.0)));
        let bands =
            self.bands.iter().zip(COLORS).map(|(band, color)| (&band.name, color, (11, BAND_OPACITY)));
        for (index, (name, color, (width, opacity))) in lines.chain(bands).enumerate() {
            let y = top + 10.0 + 18.0 * index as f64;
            let x = WIDTH - right + 14.0;
            writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{color}\" stroke-width=\"{width}\" \
                 stroke-opacity=\"{opacity}\"/><text x=\"{}\" y=\"{}\">{}</text>",
                x + 18.0,
                x + 24.0,
                y + 4.0,
                escape(name)
            )?;
        }
        let above = self.lines.len().min(MOST_LINES) + self.bands.len();
        let dots = self.dots.iter().zip(self.colors_of_dots()).filter(|(dots, _)| !dots.points.is_empty());
        for (index, (dots, color)) in dots.enumerate() {
            let (x, y) = (WIDTH - right + 14.0, top + 10.0 + 18.0 * (above + index) as f64);
            write_signs(svg, [(x + 9.0, y)].into_iter(), dots.sign, color)?;
            writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", x + 24.0, y + 4.0, escape(&dots.name))?;
        }
        if let Some(more @ 1..) = self.lines.len().checked_sub(MOST_LINES) {
            let (x, y) = (WIDTH - right + 14.0, top + 14.0 + 18.0 * MOST_LINES as f64);
            writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"#777\">and {more} more</text>")?;
        }
        Ok(())
    }
}

/// The mapping from values to positions.
struct Scale {
    axes: Axes,
    /// The range in positions of the axis, which are logarithms if the axis is logarithmic.
    x: (f64, f64),
    y: (f64, f64),
    /// The right margin.
    right: f64,
}

impl Scale {
    /// Builds a scale that shows all points up to the top, and on a linear axis from zero upward.
    fn of(chart: &Chart, axes: Axes) -> Self {
        let drawn = || chart.lines.iter().take(MOST_LINES);
        let banded = || chart.bands.iter().flat_map(|band| &band.points);
        let of_bands = || banded().flat_map(|(x, low, high)| [(*x, *low), (*x, *high)]);
        let points = || {
            let of_dots = chart.dots.iter().flat_map(|dots| dots.points.iter().copied());
            let all = drawn().flat_map(|line| line.points.iter().copied()).chain(of_bands()).chain(of_dots);
            all.filter(|point| is_shown(*point, axes))
        };
        let x = axes.x.range(points().map(|(x, _)| x), true);
        let y = match chart.top {
            Some(top) => axes.y.range([0.0, top].into_iter(), true),
            None => axes.y.range(points().map(|(_, y)| y), true),
        };
        let names = drawn().map(|line| &line.name).chain(chart.bands.iter().map(|band| &band.name));
        let names = names.chain(chart.dots.iter().map(|dots| &dots.name));
        let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
        let (least, most, beside) = LEGEND;
        Self { axes, x, y, right: (beside + longest as f64 * LETTER).clamp(least, most) }
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (left, top, bottom) = MARGINS;
        let across = (self.axes.x.measure(x) - self.x.0) / (self.x.1 - self.x.0);
        let up = ((self.axes.y.measure(y) - self.y.0) / (self.y.1 - self.y.0)).clamp(0.0, 1.0);
        (left + across * (WIDTH - left - self.right), HEIGHT - bottom - up * (HEIGHT - top - bottom))
    }

    fn write_grid(&self, svg: &mut String) -> std::fmt::Result {
        let (left, top, bottom) = MARGINS;
        let right = self.right;
        for (value, label) in self.axes.x.ticks(self.x, 8) {
            let (x, _) = self.place((value, 1.0));
            writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#eee\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                HEIGHT - bottom,
                HEIGHT - bottom + 16.0,
            )?;
        }
        for (value, label) in self.axes.y.ticks(self.y, 6) {
            let (_, y) = self.place((1.0, value));
            writeln!(
                svg,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                WIDTH - right,
                left - 6.0,
                y + 4.0,
            )?;
        }
        let (width, height) = (WIDTH - left - right, HEIGHT - top - bottom);
        writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#999\"/>"
        )
    }
}

/// Returns whether the axes can show a point.
fn is_shown((x, y): (f64, f64), axes: Axes) -> bool {
    axes.x.measure(x).is_finite() && axes.y.measure(y).is_finite()
}

fn write_band(svg: &mut String, scale: &Scale, band: &Band, color: &str) -> std::fmt::Result {
    for part in band.points.split(|(_, low, high)| low.is_nan() || high.is_nan()) {
        let side = |height: fn(&(f64, f64, f64)) -> f64| {
            let points = part.iter().map(|point| (point.0, height(point)));
            thinned(points.filter(|point| is_shown(*point, scale.axes)).collect(), band.points.len())
        };
        let (low, mut high) = (side(|point| point.1), side(|point| point.2));
        high.reverse();
        write!(svg, "<polygon fill=\"{color}\" fill-opacity=\"{BAND_OPACITY}\" points=\"")?;
        for point in low.into_iter().chain(high) {
            let (x, y) = scale.place(point);
            write!(svg, "{x:.1},{y:.1} ")?;
        }
        writeln!(svg, "\"/>")?;
    }
    Ok(())
}

/// Returns the corners of a line that keeps its height up to the next point. It begins at zero at the first
/// one.
fn stepped(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut height = 0.0;
    let corners = |(x, y): &(f64, f64)| [(*x, std::mem::replace(&mut height, *y)), (*x, *y)];
    points.iter().flat_map(corners).collect()
}

fn write_line(svg: &mut String, scale: &Scale, line: &Line, color: &str, steps: bool) -> std::fmt::Result {
    let points = if steps { stepped(&line.points) } else { line.points.clone() };
    let parts = points.split(|(_, y)| y.is_nan()).map(|part| {
        part.iter().copied().filter(|point| is_shown(*point, scale.axes)).collect::<Vec<(f64, f64)>>()
    });
    let parts: Vec<_> = parts.collect();
    let count = parts.iter().map(Vec::len).sum();
    let mut marks = Vec::new();
    for part in parts {
        // A part of one point is invisible as a line.
        if count <= MOST_MARKS && !steps || part.len() == 1 {
            marks.extend_from_slice(&part);
        }
        write!(svg, "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.4\" points=\"")?;
        for point in thinned(part, count) {
            let (x, y) = scale.place(point);
            write!(svg, "{x:.1},{y:.1} ")?;
        }
        writeln!(svg, "\"/>")?;
    }
    for point in marks {
        let (x, y) = scale.place(point);
        writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.2\" fill=\"{color}\"/>")?;
    }
    Ok(())
}

fn write_dots(svg: &mut String, scale: &Scale, dots: &Dots, color: &str) -> std::fmt::Result {
    let shown = dots.points.iter().copied().filter(|point| is_shown(*point, scale.axes));
    // Points that share a pixel cannot be told apart.
    let mut seen = HashSet::new();
    let places = shown.map(|point| scale.place(point));
    let places = places.filter(|(x, y)| seen.insert((x.round() as i64, y.round() as i64)));
    write_signs(svg, places, dots.sign, color)
}

fn write_signs(
    svg: &mut String,
    places: impl Iterator<Item = (f64, f64)>,
    sign: Sign,
    color: &str,
) -> std::fmt::Result {
    let width = if sign == Sign::Circle { 4.0 } else { 1.6 };
    write!(
        svg,
        "<path fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" stroke-linecap=\"round\" d=\""
    )?;
    for (x, y) in places {
        match sign {
            Sign::Circle => write!(svg, "M{x:.1} {y:.1}h0")?,
            Sign::Cross => write!(svg, "M{:.1} {:.1}l8 8m-8 0l8 -8", x - 4.0, y - 4.0)?,
        }
    }
    writeln!(svg, "\"/>")
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
        kept.extend(both);
    }
    kept
}

/// Rounds to about three digits, for remarks.
fn rounded(value: f64) -> f64 {
    let unit = 10.0_f64.powf(value.abs().max(1e-9).log10().floor() - 2.0);
    (value / unit).round() * unit
}

/// Escapes text between tags.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let lines = vec![Line { name: "a < b".into(), points }];
        Chart { title: "t".into(), x_label: "ms".into(), y_label: "Gb/s".into(), lines, ..Chart::default() }
    }

    #[test]
    fn a_line_lies_inside_the_frame() {
        let svg = chart(vec![(0.0, 0.0), (5.0, f64::INFINITY), (10.0, 100.0)]).to_svg();
        let points = svg.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let places: Vec<&str> = points.split_whitespace().collect();
        assert_eq!(places.first(), Some(&"70.0,292.0"), "{points}");
        assert_eq!(places.len(), 2, "what is not finite is left out");
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn nothing_to_draw_is_drawn() {
        assert!(!chart(Vec::new()).to_svg().contains("NaN"));
        assert!(!chart(vec![(3.0, 0.0)]).to_svg().contains("NaN"));
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
    fn a_long_legend_has_room_and_logarithms_have_no_zero() {
        let mut chart = chart(vec![(0.0, 1.0), (1.0, 0.0), (1024.0, 10.0), (1_048_576.0, 1000.0)]);
        chart.lines[0].name = "WRITE with immediate data, inline, events".into();
        let svg = chart.to_svg_with(Axes { x: Axis::Bytes, y: Axis::Log });
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        for label in [">1K<", ">1M<", ">10<", ">1000<"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let scale = Scale::of(&chart, Axes::default());
        assert!(scale.right > 41.0 * LETTER && scale.right < WIDTH / 2.0);
    }

    #[test]
    fn a_distribution_is_steps_from_zero() {
        assert_eq!(
            stepped(&[(1.0, 50.0), (3.0, 100.0)]),
            [(1.0, 0.0), (1.0, 50.0), (3.0, 50.0), (3.0, 100.0)]
        );
        let mut chart = chart(vec![(1.0, 50.0), (3.0, 100.0)]);
        chart.steps = true;
        let svg = chart.to_svg();
        assert!(!svg.contains("<circle"), "corners are no measurements: {svg}");
    }

    #[test]
    fn a_peak_is_cut_and_named() {
        let mut points: Vec<(f64, f64)> = (0..1_000).map(|x| (f64::from(x), 2.0)).collect();
        points[7].1 = 500.0;
        let mut chart = chart(points);
        chart.cut_peaks();
        assert_eq!(chart.top, Some(3.0));
        let svg = chart.to_svg();
        assert!(svg.contains("The axis is cut at 3; the highest peak is 500."), "{svg}");
        let lowest = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let heights =
            lowest.split_whitespace().map(|point| point.split_once(',').unwrap().1.parse::<f64>().unwrap());
        assert!(heights.clone().all(|y| (36.0..=292.0).contains(&y)), "{lowest}");
        let mut flat = Chart {
            lines: vec![Line { name: String::new(), points: vec![(0.0, 1.0), (1.0, 3.9)] }],
            ..Chart::default()
        };
        flat.cut_peaks();
        assert_eq!(flat.top, None);
    }

    /// The chart draws nothing where nothing was measured.
    #[test]
    fn a_gap_is_no_line() {
        let mut chart = chart(vec![
            (0.0, 1.0),
            (1.0, 2.0),
            (1.0, f64::NAN),
            (3.0, 1.0),
            (4.0, f64::NAN),
            (5.0, 1.0),
            (6.0, 2.0),
        ]);
        let band = |points: &[f64]| points.iter().map(|y| (*y, *y, y + 1.0)).collect::<Vec<_>>();
        chart.bands = vec![Band {
            name: "b".into(),
            points: [band(&[0.0, 1.0]), vec![(1.0, f64::NAN, 1.0)], band(&[3.0, 4.0])].concat(),
        }];
        let svg = chart.to_svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<polygon").count()), (3, 2), "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
        // Long lines have no marks, but an isolated point has one.
        let long = (0..100).map(|x| (f64::from(x), 1.0)).chain([(100.0, f64::NAN), (101.0, 3.0)]);
        chart.lines[0].points = long.collect();
        assert_eq!(chart.to_svg().matches("<circle").count(), 1);
    }

    #[test]
    fn dots_have_a_sign_a_name_and_the_next_color() {
        let mut chart = chart(vec![(0.0, 2.0), (1.0, 2.0)]);
        let points = vec![(0.5, 9.0), (0.5, 9.0), (0.25, f64::NAN), (1.0, 1.0)];
        chart.dots = vec![Dots { name: "lost <".into(), points, sign: Sign::Cross }];
        let svg = chart.to_svg();
        // Two points, as one pixel has one sign, and the sign of the legend.
        assert_eq!(svg.matches("l8 8m-8 0l8 -8").count(), 3, "{svg}");
        assert!(svg.contains("lost &lt;") && svg.contains(&format!("stroke=\"{}\"", COLORS[1])), "{svg}");
        assert!(Scale::of(&chart, Axes::default()).y.1 > 9.0, "the axis shows all points");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn a_band_is_an_area_with_a_name() {
        let mut chart = chart(vec![(0.0, 2.0), (1.0, 2.0)]);
        chart.bands =
            vec![Band { name: "10 to 90 %".into(), points: vec![(0.0, 1.0, 3.0), (1.0, 1.0, 4.0)] }];
        let svg = chart.to_svg();
        assert!(svg.contains("<polygon") && svg.contains("10 to 90 %") && !svg.contains("NaN"), "{svg}");
    }
}
