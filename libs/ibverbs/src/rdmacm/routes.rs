//! Selection of the device for a local address or a peer, by the rules of the kernel's rdma_cm.

use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use roce::device::local_addresses;
use roce::verbs::raw::listing;

use super::{Cm, CmDevice, DeviceIndex};
use crate::answer::Errno;

/// A device, its source address and the destination of its packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) device: DeviceIndex,
    pub(super) own: IpAddr,
    pub(super) peer: IpAddr,
}

/// The reason why a route was not found.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoRoute {
    /// The call fails.
    Refused(Errno),
    /// The call succeeds, and an event reports the failure.
    Failed(Errno),
}

/// Returns whether an address that no device has represents every address.
pub(super) fn is_any(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

/// Returns the interface of a link-local address, which identifies the link.
pub(super) fn zone(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(address) if is_of_link(*address.ip()) => Some(address.scope_id()),
        _ => None,
    }
}

fn is_of_link(address: Ipv6Addr) -> bool {
    const LINK_SCOPE: u8 = 2;
    address.is_unicast_link_local() || address.is_multicast() && address.octets()[1] & 0xf == LINK_SCOPE
}

/// Returns whether the kernel has an address, so that packets to it stay on this host.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback()
        || local_addresses().is_ok_and(|local| local.iter().any(|found| found.address == address))
}

/// Returns whether two addresses belong to one interface of the kernel.
fn are_neighbours(one: IpAddr, other: IpAddr) -> bool {
    let Ok(local) = local_addresses() else { return false };
    let index = |address| local.iter().find(|found| found.address == address).map(|found| found.index);
    index(one).is_some_and(|interface| index(other) == Some(interface))
}

