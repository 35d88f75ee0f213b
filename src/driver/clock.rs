//! The clock: std's monotonic one as nanoseconds since the NIC was made.

use std::time::Instant as StdInstant;

use roce_transport::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: StdInstant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: StdInstant::now() }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}
