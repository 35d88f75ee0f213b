//! Verbs for processes and the system: fork, sysfs, and unsupported objects of other processes.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use roce_fault::verbs::Verb;

use crate::abi::{IBV_FORK_UNNEEDED, ibv_context, ibv_mr, ibv_pd};
use crate::answer::{Errno, count, pointer, status};

/// Succeeds without doing anything: this process copies memory itself, so a child needs no protection.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    status(Verb::ibv_fork_init, || Ok(()))
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

/// Returns the file of another libibverbs in this process, such as that of a Python wheel. Its objects and
/// ours have different layouts, so a program that mixes them misinterprets memory.
///
/// The function asks the kernel and not the loader: `dl_iterate_phdr` waits for a lock of the loader, which
/// another thread may have held when this process was forked.
pub(crate) fn another_libibverbs() -> Option<PathBuf> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    another_in(&maps, another_libibverbs as *const () as u64)
}

/// Returns the first mapped file whose name begins with `libibverbs`, except the file that is mapped at
/// `own`.
fn another_in(maps: &[u8], own: u64) -> Option<PathBuf> {
    // Each line contains range, access, offset, device, inode and, after spaces, the path.
    let files = || {
        maps.split(|byte| *byte == b'\n').filter_map(|line| {
            let path = &line[line.iter().position(|byte| *byte == b'/')?..];
            let (begin, end) =
                std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(begin)?..number(end)?, Path::new(OsStr::from_bytes(path))))
        })
    };
    let (_, own) = files().find(|(range, _)| range.contains(&own))?;
    let is_other = |path: &&Path| {
        *path != own && path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"libibverbs"))
    };
    files().map(|(_, path)| path).find(is_other).map(Path::to_owned)
}

/// Returns the reason why a process with another libibverbs gets no devices, and the remedy.
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

/// Reads a file of a directory into `buffer`, without the line end; returns the length.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    count(Verb::ibv_read_sysfs_file, || {
        if folder.is_null() || file.is_null() || buffer.is_null() || size == 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application gives two null-terminated strings.
        let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
        let (folder, file) = (folder.to_str().map_err(|_| Errno::INVALID)?, file.to_str());
        let path = Path::new(folder).join(file.map_err(|_| Errno::INVALID)?);
        // SAFETY: the application gives a buffer of this size, which nobody else accesses until this returns.
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

/// Always fails: the hints are for a device that reads memory itself.
pub(crate) extern "C" fn ibv_alloc_dmah(_context: *mut ibv_context, _attributes: *mut c_void) -> *mut c_void {
    pointer(Verb::ibv_alloc_dmah, || Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_dealloc_dmah(_hints: *mut c_void) -> c_int {
    status(Verb::ibv_dealloc_dmah, || Err(Errno::UNSUPPORTED))
}

/// Always fails, because completion counters are not supported.
pub(crate) extern "C" fn ibv_create_comp_cntr(
    _context: *mut ibv_context,
    _attributes: *mut c_void,
) -> *mut c_void {
    pointer(Verb::ibv_create_comp_cntr, || Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_import_device(_descriptor: c_int) -> *mut ibv_context {
    pointer(Verb::ibv_import_device, || Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    pointer(Verb::ibv_import_pd, || Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    pointer(Verb::ibv_import_mr, || Err(Errno::UNSUPPORTED))
}

pub(crate) extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    pointer(Verb::ibv_import_dm, || Err(Errno::UNSUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_library_is_found_among_the_mappings() {
        let maps = b"7f00-7f10 r--p 0 08:01 5 /opt/roce/libibverbs.so.1\n7f10-7f20 r-xp 0 08:01 5 /opt/roce/libibverbs.so.1\n\
                     7f30-7f40 r-xp 0 08:01 6       /usr/lib/libc.so.6\n7f50-7f60 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(another_in(maps, 0x7f18), None);
        let more = [&maps[..], b"7f70-7f80 r-xp 0 08:01 7 /venv/a b/libibverbs-1a2b.so.1\n"].concat();
        assert_eq!(another_in(&more, 0x7f18), Some("/venv/a b/libibverbs-1a2b.so.1".into()));
        assert_eq!(another_in(&more, 0x1), None, "this code lies in no file");
        assert_eq!(another_in(b"", 0x7f18), None);
    }
}
