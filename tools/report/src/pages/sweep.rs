//! The report of a sweep: queue, goodput and completion times against the swept value, and the runs in common
//! plots.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use roce_machine::text_file;
use roce_plot::{Axes, Axis, Band, Chart, Line, MOST_LINES, escape};
use roce_transport::units;

use super::files::{WriteError, create_directory, page_head, save};
use super::means::{means, remark, span};
use crate::data::groups::{Group, groups, sweep_csv};
use crate::data::metrics::{METRICS, metric_named};
use crate::data::summary::{OfSizes, Summary};
use crate::data::text::{NOT_MEASURED, assignments};

/// Maximum number of runs in a common plot; more cannot be told apart.
const MOST_RUNS: usize = 8;

/// Writes `sweep.csv`, `report.html` and its plots. The series come from the directories of the runs.
///
/// # Errors
///
/// The directory or a file cannot be written.
pub fn write_sweep(dir: &Path, runs: &[Summary]) -> Result<(), WriteError> {
    create_directory(dir)?;
    save(dir, "sweep.csv", &sweep_csv(runs))?;
    let groups = groups(runs);
    let varied = varied(&groups);
    let charts: Vec<(String, Chart)> =
        against(&groups, &varied).into_iter().chain(common(dir, &groups, &varied)).collect();
    for (name, chart) in &charts {
        save(dir, &format!("{name}.svg"), &chart.to_svg())?;
    }
    save(dir, "report.html", &page(runs, &groups, &charts))
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

fn value_of<'a>(group: &'a Group<'_>, name: &str) -> Option<&'a str> {
    group.set.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Parses a value with or without a unit as a number: bits per second, bytes or microseconds.
fn number(text: &str) -> Option<f64> {
    let plain = text.parse().ok();
    let rate = || units::rate(text).ok().map(|bps| bps as f64);
    let time = || units::duration_ps(text).ok().map(|ps| ps as f64 / 1e6);
    let size = || units::size(text).ok().map(|bytes| bytes as f64);
    plain.or_else(rate).or_else(time).or_else(size).filter(|value: &f64| value.is_finite())
}

/// Returns the name of a group in a legend.
fn label(group: &Group<'_>, names: &[&String]) -> String {
    let one = |name: &&String| {
        let key = name.rsplit('.').next().unwrap_or(name);
        Some(format!("{key}={}", value_of(group, name)?))
    };
    let parts: Vec<String> = names.iter().filter_map(one).collect();
    if parts.is_empty() { "all runs".to_owned() } else { parts.join(" ") }
}

/// File name, title, label of the axis, the drawn columns of `sweep.csv` with their names, and the scale.
type Against = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)], f64);

const AGAINST: [Against; 4] = [
    (
        "sweep-queue",
        "Longest queue",
        "KB",
        &[("queue_p50_bytes", "median"), ("queue_p90_bytes", "90th percentile"), ("queue_p99_bytes", "99th")],
        1e-3,
    ),
    ("sweep-goodput", "Payload delivered, all flows together", "Gb/s", &[("total_gbps", "goodput")], 1.0),
    (
        "sweep-completion",
        "Completion times",
        "ms",
        &[("completion_p50_us", "median"), ("completion_p99_us", "99th percentile")],
        1e-3,
    ),
    (
        "sweep-slowdown",
        "Slowdown",
        "times as long as alone",
        &[("slowdown_p50", "median"), ("slowdown_p99", "99th percentile")],
        1.0,
    ),
];

