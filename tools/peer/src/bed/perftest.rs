//! The TCP exchange of the perftest programs, as the client. The scripts then play the client of
//! `ib_write_bw` and its relatives, or of `roce perf`.
//!
//! The exchange ends after the second block of keys: then the queue pair of the server is in RTS, and the
//! server waits for the client. Source: the behaviour of releases 6.06 and 6.24 of the programs.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use roce_packet::{Gid, PathMtu, Qpn};
use socket2::{Domain, Protocol, Socket, Type};

use super::ends::{OwnEnd, Parameters};
use crate::run::Settings;

/// The release that the client announces. Since 6.28, the programs want to exchange a structure of a C
/// compiler.
const RELEASE: &[u8] = b"6.20";
/// Bytes of the blocks of the release and of keys.
const RELEASE_LEN: usize = 16;
const KEYS_LEN: usize = 108;
/// The sizes that the programs announce: the cycle buffer and a cache line.
const GEOMETRY: [u32; 2] = [4096, 64];
/// Bytes of memory that every server has.
const MEMORY: usize = 4096;
/// Time limit for each block.
const PATIENCE: Duration = Duration::from_secs(10);

/// An error of the exchange.
#[derive(Debug)]
pub struct PerftestError {
    server: SocketAddr,
    what: String,
    error: Option<io::Error>,
}

impl fmt::Display for PerftestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.what)
    }
}

impl std::error::Error for PerftestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

/// Connects to a server of perftest from the address of this end. The server keeps its queue pair as long as
/// the returned connection is open.
///
/// # Errors
///
/// Returns an error if no such server listens there.
pub fn connect_perftest(
    server: SocketAddr,
    own: OwnEnd,
    settings: &Settings,
) -> Result<(TcpStream, Parameters), PerftestError> {
    let failed = |what: &'static str| {
        move |error| PerftestError { server, what: format!("cannot exchange {what}"), error: Some(error) }
    };
    let not = |what: &str| PerftestError {
        server,
        what: format!("{what}; start a server of perftest there, such as ib_write_bw -x INDEX"),
        error: None,
    };
    let mut stream = open(server, own).map_err(failed("anything"))?;
    let mut release = [0; RELEASE_LEN];
    release.iter_mut().zip(RELEASE).for_each(|(byte, sign)| *byte = *sign);
    let theirs = swap(&mut stream, &release).map_err(failed("the release"))?;
    let text = theirs.split(|byte| *byte == 0).next().unwrap_or_default();
    let release = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    release.ok_or_else(|| not("the server sends no release"))?;
    for number in GEOMETRY {
        swap(&mut stream, &number.to_be_bytes()).map_err(failed("the geometry"))?;
    }
    let mtu = swap(&mut stream, &[b'0' + settings.mtu.code(), 0]).map_err(failed("the path MTU"))?;
    let [code, _] = mtu;
    let theirs = PathMtu::from_code(code.wrapping_sub(b'0'));
    if theirs.is_some_and(|theirs| theirs < settings.mtu) {
        let wanted = settings.mtu.bytes();
        return Err(not(&format!("the server has a path MTU below the {wanted} bytes of the script")));
    }
    let ours = keys(own, settings);
    swap(&mut stream, &ours).map_err(failed("keys"))?;
    // The server has connected its queue pair when it sends its keys again.
    let theirs = swap(&mut stream, &ours).map_err(failed("keys again"))?;
    let parameters = parameters(&theirs).ok_or_else(|| not("the server sends no keys with a GID"))?;
    Ok((stream, parameters))
}

/// Opens a TCP connection from the address of this end, because servers send packets only to that address.
fn open(server: SocketAddr, own: OwnEnd) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(own.address, 0).into())?;
    socket.connect_timeout(&server.into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a block and receives one of equal length.
fn swap<const N: usize>(stream: &mut TcpStream, block: &[u8; N]) -> io::Result<[u8; N]> {
    stream.write_all(block)?;
    let mut theirs = [0; N];
    stream.read_exact(&mut theirs)?;
    Ok(theirs)
}

/// Returns the block of this end's keys. It offers no memory.
fn keys(own: OwnEnd, settings: &Settings) -> [u8; KEYS_LEN] {
    let gid: Vec<String> = Gid::from_ip(own.address).0.iter().map(|byte| format!("{byte:02x}")).collect();
    let (qpn, psn, reads) = (own.qpn.get(), settings.psn, settings.reads);
    let text =
        format!("0000:{reads:04x}:{qpn:06x}:{psn:06x}:{:08x}:{:016x}:{}:{:08x}:", 0, 0, gid.join(":"), 0);
    let mut block = [0; KEYS_LEN];
    block.iter_mut().zip(text.bytes()).for_each(|(byte, sign)| *byte = sign);
    block
}

/// Reads a block of keys.
fn parameters(block: &[u8; KEYS_LEN]) -> Option<Parameters> {
    let text = std::str::from_utf8(block.split(|byte| *byte == 0).next()?).ok()?;
    let numbers: Vec<u64> = text
        .split(':')
        .filter(|part| !part.is_empty())
        .map(|part| u64::from_str_radix(part, 16).ok())
        .collect::<Option<_>>()?;
    let [_lid, _reads, qpn, psn, rkey, va, gid @ ..] = numbers.as_slice() else { return None };
    let gid: Vec<u8> = gid.iter().take(16).map(|byte| u8::try_from(*byte).ok()).collect::<Option<_>>()?;
    let gid = Gid(gid.try_into().ok()?);
    Some(Parameters {
        address: gid.to_ip(),
        qpn: Qpn::new(u32::try_from(*qpn).ok()?),
        psn: Some(u32::try_from(*psn).ok()? & 0x00ff_ffff),
        memory: Some((*va, u32::try_from(*rkey).ok()?, MEMORY)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_both_ways() {
        let text = "0000:0001:0002a3:5a4f2c:00001800:00007f0012345678:00:00:00:00:00:00:00:00:00:00:ff:ff:c6:12:00:02:00000000:";
        let mut block = [0; KEYS_LEN];
        block[..text.len()].copy_from_slice(text.as_bytes());
        let found = parameters(&block).unwrap();
        assert_eq!(found.address.to_string(), "198.18.0.2");
        assert_eq!((found.qpn, found.psn), (Qpn::new(0x2a3), Some(0x5a_4f2c)));
        assert_eq!(found.memory, Some((0x7f00_1234_5678, 0x1800, MEMORY)));
        assert_eq!(parameters(&[b'x'; KEYS_LEN]), None);
        assert_eq!(parameters(&[0; KEYS_LEN]), None);
    }
}
