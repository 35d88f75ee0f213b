//! Bandwidth: one side posts, or both, until all messages or all seconds are over.

use std::time::{Duration, Instant};

use roce_transport::Wc;

use super::buffers::Geometry;
use super::receiver::Receiver;
use super::sender::{Sender, WorkId};
use super::session::End;
use super::statistics::{Bandwidth, MOST_FOR_PEAK, Rate, Times};
use super::{Length, Verb};
use crate::harness::{Role, ToolError, check_completion};
use roce::verbs::WaitError;

/// Completions that are fetched at once.
const BATCH: usize = 32;

/// The test of one size.
#[derive(Debug)]
pub(super) struct Run {
    geometry: Geometry,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    times: Option<Times>,
    /// When the first message went out or came in.
    begun: Option<Instant>,
    ended: Option<Instant>,
    /// Messages of the seconds that count.
    counted: u64,
}

impl Run {
    /// Posts receives where SENDs are expected.
    pub(super) fn new(end: &End, geometry: Geometry) -> Result<Self, ToolError> {
        let plan = &end.plan;
        let is_sender = end.role == Role::Client || plan.bidirectional;
        let is_receiver = plan.verb == Verb::Send && (end.role == Role::Server || plan.bidirectional);
        let messages = plan.iterations().map(|iterations| iterations.saturating_mul(plan.num_qp as u64));
        let wants_peak = plan.peak && is_sender && messages.is_some_and(|messages| messages <= MOST_FOR_PEAK);
        Ok(Self {
            geometry,
            sender: is_sender.then(|| Sender::new(end, geometry)),
            receiver: if is_receiver { Some(Receiver::new(end, geometry)?) } else { None },
            times: wants_peak.then(Times::default),
            begun: None,
            ended: None,
            counted: 0,
        })
    }

    /// Messages sent on each queue pair.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.sender.as_ref().map(Sender::sent).unwrap_or_default()
    }

    /// Messages received on each queue pair.
    pub(super) fn received(&self) -> Vec<u64> {
        self.receiver.as_ref().map(Receiver::received).unwrap_or_default()
    }

    /// Sends, receives, or both.
    pub(super) fn run(&mut self, end: &End) -> Result<Bandwidth, ToolError> {
        // A server that sends too waits for the first message: by then the client's clock runs.
        let waits = self.receiver.is_some() && end.role == Role::Server;
        if !waits {
            self.begun = Some(Instant::now());
        }
        let mut completions = [Wc::default(); BATCH];
        while !self.is_done() {
            if self.is_over(end) {
                if self.receiver.is_some() || end.plan.verb == Verb::Send {
                    // Outstanding requests are abandoned: the other side accepts no more messages.
                    break;
                }
                if let Some(sender) = &mut self.sender
                    && self.ended.is_none()
                {
                    sender.close();
                    self.ended = Some(Instant::now());
                }
            }
            if self.begun.is_some()
                && let Some(sender) = &mut self.sender
            {
                // The time before the post: afterwards a part has been sent already.
                let now = self.begun.map_or(0, |begun| begun.elapsed().as_nanos() as u64);
                let count = sender.post(end)?;
                if let Some(times) = &mut self.times {
                    times.posted.extend((0..count).map(|_| now));
                }
            }
            if self.is_done() {
                break;
            }
            let count = match end.cq.wait(&mut completions, Some(self.patience(end))) {
                Ok(count) => count,
                Err(WaitError::TimedOut) if self.is_over(end) && self.ended.is_none() => 0,
                Err(error) => return Err(ToolError::of_wait(error, || self.stalled(end))),
            };
            for wc in completions.iter().take(count) {
                self.complete(end, wc)?;
            }
        }
        Ok(self.result(end))
    }

    fn is_done(&self) -> bool {
        self.sender.as_ref().is_none_or(Sender::is_done)
            && self.receiver.as_ref().is_none_or(Receiver::is_done)
    }

    /// When the seconds that count begin and end, and when all are over.
    fn window(&self, end: &End) -> Option<[Instant; 3]> {
        let Length::Seconds { all, margin } = end.plan.length else { return None };
        let at = |seconds| self.begun.map(|begun| begun + Duration::from_secs(seconds));
        Some([at(margin)?, at(all - margin)?, at(all)?])
    }

    fn is_over(&self, end: &End) -> bool {
        self.window(end).is_some_and(|[_, _, over]| Instant::now() >= over)
    }

    fn patience(&self, end: &End) -> Duration {
        let patience = end.plan.patience;
        match self.window(end) {
            Some([_, _, over]) if self.ended.is_none() => {
                patience.min(over.saturating_duration_since(Instant::now()))
            }
            _ => patience,
        }
    }

    fn stalled(&self, end: &End) -> ToolError {
        let (sender, receiver) = (self.sender.as_ref(), self.receiver.as_ref());
        end.stalled(
            sender.map_or(0, Sender::completed) + receiver.map_or(0, Receiver::taken),
            sender.map_or(0, Sender::expected) + receiver.map_or(0, Receiver::expected),
        )
    }

    fn since_begin(&self) -> u64 {
        self.begun.map_or(0, |begun| begun.elapsed().as_nanos() as u64)
    }

    fn complete(&mut self, end: &End, wc: &Wc) -> Result<(), ToolError> {
        check_completion(wc)?;
        let id = WorkId::from_wr_id(wc.wr_id);
        let count = if id.is_receive {
            let Some(receiver) = &mut self.receiver else { return Ok(()) };
            self.begun.get_or_insert_with(Instant::now);
            receiver.take(end, id, wc)?;
            1
        } else {
            let Some(sender) = &mut self.sender else { return Ok(()) };
            let count = sender.complete(end, id)?;
            let now = if self.times.is_some() { self.since_begin() } else { 0 };
            if let Some(times) = &mut self.times {
                times.completed.extend((0..count).map(|_| now));
            }
            count
        };
        if let Some([from, to, _]) = self.window(end) {
            let now = Instant::now();
            if (from..to).contains(&now) {
                self.counted += count;
            }
        }
        Ok(())
    }

    fn result(&self, end: &End) -> Bandwidth {
        let size = self.geometry.size;
        if let Some([from, to, _]) = self.window(end) {
            let average = Rate::new(size, self.counted as f64, (to - from).as_secs_f64());
            return Bandwidth { messages: self.counted, peak: None, average };
        }
        let sender = self.sender.as_ref().map(Sender::completed);
        let messages = sender.unwrap_or_else(|| self.receiver.as_ref().map_or(0, Receiver::taken));
        let seconds = self.begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        let average = Rate::new(size, messages as f64, seconds);
        let peak = self.times.as_ref().and_then(Times::least).map(|least| Rate::new(size, 1.0, least));
        Bandwidth { messages, peak, average }
    }
}
