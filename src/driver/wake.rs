//! Between threads and tasks: descriptors that one writes and another waits for, wakers, and how one ends another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::device::descriptors::aside;

/// An eventfd: readable from [`Self::signal`] to the next [`Self::clear`].
#[derive(Debug)]
pub(crate) struct Wake {
    descriptor: OwnedFd,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = aside(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
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

/// Descriptors that one call waits for.
pub(crate) const MOST_DESCRIPTORS: usize = 4;

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// A descriptor is readable.
    Readable,
    /// A handler of a signal has run, or the time is over.
    Out,
}

/// A sleep until one of some descriptors is readable or a time is over.
pub(crate) struct Sleep<'a> {
    descriptors: ArrayVec<BorrowedFd<'a>, MOST_DESCRIPTORS>,
    timeout: Option<Duration>,
}

impl<'a> Sleep<'a> {
    /// A sleep on the first [`MOST_DESCRIPTORS`] of these.
    pub(crate) fn new(
        descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> Self {
        Self { descriptors: descriptors.into_iter().take(MOST_DESCRIPTORS).collect(), timeout }
    }

    pub(crate) const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn descriptors(&self) -> &[BorrowedFd<'a>] {
        &self.descriptors
    }

    pub(crate) fn sleep(&self) -> io::Result<Slept> {
        let polled = self.descriptors.iter();
        let mut polled: ArrayVec<PollFd<'_>, MOST_DESCRIPTORS> =
            polled.map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
        let timeout = self.timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(Slept::Out),
            // The program has closed it. The poll would return at once, again and again.
            Ok(_) if polled.iter().any(|polled| polled.revents().contains(PollFlags::NVAL)) => {
                Err(rustix::io::Errno::BADF.into())
            }
            Ok(_) => Ok(Slept::Readable),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sleeps until one of the descriptors is readable or the time is over; returns whether one is readable.
pub(crate) fn wait_readable<'a>(
    descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    Ok(Sleep::new(descriptors, timeout).sleep()? == Slept::Readable)
}

/// Calls foreign code that must not end the thread which happens to call it. The hook of panics has reported a panic already.
fn contain(foreign: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(foreign)) {
        tracing::error!("a waker panicked; other tasks are served as before");
        // Its drop is foreign as well.
        std::mem::forget(panic);
    }
}

/// Wakes tasks. A waker that panics does not keep the others from being woken.
pub(crate) fn wake_each(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| contain(|| waker.wake()));
}

/// Drops wakers, and with them what they own. A drop that panics does not keep the others from being dropped.
pub(crate) fn drop_each(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| contain(|| drop(waker)));
}

/// Waits for the end of a thread that has been asked to end. A thread that ends itself, because a waker that it woke
/// released the last handle of a context, is not waited for.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // The hook of panics has reported one already.
        let _ = thread.join();
    }
}
