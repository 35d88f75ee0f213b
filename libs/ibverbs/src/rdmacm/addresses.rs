//! Addresses: binding to local addresses, and selecting the device for a peer's address.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use roce::verbs::{Gid, PortSpace};
use roce_fault::verbs::Verb;

use super::delivery::end_step;
use super::id::{Id, id_of};
use super::ports::Binding;
use super::routes::{self, NoRoute};
use super::sockaddr::{HOP_LIMIT, port_of, read};
use super::{Cm, DeviceIndex, with};
use crate::abi::{event_type, ibv_gid, ibv_sa_path_rec, rdma_cm_id};
use crate::answer::{Errno, count};
use crate::port::mtu_number;

/// The selector "exactly" in a path record (IBTA 15.2.5.16).
const EXACTLY: u8 = 2;
/// 10 Gb/s in `enum ibv_rate`.
const RATE: u8 = 3;
/// The packet lifetime that connection management assumes, as a code.
const LIFETIME: u8 = 16;

/// Returns whether an IPv6 address accepts only its own family by default (`net.ipv6.bindv6only`).
fn is_family_only_by_default() -> bool {
    std::fs::read("/proc/sys/net/ipv6/bindv6only").is_ok_and(|setting| setting.starts_with(b"1"))
}

/// Binds an identifier to an address and to the device that has it, unless the address represents all
/// devices.
pub(super) fn bind(cm: &mut Cm, id: &Id, address: SocketAddr) -> Result<(), Errno> {
    let device = cm.device_of(address)?;
    bind_to(cm, id, address, device)
}

/// Binds an identifier to an address of this device.
fn bind_to(cm: &mut Cm, id: &Id, address: SocketAddr, device: Option<DeviceIndex>) -> Result<(), Errno> {
    let binding = {
        let state = id.state();
        if state.source.is_some() || device.is_some() && state.port_space == PortSpace::Ipoib {
            return Err(Errno::INVALID);
        }
        let is_family_only =
            address.is_ipv4() || state.is_family_only.unwrap_or_else(is_family_only_by_default);
        let (port_space, is_shared) = (state.port_space, state.shares_port);
        Binding { port_space, address, is_any: device.is_none(), is_family_only, is_shared }
    };
    let port = cm.ports.bind(binding)?;
    if let Some(index) = device {
        id.bind_device(cm, index)?;
    }
    let mut state = id.state();
    state.source = Some(port.address());
    state.is_port_chosen = address.port() == 0;
    state.port = Some(port);
    Ok(())
}

/// Replaces the chosen port of a listener, because another process has that port.
pub(super) fn choose_again(cm: &mut Cm, id: &Id) -> Result<SocketAddr, Errno> {
    let mut state = id.state();
    let known = state.port.as_ref().ok_or(Errno::INVALID)?;
    let port = cm.ports.bind(known.with_chosen_port())?;
    cm.ports.listen(&port)?;
    let source = port.address();
    (state.source, state.port) = (Some(source), Some(port));
    Ok(source)
}

/// Writes the address of an identifier into the application's structure.
fn show_binding(id: &Id) {
    let source = id.state().source;
    id.show_addresses(source, source.map(routes::any_towards));
}

pub(super) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int {
    count(Verb::rdma_bind_addr, || {
        // SAFETY: the application's pointers are an identifier and a socket address.
        let (object, address) = unsafe { (id_of(id)?, read(address)?) };
        with(|cm| {
            cm.open_devices()?;
            bind(cm, object, address)
        })?;
        show_binding(object);
        Ok(0)
    })
}

/// Finds the device and the source address for packets to `to`. A bound identifier keeps its address.
fn resolve(cm: &mut Cm, id: &Id, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), NoRoute> {
    cm.open_devices().map_err(NoRoute::Refused)?;
    if id.state().source.is_none() {
        let from = from.unwrap_or_else(|| routes::any_towards(to));
        let device = cm.device_of(from).map_err(NoRoute::Refused)?;
        if from.is_ipv4() != to.is_ipv4() {
            return Err(NoRoute::Refused(Errno::INVALID));
        }
        bind_to(cm, id, from, device).map_err(NoRoute::Refused)?;
    }
    let (bound, source) = {
        let state = id.state();
        (state.device, state.source.ok_or(NoRoute::Refused(Errno::INVALID))?)
    };
    if source.is_ipv4() != to.is_ipv4() {
        return Err(NoRoute::Refused(Errno::INVALID));
    }
    let route = cm.route(bound, source.ip(), to)?;
    if id.state().port_space == PortSpace::Ipoib {
        return Err(NoRoute::Failed(Errno::INVALID));
    }
    id.bind_device(cm, route.device).map_err(NoRoute::Refused)?;
    let source = if bound.is_some() { source } else { routes::with_port(route.own, source.port(), to) };
    let peer = SocketAddr::new(route.peer, to.port());
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
    count(Verb::rdma_resolve_addr, || {
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
                Err(NoRoute::Refused(errno)) => return Err(errno),
                Err(NoRoute::Failed(errno)) => {
                    object.show_addresses(None, Some(to));
                    (event_type::ADDR_ERROR, -errno.0)
                }
            };
            end_step(id, event, status)?;
        }
        Ok(0)
    })
}

/// Returns the path record to the peer, which RoCE builds without any query.
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
    count(Verb::rdma_resolve_route, || {
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

pub(super) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the application's pointer is an identifier.
    crate::answer::value(Verb::rdma_get_src_port, 0, || unsafe {
        id_of(id).map_or(0, |_| port_of(&(*id).route.addr.src))
    })
}

pub(super) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the application's pointer is an identifier.
    crate::answer::value(Verb::rdma_get_dst_port, 0, || unsafe {
        id_of(id).map_or(0, |_| port_of(&(*id).route.addr.dst))
    })
}
