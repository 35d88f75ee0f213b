//! Ethernet: addresses, EtherTypes, the 14-byte header and the 802.1Q tag.
//!
//! This module does not handle the frame check sequence, because a NIC removes it before a capture or a
//! socket receives the frame.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError};
use crate::fields::Show::{Decimal, Flag, Hex, Mac};
use crate::fields::{Field, Header, bits, bytes, mask};
use crate::view::view;

/// A 48-bit Ethernet address in the order of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address: every station on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The address that means "unknown".
    pub const ZERO: Self = Self([0; 6]);
    /// The destination of pause frames (802.3x and PFC), which bridges never forward.
    pub const MAC_CONTROL: Self = Self([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);

    /// Returns whether the address is that of a group of stations, for example the broadcast address.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 0x01 != 0
    }

    /// Returns whether the address was assigned locally and not by a manufacturer.
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.0[0] & 0x02 != 0
    }

    /// Returns the group address for an IP multicast group (RFC 1112 section 6.4, RFC 2464 section 7), or
    /// `None` if `group` is not multicast.
    #[must_use]
    pub const fn for_multicast(group: IpAddr) -> Option<Self> {
        match group {
            IpAddr::V4(address) if address.is_multicast() => {
                let [_, b, c, d] = address.octets();
                Some(Self([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
            }
            IpAddr::V6(address) if address.is_multicast() => {
                let [.., a, b, c, d] = address.octets();
                Some(Self([0x33, 0x33, a, b, c, d]))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The error for a text that is not six two-digit hexadecimal numbers separated by `:` (or `-`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidMacAddr;

impl fmt::Display for InvalidMacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not an Ethernet address: expected six two-digit hexadecimal numbers such as 02:00:00:00:00:01",
        )
    }
}

impl core::error::Error for InvalidMacAddr {}

impl FromStr for MacAddr {
    type Err = InvalidMacAddr;

    fn from_str(text: &str) -> Result<Self, InvalidMacAddr> {
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().ok_or(InvalidMacAddr)?;
            // `from_str_radix` alone would accept "+1".
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(InvalidMacAddr);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| InvalidMacAddr)?;
        }
        if parts.next().is_some() { Err(InvalidMacAddr) } else { Ok(Self(octets)) }
    }
}

/// The type of the data after an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4, which carries RoCE v2.
    pub const IPV4: Self = Self(0x0800);
    /// Address Resolution Protocol for IPv4.
    pub const ARP: Self = Self(0x0806);
    /// An 802.1Q tag, which the EtherType of the payload follows.
    pub const VLAN: Self = Self(0x8100);
    /// An 802.1ad service tag, the outer one of two tags.
    pub const SERVICE_VLAN: Self = Self(0x88a8);
    /// A nonstandard number that some switches use for the outer one of two tags.
    pub const OLD_SERVICE_VLAN: Self = Self(0x9100);
    /// MPLS: a stack of labels follows.
    pub const MPLS: Self = Self(0x8847);
    /// MPLS with a label that the upstream router chose.
    pub const MPLS_UPSTREAM: Self = Self(0x8848);
    /// A complete Ethernet frame inside a tunnel.
    pub const BRIDGED_ETHERNET: Self = Self(0x6558);
    /// A frame encrypted with IEEE 802.1AE.
    pub const MACSEC: Self = Self(0x88e5);
    /// IPv6, which carries RoCE v2.
    pub const IPV6: Self = Self(0x86dd);
    /// Pause frames, see [`crate::pause`].
    pub const MAC_CONTROL: Self = Self(0x8808);
    /// RoCE v1: a GRH follows (Annex A16).
    pub const ROCE_V1: Self = Self(0x8915);

    /// Returns the name of the protocol, if it is common in RoCE networks.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::IPV4 => "IPv4",
            Self::ARP => "ARP",
            Self::VLAN => "802.1Q tag",
            Self::IPV6 => "IPv6",
            Self::MAC_CONTROL => "MAC control",
            Self(0x8809) => "slow protocols",
            Self::MPLS | Self::MPLS_UPSTREAM => "MPLS",
            Self::SERVICE_VLAN => "802.1ad service tag",
            Self::OLD_SERVICE_VLAN => "second tag",
            Self::BRIDGED_ETHERNET => "Ethernet frame",
            Self::MACSEC => "MACsec",
            Self(0x88be) => "ERSPAN",
            Self(0x22eb) => "ERSPAN III",
            Self(0x88cc) => "LLDP",
            Self(0x88f7) => "PTP",
            Self::ROCE_V1 => "RoCE v1",
            length if length.is_length() => "length of an 802.3 frame",
            _ => return None,
        })
    }

    /// Returns whether the number is the length of an 802.3 frame instead of a type.
    #[must_use]
    pub const fn is_length(self) -> bool {
        self.0 < 0x0600
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

/// The Ethernet header as laid out in a frame.
///
/// ```text
///  0             6             12     14
/// +-------------+-------------+------+
/// | destination | source      | type |
/// +-------------+-------------+------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EthernetView {
    destination: [u8; 6],
    source: [u8; 6],
    ether_type: U16,
}

