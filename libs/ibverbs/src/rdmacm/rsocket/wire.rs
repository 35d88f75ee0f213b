//! The protocol between two rsockets: private data of the connection, immediate data, and the entries with
//! which each end announces memory that the other may write.

use crate::answer::Errno;

/// Version of the private data.
const VERSION: u8 = 1;
/// Flag of a big-endian host.
const BIG_ENDIAN: u8 = 1;
/// Flag of an end that supports mappings (`riomap`).
const MAPPINGS: u8 = 2;
/// Position of the kind in immediate data.
const KIND_SHIFT: u32 = 29;
const VALUE_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// Memory of one end that the other end may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) length: u32,
}

impl Target {
    pub(super) const LEN: usize = 16;

    fn to_bytes(self, is_big_endian: bool) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (address, key, length) = if is_big_endian {
            (self.address.to_be_bytes(), self.key.to_be_bytes(), self.length.to_be_bytes())
        } else {
            (self.address.to_le_bytes(), self.key.to_le_bytes(), self.length.to_le_bytes())
        };
        bytes[..8].copy_from_slice(&address);
        bytes[8..12].copy_from_slice(&key);
        bytes[12..].copy_from_slice(&length);
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::LEN], is_big_endian: bool) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        let (address, key, length) = ([a, b, c, d, e, f, g, h], [i, j, k, l], [m, n, o, p]);
        if is_big_endian {
            Self {
                address: u64::from_be_bytes(address),
                key: u32::from_be_bytes(key),
                length: u32::from_be_bytes(length),
            }
        } else {
            Self {
                address: u64::from_le_bytes(address),
                key: u32::from_le_bytes(key),
                length: u32::from_le_bytes(length),
            }
        }
    }

    /// Returns the entry in the byte order of the receiving host.
    pub(super) fn entry(self, is_big_endian: bool) -> [u8; Self::LEN] {
        self.to_bytes(is_big_endian)
    }

    /// Decodes an entry in the memory of this host.
    pub(super) fn of_entry(bytes: &[u8; Self::LEN]) -> Self {
        Self::from_bytes(bytes, cfg!(target_endian = "big"))
    }
}

/// An entry of a mapping: memory of the application, which the peer writes at an offset that the application
/// chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) offset: u64,
    pub(super) target: Target,
}

impl Mapping {
    pub(super) const LEN: usize = 8 + Target::LEN;

    /// Returns the entry in the byte order of the receiving host.
    pub(super) fn entry(self, is_big_endian: bool) -> [u8; Self::LEN] {
        let offset = if is_big_endian { self.offset.to_be_bytes() } else { self.offset.to_le_bytes() };
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&offset);
        bytes[8..].copy_from_slice(&self.target.entry(is_big_endian));
        bytes
    }

    /// Decodes an entry in the memory of this host.
    pub(super) fn of_entry(bytes: &[u8; Self::LEN]) -> Self {
        let (mut offset, mut target) = ([0; 8], [0; Target::LEN]);
        offset.copy_from_slice(&bytes[..8]);
        target.copy_from_slice(&bytes[8..]);
        Self { offset: u64::from_ne_bytes(offset), target: Target::of_entry(&target) }
    }

    /// Returns the memory from this offset to the end of the mapping; `None` if the offset is outside.
    pub(super) fn at(&self, offset: u64) -> Option<Target> {
        let inside = offset.checked_sub(self.offset)?;
        let left = u64::from(self.target.length).checked_sub(inside).filter(|left| *left > 0)?;
        let length = u32::try_from(left).ok()?;
        Some(Target { address: self.target.address.wrapping_add(inside), length, ..self.target })
    }
}

/// Decodes the number of mapping entries: a byte above 128 encodes a multiple of 256.
pub(super) fn mappings_of(byte: u8) -> u16 {
    const MANY: u8 = 0x80;
    if byte <= MANY { byte.into() } else { u16::from(byte & !MANY) << 8 }
}

/// Encodes the number of mapping entries, rounded down.
pub(super) fn mappings_byte(number: u16) -> u8 {
    match u8::try_from(number) {
        Ok(few) if few <= 0x80 => few,
        _ => 0x80 | u8::try_from(number >> 8).unwrap_or(0x7f).min(0x7f),
    }
}

/// The private data of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) is_big_endian: bool,
    /// Number of messages that the peer may send at first.
    pub(super) credits: u16,
    /// Number of mappings that the peer may announce, behind the entries.
    pub(super) mappings: u16,
    /// Memory in which the peer announces further memory; the length is a number of entries.
    pub(super) entries: Target,
    /// The memory that the peer may write first.
    pub(super) first: Target,
}

impl Hello {
    pub(super) const LEN: usize = 40;

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        bytes[1] = MAPPINGS | if self.is_big_endian { BIG_ENDIAN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = mappings_byte(self.mappings);
        bytes[8..24].copy_from_slice(&self.entries.to_bytes(true));
        bytes[24..].copy_from_slice(&self.first.to_bytes(true));
        bytes
    }

