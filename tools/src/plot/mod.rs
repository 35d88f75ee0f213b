//! Line charts as SVG: what a report needs of plots, and no more.

use std::fmt::Write as _;

/// A chart of lines over a common axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above the plot.
    pub title: String,
    /// Along the lower axis, with its unit.
    pub x_label: String,
    /// Along the left axis, with its unit.
    pub y_label: String,
    /// The lines; only the first [`MOST_LINES`] are drawn, and the chart says so.
    pub lines: Vec<Line>,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// By rising x. What is not finite is left out.
    pub points: Vec<(f64, f64)>,
}

/// More cannot be told apart.
pub const MOST_LINES: usize = 12;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 340.0;
/// Left, top, right, bottom.
const MARGINS: (f64, f64, f64, f64) = (70.0, 36.0, 170.0, 48.0);
/// Columns into which long lines are thinned.
const COLUMNS: usize = 900;
const COLORS: [&str; MOST_LINES] = [
    "#1b6ca8", "#d1495b", "#3a7d44", "#e08e1b", "#6f4e9c", "#1c9a9a", "#a8471b", "#7a7a2c", "#c2569b",
    "#4a4a4a", "#5b8def", "#9c6b4e",
];

impl Chart {
    /// The chart as a document of its own, which also may stand inside HTML.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut svg);
        svg
    }

    fn write(&self, svg: &mut String) -> std::fmt::Result {
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">"
        )?;
        writeln!(svg, "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>")?;
        let (left, top, right, bottom) = MARGINS;
        writeln!(
            svg,
            "<text x=\"{left}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}</text>",
            escape(&self.title)
        )?;
        let scale = Scale::of(&self.lines);
        scale.write_grid(svg)?;
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (left + WIDTH - right) / 2.0,
            HEIGHT - 10.0,
            escape(&self.x_label)
        )?;
        let middle = (top + HEIGHT - bottom) / 2.0;
        writeln!(
            svg,
            "<text transform=\"translate(16 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(&self.y_label)
        )?;
        for (index, line) in self.lines.iter().take(MOST_LINES).enumerate() {
            write_line(svg, &scale, line, COLORS[index])?;
            let y = top + 10.0 + 18.0 * index as f64;
            let x = WIDTH - right + 14.0;
            writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{}\" stroke-width=\"3\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                x + 18.0,
                COLORS[index],
                x + 24.0,
                y + 4.0,
                escape(&line.name)
            )?;
        }
        if let Some(more @ 1..) = self.lines.len().checked_sub(MOST_LINES) {
            let (x, y) = (WIDTH - right + 14.0, top + 14.0 + 18.0 * MOST_LINES as f64);
            writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"#777\">and {more} more</text>")?;
        }
        writeln!(svg, "</svg>")
    }
}

/// From values to places.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    /// Wide enough for all points; from zero upward.
    fn of(lines: &[Line]) -> Self {
        let points = lines.iter().take(MOST_LINES).flat_map(|line| &line.points);
        let (mut x, mut most) = ((f64::INFINITY, f64::NEG_INFINITY), 0.0_f64);
        for (at, value) in points.filter(|(at, value)| at.is_finite() && value.is_finite()) {
            x = (x.0.min(*at), x.1.max(*at));
            most = most.max(*value);
        }
        if x.0 >= x.1 {
            x = if x.0.is_finite() { (x.0 - 0.5, x.0 + 0.5) } else { (0.0, 1.0) };
        }
        Self { x, y: (0.0, if most > 0.0 { most * 1.05 } else { 1.0 }) }
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (left, top, right, bottom) = MARGINS;
        let across = (x - self.x.0) / (self.x.1 - self.x.0);
        let up = (y - self.y.0) / (self.y.1 - self.y.0);
        (left + across * (WIDTH - left - right), HEIGHT - bottom - up * (HEIGHT - top - bottom))
    }

    fn write_grid(&self, svg: &mut String) -> std::fmt::Result {
        let (left, top, right, bottom) = MARGINS;
        for value in ticks(self.x, 8) {
            let (x, _) = self.place((value, 0.0));
            writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#eee\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - bottom,
                HEIGHT - bottom + 16.0,
                number(value)
            )?;
        }
        for value in ticks(self.y, 6) {
            let (_, y) = self.place((self.x.0, value));
            writeln!(
                svg,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#eee\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - right,
                left - 6.0,
                y + 4.0,
                number(value)
            )?;
        }
        let (width, height) = (WIDTH - left - right, HEIGHT - top - bottom);
        writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#999\"/>"
        )
    }
}

fn write_line(svg: &mut String, scale: &Scale, line: &Line, color: &str) -> std::fmt::Result {
    write!(svg, "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.4\" points=\"")?;
    for point in thinned(&line.points) {
        let (x, y) = scale.place(point);
        write!(svg, "{x:.1},{y:.1} ")?;
    }
    writeln!(svg, "\"/>")
}

/// Long lines keep the lowest and the highest point of each column, so that no peak is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let points: Vec<(f64, f64)> =
        points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    if points.len() <= 2 * COLUMNS {
        return points;
    }
    let mut kept = Vec::with_capacity(2 * COLUMNS);
    for column in points.chunks(points.len().div_ceil(COLUMNS)) {
        let low = column.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let high = column.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut both: Vec<(f64, f64)> = low.into_iter().chain(high).copied().collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        kept.extend(both);
    }
    kept
}

/// Round numbers inside a range, about so many.
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

/// Without zeros that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text between tags.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let lines = vec![Line { name: "a < b".into(), points }];
        Chart { title: "t".into(), x_label: "ms".into(), y_label: "Gb/s".into(), lines }
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
        let kept = thinned(&points);
        assert!(kept.len() <= 2 * COLUMNS && kept.contains(&(54_321.0, 1.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 <= b.0));
    }

    #[test]
    fn round_ticks() {
        assert_eq!(ticks((0.0, 10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(number(0.25), "0.25");
        assert_eq!(number(1200.0), "1200");
    }
}
