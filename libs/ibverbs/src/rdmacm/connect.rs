//! The calls that request, accept and end connections.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};

use roce::verbs::{PortSpace, Qpn, RejReason, SidrStatus};
use roce_fault::verbs::Verb;

use super::addresses::{bind, choose_again};
use super::delivery::completed;
use super::handshake::request;
use super::id::{Given, Id, id_of, is_datagram, queue_pair};
use super::parameters::{DEEPEST, RETRIES, offer};
use super::routes::any_towards;
use super::states::{bring_up, to_error};
use super::{Cm, DeviceIndex, errno_of, with};
use crate::abi::{IBV_EVENT_COMM_EST, RDMA_MAX_DEPTH, ibv_ece, rdma_cm_id, rdma_conn_param};
use crate::answer::{Errno, count};

/// Minimum backlog, for applications that request less. Kernels count only requests that were not fetched;
/// this library also counts those that were not accepted.
const LEAST_BACKLOG: usize = 128;
const MOST_BACKLOG: usize = 1024;
/// Maximum number of ports to try for a listener without a given port.
const MOST_PORTS_TRIED: u32 = 64;

/// Reads `parameters`, and records the depths in them.
///
/// # Safety
///
/// `parameters` is null or the application's, with valid private data of the given length.
unsafe fn given(id: &Id, parameters: *const rdma_conn_param) -> Result<Given, Errno> {
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters.as_ref() };
    let own = queue_pair(id);
    let mut state = id.state();
    let wanted = |own: u8, wanted: Option<u8>| match wanted {
        Some(wanted) if wanted != RDMA_MAX_DEPTH => {
            if wanted > DEEPEST {
                Err(Errno::INVALID)
            } else {
                Ok(wanted)
            }
        }
        _ => Ok(own.min(DEEPEST)),
    };
    state.initiator_depth = wanted(state.initiator_depth, parameters.map(|given| given.initiator_depth))?;
    state.responder_resources =
        wanted(state.responder_resources, parameters.map(|given| given.responder_resources))?;
    let private_data = match parameters {
        Some(given) if !given.private_data.is_null() => {
            // SAFETY: the caller's promise.
            let data: &[u8] = unsafe {
                std::slice::from_raw_parts(given.private_data.cast(), given.private_data_len.into())
            };
            data.to_vec()
        }
        _ => std::mem::take(&mut state.connect_data),
    };
    let (qpn, srq) =
        own.or_else(|| parameters.map(|given| (Qpn::new(given.qp_num), given.srq != 0))).unwrap_or_default();
    Ok(Given {
        private_data,
        retry_count: parameters.map_or(RETRIES, |given| given.retry_count.min(RETRIES)),
        rnr_retry_count: parameters.map_or(RETRIES, |given| given.rnr_retry_count.min(RETRIES)),
        qpn,
        srq,
    })
}

pub(super) unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    parameters: *mut rdma_conn_param,
) -> c_int {
    let answer = count(Verb::rdma_connect, || {
        // SAFETY: the application's pointers are an identifier, and parameters or null.
        unsafe {
            let object = id_of(id)?;
            let given = given(object, parameters)?;
            object.state().request = given;
            with(|cm| request(cm, object))?;
        }
        Ok(0)
    });
    // SAFETY: `id` is an identifier, or the answer is an error.
    unsafe { completed(id, answer) }
}

