//! A library for `LD_PRELOAD` that shows a program the files of RDMA devices.
//!
//! Some programs (UCX, and with it most builds of MPI) look for devices in `/sys/class/infiniband` and `/dev/infiniband` themselves,
//! where a kernel without RDMA has nothing, and where only root could put something. This library leads the functions of libc that
//! take the name of a file to the same names below the folder in `ROCE_SYSFS`, which `roce run` makes; every other name is left alone.
//! Without that variable nothing changes.
//!
//! It also answers requests of the netlink protocol RDMA (`netlink`), and tells `roce run` that the program began and which other libraries
//! of verbs a process has (`report`).
//!
//! A name is recognised as programs write it, by its beginning: `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and the like, and
//! `/dev/infiniband`. Functions that are called here never allocate, since allocators open files.

mod buffer;
pub mod functions;
pub mod netlink;
mod report;
mod root;

use std::ffi::{CStr, c_char};

/// The names that are led elsewhere begin with one of these, and go on with `/`, with `_`, or not at all.
const BEGINNINGS: [&[u8]; 2] = [b"/sys/class/infiniband", b"/dev/infiniband"];

/// The longest name of a file, with the zero at its end.
const LONGEST: usize = libc::PATH_MAX as usize;

/// Whether a file belongs to RDMA devices.
fn is_of_devices(name: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| matches!(name.strip_prefix(*beginning), Some([] | [b'/' | b'_', ..])))
}

/// Calls `function` with the name to be used instead of `path`.
///
/// # Safety
///
/// `path` is null or a text with a zero at its end.
unsafe fn redirected<T>(path: *const c_char, function: impl FnOnce(*const c_char) -> T) -> T {
    // The first character tells for most names, and null is for libc to refuse.
    // SAFETY: a text has at least the zero at its end.
    if path.is_null() || unsafe { *path }.cast_unsigned() != b'/' {
        return function(path);
    }
    // SAFETY: as the caller promises.
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
