//! The local route header: layer 2 of native InfiniBand, instead of Ethernet (IBTA 7.7). RoCE never has it;
//! tools that examine captured packets read it.

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use core::fmt;

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Decimal, Hex, Words};
use crate::fields::{Field, Header, bits, bytes, mask};
use crate::view::view;

/// The LRH as laid out in a packet.
///
/// ```text
///  0       1       2               4               6               8
/// +---+---+---+--+--+-------------+----+----------+---------------+
/// |VL |ver|SL |  |nh| destination |    | length   | source LID    |
/// +---+---+---+--+--+-------------+----+----------+---------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LrhView {
    lane_and_version: u8,
    level_and_next: u8,
    destination: U16,
    packet_length: U16,
    source: U16,
}

/// Numbers of the LRH.
#[derive(Clone, Copy, Debug)]
pub struct Lrh;

impl Lrh {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;
    /// Value of the next header field for a BTH.
    pub const NEXT_BTH: u8 = 2;
    /// Value of the next header field for a GRH and a BTH.
    pub const NEXT_GRH: u8 = 3;
}

view! {
    LrhView(self) of Lrh in Layer::Lrh;

    /// Returns the virtual lane, which switches change.
    virtual_lane -> u8 = self.lane_and_version >> 4;

    /// Returns the version of the header; 0.
    version -> u8 = self.lane_and_version & 0x0f;

    /// Returns the service level.
    service_level -> u8 = self.level_and_next >> 4;

    /// Returns the kind of the next header.
    next_header -> u8 = self.level_and_next & 0b11;

    /// Returns the local identifier of the receiver in its subnet.
    destination -> u16 = self.destination.get();

    /// Returns the length from LRH to ICRC, both included, in words of four bytes.
    packet_length -> u16 = self.packet_length.get() & 0x07ff;

    /// Returns the local identifier of the sender in its subnet.
    source -> u16 = self.source.get();
}

impl LrhView {
    /// Returns the length from LRH to ICRC, both included, in bytes.
    #[must_use]
    pub const fn packet_len(&self) -> usize {
        self.packet_length() as usize * 4
    }

    /// Checks the version.
    pub(crate) const fn check(&self) -> Result<(), ParseError> {
        if self.version() == 0 {
            return Ok(());
        }
        let have = self.version() as usize;
        Err(ParseError { layer: Layer::Lrh, kind: ParseErrorKind::BadVersion, offset: 0, need: 0, have })
    }
}

/// The fields of an [`LrhView`].
pub static LRH: Header = Header {
    name: "LRH",
    title: "local route header",
    purpose: "Is layer 2 of native InfiniBand: switches forward by it within a subnet.",
    rule: "IBTA 7.7",
    fields: &[
        Field::new("VL", "infiniband.lrh.vl", mask(0, 0xf0), Decimal)
            .variant()
            .means("Virtual lane, which each link may change; 15 is for management."),
        Field::new("LVer", "infiniband.lrh.lver", mask(0, 0x0f), Decimal)
            .means("Version of the link layer; 0."),
        Field::new("SL", "infiniband.lrh.sl", mask(1, 0xf0), Decimal)
            .means("Service level, from which each link derives the virtual lane."),
        Field::reserved("infiniband.lrh.reserved2", mask(1, 0x0c)),
        Field::new("LNH", "infiniband.lrh.lnh", mask(1, 0x03), Decimal)
            .note(next_header_note)
            .means("Kind of the next header."),
        Field::new("DLID", "infiniband.lrh.dlid", bytes(2, 2), Decimal)
            .means("Local identifier of the receiver in its subnet."),
        Field::reserved("infiniband.lrh.reserved5", mask(4, 0xf8)),
        Field::new("PktLen", "infiniband.lrh.pktlen", bits(4, 5, 11), Words)
            .means("Bytes from this header to the ICRC inclusive; on the wire in words of 4 bytes."),
        Field::new("SLID", "infiniband.lrh.slid", bytes(6, 2), Decimal)
            .means("Local identifier of the sender in its subnet."),
    ],
};

/// The CRC behind the ICRC of native InfiniBand.
pub static VCRC: Header = Header {
    name: "VCRC",
    title: "variant CRC",
    purpose: "Protects the packet on one link; every switch computes it again.",
    rule: "IBTA 7.8.2",
    fields: &[Field::new("VCRC", "infiniband.variant.crc", bytes(0, 2), Hex)
        .means("CRC-16 of all bytes before it. It is not checked.")],
};

fn next_header_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value {
        0 => "raw, with an EtherType",
        1 => "raw IPv6",
        2 => "BTH",
        3 => "GRH, then BTH",
        _ => "",
    })
}
