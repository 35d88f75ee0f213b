//! Waits until capture files grow.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::platform::Signals;

/// Shortest time between two analyses.
const INTERVAL: Duration = Duration::from_secs(1);
/// An analysis that takes longer runs at most a fifth of the time.
const PAUSE: u32 = 4;

/// Capture files that other programs write, and the signals that end the command.
pub(super) struct Follower<'a> {
    signals: Signals,
    files: &'a [PathBuf],
    sizes: Vec<u64>,
}

impl<'a> Follower<'a> {
    /// Takes over SIGINT and SIGTERM. Must come first, so that no signal is lost.
    pub(super) fn start(files: &'a [PathBuf]) -> anyhow::Result<Self> {
        if let Some(file) = files.iter().find(|file| !file.is_file()) {
            bail!("{}: --follow needs a file that exists and that another program extends", file.display());
        }
        let signals = Signals::block().context("cannot wait for signals")?;
        Ok(Self { signals, files, sizes: Vec::new() })
    }

    /// Notes the sizes of the files before an analysis.
    pub(super) fn note(&mut self) {
        self.sizes = self.now();
    }

    fn now(&self) -> Vec<u64> {
        let size = |file: &PathBuf| fs::metadata(file).map_or(0, |metadata| metadata.len());
        self.files.iter().map(size).collect()
    }

    /// Waits until a file has another size, for at least a time that depends on that of the last analysis.
    /// Returns whether to go on: false after a signal.
    pub(super) fn wait(&self, took: Duration) -> anyhow::Result<bool> {
        let pause = INTERVAL.max(took.saturating_mul(PAUSE));
        loop {
            if self.signals.wait(pause).context("cannot wait")? {
                return Ok(false);
            }
            if self.now() != self.sizes {
                return Ok(true);
            }
        }
    }
}
