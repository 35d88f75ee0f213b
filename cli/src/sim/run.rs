//! Running: one scenario, or many on all cores.

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use roce_sim::net::{PayloadMode, Results, Simulation};
use roce_sim::scenario::Scenario;

use super::capture::Captures;
use super::report;
use super::shipped::{NamedText, Source};
use super::summary::{Hashes, Summary, words};
use super::sweep::Combination;

/// Events between two looks at the progress.
const STRIDE: u64 = 200_000;
/// The same where frames are captured: so many are kept at most until they are written.
const CAPTURE_STRIDE: u64 = 10_000;

/// How ports are named.
const PORTS: &str = "write h1 for that of a host and s0:h1 for that of a switch to its neighbour";

/// What the one who watches a run wants.
pub(super) enum Next {
    /// So many events until the next look.
    Events(u64),
    /// The end.
    Stop,
}

/// Looks at a run that is under way.
pub(super) type Watch<'a> = dyn FnMut(&Scenario, &Simulation) -> anyhow::Result<Next> + 'a;

/// One run to be done.
pub(super) struct Job {
    /// Values to replace.
    pub(super) set: Vec<(String, String)>,
    /// Names of the ports that are captured.
    pub(super) capture: Vec<String>,
    /// Where the captures go.
    pub(super) dir: Option<PathBuf>,
}

/// A run that is done.
pub(super) struct Done {
    pub(super) scenario: Scenario,
    pub(super) results: Results,
    pub(super) summary: Summary,
    /// How long it took.
    pub(super) seconds: f64,
}

impl Done {
    pub(super) fn packets_per_s(&self) -> f64 {
        self.results.data_packets as f64 / self.seconds.max(1e-9)
    }
}

impl Job {
    /// Runs; `watch` sees the network now and then, and may end the run.
    pub(super) fn run(&self, source: &Source, watch: &mut Watch<'_>) -> anyhow::Result<Done> {
        let (mut scenario, files) = source.parse_with_files(&self.set)?;
        let ports = self.captured_ports(&scenario)?;
        if !ports.is_empty() {
            scenario.settings.payload = PayloadMode::Real;
            scenario.settings.measure.capture = ports.iter().map(|(port, _)| *port).collect();
        }
        let hashes = Hashes {
            scenario: fnv(FNV_START, &source.text),
            configuration: configuration_hash(&source.text, &files, &self.set, scenario.settings.seed),
        };
        let begin = Instant::now();
        let mut simulation = Simulation::new(&scenario.topology, &scenario.flows, scenario.settings.clone())?;
        let mut captures = match &self.dir {
            Some(dir) if !ports.is_empty() => Some(Captures::create(dir, &ports)?),
            _ => None,
        };
        let longest = if captures.is_some() { CAPTURE_STRIDE } else { u64::MAX };
        let mut stride = STRIDE;
        loop {
            let goes_on = simulation.run(stride.min(longest));
            if let Some(captures) = &mut captures {
                captures.write(&simulation.take_captured())?;
            }
            if !goes_on {
                break;
            }
            match watch(&scenario, &simulation)? {
                Next::Events(events) => stride = events,
                Next::Stop => break,
            }
        }
        captures.map_or(Ok(()), Captures::finish)?;
        let results = simulation.results();
        let seconds = begin.elapsed().as_secs_f64();
        let summary = Summary::new(&scenario, &self.set, hashes, &results);
        Ok(Done { scenario, results, summary, seconds })
    }

    /// Numbers and names of the ports that are captured, each once.
    fn captured_ports(&self, scenario: &Scenario) -> anyhow::Result<Vec<(u32, String)>> {
        let mut ports: Vec<(u32, String)> = Vec::new();
        for name in &self.capture {
            let port = scenario.topology.port_named(name);
            let port = port.with_context(|| format!("--pcap-port: there is no port {name}; {PORTS}"))?;
            if ports.iter().all(|(known, _)| *known != port) {
                ports.push((port, name.clone()));
            }
        }
        Ok(ports)
    }
}

/// What became of the runs of a sweep.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Of those that ended, in the order of the combinations.
    pub(super) summaries: Vec<Summary>,
    /// Which of them failed, and why.
    pub(super) failures: Vec<String>,
}

