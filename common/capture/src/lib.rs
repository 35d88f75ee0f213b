//! Reads capture files in the classic pcap and pcapng formats, and writes pcapng.
//!
//! [`CaptureReader`] reads both formats in both byte orders, with times of any resolution, from a file or
//! from a pipe. It never panics. Every error ([`CaptureError`]) names the file, the byte and the packet, and
//! suggests the next step. If a file was truncated, the reader returns all complete packets before the error.
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
//! It skips blocks of other types without holding them, whatever their length.
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
mod pcapng;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;

pub use error::{CaptureError, CaptureErrorKind};
pub use writer::{PcapWriter, WriterOptions};

use classic::Classic;
use pcapng::Pcapng;

/// Largest number of bytes of a packet in a file: twice the largest superpacket of Linux. A larger length is
/// treated as damage.
pub const MAX_PACKET: u32 = 1 << 20;

/// Largest number of bytes read of the options of one pcapng block.
pub const MAX_OPTIONS: u32 = 1 << 20;

/// Largest number of interfaces that one pcapng section can describe.
pub const MAX_INTERFACES: usize = 4096;

/// Largest number of bytes kept of an interface name. Longer names are truncated.
pub const LONGEST_NAME: usize = 255;

/// The protocol at the start of a captured packet. The numbers are those of the tcpdump.org registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u32);

impl LinkType {
    /// Four bytes with an address family in the byte order of the capturing machine, then IP.
    pub const NULL: Self = Self(0);
    /// An Ethernet header.
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6.
    pub const RAW_IP: Self = Self(101);
    /// Four bytes with an address family in network byte order, then IP.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture, version 1, as recorded on interface "any": 16 bytes, of which the last two are
    /// an EtherType.
    pub const LINUX_SLL: Self = Self(113);
    /// Linux cooked capture, version 2: 20 bytes, of which the first two are an EtherType.
    pub const LINUX_SLL2: Self = Self(276);
    /// IPv4.
    pub const IPV4: Self = Self(228);
    /// IPv6.
    pub const IPV6: Self = Self(229);

    /// Returns the name in the registry, if the type is common in captures of RoCE.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "NULL",
            1 => "ETHERNET",
            12 | 14 | 101 => "RAW",
            105 => "IEEE802_11",
            108 => "LOOP",
            113 => "LINUX_SLL",
            127 => "IEEE802_11_RADIOTAP",
            197 => "ERF",
            228 => "IPV4",
            229 => "IPV6",
            247 => "INFINIBAND",
            276 => "LINUX_SLL2",
            _ => return None,
        })
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Direction of a packet, seen from the capturing machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The file does not contain the direction.
    #[default]
    Unknown,
    /// The packet was received.
    Inbound,
    /// The packet was sent.
    Outbound,
}

impl Direction {
    /// Reads the direction from the pcapng option `epb_flags`.
    const fn from_flags(flags: u32) -> Self {
        match flags & 0b11 {
            0b01 => Self::Inbound,
            0b10 => Self::Outbound,
            _ => Self::Unknown,
        }
    }

    const fn flags(self) -> u32 {
        match self {
            Self::Unknown => 0b00,
            Self::Inbound => 0b01,
            Self::Outbound => 0b10,
        }
    }
}

/// A packet of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// Number of the packet in the file, from 1.
    pub number: u64,
    /// Time of the capture, in nanoseconds since 1970 UTC; `None` in simple packets of pcapng.
    pub time_ns: Option<u64>,
    /// Protocol at the start of the packet.
    pub link_type: LinkType,
    /// Number of the capturing interface, from 0 in each section of a pcapng file. Classic files have no
    /// interfaces.
    pub interface: Option<u32>,
    /// Name of that interface, if the file contains it.
    pub interface_name: Option<&'a str>,
    /// Direction of the packet.
    pub direction: Direction,
    /// First comment on the packet in the file.
    pub comment: Option<&'a str>,
    /// Length on the wire in bytes.
    pub original_len: u32,
    /// Captured bytes.
    pub bytes: &'a [u8],
}

