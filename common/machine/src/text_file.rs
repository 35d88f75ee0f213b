//! Reading text files of people or programs, with limits of memory and time for any content.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use crate::system;

/// Maximum length of a file that is read as a whole: a flow list of about a million lines. Captures are read
/// in pieces and have no limit.
const LONGEST: u64 = 64 << 20;

/// Time limit for the first byte of a FIFO. The command of `<(command)` writes within it.
const FIFO_PATIENCE: Duration = Duration::from_secs(10);

/// Reads the bytes of a file.
///
/// # Errors
///
/// The file cannot be read, or it is longer than 64 MiB, for example a device or an endless pipe. A FIFO to
/// which nothing is written for 10 s is an error, too.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_open(&mut open(path)?)
}

/// Reads the text of a file that must be UTF-8.
///
/// # Errors
///
/// The file is not UTF-8, or [`read`] fails.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads the bytes from the current position to the end of an open file.
///
/// # Errors
///
/// The file cannot be read, or it is longer than 64 MiB.
pub fn read_open(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        let reason = "it is longer than 64 MiB; check that it is the right file";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// Opens a file for reading. Opening a FIFO without a writer would block without a message.
fn open(path: &Path) -> io::Result<File> {
    system::open(path, FIFO_PATIENCE, || {
        let reason = "it is a FIFO and nothing was written to it for 10 s; start its writer first";
        Err(io::Error::new(io::ErrorKind::TimedOut, reason))
    })
}

/// Opens a file that may be a FIFO whose writer starts at any time. Calls `waiting` if nothing was written
/// for a second.
///
/// # Errors
///
/// The file cannot be opened.
pub fn open_patiently(path: &Path, waiting: impl FnOnce()) -> io::Result<File> {
    system::open(path, Duration::from_secs(1), || {
        waiting();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;

    use super::*;

    fn fifo(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    }

    /// Regression: a FIFO without a writer blocked forever, without a message.
    #[test]
    fn a_fifo_without_a_writer_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = read(&fifo(folder.path())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("start its writer"), "{error}");
    }

    #[test]
    fn a_late_writer_of_a_fifo_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(folder.path());
        let (said, waits) = std::sync::mpsc::channel();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                waits.recv().unwrap();
                std::fs::write(path, "late").unwrap();
            }
        });
        let mut text = String::new();
        open_patiently(&path, || said.send(()).unwrap()).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "late");
        writer.join().unwrap();
    }

    #[test]
    fn a_fifo_with_a_writer_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = fifo(folder.path());
        let writer = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut file = OpenOptions::new().write(true).open(path).unwrap();
                for part in ["one ", "two"] {
                    file.write_all(part.as_bytes()).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        assert_eq!(read_text(&path).unwrap(), "one two");
        writer.join().unwrap();
    }

    #[test]
    fn an_endless_file_has_a_limit() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
