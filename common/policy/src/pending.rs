//! Decides which pending packets leave now.
//!
//! Each packet costs a system call and processing in the network stack, whatever its size. Two kinds of
//! packets may therefore wait for others.
//!
//! **Acknowledgements.** If an application answers a message with a message, a postponed acknowledgement
//! shares the superpacket of the answer, and the application receives its completion sooner. An application
//! that computes between two polls would delay its peers. If this happens repeatedly, nothing is postponed
//! during the next polls.
//!
//! If both ends answer each other in turn, the acknowledgement can be omitted: the peer's next message
//! arrives before it, and the acknowledgement of that message covers both. So acknowledgements may be held
//! back after the answer while the application polls: for at most [`Timing::hold`], and for at most
//! [`MOST_HELD`] messages in a row. A peer that waits for each acknowledgement before it sends would lose
//! that time with each message. So holding back is tried rarely, and continues only while the next message
//! arrives in time.
//!
//! An application may also find a peer's WRITE in its memory and answer that. An arriving WRITE does not show
//! whether it will, and a peer that only writes waits for its acknowledgement. So acknowledgements of WRITEs
//! are also postponed in rare trials, which continue while the application posts a request before it polls
//! again.
//!
//! A service with many outstanding requests receives bursts. Acknowledgements of large bursts are postponed
//! in such trials as well, which continue while the answers come in time. They share the superpackets of the
//! answers, and are never held back after them: the send queues of the peer would fill.
//!
//! **Requests.** Applications with many outstanding requests post several before they poll again, often on
//! many queue pairs. Their packets can share system calls and superpackets. Requests wait only if the
//! application posted several between two polls, twice in a row. The delay is judged as for acknowledgements.
//!
//! Whatever waits leaves with the first of these events:
//!
//! - the application posts a request (acknowledgements), or enough requests that more would not make sending
//!   cheaper (requests);
//! - the application polls again;
//! - the application requests a notification, which precedes a sleep;
//! - the background thread sees that the application has stopped polling: within 0.5 ms, or within 3 ms after
//!   long polling.

use std::time::Duration;

use roce_transport::{Instant, Pending};

use crate::{Experiment, Terms, Timing};

/// Acknowledgements are postponed by default. Three late ones in a row stop this; an application that
/// sometimes loses its processor does not.
const POSTPONING: Terms = Terms {
    first_credit: 20,
    success: 1,
    failure: 8,
    most_credit: 20,
    trial: 1,
    first_interval: 0,
    interval: 256,
    longest_interval: 256,
};

/// After this many messages without an acknowledgement one leaves, so that the peer's send queue does not
/// fill.
const MOST_HELD: u8 = 7;
/// A wrong guess delays a peer that waits for the acknowledgement by [`Timing::hold`]; a right guess saves a
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

/// Maximum number of datagrams in a small burst. After a larger burst, more may have arrived: checking the
/// device again pays off, and acknowledgements are postponed only where the application answers bursts.
const SMALL_BURST: usize = 8;

/// An application that posts this many requests between two polls has several outstanding requests.
const SEVERAL: u32 = 4;
/// This many requests or bytes leave at once: a superpacket of small messages, or of full packets.
const MOST_REQUESTS: u32 = 32;
const MOST_BYTES: u64 = 1 << 16;

/// The packets that leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// No packet.
    Nothing,
    /// Requests, without acknowledgements, if the device can send them alone as cheaply as together. With
    /// `holds`, even if it could send both in one datagram. [`PendingPackets::sent_requests`] records the
    /// outcome.
    Requests {
        /// Whether acknowledgements may be held back afterwards.
        holds: bool,
    },
    /// All packets.
    Everything,
}

/// The findings of one check of the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Number of datagrams.
    pub datagrams: usize,
    /// Whether the completion queue that the caller checks next has completions.
    pub completion: bool,
    /// Whether peers wrote memory that the caller may check next.
    pub write: bool,
    /// Whether a message arrived whose acknowledgement replaces one that has not left yet.
    pub covers: bool,
}

