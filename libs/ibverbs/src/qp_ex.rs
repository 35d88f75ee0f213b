//! The extended interface of queue pairs: calls between a start and a completion build requests, which are
//! posted together.
//!
//! If one of the functions finds an error, the whole batch fails at its end.

use std::ffi::{c_int, c_void};

use roce::verbs::{FlushPlacement, LKey, QpType, RKey, SendOp, Sge};
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, IBV_QPT_XRC_RECV, SEND_OP_ATOMIC_WRITE, SEND_OPS_OF_RC, SEND_OPS_OF_UC,
    SEND_OPS_OF_UD, SEND_OPS_OF_XRC, ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp,
    ibv_qp_ex, ibv_qp_init_attr_ex, ibv_sge,
};
use crate::address::destination;
use crate::answer::{Errno, guarded, pointer, status_or, value};
use crate::context::open_of;
use crate::posting::{Requests, binding, element_of, immediate};
use crate::qp::{Qp, create, create_target, qp_type, qp_unchecked};

/// `enum ibv_selectivity_level` in `wr_flush`: a range, or a whole region.
const WHOLE_REGION: u8 = 1;

/// Bytes of an atomic write, which `ibv_wr_atomic_write` copies at once as inline data.
const ATOMIC_WRITE_BYTES: u32 = 8;

/// Returns the operations of a transport that an application may request functions for.
const fn send_operations(qp_type: QpType) -> u64 {
    match qp_type {
        QpType::Rc => SEND_OPS_OF_RC,
        QpType::Uc => SEND_OPS_OF_UC,
        QpType::Ud => SEND_OPS_OF_UD,
        QpType::XrcSend => SEND_OPS_OF_XRC,
        QpType::XrcRecv => 0,
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    wanted: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(Verb::ibv_create_qp_ex, || {
        // SAFETY: the application's pointer is an open context.
        unsafe { open_of(context)? };
        // SAFETY: the application's pointer is to attributes that it has filled in.
        let wanted = unsafe { wanted.as_mut() }.ok_or(Errno::INVALID)?;
        let mask = wanted.comp_mask;
        let is_target = wanted.qp_type == IBV_QPT_XRC_RECV;
        let source = if is_target { IBV_QP_INIT_ATTR_XRCD } else { IBV_QP_INIT_ATTR_PD };
        let known =
            source | IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let has_flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && wanted.create_flags != 0;
        if mask & !known != 0 || has_flags {
            return Err(Errno::UNSUPPORTED);
        }
        if mask & source == 0 {
            return Err(Errno::INVALID);
        }
        let is_extended = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        if is_extended && wanted.send_ops_flags & !send_operations(qp_type(wanted.qp_type)?) != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let mut base = wanted.base();
        if is_extended && wanted.send_ops_flags & SEND_OP_ATOMIC_WRITE != 0 {
            base.cap.max_inline_data = base.cap.max_inline_data.max(ATOMIC_WRITE_BYTES);
        }
        // SAFETY: the pointers in it are objects of the application, which does not have the queue pair yet.
        unsafe {
            let object =
                if is_target { create_target(wanted.xrcd, &base)? } else { create(wanted.pd, &base)? };
            wanted.cap = (*object).init.cap;
            if is_extended {
                (*object).is_extended = true;
                fill(&mut (*object).abi);
            }
            Ok(object.cast())
        }
    })
}

/// Sets the functions of a queue pair.
fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}

/// Runs one of the calls between start and completion.
///
/// # Safety
///
/// `qp` is a queue pair of the application, on which this thread has called `ibv_wr_start`.
unsafe fn build(qp: *mut ibv_qp_ex, step: impl FnOnce(&mut Requests) -> Result<(), Errno>) {
    let _ = guarded(|| {
        // SAFETY: the caller's promise; the reference ends with this call.
        let object: &Qp = unsafe { qp_unchecked(qp.cast())? };
        // SAFETY: as above.
        let requests = unsafe { object.queue.requests() };
        if let Err(errno) = step(requests) {
            requests.failure.get_or_insert(errno);
        }
        Ok(())
    });
}

