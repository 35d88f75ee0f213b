//! Protection domains, and the thread domains and parent domains around them.

use std::ffi::c_int;
use std::sync::Arc;

use roce::verbs::PdId;
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::answer::{Errno, pointer, status};
use crate::context::{Open, open_of};
use crate::live::{self, Kind, Object};

/// An `ibv_pd` with the state of the library.
#[repr(C)]
pub(crate) struct Pd {
    abi: ibv_pd,
    pub(crate) open: Arc<Open>,
    /// Shared by a protection domain and its parent domains, which keep it alive.
    id: Arc<PdId>,
    parent: Option<Parent>,
}

/// The additional state of a parent domain.
struct Parent {
    _thread_domain: Option<Arc<()>>,
}

impl Object for Pd {
    const KIND: Kind = Kind::ProtectionDomain;

    fn handle(&self) -> u32 {
        self.abi.handle
    }
}

impl Pd {
    pub(crate) fn id(&self) -> PdId {
        *self.id
    }

    /// Prevents the deallocation of the domain.
    pub(crate) fn hold(&self) -> Arc<PdId> {
        Arc::clone(&self.id)
    }

    /// Returns the application's open device.
    pub(crate) const fn context(&self) -> *mut ibv_context {
        self.abi.context
    }

    fn object(
        context: *mut ibv_context,
        open: Arc<Open>,
        id: Arc<PdId>,
        parent: Option<Parent>,
    ) -> *mut ibv_pd {
        let handle = u32::try_from(id.index()).unwrap_or(u32::MAX);
        live::release(Box::new(Self { abi: ibv_pd { context, handle }, open, id, parent })).cast()
    }
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread deallocates the domain.
pub(crate) unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> Result<&'a Pd, Errno> {
    // SAFETY: the `ibv_pd` is the first field of a `Pd`.
    unsafe { live::object(pd.cast::<Pd>()) }
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(Verb::ibv_alloc_pd, || {
        // SAFETY: the application's pointer is an open context.
        let open = Arc::clone(unsafe { open_of(context)? });
        let id = open.raw().allocate_pd()?;
        Ok(Pd::object(context, open, Arc::new(id), None))
    })
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(Verb::ibv_dealloc_pd, || {
        // SAFETY: the application's pointer is a domain that it has not deallocated.
        let object = unsafe { pd_of(pd)? };
        if object.parent.is_none() {
            if Arc::strong_count(&object.id) > 1 {
                return Err(Errno::BUSY);
            }
            object.open.raw().deallocate_pd(object.id())?;
        }
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(pd.cast::<Pd>()) });
        Ok(())
    })
}

/// An `ibv_td`: the application's promise that one thread at a time uses its members. This library does not
/// use the promise.
#[repr(C)]
struct Td {
    abi: ibv_td,
    users: Arc<()>,
}

impl Object for Td {
    const KIND: Kind = Kind::ThreadDomain;
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attributes: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(Verb::ibv_alloc_td, || {
        // SAFETY: the application's pointers are an open context and attributes.
        let attributes = unsafe {
            open_of(context)?;
            attributes.as_ref().ok_or(Errno::INVALID)?
        };
        if attributes.comp_mask != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        Ok(live::release(Box::new(Td { abi: ibv_td { context }, users: Arc::default() })).cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status(Verb::ibv_dealloc_td, || {
        // SAFETY: the application's pointer is a domain that it has not deallocated.
        let object = unsafe { live::object(td.cast::<Td>())? };
        if Arc::strong_count(&object.users) > 1 {
            return Err(Errno::BUSY);
        }
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(td.cast::<Td>()) });
        Ok(())
    })
}

/// Creates a protection domain with a thread domain or allocators. The library ignores both, because it
/// shares no memory with hardware.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(Verb::ibv_alloc_parent_domain, || {
        // SAFETY: the application's pointers are an open context and attributes, with a protection domain,
        // and a thread domain or null.
        let (domain, thread_domain, mask) = unsafe {
            open_of(context)?;
            let attributes = attributes.as_ref().ok_or(Errno::INVALID)?;
            let td = attributes.td.cast::<Td>();
            let thread_domain = if td.is_null() { None } else { Some(Arc::clone(&live::object(td)?.users)) };
            (pd_of(attributes.pd)?, thread_domain, attributes.comp_mask)
        };
        if mask & !(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let parent = Parent { _thread_domain: thread_domain };
        Ok(Pd::object(context, Arc::clone(&domain.open), Arc::clone(&domain.id), Some(parent)))
    })
}
