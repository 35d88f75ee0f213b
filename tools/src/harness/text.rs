//! Blocks of text of a fixed size, as the original programs exchange them.

/// A text in front of zeros; what is too long is cut.
pub(crate) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut block = [0; N];
    for (place, byte) in block.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    block
}
