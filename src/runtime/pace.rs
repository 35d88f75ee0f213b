//! The speed of this machine. The short times of the runtime, such as the 50 µs for postponed
//! acknowledgements, are several checks of a device long on usual machines. With an emulated processor, or
//! with another program between this one and the kernel, a check takes ten times as long. All activity that
//! these times must cover is slower as well, so the times would always be too short.

use std::time::Duration;

use crate::driver::Nic;

/// Longest usual time of an empty check of a device with one system call. Twice this time is slow.
const USUAL_LOOK_NS: u64 = 500;
/// Maximum factor. A longer check has another cause than the speed of the machine.
const SLOWEST: u64 = 16;
/// Number of checks of which the shortest counts, because others may have been interrupted.
const LOOKS: usize = 8;

/// The factor by which times are longer on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace(u64);

impl Pace {
    pub(super) const USUAL: Self = Self(1);

    /// Measures checks of the device, for an engine that has no queue pairs yet.
    pub(super) fn measure(nic: &mut Nic) -> Self {
        let look = |_| {
            let before = nic.now();
            nic.receive(before);
            nic.now().since(before)
        };
        (0..LOOKS).map(look).min().map_or(Self::USUAL, Self::of_look)
    }

    fn of_look(time: Duration) -> Self {
        Self((time.as_nanos() as u64 / USUAL_LOOK_NS).clamp(1, SLOWEST))
    }

    /// Scales a time in nanoseconds.
    #[inline]
    pub(super) const fn nanos(self, usual: u64) -> u64 {
        usual * self.0
    }

    #[inline]
    pub(super) const fn time(self, usual: Duration) -> Duration {
        usual.saturating_mul(self.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_longer_only_where_a_look_takes_twice_the_usual_time() {
        let times = |look| {
            let pace = Pace::of_look(Duration::from_nanos(look));
            (pace.nanos(50), pace.time(Duration::from_micros(3)).as_micros())
        };
        assert_eq!([0, 60, 430, 999].map(times), [(50, 3); 4]);
        assert_eq!([1_000, 3_700, 1_000_000].map(times), [(100, 6), (350, 21), (800, 48)]);
    }
}
