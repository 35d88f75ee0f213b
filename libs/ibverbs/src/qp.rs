//! Queue pairs.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use roce::verbs::{QpCapabilities, QpInit, QpOptions, QpState, QpType, Qpn, VerbsError};
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_QP_AV, IBV_QP_STATE, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND,
    ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_recv_wr,
    ibv_send_wr, ibv_xrcd,
};
use crate::answer::{Errno, pointer, status};
use crate::context::{Named, Open};
use crate::cq::cq_of;
use crate::domain::pd_of;
use crate::events::Acknowledgements;
use crate::failing;
use crate::live::{self, Kind, Object};
use crate::modify;
use crate::posting::{Addressing, SendQueue, chain, post_receives};
use crate::srq::srq_of;
use crate::xrc::xrcd_of;

/// An `ibv_qp_ex`, and therefore an `ibv_qp`, with the state of the library.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) abi: ibv_qp_ex,
    pub(crate) open: Arc<Open>,
    pub(crate) qpn: Qpn,
    /// The application's attributes, with the granted sizes.
    pub(crate) init: ibv_qp_init_attr,
    addressing: Addressing,
    pub(crate) is_extended: bool,
    /// The GID index of the last address vector that the application gave.
    sgid_index: AtomicU8,
    pub(crate) queue: SendQueue,
    pub(crate) async_events: Acknowledgements,
}

/// Minimum number of inline bytes of every queue pair. Providers round up the requested number, and some
/// programs (rdma_xclient) request none but send a few.
const LEAST_INLINE: u32 = 64;

impl Object for Qp {
    const KIND: Kind = Kind::QueuePair;

