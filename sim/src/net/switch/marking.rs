//! Whether a frame that leaves a queue is marked (RED on the instantaneous queue, as in the DCQCN paper, or a step).

use rand_core::Rng;

use super::super::settings::Marking;
use super::super::world::strikes;

/// Whether to mark, with `queued` bytes left in the queue. Draws only where chance decides.
#[inline]
pub(super) fn marks(marking: Marking, queued: u64, random: &mut impl Rng) -> bool {
    match marking {
        Marking::Off => false,
        Marking::Step { bytes } => queued > bytes,
        Marking::Red { kmin, kmax, pmax } => {
            if queued <= kmin {
                return false;
            }
            if queued > kmax {
                return true;
            }
            let chance = pmax * (queued - kmin) as f64 / (kmax - kmin).max(1) as f64;
            strikes(random, chance)
        }
    }
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
