//! The figures of several runs. Runs that differ only in their seed are one line, with the 95 % confidence
//! interval of the mean.

use std::collections::{BTreeMap, BTreeSet};

use roce_plot::{Axes, Axis, Band, Chart, Figure, Line, MOST_LINES, Spread};

use super::means::{means, place, remark, span};
use super::names::{Unit, labels, number, seeds, value_of, words};
use super::samples::Series;
use crate::data::groups::{Estimate, Group, groups};
use crate::data::metrics::metric_named;
use crate::data::summary::{OfSizes, Summary};

/// Maximum number of groups in a common plot; more cannot be told apart.
const MOST_GROUPS: usize = 8;
/// Maximum number of points of the mean of distributions.
const MOST_STEPS: usize = 300;
/// The name of the spreads in the legend.
const CONFIDENCE: &str = "95 % confidence of the mean";

/// A function that returns the points of a run.
pub type Points<'a> = &'a dyn Fn(&Summary, Series) -> Vec<(f64, f64)>;

/// Runs, as figures show them.
pub(crate) struct Sweep<'a> {
    pub(crate) groups: Vec<Group<'a>>,
    /// The names whose values differ between groups.
    varied: Vec<String>,
    points: Points<'a>,
}

/// A mean with the spread around it.
#[derive(Debug, Default)]
struct Mean {
    line: Vec<(f64, f64)>,
    spread: Vec<(f64, f64, f64)>,
}

impl Mean {
    /// Returns the means of values at each x. Values stay within `range`.
    fn of(values: impl Iterator<Item = (f64, Vec<f64>)>, range: (f64, f64)) -> Self {
        let mut mean = Self::default();
        for (x, values) in values {
            let Some(estimate) = Estimate::of(&values) else { continue };
            mean.line.push((x, estimate.mean));
            if let Some(half) = estimate.ci95 {
                let (low, high) = (estimate.mean - half, estimate.mean + half);
                mean.spread.push((x, low.max(range.0), high.min(range.1)));
            }
        }
        mean
    }
}

/// The figures against a swept value: file name, title, columns of `sweep.csv` with their names, label and
/// scale.
type Against = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str, f64);

const AGAINST: [Against; 4] = [
    (
        "sweep-queue",
        "Longest queue",
        &[
            ("queue_p50_bytes", "median"),
            ("queue_p90_bytes", "90th percentile"),
            ("queue_p99_bytes", "99th percentile"),
        ],
        "longest queue, KB",
        1e-3,
    ),
    (
        "sweep-goodput",
        "Payload delivered, all flows together",
        &[("total_gbps", "payload")],
        "payload delivered, Gb/s",
        1.0,
    ),
    (
        "sweep-completion",
        "Completion times",
        &[("completion_p50_us", "median"), ("completion_p99_us", "99th percentile")],
        "completion time, ms",
        1e-3,
    ),
    (
        "sweep-slowdown",
        "Slowdown",
        &[("slowdown_p50", "median"), ("slowdown_p99", "99th percentile")],
        "slowdown: time relative to that alone",
        1.0,
    ),
];

impl<'a> Sweep<'a> {
    pub(crate) fn new(runs: &'a [Summary], points: Points<'a>) -> Self {
        let groups = groups(runs);
        let varied = varied(&groups);
        Self { groups, varied, points }
    }

    /// Returns all figures of a report, with their file names.
    pub(crate) fn all(&self) -> Vec<(String, Figure)> {
        let mut all: Vec<(String, Figure)> = Vec::new();
        for (name, chart) in self.against() {
            all.push((name.to_owned(), self.figure(vec![chart], 1, "Points: means over the seeds.")));
        }
        all.push(("slowdown".to_owned(), self.slowdown()));
        all.push(("queue-distribution".to_owned(), self.queue()));
        all.push(("completion-distribution".to_owned(), self.times()));
        all.push(("total".to_owned(), self.rates()));
        all.retain(|(_, figure)| !figure.charts.is_empty());
        all
    }

