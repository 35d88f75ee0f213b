//! The wait in which a thread sleeps, and the guard against the cancellation of a thread: see
//! [`wait`](crate::wait).

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `PTHREAD_CANCEL_DISABLE`.
pub(crate) const CANCEL_DISABLE: c_int = 1;

// The function may unwind; the declaration of the crate `libc` says that it does not.
unsafe extern "C-unwind" {
    pub(crate) fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// A guard that keeps the thread from being cancelled until it is dropped.
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: changes a flag of this thread, and writes to a variable of this function.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: restores the previous state. A pending request takes effect at the next cancellation point.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// A wait in the thread-local variable.
struct Asleep(Box<dyn Any>);

impl Asleep {
    fn new(wait: Box<dyn Any>) -> Self {
        SLEEPERS.fetch_add(1, Ordering::Relaxed);
        Self(wait)
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        SLEEPERS.fetch_sub(1, Ordering::Relaxed);
    }
}

thread_local! {
    /// The wait in which this thread sleeps, or which it has left. Not a `RefCell`: a signal handler that
    /// jumped out while it was borrowed would leave it so.
    static ASLEEP: Cell<Option<Asleep>> = const { Cell::new(None) };
}

/// Number of threads with a wait in their variable. If it is zero, calls need not check the variable.
static SLEEPERS: AtomicUsize = AtomicUsize::new(0);

/// Drops a wait that this thread has left. Every call begins with this.
#[inline]
pub(crate) fn forget_left() {
    if SLEEPERS.load(Ordering::Relaxed) > 0 {
        drop(take());
    }
}

/// Keeps a wait while its thread sleeps.
pub(crate) fn keep(wait: Box<dyn Any>) {
    ASLEEP.set(Some(Asleep::new(wait)));
}

/// Takes the wait that this thread keeps.
#[cold]
pub(crate) fn take() -> Option<Box<dyn Any>> {
    let mut asleep = ASLEEP.try_with(Cell::take).ok().flatten()?;
    Some(std::mem::replace(&mut asleep.0, Box::new(())))
}
