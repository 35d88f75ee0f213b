//! Kernel TCP for comparison: messages with the same sizes and checks over a stream between the same
//! addresses.

use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use roce_exchange::content::{Pattern, STAMP, check, stamp};
use roce_exchange::{Exchange, ToolError, tell_failure};
use serde::{Deserialize, Serialize};

use super::grid::{Cell, Test};
use super::measured::Measured;
use crate::harness::statistics::{gigabits_per_s, percentile};
use crate::harness::{connect_from, spin};
use crate::measure::{CpuUsage, Stopwatch};

const TOOL: &str = "study";
/// Time limit for the next bytes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Minimum capacity of a receiver's buffer, in bytes.
const READ: usize = 128 << 10;

/// The request of the client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Plan {
    test: Test,
    size: usize,
    messages: u64,
    events: bool,
}

fn failed(error: io::Error) -> ToolError {
    ToolError::Io { what: "kernel TCP", error }
}

/// Returns the content of a message.
fn content(number: u64, size: usize) -> Vec<u8> {
    let mut bytes = Pattern::new(31, 1).bytes(size);
    stamp(&mut bytes, number);
    bytes
}

/// One end of a stream.
struct Stream {
    reader: BufReader<Input>,
    writer: TcpStream,
    plan: Plan,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

/// A reader that spins or sleeps until bytes arrive.
struct Input {
    stream: TcpStream,
    is_spinning: bool,
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.is_spinning {
            return self.stream.read(bytes);
        }
        let found = spin(PATIENCE, || match receive(&self.stream, bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            other => other.map(Some),
        })?;
        found.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

/// Reads available bytes, without sleeping.
fn receive(stream: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = rustix::net::RecvFlags::DONTWAIT;
    Ok(rustix::net::recv(stream, bytes, flags)?.0)
}

impl Stream {
    fn new(stream: TcpStream, plan: Plan) -> io::Result<Self> {
        // For blast, the kernel may gather small messages.
        stream.set_nodelay(plan.test == Test::Ping)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let input = Input { stream: stream.try_clone()?, is_spinning: !plan.events };
        Ok(Self {
            reader: BufReader::with_capacity(READ, input),
            writer: stream,
            plan,
            outgoing: content(0, plan.size),
            incoming: vec![0; plan.size],
        })
    }

    fn send(&mut self, number: u64) -> Result<(), ToolError> {
        stamp(&mut self.outgoing, number);
        self.writer.write_all(&self.outgoing).map_err(failed)
    }

    fn receive(&mut self, number: u64) -> Result<(), ToolError> {
        self.reader.read_exact(&mut self.incoming).map_err(failed)?;
        let len = self.plan.size.min(STAMP);
        check(number, self.plan.size, &self.incoming[..len], &number.to_le_bytes()[..len])
    }

    /// Checks the whole content of the last message.
    fn check_last(&self) -> Result<(), ToolError> {
        let last = self.plan.messages - 1;
        check(last, self.plan.size, &self.incoming, &content(last, self.plan.size))
    }
}

/// Runs the client of a measurement.
///
/// # Errors
///
/// The other side has left, or a message has the wrong content.
pub(super) fn client(
    mut exchange: Exchange,
    own: IpAddr,
    cell: &Cell,
    messages: u64,
    gate: &mut dyn FnMut(),
) -> Result<Measured, ToolError> {
    let plan = Plan { test: cell.test, size: cell.size, messages, events: cell.events };
    let measured = measure(&mut exchange, own, plan, gate);
    tell_failure(&mut exchange, &measured);
    measured
}

fn measure(
    exchange: &mut Exchange,
    own: IpAddr,
    plan: Plan,
    gate: &mut dyn FnMut(),
) -> Result<Measured, ToolError> {
    exchange.greet(TOOL)?;
    exchange.send("the plan", &plan)?;
    let address: SocketAddr = exchange.receive("the address of the TCP measurement")?;
    let mut stream = Stream::new(connect_from(own, address).map_err(failed)?, plan).map_err(failed)?;
    exchange.barrier()?;
    gate();
    let watch = Stopwatch::start();
    let started = Instant::now();
    let mut times = Vec::new();
    match plan.test {
        Test::Ping => {
            times.reserve(plan.messages as usize);
            let mut before = started;
            for number in 0..plan.messages {
                stream.send(number)?;
                stream.receive(number)?;
                let now = Instant::now();
                times.push(now.duration_since(before).as_secs_f64() * 1e6 / 2.0);
                before = now;
            }
        }
        Test::Blast => {
            (0..plan.messages).try_for_each(|number| stream.send(number))?;
            // The receiver sends a byte when it has all messages.
            stream.reader.read_exact(&mut [0; 1]).map_err(failed)?;
        }
    }
    let (elapsed_s, cpu) = (started.elapsed().as_secs_f64(), watch.stop());
    if plan.test == Test::Ping {
        stream.check_last()?;
    }
    let server: CpuUsage = exchange.swap("the report", &cpu)?;
    let ways = if plan.test == Test::Ping { 2.0 } else { 1.0 };
    let count = plan.messages as f64;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| percentile(&times, share);
    Ok(Measured {
        iterations: plan.messages,
        elapsed_s,
        gigabits_per_s: gigabits_per_s(plan.size as f64 * count * ways, elapsed_s),
        messages_per_s: count * ways / elapsed_s,
        one_way_us: elapsed_s * 1e6 / count / ways,
        percentiles_us: [at(0.0), at(0.5), at(0.99), at(1.0)],
        client_cpu: Some(cpu.percent()),
        server_cpu: Some(server.percent()),
        ..Measured::default()
    })
}

/// Serves one client.
///
/// # Errors
///
/// The errors of [`client`].
pub(super) fn serve(mut exchange: Exchange, own: IpAddr) -> Result<(), ToolError> {
    let served = serve_client(&mut exchange, own);
    tell_failure(&mut exchange, &served);
    served
}

fn serve_client(exchange: &mut Exchange, own: IpAddr) -> Result<(), ToolError> {
    exchange.greet(TOOL)?;
    let plan: Plan = exchange.receive("the plan")?;
    let listener = TcpListener::bind(SocketAddr::new(own, 0)).map_err(failed)?;
    exchange.send("the address of the TCP measurement", &listener.local_addr().map_err(failed)?)?;
    let (stream, _) = listener.accept().map_err(failed)?;
    let mut stream = Stream::new(stream, plan).map_err(failed)?;
    exchange.limit(None);
    exchange.barrier()?;
    let watch = Stopwatch::start();
    for number in 0..plan.messages {
        stream.receive(number)?;
        if plan.test == Test::Ping {
            stream.send(number)?;
        }
    }
    if plan.test == Test::Blast {
        stream.writer.write_all(&[1]).map_err(failed)?;
    }
    let cpu = watch.stop();
    stream.check_last()?;
    let _: CpuUsage = exchange.swap("the report", &cpu)?;
    Ok(())
}
