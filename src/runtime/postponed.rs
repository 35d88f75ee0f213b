//! Acknowledgements that leave with what the application posts next.
//!
//! A packet costs a system call and a walk through the network, whatever its size. Where an application answers a message with a
//! message, an acknowledgement that waits for the answer can be in the same superpacket, and the application has its completion sooner.
//! It leaves with the first of these:
//!
//! - a work request that the application posts;
//! - the next call that polls;
//! - the request for a notification, which comes before a sleep;
//! - the background thread, when it sees that the application polls no more: within 0.5 ms, and up to 3 ms where it has polled for long.
//!
//! An application that computes between two polls would let its peers wait, so one that is seen to do so again and again has nothing
//! postponed for the next polls.
//!
//! Where the ends answer each other in turn, an acknowledgement is not needed at all: the next message of the peer comes before it, and the
//! acknowledgement of that one covers both. So acknowledgements may be held back while the application polls for the next message, for
//! [`HOLD_NS`] at most and for [`MOST_HELD`] messages in a row. A peer that waits for the acknowledgement before it sends its next message
//! would lose that time with each one, so that this is tried rarely, and kept up only while the next message comes in time.
//!
//! An application may also answer what a peer has written into its memory, and look for it there. Whether it does is not to be seen when a
//! WRITE arrives, and a peer that only writes waits for its acknowledgement. So the acknowledgement of a WRITE is postponed rarely as
//! well, and as long as a request of the application follows before it polls again.

use std::time::Duration;

use roce_transport::Instant;

use super::pace::Pace;
use super::policy::{Experiment, Terms};

/// What leaves later than this was postponed in vain.
const LATE_NS: u64 = 50_000;
/// Acknowledgements wait by default. Three late ones in a row end this: an application that sometimes loses its processor may go on.
const WAITING: Terms = Terms {
    first_credit: 20,
    success: 1,
    failure: 8,
    most_credit: 20,
    trial: 1,
    first_interval: 0,
    interval: 256,
    longest_interval: 256,
};

/// How long an acknowledgement is held back at most after the answer has left: a few round trips within a rack.
const HOLD_NS: u64 = 20_000;
/// After so many messages without an acknowledgement one leaves, so that the send queue of the peer does not fill up.
const MOST_HELD: u8 = 7;
/// A wrong guess delays a peer that waits for the acknowledgement by [`HOLD_NS`]; a right one saves a packet. So one failure weighs
/// eight successes.
const FOR_ONE_MESSAGE: Terms = Terms {
    first_credit: 0,
    success: 1,
    failure: 8,
    most_credit: 32,
    trial: 1,
    first_interval: 15,
    interval: 63,
    longest_interval: 16 << 10,
};

/// Since when acknowledgements wait.
#[derive(Debug)]
pub(super) struct Postponed {
    /// [`LATE_NS`] and [`HOLD_NS`] on this machine.
    late_ns: u64,
    hold_ns: u64,
    since: Option<Instant>,
    waiting: Experiment,
    hold: Hold,
    /// What waits is the acknowledgement of a WRITE, which the application has not answered yet.
    is_of_write: bool,
    writes: Experiment,
}

/// Acknowledgements that are held back although the answer has left.
#[derive(Debug)]
struct Hold {
    since: Option<Instant>,
    /// Messages in a row whose acknowledgement was held back.
    messages: u8,
    experiment: Experiment,
}

impl Hold {
    /// Whether acknowledgements may stay behind when an answer leaves.
    fn is_allowed(&mut self) -> bool {
        if self.messages >= MOST_HELD {
            self.messages = 0;
            return false;
        }
        self.experiment.is_allowed()
    }

    fn succeeded(&mut self) {
        self.since = None;
        self.messages += 1;
        self.experiment.succeeded();
    }

    /// Ends at `now`: in vain after more than `longest_ns`.
    fn end(&mut self, now: Instant, longest_ns: u64) {
        self.messages = 0;
        let Some(since) = self.since.take() else { return };
        if !is_within(since, now, longest_ns) {
            self.experiment.failed();
        }
    }
}

fn is_within(since: Instant, now: Instant, nanos: u64) -> bool {
    now.since(since) <= Duration::from_nanos(nanos)
}

