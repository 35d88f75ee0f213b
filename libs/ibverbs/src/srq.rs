//! Shared receive queues.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use roce::verbs::SrqId;
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd,
};
use crate::answer::{Errno, pointer, put, status};
use crate::context::{Named, Open, open_of};
use crate::cq::cq_of;
use crate::domain::pd_of;
use crate::events::Acknowledgements;
use crate::live::{self, Kind, Object};
use crate::posting::{chain, post_receives};
use crate::xrc::xrcd_of;

/// An `ibv_srq` with the state of the library.
#[repr(C)]
pub(crate) struct Srq {
    abi: ibv_srq,
    open: Arc<Open>,
    pub(crate) id: SrqId,
    /// The number that peers use for a queue of an XRC domain.
    number: Option<u32>,
    pub(crate) async_events: Acknowledgements,
}

impl Object for Srq {
    const KIND: Kind = Kind::SharedReceiveQueue;

    fn handle(&self) -> u32 {
        self.abi.handle
    }
}

impl Srq {
    /// Returns the device that it belongs to.
    pub(crate) fn open(&self) -> &Arc<Open> {
        &self.open
    }
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread destroys the queue.
pub(crate) unsafe fn srq_of<'a>(srq: *mut ibv_srq) -> Result<&'a Srq, Errno> {
    // SAFETY: the `ibv_srq` is the first field of a `Srq`.
    unsafe { live::object(srq.cast::<Srq>()) }
}

/// Creates a queue and writes the granted sizes into `attributes`. `xrc` contains the domain and the
/// completion queue of an XRC receive queue.
///
/// # Safety
///
/// The pointers are a protection domain, an XRC domain and a completion queue of the application, or null.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attributes: &mut ibv_srq_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller's promise.
    let domain = unsafe { pd_of(pd)? };
    let (max_wr, max_sge) = (attributes.max_wr as usize, attributes.max_sge as usize);
    let raw = domain.open.raw();
    let (id, number) = match xrc {
        None => (raw.create_srq(domain.id(), max_wr, max_sge)?, None),
        Some((xrcd, cq)) => {
            // SAFETY: the caller's promise.
            let (xrcd, cq) = unsafe { (xrcd_of(xrcd)?, cq_of(cq)?) };
            // The identifiers of another context are not valid here.
            if !Arc::ptr_eq(&domain.open, &xrcd.open) || !Arc::ptr_eq(&domain.open, &cq.open) {
                return Err(Errno::INVALID);
            }
            let (id, number) = raw.create_xrc_srq(domain.id(), xrcd.id, &cq.raw, max_wr, max_sge)?;
            (id, Some(number))
        }
    };
    // SAFETY: numbers, locks of the C library for which zero is the initial state, and null pointers.
    let mut abi: ibv_srq = unsafe { std::mem::zeroed() };
    abi.context = domain.context();
    abi.srq_context = srq_context;
    abi.pd = pd;
    abi.handle = u32::try_from(id.index()).unwrap_or(u32::MAX);
    let open = Arc::clone(&domain.open);
    let object = Srq { abi, open: Arc::clone(&open), id, number, async_events: Acknowledgements::default() };
    let object = live::release(Box::new(object));
    // SAFETY: the object was made just now.
    let async_events = unsafe { &raw const (*object).async_events };
    open.objects().srqs.insert(id, Named::new(object.cast(), async_events));
    attributes.srq_limit = 0;
    Ok(object.cast())
}

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the application's pointers are a protection domain and attributes.
    pointer(Verb::ibv_create_srq, || unsafe {
        let attributes = attributes.as_mut().ok_or(Errno::INVALID)?;
        create(pd, attributes.srq_context, &mut attributes.attr, None)
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the application's pointers are an open context and attributes.
    pointer(Verb::ibv_create_srq_ex, || unsafe {
        open_of(context)?;
        let attributes = attributes.as_mut().ok_or(Errno::INVALID)?;
        let mask = attributes.comp_mask;
        let kind = if mask & IBV_SRQ_INIT_ATTR_TYPE == 0 { IBV_SRQT_BASIC } else { attributes.srq_type };
        let of_xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | of_xrc;
        if !matches!(kind, IBV_SRQT_BASIC | IBV_SRQT_XRC) || mask & !known != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let needed = IBV_SRQ_INIT_ATTR_PD | if kind == IBV_SRQT_XRC { of_xrc } else { 0 };
        if mask & needed != needed {
            return Err(Errno::INVALID);
        }
        let xrc = (kind == IBV_SRQT_XRC).then_some((attributes.xrcd, attributes.cq));
        create(attributes.pd, attributes.srq_context, &mut attributes.attr, xrc)
    })
}

/// Returns the number that peers use for a queue of an XRC domain.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut c_uint) -> c_int {
    status(Verb::ibv_get_srq_num, || {
        // SAFETY: the application's pointers are a queue, and room for a number.
        unsafe {
            let found = srq_of(srq)?.number.ok_or(Errno::INVALID)?;
            number.write(found);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(Verb::ibv_destroy_srq, || {
        // SAFETY: the application's pointer is a queue that it has not destroyed.
        let object = unsafe { srq_of(srq)? };
        object.open.raw().destroy_srq(object.id)?;
        Named::forget(&mut object.open.objects().srqs, &object.id, srq.cast());
        object.async_events.wait();
        // SAFETY: no event names it any more.
        drop(unsafe { live::reclaim(srq.cast::<Srq>()) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attributes: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    status(Verb::ibv_modify_srq, || {
        // SAFETY: the application's pointers are a queue and attributes.
        let (object, attributes) = unsafe { (srq_of(srq)?, attributes.as_ref().ok_or(Errno::INVALID)?) };
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVALID);
        }
        let raw = object.open.raw();
        if mask & IBV_SRQ_MAX_WR != 0 {
            raw.resize_srq(object.id, attributes.max_wr as usize)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            raw.arm_srq_limit(object.id, attributes.srq_limit as usize)?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int {
    status(Verb::ibv_query_srq, || {
        // SAFETY: the application's pointer is a queue that it has not destroyed.
        let object = unsafe { srq_of(srq)? };
        let found = object.open.raw().query_srq(object.id).ok_or(Errno::INVALID)?;
        let number = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let answer = ibv_srq_attr {
            max_wr: number(found.max_wr),
            max_sge: number(found.max_sge),
            srq_limit: number(found.limit),
        };
        // SAFETY: the application has room for the attributes.
        unsafe { put(attributes, answer) }
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application's pointers are a queue, a chain of requests, and room for a pointer.
    unsafe {
        chain(Verb::ibv_post_srq_recv, (list, bad), || {
            let object = live::unchecked(srq.cast::<Srq>())?;
            post_receives(list, bad, |wr| object.open.raw().post_srq_recv(object.id, wr))
        })
    }
}
