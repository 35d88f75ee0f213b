//! `roce sim`: a scenario in the simulator.

mod capture;
mod emit;
mod live;
mod merge;
mod report;
mod run;
pub(super) mod shipped;
mod summary;
mod sweep;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use self::merge::merge;
use self::run::{Job, Progress};
use self::sweep::{check, combinations, parse_sweep, run_sweep, sweeps};
use super::terminal::Output;

/// Run a scenario in the simulator: networks of switches whose hosts run the real engine
///
/// SCENARIO is a TOML file, or the name of a shipped one (`roce sim --list`). The same scenario and seed give the same
/// trace hash on every machine. docs/simulator.md explains the file and the model.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A scenario file, or the name of a shipped scenario
    #[arg(required_unless_present_any = ["list", "merge"])]
    scenario: Option<String>,

    /// List the shipped scenarios
    #[arg(long)]
    list: bool,

    /// Set a value of the scenario, such as host.congestion=dcqcn:paper or flows.0.bytes=1MB; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_set)]
    set: Vec<(String, String)>,

    /// Seed of every random decision, instead of that of the scenario: 0 to 2^63 - 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST_SEED))]
    seed: Option<u64>,

    /// Run once for each value, and for each combination if given several times: NAME=A;B;C, or commas where no value has one
    #[arg(long, value_name = "NAME=A,B,C", value_parser = parse_sweep)]
    sweep: Vec<(String, Vec<String>)>,

    /// Run once for each value of the sweeps that the scenario proposes, and for each combination; --set and --sweep go before
    #[arg(long)]
    sweeps: bool,

    /// Write CSV files, SVG plots and an HTML report into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Capture the port of a host (h1), or that of a switch to its neighbour (s0:h1), into DIR/PORT.pcapng, with - for the
    /// colon; payload becomes real. Needs --out
    #[arg(long, value_name = "PORT", requires = "out", conflicts_with_all = ["sweep", "sweeps"])]
    pcap_port: Vec<String>,

    /// Show rates and queues on the terminal while it runs: space stands still, + and - change the pace, q ends
    #[arg(long, conflicts_with_all = ["sweep", "sweeps", "json", "emit", "index"])]
    live: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Do not run: print a job that runs one combination of the sweep per index, for slurm or kubernetes
    #[arg(long, value_name = "SYSTEM", requires = "out")]
    emit: Option<emit::System>,

    /// Run only the combination with this number, from 0 on, as the jobs of --emit do
    #[arg(long, value_name = "I", requires = "out", conflicts_with = "emit")]
    index: Option<usize>,

    /// Print the table of the runs whose summaries lie in this directory; warns if some of the sweep are missing, and if
    /// they differ in scenario, version or what is swept
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "list"])]
    merge: Option<PathBuf>,
}

/// Numbers of TOML have a sign.
const MOST_SEED: u64 = u64::MAX / 2;

fn parse_set(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if args.list {
        shipped::list(output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(dir) = &args.merge {
        return merge(args, dir, output);
    }
    let name = args.scenario.as_deref().unwrap_or_default();
    let source = shipped::Source::find(name)?;
    let sweeps = sweeps(args, &source)?;
    if sweeps.is_empty() {
        if args.emit.is_some() || args.index.is_some() {
            bail!("--emit and --index are about the runs of a sweep: add --sweep NAME=A,B,C or --sweeps");
        }
        run_one(args, &source, output)?;
    } else if let Some(system) = args.emit {
        let combinations = combinations(args, &sweeps);
        // A job of thousands of pods that all fail is to fail here.
        let files = check(&source, &combinations)?;
        let arguments: Vec<String> = std::env::args().collect();
        let (out, count) = (args.out.as_deref().unwrap_or(Path::new("")), combinations.len());
        let job = emit::Job { out, count, arguments: &arguments, files: &files };
        write!(output, "{}", job.text(system)?)?;
    } else {
        run_sweep(args, &source, combinations(args, &sweeps), output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The values that are set for every run, the seed among them.
fn common(args: &Args) -> Vec<(String, String)> {
    let seed = args.seed.map(|seed| ("seed".to_owned(), seed.to_string()));
    args.set.iter().cloned().chain(seed).collect()
}

fn run_one(args: &Args, source: &shipped::Source, output: &mut Output) -> anyhow::Result<()> {
    let job = Job { set: common(args), capture: args.pcap_port.clone(), dir: args.out.clone() };
    let done = if args.live {
        live::run(&job, source)?
    } else {
        let progress = Progress::new(!args.json);
        let done = job.run(source, &mut |_, simulation| Ok(progress.watch(simulation)))?;
        progress.clear();
        done
    };
    if let Some(dir) = &args.out {
        report::write(dir, &done)?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *output, &done.summary)?;
        writeln!(output)?;
        return Ok(());
    }
    done.summary.print(output)?;
    let speed = done.packets_per_s();
    writeln!(output, "  {:36} {:.2} s, {speed:.0} data packets a second", "took", done.seconds)?;
    if !done.scenario.expectation.is_empty() {
        writeln!(output, "  {:36} {}", "expected", done.scenario.expectation)?;
    }
    if let Some(dir) = &args.out {
        writeln!(output, "  {:36} {}", "report", dir.join("report.html").display())?;
    }
    Ok(())
}
