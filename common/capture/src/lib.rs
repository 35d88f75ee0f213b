//! Reads capture files in the classic pcap and pcapng formats, and writes pcapng.
//!
//! [`CaptureReader`] reads both formats in both byte orders, with times of any resolution, from a file or
//! from a pipe. It decompresses files that were compressed with gzip. It never panics. Every error
//! ([`CaptureError`]) names the file, the byte and the packet, and suggests the next step. If a file was
//! truncated, the reader returns all complete packets before the error.
//!
//! Memory is bounded for any input, because the reader has these limits:
//!
//! | what | limit |
//! |---|---|
//! | bytes of a packet | [`MAX_PACKET`], 1 MiB |
//! | bytes of the options of one block of pcapng | [`MAX_OPTIONS`], 1 MiB |
//! | interfaces of one section of pcapng | [`MAX_INTERFACES`], 4096 |
//! | bytes kept of the name of an interface | [`LONGEST_NAME`], 255 |
//!
//! The reader holds one packet with its options, and the interfaces of one section: less than 10 MiB in all.
//! It skips blocks of other types without holding them, whatever their length. Compressed files are
//! decompressed as they are read, which takes less than 1 MiB more.
//!
//! [`PcapWriter`] writes pcapng with times in nanoseconds, interface names, comments and directions.
//!
//! The formats are those of the IETF drafts `opsawg-pcap` and `opsawg-pcapng`. Only this crate uses the crate
//! `pcap-file`, and only for writing, because its reader has these defects:
//!
//! - It takes every time of a pcapng packet for nanoseconds.
//! - It refuses classic packets that were cut to the snap length, options without an end mark, and time
//!   zones.
//! - It swaps the time of the old packet block in little-endian files.
//! - It refuses blocks of more than 8 MB.
//!
//! Tests compare the two readers with files that both can read.

mod classic;
mod error;
mod packet;
mod pcapng;
mod source;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

pub use error::{CaptureError, CaptureErrorKind};
pub use packet::{
    CapturedPacket, Direction, LONGEST_NAME, LinkType, MAX_INTERFACES, MAX_OPTIONS, MAX_PACKET,
};
pub use writer::{PcapWriter, WriterOptions};

use classic::Classic;
use pcapng::Pcapng;
use source::{READ_AHEAD, Source};

/// Format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    /// Classic pcap.
    Pcap,
    /// pcapng, the newer format with interfaces and comments.
    Pcapng,
}

/// Reads packets from a capture file.
///
/// ```no_run
/// # fn main() -> Result<(), roce_capture::CaptureError> {
/// use roce_capture::CaptureReader;
///
/// let mut reader = CaptureReader::open("trace.pcapng".as_ref())?;
/// while let Some(packet) = reader.next_packet() {
///     let packet = packet?;
///     println!("{} has {} bytes", packet.number, packet.original_len);
/// }
/// # Ok(())
/// # }
/// ```
pub struct CaptureReader {
    file: String,
    source: Source,
    format: Format,
    /// Number of packets returned so far.
    packets: u64,
    /// Set by the end of the file or an error. Nothing can be read afterwards.
    finished: bool,
    /// The record or block that was read last.
    buffer: Vec<u8>,
}

impl CaptureReader {
    /// Opens a capture file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is not a capture file.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(file, &name),
            Err(error) => Err(CaptureError::of_file(&name, CaptureErrorKind::Open(error))),
        }
    }

    /// Reads from any source, for example from the pipe of a running capture. Error messages contain `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the header cannot be read or is not that of a capture file.
    pub fn new(input: impl Read + Send + 'static, name: &str) -> Result<Self, CaptureError> {
        let mut source = Source::new(Box::new(BufReader::with_capacity(READ_AHEAD, input)));
        let mut buffer = Vec::new();
        let mut magic = Format::magic(&mut source);
        if let Ok(first @ [0x1f, 0x8b, ..]) = magic {
            source = source.decompress(first);
            magic = Format::magic(&mut source);
        }
        match magic.and_then(|magic| Format::detect(magic, &mut source, &mut buffer)) {
            Ok(format) => {
                let file = name.to_owned();
                Ok(Self { source, format, file, packets: 0, finished: false, buffer })
            }
            Err(kind) => Err(CaptureError { file: name.to_owned(), offset: source.item, packet: 0, kind }),
        }
    }

    /// Returns the format of the file.
    #[must_use]
    pub const fn format(&self) -> CaptureFormat {
        match self.format {
            Format::Classic(_) => CaptureFormat::Pcap,
            Format::Pcapng(_) => CaptureFormat::Pcapng,
        }
    }

    /// Returns the next packet, or `None` at the end of the file. After an error, always returns `None`.
    pub fn next_packet(&mut self) -> Option<Result<CapturedPacket<'_>, CaptureError>> {
        if self.finished {
            return None;
        }
        let found = match &mut self.format {
            Format::Classic(classic) => classic.next_record(&mut self.source, &mut self.buffer),
            Format::Pcapng(pcapng) => pcapng.next_record(&mut self.source, &mut self.buffer),
        };
        let number = self.packets + 1;
        match found {
            Ok(Some(record)) => {
                self.packets = number;
                let interface_name = match &self.format {
                    Format::Classic(_) => None,
                    Format::Pcapng(pcapng) => pcapng.interface_name(record.interface.unwrap_or(0)),
                };
                Some(Ok(CapturedPacket { number, interface_name, ..record.packet(&self.buffer) }))
            }
            Ok(None) => {
                self.finished = true;
                None
            }
            Err(kind) => {
                self.finished = true;
                let (file, offset) = (self.file.clone(), self.source.item);
                Some(Err(CaptureError { file, offset, packet: number, kind }))
            }
        }
    }
}

impl fmt::Debug for CaptureReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, packets, finished, .. } = self;
        f.debug_struct("CaptureReader")
            .field("file", file)
            .field("format", &self.format())
            .field("packets", packets)
            .field("finished", finished)
            .finish_non_exhaustive()
    }
}

enum Format {
    Classic(Classic),
    Pcapng(Pcapng),
}

impl Format {
    /// Reads the bytes that tell the format of the file.
    fn magic(source: &mut Source) -> Result<[u8; 4], CaptureErrorKind> {
        source.array()?.ok_or(CaptureErrorKind::Empty)
    }

    /// Reads the start of the file after `magic`, up to the information that the packets depend on.
    fn detect(magic: [u8; 4], source: &mut Source, buffer: &mut Vec<u8>) -> Result<Self, CaptureErrorKind> {
        if let Some(classic) = Classic::open(magic, source)? {
            return Ok(Self::Classic(classic));
        }
        if let Some(pcapng) = Pcapng::open(magic, source, buffer)? {
            return Ok(Self::Pcapng(pcapng));
        }
        Err(match magic {
            // The file was compressed twice.
            [0x1f, 0x8b, ..] => CaptureErrorKind::Compressed("gunzip"),
            [0x28, 0xb5, 0x2f, 0xfd] => CaptureErrorKind::Compressed("unzstd"),
            [0xfd, b'7', b'z', b'X'] => CaptureErrorKind::Compressed("unxz"),
            [0x04, 0x22, 0x4d, 0x18] => CaptureErrorKind::Compressed("unlz4"),
            _ => CaptureErrorKind::NotACapture(magic),
        })
    }
}
