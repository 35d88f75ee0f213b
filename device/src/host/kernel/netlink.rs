//! Questions to the kernel about addresses, routes and neighbours (rtnetlink). Each is one system call to ask and
//! one to read: the kernel answers before the first returns.

use std::io::{self, Read};
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REQUEST};
use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use roce_packet::MacAddr;
use socket2::{Domain, Protocol, Socket, Type};

/// A socket to the kernel's tables.
pub(super) struct Netlink {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnAddress {
    pub(super) address: IpAddr,
    /// Whether it may be used: not while, or after, it was found that another host has it (RFC 4862 section 5.4).
    pub(super) is_usable: bool,
}

/// Where packets to an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To this machine.
    Own,
    /// To the neighbour with this address: the destination itself or a gateway.
    Neighbour(IpAddr),
    /// To a group.
    Multicast,
    /// Not through this interface.
    None,
}

/// What the kernel knows about a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// It has this Ethernet address.
    Known {
        mac: MacAddr,
        /// Nobody has used it for a while; the kernel asks again once somebody does.
        is_stale: bool,
    },
    /// It has been asked and did not answer yet.
    Asked,
    /// It did not answer, or was never asked.
    Unknown,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol))?;
        // The answer is there before it is asked for; this only bounds what a broken kernel can do.
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok(Self { socket, buffer: vec![0; BUFFER_LEN], sequence: 0 })
    }

    /// The addresses of an interface, in the kernel's order.
    pub(super) fn addresses(&mut self, interface: u32) -> io::Result<Vec<OwnAddress>> {
        let mut found = Vec::new();
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.ask(request, NLM_F_DUMP, |answer| {
            if let RouteNetlinkMessage::NewAddress(message) = answer
                && message.header.index == interface
            {
                found.extend(own_address(&message));
            }
        })?;
        Ok(found)
    }

    /// Where packets to `destination` go when they leave through an interface.
    pub(super) fn route(&mut self, destination: IpAddr, interface: u32) -> io::Result<Route> {
        // Asked for an IPv4 route through a certain interface, the kernel takes every destination without one
        // for a neighbour. Whether its table has one at all, only this flag tells.
        if destination.is_ipv4() && self.best_route(destination, interface, RouteFlags::FibMatch)?.is_none() {
            return Ok(Route::None);
        }
        let found = self.best_route(destination, interface, RouteFlags::empty())?;
        Ok(found.map_or(Route::None, |message| route_of(&message, destination, interface)))
    }

    fn best_route(
        &mut self,
        destination: IpAddr,
        interface: u32,
        flags: RouteFlags,
    ) -> io::Result<Option<RouteMessage>> {
        let mut request = RouteMessage::default();
        request.header.address_family = family_of(destination);
        request.header.destination_prefix_length = if destination.is_ipv4() { 32 } else { 128 };
        request.header.flags = flags;
        request.attributes =
            vec![RouteAttribute::Destination(destination.into()), RouteAttribute::Oif(interface)];
        let mut found = None;
        let result = self.ask(RouteNetlinkMessage::GetRoute(request), 0, |answer| {
            if let RouteNetlinkMessage::NewRoute(message) = answer {
                found = Some(message);
            }
        });
        match result {
            Ok(()) => Ok(found),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the kernel knows about a neighbour on an interface.
    pub(super) fn neighbour(&mut self, address: IpAddr, interface: u32) -> io::Result<Neighbour> {
        let mut request = NeighbourMessage::default();
        request.header.family = family_of(address);
        request.header.ifindex = interface;
        request.attributes = vec![NeighbourAttribute::Destination(address.into())];
        let mut found = Neighbour::Unknown;
        let result = self.ask(RouteNetlinkMessage::GetNeighbour(request), 0, |answer| {
            if let RouteNetlinkMessage::NewNeighbour(message) = answer {
                found = neighbour_of(&message);
            }
        });
        match result {
            Ok(()) => Ok(found),
            Err(error) if is_absence(&error) => Ok(Neighbour::Unknown),
            Err(error) => Err(error),
        }
    }

    /// Sends one request and hands every answer to `visit`.
    fn ask(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        mut visit: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes)?;
        loop {
            let len = (&self.socket).read(&mut self.buffer)?;
            let mut rest = self.buffer.get(..len).unwrap_or_default();
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                // Each message begins at a multiple of four.
                let taken = (message.header.length as usize).next_multiple_of(4).max(1);
                rest = rest.get(taken..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                let is_one_of_many = message.header.flags & NLM_F_MULTIPART != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => visit(answer),
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => continue,
                }
                if !is_one_of_many {
                    return Ok(());
                }
            }
        }
    }
}

fn own_address(message: &AddressMessage) -> Option<OwnAddress> {
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a link between two, the other attribute is the address of the other end.
            AddressAttribute::Local(own) => local = Some(*own),
            AddressAttribute::Address(other) => address = Some(*other),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let is_tentative = flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic);
    let is_usable = !is_tentative && !flags.contains(AddressFlags::Dadfailed);
    Some(OwnAddress { address: local.or(address)?, is_usable })
}

fn route_of(message: &RouteMessage, destination: IpAddr, interface: u32) -> Route {
    match message.header.kind {
        RouteType::Local => return Route::Own,
        RouteType::Multicast => return Route::Multicast,
        RouteType::Unicast | RouteType::Anycast => {}
        _ => return Route::None,
    }
    let mut next_hop = destination;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) if *index != interface => return Route::None,
            RouteAttribute::Gateway(RouteAddress::Inet(gateway))
            | RouteAttribute::Via(RouteVia::Inet(gateway)) => next_hop = IpAddr::V4(*gateway),
            RouteAttribute::Gateway(RouteAddress::Inet6(gateway))
            | RouteAttribute::Via(RouteVia::Inet6(gateway)) => next_hop = IpAddr::V6(*gateway),
            _ => {}
        }
    }
    Route::Neighbour(next_hop)
}

fn neighbour_of(message: &NeighbourMessage) -> Neighbour {
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.first_chunk().copied().map(MacAddr),
        _ => None,
    });
    match (message.header.state, mac) {
        (NeighbourState::Incomplete, _) => Neighbour::Asked,
        (NeighbourState::Failed | NeighbourState::None, _) | (_, None) => Neighbour::Unknown,
        (state, Some(mac)) => Neighbour::Known { mac, is_stale: state == NeighbourState::Stale },
    }
}

const fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Whether an error only says that there is no such thing. `EINVAL` is what a blackhole route gives.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENOENT
                | libc::ESRCH
                | libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EACCES
                | libc::EINVAL
                | libc::ENETDOWN
                | libc::ENODEV
                | libc::EAFNOSUPPORT
                | libc::EOPNOTSUPP
        )
    )
}

/// The kernel sends no longer answers than this.
const BUFFER_LEN: usize = 32 << 10;
