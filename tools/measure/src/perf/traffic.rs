//! The messages of one size, in both directions, and the time that they may take.

use std::io;
use std::time::{Duration, Instant};

use roce_exchange::ToolError;
use roce_transport::Wc;

use super::buffers::Geometry;
use super::end::End;
use super::exchange::{SAME_OPTIONS_THERE, WARN_AFTER};
use super::receiver::Receiver;
use super::sender::{Sender, WorkId};
use super::statistics::Times;
use super::{Length, Test};
use crate::harness::{check_completion, wait_for_event, wait_spinning};
use roce::verbs::WaitError;

/// Number of completions that are fetched at once.
const BATCH: usize = 32;
/// Without completions for this long, the exchange is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// If the other side has sent its next block and this side makes no progress, the two run different tests.
/// The limit is `IDLE_LOOKS` checks of the exchange and `TIMEOUTS` ACK timeouts of this side.
const IDLE_LOOKS: u32 = 8;
const TIMEOUTS: u32 = 8;

/// A function that checks whether the other side has sent its next block. Returns an error if the other side
/// has left.
pub(super) type Look<'a> = &'a mut dyn FnMut() -> io::Result<bool>;

/// The messages of one size.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) geometry: Geometry,
    pub(super) sender: Option<Sender>,
    pub(super) receiver: Option<Receiver>,
    /// The times of posts and completions, if the peak is measured.
    pub(super) times: Option<Times>,
    /// The time when the first message was sent or received.
    pub(super) begun: Option<Instant>,
    /// Messages within the measured seconds.
    pub(super) counted: u64,
    /// Number of checks since the last completion that found the next block of the other side.
    idle_looks: u32,
    is_warned: bool,
    /// Whether the other side has closed the exchange.
    pub(super) has_peer_left: bool,
}

impl Traffic {
    pub(super) fn new(geometry: Geometry, sender: Option<Sender>, receiver: Option<Receiver>) -> Self {
        Self {
            geometry,
            sender,
            receiver,
            times: None,
            begun: None,
            counted: 0,
            idle_looks: 0,
            is_warned: false,
            has_peer_left: false,
        }
    }

