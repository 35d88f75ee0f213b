//! One side of a cell, in a process of its own, so that its processor time is told apart from that of the other side.
//!
//! The study starts both sides and writes a [`Job`] to each; a server answers with its port, a client with what it
//! measured. A side ends when its standard input does, so that none outlives the study.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use roce::verbs::Context;
use roce_device::{Device, OpenOptions};
use serde::{Deserialize, Serialize};

use super::grid::{Carrier, Cell, Test};
use super::tcp;
use crate::exchange::Exchange;
use crate::harness::ToolError;
use crate::limit;
use crate::measure::{self, Row, ServerOptions, Stopwatch};

/// What a side is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The measurement.
    pub cell: Cell,
    /// The device of this side.
    pub device: String,
    /// The network namespace of this side; `None` is that of the study.
    pub namespace: Option<PathBuf>,
    /// The processors that this side may use; all, if there are none.
    pub processors: Vec<usize>,
    /// The address of the kernel at which this side exchanges and uses TCP.
    pub own: IpAddr,
    /// The server; `None` if this side is the server.
    pub server: Option<SocketAddr>,
    /// How long one measurement of the cell should take.
    pub seconds: f64,
}

/// What a side answers.
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

/// What was measured in a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Path MTU in bytes; 0 where there is none.
    pub path_mtu: usize,
    /// Messages of all workers, or round trips.
    pub iterations: u64,
    /// Seconds from the first message to the last completion.
    pub elapsed_s: f64,
    /// Payload, 10^9 bits a second; of ping both ways.
    pub gigabits_per_s: f64,
    /// Messages a second; of ping both ways.
    pub messages_per_s: f64,
    /// Time of a message, microseconds: half a mean round trip; of READ the whole; of blast elapsed / messages.
    pub one_way_us: f64,
    /// Least, median, 99th percentile and most, microseconds, where each message was timed.
    pub percentiles_us: [Option<f64>; 4],
    /// Processor time of the client in percent of one processor.
    pub client_cpu: Option<f64>,
    /// The same of the server.
    pub server_cpu: Option<f64>,
    /// What processes of others used meanwhile, in percent of one processor; the study fills it in.
    pub others_cpu: Option<f64>,
    /// Packets that were sent again, by both sides.
    pub retransmitted_packets: u64,
    /// Expired timers of retransmission of both sides: early ones and local ACK timeouts.
    pub timeouts: u64,
    /// RNR NAKs that both sides received.
    pub rnr_naks: u64,
}

impl Measured {
    fn of(row: &Row, path_mtu: usize) -> Self {
        Self {
            path_mtu,
            iterations: row.iterations,
            elapsed_s: row.elapsed_s,
            gigabits_per_s: row.gigabits_per_s,
            messages_per_s: row.messages_per_s,
            one_way_us: row.one_way_us,
            percentiles_us: row.percentiles_us.map_or([None; 4], |values| values.map(Some)),
            client_cpu: Some(row.client.cpu.percent()),
            server_cpu: Some(row.server.cpu.percent()),
            others_cpu: None,
            retransmitted_packets: row.client.retransmitted_packets + row.server.retransmitted_packets,
            timeouts: row.client.timeouts + row.server.timeouts,
            rnr_naks: row.client.rnr_naks + row.server.rnr_naks,
        }
    }

    /// What several workers measured at the same time, in one process each side, from the moment when all of them began until
    /// the last one had its report, `wall_s` later.
    fn together(all: &[Self], wall_s: f64) -> Self {
        let sum = |value: fn(&Self) -> f64| all.iter().map(value).sum::<f64>();
        let iterations: u64 = all.iter().map(|one| one.iterations).sum();
        // Each worker saw the processor time of its whole process.
        let cpu = |value: fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = all.iter().filter_map(value).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let most = |value: fn(&Self) -> u64| all.iter().map(value).max().unwrap_or(0);
        Self {
            path_mtu: all.first().map_or(0, |one| one.path_mtu),
            iterations,
            elapsed_s: wall_s,
            gigabits_per_s: sum(|one| one.gigabits_per_s * one.elapsed_s) / wall_s,
            messages_per_s: sum(|one| one.messages_per_s * one.elapsed_s) / wall_s,
            one_way_us: wall_s * 1e6 / iterations.max(1) as f64,
            percentiles_us: [None; 4],
            client_cpu: cpu(|one| one.client_cpu),
            server_cpu: cpu(|one| one.server_cpu),
            others_cpu: None,
            retransmitted_packets: most(|one| one.retransmitted_packets),
            timeouts: most(|one| one.timeouts),
            rnr_naks: most(|one| one.rnr_naks),
        }
    }
}

/// Reads a job, does it and writes the answer.
///
/// # Errors
///
/// The input is not a job, or the output cannot be written. What fails in the measurement is the answer.
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
        Err(error) => say(output, &Answer::Failed(error.to_string())).map_err(io::Error::other),
    }
}

fn say(output: &mut dyn Write, answer: &Answer) -> Result<(), ToolError> {
    let line = serde_json::to_string(answer).map_err(io::Error::from);
    let written = line.and_then(|line| writeln!(output, "{line}").and_then(|()| output.flush()));
    written.map_err(|error| ToolError::Io { what: "the answer to the study", error })
}

