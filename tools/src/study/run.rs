//! Carries the cells out, one after the other, and keeps the rows.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use super::grid::{Carrier, Cell, Device, Grid, Test};
use super::place::{End, Places};
use super::side::{Answer, Job, Measured};
use super::store::{Outcome, Store, StoreError};

/// Percent of a processor that others may use during a cell; the ticks of the kernel are a few percent of a short one.
pub(super) const DISTURBED: f64 = 25.0;
/// How often a wait looks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(50);

/// How a study is run.
#[derive(Debug)]
pub struct Study<'a> {
    /// Which cells.
    pub grid: Grid,
    /// Only cells whose key contains this text.
    pub only: Option<String>,
    /// The program that runs a side: this one, with the arguments that have it call [`side::run`](super::side::run).
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where the sides meet.
    pub places: &'a Places,
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Go on.
    Continue,
    /// Finish the cell that runs, then stop.
    Stop,
    /// Stop at once, without a row of the cell that runs.
    StopNow,
}

/// How far a study is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Cells that have a row.
    pub done: usize,
    /// All cells.
    pub total: usize,
    /// About how long the others take.
    pub left: Duration,
    /// The cell that is measured now.
    pub cell: Cell,
}

/// How a study ended.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Cells without a row, because the user stopped the study.
    pub missing: usize,
    /// All cells of devices that can be used.
    pub total: usize,
    /// The devices that cannot be used, and why.
    pub unusable: BTreeMap<Device, String>,
}

impl Study<'_> {
    /// Measures the cells that have no row yet.
    ///
    /// # Errors
    ///
    /// The rows cannot be written. A cell that fails has a row that says why.
    pub fn run(
        &self,
        store: &mut Store,
        wish: &dyn Fn() -> Wish,
        report: &mut dyn FnMut(&Progress),
    ) -> Result<Ended, StoreError> {
        let mut ended = Ended::default();
        let mut cells = Vec::new();
        for device in Device::ALL {
            let chosen = self.grid.chosen(device, self.only.as_deref());
            if chosen.is_empty() {
                continue;
            }
            match self.probe(device, &chosen, store, wish) {
                Ok(()) => cells.extend(chosen),
                Err(reason) => _ = ended.unusable.insert(device, reason),
            }
        }
        ended.total = cells.len();
        let missing: Vec<Cell> = cells.iter().copied().filter(|cell| !store.has(cell)).collect();
        let mut clock = TimeLeft::new(self.grid, &missing);
        for (index, cell) in missing.iter().enumerate() {
            let done = cells.len() - missing.len() + index;
            report(&Progress { done, total: cells.len(), left: clock.left(), cell: *cell });
            let outcome = if wish() == Wish::Continue { self.measure(cell, wish) } else { None };
            let Some(outcome) = outcome else {
                ended.missing = missing.len() - index;
                break;
            };
            store.add(*cell, outcome)?;
            clock.passed(cell);
        }
        Ok(ended)
    }

    /// Whether a device can be used: a few messages go over it.
    fn probe(
        &self,
        device: Device,
        cells: &[Cell],
        store: &Store,
        wish: &dyn Fn() -> Wish,
    ) -> Result<(), String> {
        if cells.iter().all(|cell| store.has(cell)) {
            return Ok(());
        }
        let cell = Cell::new(device, Test::Ping, Carrier::Send, 8);
        // Stopped: nothing is said about the device.
        self.attempt(&cell, 0.001, wish).unwrap_or_else(|| Ok(Measured::default())).map(drop)
    }

    /// Measures a cell; `None` if the user stopped it.
    fn measure(&self, cell: &Cell, wish: &dyn Fn() -> Wish) -> Option<Outcome> {
        if let Some(available) = crate::memory::available()
            && cell.memory() as u64 > available / 2
        {
            return Some(Err(format!(
                "left out: takes {} MiB of memory, more than half of the {} MiB that are free",
                cell.memory() >> 20,
                available >> 20
            )));
        }
        let first = self.attempt_with_load(cell, wish)?;
        let others = |outcome: &Outcome| outcome.as_ref().ok().and_then(|measured| measured.others_cpu);
        // Once more, if the machine was busy with something else: it may have been short.
        let Some(disturbed) = others(&first).filter(|others| *others > DISTURBED) else { return Some(first) };
        let second = self.attempt_with_load(cell, wish)?;
        let is_better = others(&second).is_some_and(|others| others < disturbed);
        Some(if is_better { second } else { first })
    }

    /// An attempt, and what others used of the processors meanwhile.
    fn attempt_with_load(&self, cell: &Cell, wish: &dyn Fn() -> Wish) -> Option<Outcome> {
        let before = Load::now();
        let mut outcome = self.attempt(cell, self.grid.seconds(), wish)?;
        if let (Ok(measured), Some(before), Some(after)) = (&mut outcome, before, Load::now()) {
            measured.others_cpu = Some(after.others_since(&before));
        }
        Some(outcome)
    }

    fn attempt(&self, cell: &Cell, seconds: f64, wish: &dyn Fn() -> Wish) -> Option<Outcome> {
        let [client, server] = match self.places.ends(cell.device, cell) {
            Ok(ends) => ends,
            Err(reason) => return Some(Err(reason)),
        };
        let end = Instant::now() + self.limit();
        let job = |of: &End, server| Job {
            cell: *cell,
            device: of.device.clone(),
            namespace: of.namespace.clone(),
            processors: of.processors.clone(),
            own: of.own,
            server,
            seconds,
        };
        let waiting = match self.start(&job(&server, None)) {
            Ok(side) => side,
            Err(error) => return Some(Err(format!("cannot start a side: {error}"))),
        };
        let port = match waiting.answer(end, wish)? {
            Ok(Answer::Port(port)) => port,
            Ok(Answer::Failed(reason)) | Err(reason) => return Some(Err(reason)),
            Ok(Answer::Measured(_)) => return Some(Err("the server answered as a client".into())),
        };
        let client = match self.start(&job(&client, Some((server.own, port).into()))) {
            Ok(side) => side,
            Err(error) => return Some(Err(format!("cannot start a side: {error}"))),
        };
        Some(match client.answer(end, wish)? {
            Ok(Answer::Measured(measured)) => Ok(measured),
            Ok(Answer::Failed(reason)) | Err(reason) => Err(reason),
            Ok(Answer::Port(_)) => Err("the client answered as a server".into()),
        })
    }

    /// The most time for a cell, set-up and checks included.
    const fn limit(&self) -> Duration {
        match self.grid {
            Grid::Quick => Duration::from_secs(8),
            Grid::Full => Duration::from_secs(40),
        }
    }

    fn start(&self, job: &Job) -> std::io::Result<Side> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C reaches the study, which decides what becomes of the cell.
            .process_group(0)
            .spawn()?;
        let (sender, answers) = channel();
        if let Some(output) = child.stdout.take() {
            // The thread ends with the output of the side.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        let line = serde_json::to_string(job)?;
        let mut side = Side { child, answers };
        if let Some(input) = &mut side.child.stdin {
            writeln!(input, "{line}")?;
        }
        Ok(side)
    }
}