    /// Returns a figure with a caption that names the scenario, the seeds, and the meaning of the spreads.
    fn figure(&self, charts: Vec<Chart>, columns: usize, lines: &str) -> Figure {
        let runs = || self.groups.iter().flat_map(|group| &group.runs);
        let scenario = runs().next().map_or("", |run| run.scenario.as_str());
        let mut caption = format!("Scenario {scenario}, {}.", seeds(runs().map(|run| run.seed).collect()));
        if self.has_seeds() {
            caption += &format!(" {lines}");
            if charts.iter().any(|chart| chart.bands.iter().any(|band| !band.points.is_empty())) {
                caption += " Spreads: 95 % confidence intervals of the means (Student's t).";
            }
        }
        Figure { charts, columns, caption }.without_empty()
    }

    /// Returns whether a group has several seeds.
    fn has_seeds(&self) -> bool {
        self.groups.iter().any(|group| group.runs.len() > 1)
    }

    /// Returns a line with a spread for each of at most [`MOST_GROUPS`] groups.
    fn lines(&self, spread: Spread, mean: &dyn Fn(&Group<'_>) -> Mean) -> (Vec<Line>, Vec<Band>) {
        let names: Vec<&String> = self.varied.iter().collect();
        let labels = labels(&self.groups, &names);
        let (mut lines, mut bands) = (Vec::new(), Vec::new());
        for place in spread_out(self.groups.len(), MOST_GROUPS) {
            let (Some(group), Some(label)) = (self.groups.get(place), labels.get(place)) else { continue };
            let mean = mean(group);
            if !mean.line.is_empty() {
                lines.push(Line { name: label.clone(), points: mean.line });
                bands.push(mean.spread);
            }
        }
        (lines, named(bands, spread))
    }

    /// Returns the words about the groups that are left out.
    fn title(&self, what: &str) -> String {
        match self.groups.len() {
            all if all > MOST_GROUPS => format!("{what}: {MOST_GROUPS} of {all} combinations"),
            _ => what.to_owned(),
        }
    }

    /// Returns charts of the figures of the runs against the first swept name whose values are numbers, with
    /// their file names.
    pub(crate) fn against(&self) -> Vec<(&'static str, Chart)> {
        let values = |name: &String| -> Option<Vec<(f64, Unit)>> {
            self.groups.iter().map(|group| value_of(group, name).and_then(number)).collect()
        };
        let Some((swept, at)) = self.varied.iter().find_map(|name| Some((name, values(name)?))) else {
            return Vec::new();
        };
        let unit = at.first().map_or(Unit::Number, |(_, unit)| *unit);
        let x_label = words(swept) + unit.text(swept);
        let others: Vec<&String> = self.varied.iter().filter(|name| *name != swept).collect();
        let labels = labels(&self.groups, &others);
        let mut series: Vec<&String> = Vec::new();
        for label in &labels {
            if !series.contains(&label) {
                series.push(label);
            }
        }
        let chart = |(file, title, columns, y_label, scale): Against| {
            // With several series, only the last column is drawn.
            let is_one = series.len() == 1;
            let drawn = if is_one { columns } else { columns.get(columns.len() - 1..).unwrap_or_default() };
            let (mut lines, mut bands) = (Vec::new(), Vec::new());
            for name in &series {
                for (column, what) in drawn {
                    let Some(metric) = metric_named(column) else { continue };
                    let scale = metric.scale * scale;
                    let members = self.groups.iter().zip(&at).zip(&labels);
                    let members = members.filter(|(_, label)| label == name);
                    let values = members.map(|((group, (x, _)), _)| {
                        let values = group.runs.iter().filter_map(|run| (metric.of)(run));
                        (*x, values.map(|value| value * scale).collect::<Vec<f64>>())
                    });
                    let mut values: Vec<(f64, Vec<f64>)> = values.collect();
                    values.sort_by(|a, b| a.0.total_cmp(&b.0));
                    let Mean { line, spread } = Mean::of(values.into_iter(), (0.0, f64::INFINITY));
                    if !line.is_empty() {
                        let name = if is_one { (*what).to_owned() } else { (*name).clone() };
                        lines.push(Line { name, points: line });
                        bands.push(spread);
                    }
                }
            }
            let what = drawn.first().filter(|_| !is_one && columns.len() > 1).map(|(_, what)| *what);
            let mut chart = Chart {
                title: what.map_or_else(|| title.to_owned(), |what| format!("{title}, {what}")),
                x_label: x_label.clone(),
                y_label: y_label.to_owned(),
                lines,
                bands: named(bands, Spread::Bars),
                ..Chart::default()
            };
            chart.axes.x = Axis::for_values(at.iter().map(|(x, _)| *x));
            chart.fit_axes();
            (file, chart)
        };
        AGAINST.into_iter().map(chart).filter(|(_, chart)| !chart.is_empty()).collect()
    }

    /// Returns completion time, queue and goodput against the swept value.
    pub(crate) fn incast(&self) -> Figure {
        let wanted = ["sweep-completion", "sweep-queue", "sweep-goodput"];
        let mut charts = self.against();
        charts.retain(|(name, _)| wanted.contains(name));
        charts.sort_by_key(|(name, _)| wanted.iter().position(|wanted| wanted == name));
        let charts = charts.into_iter().map(|(_, chart)| chart).collect();
        self.figure(charts, 3, "Points: means over the seeds.")
    }

    /// Returns the payload of all flows over time.
    pub(crate) fn rates(&self) -> Figure {
        let spans = std::cell::Cell::new(None);
        let (lines, bands) = self.lines(Spread::Area, &|group| {
            let seeds: Vec<_> = group.runs.iter().map(|run| (self.points)(run, Series::Total)).collect();
            let (mean, span) = over_time(&seeds);
            spans.set(spans.get().max(span.map(ordered)));
            mean
        });
        let span = spans.get().map(|micros| micros as f64 / 1e6);
        let mut chart = Chart {
            title: self.title("Payload sent, all flows together") + &remark(span),
            x_label: "time, ms".to_owned(),
            y_label: "payload rate, Gb/s".to_owned(),
            lines,
            bands,
            ..Chart::default()
        };
        chart.cut_peaks();
        self.figure(vec![chart], 1, "Lines: means over the seeds.")
    }

    /// Returns the distribution of the longest queue.
    pub(crate) fn queue(&self) -> Figure {
        let labels = ["Distribution of the longest queue", "queue, KB", "percent of samples"];
        self.distribution(Series::Queue, labels)
    }

    /// Returns the distribution of completion times.
    pub(crate) fn times(&self) -> Figure {
        let labels = ["Distribution of completion times", "completion time, ms", "percent of flows"];
        self.distribution(Series::Times, labels)
    }

    fn distribution(&self, series: Series, [title, x_label, y_label]: [&str; 3]) -> Figure {
        let (lines, bands) = self.lines(Spread::Area, &|group| {
            let seeds: Vec<_> = group.runs.iter().map(|run| (self.points)(run, series)).collect();
            mean_distribution(&seeds)
        });
        let mut chart = Chart {
            title: self.title(title),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            lines,
            bands,
            steps: true,
            ..Chart::default()
        };
        chart.fit_axes();
        self.figure(vec![chart], 1, "Lines: means over the seeds.")
    }

    /// Returns the slowdown by size, and the number of flows of each range of sizes.
    pub(crate) fn slowdown(&self) -> Figure {
        let by_size = |group: &Group<'_>, of: &dyn Fn(&OfSizes) -> f64| {
            let mut sizes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
            for range in group.runs.iter().flat_map(|run| &run.slowdown_by_size) {
                if let Some(to) = range.to_bytes {
                    sizes.entry(to).or_default().push(of(range));
                }
            }
            let is_drawn = sizes.len() > 1;
            sizes.into_iter().map(|(to, values)| (to as f64, values)).filter(move |_| is_drawn)
        };
        let chart = |title: &str, y_label: &str, (lines, bands): (Vec<Line>, Vec<Band>)| Chart {
            title: self.title(title),
            x_label: SIZES.to_owned(),
            y_label: y_label.to_owned(),
            lines,
            bands,
            axes: Axes { x: Axis::Sizes, y: Axis::Log },
            ..Chart::default()
        };
        let slowdown = |title: &str, of: fn(&OfSizes) -> f64| {
            let mean = |group: &Group<'_>| Mean::of(by_size(group, &of), (1.0, f64::INFINITY));
            chart(title, SLOWDOWN, self.lines(Spread::Bars, &mean))
        };
        let (mut counts, _) = self.lines(Spread::Bars, &|group| {
            let flows = by_size(group, &|range| range.slowdown.count as f64);
            let line = flows.map(|(to, counts)| (to, counts.iter().sum())).collect();
            Mean { line, spread: Vec::new() }
        });
        if counts.windows(2).all(|pair| pair[0].points == pair[1].points) {
            counts.truncate(1);
        }
        let all = if self.has_seeds() { "flows of all seeds" } else { "flows" };
        let mut counts = Chart { is_low: true, ..chart("Flows in each range", all, (counts, Vec::new())) };
        counts.axes.y = Axis::Linear;
        counts.fit_axes();
        let charts = vec![
            slowdown("Slowdown, median", |range| range.slowdown.p50),
            slowdown("Slowdown, 99th percentile", |range| range.slowdown.p99),
            counts,
        ];
        self.figure(charts, 3, "Points: means over the seeds of the percentiles of each seed.")
    }
}

