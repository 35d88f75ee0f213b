//! What lies around a datagram and is covered by its ICRC.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::path::{Encapsulation, Path, ROCE_UDP_PORT};

/// The fields outside BTH to padding that the ICRC covers and that may change from packet to packet.
///
/// A [`Path`] says what a sender asks for; an envelope says what the headers below the BTH really
/// contain, which an operating system may have decided. Fields that routers change, such as the hop
/// limit, are not here because the ICRC leaves them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// RoCE v1 or v2.
    pub encapsulation: Encapsulation,
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// UDP source port. Unused by RoCE v1.
    pub source_port: u16,
    /// UDP destination port. Unused by RoCE v1.
    pub destination_port: u16,
    /// The IPv4 Identification. Unused by IPv6 and RoCE v1.
    pub identification: u16,
    /// The IPv4 flag against fragmentation. Unused by IPv6 and RoCE v1.
    pub dont_fragment: bool,
}

impl Envelope {
    /// The envelope of a datagram sent on `path` to the usual port with the don't-fragment flag set.
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

    /// The same envelope with another Identification.
    #[inline]
    #[must_use]
    pub const fn with_identification(mut self, identification: u16) -> Self {
        self.identification = identification;
        self
    }

    /// Which headers these are. RoCE v2 with addresses of two families, which cannot be sent, counts as
    /// IPv6 with the IPv4 address in its mapped form.
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

/// The headers below the BTH with the addresses in their own form.
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
