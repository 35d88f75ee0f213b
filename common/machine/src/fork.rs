//! Locks that are free in the child of a fork, and resources that belong to one process only.
//!
//! A child has only the thread that forked. A lock that another thread held at that moment stays locked in
//! the child forever, and the data that it protects may be inconsistent. Therefore every lock in this
//! workspace's libraries has a type of this module. Before a fork, the forking thread acquires all of them,
//! and releases them in the parent and in the child. `tests/tidy.rs` rejects other locks.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::time::Timespec;

/// A mutex that is free in the child of a fork. A panic of the thread that holds it does not poison it.
pub struct Mutex<T: Send + 'static>(Arc<Inner<T>>);

struct Inner<T>(StdMutex<T>);

impl<T> Inner<T> {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T: Send + 'static> Mutex<T> {
    /// Creates a mutex around a value.
    #[must_use]
    pub fn new(value: T) -> Self {
        let inner = Arc::new(Inner(StdMutex::new(value)));
        register(Arc::as_ptr(&inner).addr(), inner.clone());
        Self(inner)
    }

    /// Acquires the mutex until the guard is dropped. Waits while another thread holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// Acquires the mutex if no other thread holds it.
    #[inline]
    #[must_use]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

impl<T: Send + 'static> Drop for Mutex<T> {
    fn drop(&mut self) {
        let key = Arc::as_ptr(&self.0).addr();
        let known = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        drop(known);
    }
}

impl<T: Send + Default + 'static> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Send + 'static> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mutex").finish_non_exhaustive()
    }
}

/// A [`Mutex`] for a `static`.
pub struct StaticMutex<T: Send + 'static> {
    inner: Inner<T>,
    is_registered: AtomicBool,
}

impl<T: Send + 'static> StaticMutex<T> {
    /// Creates a mutex around a value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { inner: Inner(StdMutex::new(value)), is_registered: AtomicBool::new(false) }
    }

    /// Acquires the mutex until the guard is dropped. Waits while another thread holds it.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        self.register();
        self.inner.lock()
    }

    /// Acquires the mutex if no other thread holds it.
    #[must_use]
    pub fn try_lock(&'static self) -> Option<MutexGuard<'static, T>> {
        self.register();
        self.inner.try_lock()
    }

    fn register(&'static self) {
        if !self.is_registered.load(Ordering::Acquire) {
            register((&raw const self.inner).addr(), Arc::new(&self.inner));
            self.is_registered.store(true, Ordering::Release);
        }
    }
}

/// A lock of any type.
trait Lock: Send + Sync {
    /// Acquires the lock if it is free, until the returned value is dropped.
    fn try_hold(self: Arc<Self>) -> Option<Box<dyn Any>>;
}

impl<T: Send + 'static> Lock for &'static Inner<T> {
    fn try_hold(self: Arc<Self>) -> Option<Box<dyn Any>> {
        let guard: MutexGuard<'static, T> = Inner::try_lock(*self)?;
        Some(Box::new(guard))
    }
}

/// A guard and its lock, in the order in which they are dropped.
struct Held<T: 'static> {
    _guard: MutexGuard<'static, T>,
    _lock: Arc<Inner<T>>,
}

impl<T: Send + 'static> Lock for Inner<T> {
    fn try_hold(self: Arc<Self>) -> Option<Box<dyn Any>> {
        let guard = self.try_lock()?;
        // SAFETY: only the lifetime changes. The guard is dropped before the lock, which has its own heap
        // allocation.
        let guard = unsafe { std::mem::transmute::<MutexGuard<'_, T>, MutexGuard<'static, T>>(guard) };
        Some(Box::new(Held { _guard: guard, _lock: self }))
    }
}

type Registry = BTreeMap<usize, Arc<dyn Lock>>;

/// All existing locks by address. A thread that holds the registry waits for no other lock.
static REGISTRY: StdMutex<Registry> = StdMutex::new(BTreeMap::new());

fn register(key: usize, lock: Arc<dyn Lock>) {
    static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);
    if !HAS_HANDLERS.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions are never unloaded, because the library cannot be, and they do not unwind.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }
    let known = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).insert(key, lock);
    drop(known);
}

/// All locks, held. They are released before the registry.
struct All {
    _locks: BTreeMap<usize, Box<dyn Any>>,
    _registry: MutexGuard<'static, Registry>,
}

