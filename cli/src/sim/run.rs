//! Runs one scenario.

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use roce_report::{CompletedRun, Hashes, Summary, check_expectations, evaluate_expectations};
use roce_scenario::{Scenario, Whole};
use roce_sim::net::{PayloadMode, Simulation};

use super::capture::Captures;
use super::ladder::Observed;
use super::memory::Budget;
use super::shipped::Source;
use crate::algorithms::{self, Identity};
use crate::document;
use crate::trace::TraceFile;

/// Events between two updates of the progress bar.
pub(super) const STRIDE: u64 = 200_000;
/// Events between two writes of captured frames and trace events, which limits how many are buffered.
const WRITE_STRIDE: u64 = 10_000;

/// The syntax of port names, for errors.
const PORTS: &str = "write h1 for the port of a host, and s0:h1 for the port of a switch to a neighbor";

/// The decision of a [`Watch`] function.
pub(super) enum Next {
    /// Run this many events until the next call.
    Events(u64),
    /// End the run.
    Stop,
}

/// A function that is called repeatedly during a run.
pub(super) type Watch<'a> = dyn FnMut(&Scenario, &Simulation) -> anyhow::Result<Next> + 'a;

/// The parameters of one run.
pub(super) struct Job {
    /// Values of the scenario to replace.
    pub(super) set: Vec<(String, String)>,
    /// Names of the ports to capture.
    pub(super) capture: Vec<String>,
    /// Directory of the captures.
    pub(super) dir: Option<PathBuf>,
    /// The flow whose ladder is drawn.
    pub(super) ladder: Option<u32>,
    /// The file for trace events.
    pub(super) trace: Option<TraceFile>,
    /// Maximum number of threads.
    pub(super) threads: usize,
    /// The memory that the run may use.
    pub(super) budget: Budget,
}

/// A completed run, and how long it took.
pub(super) struct Ran {
    pub(super) completed: CompletedRun,
    /// The ladder of a flow, as text.
    pub(super) ladder: Option<String>,
    /// Run time in seconds.
    pub(super) seconds: f64,
    /// The number of threads.
    threads: usize,
}

impl Ran {
    pub(super) fn packets_per_s(&self) -> f64 {
        self.completed.results.data_packets as f64 / self.seconds.max(1e-9)
    }

    /// Returns the number of threads as text, if there were several.
    pub(super) fn threads(&self) -> String {
        if self.threads > 1 { format!(", {} threads", self.threads) } else { String::new() }
    }
}

/// Writes the report of a run to a directory.
pub(super) fn write_report(dir: &Path, completed: &CompletedRun) -> anyhow::Result<()> {
    let summary = document::text("sim", &completed.summary)?;
    Ok(roce_report::write_run(dir, completed, &summary)?)
}

impl Job {
    /// Runs the scenario. Calls `watch` repeatedly, which may end the run.
    pub(super) fn run(&self, source: &Source, watch: &mut Watch<'_>) -> anyhow::Result<Ran> {
        let Whole { mut scenario, text: whole, input, is_unchanged } = source.parse_whole(&self.set)?;
        check_expectations(&scenario)?;
        let identities = algorithms::identities(&scenario.settings);
        let ports = self.captured_ports(&scenario)?;
        let mut observed = self.ladder.map(|flow| Observed::new(&scenario, flow)).transpose()?;
        let ladder_ports = observed.iter().flat_map(|observed| observed.ports());
        let mut captured: Vec<u32> = ports.iter().chain(ladder_ports).map(|(port, _)| *port).collect();
        captured.sort_unstable();
        captured.dedup();
        if !captured.is_empty() {
            scenario.settings.payload = PayloadMode::Real;
            scenario.settings.measure.capture = captured;
        }
        let hashes = Hashes {
            scenario: fnv(FNV_START, &source.text),
            configuration: configuration_hash(&input, &identities),
            algorithm: algorithm_hash(&identities),
        };
        self.budget.check(&scenario.memory())?;
        let begin = Instant::now();
        scenario.settings.threads = self.threads;
        let mut simulation = scenario.simulation()?;
        let threads = simulation.threads();
        let ran = self.drive(&scenario, &mut simulation, (&ports, observed.as_mut()), watch);
        // A failed run also has its events up to the failure.
        if let Some(trace) = &self.trace {
            let events = simulation.take_all_events();
            trace.write_events(&simulation, events)?;
        }
        let is_whole = ran?;
        let results = simulation.results();
        let seconds = begin.elapsed().as_secs_f64();
        let mut summary = Summary::new(&scenario, &self.set, hashes, &results);
        if is_unchanged && is_whole {
            summary.expected = Some(evaluate_expectations(&scenario, &results, &summary));
        }
        let added_algorithms = identities.iter().map(Identity::text).collect();
        let ladder = observed.map(|observed| observed.text(&results.flows)).transpose()?;
        let completed = CompletedRun { scenario, whole, added_algorithms, is_unchanged, results, summary };
        Ok(Ran { completed, ladder, seconds, threads })
    }

