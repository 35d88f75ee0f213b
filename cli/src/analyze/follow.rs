//! Waits until capture files grow.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Shortest time between two analyses.
const INTERVAL: Duration = Duration::from_secs(1);
/// An analysis that takes longer runs at most a fifth of the time.
const PAUSE: u32 = 4;

/// Capture files that other programs write, and the signals that end the command.
pub(super) struct Follower<'a> {
    signals: SignalFd,
    files: &'a [PathBuf],
    sizes: Vec<u64>,
}

impl<'a> Follower<'a> {
    /// Takes over SIGINT and SIGTERM. Must come first, so that no signal is lost.
    pub(super) fn start(files: &'a [PathBuf]) -> anyhow::Result<Self> {
        if let Some(file) = files.iter().find(|file| !file.is_file()) {
            bail!("{}: --follow needs a file that exists and that another program extends", file.display());
        }
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        signals.thread_block().context("cannot block signals")?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        Ok(Self { signals: signals.context("cannot create a signalfd")?, files, sizes: Vec::new() })
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
            let timeout =
                Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
            let mut ready = [PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut ready, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait"),
            }
            if matches!(self.signals.read_signal(), Ok(Some(_))) {
                return Ok(false);
            }
            if self.now() != self.sizes {
                return Ok(true);
            }
        }
    }
}
