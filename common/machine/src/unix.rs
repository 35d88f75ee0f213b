//! Limits and FIFOs of Unix.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};

/// Returns the limit of the memory of this process (`ulimit -v`).
pub(crate) fn own_memory_limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Opens a file. If it is a FIFO, calls `late` after `patience` without a byte, and then waits for one.
/// Opening a FIFO without a writer would block without a message.
pub(crate) fn open(
    path: &Path,
    patience: Duration,
    late: impl FnOnce() -> io::Result<()>,
) -> io::Result<File> {
    if !std::fs::metadata(path)?.file_type().is_fifo() {
        return File::open(path);
    }
    // With both directions open, this process is a writer itself. Therefore neither this nor the second
    // opening blocks.
    let both = OpenOptions::new().read(true).write(true).open(path)?;
    let mut ready = [PollFd::new(&both, PollFlags::IN)];
    let patience =
        Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    if poll(&mut ready, Some(&patience))? == 0 {
        late()?;
        poll(&mut ready, None)?;
    }
    File::open(path)
}
