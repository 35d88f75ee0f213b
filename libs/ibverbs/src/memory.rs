//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use roce::verbs::{
    Access, ForeignMemory, LKey, Memory, OnDemandMemory, OutOfBounds, RegionAttributes, RegionChange,
};
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_OPTIONAL_RANGE, IBV_ADVISE_MR_ADVICE_PREFETCH,
    IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
    ibv_mr, ibv_pd, ibv_sge,
};
use crate::answer::{Errno, count, pointer, set_errno, status};
use crate::context::Open;
use crate::domain::{Pd, pd_of};
use crate::live::{self, Kind, Object};
use crate::pages::Pages;

/// Flags for changing a region (`enum ibv_rereg_mr_flags`).
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;

/// An `ibv_mr` with the state of the library.
#[repr(C)]
struct Mr {
    abi: ibv_mr,
    open: Arc<Open>,
    access: Access,
    on_demand: bool,
    /// Memory that the library allocated for the application.
    _pages: Option<Arc<Pages>>,
}

impl Object for Mr {
    const KIND: Kind = Kind::MemoryRegion;

    fn handle(&self) -> u32 {
        self.abi.handle
    }
}

impl Mr {
    /// Returns the first virtual address, which may differ from that of the memory.
    fn first(&self) -> Result<u64, Errno> {
        Ok(self.open.raw().query_region(LKey(self.abi.lkey))?.addr)
    }
}

/// Converts the application's access flags. Ignores those that an implementation may ignore.
pub(crate) fn access(flags: u32) -> Result<Access, Errno> {
    let binding = flags & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND);
    Access::from_bits(binding).ok_or(Errno::INVALID)
}

/// Returns the application's memory.
///
/// # Safety
///
/// Until the application deregisters the memory, its own verbs and those of peers may access it. With
/// on-demand paging this holds for the mapped pages.
unsafe fn memory(
    addr: *mut c_void,
    length: usize,
    access: Access,
    on_demand: bool,
) -> Result<Arc<dyn Memory>, Errno> {
    if on_demand {
        // All addresses: libibverbs calls this implicit on-demand paging.
        let all = addr.is_null() && length == usize::MAX;
        // SAFETY: the caller's promise.
        let memory =
            unsafe { if all { OnDemandMemory::whole() } else { OnDemandMemory::new(addr.cast(), length)? } };
        return Ok(Arc::new(memory));
    }
    let writable = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    // SAFETY: the caller's promise.
    Ok(Arc::new(unsafe { ForeignMemory::new(addr.cast(), length, writable)? }))
}

/// Creates the application's object for a region.
pub(crate) fn object(
    pd: *mut ibv_pd,
    domain: &Pd,
    (addr, length): (*mut c_void, usize),
    made: &RegionAttributes,
    on_demand: bool,
) -> *mut ibv_mr {
    object_with_pages(pd, domain, (addr, length), made, (on_demand, None))
}

fn object_with_pages(
    pd: *mut ibv_pd,
    domain: &Pd,
    (addr, length): (*mut c_void, usize),
    made: &RegionAttributes,
    (on_demand, pages): (bool, Option<Arc<Pages>>),
) -> *mut ibv_mr {
    let abi = ibv_mr {
        context: domain.context(),
        pd,
        addr,
        length,
        handle: made.lkey.0 >> 8,
        lkey: made.lkey.0,
        rkey: made.rkey.0,
    };
    let open = Arc::clone(&domain.open);
    let object = Mr { abi, open, access: made.access, on_demand, _pages: pages };
    live::release(Box::new(object)).cast()
}

/// Memory that is to be registered.
pub(crate) struct Wanted {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) iova: u64,
    pub(crate) flags: c_uint,
    /// The pages that the region keeps, if the library allocated the memory.
    pub(crate) pages: Option<Arc<Pages>>,
}

/// Registers memory.
///
/// # Safety
///
/// `pd` is the application's pointer to `domain`, and the memory satisfies the requirements of [`memory`].
pub(crate) unsafe fn register(pd: *mut ibv_pd, domain: &Pd, wanted: Wanted) -> Result<*mut ibv_mr, Errno> {
    let Wanted { addr, length, iova, flags, pages } = wanted;
    let (access, on_demand) = (access(flags)?, flags & IBV_ACCESS_ON_DEMAND != 0);
    // SAFETY: the caller's promise.
    let memory = unsafe { memory(addr, length, access, on_demand)? };
    let made = domain.open.raw().register(domain.id(), iova, memory, access)?;
    Ok(object_with_pages(pd, domain, (addr, length), &made, (on_demand, pages)))
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> *mut ibv_mr {
    pointer(Verb::ibv_reg_mr, || {
        // SAFETY: the application's pointer is a protection domain.
        let domain = unsafe { pd_of(pd)? };
        // SAFETY: registering gives the verbs access to the memory.
        unsafe { register(pd, domain, Wanted { addr, length, iova, flags, pages: None }) }
    })
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: this function requires the same of its caller.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, flags.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut ibv_mr {
    // SAFETY: this function requires the same of its caller.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, flags.cast_unsigned()) }
}

pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(Verb::ibv_dereg_mr, || {
        // SAFETY: the application's pointer is a region that it has not deregistered.
        let object = unsafe { live::object(mr.cast::<Mr>())? };
        object.open.raw().deregister(LKey(object.abi.lkey))?;
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(mr.cast::<Mr>()) });
        Ok(())
    })
}

/// `IBV_REREG_MR_ERR_CMD`: the device refused, and the region is unchanged. Contradictory input returns -1.
const REFUSED: c_int = -4;

pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: c_int,
) -> c_int {
    count(Verb::ibv_rereg_mr, || {
        // SAFETY: the application's pointer is a region that it has not deregistered.
        let object = unsafe {
            live::object(mr.cast::<Mr>())?;
            &mut *mr.cast::<Mr>()
        };
        let is_range_missing = flags & CHANGE_TRANSLATION != 0 && (length == 0 || addr.is_null());
        let is_access_lost = access_flags != 0 && flags & CHANGE_ACCESS == 0;
        let known = CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS;
        if flags == 0 || flags & !known != 0 || is_range_missing || is_access_lost {
            return Err(Errno::INVALID);
        }
        if flags & CHANGE_PD != 0 {
            // SAFETY: the application's pointer is a protection domain.
            unsafe { pd_of(pd)? };
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { change(object, flags, pd, (addr, length), access_flags) }.map_or_else(
            |errno| {
                set_errno(errno);
                REFUSED
            },
            |()| 0,
        ))
    })
}

/// Changes a region.
///
/// # Safety
///
/// If the flags select them, `pd` is a protection domain of the application and the range is its memory.
unsafe fn change(
    object: &mut Mr,
    flags: c_int,
    pd: *mut ibv_pd,
    (addr, length): (*mut c_void, usize),
    access_flags: c_int,
) -> Result<(), Errno> {
    let mut change = RegionChange::default();
    if flags & CHANGE_PD != 0 {
        // SAFETY: the application's pointer is a protection domain.
        change.pd = Some(unsafe { pd_of(pd)? }.id());
    }
    let (mut access_now, mut on_demand) = (object.access, object.on_demand);
    if flags & CHANGE_ACCESS != 0 {
        access_now = access(access_flags.cast_unsigned())?;
        on_demand = access_flags.cast_unsigned() & IBV_ACCESS_ON_DEMAND != 0;
        change.access = Some(access_now);
    }
    let (new_addr, new_length) =
        if flags & CHANGE_TRANSLATION != 0 { (addr, length) } else { (object.abi.addr, object.abi.length) };
    // The memory may lack write permission, so new rights require a new check.
    if flags & (CHANGE_TRANSLATION | CHANGE_ACCESS) != 0 {
        // SAFETY: registering gives the verbs access to the memory.
        let memory = unsafe { memory(new_addr, new_length, access_now, on_demand)? };
        let first = if flags & CHANGE_TRANSLATION != 0 { new_addr as u64 } else { object.first()? };
        change.memory = Some((first, memory));
    }
    let made = object.open.raw().change_region(LKey(object.abi.lkey), change)?;
    if flags & CHANGE_PD != 0 {
        object.abi.pd = pd;
    }
    (object.abi.addr, object.abi.length) = (new_addr, new_length);
    (object.access, object.on_demand) = (made.access, on_demand);
    Ok(())
}

/// Populates the pages of on-demand regions. Without a flag the advice may be followed later; here it is
/// followed at once.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_int,
    flags: u32,
    elements: *mut ibv_sge,
    number: u32,
) -> c_int {
    status(Verb::ibv_advise_mr, || {
        // SAFETY: the application's pointers are a protection domain and `number` elements.
        let (domain, elements) = unsafe {
            let elements = if elements.is_null() || number == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(elements, number as usize)
            };
            (pd_of(pd)?, elements)
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || elements.is_empty() {
            return Err(Errno::INVALID);
        }
        let write = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => false,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
            // This advice excludes unmapped pages, and mapped pages need nothing.
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => return Ok(()),
            _ => return Err(Errno::UNSUPPORTED),
        };
        for element in elements {
            let region = domain.open.raw().query_region(LKey(element.lkey))?;
            let inside =
                element.addr.checked_sub(region.addr).and_then(|at| at.checked_add(element.length.into()));
            if inside.is_none_or(|end| end > region.len as u64) {
                return Err(Errno(libc::EFAULT));
            }
            if write && !region.access.contains(Access::LOCAL_WRITE) {
                return Err(Errno(libc::EPERM));
            }
            // SAFETY: the pages are the application's; they are only checked, and the advice changes no
            // content.
            let there =
                unsafe { ForeignMemory::new(element.addr as *mut u8, element.length as usize, write) };
            there?;
        }
        Ok(())
    })
}

/// A region of all addresses that reads as zeros and discards writes.
#[derive(Debug)]
struct NullMemory;

impl Memory for NullMemory {
    fn len(&self) -> usize {
        usize::MAX
    }

    fn read(&self, _offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        out.fill(0);
        Ok(())
    }

    fn write(&self, _offset: usize, _data: &[u8]) -> Result<(), OutOfBounds> {
        Ok(())
    }

    fn compare_swap(&self, _offset: usize, _compare: u64, _swap: u64) -> Result<u64, OutOfBounds> {
        Ok(0)
    }

    fn fetch_add(&self, _offset: usize, _add: u64) -> Result<u64, OutOfBounds> {
        Ok(0)
    }

    fn store(&self, _offset: usize, _bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        Ok(())
    }
}

/// Peers may access the region as well: it discards their writes, and their reads return zeros.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer(Verb::ibv_alloc_null_mr, || {
        // SAFETY: the application's pointer is a protection domain.
        let domain = unsafe { pd_of(pd)? };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let made = domain.open.raw().register(domain.id(), 0, Arc::new(NullMemory), access)?;
        Ok(object(pd, domain, (std::ptr::null_mut(), usize::MAX), &made, false))
    })
}

/// Always fails, because another driver has no device memory to export.
pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _descriptor: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    pointer(Verb::ibv_reg_dmabuf_mr, || Err(Errno::UNSUPPORTED))
}
