//! Buffers that the library allocates (`ibv_alloc_buf`), and regions over them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_FD,
    IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA, ibv_mr, ibv_mr_init_attr, ibv_pd,
};
use crate::answer::{Errno, count, pointer, put, value};
use crate::domain::pd_of;
use crate::live::{self, Kind, Object};
use crate::memory::{Wanted, register};

/// Pages of the system that belong to a buffer and to the regions over it.
#[derive(Debug)]
pub(crate) struct Pages {
    first: *mut c_void,
    size: usize,
}

// SAFETY: the pages belong to this object until it is dropped; the application synchronizes access to their
// content.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `size` zero bytes.
    fn map(size: usize) -> Result<Self, Errno> {
        if size == 0 {
            return Err(Errno::INVALID);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the system chooses does not replace another one.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if first == libc::MAP_FAILED { Err(Errno::NO_MEMORY) } else { Ok(Self { first, size }) }
    }

    /// Returns whether the range lies inside the buffer.
    fn contains(&self, addr: *const c_void, length: usize) -> bool {
        let offset = addr.addr().checked_sub(self.first.addr());
        offset.and_then(|offset| offset.checked_add(length)).is_some_and(|end| end <= self.size)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which no buffer and no region uses any more.
        unsafe { libc::munmap(self.first, self.size) };
    }
}

/// The handle of a buffer. The memory stays until the regions over it are deregistered as well.
struct Buffer(Arc<Pages>);

impl Object for Buffer {
    const KIND: Kind = Kind::Buffer;
}

/// An opaque `struct ibv_buf`.
#[repr(C)]
pub(crate) struct ibv_buf {
    _private: [u8; 0],
}

pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    handle: *mut *mut ibv_buf,
) -> *mut c_void {
    pointer(|| {
        // SAFETY: the application's pointer is a protection domain.
        unsafe { pd_of(pd)? };
        if handle.is_null() {
            return Err(Errno::INVALID);
        }
        let pages = Pages::map(size)?;
        let first = pages.first;
        // SAFETY: the application has room for a pointer.
        unsafe { put(handle, live::release(Box::new(Buffer(Arc::new(pages)))).cast())? };
        Ok(first)
    })
}

pub(crate) unsafe extern "C" fn ibv_free_buf(buffer: *mut ibv_buf) {
    // SAFETY: the application gives a buffer that it has not freed; regions over it hold the pages.
    value((), || drop(unsafe { live::reclaim(buffer.cast::<Buffer>()) }));
}

/// Fails, because no dma-buf exists for a buffer.
pub(crate) extern "C" fn ibv_export_buf_dmabuf_fd(_buffer: *mut ibv_buf) -> c_int {
    count(|| Err(Errno(libc::ENODATA)))
}

pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buffer: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let attributes = ibv_mr_init_attr {
        length,
        access,
        comp_mask: IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF,
        iova: 0,
        addr,
        fd: 0,
        fd_offset: 0,
        dmah: std::ptr::null_mut(),
        buf: buffer.cast(),
    };
    // SAFETY: the application's promises are those of the other verb.
    unsafe { ibv_reg_mr_ex(pd, &raw const attributes) }
}

pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attributes: *const ibv_mr_init_attr,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the application's pointers are a protection domain and attributes.
        let (domain, attributes) = unsafe { (pd_of(pd)?, attributes.as_ref().ok_or(Errno::INVALID)?) };
        let has = |bit: u64| attributes.comp_mask & bit != 0;
        // Memory behind a descriptor, and hints for a device that reads memory itself.
        let unsupported = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_DMAH;
        let known = unsupported | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF;
        if attributes.comp_mask & !known != 0 || has(unsupported) {
            return Err(Errno::UNSUPPORTED);
        }
        if !has(IBV_REG_MR_MASK_ADDR) {
            return Err(Errno::INVALID);
        }
        let pages = if has(IBV_REG_MR_MASK_BUF) {
            // SAFETY: no other thread frees the buffer that the application gives.
            let pages = &unsafe { live::object(attributes.buf.cast::<Buffer>())? }.0;
            if !pages.contains(attributes.addr, attributes.length) {
                return Err(Errno::INVALID);
            }
            Some(Arc::clone(pages))
        } else {
            None
        };
        let (addr, length) = (attributes.addr, attributes.length);
        let iova = if has(IBV_REG_MR_MASK_IOVA) { attributes.iova } else { addr as u64 };
        let wanted = Wanted { addr, length, iova, flags: attributes.access.cast_unsigned(), pages };
        // SAFETY: registering gives the verbs access to the memory.
        unsafe { register(pd, domain, wanted) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_outside_of_a_buffer_is_recognised() {
        let pages = Pages::map(10_000).unwrap();
        assert_eq!(pages.first.addr() % 4096, 0);
        assert!(
            pages.contains(pages.first, 10_000) && pages.contains(pages.first.wrapping_byte_add(9_999), 1)
        );
        for (offset, length) in [(0, 10_001), (1, 10_000), (10_000, 1), (0, usize::MAX), (usize::MAX, 2)] {
            assert!(!pages.contains(pages.first.wrapping_byte_add(offset), length), "{offset} {length}");
        }
        assert_eq!(Pages::map(0).err(), Some(Errno::INVALID));
        assert_eq!(Pages::map(usize::MAX).err(), Some(Errno::NO_MEMORY));
    }
}
