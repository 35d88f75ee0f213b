//! Decides how long a call stays in the library.

use std::time::Duration;

use roce_transport::Instant;

use crate::{Experiment, Terms, Timing};

/// A poll stays if peers' requests often arrive meanwhile. One trial proves nothing: both ends must stay.
const LINGERING: Terms = Terms {
    first_credit: 0,
    success: 4,
    failure: 4,
    most_credit: 64,
    trial: 16,
    first_interval: 0,
    interval: 512,
    longest_interval: 512 << 8,
};

/// Decides whether a poll that found completions stays for a peer's request.
///
/// An application that waits for a peer by reading its memory (`ib_write_lat`) polls for the completion of
/// its request, then calls no verb, and would depend on the background thread. A few polls try whether
/// staying helps; all stay while requests arrive in time.
#[derive(Debug)]
pub struct Lingering {
    experiment: Experiment,
    longest: Duration,
    trial: Duration,
    /// Number of the peers' one-sided requests when the application last posted a request.
    requests_at_post: u64,
}

/// The stay of one poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    begin: Instant,
    longest: Duration,
    /// Time after which the poll yields the processor in each iteration.
    trial: Duration,
    /// Whether staying has helped before, so that the application depends on it.
    pays: bool,
}

/// The decision of a stay after one check of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextCheck {
    /// Check again.
    Now,
    /// Yield the processor, then check again.
    AfterYield,
    /// Return to the application.
    Never,
    /// Return to the application, and wake the background thread, which must handle the next request.
    ByBackground,
}

impl Lingering {
    /// Creates the state of an engine whose polls have not stayed yet.
    #[must_use]
    pub fn new(timing: &Timing) -> Self {
        Self {
            experiment: Experiment::new(&LINGERING),
            longest: timing.linger,
            trial: timing.linger_trial,
            requests_at_post: 0,
        }
    }

    /// Records a post of the application, before which peers have sent this number of one-sided requests.
    #[inline]
    pub fn posted(&mut self, requests: u64) {
        self.requests_at_post = requests;
    }

    /// Returns whether and how a poll stays that has found the last outstanding completion.
    #[inline]
    pub fn begins(&mut self, now: Instant, requests: u64) -> Option<Stay> {
        if !self.experiment.is_allowed() {
            return None;
        }
        if requests != self.requests_at_post {
            // The request of the peer arrived together with the completion. Its acknowledgement may wait for
            // the answer.
            self.experiment.succeeded();
            return None;
        }
        let pays = self.experiment.pays();
        let longest = if pays { self.longest } else { self.trial };
        Some(Stay { begin: now, longest, trial: self.trial, pays })
    }

    /// Decides after one check of the device during a stay.
    pub fn checked(&mut self, stay: Stay, now: Instant, requests: u64, has_arrived: bool) -> NextCheck {
        if requests != self.requests_at_post {
            self.experiment.succeeded();
            return NextCheck::Never;
        }
        let stayed = now.since(stay.begin);
        if has_arrived || stayed >= stay.longest {
            self.experiment.failed();
            return if stay.pays { NextCheck::ByBackground } else { NextCheck::Never };
        }
        if stayed >= stay.trial { NextCheck::AfterYield } else { NextCheck::Now }
    }
}

/// The time for which a thread checks the device again before it sleeps. A reply often follows soon, and a
/// peer that sends a stream would have to wake the thread often, which costs the peer more than a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin {
    /// End of the time, once it has begun.
    end: Option<Instant>,
}

impl Spin {
    /// Records a check of the device, and whether it found something. The time begins with the first check,
    /// and again with each one that found something. Returns whether it is over.
    #[inline]
    pub fn checked(&mut self, now: Instant, found: bool, longest: Duration) -> bool {
        // Packets left over from the last call are sent at once, even by a thread that does not spin.
        if found {
            self.end = Some(now + longest);
            return false;
        }
        now >= *self.end.get_or_insert(now + longest)
    }

