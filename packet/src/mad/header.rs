//! The header of management datagrams.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::view::view;

/// Length of every management datagram, in bytes.
pub const MAD_LEN: usize = 256;

/// Length of the data after the header, in bytes.
pub(super) const CM_LEN: usize = MAD_LEN - MadHeader::LEN;
const BASE_VERSION: u8 = 1;

/// The header of a management datagram as laid out in a packet.
///
/// ```text
///  0      1       2         3        4        6          8                16          18         20         24
/// +------+-------+---------+--------+--------+----------+----------------+-----------+----------+----------+
/// | base | class | class   | method | status | class    | transaction ID | attribute | reserved | modifier |
/// | vers.|       | version |        |        | specific |                | ID        |          |          |
/// +------+-------+---------+--------+--------+----------+----------------+-----------+----------+----------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MadView {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction_id: U64,
    attribute_id: U16,
    reserved: U16,
    attribute_modifier: U32,
}

view! {
    MadView(self) of MadHeader in Layer::Mad;

    /// Returns the version of this header; 1.
    base_version -> u8 = self.base_version;

    /// Returns the management class.
    class -> u8 = self.class;

    /// Returns the version of the class.
    class_version -> u8 = self.class_version;

    /// Returns the method. The top bit marks a response.
    method -> u8 = self.method;

    /// Returns the status of a response, in some classes.
    status -> u16 = self.status.get();

    /// Returns two class-specific bytes.
    class_specific -> u16 = self.class_specific.get();

    /// Returns the number that a request and its response share.
    transaction_id -> u64 = self.transaction_id.get();

    /// Returns the attribute ID, which identifies the message.
    attribute_id -> u16 = self.attribute_id.get();

    /// Returns the reserved bytes.
    reserved -> u16 = self.reserved.get();

    /// Returns further data of the attribute.
    attribute_modifier -> u32 = self.attribute_modifier.get();
}

/// The header of a management datagram of any class. IBTA 13.4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadHeader {
    /// Management class; [`CM_CLASS`](super::CM_CLASS) for connection management.
    pub class: u8,
    /// The version of the class.
    pub class_version: u8,
    /// Method. The top bit marks a response.
    pub method: u8,
    /// Status of a response, in some classes; otherwise 0.
    pub status: u16,
    /// Two class-specific bytes; 0 in connection management.
    pub class_specific: u16,
    /// The number that a request and its response share.
    pub transaction_id: u64,
    /// Attribute ID, which identifies the message.
    pub attribute_id: u16,
    /// Further data of the attribute; 0, except in kernels that store their own options here.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 24;

    /// Parses the header. Returns it and the remaining bytes. Rejects base versions other than 1.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = MadView::from_prefix(bytes)?;
        if view.base_version != BASE_VERSION {
            return Err(bad_version(0, BASE_VERSION, view.base_version));
        }
        let header = Self {
            class: view.class,
            class_version: view.class_version,
            method: view.method,
            status: view.status(),
            class_specific: view.class_specific(),
            transaction_id: view.transaction_id(),
            attribute_id: view.attribute_id(),
            attribute_modifier: view.attribute_modifier(),
        };
        Ok((header, rest))
    }

    /// Writes the header with reserved bits set to 0.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(MadView {
            base_version: BASE_VERSION,
            class: self.class,
            class_version: self.class_version,
            method: self.method,
            status: U16::new(self.status),
            class_specific: U16::new(self.class_specific),
            transaction_id: U64::new(self.transaction_id),
            attribute_id: U16::new(self.attribute_id),
            reserved: U16::ZERO,
            attribute_modifier: U32::new(self.attribute_modifier),
        });
    }
}

pub(super) fn bad_version(offset: usize, need: u8, have: u8) -> ParseError {
    let kind = ParseErrorKind::BadVersion;
    ParseError { layer: Layer::Mad, kind, offset, need: need.into(), have: have.into() }
}
