//! Where everything of a figure stands. Texts have the room that [`crate::metrics`] computes; texts without
//! enough room are wrapped, and tick labels without enough room are left out.

use std::collections::HashSet;

use crate::axis::Axis;
use crate::chart::{Axes, Chart, Figure, Spread, Width};
use crate::drawing::{Anchor, Drawing, Ink, Place, Shape, Stroke, Text};
use crate::legend;
use crate::metrics::{ASCENT, DESCENT, LINE, room, wrap};
use crate::series::{self, Series, look};
use crate::sizes::{BAND_OPACITY, Sizes, bar, mark_of};
use crate::ticks::Tick;

/// The height of a low chart, relative to the others.
const LOW: f64 = 0.4;
/// The middle of the areas of a row, which usually leave some room above.
const MIDDLE_OF_ROW: f64 = 0.4;

/// Returns the shapes of a figure.
pub(crate) fn drawing(figure: &Figure, width: Width) -> Drawing {
    let sizes = Sizes::of(width);
    let wanted = match width {
        Width::Column if figure.charts.len() > 4 => figure.columns.min(2),
        Width::Column => 1,
        Width::Page | Width::Screen => figure.columns,
    };
    let columns = wanted.clamp(1, figure.charts.len().max(1));
    let series = Series::of(figure);
    let entries = legend::entries(figure, &series);
    let mut page = Page { sizes, series, shapes: Vec::new(), y: sizes.pad };
    let right = sizes.width - sizes.pad;
    // The title of a single chart stands above the legend.
    let is_single = figure.charts.len() == 1;
    if let Some(chart) = figure.charts.first().filter(|_| is_single) {
        let head = page.head(chart, right - sizes.pad);
        page.y = page.write_lines(head, (sizes.pad, page.y));
    }
    if !entries.is_empty() {
        let below = legend::draw(&mut page.shapes, &entries, &sizes, (sizes.pad, right, page.y));
        page.y = below + 0.5 * sizes.label;
    }
    let gap = 1.2 * sizes.label;
    let cell = (right - sizes.pad - gap * (columns - 1) as f64) / columns as f64;
    let lefts = page.lefts(figure, columns, cell);
    for row in figure.charts.chunks(columns) {
        let places = row.iter().enumerate().map(|(place, chart)| {
            let left = sizes.pad + place as f64 * (cell + gap);
            (chart, left, lefts.get(place).copied().unwrap_or(0.0))
        });
        page.draw_row(&places.collect::<Vec<_>>(), cell, (columns, is_single));
    }
    page.draw_caption(&figure.caption);
    let height = page.y + sizes.pad;
    Drawing { width: sizes.width, height, is_screen: width == Width::Screen, shapes: page.shapes }
}

/// A figure while it is drawn.
struct Page {
    sizes: Sizes,
    series: Series,
    shapes: Vec<Shape>,
    /// The lower end of what is drawn so far.
    y: f64,
}

/// A line of a heading.
struct HeadLine {
    text: String,
    size: f64,
    is_bold: bool,
    ink: Ink,
}

/// A plot between its margins.
struct Plot<'a> {
    chart: &'a Chart,
    scale: Scale,
    /// Tick marks of the lower and the left axis.
    ticks: [Vec<Tick>; 2],
    /// Lines of the labels of both axes.
    labels: [Vec<String>; 2],
    head: Vec<HeadLine>,
}

impl Page {
    /// Returns the title of a chart and its remark.
    fn head(&self, chart: &Chart, most: f64) -> Vec<HeadLine> {
        let (title, label) = (self.sizes.title, self.sizes.label);
        let lines = |text: &str, size: f64, is_bold: bool, ink: Ink| {
            let lines = wrap(text, most, size, is_bold).into_iter();
            lines.map(|text| HeadLine { text, size, is_bold, ink }).collect::<Vec<_>>()
        };
        let mut head = lines(&chart.title, title, true, Ink::Text);
        head.extend(lines(&chart.remark().unwrap_or_default(), label, false, Ink::Warning));
        head
    }

    /// Writes lines below a place, and returns their lower end.
    fn write_lines(&mut self, lines: Vec<HeadLine>, (x, top): Place) -> f64 {
        let mut y = top;
        for HeadLine { text, size, is_bold, ink } in lines {
            let at = (x, y + ASCENT * size);
            self.write(Text { at, text, size, is_bold, anchor: Anchor::Start, is_upward: false, ink });
            y += LINE * size;
        }
        if y > top { y + 0.3 * self.sizes.label } else { y }
    }