    /// Lets the thread spin again, because it was woken.
    pub fn woken(&mut self, now: Instant, longest: Duration) {
        self.end = Some(now + longest);
    }
}

/// The interval at which a waiting thread checks what another thread may have received.
#[derive(Clone, Copy, Debug)]
pub struct Recheck {
    after: Duration,
    /// Number of progress calls of all threads at the last check.
    polls: u64,
}

impl Recheck {
    /// Creates the interval of a thread that begins to wait.
    #[must_use]
    pub const fn new(timing: &Timing) -> Self {
        Self { after: timing.first_recheck, polls: 0 }
    }

    /// Returns how long to sleep now. Between two sleeps the thread itself makes progress once.
    fn next(&mut self, polls: u64, timing: &Timing) -> Duration {
        let is_alone = polls == self.polls.wrapping_add(1);
        self.after =
            if is_alone { (2 * self.after).min(timing.longest_recheck) } else { timing.first_recheck };
        self.polls = polls;
        self.after
    }
}

/// The knowledge of a thread that is about to sleep.
#[derive(Clone, Copy, Debug)]
pub struct BeforeSleep {
    /// Whether another thread of the application polls.
    pub is_polled: bool,
    /// Whether the device has a descriptor, which becomes readable when packets arrive.
    pub has_device: bool,
    /// Whether the thread waits for an event whose descriptor another thread makes readable.
    pub has_event: bool,
    /// Number of progress calls of all threads so far.
    pub polls: u64,
    /// Time to the next deadline of the protocol.
    pub deadline: Option<Duration>,
    /// Time to the end of the wait.
    pub remaining: Option<Duration>,
}

/// A sleep of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepFor {
    /// Maximum duration.
    pub time: Duration,
    /// Whether arriving packets end the sleep.
    pub watches: bool,
}