/// Runs every combination, as many at a time as there are cores. Each run has a directory of its own below `out`. One that
/// fails takes none of the others with it.
pub(super) fn all(
    source: &Source,
    combinations: &[Combination],
    out: Option<&Path>,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<anyhow::Result<Summary>>>> =
        Mutex::new(combinations.iter().map(|_| None).collect());
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(combinations.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let number = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(combination) = combinations.get(number)
                {
                    let done = one(source, combination, out);
                    if let Ok(mut results) = results.lock()
                        && let Some(place) = results.get_mut(number)
                    {
                        *place = Some(done);
                    }
                    progress.show(ended.fetch_add(1, Ordering::Relaxed) + 1, combinations.len());
                }
            });
        }
    });
    let results = results.into_inner().ok().context("a run ended the thread that it was in")?;
    let mut outcome = Outcome::default();
    for (Combination { place, set }, result) in combinations.iter().zip(results) {
        match result.context("it did not end").and_then(|result| result) {
            Ok(summary) => outcome.summaries.push(summary),
            Err(error) => {
                outcome.failures.push(format!("combination {}, {}: {error:#}", place.index, words(set)));
            }
        }
    }
    Ok(outcome)
}

/// Runs one combination into its directory.
fn one(source: &Source, combination: &Combination, out: Option<&Path>) -> anyhow::Result<Summary> {
    let job = Job { set: combination.set.clone(), capture: Vec::new(), dir: None };
    let dir = out.map(|out| out.join(format!("{:05}", combination.place.index)));
    if let Some(dir) = &dir {
        report::forget(dir)?;
    }
    let mut done = job.run(source, &mut |_, _| Ok(Next::Events(STRIDE)))?;
    done.summary.combination = Some(combination.place);
    if let Some(dir) = &dir {
        report::write(dir, &done)?;
    }
    Ok(done.summary)
}

/// Of everything that decides a run, the files that its scenario names among it.
fn configuration_hash(text: &str, files: &[NamedText], set: &[(String, String)], seed: u64) -> u64 {
    let set: String = set.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let mut hash = fnv(FNV_START, &format!("{text}\n{set}{seed}\n{}", env!("CARGO_PKG_VERSION")));
    for (name, text) in files {
        // With its length, so that nothing passes from one file to the next unnoticed.
        hash = fnv(hash, &format!("\n{name}\n{}\n", text.len()));
        hash = fnv(hash, text);
    }
    hash
}

/// FNV-1a with 64 bits, from the hash of what stands in front.
fn fnv(hash: u64, text: &str) -> u64 {
    text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// A bar on standard error, if that is a terminal.
pub(super) struct Progress {
    shown: bool,
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        Self { shown: wanted && std::io::stderr().is_terminal() }
    }

    pub(super) fn show(&self, ended: usize, all: usize) {
        const WIDTH: usize = 40;
        if !self.shown {
            return;
        }
        let full = WIDTH * ended / all.max(1);
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
        // A bar that cannot be shown is not missed.
        let _ = write!(std::io::stderr(), "\r[{bar}] {ended} of {all}");
    }

    /// For [`Job::run`].
    pub(super) fn watch(&self, simulation: &Simulation) -> Next {
        let (ended, all) = simulation.progress();
        self.show(ended, all);
        Next::Events(STRIDE)
    }

    pub(super) fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r{:80}\r", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn captured_frames_are_written_while_the_network_runs() {
        let place = tempfile::tempdir().unwrap();
        let (scenario, dir) = (place.path().join("capture.toml"), place.path().join("out"));
        std::fs::write(&scenario, TEXT).unwrap();
        let source = Source::find(scenario.to_str().unwrap()).unwrap();
        // A port that is named twice has one file.
        let job = Job { set: Vec::new(), capture: vec!["h1".into(), "h1".into()], dir: Some(dir.clone()) };
        let mut lengths = Vec::new();
        let mut watch = |_: &Scenario, _: &Simulation| -> anyhow::Result<Next> {
            lengths.push(std::fs::metadata(dir.join("h1.pcapng"))?.len());
            Ok(Next::Events(STRIDE))
        };
        let done = job.run(&source, &mut watch).unwrap();
        assert!(done.results.events > 3 * CAPTURE_STRIDE, "{}", done.results.events);
        assert!(lengths[0] > 100_000 && lengths.is_sorted_by(|a, b| a < b), "{lengths:?}");
        let whole = std::fs::metadata(dir.join("h1.pcapng")).unwrap().len();
        assert!(whole > 20_000_000 && whole > *lengths.last().unwrap(), "{whole} {lengths:?}");
    }
}