/// Returns charts of the figures of the runs against the first swept name whose values are numbers.
fn against(groups: &[Group<'_>], varied: &[String]) -> Vec<(String, Chart)> {
    let is_number =
        |name: &&String| groups.iter().all(|group| value_of(group, name).and_then(number).is_some());
    let Some(swept) = varied.iter().find(is_number) else { return Vec::new() };
    let others: Vec<&String> = varied.iter().filter(|name| *name != swept).collect();
    let at = |group: &Group<'_>| value_of(group, swept).and_then(number).unwrap_or_default();
    let (least, most) =
        groups.iter().map(at).fold((f64::INFINITY, 0.0_f64), |(least, most), x| (least.min(x), most.max(x)));
    let x = if least > 0.0 && most > 30.0 * least { Axis::Log } else { Axis::Linear };
    let mut charts = Vec::new();
    for (file, title, y_label, columns, scale) in AGAINST {
        let (mut lines, mut bands) = (Vec::new(), Vec::new());
        let mut series: Vec<String> = groups.iter().map(|group| label(group, &others)).collect();
        series.dedup();
        let mut seen = BTreeSet::new();
        series.retain(|name| seen.insert(name.clone()));
        for name in &series {
            let members = || groups.iter().filter(|group| label(group, &others) == *name);
            for (column, what) in columns {
                let Some(metric) = metric_named(column) else { continue };
                let mut points: Vec<(f64, f64, f64)> = members()
                    .filter_map(|group| {
                        let estimate = group.estimate(metric)?;
                        let scale = metric.scale * scale;
                        Some((at(group), estimate.mean * scale, estimate.ci95.unwrap_or(0.0) * scale))
                    })
                    .collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                let legend = match (series.len(), columns.len()) {
                    (1, _) => (*what).to_owned(),
                    (_, 1) => name.clone(),
                    _ => format!("{name}, {what}"),
                };
                if points.iter().any(|(_, _, half)| *half > 0.0) {
                    let around =
                        |(x, mean, half): &(f64, f64, f64)| (*x, (mean - half).max(0.0), mean + half);
                    let name = if bands.is_empty() { "95 % confidence" } else { "" };
                    bands.push(Band { name: name.to_owned(), points: points.iter().map(around).collect() });
                } else {
                    bands.push(Band { name: String::new(), points: Vec::new() });
                }
                lines.push(Line {
                    name: legend,
                    points: points.iter().map(|(x, mean, _)| (*x, *mean)).collect(),
                });
            }
        }
        if bands.iter().all(|band| band.points.is_empty()) {
            bands.clear();
        }
        lines.retain(|line| !line.points.is_empty());
        if !lines.is_empty() {
            let (title, x_label, y_label) = (title.to_owned(), swept.clone(), y_label.to_owned());
            let axes = Axes { x, y: Axis::Linear };
            charts.push((
                file.to_owned(),
                Chart { title, x_label, y_label, lines, bands, axes, ..Chart::default() },
            ));
        }
    }
    charts
}

/// Returns plots of the distributions and series of several runs: of each group, the run with the first seed.
fn common(dir: &Path, groups: &[Group<'_>], varied: &[String]) -> Vec<(String, Chart)> {
    let names: Vec<&String> = varied.iter().collect();
    let chosen = spread(groups, MOST_RUNS);
    let lines = |points: &dyn Fn(&Summary) -> Vec<(f64, f64)>| -> Vec<Line> {
        let line = |group: &&Group<'_>| Line { name: label(group, &names), points: points(group.runs[0]) };
        chosen.iter().map(line).filter(|line| !line.points.is_empty()).collect()
    };
    let read = |run: &Summary, file: &str, x: &str, y: &str| {
        let place = run.combination.map(|place| dir.join(format!("{:05}", place.index)).join(file));
        place.and_then(|path| columns(&path, x, y)).unwrap_or_default()
    };
    let title = |what: &str| match groups.len() > chosen.len() {
        true => format!("{what}: {} of {} runs", chosen.len(), groups.len()),
        false => what.to_owned(),
    };
    let queue = lines(&|run| {
        let points = read(run, "queue_cdf.csv", "bytes", "percent");
        points.into_iter().map(|(bytes, percent)| (bytes / 1e3, percent)).collect()
    });
    let queue = chart(title("Distribution of the longest queue"), "KB", "percent of samples", queue);
    let times = lines(&|run| {
        let mut times: Vec<f64> =
            read(run, "flows.csv", "completion_us", "bytes").into_iter().map(|(us, _)| us / 1e3).collect();
        times.sort_by(f64::total_cmp);
        let all = run.flows as f64;
        (1..).zip(times).map(|(rank, time)| (time, 100.0 * f64::from(rank) / all)).collect()
    });
    let mut times =
        chart(title("Distribution of completion times"), "completion time, ms", "percent of flows", times);
    if is_wide(&times) {
        times.axes.x = Axis::Log;
    }
    let total = lines(&|run| {
        read(run, "total.csv", "time_us", "sent_gbps")
            .into_iter()
            .map(|(us, gbps)| (us / 1e3, gbps))
            .collect()
    });
    let (total, span) = averaged(total);
    let what = format!("Payload sent, all flows together{}", remark(span));
    let mut total = chart(title(&what), "time, ms", "Gb/s", total);
    total.cut_peaks();
    let by_size = |of: fn(&OfSizes) -> f64| {
        let mut lines = lines(&|run| {
            run.slowdown_by_size
                .iter()
                .filter_map(|range| Some((range.to_bytes? as f64, of(range))))
                .collect()
        });
        lines.retain(|line| line.points.len() > 1);
        lines
    };
    let slowdown = |what: &str, of: fn(&OfSizes) -> f64| {
        let title = title(&format!("Slowdown by size, {what}"));
        let mut chart = chart(title, "size of flows up to, bytes", "times as long as alone", by_size(of));
        chart.axes = Axes { x: Axis::Sizes, y: Axis::Log };
        chart
    };
    let mut all = vec![
        ("slowdown-p50", slowdown("median", |range| range.slowdown.p50)),
        ("slowdown-p95", slowdown("95th percentile", |range| range.slowdown.p95)),
        ("slowdown-p99", slowdown("99th percentile", |range| range.slowdown.p99)),
        ("queue-distribution", Chart { steps: true, ..queue }),
        ("completion-distribution", Chart { steps: true, ..times }),
        ("total", total),
    ];
    all.retain(|(_, chart)| !chart.lines.is_empty());
    all.into_iter().map(|(name, chart)| (name.to_owned(), chart)).collect()
}

/// Returns the means over one span for all lines, and that span, if the lines have many samples.
fn averaged(mut lines: Vec<Line>) -> (Vec<Line>, Option<f64>) {
    let interval =
        |line: &Line| line.points.windows(2).map(|pair| pair[1].0 - pair[0].0).fold(f64::INFINITY, f64::min);
    let interval = lines.iter().map(interval).fold(0.0, f64::max);
    let end = lines.iter().filter_map(|line| line.points.last()).map(|(time, _)| *time).fold(0.0, f64::max);
    let span = span(interval, end);
    for line in &mut lines {
        if let Some(span) = span {
            line.points = means(&line.points, span);
        }
    }
    (lines, span)
}

fn chart(title: String, x_label: &str, y_label: &str, lines: Vec<Line>) -> Chart {
    let (x_label, y_label) = (x_label.to_owned(), y_label.to_owned());
    Chart { title, x_label, y_label, lines, ..Chart::default() }
}

/// Returns whether the largest x exceeds the smallest so much that a linear axis would show only one of them.
fn is_wide(chart: &Chart) -> bool {
    let ends = chart.lines.iter().flat_map(|line| [line.points.first(), line.points.last()]).flatten();
    let (least, most) =
        ends.fold((f64::INFINITY, 0.0_f64), |(least, most), (x, _)| (least.min(*x), most.max(*x)));
    most > 50.0 * least
}

/// Returns at most `most` of the groups, evenly spread, including the first and the last.
fn spread<'a, 'b>(groups: &'a [Group<'b>], most: usize) -> Vec<&'a Group<'b>> {
    debug_assert!(most <= MOST_LINES);
    if groups.len() <= most {
        return groups.iter().collect();
    }
    let last = groups.len() - 1;
    (0..most).filter_map(|place| groups.get((place * last + (most - 1) / 2) / (most - 1))).collect()
}

/// Reads two columns of a table that this program wrote. Lines where one of them is empty are left out.
fn columns(path: &Path, x: &str, y: &str) -> Option<Vec<(f64, f64)>> {
    let text = text_file::read_text(path).ok()?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next()?.split(',').collect();
    let place = |name: &str| head.iter().position(|column| *column == name);
    let (x, y) = (place(x)?, place(y)?);
    let point = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        Some((cells.get(x)?.parse().ok()?, cells.get(y)?.parse().ok()?))
    };
    Some(lines.filter_map(point).collect())
}

