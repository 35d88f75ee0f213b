//! The pcapng format: a sequence of blocks, each with its length at both ends.
//!
//! ```text
//! +------+--------------+--------------------+--------------+
//! | type | total length | body               | total length |
//! +------+--------------+--------------------+--------------+
//! ```
//!
//! A section header gives the byte order of the blocks that follow. Interface descriptions are numbered from
//! 0 within a section, and packets refer to these numbers. Blocks of other types are skipped.

use std::ops::Range;

use super::source::{ByteOrder, Record, Source};
use super::{CaptureErrorKind, Direction, LONGEST_NAME, LinkType, MAX_INTERFACES, MAX_OPTIONS, MAX_PACKET};

/// Properties of the packets that follow, from the blocks read so far.
pub(super) struct Pcapng {
    order: ByteOrder,
    interfaces: Vec<Interface>,
}

struct Interface {
    link_type: LinkType,
    snap_len: u32,
    name: Option<String>,
    /// Units of time per second; `None` if the number exceeds 128 bits.
    units_per_second: Option<u128>,
    /// Seconds to add to every time.
    offset_seconds: i64,
}

impl Pcapng {
    /// Reads the first block. Returns `None` if `magic` is not that of this format.
    pub(super) fn open(
        magic: [u8; 4],
        source: &mut Source,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Self>, CaptureErrorKind> {
        if u32::from_be_bytes(magic) != SECTION_HEADER {
            return Ok(None);
        }
        let length = source.expect_array::<4>()?;
        let mut pcapng = Self { order: ByteOrder::Big, interfaces: Vec::new() };
        pcapng.begin_section(length, source, buffer)?;
        Ok(Some(pcapng))
    }

    pub(super) fn interface_name(&self, interface: u32) -> Option<&str> {
        self.interfaces.get(interface as usize)?.name.as_deref()
    }

    /// Reads blocks up to and including the next packet.
    pub(super) fn next_record(
        &mut self,
        source: &mut Source,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Record>, CaptureErrorKind> {
        loop {
            source.begin_item();
            let Some([a, b, c, d, length @ ..]) = source.array::<8>()? else { return Ok(None) };
            let block_type = self.order.u32([a, b, c, d]);
            // The type of a section header is the same in both byte orders; its length is not.
            if block_type == SECTION_HEADER {
                self.begin_section(length, source, buffer)?;
                continue;
            }
            let body_len = body_len(block_type, self.order.u32(length))?;
            match block_type {
                INTERFACE_DESCRIPTION | ENHANCED_PACKET | SIMPLE_PACKET | OLD_PACKET => {
                    self.read_body(block_type, body_len, source, buffer)?;
                }
                _ => {
                    source.skip(body_len)?;
                    self.check_trailer(block_type, body_len, source)?;
                    continue;
                }
            }
            let body = Body { bytes: buffer, order: self.order, block_type };
            match block_type {
                INTERFACE_DESCRIPTION if self.interfaces.len() >= MAX_INTERFACES => {
                    return Err(CaptureErrorKind::TooManyInterfaces);
                }
                INTERFACE_DESCRIPTION => self.interfaces.push(Interface::read(&body)?),
                ENHANCED_PACKET => return self.enhanced_packet(&body).map(Some),
                SIMPLE_PACKET => return self.simple_packet(&body).map(Some),
                _ => return self.old_packet(&body).map(Some),
            }
        }
    }

    /// Reads a section header after its type and length, and discards everything known about the previous
    /// section.
    fn begin_section(
        &mut self,
        length: [u8; 4],
        source: &mut Source,
        buffer: &mut Vec<u8>,
    ) -> Result<(), CaptureErrorKind> {
        let order = match source.expect_array::<4>()? {
            [0x1a, 0x2b, 0x3c, 0x4d] => ByteOrder::Big,
            [0x4d, 0x3c, 0x2b, 0x1a] => ByteOrder::Little,
            _ => return Err(bad_block(SECTION_HEADER, "the byte-order magic is wrong")),
        };
        *self = Self { order, interfaces: Vec::new() };
        let body_len = body_len(SECTION_HEADER, order.u32(length))?;
        // The byte-order magic was already read; version and section length take 12 more bytes.
        let Some(rest) = body_len.checked_sub(4).filter(|rest| *rest >= 12) else {
            return Err(bad_block(SECTION_HEADER, "the block is too short"));
        };
        let [a, b, c, d] = source.expect_array::<4>()?;
        let (major, minor) = (order.u16([a, b]), order.u16([c, d]));
        if major != 1 {
            return Err(CaptureErrorKind::Version { major, minor });
        }
        buffer.clear();
        source.skip(rest - 4)?;
        self.check_trailer(SECTION_HEADER, body_len, source)
    }

    /// Reads a body and the length after it.
    fn read_body(
        &self,
        block_type: u32,
        body_len: u32,
        source: &mut Source,
        buffer: &mut Vec<u8>,
    ) -> Result<(), CaptureErrorKind> {
        if body_len > MAX_PACKET + MAX_OPTIONS {
            return Err(bad_block(
                block_type,
                "the block is longer than a packet with its options can be, 2 MiB",
            ));
        }
        buffer.clear();
        source.append(buffer, body_len)?;
        self.check_trailer(block_type, body_len, source)
    }

    fn check_trailer(
        &self,
        block_type: u32,
        body_len: u32,
        source: &mut Source,
    ) -> Result<(), CaptureErrorKind> {
        let trailer = self.order.u32(source.expect_array::<4>()?);
        if trailer == body_len + FRAMING {
            Ok(())
        } else {
            Err(bad_block(block_type, "the two lengths of the block differ"))
        }
    }

    fn interface(&self, interface: u32) -> Result<&Interface, CaptureErrorKind> {
        let known = self.interfaces.len();
        self.interfaces.get(interface as usize).ok_or(CaptureErrorKind::UnknownInterface { interface, known })
    }

    fn enhanced_packet(&self, body: &Body<'_>) -> Result<Record, CaptureErrorKind> {
        let [number, fields @ ..] = body.first_fields::<5>()?;
        let mut record = self.timed_packet(body, number, fields)?;
        for (code, value) in body.options(record.data.end.next_multiple_of(4)) {
            match (code, body.bytes.get(value.clone())) {
                (OPTION_COMMENT, _) if record.comment.is_none() => record.comment = Some(value),
                (OPTION_PACKET_FLAGS, Some(&[a, b, c, d])) => {
                    record.direction = Direction::from_flags(body.order.u32([a, b, c, d]));
                }
                _ => {}
            }
        }
        Ok(record)
    }

    fn simple_packet(&self, body: &Body<'_>) -> Result<Record, CaptureErrorKind> {
        let [original_len] = body.first_fields()?;
        let interface = self.interface(0)?;
        // The block contains no captured length, only the total length with up to 3 bytes of padding.
        let mut captured = original_len;
        if interface.snap_len != 0 {
            captured = captured.min(interface.snap_len);
        }
        Ok(Record {
            time_ns: None,
            link_type: interface.link_type,
            interface: Some(0),
            direction: Direction::Unknown,
            comment: None,
            original_len,
            data: body.data(4, captured)?,
        })
    }

    /// Reads the old packet block, which enhanced packets replaced in 2009.
    fn old_packet(&self, body: &Body<'_>) -> Result<Record, CaptureErrorKind> {
        let [_, fields @ ..] = body.first_fields::<5>()?;
        let number = match body.bytes {
            [a, b, ..] => u32::from(body.order.u16([*a, *b])),
            _ => 0,
        };
        self.timed_packet(body, number, fields)
    }

    /// Reads a packet of interface `number` with its time. `fields` are the two halves of the time, the
    /// captured length and the original length.
    fn timed_packet(
        &self,
        body: &Body<'_>,
        number: u32,
        [time_high, time_low, captured, original_len]: [u32; 4],
    ) -> Result<Record, CaptureErrorKind> {
        let interface = self.interface(number)?;
        Ok(Record {
            time_ns: Some(interface.nanoseconds(u64::from(time_high) << 32 | u64::from(time_low))),
            link_type: interface.link_type,
            interface: Some(number),
            direction: Direction::Unknown,
            comment: None,
            original_len,
            data: body.data(20, captured)?,
        })
    }
}

impl Interface {
    fn read(body: &Body<'_>) -> Result<Self, CaptureErrorKind> {
        let [_, snap_len] = body.first_fields()?;
        let link_type = match body.bytes {
            [a, b, ..] => LinkType(body.order.u16([*a, *b]).into()),
            _ => LinkType(0),
        };
        let microseconds = Some(1_000_000);
        let mut interface =
            Self { link_type, snap_len, name: None, units_per_second: microseconds, offset_seconds: 0 };
        for (code, value) in body.options(8) {
            match (code, body.bytes.get(value)) {
                (OPTION_INTERFACE_NAME, Some(name)) => {
                    let name = String::from_utf8_lossy(name);
                    interface.name = Some(name[..name.floor_char_boundary(LONGEST_NAME)].to_owned());
                }
                (OPTION_TIME_RESOLUTION, Some(&[resolution])) => {
                    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
                    interface.units_per_second = base.checked_pow((resolution & 0x7f).into());
                }
                (OPTION_TIME_OFFSET, Some(&[a, b, c, d, e, f, g, h])) => {
                    interface.offset_seconds = body.order.u64([a, b, c, d, e, f, g, h]).cast_signed();
                }
                _ => {}
            }
        }
        Ok(interface)
    }

    /// Converts units of this interface to nanoseconds since 1970, saturating at the limits of 64 bits.
    fn nanoseconds(&self, units: u64) -> u64 {
        let units = u128::from(units);
        let Some(per_second) = self.units_per_second else { return 0 };
        // 2^64 times 10^9 needs 94 bits, and adding 2^63 times 10^9 keeps it below 127.
        let since_start = (units * 1_000_000_000 / per_second).cast_signed();
        let sum = since_start + i128::from(self.offset_seconds) * 1_000_000_000;
        u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
    }
}

/// The body of a block.
struct Body<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
    block_type: u32,
}

impl Body<'_> {
    /// Returns the first numbers of the body.
    fn first_fields<const COUNT: usize>(&self) -> Result<[u32; COUNT], CaptureErrorKind> {
        let (first_fields, _) = self.bytes.as_chunks::<4>();
        match first_fields.first_chunk::<COUNT>() {
            Some(first_fields) => Ok(first_fields.map(|word| self.order.u32(word))),
            None => Err(bad_block(self.block_type, "the block is too short")),
        }
    }

