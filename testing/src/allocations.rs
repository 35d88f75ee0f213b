//! An allocator that counts what the present thread does. A test program makes it its own:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: allocations::Counting = allocations::Counting;
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// See the module.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST_HELD: Cell<i64> = const { Cell::new(0) };
}

/// How often this thread has allocated.
pub fn count() -> u64 {
    ALLOCATIONS.get()
}

/// The bytes that this thread has allocated and not given back; below 0 if it gave back what others had allocated.
pub fn held() -> i64 {
    HELD.get()
}

/// The most bytes that `what` holds at once beside those that this thread holds already, and its result.
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

// SAFETY: every call goes to the system allocator as it came; the counters are plain cells of this thread that need no destructor and
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        hold(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        hold(new_size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`, and `pointer` came from `System`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
