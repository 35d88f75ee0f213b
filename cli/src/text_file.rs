//! Text files that a person or a program wrote: memory is bounded whatever they hold.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The longest file that is read as a whole: a flow list of about a million lines. Captures are read piece by piece and have no
/// limit.
const LONGEST: u64 = 64 << 20;

/// The bytes of a file.
///
/// # Errors
///
/// It cannot be read, or it is longer than 64 MiB, as a device or a pipe without end is.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        let reason = "it is longer than 64 MiB; check that it is the right file";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// The same for a file that must be UTF-8.
///
/// # Errors
///
/// As for [`read`], or it is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}
