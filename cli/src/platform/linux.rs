//! The parts of the portable commands that differ between systems, for Linux.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use roce_exchange::ToolError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub(crate) use roce_device::FEATURES;

pub(crate) use crate::network::processes::{document_of_process, explain_process};

/// SIGINT and SIGTERM, which no longer end the process by themselves.
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals. Must come before other threads start, so that no signal is lost.
    pub(crate) fn block() -> io::Result<Self> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Returns whether a signal has arrived, once for each signal.
    pub(crate) fn have_arrived(&self) -> bool {
        matches!(self.0.read_signal(), Ok(Some(_)))
    }

    /// Waits for a signal for at most this time. Returns whether one has arrived.
    pub(crate) fn wait(&self, time: Duration) -> io::Result<bool> {
        let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(self.have_arrived()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns whether two names are those of one file.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    place(one).is_some_and(|found| place(other) == Some(found))
}

/// Returns the explanation of a failed work request, if the error contains one. Its first line is the error.
pub(crate) fn explanation(error: &anyhow::Error) -> Option<String> {
    let of_tool = |error: &(dyn std::error::Error + 'static)| -> Option<String> {
        Some(error.downcast_ref::<ToolError>()?.explanation()?.to_string())
    };
    error.chain().find_map(of_tool)
}
