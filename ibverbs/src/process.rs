//! Verbs about processes and the system: fork, sysfs, and objects of other processes, which there are none of.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::abi::{IBV_FORK_UNNEEDED, ibv_context, ibv_mr, ibv_pd};
use crate::answer::{Errno, count, pointer, status, value};

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

/// The file of another libibverbs in this process, such as that of a Python wheel. Its objects and ours have nothing in common, and a program
/// that mixes them reads memory that is not what it takes it for.
pub(crate) fn another_libibverbs() -> Option<PathBuf> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        value(0, || {
            // SAFETY: the loader describes a library; `found` is the variable below.
            let (info, found) = unsafe { (&*info, &mut *found.cast::<Option<PathBuf>>()) };
            if info.dlpi_name.is_null() {
                return 0;
            }
            // SAFETY: the loader's name has a zero at its end.
            let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()));
            let name = path.file_name().unwrap_or_default().as_bytes();
            if !name.starts_with(b"libibverbs") {
                return 0;
            }
            // SAFETY: the loader has as many headers in memory.
            let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            let own = visit as *const () as u64;
            let is_own = headers.iter().any(|header| {
                let begin = info.dlpi_addr.wrapping_add(header.p_vaddr);
                header.p_type == libc::PT_LOAD && (begin..begin.wrapping_add(header.p_memsz)).contains(&own)
            });
            if is_own {
                return 0;
            }
            *found = Some(path.to_owned());
            1
        })
    }
    let mut found: Option<PathBuf> = None;
    // SAFETY: the function is called before this returns, with a pointer to the variable.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// Why a process with another libibverbs gets no devices, and what to do.
pub(crate) fn refusal_of_another(other: &Path) -> String {
    let name = other.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "the process has another libibverbs, {}, whose objects cannot be mixed with those of roce; roce run --alias {name} loads \
         roce under that name",
        other.display()
    )
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
        let path = Path::new(folder).join(file.map_err(|_| Errno::INVALID)?);
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

/// Hints for a device that reads memory itself.
pub(crate) extern "C" fn ibv_alloc_dmah(_context: *mut ibv_context, _attributes: *mut c_void) -> *mut c_void {
    pointer(|| Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_dealloc_dmah(_hints: *mut c_void) -> c_int {
    status(|| Err(Errno::UNSUPPORTED))
}

/// There are no completion counters.
pub(crate) extern "C" fn ibv_create_comp_cntr(
    _context: *mut ibv_context,
    _attributes: *mut c_void,
) -> *mut c_void {
    pointer(|| Err(Errno::UNSUPPORTED))
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