impl CapturedPacket<'_> {
    /// Returns whether the end is missing because the capture kept only the first bytes of each packet.
    #[must_use]
    pub const fn is_snapped(&self) -> bool {
        self.bytes.len() < self.original_len as usize
    }
}

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
        let input = Box::new(BufReader::with_capacity(READ_AHEAD, input));
        let mut source = Source { input, offset: 0, item: 0 };
        let mut buffer = Vec::new();
        match Format::detect(&mut source, &mut buffer) {
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
    /// Reads the start of the file, up to the information that the packets depend on.
    fn detect(source: &mut Source, buffer: &mut Vec<u8>) -> Result<Self, CaptureErrorKind> {
        let Some(magic) = source.array::<4>()? else { return Err(CaptureErrorKind::Empty) };
        if let Some(classic) = Classic::open(magic, source)? {
            return Ok(Self::Classic(classic));
        }
        if let Some(pcapng) = Pcapng::open(magic, source, buffer)? {
            return Ok(Self::Pcapng(pcapng));
        }
        Err(match magic {
            [0x1f, 0x8b, ..] => CaptureErrorKind::Compressed("gunzip"),
            [0x28, 0xb5, 0x2f, 0xfd] => CaptureErrorKind::Compressed("unzstd"),
            [0xfd, b'7', b'z', b'X'] => CaptureErrorKind::Compressed("unxz"),
            [0x04, 0x22, 0x4d, 0x18] => CaptureErrorKind::Compressed("unlz4"),
            _ => CaptureErrorKind::NotACapture(magic),
        })
    }
}

/// Positions of the parts of a packet in the buffer, and its metadata.
struct Record {
    time_ns: Option<u64>,
    link_type: LinkType,
    interface: Option<u32>,
    direction: Direction,
    comment: Option<Range<usize>>,
    original_len: u32,
    data: Range<usize>,
}

impl Record {
    /// Returns the packet without its number and the name of its interface.
    fn packet(self, buffer: &[u8]) -> CapturedPacket<'_> {
        let comment = self.comment.and_then(|range| buffer.get(range));
        CapturedPacket {
            number: 0,
            time_ns: self.time_ns,
            link_type: self.link_type,
            interface: self.interface,
            interface_name: None,
            direction: self.direction,
            comment: comment.and_then(|text| str::from_utf8(text).ok()),
            original_len: self.original_len,
            bytes: buffer.get(self.data).unwrap_or_default(),
        }
    }
}

/// The input and the position in it.
struct Source {
    input: Box<dyn Read + Send>,
    /// Number of bytes read.
    offset: u64,
    /// Offset of the record or block being read, for errors.
    item: u64,
}

impl Source {
    /// Marks the current offset as the start of a record or block.
    const fn begin_item(&mut self) {
        self.item = self.offset;
    }

    /// Appends `len` bytes to `buffer`. Memory grows with the bytes that are present, not with the value of a
    /// length field.
    fn append(&mut self, buffer: &mut Vec<u8>, len: u32) -> Result<(), CaptureErrorKind> {
        let before = buffer.len();
        self.input.by_ref().take(len.into()).read_to_end(buffer).map_err(CaptureErrorKind::Read)?;
        let have = buffer.len() - before;
        self.offset += have as u64;
        self.whole(len.into(), have as u64)
    }

    /// Skips `len` bytes.
    fn skip(&mut self, len: u32) -> Result<(), CaptureErrorKind> {
        let mut part = self.input.by_ref().take(len.into());
        let have = io::copy(&mut part, &mut io::sink()).map_err(CaptureErrorKind::Read)?;
        self.offset += have;
        self.whole(len.into(), have)
    }

    /// Reads a header of fixed size. Returns `None` if the input ends before its first byte.
    fn array<const LEN: usize>(&mut self) -> Result<Option<[u8; LEN]>, CaptureErrorKind> {
        let mut header = [0; LEN];
        let mut have = 0;
        while have < LEN {
            match self.input.read(&mut header[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => break,
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CaptureErrorKind::Read(error)),
            }
        }
        self.offset += have as u64;
        self.whole(LEN as u64, have as u64)?;
        Ok(Some(header))
    }

    /// Reads as [`array`](Self::array) does, but the end of the input is an error.
    fn expect_array<const LEN: usize>(&mut self) -> Result<[u8; LEN], CaptureErrorKind> {
        self.array()?.ok_or(CaptureErrorKind::Truncated { need: LEN as u64, have: 0 })
    }

    const fn whole(&self, need: u64, have: u64) -> Result<(), CaptureErrorKind> {
        if have < need { Err(CaptureErrorKind::Truncated { need, have }) } else { Ok(()) }
    }
}

/// Byte order of numbers, that of the capturing machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        }
    }

    const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(bytes),
            Self::Little => u32::from_le_bytes(bytes),
        }
    }

    const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Big => u64::from_be_bytes(bytes),
            Self::Little => u64::from_le_bytes(bytes),
        }
    }
}

const READ_AHEAD: usize = 128 * 1024;
