//! The blast measurement: many messages in one direction, with a fixed number of outstanding messages.

use std::time::{Duration, Instant};

use roce_exchange::ToolError;
use roce_transport::{Payload, SendWr, Sge, Wc};

use super::session::{PATIENCE, Quiet, Session, stalled};
use super::work::{InlineBytes, content, send_wr};
use super::{Completion, Op, Post, Row, Side};
use crate::harness::{NAP, SPINNING, check_length, check_order};

/// Number of completions that are fetched at once.
const BATCH: usize = 128;

/// Runs the client: sends everything and waits until all of it is acknowledged.
pub(super) fn client(session: &mut Session<'_>, size: usize) -> Result<Row, ToolError> {
    let plan = &session.plan;
    let (buffers, iterations) = (plan.buffers as u64, plan.iterations);
    let reading = plan.op == Op::Read;
    if reading {
        session.clear(buffers, size);
    } else {
        session.fill(buffers, size);
    }
    let mut sender = Sender {
        inline: InlineBytes::new(plan.inline, buffers, size),
        elements: (0..buffers).map(|slot| [session.element(slot, size)]).collect(),
        posted: 0,
        completed: 0,
        size,
    };
    let measurement = session.measure();
    let started = Instant::now();
    let mut completions = [Wc::default(); BATCH];
    while sender.completed < iterations {
        sender.post(session)?;
        let count = session.sends(&mut completions)?;
        for wc in &completions[..count] {
            if reading {
                sender.check_read(session, wc)?;
            }
            // Requests complete in order, so the completion of a signaled request covers those before it.
            sender.completed = wc.wr_id + 1;
        }
    }
    let elapsed = started.elapsed();
    let side = session.side(&measurement);
    if reading {
        sender.check_all_reads(session)?;
    }
    Ok(Row::new(&session.plan, size, elapsed.as_secs_f64(), side))
}

/// The posting side of the client.
struct Sender {
    inline: Option<InlineBytes>,
    elements: Vec<[Sge; 1]>,
    posted: u64,
    completed: u64,
    size: usize,
}

impl Sender {
    /// Posts a message for each free buffer.
    fn post(&mut self, session: &Session<'_>) -> Result<(), ToolError> {
        let plan = &session.plan;
        let buffers = plan.buffers as u64;
        let end = plan.iterations.min(self.completed + buffers);
        if self.posted >= end {
            return Ok(());
        }
        for number in self.posted..end {
            let slot = number % buffers;
            match &mut self.inline {
                Some(inline) => inline.stamp(slot, number),
                None if plan.op != Op::Read => session.stamp(slot, number, self.size),
                None => {}
            }
        }
        let requests = (self.posted..end).map(|number| self.request(session, number));
        match plan.post {
            Post::Single => {
                for request in requests {
                    session.resources.qp.post_send(&request)?;
                }
            }
            Post::List => {
                let list: Vec<SendWr<'_>> = requests.collect();
                session.resources.qp.post_send_list(&list)?;
            }
        }
        self.posted = end;
        Ok(())
    }

