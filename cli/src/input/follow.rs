//! A file that another program still writes, read as `tail -f` does.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use roce_capture::{CaptureError, CaptureErrorKind, CaptureReader};

use crate::platform::Signals;

/// The time between two looks at a file without new bytes. A reader notices new packets a tenth of a second
/// late at most, and a file at rest costs a few dozen system calls a second.
const INTERVAL: Duration = Duration::from_millis(100);

/// Says whether the user ended the reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A file whose end is only reached when the user ends the reading, with Ctrl-C or a signal. Without signals
/// the end is never reached.
struct Growing {
    file: File,
    signals: Option<Signals>,
    stop: Stop,
}

/// Opens a capture file that another program still writes.
pub(crate) fn open(path: &Path) -> Result<(CaptureReader, Stop), CaptureError> {
    let file = File::open(path).map_err(|error| failed(path, error))?;
    let signals = Some(Signals::block().map_err(|error| failed(path, error))?);
    let stop = Stop::default();
    let growing = Growing { file, signals, stop: stop.clone() };
    Ok((CaptureReader::new(growing, &path.display().to_string())?, stop))
}

/// Opens a capture file that another program still writes, for a thread that ends with the process. Waits for
/// the first bytes of the file.
pub(crate) fn open_without_signals(path: &Path) -> Result<CaptureReader, CaptureError> {
    let file = File::open(path).map_err(|error| failed(path, error))?;
    let growing = Growing { file, signals: None, stop: Stop::default() };
    CaptureReader::new(growing, &path.display().to_string())
}

fn failed(path: &Path, error: io::Error) -> CaptureError {
    let file = path.display().to_string();
    CaptureError { file, offset: 0, packet: 0, kind: CaptureErrorKind::Open(error) }
}

impl Read for Growing {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            // A signal also ends the reading of a file that never stops growing.
            if self.signals.as_ref().is_some_and(Signals::have_arrived) {
                self.stop.request();
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
            match &self.signals {
                Some(signals) => {
                    if signals.wait(INTERVAL)? {
                        self.stop.request();
                    }
                }
                None => thread::sleep(INTERVAL),
            }
        }
    }
}
