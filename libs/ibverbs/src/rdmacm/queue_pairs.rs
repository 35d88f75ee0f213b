//! Queue pairs and shared receive queues of identifiers, with the completion queues that they need.

use std::ffi::c_int;

use roce_fault::verbs::Verb;

use super::id::{Id, id_of, is_datagram};
use super::states::{start_connected, start_datagrams};
use crate::abi::{
    IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::answer::{Errno, count, value};
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::qp::{ibv_create_qp, ibv_destroy_qp};
use crate::qp_ex::create_qp_ex;
use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};

/// Creates a completion queue of `size` with a channel, for this identifier only.
///
/// # Safety
///
/// `id` is an identifier of the application that is bound to a device.
unsafe fn queue(id: *mut rdma_cm_id, size: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let channel = ibv_create_comp_channel((*id).verbs);
        if channel.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        let size = c_int::try_from(size.max(1)).map_err(|_| Errno::INVALID)?;
        let cq = ibv_create_cq((*id).verbs, size, id.cast(), channel, 0);
        if cq.is_null() {
            ibv_destroy_comp_channel(channel);
            return Err(Errno::NO_MEMORY);
        }
        Ok((channel, cq))
    }
}

/// Creates the completion queues that the application did not pass.
///
/// # Safety
///
/// The requirements of [`queue`] hold.
unsafe fn own_queues(id: *mut rdma_cm_id, wanted: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the library may write these fields.
    unsafe {
        if wanted.send_cq.is_null() && (*id).send_cq.is_null() {
            ((*id).send_cq_channel, (*id).send_cq) = queue(id, wanted.cap.max_send_wr)?;
            id_of(id)?.state().has_own_queues = true;
        }
        if wanted.recv_cq.is_null() && (*id).recv_cq.is_null() {
            ((*id).recv_cq_channel, (*id).recv_cq) = queue(id, wanted.cap.max_recv_wr)?;
            id_of(id)?.state().has_own_queues = true;
        }
        if wanted.send_cq.is_null() {
            wanted.send_cq = (*id).send_cq;
        }
        if wanted.recv_cq.is_null() {
            wanted.recv_cq = (*id).recv_cq;
        }
        if wanted.srq.is_null() {
            wanted.srq = (*id).srq;
        }
    }
    Ok(())
}

