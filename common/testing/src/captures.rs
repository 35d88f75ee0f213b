//! Capture files, some of which are compressed with gzip.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::shared;

/// Returns the folder of captures with the kernel's Soft-RoCE on both sides.
pub fn kernel_captures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../pcaps/rxe"))
}

/// Returns the capture files in a folder, sorted by name. `formats` are the endings that count, such as
/// `pcap`; a file that was compressed with gzip has `.gz` after it.
pub fn captures_in(folder: &Path, formats: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        paths.filter(|path| format_of(path).is_some_and(|f| formats.contains(&f))).collect();
    files.sort();
    files
}

/// Returns the captures of this repository, and those of third parties if they are there, sorted by name.
pub fn all_captures() -> Vec<PathBuf> {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../pcaps"));
    let folders = [Some(own), Some(kernel_captures()), shared("pcaps"), shared("pcaps/rxe")];
    let mut files: Vec<_> =
        folders.iter().flatten().flat_map(|folder| captures_in(folder, &["pcap", "pcapng"])).collect();
    assert!(files.len() > 40, "only {} captures were found", files.len());
    files.sort();
    files
}

/// Returns the bytes of a capture file, without the compression.
pub fn read_capture_file(path: &Path) -> Vec<u8> {
    let read = || -> std::io::Result<Vec<u8>> {
        let bytes = std::fs::read(path)?;
        if path.extension().is_none_or(|end| end != "gz") {
            return Ok(bytes);
        }
        let mut whole = Vec::new();
        MultiGzDecoder::new(&*bytes).read_to_end(&mut whole)?;
        Ok(whole)
    };
    read().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the ending of a file name before `.gz`, or the last one.
fn format_of(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(".gz").unwrap_or(name).rsplit_once('.').map(|(_, end)| end)
}
