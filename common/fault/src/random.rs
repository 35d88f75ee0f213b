//! Reproducible random numbers: one mixing function, and the generators based on it.
//!
//! These functions must never change, so that a seed which exposed a failure still exposes it after an update
//! of any crate.

use rand_core::SeedableRng as _;
use rand_pcg::Pcg32;

/// 2^64 divided by the golden ratio; its multiples are far apart from each other.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Applies the finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every bit of `number` affects half of
/// the bits of the result. Zero stays zero.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// SplitMix64, a generator of 64-bit numbers.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates the generator that starts from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_RATIO);
        mix(self.0)
    }

    /// Draws a number below `limit`; returns 0 if the limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.draw()) * limit as u128) >> 64) as usize
    }

    /// Draws a number from `first` to `last`, inclusive.
    pub fn range(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last + 1 - first)
    }

    /// Returns whether an event with a probability of `percent` happens.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Draws one of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.draw().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

/// Creates a generator for one of several places that draw from the same seed. An additional draw in one
/// place changes nothing in the others.
pub fn generator(seed: u64, place: u64) -> Pcg32 {
    Pcg32::seed_from_u64(seed.wrapping_add(place.wrapping_mul(GOLDEN_RATIO)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the reference implementation (Vigna's splitmix64.c) for seed 1234567.
    #[test]
    fn splitmix64_is_the_published_one() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers = [(); 5].map(|()| random.draw());
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(numbers, published);
    }
}
