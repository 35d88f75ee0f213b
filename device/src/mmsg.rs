//! `sendmmsg` and `recvmmsg`, called without the C library's wrappers.
//!
//! A wrapper is a cancellation point: as soon as a process has a second thread, it switches cancellation on before and off
//! after each call, with two atomic exchanges. Nobody cancels threads here, and a device that is looked at all the time
//! makes a million of these calls a second.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends the messages of `headers` without waiting; returns how many the system took.
///
/// # Safety
///
/// What the headers point to is valid for reads until this returns, with the lengths that they give.
pub(super) unsafe fn send(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the slice is as long as its length says; the caller guarantees the rest.
    let sent = unsafe {
        libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), headers.as_mut_ptr(), headers.len(), flags)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Takes in messages that have arrived, without waiting; returns how many.
///
/// # Safety
///
/// What the headers point to is valid for writes until this returns, with the lengths that they give, and nothing else
/// refers to it.
pub(super) unsafe fn receive(socket: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let (flags, no_timeout) = (libc::MSG_DONTWAIT, std::ptr::null_mut::<libc::timespec>());
    // SAFETY: the slice is as long as its length says; the caller guarantees the rest.
    let filled = unsafe {
        let (start, count) = (headers.as_mut_ptr(), headers.len());
        libc::syscall(libc::SYS_recvmmsg, socket.as_raw_fd(), start, count, flags, no_timeout)
    };
    usize::try_from(filled).map_err(|_| io::Error::last_os_error())
}
