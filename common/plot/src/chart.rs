//! The data of figures.

use crate::axis::Axis;
use crate::ticks::number;

/// Maximum number of lines that a reader can tell apart.
pub const MOST_LINES: usize = 12;

/// A figure: charts with a common legend and a caption.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// The charts, from left to right and from top to bottom.
    pub charts: Vec<Chart>,
    /// The number of charts side by side at [`Width::Page`] and [`Width::Screen`]. A [`Width::Column`] has
    /// room for one, or for two if there are more than four charts.
    pub columns: usize,
    /// The text below the charts: what they show, the seeds, and the meaning of bands and bars.
    pub caption: String,
}

/// The width of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// 3.3 inches: a column of a page with two columns.
    Column,
    /// 7 inches: both columns of such a page.
    Page,
    /// 860 pixels.
    #[default]
    Screen,
}

impl Width {
    /// Returns the width with this number of inches: 3.3 or 7.
    #[must_use]
    pub fn from_inches(text: &str) -> Option<Self> {
        match text {
            "3.3" => Some(Self::Column),
            "7" => Some(Self::Page),
            _ => None,
        }
    }
}

impl From<Chart> for Figure {
    fn from(chart: Chart) -> Self {
        Self { charts: vec![chart], columns: 1, caption: String::new() }
    }
}

impl Figure {
    /// Returns the figure without the charts that have no points.
    #[must_use]
    pub fn without_empty(mut self) -> Self {
        self.charts.retain(|chart| !chart.is_empty());
        self
    }
}

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
    /// Spreads around the lines; each has the color of the line with its index.
    pub bands: Vec<Band>,
    /// Single points in front of the lines. Their colors follow those of the lines; the legend has no entry
    /// for an empty list.
    pub dots: Vec<Dots>,
    /// The axes.
    pub axes: Axes,
    /// Whether a line keeps its height from one point to the next, and begins at zero, like a distribution.
    pub steps: bool,
    /// The end of the left axis even if there are larger values; see [`Self::cut_peaks`].
    pub top: Option<f64>,
    /// Names of rows, from the bottom. If there are any, the left axis has these names instead of values. Row
    /// `n` has the heights from `n` to `n + 1`.
    pub rows: Vec<String>,
    /// Whether the chart is less high than the others, because it only accompanies them.
    pub is_low: bool,
}

/// A spread between two heights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Band {
    /// The name in the legend; an empty name is not in the legend.
    pub name: String,
    /// The points by rising x: x, lower and upper height. A height that is not a number is a gap.
    pub points: Vec<(f64, f64, f64)>,
    /// How the spread is drawn.
    pub spread: Spread,
}

/// How a spread is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// An area behind the line.
    #[default]
    Area,
    /// A vertical bar at each point.
    Bars,
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The name in the legend. Lines with equal names in several charts of a figure look alike.
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
    /// The mark at each point.
    pub mark: Mark,
}

/// The shape of a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// A filled circle.
    #[default]
    Circle,
    /// A filled square.
    Square,
    /// A filled triangle.
    Triangle,
    /// A filled square that stands on a corner.
    Diamond,
    /// A diagonal cross.
    Cross,
    /// An upright cross.
    Plus,
}

/// The axes of a chart; linear by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Axes {
    /// The lower axis.
    pub x: Axis,
    /// The left axis.
    pub y: Axis,
}

impl Chart {
    /// Returns whether the chart has no points.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
            && self.bands.iter().all(|band| band.points.is_empty())
            && self.dots.iter().all(|dots| dots.points.is_empty())
    }

    /// Cuts the left axis if less than a hundredth of all points would flatten the others, and says so above
    /// the plot.
    pub fn cut_peaks(&mut self) {
        let points = self.drawn_lines().flat_map(|line| &line.points);
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

    /// Makes an axis logarithmic if the values along it span more than two powers of ten and none of them is
    /// zero or negative.
    pub fn fit_axes(&mut self) {
        let x = |chart: &Self| chart.drawn_lines().flat_map(|line| &line.points).map(|(x, _)| *x).collect();
        let y = |chart: &Self| chart.drawn_lines().flat_map(|line| &line.points).map(|(_, y)| *y).collect();
        let (x, y): (Vec<f64>, Vec<f64>) = (x(self), y(self));
        if self.axes.x == Axis::Linear {
            self.axes.x = Axis::for_values(x.into_iter());
        }
        if self.axes.y == Axis::Linear && !self.steps && self.rows.is_empty() {
            self.axes.y = Axis::for_values(y.into_iter());
        }
    }

    /// Returns the lines that the chart draws.
    pub(crate) fn drawn_lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().take(MOST_LINES)
    }

    /// Returns the text below the title.
    pub(crate) fn remark(&self) -> Option<String> {
        let top = self.top?;
        let points = self.drawn_lines().flat_map(|line| &line.points);
        let most = points.map(|(_, y)| *y).filter(|y| y.is_finite()).fold(0.0, f64::max);
        Some(format!(
            "The axis is cut at {}; the highest peak is {}.",
            number(rounded(top)),
            number(rounded(most))
        ))
    }
}

/// Rounds to about three digits, for remarks.
fn rounded(value: f64) -> f64 {
    let unit = 10.0_f64.powf(value.abs().max(1e-9).log10().floor() - 2.0);
    (value / unit).round() * unit
}
