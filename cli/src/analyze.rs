//! `roce analyze`: judges what capture files say about connections and NICs.

mod charts;
mod follow;
mod junit;
mod page;
mod text;

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail};
use roce_analysis::Collector;
use roce_analysis::verdict::rules;
use roce_document::analyze::{self, Captures, Counters, Report};
use roce_packet::ROCE_UDP_PORT;
use roce_transport::congestion::Rate;

use super::counters;
use super::errors::{print_error, with_causes};
use super::input::captures;
use super::terminal::Output;
use super::version::PROGRAM;
use follow::Follower;

/// Judge the connections of capture files: losses, retransmissions, answers, marks
///
/// Finds the connections, replays what both ends did, and judges each rule of RoCE: `pass`, `fail`, or
/// `unknown` with the reason. Three lines at the top say what was lost, the result of the verdicts, and where
/// to look first; verdicts pass if the NICs follow the rules, also on a network with losses. Each connection
/// follows with its figures and its verdicts; a verdict names the packets that prove it, as
/// `roce explain FILE:8` takes them. In a second file, packet 8 is 2:8.
///
/// Several files are captures of the same time at different places, such as the sender's and the receiver's
/// side. They show where a packet was lost, and each end is judged where it was captured. Files may have
/// different clocks. What the captures lack is never blamed on a NIC.
///
/// The exit status is 0 if no verdict fails, 1 if one does, and 2 if a file cannot be read to its end or
/// contains no RoCE.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Capture files, pcap or pcapng; `-` reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Only judge these rules: keys such as naks,timeouts, or their numbers
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = rule)]
    only: Vec<&'static str>,

    /// Only show the connection with this number
    #[arg(long, value_name = "N")]
    connection: Option<usize>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Also write the verdicts to this file as test results in the format of JUnit; unknown ones are skipped
    /// tests
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Also write the report to this file as an HTML page, with ladders of the packets and charts over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Repeat the analysis while other programs extend the files, at most once per second; Ctrl-C ends it
    #[arg(long)]
    follow: bool,

    /// Also compare the packets with counters that were read before and after the capture at the port of a
    /// NIC, and explain what changed; `roce counters --help` names the forms of the files
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"])]
    counters: Vec<PathBuf>,

    /// Address of the NIC with these counters; by default, the address that agrees with most of them
    #[arg(long, value_name = "ADDRESS", requires = "counters")]
    counters_of: Option<IpAddr>,

    /// Rate of the captured links, such as 100G: pause frames state durations in bit times
    #[arg(long, value_name = "RATE")]
    line_rate: Option<Rate>,

    /// UDP port that RoCE v2 uses in this capture
    #[arg(long, value_name = "PORT", default_value_t = ROCE_UDP_PORT)]
    port: u16,
}

/// Parses the key or the number of a rule.
fn rule(text: &str) -> anyhow::Result<&'static str> {
    let is_it = |rule: &&&rules::Rule| rule.key == text || rule.number.to_string() == text;
    if let Some(rule) = rules::ALL.iter().find(is_it) {
        return Ok(rule.key);
    }
    let keys: Vec<&str> = rules::ALL.iter().map(|rule| rule.key).collect();
    bail!("no rule is called {text}; the rules are {}", keys.join(", "))
}

/// The exit status if nothing, or not everything, could be judged.
const NOT_JUDGED: u8 = 2;

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if !args.follow {
        return judge(args, output);
    }
    let mut follower = Follower::start(&args.files)?;
    loop {
        let begin = Instant::now();
        follower.note();
        if output.terminal_width.is_some() {
            // The report replaces the one before.
            write!(output, "\x1b[H\x1b[2J")?;
        }
        let status = judge(args, output)?;
        if !follower.wait(begin.elapsed())? {
            return Ok(status);
        }
        if output.terminal_width.is_none() && !args.json {
            writeln!(output)?;
        }
    }
}

/// Analyses the files once.
fn judge(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let mut collector = Collector::new(args.port);
    if let Some(rate) = args.line_rate {
        collector = collector.with_line_rate(rate.get());
    }
    match captures::read(&args.files, collector, args.follow) {
        Ok(captures) => print(args, &captures, output),
        Err(error) => {
            print_error(&with_causes(&error));
            Ok(ExitCode::from(NOT_JUDGED))
        }
    }
}

/// Writes the report in every form that the arguments request. Returns the exit status.
fn print(args: &Args, captures: &Captures, output: &mut Output) -> anyhow::Result<ExitCode> {
    if let Some(reason) = captures.why_empty() {
        print_error(&reason);
        return Ok(ExitCode::from(NOT_JUDGED));
    }
    let counters = match &args.counters[..] {
        [before, after] => counters::read_both(before, after)?,
        _ => Vec::new(),
    };
    let counters = Counters { comparisons: counters, address: args.counters_of };
    let report = Report::new(captures, &args.only, captures.connections(args.connection)?, counters);
    if let Some(file) = &args.junit {
        write(file, &junit::text(&report))?;
    }
    if let Some(file) = &args.html {
        write(file, &page::text(&report))?;
    }
    if args.json {
        write!(output, "{}", analyze::text(&report, PROGRAM)?)?;
    } else {
        text::print(&report, output)?;
    }
    output.flush()?;
    Ok(match (report.has_failures(), captures.is_whole) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(NOT_JUDGED),
    })
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