/// Listens on the device of an identifier, or on all of them.
fn listen(cm: &mut Cm, id: &Id, backlog: usize) -> Result<(), Errno> {
    cm.open_devices()?;
    if id.state().source.is_none() {
        bind(cm, id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    let (device, port_space, mut source, is_port_chosen, port) = {
        let state = id.state();
        if !state.listens_on.is_empty() {
            return Err(Errno::INVALID);
        }
        (
            state.device,
            state.port_space,
            state.source.ok_or(Errno::INVALID)?,
            state.is_port_chosen,
            state.port.clone(),
        )
    };
    let devices: Vec<DeviceIndex> =
        device.map_or_else(|| (0..cm.devices.len()).collect(), |index| vec![index]);
    if let Some(port) = &port {
        cm.ports.listen(port)?;
    }
    let mut attempts = if is_port_chosen { MOST_PORTS_TRIED } else { 1 };
    loop {
        attempts -= 1;
        match listen_at(cm, id, &devices, (port_space, source.port()), backlog) {
            Err(Errno(libc::EADDRINUSE)) if attempts > 0 => source = choose_again(cm, id)?,
            Err(errno) => return Err(errno),
            Ok(()) => break,
        }
    }
    id.state().listens_on = devices;
    id.show_addresses(Some(source), Some(any_towards(source)));
    Ok(())
}

/// Listens at a port of several devices, or of none of them.
fn listen_at(
    cm: &mut Cm,
    id: &Id,
    devices: &[DeviceIndex],
    service: (PortSpace, u16),
    backlog: usize,
) -> Result<(), Errno> {
    for (done, index) in devices.iter().enumerate() {
        if let Err(errno) = cm.add_listener(*index, service, id, backlog) {
            devices[..done].iter().for_each(|index| cm.remove_listener(*index, service, id));
            return Err(errno);
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    count(Verb::rdma_listen, || {
        // SAFETY: the application's pointer is an identifier.
        let object = unsafe { id_of(id)? };
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(MOST_BACKLOG);
        with(|cm| listen(cm, object, backlog.clamp(LEAST_BACKLOG, MOST_BACKLOG)))?;
        Ok(0)
    })
}

/// Accepts the request of an identifier.
fn accept(id: &Id, given: &Given) -> Result<(), Errno> {
    let (open, comm, qkey, offer) = {
        let state = id.state();
        if state.is_active {
            return Err(Errno::INVALID);
        }
        let (open, comm) = state.connection()?;
        (open, comm, state.qkey, offer(&state, given))
    };
    let raw = open.raw();
    if is_datagram(id) {
        let answer = (given.qpn, qkey);
        let answered = raw.answer_question(comm, SidrStatus::VALID, answer, &given.private_data);
        return answered.map_err(|error| errno_of(&error));
    }
    let preview = raw.preview_connection(comm, &offer).map_err(|error| errno_of(&error))?;
    id.state().parameters = Some(preview);
    if queue_pair(id).is_some() {
        bring_up(id)?;
    }
    let accepted = raw.accept_connection(comm, &offer, &given.private_data);
    accepted.map_err(|error| {
        to_error(id);
        errno_of(&error)
    })
}

pub(super) unsafe extern "C-unwind" fn rdma_accept(
    id: *mut rdma_cm_id,
    parameters: *mut rdma_conn_param,
) -> c_int {
    let mut ends_here = false;
    let answer = count(Verb::rdma_accept, || {
        // SAFETY: the application's pointers are an identifier, and parameters or null.
        unsafe {
            let object = id_of(id)?;
            accept(object, &given(object, parameters)?)?;
            ends_here = is_datagram(object);
        }
        Ok(0)
    });
    if ends_here {
        return answer;
    }
    // SAFETY: `id` is an identifier, or the answer is an error.
    unsafe { completed(id, answer) }
}

/// Completes a connection whose queue pair the application has moved.
pub(super) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    count(Verb::rdma_establish, || {
        // SAFETY: the application's pointer is an identifier.
        let object = unsafe { id_of(id)? };
        if queue_pair(object).is_some() {
            return Err(Errno::INVALID);
        }
        let (open, comm) = object.connection()?;
        open.raw().establish_connection(comm, &[]).map_err(|error| errno_of(&error))?;
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    count(Verb::rdma_reject, || {
        // SAFETY: the application's pointers are an identifier, and `len` bytes or null.
        let (object, data) = unsafe {
            let data = if data.is_null() { &[] } else { std::slice::from_raw_parts(data.cast(), len.into()) };
            (id_of(id)?, data)
        };
        let (open, comm) = object.connection()?;
        let rejected = if is_datagram(object) {
            open.raw().answer_question(comm, SidrStatus::REJECTED, (Qpn::new(0), 0), data)
        } else {
            open.raw().reject_connection(comm, RejReason::CONSUMER, data)
        };
        rejected.map_err(|error| errno_of(&error))?;
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the application's, as for `rdma_reject`. Enhanced connections are not supported.
    unsafe { rdma_reject(id, data, len) }
}

pub(super) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    count(Verb::rdma_notify, || {
        // SAFETY: the application's pointer is an identifier.
        let object = unsafe { id_of(id)? };
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::INVALID);
        }
        let (open, comm) = object.connection()?;
        // The RTU may have arrived meanwhile.
        let _ = open.raw().notify_first_packet(comm);
        Ok(0)
    })
}

pub(super) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let answer = count(Verb::rdma_disconnect, || {
        // SAFETY: the application's pointer is an identifier.
        unsafe {
            let object = id_of(id)?;
            let (open, comm) = object.connection()?;
            to_error(object);
            // If the peer disconnected first, its DREQ has been answered already.
            let _ = open.raw().disconnect(comm, &[]);
        }
        Ok(0)
    });
    // SAFETY: `id` is an identifier, or the answer is an error.
    unsafe { completed(id, answer) }
}

/// Returns vendor 0, because enhanced connections (ECE) are not supported.
pub(super) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    count(Verb::rdma_get_remote_ece, || {
        // SAFETY: the application's pointers are an identifier and room for the answer.
        unsafe {
            id_of(id)?;
            if ece.is_null() {
                return Err(Errno::INVALID);
            }
            ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    count(Verb::rdma_set_local_ece, || {
        // SAFETY: the application's pointers are an identifier and its options.
        unsafe {
            id_of(id)?;
            let ece = ece.as_ref().ok_or(Errno::INVALID)?;
            if ece.vendor_id == 0 { Ok(0) } else { Err(Errno::INVALID) }
        }
    })
}