    fn write(&mut self, text: Text) {
        self.shapes.push(Shape::Text(text));
    }

    fn plot_height(&self, chart: &Chart, columns: usize, cell: f64) -> f64 {
        let whole = self.sizes.height.min(0.8 * cell);
        let rows = chart.rows.len() as f64 * LINE * self.sizes.tick;
        if chart.is_low && columns == 1 { LOW * whole } else { whole.max(rows) }
    }

    /// Returns the left margin of each column of charts.
    fn lefts(&self, figure: &Figure, columns: usize, cell: f64) -> Vec<f64> {
        let mut lefts = vec![0.0_f64; columns];
        for (number, chart) in figure.charts.iter().enumerate() {
            let height = self.plot_height(chart, columns, cell);
            let ticks = self.left_ticks(chart, Scale::of(chart), height, cell);
            let labels = ticks.iter().map(|tick| room(&tick.label, self.sizes.tick, false));
            let lines = wrap(&chart.y_label, height, self.sizes.label, false).len();
            let label = lines as f64 * LINE * self.sizes.label;
            let left = label + labels.fold(0.0, f64::max) + 1.1 * self.sizes.tick;
            if let Some(known) = lefts.get_mut(number % columns) {
                *known = known.max(left);
            }
        }
        lefts
    }

    /// Returns the tick marks of the left axis, or the names of the rows.
    fn left_ticks(&self, chart: &Chart, scale: Scale, height: f64, cell: f64) -> Vec<Tick> {
        if chart.rows.is_empty() {
            let tick = self.sizes.tick;
            return chart.axes.y.fitting_ticks(scale.y, height, 0.7 * tick, |_| tick);
        }
        let rows = chart.rows.iter().enumerate();
        // A long name loses its end, because a row has one line.
        let name = |name: &str| shortened(name, 0.45 * cell, self.sizes.tick);
        rows.map(|(row, text)| Tick { value: row as f64 + MIDDLE_OF_ROW, label: name(text) }).collect()
    }

    /// Draws charts side by side. Each has its left end and its left margin.
    fn draw_row(&mut self, row: &[(&Chart, f64, f64)], cell: f64, (columns, has_head): (usize, bool)) {
        let (label, tick) = (self.sizes.label, self.sizes.tick);
        let plots: Vec<(Plot<'_>, Frame)> = row
            .iter()
            .map(|(chart, left, margin)| {
                let scale = Scale::of(chart);
                let height = self.plot_height(chart, columns, cell);
                let whole = cell - margin;
                let extent = |label: &str| room(label, tick, false);
                let fitting = |width: f64| chart.axes.x.fitting_ticks(scale.x, width, 0.9 * tick, extent);
                // The last label may end to the right of the plot.
                let last = |ticks: &[Tick], width: f64| {
                    let beyond = |tick: &Tick| {
                        let at = scale.across(chart.axes, tick.value) * width;
                        at + extent(&tick.label) / 2.0 - width
                    };
                    ticks.iter().map(beyond).fold(0.0, f64::max)
                };
                let width = whole - last(&fitting(whole), whole);
                let width = width.min(whole - last(&fitting(width), width));
                let head = if has_head { Vec::new() } else { self.head(chart, cell) };
                let ticks = [fitting(width), self.left_ticks(chart, scale, height, cell)];
                let labels =
                    [wrap(&chart.x_label, width, label, false), wrap(&chart.y_label, height, label, false)];
                let frame = Frame { left: left + margin, top: 0.0, width, height };
                (Plot { chart, scale, ticks, labels, head }, frame)
            })
            .collect();
        let head = |plot: &Plot<'_>| {
            let lines: f64 = plot.head.iter().map(|line| LINE * line.size).sum();
            if lines > 0.0 { lines + 0.3 * label } else { 0.0 }
        };
        let heads = plots.iter().map(|(plot, _)| head(plot)).fold(0.0, f64::max);
        let top = self.y + heads + 0.5 * tick;
        let mut below = top;
        for ((plot, mut frame), (_, left, _)) in plots.into_iter().zip(row) {
            frame.top = top;
            let begin = top - 0.5 * tick - head(&plot);
            below = below.max(self.draw_plot(plot, frame, (*left, begin)));
        }
        self.y = below + 0.5 * label;
    }

