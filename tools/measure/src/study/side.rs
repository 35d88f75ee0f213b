//! One side of a cell, in its own process, so that its processor time is separate from that of the other
//! side.
//!
//! The study starts both sides and writes a [`Job`] to each. A server answers with its port, a client with
//! its results. A side ends when its standard input ends, so it never outlives the study.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use roce::observe::with_causes;
use roce::verbs::Context;
use roce_device::{Device, OpenOptions};
use roce_exchange::{Exchange, ToolError};
use serde::{Deserialize, Serialize};

use super::grid::{Carrier, Cell, Test};
use super::measured::Measured;
use super::tcp;
use crate::limit;
use crate::measure::{self, ServerOptions, Stopwatch};

/// The job of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The measurement.
    pub cell: Cell,
    /// The device name of this side.
    pub device: String,
    /// The network namespace of this side; `None` is that of the study.
    pub namespace: Option<PathBuf>,
    /// The processors that this side may use; empty means all.
    pub processors: Vec<usize>,
    /// The kernel's address for the exchange and for TCP.
    pub own: IpAddr,
    /// The server; `None` if this side is the server.
    pub server: Option<SocketAddr>,
    /// The wanted duration of one measurement of the cell, in seconds.
    pub seconds: f64,
}

/// The answer of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The server listens on this TCP port.
    Port(u16),
    /// The client has measured.
    Measured(Measured),
    /// The side failed, for this reason.
    Failed(String),
}

/// Reads a job, runs it and writes the answer.
///
/// # Errors
///
/// The input is not a job, or the output cannot be written. An error of the measurement is part of the
/// answer.
pub fn run(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let job: Job = serde_json::from_str(&line)?;
    let done = enter(&job).and_then(|()| match job.server {
        None => serve(&job, output),
        Some(server) => client(&job, server).and_then(|measured| say(output, &Answer::Measured(measured))),
    });
    match done {
        Ok(()) => Ok(()),
        Err(error) => say(output, &Answer::Failed(with_causes(&error).to_string())).map_err(io::Error::other),
    }
}

fn say(output: &mut dyn Write, answer: &Answer) -> Result<(), ToolError> {
    let line = serde_json::to_string(answer).map_err(io::Error::from);
    let written = line.and_then(|line| writeln!(output, "{line}").and_then(|()| output.flush()));
    written.map_err(|error| ToolError::Io { what: "cannot send the answer to the study", error })
}

/// Enters the namespace and the processors of the job, before any thread starts.
fn enter(job: &Job) -> Result<(), ToolError> {
    if let Some(path) = &job.namespace {
        let failed = |error| ToolError::Io { what: "cannot enter the network namespace", error };
        let file = std::fs::File::open(path).map_err(failed)?;
        let network = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(network))
            .map_err(|error| failed(error.into()))?;
    }
    if !job.processors.is_empty() {
        let mut set = CpuSet::new();
        // A processor that no longer exists is skipped.
        let known = job.processors.iter().filter(|number| set.set(**number).is_ok()).count();
        if known > 0 {
            sched_setaffinity(Pid::from_raw(0), &set)
                .map_err(|error| ToolError::Io { what: "cannot choose processors", error: error.into() })?;
        }
    }
    Ok(())
}

fn open_device(job: &Job) -> Result<Box<dyn Device>, ToolError> {
    roce_device::open(&job.device, OpenOptions::default())
        .map_err(|error| ToolError::Plan(with_causes(&error).to_string()))
}

fn open_context(job: &Job) -> Result<Context, ToolError> {
    Ok(Context::builder().publish(false).attach_box(open_device(job)?)?)
}

/// Serves clients until the study ends this process.
fn serve(job: &Job, output: &mut dyn Write) -> Result<(), ToolError> {
    let failed = |error| ToolError::Io { what: "cannot listen on the TCP port of the study", error };
    let listener = TcpListener::bind(SocketAddr::new(job.own, 0)).map_err(failed)?;
    let port = Answer::Port(listener.local_addr().map_err(failed)?.port());
    let next = || Ok::<_, ToolError>(Exchange::accept_from(&listener)?.allow_any_peer());
    match job.cell.carrier {
        Carrier::Limit => {
            let mut device = open_device(job)?;
            say(output, &port)?;
            loop {
                // The client reports errors.
                let _ = limit::serve(device.as_mut(), next()?);
            }
        }
        Carrier::Tcp => {
            say(output, &port)?;
            std::thread::scope(|scope| {
                loop {
                    let (exchange, own) = (next()?, job.own);
                    scope.spawn(move || _ = tcp::serve(exchange, own));
                }
            })
        }
        _ => {
            let context = open_context(job)?;
            let options = ServerOptions { gid_index: None, max_memory: job.cell.memory() };
            say(output, &port)?;
            std::thread::scope(|scope| {
                loop {
                    let (exchange, context) = (next()?, &context);
                    scope.spawn(move || _ = measure::serve(context, exchange, &options));
                }
            })
        }
    }
}

