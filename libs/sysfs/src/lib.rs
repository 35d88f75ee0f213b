//! A library for `LD_PRELOAD` that provides the files of RDMA devices to a program.
//!
//! Some programs (UCX, and therefore most builds of MPI) look for devices in `/sys/class/infiniband` and
//! `/dev/infiniband` themselves. These folders are empty in a kernel without RDMA, and only root could add
//! files. This library redirects the path arguments of libc functions to the folder in `ROCE_SYSFS`, which
//! `roce run` creates. All other paths are unchanged. Without that variable, the library does nothing.
//!
//! It also answers requests of the netlink protocol RDMA (`netlink`). It reports to `roce run` that the
//! program started, and which other verbs libraries a process has loaded (`report`).
//!
//! Paths are recognized by their beginning: `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! similar names, and `/dev/infiniband`. The functions in this library never allocate, because allocators
//! open files.

mod buffer;
pub mod functions;
pub mod netlink;
mod report;
mod root;

use std::ffi::{CStr, c_char};

use buffer::LONGEST;

/// Prefixes of redirected paths. The prefix must be followed by `/`, by `_` or by the end of the path.
const BEGINNINGS: [&[u8]; 2] = [b"/sys/class/infiniband", b"/dev/infiniband"];

/// Function that the loader calls before the program starts.
// SAFETY: the section is an array of such functions.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALIZER: extern "C" fn() = initialize;

/// Function that the loader calls when the program exits.
// SAFETY: the section is an array of such functions.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINALIZER: extern "C" fn() = report::foreign_libraries;

extern "C" fn initialize() {
    root::read_environment();
    report::start();
}

/// Returns whether a path belongs to RDMA devices.
fn is_of_devices(name: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| matches!(name.strip_prefix(*beginning), Some([] | [b'/' | b'_', ..])))
}

/// Calls `function` with `path` or with the path that replaces it.
///
/// # Safety
///
/// `path` must be null or a NUL-terminated string.
unsafe fn redirected<T>(path: *const c_char, function: impl FnOnce(*const c_char) -> T) -> T {
    // The first character decides for most paths. libc rejects null.
    // SAFETY: a string has at least its terminating NUL.
    if path.is_null() || unsafe { *path }.cast_unsigned() != b'/' {
        return function(path);
    }
    // SAFETY: the caller guarantees that `path` is NUL-terminated.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    match root::root() {
        Some(root) if is_of_devices(name) && root.len() + name.len() < LONGEST => {
            let mut place = [0_u8; LONGEST];
            place[..root.len()].copy_from_slice(root);
            place[root.len()..][..name.len()].copy_from_slice(name);
            function(place.as_ptr().cast())
        }
        _ => function(path),
    }
}
