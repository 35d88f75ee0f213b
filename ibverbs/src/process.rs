//! Verbs about processes and the system: fork, sysfs, and objects of other processes, which there are none of.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Read;

use crate::abi::{IBV_FORK_UNNEEDED, ibv_context, ibv_mr, ibv_pd};
use crate::answer::{Errno, count, pointer};

/// Nothing has to be kept from a child: memory is copied by this process, not by a device.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

pub(crate) extern "C" fn ibv_dofork_range(_begin: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_dontfork_range(_begin: *mut c_void, _size: usize) -> c_int {
    0
}

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of a folder into `buffer`, without the line end; returns the length.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    count(|| {
        if folder.is_null() || file.is_null() || buffer.is_null() || size == 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application gives two texts that end with a zero.
        let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
        let (folder, file) = (folder.to_str().map_err(|_| Errno::INVALID)?, file.to_str());
        let path = std::path::Path::new(folder).join(file.map_err(|_| Errno::INVALID)?);
        // SAFETY: the application gives a buffer of this size, which is its own until this returns.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size) };
        let mut len = 0;
        let mut opened = std::fs::File::open(path)?;
        while len < size {
            match opened.read(&mut buffer[len..])? {
                0 => break,
                more => len += more,
            }
        }
        if len > 0 && buffer[len - 1] == b'\n' {
            len -= 1;
        }
        if let Some(end) = buffer.get_mut(len) {
            *end = 0;
        }
        c_int::try_from(len).map_err(|_| Errno::INVALID)
    })
}

pub(crate) extern "C" fn ibv_import_device(_descriptor: c_int) -> *mut ibv_context {
    pointer(|| Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    pointer(|| Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    pointer(|| Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    pointer(|| Err(Errno::UNSUPPORTED))
}
