//! Capture files: classic pcap and pcapng in, pcapng out.
//!
//! [`CaptureReader`] reads both formats in both byte orders, with times of any resolution, from a file or
//! from a pipe. It never panics; every error ([`CaptureError`]) names the file, the byte and the packet, and says what to
//! do. A file that was cut short gives all its whole packets before its error.
//!
//! Whatever the input, memory is bounded, because these are the most that is read:
//!
//! | what | limit |
//! |---|---|
//! | bytes of a packet | [`MAX_PACKET`], 1 MiB |
//! | bytes of the options of one block of pcapng | [`MAX_OPTIONS`], 1 MiB |
//! | interfaces of one section of pcapng | [`MAX_INTERFACES`], 4096 |
//! | bytes kept of the name of an interface | [`LONGEST_NAME`], 255 |
//!
//! The reader holds one packet with its options, and the interfaces of one section: less than 10 MiB in all. Blocks of
//! other types are passed over without being held, whatever their length.
//!
//! [`PcapWriter`] writes pcapng with times in nanoseconds, names of interfaces, comments and directions.
//!
//! The formats are those of the IETF drafts `opsawg-pcap` and `opsawg-pcapng`. This is the only module
//! that knows the crate `pcap-file`, and only its writing half: its reader takes every time of a pcapng
//! packet for nanoseconds, refuses classic packets that were cut to the snap length, options without an
//! end mark and time zones, swaps the time of the old packet block in little-endian files, and gives up
//! on a block of over 8 MB. Tests compare the two readers where both can read.

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

/// The most bytes that a packet in a file can have. Twice what Linux can put into one superpacket; a
/// length beyond it is damage.
pub const MAX_PACKET: u32 = 1 << 20;

/// The most bytes that are read of the options of one block of a pcapng file.
pub const MAX_OPTIONS: u32 = 1 << 20;

/// The most interfaces that one section of a pcapng file can describe.
pub const MAX_INTERFACES: usize = 4096;

/// The most bytes that are kept of the name of an interface; the rest is cut off.
pub const LONGEST_NAME: usize = 255;

/// The protocol that a captured packet begins with; the number is that of the tcpdump.org registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u32);

impl LinkType {
    /// The four bytes of an address family, then IP; its byte order is that of the capturing machine.
    pub const NULL: Self = Self(0);
    /// An Ethernet header.
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6.
    pub const RAW_IP: Self = Self(101);
    /// The four bytes of an address family in network order, then IP.
    pub const LOOP: Self = Self(108);
    /// What Linux writes when capturing on "any": 16 bytes, the last two an EtherType.
    pub const LINUX_SLL: Self = Self(113);
    /// The second version of it: 20 bytes, the first two an EtherType.
    pub const LINUX_SLL2: Self = Self(276);
    /// IPv4.
    pub const IPV4: Self = Self(228);
    /// IPv6.
    pub const IPV6: Self = Self(229);

    /// The name that the registry has for it, for those that occur next to RoCE.
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

/// Which way a packet went, seen from the machine that captured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The file does not record it.
    #[default]
    Unknown,
    /// It was received.
    Inbound,
    /// It was sent.
    Outbound,
}

impl Direction {
    /// From the option `epb_flags` of pcapng.
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

/// One packet of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// Which one it is; the first is 1.
    pub number: u64,
    /// When it was captured, in nanoseconds since 1970 UTC; `None` in pcapng's simple packets.
    pub time_ns: Option<u64>,
    /// The protocol that the packet begins with.
    pub link_type: LinkType,
    /// The number of the interface it was seen on, from 0 in each section of a pcapng file; classic files
    /// have no interfaces.
    pub interface: Option<u32>,
    /// The name of that interface, where the file has one.
    pub interface_name: Option<&'a str>,
    /// Which way it went.
    pub direction: Direction,
    /// The first comment that the file has on it.
    pub comment: Option<&'a str>,
    /// Its length on the wire in bytes.
    pub original_len: u32,
    /// The captured bytes.
    pub bytes: &'a [u8],
}

impl CapturedPacket<'_> {
    /// Whether the end is missing because the capture kept only the first bytes of each packet.
    #[must_use]
    pub const fn is_snapped(&self) -> bool {
        self.bytes.len() < self.original_len as usize
    }
}

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    /// Classic pcap.
    Pcap,
    /// The newer format with interfaces and comments.
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
    /// How many packets were delivered.
    packets: u64,
    /// Set by the end of the file or an error, after which nothing more can be read.
    finished: bool,
    /// The record or block that was read last.
    buffer: Vec<u8>,
}

impl CaptureReader {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or it is not a capture file.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(file, &name),
            Err(error) => Err(CaptureError::of_file(&name, CaptureErrorKind::Open(error))),
        }
    }

    /// Reads from anything, for example from the pipe of a running capture. `name` is for error messages.
    ///
    /// # Errors
    ///
    /// The header cannot be read, or it is not that of a capture file.
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

    /// Which of the two formats the file has.
    #[must_use]
    pub const fn format(&self) -> CaptureFormat {
        match self.format {
            Format::Classic(_) => CaptureFormat::Pcap,
            Format::Pcapng(_) => CaptureFormat::Pcapng,
        }
    }

    /// The next packet, or `None` at the end of the file. Nothing can be read after an error.
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
    /// Reads as much of the file as it takes to know what the packets will look like.
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

/// Where the parts of a packet lie in the buffer, and the remarks on it.
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
    /// The packet, but for its number and the name of its interface.
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

/// The input, and where in it we are.
struct Source {
    input: Box<dyn Read + Send>,
    /// Bytes read.
    offset: u64,
    /// Where the record or block begins that is being read; errors point there.
    item: u64,
}

impl Source {
    /// Says that what is read next is a new record or block.
    const fn begin_item(&mut self) {
        self.item = self.offset;
    }

    /// Reads `len` bytes to the end of `buffer`. Memory grows with what is there, not with what a length
    /// field promises.
    fn append(&mut self, buffer: &mut Vec<u8>, len: u32) -> Result<(), CaptureErrorKind> {
        let before = buffer.len();
        self.input.by_ref().take(len.into()).read_to_end(buffer).map_err(CaptureErrorKind::Read)?;
        let have = buffer.len() - before;
        self.offset += have as u64;
        self.whole(len.into(), have as u64)
    }

    /// Reads past `len` bytes.
    fn skip(&mut self, len: u32) -> Result<(), CaptureErrorKind> {
        let mut part = self.input.by_ref().take(len.into());
        let have = io::copy(&mut part, &mut io::sink()).map_err(CaptureErrorKind::Read)?;
        self.offset += have;
        self.whole(len.into(), have)
    }

    /// Reads a header of fixed size; `None` when the input ends before its first byte.
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

    /// Like [`array`](Self::array) where the input must not end.
    fn expect_array<const LEN: usize>(&mut self) -> Result<[u8; LEN], CaptureErrorKind> {
        self.array()?.ok_or(CaptureErrorKind::Truncated { need: LEN as u64, have: 0 })
    }

    const fn whole(&self, need: u64, have: u64) -> Result<(), CaptureErrorKind> {
        if have < need { Err(CaptureErrorKind::Truncated { need, have }) } else { Ok(()) }
    }
}

/// The order in which the capturing machine stores the bytes of a number.
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
