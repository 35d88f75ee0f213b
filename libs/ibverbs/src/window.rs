//! Memory windows: a verb binds type 1, and a work request binds type 2.

use std::ffi::c_int;
use std::sync::Arc;

use roce::verbs::{LKey, RKey, SendOp, WindowBinding, WindowType};

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use crate::answer::{Errno, pointer, status};
use crate::context::Open;
use crate::domain::pd_of;
use crate::live::{self, Kind, Object};
use crate::memory::access;
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

/// The bits of a key that its owner chooses.
const VARIANT: u32 = 0xff;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    pointer(|| {
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
    status(|| {
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
    status(|| {
        // SAFETY: the application's pointer is a window that it has not deallocated.
        let object = unsafe { live::object(mw.cast::<Mw>())? };
        object.open.raw().deallocate_window(RKey(object.abi.rkey))?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(mw.cast::<Mw>()) });
        Ok(())
    })
}

/// Returns a request that binds a window. The application's object gets its new key at once, as with hardware
/// drivers. The application chooses the variant, which is the low 8 bits of `new_rkey`. The other bits belong
/// to the window and are ignored, as with Soft-RoCE and mlx5.
///
/// # Safety
///
/// The pointers are a window and a region of the application.
pub(crate) unsafe fn binding(
    mw: *mut ibv_mw,
    new_rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: the caller's promise.
    let (window, region) = unsafe { (mw.as_mut().ok_or(Errno::INVALID)?, info.mr.as_ref()) };
    let lkey = match region {
        Some(region) => region.lkey,
        None if info.length == 0 => 0,
        None => return Err(Errno::INVALID),
    };
    let binding = WindowBinding {
        region: LKey(lkey),
        addr: info.addr,
        len: usize::try_from(info.length).map_err(|_| Errno::INVALID)?,
        access: access(info.mw_access_flags)?,
    };
    let old = window.rkey;
    window.rkey = old & !VARIANT | new_rkey & VARIANT;
    Ok(SendOp::BindWindow { window: RKey(old), new_rkey: RKey(window.rkey), binding })
}
