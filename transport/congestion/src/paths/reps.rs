//! REPS: recycled entropies, with a cache that survives failures.

use alloc::vec::Vec;

use super::policy::{Numbers, PathFeedback, PathPolicy, PathStart};
use crate::Instant;
use crate::parameters;
use crate::parameters::ParameterRange::Number;
use crate::parameters::Parameters as _;

parameters! {
    /// The cache of REPS.
    pub struct RepsParameters {
        /// Number of cached paths.
        cache: u32 = 8, Number(1, 1_024), "", "";
        /// Time after a loss during which only cached paths are used, used ones again.
        freeze: u32 = 10_000, Number(0, 1_000_000), "us", "";
        /// Packets on random paths after that time.
        explore: u32 = 16, Number(0, 65_535), "packets", "";
    }
}

/// REPS (2024): a path whose packet arrived without a mark is cached, and used once more. If the cache has
/// none, the path is random. After a loss, which may be that of a link, only cached paths are used for a
/// while, in turn and more than once.
#[derive(Clone, Debug)]
pub struct Reps {
    paths: u16,
    parameters: RepsParameters,
    numbers: Numbers,
    /// The cached paths in a circle. It grows up to its limit.
    cache: Vec<u16>,
    /// Where the next path is stored.
    head: usize,
    /// Number of paths before `head` that were not used since they were stored.
    fresh: usize,
    /// The path of the cache that is used again next.
    again: usize,
    /// The end of the time after a loss.
    frozen_until: Option<Instant>,
    /// Packets left that take random paths.
    explore: u32,
}

impl Reps {
    /// Creates the policy of a queue pair.
    #[must_use]
    pub fn new(parameters: &RepsParameters, start: &PathStart) -> Self {
        let parameters = parameters.in_range();
        Self {
            paths: start.paths,
            parameters,
            numbers: Numbers(start.seed),
            cache: Vec::with_capacity(parameters.cache as usize),
            head: 0,
            fresh: 0,
            again: 0,
            frozen_until: None,
            explore: 0,
        }
    }

    fn store(&mut self, path: u16) {
        if self.cache.len() < self.parameters.cache as usize {
            self.cache.push(path);
        } else if let Some(place) = self.cache.get_mut(self.head) {
            *place = path;
        }
        self.head = (self.head + 1) % self.parameters.cache as usize;
        self.fresh = (self.fresh + 1).min(self.cache.len());
    }

    /// Ends the time after a loss.
    fn settle(&mut self, now: Instant) {
        if self.frozen_until.is_some_and(|end| end <= now) {
            self.frozen_until = None;
            self.explore = self.parameters.explore;
        }
    }

    /// Takes the oldest path that was not used since it was stored, or else, after a loss, all in turn.
    fn take(&mut self) -> Option<u16> {
        let len = self.cache.len();
        if len == 0 {
            return None;
        }
        if self.fresh > 0 {
            let place = (self.head + len - self.fresh) % len;
            self.fresh -= 1;
            return self.cache.get(place).copied();
        }
        self.frozen_until?;
        self.again = (self.again + 1) % len;
        self.cache.get(self.again).copied()
    }
}

impl PathPolicy for Reps {
    fn next(&mut self, now: Instant) -> u16 {
        self.settle(now);
        if self.explore > 0 {
            self.explore -= 1;
            return self.numbers.path(self.paths);
        }
        self.take().unwrap_or_else(|| self.numbers.path(self.paths))
    }

    fn on_feedback(&mut self, now: Instant, path: u16, feedback: PathFeedback) {
        self.settle(now);
        match feedback {
            PathFeedback::Delivered => self.store(path),
            PathFeedback::Marked | PathFeedback::Trimmed => {}
            PathFeedback::Lost => {
                if self.frozen_until.is_none() && self.explore == 0 && self.parameters.freeze > 0 {
                    self.frozen_until = Some(now.plus_nanos(u64::from(self.parameters.freeze) * 1_000));
                }
            }
        }
    }
}
