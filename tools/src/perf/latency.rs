//! Latency: one outstanding message. The other side answers SENDs and WRITEs; READs and atomics need no answer.

use std::time::{Duration, Instant};

use roce_transport::{Payload, RecvWr, SendFlags, SendWr, Sge, Wc};

use super::buffers::Geometry;
use super::content::Learned;
use super::sender::{WorkId, operation};
use super::session::End;
use super::statistics::Latency;
use super::verify::Atomics;
use super::{Length, Verb};
use crate::harness::content::{Pattern, mismatch};
use crate::harness::{Role, ToolError, check_completion, check_length, spin, take};

/// The test of one size.
#[derive(Debug)]
pub(super) struct Run {
    geometry: Geometry,
    sent: u64,
    received: u64,
    /// Receives posted.
    posted: u64,
    /// A message has arrived and was not handled yet.
    arrived: bool,
    /// The send has completed.
    completed: bool,
    begun: Instant,
    /// When each message was posted, in nanoseconds.
    posts: Vec<u64>,
    counted: u64,
    learned: Learned,
    atomics: Atomics,
    bytes: Vec<u8>,
}

/// The content of message `number` of our latency tests: the last byte is the one that the originals read.
fn fill(role: Role, number: u64, bytes: &mut [u8]) {
    let side = if role == Role::Client { 5 } else { 77 };
    Pattern::new(29, number.wrapping_mul(101).wrapping_add(side)).fill(bytes);
    if let Some(last) = bytes.last_mut() {
        *last = number.wrapping_add(1) as u8;
    }
}

