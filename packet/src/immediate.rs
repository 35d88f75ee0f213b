//! Four bytes in the last packet of a message: immediate data or a key to invalidate.

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError};
use crate::fields::{Field, Header, Show::Bytes, bytes};
use crate::view::view;

/// The invalidate extended transport header as laid out in a packet.
///
/// ```text
///  0       4
/// +-------+
/// | R_Key |
/// +-------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IethView {
    rkey: U32,
}

view! {
    IethView(self) of Ieth in Layer::Ieth;

    /// Returns the key that the receiver invalidates.
    rkey -> u32 = self.rkey.get();
}

/// The invalidate extended transport header (IBTA 9.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ieth {
    /// Key that the receiver invalidates.
    pub rkey: u32,
}

impl Ieth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = IethView::from_prefix(bytes)?;
        Ok((Self { rkey: view.rkey() }, rest))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(IethView { rkey: U32::new(self.rkey) });
    }
}

/// The immediate data of a message as laid out in a packet: four bytes that the protocol does not interpret.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ImmDtView {
    data: [u8; 4],
}

view! {
    ImmDtView(self) of ImmDt in Layer::ImmDt;

    /// Returns the four bytes.
    data -> [u8; 4] = self.data;
}

/// Immediate data: four bytes that the receiving application gets as they are on the wire (IBTA 9.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Parses the four bytes. Returns them and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = ImmDtView::from_prefix(bytes)?;
        Ok((Self(view.data()), rest))
    }

    /// Writes the four bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0;
    }
}

/// The fields of an [`IethView`].
pub static IETH: Header = Header {
    name: "IETH",
    title: "invalidate header",
    purpose: "Invalidates a key of the receiver's memory together with a SEND.",
    rule: "IBTA 9.3.7",
    fields: &[Field::new("R_Key", "infiniband.ieth", bytes(0, 4), Bytes)
        .means("The key that the receiver invalidates when the message is complete.")],
};

/// The fields of an [`ImmDtView`].
pub static IMMDT: Header = Header {
    name: "ImmDt",
    title: "immediate data",
    purpose: "Carries four bytes to the receiving application, in its completion.",
    rule: "IBTA 9.3.6",
    fields: &[Field::new("ImmDt", "infiniband.immdt", bytes(0, 4), Bytes)
        .means("Four bytes that the protocol does not interpret.")],
};
