//! A file that another program still writes, read as `tail -f` does.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use roce_capture::{CaptureError, CaptureErrorKind, CaptureReader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The time between two looks at a file without new bytes. A reader notices new packets a tenth of a second
/// late at most, and a file at rest costs a few dozen system calls a second.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Says whether the user ended the reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A file whose end is only reached when the user ends the reading, with Ctrl-C or a signal.
struct Growing {
    file: File,
    signals: SignalFd,
    stop: Stop,
}

/// Opens a capture file that another program still writes.
pub(crate) fn open(path: &Path) -> Result<(CaptureReader, Stop), CaptureError> {
    let name = path.display().to_string();
    let failed = |error: io::Error| CaptureError {
        file: name.clone(),
        offset: 0,
        packet: 0,
        kind: CaptureErrorKind::Open(error),
    };
    let file = File::open(path).map_err(failed)?;
    let signals = signals().map_err(failed)?;
    let stop = Stop::default();
    let reader = CaptureReader::new(Growing { file, signals, stop: stop.clone() }, &name)?;
    Ok((reader, stop))
}

/// Blocks the signals that end a program, and returns the descriptor that reports them.
fn signals() -> io::Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

impl Growing {
    /// Waits for a signal, or until it is time to look at the file again.
    fn wait(&self) -> io::Result<()> {
        let mut descriptors = [PollFd::new(&self.signals, PollFlags::IN)];
        match poll(&mut descriptors, Some(&INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => self.stop.0.store(true, Ordering::Relaxed),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl Read for Growing {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            // A signal also ends the reading of a file that never stops growing.
            if matches!(self.signals.read_signal(), Ok(Some(_))) {
                self.stop.0.store(true, Ordering::Relaxed);
            }
            if self.stop.is_requested() {
                return Ok(0);
            }
            let count = self.file.read(bytes)?;
            if count > 0 || bytes.is_empty() {
                return Ok(count);
            }
            if self.file.metadata()?.len() < self.file.stream_position()? {
                return Err(io::Error::other("the file became shorter; another program writes it anew"));
            }
            self.wait()?;
        }
    }
}