    /// Draws a plot with its axes, and returns its lower end. `begin` is the place of its heading.
    fn draw_plot(&mut self, plot: Plot<'_>, frame: Frame, begin: Place) -> f64 {
        let Plot { chart, scale, ticks, labels, head } = plot;
        self.write_lines(head, begin);
        self.draw_axes(chart, scale, frame, &ticks);
        self.draw_series(chart, scale, frame);
        let [across, upward] = labels;
        let (label, tick) = (self.sizes.label, self.sizes.tick);
        let middle = frame.left + frame.width / 2.0;
        let mut y = frame.top + frame.height + 0.75 * tick + ASCENT * tick;
        let text = |at: Place, text: String, is_upward: bool| Text {
            at,
            text,
            size: label,
            is_bold: false,
            anchor: Anchor::Middle,
            is_upward,
            ink: Ink::Text,
        };
        for line in across {
            y += LINE * label;
            self.write(text((middle, y), line, false));
        }
        let height = frame.top + frame.height / 2.0;
        for (number, line) in upward.into_iter().enumerate() {
            let x = begin.0 + ASCENT * label + number as f64 * LINE * label;
            self.write(text((x, height), line, true));
        }
        y + DESCENT * label
    }

    fn draw_axes(&mut self, chart: &Chart, scale: Scale, frame: Frame, [below, beside]: &[Vec<Tick>; 2]) {
        let tick = self.sizes.tick;
        let (right, bottom) = (frame.left + frame.width, frame.top + frame.height);
        let label = |at: Place, tick_label: &str, anchor: Anchor| {
            let text = tick_label.to_owned();
            Text { at, text, size: tick, is_bold: false, anchor, is_upward: false, ink: Ink::Text }
        };
        let (mut grid, mut marks, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        // Minor ticks have no label.
        let length = |name: &str| if name.is_empty() { 0.2 * tick } else { 0.35 * tick };
        for Tick { value, label: name } in below {
            let x = frame.left + scale.across(chart.axes, *value) * frame.width;
            marks.push([(x, bottom), (x, bottom - length(name))]);
            if !name.is_empty() {
                grid.push([(x, frame.top), (x, bottom)]);
                texts.push(label((x, bottom + 0.75 * tick + ASCENT * tick), name, Anchor::Middle));
            }
        }
        for Tick { value, label: name } in beside {
            let y = bottom - scale.up(chart.axes, *value) * frame.height;
            if !name.is_empty() {
                texts.push(label((frame.left - 0.5 * tick, y + 0.36 * tick), name, Anchor::End));
            }
            if chart.rows.is_empty() {
                marks.push([(frame.left, y), (frame.left + length(name), y)]);
                grid.extend(Some([(frame.left, y), (right, y)]).filter(|_| !name.is_empty()));
            }
        }
        for (lines, ink) in [(grid, Ink::Grid), (marks, Ink::Frame)] {
            let stroke = Stroke { ink, width: 0.4 * self.sizes.line, dash: &[] };
            self.shapes.push(Shape::Lines { lines, stroke });
        }
        let corners =
            vec![(frame.left, frame.top), (right, frame.top), (right, bottom), (frame.left, bottom)];
        let stroke = Stroke { ink: Ink::Frame, width: 0.5 * self.sizes.line, dash: &[] };
        self.shapes.push(Shape::Path { places: corners, is_closed: true, stroke });
        texts.into_iter().for_each(|text| self.write(text));
    }

    fn draw_series(&mut self, chart: &Chart, scale: Scale, frame: Frame) {
        let place = |point: (f64, f64)| scale.place(chart.axes, frame, point);
        for (index, band) in chart.bands.iter().enumerate() {
            let index = if chart.rows.is_empty() { self.series.index(chart, index) } else { 0 };
            let ink = Ink::Series(look(index).color);
            for part in series::band_parts(&band.points, chart.axes) {
                if band.spread == Spread::Bars {
                    let stroke = Stroke { ink, width: 0.7 * self.sizes.line, dash: &[] };
                    let bars = part.into_iter().flat_map(|(x, low, high)| {
                        let ((x, low), (_, high)) = (place((x, low)), place((x, high)));
                        bar(x, (low, high), self.sizes.radius)
                    });
                    self.shapes.push(Shape::Lines { lines: bars.collect(), stroke });
                    continue;
                }
                let low = part.iter().map(|(x, low, _)| place((*x, *low)));
                let high = part.iter().rev().map(|(x, _, high)| place((*x, *high)));
                let opacity = if chart.rows.is_empty() { BAND_OPACITY } else { 1.0 };
                self.shapes.push(Shape::Area { places: low.chain(high).collect(), ink, opacity });
            }
        }
        for (index, line) in chart.drawn_lines().enumerate() {
            let index = self.series.index(chart, index);
            let look = look(index);
            let parts = series::parts(&line.points, chart.axes);
            let stroke = Stroke { ink: Ink::Series(look.color), width: self.sizes.line, dash: look.dash };
            for part in parts.iter().filter(|part| part.len() > 1 || chart.steps) {
                let corners = if chart.steps { series::stepped(part) } else { part.clone() };
                let places = corners.into_iter().map(place).collect();
                self.shapes.push(Shape::Path { places, is_closed: false, stroke });
            }
            let marked = series::marked(&parts, index, self.sizes.most_marks);
            if !marked.is_empty() {
                let places = marked.into_iter().map(place).collect();
                self.shapes.push(mark_of(places, index, &self.sizes));
            }
        }
        for (index, dots) in chart.dots.iter().enumerate().filter(|(_, dots)| !dots.points.is_empty()) {
            let ink = Ink::Series(look(self.series.after_lines(chart) + index).color);
            let shown = dots.points.iter().filter(|point| series::is_shown(**point, chart.axes));
            // Points that share a pixel cannot be told apart.
            let mut seen = HashSet::new();
            let places = shown.map(|point| place(*point));
            let places = places.filter(|(x, y)| seen.insert((x.round() as i64, y.round() as i64))).collect();
            self.shapes.push(Shape::Marks { places, mark: dots.mark, radius: self.sizes.radius, ink });
        }
    }

    fn draw_caption(&mut self, caption: &str) {
        let (size, pad) = (self.sizes.tick, self.sizes.pad);
        for line in wrap(caption, self.sizes.width - 2.0 * pad, size, false) {
            let at = (pad, self.y + ASCENT * size);
            let (anchor, ink) = (Anchor::Start, Ink::Text);
            self.write(Text { at, text: line, size, is_bold: false, anchor, is_upward: false, ink });
            self.y += LINE * size;
        }
    }
}

/// Shortens a name to the room that it has.
fn shortened(name: &str, most: f64, size: f64) -> String {
    if room(name, size, false) <= most {
        return name.to_owned();
    }
    let mut kept = name.to_owned();
    while kept.pop().is_some() && room(&format!("{kept}\u{2026}"), size, false) > most {}
    kept + "\u{2026}"
}

/// The rectangle of a plot.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// The mapping from values to positions, which are logarithms if the axis is logarithmic.
#[derive(Clone, Copy, Debug)]
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    /// Builds a scale that shows all points up to the top, and on a linear axis from zero upward.
    fn of(chart: &Chart) -> Self {
        let axes = chart.axes;
        let bands = chart.bands.iter().flat_map(|band| series::band_parts(&band.points, axes)).flatten();
        let cut = |low: f64| if axes.y == Axis::Linear || low > f64::MIN_POSITIVE { Some(low) } else { None };
        let bands =
            bands.flat_map(|(x, low, high)| [cut(low).map(|low| (x, low)), Some((x, high))]).flatten();
        let lines = chart.drawn_lines().flat_map(|line| line.points.iter().copied());
        let dots = chart.dots.iter().flat_map(|dots| dots.points.iter().copied());
        let all = lines.chain(bands).chain(dots).filter(|point| series::is_shown(*point, axes));
        let points: Vec<(f64, f64)> = all.collect();
        let x = axes.x.range(points.iter().map(|(x, _)| *x));
        let y = match chart.top {
            _ if !chart.rows.is_empty() => (0.0, chart.rows.len() as f64),
            Some(top) => axes.y.range([0.0, top].into_iter()),
            None => axes.y.range(points.iter().map(|(_, y)| *y)),
        };
        Self { x, y }
    }

    /// Returns the position along the lower axis, from 0 to 1.
    fn across(&self, axes: Axes, x: f64) -> f64 {
        (axes.x.measure(x) - self.x.0) / (self.x.1 - self.x.0)
    }

    /// Returns the position along the left axis, from 0 to 1.
    fn up(&self, axes: Axes, y: f64) -> f64 {
        ((axes.y.measure(y) - self.y.0) / (self.y.1 - self.y.0)).clamp(0.0, 1.0)
    }

    fn place(&self, axes: Axes, frame: Frame, (x, y): (f64, f64)) -> Place {
        let bottom = frame.top + frame.height;
        (frame.left + self.across(axes, x) * frame.width, bottom - self.up(axes, y) * frame.height)
    }
}
