//! Memory that this process and its peers access concurrently.

use std::sync::atomic::{AtomicU64, Ordering};

use roce_transport::{Memory, OutOfBounds, RegisterError, WordMemory};

use super::racy::{self, BLOCK};

/// Bytes that can be registered, and that several threads and peers may read and write concurrently.
///
/// The type never gives out a reference to its bytes. Every access is a copy that consists of machine
/// accesses which are atomic for at least one byte: races tear values but are not undefined behaviour. The
/// atomic operations never tear aligned 8-byte words.
///
/// # Why this is sound
///
/// The bytes live in a `WordMemory`, whose `AtomicU64` words may change through a shared reference. Small
/// copies use these atomics. Large copies use a few lines of assembly, which the language treats as a block
/// of unknown but legal accesses. The assembly loads and stores like relaxed atomics of 16 bytes or fewer.
/// During a copy no Rust reference to the bytes exists except references to the atomics, which permit such
/// accesses.
#[derive(Debug)]
pub struct SharedMemory {
    words: WordMemory,
}

impl SharedMemory {
    /// Allocates `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { words: WordMemory::new(len) }
    }

    /// Allocates `len` zero bytes, for a length that the application or its user chose.
    ///
    /// # Errors
    ///
    /// Fails if the system does not provide that much memory.
    pub fn try_new(len: usize) -> Result<Self, RegisterError> {
        Ok(Self { words: WordMemory::try_new(len)? })
    }

    /// Copies `data` into new memory.
    #[must_use]
    pub fn from_bytes(data: &[u8]) -> Self {
        Self { words: WordMemory::from_bytes(data) }
    }

    /// Copies the whole content.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let copied = self.read(0, &mut bytes);
        debug_assert!(copied.is_ok(), "the copy is as long as the memory");
        bytes
    }

    /// Returns a pointer to the first byte of a range that lies inside the memory.
    fn pointer(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        OutOfBounds::check(offset, len, self.words.len())?;
        let words: &[AtomicU64] = self.words.words();
        // SAFETY: the range was checked against the length above, so `offset` stays inside the words
        // or one past their end.
        Ok(unsafe { words.as_ptr().cast_mut().cast::<u8>().add(offset) })
    }
}

impl Memory for SharedMemory {
    fn len(&self) -> usize {
        self.words.len()
    }

    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        if !cfg!(target_arch = "x86_64") || out.len() < BLOCK {
            return self.words.read(offset, out);
        }
        let source = self.pointer(offset, out.len())?;
        // SAFETY: `source` is valid for `out.len()` bytes of words that may be accessed concurrently. `out`
        // is exclusively ours, and the two do not overlap because no reference into the words exists.
        unsafe { racy::read(source, out) };
        std::sync::atomic::fence(Ordering::Acquire);
        Ok(())
    }

    #[inline]
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        if !cfg!(target_arch = "x86_64") || data.len() < BLOCK {
            return self.words.write(offset, data);
        }
        let target = self.pointer(offset, data.len())?;
        // SAFETY: `target` is valid for `data.len()` bytes of words that may be accessed concurrently. `data`
        // is only read, and the two do not overlap because no reference into the words exists.
        unsafe { racy::write(data, target) };
        Ok(())
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, OutOfBounds> {
        self.words.compare_swap(offset, compare, swap)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, OutOfBounds> {
        self.words.fetch_add(offset, add)
    }

    fn store(&self, offset: usize, bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        self.words.store(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_and_offset_are_exact() {
        let len = 700;
        for offset in [0, 1, 7, 8, 63, 64, 65] {
            for count in [0, 1, 63, 64, 65, 127, 128, 200, 512, len - offset] {
                let count = count.min(len - offset);
                let memory = SharedMemory::from_bytes(&vec![0xee; len]);
                let data: Vec<u8> = (0..count).map(|index| (index % 251) as u8).collect();
                memory.write(offset, &data).unwrap();
                let mut expected = vec![0xee; len];
                expected[offset..offset + count].copy_from_slice(&data);
                assert_eq!(memory.to_vec(), expected, "offset {offset} count {count}");
                let mut back = vec![0; count];
                memory.read(offset, &mut back).unwrap();
                assert_eq!(back, data);
            }
        }
    }

    /// Number of races of each test. In Miri, each of them may have another outcome.
    const RACES: u8 = if cfg!(miri) { 20 } else { 200 };

    #[test]
    fn two_threads_write_different_bytes_of_one_word() {
        let memory = SharedMemory::new(24);
        std::thread::scope(|scope| {
            for start in [0, 11] {
                let memory = &memory;
                scope.spawn(move || {
                    for byte in 1..=RACES {
                        memory.write(start, &[byte; 11]).unwrap();
                        let mut found = [0; 11];
                        memory.read(start, &mut found).unwrap();
                        assert_eq!(found, [byte; 11], "the other thread has replaced bytes from {start} on");
                    }
                });
            }
        });
    }

    /// A program that checks the last byte of a message to notice its arrival then reads the other bytes.
    #[test]
    fn bytes_that_were_written_before_a_visible_one_are_visible() {
        for len in [40, 200] {
            for _ in 0..RACES {
                let memory = SharedMemory::new(len);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let (first, second) = (vec![1; len / 2], vec![1; len - len / 2]);
                        memory.write(0, &first).unwrap();
                        memory.write(first.len(), &second).unwrap();
                    });
                    let mut last = [0];
                    while last == [0] {
                        std::thread::yield_now();
                        memory.read(len - 1, &mut last).unwrap();
                    }
                    assert_eq!(memory.to_vec(), vec![1; len]);
                });
            }
        }
    }

    #[test]
    fn outside_is_refused() {
        let memory = SharedMemory::new(128);
        assert!(memory.write(65, &[0; 64]).is_err());
        assert!(memory.read(usize::MAX - 3, &mut [0; 64]).is_err());
        assert!(memory.write(64, &[1; 64]).is_ok());
    }
}
