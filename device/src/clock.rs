//! The clock: std's monotonic one as nanoseconds since the NIC was made.

use std::time::Instant as StdInstant;

use roce_transport::Instant;

#[derive(Clone, Copy, Debug)]
/// Nanoseconds of the monotonic clock since this value was made: the time that engines and devices get.
pub struct Clock {
    origin: StdInstant,
    /// How often the time is halved.
    slower: u32,
}

impl Clock {
    /// A clock that begins at zero now.
    #[must_use]
    pub fn start() -> Self {
        Self::start_slow(0)
    }

    /// A clock that runs 2^`slower` times slower, for tests of short times on machines with other work: what this thread does takes no
    /// longer by this clock than on an idle machine. Nothing may sleep by it.
    #[must_use]
    pub fn start_slow(slower: u32) -> Self {
        Self { origin: StdInstant::now(), slower: slower.min(63) }
    }

    #[inline]
    /// The time since then.
    #[must_use]
    pub fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64 >> self.slower)
    }
}
