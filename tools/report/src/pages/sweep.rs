//! The report of a sweep: its figures, and a table of the groups of runs.

use std::fmt::Write as _;
use std::path::Path;

use roce_plot::{Figure, Width, escape};

use super::files::{WriteError, create_directory, page_head, save, save_figure};
use crate::data::groups::{Group, sweep_csv};
use crate::data::metrics::METRICS;
use crate::data::summary::Summary;
use crate::data::text::{NOT_MEASURED, assignments};
use crate::figures::samples::Series;
use crate::figures::sweeps::Sweep;

/// Writes `sweep.csv`, `report.html` and its plots. The series come from the directories of the runs.
///
/// # Errors
///
/// The directory or a file cannot be written.
pub fn write_sweep(dir: &Path, runs: &[Summary]) -> Result<(), WriteError> {
    create_directory(dir)?;
    save(dir, "sweep.csv", &sweep_csv(runs))?;
    let read = |run: &Summary, series: Series| points_in(dir, run, series);
    let sweep = Sweep::new(runs, &read);
    let figures = sweep.all();
    for (name, figure) in &figures {
        save_figure(dir, name, figure)?;
    }
    save(dir, "report.html", &page(runs, &sweep.groups, &figures))
}

/// Reads the points of a run of a sweep from its directory below that of the sweep.
#[must_use]
pub fn points_in(dir: &Path, run: &Summary, series: Series) -> Vec<(f64, f64)> {
    let place = run.combination.map(|place| dir.join(format!("{:05}", place.index)));
    place.map_or_else(Vec::new, |dir| series.read(&dir, run))
}

fn page(runs: &[Summary], groups: &[Group<'_>], figures: &[(String, Figure)]) -> String {
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
    for (_, figure) in figures {
        let _ = writeln!(html, "{}", figure.to_svg(Width::Screen));
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