/// The decision after one check of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterCheck {
    /// Either nothing or everything leaves.
    pub leave: Leave,
    /// Whether the call ends with this check.
    pub ends: bool,
}

/// The packets that postponed acknowledgements answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A small burst that completed a receive.
    Message,
    /// A small burst without a completion.
    Write,
    /// A large burst that completed receives.
    Burst,
}

/// The packets that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// Requests came first.
    Requests {
        since: Instant,
    },
    /// Acknowledgements came first. `unanswered` is set while the application has not answered.
    Acknowledgements {
        since: Instant,
        of: Of,
        unanswered: bool,
    },
    /// Acknowledgements wait for the peer's next message since `held`, when the answer left.
    Held {
        since: Instant,
        held: Instant,
    },
}

/// The state of pending packets.
#[derive(Debug)]
pub struct PendingPackets {
    late: Duration,
    longest_hold: Duration,
    wait: Wait,
    posts: Posts,
    /// Consecutive messages whose acknowledgement was held back.
    held_messages: u8,
    postponing: Experiment,
    holding: Experiment,
    writes: Experiment,
    bursts: Experiment,
}

impl PendingPackets {
    /// Creates the state of an engine without pending packets.
    #[must_use]
    pub fn new(timing: &Timing) -> Self {
        Self {
            late: timing.late,
            longest_hold: timing.hold,
            wait: Wait::Nothing,
            posts: Posts::default(),
            held_messages: 0,
            postponing: Experiment::new(&POSTPONING),
            holding: Experiment::new(&FOR_ONE_MESSAGE),
            writes: Experiment::new(&FOR_ONE_MESSAGE),
            bursts: Experiment::new(&FOR_ONE_MESSAGE),
        }
    }

    /// Returns the time since which packets wait. Another thread must send them if the application neither
    /// posts nor polls.
    #[inline]
    #[must_use]
    pub const fn since(&self) -> Option<Instant> {
        match self.wait {
            Wait::Nothing => None,
            Wait::Requests { since } | Wait::Acknowledgements { since, .. } | Wait::Held { since, .. } => {
                Some(since)
            }
        }
    }

    /// Records that the application posted requests of `bytes` bytes in total.
    #[inline]
    pub fn posted(&mut self, now: Instant, requests: usize, bytes: u64) -> Leave {
        self.note_answer();
        if self.posts.may_wait(requests, bytes) && self.goes_on_waiting(now) {
            return Leave::Nothing;
        }
        self.sends(now)
    }

    /// Records that the application answers what it received.
    #[inline]
    fn note_answer(&mut self) {
        if let Wait::Acknowledgements { of, unanswered, .. } = &mut self.wait
            && std::mem::take(unanswered)
            && *of == Of::Write
        {
            self.writes.succeeded();
        }
    }

    /// Returns whether acknowledgements may wait for the answer.
    fn may_postpone(&mut self, of: Of) -> bool {
        match of {
            Of::Message | Of::Write => self.postponing.is_allowed(),
            Of::Burst => self.bursts.is_allowed(),
        }
    }

    /// Returns whether posted requests may wait, or wait longer.
    fn goes_on_waiting(&mut self, now: Instant) -> bool {
        if let Some(since) = self.since() {
            return now.since(since) <= self.late;
        }
        let begins = self.postponing.is_allowed();
        if begins {
            self.wait = Wait::Requests { since: now };
        }
        begins
    }

    /// Records that the application has something to send, such as requests or a message of connection
    /// management.
    #[inline]
    pub fn sends(&mut self, now: Instant) -> Leave {
        self.note_answer();
        self.posts.leave();
        match self.wait {
            Wait::Acknowledgements { since, of: Of::Message | Of::Write, .. } | Wait::Held { since, .. }
                if now.since(since) <= self.late =>
            {
                Leave::Requests { holds: self.may_hold() }
            }
            _ => self.all_leave(now),
        }
    }

    /// Returns whether the postponed acknowledgements may be held back when the application's answer leaves.
    fn may_hold(&mut self) -> bool {
        if self.held_messages >= MOST_HELD {
            self.held_messages = 0;
            return false;
        }
        self.holding.is_allowed()
    }

