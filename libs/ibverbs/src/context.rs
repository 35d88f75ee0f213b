//! Open devices and their events.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

use roce::device::fork::Mutex;
use roce::device::pcap::CaptureFile;
use roce::verbs::{AsyncEvent, Context, CqId, GidEntry, Qpn, Raw, SrqId};

use crate::abi::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_LIMIT_REACHED,
    VERBS_ABI_IS_EXTENDED, ibv_async_event, ibv_context, ibv_context_ops, ibv_device, verbs_context,
};
use crate::answer::{Errno, pointer, status, value};
use crate::cq::{self, Cq};
use crate::device::Device;
use crate::events::Mirror;
use crate::live::{self, Kind, Object};
use crate::qp::{self, Qp};
use crate::report::Failures;
use crate::srq::{self, Srq};
use crate::wait::{Sleep, Slept, Wait, keep_faults, wait};
use crate::{cq_ex, device_memory, domain, environment, memory, query, report, window, xrc};

/// The object that contains the application's `ibv_context`, at the end of `verbs`.
#[repr(C)]
struct ContextObject {
    verbs: verbs_context,
    open: Arc<Open>,
}

impl Object for ContextObject {
    const KIND: Kind = Kind::Context;
}

/// An open device. Each of its objects holds a reference, so they may be closed in any order.
pub(crate) struct Open {
    pub(crate) context: Context,
    pub(crate) gids: Vec<GidEntry>,
    pub(crate) device: Arc<Device>,
    async_events: Mirror,
    objects: Mutex<Objects>,
    capture: Option<CaptureFile>,
    pub(crate) failures: Failures,
    /// Number of queue pairs that the application has created.
    queue_pairs: AtomicU32,
    reported: AtomicBool,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close();
    }
}

/// A pointer to an object of the application; any thread may take it.
pub(crate) struct Pointer<T>(pub(crate) *mut T);

// SAFETY: libibverbs allows every verb in every thread; the contents of these objects are `Send` or behind
// locks.
unsafe impl<T> Send for Pointer<T> {}

/// The objects that events name, by the identifiers of the engine.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) qps: HashMap<Qpn, Pointer<Qp>>,
    pub(crate) cqs: HashMap<CqId, Pointer<Cq>>,
    pub(crate) srqs: HashMap<SrqId, Pointer<Srq>>,
}

impl Open {
    pub(crate) fn raw(&self) -> Raw<'_> {
        self.context.raw()
    }

    /// Returns the objects, to find the one of an event. An object is removed before it waits for its last
    /// acknowledgement.
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    pub(crate) fn note_queue_pair(&self) {
        self.queue_pairs.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of queue pairs that the application has created.
    pub(crate) fn queue_pairs(&self) -> u32 {
        self.queue_pairs.load(Ordering::Relaxed)
    }

    /// Returns the entry of the GID table with this index.
    pub(crate) fn gid(&self, index: usize) -> Result<&GidEntry, Errno> {
        self.gids.get(index).ok_or_else(|| {
            let last = self.gids.len().saturating_sub(1);
            let reason = format!(
                "the port has no GID with index {index}, its last index is {last}; roce run --gid-index \
                 {index} (ROCE_GID_INDEX) adds this index"
            );
            report::refusal(self.device.name(), &reason);
            Errno::INVALID
        })
    }

    fn new(device: Arc<Device>) -> Result<Self, Errno> {
        // The background thread of the context must not receive the application's signals.
        let signals = BlockedSignals::new();
        let opened = environment::open(device.specification());
        drop(signals);
        let refused = |(number, reason): (i32, String)| {
            report::refusal(device.name(), &reason);
            Errno(number)
        };
        let (context, capture) = opened.map_err(refused)?;
        let gids = environment::gid_table(&context).map_err(refused)?;
        let async_events = Mirror::new(context.async_descriptor())?;
        let failures = Failures::new(device.name());
        Ok(Self {
            gids,
            context,
            device,
            async_events,
            objects: Mutex::default(),
            capture,
            failures,
            queue_pairs: AtomicU32::new(0),
            reported: AtomicBool::new(false),
        })
    }

    /// Ends the device, or the process: writes the report and completes the capture, once.
    pub(crate) fn close(&self) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            report::device(self);
            if let Some(capture) = &self.capture {
                capture.flush();
            }
        }
    }

    /// Returns the pointer and the number of an event for the application; `None` if its object is destroyed.
    fn element(&self, event: AsyncEvent) -> Option<ibv_async_event> {
        let objects = self.objects();
        let of_qp = |qpn, event_type| {
            let object = objects.qps.get(&qpn)?.0;
            // SAFETY: an object that is listed here is alive.
            unsafe { (*object).async_events.deliver() };
            Some(ibv_async_event { element: object.cast(), event_type })
        };
        match event {
            AsyncEvent::QpFatal(qpn) => of_qp(qpn, IBV_EVENT_QP_FATAL),
            AsyncEvent::QpRequestError(qpn) => of_qp(qpn, IBV_EVENT_QP_REQ_ERR),
            AsyncEvent::QpAccessError(qpn) => of_qp(qpn, IBV_EVENT_QP_ACCESS_ERR),
            AsyncEvent::CommunicationEstablished(qpn) => of_qp(qpn, IBV_EVENT_COMM_EST),
            AsyncEvent::SqDrained(qpn) => of_qp(qpn, IBV_EVENT_SQ_DRAINED),
            AsyncEvent::LastWqeReached(qpn) => of_qp(qpn, IBV_EVENT_QP_LAST_WQE_REACHED),
            AsyncEvent::SrqLimitReached(srq) => {
                let object = objects.srqs.get(&srq)?.0;
                // SAFETY: as above.
                unsafe { (*object).async_events.deliver() };
                Some(ibv_async_event { element: object.cast(), event_type: IBV_EVENT_SRQ_LIMIT_REACHED })
            }
            AsyncEvent::CqError(cq) => {
                let object = objects.cqs.get(&cq)?.0;
                // SAFETY: as above.
                unsafe { (*object).async_events.deliver() };
                Some(ibv_async_event { element: object.cast(), event_type: IBV_EVENT_CQ_ERR })
            }
            _ => None,
        }
    }
}

