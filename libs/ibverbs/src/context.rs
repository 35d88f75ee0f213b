//! Open devices.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::Hash;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};

use roce::device::fork::Mutex;
use roce::device::pcap::CaptureFile;
use roce::verbs::{Context, CqId, GidEntry, Qpn, Raw, SrqId};
use roce_fault::verbs::Verb;

use crate::abi::{ibv_context, verbs_context};
use crate::answer::{Errno, status};
use crate::device::Device;
use crate::events::{Acknowledgements, Mirror};
use crate::links::Link;
use crate::live::{self, Kind, Object};
use crate::report::Failures;
use crate::wait::keep_faults;
use crate::{environment, report};

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
    pub(crate) async_events: Mirror,
    objects: Mutex<Objects>,
    capture: Option<CaptureFile>,
    /// The link, if it or a queue pair can fail on demand.
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) failures: Failures,
    /// A number that no other open device of the process has.
    pub(crate) number: u32,
    /// Number of queue pairs that the application has created.
    queue_pairs: AtomicU32,
    reported: AtomicBool,
}

/// Number of devices that the process has opened.
static OPENED: AtomicU32 = AtomicU32::new(0);

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
    pub(crate) qps: HashMap<Qpn, Named>,
    pub(crate) cqs: HashMap<CqId, Named>,
    pub(crate) srqs: HashMap<SrqId, Named>,
}

/// An object that events name, and the count of its asynchronous events.
pub(crate) struct Named {
    object: Pointer<c_void>,
    async_events: *const Acknowledgements,
}

// SAFETY: the count is part of the object, and consists of atomics.
unsafe impl Send for Named {}

impl Named {
    /// Creates the entry of an object, which is removed before the object is destroyed.
    pub(crate) fn new(object: *mut c_void, async_events: *const Acknowledgements) -> Self {
        Self { object: Pointer(object), async_events }
    }

    /// Returns the pointer of the application.
    pub(crate) fn object(&self) -> *mut c_void {
        self.object.0
    }

    /// Removes the entry of an object that was destroyed in the engine. Another object may have its number by
    /// now, whose entry stays.
    pub(crate) fn forget<K: Eq + Hash>(entries: &mut HashMap<K, Self>, id: &K, object: *mut c_void) {
        if entries.get(id).is_some_and(|named| named.object() == object) {
            entries.remove(id);
        }
    }

    /// Counts an asynchronous event that is passed to the application now, and returns the pointer of the
    /// application.
    pub(crate) fn deliver(&self) -> *mut c_void {
        // SAFETY: an object that is listed is alive.
        unsafe { (*self.async_events).deliver() };
        self.object.0
    }
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
    fn queue_pairs(&self) -> u32 {
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

    pub(crate) fn new(device: Arc<Device>) -> Result<Self, Errno> {
        // The background thread of the context must not receive the application's signals.
        let signals = BlockedSignals::new();
        let link = Link::wanted(device.name())?;
        let opened = environment::open(device.specification(), link.as_ref());
        drop(signals);
        let refused = |(number, reason): (i32, String)| {
            report::refusal(device.name(), &reason);
            Errno(number)
        };
        let (context, capture) = opened.map_err(refused)?;
        let gids = environment::gid_table(&context).map_err(refused)?;
        let async_events = Mirror::new(context.async_descriptor())?;
        if let Some(link) = &link {
            async_events.add(link.as_fd())?;
        }
        let failures = Failures::new(device.name());
        Ok(Self {
            gids,
            context,
            device,
            async_events,
            objects: Mutex::default(),
            capture,
            link,
            failures,
            number: OPENED.fetch_add(1, Ordering::Relaxed),
            queue_pairs: AtomicU32::new(0),
            reported: AtomicBool::new(false),
        })
    }

    /// Ends the device, or the process: writes the report and completes the capture, once.
    pub(crate) fn close(&self) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            let (name, specification) = (self.device.name(), self.device.specification());
            report::device(name, specification, self.queue_pairs(), &self.context);
            if let Some(capture) = &self.capture {
                capture.flush();
            }
        }
    }
}

/// Blocks all signals of this thread, and of threads that it starts, until it is dropped. Faults are not
/// blocked, because a page of registered memory may be missing.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub(crate) fn new() -> Self {
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

/// Returns the application's pointer to an open device with these functions.
pub(crate) fn release(verbs: verbs_context, open: Arc<Open>) -> *mut ibv_context {
    let object = live::release(Box::new(ContextObject { verbs, open }));
    // SAFETY: the box was made just now; only the address of the field is taken.
    unsafe { &raw mut (*object).verbs.context }
}

/// Releases the context. Objects that the application has not destroyed keep the device open.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status(Verb::ibv_close_device, || {
        // SAFETY: the application has no call in progress on the context that it returns.
        unsafe { live::reclaim(object_of(context)) }.map(drop).ok_or(Errno::INVALID)
    })
}
