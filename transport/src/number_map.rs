//! A map from 24-bit numbers to table positions: one array with open addressing.
//!
//! Queue pair numbers and memory keys are drawn at random and never chosen by a peer, so their low bits are
//! as good as a hash. At most half of the slots are occupied, so nearly every number is found in the first
//! slot examined.

use alloc::boxed::Box;
use alloc::vec;

#[derive(Clone, Copy, Debug)]
struct Place {
    number: u32,
    position: u32,
}

const FREE: Place = Place { number: u32::MAX, position: 0 };
const MOST_NUMBER: u32 = 0x00ff_ffff;
/// Number of slots of a small map. Must be a power of two.
const FEWEST_PLACES: usize = 16;

#[derive(Debug)]
pub(crate) struct NumberMap {
    /// The slots. Their number is a power of two, and at least half of them are free. A number is stored in
    /// the slot of its low bits, or in a later one without a free slot in between.
    places: Box<[Place]>,
    len: usize,
}

impl NumberMap {
    pub(crate) fn new() -> Self {
        Self { places: vec![FREE; FEWEST_PLACES].into_boxed_slice(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the position stored for the low 24 bits of `number`.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<usize> {
        let number = number & MOST_NUMBER;
        let place = self.places.get(self.wrap(number as usize))?;
        if place.number == number {
            return Some(place.position as usize);
        }
        self.get_behind(number)
    }

    /// Finds a number that is not in the first slot examined. Separate, so that the callers stay small.
    #[cold]
    fn get_behind(&self, number: u32) -> Option<usize> {
        let place = self.places.get(self.find(number))?;
        (place.number != FREE.number).then_some(place.position as usize)
    }

    /// Stores `position`. Returns `false` if the number is already stored.
    pub(crate) fn insert(&mut self, number: u32, position: usize) -> bool {
        let Ok(position) = u32::try_from(position) else { return false };
        if self.get(number).is_some() {
            return false;
        }
        if 2 * (self.len + 1) > self.places.len() {
            self.grow();
        }
        self.put(Place { number: number & MOST_NUMBER, position });
        self.len += 1;
        true
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<usize> {
        let position = self.get(number)?;
        let mut at = self.find(number & MOST_NUMBER);
        self.len -= 1;
        self.places[at] = FREE;
        // The entries up to the next free slot may have been stored there because this slot was occupied;
        // store them again.
        loop {
            at = self.wrap(at + 1);
            let moved = self.places[at];
            if moved.number == FREE.number {
                return Some(position);
            }
            self.places[at] = FREE;
            self.put(moved);
        }
    }

    /// Returns the slot of `number`, or the free slot for it. A free slot always exists, so the search ends.
    fn find(&self, number: u32) -> usize {
        let mut at = self.wrap(number as usize);
        while let Some(place) = self.places.get(at)
            && place.number != number
            && place.number != FREE.number
        {
            at = self.wrap(at + 1);
        }
        at
    }

    fn put(&mut self, place: Place) {
        let at = self.find(place.number);
        self.places[at] = place;
    }

    fn grow(&mut self) {
        let twice = vec![FREE; 2 * self.places.len()].into_boxed_slice();
        for place in core::mem::replace(&mut self.places, twice) {
            if place.number != FREE.number {
                self.put(place);
            }
        }
    }

    /// Returns a valid slot index.
    #[inline]
    fn wrap(&self, at: usize) -> usize {
        at & (self.places.len() - 1)
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

    /// Inserts and removes numbers with equal low bits in random order, and compares with a map of the
    /// standard library.
    #[test]
    fn numbers_with_the_same_low_bits_are_kept_apart() {
        use alloc::collections::BTreeMap;
        let mut map = NumberMap::new();
        let mut expected = BTreeMap::new();
        let mut state = 1_u64;
        for step in 0..100_000_usize {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few low bits and few high ones, so that searches are long and wrap around the end.
            let number = (state >> 40) as u32 & 0x00ff_000f | (state >> 20) as u32 & 0x30;
            if state >> 63 == 0 {
                assert_eq!(map.insert(number, step), !expected.contains_key(&number));
                expected.entry(number).or_insert(step);
            } else {
                assert_eq!(map.remove(number), expected.remove(&number));
            }
            assert_eq!((map.get(number), map.len()), (expected.get(&number).copied(), expected.len()));
        }
        for (number, position) in &expected {
            assert_eq!(map.get(*number), Some(*position));
        }
    }
}