/// Blocks all signals of this thread, and of threads that it starts, until it is dropped. Faults are not
/// blocked, because a page of registered memory may be missing.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: both sets belong to this function; the calls only write to them.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            keep_faults(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the system returned to `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Returns the open device behind an application's pointer.
///
/// # Safety
///
/// No other thread closes the context.
pub(crate) unsafe fn open_of<'a>(context: *mut ibv_context) -> Result<&'a Arc<Open>, Errno> {
    // SAFETY: the caller's promise.
    Ok(unsafe { &live::object(object_of(context))?.open })
}

fn object_of(context: *mut ibv_context) -> *mut ContextObject {
    let offset = std::mem::offset_of!(ContextObject, verbs.context);
    context.wrapping_byte_sub(offset).cast()
}

/// Returns the tables of functions, and the other fields for the application.
fn tables(device: *mut ibv_device, async_fd: c_int, engines: usize) -> verbs_context {
    let ops = ibv_context_ops {
        before_mw: [None; 7],
        alloc_mw: Some(window::alloc_mw),
        bind_mw: Some(window::bind_mw),
        dealloc_mw: Some(window::dealloc_mw),
        create_cq: None,
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        before_post_srq: [None; 7],
        post_srq_recv: Some(srq::post_srq_recv),
        before_post: [None; 4],
        post_send: Some(qp::post_send),
        post_recv: Some(qp::post_recv),
        after_post: [None; 5],
    };
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: Some(memory::alloc_null_mr),
        counters: [None; 4],
        reg_dm_mr: Some(device_memory::reg_dm_mr),
        alloc_dm: Some(device_memory::alloc_dm),
        free_dm: Some(device_memory::free_dm),
        flow_actions_and_rates: [None; 4],
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        dealloc_td: Some(domain::dealloc_td),
        alloc_td: Some(domain::alloc_td),
        modify_cq: None,
        tags_and_work_queues: [None; 6],
        query_rt_values: None,
        create_cq_ex: Some(cq_ex::create_cq_ex),
        private: std::ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        flow: [None; 4],
        open_qp: None,
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        placeholder: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops,
            // A kernel device does not exist, but programs change flags of the descriptor or duplicate it.
            cmd_fd: async_fd,
            async_fd,
            // A completion vector is an engine.
            num_comp_vectors: c_int::try_from(engines).unwrap_or(c_int::MAX),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: VERBS_ABI_IS_EXTENDED as *mut c_void,
        },
    }
}

pub(crate) extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| open(Device::of(device)?))
}

/// Opens a device.
pub(crate) fn open(device: Arc<Device>) -> Result<*mut ibv_context, Errno> {
    let abi = device.abi();
    let open = Arc::new(Open::new(device)?);
    let verbs = tables(abi, open.async_events.as_fd().as_raw_fd(), open.context.engines());
    report::watch(&open);
    let object = live::release(Box::new(ContextObject { verbs, open }));
    // SAFETY: the box was made just now; only the address of the field is taken.
    Ok(unsafe { &raw mut (*object).verbs.context })
}

/// Releases the context. Objects that the application has not destroyed keep the device open.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status(|| {
        // SAFETY: the application has no call in progress on the context that it returns.
        unsafe { live::reclaim(object_of(context)) }.map(drop).ok_or(Errno::INVALID)
    })
}

/// A wait for an asynchronous event.
struct AsyncWait {
    open: Arc<Open>,
    event: *mut ibv_async_event,
}

impl Wait for AsyncWait {
    fn turn(&mut self, slept: Slept) -> Result<Option<Sleep>, Errno> {
        while let Some(event) = self.open.context.async_event() {
            if let Some(found) = self.open.element(event) {
                // SAFETY: the application gave room for an event.
                unsafe { self.event.write(found) };
                return Ok(None);
            }
        }
        self.open.async_events.plan(slept).map(Some)
    }
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    wait((context, event), |(context, event)| {
        if event.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's pointer is a context that it has open.
        Ok(AsyncWait { open: Arc::clone(unsafe { open_of(context)? }), event })
    })
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    value((), || {
        // SAFETY: the application passes a delivered and unacknowledged event, so its object still exists.
        let events = unsafe {
            let Some(event) = event.as_ref() else { return };
            match event.event_type {
                IBV_EVENT_CQ_ERR => cq::cq_of(event.element.cast()).map(|cq| &cq.async_events),
                IBV_EVENT_SRQ_LIMIT_REACHED => srq::srq_of(event.element.cast()).map(|srq| &srq.async_events),
                _ => qp::qp_of(event.element.cast()).map(|qp| &qp.async_events),
            }
        };
        if let Ok(events) = events {
            events.acknowledge(1);
        }
    });
}
