//! What the application holds. There are programs that use an identifier which they have destroyed (perftest, after a refusal); the
//! original refuses that with `EINVAL`, because the kernel knows the identifiers that there are.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The addresses of objects that are not destroyed.
#[derive(Default)]
struct Live(Option<HashSet<usize>>);

static LIVE: Mutex<Live> = Mutex::new(Live(None));

fn live() -> MutexGuard<'static, Live> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an object to the application.
pub(super) fn release<T>(object: Box<T>) -> *mut T {
    let pointer = Box::into_raw(object);
    live().0.get_or_insert_default().insert(pointer.addr());
    pointer
}

/// Whether an address is that of an object that the application holds.
pub(super) fn is_live<T>(pointer: *const T) -> bool {
    live().0.as_ref().is_some_and(|objects| objects.contains(&pointer.addr()))
}

/// Takes an object back; `None` if the application does not hold it.
///
/// # Safety
///
/// The object is a `T`.
pub(super) unsafe fn reclaim<T>(pointer: *mut T) -> Option<Box<T>> {
    let is_live = live().0.as_mut().is_some_and(|objects| objects.remove(&pointer.addr()));
    // SAFETY: the box of `release`, which is given back once; the caller's promise.
    is_live.then(|| unsafe { Box::from_raw(pointer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_given_back_once() {
        let pointer = release(Box::new(7_u64));
        assert!(is_live(pointer) && !is_live(std::ptr::null::<u64>()));
        // SAFETY: the object is one of this type.
        unsafe {
            assert_eq!(reclaim(pointer).as_deref(), Some(&7));
            assert!(!is_live(pointer) && reclaim(pointer).is_none());
        }
    }
}
