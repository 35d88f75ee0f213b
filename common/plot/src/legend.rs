//! The legend: the names of the series, each beside a piece of its line with its mark.

use crate::chart::{Figure, MOST_LINES, Mark, Spread};
use crate::drawing::{Anchor, Ink, Shape, Stroke, Text};
use crate::metrics::{ASCENT, LINE, room, wrap};
use crate::series::{Series, look};
use crate::sizes::{BAND_OPACITY, Sizes, bar, mark_of};

/// The swatch beside a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Swatch {
    /// A piece of the line of a series, with its mark.
    Line(usize),
    /// A piece of an area.
    Area(Ink),
    /// A vertical bar.
    Bar(Ink),
    /// A single point.
    Dot(Ink, Mark),
    /// Nothing.
    Nothing,
}

/// A name with its swatch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) swatch: Swatch,
    pub(crate) name: String,
}

impl Swatch {
    /// Returns the swatch of two spreads of the same kind, which has no color of a series.
    fn shared_with(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Area(_), Self::Area(_)) => Some(Self::Area(Ink::Frame)),
            (Self::Bar(_), Self::Bar(_)) => Some(Self::Bar(Ink::Frame)),
            _ => None,
        }
    }
}

/// Returns the entries of a figure: lines, spreads and points. A name that occurs in several charts has one
/// entry.
pub(crate) fn entries(figure: &Figure, series: &Series) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut add = |swatch: Swatch, name: &str| {
        let entry = Entry { swatch, name: name.to_owned() };
        if name.is_empty() || entries.contains(&entry) {
            return;
        }
        for known in entries.iter_mut().filter(|known| known.name == name) {
            if let Some(shared) = known.swatch.shared_with(swatch) {
                known.swatch = shared;
                return;
            }
        }
        entries.push(entry);
    };
    for chart in &figure.charts {
        for (index, line) in chart.drawn_lines().enumerate() {
            add(Swatch::Line(series.index(chart, index)), &line.name);
        }
    }
    for chart in &figure.charts {
        // A name that several spreads share has no color of a series.
        let is_single = chart.bands.iter().filter(|band| !band.points.is_empty()).count() == 1;
        for (index, band) in chart.bands.iter().enumerate() {
            let own = Ink::Series(look(series.index(chart, index)).color);
            let ink = if is_single { own } else { Ink::Frame };
            add(if band.spread == Spread::Bars { Swatch::Bar(ink) } else { Swatch::Area(ink) }, &band.name);
        }
        for (index, dots) in chart.dots.iter().enumerate().filter(|(_, dots)| !dots.points.is_empty()) {
            let ink = Ink::Series(look(series.after_lines(chart) + index).color);
            add(Swatch::Dot(ink, dots.mark), &dots.name);
        }
        if let Some(more @ 1..) = chart.lines.len().checked_sub(MOST_LINES) {
            add(Swatch::Nothing, &format!("and {more} more"));
        }
    }
    entries
}

/// Draws the entries in rows below `top`, between `left` and `right`, and returns their lower end.
pub(crate) fn draw(
    shapes: &mut Vec<Shape>,
    entries: &[Entry],
    sizes: &Sizes,
    (left, right, top): (f64, f64, f64),
) -> f64 {
    let size = sizes.label;
    let (swatch, gap, between) = (3.2 * size, 0.5 * size, 1.4 * size);
    let (mut x, mut y, mut lines_of_row) = (left, top, 0_usize);
    for entry in entries {
        let before = if entry.swatch == Swatch::Nothing { 0.0 } else { swatch + gap };
        let names = wrap(&entry.name, right - left - before, size, false);
        let width = before + names.iter().map(|line| room(line, size, false)).fold(0.0, f64::max);
        if x > left && x + width > right {
            (x, y, lines_of_row) = (left, y + lines_of_row as f64 * LINE * size, 0);
        }
        lines_of_row = lines_of_row.max(names.len());
        let baseline = y + size * ASCENT;
        draw_swatch(shapes, entry.swatch, sizes, (x, x + swatch, baseline - 0.34 * size));
        for (number, name) in names.into_iter().enumerate() {
            shapes.push(Shape::Text(Text {
                at: (x + before, baseline + number as f64 * LINE * size),
                text: name,
                size,
                is_bold: false,
                anchor: Anchor::Start,
                is_upward: false,
                ink: Ink::Text,
            }));
        }
        x += width + between;
    }
    y + lines_of_row as f64 * LINE * size
}

fn draw_swatch(shapes: &mut Vec<Shape>, swatch: Swatch, sizes: &Sizes, (left, right, y): (f64, f64, f64)) {
    let middle = f64::midpoint(left, right);
    let half = 0.32 * sizes.label;
    match swatch {
        Swatch::Line(index) => {
            let look = look(index);
            let stroke = Stroke { ink: Ink::Series(look.color), width: sizes.line, dash: look.dash };
            let places = vec![(left, y), (right, y)];
            shapes.push(Shape::Path { places, is_closed: false, stroke });
            shapes.push(mark_of(vec![(middle, y)], index, sizes));
        }
        Swatch::Area(ink) => {
            let places = vec![(left, y - half), (right, y - half), (right, y + half), (left, y + half)];
            shapes.push(Shape::Area { places, ink, opacity: BAND_OPACITY });
        }
        Swatch::Bar(ink) => {
            let stroke = Stroke { ink, width: sizes.line, dash: &[] };
            shapes.push(Shape::Lines { lines: bar(middle, (y - half, y + half), sizes.radius), stroke });
        }
        Swatch::Dot(ink, mark) => {
            shapes.push(Shape::Marks { places: vec![(middle, y)], mark, radius: sizes.radius, ink });
        }
        Swatch::Nothing => {}
    }
}