view! {
    EthernetView(self) of EthernetHeader in Layer::Ethernet;

    /// Returns the address of the receiver.
    destination -> MacAddr = MacAddr(self.destination);

    /// Returns the address of the sender.
    source -> MacAddr = MacAddr(self.source);

    /// Returns the type of the data that follows.
    ether_type -> EtherType = EtherType(self.ether_type.get());
}

/// The Ethernet header without any tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetHeader {
    /// Address of the receiver.
    pub destination: MacAddr,
    /// Address of the sender.
    pub source: MacAddr,
    /// Type of the data that follows; [`EtherType::VLAN`] if a tag follows.
    pub ether_type: EtherType,
}

/// Length of the frame check sequence, in bytes.
const FCS_LEN: usize = 4;

/// Length of the shortest frame without its frame check sequence, in bytes.
pub const MIN_FRAME_LEN: usize = 60;

/// Length of preamble and minimum gap, in bytes: part of every frame on a cable, but of no buffer (IEEE
/// 802.3).
pub const PREAMBLE_AND_GAP_LEN: usize = 8 + 12;

/// Returns the number of bytes that a frame occupies on a cable. `frame_len` counts from its destination
/// address to the end of its payload, as in [`FrameHeaders`](crate::FrameHeaders). The result includes
/// padding, frame check sequence, preamble and gap.
#[inline]
#[must_use]
pub const fn wire_len(frame_len: usize) -> usize {
    let filled = if frame_len < MIN_FRAME_LEN { MIN_FRAME_LEN } else { frame_len };
    filled.saturating_add(FCS_LEN + PREAMBLE_AND_GAP_LEN)
}

impl EthernetHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 14;

    /// Parses the header. Returns it and the remaining bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = EthernetView::from_prefix(bytes)?;
        Ok((view.into(), rest))
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(EthernetView::from(self));
    }
}

impl From<&EthernetView> for EthernetHeader {
    fn from(view: &EthernetView) -> Self {
        Self { destination: view.destination(), source: view.source(), ether_type: view.ether_type() }
    }
}

impl From<&EthernetHeader> for EthernetView {
    fn from(header: &EthernetHeader) -> Self {
        Self {
            destination: header.destination.0,
            source: header.source.0,
            ether_type: U16::new(header.ether_type.0),
        }
    }
}

/// Tag control information of an 802.1Q tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// Priority code point, 0 to 7, which PFC uses.
    pub pcp: u8,
    /// Drop eligible indicator.
    pub dei: bool,
    /// VLAN identifier, 0 to 4095; 0 in a frame that has a priority but no VLAN.
    pub vid: u16,
}

impl VlanTag {
    /// Returns the tag in its 16-bit form. Ignores bits of `pcp` and `vid` that do not fit.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        (self.pcp as u16 & 0x7) << 13 | (self.dei as u16) << 12 | self.vid & 0x0fff
    }

    /// Returns the tag from its 16-bit form.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self { pcp: (bits >> 13) as u8, dei: bits & 0x1000 != 0, vid: bits & 0x0fff }
    }
}

/// The four bytes of a tag, as laid out in a frame after the first EtherType (0x8100).
///
/// ```text
///  0                 2      4
/// +---+-+-----------+------+
/// |PCP|D|    VID    | type |
/// +---+-+-----------+------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct VlanView {
    control: U16,
    ether_type: U16,
}

view! {
    VlanView(self) of VlanHeader in Layer::Vlan;

    /// Returns priority, drop eligibility and VLAN.
    tag -> VlanTag = VlanTag::from_bits(self.control.get());

    /// Returns the type of the data after the tag.
    ether_type -> EtherType = EtherType(self.ether_type.get());
}

/// An 802.1Q tag and the EtherType after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanHeader {
    /// Priority, drop eligibility and VLAN.
    pub tag: VlanTag,
    /// Type of the data after the tag.
    pub ether_type: EtherType,
}

impl VlanHeader {
    /// Number of bytes that a tag adds to a frame.
    pub const LEN: usize = 4;

