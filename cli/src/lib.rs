//! The command `roce`, with one file per subcommand.
//!
//! A subcommand `foo` has a file `foo.rs` here with its arguments (`Args`) and a function `run`. It also has
//! a variant of `Command` and an arm in `Cli::run`, or in `linux.rs` if it needs Linux. Options, input and
//! output of several subcommands are in files below them.

// The commands that need Linux and the features use more of the shared files.
#![cfg_attr(not(all(target_os = "linux", feature = "explore", feature = "live")), allow(dead_code))]

// Below the commands.
mod algorithms;
mod choice;
mod decode;
mod document;
mod errors;
mod help;
mod input;
mod terminal;
mod trace;
mod version;

// The commands.
mod analyze;
mod counters;
mod dissect;
mod explain;
mod ladder;
mod manual;
mod sim;
mod why;

// The differences between systems are in these files. `elsewhere.rs` is also part of the tests, which compare
// both lists of commands.
#[cfg(any(test, not(target_os = "linux")))]
mod elsewhere;
#[cfg_attr(target_os = "linux", path = "platform/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "platform/elsewhere.rs")]
mod platform;
#[cfg(not(target_os = "linux"))]
use elsewhere as network;

/// The commands that need Linux, and what only they use.
#[cfg(target_os = "linux")]
#[path = "."]
mod network {
    use super::{algorithms, document, errors, sim, terminal};

    mod choices;
    mod connect;
    mod default_device;
    mod device_options;
    mod installation;
    mod listen;
    pub(super) mod processes;
    mod progress;
    mod sizes;
    mod temporary;

    mod bridge;
    mod demo;
    mod devices;
    mod doctor;
    mod explore;
    mod inject;
    mod limit;
    mod measure;
    mod peer;
    mod perf;
    mod pingpong;
    mod rping;
    mod run;
    mod stat;
    mod study;

    mod linux;
    pub(super) use linux::Command;
}

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::fmt::time::uptime;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{filter, fmt};

pub use roce_scenario::Own;

use crate::trace::{Clock, EventStream, TraceFile};

use errors::{print_error, print_explanation, with_causes};
use help::EVERY_COMMAND;
use terminal::{ColorChoice, Output};

/// A software RoCE v2 NIC, and tools to measure, inspect and simulate RDMA traffic.
#[derive(Debug, Parser)]
#[command(name = "roce", version = version::VERSION, long_version = version::long())]
#[command(disable_help_flag = true, max_term_width = 80, after_help = EXAMPLES)]
struct Cli {
    /// When to color the output: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(long, global = true, value_enum, hide_possible_values = true, value_name = "WHEN")]
    #[arg(default_value_t = ColorChoice::Auto, hide_default_value = true)]
    #[arg(help_heading = EVERY_COMMAND, display_order = LAST)]
    color: ColorChoice,

    /// Write the decisions of the engine to this file, one JSON object per line: congestion notifications,
    /// rate cuts and increases, stages, retransmissions and so on; for a simulation also pauses, in virtual
    /// time (docs/reference/json.md lists the events)
    #[arg(long, global = true, value_name = "FILE", help_heading = EVERY_COMMAND, display_order = LAST + 1)]
    trace: Option<PathBuf>,

    /// Level of --trace: error, warn, info (also begin and end of simulated flows), debug (every decision) or
    /// trace (also every dropped packet)
    #[arg(long, global = true, value_name = "LEVEL", default_value = "debug")]
    #[arg(help_heading = EVERY_COMMAND, display_order = LAST + 2)]
    trace_level: tracing::Level,

    /// Print help: a summary with -h, everything with --help
    #[arg(long, short, global = true, action = clap::ArgAction::Help, help_heading = EVERY_COMMAND)]
    #[arg(display_order = LAST + 3)]
    help: Option<bool>,

    #[command(subcommand)]
    command: Command,
}

/// The display order of options behind all others.
const LAST: usize = 1_000;

/// The help of `roce` itself.
const EXAMPLES: &str = "\
Examples:
  roce demo
  roce ping --device udp:127.0.0.1
  roce ping 127.0.0.1 --device udp:127.0.0.2
  roce dissect trace.pcapng

