//! `roce sim`: runs scenarios in the simulator.

mod capture;
mod deadlocks;
mod emit;
mod expect;
mod failures;
mod groups;
mod live;
mod means;
mod memory;
mod merge;
mod operations;
mod overview;
mod report;
mod run;
pub(super) mod shipped;
mod summary;
mod sweep;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use roce_transport::units;

use self::memory::Budget;
use self::merge::merge;
use self::run::{CompletedRun, Job, Progress};
use self::sweep::{Checked, check, combinations, parse_sweep, run_sweep, sweeps};
use super::terminal::Output;
use super::trace::TraceFile;

/// Run a scenario in the simulator: a network of switches whose hosts run the real engine
///
/// SCENARIO is a TOML file or the name of a shipped scenario (`roce sim --list`). The same scenario and seed
/// give the same trace hash on every machine. The exit status is 1 if flows failed, or if the run of an
/// unchanged scenario does not meet its [[expect]] tables. docs/reference/simulator.md describes the file and
/// the model.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Scenario file, or name of a shipped scenario; without one, the shipped scenarios are listed
    scenario: Option<String>,

    /// List the shipped scenarios
    #[arg(long)]
    list: bool,

    /// Replace a value of the scenario, such as host.congestion=dcqcn:paper or flows.0.bytes=1MB; may be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_set)]
    set: Vec<(String, String)>,

    /// Seed of all random decisions, 0 to 2^63 - 1; replaces the seed of the scenario
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MAX_SEED))]
    seed: Option<u64>,

    /// Run once for each value, or once for each combination if repeated; separate values by ; if they
    /// contain commas
    #[arg(long, value_name = "NAME=A,B,C", value_parser = parse_sweep)]
    sweep: Vec<(String, Vec<String>)>,

    /// Run all combinations of the sweeps in the scenario; --set and --sweep override the values of the same
    /// name
    #[arg(long)]
    sweeps: bool,

    /// Run each combination with N seeds, starting at the seed of the scenario or of --seed; prints means
    /// with 95 % confidence intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=10_000))]
    #[arg(conflicts_with_all = ["live", "pcap_port"])]
    seeds: Option<u64>,

    /// Write CSV files, SVG plots and an HTML report into this directory; for a sweep, also sweep.csv and a
    /// report of all runs
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Capture the port of a host (h1), or the port of a switch to a neighbor (s0:h1), to DIR/PORT.pcapng
    /// (s0-h1.pcapng); the simulation then carries real payload. Needs --out
    #[arg(long, value_name = "PORT", requires = "out", conflicts_with_all = ["sweep", "sweeps"])]
    pcap_port: Vec<String>,

    /// Show rates and queues on the terminal during the run; space pauses, + and - change the speed, q quits
    #[arg(long, conflicts_with_all = ["sweep", "sweeps", "json", "emit", "index"])]
    live: bool,

    /// Number of threads that run parts of the network at the same time; the results do not depend on it. A
    /// sweep runs fewer simulations at once if each has several threads. Captures, --trace and --live need
    /// one thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_threads)]
    threads: usize,

    /// Memory limit of all runs together, such as 8GB; a run that needs more is refused. Default: the memory
    /// that is available on the machine, or in the control group of the command
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    memory: Option<u64>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print a job for slurm or kubernetes that runs one combination of the sweep per index, instead of
    /// running it
    #[arg(long, value_name = "SYSTEM", requires = "out")]
    emit: Option<emit::System>,

    /// Run only the combination with this index, starting at 0, as the jobs of --emit do
    #[arg(long, value_name = "I", requires = "out", conflicts_with = "emit")]
    index: Option<usize>,

    /// Print the table of the runs in this directory, and write sweep.csv and the report of all runs there;
    /// warns if runs of the sweep are missing, or if they differ in scenario, version or swept values
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "list"])]
    merge: Option<PathBuf>,
}

/// The maximum seed, because TOML integers are signed.
const MAX_SEED: u64 = u64::MAX / 2;

/// Maximum number of threads of a run.
const MOST_THREADS: usize = 256;

fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=MOST_THREADS).contains(threads));
    threads.ok_or_else(|| format!("expected 1 to {MOST_THREADS}"))
}

fn parse_set(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

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
    let source = shipped::Source::find(name)?;
    let sweeps = sweeps(args, &source)?;
    if sweeps.is_empty() {
        if args.emit.is_some() || args.index.is_some() {
            bail!("--emit and --index need a sweep; add --sweep NAME=A,B,C, --sweeps or --seeds N");
        }
        run_one(args, &source, trace, output)?;
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
        run_sweep(args, &source, combinations(args, &sweeps)?, trace.as_ref(), output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the values that are set for every run, including the seed.
fn common(args: &Args) -> Vec<(String, String)> {
    // With --seeds, `--seed` is the first of the swept seeds.
    let seed = args.seed.filter(|_| args.seeds.is_none()).map(|seed| ("seed".to_owned(), seed.to_string()));
    args.set.iter().cloned().chain(seed).collect()
}

fn run_one(
    args: &Args,
    source: &shipped::Source,
    trace: Option<TraceFile>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let job = Job {
        set: common(args),
        capture: args.pcap_port.clone(),
        dir: args.out.clone(),
        trace,
        threads: args.threads,
        budget: Budget::new(args.memory),
    };
    let completed = if args.live {
        live::run(&job, source)?
    } else {
        let progress = Progress::new(!args.json);
        let completed =
            job.run(source, &mut |scenario, simulation| Ok(progress.watch(scenario, simulation)))?;
        progress.clear();
        completed
    };
    if let Some(dir) = &args.out {
        report::write(dir, &completed)?;
    }
    if args.json {
        crate::document::print(output, "sim", &completed.summary)?;
        return ensure_well(&completed);
    }
    completed.summary.print(output)?;
    let speed = completed.packets_per_s();
    writeln!(
        output,
        "  {:36} {:.2} s, {speed:.0} data packets/s{}",
        "run time",
        completed.seconds,
        completed.threads()
    )?;
    expect::print(&completed, output)?;
    if let Some(dir) = &args.out {
        writeln!(output, "  {:36} {}", "report", dir.join("report.html").display())?;
    }
    ensure_well(&completed)
}

/// Returns an error if flows failed, or if the run does not meet the expectations of its scenario.
fn ensure_well(completed: &CompletedRun) -> anyhow::Result<()> {
    failures::ensure_none(&completed.summary)?;
    expect::ensure_met(completed)
}
