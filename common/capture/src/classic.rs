//! Classic pcap: a header of 24 bytes, then records of 16 bytes and a packet.

use super::source::{ByteOrder, Record, Source};
use super::{CaptureErrorKind, Direction, LinkType, MAX_PACKET};

/// Properties of all packets, from the file header.
pub(super) struct Classic {
    order: ByteOrder,
    link_type: LinkType,
    /// Nanoseconds per unit of the fraction of a timestamp: 1 in nanosecond files, 1,000 in microsecond
    /// files.
    nanoseconds_per_unit: u64,
}

impl Classic {
    /// Reads the rest of the file header. Returns `None` if `magic` is not that of this format.
    pub(super) fn open(magic: [u8; 4], source: &mut Source) -> Result<Option<Self>, CaptureErrorKind> {
        let (order, nanoseconds_per_unit) = match magic {
            [0xa1, 0xb2, 0xc3, 0xd4] => (ByteOrder::Big, 1_000),
            [0xd4, 0xc3, 0xb2, 0xa1] => (ByteOrder::Little, 1_000),
            [0xa1, 0xb2, 0x3c, 0x4d] => (ByteOrder::Big, 1),
            [0x4d, 0x3c, 0xb2, 0xa1] => (ByteOrder::Little, 1),
            [0xa1, 0xb2, 0xcd, 0x34] | [0x34, 0xcd, 0xb2, 0xa1] => {
                return Err(CaptureErrorKind::Variant("pcap files of the patched libpcap of 1999"));
            }
            _ => return Ok(None),
        };
        let [a, b, c, d, _, _, _, _, _, _, _, _, _, _, _, _, w, x, y, z] = source.expect_array::<20>()?;
        let (major, minor) = (order.u16([a, b]), order.u16([c, d]));
        if major != 2 {
            return Err(CaptureErrorKind::Version { major, minor });
        }
        // The upper half contains the length of a frame check sequence. The dissection never reaches it,
        // because the IP header gives the length of the packet.
        let link_type = LinkType(order.u32([w, x, y, z]) & 0xffff);
        Ok(Some(Self { order, link_type, nanoseconds_per_unit }))
    }

    pub(super) fn next_record(
        &mut self,
        source: &mut Source,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Record>, CaptureErrorKind> {
        source.begin_item();
        let Some(header) = source.array::<16>()? else { return Ok(None) };
        let ([seconds, fraction, captured, original_len], _) = header.as_chunks::<4>() else {
            return Ok(None);
        };
        let seconds = u64::from(self.order.u32(*seconds));
        let fraction = u64::from(self.order.u32(*fraction));
        let captured = self.order.u32(*captured);
        if captured > MAX_PACKET {
            return Err(CaptureErrorKind::PacketTooLong(captured));
        }
        buffer.clear();
        source.append(buffer, captured)?;
        Ok(Some(Record {
            // 2^32 seconds and 2^32 units of at most 1,000 ns are far from overflow.
            time_ns: Some(seconds * 1_000_000_000 + fraction * self.nanoseconds_per_unit),
            link_type: self.link_type,
            interface: None,
            direction: Direction::Unknown,
            comment: None,
            original_len: self.order.u32(*original_len),
            data: 0..buffer.len(),
        }))
    }
}