/// The label of sizes of flows.
pub(crate) const SIZES: &str = "size of flows up to, bytes";
/// The label of slowdowns.
pub(crate) const SLOWDOWN: &str = "slowdown: time relative to that alone";

/// Returns a span in picoseconds per millisecond, which can be compared.
fn ordered(span: f64) -> u64 {
    (span * 1e6).round() as u64
}

/// Returns bands of which the first with points has the name of all. Without any points, there are none.
fn named(spreads: Vec<Vec<(f64, f64, f64)>>, spread: Spread) -> Vec<Band> {
    if spreads.iter().all(Vec::is_empty) {
        return Vec::new();
    }
    let first = spreads.iter().position(|points| !points.is_empty());
    let band = |(place, points)| {
        let name = if Some(place) == first { CONFIDENCE.to_owned() } else { String::new() };
        Band { name, points, spread }
    };
    spreads.into_iter().enumerate().map(band).collect()
}

/// Returns the names whose values differ between groups.
fn varied(groups: &[Group<'_>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in groups.iter().flat_map(|group| &group.set) {
        let values: BTreeSet<Option<&str>> = groups.iter().map(|group| value_of(group, name)).collect();
        if values.len() > 1 && !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Returns the mean of series over time, and the span over which it averages if they have many samples.
fn over_time(seeds: &[Vec<(f64, f64)>]) -> (Mean, Option<f64>) {
    let gaps = |points: &Vec<(f64, f64)>| {
        points.windows(2).map(|pair| pair[1].0 - pair[0].0).fold(f64::INFINITY, f64::min)
    };
    let interval = seeds.iter().map(gaps).filter(|gap| gap.is_finite()).fold(0.0, f64::max);
    let end = seeds.iter().filter_map(|points| points.last()).map(|(time, _)| *time).fold(0.0, f64::max);
    let span = span(interval, end);
    let width = span.unwrap_or(interval);
    let mut times: BTreeMap<i64, (f64, Vec<f64>)> = BTreeMap::new();
    for points in seeds {
        let averaged = span.map(|span| means(points, span));
        for (time, value) in averaged.as_deref().unwrap_or(points) {
            let (last, values) = times.entry(place(*time, width)).or_default();
            *last = last.max(*time);
            values.push(*value);
        }
    }
    (Mean::of(times.into_values(), (0.0, f64::INFINITY)), span)
}

/// Returns the mean of distributions: at each value, the mean of the percentages.
fn mean_distribution(seeds: &[Vec<(f64, f64)>]) -> Mean {
    if let [only] = seeds {
        return Mean { line: only.clone(), spread: Vec::new() };
    }
    let mut values: Vec<f64> = seeds.iter().flatten().map(|(value, _)| *value).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let step = values.len().div_ceil(MOST_STEPS).max(1);
    let last = values.last().copied();
    let mut kept: Vec<f64> = values.into_iter().step_by(step).chain(last).collect();
    kept.dedup();
    let percent = |points: &Vec<(f64, f64)>, value: f64| {
        let below = points.partition_point(|(known, _)| *known <= value);
        below.checked_sub(1).and_then(|place| points.get(place)).map_or(0.0, |(_, percent)| *percent)
    };
    let filled = || seeds.iter().filter(|points| !points.is_empty());
    let at = kept.into_iter().map(|value| (value, filled().map(|points| percent(points, value)).collect()));
    Mean::of(at, (0.0, 100.0))
}

/// Returns at most `most` of the places of `count` elements, evenly spread, including the first and the last.
fn spread_out(count: usize, most: usize) -> Vec<usize> {
    debug_assert!(most <= MOST_LINES);
    if count <= most {
        return (0..count).collect();
    }
    let last = count - 1;
    (0..most).map(|place| (place * last + (most - 1) / 2) / (most - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_groups_are_spread_over_all() {
        let chosen = spread_out(19, 8);
        assert_eq!((chosen.len(), chosen[0], chosen[7]), (8, 0, 18));
        assert_eq!(spread_out(3, 8), [0, 1, 2]);
    }

    #[test]
    fn a_mean_over_seeds_has_its_confidence_interval() {
        let seeds: Vec<Vec<(f64, f64)>> =
            [2.0, 4.0, 4.0, 5.0].map(|rate| vec![(0.01, rate), (0.02, 2.0 * rate)]).to_vec();
        let (mean, span) = over_time(&seeds);
        assert_eq!((mean.line, span), (vec![(0.01, 3.75), (0.02, 7.5)], None));
        let (x, low, high) = mean.spread[0];
        // Student's t of three degrees of freedom, as in `groups`.
        let half = 3.182 * 1.258_305_7 / 2.0;
        assert!((low - (3.75 - half)).abs() < 1e-6 && (high - 3.75 - half).abs() < 1e-6, "{x} {low} {high}");
        let (alone, _) = over_time(&seeds[..1]);
        assert!(alone.spread.is_empty() && alone.line.len() == 2);
    }

    #[test]
    fn distributions_are_averaged_by_value() {
        let seeds = vec![vec![(1.0, 50.0), (3.0, 100.0)], vec![(2.0, 100.0)]];
        let mean = mean_distribution(&seeds);
        assert_eq!(mean.line, [(1.0, 25.0), (2.0, 75.0), (3.0, 100.0)]);
        assert!(mean.spread.iter().all(|(_, low, high)| *low >= 0.0 && *high <= 100.0));
        let one = mean_distribution(&seeds[..1]);
        assert_eq!((one.line.len(), one.spread.len()), (2, 0));
        let long = |scale: f64| (1..2_000).map(|n| (f64::from(n) * scale, f64::from(n) / 20.0)).collect();
        let many = mean_distribution(&[long(1.0), long(1.1)]);
        assert!(many.line.len() <= MOST_STEPS + 1 && many.line.is_sorted_by(|a, b| a.1 <= b.1));
    }
}
