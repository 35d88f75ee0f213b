//! `ioctl` requests about an interface.

use std::ffi::{c_char, c_ulong};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// Returns a request about the interface `name`.
pub(crate) fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays zero and ends the name.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed() as c_char;
    }
    Ok(request)
}

/// Makes a request that reads and writes one `ifreq`.
///
/// # Safety
///
/// The pointers in the request must lead to memory that the kernel may read and write for `what`.
pub(crate) unsafe fn ask(to: impl AsFd, what: c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: `request` is valid and outlives the call; the caller guarantees the rest.
    let result = unsafe { libc::ioctl(to.as_fd().as_raw_fd(), what as _, &raw mut *request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
