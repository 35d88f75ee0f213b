//! The exchange of `ibv_rc_pingpong` and so on over TCP, before the first message.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use roce::observe::Text;
use roce::tcp::Tcp;
use roce_packet::{Gid, Psn, Qpn};

use crate::harness::padded;

/// Bytes of one destination on the wire: four numbers in hexadecimal, three colons, a NUL.
const LEN: usize = 52;
/// Maximum time limit of one read.
const LONGEST_READ: Duration = Duration::from_secs(24 * 60 * 60);
/// The last message of the client, with its NUL.
const DONE: &[u8; 5] = b"done\0";

/// A connection with one time limit for all reads together.
///
/// The timeout of a socket applies to each read, so single bytes could hold the reader forever.
pub(super) struct Limited<'a> {
    stream: &'a mut Tcp,
    limit: Duration,
    begun: Instant,
}

impl<'a> Limited<'a> {
    pub(super) fn new(stream: &'a mut Tcp, limit: Duration) -> Self {
        Self { stream, limit, begun: Instant::now() }
    }
}

impl Read for Limited<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let left = self.limit.saturating_sub(self.begun.elapsed());
        let late = || {
            let text = format!("the set-up takes longer than {} s", self.limit.as_secs());
            io::Error::new(ErrorKind::TimedOut, text)
        };
        if left.is_zero() {
            return Err(late());
        }
        // The kernel refuses less than a microsecond, and has an upper limit.
        let left = left.clamp(Duration::from_millis(1), LONGEST_READ);
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(room) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(late()),
            other => other,
        }
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The address of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) gid: Gid,
}

impl Destination {
    /// The placeholder for queue pairs that `ibv_srq_pingpong` does not use.
    pub(super) const NONE: Self = Self { qpn: Qpn::new(0), psn: Psn::new(0), gid: Gid::ZERO };

    fn to_wire(self) -> [u8; LEN] {
        let gid: String = self.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
        padded(&format!("0000:{:06x}:{:06x}:{gid}", self.qpn.get(), self.psn.get()))
    }

    fn from_wire(wire: &[u8; LEN]) -> Option<Self> {
        let text = std::str::from_utf8(wire.strip_suffix(&[0])?).ok()?;
        let mut parts = text.split(':');
        let _lid = u16::from_str_radix(parts.next()?, 16).ok()?;
        let qpn = u32::from_str_radix(parts.next()?, 16).ok()?;
        let psn = u32::from_str_radix(parts.next()?, 16).ok()?;
        let gid = parts.next().filter(|gid| gid.len() == 32)?;
        if parts.next().is_some() || qpn >> 24 != 0 || psn >> 24 != 0 {
            return None;
        }
        let gid = u128::from_str_radix(gid, 16).ok()?;
        Some(Self { qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Gid(gid.to_be_bytes()) })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LID 0x0000, QPN {:#08x}, PSN {:#08x}, GID {}",
            self.qpn.get(),
            self.psn.get(),
            self.gid.to_ipv6()
        )
    }
}

/// Sends all destinations of this side.
pub(super) fn send(peer: &mut impl Write, destinations: &[Destination]) -> io::Result<()> {
    let bytes: Vec<u8> = destinations.iter().flat_map(|destination| destination.to_wire()).collect();
    peer.write_all(&bytes)?;
    peer.flush()
}

/// Receives `count` destinations.
pub(super) fn receive(peer: &mut impl Read, count: usize) -> io::Result<Vec<Destination>> {
    let one = |_| {
        let mut wire = [0; LEN];
        peer.read_exact(&mut wire)?;
        Destination::from_wire(&wire).ok_or_else(|| {
            io::Error::new(
                ErrorKind::InvalidData,
                format!("\"{}\" is not the LID:QPN:PSN:GID of a pingpong program", Text::new(&wire)),
            )
        })
    };
    (0..count).map(one).collect()
}

pub(super) fn send_done(peer: &mut impl Write) -> io::Result<()> {
    peer.write_all(DONE)?;
    peer.flush()
}

pub(super) fn receive_done(peer: &mut impl Read) -> io::Result<()> {
    let mut wire = [0; DONE.len()];
    peer.read_exact(&mut wire)?;
    if wire == *DONE { Ok(()) } else { Err(io::Error::new(ErrorKind::InvalidData, "expected `done`")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_written_as_the_original_programs_do() {
        let destination = Destination {
            qpn: Qpn::new(0x11),
            psn: Psn::new(0x5a4f2c),
            gid: Gid::from_ipv4(std::net::Ipv4Addr::new(192, 168, 1, 1)),
        };
        let wire = destination.to_wire();
        assert_eq!(&wire[..51], b"0000:000011:5a4f2c:00000000000000000000ffffc0a80101");
        assert_eq!(wire[51], 0);
        assert_eq!(Destination::from_wire(&wire), Some(destination));
        let text = "LID 0x0000, QPN 0x000011, PSN 0x5a4f2c, GID ::ffff:192.168.1.1";
        assert_eq!(destination.to_string(), text);
    }

    #[test]
    fn what_is_none_is_refused_and_never_panics() {
        let good = Destination::NONE.to_wire();
        assert!(Destination::from_wire(&good).is_some());
        for place in 0..LEN {
            for byte in [0, b':', b'g', b' ', 0xff] {
                let mut bad = good;
                bad[place] = byte;
                let parsed = Destination::from_wire(&bad);
                assert!(parsed.is_none() || bad == good, "{place} {byte}");
            }
        }
        let error = receive(&mut &b"GET / HTTP/1.1\r\nHost: somewhere that is no RoCE host\r\n\r\n"[..], 1)
            .unwrap_err();
        let error = error.to_string();
        assert!(error.contains("pingpong") && error.contains(r"HTTP/1.1\u{d}\u{a}Host"), "{error}");
        assert!(receive_done(&mut &b"gone\0"[..]).is_err());
    }
}
