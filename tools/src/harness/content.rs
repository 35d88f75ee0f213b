//! The content of messages: a pattern, and the number of the message in front of it.

use super::ToolError;

/// Bytes at the start of a message that hold its number.
pub(crate) const STAMP: usize = 8;

/// Bytes that differ from their neighbours, from the bytes 256 further on, and from other patterns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    step: u8,
    offset: u8,
}

impl Pattern {
    /// The pattern whose byte at index `i` is `i × step + i / 256 + offset`, modulo 256.
    pub(crate) const fn new(step: u8, offset: u64) -> Self {
        Self { step, offset: offset as u8 }
    }

    pub(crate) const fn byte(self, index: usize) -> u8 {
        (index as u8).wrapping_mul(self.step).wrapping_add((index >> 8) as u8).wrapping_add(self.offset)
    }

    pub(crate) fn fill(self, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(index);
        }
    }

    pub(crate) fn bytes(self, len: usize) -> Vec<u8> {
        (0..len).map(|index| self.byte(index)).collect()
    }
}

/// Writes the number of a message into its first bytes.
pub(crate) fn stamp(bytes: &mut [u8], number: u64) {
    for (byte, stamp) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *byte = stamp;
    }
}

/// The first byte where two messages of the same length differ.
pub(crate) fn mismatch(found: &[u8], expected: &[u8]) -> Option<usize> {
    found.iter().zip(expected).position(|(found, expected)| found != expected)
}

/// Compares the first bytes of message `message` of `size` bytes.
pub(crate) fn check(message: u64, size: usize, found: &[u8], expected: &[u8]) -> Result<(), ToolError> {
    match mismatch(found, expected) {
        None => Ok(()),
        Some(at) => Err(ToolError::Content { qp: 0, message, size, at, found: found[at] }),
    }
}
