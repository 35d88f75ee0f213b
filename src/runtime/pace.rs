//! How fast this machine is. The short times of the runtime, such as 50 µs for which an acknowledgement waits for an answer, are some looks at a device
//! long on usual machines. In an emulated processor, or where another program stands between this one and the kernel, a look takes ten
//! times as long, and so does all that these times are to cover: they would always be over.

use std::time::Duration;

use crate::driver::Nic;

/// A look at a device that finds nothing takes no longer on usual machines, with one system call. Twice as much is slow.
const USUAL_LOOK_NS: u64 = 500;
/// What takes longer still is not the machine's pace.
const SLOWEST: u64 = 16;
/// The shortest of so many looks counts: the others may have been interrupted.
const LOOKS: usize = 8;

/// By how much times are longer here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace(u64);

impl Pace {
    pub(super) const USUAL: Self = Self(1);

    /// Looks at the device of an engine that has no queue pairs yet.
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

    /// A time in nanoseconds.
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
