//! UDP, the layer between IP and the BTH in RoCE v2.

use core::fmt;
use core::net::IpAddr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Decimal, Hex};
use crate::fields::{Field, Header, bytes};
use crate::grh::Grh;
use crate::ip::{fold, ones_complement_sum};
use crate::view::view;

/// The IP protocol number of UDP.
pub const IP_PROTOCOL_UDP: u8 = 17;

/// Returns the name of the protocol with this IP protocol number, if it is common in RoCE networks.
#[must_use]
pub const fn ip_protocol_name(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        1 => "ICMP",
        2 => "IGMP",
        4 => "IPv4",
        6 => "TCP",
        IP_PROTOCOL_UDP => "UDP",
        Grh::NEXT_HEADER => "BTH",
        41 => "IPv6",
        43 => "routing header",
        44 => "fragment header",
        47 => "GRE",
        50 => "ESP",
        51 => "AH",
        58 => "ICMPv6",
        60 => "destination options",
        132 => "SCTP",
        137 => "MPLS",
        _ => return None,
    })
}

/// The UDP header as laid out in a packet.
///
/// ```text
///  0             2                  4        6          8
/// +-------------+------------------+--------+----------+
/// | source port | destination port | length | checksum |
/// +-------------+------------------+--------+----------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct UdpView {
    source_port: U16,
    destination_port: U16,
    length: U16,
    checksum: U16,
}

view! {
    UdpView(self) of UdpHeader in Layer::Udp;

    /// Returns the source port, which provides entropy for the network's load balancing; see [`crate::flow`].
    source_port -> u16 = self.source_port.get();

    /// Returns the destination port, 4791 for RoCE v2.
    destination_port -> u16 = self.destination_port.get();

    /// Returns the length of header and payload, in bytes.
    length -> u16 = self.length.get();

    /// Returns the checksum in the packet; 0 if the sender computed none.
    checksum -> u16 = self.checksum.get();
}

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpHeader {
    /// Source port, which provides entropy for the network's load balancing; see [`crate::flow`].
    pub source_port: u16,
    /// Destination port, 4791 for RoCE v2.
    pub destination_port: u16,
    /// Length of header and payload, in bytes; at least 8.
    pub length: u16,
    /// Checksum: 0, as RoCE senders leave it, or the result of [`Self::compute_checksum`]. Receivers never
    /// check it. The ICRC does not cover it, but protects more than it does.
    pub checksum: u16,
}

impl UdpHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;

    /// Parses the header. Returns it and the remaining bytes, whose number may differ from the header's
    /// length field. Only the layer below contains the end of the packet.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = UdpView::from_prefix(bytes)?;
        Self::check(view)?;
        Ok((Self::of_checked(view), rest))
    }

    /// Checks the fields of a view.
    pub(crate) const fn check(view: &UdpView) -> Result<(), ParseError> {
        let length = view.length() as usize;
        if length < Self::LEN {
            return Err(ParseError {
                layer: Layer::Udp,
                kind: ParseErrorKind::BadLength,
                offset: 4,
                need: Self::LEN,
                have: length,
            });
        }
        Ok(())
    }

    /// Returns the header of a view that passed [`Self::check`].
    pub(crate) const fn of_checked(view: &UdpView) -> Self {
        Self {
            source_port: view.source_port(),
            destination_port: view.destination_port(),
            length: view.length(),
            checksum: view.checksum(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = zerocopy::transmute!(self.view());
    }

    /// Returns the checksum over pseudo header, this header and the payload (RFC 768, RFC 8200 section 8.1),
    /// which is never 0.
    ///
    /// Returns `None` if the two addresses are of different families.
    #[must_use]
    pub fn compute_checksum(&self, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Option<u16> {
        let sum = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ones_complement_sum(ones_complement_sum(0, &source.octets()), &destination.octets())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ones_complement_sum(ones_complement_sum(0, &source.octets()), &destination.octets())
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        };
        let sum = sum.wrapping_add(IP_PROTOCOL_UDP.into()).wrapping_add(self.length.into());
        let header = UdpView { checksum: U16::ZERO, ..self.view() };
        let checksum = !fold(ones_complement_sum(ones_complement_sum(sum, header.as_bytes()), payload));
        // 0 on the wire means "no checksum", so the other zero of ones' complement replaces it.
        Some(if checksum == 0 { 0xffff } else { checksum })
    }

    fn view(&self) -> UdpView {
        UdpView {
            source_port: U16::new(self.source_port),
            destination_port: U16::new(self.destination_port),
            length: U16::new(self.length),
            checksum: U16::new(self.checksum),
        }
    }
}

/// The fields of a [`UdpView`].
pub static UDP: Header = Header {
    name: "UDP",
    title: "User Datagram Protocol",
    purpose: "Lets routers forward RoCE v2 and balance it over several paths.",
    rule: "RFC 768, A17.3",
    fields: &[
        Field::new("source port", "udp.srcport", bytes(0, 2), Decimal)
            .means("Hash of the flow, by which switches choose among equal paths; receivers ignore it."),
        Field::new("destination port", "udp.dstport", bytes(2, 2), Decimal)
            .note(port_note)
            .means("Marks the packet as RoCE v2: 4791."),
        Field::new("length", "udp.length", bytes(4, 2), Decimal)
            .means("Bytes from this header to the ICRC inclusive."),
        Field::new("checksum", "udp.checksum", bytes(6, 2), Hex)
            .variant()
            .means("RoCE NICs send 0, no checksum; receivers accept any value."),
    ],
};

fn port_note(port: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match port {
        4791 => "RoCE v2",
        67 | 68 => "DHCP",
        53 | 5353 => "DNS",
        319 | 320 => "PTP",
        4789 => "VXLAN",
        _ => "",
    })
}

pub(crate) fn protocol_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(ip_protocol_name(value as u8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ones' complement has two zeros, and a checksum never uses 0, which means "no checksum".
    #[test]
    fn a_computed_checksum_is_never_zero() {
        let address = IpAddr::from([0, 0, 0, 0]);
        let header = |source_port| UdpHeader { source_port, destination_port: 4791, length: 8, checksum: 0 };
        // Pseudo header and header add up to 17 + 8 + 4791 + 8 plus the source port.
        let rest = 17 + 8 + 4791 + 8;
        assert_eq!(header(0xffff - rest).compute_checksum(address, address, &[]), Some(0xffff));
        assert_eq!(header(0xfffe - rest).compute_checksum(address, address, &[]), Some(1));
        assert_eq!(header(0xffff - rest + 1).compute_checksum(address, address, &[]), Some(0xfffe));
    }

    /// The checksum in a frame from the test data of scapy.
    #[test]
    fn checksum_of_a_known_frame() {
        let header = UdpHeader { source_port: 49152, destination_port: 4791, length: 44, checksum: 0xaca2 };
        let payload = [
            0x24, 0x60, 0xff, 0xff, 0, 0, 0, 0xd3, 0, 0xcf, 0x17, 0x10, 0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89,
            0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe, 0x88, 0x5e, 0x50, 0, 0, 0x78, 0xf3, 0x53,
            0xf3,
        ];
        let (source, destination) = ([192, 168, 0, 7].into(), [192, 168, 0, 7].into());
        assert_eq!(header.compute_checksum(source, destination, &payload), Some(0xaca2));
    }
}
