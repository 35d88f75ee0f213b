//! Errors of capture files, each with the next step for the user.

use std::error::Error;
use std::fmt;
use std::io;

use super::{MAX_INTERFACES, MAX_PACKET};

/// The error for a capture file that cannot be read or written: the file, the position and the reason.
#[derive(Debug)]
pub struct CaptureError {
    /// The name of the file.
    pub file: String,
    /// Offset of the faulty record or block, in bytes from the start of the file, after decompression.
    pub offset: u64,
    /// Number of the packet that would have been next, from 1; 0 if the error concerns the whole file.
    pub packet: u64,
    /// Description of the problem.
    pub kind: CaptureErrorKind,
}

impl CaptureError {
    pub(super) fn of_file(file: &str, kind: CaptureErrorKind) -> Self {
        Self { file: file.to_owned(), offset: 0, packet: 0, kind }
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file)?;
        match (self.packet, self.offset) {
            (0, 0) => {}
            (0, offset) => write!(f, "byte {offset}: ")?,
            (packet, offset) => write!(f, "packet {packet} at byte {offset}: ")?,
        }
        write!(f, "{}", self.kind)
    }
}

impl Error for CaptureError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.kind {
            CaptureErrorKind::Open(error)
            | CaptureErrorKind::Read(error)
            | CaptureErrorKind::DamagedGzip(error)
            | CaptureErrorKind::Create(error)
            | CaptureErrorKind::Write(error) => Some(error),
            _ => None,
        }
    }
}

/// A problem of a capture file. Its message contains the next step. An error of the operating system is the
/// [source](Error::source) of the [`CaptureError`].
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureErrorKind {
    /// The file cannot be opened.
    Open(io::Error),
    /// Reading failed in the middle.
    Read(io::Error),
    /// The output file cannot be created.
    Create(io::Error),
    /// Writing failed.
    Write(io::Error),
    /// The file is empty.
    Empty,
    /// The file begins with these bytes, which are not those of a capture file.
    NotACapture([u8; 4]),
    /// The file is compressed, but not with gzip, or twice; the string names the program that decompresses
    /// it.
    Compressed(&'static str),
    /// A file compressed with gzip ends before the end of its data.
    TruncatedGzip,
    /// The data of a file compressed with gzip are damaged.
    DamagedGzip(io::Error),
    /// The file has an unsupported variant of the format.
    Variant(&'static str),
    /// The file has an unsupported version of the format.
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// The file ends inside a record or block.
    Truncated {
        /// Length of the part being read, in bytes.
        need: u64,
        /// Number of its bytes that are present.
        have: u64,
    },
    /// The length of a packet exceeds the limit ([`MAX_PACKET`]).
    PacketTooLong(u32),
    /// A block of a pcapng file contradicts itself.
    BadBlock {
        /// Type number of the block.
        block_type: u32,
        /// Description of the contradiction.
        reason: &'static str,
    },
    /// A section of a pcapng file describes more than [`MAX_INTERFACES`] interfaces.
    TooManyInterfaces,
    /// A packet belongs to an interface that the file does not describe.
    UnknownInterface {
        /// Interface of the packet.
        interface: u32,
        /// Number of interfaces that the file describes.
        known: usize,
    },
    /// A packet to write names an interface that the writer does not have.
    NoSuchInterface {
        /// Interface of the packet.
        interface: u32,
        /// Number of interfaces of the writer.
        known: usize,
    },
}

impl fmt::Display for CaptureErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(_) => f.write_str("cannot be opened"),
            Self::Read(_) => f.write_str("reading failed"),
            Self::Create(_) => f.write_str("cannot be written (choose a directory that exists and is yours)"),
            Self::Write(_) => f.write_str("writing failed (what was written before can still be read)"),
            Self::Empty => {
                f.write_str("the file is empty; check that the capture ran until packets were written")
            }
            Self::NotACapture(first) => write!(
                f,
                "not a pcap or pcapng file (it begins with {}); convert it with `editcap FILE OUT.pcapng`",
                Spaced(first)
            ),
            Self::Compressed(program) => {
                write!(f, "the file is compressed; try `{program} < FILE | roce dissect -`")
            }
            Self::TruncatedGzip => f.write_str(
                "the gzip file ends before the end of its data: it is incomplete, or is still being written; all \
                 packets before it are complete",
            ),
            Self::DamagedGzip(_) => {
                f.write_str("the gzip data are damaged; `gunzip -t FILE` examines them")
            }
            Self::Variant(which) => {
                write!(f, "{which} are not supported; convert the file with `editcap FILE OUT.pcapng`")
            }
            Self::Version { major, minor } => write!(
                f,
                "version {major}.{minor} of the format is not supported; convert the file with `editcap FILE \
                 OUT.pcapng`"
            ),
            Self::Truncated { need, have } => write!(
                f,
                "the file ends here: {need} bytes needed, {have} found; all packets before it are complete, \
                 and `editcap FILE OUT.pcapng` writes them to a file"
            ),
            Self::PacketTooLong(len) => write!(
                f,
                "a packet of {len} bytes, more than the maximum of {MAX_PACKET}: the file is damaged here; \
                 all packets before it were read"
            ),
            Self::BadBlock { block_type, reason } => write!(
                f,
                "in a block of type 0x{block_type:08x}, {reason}: the file is damaged here; all packets \
                 before it were read"
            ),
            Self::TooManyInterfaces => write!(
                f,
                "this section of the file describes more than {MAX_INTERFACES} interfaces, which is the \
                 maximum: the file is damaged here, or was merged from too many files; all packets before it \
                 were read"
            ),
            Self::UnknownInterface { interface, known } => write!(
                f,
                "it belongs to interface {interface}, but the file has described {known} so far: the \
                 file is damaged here, or was put together from parts; all packets before it were read"
            ),
            Self::NoSuchInterface { interface, known } => {
                write!(f, "interface {interface} is to be written, but there are {known}, counted from 0")
            }
        }
    }
}

/// Bytes, displayed as `a1 b2`.
struct Spaced<'a>(&'a [u8]);

impl fmt::Display for Spaced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}