/// Goes to the namespace and the processors of the job, before any thread starts.
fn enter(job: &Job) -> Result<(), ToolError> {
    if let Some(path) = &job.namespace {
        let failed = |error| ToolError::Io { what: "the network namespace", error };
        let file = std::fs::File::open(path).map_err(failed)?;
        let network = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(network))
            .map_err(|error| failed(error.into()))?;
    }
    if !job.processors.is_empty() {
        let mut set = CpuSet::new();
        // A processor that is gone leaves the others.
        let known = job.processors.iter().filter(|number| set.set(**number).is_ok()).count();
        if known > 0 {
            sched_setaffinity(Pid::from_raw(0), &set)
                .map_err(|error| ToolError::Io { what: "the processors of a side", error: error.into() })?;
        }
    }
    Ok(())
}

fn open_device(job: &Job) -> Result<Box<dyn Device>, ToolError> {
    roce_device::open(&job.device, OpenOptions::default()).map_err(|error| ToolError::Plan(error.to_string()))
}

fn open_context(job: &Job) -> Result<Context, ToolError> {
    Ok(Context::builder().publish(false).attach(open_device(job)?)?)
}

/// Serves clients until the study ends this process.
fn serve(job: &Job, output: &mut dyn Write) -> Result<(), ToolError> {
    let failed = |error| ToolError::Io { what: "the TCP port of the study", error };
    let listener = TcpListener::bind(SocketAddr::new(job.own, 0)).map_err(failed)?;
    let port = Answer::Port(listener.local_addr().map_err(failed)?.port());
    let next = || Ok::<_, ToolError>(Exchange::accept_from(&listener)?.allow_any_peer());
    match job.cell.carrier {
        Carrier::Limit => {
            let mut device = open_device(job)?;
            say(output, &port)?;
            loop {
                // The client reports what fails.
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

/// What one run of a client takes.
struct Client<'a> {
    job: &'a Job,
    server: SocketAddr,
    /// Of the operations.
    context: Option<Context>,
    path_mtu: usize,
}

fn client(job: &Job, server: SocketAddr) -> Result<Measured, ToolError> {
    let begun = Instant::now();
    if job.cell.carrier == Carrier::Limit {
        let mut device = open_device(job)?;
        let mut once = |count| limit_once(job, server, device.as_mut(), count);
        let first = calibrate(job, begun, &mut once)?;
        // Frames that are lost cost time: the ceiling is the best.
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
        // Longer than alone, because the workers do not begin and end in the same moment.
        let count = (2 * first.iterations / job.cell.workers as u64).max(LEAST_OF_A_WORKER);
        repeat(client.workers(count)?, begun, &mut |_| client.workers(count))?
    };
    let middle = all.len() / 2;
    Ok(all.swap_remove(middle))
}

/// Finds a number of messages that takes long enough, and what was measured with it.
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

/// Measures again with as many messages, unless the cell has taken long already. The fastest comes first.
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

/// How often a cell is measured; the median counts.
const REPETITIONS: usize = 3;
/// The time after which nothing more is measured: large messages take long to fill and to check, which is not timed.
const LONG: Duration = Duration::from_secs(4);
/// The fewest messages of one of several workers.
const LEAST_OF_A_WORKER: u64 = 8;
/// Bytes of the messages of the first attempt, and the most messages.
const FIRST_BYTES: u64 = 4 << 20;
const MOST_FIRST: u64 = 200;
/// Attempts after the first; each begins from the rate of the one before.
const MOST_ATTEMPTS: usize = 3;
/// The share of the wanted time that is enough.
const LONG_ENOUGH: f64 = 0.6;
/// Frames in flight.
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
        // Without what comes before the first round trip.
        elapsed_s: 2e-6 * latency.median_us * count as f64,
        messages_per_s: 1e6 / latency.median_us,
        one_way_us: latency.median_us,
        percentiles_us: [Some(latency.least_us), Some(latency.median_us), Some(latency.p99_us), None],
        client_cpu: Some(cpu.percent()),
        ..Measured::default()
    })
}

impl Client<'_> {
    /// One connection, `count` messages, and when its report had come. `gate` is called before what counts begins.
    fn once(&self, count: u64, gate: &mut dyn FnMut()) -> Result<(Measured, Instant), ToolError> {
        let (job, context) = (self.job, &self.context);
        let exchange = Exchange::connect_as(job.own, self.server)?;
        let Some(context) = context else {
            return Ok((tcp::client(exchange, job.own, &job.cell, count, gate)?, Instant::now()));
        };
        let Some(mut plan) = job.cell.plan(count, self.path_mtu) else {
            return Err(ToolError::Plan("this cell is no operation".into()));
        };
        if job.cell.workers > 1 {
            // The workers wait for each other between two rows, of which the last counts.
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

    /// All workers at once.
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

/// Where workers wait until all of them are ready.
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    missing: usize,
    opened: Option<Instant>,
}

impl Gate {
    /// The longest wait: workers that are not ready then do not hold the others up.
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

    /// Lets all go on: a worker failed, and none need wait for it.
    fn open(&self) {
        self.lock().missing = 0;
        self.changed.notify_all();
    }

    /// When all were ready.
    fn opened(&self) -> Option<Instant> {
        self.lock().opened
    }
}