    /// Parses the tag. Returns it and the remaining bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = VlanView::from_prefix(bytes)?;
        Ok((view.into(), rest))
    }

    /// Writes the tag.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(VlanView {
            control: U16::new(self.tag.to_bits()),
            ether_type: U16::new(self.ether_type.0),
        });
    }
}

impl From<&VlanView> for VlanHeader {
    fn from(view: &VlanView) -> Self {
        Self { tag: view.tag(), ether_type: view.ether_type() }
    }
}

/// The fields of an [`EthernetView`].
pub static ETHERNET: Header = Header {
    name: "Ethernet",
    title: "frame header",
    purpose: "Carries the frame over one link; routers replace it and the ICRC does not cover it.",
    rule: "IEEE 802.3 clause 3",
    fields: &[
        Field::new("destination", "eth.dst", bytes(0, 6), Mac)
            .means("Address of the receiver, or of the next router."),
        Field::new("source", "eth.src", bytes(6, 6), Mac)
            .means("Address of the port that sent the frame on this link."),
        Field::new("type", "eth.type", bytes(12, 2), Hex)
            .note(ether_type_note)
            .means("Type of the next header."),
    ],
};

/// The fields of a [`VlanView`].
pub static VLAN: Header = Header {
    name: "VLAN",
    title: "802.1Q tag",
    purpose: "Says which virtual network the frame belongs to, and its priority.",
    rule: "IEEE 802.1Q 9.6",
    fields: &[
        Field::new("PCP", "vlan.priority", mask(0, 0xe0), Decimal)
            .means("Priority, 0 to 7; priority flow control pauses each one separately."),
        Field::new("DEI", "vlan.dei", mask(0, 0x10), Flag)
            .means("Drop eligible: a congested switch drops this frame first."),
        Field::new("VID", "vlan.id", bits(0, 4, 12), Decimal)
            .means("Number of the virtual network, 1 to 4094; 0 if the tag carries a priority only."),
        Field::new("type", "vlan.etype", bytes(2, 2), Hex)
            .note(ether_type_note)
            .means("Type of the next header."),
    ],
};

/// The bytes after the packet in an Ethernet frame.
pub static ETHERNET_TRAILER: Header = Header {
    name: "trailer",
    title: "bytes behind the packet",
    purpose: "Extends short frames to 60 bytes; the ICRC does not cover it.",
    rule: "IEEE 802.3 clause 3",
    fields: &[],
};

pub(crate) fn ether_type_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(EtherType(value as u16).name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn addresses_as_text() {
        let address = MacAddr([0xec, 0x0d, 0x9a, 0x68, 0x21, 0xa0]);
        assert_eq!(address.to_string(), "ec:0d:9a:68:21:a0");
        for text in ["ec:0d:9a:68:21:a0", "EC-0D-9A-68-21-A0"] {
            assert_eq!(text.parse(), Ok(address));
        }
        for text in
            ["", "ec:0d:9a:68:21", "ec:0d:9a:68:21:a0:", "ec:0d:9a:68:21:a", "ec:0d:9a:68:21:+1", "e:c"]
        {
            assert_eq!(text.parse::<MacAddr>(), Err(InvalidMacAddr), "{text}");
        }
    }

    #[test]
    fn kinds_of_addresses() {
        assert!(MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr::MAC_CONTROL.is_multicast());
        assert!(!MacAddr([2, 0, 0, 0, 0, 1]).is_multicast() && MacAddr([2, 0, 0, 0, 0, 1]).is_local());
    }

    #[test]
    fn addresses_of_groups() {
        let of = |text: &str| MacAddr::for_multicast(text.parse().unwrap()).map(|mac| mac.to_string());
        assert_eq!(of("224.0.0.251").as_deref(), Some("01:00:5e:00:00:fb"));
        // Only 23 of the 28 bits of an IPv4 group fit into the address.
        assert_eq!(of("239.129.2.3").as_deref(), Some("01:00:5e:01:02:03"));
        assert_eq!(of("ff02::1:ff66:9551").as_deref(), Some("33:33:ff:66:95:51"));
        assert_eq!(of("192.0.2.1"), None);
        assert_eq!(of("fe80::1"), None);
    }

    #[test]
    fn tags_as_bits() {
        for bits in 0..=u16::MAX {
            let tag = VlanTag::from_bits(bits);
            assert!(tag.pcp < 8 && tag.vid < 4096);
            assert_eq!(tag.to_bits(), bits);
        }
        assert_eq!(VlanTag { pcp: 0xff, dei: false, vid: 0xffff }.to_bits(), 0xefff);
    }
}
