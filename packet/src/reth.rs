//! The RDMA header, which addresses remote memory (IBTA 9.3.3).

use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError};
use crate::fields::Show::{Decimal, Hex};
use crate::fields::{Field, Header, bytes};
use crate::view::view;

/// The RDMA extended transport header as laid out in a packet.
///
/// ```text
///  0                 8       12           16
/// +-----------------+-------+------------+
/// | virtual address | R_Key | DMA length |
/// +-----------------+-------+------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RethView {
    va: U64,
    rkey: U32,
    dma_len: U32,
}

view! {
    RethView(self) of Reth in Layer::Reth;

    /// Returns the address at which the access begins.
    va -> u64 = self.va.get();

    /// Returns the key of the memory region.
    rkey -> u32 = self.rkey.get();

    /// Returns the length of the whole message, in bytes.
    dma_len -> u32 = self.dma_len.get();
}

/// The RDMA extended transport header. `va` plus `dma_len` may exceed 64 bits; the memory check must detect
/// this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Virtual address of the responder at which the access begins.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// Length of the whole message in bytes, 0 to 2^32 - 1. Other code rejects messages longer than 2^31
    /// bytes.
    pub dma_len: u32,
}

impl Reth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 16;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = RethView::from_prefix(bytes)?;
        Ok((Self { va: view.va(), rkey: view.rkey(), dma_len: view.dma_len() }, rest))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(RethView {
            va: U64::new(self.va),
            rkey: U32::new(self.rkey),
            dma_len: U32::new(self.dma_len),
        });
    }
}

/// The fields of a [`RethView`].
pub static RETH: Header = Header {
    name: "RETH",
    title: "RDMA header",
    purpose: "Says which memory of the responder is read or written, and with which key.",
    rule: "IBTA 9.3.3",
    fields: &[
        Field::new("VA", "infiniband.reth.va", bytes(0, 8), Hex)
            .means("Virtual address in the memory of the responder."),
        Field::new("R_Key", "infiniband.reth.r_key", bytes(8, 4), Hex).means(REMOTE_KEY),
        Field::new("DMALen", "infiniband.reth.dmalen", bytes(12, 4), Decimal)
            .means("Bytes of the whole message, over all its packets; at most 2^31."),
    ],
};

pub(crate) const REMOTE_KEY: &str = "Key of the responder's memory, which permits the access.";
