//! Whole capture files for the analysis of connections.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use roce_analysis::connection::Connection;
use roce_analysis::{Analysis, Collector, Packet};
use roce_capture::{CaptureError, CaptureErrorKind};

use super::open;
use crate::decode;
use crate::errors::print_error;

/// The packets of capture files, analysed.
#[derive(Debug)]
pub(crate) struct Captures {
    pub(crate) analysis: Analysis,
    /// The names of the files.
    pub(crate) files: Vec<String>,
    /// Number of packets whose link layer cannot carry RoCE.
    pub(crate) unread: u64,
    /// Whether every file was read to its end.
    pub(crate) is_whole: bool,
}

impl Captures {
    /// Reads files. `is_growing` means that another program is writing the last packet. A file that is
    /// damaged in the middle or at its end counts up to there, and standard error says so.
    pub(crate) fn read(
        files: &[PathBuf],
        mut collector: Collector,
        is_growing: bool,
    ) -> anyhow::Result<Self> {
        let (mut unread, mut is_whole) = (0, true);
        let mut progress = Progress::new();
        let count = u16::try_from(files.len()).context("more than 65,535 files")?;
        collector = collector.with_captures(count);
        for (index, file) in files.iter().enumerate() {
            let capture = u16::try_from(index).context("more than 65,536 files")?;
            let end = add(&mut collector, file, capture, &mut unread, &mut progress)?;
            if let Some(error) = end.filter(|error| !is_growing || !is_end(error)) {
                print_error(&format!("{error}; the packets before it are analysed"));
                is_whole = false;
            }
        }
        let files = files.iter().map(|file| file.display().to_string()).collect();
        Ok(Self { analysis: collector.analyze(), files, unread, is_whole })
    }

    /// Returns why nothing can be said, if there is no RoCE packet and no pause frame.
    pub(crate) fn why_empty(&self) -> Option<String> {
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
    pub(crate) fn connections(&self, only: Option<usize>) -> anyhow::Result<Vec<(usize, &Connection)>> {
        let all = (1..).zip(&self.analysis.connections);
        let Some(number) = only else { return Ok(all.collect()) };
        let chosen: Vec<_> = all.filter(|(one, _)| *one == number).collect();
        if chosen.is_empty() {
            let count = self.analysis.connections.len();
            bail!(
                "there is no connection {number}; `roce analyze` numbers them from 1, and there are {count}"
            );
        }
        Ok(chosen)
    }
}

/// Returns whether an error is that a file ends inside a packet.
const fn is_end(error: &CaptureError) -> bool {
    matches!(error.kind, CaptureErrorKind::Truncated { .. })
}

/// Adds the packets of a file. Returns the error behind the last one, unless it was the end of the file.
fn add(
    collector: &mut Collector,
    file: &Path,
    capture: u16,
    unread: &mut u64,
    progress: &mut Progress,
) -> anyhow::Result<Option<CaptureError>> {
    let mut reader = open(file)?;
    while let Some(packet) = reader.next_packet() {
        let packet = match packet {
            Ok(packet) => packet,
            // Without any packet, there is nothing to analyse.
            Err(error) if error.packet <= 1 => return Err(error.into()),
            Err(error) => return Ok(Some(error)),
        };
        progress.count();
        let Some(framed) = decode::captured(&packet) else {
            *unread += 1;
            continue;
        };
        collector.add(&Packet {
            capture,
            interface: u16::try_from(packet.interface.unwrap_or(0)).unwrap_or(u16::MAX),
            number: packet.number,
            time_ns: packet.time_ns,
            link: framed.link(),
            wire_len: packet.original_len as usize,
            bytes: packet.bytes,
        });
    }
    Ok(None)
}

/// Prints a line on standard error at intervals.
struct Progress {
    packets: u64,
    next: Instant,
}

/// The interval between two lines. Shorter files print none.
const INTERVAL: Duration = Duration::from_secs(10);
/// Number of packets between two looks at the clock.
const STRIDE: u64 = 1 << 14;

impl Progress {
    fn new() -> Self {
        Self { packets: 0, next: Instant::now() + INTERVAL }
    }

    fn count(&mut self) {
        self.packets += 1;
        if self.packets.is_multiple_of(STRIDE) && Instant::now() >= self.next {
            print_error(&format!("{} packets read", self.packets));
            self.next = Instant::now() + INTERVAL;
        }
    }
}
