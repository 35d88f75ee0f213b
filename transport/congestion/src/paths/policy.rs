//! The interface of policies that select paths.

use core::fmt;

use crate::Instant;

/// The fate of a packet on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFeedback {
    /// The packet arrived, and was not marked as far as the sender knows.
    Delivered,
    /// The packet arrived with a congestion mark.
    Marked,
    /// A congested switch removed its payload.
    Trimmed,
    /// The packet is taken for lost, and is sent again.
    Lost,
}

/// The information for a new instance of a policy.
#[derive(Clone, Copy, Debug)]
pub struct PathStart {
    /// Number of paths, a power of two.
    pub paths: u16,
    /// A number that differs between connections, and is the same when a run is repeated.
    pub seed: u64,
}

/// A policy that selects paths, as an instance for one queue pair.
///
/// Calls must not panic or take long: both run for every packet.
pub trait PathPolicy: fmt::Debug + Send {
    /// Returns the path of the next packet, below [`PathStart::paths`].
    fn next(&mut self, now: Instant) -> u16;

    /// Handles the fate of a packet that left on `path`. A mark that a CNP reports may be late, and may be
    /// that of a packet whose delivery was reported before.
    fn on_feedback(&mut self, _now: Instant, _path: u16, _feedback: PathFeedback) {}
}

/// Numbers that look random, from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a path of `count`, which is a power of two.
    pub(super) fn path(&mut self, count: u16) -> u16 {
        self.next() as u16 & count.saturating_sub(1)
    }
}
