//! The content of messages, and checking it.

use std::ops::Range;

use roce_exchange::content::{Pattern, STAMP, mismatch};

use crate::harness::Role;

/// Messages up to this size are always compared completely.
const SMALL: usize = 4096;
/// One in this many larger messages is compared completely.
const EVERY: u64 = 16;
/// Bytes that are compared at each end of the other large messages.
const ENDS: usize = 64;

/// The bytes that we fill buffers with. They depend on the offset, plus a constant for each side and queue
/// pair.
#[derive(Debug)]
pub(super) struct Areas(Vec<u8>);

impl Areas {
    pub(super) fn new(len: usize) -> Self {
        let byte = |index: usize| Pattern::new(31, (index as u64 >> 16) * 7).byte(index);
        Self((0..len).map(byte).collect())
    }

    /// Returns the content of a whole area.
    pub(super) fn area(&self, role: Role, qp: usize, len: usize) -> Vec<u8> {
        let tone = tone(role, qp);
        self.0.iter().take(len).map(|byte| byte.wrapping_add(tone)).collect()
    }

    /// Returns the position where `bytes` differ from the message that was sent from `offset` of the area.
    /// `bytes` begin at `start` of that message. Messages that were READ have no number.
    pub(super) fn mismatch(
        &self,
        from: (Role, usize),
        offset: usize,
        number: Option<u64>,
        start: usize,
        bytes: &[u8],
    ) -> Option<usize> {
        let tone = tone(from.0, from.1);
        let stamp = number.map(u64::to_le_bytes);
        let stamped = if stamp.is_some() { STAMP.saturating_sub(start).min(bytes.len()) } else { 0 };
        if let Some(stamp) = stamp
            && let Some(at) = (0..stamped).find(|at| bytes[*at] != stamp[start + at])
        {
            return Some(start + at);
        }
        let known = self.0.get(offset + start..).unwrap_or_default();
        if known.len() < bytes.len() {
            return Some(start + known.len());
        }
        let differs = |(byte, known): (&u8, &u8)| *byte != known.wrapping_add(tone);
        let at = bytes[stamped..].iter().zip(&known[stamped..]).position(differs)?;
        Some(start + stamped + at)
    }
}

fn tone(role: Role, qp: usize) -> u8 {
    (qp as u8).wrapping_mul(17).wrapping_add(if role == Role::Client { 1 } else { 102 })
}

/// Returns the content of message `number` of a latency test. The originals read the last byte.
pub(super) fn ping(role: Role, number: u64, size: usize) -> Vec<u8> {
    let side = if role == Role::Client { 5 } else { 77 };
    let mut bytes = Pattern::new(29, number.wrapping_mul(101).wrapping_add(side)).bytes(size);
    if let Some(last) = bytes.last_mut() {
        *last = number.wrapping_add(1) as u8;
    }
    bytes
}

/// Returns the byte ranges of message `number` that are compared.
pub(super) fn pieces(size: usize, number: u64) -> [Range<usize>; 2] {
    if size <= SMALL || number.is_multiple_of(EVERY) { [0..size, 0..0] } else { [0..ENDS, size - ENDS..size] }
}

/// The messages that an original has sent so far. Its buffers contain random bytes that never change. It
/// sends them in turn from a known number of slots.
#[derive(Debug)]
pub(super) struct Learned {
    places: usize,
    known: Vec<Vec<u8>>,
}

impl Learned {
    pub(super) fn new(places: usize) -> Self {
        Self { places, known: Vec::new() }
    }

    /// Returns whether [`Self::learn`] needs another whole message.
    pub(super) fn wants(&self) -> bool {
        self.known.len() < self.places
    }

    /// Compares a whole message, or stores it. Returns the position of the first wrong byte.
    pub(super) fn learn(&mut self, number: u64, bytes: &[u8]) -> Option<usize> {
        let at = self.mismatch(number, 0, bytes)?;
        if self.wants() {
            self.known.push(bytes.to_vec());
            return None;
        }
        Some(at)
    }

    /// Returns the first position where bytes that begin at `start` of a message differ from all known
    /// messages.
    pub(super) fn mismatch(&self, number: u64, start: usize, bytes: &[u8]) -> Option<usize> {
        let mut first = None;
        let begin = (number % self.places as u64) as usize;
        for place in 0..self.known.len() {
            let known = &self.known[(begin + place) % self.known.len()];
            let known = known.get(start..start + bytes.len()).unwrap_or_default();
            if known == bytes {
                return None;
            }
            let at = mismatch(bytes, known);
            first = first.or(Some(start + at.unwrap_or(known.len())));
        }
        first.or(Some(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_number_queue_pair_or_side_is_seen() {
        let pattern = Areas::new(8192);
        let area = pattern.area(Role::Client, 3, 8192);
        let mut message = area[64..164].to_vec();
        message[..STAMP].copy_from_slice(&7_u64.to_le_bytes());
        let wrong = |bytes: &[u8]| pattern.mismatch((Role::Client, 3), 64, Some(7), 0, bytes);
        assert_eq!(wrong(&message), None);
        for at in 0..100 {
            message[at] ^= 0x40;
            assert_eq!(wrong(&message), Some(at));
            message[at] ^= 0x40;
        }
        assert_eq!(pattern.mismatch((Role::Client, 3), 64, Some(8), 0, &message), Some(0));
        assert_eq!(pattern.mismatch((Role::Client, 2), 64, Some(7), 0, &message), Some(8));
        assert_eq!(pattern.mismatch((Role::Server, 3), 64, Some(7), 0, &message), Some(8));
        assert_eq!(pattern.mismatch((Role::Client, 3), 128, Some(7), 0, &message), Some(8));
        assert_eq!(pattern.mismatch((Role::Client, 3), 64, Some(7), 90, &message[90..]), None);
        assert_eq!(pattern.mismatch((Role::Client, 3), 64, Some(7), 4, &message[4..6]), None);
        assert_eq!(pattern.mismatch((Role::Client, 3), 0, None, 0, &area[..5]), None);
        assert_eq!(pattern.mismatch((Role::Client, 3), 8190, None, 0, &[0; 4]), Some(2));
    }

    /// Checks that areas are compatible between releases. Two releases that measure together must fill and
    /// check messages alike.
    #[test]
    fn areas_are_those_of_earlier_releases() {
        let area = Areas::new(140_000).area(Role::Server, 2, 140_000);
        for index in [0_usize, 255, 256, 65_535, 65_536, 131_072, 139_999] {
            let byte = (index * 31 + (index >> 8) + (index >> 16) * 7) as u8;
            assert_eq!(area[index], byte.wrapping_add(2 * 17 + 102));
        }
    }

    #[test]
    fn an_original_may_send_from_as_many_places_as_it_has() {
        let mut learned = Learned::new(2);
        assert!(learned.wants());
        assert_eq!(learned.learn(0, b"one"), None);
        assert_eq!(learned.learn(1, b"two"), None);
        assert!(!learned.wants());
        assert_eq!(learned.learn(2, b"one"), None);
        assert_eq!(learned.mismatch(3, 1, b"wo"), None);
        assert_eq!(learned.learn(3, b"twa"), Some(2));
        assert_eq!(learned.learn(3, b"longer"), Some(0));
    }

    #[test]
    fn small_messages_are_looked_at_as_a_whole() {
        assert_eq!(pieces(4096, 3), [0..4096, 0..0]);
        assert_eq!(pieces(65_536, 3), [0..64, 65_472..65_536]);
        assert_eq!(pieces(65_536, 32), [0..65_536, 0..0]);
    }
}
