//! XRC domains.

use std::ffi::c_int;
use std::sync::Arc;

use roce::verbs::XrcdId;
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};
use crate::answer::{Errno, pointer, status};
use crate::context::{Open, open_of};
use crate::live::{self, Kind, Object};

/// An `ibv_xrcd` with the state of the library.
#[repr(C)]
pub(crate) struct Xrcd {
    abi: ibv_xrcd,
    pub(crate) open: Arc<Open>,
    pub(crate) id: XrcdId,
}

impl Object for Xrcd {
    const KIND: Kind = Kind::XrcDomain;
}

impl Xrcd {
    /// Returns the application's open device.
    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.abi.context
    }
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread closes the domain.
pub(crate) unsafe fn xrcd_of<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a Xrcd, Errno> {
    // SAFETY: the `ibv_xrcd` is the first field of an `Xrcd`.
    unsafe { live::object(xrcd.cast::<Xrcd>()) }
}

/// Creates a domain. A file would share the domain with other processes, which a device in user space does
/// not support.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attributes: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    pointer(Verb::ibv_open_xrcd, || {
        // SAFETY: the application's pointers are an open context and attributes.
        let (open, mask) =
            unsafe { (Arc::clone(open_of(context)?), attributes.as_ref().ok_or(Errno::INVALID)?.comp_mask) };
        if mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
            return Err(Errno::INVALID);
        }
        let id = open.raw().allocate_xrcd()?;
        Ok(live::release(Box::new(Xrcd { abi: ibv_xrcd { context }, open, id })).cast())
    })
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(Verb::ibv_close_xrcd, || {
        // SAFETY: the application's pointer is a domain that it has not closed.
        let object = unsafe { xrcd_of(xrcd)? };
        object.open.raw().deallocate_xrcd(object.id)?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(xrcd.cast::<Xrcd>()) });
        Ok(())
    })
}
