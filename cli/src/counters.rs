//! `roce counters`: what changed between two files with counters of a NIC.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use roce_analysis::counters::{Change, Comparison, Kind, Outcome, Snapshot, compare};
use roce_document::analyze::changes;
use roce_machine::text_file;
use roce_packet::foreign::Text;
use serde_json::{Value, json};

use super::terminal::{Output, Paint};

/// Explain what changed between two files with counters of RoCE NICs
///
/// BEFORE and AFTER contain the output of `rdma statistic` (also with -j or -p), `ethtool -S IFNAME`, `roce
/// stat` (also with --json), or `grep . /sys/class/infiniband/*/ports/1/hw_counters/*`; several outputs may
/// follow each other. The command knows the counters of mlx5, bnxt_re, irdma, rxe and roce. It recognizes
/// counters that passed their largest value, or that began at zero again.
///
/// The exit status is 1 if a counter of problems grew, or if a file has no counters; otherwise 0.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Counters before
    before: PathBuf,

    /// Counters after
    after: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  rdma statistic > before.txt
  rdma statistic > after.txt
  roce counters before.txt after.txt
  roce counters before.txt after.txt --json";

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let comparisons = read_both(&args.before, &args.after)?;
    let all = comparisons.iter().flat_map(|comparison| &comparison.changes);
    let problems = all.filter(|change| change.is_problem()).count();
    if args.json {
        let devices: Vec<Value> = comparisons.iter().map(changes).collect();
        super::document::print(output, "counters", &json!({ "problems": problems, "devices": devices }))?;
    } else {
        for comparison in &comparisons {
            print(comparison, output)?;
        }
        match problems {
            0 => writeln!(output, "No counter of problems grew.")?,
            1 => writeln!(output, "One counter of problems grew.")?,
            count => writeln!(output, "{count} counters of problems grew.")?,
        }
    }
    output.flush()?;
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares two files.
pub(super) fn read_both(before: &Path, after: &Path) -> anyhow::Result<Vec<Comparison>> {
    Ok(compare(&read(before)?, &read(after)?))
}

fn read(file: &Path) -> anyhow::Result<Snapshot> {
    let bytes = text_file::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Snapshot::parse(&String::from_utf8_lossy(&bytes)).with_context(|| file.display().to_string())
}

/// Returns whether a change is worth a line.
fn is_shown(change: &Change) -> bool {
    match change.outcome {
        Outcome::Same => false,
        Outcome::Reset { since } => since > 0,
        Outcome::Appeared | Outcome::Gone => false,
        _ => true,
    }
}

/// Prints what changed.
pub(super) fn print(comparison: &Comparison, output: &mut Output) -> io::Result<()> {
    let style = output.style;
    let driver = comparison.driver.map_or("unknown driver", |driver| driver.name());
    let title = format!("{} ({driver})", Text::new(&comparison.name));
    writeln!(output, "{}", style.paint(Paint::BOLD, title))?;
    if comparison.is_reset {
        let text = "The counters began at zero again between the two files, for example because the driver \
                    was loaded. The numbers are those since then.";
        writeln!(output, "  {}", style.paint(Paint::YELLOW, text))?;
    }
    let shown = || comparison.changes.iter().filter(|change| is_shown(change));
    for change in shown().filter(|change| change.event.is_some()) {
        known(change, comparison.is_reset, output)?;
    }
    let others: Vec<String> = shown()
        .filter(|change| change.event.is_none())
        .map(|change| format!("{} {}", Text::new(&change.name), amount(change, comparison.is_reset)))
        .collect();
    if !others.is_empty() {
        writeln!(output, "  without a description: {}", others.join(", "))?;
    }
    for (outcome, text) in
        [(Outcome::Appeared, "only in the second file"), (Outcome::Gone, "only in the first file")]
    {
        let count = comparison.changes.iter().filter(|change| change.outcome == outcome).count();
        if count > 0 {
            writeln!(output, "  {text}: {count}")?;
        }
    }
    let unchanged = comparison.changes.iter().filter(|change| change.outcome == Outcome::Same).count();
    writeln!(output, "  without a change: {unchanged}\n")
}

/// Prints a counter with its meaning; for problems and congestion also the cause and the next step.
fn known(change: &Change, is_reset: bool, output: &mut Output) -> io::Result<()> {
    let Some(event) = change.event else { return Ok(()) };
    let style = output.style;
    let (paint, is_explained) = match event.kind() {
        Kind::Problem => (Paint::RED, true),
        Kind::Congestion => (Paint::YELLOW, true),
        Kind::Traffic | Kind::Level => (Paint::DIM, false),
    };
    let kind = format!("{:<10}", event.kind().name());
    let name = Text::new(&change.name).to_string();
    let amount = amount(change, is_reset);
    writeln!(output, "  {}  {name} {amount}: {}", style.paint(paint, kind), event.meaning())?;
    if is_explained {
        writeln!(output, "              cause: {}", event.cause())?;
        writeln!(output, "              next:  {}", event.next_step())?;
    }
    Ok(())
}

/// Formats the change of a counter.
fn amount(change: &Change, is_reset: bool) -> String {
    let value = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let from = format!("{} to {}", value(change.before), value(change.after));
    match change.outcome {
        Outcome::Wrapped { by, bits } => format!("+{by} ({from}, past 2^{bits})"),
        Outcome::Reset { since } if is_reset => format!("+{since}"),
        Outcome::Reset { since } => format!("at least +{since} ({from}: began at zero again)"),
        Outcome::Fell(by) => format!("-{by} ({from})"),
        other => format!("+{} ({from})", other.growth()),
    }
}
