//! The payload of flows: a computed pattern, so that every byte can be checked without being stored.
//!
//! A host has one region. The upper bits of an address select the flow, and the lower bits select the
//! position in the flow. The byte at an address is a function of both. A read computes the bytes, and a write
//! compares them.

use std::sync::atomic::{AtomicU64, Ordering};

use roce_transport::{Memory, OutOfBounds};

use super::settings::PayloadMode;

/// The number of address bits for each flow.
const FLOW_BITS: u32 = 40;
/// The maximum length of a flow: one tebibyte.
pub const MAX_FLOW: u64 = 1 << FLOW_BITS;

/// Whether the offset of every byte of every flow is a `usize`. It is not in WebAssembly.
const IS_WIDE: bool = usize::BITS >= 64;
/// The length of the region of a host: 2^23 flows of 2^40 bytes, if it can be that long.
const REGION: u64 = if IS_WIDE { 1 << 63 } else { 1 << 31 };

/// Returns the address of a byte of a flow.
///
/// In a short region, several bytes share an address. Both ends of a flow compute the same one, so the
/// pattern agrees there too. The upper half is left for the end of a message, whose length is at most 2^30.
pub(super) fn address(flow: u32, offset: u64) -> u64 {
    let address = (u64::from(flow) << FLOW_BITS).wrapping_add(offset);
    if IS_WIDE { address } else { address % (REGION / 2) }
}

/// The region of a host.
#[derive(Debug)]
pub(super) struct Pattern {
    mode: PayloadMode,
    checked: AtomicU64,
    wrong: AtomicU64,
}

impl Pattern {
    pub(super) fn new(mode: PayloadMode) -> Self {
        Self { mode, checked: AtomicU64::new(0), wrong: AtomicU64::new(0) }
    }

    /// Returns the number of compared bytes, and the number of writes with a wrong byte.
    pub(super) fn checked(&self) -> (u64, u64) {
        (self.checked.load(Ordering::Relaxed), self.wrong.load(Ordering::Relaxed))
    }
}

/// Returns the eight bytes at address 8 × `number`.
#[inline]
fn word(number: u64) -> [u8; 8] {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).to_le_bytes()
}

fn fill(offset: usize, out: &mut [u8]) {
    let offset = offset as u64;
    if offset.is_multiple_of(8) {
        for (index, chunk) in (offset / 8..).zip(out.chunks_mut(8)) {
            let bytes = word(index);
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        return;
    }
    for (place, byte) in (offset..).zip(out) {
        *byte = word(place / 8)[(place % 8) as usize];
    }
}

fn is_right(offset: usize, data: &[u8]) -> bool {
    let offset = offset as u64;
    if offset.is_multiple_of(8) {
        let mut numbers = offset / 8..;
        return data
            .chunks(8)
            .zip(&mut numbers)
            .fold(true, |right, (chunk, index)| right & (*chunk == word(index)[..chunk.len()]));
    }
    (offset..).zip(data).all(|(place, byte)| *byte == word(place / 8)[(place % 8) as usize])
}

impl Memory for Pattern {
    fn len(&self) -> usize {
        REGION as usize
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        if self.mode == PayloadMode::Real {
            fill(offset, out);
        }
        Ok(())
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        if self.mode == PayloadMode::Real {
            self.checked.fetch_add(data.len() as u64, Ordering::Relaxed);
            if !is_right(offset, data) {
                self.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    // Flows do not contain atomics, so no request needs these methods.
    fn compare_swap(&self, _: usize, _: u64, _: u64) -> Result<u64, OutOfBounds> {
        Err(OutOfBounds)
    }

    fn fetch_add(&self, _: usize, _: u64) -> Result<u64, OutOfBounds> {
        Err(OutOfBounds)
    }

    fn store(&self, _: usize, _: [u8; 8]) -> Result<(), OutOfBounds> {
        Err(OutOfBounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_may_be_written_and_nothing_else() {
        let pattern = Pattern::new(PayloadMode::Real);
        let mut bytes = vec![0; 1_000];
        let at = address(7, 0) as usize;
        pattern.read(at + 3, &mut bytes).unwrap();
        pattern.write(at + 3, &bytes).unwrap();
        pattern.write(at + 8, &bytes[5..]).unwrap();
        assert_eq!(pattern.checked(), (1_995, 0));
        pattern.write(at + 4, &bytes).unwrap();
        pattern.write(address(8, 3) as usize, &bytes).unwrap();
        bytes[999] ^= 1;
        pattern.write(at + 3, &bytes).unwrap();
        pattern.write(at + 8, &bytes[5..]).unwrap();
        assert_eq!(pattern.checked().1, 4);
    }
}
