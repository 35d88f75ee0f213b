//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use roce::verbs::{Access, ForeignMemory, LKey, PdId, RegionAttributes};

use crate::abi::{IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_RANGE, ibv_context, ibv_mr, ibv_pd};
use crate::answer::{Errno, count, pointer, status};
use crate::context::{Open, open_of};
use crate::live::{self, Kind, Object};

/// What a changed region may change (`enum ibv_rereg_mr_flags`).
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;

/// An `ibv_pd` with what belongs to it.
#[repr(C)]
pub(crate) struct Pd {
    abi: ibv_pd,
    pub(crate) open: Arc<Open>,
    pub(crate) id: PdId,
}

/// An `ibv_mr` with what belongs to it.
#[repr(C)]
struct Mr {
    abi: ibv_mr,
    open: Arc<Open>,
    /// The first virtual address, which need not be that of the memory.
    iova: u64,
    access: Access,
}

impl Object for Pd {
    const KIND: Kind = Kind::ProtectionDomain;
}

impl Object for Mr {
    const KIND: Kind = Kind::MemoryRegion;
}

/// The object behind an application's pointer.
///
/// # Safety
///
/// No other thread deallocates the domain.
pub(crate) unsafe fn pd_of<'a>(pd: *mut ibv_pd) -> Result<&'a Pd, Errno> {
    // SAFETY: the `ibv_pd` is the first field of a `Pd`.
    unsafe { live::object(pd.cast::<Pd>()) }
}

/// The rights in the flags of the application. Those that an implementation may ignore are left out.
pub(crate) fn access(flags: u32) -> Result<Access, Errno> {
    let binding = flags & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB);
    Access::from_bits(binding).ok_or(Errno::INVALID)
}

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the application's pointer is an open context.
        let open = Arc::clone(unsafe { open_of(context)? });
        let id = open.raw().allocate_pd()?;
        let handle = u32::try_from(id.index()).unwrap_or(u32::MAX);
        let object = Pd { abi: ibv_pd { context, handle }, open, id };
        Ok(live::release(Box::new(object)).cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: the application's pointer is a domain that it has not deallocated.
        let object = unsafe { pd_of(pd)? };
        object.open.raw().deallocate_pd(object.id)?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(pd.cast::<Pd>()) });
        Ok(())
    })
}

/// Registers the application's memory.
///
/// # Safety
///
/// The application gives the memory to verbs, its own and those of peers, until it deregisters it.
unsafe fn register(
    pd: &Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: Access,
) -> Result<RegionAttributes, Errno> {
    let writable = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    // SAFETY: the caller's promise.
    let memory = unsafe { ForeignMemory::new(addr.cast(), length, writable)? };
    Ok(pd.open.raw().register(pd.id, iova, Arc::new(memory), access)?)
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the application's pointer is a protection domain.
        let domain = unsafe { pd_of(pd)? };
        let access = access(flags)?;
        // SAFETY: this is what registering means.
        let made = unsafe { register(domain, addr, length, iova, access)? };
        let abi = ibv_mr {
            context: domain.abi.context,
            pd,
            addr,
            length,
            handle: made.lkey.0 >> 8,
            lkey: made.lkey.0,
            rkey: made.rkey.0,
        };
        let object = Mr { abi, open: Arc::clone(&domain.open), iova, access };
        Ok(live::release(Box::new(object)).cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: the same promises.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, flags.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: the same promises.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, flags.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| {
        // SAFETY: the application's pointer is a region that it has not deregistered.
        let object = unsafe { live::object(mr.cast::<Mr>())? };
        object.open.raw().deregister(LKey(object.abi.lkey))?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(mr.cast::<Mr>()) });
        Ok(())
    })
}

/// Registers anew with what changes, then revokes the old keys. An error leaves the region as it was, which libibverbs calls -1.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: c_int,
) -> c_int {
    count(|| {
        // SAFETY: the application's pointer is a region that it has not deregistered.
        let object = unsafe {
            live::object(mr.cast::<Mr>())?;
            &mut *mr.cast::<Mr>()
        };
        if flags == 0 || flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0 {
            return Err(Errno::INVALID);
        }
        let new_pd = if flags & CHANGE_PD != 0 { pd } else { object.abi.pd };
        // SAFETY: the domain that the application names, or the one of the region, which has to outlive it.
        let domain = unsafe { pd_of(new_pd)? };
        let (new_addr, new_length, iova) = if flags & CHANGE_TRANSLATION != 0 {
            (addr, length, addr as u64)
        } else {
            (object.abi.addr, object.abi.length, object.iova)
        };
        let new_access =
            if flags & CHANGE_ACCESS != 0 { access(access_flags.cast_unsigned())? } else { object.access };
        // SAFETY: this is what registering means.
        let made = unsafe { register(domain, new_addr, new_length, iova, new_access)? };
        if let Err(error) = object.open.raw().deregister(LKey(object.abi.lkey)) {
            object.open.raw().deregister(made.lkey)?;
            return Err(error.into());
        }
        object.abi = ibv_mr {
            context: object.abi.context,
            pd: new_pd,
            addr: new_addr,
            length: new_length,
            handle: made.lkey.0 >> 8,
            lkey: made.lkey.0,
            rkey: made.rkey.0,
        };
        (object.iova, object.access) = (iova, new_access);
        Ok(0)
    })
}

/// There is no device memory that another driver could export.
pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _descriptor: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    pointer(|| Err(Errno::UNSUPPORTED))
}
