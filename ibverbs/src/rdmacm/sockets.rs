//! The names of rsockets, which there are none of: their calls fail with `EOPNOTSUPP`. `rpoll`, which programs also use for
//! descriptors of the system, is `poll`.

use std::ffi::c_int;

use crate::answer::{Errno, count};

pub(super) unsafe extern "C" fn rpoll(
    descriptors: *mut libc::pollfd,
    number: libc::nfds_t,
    timeout: c_int,
) -> c_int {
    // SAFETY: the application's, as for `poll`.
    unsafe { libc::poll(descriptors, number, timeout) }
}

/// What every other function answers, whatever it is given.
pub(super) extern "C" fn no_rsockets() -> isize {
    count(|| Err(Errno::UNSUPPORTED))
}