    /// Runs a simulation and writes its captures and trace events meanwhile; `observed` gets the frames too.
    /// Returns whether it ran to its end.
    fn drive(
        &self,
        scenario: &Scenario,
        simulation: &mut Simulation,
        (ports, mut observed): (&[(u32, String)], Option<&mut Observed>),
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<bool> {
        let mut captures = match &self.dir {
            Some(dir) if !ports.is_empty() => Some(Captures::create(dir, ports)?),
            _ => None,
        };
        if self.trace.is_some() {
            simulation.keep_events();
        }
        let has_frames = captures.is_some() || observed.is_some();
        let longest = if has_frames || self.trace.is_some() { WRITE_STRIDE } else { u64::MAX };
        let (mut stride, mut is_whole) = (STRIDE, true);
        loop {
            let goes_on = simulation.run(stride.min(longest));
            let frames = simulation.take_captured();
            if let Some(captures) = &mut captures {
                captures.write(&frames)?;
            }
            if let Some(observed) = &mut observed {
                observed.add(&frames);
            }
            if let Some(trace) = &self.trace {
                let events = simulation.take_events();
                trace.write_events(simulation, events)?;
            }
            if !goes_on {
                break;
            }
            match watch(scenario, simulation)? {
                Next::Events(events) => stride = events,
                Next::Stop => {
                    is_whole = false;
                    break;
                }
            }
        }
        captures.map_or(Ok(()), Captures::finish)?;
        Ok(is_whole)
    }

    /// Returns the numbers and names of the ports to capture, without duplicates.
    fn captured_ports(&self, scenario: &Scenario) -> anyhow::Result<Vec<(u32, String)>> {
        let mut ports: Vec<(u32, String)> = Vec::new();
        for name in &self.capture {
            let port = scenario.topology.port_named(name);
            let port =
                port.with_context(|| format!("--pcap-port: the network has no port {name}; {PORTS}"))?;
            if ports.iter().all(|(known, _)| *known != port) {
                ports.push((port, name.clone()));
            }
        }
        Ok(ports)
    }
}

/// Returns the hash of everything that determines a run: its scenario as one text, the version, and
/// algorithms that the program added.
fn configuration_hash(input: &str, identities: &[Identity]) -> u64 {
    let hash = fnv(FNV_START, &format!("{input}\n{}\n", env!("CARGO_PKG_VERSION")));
    identities.iter().fold(hash, |hash, identity| fnv(hash, &identity.text()))
}

/// Returns the hash of the algorithms that the program added, or `None` without such algorithms.
fn algorithm_hash(identities: &[Identity]) -> Option<u64> {
    let hash = identities.iter().fold(FNV_START, |hash, identity| fnv(hash, &identity.text()));
    (!identities.is_empty()).then_some(hash)
}

/// Calculates 64-bit FNV-1a, continued from the hash of the previous text.
fn fnv(hash: u64, text: &str) -> u64 {
    text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// The progress of a run on standard error: a bar on a terminal, otherwise a line at intervals.
pub(super) struct Progress {
    wanted: bool,
    is_terminal: bool,
    begin: Instant,
    /// Number of printed lines.
    lines: AtomicUsize,
}

/// Seconds between two lines about a long run.
const LINE_SECONDS: f64 = 30.0;

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { wanted, is_terminal, begin: Instant::now(), lines: AtomicUsize::new(0) }
    }

    /// Returns whether to print something now.
    fn is_due(&self) -> bool {
        let lines = (self.begin.elapsed().as_secs_f64() / LINE_SECONDS) as usize;
        self.wanted && (self.is_terminal || lines > self.lines.load(Ordering::Relaxed))
    }

    /// Shows how many runs of a sweep have ended.
    pub(super) fn show_runs(&self, ended: usize, all: usize) {
        if self.is_due() {
            self.show(ended as f64 / all.max(1) as f64, &format!("{ended} of {all} runs"));
        }
    }

    /// Draws the bar: the completed share of the work, a text, and the remaining time.
    fn show(&self, share: f64, text: &str) {
        let seconds = self.begin.elapsed().as_secs_f64();
        let line = bar(share, text, seconds);
        // A failed write of the progress is ignored.
        let _ = if self.is_terminal {
            write!(std::io::stderr(), "\r{line:79}")
        } else {
            self.lines.store((seconds / LINE_SECONDS) as usize, Ordering::Relaxed);
            writeln!(std::io::stderr(), "{line}")
        };
    }