/// Returns the source address of the kernel's packets to an address, if this end has `own`. Sends nothing.
fn routed_from(own: IpAddr, to: SocketAddr) -> std::io::Result<IpAddr> {
    if matches!(to.ip(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        // Sockets treat it as an IPv4 address, but connection management does not.
        return Err(std::io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    let zone = zone(to).filter(|_| is_link_local(own)).unwrap_or(0);
    let own = match own {
        IpAddr::V4(own) => SocketAddr::from((own, 0)),
        IpAddr::V6(own) => SocketAddrV6::new(own, 0, 0, zone).into(),
    };
    let socket = UdpSocket::bind(own)?;
    socket.set_broadcast(true)?;
    const DISCARD: u16 = 9;
    let mut to = to;
    to.set_port(DISCARD);
    socket.connect(to)?;
    socket.local_addr().map(|address| address.ip())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

impl CmDevice {
    fn has(&self, address: IpAddr) -> bool {
        self.addresses().any(|own| own == address)
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.open.gids.iter().map(|entry| entry.address())
    }

    /// Returns whether the device is on the interface with this index, as far as its specification says.
    fn is_on(&self, interface: u32) -> bool {
        let place = listing::place(&self.specification).unwrap_or_default();
        let name = match listing::address(&self.specification) {
            Some(_) => place.split_once('%').map(|(_, name)| name),
            None => Some(place),
        };
        let index = |name: &str| {
            let name = CString::new(name).ok()?;
            // SAFETY: a null-terminated string.
            Some(unsafe { libc::if_nametoindex(name.as_ptr()) })
        };
        name.and_then(index).is_none_or(|index| index == interface)
    }

    /// Returns the source address for packets to `to`, of the same kind if possible.
    fn address_towards(&self, to: IpAddr) -> Option<IpAddr> {
        let is_near = matches!(to, IpAddr::V6(to) if is_of_link(to));
        let of_family = || self.addresses().filter(|own| own.is_ipv4() == to.is_ipv4());
        of_family().find(|own| is_link_local(*own) == is_near).or_else(|| of_family().next())
    }
}

impl Cm {
    /// Returns the device with this address.
    fn device_at(&self, address: IpAddr, zone: Option<u32>) -> Option<DeviceIndex> {
        let is_on = |device: &CmDevice| zone.is_none_or(|zone| zone == 0 || device.is_on(zone));
        self.devices.iter().position(|device| device.has(address) && is_on(device))
    }

    /// Returns the device of an address that an identifier is bound to; `None` if the address represents all
    /// devices. As with kernels, a loopback address that no device has does not select a device.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a link-local address without an interface, `ENODEV` for a local address that no device
    /// has, `EADDRNOTAVAIL` for an address of another host.
    pub(super) fn device_of(&self, address: SocketAddr) -> Result<Option<DeviceIndex>, Errno> {
        let (ip, zone) = (address.ip(), zone(address));
        if zone == Some(0) {
            return Err(Errno::INVALID);
        }
        match self.device_at(ip, zone) {
            Some(index) => Ok(Some(index)),
            None if is_any(ip) => Ok(None),
            None if zone.is_some() || is_local(ip) => Err(Errno(libc::ENODEV)),
            None => Err(Errno(libc::EADDRNOTAVAIL)),
        }
    }

    /// Returns the route to a peer for an identifier that is bound to this device and address, if any.
    pub(super) fn route(
        &self,
        bound: Option<DeviceIndex>,
        source: IpAddr,
        to: SocketAddr,
    ) -> Result<Route, NoRoute> {
        let failed = NoRoute::Failed(Errno(libc::ENODEV));
        if is_any(to.ip()) && self.device_at(to.ip(), None).is_none() {
            return self.route_to_loopback(bound, source, to.ip()).ok_or(failed);
        }
        let (device, own) = match bound {
            Some(device) => {
                self.check_route(source, to)?;
                (device, source)
            }
            None if source.is_loopback() => {
                // The loopback interface has no device, and the kernel has no route from it to other hosts.
                let is_refused = source.is_ipv4() && !is_local(to.ip());
                return Err(if is_refused { NoRoute::Refused(Errno::INVALID) } else { failed });
            }
            None => self.device_towards(source, to)?,
        };
        Ok(Route { device, own, peer: self.peer_address(own, to.ip()) })
    }

    /// Returns the route to a loopback or wildcard address: from the device of the identifier or the first
    /// one to itself.
    fn route_to_loopback(&self, bound: Option<DeviceIndex>, source: IpAddr, to: IpAddr) -> Option<Route> {
        if let Some(device) = bound {
            return Some(Route { device, own: source, peer: source });
        }
        let with_address = |(index, device): (usize, &CmDevice)| Some((index, device.address_towards(to)?));
        let (device, own) = self.devices.iter().enumerate().find_map(with_address)?;
        Some(Route { device, own, peer: own })
    }

    /// Fails if the kernel has no route from one of its addresses.
    fn check_route(&self, own: IpAddr, to: SocketAddr) -> Result<(), NoRoute> {
        // A socket with a link-local address requires its interface, but an identifier does not.
        let has_routes = is_local(own) && !own.is_loopback() && !is_link_local(own);
        match routed_from(own, to) {
            Err(error) if has_routes => Err(refusal(&error, to.ip())),
            _ => Ok(()),
        }
    }

    /// Returns the device that leads to an address, with its own address on that route.
    fn device_towards(&self, any: IpAddr, to: SocketAddr) -> Result<(DeviceIndex, IpAddr), NoRoute> {
        let routed = routed_from(any, to);
        let of_interface = |from: IpAddr| {
            let is_neighbour = |device: &CmDevice| device.addresses().any(|own| are_neighbours(own, from));
            self.device_at(from, zone(to)).or_else(|| self.devices.iter().position(is_neighbour))
        };
        let found = self
            .device_at(to.ip(), zone(to))
            .or_else(|| routed.as_ref().ok().and_then(|from| of_interface(*from)))
            .or_else(|| self.device_beside_kernel(to));
        let Some(index) = found else {
            return Err(match routed {
                Err(error) => refusal(&error, to.ip()),
                Ok(_) => NoRoute::Failed(Errno(libc::ENODEV)),
            });
        };
        let device = &self.devices[index];
        // The kernel's route to one of its own addresses begins at that address.
        let preferred = routed.ok().filter(|from| device.has(*from) && *from != to.ip());
        let own = preferred.or_else(|| device.address_towards(to.ip()));
        own.map(|own| (index, own)).ok_or(NoRoute::Failed(Errno(libc::ENODEV)))
    }

    /// Returns the device for a peer that socket routes do not reach: the first one with its own network
    /// (`tap`). For an address of this host, returns one with a loopback address; for a link-local address
    /// without an interface, one with such an address.
    fn device_beside_kernel(&self, to: SocketAddr) -> Option<DeviceIndex> {
        let is_without_zone = is_link_local(to.ip()) && zone(to) == Some(0);
        let leads_there = |device: &CmDevice| {
            let mut own = device.addresses().filter(|own| own.is_ipv4() == to.is_ipv4()).peekable();
            let Some(first) = own.peek().copied() else { return false };
            match first.is_loopback() {
                true => is_local(to.ip()),
                false if is_without_zone => own.any(is_link_local),
                false => own.all(|own| !is_local(own)),
            }
        };
        self.devices.iter().position(leads_there)
    }

    /// Returns the destination of a device's packets to an address. If one of the addresses is a loopback
    /// address, another address of this host is replaced by the address of the device.
    fn peer_address(&self, own: IpAddr, to: IpAddr) -> IpAddr {
        let is_here = to.is_loopback() || own.is_loopback() && is_local(to);
        if is_here { own } else { to }
    }
}

/// Converts the kernel's error for a peer without a route.
fn refusal(error: &std::io::Error, to: IpAddr) -> NoRoute {
    let errno = match error.raw_os_error() {
        // Sockets report this for a link-local multicast group without an interface.
        Some(libc::EINVAL) if to.is_multicast() => libc::EADDRNOTAVAIL,
        other => other.unwrap_or(libc::ENETUNREACH),
    };
    NoRoute::Refused(Errno(errno))
}

/// Returns the wildcard of the family of an address, on its interface.
pub(super) fn any_towards(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Returns an address of this end with its port, on the interface of the peer if it is link-local.
pub(super) fn with_port(own: IpAddr, port: u16, to: SocketAddr) -> SocketAddr {
    match own {
        IpAddr::V6(address) if is_link_local(own) => {
            SocketAddrV6::new(address, port, 0, zone(to).unwrap_or(0)).into()
        }
        own => SocketAddr::new(own, port),
    }
}
