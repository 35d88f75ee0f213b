//! Reads whole capture files for the analysis of connections.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use roce_analysis::Collector;
use roce_capture::{CaptureError, CaptureErrorKind};
use roce_document::analyze::Captures;
use roce_document::packet::analysable;

use super::open;
use crate::errors::print_error;

/// Reads files. `is_growing` means that another program is writing the last packet. A file that is damaged in
/// the middle or at its end counts up to there, and standard error says so.
pub(crate) fn read(
    files: &[PathBuf],
    mut collector: Collector,
    is_growing: bool,
) -> anyhow::Result<Captures> {
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
    Ok(Captures { analysis: collector.analyze(), files, unread, is_whole })
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
        match analysable(&packet, capture) {
            Some(packet) => collector.add(&packet),
            None => *unread += 1,
        }
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
