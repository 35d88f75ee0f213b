//! Memory of atomic words, which is safe under concurrent access without `unsafe`.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::{Memory, OutOfBounds, RegisterError};

const WORD: usize = 8;

/// A zeroed buffer of atomic 64-bit words.
///
/// Every access is atomic, so a peer's WRITE may race with the owner's read: the reader may see a mix of old
/// and new bytes, but never any others. Aligned words are never torn. Words become visible in the order in
/// which they were written, so a reader that sees the end of a message then reads the whole message.
#[derive(Debug)]
pub struct WordMemory {
    words: Vec<AtomicU64>,
    len: usize,
}

impl WordMemory {
    /// Creates a memory of `len` zero bytes.
    ///
    /// If the system does not have enough memory, the process ends, as with a `Vec`; [`Self::try_new`]
    /// returns an error.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let mut words = Vec::new();
        words.resize_with(len.div_ceil(WORD), || AtomicU64::new(0));
        Self { words, len }
    }

    /// Creates a memory of `len` zero bytes, for a length chosen by the application or its user.
    ///
    /// # Errors
    ///
    /// Returns an error if the system does not have enough memory.
    pub fn try_new(len: usize) -> Result<Self, RegisterError> {
        let count = len.div_ceil(WORD);
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| RegisterError::OutOfMemory { len })?;
        words.resize_with(count, || AtomicU64::new(0));
        Ok(Self { words, len })
    }

    /// Creates a memory with a copy of `data`.
    #[must_use]
    pub fn from_bytes(data: &[u8]) -> Self {
        let memory = Self::new(data.len());
        let copied = memory.write(0, data);
        debug_assert!(copied.is_ok(), "the buffer was made as long as the data");
        memory
    }

    /// Returns a copy of the whole content.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = alloc::vec![0; self.len];
        let copied = self.read(0, &mut bytes);
        debug_assert!(copied.is_ok(), "the copy is as long as the buffer");
        bytes
    }

    /// Returns the words. The last one has bytes beyond [`Memory::len`] if the length is not a multiple of 8.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, len, self.len)
    }

    /// Returns the words from the one with the byte at `offset` on.
    fn words_from(&self, offset: usize, len: usize) -> Result<&[AtomicU64], OutOfBounds> {
        self.check(offset, len)?;
        self.words.get(offset / WORD..).ok_or(OutOfBounds)
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        self.check(offset, WORD)?;
        if !offset.is_multiple_of(WORD) {
            return Err(OutOfBounds);
        }
        self.words.get(offset / WORD).ok_or(OutOfBounds)
    }

    /// Changes some bytes of one word. This is a read-modify-write operation, because another thread may
    /// change the other bytes of the word at the same time.
    fn patch(word: &AtomicU64, at: usize, bytes: &[u8]) {
        let update = |old: u64| {
            let mut array = old.to_ne_bytes();
            for (target, byte) in array.iter_mut().skip(at).zip(bytes) {
                *target = *byte;
            }
            Some(u64::from_ne_bytes(array))
        };
        // The closure always returns a value, so the update cannot fail.
        let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, update);
    }
}

/// Returns the number of bytes from `offset` to the next word.
fn lead(offset: usize) -> usize {
    offset.wrapping_neg() % WORD
}

impl Memory for WordMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let mut words = self.words_from(offset, out.len())?;
        let (first, rest) = out.split_at_mut(lead(offset).min(out.len()));
        if !first.is_empty() {
            let (word, others) = words.split_first().ok_or(OutOfBounds)?;
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            for (target, byte) in first.iter_mut().zip(bytes.iter().skip(offset % WORD)) {
                *target = *byte;
            }
            words = others;
        }
        let (chunks, last) = rest.as_chunks_mut::<WORD>();
        let behind = words.get(chunks.len());
        for (chunk, word) in chunks.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if !last.is_empty() {
            let bytes = behind.ok_or(OutOfBounds)?.load(Ordering::Relaxed).to_ne_bytes();
            for (target, byte) in last.iter_mut().zip(bytes.iter()) {
                *target = *byte;
            }
        }
        // Later reads see at least what was written before these words.
        fence(Ordering::Acquire);
        Ok(())
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let mut words = self.words_from(offset, data.len())?;
        let (first, rest) = data.split_at(lead(offset).min(data.len()));
        if !first.is_empty() {
            let (word, others) = words.split_first().ok_or(OutOfBounds)?;
            Self::patch(word, offset % WORD, first);
            words = others;
        }
        let (chunks, last) = rest.as_chunks::<WORD>();
        for (chunk, word) in chunks.iter().zip(words) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Release);
        }
        if !last.is_empty() {
            Self::patch(words.get(chunks.len()).ok_or(OutOfBounds)?, 0, last);
        }
        Ok(())
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds> {
        let word = self.word(offset)?;
        Ok(match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        })
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }

    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        self.word(offset)?.store(u64::from_ne_bytes(bytes), Ordering::Release);
        Ok(())
    }
}
