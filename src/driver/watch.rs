//! The time since which no thread has watched the device.

use std::time::Duration;

use roce_transport::Instant;

/// Times at which threads checked the device, and until which they watch it.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// End of the watched time: the last check, or the end of a sleep that a datagram would have ended.
    until: Instant,
    /// Maximum interval between two checks while the process runs; `None` if only the application checks, at
    /// any interval.
    pub(super) interval: Option<Duration>,
}

impl Watch {
    /// Records a check of the device. Returns the unwatched time if it exceeds the interval of a running
    /// process.
    #[inline]
    pub(super) fn look(&mut self, now: Instant) -> Option<Duration> {
        let pause = now.since(self.until);
        // The clock starts with the context, before the first check of its threads.
        let is_first = self.until == Instant::ZERO;
        self.until = self.until.max(now);
        self.interval.filter(|interval| pause > *interval && !is_first).map(|_| pause)
    }

    /// Records that a thread sleeps until a datagram arrives, at most until `until`. Keeps a pause that no
    /// check has noted.
    #[inline]
    pub(super) fn sleep(&mut self, now: Instant, until: Instant) {
        if self.interval.is_some_and(|interval| now.since(self.until) <= interval) {
            self.until = self.until.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(8);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn watch() -> Watch {
        Watch { until: Instant::ZERO, interval: Some(INTERVAL) }
    }

    #[test]
    fn a_time_without_a_look_is_a_pause() {
        let mut watch = watch();
        assert_eq!(watch.look(at(500)), None, "the first look");
        assert_eq!(watch.look(at(508)), None, "as often as usual");
        assert_eq!(watch.look(at(808)), Some(Duration::from_millis(300)));
        assert_eq!(watch.look(at(809)), None);
    }

    #[test]
    fn a_sleep_that_a_datagram_would_end_is_no_pause() {
        let mut watch = watch();
        assert_eq!(watch.look(at(1)), None);
        watch.sleep(at(2), at(500));
        assert_eq!(watch.look(at(501)), None, "it woke on time");
        watch.sleep(at(502), at(900));
        assert_eq!(watch.look(at(600)), None, "another thread looked meanwhile");
        assert_eq!(watch.look(at(1_000)), Some(Duration::from_millis(100)), "it woke late");
    }

    /// Regression: a thread that slept after a pause, before it checked the device, hid the pause.
    #[test]
    fn a_sleep_does_not_hide_the_pause_before_it() {
        let mut watch = watch();
        assert_eq!(watch.look(at(1)), None);
        watch.sleep(at(2_501), at(2_510));
        assert_eq!(watch.look(at(2_511)), Some(Duration::from_millis(2_510)));
    }

    #[test]
    fn an_application_that_polls_as_it_likes_has_no_pauses() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(at(1)), None);
        assert_eq!(watch.look(at(100_000)), None);
    }
}
