//! Lines over TCP, each with a limit of length and of time.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use roce::tcp::Tcp;
use serde::{Deserialize, Serialize};

use super::Busy;

/// The longest line that is read.
const LONGEST_LINE: usize = 1 << 20;
/// Bytes of one read.
const CHUNK: usize = 16 << 10;

/// A line that may come in place of any other.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Notice {
    /// The sender has failed and ends.
    #[serde(rename = "roce_failed")]
    Failed(String),
    /// The server serves another client.
    #[serde(rename = "roce_busy")]
    Busy(Busy),
}

impl Notice {
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        line.starts_with(b"{\"roce_").then(|| serde_json::from_slice(line).ok()).flatten()
    }
}

/// Why there is no line.
#[derive(Debug)]
pub(super) enum LineError {
    /// The connection was closed.
    Ended,
    /// The time is over.
    Late,
    /// It is not a line of an exchange.
    NotALine(&'static str),
    /// The connection broke.
    Io(io::Error),
}

/// A connection and what was read from it ahead.
#[derive(Debug)]
pub(super) struct Lines {
    stream: Tcp,
    ahead: Vec<u8>,
    /// Bytes of `ahead` without the end of a line.
    searched: usize,
    has_ended: bool,
    expects_object: bool,
}

impl Lines {
    pub(super) fn new(stream: Tcp) -> Self {
        Self { stream, ahead: Vec::new(), searched: 0, has_ended: false, expects_object: false }
    }

    pub(super) fn stream(&self) -> &Tcp {
        &self.stream
    }

    pub(super) fn stream_mut(&mut self) -> &mut Tcp {
        &mut self.stream
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The next line must begin as an object does: another program is noticed by its first byte.
    pub(super) fn expect_object(&mut self) {
        self.expects_object = true;
    }

    fn end_of_line(&mut self) -> Option<usize> {
        let found = self.ahead.get(self.searched..)?.iter().position(|byte| *byte == b'\n');
        let end = found.map(|at| at + self.searched);
        self.searched = end.unwrap_or(self.ahead.len());
        end
    }

    /// The next line if all of it was read ahead, without taking it.
    pub(super) fn peek(&mut self) -> Option<&[u8]> {
        let end = self.end_of_line()?;
        self.ahead.get(..end)
    }

    /// Takes the next line, which must be complete at a time, however it is cut into packets.
    pub(super) fn next(&mut self, deadline: Instant) -> Result<Vec<u8>, LineError> {
        loop {
            if self.expects_object && self.ahead.first().is_some_and(|first| *first != b'{') {
                return Err(LineError::NotALine("it does not begin with a brace"));
            }
            if let Some(end) = self.end_of_line() {
                let rest = self.ahead.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.ahead, rest);
                line.pop();
                self.searched = 0;
                self.expects_object = false;
                return Ok(line);
            }
            if self.ahead.len() > LONGEST_LINE {
                return Err(LineError::NotALine("the line is longer than 1 MiB"));
            }
            if self.has_ended {
                return Err(LineError::Ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LineError::Late);
            }
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).map_err(LineError::Io)?;
            match self.read() {
                Err(error) if is_timeout(&error) => {}
                other => other.map_err(LineError::Io)?,
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        let count = self.stream.read(&mut chunk)?;
        self.has_ended = count == 0;
        self.ahead.extend_from_slice(chunk.get(..count).unwrap_or_default());
        Ok(())
    }

    /// Whether something was read ahead or can be read at once: bytes, or the end.
    pub(super) fn has_input(&mut self) -> io::Result<bool> {
        if !self.ahead.is_empty() || self.has_ended {
            return Ok(true);
        }
        self.stream.has_input()
    }

    /// Reads ahead what is there, without waiting.
    pub(super) fn take_in(&mut self) -> io::Result<()> {
        while !self.has_ended && self.ahead.len() <= LONGEST_LINE && self.stream.has_input()? {
            self.read()?;
        }
        Ok(())
    }

    /// Reads and forgets until the other side closes the connection, or the time is over.
    pub(super) fn discard_until(&mut self, end: Instant) {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.ahead.clear();
            self.searched = 0;
            if self.has_ended || left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                return;
            }
            if self.read().is_err_and(|error| !is_timeout(&error)) {
                return;
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
