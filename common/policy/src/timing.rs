//! The times of the policy.

use std::time::Duration;

/// Longest usual time of an empty check of a device with one system call. Twice this time is slow.
const USUAL_CHECK: Duration = Duration::from_nanos(500);
/// Maximum factor. A longer check has another cause than the speed of the machine.
const SLOWEST: u32 = 16;

/// The times of the policy on this machine.
///
/// Most of them cover some checks of a device. With an emulated processor, or with another program between
/// this one and the kernel, a check takes ten times as long. All activity that these times must cover is
/// slower as well, so they grow with the time of a check ([`Timing::measured`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Postponed packets that leave after this time are late.
    pub late: Duration,
    /// Longest time to hold back an acknowledgement after the answer: some round trips in a rack.
    pub hold: Duration,

    /// Longest stay of a poll if staying has paid off: longer than a peer on this host or switch needs to
    /// reply.
    pub linger: Duration,
    /// Longest stay in a trial. After this time the poll yields the processor in each iteration, because the
    /// peer may be a process of this host that needs it.
    pub linger_trial: Duration,

    /// The application watches the device if it polled within this time.
    pub polled_recently: Duration,
    /// [`Self::polled_recently`] while a thread holds the lock; a poll receives up to 1 MiB and sends up to
    /// 256 KiB.
    pub polled_lately: Duration,
    /// [`Self::polled_recently`] while the polling thread yields the processor, which other threads then use
    /// for some time slices. The background thread would only take the processor from them.
    pub yielded: Duration,
    /// Minimum interval between two recorded polls. Once the device has had nothing for a while, polls of an
    /// empty queue check it at this interval. A check is a system call of about 0.5 µs; so late, latency
    /// matters less.
    pub poll_interval: Duration,

    /// First back-off of the background thread while the application polls.
    pub back_off: Duration,
    /// Longest back-off while the application keeps polling. Each check takes the processor from the polling
    /// thread if all processors are busy: with one check every 250 µs, the rate was 10 % lower.
    pub longest_back_off: Duration,
    /// Longest time without a check of the device while the process runs. Four times the longest back-off,
    /// because the background thread may back off twice before it notices that the application has stopped
    /// polling.
    pub checks_every: Duration,
    /// While waits end within this time of each other, their ends do not wake the background thread.
    pub left_recently: Duration,
    /// Time for which a thread that waits for a descriptor leaves the device to a polling thread.
    pub while_polled: Duration,

    /// First interval after which a waiting thread checks what another thread may have received.
    pub first_recheck: Duration,
    /// Longest such interval.
    pub longest_recheck: Duration,
    /// Longest duration of one turn of a wait. A caller that blocks signals and the cancellation of the
    /// thread during a turn allows them after it.
    pub longest_turn: Duration,
    /// Longest sleep of any thread. With 50 ms, an idle connection took 0.3 % of a processor.
    pub longest_sleep: Duration,
    /// Extra time for a thread that has slept until its time, so that it can get a processor.
    pub margin: Duration,
}

impl Timing {
    /// The times on a usual machine.
    pub const USUAL: Self = Self {
        late: Duration::from_micros(50),
        hold: Duration::from_micros(20),
        linger: Duration::from_micros(100),
        linger_trial: Duration::from_micros(20),
        polled_recently: Duration::from_micros(50),
        polled_lately: Duration::from_millis(2),
        yielded: Duration::from_millis(10),
        poll_interval: Duration::from_micros(4),
        back_off: Duration::from_micros(250),
        longest_back_off: Duration::from_millis(2),
        checks_every: Duration::from_millis(8),
        left_recently: Duration::from_micros(2_500),
        while_polled: Duration::from_micros(250),
        first_recheck: Duration::from_millis(1),
        longest_recheck: Duration::from_millis(8),
        longest_turn: Duration::from_millis(5),
        longest_sleep: Duration::from_millis(500),
        margin: Duration::from_millis(20),
    };

    /// Returns the times on a machine where an empty check of the device takes this long.
    #[must_use]
    pub fn measured(check: Duration) -> Self {
        let factor = u32::try_from(check.as_nanos() / USUAL_CHECK.as_nanos()).unwrap_or(SLOWEST);
        Self::USUAL.slower(factor.clamp(1, SLOWEST))
    }

    /// Multiplies the times that cover some checks. The others are limits for threads that sleep, which do
    /// not depend on the time of a check.
    fn slower(self, factor: u32) -> Self {
        Self {
            late: self.late * factor,
            hold: self.hold * factor,
            linger: self.linger * factor,
            linger_trial: self.linger_trial * factor,
            polled_recently: self.polled_recently * factor,
            polled_lately: self.polled_lately * factor,
            yielded: self.yielded * factor,
            poll_interval: self.poll_interval * factor,
            back_off: self.back_off * factor,
            longest_back_off: self.longest_back_off * factor,
            checks_every: self.checks_every * factor,
            left_recently: self.left_recently * factor,
            while_polled: self.while_polled * factor,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_longer_only_where_a_check_takes_twice_the_usual_time() {
        let late = |check| Timing::measured(Duration::from_nanos(check)).late.as_micros();
        assert_eq!([0, 60, 430, 999].map(late), [50; 4]);
        assert_eq!([1_000, 3_700, 1_000_000, u64::MAX].map(late), [100, 350, 800, 800]);
        let slow = Timing::measured(Duration::from_secs(1));
        assert_eq!(slow.longest_sleep, Timing::USUAL.longest_sleep, "a limit for threads that sleep");
    }
}
