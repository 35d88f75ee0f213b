//! IPv6, restricted to the features of RoCE v2: UDP directly after the header.

use core::net::Ipv6Addr;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Decimal, Hex, Ipv6};
use crate::fields::{Field, Header, bits, bytes, mask};
use crate::ip::{DSCP, ECN, FLOW_LABEL, TTL, dscp_note, ecn_note, first_word};
use crate::udp::protocol_note;
use crate::view::view;

/// The IPv6 header as laid out in a packet.
///
/// ```text
///  0                               4               6       7       8
/// +---+-------+-------------------+---------------+-------+-------+
/// | 6 | class | flow label        | payload length| next  | hops  |
/// +---+-------+-------------------+---------------+-------+-------+
/// | source (16 bytes)             | destination (16 bytes)        |
/// +-------------------------------+-------------------------------+
///  8                               24                              40
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6View {
    first_word: U32,
    payload_length: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

view! {
    Ipv6View(self) of Ipv6Header in Layer::Ipv6;

    /// Returns the IP version; 6 in every valid packet.
    version -> u8 = (self.first_word.get() >> 28) as u8;

    /// Returns DSCP and ECN.
    traffic_class -> u8 = (self.first_word.get() >> 20) as u8;

    /// Returns the 20-bit label by which the network may keep a flow together.
    flow_label -> u32 = self.first_word.get() & 0x000f_ffff;

    /// Returns the length of the data after these 40 bytes.
    payload_length -> u16 = self.payload_length.get();

    /// Returns the type of the payload; 17 is UDP.
    next_header -> u8 = self.next_header;

    /// Returns the remaining hops.
    hop_limit -> u8 = self.hop_limit;

    /// Returns the address of the sender.
    source -> Ipv6Addr = Ipv6Addr::from_octets(self.source);

    /// Returns the address of the receiver.
    destination -> Ipv6Addr = Ipv6Addr::from_octets(self.destination);
}

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20-bit label by which the network may keep a flow together.
    pub flow_label: u32,
    /// Length of the data after the header, in bytes.
    pub payload_length: u16,
    /// Type of the payload; 17 is UDP.
    pub next_header: u8,
    /// Remaining hops.
    pub hop_limit: u8,
    /// Address of the sender.
    pub source: Ipv6Addr,
    /// Address of the receiver.
    pub destination: Ipv6Addr,
}

impl Ipv6Header {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 40;

    /// Parses the header. Returns it and the remaining bytes, whose number may differ from the header's
    /// length field. The caller must check whether the packet is complete.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = Ipv6View::from_prefix(bytes)?;
        Self::check(view)?;
        Ok((Self::of_checked(view), rest))
    }

    /// Checks the fields of a view.
    pub(crate) const fn check(view: &Ipv6View) -> Result<(), ParseError> {
        if view.version() != 6 {
            return Err(ParseError {
                layer: Layer::Ipv6,
                kind: ParseErrorKind::BadVersion,
                offset: 0,
                need: 6,
                have: view.version() as usize,
            });
        }
        Ok(())
    }

    /// Returns the header of a view that passed [`Self::check`].
    pub(crate) const fn of_checked(view: &Ipv6View) -> Self {
        Self {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_length: view.payload_length(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            source: view.source(),
            destination: view.destination(),
        }
    }

    /// Writes the header. Uses only the low 20 bits of the flow label.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(Ipv6View {
            first_word: U32::new(first_word(self.traffic_class, self.flow_label)),
            payload_length: U16::new(self.payload_length),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            source: self.source.octets(),
            destination: self.destination.octets(),
        });
    }
}

/// The fields of an [`Ipv6View`].
pub static IPV6: Header = Header {
    name: "IPv6",
    title: "Internet Protocol version 6",
    purpose: "Carries the packet from host to host; its addresses are the GIDs themselves.",
    rule: "RFC 8200 section 3, A17.3",
    fields: &[
        Field::new("version", "ipv6.version", mask(0, 0xf0), Decimal).means("Version of IP; 6."),
        Field::new("DSCP", "ipv6.tclass.dscp", bits(0, 4, 6), Decimal).variant().note(dscp_note).means(DSCP),
        Field::new("ECN", "ipv6.tclass.ecn", mask(1, 0x30), Decimal).variant().note(ecn_note).means(ECN),
        Field::new("flow label", "ipv6.flow", bits(1, 4, 20), Hex).variant().means(FLOW_LABEL),
        Field::new("payload length", "ipv6.plen", bytes(4, 2), Decimal)
            .means("Bytes behind this header, from UDP to the ICRC inclusive."),
        Field::new("next header", "ipv6.nxt", bytes(6, 1), Decimal)
            .note(protocol_note)
            .means("Type of the next header."),
        Field::new("hop limit", "ipv6.hlim", bytes(7, 1), Decimal).variant().means(TTL),
        Field::new("source", "ipv6.src", bytes(8, 16), Ipv6).means("Address of the sender, its GID."),
        Field::new("destination", "ipv6.dst", bytes(24, 16), Ipv6).means("Address of the receiver, its GID."),
    ],
};
