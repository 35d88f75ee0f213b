//! The options of `roce sim`.

use std::path::PathBuf;

use roce_plot::Width;
use roce_report::FigureKind;
use roce_transport::units;

use super::emit::System;
use crate::choice::{Choice, one_of};

/// `--figure`.
pub(super) const FIGURES: &[Choice<FigureKind>] = &[
    ("slowdown", "Slowdown by size of flows, and the number of flows of each size", FigureKind::Slowdown),
    ("queue", "Queues over time; of several runs, the distribution of the longest queue", FigureKind::Queue),
    ("rates", "Payload over time, by flow; of several runs, all flows together", FigureKind::Rates),
    ("cdf", "Distribution of completion times", FigureKind::Cdf),
    ("incast", "Completion times, queue and goodput against a swept number", FigureKind::Incast),
];

/// `--figure-width`.
pub(crate) const WIDTHS: &[Choice<Width>] = &[
    ("3.3", "A column of a page with two columns", Width::Column),
    ("7", "Both columns of such a page", Width::Page),
];

/// A name and its values.
pub(super) type Sweep = (String, Vec<String>);

/// Run a scenario in the simulator: a network of switches whose hosts run the real engine
///
/// SCENARIO is a TOML file or the name of a shipped scenario (`roce sim --list`). The same scenario and seed
/// give the same trace hash on every machine. The exit status is 1 if flows failed, or if the run of an
/// unchanged scenario does not meet its [[expect]] tables. docs/reference/simulator.md describes the file and
/// the model.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Scenario file, or name of a shipped scenario; without one, the shipped scenarios are listed
    pub(super) scenario: Option<String>,

    /// List the shipped scenarios
    #[arg(long)]
    pub(super) list: bool,

    /// Replace a value of the scenario, such as host.congestion=dcqcn:paper or flows.0.bytes=1MB; may be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_set)]
    pub(super) set: Vec<(String, String)>,

    /// Seed of all random decisions, 0 to 2^63 - 1; replaces the seed of the scenario
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MAX_SEED))]
    pub(super) seed: Option<u64>,

    /// Run once for each value, or once for each combination if repeated; separate values by ; if they
    /// contain commas
    #[arg(long, value_name = "NAME=A,B,C", value_parser = parse_sweep)]
    pub(super) sweep: Vec<(String, Vec<String>)>,

    /// Run all combinations of the sweeps in the scenario; --set and --sweep override the values of the same
    /// name
    #[arg(long)]
    pub(super) sweeps: bool,

    /// Run each combination with N seeds, starting at the seed of the scenario or of --seed; prints means
    /// with 95 % confidence intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=10_000))]
    #[arg(conflicts_with_all = ["live", "pcap_port"])]
    pub(super) seeds: Option<u64>,

    /// Write CSV files, SVG plots and an HTML report into this directory; for a sweep, also sweep.csv and a
    /// report of all runs
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,

    /// Draw one figure into the file of --out, as SVG or PDF by its ending, and its points into a table
    /// beside it (.tsv). Several seeds are one line with 95 % confidence intervals. With --merge DIR, the
    /// runs are read from a directory
    #[arg(long, value_name = "FIGURE", value_parser = one_of(FIGURES), requires = "out")]
    #[arg(conflicts_with_all = ["list", "emit", "index", "pcap_port", "live"])]
    pub(super) figure: Option<FigureKind>,

    /// Width of the figure in inches [default: 3.3]
    #[arg(long, value_name = "INCHES", value_parser = one_of(WIDTHS), requires = "figure")]
    pub(super) figure_width: Option<Width>,

    /// Capture the port of a host (h1), or the port of a switch to a neighbor (s0:h1), to DIR/PORT.pcapng
    /// (s0-h1.pcapng); the simulation then carries real payload. Needs --out
    #[arg(long, value_name = "PORT", requires = "out", conflicts_with_all = ["sweep", "sweeps"])]
    pub(super) pcap_port: Vec<String>,

    /// Draw the packets of a flow as a sequence ladder, as both hosts saw them: of flow 0, or of the flow
    /// with this number; `roce ladder --help` explains the signs. The simulation then carries real payload
    #[arg(long, value_name = "FLOW", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    #[arg(conflicts_with_all = ["sweep", "sweeps", "seeds", "json", "emit", "index", "live"])]
    pub(super) ladder: Option<u32>,

    /// Show rates and queues on the terminal during the run; space pauses, + and - change the speed, q quits
    #[arg(long, conflicts_with_all = ["sweep", "sweeps", "json", "emit", "index"])]
    pub(super) live: bool,

    /// Number of threads that run parts of the network at the same time; the results do not depend on it. A
    /// sweep runs fewer simulations at once if each has several threads. Captures, --trace and --live need
    /// one thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_threads)]
    pub(super) threads: usize,

    /// Memory limit of all runs together, such as 8GB; a run that needs more is refused. Default: the memory
    /// that is available on the machine, or in the control group of the command
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(super) memory: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,

    /// Print a job for slurm or kubernetes that runs one combination of the sweep per index, instead of
    /// running it
    #[arg(long, value_name = "SYSTEM", requires = "out")]
    pub(super) emit: Option<System>,

    /// Run only the combination with this index, starting at 0, as the jobs of --emit do
    #[arg(long, value_name = "I", requires = "out", conflicts_with = "emit")]
    pub(super) index: Option<usize>,

    /// Print the table of the runs in this directory, and write sweep.csv and the report of all runs there;
    /// warns if runs of the sweep are missing, or if they differ in scenario, version or swept values
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "list"])]
    pub(super) merge: Option<PathBuf>,
}

/// The maximum seed, because TOML integers are signed.
pub(super) const MAX_SEED: u64 = u64::MAX / 2;

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

/// Parses a sweep. Values are separated by semicolons if there is one, otherwise by commas. The values of
/// congestion control contain commas.
fn parse_sweep(text: &str) -> Result<Sweep, String> {
    let (name, values) = parse_set(text).map_err(|_| "expected NAME=A,B,C")?;
    let separator = if values.contains(';') { ';' } else { ',' };
    let values: Vec<String> = values.split(separator).map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) { Err("a value is empty".to_owned()) } else { Ok((name, values)) }
}

impl Args {
    /// Returns the values that are set for every run, including the seed.
    pub(super) fn common(&self) -> Vec<(String, String)> {
        // With --seeds, `--seed` is the first of the swept seeds.
        let seed = self.seed.filter(|_| self.seeds.is_none());
        let seed = seed.map(|seed| ("seed".to_owned(), seed.to_string()));
        self.set.iter().cloned().chain(seed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_split_at_semicolons_or_commas() {
        let (name, values) = parse_sweep("flows.0.degree=2, 8,16").unwrap();
        assert_eq!((name.as_str(), values.join(" ").as_str()), ("flows.0.degree", "2 8 16"));
        let (_, values) = parse_sweep("host.congestion=dcqcn:paper,rpg_ai_rate=40;none").unwrap();
        assert_eq!(values, ["dcqcn:paper,rpg_ai_rate=40", "none"]);
        assert!(parse_sweep("a=1,,2").is_err() && parse_sweep("a").is_err());
    }
}
