//! Whether a frame that leaves a queue is marked.

use rand_core::Rng;

use super::super::settings::Marking;
use super::super::world::strikes;

/// Whether to mark, with `queued` bytes left in the queue. Draws only where chance decides.
#[inline]
pub(super) fn marks(marking: Marking, queued: u64, random: &mut impl Rng) -> bool {
    let probability = marking.probability(queued);
    probability >= 1.0 || probability > 0.0 && strikes(random, probability)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::port::generator;

    #[test]
    fn probability_rises_between_the_thresholds() {
        let red = Marking::Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 };
        let mut random = generator(1, 1);
        let mut share = |queued| {
            let marked = (0..100_000).filter(|_| marks(red, queued, &mut random)).count();
            marked as f64 / 100_000.0
        };
        assert_eq!((share(0), share(5_000), share(200_001)), (0.0, 0.0, 1.0));
        assert!((share(102_500) - 0.005).abs() < 0.001);
        assert!((share(200_000) - 0.01).abs() < 0.0015);
        let step = Marking::Step { bytes: 40_000 };
        assert!(!marks(step, 40_000, &mut random) && marks(step, 40_001, &mut random));
        assert!(!marks(Marking::Off, u64::MAX, &mut random));
    }
}
