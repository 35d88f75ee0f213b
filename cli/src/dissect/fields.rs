//! The fields of every header as data: one list per header, which the tree, the JSON and `roce explain`
//! all print from.
//!
//! The lists say where a field is, what tshark calls it and what it means. They are for showing packets,
//! broken ones included, and judge nothing; `roce-packet` does that, and a test compares the two.

mod link;
mod management;
mod network;
mod transport;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use roce_packet::MacAddr;

pub(crate) use link::{ETHERNET, ETHERNET_TRAILER, PAUSE, PFC, VLAN, ether_type};
pub(crate) use management::{IP_CM, MAD, MAD_DATA, REQ_PRIVATE_DATA, cm_message, is_rdma_cm};
pub(crate) use network::{GRH, IPV4, IPV4_OPTIONS, IPV6, UDP, protocol};
pub(crate) use transport::{
    ATOMIC_ACK_ETH, BTH, CNP, DETH, EXTENDED, ICRC, PADDING, PAYLOAD, XRCETH, aeth_text,
};

/// A header, or another part of a packet that is shown as a unit.
#[derive(Debug)]
pub(crate) struct Header {
    /// What everybody calls it, such as `BTH`.
    pub(crate) name: &'static str,
    /// What the name stands for.
    pub(crate) title: &'static str,
    /// What the header is for, in a sentence.
    pub(crate) purpose: &'static str,
    /// Where the rule stands.
    pub(crate) rule: &'static str,
    /// In the order in which they lie; parts such as the payload have none.
    pub(crate) fields: &'static [Field],
}

impl Header {
    /// How many bytes its fields take; 0 for parts that have none.
    pub(crate) fn len_bytes(&self) -> usize {
        self.fields.iter().map(|field| field.byte_range().end).max().unwrap_or(0)
    }
}

/// A field of a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Its name in the specification.
    pub(crate) name: &'static str,
    /// Its name in JSON: tshark's where tshark has the field, else one that begins with `roce.`.
    pub(crate) key: &'static str,
    /// Where it begins, in bits from the start of the header.
    pub(crate) start: usize,
    /// How many bits it has. Fields of more than 64 bits lie on byte boundaries.
    pub(crate) width: usize,
    /// How its value is written.
    pub(crate) show: Show,
    /// Whether it may change on the way, so that the ICRC is computed with ones in its place.
    pub(crate) variant: bool,
    /// Under which condition on the header's bytes the field is there, for bits with two meanings.
    pub(crate) when: Option<fn(&[u8]) -> bool>,
    /// What the value means.
    pub(crate) note: Option<fn(u64) -> Option<String>>,
    /// What the field is for: one sentence with unit and range.
    pub(crate) meaning: &'static str,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Decimal,
    /// With as many digits as the field has room for.
    Hex,
    Flag,
    /// A number of 32-bit words, written as bytes.
    Words,
    Mac,
    Ipv4,
    Ipv6,
    /// Bytes without a meaning of their own.
    Bytes,
}

/// The value of a field in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Whole bytes: the first one and how many.
const fn bytes(first: usize, count: usize) -> (usize, usize) {
    (first * 8, count * 8)
}

/// Bits of a byte: which byte, and which bits of it as a mask such as `0x30`.
const fn mask(byte: usize, mask: u8) -> (usize, usize) {
    (byte * 8 + mask.leading_zeros() as usize, mask.count_ones() as usize)
}

/// Bits that reach over several bytes: the first byte, how many bits of it are skipped, and how many bits
/// the field has.
const fn bits(byte: usize, skipped: usize, count: usize) -> (usize, usize) {
    (byte * 8 + skipped, count)
}

impl Field {
    const fn new(
        name: &'static str,
        key: &'static str,
        (start, width): (usize, usize),
        show: Show,
        meaning: &'static str,
    ) -> Self {
        Self { name, key, start, width, show, variant: false, when: None, note: None, meaning }
    }

    /// Bits that have no meaning yet.
    const fn reserved(key: &'static str, place: (usize, usize)) -> Self {
        Self::new("reserved", key, place, Show::Hex, "Sent as zero; a receiver ignores it.")
    }

