//! Descriptors that one thread writes and another waits for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// An eventfd: readable from [`Self::signal`] to the next [`Self::clear`].
#[derive(Debug)]
pub(crate) struct Wake {
    descriptor: OwnedFd,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { descriptor })
    }

    pub(crate) fn signal(&self) {
        // The only failure is a counter at its maximum, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read means that it is clear already.
        let _ = rustix::io::read(&self.descriptor, &mut count);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Sleeps until one of the descriptors is readable or the time is over; returns whether one was.
pub(crate) fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    let mut polled = [const { None }; 4];
    for (slot, descriptor) in polled.iter_mut().zip(descriptors) {
        *slot = Some(PollFd::from_borrowed_fd(*descriptor, PollFlags::IN));
    }
    let mut polled: Vec<PollFd<'_>> = polled.into_iter().flatten().collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
