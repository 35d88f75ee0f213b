//! Accesses to memory of the application, which may lose pages or rights at any time: a fault makes the
//! access fail.
//!
//! Anybody who may write a mapped file may truncate it, and an application may unmap or protect registered
//! memory. The processor reports such a fault with SIGSEGV or SIGBUS. A few functions make all accesses;
//! their instructions lie in one range. A handler of both signals makes a thread that faulted in this range
//! return an error, and passes every other fault to the previous handler. A check before each access would
//! cost a system call, and the page could still vanish after the check.
//!
//! On processors other than x86-64 a fault ends the process.

#[cfg(target_arch = "x86_64")]
mod handler;

/// A page was missing or lacked the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault;

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{compare_swap, fetch_add, prepare, read, store, write};

#[cfg(not(target_arch = "x86_64"))]
pub(super) use others::{compare_swap, fetch_add, prepare, read, store, write};

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::ffi::c_int;

    use super::Fault;
    pub(in super::super) use super::handler::install as prepare;

    // The functions keep nothing on the stack, so a thread that faulted at any of their instructions returns
    // by continuing at the last of them.
    std::arch::global_asm!(include_str!("guarded/x86_64.s"), options(raw));

    unsafe extern "C" {
        pub(super) fn roce_guarded_copy(source: *const u8, target: *mut u8, len: usize) -> c_int;
        fn roce_guarded_compare_swap(at: *mut u64, compare: u64, swap: u64, old: *mut u64) -> c_int;
        fn roce_guarded_fetch_add(at: *mut u64, add: u64, old: *mut u64) -> c_int;
        fn roce_guarded_store(at: *mut u64, value: u64) -> c_int;
        pub(super) fn roce_guarded_fault() -> c_int;
    }

    fn answer<T>(failed: c_int, value: T) -> Result<T, Fault> {
        if failed == 0 { Ok(value) } else { Err(Fault) }
    }

    /// Copies bytes out of memory of the application. After a fault, some of them may have been copied.
    ///
    /// # Safety
    ///
    /// The pages of the memory may come and go; otherwise as for `racy::read`.
    #[inline]
    pub(in super::super) unsafe fn read(source: *const u8, out: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the caller's promise; a fault ends the function with 1.
        answer(unsafe { roce_guarded_copy(source, out.as_mut_ptr(), out.len()) }, ())
    }

    /// Copies bytes into memory of the application. After a fault, some of them may have been copied.
    ///
    /// # Safety
    ///
    /// The pages of the memory may come and go; otherwise as for `racy::write`.
    #[inline]
    pub(in super::super) unsafe fn write(data: &[u8], target: *mut u8) -> Result<(), Fault> {
        // SAFETY: the caller's promise; a fault ends the function with 1.
        answer(unsafe { roce_guarded_copy(data.as_ptr(), target, data.len()) }, ())
    }

    /// Replaces a value and returns the old value.
    ///
    /// # Safety
    ///
    /// An aligned address of the application, whose page may be missing, and which is accessed as if by
    /// atomics alone.
    pub(in super::super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let mut old = 0;
        // SAFETY: the caller's promise.
        let failed = unsafe { roce_guarded_compare_swap(at, compare, swap, &raw mut old) };
        answer(failed, old)
    }

    /// Adds to a value and returns the old value.
    ///
    /// # Safety
    ///
    /// As for [`compare_swap`].
    pub(in super::super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Fault> {
        let mut old = 0;
        // SAFETY: the caller's promise.
        let failed = unsafe { roce_guarded_fetch_add(at, add, &raw mut old) };
        answer(failed, old)
    }

    /// Stores a value.
    ///
    /// # Safety
    ///
    /// As for [`compare_swap`].
    pub(in super::super) unsafe fn store(at: *mut u64, value: u64) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        answer(unsafe { roce_guarded_store(at, value) }, ())
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod others {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::racy;
    use super::Fault;

    /// Copies bytes out of memory of the application.
    ///
    /// # Safety
    ///
    /// As for `racy::read`.
    pub(in super::super) unsafe fn read(source: *const u8, out: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { racy::read(source, out) };
        Ok(())
    }

    /// Copies bytes into memory of the application.
    ///
    /// # Safety
    ///
    /// As for `racy::write`.
    pub(in super::super) unsafe fn write(data: &[u8], target: *mut u8) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { racy::write(data, target) };
        Ok(())
    }

    /// Replaces a value and returns the old value.
    ///
    /// # Safety
    ///
    /// An aligned address of the application, which is accessed as if by atomics alone.
    pub(in super::super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(at) };
        let seen = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Ok(seen.unwrap_or_else(|seen| seen))
    }

    /// Adds to a value and returns the old value.
    ///
    /// # Safety
    ///
    /// As for [`compare_swap`].
    pub(in super::super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Fault> {
        // SAFETY: the caller's promise.
        Ok(unsafe { AtomicU64::from_ptr(at) }.fetch_add(add, Ordering::AcqRel))
    }

    /// Stores a value.
    ///
    /// # Safety
    ///
    /// As for [`compare_swap`].
    pub(in super::super) unsafe fn store(at: *mut u64, value: u64) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Release);
        Ok(())
    }

    pub(in super::super) fn prepare() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_exact() {
        let source: Vec<u8> = (0..300_u32).map(|index| (index % 251) as u8).collect();
        for len in (0..140).chain([191, 192, 193, 256, 290]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (7, 8), (8, 7)] {
                let (expected, mut read_into, mut written) =
                    (&source[from..from + len], [0xee; 310], [0xee; 310]);
                // SAFETY: the ranges lie inside their buffers.
                unsafe {
                    assert_eq!(read(expected.as_ptr(), &mut read_into[to..to + len]), Ok(()));
                    assert_eq!(write(expected, written.as_mut_ptr().add(to)), Ok(()));
                }
                for target in [read_into, written] {
                    let mut outside = target[..to].iter().chain(&target[to + len..]);
                    assert!(outside.all(|byte| *byte == 0xee), "{len} {to}");
                    assert_eq!(&target[to..to + len], expected, "{len} {from} {to}");
                }
            }
        }
    }
}
