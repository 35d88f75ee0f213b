//! The latency test, with one outstanding message. The other side answers SENDs and WRITEs. READs and atomics
//! need no answer.

use std::time::Instant;

use roce_exchange::{ToolError, take};

use super::buffers::Geometry;
use super::content::Learned;
use super::end::End;
use super::receiver::Receiver;
use super::sender::Sender;
use super::statistics::Latency;
use super::traffic::{Look, Traffic};
use super::{Length, Verb};
use crate::harness::{Role, spin};

/// The test of one size.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) traffic: Traffic,
    /// The number of WRITEs of the other side that have arrived, and their content.
    written: u64,
    learned: Learned,
    /// The time of posting of each message, in nanoseconds.
    posts: Vec<u64>,
}

impl Run {
    /// Posts receives where SENDs are expected.
    pub(super) fn new(end: &End, size: usize) -> Result<Self, ToolError> {
        let geometry = Geometry::new(&end.plan, &end.agreement, size);
        let is_receiver = end.plan.verb == Verb::Send;
        let receiver = if is_receiver { Some(Receiver::new(end, geometry)?) } else { None };
        let traffic = Traffic::new(geometry, Some(Sender::new(end, geometry)), receiver);
        Ok(Self { traffic, written: 0, learned: Learned::new(1), posts: Vec::new() })
    }

    fn sent(&self) -> u64 {
        self.traffic.sender.as_ref().map_or(0, Sender::posted)
    }

    /// Returns the number of received messages.
    pub(super) fn received(&self) -> u64 {
        self.traffic.receiver.as_ref().map_or(self.written, Receiver::taken)
    }

    /// Sends and waits in turn.
    pub(super) fn run(&mut self, end: &End, look: Look<'_>) -> Result<Latency, ToolError> {
        self.traffic.begun = Some(Instant::now());
        let is_answered = !end.plan.lands();
        // With SEND, the client begins; with WRITE, the server begins.
        let begins = !is_answered || (end.role == Role::Client) == (end.plan.verb == Verb::Send);
        let mut answered = 0;
        while self.wants_more(end, self.sent()) || is_answered && self.wants_more(end, answered) {
            if is_answered && !(begins && self.sent() == 0) && self.wants_more(end, answered) {
                if !self.receive(end, answered, &mut *look)? {
                    break;
                }
                answered += 1;
                self.traffic.count(end, 1);
            }
            if self.wants_more(end, self.sent()) {
                self.send(end, &mut *look)?;
                if !is_answered {
                    self.traffic.count(end, 1);
                }
            }
        }
        Ok(self.result(end, if is_answered { 2.0 } else { 1.0 }))
    }

    fn wants_more(&self, end: &End, count: u64) -> bool {
        end.plan.iterations().map_or_else(|| !self.traffic.is_over(end), |iterations| count < iterations)
    }

    fn send(&mut self, end: &End, look: Look<'_>) -> Result<(), ToolError> {
        if end.plan.iterations().is_some() {
            self.posts.push(self.traffic.elapsed_ns());
        }
        self.traffic.post(end)?;
        let posted = Instant::now();
        while self.traffic.sender.as_ref().is_some_and(|sender| sender.completed() < sender.posted()) {
            // ib_write_lat exits as soon as it has the last message.
            let mut never = || Ok(false);
            let look: Look<'_> = if end.plan.verb == Verb::Write { &mut never } else { &mut *look };
            if self.traffic.wait(end, self.traffic.patience(end), look)?.is_some() {
                continue;
            }
            if !self.traffic.is_over(end) {
                return Err(self.traffic.ended(end));
            }
            // The other side may have executed a READ or an atomic operation, so its result must be awaited.
            if !end.plan.lands() {
                return Ok(());
            }
            if posted.elapsed() > end.plan.patience {
                return Err(self.traffic.ended(end));
            }
        }
        Ok(())
    }

    /// Waits for a message after the first `answered`. Returns whether one arrived.
    fn receive(&mut self, end: &End, answered: u64, look: Look<'_>) -> Result<bool, ToolError> {
        if end.plan.verb == Verb::Write {
            return self.watch(end, look);
        }
        while self.received() <= answered {
            if self.traffic.wait(end, self.traffic.patience(end), &mut *look)?.is_none() {
                return self.end_of_seconds(end);
            }
        }
        Ok(true)
    }

    /// Returns `false` if time is up, and otherwise an error. When its time is up, ib_write_lat exits,
    /// possibly a moment before this side.
    fn end_of_seconds(&self, end: &End) -> Result<bool, ToolError> {
        let has_left = self.traffic.has_peer_left && end.plan.verb == Verb::Write;
        let is_over = self.traffic.is_over(end) || has_left && end.plan.iterations().is_none();
        if is_over { Ok(false) } else { Err(self.traffic.ended(end)) }
    }

    /// Waits until the last byte of memory is that of the next message, and checks the message.
    fn watch(&mut self, end: &End, look: Look<'_>) -> Result<bool, ToolError> {
        let (size, start) = (self.traffic.geometry.size, end.buffers.exposed_offset(0));
        let number = self.written;
        let awaited = number.wrapping_add(1) as u8;
        let mut last = [0; 1];
        let patience = self.traffic.patience(end);
        let arrived = self.traffic.attempt(end, patience, look, |left| {
            spin(left, || -> Result<_, ToolError> {
                take(&end.buffers.exposed, start + size - 1, &mut last);
                if last[0] == awaited {
                    return Ok(Some(()));
                }
                end.context.progress();
                Ok(None)
            })
        })?;
        if arrived.is_none() {
            return self.end_of_seconds(end);
        }
        // The thread that wrote that byte may still hold the engine. This call waits until it has released
        // the engine, so that the whole packet is in memory. It makes no progress, because an acknowledgement
        // may wait for the answer.
        end.context.check_device()?;
        let read = |from: usize, out: &mut [u8]| take(&end.buffers.exposed, start + from, out);
        end.check_message((0, number), &self.traffic.geometry, Some(number), &read, &mut self.learned)?;
        self.written += 1;
        Ok(true)
    }

    fn result(&self, end: &End, trips: f64) -> Latency {
        let Length::Seconds { all, margin } = end.plan.length else {
            return Latency::from_posts(self.posts.len() as u64, &self.posts, trips);
        };
        Latency::from_count(self.traffic.counted, (all - 2 * margin) as f64, trips)
    }
}