impl Run {
    /// Posts receives where SENDs are expected.
    pub(super) fn new(end: &End, size: usize) -> Result<Self, ToolError> {
        let geometry = Geometry::new(&end.plan, &end.agreement, size);
        let mut run = Self {
            geometry,
            sent: 0,
            received: 0,
            posted: 0,
            arrived: false,
            completed: false,
            begun: Instant::now(),
            posts: Vec::new(),
            counted: 0,
            learned: Learned::new(1),
            atomics: Atomics::new(end.plan.atomic, geometry.slots),
            bytes: vec![0; size],
        };
        if end.plan.verb == Verb::Send {
            for _ in 0..end.buffers.landing_slots(size).min(end.plan.rx_depth) {
                run.post_receive(end)?;
            }
        }
        Ok(run)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Sends and waits in turn.
    pub(super) fn run(&mut self, end: &End) -> Result<Latency, ToolError> {
        self.begun = Instant::now();
        let is_answered = matches!(end.plan.verb, Verb::Send | Verb::Write);
        // With SEND the client begins, with WRITE the server does.
        let begins = !is_answered || (end.role == Role::Client) == (end.plan.verb == Verb::Send);
        while !self.is_done(end, is_answered) {
            if is_answered && !(begins && self.sent == 0) && self.wants_more(end, self.received) {
                if !self.receive(end)? {
                    break;
                }
                self.count(end);
            }
            if self.wants_more(end, self.sent) {
                self.send(end)?;
                if !is_answered {
                    self.count(end);
                }
            }
        }
        Ok(self.result(end, is_answered))
    }

    fn wants_more(&self, end: &End, count: u64) -> bool {
        match end.plan.length {
            Length::Iterations(iterations) => count < iterations,
            Length::Seconds { .. } => !self.is_over(end),
        }
    }

    fn is_done(&self, end: &End, is_answered: bool) -> bool {
        !(self.wants_more(end, self.sent) || is_answered && self.wants_more(end, self.received))
    }

    fn is_over(&self, end: &End) -> bool {
        matches!(end.plan.length, Length::Seconds { all, .. } if self.begun.elapsed() >= Duration::from_secs(all))
    }

    /// Counts a message of the seconds that count.
    fn count(&mut self, end: &End) {
        if let Length::Seconds { all, margin } = end.plan.length {
            let now = self.begun.elapsed();
            if (Duration::from_secs(margin)..Duration::from_secs(all - margin)).contains(&now) {
                self.counted += 1;
            }
        }
    }

    fn send(&mut self, end: &End) -> Result<(), ToolError> {
        let Some(lane) = end.lanes.first() else { return Ok(()) };
        let number = self.sent;
        let op = operation(end, lane, self.geometry.offset(number));
        let lands = end.plan.lands();
        let element: Sge = if lands {
            end.buffers.landing(0, self.geometry.size, number)
        } else {
            fill(end.role, number, &mut self.bytes);
            end.buffers.set_message(&self.bytes)
        };
        let is_inline = !lands && self.geometry.size <= end.plan.inline;
        let elements = [element];
        let wr = SendWr {
            wr_id: WorkId { qp: 0, number, is_receive: false }.to_wr_id(),
            op,
            flags: SendFlags::SIGNALED,
            payload: if is_inline { Payload::Inline(&self.bytes) } else { Payload::Elements(&elements) },
            destination: lane.destination,
        };
        if end.plan.iterations().is_some() {
            self.posts.push(self.begun.elapsed().as_nanos() as u64);
        }
        self.completed = false;
        lane.qp.post_send(&wr)?;
        self.sent += 1;
        let posted = Instant::now();
        while !self.completed {
            if self.poll(end)? || !self.is_over(end) {
                continue;
            }
            // The other side may have executed a READ or an atomic operation, so its result must be awaited.
            if !lands {
                return Ok(());
            }
            if posted.elapsed() > end.plan.patience {
                return Err(self.stalled(end));
            }
        }
        match end.plan.verb {
            Verb::Read => end.check_read(0, &self.geometry, number, &mut self.learned),
            Verb::Atomic => end.check_atomic(0, number, &mut self.atomics),
            Verb::Send | Verb::Write => Ok(()),
        }
    }

    /// Waits for completions until the test is over; returns whether there were any.
    fn poll(&mut self, end: &End) -> Result<bool, ToolError> {
        let mut completions = [Wc::default(); 4];
        let count = spin(self.patience(end), || -> Result<_, ToolError> {
            Ok(Some(end.cq.poll(&mut completions)?).filter(|count| *count > 0))
        })?;
        let Some(count) = count else { return self.over_or_stalled(end) };
        for wc in completions.iter().take(count) {
            self.complete(end, wc)?;
        }
        Ok(true)
    }

    /// The longest wait for a message.
    fn patience(&self, end: &End) -> Duration {
        match end.plan.length {
            Length::Iterations(_) => end.plan.patience,
            Length::Seconds { all, .. } => {
                end.plan.patience.min(Duration::from_secs(all).saturating_sub(self.begun.elapsed()))
            }
        }
    }

    fn over_or_stalled(&self, end: &End) -> Result<bool, ToolError> {
        if self.is_over(end) { Ok(false) } else { Err(self.stalled(end)) }
    }

    fn stalled(&self, end: &End) -> ToolError {
        end.stalled(self.sent.min(self.received), end.plan.iterations().unwrap_or(self.sent))
    }

    fn complete(&mut self, end: &End, wc: &Wc) -> Result<(), ToolError> {
        check_completion(wc)?;
        let id = WorkId::from_wr_id(wc.wr_id);
        if !id.is_receive {
            self.completed |= id.number + 1 == self.sent;
            return Ok(());
        }
        let expected = self.geometry.size;
        check_length(id.number, expected, (wc.byte_len as usize).saturating_sub(end.plan.headroom()))?;
        end.buffers.landed(0, expected, id.number, 0, &mut self.bytes);
        self.arrived = true;
        self.post_receive(end)
    }

    fn post_receive(&mut self, end: &End) -> Result<(), ToolError> {
        if end.plan.iterations().is_some_and(|iterations| self.posted >= iterations) {
            return Ok(());
        }
        let Some(lane) = end.lanes.first() else { return Ok(()) };
        let element = end.buffers.landing(0, self.geometry.size, self.posted);
        let wr_id = WorkId { qp: 0, number: self.posted, is_receive: true }.to_wr_id();
        lane.qp.post_recv(&RecvWr { wr_id, elements: &[element] })?;
        self.posted += 1;
        Ok(())
    }

    /// Waits for the next message and checks it; returns whether there was one.
    fn receive(&mut self, end: &End) -> Result<bool, ToolError> {
        let arrived = if end.plan.verb == Verb::Send {
            while !self.arrived {
                if !self.poll(end)? {
                    return Ok(false);
                }
            }
            self.arrived = false;
            true
        } else {
            self.watch(end)?
        };
        if arrived {
            self.check(end)?;
            self.received += 1;
        }
        Ok(arrived)
    }

    /// Waits until the last byte of memory is that of the next message.
    fn watch(&mut self, end: &End) -> Result<bool, ToolError> {
        let (size, start) = (self.geometry.size, end.buffers.exposed_offset(0));
        let awaited = self.received.wrapping_add(1) as u8;
        let mut last = [0; 1];
        let arrived = spin(self.patience(end), || -> Result<_, ToolError> {
            end.context.progress();
            take(&end.buffers.exposed, start + size - 1, &mut last);
            Ok((last[0] == awaited).then_some(()))
        })?;
        if arrived.is_none() {
            return self.over_or_stalled(end);
        }
        // The thread that wrote that byte has released the engine: the whole packet is in memory.
        end.context.progress();
        take(&end.buffers.exposed, start, &mut self.bytes);
        Ok(true)
    }

    /// Checks the message that has been copied out.
    fn check(&mut self, end: &End) -> Result<(), ToolError> {
        let (size, number) = (self.geometry.size, self.received);
        let at = if end.agreement.is_ours {
            let mut expected = vec![0; size];
            fill(end.role.other(), number, &mut expected);
            mismatch(&self.bytes, &expected)
        } else {
            // The originals count in the last byte of a WRITE, and change nothing else.
            let constant = if end.plan.verb == Verb::Write { size - 1 } else { size };
            self.learned.learn(number, &self.bytes[..constant])
        };
        match at {
            None => Ok(()),
            Some(at) => {
                let found = self.bytes.get(at).copied().unwrap_or(0);
                Err(ToolError::Content { qp: 0, message: number, size, at, found })
            }
        }
    }

    fn result(&self, end: &End, is_answered: bool) -> Latency {
        let trips = if is_answered { 2.0 } else { 1.0 };
        match end.plan.length {
            Length::Iterations(iterations) => Latency::from_posts(iterations, &self.posts, trips),
            Length::Seconds { all, margin } => {
                Latency::from_count(self.counted, (all - 2 * margin) as f64, trips)
            }
        }
    }
}
