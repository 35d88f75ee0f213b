//! All paths in turn.

use super::policy::{Numbers, PathPolicy, PathStart};
use crate::Instant;

/// Takes all paths in turn, whatever becomes of the packets. Each round has another order, so that the queue
/// pairs of a network do not keep step.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    paths: u16,
    numbers: Numbers,
    /// The order of this round: the path at each place is the place with these bits flipped.
    flipped: u16,
    place: u16,
}

impl RoundRobin {
    /// Creates the policy of a queue pair.
    #[must_use]
    pub fn new(start: &PathStart) -> Self {
        let mut numbers = Numbers(start.seed);
        let flipped = numbers.path(start.paths);
        Self { paths: start.paths, numbers, flipped, place: 0 }
    }

    /// Returns the path whose turn it is.
    pub(super) const fn current(&self) -> u16 {
        self.place ^ self.flipped
    }

    /// Ends the turn of the current path.
    pub(super) fn advance(&mut self) {
        self.place += 1;
        if self.place >= self.paths {
            self.place = 0;
            self.flipped = self.numbers.path(self.paths);
        }
    }
}

impl PathPolicy for RoundRobin {
    fn next(&mut self, _now: Instant) -> u16 {
        let path = self.current();
        self.advance();
        path
    }
}