    /// Records the outcome of [`Leave::Requests`]: the number of packets that left, or `None` if everything
    /// must leave.
    #[inline]
    pub fn sent_requests(&mut self, now: Instant, holds: bool, sent: Option<usize>) -> Leave {
        let Some(sent) = sent else { return self.all_leave(now) };
        if holds
            && sent > 0
            && let Some(since) = self.since()
        {
            self.wait = Wait::Held { since, held: now };
        }
        Leave::Nothing
    }

    /// Records that the application polls or waits. Requests leave before the check of the device, so that
    /// the peer can work on them meanwhile.
    #[inline]
    pub fn polls(&mut self, now: Instant) -> Leave {
        self.posts.note_poll();
        if self.posts.is_waiting() { self.all_leave(now) } else { Leave::Nothing }
    }

    /// Records that the application neither posts nor polls now: it has found what it looked for, or it
    /// requests a notification.
    #[inline]
    pub fn rests(&mut self, now: Instant) -> Leave {
        self.posts.note_poll();
        if self.since().is_some() { self.all_leave(now) } else { Leave::Nothing }
    }

    /// Decides after one check of the device. `can_send` tells whether the call may send more.
    #[inline]
    pub fn checked(
        &mut self,
        now: Instant,
        found: Found,
        owed: impl Fn() -> Pending,
        can_send: bool,
    ) -> AfterCheck {
        let completes = found.datagrams > 0 && found.completion;
        let writes = !completes && found.write && self.writes.is_allowed();
        let serves = completes || writes;
        let is_small = serves && found.datagrams <= SMALL_BURST;
        let of = match (is_small, completes) {
            (true, true) => Some(Of::Message),
            (true, false) => Some(Of::Write),
            (false, true) => Some(Of::Burst),
            (false, false) => None,
        };
        let may_begin = match self.wait {
            Wait::Held { .. } if found.covers => {
                self.wait = Wait::Nothing;
                self.held_messages += 1;
                self.holding.succeeded();
                true
            }
            Wait::Held { held, .. } if now.since(held) <= self.longest_hold && owed() != Pending::More => {
                return AfterCheck { leave: Leave::Nothing, ends: found.datagrams == 0 || serves };
            }
            wait => wait == Wait::Nothing,
        };
        if let Some(of) = of
            && may_begin
            && owed() == Pending::Acknowledgements
            && self.may_postpone(of)
        {
            self.wait = Wait::Acknowledgements { since: now, of, unanswered: true };
            return AfterCheck { leave: Leave::Nothing, ends: true };
        }
        // Packets are received even if nothing more may be sent. Requests of honest peers wait behind a flood
        // of READs, and with one burst per budget the flood would fill the queue of the device.
        let leave = if can_send { self.all_leave(now) } else { Leave::Nothing };
        AfterCheck { leave, ends: found.datagrams == 0 || is_small }
    }

    /// Records that everything leaves now.
    #[inline]
    pub fn all_leave(&mut self, now: Instant) -> Leave {
        self.posts.leave();
        let wait = std::mem::replace(&mut self.wait, Wait::Nothing);
        let since = match wait {
            Wait::Nothing => return Leave::Everything,
            Wait::Requests { since } => since,
            Wait::Acknowledgements { since, of: Of::Burst, unanswered } => {
                self.held_messages = 0;
                // An application that takes long for a burst may be fast with single messages.
                if !unanswered && now.since(since) <= self.late {
                    self.bursts.succeeded();
                } else {
                    self.bursts.failed();
                }
                return Leave::Everything;
            }
            Wait::Acknowledgements { since, of, unanswered } => {
                if unanswered && of == Of::Write {
                    self.writes.failed();
                }
                since
            }
            Wait::Held { since, held } => {
                // A hold that ended in time, such as by a request for a notification, does not count as a
                // failure.
                if now.since(held) > self.longest_hold {
                    self.holding.failed();
                }
                since
            }
        };
        self.held_messages = 0;
        if now.since(since) <= self.late {
            self.postponing.succeeded();
        } else {
            self.postponing.failed();
        }
        Leave::Everything
    }
}

