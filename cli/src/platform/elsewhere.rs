//! The parts of the portable commands that differ between systems, for every system but Linux.

use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::terminal::Output;

/// The devices of this build.
pub(crate) const FEATURES: &[&str] = &[];

/// Signals that this system does not deliver to a waiting thread: Ctrl-C ends the process.
pub(crate) struct Signals(());

impl Signals {
    pub(crate) fn block() -> io::Result<Self> {
        Ok(Self(()))
    }

    /// Returns whether a signal has arrived.
    pub(crate) fn have_arrived(&self) -> bool {
        false
    }

    /// Waits for this time. Returns whether a signal has arrived.
    pub(crate) fn wait(&self, time: Duration) -> io::Result<bool> {
        thread::sleep(time);
        Ok(false)
    }
}

/// Returns whether two names are those of one file. Hard links are not noticed.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|found| other.canonicalize().is_ok_and(|other| other == found))
}

/// Returns the explanation of a failed work request, which no command of this system posts.
pub(crate) fn explanation(_: &anyhow::Error) -> Option<String> {
    None
}

/// Fails: the sockets of running processes are those of Linux.
pub(crate) fn explain_process(pid: u32, _: &mut Output) -> anyhow::Result<()> {
    document_of_process(pid).map(drop)
}

/// Fails: the sockets of running processes are those of Linux.
pub(crate) fn document_of_process(pid: u32) -> anyhow::Result<Value> {
    anyhow::bail!(
        "`roce why --pid {pid}` needs Linux, where processes publish their queue pairs; run it in the container or \
         the virtual machine of the process. On this system, `roce why CODE` works"
    )
}
