//! `roce bridge`: forwards frames between two devices and impairs RoCE packets.

mod series;

use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use roce_fault::FaultPlan;
use roce_transport::units;
use serde_json::{Value, json};

use super::choices::{ORIGINS, one_of};
use super::sim::shipped::Source;
use super::terminal::Output;
use roce_bridge::{
    Bridge, Counts, Observer, Origin, Queue, QueuePairCounts, QueueSettings, Runner, Scenario, Side,
};
use series::Series;

/// Forward frames between two devices, and impair RoCE packets as a bad network does
///
/// The bridge replaces the cable between two hosts, which may have RDMA hardware. Frames other than RoCE pass
/// unchanged. RoCE packets pass --fault, then a queue with --rate, ECN marking and PFC, then --delay. A
/// scenario file has more settings, such as different ones for each direction; see docs/how-to/bridge.md. The
/// bridge runs until --duration or Ctrl-C.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Device on the left: raw:INTERFACE or tap:NAME
    #[arg(long, value_name = "DEVICE")]
    left: Option<String>,

    /// Device on the right: raw:INTERFACE or tap:NAME
    #[arg(long, value_name = "DEVICE")]
    right: Option<String>,

    /// Read the settings from this TOML file; also accepts a scenario of `roce sim` with one switch, or the
    /// name of a shipped one
    #[arg(long, value_name = "FILE", conflicts_with_all = FILE_OPTIONS)]
    scenario: Option<String>,

    /// Direction that --fault and the queue apply to: packets from the left, from the right, or both
    #[arg(long, value_parser = one_of(ORIGINS), hide_possible_values = true, value_name = "SIDE")]
    #[arg(default_value = "both")]
    from: Origin,

    /// Faults to inject, such as drop=1% or rule:rpsn=5,pass=1,action=drop; `roce ping --help` explains the
    /// syntax
    #[arg(long, value_name = "PLAN")]
    fault: Option<FaultPlan>,

    /// Link rate, which includes preamble and interframe gap, such as 1Gbps
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,

    /// Propagation delay of every packet, such as 20us
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,

    /// Capacity of the queue of each priority; packets beyond it are dropped [default: 2MB]
    #[arg(long, value_name = "BYTES")]
    queue: Option<String>,

    /// Mark some packets that leave more than this many bytes queued, with --kmax and --pmax
    #[arg(long, value_name = "BYTES")]
    kmin: Option<String>,

    /// Always mark packets that leave more than this many bytes queued
    #[arg(long, value_name = "BYTES")]
    kmax: Option<String>,

    /// Probability of a mark just below --kmax, 0 to 1
    #[arg(long, value_name = "SHARE")]
    pmax: Option<f64>,

    /// Mark exactly the packets that leave more than this many bytes queued; replaces --kmin, --kmax and
    /// --pmax
    #[arg(long, value_name = "BYTES")]
    step: Option<String>,

    /// Record the queue length in packets that carry in-band telemetry (`roce blast --telemetry`); requires
    /// --rate
    #[arg(long)]
    telemetry: bool,

    /// Priorities for which PFC pauses the sender, such as 3,4
    #[arg(long, value_name = "PRIORITIES", value_delimiter = ',')]
    pfc: Option<Vec<u8>>,

    /// Pause the sender above this many queued bytes [default: 500KB]
    #[arg(long, value_name = "BYTES")]
    xoff: Option<String>,

    /// End the pause at this many queued bytes [default: four fifths of --xoff]
    #[arg(long, value_name = "BYTES")]
    xon: Option<String>,

    /// Seed of random decisions; the same seed and the same packets give the same decisions [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Stop after this time, such as 10s
    #[arg(long, value_name = "TIME")]
    duration: Option<String>,

    /// Write all frames to this file (pcapng); frames that the bridge changed carry a comment
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,

    /// Write rates.csv (per queue pair) and queues.csv into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Sampling interval of these files [default: 100ms]
    #[arg(long, value_name = "TIME", requires = "out")]
    interval: Option<String>,

    /// Print JSON at the end
    #[arg(long)]
    json: bool,

    /// Print nothing while the bridge runs
    #[arg(long, short)]
    quiet: bool,
}