    fn handle(&self) -> u32 {
        self.abi.base.handle
    }
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread destroys the queue pair.
pub(crate) unsafe fn qp_of<'a>(qp: *mut ibv_qp) -> Result<&'a Qp, Errno> {
    // SAFETY: the `ibv_qp` is the first part of a `Qp`.
    unsafe { live::object(qp.cast::<Qp>()) }
}

/// Returns the object behind a pointer in calls that move data; checks only for null.
///
/// # Safety
///
/// `qp` is null, or a queue pair that is not destroyed.
#[inline]
pub(crate) unsafe fn qp_unchecked<'a>(qp: *mut ibv_qp) -> Result<&'a Qp, Errno> {
    // SAFETY: the caller's promise.
    unsafe { live::unchecked(qp.cast::<Qp>()) }
}

pub(crate) fn qp_type(number: c_int) -> Result<QpType, Errno> {
    match number {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_UC => Ok(QpType::Uc),
        IBV_QPT_UD => Ok(QpType::Ud),
        IBV_QPT_XRC_SEND => Ok(QpType::XrcSend),
        IBV_QPT_XRC_RECV => Ok(QpType::XrcRecv),
        _ => Err(Errno::UNSUPPORTED),
    }
}

/// Returns the sizes of the queue pair; a send queue has at least one entry.
fn capabilities(cap: &ibv_qp_cap, has_srq: bool) -> QpCapabilities {
    QpCapabilities {
        max_send_wr: cap.max_send_wr.max(1) as usize,
        max_recv_wr: if has_srq { 0 } else { cap.max_recv_wr as usize },
        max_send_sge: cap.max_send_sge as usize,
        max_recv_sge: if has_srq { 0 } else { cap.max_recv_sge as usize },
        max_inline: cap.max_inline_data.max(LEAST_INLINE) as usize,
    }
}

fn granted(capabilities: &QpCapabilities) -> ibv_qp_cap {
    let number = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    ibv_qp_cap {
        max_send_wr: number(capabilities.max_send_wr),
        max_recv_wr: number(capabilities.max_recv_wr),
        max_send_sge: number(capabilities.max_send_sge),
        max_recv_sge: number(capabilities.max_recv_sge),
        max_inline_data: number(capabilities.max_inline),
    }
}

/// Creates a queue pair.
///
/// # Safety
///
/// The pointers in `wanted` and `pd` are objects of the application, or null.
pub(crate) unsafe fn create(pd: *mut ibv_pd, wanted: &ibv_qp_init_attr) -> Result<*mut Qp, Errno> {
    // The initiator of an XRC connection receives nothing, so it needs no receive completion queue.
    let without_recv = wanted.qp_type == IBV_QPT_XRC_SEND && wanted.recv_cq.is_null();
    let recv_cq = if without_recv { wanted.send_cq } else { wanted.recv_cq };
    // SAFETY: the caller's promise.
    let (domain, send_cq, recv_cq) = unsafe { (pd_of(pd)?, cq_of(wanted.send_cq)?, cq_of(recv_cq)?) };
    // SAFETY: as above.
    let srq = if wanted.srq.is_null() { None } else { Some(unsafe { srq_of(wanted.srq)? }) };
    let open = &domain.open;
    // The identifiers of another context are not valid here.
    if !Arc::ptr_eq(open, &send_cq.open) || !Arc::ptr_eq(open, &recv_cq.open) {
        return Err(Errno::INVALID);
    }
    if srq.is_some_and(|srq| !Arc::ptr_eq(open, srq.open())) {
        return Err(Errno::INVALID);
    }
    let qp_type = qp_type(wanted.qp_type)?;
    let init = QpInit {
        qp_type,
        pd: domain.id(),
        send_cq: send_cq.raw.id(),
        recv_cq: recv_cq.raw.id(),
        srq: srq.map(|srq| srq.id),
        capabilities: capabilities(&wanted.cap, srq.is_some() || qp_type == QpType::XrcSend),
        signal_all: wanted.sq_sig_all != 0,
    };
    let qpn = open.raw().create_qp(&init, &QpOptions::default());
    let qpn = qpn.map_err(|error| match error {
        // Programs print only the error number, and this error is not one of the usual reasons.
        VerbsError::OtherEngine { .. } => open.failures.refused("ibv_create_qp", error),
        error => error.into(),
    })?;
    let cap = granted(&init.capabilities);
    Ok(object(open, domain.context(), pd, qpn, &ibv_qp_init_attr { cap, ..*wanted }))
}

/// Creates the target of an XRC connection, which requires only an XRC domain.
///
/// # Safety
///
/// `xrcd` is an XRC domain of the application.
pub(crate) unsafe fn create_target(xrcd: *mut ibv_xrcd, wanted: &ibv_qp_init_attr) -> Result<*mut Qp, Errno> {
    // SAFETY: the caller's promise.
    let domain = unsafe { xrcd_of(xrcd)? };
    let qpn = domain.open.raw().create_xrc_target(domain.id, &QpOptions::default())?;
    let cap =
        ibv_qp_cap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 };
    let init = ibv_qp_init_attr { cap, ..*wanted };
    Ok(object(&domain.open, domain.context(), std::ptr::null_mut(), qpn, &init))
}

/// Creates the application's object for a queue pair.
fn object(
    open: &Arc<Open>,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    qpn: Qpn,
    wanted: &ibv_qp_init_attr,
) -> *mut Qp {
    // SAFETY: numbers, locks of the C library for which zero is the initial state, null pointers, and absent
    // functions.
    let mut abi: ibv_qp_ex = unsafe { std::mem::zeroed() };
    abi.base.context = context;
    abi.base.qp_context = wanted.qp_context;
    abi.base.pd = pd;
    abi.base.send_cq = wanted.send_cq;
    abi.base.recv_cq = wanted.recv_cq;
    abi.base.srq = wanted.srq;
    abi.base.handle = qpn.get();
    abi.base.qp_num = qpn.get();
    abi.base.qp_type = wanted.qp_type;
    let object = live::release(Box::new(Qp {
        abi,
        open: Arc::clone(open),
        qpn,
        init: *wanted,
        addressing: match wanted.qp_type {
            IBV_QPT_UD => Addressing::Datagram,
            IBV_QPT_XRC_SEND => Addressing::SharedReceiveQueue,
            _ => Addressing::Connection,
        },
        is_extended: false,
        sgid_index: AtomicU8::new(0),
        queue: SendQueue::default(),
        async_events: Acknowledgements::default(),
    }));
    // SAFETY: the object was made just now.
    let async_events = unsafe { &raw const (*object).async_events };
    open.objects().qps.insert(qpn, Named::new(object.cast(), async_events));
    open.note_queue_pair();
    failing::created(open, qpn);
    object
}

pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(Verb::ibv_create_qp, || {
        // SAFETY: the application's pointers are its own objects, and attributes, which receive the granted
        // sizes.
        unsafe {
            let wanted = wanted.as_mut().ok_or(Errno::INVALID)?;
            let object = create(pd, wanted)?;
            wanted.cap = (*object).init.cap;
            Ok(object.cast())
        }
    })
}

/// Returns the extended interface of a queue pair that was created with one.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the application's pointer is a queue pair.
    pointer(Verb::ibv_qp_to_qp_ex, || match unsafe { qp_of(qp)? } {
        object if object.is_extended => Ok(qp.cast()),
        _ => Err(Errno::UNSUPPORTED),
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    status(Verb::ibv_modify_qp, || {
        // SAFETY: the application's pointers are a queue pair and attributes.
        let (object, attributes) = unsafe { (qp_of(qp)?, attributes.as_ref().ok_or(Errno::INVALID)?) };
        let given = modify::given(&object.open, object.qpn, attributes, mask)?;
        let refused = |error| object.open.failures.refused("ibv_modify_qp", error);
        object.open.raw().modify_qp(object.qpn, &given).map_err(refused)?;
        if given.state == Some(QpState::Reset) {
            failing::reset(&object.open, object.qpn);
        }
        if mask & IBV_QP_AV != 0 {
            object.sgid_index.store(attributes.ah_attr.grh.sgid_index, Ordering::Relaxed);
        }
        if mask & IBV_QP_STATE != 0 {
            // SAFETY: as above; the field is the library's to write.
            unsafe { (*qp).state = attributes.qp_state };
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(Verb::ibv_query_qp, || {
        if attributes.is_null() || init.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's pointer is a queue pair.
        let object = unsafe { qp_of(qp)? };
        let found = object.open.raw().query_qp(object.qpn).ok_or(Errno::INVALID)?;
        let sgid_index = object.sgid_index.load(Ordering::Relaxed);
        let answer = modify::in_force(&object.open, &found, object.init.cap, sgid_index);
        // SAFETY: the application has room for both; the state is the library's to write.
        unsafe {
            (*qp).state = answer.qp_state;
            attributes.write(answer);
            init.write(object.init);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(Verb::ibv_destroy_qp, || {
        // SAFETY: the application's pointer is a queue pair that it has not destroyed.
        let object = unsafe { qp_of(qp)? };
        object.open.raw().destroy_qp(object.qpn)?;
        Named::forget(&mut object.open.objects().qps, &object.qpn, qp.cast());
        failing::destroyed(&object.open, object.qpn);
        object.async_events.wait();
        // SAFETY: no event names it any more.
        drop(unsafe { live::reclaim(qp.cast::<Qp>()) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the application's pointers are a queue pair, a chain of requests, and room for a pointer.
    unsafe {
        chain(Verb::ibv_post_send, (list, bad), || {
            let object = qp_unchecked(qp)?;
            object.queue.post_chain(object.open.raw(), object.qpn, object.addressing, list, bad)
        })
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application's pointers are a queue pair, a chain of receives, and room for a pointer.
    unsafe {
        chain(Verb::ibv_post_recv, (list, bad), || {
            let object = qp_unchecked(qp)?;
            post_receives(list, bad, |wr| object.open.raw().post_recv(object.qpn, wr))
        })
    }
}
