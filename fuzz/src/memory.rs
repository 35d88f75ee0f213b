//! Memory that panics on access outside the granted ranges.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use roce_transport::{Memory, OutOfBounds, WordMemory};

/// One change of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name of the region.
    pub region: &'static str,
    /// Offset of the change in the region.
    pub offset: usize,
    /// The bytes that were written, or for atomics the eight bytes after the operation.
    pub bytes: Vec<u8>,
    /// Whether the change was a compare-swap or fetch-add.
    pub atomic: bool,
}

/// The changes of several regions in the order in which they happened.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<Change>>>);

impl Log {
    /// Returns all changes since the last call.
    pub fn take(&self) -> Vec<Change> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// The ranges that may be accessed now.
#[derive(Debug, Default)]
struct Grants {
    readable: Vec<(u64, Range<usize>)>,
    writable: Vec<(u64, Range<usize>)>,
}

/// A region that checks every access against a list of granted ranges.
pub struct GuardedMemory {
    name: &'static str,
    words: WordMemory,
    grants: Mutex<Grants>,
    log: Log,
}

impl GuardedMemory {
    /// Creates a region of `len` zero bytes without any grants.
    #[must_use]
    pub fn new(name: &'static str, len: usize, log: &Log) -> Arc<Self> {
        let words = WordMemory::new(len);
        Arc::new(Self { name, words, grants: Mutex::default(), log: log.clone() })
    }

    /// Writes a pattern that differs from byte to byte, without a check of grants and without a log entry.
    pub fn fill(&self, range: Range<usize>) {
        let content: Vec<u8> = range.clone().map(|index| (index * 7 + index / 251) as u8).collect();
        self.words.write(range.start, &content).expect("the oracle writes inside the region");
    }

    /// Lets `range` be read until [`Self::revoke`] is called with the same `id`.
    pub fn grant_read(&self, id: u64, range: Range<usize>) {
        lock(&self.grants).readable.push((id, range));
    }

    /// Lets `range` be written until [`Self::revoke`] is called with the same `id`.
    pub fn grant_write(&self, id: u64, range: Range<usize>) {
        lock(&self.grants).writable.push((id, range));
    }

    /// Revokes the grants with this `id`.
    pub fn revoke(&self, id: u64) {
        let mut grants = lock(&self.grants);
        grants.readable.retain(|(granted, _)| *granted != id);
        grants.writable.retain(|(granted, _)| *granted != id);
    }

    /// Revokes all grants.
    pub fn revoke_all(&self) {
        *lock(&self.grants) = Grants::default();
    }

    /// Returns the content, without a check of grants.
    #[must_use]
    pub fn peek(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.words.read(offset, &mut bytes).expect("the oracle looks inside the region");
        bytes
    }

    #[track_caller]
    fn check(&self, granted: &[(u64, Range<usize>)], what: &str, offset: usize, len: usize) {
        let inside = |(_, range): &(u64, Range<usize>)| range.start <= offset && offset + len <= range.end;
        assert!(
            len == 0 || granted.iter().any(inside),
            "{what} of {len} bytes at {offset} of region {:?}, granted are {granted:?}",
            self.name
        );
    }

    fn note(&self, offset: usize, bytes: &[u8], atomic: bool) {
        let bytes = bytes.to_vec();
        lock(&self.log.0).push(Change { region: self.name, offset, bytes, atomic });
    }

    fn note_atomic(&self, offset: usize) {
        self.note(offset, &self.peek(offset, 8), true);
    }
}

impl fmt::Debug for GuardedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("GuardedMemory").field(&self.name).finish()
    }
}

impl Memory for GuardedMemory {
    fn len(&self) -> usize {
        self.words.len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(&lock(&self.grants).readable, "read", offset, out.len());
        self.words.read(offset, out)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        self.check(&lock(&self.grants).writable, "write", offset, data.len());
        if !data.is_empty() {
            self.note(offset, data, false);
        }
        self.words.write(offset, data)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds> {
        self.check(&lock(&self.grants).writable, "compare-swap", offset, 8);
        let old = self.words.compare_swap(offset, compare, swap)?;
        self.note_atomic(offset);
        Ok(old)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        self.check(&lock(&self.grants).writable, "fetch-add", offset, 8);
        let old = self.words.fetch_add(offset, add)?;
        self.note_atomic(offset);
        Ok(old)
    }

    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        self.check(&lock(&self.grants).writable, "store", offset, 8);
        self.words.store(offset, bytes)?;
        self.note(offset, &bytes, false);
        Ok(())
    }

    fn flush(&self, offset: usize, len: usize, _persistent: bool) {
        let end = offset.checked_add(len).expect("a flush ends inside the address space");
        assert!(end <= self.words.len(), "flush of {len} bytes at {offset} of region {:?}", self.name);
    }
}

/// Locks the mutex. The panic of another holder has ended the run anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
