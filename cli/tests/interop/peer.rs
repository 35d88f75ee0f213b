//! The other end: a process in the guest that executes our commands with libibverbs
//! (`tools/peer/agent/verbs_agent.c`).

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

/// A connection, which has its own process in the guest.
#[derive(Debug)]
pub(crate) struct Peer {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

/// The words of an answer, without the `ok`.
#[derive(Debug)]
pub(crate) struct Answer(String);

/// The capabilities of the peer's device.
#[derive(Clone, Debug)]
pub(crate) struct PeerDevice {
    pub(crate) atomic_write: bool,
    pub(crate) flush: bool,
}

impl Peer {
    /// Connects, and opens the device of the guest.
    pub(crate) fn open(address: SocketAddr) -> Result<(Self, PeerDevice)> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))
            .with_context(|| format!("connecting to verbs_agent at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(90)))?;
        stream.set_write_timeout(Some(Duration::from_secs(30)))?;
        let mut peer = Self { reader: BufReader::new(stream.try_clone()?), writer: stream };
        let answer = peer.ask("open device=rxe0")?;
        let device = PeerDevice {
            atomic_write: answer.number("atomic_write")? != 0,
            flush: answer.number("flush")? != 0,
        };
        Ok((peer, device))
    }

    /// Sends a command; returns its answer.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Answer> {
        self.tell(line)?;
        let mut answer = String::new();
        self.reader.read_line(&mut answer).with_context(|| format!("the peer does not answer `{line}`"))?;
        match answer.trim_end().split_once(' ').unwrap_or((answer.trim_end(), "")) {
            ("ok", rest) => Ok(Answer(rest.to_owned())),
            ("", _) => bail!("the peer's process ended at `{line}`"),
            _ => bail!("the peer answered `{line}` with: {}", answer.trim_end()),
        }
    }

    /// Sends a command that has no answer.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        self.writer.write_all(format!("{line}\n").as_bytes()).with_context(|| format!("telling `{line}`"))
    }

    /// Returns a counter of the peer's Soft-RoCE device.
    pub(crate) fn counter(&mut self, name: &str) -> Result<u64> {
        self.ask("counters")?.number(name)
    }
}

impl Answer {
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        self.0.split_ascii_whitespace()
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the value after `name=`.
    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        let found = self.words().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let value = found.ok_or_else(|| anyhow!("the peer's answer `{}` has no {name}", self.0))?;
        value.parse().with_context(|| format!("the peer's {name}"))
    }
}

/// The addresses of our side and of the guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) ours: IpAddr,
    pub(crate) theirs: IpAddr,
}