/// The work requests that the application posted since it last polled.
#[derive(Debug, Default)]
struct Posts {
    since_poll: u32,
    /// The smaller of the counts of the two previous intervals between polls.
    lately: u32,
    before: u32,
    waiting: u32,
    waiting_bytes: u64,
}

impl Posts {
    /// Records posted requests. Returns whether they may wait for more.
    #[inline]
    fn may_wait(&mut self, requests: usize, bytes: u64) -> bool {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.since_poll = self.since_poll.saturating_add(requests);
        if self.lately < SEVERAL {
            return false;
        }
        self.waiting = self.waiting.saturating_add(requests);
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.waiting < MOST_REQUESTS && self.waiting_bytes < MOST_BYTES
    }

    #[inline]
    const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Records that everything that waits leaves now.
    #[inline]
    const fn leave(&mut self) {
        (self.waiting, self.waiting_bytes) = (0, 0);
    }

    /// Records a poll. Polls without a post between them do not count.
    #[inline]
    fn note_poll(&mut self) {
        if self.since_poll > 0 {
            self.lately = self.since_poll.min(self.before);
            self.before = self.since_poll;
            self.since_poll = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    fn pending() -> PendingPackets {
        PendingPackets::new(&Timing::USUAL)
    }

    /// One message has arrived and completed a receive.
    const MESSAGE: Found = Found { datagrams: 1, completion: true, write: false, covers: false };
    /// One WRITE has arrived.
    const WRITE: Found = Found { datagrams: 1, completion: false, write: true, covers: false };

    impl PendingPackets {
        /// A check of the device after which acknowledgements are pending.
        fn check(&mut self, now: Instant, found: Found) -> AfterCheck {
            self.checked(now, found, || Pending::Acknowledgements, true)
        }

        /// A check that found a message. Returns whether its acknowledgement waits.
        fn postpones(&mut self, now: Instant) -> bool {
            self.check(now, MESSAGE).leave == Leave::Nothing
        }

        /// The application posts one request at the end of which acknowledgements may be held. Returns
        /// whether they are.
        fn holds(&mut self, now: Instant) -> bool {
            let leave = self.posted(now, 1, 8);
            let Leave::Requests { holds } = leave else { return false };
            assert_eq!(self.sent_requests(now, holds, Some(1)), Leave::Nothing);
            holds
        }
    }

    #[test]
    fn an_acknowledgement_waits_only_if_nothing_else_is_pending_and_the_burst_was_small() {
        let waits = |found, owed| pending().checked(at(1), found, || owed, true).leave == Leave::Nothing;
        assert!(waits(MESSAGE, Pending::Acknowledgements));
        assert!(!waits(MESSAGE, Pending::More) && !waits(MESSAGE, Pending::Nothing));
        assert!(waits(Found { datagrams: SMALL_BURST, ..MESSAGE }, Pending::Acknowledgements));
        assert!(
            !waits(Found { datagrams: SMALL_BURST + 1, ..MESSAGE }, Pending::Acknowledgements),
            "at first"
        );
        assert!(!waits(Found { completion: false, ..MESSAGE }, Pending::Acknowledgements), "nobody answers");
    }

    #[test]
    fn a_call_receives_more_after_a_large_burst_and_ends_after_an_empty_check() {
        let ends = |datagrams| pending().check(at(1), Found { datagrams, ..MESSAGE }).ends;
        assert_eq!([0, 1, SMALL_BURST, SMALL_BURST + 1].map(ends), [true, true, true, false]);
        let spent = pending().checked(at(1), Found { datagrams: 64, ..MESSAGE }, || Pending::More, false);
        assert_eq!(spent, AfterCheck { leave: Leave::Nothing, ends: false }, "it only receives");
    }

    #[test]
    fn an_application_that_is_often_late_has_nothing_postponed_for_a_while() {
        let mut pending = pending();
        let mut now = 0;
        let mut postpone_for = |micros| {
            now += 1_000;
            let begins = pending.postpones(at(now));
            assert_eq!(pending.since(), begins.then_some(at(now)));
            pending.polls(at(now + micros));
            assert_eq!(pending.check(at(now + micros), Found::default()).leave, Leave::Everything);
            assert_eq!(pending.since(), None);
            begins
        };
        for _ in 0..100 {
            assert!(postpone_for(300), "once in a while");
            assert!((0..8).all(|_| postpone_for(50)));
        }
        assert!((0..3).all(|_| postpone_for(51)));
        assert!((0..POSTPONING.interval).all(|_| !postpone_for(1)));
        assert!(postpone_for(1));
    }

    /// Returns how many answers leave before acknowledgements are held after one, at this time.
    fn answers_until_hold(pending: &mut PendingPackets, now: Instant) -> u32 {
        let holds = |_: &u32| {
            assert!(pending.postpones(now));
            let holds = pending.holds(now);
            if !holds {
                pending.all_leave(now);
            }
            holds
        };
        (0..).find(holds).unwrap()
    }

    #[test]
    fn acknowledgements_are_held_back_only_where_the_next_message_comes_in_time() {
        let mut pending = pending();
        let mut now = 0;
        // The peer waits for its acknowledgement, so trials become rare.
        for interval in [15, 63, 4 * 63] {
            assert_eq!(answers_until_hold(&mut pending, at(now)), interval);
            let goes_on = pending.check(at(now + 20), Found::default());
            assert_eq!(goes_on, AfterCheck { leave: Leave::Nothing, ends: true });
            assert_eq!(pending.check(at(now + 21), Found::default()).leave, Leave::Everything);
            now += 1_000;
        }
        // The peer no longer waits, so several messages share one acknowledgement.
        assert_eq!(answers_until_hold(&mut pending, at(now)), 16 * 63);
        for _ in 0..10 {
            for message in 1..=MOST_HELD {
                now += 5;
                let next = pending.check(at(now), Found { covers: true, ..MESSAGE });
                assert_eq!(next, AfterCheck { leave: Leave::Nothing, ends: true });
                assert_eq!(pending.holds(at(now)), message < MOST_HELD, "one leaves");
            }
            pending.all_leave(at(now));
            assert!(pending.postpones(at(now)) && pending.holds(at(now)));
        }
        // The peer waits again, and holding back ends soon.
        pending.all_leave(at(now));
        let mut failures = 0;
        while {
            now += 1_000;
            pending.postpones(at(now)) && pending.holds(at(now))
        } {
            pending.all_leave(at(now + 100));
            // Otherwise nothing would be postponed after some late ones.
            pending.postponing = Experiment::new(&POSTPONING);
            failures += 1;
        }
        assert_eq!(failures, FOR_ONE_MESSAGE.most_credit / FOR_ONE_MESSAGE.failure);
    }

    /// Regression: a peer that waited for the acknowledgement of each WRITE lost the time of a check per
    /// WRITE.
    #[test]
    fn the_acknowledgement_of_a_write_waits_only_where_the_application_answers_writes() {
        let mut pending = pending();
        let mut now = 0;
        let mut write = |answers: bool| {
            now += 10;
            let waits = pending.check(at(now), WRITE).leave == Leave::Nothing;
            if answers {
                pending.posted(at(now), 1, 8);
            }
            pending.all_leave(at(now + 1));
            waits
        };
        for interval in [15, 63, 4 * 63] {
            assert_eq!((0..).find(|_| write(false)), Some(interval), "nobody answers");
        }
        assert_eq!((0..).find(|_| write(true)), Some(16 * 63));
        assert!((0..100).all(|_| write(true)), "each WRITE is answered");
        assert_eq!((0..).find(|_| !write(false)), Some(4), "and then no more");
    }

    /// Regression: the answer counted as missing if it waited for more requests.
    #[test]
    fn an_answer_that_waits_for_more_requests_is_an_answer() {
        let mut pending = pending();
        (0..2).for_each(|_| drop(round(&mut pending, 8)));
        pending.writes.succeeded();
        assert_eq!(pending.check(at(1), WRITE).leave, Leave::Nothing);
        assert_eq!(pending.posted(at(2), 1, 8), Leave::Nothing, "it waits");
        pending.polls(at(3));
        assert!(pending.writes.pays());
    }

    /// Regression: with many outstanding requests, the acknowledgements of a service left alone.
    #[test]
    fn the_acknowledgements_of_a_burst_share_the_packets_of_its_answers() {
        const BURST: Found = Found { datagrams: 2 * SMALL_BURST, ..MESSAGE };
        let mut pending = pending();
        let mut burst = |answers: u32, micros: u64| {
            let check = pending.check(at(1), BURST);
            let waits = check.leave == Leave::Nothing;
            assert_eq!(check.ends, waits, "otherwise more may have arrived");
            for _ in 0..answers {
                let leave = pending.posted(at(1 + micros), 16, 512);
                assert!(!matches!(leave, Leave::Requests { .. }), "nothing is held back");
            }
            pending.all_leave(at(2 + micros));
            waits
        };
        assert_eq!((0..).find(|_| burst(0, 1)), Some(15), "nobody answers");
        assert_eq!((0..).find(|_| burst(2, 100)), Some(63), "the answers come late");
        assert_eq!((0..).find(|_| burst(2, 10)), Some(4 * 63));
        assert!((0..100).all(|_| burst(2, 10)), "each burst is answered");
        assert_eq!((0..).find(|_| !burst(2, 100)), Some(4), "and then no more");
        assert!(pending.postpones(at(1_000)), "single messages are as before");
    }

    #[test]
    fn a_hold_that_a_request_for_a_notification_ends_is_no_failure() {
        let mut pending = pending();
        assert_eq!(answers_until_hold(&mut pending, at(0)), 15);
        for _ in 0..3 {
            assert_eq!(pending.rests(at(5)), Leave::Everything);
            assert_eq!(answers_until_hold(&mut pending, at(0)), 0, "the first trial has not ended");
        }
    }

    #[test]
    fn everything_leaves_where_requests_cannot_leave_alone() {
        let mut pending = pending();
        assert_eq!(answers_until_hold(&mut pending, at(0)), 15);
        let Leave::Requests { holds } = pending.posted(at(1), 1, 8) else { panic!() };
        assert_eq!(pending.sent_requests(at(1), holds, None), Leave::Everything);
        assert_eq!(pending.since(), None);
        assert!(pending.postpones(at(2)));
        assert_eq!(pending.posted(at(100), 1, 8), Leave::Everything, "too late");
    }

    /// The application posts requests one by one, and polls. Returns which of them waited.
    fn round(pending: &mut PendingPackets, requests: u32) -> Vec<bool> {
        let waits = (0..requests).map(|_| pending.posted(at(0), 1, 8) == Leave::Nothing).collect();
        pending.polls(at(0));
        waits
    }

    #[test]
    fn requests_wait_only_where_several_were_posted_between_polls_twice_in_a_row() {
        let mut pending = pending();
        for _ in 0..10 {
            assert!(!round(&mut pending, 3).contains(&true));
        }
        assert!(!round(&mut pending, 4).contains(&true), "the first time");
        assert!(!round(&mut pending, 4).contains(&true), "the second time");
        assert!(!round(&mut pending, 1).contains(&false));
        pending.polls(at(0));
        assert!(!round(&mut pending, 4).contains(&true), "one between");
    }

    #[test]
    fn many_requests_or_bytes_leave_at_once() {
        let mut pending = pending();
        (0..2).for_each(|_| drop(round(&mut pending, 8)));
        let mut waits = |requests, bytes| pending.posted(at(0), requests, bytes) == Leave::Nothing;
        assert_eq!((1..=MOST_REQUESTS).position(|_| !waits(1, 8)), Some(31));
        assert!(waits(1, MOST_BYTES - 1) && !waits(1, 1));
        assert!(waits(1, 8) && !waits(usize::MAX, u64::MAX));
        assert_eq!(pending.since(), None);
        assert_eq!(pending.posted(at(0), 1, 8), Leave::Nothing);
        assert_eq!(pending.posted(at(51), 1, 8), Leave::Everything, "they waited too long");
    }
}
