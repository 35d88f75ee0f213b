//! Detects that an original on the other side runs another test. perftest exchanges no options before release
//! 6.28. With WRITE, READ and atomics, many wrong combinations run to their end. Only the packets and their
//! order reveal them.

use std::time::Duration;

use roce::verbs::{Context, Wc};
use roce_exchange::ToolError;

use super::end::End;
use super::exchange::{AfterEnd, Report};
use super::{Length, Size, Test, Verb};

/// Factor between sent and expected messages beyond which the other side runs with other sizes.
const CLEARLY: u64 = 2;

/// An unreliable queue pair has no request on the wire if none has arrived for this time.
const QUIET: Duration = Duration::from_millis(20);
/// Maximum number of waits for silence.
const MOST_WAITS: usize = 20;

/// Returns the number of WRITEs, READs and atomics of the other side that this side has executed.
fn requests(context: &Context) -> u64 {
    let counters = context.counters();
    counters.rx_write_requests + counters.rx_read_requests + counters.rx_atomic_requests
}

fn other_options(what: String, option: &str) -> ToolError {
    ToolError::Peer(format!("{what}: only one of the two sides has {option}; give both the same options"))
}

/// Checks the number of requests that have arrived at the end of the test at its active side.
fn wrong_direction(bidirectional: bool, taken: u64) -> Option<String> {
    match bidirectional {
        false if taken > 0 => Some(format!("has sent {taken} messages, but this side expects none")),
        true if taken == 0 => Some("has ended and sent no message".to_owned()),
        _ => None,
    }
}

impl End {
    /// Returns whether the options of the other side are unknown, and its requests reveal something about
    /// them.
    fn is_silent_original(&self) -> bool {
        !self.agreement.is_ours && self.plan.verb != Verb::Send && self.plan.test == Test::Bandwidth
    }

    /// Returns how many requests of the other side have arrived. Without acknowledgements, requests may still
    /// be on the wire when a block of the exchange has arrived. Therefore this waits until no more of them
    /// arrive.
    pub(super) fn requests_sent_before(&self) -> u64 {
        if self.is_silent_original() && !self.plan.is_reliable() {
            for _ in 0..MOST_WAITS {
                let before = requests(&self.context);
                // Reads the packets that the device has, even if the time is over before this thread runs.
                let _ = self.cq.wait(&mut [Wc::default()], Some(QUIET));
                if requests(&self.context) == before {
                    break;
                }
            }
        }
        requests(&self.context)
    }

    /// Checks the server of a test in both directions before the first size: no requests may arrive before
    /// the barrier at which both sides begin.
    pub(super) fn check_begin(&self, taken: u64) -> Result<(), ToolError> {
        if self.is_silent_original() && taken > 0 {
            return Err(other_options(format!("has sent {taken} messages before the first barrier"), "-b"));
        }
        Ok(())
    }

    /// Checks the direction of requests after the reports: at the active side of a test in one direction, or
    /// at either side of a test in both.
    pub(super) fn check_direction(&self) -> Result<(), ToolError> {
        let wrong = wrong_direction(self.plan.bidirectional, self.requests_sent_before());
        match wrong.filter(|_| self.is_silent_original()) {
            Some(wrong) => Err(other_options(wrong, "-b")),
            None => Ok(()),
        }
    }

    /// Checks, at a side that needs only its memory, the report of the other side. `at_barrier` of the other
    /// side's requests arrived before its barrier, which it reaches after it has sent everything.
    pub(super) fn check_passive(&self, at_barrier: u64, theirs: &Report) -> Result<(), ToolError> {
        if !self.is_silent_original() {
            return Ok(());
        }
        let taken = requests(&self.context);
        // On UC, a message may arrive after the barrier even in the right test.
        if taken > at_barrier && (self.plan.is_reliable() || at_barrier == 0) {
            let late = taken - at_barrier;
            return Err(other_options(
                format!("has sent {late} messages after the barrier of the end"),
                "-b",
            ));
        }
        // READs may arrive in pieces, and UC loses messages.
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

    /// Checks the behaviour of the other side after the last block.
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

    /// Regression: an original server with `-b` sent to a client without it, and both ended with success.
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
