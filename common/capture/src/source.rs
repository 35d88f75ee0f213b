//! The input of a capture file, and the position in it.

use std::io::{self, BufReader, Cursor, Read};
use std::ops::Range;

use flate2::read::MultiGzDecoder;

use super::{CaptureErrorKind, CapturedPacket, Direction, LinkType};

/// Positions of the parts of a packet in the buffer, and its metadata.
pub(super) struct Record {
    pub(super) time_ns: Option<u64>,
    pub(super) link_type: LinkType,
    pub(super) interface: Option<u32>,
    pub(super) direction: Direction,
    pub(super) comment: Option<Range<usize>>,
    pub(super) original_len: u32,
    pub(super) data: Range<usize>,
}

impl Record {
    /// Returns the packet without its number and the name of its interface.
    pub(super) fn packet(self, buffer: &[u8]) -> CapturedPacket<'_> {
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
pub(super) struct Source {
    input: Box<dyn Read + Send>,
    /// Whether `input` decompresses what it reads.
    is_compressed: bool,
    /// Number of bytes read, after decompression.
    offset: u64,
    /// Offset of the record or block being read, for errors.
    pub(super) item: u64,
}

/// Size of the buffers in front of and behind the decompression, in bytes.
pub(super) const READ_AHEAD: usize = 128 * 1024;

impl Source {
    pub(super) const fn new(input: Box<dyn Read + Send>) -> Self {
        Self { input, is_compressed: false, offset: 0, item: 0 }
    }

    /// Decompresses the input, which began with `magic`. Reading then starts over with the first decompressed
    /// byte.
    ///
    /// Decompression is a stream: its memory does not grow with the length of the decompressed file.
    pub(super) fn decompress(self, magic: [u8; 4]) -> Self {
        let members = MultiGzDecoder::new(Cursor::new(magic).chain(self.input));
        let input = Box::new(BufReader::with_capacity(READ_AHEAD, members));
        Self { input, is_compressed: true, offset: 0, item: 0 }
    }

    /// Returns the error for a failed read.
    fn failed(&self, error: io::Error) -> CaptureErrorKind {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};

        match error.kind() {
            // The decompression fails with these. A file or a pipe never does.
            UnexpectedEof if self.is_compressed => CaptureErrorKind::TruncatedGzip,
            InvalidData | InvalidInput if self.is_compressed => CaptureErrorKind::DamagedGzip(error),
            _ => CaptureErrorKind::Read(error),
        }
    }

    /// Marks the current offset as the start of a record or block.
    pub(super) const fn begin_item(&mut self) {
        self.item = self.offset;
    }

    /// Appends `len` bytes to `buffer`. Memory grows with the bytes that are present, not with the value of a
    /// length field.
    pub(super) fn append(&mut self, buffer: &mut Vec<u8>, len: u32) -> Result<(), CaptureErrorKind> {
        let before = buffer.len();
        let read = self.input.by_ref().take(len.into()).read_to_end(buffer);
        read.map_err(|error| self.failed(error))?;
        let have = buffer.len() - before;
        self.offset += have as u64;
        self.whole(len.into(), have as u64)
    }

    /// Skips `len` bytes.
    pub(super) fn skip(&mut self, len: u32) -> Result<(), CaptureErrorKind> {
        let mut part = self.input.by_ref().take(len.into());
        let have = io::copy(&mut part, &mut io::sink()).map_err(|error| self.failed(error))?;
        self.offset += have;
        self.whole(len.into(), have)
    }

    /// Reads a header of fixed size. Returns `None` if the input ends before its first byte.
    pub(super) fn array<const LEN: usize>(&mut self) -> Result<Option<[u8; LEN]>, CaptureErrorKind> {
        let mut header = [0; LEN];
        let mut have = 0;
        while have < LEN {
            match self.input.read(&mut header[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => break,
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.offset += have as u64;
        self.whole(LEN as u64, have as u64)?;
        Ok(Some(header))
    }

    /// Reads as [`array`](Self::array) does, but the end of the input is an error.
    pub(super) fn expect_array<const LEN: usize>(&mut self) -> Result<[u8; LEN], CaptureErrorKind> {
        self.array()?.ok_or(CaptureErrorKind::Truncated { need: LEN as u64, have: 0 })
    }

    const fn whole(&self, need: u64, have: u64) -> Result<(), CaptureErrorKind> {
        if have < need { Err(CaptureErrorKind::Truncated { need, have }) } else { Ok(()) }
    }
}

/// Byte order of numbers, that of the capturing machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    pub(super) const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        }
    }

    pub(super) const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(bytes),
            Self::Little => u32::from_le_bytes(bytes),
        }
    }

    pub(super) const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Big => u64::from_be_bytes(bytes),
            Self::Little => u64::from_le_bytes(bytes),
        }
    }
}