    const fn variant(mut self) -> Self {
        self.variant = true;
        self
    }

    const fn when(mut self, condition: fn(&[u8]) -> bool) -> Self {
        self.when = Some(condition);
        self
    }

    const fn note(mut self, note: fn(u64) -> Option<String>) -> Self {
        self.note = Some(note);
        self
    }

    /// The bytes that the field touches, from the start of the header.
    pub(crate) const fn byte_range(&self) -> std::ops::Range<usize> {
        self.start / 8..(self.start + self.width).div_ceil(8)
    }

    /// Its value in a header, or `None` when the header was cut before it or has something else there.
    pub(crate) fn value<'a>(&self, header: &'a [u8]) -> Option<Value<'a>> {
        let part = header.get(self.byte_range())?;
        if self.when.is_some_and(|condition| !condition(header)) {
            return None;
        }
        if self.show == Show::Bytes || self.width > 64 {
            return Some(Value::Bytes(part));
        }
        // At most nine bytes: 64 bits that do not begin with a byte.
        let all = part.iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        let behind = part.len() * 8 - self.start % 8 - self.width;
        let ones = u128::MAX >> (128 - self.width);
        Some(Value::Number((all >> behind & ones) as u64))
    }

    /// What the value is called or means, for fields that have more to say than their number.
    pub(crate) fn note_text(&self, value: &Value<'_>) -> Option<String> {
        match (self.note, value) {
            (Some(note), Value::Number(number)) => note(*number),
            _ => None,
        }
    }

    /// The value for a human, without the note.
    pub(crate) fn text(&self, value: &Value<'_>) -> String {
        match (*value, self.show) {
            (Value::Number(number), Show::Hex) => {
                format!("0x{number:0digits$x}", digits = self.width.div_ceil(4))
            }
            (Value::Number(number), Show::Mac) => {
                let [_, _, mac @ ..] = number.to_be_bytes();
                MacAddr(mac).to_string()
            }
            (Value::Number(number), Show::Ipv4) => Ipv4Addr::from_bits(number as u32).to_string(),
            (Value::Number(number), Show::Words) => (number * 4).to_string(),
            (Value::Number(number), _) => number.to_string(),
            (Value::Bytes(bytes), Show::Ipv6) => match <[u8; 16]>::try_from(bytes) {
                Ok(octets) => Ipv6Addr::from(octets).to_string(),
                Err(_) => hex(bytes),
            },
            (Value::Bytes(bytes), _) => hex(bytes),
        }
    }

    /// The bits of a field that shares its byte with others, as in `.1.. ....`, or where they are if it
    /// reaches over several; `None` for whole bytes.
    pub(crate) fn bit_pattern(&self, header: &[u8]) -> Option<String> {
        if self.start.is_multiple_of(8) && self.width.is_multiple_of(8) {
            return None;
        }
        let (first, range) = (self.start % 8, self.byte_range());
        let bits = first..first + self.width;
        let &[byte] = header.get(range)? else { return Some(format!("bits {first}-{}", bits.end - 1)) };
        let draw = |bit: usize| match (bits.contains(&bit), byte << bit & 0x80) {
            (false, _) => '.',
            (true, 0) => '0',
            (true, _) => '1',
        };
        Some((0..4).map(draw).chain([' ']).chain((4..8).map(draw)).collect())
    }

    /// Sets the bits of the field in a header, as the ICRC does with those that may change.
    pub(crate) fn set_ones(&self, header: &mut [u8]) {
        for place in self.start..self.start + self.width {
            if let Some(byte) = header.get_mut(place / 8) {
                *byte |= 0x80 >> (place % 8);
            }
        }
    }
}

/// Bytes as text, two digits each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A note that is always there.
fn some(text: impl Into<String>) -> Option<String> {
    Some(text.into())
}

/// The name of a UDP port that people meet next to RoCE.
fn port_name(port: u64) -> Option<String> {
    match port {
        4791 => some("RoCE v2"),
        67 | 68 => some("DHCP"),
        53 | 5353 => some("DNS"),
        319 | 320 => some("PTP"),
        4789 => some("VXLAN"),
        _ => None,
    }
}
