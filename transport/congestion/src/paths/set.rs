//! The paths of a queue pair around a policy: which of them are excluded, and when they are probed.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::choice::{PathParameters, Paths};
use super::policy::{PathFeedback, PathPolicy, PathStart};
use crate::Instant;
use crate::parameters::Parameters as _;

/// Maximum number of times that the interval of probes doubles.
const MOST_DOUBLINGS: u32 = 10;
/// Number of times that a policy is asked for another path if it selects an excluded one.
const ATTEMPTS: usize = 4;

/// The paths of one queue pair: a policy, and the paths that it must not use now.
#[derive(Debug)]
pub struct PathSet {
    policy: Box<dyn PathPolicy>,
    parameters: PathParameters,
    /// Losses in a row by path. The length is the number of paths, a power of two.
    losses: Vec<u8>,
    /// Paths that lose everything, in the order in which they are probed.
    excluded: VecDeque<u16>,
    /// The time of the next probe, and how often its interval has doubled.
    probe_at: Instant,
    doublings: u32,
    /// The path of the newest packet that was delivered.
    good: Option<u16>,
}

impl PathSet {
    /// Creates the paths of a queue pair, or returns `None` without a policy.
    #[must_use]
    pub fn new(paths: &Paths, seed: u64) -> Option<Self> {
        let (parameters, count) = (paths.parameters.in_range(), paths.count());
        let policy = paths.policy.make(&PathStart { paths: count, seed })?;
        Some(Self {
            policy,
            parameters,
            losses: vec![0; count.into()],
            excluded: VecDeque::new(),
            probe_at: Instant::ZERO,
            doublings: 0,
            good: None,
        })
    }

    /// Returns the number of paths, a power of two.
    pub(super) fn len(&self) -> u16 {
        // It was made from a number of 16 bits.
        self.losses.len() as u16
    }

    fn within(&self, path: u16) -> u16 {
        path & (self.len() - 1)
    }

    /// Returns the path of the next packet, unless it is a probe: the one that the policy selects. If the
    /// policy insists on excluded paths, the next path that is not excluded is used instead.
    pub fn next(&mut self, now: Instant) -> u16 {
        let mut path = self.policy.next(now);
        if self.excluded.is_empty() || self.excluded.len() == self.losses.len() {
            return self.within(path);
        }
        for _ in 1..ATTEMPTS {
            if !self.is_excluded(path) {
                return self.within(path);
            }
            path = self.policy.next(now);
        }
        let all = (0..self.len()).map(|step| self.within(path.wrapping_add(step)));
        let mut others = all.filter(|path| !self.is_excluded(*path));
        others.next().unwrap_or(self.within(path))
    }

    /// Returns an excluded path if a probe is due, which the next new packet is. All of them take turns,
    /// because one failed link of the network excludes many.
    pub fn probe(&mut self, now: Instant) -> Option<u16> {
        if self.excluded.is_empty() || now < self.probe_at {
            return None;
        }
        self.doublings = (self.doublings + 1).min(MOST_DOUBLINGS);
        self.probe_at = now.plus_nanos(self.interval() << self.doublings);
        self.excluded.rotate_left(1);
        self.excluded.back().copied()
    }

    fn interval(&self) -> u64 {
        u64::from(self.parameters.probe) * 1_000
    }

    /// Returns the path of a packet that is sent again: the one of the newest delivered packet, unless one
    /// was lost there since. A second loss of the same packet would cost a timeout.
    pub fn next_again(&mut self, now: Instant) -> u16 {
        match self.good {
            Some(path) if !self.is_excluded(path) => path,
            _ => self.next(now),
        }
    }

    /// Tells whether a path is excluded.
    #[must_use]
    pub fn is_excluded(&self, path: u16) -> bool {
        let limit = self.parameters.losses;
        let losses = self.losses.get(usize::from(self.within(path))).copied().unwrap_or_default();
        limit > 0 && u32::from(losses) >= limit
    }

    /// Tells the policy of a mark of which only the path is known, and that may be late.
    pub fn on_mark(&mut self, now: Instant, path: u16) {
        self.policy.on_feedback(now, self.within(path), PathFeedback::Marked);
    }

    /// Records the arrival of a packet of whose mark the policy was told ([`on_mark`](Self::on_mark)).
    pub fn on_arrival_of_marked(&mut self, now: Instant, path: u16) {
        self.arrived(now, self.within(path));
    }

    /// Handles the fate of a packet that left on `path`. Returns whether that excluded the path.
    pub fn on_feedback(&mut self, now: Instant, path: u16, feedback: PathFeedback) -> bool {
        let path = self.within(path);
        self.policy.on_feedback(now, path, feedback);
        if feedback == PathFeedback::Lost {
            return self.lost(now, path);
        }
        self.arrived(now, path);
        if feedback == PathFeedback::Delivered {
            self.good = Some(path);
        }
        false
    }

    /// Ends the losses in a row of a path, and its exclusion.
    fn arrived(&mut self, now: Instant, path: u16) {
        if self.is_excluded(path) {
            self.excluded.retain(|excluded| *excluded != path);
            // The next one may have failed for the same reason.
            (self.probe_at, self.doublings) = (now, 0);
        }
        if let Some(losses) = self.losses.get_mut(usize::from(path)) {
            *losses = 0;
        }
    }

    /// Counts a loss. Returns whether it excludes the path.
    fn lost(&mut self, now: Instant, path: u16) -> bool {
        self.good = self.good.filter(|good| *good != path);
        let was_excluded = self.is_excluded(path);
        if let Some(losses) = self.losses.get_mut(usize::from(path)) {
            *losses = losses.saturating_add(1);
        }
        let excludes = !was_excluded && self.is_excluded(path);
        if excludes {
            // It is probed first: those that were excluded before may have failed for good.
            let soon = now.plus_nanos(self.interval());
            self.probe_at = if self.excluded.is_empty() { soon } else { self.probe_at.min(soon) };
            self.doublings = 0;
            self.excluded.push_front(path);
        }
        excludes
    }
}
