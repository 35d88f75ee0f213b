//! The tables of headers: fields, their positions and their values.

use core::fmt;
use core::ops::Range;

/// A header, or another part of a packet that tools display as a unit.
#[derive(Debug)]
pub struct Header {
    /// The common name, such as `BTH`.
    pub name: &'static str,
    /// The full name.
    pub title: &'static str,
    /// The purpose of the header, in one sentence.
    pub purpose: &'static str,
    /// The section of the specification that defines the header.
    pub rule: &'static str,
    /// The fields in wire order. Parts without a fixed length, such as the payload, have no fields.
    pub fields: &'static [Field],
}

impl Header {
    /// Returns the length of all fields together, in bytes; 0 for parts without fields.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.fields.iter().map(|field| field.byte_range().end).max().unwrap_or(0)
    }

    /// Sets the bits that the ICRC does not cover to ones, as for the computation of the ICRC.
    pub fn mask_variant_fields(&self, header: &mut [u8]) {
        for field in self.fields.iter().filter(|field| field.variant) {
            let end = field.start.saturating_add(field.width).min(header.len().saturating_mul(8));
            for bit in field.start..end {
                if let Some(byte) = header.get_mut(bit / 8) {
                    *byte |= 0x80 >> (bit % 8);
                }
            }
        }
    }
}

/// Returns from the bytes of a header whether a field is present.
pub type Condition = fn(&[u8]) -> bool;

/// Writes the name or the meaning of a value. Writes nothing for values without one.
pub type Note = fn(u64, &mut dyn fmt::Write) -> fmt::Result;

/// A field of a header.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name in the specification.
    pub name: &'static str,
    /// Name of the field in Wireshark's display filters. Names of fields that Wireshark does not have begin
    /// with `roce.`.
    pub key: &'static str,
    /// First bit, counted from the start of the header.
    pub start: usize,
    /// Number of bits. Fields of more than 64 bits are aligned to bytes.
    pub width: usize,
    /// Format of the value.
    pub show: Show,
    /// Whether the field may change between the two ends, so that the ICRC replaces it with ones.
    pub variant: bool,
    /// Condition under which the field is present, for bits with several meanings.
    pub when: Option<Condition>,
    /// Describes the meaning of a value.
    pub note: Option<Note>,
    /// Meaning of the field: one sentence with unit and range.
    pub meaning: &'static str,
}

/// The format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// In decimal digits.
    Decimal,
    /// With the number of hexadecimal digits that the field has room for.
    Hex,
    /// As a boolean.
    Flag,
    /// A number of 32-bit words, displayed as a number of bytes.
    Words,
    /// As an Ethernet address.
    Mac,
    /// As an IPv4 address, in the last four bytes of a longer field.
    Ipv4,
    /// As an IPv6 address.
    Ipv6,
    /// Bytes that are not a number.
    Bytes,
}

/// The value of a field in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Value of a field of at most 64 bits.
    Number(u64),
    /// Value of a longer field, and of every [`Show::Bytes`] field.
    Bytes(&'a [u8]),
}

impl Field {
    pub(crate) const fn new(
        name: &'static str,
        key: &'static str,
        (start, width): (usize, usize),
        show: Show,
    ) -> Self {
        Self { name, key, start, width, show, variant: false, when: None, note: None, meaning: "" }
    }

    /// Creates a field of reserved bits.
    pub(crate) const fn reserved(key: &'static str, place: (usize, usize)) -> Self {
        Self::new("reserved", key, place, Show::Hex).means("Reserved: senders write 0, receivers ignore it.")
    }

    pub(crate) const fn means(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }

    pub(crate) const fn variant(self) -> Self {
        Self { variant: true, ..self }
    }

    pub(crate) const fn when(self, condition: Condition) -> Self {
        Self { when: Some(condition), ..self }
    }

    pub(crate) const fn note(self, note: Note) -> Self {
        Self { note: Some(note), ..self }
    }

    /// Returns the range of bytes that contain the field, from the start of the header.
    #[must_use]
    pub const fn byte_range(&self) -> Range<usize> {
        self.start / 8..self.start.saturating_add(self.width).div_ceil(8)
    }

    /// Returns the value in a header, or `None` if the header is truncated before it or the field is not
    /// present.
    #[must_use]
    pub fn value<'a>(&self, header: &'a [u8]) -> Option<Value<'a>> {
        let part = header.get(self.byte_range())?;
        if self.width == 0 || self.when.is_some_and(|condition| !condition(header)) {
            return None;
        }
        if self.show == Show::Bytes || self.width > 64 {
            return Some(Value::Bytes(part));
        }
        // Nine bytes at most: 64 bits that do not start at a byte boundary. All bits fit, and neither shift
        // reaches 128.
        let all = part.iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        let behind = part.len() * 8 - self.start % 8 - self.width;
        let ones = u128::MAX >> (128 - self.width);
        Some(Value::Number((all >> behind & ones) as u64))
    }

    /// Sets the value in a header. Bits of `value` above the width of the field are dropped. Returns `false`
    /// and changes nothing if the header is truncated before the field, or if the field has more than 64
    /// bits.
    pub fn set(&self, header: &mut [u8], value: u64) -> bool {
        if self.width == 0 || self.width > 64 {
            return false;
        }
        let Some(part) = header.get_mut(self.byte_range()) else { return false };
        let all = part.iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        let behind = part.len() * 8 - self.start % 8 - self.width;
        let ones = u128::MAX >> (128 - self.width);
        let mut all = all & !(ones << behind) | (u128::from(value) & ones) << behind;
        for byte in part.iter_mut().rev() {
            *byte = all as u8;
            all >>= 8;
        }
        true
    }

    /// Sets a field of whole bytes to `value`. Returns `false` and changes nothing if the field has another
    /// length or does not consist of whole bytes, or if the header is truncated before its end.
    pub fn set_bytes(&self, header: &mut [u8], value: &[u8]) -> bool {
        let is_whole = self.start.is_multiple_of(8) && self.width == value.len().saturating_mul(8);
        let Some(part) = header.get_mut(self.byte_range()).filter(|_| is_whole) else { return false };
        part.copy_from_slice(value);
        true
    }
}

/// Returns the bit range of `count` whole bytes from `first` on.
pub(crate) const fn bytes(first: usize, count: usize) -> (usize, usize) {
    (first * 8, count * 8)
}

/// Returns the bit range of one byte's bits that a mask such as `0x30` selects.
pub(crate) const fn mask(byte: usize, mask: u8) -> (usize, usize) {
    (byte * 8 + mask.leading_zeros() as usize, mask.count_ones() as usize)
}

/// Returns the bit range of `count` bits, starting `skipped` bits after the start of `byte`.
pub(crate) const fn bits(byte: usize, skipped: usize, count: usize) -> (usize, usize) {
    (byte * 8 + skipped, count)
}