    /// Returns the range of the packet that begins at `start` and has `len` bytes.
    fn data(&self, start: usize, len: u32) -> Result<Range<usize>, CaptureErrorKind> {
        if len > MAX_PACKET {
            return Err(CaptureErrorKind::PacketTooLong(len));
        }
        let end = start + len as usize;
        if end > self.bytes.len() {
            return Err(bad_block(self.block_type, "the packet is longer than the block"));
        }
        Ok(start..end)
    }

    /// Iterates over the options from `start` on: the code and the range of the value. Stops at the end mark,
    /// at the end of the body or at an option that does not fit. A broken option never costs a packet.
    fn options(&self, start: usize) -> impl Iterator<Item = (u16, Range<usize>)> {
        let mut at = start;
        std::iter::from_fn(move || {
            let [a, b, c, d] = *self.bytes.get(at..)?.first_chunk::<4>()?;
            let (code, len) = (self.order.u16([a, b]), usize::from(self.order.u16([c, d])));
            let value = at + 4..at + 4 + len;
            if code == OPTION_END || value.end > self.bytes.len() {
                return None;
            }
            at = value.end.next_multiple_of(4);
            Some((code, value))
        })
    }
}

/// Returns the body length of a block with this total length.
fn body_len(block_type: u32, total: u32) -> Result<u32, CaptureErrorKind> {
    match total.checked_sub(FRAMING) {
        Some(len) if len % 4 == 0 => Ok(len),
        _ => Err(bad_block(block_type, "the length of the block is impossible")),
    }
}

const fn bad_block(block_type: u32, reason: &'static str) -> CaptureErrorKind {
    CaptureErrorKind::BadBlock { block_type, reason }
}

/// Length of the type and both length fields.
const FRAMING: u32 = 12;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const OPTION_PACKET_FLAGS: u16 = 2;
const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_TIME_RESOLUTION: u16 = 9;
const OPTION_TIME_OFFSET: u16 = 14;
