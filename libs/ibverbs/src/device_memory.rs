//! Device memory. On this device it is memory of the library, which a program accesses by copies and by
//! regions over it.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::verbs::{Access, Memory, OutOfBounds, SharedMemory};
use roce_fault::verbs::Verb;

use crate::abi::{IBV_ACCESS_ZERO_BASED, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::answer::{Errno, count, pointer, status};
use crate::context::open_of;
use crate::domain::pd_of;
use crate::live::{self, Kind, Object};
use crate::memory::{access, object};

/// Maximum number of bytes of one allocation. Hardware has some hundred KiB in all.
pub(crate) const MAX_SIZE: usize = 1 << 20;
/// Alignment of the start and length of copies, as on hardware.
const ALIGNMENT: usize = 4;

/// An `ibv_dm` with the state of the library.
#[repr(C)]
struct Dm {
    abi: ibv_dm,
    memory: Arc<SharedMemory>,
}

impl Object for Dm {
    const KIND: Kind = Kind::DeviceMemory;
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread frees the memory.
unsafe fn dm_of<'a>(dm: *mut ibv_dm) -> Result<&'a Dm, Errno> {
    // SAFETY: the `ibv_dm` is the first field of a `Dm`.
    unsafe { live::object(dm.cast::<Dm>()) }
}

pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attributes: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    static NEXT_HANDLE: AtomicU32 = AtomicU32::new(0);
    pointer(Verb::ibv_alloc_dm, || {
        // SAFETY: the application's pointers are an open context and attributes.
        let attributes = unsafe {
            open_of(context)?;
            attributes.as_ref().ok_or(Errno::INVALID)?
        };
        // A program uses only offsets, so every alignment is satisfied. An alignment above the page size is
        // treated as a mistake.
        if attributes.comp_mask != 0 || attributes.length == 0 || attributes.log_align_req > 12 {
            return Err(Errno::INVALID);
        }
        if attributes.length > MAX_SIZE {
            return Err(Errno::NO_MEMORY);
        }
        let memory = Arc::new(SharedMemory::try_new(attributes.length).map_err(|_| Errno::NO_MEMORY)?);
        let abi = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: NEXT_HANDLE.fetch_add(1, Ordering::Relaxed),
        };
        Ok(live::release(Box::new(Dm { abi, memory })).cast())
    })
}

/// Frees the memory if no region over it exists.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    status(Verb::ibv_free_dm, || {
        // SAFETY: the application's pointer is memory that it has not freed.
        let object = unsafe { dm_of(dm)? };
        if Arc::strong_count(&object.memory) > 1 {
            return Err(Errno::BUSY);
        }
        // SAFETY: nothing uses it any more.
        drop(unsafe { live::reclaim(dm.cast::<Dm>()) });
        Ok(())
    })
}

/// Returns the start of a copy.
fn place(memory: &SharedMemory, offset: u64, length: usize) -> Result<usize, Errno> {
    let start = usize::try_from(offset).map_err(|_| Errno(libc::EFAULT))?;
    OutOfBounds::check(start, length, memory.len()).map_err(|_| Errno(libc::EFAULT))?;
    if (start | length).is_multiple_of(ALIGNMENT) { Ok(start) } else { Err(Errno(libc::EFAULT)) }
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    status(Verb::ibv_memcpy_to_dm, || {
        // SAFETY: the application's pointer is memory that it has not freed.
        let object = unsafe { dm_of(dm)? };
        let start = place(&object.memory, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        // SAFETY: the application has `length` bytes there, which it does not change meanwhile.
        let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
        Memory::write(&*object.memory, start, data).map_err(|_| Errno(libc::EFAULT))
    })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    status(Verb::ibv_memcpy_from_dm, || {
        // SAFETY: the application's pointer is memory that it has not freed.
        let object = unsafe { dm_of(dm)? };
        let start = place(&object.memory, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let mut bytes = vec![0; length];
        Memory::read(&*object.memory, start, &mut bytes).map_err(|_| Errno(libc::EFAULT))?;
        // SAFETY: the application has room for `length` bytes there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), length) };
        Ok(())
    })
}

/// A part of an allocation.
#[derive(Debug)]
struct Part {
    whole: Arc<SharedMemory>,
    start: usize,
    len: usize,
}

impl Part {
    fn at(&self, offset: usize, len: usize) -> Result<usize, OutOfBounds> {
        OutOfBounds::check(offset, len, self.len)?;
        Ok(self.start + offset)
    }
}

impl Memory for Part {
    /// Returns at least 1, because the engine does not support empty regions. This library does, like
    /// hardware: every access to one fails.
    fn len(&self) -> usize {
        self.len.max(1)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        Memory::read(&*self.whole, self.at(offset, out.len())?, out)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        Memory::write(&*self.whole, self.at(offset, data.len())?, data)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds> {
        Memory::compare_swap(&*self.whole, self.at(offset, 8)?, compare, swap)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        Memory::fetch_add(&*self.whole, self.at(offset, 8)?, add)
    }

    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        Memory::store(&*self.whole, self.at(offset, 8)?, bytes)
    }
}

/// Registers a part of an allocation. Work requests and peers use addresses from 0 on.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    pointer(Verb::ibv_reg_dm_mr, || {
        // SAFETY: the application's pointers are a protection domain and device memory.
        let (domain, piece) = unsafe { (pd_of(pd)?, dm_of(dm)?) };
        // A program has no addresses for memory that it cannot see.
        if flags & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(Errno::INVALID);
        }
        let start = usize::try_from(offset).map_err(|_| Errno::INVALID)?;
        OutOfBounds::check(start, length, piece.memory.len()).map_err(|_| Errno::INVALID)?;
        let part = Part { whole: Arc::clone(&piece.memory), start, len: length };
        let access = access(flags)? | Access::ZERO_BASED;
        let made = domain.open.raw().register(domain.id(), 0, Arc::new(part), access)?;
        Ok(object(pd, domain, (std::ptr::null_mut(), length), &made, false))
    })
}

/// Always fails, because device memory has no dma-buf.
pub(crate) extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut ibv_dm) -> c_int {
    count(Verb::ibv_dm_export_dmabuf_fd, || Err(Errno::UNSUPPORTED))
}
