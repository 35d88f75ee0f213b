//! Fixed-size blocks of text, in the format of the original programs.

/// Pads a text with zeros; a text that is too long is truncated.
pub(crate) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut block = [0; N];
    for (place, byte) in block.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    block
}
