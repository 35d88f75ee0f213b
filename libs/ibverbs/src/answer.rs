//! Return values of entry points: the three conventions of libibverbs, and the handling of panics.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use roce_fault::verbs::Verb;

use crate::asleep::{Uncancelled, forget_left};
use crate::faults;
use crate::live::{self, Kind};

pub(crate) use crate::errno::{Errno, set_errno};

/// Runs the body of a function that C calls. A panic must not unwind into the caller's C frames: it is
/// returned as `EIO`. The thread cannot be cancelled in the meantime.
#[inline]
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let _uncancelled = Uncancelled::new();
    forget_left();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::IO))
}

/// Runs an entry point, unless a fault on demand refuses the call. `refused` runs instead of `body` then.
#[inline]
pub(crate) fn run_or<T>(
    verb: Verb,
    refused: impl FnOnce(),
    body: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    guarded(|| match faults::before(verb) {
        Ok(()) => body(),
        Err(errno) => {
            refused();
            Err(errno)
        }
    })
}

/// Runs an entry point, unless a fault on demand refuses the call.
#[inline]
pub(crate) fn run<T>(verb: Verb, body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    run_or(verb, || {}, body)
}

/// Runs a function that returns a pointer: null on errors, with `errno` set.
pub(crate) fn pointer<T>(verb: Verb, body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    run(verb, body).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// Runs a function that returns 0 or the error number. Also sets `errno`, for callers that read it.
#[inline]
pub(crate) fn status(verb: Verb, body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status_or(verb, || {}, body)
}

/// Runs a function like [`status`]. If a fault on demand refuses the call, `refused` does what the function
/// does after its own errors.
#[inline]
pub(crate) fn status_or(
    verb: Verb,
    refused: impl FnOnce(),
    body: impl FnOnce() -> Result<(), Errno>,
) -> c_int {
    match run_or(verb, refused, body) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// Runs a function that returns a count, or -1 with `errno` set.
#[inline]
pub(crate) fn count<T: From<i8>>(verb: Verb, body: impl FnOnce() -> Result<T, Errno>) -> T {
    run(verb, body).unwrap_or_else(|errno| {
        set_errno(errno);
        T::from(-1)
    })
}

/// Runs a function that cannot fail.
#[inline]
pub(crate) fn value<T>(verb: Verb, otherwise: T, body: impl FnOnce() -> T) -> T {
    run(verb, || Ok(body())).unwrap_or(otherwise)
}

/// Writes a result for the application.
///
/// # Errors
///
/// Fails if the pointer is null.
///
/// # Safety
///
/// `to` is null or has room for the value.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Errno> {
    if to.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Allocates a null-terminated list of pointers for the application. Also writes their number unless `number`
/// is null.
///
/// # Safety
///
/// `number` is null or has room for an integer.
pub(crate) unsafe fn list<T>(kind: Kind, pointers: &[*mut T], number: *mut c_int) -> *mut *mut T {
    // SAFETY: the memory has room for the pointers, and is zero behind them; the caller's promise.
    unsafe {
        let list: *mut *mut T = libc::calloc(pointers.len() + 1, size_of::<*mut T>()).cast();
        if !list.is_null() {
            std::ptr::copy_nonoverlapping(pointers.as_ptr(), list, pointers.len());
            live::add(list, kind);
            if !number.is_null() {
                *number = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
            }
        }
        list
    }
}

/// Frees such a list; ignores other pointers.
pub(crate) fn free_list<T>(kind: Kind, list: *mut *mut T) {
    if live::remove(list, kind) {
        // SAFETY: the memory of `list`, which is freed once.
        unsafe { libc::free(list.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_entry_point() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let number = status(Verb::ibv_query_qp, || panic!("inside"));
        let missing = pointer::<u8>(Verb::ibv_alloc_pd, || panic!("inside"));
        std::panic::set_hook(hook);
        assert_eq!(number, libc::EIO);
        assert!(missing.is_null());
        // SAFETY: as in `set_errno`.
        assert_eq!(unsafe { *libc::__errno_location() }, libc::EIO);
    }
}
