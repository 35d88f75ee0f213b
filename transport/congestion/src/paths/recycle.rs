//! The paths of packets that arrived without a mark.

use alloc::collections::VecDeque;

use super::penalty::Penalty;
use super::policy::{PathFeedback, PathPolicy, PathStart};
use crate::Instant;

/// Uses each path again whose packet arrived without a mark, in the order of the answers, as in SMaRTT
/// (2024). Without such a path it takes those of [`Penalty`], as uet-htsim does by default.
#[derive(Clone, Debug)]
pub struct Recycle {
    others: Penalty,
    /// The paths to use again, at most as many as there are.
    good: VecDeque<u16>,
    paths: u16,
}

impl Recycle {
    /// Creates the policy of a queue pair.
    #[must_use]
    pub fn new(start: &PathStart) -> Self {
        Self { others: Penalty::new(start), good: VecDeque::new(), paths: start.paths }
    }
}

impl PathPolicy for Recycle {
    fn next(&mut self, now: Instant) -> u16 {
        self.good.pop_front().unwrap_or_else(|| self.others.next(now))
    }

    fn on_feedback(&mut self, now: Instant, path: u16, feedback: PathFeedback) {
        if feedback == PathFeedback::Delivered {
            if self.good.len() >= self.paths.into() {
                self.good.pop_front();
            }
            self.good.push_back(path);
        }
        self.others.on_feedback(now, path, feedback);
    }
}
