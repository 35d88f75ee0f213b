//! The command `roce`: one file per subcommand.
//!
//! A subcommand `foo` is a file `foo.rs` here with its arguments (`Args`) and a function `run`, a variant
//! of `Command` and an arm in `Cli::run`.

mod bridge;
mod common;
mod demo;
mod devices;
mod dissect;
mod doctor;
mod explain;
mod limit;
mod measure;
mod own;
mod perf;
mod pingpong;
mod rping;
mod sim;
mod stat;
mod terminal;
mod trace;

use std::fs::File;
use std::io::{self, IsTerminal as _, LineWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::fmt::time::uptime;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt};

use crate::trace::EventStream;
use roce::verbs::congestion::Algorithm;

use terminal::{ColorChoice, Output};

/// A RoCE v2 NIC made of software, and tools to see what is on the wire.
#[derive(Debug, Parser)]
#[command(name = "roce", version)]
struct Cli {
    /// Write in color: auto (on a terminal unless NO_COLOR is set), always or never
    #[arg(long, global = true, value_enum, hide_possible_values = true, value_name = "WHEN")]
    #[arg(default_value_t = ColorChoice::Auto, hide_default_value = true)]
    color: ColorChoice,

    /// Write what the engine decides to this file, one JSON object a line
    #[arg(long, global = true, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// How much --trace writes: error, warn, info, debug (every decision) or trace (every dropped packet)
    #[arg(long, global = true, value_name = "LEVEL", default_value = "debug")]
    trace_level: tracing::Level,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Devices(devices::Args),
    Ping(measure::PingArgs),
    Blast(measure::BlastArgs),
    Pingpong(pingpong::Args),
    Bridge(bridge::Args),
    Limit(limit::Args),
    Rping(rping::Args),
    Perf(perf::Args),
    Doctor(doctor::Args),
    Stat(stat::Args),
    Sim(sim::Args),
    Dissect(dissect::Args),
    Explain(explain::Args),
}

impl Cli {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut output = Output::stdout(self.color);
        self.start_logging()?;
        match self.command {
            Command::Demo(args) => demo::run(&args, &mut output),
            Command::Devices(args) => devices::run(&args, &mut output),
            Command::Ping(args) => measure::ping(&args, &mut output),
            Command::Blast(args) => measure::blast(&args, &mut output),
            Command::Pingpong(args) => pingpong::run(&args, &mut output),
            Command::Bridge(args) => bridge::run(&args, &mut output),
            Command::Limit(args) => limit::run(&args, &mut output),
            Command::Rping(args) => rping::run(&args, &mut output),
            Command::Perf(args) => perf::run(&args, &mut output),
            Command::Doctor(args) => doctor::run(&args, &mut output),
            Command::Stat(args) => stat::run(&args, &mut output),
            Command::Sim(args) => sim::run(&args, &mut output),
            Command::Dissect(args) => dissect::run(&args, &mut output),
            Command::Explain(args) => explain::run(&args, &mut output),
        }
    }
}

impl Cli {
    /// Errors and warnings go to standard error; ROCE_LOG asks for more, with the time and with the spans as they
    /// end, and `--trace` for a file.
    fn start_logging(&self) -> anyhow::Result<()> {
        let ansi = self.color.colors(io::stderr().is_terminal());
        let messages = fmt::layer().with_writer(io::stderr).with_ansi(ansi);
        let messages = match std::env::var("ROCE_LOG") {
            Ok(wish) => {
                let filter = EnvFilter::try_new(&wish).with_context(|| {
                    format!("ROCE_LOG={wish} is no filter; write a level, such as debug, or roce=trace")
                })?;
                messages.with_timer(uptime()).with_span_events(FmtSpan::CLOSE).with_filter(filter).boxed()
            }
            Err(_) => messages.without_time().with_filter(EnvFilter::new("warn")).boxed(),
        };
        let stream = match &self.trace {
            Some(path) => {
                let file = File::create(path).with_context(|| {
                    format!("making {}; --trace needs a place to write to", path.display())
                })?;
                Some(EventStream::new(LineWriter::new(file), self.trace_level))
            }
            None => None,
        };
        tracing_subscriber::registry().with(messages).with(stream).try_init()?;
        Ok(())
    }
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    main_with(Vec::new())
}

/// The same command with congestion control algorithms of the caller's: `--congestion` and the scenarios of `roce sim` may
/// name them as they name those of this crate. `cli/examples/own_algorithm.rs` is a whole program.
pub fn main_with(algorithms: Vec<Algorithm>) -> ExitCode {
    own::bring(algorithms);
    match Cli::parse().run() {
        Ok(code) => code,
        // Whoever reads our output has seen enough, like `head`.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// Says on standard error what is wrong; there is nobody left to tell if that fails.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "roce: {text}");
}

/// An error and its causes, without those that it says itself.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is_it = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_it))
}
