//! Acknowledgements that leave with what the application posts next.
//!
//! A packet costs a system call and a walk through the network, whatever its size. Where an application answers a message with a
//! message, an acknowledgement that waits for the answer can be in the same superpacket, and the application has its completion sooner.
//! It leaves with the first of these:
//!
//! - a work request that the application posts;
//! - the next call that polls;
//! - the request for a notification, which comes before a sleep;
//! - the background thread, when it sees that the application polls no more: within 0.3 ms, and up to 2 ms where it has polled for long.
//!
//! An application that computes between two polls would let its peers wait, so one that is seen to do so again and again has nothing
//! postponed for the next polls.

use std::time::Duration;

use roce_transport::Instant;

/// What leaves later than this was postponed in vain.
const LATE_NS: u64 = 50_000;
/// What one such time adds to the score, from which each other time takes one, and the score at which nothing is postponed for a while:
/// a thread that loses the processor now and then stays below it.
const LATE: u32 = 8;
const TOO_LATE: u32 = 20;
/// So many opportunities are left out then.
const PAUSE: u32 = 256;

/// Since when acknowledgements wait.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    since: Option<Instant>,
    score: u32,
    /// Opportunities that are left out from now on.
    pause: u32,
}

impl Postponed {
    pub(super) const fn is_pending(&self) -> bool {
        self.since.is_some()
    }

    pub(super) const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether acknowledgements may wait from now on. Those that wait already wait no longer.
    #[inline]
    pub(super) fn may_begin(&mut self) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
        }
        self.pause == 0 && self.since.is_none()
    }

    /// Whether acknowledgements wait, and may do so for longer.
    #[inline]
    pub(super) fn may_go_on(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.since(since) <= Duration::from_nanos(LATE_NS))
    }

    #[inline]
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// What waits is sent now.
    #[inline]
    pub(super) fn end(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        if now.since(since) <= Duration::from_nanos(LATE_NS) {
            self.score = self.score.saturating_sub(1);
            return;
        }
        self.score += LATE;
        if self.score >= TOO_LATE {
            (self.score, self.pause) = (0, PAUSE);
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
        let mut postponed = Postponed::default();
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
        assert!((1..PAUSE).all(|_| !postpone_for(1)));
        assert!(postpone_for(1));
    }
}
