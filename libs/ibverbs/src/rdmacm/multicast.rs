//! Multicast groups of identifiers.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use roce_fault::verbs::Verb;

use super::channel::Happening;
use super::delivery::complete;
use super::id::{Group, Id, id_of};
use super::identifiers::detach;
use super::sockaddr::{read, vector};
use crate::abi::{
    JOIN_FULL_MEMBER, JOIN_HAS_ADDRESS, JOIN_HAS_FLAGS, JOIN_SEND_ONLY, event_type, rdma_cm_id,
    rdma_cm_join_mc_attr_ex,
};
use crate::answer::{Errno, count};
use crate::qp::qp_of;

/// Joins the group with the queue pair of the identifier, and reports the result.
fn join(id: &Id, group: IpAddr, is_receiver: bool, context: *mut c_void) -> Result<(), Errno> {
    let (open, source, traffic_class) = {
        let state = id.state();
        (state.open()?, state.source.map(|source| source.ip()), state.traffic_class)
    };
    if !group.is_multicast() {
        return Err(Errno::INVALID);
    }
    let address = vector(Some(&open), source, Some(group), traffic_class);
    // SAFETY: the queue pair of an identifier is alive while the field refers to it.
    let qpn = unsafe { qp_of((*id.abi()).qp) }.ok().map(|qp| qp.qpn);
    let attached = match qpn.filter(|_| is_receiver) {
        Some(qpn) => open.raw().attach_multicast(qpn, group).map_err(Errno::from).map(|()| true),
        None => Ok(false),
    };
    let (event, status) = match attached {
        Ok(is_attached) => {
            id.state().groups.push(Group { address: group, is_attached });
            (event_type::MULTICAST_JOIN, 0)
        }
        Err(errno) => (event_type::MULTICAST_ERROR, -errno.0),
    };
    super::with(|_| id.push(Happening::Group { event, status, address, context }));
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    count(Verb::rdma_join_multicast, || {
        // SAFETY: the application's pointers are an identifier and an address.
        unsafe {
            join(id_of(id)?, read(address)?.ip(), true, context)?;
            complete(id)?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    wanted: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    count(Verb::rdma_join_multicast_ex, || {
        // SAFETY: the application's pointers are an identifier, and attributes with an address.
        unsafe {
            let wanted = wanted.as_ref().ok_or(Errno::INVALID)?;
            let is_receiver = match wanted.join_flags {
                JOIN_FULL_MEMBER => true,
                JOIN_SEND_ONLY => false,
                _ => return Err(Errno::INVALID),
            };
            if wanted.comp_mask != JOIN_HAS_ADDRESS | JOIN_HAS_FLAGS {
                return Err(Errno::INVALID);
            }
            join(id_of(id)?, read(wanted.addr)?.ip(), is_receiver, context)?;
            complete(id)?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
) -> c_int {
    count(Verb::rdma_leave_multicast, || {
        // SAFETY: the application's pointers are an identifier and an address.
        let (object, address) = unsafe { (id_of(id)?, read(address)?.ip()) };
        let group = {
            let mut state = object.state();
            let at = state.groups.iter().position(|group| group.address == address);
            state.groups.remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?)
        };
        detach(object, group);
        Ok(0)
    })
}