impl Postponed {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            late_ns: pace.nanos(LATE_NS),
            hold_ns: pace.nanos(HOLD_NS),
            since: None,
            waiting: Experiment::new(&WAITING),
            hold: Hold { since: None, messages: 0, experiment: Experiment::new(&FOR_ONE_MESSAGE) },
            is_of_write: false,
            writes: Experiment::new(&FOR_ONE_MESSAGE),
        }
    }

    pub(super) const fn is_pending(&self) -> bool {
        self.since.is_some()
    }

    pub(super) const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether acknowledgements may wait from now on. Those that wait already wait no longer.
    #[inline]
    pub(super) fn may_begin(&mut self) -> bool {
        self.waiting.is_allowed() && self.since.is_none()
    }

    /// Whether acknowledgements wait, and may do so for longer.
    #[inline]
    pub(super) fn may_go_on(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| is_within(since, now, self.late_ns))
    }

    /// Whether the acknowledgements that wait may stay behind when the answer of the application leaves.
    #[inline]
    pub(super) fn may_hold(&mut self) -> bool {
        self.hold.is_allowed()
    }

    /// The answer has left, and the acknowledgements wait for the next message of the peer.
    #[inline]
    pub(super) fn hold(&mut self, now: Instant) {
        self.hold.since = Some(now);
    }

    #[inline]
    pub(super) const fn is_held(&self) -> bool {
        self.hold.since.is_some()
    }

    /// Whether what is held back may wait for longer.
    #[inline]
    pub(super) fn may_hold_on(&self, now: Instant) -> bool {
        self.hold.since.is_some_and(|since| is_within(since, now, self.hold_ns))
    }

    /// The next message came before the acknowledgement of the last one had left.
    #[inline]
    pub(super) fn supersede(&mut self) {
        self.hold.succeeded();
        self.since = None;
        self.is_of_write = false;
    }

    #[inline]
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// A WRITE has arrived. Whether its acknowledgement may wait for the application to answer it.
    #[inline]
    pub(super) fn may_await_answer(&mut self) -> bool {
        self.writes.is_allowed()
    }

    /// The acknowledgement of a WRITE waits from now on.
    #[inline]
    pub(super) fn begin_with_write(&mut self, now: Instant) {
        self.begin(now);
        self.is_of_write = true;
    }

    /// The application has posted something.
    #[inline]
    pub(super) fn note_answer(&mut self) {
        if std::mem::take(&mut self.is_of_write) {
            self.writes.succeeded();
        }
    }

    /// What waits is sent now.
    #[inline]
    pub(super) fn end(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        if std::mem::take(&mut self.is_of_write) {
            self.writes.failed();
        }
        self.hold.end(now, self.hold_ns);
        if is_within(since, now, self.late_ns) {
            self.waiting.succeeded();
        } else {
            self.waiting.failed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn an_application_that_is_often_late_has_nothing_postponed_for_a_while() {
        let mut postponed = Postponed::new(Pace::USUAL);
        let mut now = 0;
        let mut postpone_for = |micros| {
            now += 1_000;
            let begins = postponed.may_begin();
            if begins {
                postponed.begin(at(now));
                assert!(!postponed.may_begin(), "not twice in a row");
                assert_eq!(postponed.since(), Some(at(now)));
            }
            postponed.end(at(now + micros));
            assert!(!postponed.is_pending());
            begins
        };
        for _ in 0..100 {
            assert!(postpone_for(300), "once in a while");
            assert!((0..8).all(|_| postpone_for(50)));
        }
        assert!((0..3).all(|_| postpone_for(51)));
        assert!((0..WAITING.interval).all(|_| !postpone_for(1)));
        assert!(postpone_for(1));
    }

    /// Answers as often as `may_hold` has to be asked until it agrees.
    fn opportunities_until_hold(postponed: &mut Postponed) -> u32 {
        (1..).find(|_| postponed.may_hold()).unwrap()
    }

    #[test]
    fn acknowledgements_are_held_back_only_where_the_next_message_comes_in_time() {
        let mut postponed = Postponed::new(Pace::USUAL);
        let mut now = 0;
        // The peer waits for its acknowledgement: trials become rare.
        for interval in [15, 63, 4 * 63] {
            assert_eq!(opportunities_until_hold(&mut postponed), 1 + interval);
            postponed.begin(at(now));
            postponed.hold(at(now));
            assert!(postponed.may_hold_on(at(now + 20)) && !postponed.may_hold_on(at(now + 21)));
            postponed.end(at(now + 21));
            now += 1_000;
        }
        // It does so no longer: one acknowledgement for some messages.
        assert_eq!(opportunities_until_hold(&mut postponed), 1 + 16 * 63);
        for _ in 0..10 {
            for _ in 0..MOST_HELD {
                postponed.begin(at(now));
                postponed.hold(at(now));
                assert!(postponed.is_held());
                postponed.supersede();
                assert!(!postponed.is_held() && !postponed.is_pending());
                now += 5;
                if postponed.hold.messages < MOST_HELD {
                    assert!(postponed.may_hold());
                }
            }
            assert!(!postponed.may_hold(), "one leaves");
            assert!(postponed.may_hold());
        }
        // And then again: it ends soon.
        let mut failures = 0;
        while postponed.may_hold() {
            postponed.begin(at(now));
            postponed.hold(at(now));
            postponed.end(at(now + 100));
            now += 1_000;
            failures += 1;
        }
        assert_eq!(failures, FOR_ONE_MESSAGE.most_credit / FOR_ONE_MESSAGE.failure);
    }

    /// A peer that wrote and waited for its acknowledgement lost a look at the device with each WRITE.
    #[test]
    fn the_acknowledgement_of_a_write_waits_only_where_the_application_answers_writes() {
        let mut postponed = Postponed::new(Pace::USUAL);
        let mut now = 0;
        let mut write = |answers: bool| {
            now += 10;
            let waits = postponed.may_await_answer();
            if waits {
                postponed.begin_with_write(at(now));
                if answers {
                    postponed.note_answer();
                }
                postponed.end(at(now + 1));
            }
            waits
        };
        for interval in [15, 63, 4 * 63] {
            assert_eq!((0..).find(|_| write(false)), Some(interval), "nobody answers");
        }
        assert_eq!((0..).find(|_| write(true)), Some(16 * 63));
        assert!((0..100).all(|_| write(true)), "each WRITE is answered");
        assert_eq!((0..).find(|_| !write(false)), Some(4), "and then no more");
    }

    #[test]
    fn a_hold_that_a_request_for_a_notification_ends_is_no_failure() {
        let mut postponed = Postponed::new(Pace::USUAL);
        for _ in 0..3 {
            opportunities_until_hold(&mut postponed);
            postponed.begin(at(0));
            postponed.hold(at(0));
            postponed.end(at(5));
        }
        assert_eq!(opportunities_until_hold(&mut postponed), 1, "the first trial has not ended");
    }
}
