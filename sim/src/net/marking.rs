//! ECN marking: the rules that mark departing packets with "congestion experienced".

/// The rule that marks departing packets, depending on the bytes that remain in the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Marking {
    /// Never.
    Off,
    /// Random early detection: never up to `kmin` bytes, always above `kmax`. Between them, the probability
    /// rises to `pmax`.
    Red {
        /// Lower threshold in bytes.
        kmin: u64,
        /// Upper threshold in bytes.
        kmax: u64,
        /// Maximum probability, 0 to 1.
        pmax: f64,
    },
    /// Always above this number of bytes, otherwise never.
    Step {
        /// The threshold.
        bytes: u64,
    },
}

impl Marking {
    /// Returns the probability, 0 to 1, of marking a packet that leaves `queued` bytes behind: a step, or RED
    /// on the instantaneous queue as in the DCQCN paper.
    fn probability(self, queued: u64) -> f64 {
        match self {
            Self::Off => 0.0,
            Self::Step { bytes } => f64::from(queued > bytes),
            Self::Red { kmin, .. } if queued <= kmin => 0.0,
            Self::Red { kmax, .. } if queued > kmax => 1.0,
            Self::Red { kmin, kmax, pmax } => {
                pmax * (queued - kmin) as f64 / kmax.saturating_sub(kmin).max(1) as f64
            }
        }
    }

    /// Returns the marking with thresholds multiplied by `rate` / `reference`, rounded down.
    pub(super) fn scaled(self, rate: u64, reference: u64) -> Self {
        let scale = |bytes: u64| {
            let scaled = u128::from(bytes) * u128::from(rate) / u128::from(reference.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        match self {
            Self::Off => Self::Off,
            Self::Step { bytes } => Self::Step { bytes: scale(bytes) },
            Self::Red { kmin, kmax, pmax } => Self::Red { kmin: scale(kmin), kmax: scale(kmax), pmax },
        }
    }

    /// Returns whether a packet that leaves `queued` bytes behind is marked. `draw` returns a uniformly
    /// distributed number, and is called only if the probability is neither 0 nor 1.
    #[inline]
    pub fn marks(self, queued: u64, draw: impl FnOnce() -> u32) -> bool {
        let probability = self.probability(queued);
        probability >= 1.0 || probability > 0.0 && f64::from(draw()) < probability * 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use rand_core::Rng as _;

    use super::*;
    use roce_fault::random::generator;

    #[test]
    fn probability_rises_between_the_thresholds() {
        let red = Marking::Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 };
        let mut random = generator(1, 1);
        let mut share = |queued| {
            let marked = (0..100_000).filter(|_| red.marks(queued, || random.next_u32())).count();
            marked as f64 / 100_000.0
        };
        assert_eq!((share(0), share(5_000), share(200_001)), (0.0, 0.0, 1.0));
        assert!((share(102_500) - 0.005).abs() < 0.001);
        assert!((share(200_000) - 0.01).abs() < 0.0015);
    }

    #[test]
    fn certain_decisions_draw_no_number() {
        let undrawn = || panic!("the decision is certain");
        let step = Marking::Step { bytes: 40_000 };
        assert!(!step.marks(40_000, undrawn) && step.marks(40_001, undrawn));
        assert!(!Marking::Off.marks(u64::MAX, undrawn));
        // With equal thresholds, RED is a step.
        let sharp = Marking::Red { kmin: 10, kmax: 10, pmax: 0.0 };
        assert!(!sharp.marks(10, undrawn) && sharp.marks(11, undrawn));
    }
}
