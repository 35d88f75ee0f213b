//! What the application holds. A call with a null pointer, with an object of another kind or with one that is destroyed is refused
//! with `EINVAL`, and one with an object whose handle was overwritten with `ENOENT`, because there are programs that do so (perftest destroys an identifier twice after a refusal), and with rdma-core the
//! kernel knows the objects that there are. Calls that move data trust their pointers: this would cost them more than their work.

use std::collections::HashMap;
use std::sync::MutexGuard;

use roce::device::fork::StaticMutex;

use crate::answer::Errno;

/// What an object is.
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

/// A type that the application holds pointers to.
pub(crate) trait Object {
    const KIND: Kind;

    /// The handle that the application sees, and with rdma-core the kernel looks up; 0 for an object without one.
    fn handle(&self) -> u32 {
        0
    }
}

/// The kinds and handles of the objects that are not destroyed, by their addresses.
static LIVE: StaticMutex<Option<HashMap<usize, (Kind, u32)>>> = StaticMutex::new(None);

fn live() -> MutexGuard<'static, Option<HashMap<usize, (Kind, u32)>>> {
    LIVE.lock()
}

/// From now on, an address is that of an object, which has no handle.
pub(crate) fn add<T>(pointer: *const T, kind: Kind) {
    add_with_handle(pointer, kind, 0);
}

fn add_with_handle<T>(pointer: *const T, kind: Kind, handle: u32) {
    live().get_or_insert_default().insert(pointer.addr(), (kind, handle));
}

/// The reverse; `false` if it is not the address of such an object.
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

/// The handle that an object had when the application got it, if the address is that of an object of this kind.
fn handle_of<T: Object>(pointer: *const T) -> Option<u32> {
    let live = live();
    let (kind, handle) = live.as_ref()?.get(&pointer.addr())?;
    (*kind == T::KIND).then_some(*handle)
}

/// The object at an address that the application gave.
///
/// # Safety
///
/// No other thread destroys the object meanwhile.
pub(crate) unsafe fn object<'a, T: Object>(pointer: *mut T) -> Result<&'a T, Errno> {
    let handle = handle_of(pointer).ok_or(Errno::INVALID)?;
    // SAFETY: an object that is live is a `T`; the caller's promise.
    let object = unsafe { &*pointer };
    if object.handle() == handle { Ok(object) } else { Err(Errno::NO_ENTRY) }
}

/// Reads an object that another thread may destroy: it stays until `read` is over.
///
/// # Errors
///
/// As [`object`].
pub(crate) fn read<T: Object, R>(pointer: *mut T, read: impl FnOnce(&T) -> R) -> Result<R, Errno> {
    let live = live();
    match live.as_ref().and_then(|objects| objects.get(&pointer.addr())) {
        Some((kind, handle)) if *kind == T::KIND => {
            // SAFETY: what is listed with this kind is a `T`, and whoever takes it out of the list waits for the lock.
            let object = unsafe { &*pointer };
            if object.handle() == *handle { Ok(read(object)) } else { Err(Errno::NO_ENTRY) }
        }
        _ => Err(Errno::INVALID),
    }
}

/// The same for calls that move data, which look at nothing but whether the pointer is null.
///
/// # Safety
///
/// `pointer` is null, or an object of this type that is not destroyed.
#[inline]
pub(crate) unsafe fn unchecked<'a, T: Object>(pointer: *mut T) -> Result<&'a T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Errno::INVALID)
}

/// Takes an object back; `None` if the application does not hold it.
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
