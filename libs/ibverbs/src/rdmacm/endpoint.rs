//! Endpoints: an identifier and its queue pair, created in one call. Calls with an endpoint wait.

use std::ffi::c_int;

use roce_fault::verbs::Verb;

use super::addresses::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::delivery::{EventWait, Receiver};
use super::event::forget_event;
use super::id::id_of;
use super::identifiers::{Wanted, create, destroy};
use super::queue_pairs::{create_qp, rdma_destroy_qp, rdma_destroy_srq};
use super::with;
use crate::abi::{
    RAI_PASSIVE, event_type, ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event, rdma_cm_id,
};
use crate::answer::{Errno, count, value};
use crate::context::Pointer;
use crate::wait::wait;

/// Timeout of the steps before a connection, in milliseconds.
const RESOLVING: c_int = 2000;

/// Converts the result of a function that sets `errno` and returns -1.
fn done(answer: c_int) -> Result<(), Errno> {
    match answer {
        0 => Ok(()),
        _ => Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))),
    }
}

/// Performs the steps of a new identifier that the information permits.
///
/// # Safety
///
/// The pointers belong to the application; `pd` and `wanted` may be null.
unsafe fn prepare(
    id: *mut rdma_cm_id,
    information: &rdma_addrinfo,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let object = id_of(id)?;
        if information.ai_flags & RAI_PASSIVE != 0 {
            done(rdma_bind_addr(id, information.ai_src_addr))?;
            if let Some(wanted) = wanted.as_ref() {
                let kept = Box::into_raw(Box::new(*wanted));
                object.state().endpoint = Some((Pointer(pd), Pointer(kept)));
            }
            return Ok(());
        }
        done(rdma_resolve_addr(id, information.ai_src_addr, information.ai_dst_addr, RESOLVING))?;
        done(rdma_resolve_route(id, RESOLVING))?;
        if let Some(wanted) = wanted.as_mut() {
            wanted.qp_type = information.ai_qp_type;
            create_qp(id, pd, wanted)?;
        }
        if !information.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(information.ai_connect.cast(), information.ai_connect_len);
            object.state().connect_data = data.to_vec();
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    information: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> c_int {
    count(Verb::rdma_create_ep, || {
        // SAFETY: the application's pointers are room for a pointer, a result of `rdma_getaddrinfo`, and a
        // domain and attributes or null.
        unsafe {
            let information = information.as_ref().ok_or(Errno::INVALID)?;
            if id.is_null() {
                return Err(Errno::INVALID);
            }
            with(super::Cm::open_devices)?;
            let new = create(Wanted {
                channel: std::ptr::null_mut(),
                context: std::ptr::null_mut(),
                port_space: information.ai_port_space,
                qp_type: information.ai_qp_type,
            })?;
            if let Err(errno) = prepare(new, information, pd, wanted) {
                rdma_destroy_ep(new);
                return Err(errno);
            }
            id.write(new);
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    value(Verb::rdma_destroy_ep, (), || {
        // SAFETY: the application's pointer is an identifier that it has not destroyed.
        unsafe {
            let Ok(object) = id_of(id) else { return };
            rdma_destroy_qp(id);
            rdma_destroy_srq(id);
            let endpoint = object.state().endpoint.take();
            if let Some((_, wanted)) = endpoint {
                drop(Box::from_raw(wanted.0));
            }
            // `id` is an identifier, so this does not fail.
            let _ = destroy(id);
        }
    });
}

/// A listener whose calls wait, and room for the identifier of the next request.
struct Request {
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
}

impl Receiver for Request {
    fn receive(&self, event: *mut rdma_cm_event) -> Result<(), Errno> {
        // SAFETY: the application's pointers are an identifier, which it keeps during the call, and room for
        // a pointer.
        unsafe {
            let object = id_of(self.listener)?;
            (*self.listener).event = event;
            if (*event).status != 0 {
                return Err(Errno((*event).status.abs()));
            }
            if (*event).event != event_type::CONNECT_REQUEST {
                return Err(Errno::INVALID);
            }
            let new = (*event).id;
            let endpoint = object.state().endpoint.as_ref().map(|(pd, wanted)| (pd.0, *wanted.0));
            if let Some((pd, mut wanted)) = endpoint {
                wanted.qp_type = (*new).qp_type;
                if let Err(errno) = create_qp(new, pd, &mut wanted) {
                    rdma_destroy_ep(new);
                    return Err(errno);
                }
            }
            // The private data of the request stay valid until the next call.
            (*new).event = event;
            (*self.listener).event = std::ptr::null_mut();
            self.id.write(new);
        }
        Ok(())
    }
}

/// Waits for the next request of a listener whose calls wait.
pub(super) unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    wait(Verb::rdma_get_request, (listener, id), |(listener, id)| {
        // SAFETY: the application's pointer is an identifier.
        unsafe {
            if !id_of(listener)?.state().is_synchronous || id.is_null() {
                return Err(Errno::INVALID);
            }
            forget_event(listener);
            EventWait::new((*listener).channel, Request { listener, id })
        }
    })
}
