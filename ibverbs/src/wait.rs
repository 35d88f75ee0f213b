//! Calls that wait for an event, and may be left while they sleep.
//!
//! With rdma-core these calls sleep in `read`, which is a cancellation point. So a thread may end there (`pthread_cancel`, which unwinds its
//! frames by force), and a handler of a signal may jump out of it (`siglongjmp`, after which no destructor runs). Here the frames of such
//! a call hold nothing while it sleeps: no lock, no reference, no value with a destructor. Everything that belongs to the wait lies
//! in a variable of the thread, and is dropped when the thread calls the library again or ends.
//!
//! Outside of the sleep these calls keep signals and the cancellation of the thread away. All other calls are not cancellation
//! points, see [`Uncancelled`].

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_int, c_ulong};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::answer::{Errno, run, set_errno};

/// Descriptors of one sleep.
const MOST_DESCRIPTORS: usize = 4;
/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

// The functions that may unwind: the declarations of the package `libc` say that they do not.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn ppoll(
        descriptors: *mut libc::pollfd,
        number: c_ulong,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
}

/// Keeps the thread from being cancelled until it is dropped.
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
        // SAFETY: the state of before. A request that came meanwhile takes effect at the next cancellation point.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// How to sleep before the next turn.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    descriptors: [libc::pollfd; MOST_DESCRIPTORS],
    number: usize,
    timeout: Option<libc::timespec>,
}

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slept {
    NotYet,
    Readable,
    Out,
    Interrupted,
    /// The program has closed a descriptor.
    Closed,
}

impl Sleep {
    pub(crate) fn new(descriptors: impl IntoIterator<Item = c_int>, timeout: Option<Duration>) -> Self {
        let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut sleep = Self { descriptors: [none; MOST_DESCRIPTORS], number: 0, timeout: None };
        for (place, fd) in sleep.descriptors.iter_mut().zip(descriptors) {
            *place = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            sleep.number += 1;
        }
        sleep.timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        sleep
    }
}

/// A wait, with all that it holds between two turns.
pub(crate) trait Wait: Sized + 'static {
    /// Looks for an event and gives it to the application; `None` when that is done. `slept` tells how the last sleep ended.
    fn turn(&mut self, slept: Slept) -> Result<Option<Sleep>, Errno>;
}

/// A wait that lies in the variable of its thread.
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
    /// The wait in which this thread sleeps, or which it has left.
    static ASLEEP: RefCell<Option<Asleep>> = const { RefCell::new(None) };
}

/// Threads that have a wait in their variable. If there are none, calls need not look at it.
static SLEEPERS: AtomicUsize = AtomicUsize::new(0);

/// Drops the wait that this thread has left. Every call begins with this.
#[inline]
pub(crate) fn forget_left() {
    if SLEEPERS.load(Ordering::Relaxed) > 0 {
        drop(take());
    }
}

#[cold]
fn take() -> Option<Asleep> {
    ASLEEP.try_with(|asleep| asleep.try_borrow_mut().ok()?.take()).ok().flatten()
}

/// Takes the signals out of a set that the thread itself causes: a thread that blocks them is ended by a fault.
pub(crate) fn keep_faults(set: &mut libc::sigset_t) {
    for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: changes the caller's set.
        unsafe { libc::sigdelset(&raw mut *set, fault) };
    }
}

/// The cancellation state and the signals that a thread had before a call that waits. They are plain numbers, because the call may be
/// left.
#[derive(Clone, Copy)]
struct Allowed {
    cancellation: c_int,
    signals: libc::sigset_t,
}

impl Allowed {
    /// Keeps signals and the cancellation of the thread away.
    fn nothing() -> Self {
        // SAFETY: the sets are this function's own, for which zero is a value; the calls change the thread's own state.
        unsafe {
            let (mut all, mut signals): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            keep_faults(&mut all);
            let mut cancellation = 0;
            pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancellation);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut signals);
            Self { cancellation, signals }
        }
    }

    fn restore(&self) {
        // SAFETY: the thread's own state, as it was.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, std::ptr::null_mut());
            pthread_setcancelstate(self.cancellation, std::ptr::null_mut());
        }
    }
}

/// The result of a turn.
enum Step {
    Done,
    Failed(Errno),
    Sleep(Sleep),
}

/// One turn. The wait is in no variable of the thread meanwhile, so that calls which it makes do not take it for one that was left.
fn step<W: Wait>(slept: Slept, begin: impl FnOnce() -> Result<W, Errno>) -> Step {
    let stepped = run(|| {
        if slept == Slept::Closed {
            return Err(Errno(libc::EBADF));
        }
        // A handler of a signal may have called the library during the sleep: then the wait begins again.
        let asleep = if slept == Slept::NotYet { None } else { take() };
        let mut wait: Box<W> = match asleep.map(|mut asleep| std::mem::replace(&mut asleep.0, Box::new(()))) {
            Some(wait) => wait.downcast().or_else(|_| begin().map(Box::new))?,
            None => Box::new(begin()?),
        };
        let sleep = wait.turn(slept)?;
        if sleep.is_some() {
            ASLEEP.with(|asleep| *asleep.borrow_mut() = Some(Asleep::new(wait)));
        }
        Ok(sleep)
    });
    match stepped {
        Ok(None) => Step::Done,
        Ok(Some(sleep)) => Step::Sleep(sleep),
        Err(errno) => Step::Failed(errno),
    }
}

/// Runs a call that waits: 0, or -1 with `errno` set. Sleeps only here. `begin` may be called again.
///
/// No local value of this function, or of the functions that call it, may have a destructor.
pub(crate) fn wait<W: Wait, A: Copy>(arguments: A, begin: fn(A) -> Result<W, Errno>) -> c_int {
    // SAFETY: a request of before takes effect, and nothing is held.
    unsafe { pthread_testcancel() };
    let allowed = Allowed::nothing();
    // A handler of a signal may not jump out of this, so it comes after the line before.
    forget_left();
    let mut slept = Slept::NotYet;
    loop {
        match step(slept, || begin(arguments)) {
            Step::Done => {
                allowed.restore();
                return 0;
            }
            Step::Failed(errno) => {
                allowed.restore();
                set_errno(errno);
                return -1;
            }
            Step::Sleep(mut sleep) => slept = doze(&allowed, &mut sleep),
        }
    }
}

/// Sleeps with what the thread allowed before. It may never return.
#[inline(never)]
fn doze(allowed: &Allowed, sleep: &mut Sleep) -> Slept {
    let timeout = sleep.timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the descriptors, the time and the signals live in the frames of this call. The frames have no destructors, so they may be
    // unwound by force or dropped.
    unsafe {
        pthread_setcancelstate(allowed.cancellation, std::ptr::null_mut());
        let ready = ppoll(
            sleep.descriptors.as_mut_ptr(),
            sleep.number as c_ulong,
            timeout,
            &raw const allowed.signals,
        );
        let is_interrupted = ready < 0 && *libc::__errno_location() == libc::EINTR;
        pthread_setcancelstate(CANCEL_DISABLE, std::ptr::null_mut());
        let is_closed = |polled: &libc::pollfd| polled.revents & libc::POLLNVAL != 0;
        match ready {
            _ if is_interrupted => Slept::Interrupted,
            1.. if sleep.descriptors.iter().any(is_closed) => Slept::Closed,
            1.. => Slept::Readable,
            _ => Slept::Out,
        }
    }
}
