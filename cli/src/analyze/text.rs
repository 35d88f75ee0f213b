//! A report as text.

use std::io::{self, Write as _};

use roce_analysis::summary::Summary;
use roce_analysis::verdict::{Outcome, Verdict};
use roce_document::analyze::{Part, Report, of_requests, parties};

use crate::counters;
use crate::terminal::{Output, Paint, Style, wrapped};

/// Column in which the text of a verdict starts.
const INDENT: usize = 38;

pub(super) fn print(report: &Report<'_>, output: &mut Output) -> io::Result<()> {
    let [losses, verdicts, first] = report.conclusion();
    let width = output.terminal_width.unwrap_or(110).clamp(70, 140);
    let word = painted(output.style, report.outcome());
    writeln!(output, "{}", wrapped(&losses, 2, width))?;
    writeln!(output, "{word}: {}", wrapped(&verdicts, 2, width))?;
    writeln!(output, "{}", wrapped(&first, 2, width))?;
    if !report.verdicts.is_empty() {
        writeln!(output, "\n{}", output.style.paint(Paint::BOLD, "Capture"))?;
        for verdict in &report.verdicts {
            print_verdict(verdict, output, width)?;
        }
    }
    for part in &report.parts {
        print_part(part, output, width)?;
    }
    for comparison in &report.counters {
        writeln!(output)?;
        counters::print(comparison, output)?;
    }
    Ok(())
}

fn print_part(part: &Part<'_>, output: &mut Output, width: usize) -> io::Result<()> {
    let title = format!("Connection {}: {}", part.number, part.title());
    writeln!(output, "\n{}", output.style.paint(Paint::BOLD, title))?;
    writeln!(output, "  {}", wrapped(&part.about(), 4, width))?;
    let Summary { ends, requests, .. } = &part.summary;
    let [one, other] = ends;
    let is_same = one.address == other.address;
    for (end, requests) in ends.iter().zip(requests) {
        let name = match end.qpn {
            Some(qpn) if is_same => format!("QP 0x{:x}", qpn.get()),
            _ => end.address.to_string(),
        };
        let lines = of_requests(requests);
        if let Some((first, more)) = lines.split_first() {
            writeln!(output, "  {}", wrapped(&format!("{name} requests {first}"), 4, width))?;
            for line in more {
                writeln!(output, "    {}", wrapped(line, 4, width))?;
            }
        }
    }
    for verdict in &part.verdicts {
        print_verdict(verdict, output, width)?;
    }
    Ok(())
}

fn print_verdict(verdict: &Verdict, output: &mut Output, width: usize) -> io::Result<()> {
    let word = painted(output.style, verdict.outcome);
    let space = " ".repeat(7_usize.saturating_sub(verdict.outcome.name().len()));
    let title = verdict.rule.title;
    writeln!(output, "  {word}{space}  {title:<27}{}", wrapped(&verdict.summary, INDENT, width))?;
    let proof = proof(verdict);
    if !proof.is_empty() && verdict.outcome != Outcome::Pass {
        let proof = wrapped(&proof, INDENT, width);
        writeln!(output, "{:INDENT$}{}", "", output.style.paint(Paint::DIM, proof))?;
    }
    Ok(())
}

/// Returns the ends that a failed verdict concerns, and the packets that prove a verdict.
pub(super) fn proof(verdict: &Verdict) -> String {
    let places: Vec<String> = verdict.packets.iter().map(ToString::to_string).collect();
    let plural = if places.len() == 1 { "" } else { "s" };
    let packets = (!places.is_empty()).then(|| format!("packet{plural} {}", places.join(", ")));
    [parties(verdict), packets].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn painted(style: Style, outcome: Outcome) -> String {
    let paint = match outcome {
        Outcome::Pass => Paint::GREEN,
        Outcome::Fail => Paint::RED,
        Outcome::Unknown => Paint::DIM,
    };
    style.paint(paint, outcome.name()).to_string()
}
