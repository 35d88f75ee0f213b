//! The content of messages, and the other contents that are accepted.

use roce_exchange::content::{Pattern, mismatch};

/// The byte that the original clients fill their buffer with. Their servers use the next value, which is
/// never sent.
const ORIGINAL: u8 = 0x7b;
/// With `-c`, the original clients write 0 at the start of each page.
const PAGE: usize = 4096;
/// The content of every message for a shared receive queue, because its queue pairs share one buffer there.
const SHARED: u8 = 0x5a;

/// Writes the content of message `number` of our client.
pub(super) fn fill(number: u64, is_shared: bool, bytes: &mut [u8]) {
    if is_shared {
        bytes.fill(SHARED);
    } else {
        Pattern::new(29, number.wrapping_mul(101)).fill(bytes);
    }
}

/// Returns the position where an echo differs from the sent message.
pub(super) fn echo_mismatch(number: u64, is_shared: bool, bytes: &[u8]) -> Option<usize> {
    let mut expected = vec![0; bytes.len()];
    fill(number, is_shared, &mut expected);
    mismatch(bytes, &expected)
}

/// Returns the position where a client's message is neither that of our client nor that of an original.
pub(super) fn request_mismatch(number: u64, is_shared: bool, bytes: &[u8]) -> Option<usize> {
    let at = echo_mismatch(number, is_shared, bytes)?;
    let original = if is_shared {
        bytes.iter().position(|byte| *byte != 0)
    } else {
        bytes
            .iter()
            .enumerate()
            .position(|(index, byte)| *byte != ORIGINAL && !(*byte == 0 && index % PAGE == 0))
    };
    original.map(|other| at.max(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_differs_from_the_next() {
        let (mut one, mut two) = (vec![0; 5000], vec![0; 5000]);
        fill(1, false, &mut one);
        fill(2, false, &mut two);
        assert_eq!(echo_mismatch(1, false, &one), None);
        assert_eq!(echo_mismatch(2, false, &one), Some(0));
        assert_eq!(request_mismatch(2, false, &two), None);
        two[4999] ^= 1;
        assert_eq!(request_mismatch(2, false, &two), Some(4999));
    }

    #[test]
    fn what_the_originals_send_is_right_and_nothing_else() {
        let mut bytes = vec![ORIGINAL; 9000];
        assert_eq!(request_mismatch(7, false, &bytes), None);
        (bytes[0], bytes[4096], bytes[8192]) = (0, 0, 0);
        assert_eq!(request_mismatch(7, false, &bytes), None);
        bytes[1] = 0;
        assert_eq!(request_mismatch(7, false, &bytes), Some(1));
        assert_eq!(request_mismatch(7, true, &[0; 64]), None);
        assert_eq!(request_mismatch(7, true, &[SHARED; 64]), None);
        assert_eq!(request_mismatch(7, true, &[0, SHARED]), Some(1));
    }
}