    /// Implements the [`Watch`] function of a run with a progress bar. The bar shows the larger of two
    /// shares: of the sent bytes, and of the time until the stop.
    pub(super) fn watch(&self, scenario: &Scenario, simulation: &Simulation) -> Next {
        if self.is_due() {
            let (sent, bytes) = simulation.sent_bytes();
            let of_time = simulation.now().as_secs_f64() / scenario.settings.stop.as_secs_f64();
            let (ended, all) = simulation.progress();
            let share = (sent as f64 / bytes.max(1) as f64).max(of_time);
            self.show(share, &format!("{ended} of {all} flows"));
        }
        Next::Events(STRIDE)
    }

    pub(super) fn clear(&self) {
        if self.wanted && self.is_terminal {
            let _ = write!(std::io::stderr(), "\r{:79}\r", "");
        }
    }
}

/// Returns a progress bar after a number of seconds. The remaining time is unknown at first.
fn bar(share: f64, text: &str, seconds: f64) -> String {
    const WIDTH: usize = 30;
    let share = share.clamp(0.0, 1.0);
    let full = (WIDTH as f64 * share) as usize;
    let bar = format!("[{}{}] {:.0} %, {text}", "#".repeat(full), ".".repeat(WIDTH - full), 100.0 * share);
    let left = seconds / share - seconds;
    if seconds < 2.0 || !(0.01..1.0).contains(&share) {
        return bar;
    }
    match left {
        0.0..120.0 => format!("{bar}, {left:.0} s left"),
        _ => format!("{bar}, {:.0} min left", left / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_the_time_that_is_left() {
        let half = format!("[{}{}] 50 %, 3 of 8", "#".repeat(15), ".".repeat(15));
        assert_eq!(bar(0.5, "3 of 8", 1.0), half, "nobody knows yet");
        assert_eq!(bar(0.5, "3 of 8", 10.0), format!("{half}, 10 s left"));
        assert_eq!(bar(0.5, "3 of 8", 600.0), format!("{half}, 10 min left"));
        assert!(bar(0.0, "", 1e9).ends_with("0 %, ") && bar(2.0, "", 9.0).ends_with("100 %, "));
    }

    /// Without a terminal, a long run prints a line at intervals, and a short run prints nothing.
    #[test]
    fn a_long_run_without_a_terminal_shows_a_line_at_a_time() {
        let now = Instant::now();
        let since = |seconds| now.checked_sub(std::time::Duration::from_secs(seconds)).unwrap_or(now);
        let progress = |wanted, seconds| Progress {
            wanted,
            is_terminal: false,
            begin: since(seconds),
            lines: AtomicUsize::new(0),
        };
        assert!(!progress(true, 5).is_due() && !progress(false, 65).is_due());
        let long = progress(true, 65);
        assert!(long.is_due());
        long.show(0.5, "3 of 8 flows");
        assert!(!long.is_due(), "the next line comes after 90 s");
    }

    const TEXT: &str = r#"
        name = "capture"
        [topology]
        kind = "point-to-point"
        [[flows]]
        kind = "pair"
        from = "h0"
        to = "h1"
        bytes = "20MB"
    "#;

    #[test]
    fn captured_frames_are_written_during_the_run() {
        let place = tempfile::tempdir().unwrap();
        let (scenario, dir) = (place.path().join("capture.toml"), place.path().join("out"));
        std::fs::write(&scenario, TEXT).unwrap();
        let source = Source::find(scenario.to_str().unwrap()).unwrap();
        // A port that is named twice has one capture file.
        let job = Job {
            set: Vec::new(),
            capture: vec!["h1".into(), "h1".into()],
            dir: Some(dir.clone()),
            ladder: None,
            trace: None,
            threads: 1,
            budget: Budget::new(None),
        };
        let mut lengths = Vec::new();
        let mut watch = |_: &Scenario, _: &Simulation| -> anyhow::Result<Next> {
            lengths.push(std::fs::metadata(dir.join("h1.pcapng"))?.len());
            Ok(Next::Events(STRIDE))
        };
        let completed = job.run(&source, &mut watch).unwrap().completed;
        assert!(completed.results.events > 3 * WRITE_STRIDE, "{}", completed.results.events);
        assert!(lengths[0] > 100_000 && lengths.is_sorted_by(|a, b| a < b), "{lengths:?}");
        let whole = std::fs::metadata(dir.join("h1.pcapng")).unwrap().len();
        assert!(whole > 20_000_000 && whole > *lengths.last().unwrap(), "{whole} {lengths:?}");
    }
}
