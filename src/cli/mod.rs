//! The command `roce`: one file per subcommand.
//!
//! A subcommand `foo` is a file `foo.rs` here with its arguments (`Args`) and a function `run`, a variant
//! of `Command` and an arm in `Cli::run`.

mod common;
mod demo;
mod devices;
mod dissect;
mod explain;
mod measure;
mod terminal;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use terminal::{ColorChoice, Output};

/// A RoCE v2 NIC made of software, and tools to see what is on the wire.
#[derive(Debug, Parser)]
#[command(name = "roce", version)]
struct Cli {
    /// Write in color: auto (on a terminal unless NO_COLOR is set), always or never
    #[arg(long, global = true, value_enum, hide_possible_values = true, value_name = "WHEN")]
    #[arg(default_value_t = ColorChoice::Auto, hide_default_value = true)]
    color: ColorChoice,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Devices(devices::Args),
    Ping(measure::PingArgs),
    Blast(measure::BlastArgs),
    Dissect(dissect::Args),
    Explain(explain::Args),
}

impl Cli {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut output = Output::stdout(self.color);
        match self.command {
            Command::Demo(args) => demo::run(&args, &mut output),
            Command::Devices(args) => devices::run(&args, &mut output),
            Command::Ping(args) => measure::ping(&args, &mut output),
            Command::Blast(args) => measure::blast(&args, &mut output),
            Command::Dissect(args) => dissect::run(&args, &mut output),
            Command::Explain(args) => explain::run(&args, &mut output),
        }
    }
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        // Whoever reads our output has seen enough, like `head`.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Says on standard error what is wrong; there is nobody left to tell if that fails.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "roce: {text}");
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is_it = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_it))
}
