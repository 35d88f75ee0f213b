//! Descriptors of rsockets, and the results of calls of the library.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::answer::Errno;

/// Maximum sleep, because another thread may have taken the event that this one waits for.
pub(super) const LONGEST_SLEEP_MS: c_int = 500;

/// Returns the error number of the library's last failed call.
pub(super) fn last_errno() -> Errno {
    std::io::Error::last_os_error().into()
}

/// Converts the result of a function of the library.
pub(super) fn called(answer: c_int) -> Result<(), Errno> {
    if answer == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes fetching events from this descriptor non-blocking.
pub(super) fn set_nonblocking(descriptor: RawFd) -> Result<(), Errno> {
    // SAFETY: changes a flag of a descriptor that is open.
    let changed = unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK) };
    if changed < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Makes the descriptor of an rsocket readable whenever this one is.
pub(super) fn watch_descriptor(watch: &OwnedFd, descriptor: RawFd) -> Result<(), Errno> {
    // SAFETY: the descriptor belongs to an object that lives at least as long as the state.
    let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    let added = epoll::add(watch, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    added.map_err(|error| std::io::Error::from(error).into())
}

/// Waits until a descriptor is readable, or for [`LONGEST_SLEEP_MS`].
pub(super) fn wait_readable(descriptor: &OwnedFd) -> Result<(), Errno> {
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
    let longest = Timespec { tv_sec: 0, tv_nsec: i64::from(LONGEST_SLEEP_MS) * 1_000_000 };
    poll(&mut descriptors, Some(&longest)).map_err(std::io::Error::from)?;
    Ok(())
}
