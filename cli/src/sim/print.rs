//! The results of runs as tables on the terminal.

use std::fmt::Write as _;
use std::io::Write;

use roce_report::{CompletedRun, Estimate, Group, NOT_MEASURED, Summary, assignments, groups, metric_named};

use crate::terminal::{Output, Paint};

/// Prints the summary of a run.
pub(super) fn print_summary(output: &mut Output, run: &Summary) -> std::io::Result<()> {
    writeln!(output, "{}", output.style.paint(Paint::BOLD, &run.scenario))?;
    for (name, value) in run.rows() {
        writeln!(output, "  {name:36} {value}")?;
    }
    Ok(())
}

/// Prints the expectations of the scenario, and whether the run meets them.
pub(super) fn print_expectations(output: &mut Output, completed: &CompletedRun) -> std::io::Result<()> {
    if let Some(reason) = completed.why_not_evaluated() {
        writeln!(output, "  {:36} {reason}", "expected")?;
    }
    let Some(expected) = &completed.summary.expected else { return Ok(()) };
    if !completed.scenario.expectation.is_empty() {
        writeln!(output, "  {:36} {}", "expected", completed.scenario.expectation)?;
    }
    for one in expected {
        let paint = if one.met { Paint::GREEN } else { Paint::RED };
        let verdict = output.style.paint(paint, one.verdict()).to_string();
        writeln!(output, "  {:36} {verdict}: {}", "", one.text())?;
    }
    Ok(())
}

/// Prints one line per run.
pub(super) fn print_table(output: &mut Output, runs: &[Summary]) -> std::io::Result<()> {
    let width = runs.iter().map(|run| assignments(&run.set).len()).max().unwrap_or(0).max(3);
    let heading = format!(
        "{:width$} {:>9} {:>6} {:>10} {:>10} {:>8} {:>7} {:>13} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "set",
        "complete",
        "failed",
        "median ms",
        "slowest ms",
        "p99 slow",
        "Jain",
        "2nd half Gb/s",
        "p90 KB",
        "marked",
        "CNPs",
        "pauses",
        "dropped",
        "resent"
    );
    writeln!(output, "{}", output.style.paint(Paint::BOLD, heading))?;
    for run in runs {
        let or = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| NOT_MEASURED.to_owned(), |value| format!("{value:.digits$}"))
        };
        let times = run.completion_seconds;
        let half = run.second_half_bits_per_second.map_or_else(
            || NOT_MEASURED.to_owned(),
            |of| format!("{:.2}-{:.2}", of.slowest / 1e9, of.fastest / 1e9),
        );
        writeln!(
            output,
            "{:width$} {:>4}/{:<4} {:>6} {:>10} {:>10} {:>8} {:>7} {:>13} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}",
            assignments(&run.set),
            run.flows - run.incomplete,
            run.flows,
            run.unfinished.failed,
            or(times.map(|of| ms(of.p50)), 3),
            or(times.map(|of| ms(of.max)), 3),
            or(run.slowdown.map(|of| of.p99), 2),
            or(run.jain, 4),
            half,
            or(run.queue_bytes.map(|queue| queue.p90 as f64 / 1e3), 1),
            run.marked,
            run.cnps_sent,
            run.pauses,
            run.dropped.values().sum::<u64>(),
            run.retransmitted
        )?;
    }
    Ok(())
}

/// The columns of the table of seeds: heading, metric, digits.
const COLUMNS: [(&str, &str, usize); 8] = [
    ("median us", "completion_p50_us", 1),
    ("p99 us", "completion_p99_us", 1),
    ("slowdown p50", "slowdown_p50", 3),
    ("p95", "slowdown_p95", 3),
    ("p99", "slowdown_p99", 3),
    ("p99.9", "slowdown_p999", 3),
    ("queue p90 B", "queue_p90_bytes", 0),
    ("total Gb/s", "total_gbps", 2),
];

/// Prints one line per group with several seeds: means with 95 % confidence intervals. Warns if the seed of a
/// group has no effect.
pub(super) fn print_seeds(output: &mut Output, runs: &[Summary]) -> std::io::Result<()> {
    let mut groups = groups(runs);
    groups.retain(|group| group.runs.len() > 1);
    if groups.is_empty() {
        return Ok(());
    }
    let width = groups.iter().map(|group| assignments(&group.set).len()).max().unwrap_or(0).max(3);
    let mut heading = format!("\n{:width$} {:>5}", "set", "seeds");
    for (title, ..) in COLUMNS {
        // Writing to a string cannot fail.
        let _ = write!(heading, " {title:>19}");
    }
    writeln!(output, "{}", output.style.paint(Paint::BOLD, heading))?;
    for group in &groups {
        write!(output, "{:width$} {:>5}", assignments(&group.set), group.runs.len())?;
        for (_, column, digits) in COLUMNS {
            let estimate =
                metric_named(column).and_then(|metric| Some((group.estimate(metric)?, metric.scale)));
            let text = estimate.map_or_else(
                || NOT_MEASURED.to_owned(),
                |(Estimate { mean, ci95, .. }, scale)| {
                    let around =
                        ci95.map_or_else(String::new, |half| format!(" ± {:.digits$}", half * scale));
                    format!("{:.digits$}{around}", mean * scale)
                },
            );
            write!(output, " {text:>19}")?;
        }
        writeln!(output)?;
    }
    writeln!(output, "means and 95 % confidence intervals (Student's t) over seeds")?;
    for warning in groups.iter().filter_map(Group::warning) {
        writeln!(output, "{} {warning}", output.style.paint(Paint::YELLOW, "warning:"))?;
    }
    Ok(())
}

/// Converts seconds to milliseconds.
fn ms(seconds: f64) -> f64 {
    seconds * 1e3
}