    /// Returns the number of messages sent on each queue pair.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.sender.as_ref().map(Sender::sent).unwrap_or_default()
    }

    /// Returns the number of messages received on each queue pair.
    pub(super) fn received(&self) -> Vec<u64> {
        self.receiver.as_ref().map(Receiver::received).unwrap_or_default()
    }

    /// Returns whether this side neither sends nor receives, because the other side accesses its memory.
    pub(super) fn is_idle(&self) -> bool {
        self.sender.is_none() && self.receiver.is_none()
    }

    pub(super) fn is_done(&self) -> bool {
        self.sender.as_ref().is_none_or(Sender::is_done)
            && self.receiver.as_ref().is_none_or(Receiver::is_done)
    }

    /// Returns the nanoseconds since the first message.
    pub(super) fn elapsed_ns(&self) -> u64 {
        self.begun.map_or(0, |begun| begun.elapsed().as_nanos() as u64)
    }

    /// Returns when the measured seconds begin and end, and when the test ends.
    pub(super) fn window(&self, end: &End) -> Option<[Instant; 3]> {
        let Length::Seconds { all, margin } = end.plan.length else { return None };
        let at = |seconds| self.begun.map(|begun| begun + Duration::from_secs(seconds));
        Some([at(margin)?, at(all - margin)?, at(all)?])
    }

    pub(super) fn is_over(&self, end: &End) -> bool {
        self.window(end).is_some_and(|[_, _, over]| Instant::now() >= over)
    }

    /// Returns the maximum time to wait for a message, which ends with the test.
    pub(super) fn patience(&self, end: &End) -> Duration {
        let patience = end.plan.patience;
        let left = self.window(end).map(|[_, _, over]| over.saturating_duration_since(Instant::now()));
        left.map_or(patience, |left| patience.min(left))
    }

    /// Counts messages within the measured seconds.
    pub(super) fn count(&mut self, end: &End, messages: u64) {
        if let Some([from, to, _]) = self.window(end)
            && (from..to).contains(&Instant::now())
        {
            self.counted += messages;
        }
    }

    pub(super) fn stalled(&self, end: &End) -> ToolError {
        let (sender, receiver) = (self.sender.as_ref(), self.receiver.as_ref());
        end.stalled(
            sender.map_or(0, Sender::completed) + receiver.map_or(0, Receiver::taken),
            sender.map_or(0, Sender::expected) + receiver.map_or(0, Receiver::expected),
        )
    }

    /// Posts as many requests as possible.
    pub(super) fn post(&mut self, end: &End) -> Result<(), ToolError> {
        // The time is taken before the post. After it, a part of the messages has been sent already.
        let now = self.elapsed_ns();
        let Some(sender) = &mut self.sender else { return Ok(()) };
        let count = sender.post(end)?;
        if let Some(times) = &mut self.times {
            times.posted.extend((0..count).map(|_| now));
        }
        Ok(())
    }

    /// Waits for completions and handles them. Returns the number of messages that they complete. Returns
    /// `None` if no completion arrives within `patience`, or if the other side has left.
    pub(super) fn wait(
        &mut self,
        end: &End,
        patience: Duration,
        look: Look<'_>,
    ) -> Result<Option<u64>, ToolError> {
        let mut completions = [Wc::default(); BATCH];
        self.idle_looks = 0;
        let count = self.attempt(end, patience, look, |left| {
            let waited = match end.plan.test {
                Test::Latency if !end.plan.events => wait_spinning(&end.cq, &mut completions, left),
                _ => wait_for_event(&end.cq, &mut completions, left, &mut 0),
            };
            match waited {
                Ok(count) => Ok(Some(count)),
                Err(WaitError::TimedOut) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        let Some(count) = count else { return Ok(None) };
        let mut messages = 0;
        for wc in completions.iter().take(count) {
            messages += self.complete(end, wc)?;
        }
        Ok(Some(messages))
    }

    /// Repeats an attempt until it returns a value, and checks the exchange in between. The argument of the
    /// attempt is its time limit. Returns `None` if no value comes within `patience`, or if the other side
    /// has left.
    pub(super) fn attempt<T>(
        &mut self,
        end: &End,
        patience: Duration,
        look: Look<'_>,
        mut attempt: impl FnMut(Duration) -> Result<Option<T>, ToolError>,
    ) -> Result<Option<T>, ToolError> {
        let begun = Instant::now();
        loop {
            let left = patience.saturating_sub(begun.elapsed()).min(LOOK_INTERVAL);
            if let Some(found) = attempt(left)? {
                return Ok(Some(found));
            }
            if begun.elapsed() >= patience || !self.look(end, begun, &mut *look)? {
                return Ok(None);
            }
        }
    }

    /// Checks the exchange after nothing has completed since `idle_since`. Returns whether the other side is
    /// there.
    fn look(&mut self, end: &End, idle_since: Instant, look: Look<'_>) -> Result<bool, ToolError> {
        let Ok(has_sent) = look() else {
            self.has_peer_left = true;
            return Ok(false);
        };
        if !self.is_warned && !end.agreement.is_ours && idle_since.elapsed() > WARN_AFTER {
            self.is_warned = true;
            if let ToolError::Stalled { progress, .. } = self.stalled(end) {
                tracing::warn!("no message arrived for a second ({progress}); {SAME_OPTIONS_THERE}");
            }
        }
        let ack_timeout = Duration::from_nanos(4096 << end.plan.timeout.min(31));
        self.idle_looks = if has_sent { self.idle_looks + 1 } else { 0 };
        let is_idle = self.idle_looks > IDLE_LOOKS && idle_since.elapsed() > ack_timeout * TIMEOUTS;
        if is_idle && end.plan.is_reliable() {
            let ToolError::Stalled { progress, .. } = self.stalled(end) else { return Ok(true) };
            return Err(ToolError::Peer(format!(
                "has ended its part, but on this side {progress}; give both sides the same options (-a, -b, \
                 -D, -n, -q)"
            )));
        }
        Ok(true)
    }

    /// Returns the error of a wait without a result.
    pub(super) fn ended(&self, end: &End) -> ToolError {
        match self.stalled(end) {
            ToolError::Stalled { progress, .. } if self.has_peer_left => ToolError::Peer(format!(
                "closed the connection when {progress}; it was stopped, or its messages state the reason"
            )),
            stalled => stalled,
        }
    }

    /// Handles a completion. Returns the number of messages that it completes.
    fn complete(&mut self, end: &End, wc: &Wc) -> Result<u64, ToolError> {
        check_completion(&end.context, wc)?;
        let id = WorkId::from_wr_id(wc.wr_id);
        if id.is_receive {
            let Some(receiver) = &mut self.receiver else { return Ok(0) };
            self.begun.get_or_insert_with(Instant::now);
            receiver.take(end, id, wc)?;
            return Ok(1);
        }
        let Some(sender) = &mut self.sender else { return Ok(0) };
        let count = sender.complete(end, id)?;
        let now = if self.times.is_some() { self.elapsed_ns() } else { 0 };
        if let Some(times) = &mut self.times {
            times.completed.extend((0..count).map(|_| now));
        }
        Ok(count)
    }
}
