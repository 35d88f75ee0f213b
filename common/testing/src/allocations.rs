//! An allocator that counts the allocations of the current thread. A test program installs it with:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: allocations::Counting = allocations::Counting;
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// A [`GlobalAlloc`] that counts the allocations of the current thread; see the module documentation.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST_HELD: Cell<i64> = const { Cell::new(0) };
}

/// Returns the number of allocations of this thread.
pub fn count() -> u64 {
    ALLOCATIONS.get()
}

/// Returns the bytes that this thread has allocated and not freed. Negative if it freed memory of other
/// threads.
pub fn held() -> i64 {
    HELD.get()
}

/// Returns the peak number of bytes that `what` allocates beyond those already allocated, and its result.
pub fn most_held<R>(what: impl FnOnce() -> R) -> (i64, R) {
    let before = HELD.get();
    MOST_HELD.set(before);
    let result = what();
    (MOST_HELD.get() - before, result)
}

fn hold(more: usize, less: usize) {
    let held = HELD.get() + more as i64 - less as i64;
    HELD.set(held);
    MOST_HELD.set(MOST_HELD.get().max(held));
}

// SAFETY: every call is forwarded unchanged to the system allocator. The counters are plain cells of this
// thread, which need no destructor and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        hold(layout.size(), 0);
        // SAFETY: the caller meets the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(0, layout.size());
        // SAFETY: the caller meets the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        hold(new_size, layout.size());
        // SAFETY: the caller meets the contract of `realloc`, and `pointer` came from `System`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
