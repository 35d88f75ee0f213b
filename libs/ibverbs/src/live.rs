//! The objects that the application holds. A call fails with `EINVAL` if its pointer is null or points to an
//! object of another kind or a destroyed one. It fails with `ENOENT` if the handle of the object was
//! overwritten. Some programs make such calls (perftest destroys an identifier twice after a refusal), and
//! with rdma-core the kernel knows the existing objects. Calls that move data trust their pointers, because
//! this check would cost more than their work.

use std::collections::HashMap;
use std::sync::MutexGuard;

use roce::device::fork::StaticMutex;

use crate::answer::Errno;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AddressHandle,
    AddressInformation,
    Buffer,
    CompletionChannel,
    CompletionQueue,
    Context,
    ContextList,
    DeviceList,
    DeviceMemory,
    Event,
    EventChannel,
    Identifier,
    MemoryRegion,
    MemoryWindow,
    ProtectionDomain,
    QueuePair,
    SharedReceiveQueue,
    ThreadDomain,
    XrcDomain,
}

/// A type whose objects the application holds pointers to.
pub(crate) trait Object {
    const KIND: Kind;

    /// Returns the handle that the application sees, and with rdma-core the kernel looks up; 0 for an object
    /// without one.
    fn handle(&self) -> u32 {
        0
    }
}

/// The kinds and handles of the existing objects, by their addresses.
static LIVE: StaticMutex<Option<HashMap<usize, (Kind, u32)>>> = StaticMutex::new(None);

fn live() -> MutexGuard<'static, Option<HashMap<usize, (Kind, u32)>>> {
    LIVE.lock()
}

/// Adds the address of an object without a handle.
pub(crate) fn add<T>(pointer: *const T, kind: Kind) {
    add_with_handle(pointer, kind, 0);
}

fn add_with_handle<T>(pointer: *const T, kind: Kind, handle: u32) {
    live().get_or_insert_default().insert(pointer.addr(), (kind, handle));
}

/// Removes the address of an object; returns `false` if the address is not that of such an object.
pub(crate) fn remove<T>(pointer: *const T, kind: Kind) -> bool {
    let mut live = live();
    let Some(objects) = live.as_mut() else { return false };
    objects.get(&pointer.addr()).is_some_and(|(known, _)| *known == kind)
        && objects.remove(&pointer.addr()).is_some()
}

/// Gives an object to the application.
pub(crate) fn release<T: Object>(object: Box<T>) -> *mut T {
    let handle = object.handle();
    let pointer = Box::into_raw(object);
    add_with_handle(pointer, T::KIND, handle);
    pointer
}

/// Returns the original handle of an object, if the address is that of an object of this kind.
fn handle_of<T: Object>(pointer: *const T) -> Option<u32> {
    let live = live();
    let (kind, handle) = live.as_ref()?.get(&pointer.addr())?;
    (*kind == T::KIND).then_some(*handle)
}

/// Returns the object at an address that the application passes.
///
/// # Safety
///
/// No other thread destroys the object while the reference exists.
pub(crate) unsafe fn object<'a, T: Object>(pointer: *mut T) -> Result<&'a T, Errno> {
    let handle = handle_of(pointer).ok_or(Errno::INVALID)?;
    // SAFETY: an object that is live is a `T`; the caller's promise.
    let object = unsafe { &*pointer };
    if object.handle() == handle { Ok(object) } else { Err(Errno::NO_ENTRY) }
}

/// Reads an object that another thread may destroy; the object stays until `read` returns.
///
/// # Errors
///
/// Fails like [`object`].
pub(crate) fn read<T: Object, R>(pointer: *mut T, read: impl FnOnce(&T) -> R) -> Result<R, Errno> {
    let live = live();
    match live.as_ref().and_then(|objects| objects.get(&pointer.addr())) {
        Some((kind, handle)) if *kind == T::KIND => {
            // SAFETY: an address with this kind in the list is a `T`, and removing it from the list requires
            // the lock.
            let object = unsafe { &*pointer };
            if object.handle() == *handle { Ok(read(object)) } else { Err(Errno::NO_ENTRY) }
        }
        _ => Err(Errno::INVALID),
    }
}

/// Returns the object at an address in calls that move data; checks only for null.
///
/// # Safety
///
/// `pointer` is null, or an object of this type that is not destroyed.
#[inline]
pub(crate) unsafe fn unchecked<'a, T: Object>(pointer: *mut T) -> Result<&'a T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Errno::INVALID)
}

/// Takes an object back; returns `None` if the application does not hold it.
///
/// # Safety
///
/// Nothing uses the object any more.
pub(crate) unsafe fn reclaim<T: Object>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: the box of `release`, which is given back once; the caller's promise.
    remove(pointer, T::KIND).then(|| unsafe { Box::from_raw(pointer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Domain(u32);
    struct Handle;

    impl Object for Domain {
        const KIND: Kind = Kind::ProtectionDomain;

        fn handle(&self) -> u32 {
            self.0
        }
    }

    impl Object for Handle {
        const KIND: Kind = Kind::AddressHandle;
    }

    #[test]
    fn an_object_is_given_back_once_and_as_what_it_is() {
        let pointer = release(Box::new(Domain(7)));
        // SAFETY: no other thread has the object.
        unsafe {
            assert_eq!(object(pointer).map(|domain| domain.0), Ok(7));
            (*pointer).0 = 8;
            assert_eq!(object(pointer).err(), Some(Errno::NO_ENTRY));
            (*pointer).0 = 7;
            assert!(object::<Domain>(std::ptr::null_mut()).is_err());
            assert!(object(pointer.cast::<Handle>()).is_err() && reclaim(pointer.cast::<Handle>()).is_none());
            assert_eq!(reclaim(pointer).map(|domain| domain.0), Some(7));
            assert!(object(pointer).is_err() && reclaim(pointer).is_none());
        }
    }
}
