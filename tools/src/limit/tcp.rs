//! Kernel TCP between the same two addresses, for comparison.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use socket2::{Domain, Socket, Type};

use super::Latency;
use super::run::{PATIENCE, latency};
use crate::exchange::Exchange;
use crate::harness::statistics::gigabits_per_s;
use crate::harness::{ToolError, spin};

/// Bytes of one write.
const WRITE: usize = 64 << 10;
/// Bytes one way.
const TOTAL: usize = 1 << 30;

fn failed(error: std::io::Error) -> ToolError {
    ToolError::Io { what: "kernel TCP", error }
}

/// Sends [`TOTAL`] bytes, then 8 bytes in round trips.
pub(super) fn client(
    exchange: &mut Exchange,
    own: IpAddr,
    server: IpAddr,
    round_trips: u64,
) -> Result<(f64, Option<Latency>), ToolError> {
    let port: u16 = exchange.receive("the port of the TCP measurement")?;
    let mut stream = connect(own, SocketAddr::new(server, port)).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let bytes = vec![0x5a; WRITE];
    let start = Instant::now();
    for _ in 0..TOTAL / WRITE {
        stream.write_all(&bytes).map_err(failed)?;
    }
    let mut done = [0; 8];
    stream.read_exact(&mut done).map_err(failed)?;
    let gigabits = gigabits_per_s(TOTAL as f64, start.elapsed().as_secs_f64());
    // Without blocking, as the device is measured.
    stream.set_nonblocking(true).map_err(failed)?;
    let mut times = Vec::with_capacity(round_trips as usize);
    for _ in 0..round_trips {
        let start = Instant::now();
        stream.write_all(&done).map_err(failed)?;
        spin_read(&mut stream, &mut done)?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    Ok((gigabits, (!times.is_empty()).then(|| latency(&mut times))))
}

/// Connects from the address of the device, so that both measurements take the same route.
fn connect(own: IpAddr, server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(own, 0).into())?;
    socket.connect(&server.into())?;
    Ok(socket.into())
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
    // Until the client closes.
    while spin_read(&mut stream, &mut message).is_ok() {
        if stream.write_all(&message).is_err() {
            break;
        }
    }
    Ok(())
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
