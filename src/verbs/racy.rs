//! Copies to and from bytes that others access concurrently.
//!
//! A peer writes to registered memory while the application reads it. Plain loads and stores of such bytes
//! would be undefined behaviour. Therefore a few lines of assembly make the copies, which the language treats
//! as a block of unknown but legal accesses. Other machines use relaxed atomics of one byte. All copies load
//! and store like relaxed atomics of 16 bytes or fewer, in ascending order: a race yields a mix of old and
//! new bytes.

#[cfg(not(target_arch = "x86_64"))]
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// Minimum length for a copy in blocks.
pub(super) const BLOCK: usize = 64;

/// Copies bytes that others may write concurrently.
///
/// # Safety
///
/// `source` must be valid for reads of `out.len()` bytes. Others may access them if they use atomics or this
/// module, or are not Rust code.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn read(source: *const u8, out: &mut [u8]) {
    // SAFETY: the caller's promise. `out` is exclusively ours, so the ranges do not overlap.
    unsafe { copy(source, out.as_mut_ptr(), out.len()) };
}

/// Copies to bytes that others may access concurrently. Whoever sees the last byte sees all of them, and
/// everything that this thread wrote before.
///
/// # Safety
///
/// `target` must be valid for writes of `data.len()` bytes. Others may access them if they use atomics or
/// this module, or are not Rust code.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn write(data: &[u8], target: *mut u8) {
    // SAFETY: the caller's promise. Nothing changes `data`, so the ranges do not overlap.
    unsafe { copy(data.as_ptr(), target, data.len()) };
}

/// Copies `len` bytes of any length and alignment.
///
/// # Safety
///
/// Both ranges must be valid and must not overlap. Others may access one of them, as for [`read`] and
/// [`write`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    let blocks = len / BLOCK * BLOCK;
    // SAFETY: the caller's promise; the rest begins behind the blocks, inside the range or at its end.
    unsafe {
        copy_blocks(source, target, blocks);
        copy_rest(source.add(blocks), target.add(blocks), len - blocks);
    }
}

/// Copies `len` bytes, a multiple of [`BLOCK`], with the machine's own loads and stores.
///
/// # Safety
///
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_blocks(source: *const u8, target: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: the loop touches exactly `len` bytes of both ranges, in steps of 64, and nothing else;
    // the registers that it changes are declared.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{source} + {at}]",
            "movups {b}, [{source} + {at} + 16]",
            "movups {c}, [{source} + {at} + 32]",
            "movups {d}, [{source} + {at} + 48]",
            "movups [{target} + {at}], {a}",
            "movups [{target} + {at} + 16], {b}",
            "movups [{target} + {at} + 32], {c}",
            "movups [{target} + {at} + 48], {d}",
            "add {at}, 64",
            "cmp {at}, {len}",
            "jb 2b",
            source = in(reg) source,
            target = in(reg) target,
            len = in(reg) len,
            at = inout(reg) 0_usize => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies the bytes behind the last block: words of 8 bytes, then single bytes.
///
/// # Safety
///
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_rest(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: `at` runs from 0 to `len`, in steps of 8 while 8 are left, then of 1; the registers that change
    // are declared.
    unsafe {
        std::arch::asm!(
            "2:",
            "lea {end}, [{at} + 8]",
            "cmp {end}, {len}",
            "ja 3f",
            "mov {word}, [{source} + {at}]",
            "mov [{target} + {at}], {word}",
            "mov {at}, {end}",
            "jmp 2b",
            "3:",
            "cmp {at}, {len}",
            "jae 4f",
            "mov {word:l}, [{source} + {at}]",
            "mov [{target} + {at}], {word:l}",
            "inc {at}",
            "jmp 3b",
            "4:",
            source = in(reg) source,
            target = in(reg) target,
            len = in(reg) len,
            at = inout(reg) 0_usize => _,
            end = out(reg) _,
            word = out(reg) _,
            options(nostack),
        );
    }
}

/// Copies bytes that others may write concurrently.
///
/// # Safety
///
/// `source` must be valid for reads of `out.len()` bytes. Others may access them if they use atomics or this
/// module, or are not Rust code.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn read(source: *const u8, out: &mut [u8]) {
    for (at, byte) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise; a byte has no alignment. The source is only read.
        *byte = unsafe { AtomicU8::from_ptr(source.add(at).cast_mut()) }.load(Ordering::Relaxed);
    }
}

/// Copies to bytes that others may access concurrently. Whoever sees the last byte sees all of them, and
/// everything that this thread wrote before.
///
/// # Safety
///
/// `target` must be valid for writes of `data.len()` bytes. Others may access them if they use atomics or
/// this module, or are not Rust code.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn write(data: &[u8], target: *mut u8) {
    let Some((last, before)) = data.split_last() else { return };
    // SAFETY: the caller's promise; a byte has no alignment.
    let place = |at| unsafe { AtomicU8::from_ptr(target.add(at)) };
    fence(Ordering::Release);
    for (at, byte) in before.iter().enumerate() {
        place(at).store(*byte, Ordering::Relaxed);
    }
    fence(Ordering::Release);
    place(before.len()).store(*last, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_exact() {
        let source: Vec<u8> = (0..300_u32).map(|index| (index % 251) as u8).collect();
        for len in (0..140).chain([191, 192, 193, 256, 290]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (7, 8), (8, 7)] {
                let (expected, mut read_into, mut written) =
                    (&source[from..from + len], [0xee; 310], [0xee; 310]);
                // SAFETY: the ranges lie inside their buffers.
                unsafe {
                    read(expected.as_ptr(), &mut read_into[to..to + len]);
                    write(expected, written.as_mut_ptr().add(to));
                }
                for target in [read_into, written] {
                    let mut outside = target[..to].iter().chain(&target[to + len..]);
                    assert!(outside.all(|byte| *byte == 0xee), "{len} {to}");
                    assert_eq!(&target[to..to + len], expected, "{len} {from} {to}");
                }
            }
        }
    }
}
