//! Headers that identify the datagram context of a packet: DETH, RDETH and XRCETH.

use core::fmt;

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError};
use crate::fields::Show::Hex;
use crate::fields::{Field, Header, bytes};
use crate::number::{Qpn, from_be_24, to_be_24};
use crate::view::view;

/// The Q_Key of queue pair 1 (IBTA 10.2.5).
pub const GSI_Q_KEY: u32 = 0x8001_0000;

/// The datagram extended transport header as laid out in a packet.
///
/// ```text
///  0       4          5           8
/// +-------+----------+-----------+
/// | Q_Key | reserved | source QP |
/// +-------+----------+-----------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DethView {
    q_key: U32,
    reserved: u8,
    source_qp: [u8; 3],
}

view! {
    DethView(self) of Deth in Layer::Deth;

    /// Returns the key, which must match that of the receiving queue pair.
    q_key -> u32 = self.q_key.get();

    /// Returns the reserved byte.
    reserved -> u8 = self.reserved;

    /// Returns the sending queue pair, to which a reply goes.
    source_qp -> Qpn = Qpn::from_be_bytes(self.source_qp);
}

/// The datagram extended transport header (IBTA 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Key, which must match that of the receiving queue pair.
    pub q_key: u32,
    /// The sending queue pair, to which a reply goes.
    pub source_qp: Qpn,
}

impl Deth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = DethView::from_prefix(bytes)?;
        Ok((Self { q_key: view.q_key(), source_qp: view.source_qp() }, rest))
    }

    /// Writes the header with reserved bits set to 0.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(DethView {
            q_key: U32::new(self.q_key),
            reserved: 0,
            source_qp: self.source_qp.to_be_bytes(),
        });
    }
}

/// The reliable datagram extended transport header as laid out in a packet.
///
/// ```text
///  0          1            4
/// +----------+------------+
/// | reserved | EE context |
/// +----------+------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RdethView {
    reserved: u8,
    ee_context: [u8; 3],
}

view! {
    RdethView(self) of Rdeth in Layer::Rdeth;

    /// Returns the reserved byte.
    reserved -> u8 = self.reserved;

    /// Returns the end-to-end context, 24 bits.
    ee_context -> u32 = from_be_24(self.ee_context);
}

/// The reliable datagram extended transport header (IBTA 9.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rdeth {
    /// End-to-end context, 24 bits. Higher bits are not written.
    pub ee_context: u32,
}

impl Rdeth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = RdethView::from_prefix(bytes)?;
        Ok((Self { ee_context: view.ee_context() }, rest))
    }

    /// Writes the header with reserved bits set to 0.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(RdethView { reserved: 0, ee_context: to_be_24(self.ee_context) });
    }
}

/// The extended reliable connection header as laid out in a packet.
///
/// ```text
///  0          1         4
/// +----------+---------+
/// | reserved | XRC SRQ |
/// +----------+---------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct XrcethView {
    reserved: u8,
    srq: [u8; 3],
}

view! {
    XrcethView(self) of Xrceth in Layer::Xrceth;

    /// Returns the reserved byte.
    reserved -> u8 = self.reserved;

    /// Returns the shared receive queue, 24 bits.
    srq -> u32 = from_be_24(self.srq);
}

/// The extended reliable connection header (Annex A14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Xrceth {
    /// Shared receive queue, 24 bits. Higher bits are not written.
    pub srq: u32,
}

impl Xrceth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Parses the header. Returns it and the remaining bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = XrcethView::from_prefix(bytes)?;
        Ok((Self { srq: view.srq() }, rest))
    }

    /// Writes the header with reserved bits set to 0.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(XrcethView { reserved: 0, srq: to_be_24(self.srq) });
    }
}

/// The fields of a [`DethView`].
pub static DETH: Header = Header {
    name: "DETH",
    title: "datagram header",
    purpose: "Names the queue pair that sent the datagram, and carries the key of the receiving one.",
    rule: "IBTA 9.3.2",
    fields: &[
        Field::new("Q_Key", "infiniband.deth.q_key", bytes(0, 4), Hex)
            .note(q_key_note)
            .means("Key of the receiving queue pair, which drops datagrams with another one."),
        Field::reserved("roce.deth.reserved", bytes(4, 1)),
        Field::new("SrcQP", "infiniband.deth.srcqp", bytes(5, 3), Hex)
            .means("The queue pair that sent the datagram and receives a reply."),
    ],
};

/// The fields of a [`RdethView`].
pub static RDETH: Header = Header {
    name: "RDETH",
    title: "reliable datagram header",
    purpose: "Names the end-to-end context that reliable datagrams between two nodes share.",
    rule: "IBTA 9.3.1",
    fields: &[
        Field::reserved("roce.rdeth.reserved", bytes(0, 1)),
        Field::new("EE context", "infiniband.rdeth.eecnxt", bytes(1, 3), Hex)
            .means("Number of the end-to-end context, 24 bits."),
    ],
};

/// The fields of a [`XrcethView`].
pub static XRCETH: Header = Header {
    name: "XRCETH",
    title: "extended reliable connection header",
    purpose: "Names the receive queue of the peer; many processes share the connection.",
    rule: "IBTA A14",
    fields: &[
        Field::reserved("roce.xrceth.reserved", bytes(0, 1)),
        Field::new("XRCSRQ", "roce.xrceth.srq", bytes(1, 3), Hex)
            .means("Number of the shared receive queue, 24 bits."),
    ],
};

pub(crate) fn q_key_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value as u32 {
        GSI_Q_KEY => "connection management",
        0x0123_4567 => "rdma_cm",
        0x1111_1111 => "ibv_ud_pingpong, perftest",
        value if value & 0x8000_0000 != 0 => "privileged",
        _ => "",
    })
}