/// A process of a side; it ends with this value.
struct Side {
    child: Child,
    answers: Receiver<String>,
}

impl Side {
    /// The answer, or why there is none; `None` if the user stopped the cell.
    fn answer(&self, end: Instant, wish: &dyn Fn() -> Wish) -> Option<Result<Answer, String>> {
        let begun = Instant::now();
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => {
                    return Some(
                        serde_json::from_str(&line).map_err(|error| format!("a side said {line:?}: {error}")),
                    );
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err("a side ended without an answer".into()));
                }
                Err(RecvTimeoutError::Timeout) if wish() == Wish::StopNow => return None,
                Err(RecvTimeoutError::Timeout) if Instant::now() > end => {
                    let seconds = begun.elapsed().as_secs();
                    return Some(Err(format!("given up after {seconds} s, the time limit of a cell")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time since the machine started, in seconds.
struct Load {
    at: Instant,
    /// Of all processes.
    all: f64,
    /// Of this process and of the sides that have ended.
    own: f64,
}

impl Load {
    /// `None` where the kernel does not tell.
    fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<f64> =
            text.lines().next()?.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
        // User, nice, system, and what the host of a virtual machine took. Interrupts are often work for the sides.
        let all: f64 = [0, 1, 2, 7].iter().filter_map(|index| ticks.get(*index)).sum();
        let of = |who| getrusage(who).ok().map(|usage| usage.user_time() + usage.system_time());
        let own = of(UsageWho::RUSAGE_SELF)? + of(UsageWho::RUSAGE_CHILDREN)?;
        // The ticks of user space are 10 ms on every Linux.
        Some(Self { at: Instant::now(), all: all / 100.0, own: own.num_microseconds() as f64 / 1e6 })
    }

    /// What others used since then, in percent of one processor.
    fn others_since(&self, before: &Self) -> f64 {
        let others = (self.all - before.all) - (self.own - before.own);
        let wall = self.at.duration_since(before.at).as_secs_f64();
        (others / wall.max(1e-9) * 100.0).max(0.0)
    }
}

/// Estimates how long the cells take that are left: by what those before took.
struct TimeLeft {
    grid: Grid,
    begun: Instant,
    expected: f64,
    passed: f64,
}

impl TimeLeft {
    fn new(grid: Grid, cells: &[Cell]) -> Self {
        let expected = cells.iter().map(|cell| expected_seconds(grid, cell)).sum();
        Self { grid, begun: Instant::now(), expected, passed: 0.0 }
    }

    fn passed(&mut self, cell: &Cell) {
        self.passed += expected_seconds(self.grid, cell);
    }

    fn left(&self) -> Duration {
        // As if a minute had gone as expected, so that the first cells do not decide alone.
        const HABIT: f64 = 60.0;
        let factor = (self.begun.elapsed().as_secs_f64() + HABIT) / (self.passed + HABIT);
        Duration::from_secs_f64(((self.expected - self.passed) * factor).max(0.0))
    }
}

/// How long a cell takes with set-up and calibration, about.
fn expected_seconds(grid: Grid, cell: &Cell) -> f64 {
    let bytes = (cell.size * cell.buffers * cell.workers) as f64;
    let repeats = if cell.workers > 1 { 14.0 } else { 3.5 };
    0.15 + repeats * grid.seconds() + 8.0 * bytes / 1e9
}
