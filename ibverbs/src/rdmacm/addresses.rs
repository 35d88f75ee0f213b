//! Addresses: binding to one, and finding the device towards another.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use roce::device::local_addresses;
use roce::verbs::Gid;

use super::id::{Id, end_step, id_of, random};
use super::{Cm, DeviceIndex, with};
use crate::abi::{event_type, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_sa_path_rec, rdma_cm_id};
use crate::answer::{Errno, count};
use crate::context::Open;
use crate::query::{PORT, mtu_number};

/// The first port that is chosen for an application that names none.
const FIRST_CHOSEN_PORT: u16 = 0xc000;
const HOP_LIMIT: u8 = 64;
/// "Exactly", of the selectors in a path record (IBTA 15.2.5.16).
const EXACTLY: u8 = 2;
/// 10 Gb/s, as `enum ibv_rate` has it.
const RATE: u8 = 3;
/// The packet lifetime that connection management reckons with, as a code.
const LIFETIME: u8 = 16;

/// An address of the application.
///
/// # Safety
///
/// `address` points to a socket address of the length that its family has, or is null.
pub(super) unsafe fn read(address: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        match c_int::from(address.as_ref().ok_or(Errno::INVALID)?.sa_family) {
            libc::AF_INET => {
                let found = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
            }
            libc::AF_INET6 => {
                let found = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
                Ok(SocketAddrV6::new(ip, u16::from_be(found.sin6_port), 0, found.sin6_scope_id).into())
            }
            // Those of InfiniBand, among others.
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }
}

/// An address for the application.
pub(super) fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: numbers, for which zero is a value.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    // SAFETY: the storage is larger than every address, and aligned for each.
    unsafe {
        match address {
            SocketAddr::V4(address) => to.cast::<libc::sockaddr_in>().write(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => to.cast::<libc::sockaddr_in6>().write(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }
    storage
}

/// The address vector from an address of a device to another one.
pub(super) fn vector(
    open: Option<&Open>,
    from: Option<IpAddr>,
    to: Option<IpAddr>,
    traffic_class: Option<u8>,
) -> ibv_ah_attr {
    let own = |open: &Open| open.gids.iter().position(|entry| Some(entry.address()) == from);
    let family = |open: &Open| {
        open.gids.iter().position(|entry| to.is_none_or(|to| to.is_ipv4() == entry.address().is_ipv4()))
    };
    let index = open.and_then(|open| own(open).or_else(|| family(open))).unwrap_or(0);
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: to.map_or([0; 16], |to| Gid::from_ip(to).0) },
            flow_label: 0,
            sgid_index: u8::try_from(index).unwrap_or(u8::MAX),
            hop_limit: HOP_LIMIT,
            traffic_class: traffic_class.unwrap_or(0),
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: PORT,
    }
}

/// Whether the kernel has an address, so that packets to it stay on this host.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback()
        || local_addresses().is_ok_and(|local| local.iter().any(|found| found.address == address))
}

