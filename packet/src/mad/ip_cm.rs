//! Formats of rdma_cm: port numbers in service IDs, and a header with IP addresses (Annex A11).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::common::PRIVATE;
use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Bytes, Decimal, Ipv4, Ipv6};
use crate::fields::{Field, Header, bytes, mask};
use crate::view::view;

/// The 64-bit number of a service at which a listener accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// Returns the service ID of a port in rdma_cm: the port space above the 16 bits of the port.
    #[must_use]
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        Self((space.number() as u64) << 16 | port as u64)
    }

    /// Returns the port space and the port, if the ID is that of a port in rdma_cm.
    #[must_use]
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        if self.0 >> 32 != 0 {
            return None;
        }
        match PortSpace::from_number((self.0 >> 16) as u16) {
            Some(space) => Some((space, self.0 as u16)),
            None => None,
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "{} port {port}", space.name()),
            None => write!(f, "0x{:016x}", self.0),
        }
    }
}

/// A port space of rdma_cm. Equal ports in two spaces are different services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// `RDMA_PS_TCP`: connections.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams.
    Udp,
    /// `RDMA_PS_IPOIB`: datagrams with the Q_Key of IP over InfiniBand.
    Ipoib,
    /// `RDMA_PS_IB`: any kind.
    Ib,
}

impl PortSpace {
    /// All four port spaces.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Ipoib, Self::Ib];

    /// Returns the number in service IDs.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Ipoib => 0x0002,
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }

    /// Returns the port space with this number.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x0002 => Self::Ipoib,
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x013f => Self::Ib,
            _ => return None,
        })
    }

    /// Returns the name in librdmacm.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipoib => "RDMA_PS_IPOIB",
            Self::Tcp => "RDMA_PS_TCP",
            Self::Udp => "RDMA_PS_UDP",
            Self::Ib => "RDMA_PS_IB",
        }
    }
}

/// The header of rdma_cm as laid out in private data.
///
/// ```text
///  0         1            2             4                20                    36
/// +---------+------------+-------------+----------------+---------------------+
/// | version | IP version | source port | source address | destination address |
/// +---------+------------+-------------+----------------+---------------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IpCmView {
    version: u8,
    ip_version: u8,
    source_port: U16,
    source: [u8; 16],
    destination: [u8; 16],
}

view! {
    IpCmView(self) of IpCm in Layer::IpCm;

    /// Returns the version of the header, major in the upper four bits and minor in the lower four; 0.
    version -> u8 = self.version;

    /// Returns the IP version, 4 or 6.
    ip_version -> u8 = self.ip_version >> 4;

    /// Returns the four reserved bits below the IP version.
    reserved -> u8 = self.ip_version & 0x0f;

    /// Returns the port of the active side.
    source_port -> u16 = self.source_port.get();

    /// Returns the address of the active side. An IPv4 address is in the last four bytes.
    source -> [u8; 16] = self.source;

    /// Returns the address of the listener.
    destination -> [u8; 16] = self.destination;
}

/// The header of rdma_cm in the private data of REQ and SIDR_REQ, with the addresses of both ends (Annex
/// A11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpCm {
    /// The port of the active side.
    pub source_port: u16,
    /// The address of the active side.
    pub source: IpAddr,
    /// The address of the listener, of the same family. A mixed pair is written as two IPv6 addresses.
    pub destination: IpAddr,
}

impl IpCm {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 36;

    /// Parses the header. Returns it and the remaining bytes, which belong to the application.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = IpCmView::from_prefix(bytes)?;
        let refuse = |kind, offset, need, have: u8| {
            Err(ParseError { layer: Layer::IpCm, kind, offset, need, have: have.into() })
        };
        if view.version != 0 {
            return refuse(ParseErrorKind::BadVersion, 0, 0, view.version);
        }
        let address: fn([u8; 16]) -> IpAddr = match view.ip_version() {
            4 => |[.., a, b, c, d]| Ipv4Addr::new(a, b, c, d).into(),
            6 => |bytes| Ipv6Addr::from_octets(bytes).into(),
            other => return refuse(ParseErrorKind::ReservedValue, 1, 0, other),
        };
        let (source, destination) = (address(view.source), address(view.destination));
        Ok((Self { source_port: view.source_port(), source, destination }, rest))
    }

    /// Writes the header with reserved bits set to 0.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let (ip_version, source, destination) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (0x40, padded(source), padded(destination)),
            (source, destination) => (0x60, sixteen(source), sixteen(destination)),
        };
        let source_port = U16::new(self.source_port);
        *out = zerocopy::transmute!(IpCmView { version: 0, ip_version, source_port, source, destination });
    }
}

fn padded(address: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = address.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The fields of an [`IpCmView`].
pub static IP_CM: Header = Header {
    name: "IP CM",
    title: "rdma_cm header in the private data",
    purpose: "Tells the listener the IP addresses and the port of the active side.",
    rule: "IBTA A11",
    fields: &[
        Field::new("major version", "infiniband.cm.req.ip_cm.majv", mask(0, 0xf0), Decimal)
            .means("Version of the header; 0."),
        Field::new("minor version", "infiniband.cm.req.ip_cm.minv", mask(0, 0x0f), Decimal)
            .means("Version of the header; 0."),
        Field::new("IP version", "infiniband.cm.req.ip_cm.ipv", mask(1, 0xf0), Decimal)
            .means("Version of the two addresses: 4 or 6."),
        Field::reserved("infiniband.cm.req.ip_cm.reserved", mask(1, 0x0f)),
        Field::new("source port", "infiniband.cm.req.ip_cm.sport", bytes(2, 2), Decimal)
            .means("Port of the active side."),
        Field::new("source address", "infiniband.cm.req.ip_cm.sip4", bytes(4, 16), Ipv4)
            .when(|header| !is_ip6(header))
            .means("Address of the active side."),
        Field::new("source address", "infiniband.cm.req.ip_cm.sip6", bytes(4, 16), Ipv6)
            .when(is_ip6)
            .means("Address of the active side."),
        Field::new("destination address", "infiniband.cm.req.ip_cm.dip4", bytes(20, 16), Ipv4)
            .when(|header| !is_ip6(header))
            .means("Address of the listener."),
        Field::new("destination address", "infiniband.cm.req.ip_cm.dip6", bytes(20, 16), Ipv6)
            .when(is_ip6)
            .means("Address of the listener."),
        Field::new("private data", "infiniband.cm.req.ip_cm.private", bytes(36, 56), Bytes).means(PRIVATE),
    ],
};

fn is_ip6(header: &[u8]) -> bool {
    IpCmView::from_prefix(header).is_ok_and(|(view, _)| view.ip_version() == 6)
}

pub(super) fn service_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    match ServiceId(value).port() {
        Some((space, port)) => write!(out, "{} port {port}", space.name()),
        None => Ok(()),
    }
}
