//! What `roce run` is told of a process that the libraries of verbs do not see: that it began, and that it has a libibverbs or a librdmacm
//! that is not ours. A line is the number of the process, `-` for the device, a word and a fact, with tabs between them.

use std::ffi::{CStr, c_int, c_void};

use crate::LONGEST;
use crate::buffer::Buffer;
use crate::root::{report_file, root};

/// The environment variable with the number of the process that started the program.
const PARENT: &CStr = c"ROCE_RUN";

/// Tells that the program itself began, and so that it is linked dynamically. Other processes, such as those of a shell, tell nothing.
pub(crate) fn start() {
    // SAFETY: the name has a zero at its end, and no thread changes the environment yet.
    let parent = unsafe { libc::getenv(PARENT.as_ptr()) };
    if parent.is_null() {
        return;
    }
    // SAFETY: a value has a zero at its end.
    let parent = unsafe { CStr::from_ptr(parent) }.to_bytes();
    // SAFETY: asks the kernel for a number.
    let own = Buffer::<16>::of_number(i64::from(unsafe { libc::getppid() }));
    if parent == own.bytes() {
        append(b"started", b"");
    }
}

/// Tells of each libibverbs and librdmacm of this process that is not in the folder of `roce run`.
pub(crate) extern "C" fn foreign_libraries() {
    if report_file().is_some() && root().is_some() {
        // SAFETY: the function is called before this returns, and takes no data.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the loader describes a library.
    let name = unsafe { (*info).dlpi_name };
    if !name.is_null() {
        // SAFETY: the loader's name has a zero at its end.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        if is_foreign(path) {
            append(b"foreign", path);
        }
    }
    0
}

/// Whether a library does what ours do, and is not in the folder beside the files.
fn is_foreign(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let folder = root().and_then(|root| root.strip_suffix(b"files")).unwrap_or_default();
    (name.starts_with(b"libibverbs") || name.starts_with(b"librdmacm")) && !path.starts_with(folder)
}

/// Appends a line with one write, so that those of processes do not mix.
fn append(word: &[u8], fact: &[u8]) {
    let Some(file) = report_file() else { return };
    let mut name = Buffer::<LONGEST>::new();
    let mut line = Buffer::<{ LONGEST + 64 }>::new();
    // SAFETY: asks the kernel for a number.
    line.push(Buffer::<16>::of_number(i64::from(unsafe { libc::getpid() })).bytes());
    for part in [b"\t-\t".as_slice(), word, b"\t", fact, b"\n"] {
        line.push(part);
    }
    name.push(file);
    name.push(b"\0");
    // SAFETY: the name has a zero at its end, and the line is as long as is said. The kernel is called directly, because libc's function
    // of this name is the one of this library.
    unsafe {
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
        let descriptor = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.bytes().as_ptr(), flags, 0);
        if descriptor >= 0 {
            libc::syscall(libc::SYS_write, descriptor, line.bytes().as_ptr(), line.bytes().len());
            libc::syscall(libc::SYS_close, descriptor);
        }
    }
}
