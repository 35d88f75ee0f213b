//! Acknowledgements that leave with the next packet of the application.
//!
//! Each packet costs a system call and processing in the network stack, whatever its size. If an application
//! answers a message with a message, a postponed acknowledgement shares the superpacket of the answer, and
//! the application receives its completion sooner. The acknowledgement leaves with the first of these events:
//!
//! - the application posts a work request;
//! - the application polls again;
//! - the application requests a notification, which precedes a sleep;
//! - the background thread sees that the application has stopped polling: within 0.5 ms, or within 3 ms after
//!   long polling.
//!
//! An application that computes between two polls would delay its peers. If this happens repeatedly, nothing
//! is postponed during the next polls.
//!
//! If both ends answer each other in turn, the acknowledgement can be omitted: the peer's next message
//! arrives before it, and the acknowledgement of that message covers both. So acknowledgements may be held
//! back while the application polls: for at most [`HOLD_NS`], and for at most [`MOST_HELD`] messages in a
//! row. A peer that waits for each acknowledgement before it sends would lose that time with each message. So
//! holding back is tried rarely, and continues only while the next message arrives in time.
//!
//! An application may also find a peer's WRITE in its memory and answer that. An arriving WRITE does not show
//! whether it will, and a peer that only writes waits for its acknowledgement. So acknowledgements of WRITEs
//! are also postponed in rare trials, which continue while the application posts a request before it polls
//! again.

use std::time::Duration;

use roce_transport::Instant;

use super::pace::Pace;
use super::policy::{Experiment, Terms};

/// Time, in nanoseconds, after which postponed packets left too late.
const LATE_NS: u64 = 50_000;
/// Acknowledgements are postponed by default. Three late ones in a row stop this; an application that
/// sometimes loses its processor does not.
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

/// Longest time, in nanoseconds, to hold back an acknowledgement after the answer: some round trips in a
/// rack.
const HOLD_NS: u64 = 20_000;
/// After this many messages without an acknowledgement one leaves, so that the peer's send queue does not
/// fill.
const MOST_HELD: u8 = 7;
/// A wrong guess delays a peer that waits for the acknowledgement by [`HOLD_NS`]; a right guess saves a
/// packet. So one failure weighs as much as eight successes.
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

/// The state of postponed acknowledgements.
#[derive(Debug)]
pub(super) struct Postponed {
    /// [`LATE_NS`] and [`HOLD_NS`], scaled for this machine.
    late_ns: u64,
    hold_ns: u64,
    since: Option<Instant>,
    waiting: Experiment,
    hold: Hold,
    /// Whether the acknowledgement of a WRITE is pending that the application has not answered yet.
    is_of_write: bool,
    writes: Experiment,
}

/// The state of acknowledgements that are held back after the answer has left.
#[derive(Debug)]
struct Hold {
    since: Option<Instant>,
    /// Consecutive messages whose acknowledgement was held back.
    messages: u8,
    experiment: Experiment,
}

impl Hold {
    /// Returns whether acknowledgements may be held back when an answer leaves.
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

    /// Ends the hold at `now`. It failed if it lasted longer than `longest_ns`.
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

    /// Returns whether to postpone acknowledgements from now on. Returns `false` if some are postponed
    /// already.
    #[inline]
    pub(super) fn may_begin(&mut self) -> bool {
        self.waiting.is_allowed() && self.since.is_none()
    }

    /// Returns whether acknowledgements are postponed and may wait longer.
    #[inline]
    pub(super) fn may_go_on(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| is_within(since, now, self.late_ns))
    }

    /// Returns whether the postponed acknowledgements may be held back when the application's answer leaves.
    #[inline]
    pub(super) fn may_hold(&mut self) -> bool {
        self.hold.is_allowed()
    }

    /// Records that the answer has left, and that the acknowledgements wait for the peer's next message.
    #[inline]
    pub(super) fn hold(&mut self, now: Instant) {
        self.hold.since = Some(now);
    }

    #[inline]
    pub(super) const fn is_held(&self) -> bool {
        self.hold.since.is_some()
    }

    /// Returns whether the acknowledgements that are held back may wait longer.
    #[inline]
    pub(super) fn may_hold_on(&self, now: Instant) -> bool {
        self.hold.since.is_some_and(|since| is_within(since, now, self.hold_ns))
    }

    /// Records that the next message arrived before the acknowledgement of the last one had left.
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

    /// Returns whether the acknowledgement of an arrived WRITE may wait for an answer of the application.
    #[inline]
    pub(super) fn may_await_answer(&mut self) -> bool {
        self.writes.is_allowed()
    }

    /// Records that the acknowledgement of a WRITE waits from now on.
    #[inline]
    pub(super) fn begin_with_write(&mut self, now: Instant) {
        self.begin(now);
        self.is_of_write = true;
    }

    /// Records that the application has posted a request.
    #[inline]
    pub(super) fn note_answer(&mut self) {
        if std::mem::take(&mut self.is_of_write) {
            self.writes.succeeded();
        }
    }

    /// Records that the postponed packets are sent now.
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

    /// Returns how often `may_hold` must be called until it returns `true`.
    fn opportunities_until_hold(postponed: &mut Postponed) -> u32 {
        (1..).find(|_| postponed.may_hold()).unwrap()
    }

    #[test]
    fn acknowledgements_are_held_back_only_where_the_next_message_comes_in_time() {
        let mut postponed = Postponed::new(Pace::USUAL);
        let mut now = 0;
        // The peer waits for its acknowledgement, so trials become rare.
        for interval in [15, 63, 4 * 63] {
            assert_eq!(opportunities_until_hold(&mut postponed), 1 + interval);
            postponed.begin(at(now));
            postponed.hold(at(now));
            assert!(postponed.may_hold_on(at(now + 20)) && !postponed.may_hold_on(at(now + 21)));
            postponed.end(at(now + 21));
            now += 1_000;
        }
        // The peer no longer waits, so several messages share one acknowledgement.
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
        // The peer waits again, and holding back ends soon.
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

    /// Regression: a peer that waited for the acknowledgement of each WRITE lost the time of a check per
    /// WRITE.
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
