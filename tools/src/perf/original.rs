//! What shows that an original on the other side runs another test. perftest exchanges no options before release 6.28, and
//! with WRITE, READ and atomics many combinations run to their end: only the packets and their order tell them apart.

use std::time::Duration;

use roce::verbs::{Context, Wc};

use super::exchange::{AfterEnd, Report};
use super::session::End;
use super::{Length, Size, Test, Verb};
use crate::harness::ToolError;

/// A test that sends this many times as many messages as it should runs with other sizes.
const CLEARLY: u64 = 2;

/// No request of an unreliable queue pair is under way when none has come for so long.
const QUIET: Duration = Duration::from_millis(20);
/// How often this is waited for at most.
const MOST_WAITS: usize = 20;

/// WRITEs, READs and atomics of the other side that this side has taken.
fn requests(context: &Context) -> u64 {
    let counters = context.counters();
    counters.rx_write_requests + counters.rx_read_requests + counters.rx_atomic_requests
}

fn other_options(what: String, option: &str) -> ToolError {
    ToolError::Peer(format!("{what}: only one of the two sides has {option}; give both the same options"))
}

/// What is wrong with so many requests at the end of the active side of a test.
fn wrong_direction(bidirectional: bool, taken: u64) -> Option<String> {
    match bidirectional {
        false if taken > 0 => Some(format!("has sent {taken} messages, and this side expects none")),
        true if taken == 0 => Some("has ended and sent no message".to_owned()),
        _ => None,
    }
}

impl End {
    /// Whether the options of the other side are unknown, and its requests say something about them.
    fn is_silent_original(&self) -> bool {
        !self.agreement.is_ours && self.plan.verb != Verb::Send && self.plan.test == Test::Bandwidth
    }

    /// How many requests of the other side have come. Without acknowledgements, those that it has sent may still be under
    /// way or unread when a block of the exchange has come; so this waits until no more of them come.
    pub(super) fn requests_sent_before(&self) -> u64 {
        if self.is_silent_original() && !self.plan.is_reliable() {
            for _ in 0..MOST_WAITS {
                let before = requests(&self.context);
                // Reads what the device has, even where the time is over before this thread runs.
                let _ = self.cq.wait(&mut [Wc::default()], Some(QUIET));
                if requests(&self.context) == before {
                    break;
                }
            }
        }
        requests(&self.context)
    }

    /// At the server of a test in both directions, before the first size: `taken` requests came before the barrier, after
    /// which both sides begin.
    pub(super) fn check_begin(&self, taken: u64) -> Result<(), ToolError> {
        if self.is_silent_original() && taken > 0 {
            return Err(other_options(format!("has sent {taken} messages before the first barrier"), "-b"));
        }
        Ok(())
    }

    /// After the reports of the active side of a test in one direction, or of a test in both.
    pub(super) fn check_direction(&self) -> Result<(), ToolError> {
        let wrong = wrong_direction(self.plan.bidirectional, self.requests_sent_before());
        match wrong.filter(|_| self.is_silent_original()) {
            Some(wrong) => Err(other_options(wrong, "-b")),
            None => Ok(()),
        }
    }

    /// After the report of the other side to one that needs nothing but its memory: `at_barrier` of its requests came before
    /// its barrier, at which everything has been sent.
    pub(super) fn check_passive(&self, at_barrier: u64, theirs: &Report) -> Result<(), ToolError> {
        if !self.is_silent_original() {
            return Ok(());
        }
        let taken = requests(&self.context);
        // On UC a message may come later than that nevertheless.
        if taken > at_barrier && (self.plan.is_reliable() || at_barrier == 0) {
            let late = taken - at_barrier;
            return Err(other_options(
                format!("has sent {late} messages after the barrier of the end"),
                "-b",
            ));
        }
        // READs may come in pieces, and UC loses messages.
        let counts = self.plan.verb == Verb::Write
            && self.plan.is_reliable()
            && matches!(self.plan.length, Length::Iterations(_));
        let is_all = self.plan.size == Size::All;
        let sizes = self.plan.sizes(self.agreement.mtu)?.len() as u64;
        let expected = theirs.iterations.saturating_mul(sizes);
        let (fewer, more) = (taken.saturating_mul(CLEARLY) < expected, taken / CLEARLY > expected);
        if counts && (is_all && fewer || !is_all && more) {
            return Err(other_options(
                format!("has sent {taken} messages and reports {} of one size", theirs.iterations),
                "-a",
            ));
        }
        Ok(())
    }

    /// After the last block.
    pub(super) fn check_end(&self, after: AfterEnd) -> Result<(), ToolError> {
        match after {
            AfterEnd::Ended => Ok(()),
            AfterEnd::GoesOn => {
                Err(other_options("goes on after the last size of this side".to_owned(), "-a"))
            }
            AfterEnd::Silent => {
                tracing::warn!(
                    "the other side does not end after the last size of this side; check whether only one of the two sides \
                     has -a"
                );
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An original server with `-b` sends to a client without it, and both ended with success.
    #[test]
    fn messages_that_nobody_expects_and_none_where_some_are_expected_are_named() {
        assert!(wrong_direction(false, 50).is_some_and(|wrong| wrong.contains("has sent 50 messages")));
        assert!(wrong_direction(true, 0).is_some_and(|wrong| wrong.contains("sent no message")));
        assert_eq!((wrong_direction(false, 0), wrong_direction(true, 50)), (None, None));
        let error = other_options("has sent 5 messages".to_owned(), "-b").to_string();
        assert_eq!(
            error,
            "the other side has sent 5 messages: only one of the two sides has -b; give both the same options"
        );
    }
}
