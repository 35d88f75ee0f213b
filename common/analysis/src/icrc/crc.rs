//! CRCs with 32 bits as polynomials: bytes that enter a register, and the way back.
//!
//! A register holds a polynomial modulo that of the CRC; its highest bit is the coefficient of x^0. A byte
//! that enters multiplies the register by x^8. Therefore the effect of a change on the CRC depends only on
//! the change and on the number of bytes after it, and it can be divided out again.

/// A table of 256 entries, one for each byte.
pub(super) type Table = [u32; 256];

/// The polynomial of Ethernet and of the ICRC, low bit last.
const ETHERNET_POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial of CRC-32C, low bit last.
const CASTAGNOLI_POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial of Ethernet, high bit first.
const UNREFLECTED_POLYNOMIAL: u32 = 0x04c1_1db7;
/// The polynomial 1.
const ONE: u32 = 0x8000_0000;

/// The CRC of Ethernet and of the ICRC.
pub(super) static ETHERNET: Table = reflected(ETHERNET_POLYNOMIAL);
/// CRC-32C.
pub(super) static CASTAGNOLI: Table = reflected(CASTAGNOLI_POLYNOMIAL);
static UNREFLECTED: Table = unreflected();
static BACK: Table = back_by_a_byte();

/// Returns the register after `bytes`.
pub(super) fn update(table: &Table, register: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(register, |register, byte| register >> 8 ^ look_up(table, register as u8 ^ byte))
}

/// Returns the register after `bytes` of a CRC that takes the highest bit of each byte first.
pub(super) fn update_unreflected(register: u32, bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(register, |register, byte| register << 8 ^ look_up(&UNREFLECTED, (register >> 24) as u8 ^ byte))
}

/// Returns the register before its last byte, if that byte was zero.
pub(super) fn back(register: u32) -> u32 {
    register << 8 ^ look_up(&BACK, (register >> 24) as u8)
}

/// Returns the product of two polynomials.
pub(super) const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ ETHERNET_POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// Returns x^(8·len): the factor of a register before `len` bytes.
pub(super) fn forward_by(len: usize) -> u32 {
    power(ONE >> 8, len)
}

/// Returns x^(-8·len): the factor that takes `len` bytes back.
pub(super) fn back_by(len: usize) -> u32 {
    power(back(ONE), len)
}

fn power(mut base: u32, mut exponent: usize) -> u32 {
    let mut result = ONE;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, base);
        }
        base = multiply(base, base);
        exponent >>= 1;
    }
    result
}

#[inline]
#[allow(clippy::indexing_slicing, reason = "every u8 is an index of an array of 256")]
const fn look_up(table: &Table, byte: u8) -> u32 {
    table[byte as usize]
}

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn reflected(polynomial: u32) -> Table {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = register >> 1 ^ polynomial & (register & 1).wrapping_neg();
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn unreflected() -> Table {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut register = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            register = register << 1 ^ UNREFLECTED_POLYNOMIAL & (register >> 31).wrapping_neg();
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

/// Returns what the highest byte of a register contributes to the register eight bits earlier. The other
/// bytes only move.
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn back_by_a_byte() -> Table {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut register = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            // The polynomial contains x^0, so the highest bit says whether it was added.
            register =
                if register >> 31 == 1 { (register ^ ETHERNET_POLYNOMIAL) << 1 | 1 } else { register << 1 };
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: &[u8] = b"123456789";

    #[test]
    fn check_values_are_those_of_the_catalogue() {
        assert_eq!(!update(&ETHERNET, u32::MAX, DIGITS), 0xcbf4_3926);
        assert_eq!(!update(&CASTAGNOLI, u32::MAX, DIGITS), 0xe306_9283);
        assert_eq!(!update_unreflected(u32::MAX, DIGITS), 0xfc89_1918);
    }

    #[test]
    fn the_way_back_undoes_the_way_forward() {
        let start = 0x1234_5678;
        let mut register = start;
        for len in 1..=300 {
            register = update(&ETHERNET, register, &[0]);
            assert_eq!(register, multiply(start, forward_by(len)));
            assert_eq!(multiply(register, back_by(len)), start);
            assert_eq!((0..len).fold(register, |register, _| back(register)), start);
        }
    }
}
