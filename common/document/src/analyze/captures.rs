//! The packets of capture files, analysed.

use std::error::Error;
use std::fmt;

use roce_analysis::Analysis;
use roce_analysis::connection::Connection;

/// The packets of capture files, analysed.
#[derive(Clone, Debug)]
pub struct Captures {
    /// The connections and events of the packets.
    pub analysis: Analysis,
    /// The names of the files.
    pub files: Vec<String>,
    /// Number of packets whose link layer cannot carry RoCE.
    pub unread: u64,
    /// Whether every file was read to its end.
    pub is_whole: bool,
}

/// The captures do not contain a connection with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchConnection {
    /// The number.
    pub number: usize,
    /// Number of connections.
    pub count: usize,
}

impl fmt::Display for NoSuchConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, count } = self;
        write!(
            f,
            "there is no connection {number}; `roce analyze` numbers them from 1, and there are {count}"
        )
    }
}

impl Error for NoSuchConnection {}

impl Captures {
    /// Returns why nothing can be said, if there is no RoCE packet and no pause frame.
    #[must_use]
    pub fn why_empty(&self) -> Option<String> {
        let counts = self.analysis.counts;
        let files = self.files.join(", ");
        if counts.roce + counts.pauses > 0 {
            return None;
        }
        if counts.packets + self.unread == 0 {
            return Some(format!("{files}: the file has no packets"));
        }
        Some(format!("{files}: no packet is RoCE; `roce dissect FILE` prints the likely reason"))
    }

    /// Returns the connections with their numbers from 1, or only that with this number.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no connection with this number.
    pub fn connections(&self, only: Option<usize>) -> Result<Vec<(usize, &Connection)>, NoSuchConnection> {
        let all = (1..).zip(&self.analysis.connections);
        let Some(number) = only else { return Ok(all.collect()) };
        let chosen: Vec<_> = all.filter(|(one, _)| *one == number).collect();
        if chosen.is_empty() {
            return Err(NoSuchConnection { number, count: self.analysis.connections.len() });
        }
        Ok(chosen)
    }
}
