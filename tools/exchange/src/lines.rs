//! Lines over TCP, with limits of length and time.

use std::fmt;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use roce::observe::Text;
use roce::tcp::Tcp;
use serde::{Deserialize, Serialize};

/// Maximum length of a line.
const LONGEST_LINE: usize = 1 << 20;
/// Bytes of one read.
const CHUNK: usize = 16 << 10;

/// The place of a client in the queue of a busy server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// The place; 1 is next.
    pub position: usize,
    /// The client that is served.
    pub serving: String,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server is busy with {}; position {} in its queue",
            Text::new(&self.serving),
            self.position
        )
    }
}

/// A line that may come instead of any other line.
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

/// The reason why no line was returned.
#[derive(Debug)]
pub(super) enum LineError {
    /// The connection was closed.
    Ended,
    /// The deadline has passed.
    Late,
    /// The input is not a line of an exchange.
    NotALine(&'static str),
    /// The connection broke.
    Io(io::Error),
}

/// A connection and the bytes that were read ahead from it.
#[derive(Debug)]
pub(super) struct Lines {
    stream: Tcp,
    ahead: Vec<u8>,
    /// Bytes of `ahead` that were searched and contain no end of a line.
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

    /// Requires the next line to begin as a JSON object, so that the first byte identifies another program.
    pub(super) fn expect_object(&mut self) {
        self.expects_object = true;
    }

    fn end_of_line(&mut self) -> Option<usize> {
        let found = self.ahead.get(self.searched..)?.iter().position(|byte| *byte == b'\n');
        let end = found.map(|at| at + self.searched);
        self.searched = end.unwrap_or(self.ahead.len());
        end
    }

    /// Returns the next line without taking it, if all of it was read ahead.
    pub(super) fn peek(&mut self) -> Option<&[u8]> {
        let end = self.end_of_line()?;
        self.ahead.get(..end)
    }

    /// Takes the next line. The whole line must arrive before `deadline`, in any number of packets.
    pub(super) fn next(&mut self, deadline: Instant) -> Result<Vec<u8>, LineError> {
        loop {
            if self.expects_object && self.ahead.first().is_some_and(|first| *first != b'{') {
                return Err(LineError::NotALine("the received line does not begin with a brace"));
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
                return Err(LineError::NotALine("the received line is longer than 1 MiB"));
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

    /// Returns whether bytes were read ahead, or a read would return at once with bytes or the end of the
    /// connection.
    pub(super) fn has_input(&mut self) -> io::Result<bool> {
        if !self.ahead.is_empty() || self.has_ended {
            return Ok(true);
        }
        self.stream.has_input()
    }

    /// Reads available bytes ahead, without waiting.
    pub(super) fn take_in(&mut self) -> io::Result<()> {
        while !self.has_ended && self.ahead.len() <= LONGEST_LINE && self.stream.has_input()? {
            self.read()?;
        }
        Ok(())
    }

    /// Reads and discards bytes until the other side closes the connection or `end` is reached.
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
