//! `roce stat`: shows the counters of running processes.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::terminal::{Output, Paint};
use roce::observe::{Published, Survey, Text, meaning, survey};

/// Show the counters of running `roce` processes and of programs that use the library
///
/// The `roce` commands that send packets publish their counters while they run. Other programs publish theirs
/// if ROCE_STAT=1 is in their environment, or if they call ContextBuilder::publish. Only the same user and
/// root may read them. If a process does not answer within a second, the command reports that and shows the
/// others. docs/reference/counters.md explains each counter.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process to read; may be omitted if there is only one
    pid: Option<u32>,

    /// Show all processes
    #[arg(long, short, conflicts_with = "pid")]
    all: bool,

    /// Also show counters that are zero
    #[arg(long, short)]
    zeros: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,

    /// Show the changes per second, at this interval
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["json", "prometheus"])]
    watch: Option<Duration>,

    /// With --watch: exit after this many tables
    #[arg(long, short = 'n', value_name = "N", requires = "watch")]
    count: Option<u64>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|seconds: &f64| (0.01..=86_400.0).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.01 to 86400".into())
}

/// Values that can decrease.
const GAUGES: [&str; 3] = ["cm_connections", "xdp_native", "xdp_zero_copy"];

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let found = read(args)?;
    if args.json {
        let processes: Vec<Value> = found.iter().map(document).collect();
        super::document::print(output, "stat", &json!({ "processes": processes }))?;
    } else if args.prometheus {
        print_prometheus(output, &found)?;
    } else if let Some(interval) = args.watch {
        watch(args, interval, found, output)?;
    } else if found.len() > 1 && args.pid.is_none() && !args.all {
        print_list(output, &found)?;
    } else {
        for published in &found {
            print_counters(output, published, args.zeros)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Queries the requested processes. Names those that do not answer on standard error.
fn ask(args: &Args) -> anyhow::Result<Vec<Published>> {
    let Survey { found, unanswered, .. } =
        survey(args.pid).context("cannot read the sockets of running processes")?;
    for process in &unanswered {
        eprintln!(
            "process {} does not answer at {}; check whether it is stopped (`ps -o stat {}`), and try again",
            process.pid, process.path, process.pid
        );
    }
    Ok(found)
}

/// Reads the requested processes. If none is found, this is an error, except with --all.
fn read(args: &Args) -> anyhow::Result<Vec<Published>> {
    let found = ask(args)?;
    if found.is_empty() && !args.all {
        match args.pid {
            Some(pid) => bail!(
                "process {pid} does not publish its counters; check that it is running and belongs to you, and that it was \
                 started with ROCE_STAT=1 if it is not a `roce` command"
            ),
            None => bail!(
                "no process publishes its counters; start one, for example `roce ping`, or a program with ROCE_STAT=1"
            ),
        }
    }
    Ok(found)
}

fn title(published: &Published) -> String {
    let Published { pid, command, device, addresses, uptime_s, .. } = published;
    let addresses = addresses.join(", ");
    let (command, device, addresses) = (Text::new(command), Text::new(device), Text::new(&addresses));
    format!("{pid} {command}: {device} {addresses}, for {uptime_s:.0} s")
}

fn print_list(output: &mut Output, found: &[Published]) -> std::io::Result<()> {
    for published in found {
        writeln!(output, "{}", title(published))?;
    }
    writeln!(output, "\ngive the number of a process to see its counters, or use --all")
}

fn print_counters(output: &mut Output, published: &Published, zeros: bool) -> std::io::Result<()> {
    writeln!(output, "{}", output.style.paint(Paint::BOLD, title(published)))?;
    for (name, value) in published.counters.iter().filter(|(_, value)| zeros || *value > 0) {
        writeln!(output, "{:<32} {value}", Text::new(name).to_string())?;
    }
    let mut last = None;
    for (engine, name, value) in &published.engine_counters {
        if last.replace(*engine) != Some(*engine) {
            writeln!(output, "of these, engine {engine}:")?;
        }
        writeln!(output, "  {:<30} {value}", Text::new(name).to_string())?;
    }
    Ok(())
}

/// Returns the counters of each engine, if there are several.
fn engines(published: &Published) -> Vec<serde_json::Map<String, Value>> {
    let mut engines: BTreeMap<usize, serde_json::Map<String, Value>> = BTreeMap::new();
    for (engine, name, value) in &published.engine_counters {
        engines.entry(*engine).or_default().insert(name.clone(), (*value).into());
    }
    engines.into_values().collect()
}

/// Returns the document of a process.
pub(super) fn document(published: &Published) -> Value {
    let Published { pid, command, version, device, addresses, uptime_s, counters, .. } = published;
    let counters: serde_json::Map<String, Value> =
        counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    let mut document = json!({
        "pid": pid, "command": command, "version": version, "device": device, "addresses": addresses,
        "uptime_s": uptime_s, "counters": counters,
    });
    let engines = engines(published);
    if !engines.is_empty() {
        document["engines"] = json!(engines);
    }
    document
}

/// Escapes a label value for the text format of Prometheus.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Prints the lines of each metric together, below its type. Names follow the rules of Prometheus: a prefix,
/// the unit in plural if there is one, and `_total` at the end of counters.
fn print_prometheus(output: &mut impl Write, found: &[Published]) -> std::io::Result<()> {
    let mut metrics: BTreeMap<&str, Vec<(&Published, u64)>> = BTreeMap::new();
    for published in found {
        for (name, value) in published.counters.iter().filter(|(name, _)| is_metric_name(name)) {
            metrics.entry(name).or_default().push((published, *value));
        }
    }
    for (name, values) in metrics {
        let (kind, total) = if GAUGES.contains(&name) { ("gauge", "") } else { ("counter", "_total") };
        let help = meaning(name).unwrap_or_else(|| format!("counter {name} of docs/reference/counters.md"));
        writeln!(output, "# HELP roce_{name}{total} {}\n# TYPE roce_{name}{total} {kind}", help_text(&help))?;
        for (published, value) in values {
            writeln!(output, "roce_{name}{total}{} {value}", labels(published))?;
        }
    }
    writeln!(output, "# HELP roce_uptime_seconds time since the device was opened")?;
    writeln!(output, "# TYPE roce_uptime_seconds gauge")?;
    for published in found {
        writeln!(output, "roce_uptime_seconds{} {}", labels(published), published.uptime_s)?;
    }
    Ok(())
}

fn labels(published: &Published) -> String {
    let address = published.addresses.first().map_or("", String::as_str);
    let (pid, device) = (published.pid, &published.device);
    format!("{{pid=\"{pid}\",device=\"{}\",address=\"{}\"}}", label(device), label(address))
}

/// Returns whether a name is valid for a metric. Names come from another process.
fn is_metric_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Escapes the text of a HELP line.
fn help_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// Returns whether both are the same context at different times.
pub(super) fn is_same(a: &Published, b: &Published) -> bool {
    a.pid == b.pid && a.addresses == b.addresses
}

fn watch(
    args: &Args,
    interval: Duration,
    mut before: Vec<Published>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let mut read_at = Instant::now();
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        std::thread::sleep(interval);
        let now = ask(args)?;
        let seconds = read_at.elapsed().as_secs_f64();
        read_at = Instant::now();
        if now.is_empty() && !args.all {
            writeln!(output, "the process has ended")?;
            return Ok(());
        }
        for published in &now {
            let Some(old) = before.iter().find(|old| is_same(old, published)) else { continue };
            print_changes(output, old, published, seconds)?;
        }
        output.flush()?;
        before = now;
    }
    Ok(())
}

fn print_changes(output: &mut Output, old: &Published, new: &Published, seconds: f64) -> std::io::Result<()> {
    writeln!(output, "{}", output.style.paint(Paint::BOLD, title(new)))?;
    let old: BTreeMap<&str, u64> = old.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    for (name, value) in &new.counters {
        let change = value.saturating_sub(old.get(name.as_str()).copied().unwrap_or(0));
        if change > 0 {
            let name = Text::new(name).to_string();
            writeln!(output, "{name:<32} {:>16.1}/s  (+{change})", change as f64 / seconds)?;
        }
    }
    Ok(())
}