fn page(runs: &[Summary], groups: &[Group<'_>], charts: &[(String, Chart)]) -> String {
    const SHOWN: [&str; 10] = [
        "failed",
        "completion_p50_us",
        "completion_p99_us",
        "slowdown_p50",
        "slowdown_p99",
        "queue_p90_bytes",
        "total_gbps",
        "marked",
        "pauses",
        "dropped",
    ];
    let name = runs.first().map_or("sweep", |run| run.scenario.as_str());
    let mut html = page_head(name);
    // Writing to a string cannot fail.
    let _ = writeln!(html, "<p>{} runs; each has a report in a directory with its number.</p>", runs.len());
    for (_, chart) in charts {
        let _ = writeln!(html, "{}", chart.to_svg());
    }
    let _ = write!(html, "<table class=\"wide\"><tr><th>set</th><th>seeds</th>");
    let shown = || METRICS.iter().filter(|metric| SHOWN.contains(&metric.column));
    for metric in shown() {
        let _ = write!(html, "<th>{}</th>", metric.column.replace('_', " "));
    }
    let _ = writeln!(html, "</tr>");
    for group in groups {
        let first = group.runs.first().and_then(|run| run.combination);
        let set = escape(&assignments(&group.set));
        let link = first.map_or_else(
            || set.clone(),
            |place| format!("<a href=\"{:05}/report.html\">{set}</a>", place.index),
        );
        let _ = write!(html, "<tr><td>{link}</td><td>{}</td>", group.runs.len());
        for metric in shown() {
            let text = group.estimate(metric).map_or_else(
                || NOT_MEASURED.to_owned(),
                |of| {
                    let mean = of.mean * metric.scale;
                    match of.ci95 {
                        Some(half) => format!("{mean:.2} ± {:.2}", half * metric.scale),
                        // A count of a single run has no fraction.
                        None if mean.fract() == 0.0 => mean.to_string(),
                        None => format!("{mean:.2}"),
                    }
                },
            );
            let _ = write!(html, "<td>{text}</td>");
        }
        let _ = writeln!(html, "</tr>");
    }
    let _ = writeln!(
        html,
        "</table>\n<p>sweep.csv has a line per run. ± is half of the 95 % confidence interval of the mean over seeds \
         (Student's t).</p>"
    );
    for warning in groups.iter().filter_map(Group::warning) {
        let _ = writeln!(html, "<p><b>Warning:</b> {}.</p>", escape(&warning));
    }
    html.push_str("</body></html>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_units_are_numbers() {
        assert_eq!(number("16"), Some(16.0));
        assert_eq!(
            (number("40Gbps"), number("100KB"), number("5ms")),
            (Some(40e9), Some(1e5), Some(5_000.0))
        );
        assert_eq!((number("dcqcn:paper"), number("{ off = true }")), (None, None));
    }

    #[test]
    fn chosen_groups_are_spread_over_all() {
        let all: Vec<Group<'_>> =
            (0..19).map(|n| Group { set: vec![("n".into(), n.to_string())], runs: Vec::new() }).collect();
        let chosen: Vec<&str> = spread(&all, 8).iter().map(|group| group.set[0].1.as_str()).collect();
        assert_eq!((chosen.len(), chosen[0], chosen[7]), (8, "0", "18"));
        assert_eq!(spread(&all[..3], 8).len(), 3);
    }
}