/// The state of a client for its runs.
struct Client<'a> {
    job: &'a Job,
    server: SocketAddr,
    /// The context for RDMA operations.
    context: Option<Context>,
    path_mtu: usize,
}

fn client(job: &Job, server: SocketAddr) -> Result<Measured, ToolError> {
    let begun = Instant::now();
    if job.cell.carrier == Carrier::Limit {
        let mut device = open_device(job)?;
        let mut once = |count| limit_once(job, server, device.as_mut(), count);
        let first = calibrate(job, begun, &mut once)?;
        // Lost frames cost time, so the best run is the upper bound.
        return Ok(repeat(first, begun, &mut once)?.swap_remove(0));
    }
    let context = if job.cell.carrier == Carrier::Tcp { None } else { Some(open_context(job)?) };
    let path_mtu = match &context {
        Some(context) => context.largest_path_mtu().map_or(1024, |mtu| mtu.bytes()),
        None => 0,
    };
    let client = Client { job, server, context, path_mtu };
    let mut once = |count| Ok(client.once(count, &mut || {})?.0);
    let first = calibrate(job, begun, &mut once)?;
    let mut all = if job.cell.workers == 1 {
        repeat(first, begun, &mut once)?
    } else {
        // Each worker sends more messages than its share, because the workers do not begin and end at the
        // same moment.
        let count = (2 * first.iterations / job.cell.workers as u64).max(LEAST_OF_A_WORKER);
        repeat(client.workers(count)?, begun, &mut |_| client.workers(count))?
    };
    let middle = all.len() / 2;
    Ok(all.swap_remove(middle))
}

/// Finds a number of messages that takes long enough. Returns the measurement with that number.
fn calibrate(
    job: &Job,
    begun: Instant,
    once: &mut dyn FnMut(u64) -> Result<Measured, ToolError>,
) -> Result<Measured, ToolError> {
    let mut count = (FIRST_BYTES / job.cell.size.max(1) as u64).clamp(1, MOST_FIRST);
    let mut measured = once(count)?;
    for _ in 0..MOST_ATTEMPTS {
        if measured.elapsed_s >= LONG_ENOUGH * job.seconds || begun.elapsed() > LONG {
            break;
        }
        let factor = job.seconds / measured.elapsed_s.max(1e-6);
        let next = (count as f64 * factor.clamp(1.0, 200.0)).ceil() as u64;
        if next <= count {
            break;
        }
        count = next;
        measured = once(count)?;
    }
    Ok(measured)
}

/// Repeats the measurement with the same number of messages, unless the cell has already taken long. Returns
/// the fastest first.
fn repeat(
    first: Measured,
    begun: Instant,
    once: &mut dyn FnMut(u64) -> Result<Measured, ToolError>,
) -> Result<Vec<Measured>, ToolError> {
    let count = first.iterations;
    let mut all = vec![first];
    while all.len() < REPETITIONS && begun.elapsed() < LONG {
        all.push(once(count)?);
    }
    all.sort_by(|a, b| a.one_way_us.total_cmp(&b.one_way_us));
    Ok(all)
}

/// Number of measurements of a cell; the median counts.
const REPETITIONS: usize = 3;
/// No further measurement begins after this time. Filling and checking large messages takes long, and is not
/// timed.
const LONG: Duration = Duration::from_secs(4);
/// Minimum number of messages per worker.
const LEAST_OF_A_WORKER: u64 = 8;
/// Bytes of the messages of the first attempt, and their maximum number.
const FIRST_BYTES: u64 = 4 << 20;
const MOST_FIRST: u64 = 200;
/// Maximum number of attempts after the first. Each starts from the rate of the previous one.
const MOST_ATTEMPTS: usize = 3;
/// The sufficient share of the wanted time.
const LONG_ENOUGH: f64 = 0.6;
/// Maximum number of outstanding frames.
const LIMIT_WINDOW: u64 = 256;