/// Adds a request with the ID and the flags that the application has set in the queue pair.
///
/// # Safety
///
/// As for [`build`].
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the caller's promise.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        build(qp, |requests| {
            requests.push(wr_id, op, flags);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    value(Verb::ibv_wr_start, (), || {
        // SAFETY: the application's pointer is a queue pair.
        if let Ok(object) = unsafe { qp_unchecked(qp.cast()) } {
            object.queue.lock();
            // SAFETY: the lock was taken just now.
            unsafe { object.queue.requests() }.clear();
        }
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let refused = || {
        // SAFETY: the application's pointer is a queue pair, between start and completion.
        if let Ok(object) = unsafe { qp_unchecked(qp.cast()) } {
            object.queue.unlock();
        }
    };
    status_or(Verb::ibv_wr_complete, refused, || {
        // SAFETY: as above.
        let object: &Qp = unsafe { qp_unchecked(qp.cast())? };
        let _unlock = object.queue.unlock_at_end();
        // SAFETY: as above.
        let requests = unsafe { object.queue.requests() };
        match requests.failure {
            Some(errno) => Err(errno),
            None => requests.post(object.open.raw(), object.qpn).map_err(|(_, errno)| errno),
        }
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    value(Verb::ibv_wr_abort, (), || {
        // SAFETY: the application's pointer is a queue pair, between start and completion.
        if let Ok(object) = unsafe { qp_unchecked(qp.cast()) } {
            object.queue.unlock();
        }
    });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the application calls this on a queue pair between start and completion; so below.
    unsafe { begin(qp, SendOp::Send) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, data: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::SendWithImm(immediate(data))) }
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::SendWithInvalidate(RKey(rkey))) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Write { remote_addr, rkey: RKey(rkey) }) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, data: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::WriteWithImm { remote_addr, rkey: RKey(rkey), imm: immediate(data) }) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Read { remote_addr, rkey: RKey(rkey) }) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::CompareSwap { remote_addr, rkey: RKey(rkey), compare, swap }) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::FetchAdd { remote_addr, rkey: RKey(rkey), add }) }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::LocalInvalidate { rkey: RKey(rkey) }) }
}

/// Copies the eight bytes at once.
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, data: *const c_void) {
    // SAFETY: as above; the application gives eight bytes.
    unsafe {
        begin(qp, SendOp::AtomicWrite { remote_addr, rkey: RKey(rkey) });
        build(qp, |requests| requests.add_inline(std::iter::once((data, 8))));
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    // SAFETY: as above.
    unsafe {
        let (Ok(length), Some(placement)) = (u32::try_from(length), FlushPlacement::from_bits(placement))
        else {
            build(qp, |_| Err(Errno::INVALID));
            return;
        };
        let whole_region = level == WHOLE_REGION;
        begin(qp, SendOp::Flush { remote_addr, rkey: RKey(rkey), length, placement, whole_region });
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as above; the application's pointers are a window, a region and a description.
    unsafe {
        let bound = info.as_ref().ok_or(Errno::INVALID).and_then(|info| binding(mw, rkey, info));
        match bound {
            Ok(op) => begin(qp, op),
            Err(errno) => build(qp, |_| Err(errno)),
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as above; the application's pointer is an address handle.
    unsafe {
        build(qp, |requests| {
            requests.set_destination(destination(ah, qpn, qkey)?);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: as above.
    unsafe {
        build(qp, |requests| {
            requests.set_srq(number);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let element = Sge { addr, length, lkey: LKey(lkey) };
    // SAFETY: as above.
    unsafe { build(qp, |requests| requests.add_elements(std::iter::once(element))) }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as above; the application's list has `count` elements.
    unsafe {
        build(qp, |requests| requests.add_elements((0..count).map(|index| element_of(*list.add(index)))));
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    // SAFETY: as above; the application's buffer has `length` bytes.
    unsafe { build(qp, |requests| requests.add_inline(std::iter::once((address.cast_const(), length)))) }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as above; the application's list has `count` buffers.
    unsafe {
        build(qp, |requests| {
            let buffer = |index| {
                let buffer: ibv_data_buf = *list.add(index);
                (buffer.addr.cast_const(), buffer.length)
            };
            requests.add_inline((0..count).map(buffer))
        });
    }
}
