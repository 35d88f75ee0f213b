//! Signals between threads and tasks: descriptors to write and to wait for, wakers, and joining of threads.

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
        // Writing fails only if the counter has its maximum; then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        // Reading fails if the descriptor is already clear.
        let _ = rustix::io::read(&self.descriptor, &mut count);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Maximum number of descriptors in one wait.
pub(crate) const MOST_DESCRIPTORS: usize = 4;

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// A descriptor is readable.
    Readable,
    /// A signal handler has run, or the timeout has passed.
    Out,
}

/// A sleep until one of several descriptors is readable or a timeout passes.
pub(crate) struct Sleep<'a> {
    descriptors: ArrayVec<BorrowedFd<'a>, MOST_DESCRIPTORS>,
    timeout: Option<Duration>,
}

impl<'a> Sleep<'a> {
    /// Creates a sleep on the first [`MOST_DESCRIPTORS`] of these descriptors.
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
            // The program has closed the descriptor. Without this error, every poll would return at once.
            Ok(_) if polled.iter().any(|polled| polled.revents().contains(PollFlags::NVAL)) => {
                Err(rustix::io::Errno::BADF.into())
            }
            Ok(_) => Ok(Slept::Readable),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sleeps until one of the descriptors is readable or the timeout passes; returns whether one is readable.
pub(crate) fn wait_readable<'a>(
    descriptors: impl IntoIterator<Item = BorrowedFd<'a>>,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    Ok(Sleep::new(descriptors, timeout).sleep()? == Slept::Readable)
}

/// Calls foreign code and catches its panic, so that it does not end this thread. The panic hook has reported
/// the panic.
fn contain(foreign: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(foreign)) {
        tracing::error!("a waker panicked; other tasks are served as before");
        // The drop of the panic payload is foreign code as well.
        std::mem::forget(panic);
    }
}

/// Wakes tasks. If one waker panics, the others are still woken.
pub(crate) fn wake_each(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| contain(|| waker.wake()));
}

/// Drops wakers and the objects that they own. If one drop panics, the others are still dropped.
pub(crate) fn drop_each(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| contain(|| drop(waker)));
}

/// Joins a thread that was asked to end. A thread does not join itself: it may release the last handle of a
/// context through a waker that it called.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // The panic hook has already reported a panic.
        let _ = thread.join();
    }
}
