//! The clock: std's monotonic clock in nanoseconds since the NIC was created.

use std::time::Instant as StdInstant;

use roce_transport::Instant;

#[derive(Clone, Copy, Debug)]
/// Nanoseconds of the monotonic clock since this value was created; engines and devices get this time.
pub struct Clock {
    origin: StdInstant,
    /// Number of times that the time is halved.
    slower: u32,
}

impl Clock {
    /// Starts a clock at zero.
    #[must_use]
    pub fn start() -> Self {
        Self::start_slow(0)
    }

    /// Starts a clock that runs 2^`slower` times slower, for tests of short times on loaded machines: by this
    /// clock, a thread's work takes no longer than on an idle machine. Do not use it to sleep.
    #[must_use]
    pub fn start_slow(slower: u32) -> Self {
        Self { origin: StdInstant::now(), slower: slower.min(63) }
    }

    #[inline]
    /// Returns the time since the clock was started.
    #[must_use]
    pub fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64 >> self.slower)
    }
}