/// Options that a scenario file replaces.
const FILE_OPTIONS: [&str; 13] = [
    "from",
    "fault",
    "rate",
    "delay",
    "queue",
    "kmin",
    "kmax",
    "pmax",
    "step",
    "telemetry",
    "pfc",
    "xoff",
    "xon",
];

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let scenario = read(args)?;
    let device = |option: &Option<String>, file: &Option<String>, name| {
        let device = option.as_ref().or(file.as_ref()).cloned();
        device.with_context(|| format!("--{name} is missing; give a device such as raw:eth0 or tap:tap0"))
    };
    let left = device(&args.left, &scenario.left, "left")?;
    let right = device(&args.right, &scenario.right, "right")?;
    if left == right {
        bail!("--left and --right are both {left}; a bridge needs two different devices");
    }
    // This call must come first, so that no signal is lost.
    let mut live = Live::new(scenario.duration, args.quiet)?;
    if let Some(dir) = &args.out {
        let interval = args.interval.as_deref().map(units::duration_ns).transpose()?;
        let interval = interval.map_or(INTERVAL, Duration::from_nanos);
        live.series = Some(Series::create(dir, interval)?);
    }
    let mut runner = Runner::open(&scenario.settings, [&left, &right])?;
    if let Some(path) = &args.pcap {
        runner.capture(path)?;
    }
    let [left_mtu, right_mtu] = runner.mtus();
    if left_mtu != right_mtu {
        tracing::warn!(
            "{left} has MTU {left_mtu}, {right} has MTU {right_mtu}: frames longer than the smaller one are dropped"
        );
    }
    if !args.json {
        writeln!(output, "forwarding between {left} and {right}; press Ctrl-C to stop")?;
        output.flush()?;
    }
    runner.run(&mut live)?;
    if let Some(series) = live.series.take() {
        series.finish()?;
    }
    if args.json {
        super::document::print(output, "bridge", &document(&runner, &live))?;
    } else {
        print(output, &runner)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the scenario from --scenario, or the one that the options describe.
fn read(args: &Args) -> anyhow::Result<Scenario> {
    let mut scenario = match &args.scenario {
        Some(name) => {
            let source = Source::find(name)?;
            Scenario::parse(&source.text, &|file| source.load(file))
                .with_context(|| format!("the scenario {name}"))?
        }
        None => from_options(args)?,
    };
    if let Some(seed) = args.seed {
        scenario.settings.seed = seed;
    }
    if let Some(text) = &args.duration {
        scenario.duration = Some(Duration::from_nanos(units::duration_ns(text)?));
    }
    Ok(scenario)
}

fn from_options(args: &Args) -> anyhow::Result<Scenario> {
    let mut scenario = Scenario::default();
    let queue = Queue {
        from: args.from,
        rate: args.rate.clone(),
        delay: args.delay.clone(),
        bytes: args.queue.clone(),
        kmin: args.kmin.clone(),
        kmax: args.kmax.clone(),
        pmax: args.pmax,
        step: args.step.clone(),
        telemetry: args.telemetry.then_some(true),
        pfc: args.pfc.clone(),
        xoff: args.xoff.clone(),
        xon: args.xon.clone(),
    };
    let queue = queue.build(&QueueSettings::default()).map_err(anyhow::Error::msg)?;
    for side in args.from.sides() {
        let direction = scenario.settings.direction_mut(side);
        direction.queue = queue.clone();
        direction.faults = args.fault.clone().unwrap_or_default();
    }
    Ok(scenario)
}

/// The printer of statistics, which also decides when the bridge stops.
struct Live {
    signals: SignalFd,
    end: Option<Duration>,
    quiet: bool,
    /// The time of the next statistics.
    next_lines: Duration,
    series: Option<Series>,
    last: Duration,
    before: [Counts; 2],
    queue_pairs: [Vec<QueuePairCounts>; 2],
}

const SECOND: Duration = Duration::from_secs(1);
/// Default sampling interval of --out.
const INTERVAL: Duration = Duration::from_millis(100);

impl Live {
    fn new(duration: Option<Duration>, quiet: bool) -> anyhow::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("cannot block signals")?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        Ok(Self {
            signals: signals.context("cannot create a signalfd")?,
            end: duration,
            quiet,
            next_lines: duration.map_or(SECOND, |duration| duration.min(SECOND)),
            series: None,
            last: Duration::ZERO,
            before: Default::default(),
            queue_pairs: Default::default(),
        })
    }

    /// Prints a line for each direction, and a line for each queue pair with CNPs, NAKs or retransmissions.
    fn print(&mut self, since_start: Duration, bridge: &Bridge) {
        let seconds = (since_start - self.last).as_secs_f64().max(1e-3);
        let mut text = String::new();
        for side in Side::BOTH {
            let (now, before) = (bridge.counts(side), &self.before[side as usize]);
            let bits = (now.forwarded_bytes - before.forwarded_bytes) as f64 * 8.0 / seconds;
            text += &format!(
                "{:7.1} s  from {:5}  {:8} packets  {:9.1} Mb/s  marked {}  dropped {}  queue {} B  CNPs {}  NAKs {}  \
                 retransmissions {}\n",
                since_start.as_secs_f64(),
                side.name(),
                now.packets - before.packets,
                bits / 1e6,
                now.marked() - before.marked(),
                now.dropped() - before.dropped(),
                now.queue_bytes,
                now.cnps - before.cnps,
                now.naks - before.naks,
                now.retransmissions - before.retransmissions,
            );
            let known = std::mem::take(&mut self.queue_pairs[side as usize]);
            let current: Vec<QueuePairCounts> = bridge.queue_pairs(side).copied().collect();
            for (index, one) in current.iter().enumerate().take(MAX_QUEUE_PAIRS) {
                let before = known.get(index).copied().unwrap_or_default();
                let more = |now: u64, before: u64| now - before;
                let cnps = more(one.cnps, before.cnps);
                let naks = more(one.naks, before.naks);
                let retransmissions = more(one.retransmissions, before.retransmissions);
                if cnps + naks + retransmissions > 0 {
                    text += &format!(
                        "           to QP {} ({:#08x})  CNPs {cnps}  NAKs {naks}  retransmissions {retransmissions}\n",
                        one.relative_qp, one.qpn,
                    );
                }
            }
            self.queue_pairs[side as usize] = current;
            self.before[side as usize] = now;
        }
        self.last = since_start;
        // A closed standard error must not stop the bridge.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Maximum number of queue pairs that are printed each second.
const MAX_QUEUE_PAIRS: usize = 16;

impl Observer for Live {
    fn end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signals.as_fd())
    }

    fn next(&self) -> Duration {
        self.series.as_ref().map_or(self.next_lines, |series| series.next().min(self.next_lines))
    }

    fn observe(&mut self, since_start: Duration, bridge: &Bridge) -> ControlFlow<()> {
        if let Some(series) = &mut self.series {
            series.sample(since_start, bridge);
        }
        if since_start >= self.next_lines {
            if !self.quiet {
                self.print(since_start, bridge);
            }
            self.next_lines = (self.next_lines + SECOND).max(since_start);
            self.next_lines = self.end.map_or(self.next_lines, |end| end.min(self.next_lines));
        }
        let ends = self.end.is_some_and(|end| end <= since_start) || self.is_signalled();
        if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Live {
    /// Checks for a signal without waiting, for a bridge that is never idle.
    fn is_signalled(&self) -> bool {
        matches!(self.signals.read_signal(), Ok(Some(_)))
    }
}

fn document(runner: &Runner, live: &Live) -> Value {
    let direction = |side: Side| {
        let queue_pairs: Vec<_> = runner.bridge().queue_pairs(side).collect();
        let device: serde_json::Map<String, Value> = runner
            .device_counters(side)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        json!({
            "interface": runner.interfaces()[side as usize],
            "counts": runner.bridge().counts(side),
            "queue_pairs": queue_pairs,
            "device_counters": device,
        })
    };
    json!({
        "elapsed_s": runner.seconds(),
        "ended_by": if live.end.is_some_and(|end| end.as_secs_f64() <= runner.seconds()) { "duration" } else { "signal" },
        "from_left": direction(Side::Left),
        "from_right": direction(Side::Right),
    })
}

fn print(output: &mut Output, runner: &Runner) -> anyhow::Result<()> {
    for side in Side::BOTH {
        let Value::Object(counts) = serde_json::to_value(runner.bridge().counts(side))? else { continue };
        writeln!(output, "from {}:", side.name())?;
        for (name, value) in counts.iter().filter(|(_, value)| **value != json!(0)) {
            writeln!(output, "  {name:18} {value}")?;
        }
        let interface = runner.interfaces()[side as usize];
        for (name, value) in runner.device_counters(side) {
            // The number of calls of the device says nothing about the network.
            if value > 0 && !name.ends_with("_calls") {
                writeln!(output, "  {interface}: {name} {value}")?;
            }
        }
        for one in runner.bridge().queue_pairs(side) {
            let QueuePairCounts { relative_qp, qpn, packets, retransmissions, cnps, naks, rnr_naks, .. } =
                one;
            writeln!(
                output,
                "  to QP {relative_qp} ({qpn:#08x}): {packets} packets, {retransmissions} retransmissions, {cnps} CNPs, \
                 {naks} NAKs, {rnr_naks} RNR NAKs"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn scenario_conflicts_with_the_options_that_it_replaces() {
        let scenario = ["bridge", "--scenario", "file.toml"];
        let alone = Command::try_parse_from(scenario).unwrap();
        assert_eq!(alone.args.from, Origin::Both);
        for option in [["--from", "left"], ["--from", "both"], ["--rate", "1Gbps"]] {
            let error = Command::try_parse_from([&scenario[..], &option].concat()).unwrap_err().to_string();
            assert!(error.contains(option[0]) && error.contains("cannot be used with"), "{error}");
        }
    }
}
