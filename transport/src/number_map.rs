//! A map from 24-bit numbers to table positions: three levels of 256, made as they are needed.
//!
//! Queue pair numbers and memory keys are chosen at random, so a plain array indexed by them would be
//! mostly holes and a hash map would bring a hash per packet. Three dependent loads cost less.

use alloc::boxed::Box;

type Leaf = [u32; 256];
type Middle = [Option<Box<Leaf>>; 256];

const EMPTY: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct NumberMap {
    root: Box<[Option<Box<Middle>>; 256]>,
    len: usize,
}

/// The index in each level. Each is masked to 8 bits, so it is an index of an array of 256.
const fn split(number: u32) -> (usize, usize, usize) {
    ((number >> 16 & 0xff) as usize, (number >> 8 & 0xff) as usize, (number & 0xff) as usize)
}

impl NumberMap {
    pub(crate) fn new() -> Self {
        Self { root: Box::new([const { None }; 256]), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The position stored for the low 24 bits of `number`.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<usize> {
        let (a, b, c) = split(number);
        let position = self.root[a].as_ref()?[b].as_ref()?[c];
        (position != EMPTY).then_some(position as usize)
    }

    /// Stores `position`, unless the number is taken.
    pub(crate) fn insert(&mut self, number: u32, position: usize) -> bool {
        let Ok(position) = u32::try_from(position) else { return false };
        let (a, b, c) = split(number);
        let middle = self.root[a].get_or_insert_with(|| Box::new([const { None }; 256]));
        let leaf = middle[b].get_or_insert_with(|| Box::new([EMPTY; 256]));
        if leaf[c] != EMPTY || position == EMPTY {
            return false;
        }
        leaf[c] = position;
        self.len += 1;
        true
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<usize> {
        let position = self.get(number)?;
        let (a, b, c) = split(number);
        let middle = self.root[a].as_mut()?;
        let leaf = middle[b].as_mut()?;
        leaf[c] = EMPTY;
        if leaf.iter().all(|entry| *entry == EMPTY) {
            middle[b] = None;
        }
        self.len -= 1;
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_leave() {
        let mut map = NumberMap::new();
        for number in [0_u32, 1, 0xff, 0x100, 0x1_0000, 0xff_ffff] {
            assert!(map.insert(number, number as usize + 7));
            assert!(!map.insert(number, 1), "a taken number is refused");
        }
        assert_eq!(map.len(), 6);
        assert_eq!(map.get(0xff_ffff), Some(0x100_0006));
        assert_eq!(map.get(0xff00_ffff), None, "only the low 24 bits count, and 0xffff is free");
        assert_eq!(map.remove(0x100), Some(0x107));
        assert_eq!(map.remove(0x100), None);
        assert_eq!(map.get(0x100), None);
        assert_eq!(map.len(), 5);
    }
}