/// Plans the sleep of a waiting thread.
pub fn plan_sleep(before: BeforeSleep, recheck: &mut Recheck, timing: &Timing) -> SleepFor {
    // A device that another thread polls is left out, because it would wake this thread at every packet.
    let leaves = before.has_event && before.is_polled;
    let longest = if leaves {
        timing.while_polled
    } else if !before.has_device {
        timing.first_recheck
    } else if before.has_event {
        timing.longest_sleep
    } else {
        recheck.next(before.polls, timing)
    };
    let time = [before.deadline, before.remaining].into_iter().flatten().fold(longest, Duration::min);
    SleepFor { time, watches: before.has_device && !leaves }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing::USUAL;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    /// A poll stays until its time ends, and nothing comes. Returns whether it stayed as one that pays.
    fn stays(lingering: &mut Lingering) -> Option<bool> {
        let stay = lingering.begins(at(0), 0)?;
        let mut now = 0;
        let end = loop {
            match lingering.checked(stay, at(now), 0, false) {
                NextCheck::Now | NextCheck::AfterYield => now += 1,
                end => break end,
            }
        };
        assert_eq!(now, if stay.pays { 100 } else { 20 });
        assert_eq!(end, if stay.pays { NextCheck::ByBackground } else { NextCheck::Never });
        Some(stay.pays)
    }

    #[test]
    fn a_poll_that_found_something_stays_only_where_that_pays_off() {
        let mut lingering = Lingering::new(&TIMING);
        let Terms { trial, interval, .. } = LINGERING;
        assert!((0..trial).all(|_| stays(&mut lingering) == Some(false)), "the first ones try it");
        assert!((0..interval).all(|_| stays(&mut lingering).is_none()), "nothing came");
        assert!((0..trial).all(|_| stays(&mut lingering) == Some(false)), "the next trial");
        assert!((0..4 * interval).all(|_| stays(&mut lingering).is_none()), "nothing came again");
        for _ in 0..2 {
            let stay = lingering.begins(at(0), 0).unwrap();
            assert_eq!(lingering.checked(stay, at(1), 1, true), NextCheck::Never, "a request came");
        }
        let after = [(); 3].map(|()| stays(&mut lingering));
        assert_eq!(after, [Some(true), Some(true), None], "it pays off no longer");
    }

    /// Regression: the poll stayed for its full time.
    #[test]
    fn a_poll_does_not_stay_for_a_request_that_came_with_its_completion() {
        let mut lingering = Lingering::new(&TIMING);
        lingering.posted(3);
        assert_eq!(lingering.begins(at(0), 4), None);
        assert!(lingering.experiment.pays());
        assert!(lingering.begins(at(0), 3).is_some_and(|stay| stay.pays));
    }

    #[test]
    fn a_stay_that_pays_yields_the_processor_after_the_time_of_a_trial() {
        let mut lingering = Lingering::new(&TIMING);
        lingering.experiment.succeeded();
        let stay = lingering.begins(at(0), 0).unwrap();
        let mut next = |micros| lingering.checked(stay, at(micros), 0, false);
        assert_eq!(
            [next(19), next(20), next(99)],
            [NextCheck::Now, NextCheck::AfterYield, NextCheck::AfterYield]
        );
        assert_eq!(next(100), NextCheck::ByBackground);
    }

    /// Regression: after a stream had lasted for the spin time, the thread slept at the first check without a
    /// packet.
    #[test]
    fn a_thread_checks_for_as_long_after_each_packet() {
        let (mut spin, longest) = (Spin::default(), Duration::from_micros(20));
        assert!([0, 40, 80].iter().all(|&now| !spin.checked(at(now), true, longest)));
        assert!(!spin.checked(at(99), false, longest));
        assert!(spin.checked(at(100), false, longest));
        assert!(!spin.checked(at(101), true, longest), "and once more");
        let mut spin = Spin::default();
        assert!(spin.checked(at(7), false, Duration::ZERO), "a thread that does not spin");
        assert!(!spin.checked(at(8), true, Duration::ZERO), "but there is more to send");
        let mut spin = Spin::default();
        spin.woken(at(50), longest);
        assert!(!spin.checked(at(69), false, longest) && spin.checked(at(70), false, longest));
    }

    #[test]
    fn rechecks_are_rare_only_while_no_other_thread_makes_progress() {
        let mut recheck = Recheck::new(&TIMING);
        let mut after = |polls| recheck.next(polls, &TIMING).as_millis();
        assert_eq!([7, 8, 9, 10, 11, 12].map(&mut after), [1, 2, 4, 8, 8, 8]);
        // Another thread made progress as well, or this one spun.
        assert_eq!([14, 15, 17, 20].map(&mut after), [1, 2, 1, 1]);
    }

    #[test]
    fn a_sleep_ends_with_the_first_of_its_reasons() {
        let usual = BeforeSleep {
            is_polled: false,
            has_device: true,
            has_event: true,
            polls: 0,
            deadline: None,
            remaining: None,
        };
        let plan = |before| plan_sleep(before, &mut Recheck::new(&TIMING), &TIMING);
        assert_eq!(plan(usual), SleepFor { time: TIMING.longest_sleep, watches: true });
        let (deadline, remaining) = (Some(Duration::from_millis(3)), Some(Duration::from_millis(2)));
        assert_eq!(plan(BeforeSleep { deadline, ..usual }).time, Duration::from_millis(3));
        assert_eq!(plan(BeforeSleep { deadline, remaining, ..usual }).time, Duration::from_millis(2));
        let polled = BeforeSleep { is_polled: true, ..usual };
        assert_eq!(plan(polled), SleepFor { time: TIMING.while_polled, watches: false });
        // Without a descriptor of the event, the thread would not see what the polling thread receives.
        let alone = plan(BeforeSleep { has_event: false, ..polled });
        assert_eq!(alone, SleepFor { time: TIMING.first_recheck, watches: true });
        let blind = plan(BeforeSleep { has_device: false, ..usual });
        assert_eq!(blind, SleepFor { time: TIMING.first_recheck, watches: false });
    }
}
