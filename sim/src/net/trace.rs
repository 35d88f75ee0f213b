//! A hash over all events of a run, which is equal for equal runs.
//!
//! Each port has a hash of its events in their order, which does not depend on the number of threads. At the
//! end, the hashes are combined in the order of the ports.

/// The hash so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    hash: u64,
}

impl Trace {
    pub(super) const fn new() -> Self {
        Self { hash: 0x6a09_e667_f3bc_c908 }
    }

    /// Adds two numbers of an event. The order is significant. Each step is reversible, so every event
    /// affects the hash. The recorded hashes of tests depend on this function, so it must not change.
    #[inline]
    pub(super) fn note(&mut self, first: u64, second: u64) {
        let mixed = (self.hash ^ first).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = ((mixed ^ (mixed >> 29)) ^ second).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(23);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash ^ (self.hash >> 31)
    }
}
