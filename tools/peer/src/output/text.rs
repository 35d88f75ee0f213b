//! Results for people.

use std::fmt::Write as _;

use crate::run::{Failure, Outcome, Record, Report};

/// Number of packets that a failure shows.
const MOST_PACKETS: usize = 12;

/// Returns the line about a script: its result, its name, and what it shows.
#[must_use]
pub fn summary(report: &Report) -> String {
    let result = match &report.outcome {
        Outcome::Passed => "ok",
        Outcome::Failed(_) => "FAILED",
        Outcome::Inapplicable(_) => "not applicable",
    };
    let unchecked = match report.unchecked {
        0 => String::new(),
        1 => " (1 check is not possible here)".to_owned(),
        count => format!(" ({count} checks are not possible here)"),
    };
    let title = if report.title.is_empty() { String::new() } else { format!(": {}", report.title) };
    format!("{result:<7} {}{title}{unchecked}", report.script)
}

/// Returns why a script failed, with the packets before, or why it does not apply.
#[must_use]
pub fn failure_text(report: &Report) -> Option<String> {
    let failure = match &report.outcome {
        Outcome::Passed => return None,
        Outcome::Inapplicable(what) => return Some(format!("  {what}\n")),
        Outcome::Failed(failure) => failure,
    };
    let Failure { place, text, rule, expected, found } = failure;
    let mut shown = match place {
        Some(place) => format!("  {place}: {text}\n"),
        None => format!("  {text}\n"),
    };
    if !rule.is_empty() {
        let _ = writeln!(shown, "  rule:     {rule}");
    }
    let _ = writeln!(shown, "  expected: {expected}");
    let _ = writeln!(shown, "  found:    {found}");
    let skipped = report.records.len().saturating_sub(MOST_PACKETS);
    if !report.records.is_empty() {
        shown.push_str("  packets, with milliseconds since the first one:\n");
    }
    if skipped > 0 {
        let _ = writeln!(shown, "    ({skipped} earlier packets are left out; --pcap writes all of them)");
    }
    for record in report.records.iter().skip(skipped) {
        let _ = writeln!(shown, "    {}", packet_line(record, report));
    }
    Some(shown)
}

fn packet_line(record: &Record, report: &Report) -> String {
    let first = report.records.first().map_or(record.at, |record| record.at);
    let nanos = record.at.since(first).as_nanos();
    let (whole, micros) = (nanos / 1_000_000, nanos / 1_000 % 1_000);
    let arrow = if record.is_sent { "script ->" } else { "NIC    <-" };
    format!("{whole:>5}.{micros:03}  {arrow} {}", record.text)
}
