//! The fields around a datagram that its ICRC covers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::path::{Encapsulation, Path, ROCE_UDP_PORT};

/// The fields before the BTH that the ICRC covers and that may differ between packets.
///
/// A [`Path`] contains the values that a sender requests. An envelope contains the actual values in the
/// headers below the BTH, some of which an operating system may have chosen. Fields that routers change, such
/// as the hop limit, are not part of it because the ICRC does not cover them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Version of RoCE.
    pub encapsulation: Encapsulation,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// UDP source port. Unused by RoCE v1.
    pub source_port: u16,
    /// UDP destination port. Unused by RoCE v1.
    pub destination_port: u16,
    /// The IPv4 Identification. Unused by IPv6 and RoCE v1.
    pub identification: u16,
    /// The IPv4 flag DF. Unused by IPv6 and RoCE v1.
    pub dont_fragment: bool,
}

impl Envelope {
    /// Returns the envelope of a datagram sent on `path` to the standard port with the DF flag set.
    #[inline]
    #[must_use]
    pub const fn new(path: &Path, identification: u16) -> Self {
        Self {
            encapsulation: path.encapsulation,
            source: path.source,
            destination: path.destination,
            source_port: path.source_port,
            destination_port: ROCE_UDP_PORT,
            identification,
            dont_fragment: true,
        }
    }

    /// Returns the envelope with another Identification.
    #[inline]
    #[must_use]
    pub const fn with_identification(mut self, identification: u16) -> Self {
        self.identification = identification;
        self
    }

    /// Returns the kind of headers. RoCE v2 with addresses of two families cannot be sent; it counts as IPv6
    /// with the IPv4 address in its mapped form.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        match (self.encapsulation, self.source, self.destination) {
            (Encapsulation::RoceV2, IpAddr::V4(source), IpAddr::V4(destination)) => {
                Layout::Ipv4 { source, destination }
            }
            (Encapsulation::RoceV2, source, destination) => {
                Layout::Ipv6 { source: mapped(source), destination: mapped(destination) }
            }
            (Encapsulation::RoceV1, source, destination) => {
                Layout::Grh { source: mapped(source), destination: mapped(destination) }
            }
        }
    }
}

/// The headers below the BTH, with addresses of the matching type.
pub(crate) enum Layout {
    Ipv4 { source: Ipv4Addr, destination: Ipv4Addr },
    Ipv6 { source: Ipv6Addr, destination: Ipv6Addr },
    Grh { source: Ipv6Addr, destination: Ipv6Addr },
}

#[inline]
const fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
