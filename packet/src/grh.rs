//! The Global Route Header: layer 3 of RoCE v1 and of InfiniBand between subnets (IBTA 8.3).

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Decimal, Ipv6};
use crate::fields::{Field, Header, bits, bytes, mask};
use crate::gid::Gid;
use crate::ip::{FLOW_LABEL, TTL, first_word};
use crate::view::view;

/// The GRH as laid out in a packet, equal to that of an IPv6 header.
///
/// ```text
///  0                               4               6       7       8
/// +---+-------+-------------------+---------------+-------+-------+
/// | 6 | class | flow label        | payload length| 0x1b  | hops  |
/// +---+-------+-------------------+---------------+-------+-------+
/// | source GID (16 bytes)         | destination GID (16 bytes)    |
/// +-------------------------------+-------------------------------+
///  8                               24                              40
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GrhView {
    first_word: U32,
    payload_length: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

view! {
    GrhView(self) of Grh in Layer::Grh;

    /// Returns the version of the header; 6.
    version -> u8 = (self.first_word.get() >> 28) as u8;

    /// Returns DSCP and ECN.
    traffic_class -> u8 = (self.first_word.get() >> 20) as u8;

    /// Returns the 20-bit label of a flow.
    flow_label -> u32 = self.first_word.get() & 0x000f_ffff;

    /// Returns the length from BTH to ICRC, both included, in bytes.
    payload_length -> u16 = self.payload_length.get();

    /// Returns the type of the next header; [`Grh::NEXT_HEADER`] for a BTH.
    next_header -> u8 = self.next_header;

    /// Returns the remaining hops.
    hop_limit -> u8 = self.hop_limit;

    /// Returns the GID of the sender.
    source -> Gid = Gid(self.source);

    /// Returns the GID of the receiver.
    destination -> Gid = Gid(self.destination);
}

/// A GRH before a BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grh {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20-bit label by which the network may keep a flow together.
    pub flow_label: u32,
    /// Length from BTH to ICRC, both included, in bytes.
    pub payload_length: u16,
    /// Remaining hops.
    pub hop_limit: u8,
    /// GID of the sender.
    pub source: Gid,
    /// GID of the receiver.
    pub destination: Gid,
}

impl Grh {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 40;
    /// Value of the next header field for a BTH.
    pub const NEXT_HEADER: u8 = 0x1b;

    /// Parses the header. Returns it and the remaining bytes, whose number may differ from the header's
    /// length field. The caller must check whether the packet is complete.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = GrhView::from_prefix(bytes)?;
        Self::check(view)?;
        Ok((Self::of_checked(view), rest))
    }

    /// Checks the fields of a view.
    pub(crate) const fn check(view: &GrhView) -> Result<(), ParseError> {
        if view.version() != 6 {
            return Err(ParseError {
                layer: Layer::Grh,
                kind: ParseErrorKind::BadVersion,
                offset: 0,
                need: 6,
                have: view.version() as usize,
            });
        }
        if view.next_header() != Self::NEXT_HEADER {
            return Err(ParseError {
                layer: Layer::Grh,
                kind: ParseErrorKind::Unsupported,
                offset: 6,
                need: Self::NEXT_HEADER as usize,
                have: view.next_header() as usize,
            });
        }
        Ok(())
    }

    /// Returns the header of a view that passed [`Self::check`].
    pub(crate) const fn of_checked(view: &GrhView) -> Self {
        Self {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_length: view.payload_length(),
            hop_limit: view.hop_limit(),
            source: view.source(),
            destination: view.destination(),
        }
    }

    /// Writes the header. Uses only the low 20 bits of the flow label.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(GrhView {
            first_word: U32::new(first_word(self.traffic_class, self.flow_label)),
            payload_length: U16::new(self.payload_length),
            next_header: Self::NEXT_HEADER,
            hop_limit: self.hop_limit,
            source: self.source.0,
            destination: self.destination.0,
        });
    }
}

/// The fields of a [`GrhView`].
pub static GRH: Header = Header {
    name: "GRH",
    title: "global route header",
    purpose: "Is layer 3 of RoCE v1: it has the layout of IPv6, but routers do not forward it.",
    rule: "IBTA 8.3, A16",
    fields: &[
        Field::new("IPVer", "infiniband.grh.ipver", mask(0, 0xf0), Decimal)
            .means("Version of the header; 6."),
        Field::new("TClass", "infiniband.grh.tclass", bits(0, 4, 8), Decimal)
            .variant()
            .means("DSCP in the upper six bits, ECN in the lower two."),
        Field::new("FlowLabel", "infiniband.grh.flowlabel", bits(1, 4, 20), Decimal)
            .variant()
            .means(FLOW_LABEL),
        Field::new("PayLen", "infiniband.grh.paylen", bytes(4, 2), Decimal)
            .means("Bytes behind this header, from the BTH to the ICRC inclusive."),
        Field::new("NxtHdr", "infiniband.grh.nxthdr", bytes(6, 1), Decimal)
            .means("Type of the next header; 27 is the BTH."),
        Field::new("HopLmt", "infiniband.grh.hoplmt", bytes(7, 1), Decimal).variant().means(TTL),
        Field::new("SGID", "infiniband.grh.sgid", bytes(8, 16), Ipv6).means("GID of the sender."),
        Field::new("DGID", "infiniband.grh.dgid", bytes(24, 16), Ipv6).means("GID of the receiver."),
    ],
};
