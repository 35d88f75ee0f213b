//! All paths in turn, except those that were congested lately.

use alloc::vec;
use alloc::vec::Vec;

use super::policy::{PathFeedback, PathPolicy, PathStart};
use super::round_robin::RoundRobin;
use crate::Instant;

/// Maximum penalty of a path, in turns.
const MOST: u8 = 15;

/// Takes all paths in turn. A path has a penalty of 1 for each marked packet, 4 for a trimmed one and 15 for
/// a lost one, at most 15. A packet passes over paths with a penalty, and takes 1 off the first of them. This
/// is the "bitmap" of uet-htsim, the reference simulator of Ultra Ethernet.
#[derive(Clone, Debug)]
pub struct Penalty {
    turns: RoundRobin,
    /// Turns that each path still misses.
    penalties: Vec<u8>,
}

impl Penalty {
    /// Creates the policy of a queue pair.
    #[must_use]
    pub fn new(start: &PathStart) -> Self {
        Self { turns: RoundRobin::new(start), penalties: vec![0; start.paths.into()] }
    }
}

impl PathPolicy for Penalty {
    fn next(&mut self, _now: Instant) -> u16 {
        // If every path has a penalty, the turn goes to the one after a round.
        for step in 0..self.penalties.len() {
            match self.penalties.get_mut(usize::from(self.turns.current())) {
                // One packet costs the paths that it passes over one turn altogether, as in uet-htsim: with
                // many congested paths, their penalties would otherwise end within a packet.
                Some(penalty @ 1..) if step == 0 => *penalty -= 1,
                Some(1..) => {}
                Some(0) | None => break,
            }
            self.turns.advance();
        }
        let path = self.turns.current();
        self.turns.advance();
        path
    }

    fn on_feedback(&mut self, _now: Instant, path: u16, feedback: PathFeedback) {
        let turns = match feedback {
            PathFeedback::Delivered => return,
            PathFeedback::Marked => 1,
            PathFeedback::Trimmed => 4,
            PathFeedback::Lost => MOST,
        };
        if let Some(penalty) = self.penalties.get_mut(usize::from(path)) {
            *penalty = penalty.saturating_add(turns).min(MOST);
        }
    }
}