    /// Builds the request of message `number`. It is inlined so that the request is built in its place in the
    /// list: copying all requests takes a tenth of the time of small messages.
    #[inline(always)]
    fn request(&self, session: &Session<'_>, number: u64) -> SendWr<'_> {
        let plan = &session.plan;
        let slot = number % plan.buffers as u64;
        let op = session.operation(slot, number);
        let payload = match &self.inline {
            Some(inline) => inline.payload(slot),
            None => Payload::Elements(&self.elements[slot as usize]),
        };
        let signaled = (number + 1).is_multiple_of(plan.signal_every()) || number + 1 == plan.iterations;
        send_wr(number, op, payload, signaled)
    }

    /// Checks that a READ returned the number of its buffer, and overwrites that number. The next READ must
    /// return it again.
    fn check_read(&self, session: &Session<'_>, wc: &Wc) -> Result<(), ToolError> {
        for number in self.completed..=wc.wr_id {
            let slot = number % session.plan.buffers as u64;
            session.check_stamp(slot, slot, self.size)?;
            // The last messages stay in memory, because their whole content is checked later.
            if number + (session.plan.buffers as u64) < session.plan.iterations {
                session.stamp(slot, !slot, self.size);
            }
        }
        Ok(())
    }

    fn check_all_reads(&self, session: &Session<'_>) -> Result<(), ToolError> {
        for slot in 0..(session.plan.buffers as u64).min(session.plan.iterations) {
            session.check_content(slot, &content(slot, slot, self.size), slot)?;
        }
        Ok(())
    }
}

/// Prepares the server for a size, before the client starts.
pub(super) fn prepare_server(session: &mut Session<'_>, size: usize) -> Result<(), ToolError> {
    let receives = session.plan.receives() as u64;
    match session.plan.op {
        Op::Read => session.fill(session.plan.buffers as u64, size),
        Op::Write => session.clear(session.plan.buffers as u64, size),
        Op::WriteImm | Op::Send => {
            if session.plan.op == Op::WriteImm {
                session.clear(session.plan.buffers as u64, size);
            }
            while session.receives_posted < receives {
                session.post_receive(session.receives_posted)?;
            }
        }
    }
    Ok(())
}

/// Runs the server: receives messages, or waits while the client reads and writes.
pub(super) fn server(session: &mut Session<'_>, size: usize) -> Result<Side, ToolError> {
    let measurement = session.measure();
    match session.plan.op {
        Op::Send | Op::WriteImm => receive_all(session, size)?,
        Op::Write | Op::Read => stand_by(session)?,
    }
    let side = session.side(&measurement);
    let plan = &session.plan;
    if matches!(plan.op, Op::Write | Op::WriteImm) {
        let buffers = plan.buffers as u64;
        for slot in 0..buffers.min(plan.iterations) {
            // The number of the last message in this buffer.
            let number = (plan.iterations - 1 - slot) / buffers * buffers + slot;
            session.check_content(slot, &content(slot, number, size), number)?;
        }
    }
    Ok(side)
}

fn receive_all(session: &mut Session<'_>, size: usize) -> Result<(), ToolError> {
    let (buffers, iterations) = (session.plan.buffers as u64, session.plan.iterations);
    let receives = session.plan.receives() as u64;
    let first = session.receives_taken;
    let mut completions = [Wc::default(); BATCH];
    let mut number = 0;
    while number < iterations {
        let count = session.receives(&mut completions)?;
        for wc in &completions[..count] {
            check_order(number, wc.wr_id.wrapping_sub(first))?;
            check_length(number, size, wc.byte_len as usize)?;
            let slot = wc.wr_id % receives;
            if session.plan.op == Op::Send {
                session.check_stamp(slot, number, size)?;
                // The last messages stay in memory, so their whole content is checked.
                if number + receives >= iterations {
                    session.check_content(slot, &content(number % buffers, number, size), number)?;
                }
            } else {
                check_order((number as u32).into(), u32::from_be_bytes(wc.imm.0).into())?;
            }
            session.post_receive(slot)?;
            session.receives_taken += 1;
            number += 1;
        }
    }
    Ok(())
}

/// Serves a client that accesses only the memory of this side, until the client reports.
pub(super) fn stand_by(session: &mut Session<'_>) -> Result<(), ToolError> {
    let mut completions = [Wc::default(); 1];
    let mut quiet = Quiet::new(session);
    loop {
        if session.exchange.has_input()? {
            // If the client failed or left, it has not done everything.
            return Ok(session.exchange.watch()?);
        }
        let waited = quiet.elapsed(session);
        if waited > PATIENCE {
            return Err(stalled("waiting for READs and WRITEs of the client"));
        }
        if session.plan.completion == Completion::Event || waited > SPINNING {
            // The background thread serves the client.
            std::thread::sleep(if waited > SPINNING { NAP } else { Duration::from_millis(1) });
            continue;
        }
        for _ in 0..1024 {
            session.resources.recv_cq.poll(&mut completions)?;
        }
        std::thread::yield_now();
    }
}
