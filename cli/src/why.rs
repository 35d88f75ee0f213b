//! `roce why`: explains error numbers that programs print, and the queue pairs of running processes.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use roce::observe::{CodeKind, ErrorCode, Survey, codes, look_up, survey};

use super::terminal::{Output, Paint};

/// Explain an error: the status or vendor error of a failed completion, with its likely causes in order and
/// the next command for each
///
/// CODE is a number or name as programs print it: a status such as 12, RETRY_EXC_ERR or
/// IBV_WC_RETRY_EXC_ERR, or a vendor error such as 0x81 or 129. `roce` knows its own vendor errors and those
/// of mlx5 (ConnectX) that have a public source. Without an argument, the command lists all of them.
///
/// With --pid, the command explains the queue pairs of a running process: each that has failed with the check
/// that failed, packets dropped here and likely causes, and then those with incomplete requests, 8 in all.
///
/// The exit status is 1 if a CODE or the process is unknown, otherwise 0.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Status or vendor error of a work completion, as a number or name
    #[arg(value_name = "CODE")]
    codes: Vec<String>,

    /// Explain the queue pairs of this running process, which `roce stat` shows
    #[arg(long, value_name = "PID", conflicts_with = "codes")]
    pid: Option<u32>,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if let Some(pid) = args.pid {
        process(pid, output)?;
    } else if args.codes.is_empty() {
        list(output)?;
    }
    for (index, text) in args.codes.iter().enumerate() {
        let found = look_up(text);
        let Some((first, others)) = found.split_first() else {
            bail!(
                "no error has the number or name {text:?}; `roce why` without an argument lists all of them"
            );
        };
        if index > 0 {
            writeln!(output)?;
        }
        explain(output, first)?;
        for other in others {
            writeln!(output, "{}: {}, {}", title(other), other.name, other.meaning)?;
        }
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Explains the queue pairs of a process.
fn process(pid: u32, output: &mut Output) -> anyhow::Result<()> {
    let Survey { found, unanswered, .. } =
        survey(Some(pid)).context("cannot read the sockets of running processes")?;
    if let Some(process) = unanswered.first() {
        bail!(
            "process {pid} does not answer at {}; check whether it is stopped (`ps -o stat {pid}`)",
            process.path
        );
    }
    if found.is_empty() {
        bail!(
            "process {pid} publishes nothing; check that it is running and belongs to you, and that it was started \
             with ROCE_STAT=1 if it is not a `roce` command"
        );
    }
    for published in &found {
        let title = format!("{} {}: {}", published.pid, published.command, published.addresses.join(", "));
        writeln!(output, "{}", output.style.paint(Paint::BOLD, title))?;
        for explanation in &published.explanations {
            writeln!(output, "{explanation}")?;
        }
        if published.explanations.is_empty() {
            writeln!(output, "no queue pair exists")?;
        }
    }
    Ok(())
}

/// Returns the number of an error and its list.
fn title(code: &ErrorCode) -> String {
    match code.kind {
        CodeKind::Status => format!("{} as {}", code.number, code.kind.name()),
        _ => format!("{:#x} ({}) as {}", code.number, code.number, code.kind.name()),
    }
}

fn explain(output: &mut Output, code: &ErrorCode) -> std::io::Result<()> {
    let name = match code.kind {
        CodeKind::Status => format!("IBV_WC_{}", code.name),
        _ => code.name.clone(),
    };
    writeln!(output, "{}", output.style.paint(Paint::BOLD, format!("{}: {name}", title(code))))?;
    writeln!(output, "  {}", code.meaning)?;
    if code.kind == CodeKind::Vendor {
        writeln!(output, "  status: IBV_WC_{} ({})", code.status.name(), code.status as u8)?;
    }
    writeln!(output, "  source: {}", code.source)?;
    if !code.likely.is_empty() {
        writeln!(output, "likely causes, the most likely one first, each with the next step:")?;
    }
    for (number, likely) in (1..).zip(&code.likely) {
        writeln!(output, "  {number}. {}\n     {}", likely.cause, likely.next)?;
    }
    Ok(())
}

/// Prints one line for each known number.
fn list(output: &mut Output) -> std::io::Result<()> {
    let mut last = None;
    for code in codes() {
        if last.replace(code.kind) != Some(code.kind) {
            writeln!(output, "{}", output.style.paint(Paint::BOLD, code.kind.name()))?;
        }
        let number = match code.kind {
            CodeKind::Status => code.number.to_string(),
            _ => format!("{:#x}", code.number),
        };
        writeln!(output, "  {number:>4}  {:<22}  {}", code.name, code.meaning)?;
    }
    writeln!(output, "\n`roce why CODE` names the likely causes of one of them")
}
