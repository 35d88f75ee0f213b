//! `roce sim`: runs scenarios in the simulator.

mod args;
mod capture;
mod emit;
mod failures;
mod figure;
mod ladder;
#[cfg(feature = "live")]
mod live;
mod memory;
mod merge;
mod print;
mod run;
pub(super) mod shipped;
mod sweep;
#[cfg(not(feature = "live"))]
mod without_live;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use roce_report::CompletedRun;

use self::figure::FigureFile;
use self::memory::Budget;
use self::merge::merge;
use self::print::{print_expectations, print_summary};
use self::run::{Job, Progress, Ran, write_report};
use self::sweep::{Checked, check, combinations, run_sweep, sweeps};
#[cfg(not(feature = "live"))]
use self::without_live as live;
use super::terminal::Output;
use super::trace::TraceFile;

pub(super) use self::args::Args;
pub(super) use self::args::WIDTHS;

pub(super) fn run(args: &Args, trace: Option<TraceFile>, output: &mut Output) -> anyhow::Result<ExitCode> {
    if args.list {
        shipped::list(args.json, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(dir) = &args.merge {
        return merge(args, dir, output);
    }
    let Some(name) = &args.scenario else {
        shipped::list_briefly(output)?;
        return Ok(ExitCode::SUCCESS);
    };
    let figure = FigureFile::of(args)?;
    let source = shipped::Source::find(name)?;
    let sweeps = sweeps(args, &source)?;
    if sweeps.is_empty() {
        if args.emit.is_some() || args.index.is_some() {
            bail!("--emit and --index need a sweep; add --sweep NAME=A,B,C, --sweeps or --seeds N");
        }
        run_one(args, &source, (trace, figure.as_ref()), output)?;
    } else if trace.is_some() && args.index.is_none() {
        bail!("--trace writes the events of one run; add --index I to choose a combination of the sweep");
    } else if let Some(system) = args.emit {
        let combinations = combinations(args, &sweeps)?;
        // This reports errors that would make every pod of the job fail.
        let Checked { files, .. } = check(&source, &combinations)?;
        let arguments: Vec<String> = std::env::args().collect();
        let (out, count) = (args.out.as_deref().unwrap_or(Path::new("")), combinations.len());
        let job = emit::Job { out, count, arguments: &arguments, files: &files };
        write!(output, "{}", job.text(system)?)?;
    } else {
        run_sweep(args, &source, combinations(args, &sweeps)?, (trace.as_ref(), figure.as_ref()), output)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_one(
    args: &Args,
    source: &shipped::Source,
    (trace, figure): (Option<TraceFile>, Option<&FigureFile<'_>>),
    output: &mut Output,
) -> anyhow::Result<()> {
    let report = args.out.as_ref().filter(|_| figure.is_none());
    let job = Job {
        set: args.common(),
        capture: args.pcap_port.clone(),
        dir: report.cloned(),
        ladder: args.ladder,
        trace,
        threads: args.threads,
        budget: Budget::new(args.memory),
    };
    let ran = if args.live {
        live::run(&job, source)?
    } else {
        let progress = Progress::new(!args.json);
        let ran = job.run(source, &mut |scenario, simulation| Ok(progress.watch(scenario, simulation)))?;
        progress.clear();
        ran
    };
    let Ran { completed, seconds, .. } = &ran;
    shipped::print_warnings(&completed.scenario);
    if let Some(dir) = report {
        write_report(dir, completed)?;
    }
    let draw = |file: &FigureFile<'_>| file.write(&file.kind.of_run(completed)?);
    if args.json {
        crate::document::print(output, "sim", &completed.summary)?;
        figure.map(draw).transpose()?;
        return ensure_well(completed);
    }
    if let Some(ladder) = &ran.ladder {
        writeln!(output, "{ladder}")?;
    }
    print_summary(output, &completed.summary)?;
    let speed = ran.packets_per_s();
    writeln!(output, "  {:36} {:.2} s, {speed:.0} data packets/s{}", "run time", seconds, ran.threads())?;
    print_expectations(output, completed)?;
    if let Some(dir) = report {
        writeln!(output, "  {:36} {}", "report", dir.join("report.html").display())?;
    }
    // The summary is printed even if the figure cannot be drawn.
    if let Some(files) = figure.map(draw).transpose()? {
        writeln!(output, "  {:36} {files}", "figure")?;
    }
    ensure_well(completed)
}

/// Returns an error if flows failed, or if the run does not meet the expectations of its scenario.
fn ensure_well(completed: &CompletedRun) -> anyhow::Result<()> {
    failures::ensure_none(&completed.summary)?;
    failures::ensure_met(completed)
}
