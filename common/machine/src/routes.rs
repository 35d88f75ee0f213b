//! Queries for routes and neighbours: the data that `ip route get` and `ip neighbour` show.

use std::io;
use std::net::IpAddr;

use roce_packet::MacAddr;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::netlink::{Answer, Netlink, Request, address, number};

/// The first hop of packets that leave through an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// The destination is this machine.
    Local,
    /// The destination is a multicast group.
    Multicast,
    /// Packets go to a neighbour.
    Neighbour {
        /// Address of the destination itself or of a gateway.
        address: IpAddr,
        /// Ethernet address, if the kernel knows it.
        mac: Option<MacAddr>,
    },
    /// No route leads to the destination through the interface.
    Unreachable,
}

/// Asks the kernel for the first hop of packets to `destination` that leave through an interface.
///
/// # Errors
///
/// Returns an error if the kernel does not answer.
pub fn next_hop(destination: IpAddr, interface: u32) -> io::Result<NextHop> {
    let mut netlink = Netlink::open()?;
    Ok(match netlink.route(destination, interface)? {
        Route::Local => NextHop::Local,
        Route::Multicast => NextHop::Multicast,
        Route::Unreachable => NextHop::Unreachable,
        Route::Neighbour(address) => {
            let mac = match netlink.neighbour(address, interface)? {
                Neighbour::Known { mac, .. } => Some(mac),
                Neighbour::Incomplete | Neighbour::Unknown => None,
            };
            NextHop::Neighbour { address, mac }
        }
    })
}

/// The route of packets to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The destination is this machine.
    Local,
    /// The next hop is the neighbour with this address: the destination itself or a gateway.
    Neighbour(IpAddr),
    /// The destination is a multicast group.
    Multicast,
    /// No route leads through this interface.
    Unreachable,
}

/// The kernel's knowledge about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// The neighbour has an Ethernet address.
    Known {
        /// The Ethernet address.
        mac: MacAddr,
        /// Whether the address was unused for a while. The kernel confirms it on its next use.
        is_stale: bool,
    },
    /// The kernel has asked for the Ethernet address and has no answer yet.
    Incomplete,
    /// The neighbour did not answer, or was never asked.
    Unknown,
}

impl Netlink {
    /// Returns the route of packets to `destination` that leave through an interface.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel does not answer.
    pub fn route(&mut self, destination: IpAddr, interface: u32) -> io::Result<Route> {
        // For an IPv4 route through a given interface, the kernel treats every destination without a route as
        // a neighbour. Only a lookup with this flag shows whether the table contains a route at all.
        if destination.is_ipv4() && self.best_route(destination, interface, RTM_F_FIB_MATCH)?.is_none() {
            return Ok(Route::Unreachable);
        }
        Ok(self.best_route(destination, interface, 0)?.unwrap_or(Route::Unreachable))
    }

    fn best_route(&mut self, destination: IpAddr, interface: u32, flags: u32) -> io::Result<Option<Route>> {
        let (family, destination_len) = family_of(destination);
        let header = RouteHeader { family, destination_len, flags, ..RouteHeader::default() };
        let request = Request::get(RTM_GETROUTE, &header)
            .with_address(RTA_DST, destination)
            .with_attribute(RTA_OIF, &interface.to_ne_bytes());
        self.find(&request, |answer| route_of(answer, destination, interface))
    }

    /// Returns the kernel's knowledge about a neighbour on an interface.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel does not answer.
    pub fn neighbour(&mut self, address: IpAddr, interface: u32) -> io::Result<Neighbour> {
        let (family, _) = family_of(address);
        let header = NeighbourHeader { family, interface, ..NeighbourHeader::default() };
        let request = Request::get(RTM_GETNEIGH, &header).with_address(NDA_DST, address);
        Ok(self.find(&request, neighbour_of)?.unwrap_or(Neighbour::Unknown))
    }

    /// Asks for one entry. Returns `None` if it does not exist.
    fn find<T>(
        &mut self,
        request: &Request,
        parse: impl Fn(&Answer<'_>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut found = None;
        match self.ask(request, |answer| found = parse(answer)) {
            Ok(()) => Ok(found),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `struct rtmsg`.
#[derive(Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RouteHeader {
    family: u8,
    destination_len: u8,
    _source_len: u8,
    _tos: u8,
    _table: u8,
    _protocol: u8,
    _scope: u8,
    kind: u8,
    flags: u32,
}

/// `struct ndmsg`.
#[derive(Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct NeighbourHeader {
    family: u8,
    _pad: [u8; 3],
    interface: u32,
    state: u16,
    _flags: u8,
    _kind: u8,
}

fn route_of(answer: &Answer<'_>, destination: IpAddr, interface: u32) -> Option<Route> {
    let (header, attributes) = answer.parse::<RouteHeader>(RTM_NEWROUTE)?;
    match header.kind {
        RTN_LOCAL => return Some(Route::Local),
        RTN_MULTICAST => return Some(Route::Multicast),
        RTN_UNICAST | RTN_ANYCAST => {}
        _ => return Some(Route::Unreachable),
    }
    let mut next_hop = destination;
    for (kind, value) in attributes {
        let gateway = match kind {
            RTA_OIF if number(value) != Some(interface) => return Some(Route::Unreachable),
            RTA_GATEWAY => address(value),
            // The value is the address family in two bytes, then the address.
            RTA_VIA => value.get(2..).and_then(address),
            _ => None,
        };
        next_hop = gateway.unwrap_or(next_hop);
    }
    Some(Route::Neighbour(next_hop))
}

fn neighbour_of(answer: &Answer<'_>) -> Option<Neighbour> {
    let (header, mut attributes) = answer.parse::<NeighbourHeader>(RTM_NEWNEIGH)?;
    let mac = attributes
        .find(|(kind, _)| *kind == NDA_LLADDR)
        .and_then(|(_, value)| value.first_chunk().copied().map(MacAddr));
    Some(match (header.state, mac) {
        (NUD_INCOMPLETE, _) => Neighbour::Incomplete,
        (NUD_FAILED | NUD_NONE, _) | (_, None) => Neighbour::Unknown,
        (state, Some(mac)) => Neighbour::Known { mac, is_stale: state == NUD_STALE },
    })
}

/// Returns the address family of an address and its length in bits.
const fn family_of(address: IpAddr) -> (u8, u8) {
    match address {
        IpAddr::V4(_) => (AF_INET, 32),
        IpAddr::V6(_) => (AF_INET6, 128),
    }
}

/// Returns whether an error only means that the entry does not exist. The kernel returns `EINVAL` for a
/// blackhole route.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::NOENT
                | Errno::SRCH
                | Errno::NETUNREACH
                | Errno::HOSTUNREACH
                | Errno::ACCESS
                | Errno::INVAL
                | Errno::NETDOWN
                | Errno::NODEV
                | Errno::AFNOSUPPORT
                | Errno::OPNOTSUPP
        )
    )
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_ANYCAST: u8 = 4;
const RTN_MULTICAST: u8 = 5;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_NONE: u16 = 0;
const NUD_INCOMPLETE: u16 = 0x01;
const NUD_STALE: u16 = 0x04;
const NUD_FAILED: u16 = 0x20;
