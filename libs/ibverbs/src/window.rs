//! Memory windows: a verb binds type 1, and a work request binds type 2.

use std::ffi::c_int;
use std::sync::Arc;

use roce::verbs::{RKey, WindowType};
use roce_fault::verbs::Verb;

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp};
use crate::answer::{Errno, pointer, status};
use crate::context::Open;
use crate::domain::pd_of;
use crate::live::{self, Kind, Object};
use crate::posting::binding;
use crate::qp::qp_of;

const IBV_MW_TYPE_1: c_int = 1;
const IBV_MW_TYPE_2: c_int = 2;

/// An `ibv_mw` with the state of the library.
#[repr(C)]
struct Mw {
    abi: ibv_mw,
    open: Arc<Open>,
}

impl Object for Mw {
    const KIND: Kind = Kind::MemoryWindow;

    fn handle(&self) -> u32 {
        self.abi.handle
    }
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    pointer(Verb::ibv_alloc_mw, || {
        // SAFETY: the application's pointer is a protection domain.
        let domain = unsafe { pd_of(pd)? };
        let window_type = match kind {
            IBV_MW_TYPE_1 => WindowType::Type1,
            IBV_MW_TYPE_2 => WindowType::Type2,
            _ => return Err(Errno::INVALID),
        };
        let rkey = domain.open.raw().allocate_window(domain.id(), window_type)?.0;
        let abi = ibv_mw { context: domain.context(), pd, rkey, handle: rkey >> 8, mw_type: kind };
        Ok(live::release(Box::new(Mw { abi, open: Arc::clone(&domain.open) })).cast())
    })
}

/// Binds a window of type 1 in the order of the queue pair's requests, with its own completion. The window
/// has its next key at once, as with hardware drivers.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    status(Verb::ibv_bind_mw, || {
        // SAFETY: the application's pointers are a queue pair, a window and a description.
        let (object, window, bind) = unsafe {
            let window = &live::object(mw.cast::<Mw>())?.abi;
            (qp_of(qp)?, window, bind.as_ref().ok_or(Errno::INVALID)?)
        };
        if window.mw_type != IBV_MW_TYPE_1 {
            return Err(Errno::INVALID);
        }
        let old = RKey(window.rkey);
        // SAFETY: as above.
        let op = unsafe { binding(mw, old.next_variant().0, &bind.bind_info)? };
        let posted = object.queue.post_one(object.open.raw(), object.qpn, bind.wr_id, op, bind.send_flags);
        if posted.is_err() {
            // SAFETY: as above.
            unsafe { (*mw).rkey = old.0 };
        }
        posted
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status(Verb::ibv_dealloc_mw, || {
        // SAFETY: the application's pointer is a window that it has not deallocated.
        let object = unsafe { live::object(mw.cast::<Mw>())? };
        object.open.raw().deallocate_window(RKey(object.abi.rkey))?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(mw.cast::<Mw>()) });
        Ok(())
    })
}
