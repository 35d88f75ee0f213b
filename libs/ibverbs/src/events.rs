//! Events: counts of delivered and acknowledged events, and descriptors whose flags applications may change.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, PoisonError};

use roce::device::fork::StaticMutex;
use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_getfl};

use crate::answer::Errno;
use crate::wait::{Sleep, Slept};

/// The events of one object. Destroying the object waits until the application has acknowledged its events.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    /// Decreases only under the lock, so a thread that finds it above 0 under the lock is woken by the next
    /// acknowledgement.
    outstanding: AtomicU64,
}

/// Lock and signal for threads that wait for acknowledgements, of any object.
static WAITING: StaticMutex<()> = StaticMutex::new(());
static CHANGED: Condvar = Condvar::new();

impl Acknowledgements {
    /// Counts an event that is passed to the application now.
    pub(crate) fn deliver(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts `count` events, which the application has acknowledged.
    pub(crate) fn acknowledge(&self, count: u64) {
        let subtract = |outstanding: u64| Some(outstanding.saturating_sub(count));
        let waiting = WAITING.lock();
        // Never fails, because `subtract` always returns a value.
        let _ = self.outstanding.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        drop(waiting);
        CHANGED.notify_all();
    }

    /// Waits until all events are acknowledged.
    pub(crate) fn wait(&self) {
        let mut waiting = WAITING.lock();
        while self.outstanding.load(Ordering::Relaxed) > 0 {
            waiting = CHANGED.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A descriptor for the application that is readable whenever another one is. Its flags are its own: an
/// application decides with `O_NONBLOCK` whether fetching an event waits, and the underlying descriptor never
/// blocks.
#[derive(Debug)]
pub(crate) struct Mirror(OwnedFd);

impl Mirror {
    pub(crate) fn new(of: BorrowedFd<'_>) -> io::Result<Self> {
        let mirror = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&mirror, of, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self(mirror))
    }

    /// Makes the descriptor readable whenever this one is, too.
    pub(crate) fn add(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.0, other, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?)
    }

    /// Returns whether the application has set `O_NONBLOCK`.
    pub(crate) fn is_nonblocking(&self) -> Result<bool, Errno> {
        Ok(fcntl_getfl(&self.0).map_err(io::Error::from)?.contains(OFlags::NONBLOCK))
    }

    /// Returns the sleep of a call that found no event.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if the application has set `O_NONBLOCK`, `EINTR` after a signal.
    pub(crate) fn plan(&self, slept: Slept) -> Result<Sleep, Errno> {
        if self.is_nonblocking()? {
            return Err(Errno::AGAIN);
        }
        if slept == Slept::Interrupted {
            return Err(Errno::INTERRUPTED);
        }
        Ok(Sleep::new([self.0.as_raw_fd()], None))
    }
}

impl AsFd for Mirror {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::fcntl_setfl;

    use super::*;

    #[test]
    fn destroying_waits_for_acknowledgements() {
        let events = Arc::new(Acknowledgements::default());
        events.deliver();
        events.deliver();
        let acknowledging = std::thread::spawn({
            let events = Arc::clone(&events);
            move || {
                events.acknowledge(1);
                events.acknowledge(1);
            }
        });
        events.wait();
        assert_eq!(events.outstanding.load(Ordering::Relaxed), 0);
        acknowledging.join().unwrap();
    }

    #[test]
    fn the_flags_of_the_descriptor_decide_whether_it_waits() {
        let source = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mirror = Mirror::new(source.as_fd()).unwrap();
        fcntl_setfl(&mirror.0, OFlags::NONBLOCK).unwrap();
        assert_eq!(mirror.plan(Slept::NotYet).err(), Some(Errno::AGAIN));
        fcntl_setfl(&mirror.0, OFlags::empty()).unwrap();
        assert!(mirror.plan(Slept::NotYet).is_ok());
        assert_eq!(mirror.plan(Slept::Interrupted).err(), Some(Errno::INTERRUPTED));
    }
}
