//! Reports to `roce run` about processes: that the program started, and foreign copies of libibverbs or
//! librdmacm.
//!
//! The verbs libraries of this project cannot see either. A line consists of the process ID, `-` for the
//! device, a word and a fact, separated by tabs.

use std::ffi::{CStr, c_int, c_void};

use crate::buffer::{Buffer, LONGEST};
use crate::root::{report_file, root};

/// Environment variable with the ID of the process that started the program.
const PARENT: &CStr = c"ROCE_RUN";

/// Reports that the program itself started, so it is linked dynamically. Other processes, such as a shell's,
/// do not report.
pub(crate) fn start() {
    // SAFETY: the name is NUL-terminated, and no thread changes the environment yet.
    let parent = unsafe { libc::getenv(PARENT.as_ptr()) };
    if parent.is_null() {
        return;
    }
    // SAFETY: a value is NUL-terminated.
    let parent = unsafe { CStr::from_ptr(parent) }.to_bytes();
    // SAFETY: the call only returns a number.
    let own = Buffer::<16>::of_number(i64::from(unsafe { libc::getppid() }));
    if parent == own.bytes() {
        append(b"started", b"");
    }
}

/// Reports each libibverbs and librdmacm of this process that is not in the folder of `roce run`.
pub(crate) extern "C" fn foreign_libraries() {
    if report_file().is_some() && root().is_some() {
        // SAFETY: the callback only runs during the call and uses no data.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description of a library.
    let name = unsafe { (*info).dlpi_name };
    if !name.is_null() {
        // SAFETY: the loader's name is NUL-terminated.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        if is_foreign(path) {
            append(b"foreign", path);
        }
    }
    0
}

/// Returns whether a library is a copy of libibverbs or librdmacm outside the folder beside the files.
fn is_foreign(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let folder = root().and_then(|root| root.strip_suffix(b"files")).unwrap_or_default();
    (name.starts_with(b"libibverbs") || name.starts_with(b"librdmacm")) && !path.starts_with(folder)
}

/// Appends a line with a single write, so lines of different processes do not mix.
fn append(word: &[u8], fact: &[u8]) {
    let Some(file) = report_file() else { return };
    let mut name = Buffer::<LONGEST>::new();
    let mut line = Buffer::<{ LONGEST + 64 }>::new();
    // SAFETY: the call only returns a number.
    line.push(Buffer::<16>::of_number(i64::from(unsafe { libc::getpid() })).bytes());
    for part in [b"\t-\t".as_slice(), word, b"\t", fact, b"\n"] {
        line.push(part);
    }
    name.push(file);
    name.push(b"\0");
    // SAFETY: the name is NUL-terminated, and the length is that of the line. These are direct system calls,
    // because this library replaces the libc function of that name.
    unsafe {
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
        let descriptor = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.bytes().as_ptr(), flags, 0);
        if descriptor >= 0 {
            libc::syscall(libc::SYS_write, descriptor, line.bytes().as_ptr(), line.bytes().len());
            libc::syscall(libc::SYS_close, descriptor);
        }
    }
}
