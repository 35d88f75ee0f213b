//! Kernel TCP between the same two addresses, for comparison.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use roce_exchange::{Exchange, ToolError};
use rustix::event::{Timespec, epoll};

use super::{Latency, PATIENCE};
use crate::harness::statistics::gigabits_per_s;
use crate::harness::{connect_from, spin};

/// Bytes of one write.
const WRITE: usize = 64 << 10;
/// Bytes of the one-way measurement.
const TOTAL: usize = 1 << 30;

fn failed(error: std::io::Error) -> ToolError {
    ToolError::Io { what: "kernel TCP", error }
}

/// First byte of a message after which the server sleeps until there is something to read.
const SLEEP: u8 = 1;

/// The result of the measurement.
pub(super) struct Outcome {
    pub(super) gigabits_per_s: f64,
    /// Round trips of two sides that never sleep.
    pub(super) latency: Option<Latency>,
    /// Round trips of two sides that sleep in `epoll_wait`.
    pub(super) event_latency: Option<Latency>,
}

/// Sends [`TOTAL`] bytes, then 8 bytes in round trips.
pub(super) fn client(
    exchange: &mut Exchange,
    own: IpAddr,
    server: IpAddr,
    round_trips: u64,
) -> Result<Outcome, ToolError> {
    let port: u16 = exchange.receive("the port of the TCP measurement")?;
    let mut stream = connect_from(own, SocketAddr::new(server, port)).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let bytes = vec![0x5a; WRITE];
    let start = Instant::now();
    for _ in 0..TOTAL / WRITE {
        stream.write_all(&bytes).map_err(failed)?;
    }
    let mut done = [0; 8];
    stream.read_exact(&mut done).map_err(failed)?;
    let gigabits_per_s = gigabits_per_s(TOTAL as f64, start.elapsed().as_secs_f64());
    // The socket does not block, just as the device.
    stream.set_nonblocking(true).map_err(failed)?;
    let latency = ping(&mut stream, round_trips, 0, spin_read)?;
    let readiness = Readiness::new(&stream).map_err(failed)?;
    let sleep = |stream: &mut TcpStream, message: &mut [u8]| readiness.read(stream, message);
    let event_latency = ping(&mut stream, round_trips, SLEEP, sleep)?;
    Ok(Outcome { gigabits_per_s, latency, event_latency })
}

/// Measures round trips of 8 bytes. The first byte is `mode`.
fn ping(
    stream: &mut TcpStream,
    round_trips: u64,
    mode: u8,
    read: impl Fn(&mut TcpStream, &mut [u8]) -> Result<(), ToolError>,
) -> Result<Option<Latency>, ToolError> {
    let mut message = [mode; 8];
    let mut times = Vec::with_capacity(round_trips as usize);
    for _ in 0..round_trips {
        let start = Instant::now();
        stream.write_all(&message).map_err(failed)?;
        read(stream, &mut message)?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    Ok((!times.is_empty()).then(|| Latency::of(&mut times)))
}

pub(super) fn serve(exchange: &mut Exchange, own: IpAddr, peer: IpAddr) -> Result<(), ToolError> {
    let listener = TcpListener::bind(SocketAddr::new(own, 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    exchange.send("the port of the TCP measurement", &port)?;
    let (mut stream, from) = listener.accept().map_err(failed)?;
    if from.ip() != peer {
        return Err(ToolError::Plan(format!("{from} connected instead of {peer}")));
    }
    stream.set_nodelay(true).map_err(failed)?;
    let mut bytes = vec![0; 4 * WRITE];
    let mut missing = TOTAL;
    while missing > 0 {
        let count = stream.read(&mut bytes).map_err(failed)?;
        if count == 0 {
            return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
        }
        missing = missing.saturating_sub(count);
    }
    let mut message = [0; 8];
    stream.write_all(&message).map_err(failed)?;
    stream.set_nonblocking(true).map_err(failed)?;
    let readiness = Readiness::new(&stream).map_err(failed)?;
    // The loop ends when the client closes the connection.
    loop {
        let read = match message[0] {
            SLEEP => readiness.read(&mut stream, &mut message),
            _ => spin_read(&mut stream, &mut message),
        };
        if read.is_err() || stream.write_all(&message).is_err() {
            return Ok(());
        }
    }
}

/// An epoll instance that wakes a sleeping side when there is something to read.
struct Readiness(OwnedFd);

impl Readiness {
    fn new(stream: &TcpStream) -> std::io::Result<Self> {
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&readiness, stream, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self(readiness))
    }

    /// Reads a whole message, and sleeps while there is nothing to read.
    fn read(&self, stream: &mut TcpStream, message: &mut [u8]) -> Result<(), ToolError> {
        let patience = Timespec::try_from(PATIENCE).ok();
        let mut filled = 0;
        while filled < message.len() {
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
            match epoll::wait(&self.0, &mut events, patience.as_ref()) {
                Ok(0) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            match stream.read(&mut message[filled..]) {
                Ok(0) => return Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// Reads a whole message without sleeping.
fn spin_read(stream: &mut TcpStream, message: &mut [u8]) -> Result<(), ToolError> {
    let mut filled = 0;
    let read = spin(PATIENCE, || match stream.read(&mut message[filled..]) {
        Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            filled += count;
            Ok((filled == message.len()).then_some(()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    });
    read.map_err(failed)?.ok_or_else(|| failed(std::io::ErrorKind::TimedOut.into()))
}
