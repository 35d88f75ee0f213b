//! The fields of every header as data, for tools that show packets: what a field is called, where it lies, how its
//! value is written and what it means.
//!
//! Each table stands in the file of its header, beside the view and the parser, and a test compares the three. The
//! tables describe broken packets as well as legal ones; [`Bth::parse`](crate::Bth::parse) and its like judge.
//!
//! ```
//! use roce_packet::fields::{BTH, Value};
//!
//! let header = [0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0, 0x5e, 0xed];
//! let psn = BTH.fields.iter().find(|field| field.name == "PSN").ok_or("not in the table")?;
//! assert_eq!(psn.byte_range(), 9..12);
//! assert_eq!(psn.value(&header), Some(Value::Number(0x5eed)));
//! # Ok::<(), &str>(())
//! ```

use core::fmt;
use core::ops::Range;

use crate::opcode::HeaderSet;

pub use crate::aeth::AETH;
pub use crate::atomic::{ATOMIC_ACK_ETH, ATOMIC_ETH};
pub use crate::bth::BTH;
pub use crate::cnp::CNP;
pub use crate::datagram::{PADDING, PAYLOAD};
pub use crate::deth::{DETH, RDETH, XRCETH};
pub use crate::ethernet::{ETHERNET, ETHERNET_TRAILER, VLAN};
pub use crate::flush::FETH;
pub use crate::grh::GRH;
pub use crate::icrc::ICRC;
pub use crate::immediate::{IETH, IMMDT};
pub use crate::ipv4::{IPV4, IPV4_OPTIONS};
pub use crate::ipv6::IPV6;
pub use crate::mad::tables::{
    APR, DREP, DREQ, IP_CM, LAP, MAD, MAD_DATA, MRA, REJ, REP, REQ, RTU, SIDR_REP, SIDR_REQ, cm_message,
};
pub use crate::outer::tables::{
    AUTHENTICATION, CONTROL_WORD, DESTINATION_OPTIONS, ERSPAN_II, ERSPAN_III, FRAGMENT, GENEVE, GRE,
    GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE, HOP_BY_HOP, MPLS, ROUTING, SERVICE_VLAN, VXLAN, VXLAN_GPE,
};
pub use crate::pause::{PAUSE, PFC};
pub use crate::reth::RETH;
pub use crate::telemetry::TELEMETRY;
pub use crate::udp::UDP;

/// A header, or another part of a packet that is shown as a unit.
#[derive(Debug)]
pub struct Header {
    /// The common name, such as `BTH`.
    pub name: &'static str,
    /// The name in full.
    pub title: &'static str,
    /// What the header is for, in a sentence.
    pub purpose: &'static str,
    /// The section of the specification that defines it.
    pub rule: &'static str,
    /// The fields in the order of the wire. Parts without a fixed length, such as the payload, have none.
    pub fields: &'static [Field],
}

impl Header {
    /// Bytes of all fields together; 0 for parts that have none.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.fields.iter().map(|field| field.byte_range().end).max().unwrap_or(0)
    }

    /// Sets the bits that the ICRC does not cover to ones, as the ICRC is computed.
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

/// Tells from the bytes of a header whether a field is present.
pub type Condition = fn(&[u8]) -> bool;

/// Writes the name or the meaning of a value, and nothing for values without one.
pub type Note = fn(u64, &mut dyn fmt::Write) -> fmt::Result;

/// A field of a header.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name in the specification.
    pub name: &'static str,
    /// The display filter name of Wireshark; names of fields that Wireshark lacks begin with `roce.`.
    pub key: &'static str,
    /// The first bit, counted from the start of the header.
    pub start: usize,
    /// The number of bits. Fields of more than 64 bits lie on byte boundaries.
    pub width: usize,
    /// How the value is written.
    pub show: Show,
    /// Whether the field may change between the two ends, so that the ICRC replaces it by ones.
    pub variant: bool,
    /// Under which condition the field is present, for bits with several meanings.
    pub when: Option<Condition>,
    /// What a value means.
    pub note: Option<Note>,
    /// What the field means: one sentence with unit and range.
    pub meaning: &'static str,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// In decimal digits.
    Decimal,
    /// In as many hexadecimal digits as the field has room for.
    Hex,
    /// As a boolean.
    Flag,
    /// A number of 32-bit words, written as a number of bytes.
    Words,
    /// As an Ethernet address.
    Mac,
    /// As an IPv4 address, which is in the last four bytes of a longer field.
    Ipv4,
    /// As an IPv6 address.
    Ipv6,
    /// Bytes that are not a number.
    Bytes,
}

/// The value of a field in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Of a field of at most 64 bits.
    Number(u64),
    /// Of a longer field, and of every [`Show::Bytes`].
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

    /// Bits without a meaning.
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

    /// The bytes that hold the field, from the start of the header.
    #[must_use]
    pub const fn byte_range(&self) -> Range<usize> {
        self.start / 8..self.start.saturating_add(self.width).div_ceil(8)
    }

    /// The value in a header, or `None` when the header is cut before it or has something else there.
    #[must_use]
    pub fn value<'a>(&self, header: &'a [u8]) -> Option<Value<'a>> {
        let part = header.get(self.byte_range())?;
        if self.width == 0 || self.when.is_some_and(|condition| !condition(header)) {
            return None;
        }
        if self.show == Show::Bytes || self.width > 64 {
            return Some(Value::Bytes(part));
        }
        // At most nine bytes: 64 bits that do not begin with a byte. So all bits fit, and neither shift reaches 128.
        let all = part.iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        let behind = part.len() * 8 - self.start % 8 - self.width;
        let ones = u128::MAX >> (128 - self.width);
        Some(Value::Number((all >> behind & ones) as u64))
    }
}

/// Whole bytes: the first one and how many.
pub(crate) const fn bytes(first: usize, count: usize) -> (usize, usize) {
    (first * 8, count * 8)
}

/// Bits of one byte: which byte, and which of its bits as a mask such as `0x30`.
pub(crate) const fn mask(byte: usize, mask: u8) -> (usize, usize) {
    (byte * 8 + mask.leading_zeros() as usize, mask.count_ones() as usize)
}

/// Bits of several bytes: the first byte, how many bits of it the field skips, and how many bits it has.
pub(crate) const fn bits(byte: usize, skipped: usize, count: usize) -> (usize, usize) {
    (byte * 8 + skipped, count)
}

/// The extended headers with their flags, in the order of the wire.
pub static EXTENDED: [(HeaderSet, &Header); 10] = [
    (HeaderSet::RDETH, &RDETH),
    (HeaderSet::DETH, &DETH),
    (HeaderSet::XRCETH, &XRCETH),
    (HeaderSet::FETH, &FETH),
    (HeaderSet::RETH, &RETH),
    (HeaderSet::ATOMIC_ETH, &ATOMIC_ETH),
    (HeaderSet::AETH, &AETH),
    (HeaderSet::ATOMIC_ACK_ETH, &ATOMIC_ACK_ETH),
    (HeaderSet::IMMDT, &IMMDT),
    (HeaderSet::IETH, &IETH),
];
