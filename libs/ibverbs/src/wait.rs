//! Calls that wait for an event, and that a thread may leave while it sleeps.
//!
//! With rdma-core these calls sleep in `read`, which is a cancellation point. Therefore a thread may end
//! there: `pthread_cancel` unwinds its frames by force. A signal handler may also jump out of the call: after
//! `siglongjmp` no destructor runs. During the sleep, the frames of such a call hold no lock, no reference
//! and no value with a destructor. The state of the wait lives in a thread-local variable. It is dropped when
//! the thread calls the library again or ends.
//!
//! Outside the sleep these calls block signals and thread cancellation. All other calls are not cancellation
//! points, see [`Uncancelled`](crate::asleep::Uncancelled).

use std::ffi::{c_int, c_ulong};
use std::time::Duration;

use roce_fault::verbs::Verb;

use crate::answer::{Errno, guarded, run, set_errno};
use crate::asleep::{CANCEL_DISABLE, forget_left, keep, pthread_setcancelstate, take};

/// Maximum number of descriptors of one sleep.
const MOST_DESCRIPTORS: usize = 4;

// These functions may unwind; the declarations of the crate `libc` say that they do not.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn ppoll(
        descriptors: *mut libc::pollfd,
        number: c_ulong,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
}

/// The sleep before the next turn.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    descriptors: [libc::pollfd; MOST_DESCRIPTORS],
    number: usize,
    timeout: Option<libc::timespec>,
}

/// The result of a sleep.
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

/// A wait, with all state that it holds between two turns.
pub(crate) trait Wait: Sized + 'static {
    /// Checks for an event and passes it to the application; then returns `None`. `slept` says how the last
    /// sleep ended.
    fn turn(&mut self, slept: Slept) -> Result<Option<Sleep>, Errno>;
}

/// Removes the signals of a thread's own faults from a set: if a thread blocks them, a fault terminates the
/// process.
pub(crate) fn keep_faults(set: &mut libc::sigset_t) {
    for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
        // SAFETY: changes the caller's set.
        unsafe { libc::sigdelset(&raw mut *set, fault) };
    }
}

/// The cancellation state and the signal mask of a thread before a call that waits. They are plain numbers,
/// because the thread may leave the call.
#[derive(Clone, Copy)]
struct Allowed {
    cancellation: c_int,
    signals: libc::sigset_t,
}

impl Allowed {
    /// Blocks signals and the cancellation of the thread.
    fn nothing() -> Self {
        // SAFETY: the sets belong to this function, and zero is a valid value; the calls change the thread's
        // own state.
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
        // SAFETY: restores the thread's own state.
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

/// Runs one turn. The wait is not in the thread-local variable meanwhile, so calls that it makes do not drop
/// it as a wait that was left.
fn step<W: Wait>(slept: Slept, begin: impl FnOnce() -> Result<W, Errno>) -> Step {
    let stepped = guarded(|| {
        if slept == Slept::Closed {
            return Err(Errno(libc::EBADF));
        }
        // If a signal handler has called the library during the sleep, the wait begins again.
        let asleep = if slept == Slept::NotYet { None } else { take() };
        let mut wait: Box<W> = match asleep {
            Some(wait) => wait.downcast().or_else(|_| begin().map(Box::new))?,
            None => Box::new(begin()?),
        };
        let sleep = wait.turn(slept)?;
        if sleep.is_some() {
            keep(wait);
        }
        Ok(sleep)
    });
    match stepped {
        Ok(None) => Step::Done,
        Ok(Some(sleep)) => Step::Sleep(sleep),
        Err(errno) => Step::Failed(errno),
    }
}

/// Runs an entry point that waits, unless a fault on demand refuses the call; returns 0, or -1 with `errno`
/// set. May call `begin` again.
///
/// No local value of this function, or of the functions that call it, may have a destructor.
pub(crate) fn wait<W: Wait, A: Copy>(verb: Verb, arguments: A, begin: fn(A) -> Result<W, Errno>) -> c_int {
    wait_unless(|| run(verb, || Ok(())), arguments, begin)
}

/// Waits; returns 0, or -1 with `errno` set. Sleeps only here. May call `begin` again.
///
/// No local value of this function, or of the functions that call it, may have a destructor.
pub(crate) fn wait_on<W: Wait, A: Copy>(arguments: A, begin: fn(A) -> Result<W, Errno>) -> c_int {
    wait_unless(|| Ok(()), arguments, begin)
}

/// Waits, unless `refused` returns an error.
fn wait_unless<W: Wait, A: Copy>(
    refused: impl Fn() -> Result<(), Errno>,
    arguments: A,
    begin: fn(A) -> Result<W, Errno>,
) -> c_int {
    // SAFETY: a pending cancellation takes effect here, where nothing is held.
    unsafe { pthread_testcancel() };
    let allowed = Allowed::nothing();
    // After `Allowed::nothing`, because a signal handler must not jump out of these.
    forget_left();
    if let Err(errno) = refused() {
        allowed.restore();
        set_errno(errno);
        return -1;
    }
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

/// Sleeps with the thread's previous cancellation state and signal mask. May never return.
#[inline(never)]
fn doze(allowed: &Allowed, sleep: &mut Sleep) -> Slept {
    let timeout = sleep.timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the descriptors, the time and the signals live in the frames of this call. The frames have no
    // destructors, so they may be unwound by force or dropped.
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
