//! Running the cells one after the other, and storing the rows.

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
use super::measured::Measured;
use super::place::{End, Places};
use super::side::{Answer, Job};
use super::store::{Outcome, Store, StoreError};

/// Load of other processes, in percent of a processor, above which a cell counts as disturbed. The resolution
/// of the kernel's ticks is a few percent for a short cell.
pub(super) const DISTURBED: f64 = 25.0;
/// Interval at which a wait checks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(50);

/// The parameters of a study.
#[derive(Debug)]
pub struct Study<'a> {
    /// The grid of the cells.
    pub grid: Grid,
    /// A text that the keys of the measured cells contain.
    pub only: Option<String>,
    /// The program that runs a side: this program, with arguments that make it call
    /// [`side::run`](super::side::run).
    pub program: PathBuf,
    /// The arguments of the program.
    pub arguments: Vec<String>,
    /// The environment of the sides.
    pub places: &'a Places,
}

/// The wish of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Continue.
    Continue,
    /// Finish the current cell, then stop.
    Stop,
    /// Stop at once, without a row for the current cell.
    StopNow,
}

/// The progress of a study.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Number of cells that have a row.
    pub done: usize,
    /// Number of all cells.
    pub total: usize,
    /// Estimated time of the remaining cells.
    pub left: Duration,
    /// The cell that is measured now.
    pub cell: Cell,
}

/// The result of a study.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Number of cells without a row, because the user stopped the study.
    pub missing: usize,
    /// Number of all cells of usable devices.
    pub total: usize,
    /// The devices that cannot be used, and the reasons.
    pub unusable: BTreeMap<Device, String>,
}

impl Study<'_> {
    /// Measures the cells that have no row yet.
    ///
    /// # Errors
    ///
    /// The rows cannot be written. A cell that fails has a row with the reason.
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

    /// Checks whether a device can be used, with a few messages.
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
        // If the user stopped the probe, it reports no error of the device.
        self.attempt(&cell, 0.001, wish).unwrap_or_else(|| Ok(Measured::default())).map(drop)
    }

    /// Measures a cell. Returns `None` if the user stopped it.
    fn measure(&self, cell: &Cell, wish: &dyn Fn() -> Wish) -> Option<Outcome> {
        if let Some(available) = roce_machine::memory::available()
            && cell.memory() as u64 > available / 2
        {
            return Some(Err(format!(
                "left out: needs {} MiB of memory, more than half of the {} MiB that are free",
                cell.memory() >> 20,
                available >> 20
            )));
        }
        let first = self.attempt_with_load(cell, wish)?;
        let others = |outcome: &Outcome| outcome.as_ref().ok().and_then(|measured| measured.others_cpu);
        // Measures again if the machine was busy with something else, which may have ended.
        let Some(disturbed) = others(&first).filter(|others| *others > DISTURBED) else { return Some(first) };
        let second = self.attempt_with_load(cell, wish)?;
        let is_better = others(&second).is_some_and(|others| others < disturbed);
        Some(if is_better { second } else { first })
    }

    /// Measures a cell once, together with the load of other processes meanwhile.
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

    /// Returns the time limit of a cell, including set-up and checks.
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
            // Ctrl-C reaches only the study, which decides whether to finish the cell.
            .process_group(0)
            .spawn()?;
        let (sender, answers) = channel();
        if let Some(output) = child.stdout.take() {
            // The thread ends when the output of the side ends.
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

/// The process of a side, which ends when this value is dropped.
struct Side {
    child: Child,
    answers: Receiver<String>,
}

impl Side {
    /// Returns the answer, or the reason why there is no answer. Returns `None` if the user stopped the cell.
    fn answer(&self, end: Instant, wish: &dyn Fn() -> Wish) -> Option<Result<Answer, String>> {
        let begun = Instant::now();
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => {
                    return Some(
                        serde_json::from_str(&line)
                            .map_err(|error| format!("a side printed the invalid line {line:?}: {error}")),
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
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time since the machine started, in seconds.
struct Load {
    at: Instant,
    /// Time of all processes.
    all: f64,
    /// Time of this process and of the sides that have ended.
    own: f64,
}

impl Load {
    /// Returns `None` if the kernel does not report it.
    fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<f64> =
            text.lines().next()?.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
        // User, nice, system, and time taken by the host of a virtual machine. Interrupts are often work for
        // the sides.
        let all: f64 = [0, 1, 2, 7].iter().filter_map(|index| ticks.get(*index)).sum();
        let of = |who| getrusage(who).ok().map(|usage| usage.user_time() + usage.system_time());
        let own = of(UsageWho::RUSAGE_SELF)? + of(UsageWho::RUSAGE_CHILDREN)?;
        // The ticks in user space are 10 ms on every Linux.
        Some(Self { at: Instant::now(), all: all / 100.0, own: own.num_microseconds() as f64 / 1e6 })
    }

    /// Returns the load of other processes since `before`, in percent of one processor.
    fn others_since(&self, before: &Self) -> f64 {
        let others = (self.all - before.all) - (self.own - before.own);
        let wall = self.at.duration_since(before.at).as_secs_f64();
        (others / wall.max(1e-9) * 100.0).max(0.0)
    }
}

/// An estimate of the time of the remaining cells, based on the finished cells.
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
        // Adds one minute that went as expected, so that the first cells alone do not decide.
        const HABIT: f64 = 60.0;
        let factor = (self.begun.elapsed().as_secs_f64() + HABIT) / (self.passed + HABIT);
        Duration::from_secs_f64(((self.expected - self.passed) * factor).max(0.0))
    }
}

/// Returns the approximate time of a cell, including set-up and calibration.
fn expected_seconds(grid: Grid, cell: &Cell) -> f64 {
    let bytes = (cell.size * cell.buffers * cell.workers) as f64;
    let repeats = if cell.workers > 1 { 14.0 } else { 3.5 };
    0.15 + repeats * grid.seconds() + 8.0 * bytes / 1e9
}