/// The address that packets of the kernel to another one leave from. Nothing is sent.
fn routed_from(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((to, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

impl Cm {
    /// The device with this address. The loopback addresses belong to the first device, if no device has the one that is meant,
    /// as with kernels.
    fn device_at(&self, address: IpAddr) -> Option<DeviceIndex> {
        let has = |open: &Open| open.gids.iter().any(|entry| entry.address() == address);
        self.devices
            .iter()
            .position(|device| has(&device.open))
            .or_else(|| (address.is_loopback() && !self.devices.is_empty()).then_some(0))
    }

    /// The address of a device for packets to an address of this family.
    fn address_of(&self, index: DeviceIndex, of_family: IpAddr) -> Option<IpAddr> {
        let entries = &self.devices.get(index)?.open.gids;
        entries.iter().map(|entry| entry.address()).find(|own| own.is_ipv4() == of_family.is_ipv4())
    }

    /// The device towards an address.
    fn device_towards(&self, to: IpAddr) -> Option<DeviceIndex> {
        let of_route = || routed_from(to).and_then(|from| self.device_at(from));
        // The network of a device may be its own, which the kernel has no route to.
        let only = || (self.devices.len() == 1).then_some(0);
        self.device_at(to)
            .or_else(of_route)
            .or_else(only)
            .filter(|index| self.address_of(*index, to).is_some())
    }

    /// Where packets of a device to an address go: another address of this host is that of the device.
    fn peer_address(&self, index: DeviceIndex, to: IpAddr) -> IpAddr {
        let own = self.address_of(index, to);
        let is_elsewhere = |own: IpAddr| own != to && (to.is_loopback() || own.is_loopback() && is_local(to));
        own.filter(|own| is_elsewhere(*own)).unwrap_or(to)
    }
}

/// A port for an application that named none.
pub(super) fn chosen_port() -> u16 {
    FIRST_CHOSEN_PORT | random() as u16
}

/// Binds an identifier to an address, and to its device unless it is the wildcard.
pub(super) fn bind(cm: &mut Cm, id: &Id, address: SocketAddr) -> Result<(), Errno> {
    if id.state().source.is_some() {
        return Err(Errno::INVALID);
    }
    let mut address = address;
    if !address.ip().is_unspecified() {
        let found = cm.device_at(address.ip());
        let index =
            found.ok_or(Errno(if is_local(address.ip()) { libc::ENODEV } else { libc::EADDRNOTAVAIL }))?;
        id.bind_device(cm, index)?;
    }
    let is_port_chosen = address.port() == 0;
    if is_port_chosen {
        address.set_port(chosen_port());
    }
    {
        let mut state = id.state();
        if !is_port_chosen {
            state.port = Some(cm.ports.bind(state.port_space, address, state.shares_port)?);
        }
        state.source = Some(address);
        state.is_port_chosen = is_port_chosen;
    }
    id.show_addresses(Some(address), None);
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int {
    count(|| {
        // SAFETY: the application's pointers are an identifier and a socket address.
        let (object, address) = unsafe { (id_of(id)?, read(address)?) };
        with(|cm| {
            cm.open_devices()?;
            bind(cm, object, address)
        })?;
        Ok(0)
    })
}

/// Finds the device and the address that packets to `to` leave from.
fn resolve(cm: &mut Cm, id: &Id, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Errno> {
    cm.open_devices()?;
    if let Some(from) = from
        && id.state().source.is_none()
    {
        bind(cm, id, from)?;
    }
    let (bound, source) = {
        let state = id.state();
        (state.device, state.source)
    };
    let index = match bound {
        Some(index) => index,
        None => cm.device_towards(to.ip()).ok_or(Errno(libc::ENODEV))?,
    };
    let own = cm.address_of(index, to.ip()).ok_or(Errno(libc::EADDRNOTAVAIL))?;
    id.bind_device(cm, index)?;
    let peer = SocketAddr::new(cm.peer_address(index, to.ip()), to.port());
    let source = SocketAddr::new(own, source.map_or_else(chosen_port, |source| source.port()));
    {
        let mut state = id.state();
        state.source = Some(source);
        state.peer = Some(peer);
    }
    id.show_addresses(Some(source), Some(to));
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    count(|| {
        // SAFETY: the application's pointers are an identifier, an address or null, and an address.
        unsafe {
            let object = id_of(id)?;
            let from = if from.is_null() { None } else { Some(read(from)?) };
            let to = read(to)?;
            if object.state().peer.is_some() {
                return Err(Errno::INVALID);
            }
            let (event, status) = match with(|cm| resolve(cm, object, from, to)) {
                Ok(()) => (event_type::ADDR_RESOLVED, 0),
                Err(errno) if from.is_some() => return Err(errno),
                Err(errno) => (event_type::ADDR_ERROR, -errno.0),
            };
            end_step(id, event, status)?;
        }
        Ok(0)
    })
}

/// The record of the path to the peer, which RoCE makes without asking anybody.
fn path_record(id: &Id) -> Result<ibv_sa_path_rec, Errno> {
    let state = id.state();
    let open = state.open()?;
    let (source, peer) = (state.source.ok_or(Errno::INVALID)?, state.peer.ok_or(Errno::INVALID)?);
    let gid = |address: IpAddr| ibv_gid { raw: Gid::from_ip(address).0 };
    let mtu = open.context.largest_path_mtu().map_or(0, mtu_number);
    Ok(ibv_sa_path_rec {
        dgid: gid(peer.ip()),
        sgid: gid(source.ip()),
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: HOP_LIMIT,
        traffic_class: state.traffic_class.unwrap_or(0),
        reversible: 1,
        numb_path: 1,
        pkey: roce::transport::DEFAULT_P_KEY.to_be(),
        sl: 0,
        mtu_selector: EXACTLY,
        mtu: u8::try_from(mtu).unwrap_or(0),
        rate_selector: EXACTLY,
        rate: RATE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: LIFETIME,
        preference: 0,
    })
}

pub(super) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    count(|| {
        // SAFETY: the application's pointer is an identifier.
        unsafe {
            let object = id_of(id)?;
            let record = path_record(object)?;
            {
                let mut state = object.state();
                let record = state.path_record.insert(Box::new(record));
                (*id).route.path_rec = &raw mut **record;
                (*id).route.num_paths = 1;
            }
            end_step(id, event_type::ROUTE_RESOLVED, 0)?;
        }
        Ok(0)
    })
}

/// The port of an address, in network byte order.
fn port_of(storage: &libc::sockaddr_storage) -> u16 {
    // SAFETY: the storage has room for every address, and one of no family is all zeros.
    unsafe { read(std::ptr::from_ref(storage).cast()) }.map_or(0, |address| address.port().to_be())
}

pub(super) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the application's pointer is an identifier.
    crate::answer::value(0, || unsafe { id_of(id).map_or(0, |_| port_of(&(*id).route.addr.src)) })
}

pub(super) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the application's pointer is an identifier.
    crate::answer::value(0, || unsafe { id_of(id).map_or(0, |_| port_of(&(*id).route.addr.dst)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_to_the_application_and_back() {
        for text in ["198.18.0.1:7174", "[2001:db8::7]:18515", "0.0.0.0:0", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let storage = storage(address);
            // SAFETY: the storage is an address.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address));
            assert_eq!(u16::from_be(port_of(&storage)), address.port());
        }
        // SAFETY: numbers, for which zero is a value.
        let nothing: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: as above, and a null pointer.
        unsafe {
            assert_eq!(read((&raw const nothing).cast()), Err(Errno(libc::EAFNOSUPPORT)));
            assert_eq!(read(std::ptr::null()), Err(Errno::INVALID));
        }
    }
}