thread_local! {
    /// The locks that this thread holds during its fork.
    static ALL: RefCell<Option<All>> = const { RefCell::new(None) };
}

/// First and longest time to wait for a lock while holding others. The thread that holds it may wait for one
/// of these, or for a processor, so the time doubles with each attempt.
const FIRST_TURN: Duration = Duration::from_millis(2);
const LONGEST_TURN: Duration = Duration::from_millis(250);
/// Time limit for the locks; then the process forks without them. A signal handler may fork while its thread
/// holds one.
const PATIENCE: Duration = Duration::from_secs(10);

extern "C" fn before() {
    let (end, mut turn) = (Instant::now() + PATIENCE, FIRST_TURN);
    while Instant::now() < end {
        if let Some(all) = take_all(turn) {
            let _ = ALL.try_with(|held| held.replace(Some(all)));
            return;
        }
        pause();
        turn = (2 * turn).min(LONGEST_TURN);
    }
}

extern "C" fn after() {
    let _ = ALL.try_with(RefCell::take);
}

/// Lets other threads run. `std::thread::sleep` is not used because it is a cancellation point.
fn pause() {
    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 50_000 });
}

fn take_all(turn: Duration) -> Option<All> {
    let end = Instant::now() + turn;
    let mut locks = BTreeMap::new();
    loop {
        if let Some(registry) = try_registry() {
            for (key, lock) in &*registry {
                if !locks.contains_key(key)
                    && let Some(held) = lock.clone().try_hold()
                {
                    locks.insert(*key, held);
                }
            }
            // A held lock stays allocated, so no other lock has its address.
            if registry.keys().all(|key| locks.contains_key(key)) {
                return Some(All { _locks: locks, _registry: registry });
            }
        }
        if Instant::now() >= end {
            return None;
        }
        // Waits without the registry: a thread that creates or drops a lock may hold another one.
        pause();
    }
}

fn try_registry() -> Option<MutexGuard<'static, Registry>> {
    match REGISTRY.try_lock() {
        Ok(registry) => Some(registry),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The process that owns a resource. A child of a fork inherits its parent's descriptors, names and files,
/// but must not release them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns the calling process.
    #[must_use]
    pub fn current() -> Self {
        Self(std::process::id())
    }

    /// Returns whether the caller is this process, not a child of its fork.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static COUNT: StaticMutex<u32> = StaticMutex::new(0);

    /// Forks and returns the exit status of the child, which acquires both locks. A signal ends a child that
    /// hangs.
    fn fork(lock: &Mutex<u32>) -> libc::c_int {
        // SAFETY: the child only calls locks and the kernel.
        unsafe {
            match libc::fork() {
                -1 => panic!("no child"),
                0 => {
                    libc::alarm(60);
                    let is_even = lock.lock().is_multiple_of(2) && COUNT.lock().is_multiple_of(2);
                    libc::_exit(i32::from(!is_even));
                }
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    status
                }
            }
        }
    }

    /// Regression: a child hung if another thread held a lock during the fork.
    #[test]
    fn locks_are_free_in_a_child_and_what_they_protect_is_whole() {
        let lock = Mutex::new(0);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The locks are acquired in both orders, which works only because neither thread waits for long.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut first = lock.lock();
                    *first += 1;
                    if let Some(mut second) = COUNT.try_lock() {
                        *second += 1;
                        std::hint::spin_loop();
                        *second += 1;
                    }
                    *first += 1;
                    drop(first);
                    pause();
                }
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut first = COUNT.lock();
                    *first += 1;
                    // Other locks are created and dropped meanwhile.
                    drop(Mutex::new(0));
                    *first += 1;
                    drop(first);
                    pause();
                }
            });
            for _ in 0..50 {
                assert_eq!(fork(&lock), 0);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(Process::current().is_current());
    }

    #[test]
    fn a_lock_that_is_dropped_is_forgotten() {
        let key = {
            let lock = Mutex::new(7);
            let key = Arc::as_ptr(&lock.0).addr();
            assert!(REGISTRY.lock().unwrap().contains_key(&key));
            assert_eq!(*lock.lock(), 7);
            let held = lock.lock();
            assert!(lock.try_lock().is_none());
            drop(held);
            Arc::downgrade(&lock.0)
        };
        assert!(key.upgrade().is_none());
    }
}
