//! The content of messages: a pattern, and the number of the message in front of it.

use crate::tool_error::ToolError;

/// Bytes at the start of a message that contain its number.
pub const STAMP: usize = 8;

/// A pattern of bytes that differ from their neighbours, from the bytes 256 further on, and from other
/// patterns.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    step: u8,
    offset: u8,
}

impl Pattern {
    /// Returns the pattern whose byte at index `i` is `i × step + i / 256 + offset`, modulo 256.
    #[must_use]
    pub const fn new(step: u8, offset: u64) -> Self {
        Self { step, offset: offset as u8 }
    }

    /// Returns the byte at an index.
    #[must_use]
    pub const fn byte(self, index: usize) -> u8 {
        (index as u8).wrapping_mul(self.step).wrapping_add((index >> 8) as u8).wrapping_add(self.offset)
    }

    /// Writes the pattern from its start.
    pub fn fill(self, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(index);
        }
    }

    /// Returns the first bytes of the pattern.
    #[must_use]
    pub fn bytes(self, len: usize) -> Vec<u8> {
        (0..len).map(|index| self.byte(index)).collect()
    }
}

/// Writes the number of a message into its first bytes.
pub fn stamp(bytes: &mut [u8], number: u64) {
    for (byte, stamp) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *byte = stamp;
    }
}

/// Returns the index of the first byte where two messages of the same length differ.
#[must_use]
pub fn mismatch(found: &[u8], expected: &[u8]) -> Option<usize> {
    found.iter().zip(expected).position(|(found, expected)| found != expected)
}

/// Compares the first bytes of message `message` of `size` bytes.
///
/// # Errors
///
/// The bytes differ.
pub fn check(message: u64, size: usize, found: &[u8], expected: &[u8]) -> Result<(), ToolError> {
    match mismatch(found, expected) {
        None => Ok(()),
        Some(at) => Err(ToolError::Content { qp: 0, message, size, at, found: found[at] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that patterns are compatible between releases. Two releases that measure together must fill and
    /// check messages alike.
    #[test]
    fn contents_are_those_of_earlier_releases() {
        for number in [0_u64, 1, 8, 300, u64::MAX / 101] {
            let ping = Pattern::new(31, number.wrapping_mul(7).wrapping_add(1));
            let pong = Pattern::new(29, number.wrapping_mul(101));
            for index in [0_usize, 1, 255, 256, 257, 4096, 65_535, 65_536, 70_001] {
                let at = index as u64;
                assert_eq!(
                    ping.byte(index),
                    (at * 31 + (at >> 8) + 1).wrapping_add(number.wrapping_mul(7)) as u8
                );
                assert_eq!(
                    pong.byte(index),
                    (at * 29 + (at >> 8)).wrapping_add(number.wrapping_mul(101)) as u8
                );
            }
        }
        let mut bytes = [0xff; 10];
        stamp(&mut bytes, 0x0102);
        assert_eq!(bytes, [2, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(mismatch(&bytes, &[2, 1, 0, 0, 0, 0, 0, 1, 0xff, 0xff]), Some(7));
        assert!(check(3, 10, &bytes, &bytes).is_ok());
    }
}