    /// # Errors
    ///
    /// Fails if the data are too short, of another version or without entries.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(Errno::UNSUPPORTED)?;
        let target = |at: usize| {
            let mut part = [0; Target::LEN];
            part.copy_from_slice(&bytes[at..at + Target::LEN]);
            Target::from_bytes(&part, true)
        };
        let hello = Self {
            is_big_endian: bytes[1] & BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            mappings: if bytes[1] & MAPPINGS != 0 { mappings_of(bytes[7]) } else { 0 },
            entries: target(8),
            first: target(24),
        };
        if bytes[0] == VERSION && hello.entries.length > 0 { Ok(hello) } else { Err(Errno::UNSUPPORTED) }
    }
}

/// The meaning of immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// This number of bytes was written.
    Data(u32),
    /// The receiver may send up to the message of this number. An entry may have been written as well.
    Credits(u16),
    /// An entry of a mapping was written.
    Mapping(u16),
    /// Nothing follows, in both directions.
    Disconnect,
    KeepAlive,
    /// Nothing follows from the sender.
    Shutdown,
    Unknown,
}

impl Message {
    pub(super) fn immediate(self) -> [u8; 4] {
        let (kind, value) = match self {
            Self::Data(bytes) => (0, bytes),
            Self::Credits(number) => (4, number.into()),
            Self::Mapping(index) => (6, index.into()),
            Self::Disconnect => (7, 0),
            Self::KeepAlive => (7, 1),
            Self::Shutdown => (7, 2),
            Self::Unknown => (5, 0),
        };
        (kind << KIND_SHIFT | value & VALUE_MASK).to_be_bytes()
    }

    pub(super) fn of_immediate(immediate: [u8; 4]) -> Self {
        let number = u32::from_be_bytes(immediate);
        match (number >> KIND_SHIFT, number & VALUE_MASK) {
            (0, bytes) => Self::Data(bytes),
            // Message numbers are modulo 2^16.
            (4, number) => Self::Credits(number as u16),
            (6, index) => Self::Mapping(index as u16),
            (7, 0) => Self::Disconnect,
            (7, 1) => Self::KeepAlive,
            (7, 2) => Self::Shutdown,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_are_forty_bytes_in_network_order() {
        let hello = Hello {
            is_big_endian: false,
            credits: 384,
            mappings: 0x200,
            entries: Target { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 2 },
            first: Target { address: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 0x1_0000 },
        };
        let bytes = hello.emit();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 0x82]);
        assert_eq!(bytes[8..24], [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2]);
        assert_eq!(Hello::parse(&bytes), Ok(hello));
        assert_eq!(Hello::parse(&[&bytes[..], &[0; 20]].concat()), Ok(hello), "there may be padding");
        assert!(Hello::parse(&bytes[..39]).is_err());
        assert!(Hello::parse(&[&[2], &bytes[1..]].concat()).is_err(), "another version");
    }

    #[test]
    fn many_mappings_are_counted_by_256() {
        for (number, byte, counted) in
            [(0, 0, 0), (128, 128, 128), (129, 128, 128), (255, 128, 128), (700, 0x82, 512)]
        {
            assert_eq!((mappings_byte(number), mappings_of(byte)), (byte, counted), "{number}");
        }
        assert_eq!(mappings_of(mappings_byte(u16::MAX)), 0x7f00);
    }

    #[test]
    fn a_mapping_says_where_an_offset_is() {
        let target = Target { address: 0x1000, key: 7, length: 100 };
        let mapping = Mapping { offset: 50, target };
        assert_eq!(Mapping::of_entry(&mapping.entry(cfg!(target_endian = "big"))), mapping);
        assert_eq!(mapping.at(50), Some(target));
        assert_eq!(mapping.at(149), Some(Target { address: 0x1063, length: 1, ..target }));
        assert_eq!((mapping.at(49), mapping.at(150), mapping.at(u64::MAX)), (None, None, None));
    }

    #[test]
    fn the_kind_is_in_the_upper_bits_of_immediate_data() {
        let rows = [
            (Message::Data(5), 0x0000_0005_u32),
            (Message::Credits(0x1234), 0x8000_1234),
            (Message::Mapping(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, number) in rows {
            assert_eq!(message.immediate(), number.to_be_bytes());
            assert_eq!(Message::of_immediate(number.to_be_bytes()), message);
        }
        assert_eq!(Message::of_immediate(0x8001_0002_u32.to_be_bytes()), Message::Credits(2), "modulo 2^16");
        assert_eq!(Message::of_immediate(0x2000_0000_u32.to_be_bytes()), Message::Unknown);
    }

    #[test]
    fn entries_are_in_the_order_of_the_host_that_reads_them() {
        let target = Target { address: 1, key: 2, length: 3 };
        assert_eq!(target.entry(true)[7], 1);
        assert_eq!(target.entry(false)[0], 1);
        assert_eq!(Target::of_entry(&target.entry(cfg!(target_endian = "big"))), target);
    }
}
