//! Headers of the atomic operations (IBTA 9.3.4 and 9.5).

use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError};
use crate::fields::Show::Hex;
use crate::fields::{Field, Header, bytes};
use crate::reth::REMOTE_KEY;
use crate::view::view;

/// The atomic extended transport header as laid out in a packet.
///
/// ```text
///  0                 8       12            20        28
/// +-----------------+-------+-------------+---------+
/// | virtual address | R_Key | swap or add | compare |
/// +-----------------+-------+-------------+---------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicEthView {
    va: U64,
    rkey: U32,
    swap_or_add: U64,
    compare: U64,
}

view! {
    AtomicEthView(self) of AtomicEth in Layer::AtomicEth;

    /// Returns the address of the eight bytes to change: a virtual address of the responder, which must be a
    /// multiple of 8.
    va -> u64 = self.va.get();

    /// Returns the key of the responder's memory region.
    rkey -> u32 = self.rkey.get();

    /// Returns the value to store if the comparison succeeds, or to add.
    swap_or_add -> u64 = self.swap_or_add.get();

    /// Returns the value to compare with; unused by fetch and add.
    compare -> u64 = self.compare.get();
}

/// The atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Virtual address of the responder for the eight bytes to change, a multiple of 8 if legal.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// Value to store if the comparison succeeds, or to add.
    pub swap_or_add: u64,
    /// Value to compare with; unused by fetch and add.
    pub compare: u64,
}

impl AtomicEth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 28;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = AtomicEthView::from_prefix(bytes)?;
        Ok((
            Self {
                va: view.va(),
                rkey: view.rkey(),
                swap_or_add: view.swap_or_add(),
                compare: view.compare(),
            },
            rest,
        ))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(AtomicEthView {
            va: U64::new(self.va),
            rkey: U32::new(self.rkey),
            swap_or_add: U64::new(self.swap_or_add),
            compare: U64::new(self.compare),
        });
    }
}

/// The atomic acknowledge extended transport header as laid out in a packet.
///
/// ```text
///  0               8
/// +---------------+
/// | original data |
/// +---------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AtomicAckEthView {
    original: U64,
}

view! {
    AtomicAckEthView(self) of AtomicAckEth in Layer::AtomicAckEth;

    /// Returns the value before the operation.
    original -> u64 = self.original.get();
}

/// The atomic acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// Value before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = AtomicAckEthView::from_prefix(bytes)?;
        Ok((Self { original: view.original() }, rest))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(AtomicAckEthView { original: U64::new(self.original) });
    }
}

/// The fields of an [`AtomicEthView`].
pub static ATOMIC_ETH: Header = Header {
    name: "AtomicETH",
    title: "atomic header",
    purpose: "Says which 64-bit value of the responder changes, and how.",
    rule: "IBTA 9.3.4",
    fields: &[
        Field::new("VA", "infiniband.reth.va", bytes(0, 8), Hex)
            .means("Address of the value, a multiple of 8."),
        Field::new("R_Key", "infiniband.reth.r_key", bytes(8, 4), Hex).means(REMOTE_KEY),
        Field::new("SwapDt", "infiniband.atomiceth.swapdt", bytes(12, 8), Hex)
            .means("The new value of a compare and swap, or the number that a fetch and add adds."),
        Field::new("CmpDt", "infiniband.atomiceth.cmpdt", bytes(20, 8), Hex)
            .means("The value that a compare and swap expects; fetch and add ignores it."),
    ],
};

/// The fields of an [`AtomicAckEthView`].
pub static ATOMIC_ACK_ETH: Header = Header {
    name: "AtomicAckETH",
    title: "atomic acknowledge header",
    purpose: "Returns the value that an atomic operation found.",
    rule: "IBTA 9.3.5.3",
    fields: &[Field::new("OrigRemDt", "infiniband.atomicacketh.origremdt", bytes(0, 8), Hex)
        .means("The value in the responder's memory before the operation.")],
};