fn limit_once(
    job: &Job,
    server: SocketAddr,
    device: &mut dyn Device,
    count: u64,
) -> Result<Measured, ToolError> {
    let is_ping = job.cell.test == Test::Ping;
    let plan = limit::Plan {
        sizes: if is_ping { Vec::new() } else { vec![job.cell.size] },
        frames: if is_ping { 1 } else { count.max(LIMIT_WINDOW) },
        round_trips: if is_ping { count } else { 0 },
        window: LIMIT_WINDOW,
        tcp: false,
    };
    let watch = Stopwatch::start();
    let outcome = limit::client(device, Exchange::connect_as(job.own, server)?, &plan)?;
    let cpu = watch.stop();
    if let Some(row) = outcome.rows.first() {
        return Ok(Measured {
            iterations: row.arrived,
            elapsed_s: row.elapsed_s,
            gigabits_per_s: row.gigabits_per_s,
            messages_per_s: row.frames_per_s,
            one_way_us: row.elapsed_s * 1e6 / row.arrived.max(1) as f64,
            client_cpu: Some(cpu.percent()),
            ..Measured::default()
        });
    }
    let latency = outcome.latency.ok_or_else(|| ToolError::Plan("no frame came back".into()))?;
    Ok(Measured {
        iterations: count,
        // Excludes everything before the first round trip.
        elapsed_s: 2e-6 * latency.median_us * count as f64,
        messages_per_s: 1e6 / latency.median_us,
        one_way_us: latency.median_us,
        percentiles_us: [Some(latency.least_us), Some(latency.median_us), Some(latency.p99_us), None],
        client_cpu: Some(cpu.percent()),
        ..Measured::default()
    })
}

impl Client<'_> {
    /// Runs one connection with `count` messages. Also returns the time when its report had arrived. Calls
    /// `gate` before the measured part begins.
    fn once(&self, count: u64, gate: &mut dyn FnMut()) -> Result<(Measured, Instant), ToolError> {
        let (job, context) = (self.job, &self.context);
        let exchange = Exchange::connect_as(job.own, self.server)?;
        let Some(context) = context else {
            return Ok((tcp::client(exchange, job.own, &job.cell, count, gate)?, Instant::now()));
        };
        let Some(mut plan) = job.cell.plan(count, self.path_mtu) else {
            return Err(ToolError::Plan("this cell does not have an operation".into()));
        };
        if job.cell.workers > 1 {
            // The workers wait for each other between two rows. Only the second row counts.
            plan.sizes.push(job.cell.size);
        }
        let (mut is_first, mut ended) = (job.cell.workers > 1, Instant::now());
        let rows = measure::run_client(context, exchange, &plan, None, &mut |_| {
            ended = Instant::now();
            if std::mem::take(&mut is_first) {
                gate();
            }
        })?;
        let row = rows.last().ok_or_else(|| ToolError::Plan("no size was measured".into()))?;
        Ok((Measured::of(row, self.path_mtu), ended))
    }

    /// Runs all workers at once.
    fn workers(&self, count: u64) -> Result<Measured, ToolError> {
        let gate = Gate::new(self.job.cell.workers);
        let all: Result<Vec<(Measured, Instant)>, ToolError> = std::thread::scope(|scope| {
            let work = || {
                let measured = self.once(count, &mut || gate.wait());
                if measured.is_err() {
                    gate.open();
                }
                measured
            };
            let threads: Vec<_> = (0..self.job.cell.workers).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(ToolError::Plan("a worker panicked".into())))
            };
            threads.into_iter().map(join).collect()
        });
        let (all, ends): (Vec<Measured>, Vec<Instant>) = all?.into_iter().unzip();
        let wall = ends.into_iter().max().zip(gate.opened()).map(|(end, begin)| end.duration_since(begin));
        Ok(Measured::together(&all, wall.map_or(f64::NAN, |wall| wall.as_secs_f64().max(1e-9))))
    }
}

/// The barrier at which workers wait until all of them are ready.
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    missing: usize,
    opened: Option<Instant>,
}

impl Gate {
    /// The maximum wait. Workers that are not ready by then do not block the others.
    const PATIENCE: Duration = Duration::from_secs(10);

    fn new(workers: usize) -> Self {
        Self { state: Mutex::new(GateState { missing: workers, opened: None }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut state = self.lock();
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0 {
            state.opened.get_or_insert_with(Instant::now);
            self.changed.notify_all();
        }
        let _ = self.changed.wait_timeout_while(state, Self::PATIENCE, |state| state.missing > 0);
    }

    /// Lets all workers continue, because one failed and will not arrive.
    fn open(&self) {
        self.lock().missing = 0;
        self.changed.notify_all();
    }

    /// Returns the time at which all workers were ready.
    fn opened(&self) -> Option<Instant> {
        self.lock().opened
    }
}
