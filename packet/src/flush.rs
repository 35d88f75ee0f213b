//! The flush header (Annex A19). The RETH that follows it gives the memory to flush.

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError};
use crate::fields::Show::{Decimal, Flag};
use crate::fields::{Field, Header, bits, mask};
use crate::view::view;

/// The flush extended transport header as laid out in a packet: one word.
///
/// ```text
///  31                          6   5         4   3            0
/// +-----------------------------+-------------+----------------+
/// | reserved                    | selectivity | placement type |
/// +-----------------------------+-------------+----------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FethView {
    word: U32,
}

view! {
    FethView(self) of Feth in Layer::Feth;

    /// Returns the placement type, bits 3 to 0.
    placement_type -> u8 = (self.word.get() & 0xf) as u8;

    /// Returns the selectivity, bits 5 and 4.
    selectivity -> u8 = (self.word.get() >> SELECTIVITY_SHIFT & 0b11) as u8;

    /// Returns the reserved bits 31 to 6, shifted down.
    reserved -> u32 = self.word.get() >> 6;
}

/// The flush extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Feth {
    /// Whether earlier writes become visible to every reader of the memory.
    pub global_visibility: bool,
    /// Whether earlier writes survive a loss of power.
    pub persistence: bool,
    /// Extent of the memory to flush.
    pub selectivity: FlushSelectivity,
}

impl Feth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = FethView::from_prefix(bytes)?;
        let feth = Self {
            global_visibility: view.placement_type() & GLOBAL_VISIBILITY != 0,
            persistence: view.placement_type() & PERSISTENCE != 0,
            selectivity: FlushSelectivity::from_bits(view.selectivity()),
        };
        Ok((feth, rest))
    }

    /// Writes the header with reserved bits set to 0.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let mut byte = self.selectivity.bits() << SELECTIVITY_SHIFT;
        if self.global_visibility {
            byte |= GLOBAL_VISIBILITY;
        }
        if self.persistence {
            byte |= PERSISTENCE;
        }
        *out = [0, 0, 0, byte];
    }
}

/// Extent of the memory that a flush concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushSelectivity {
    /// 0: the range that the RETH gives.
    Range,
    /// 1: the whole memory region of the RETH's key.
    WholeRegion,
    /// 2 and 3: reserved. Only the low two bits are written.
    Reserved(u8),
}

impl FlushSelectivity {
    /// Reads the low two bits.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0 => Self::Range,
            1 => Self::WholeRegion,
            reserved => Self::Reserved(reserved),
        }
    }

    /// Returns the two bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Range => 0,
            Self::WholeRegion => 1,
            Self::Reserved(bits) => bits & 0b11,
        }
    }
}

const GLOBAL_VISIBILITY: u8 = 1 << 0;
const PERSISTENCE: u8 = 1 << 1;
const SELECTIVITY_SHIFT: u32 = 4;

/// The fields of a [`FethView`].
pub static FETH: Header = Header {
    name: "FETH",
    title: "flush header",
    purpose: "Says what must have happened to earlier writes before the responder answers.",
    rule: "IBTA A19",
    fields: &[
        Field::reserved("roce.feth.reserved", bits(0, 0, 26)),
        Field::new("SEL", "roce.feth.selectivity", mask(3, 0x30), Decimal)
            .means("What to flush: 0 the range in the RETH, 1 the whole memory region."),
        Field::reserved("roce.feth.reserved2", mask(3, 0x0c)),
        Field::new("P", "roce.feth.persistence", mask(3, 0x02), Flag)
            .means("Persistence: the data survives a loss of power."),
        Field::new("G", "roce.feth.global_visibility", mask(3, 0x01), Flag)
            .means("Global visibility: every reader at the responder sees the data."),
    ],
};