`roce completions SHELL` prints a completion script, and `roce man --out DIR` writes manual pages.
Environment: ROCE_LOG=debug prints debug messages, ROCE_STAT=0 hides a process from `roce stat`.";

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Network(Box<network::Command>),
    Sim(sim::Args),
    Analyze(analyze::Args),
    Ladder(ladder::Args),
    Dissect(dissect::Args),
    Explain(explain::Args),
    Why(why::Args),
    Counters(counters::Args),
    #[command(hide = true)]
    Completions(manual::CompletionsArgs),
    #[command(hide = true)]
    Man(manual::ManArgs),
}

impl Cli {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut output = Output::stdout(self.color);
        let trace = self.start_logging()?;
        match self.command {
            Command::Network(command) => command.run(&mut output),
            Command::Sim(args) => sim::run(&args, trace, &mut output),
            Command::Analyze(args) => analyze::run(&args, &mut output),
            Command::Ladder(args) => ladder::run(&args, &mut output),
            Command::Dissect(args) => dissect::run(&args, &mut output),
            Command::Explain(args) => explain::run(&args, &mut output),
            Command::Why(args) => why::run(&args, &mut output),
            Command::Counters(args) => counters::run(&args, &mut output),
            Command::Completions(args) => manual::completions(&args, command(), &mut output),
            Command::Man(args) => manual::man(&args, command(), &mut output),
        }
    }
}

impl Cli {
    /// Sends errors and warnings to standard error. ROCE_LOG enables more messages, with the time and with
    /// each span as it ends. `--trace` also writes events to a file, which is returned.
    fn start_logging(&self) -> anyhow::Result<Option<TraceFile>> {
        let ansi = self.color.colors(io::stderr().is_terminal());
        let messages = fmt::layer().with_writer(io::stderr).with_ansi(ansi);
        let messages = match std::env::var("ROCE_LOG") {
            Ok(text) if !text.trim().is_empty() => {
                let filter: filter::Targets = text.parse().with_context(|| {
                    format!(
                        "ROCE_LOG={text} is not a valid filter; write a level, such as debug, or roce=trace"
                    )
                })?;
                messages.with_timer(uptime()).with_span_events(FmtSpan::CLOSE).with_filter(filter).boxed()
            }
            _ => messages.without_time().with_filter(LevelFilter::WARN).boxed(),
        };
        let file = self.trace.as_deref().map(TraceFile::create).transpose()?;
        let clock = if matches!(self.command, Command::Sim(_)) {
            Clock::Virtual
        } else {
            Clock::Since(Instant::now())
        };
        let stream = file.clone().map(|file| EventStream::new(file, clock));
        let stream = stream.map(|stream| stream.with_filter(LevelFilter::from_level(self.trace_level)));
        tracing_subscriber::registry().with(messages).with(stream).try_init()?;
        Ok(file)
    }
}

/// Parses the command line and runs the subcommand.
pub fn main() -> ExitCode {
    main_with(Vec::new())
}

/// Runs the command with additional congestion control algorithms, policies of paths and rules of switches.
/// `--congestion`, `--paths` and the scenarios of `roce sim` accept their names and parameters like those of
/// the built-in ones. `examples/own-algorithm` is a complete program.
pub fn main_with(own: impl Into<Own>) -> ExitCode {
    algorithms::register(own.into());
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()));
    match cli.unwrap_or_else(|error| error.exit()).run() {
        Ok(code) => code,
        // The reader, for example `head`, closed the pipe because it needs no more.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&with_causes(&error));
            print_explanation(&error);
            ExitCode::FAILURE
        }
    }
}

/// Returns the command line, with headings and examples.
fn command() -> clap::Command {
    help::with_headings(Cli::command())
}

/// Returns whether the reader of the output has closed the pipe. Typed errors also contain errors of sockets
/// and files, so their sources do not count.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use roce_exchange::{ExchangeError, ToolError};

    use super::*;

    /// Regression: a broken TCP connection to the other side ended the command with success and no message.
    #[test]
    fn a_connection_that_breaks_is_not_a_closed_pipe() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&anyhow::Error::from(broken()).context("cannot print")));
        let source = broken();
        let exchange = ExchangeError::Broken { what: "a plan", peer: "192.0.2.1:18520".to_owned(), source };
        assert!(!is_closed_pipe(&ToolError::from(exchange).into()));
    }
}