/// Destroys the queues of [`own_queues`].
///
/// # Safety
///
/// The requirements of [`queue`] hold, and nothing completes into the queues any more.
unsafe fn destroy_own_queues(id: *mut rdma_cm_id, object: &Id) {
    if !std::mem::take(&mut object.state().has_own_queues) {
        return;
    }
    let nothing = std::ptr::null_mut();
    // SAFETY: the caller's promise.
    unsafe {
        for (cq, channel) in [
            (std::mem::replace(&mut (*id).send_cq, nothing), &mut (*id).send_cq_channel),
            (std::mem::replace(&mut (*id).recv_cq, std::ptr::null_mut()), &mut (*id).recv_cq_channel),
        ] {
            let channel = std::mem::replace(channel, std::ptr::null_mut());
            if !channel.is_null() {
                ibv_destroy_cq(cq);
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Creates the queue pair of an identifier with `make`, and moves it to the state in which it accepts
/// receives or datagrams.
///
/// # Safety
///
/// The pointers belong to the application.
unsafe fn create(
    id: *mut rdma_cm_id,
    wanted: &mut ibv_qp_init_attr,
    make: impl FnOnce(&mut ibv_qp_init_attr) -> *mut ibv_qp,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let object = id_of(id)?;
        if !(*id).qp.is_null() || (*id).verbs.is_null() || wanted.qp_type != (*id).qp_type {
            return Err(Errno::INVALID);
        }
        own_queues(id, wanted)?;
        let qp = make(wanted);
        if qp.is_null() {
            let errno = Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
            destroy_own_queues(id, object);
            return Err(errno);
        }
        (*id).qp = qp;
        let started = if is_datagram(object) { start_datagrams(object) } else { start_connected(object) };
        if let Err(errno) = started {
            (*id).qp = std::ptr::null_mut();
            ibv_destroy_qp(qp);
            destroy_own_queues(id, object);
            return Err(errno);
        }
        (*id).pd = (*qp).pd;
    }
    Ok(())
}

/// Creates the queue pair of an identifier.
///
/// # Safety
///
/// The pointers belong to the application; `pd` may be null.
pub(super) unsafe fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    wanted: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        id_of(id)?;
        let pd = if pd.is_null() { (*id).pd } else { pd };
        create(id, wanted, |wanted| ibv_create_qp(pd, wanted))
    }
}

pub(super) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> c_int {
    count(Verb::rdma_create_qp, || {
        // SAFETY: the application's pointers are an identifier, a domain or null, and attributes.
        unsafe { create_qp(id, pd, wanted.as_mut().ok_or(Errno::INVALID)?)? };
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    wanted: *mut ibv_qp_init_attr_ex,
) -> c_int {
    count(Verb::rdma_create_qp_ex, || {
        // SAFETY: the application's pointers are an identifier and attributes.
        unsafe {
            id_of(id)?;
            let wanted = wanted.as_mut().ok_or(Errno::INVALID)?;
            if wanted.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
                wanted.comp_mask |= IBV_QP_INIT_ATTR_PD;
                wanted.pd = (*id).pd;
            }
            let mut base = wanted.base();
            create(id, &mut base, |base| {
                (wanted.send_cq, wanted.recv_cq, wanted.srq) = (base.send_cq, base.recv_cq, base.srq);
                create_qp_ex((*id).verbs, wanted)
            })?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    value(Verb::rdma_destroy_qp, (), || {
        // SAFETY: the application's pointer is an identifier.
        unsafe {
            let Ok(object) = id_of(id) else { return };
            let qp = std::mem::replace(&mut (*id).qp, std::ptr::null_mut());
            if !qp.is_null() {
                ibv_destroy_qp(qp);
            }
            destroy_own_queues(id, object);
        }
    });
}

/// Stores a shared receive queue in an identifier.
///
/// # Safety
///
/// `id` is an identifier of the application.
unsafe fn keep_srq(id: *mut rdma_cm_id, srq: *mut ibv_srq) -> Result<(), Errno> {
    if srq.is_null() {
        return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)));
    }
    // SAFETY: the caller's promise; the library may write these fields.
    unsafe {
        (*id).srq = srq;
        (*id).pd = (*srq).pd;
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    wanted: *mut ibv_srq_init_attr,
) -> c_int {
    count(Verb::rdma_create_srq, || {
        // SAFETY: the application's pointers are an identifier, a domain or null, and attributes.
        unsafe {
            id_of(id)?;
            if (*id).verbs.is_null() || !(*id).srq.is_null() {
                return Err(Errno::INVALID);
            }
            let pd = if pd.is_null() { (*id).pd } else { pd };
            keep_srq(id, ibv_create_srq(pd, wanted))?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    wanted: *mut ibv_srq_init_attr_ex,
) -> c_int {
    count(Verb::rdma_create_srq_ex, || {
        // SAFETY: the application's pointers are an identifier and attributes.
        unsafe {
            id_of(id)?;
            let wanted = wanted.as_mut().ok_or(Errno::INVALID)?;
            if (*id).verbs.is_null() || !(*id).srq.is_null() {
                return Err(Errno::INVALID);
            }
            if wanted.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
                wanted.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
                wanted.pd = (*id).pd;
            }
            keep_srq(id, create_srq_ex((*id).verbs, wanted))?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    value(Verb::rdma_destroy_srq, (), || {
        // SAFETY: the application's pointer is an identifier.
        unsafe {
            if id_of(id).is_ok() {
                let srq = std::mem::replace(&mut (*id).srq, std::ptr::null_mut());
                if !srq.is_null() {
                    ibv_destroy_srq(srq);
                }
            }
        }
    });
}
