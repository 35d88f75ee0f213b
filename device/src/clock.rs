//! The clock: std's monotonic one as nanoseconds since the NIC was made.

use std::time::Instant as StdInstant;

use roce_transport::Instant;

#[derive(Clone, Copy, Debug)]
/// Nanoseconds of the monotonic clock since this value was made: the time that engines and devices get.
pub struct Clock {
    origin: StdInstant,
}

impl Clock {
    /// A clock that begins at zero now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: StdInstant::now() }
    }

    #[inline]
    /// The time since then.
    #[must_use]
    pub fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}
