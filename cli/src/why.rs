//! `roce why`: explains error numbers that programs print, and the queue pairs of running processes where the
//! system has them.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context as _;
use roce_codes::{CodeKind, ErrorCode, codes, look_up};
use serde_json::{Value, json};

use super::platform;
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

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if args.json {
        super::document::print(output, "why", &document(args)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(pid) = args.pid {
        platform::explain_process(pid, output)?;
    } else if args.codes.is_empty() {
        list(output)?;
    }
    for (index, text) in args.codes.iter().enumerate() {
        let (first, others) = known(text)?;
        if index > 0 {
            writeln!(output)?;
        }
        explain(output, &first)?;
        for other in others {
            writeln!(output, "{}: {}, {}", title(&other), other.name, other.meaning)?;
        }
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the meanings of a number or name, the most likely one first.
fn known(text: &str) -> anyhow::Result<(ErrorCode, Vec<ErrorCode>)> {
    let mut found = look_up(text).into_iter();
    let first = found.next().with_context(|| {
        format!("no error has the number or name {text:?}; `roce why` without an argument lists all of them")
    })?;
    Ok((first, found.collect()))
}

/// Returns the document: the contexts of a process, the meanings of the codes, or every known number.
fn document(args: &Args) -> anyhow::Result<Value> {
    if let Some(pid) = args.pid {
        return platform::document_of_process(pid);
    }
    let mut all = Vec::new();
    for text in &args.codes {
        let (first, others) = known(text)?;
        for code in std::iter::once(first).chain(others) {
            let mut value = document_of_code(&code);
            value["query"] = json!(text);
            all.push(value);
        }
    }
    if args.codes.is_empty() {
        all = codes().iter().map(document_of_code).collect();
    }
    Ok(json!({ "codes": all }))
}

fn document_of_code(code: &ErrorCode) -> Value {
    let ErrorCode { kind, number, name, status, meaning, source, likely, .. } = code;
    let likely = likely.iter().map(|likely| json!({ "cause": likely.cause, "next_step": likely.next }));
    json!({
        "list": kind.name(), "number": number, "name": name, "meaning": meaning, "source": source,
        "status": { "number": *status as u8, "name": status.name() }, "likely": likely.collect::<Vec<_>>(),
    })
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
