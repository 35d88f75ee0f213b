//! `roce sim`: a scenario in the simulator.

mod emit;
mod live;
mod report;
mod run;
pub(super) mod shipped;
mod summary;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};

use self::run::{Job, Progress};
use self::summary::{Summary, print_table};
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

    /// Seed of every random decision, instead of that of the scenario
    #[arg(long, value_name = "N")]
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

    /// Print the table of the runs whose summaries lie in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "list"])]
    merge: Option<PathBuf>,
}

fn parse_set(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Values are separated by semicolons if there is one, else by commas: those of congestion controls have commas.
fn parse_sweep(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = parse_set(text).map_err(|_| "write NAME=A,B,C")?;
    let separator = if values.contains(';') { ';' } else { ',' };
    let values: Vec<String> = values.split(separator).map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) { Err("a value is empty".to_owned()) } else { Ok((name, values)) }
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
    if sweeps.is_empty() && (args.emit.is_some() || args.index.is_some()) {
        bail!("--emit and --index are about the runs of a sweep: add --sweep NAME=A,B,C or --sweeps");
    }
    if let Some(system) = args.emit {
        let count = combinations(args, &sweeps).len();
        write!(
            output,
            "{}",
            emit::job(system, args.out.as_deref(), count, &std::env::args().collect::<Vec<_>>())
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let summaries = if sweeps.is_empty() {
        vec![run_one(args, &source, output)?]
    } else {
        run_sweep(args, &source, combinations(args, &sweeps), output)?
    };
    if args.json {
        match summaries.as_slice() {
            [one] if sweeps.is_empty() => serde_json::to_writer_pretty(&mut *output, one)?,
            all => serde_json::to_writer_pretty(&mut *output, all)?,
        }
        writeln!(output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The values that are set for every run, the seed among them.
fn common(args: &Args) -> Vec<(String, String)> {
    let seed = args.seed.map(|seed| ("seed".to_owned(), seed.to_string()));
    args.set.iter().cloned().chain(seed).collect()
}

fn run_one(args: &Args, source: &shipped::Source, output: &mut Output) -> anyhow::Result<Summary> {
    let job = Job { set: common(args), capture: args.pcap_port.clone() };
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
    if !args.json {
        done.summary.print(output)?;
        writeln!(
            output,
            "  {:36} {:.2} s, {:.0} data packets a second",
            "took",
            done.seconds,
            done.packets_per_s()
        )?;
        if !done.scenario.expectation.is_empty() {
            writeln!(output, "  {:36} {}", "expected", done.scenario.expectation)?;
        }
        if let Some(dir) = &args.out {
            writeln!(output, "  {:36} {}", "report", dir.join("report.html").display())?;
        }
    }
    Ok(done.summary)
}

/// A name and the values that it is to have, one after the other.
type Sweep = (String, Vec<String>);

/// What is swept: what the scenario proposes, if that is asked for and nothing else is said of it, and what the user wants.
fn sweeps(args: &Args, source: &shipped::Source) -> anyhow::Result<Vec<Sweep>> {
    if !args.sweeps {
        return Ok(args.sweep.clone());
    }
    let common = common(args);
    let mut sweeps = source.parse(&common)?.sweeps;
    ensure!(
        !sweeps.is_empty(),
        "the scenario proposes no sweep: it has no [[sweep]] table; use --sweep NAME=A,B,C"
    );
    let said = |name: &str| {
        common.iter().any(|(known, _)| known == name) || args.sweep.iter().any(|(known, _)| known == name)
    };
    sweeps.retain(|(name, _)| !said(name));
    sweeps.extend_from_slice(&args.sweep);
    Ok(sweeps)
}

/// Every combination of the values that are swept, the last one changing fastest.
fn combinations(args: &Args, sweeps: &[Sweep]) -> Vec<Vec<(String, String)>> {
    let mut all = vec![common(args)];
    for (name, values) in sweeps {
        let longer = all.iter().flat_map(|set| {
            values.iter().map(|value| {
                let mut set = set.clone();
                set.push((name.clone(), value.clone()));
                set
            })
        });
        all = longer.collect();
    }
    all
}

fn run_sweep(
    args: &Args,
    source: &shipped::Source,
    mut sets: Vec<Vec<(String, String)>>,
    output: &mut Output,
) -> anyhow::Result<Vec<Summary>> {
    let first = args.index.unwrap_or(0);
    if let Some(index) = args.index {
        ensure!(index < sets.len(), "there are {} combinations; --index goes from 0 on", sets.len());
        sets = vec![sets.swap_remove(index)];
    }
    // What is wrong with a combination is said before hours are spent on others.
    for set in &sets {
        source.parse(set)?;
    }
    let progress = Progress::new(!args.json);
    let summaries = run::all(source, &sets, args.out.as_deref(), first, &progress)?;
    progress.clear();
    if !args.json {
        print_table(output, &summaries)?;
    }
    Ok(summaries)
}

fn merge(args: &Args, dir: &std::path::Path, output: &mut Output) -> anyhow::Result<ExitCode> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("reading the directory {}", dir.display()))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path().join("summary.json"))).collect();
    files.retain(|file| file.is_file());
    files.sort();
    if files.is_empty() {
        bail!("no run lies in {}: each is a directory with a summary.json", dir.display());
    }
    let mut summaries = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let summary: Summary = serde_json::from_str(&text)
            .with_context(|| format!("{} is no summary of a run", file.display()))?;
        summaries.push(summary);
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *output, &summaries)?;
        writeln!(output)?;
    } else {
        print_table(output, &summaries)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_sweep() {
        let (name, values) = parse_sweep("flows.0.degree=2, 8,16").unwrap();
        assert_eq!((name.as_str(), values.join(" ").as_str()), ("flows.0.degree", "2 8 16"));
        let (_, values) = parse_sweep("host.congestion=dcqcn:paper,rpg_ai_rate=40;none").unwrap();
        assert_eq!(values, ["dcqcn:paper,rpg_ai_rate=40", "none"]);
        assert!(parse_sweep("a=1,,2").is_err() && parse_sweep("a").is_err());
    }
}
