//! Buffers that the library allocates (`ibv_alloc_buf`), and regions over them.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_FD,
    IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA, ibv_mr, ibv_mr_init_attr, ibv_pd,
};
use crate::answer::{Errno, count, pointer, put, value};
use crate::domain::pd_of;
use crate::live::{self, Kind, Object};
use crate::memory::{Wanted, register};
use crate::pages::Pages;

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
    pointer(Verb::ibv_alloc_buf, || {
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
    value(Verb::ibv_free_buf, (), || drop(unsafe { live::reclaim(buffer.cast::<Buffer>()) }));
}

/// Fails, because no dma-buf exists for a buffer.
pub(crate) extern "C" fn ibv_export_buf_dmabuf_fd(_buffer: *mut ibv_buf) -> c_int {
    count(Verb::ibv_export_buf_dmabuf_fd, || Err(Errno(libc::ENODATA)))
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
    pointer(Verb::ibv_reg_mr_ex, || {
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
