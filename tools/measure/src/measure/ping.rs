//! The ping measurement: the sides send a message to each other in turn. Half a round trip is the one-way
//! time.

use std::time::Instant;

use hdrhistogram::Histogram;
use roce_exchange::ToolError;
use roce_exchange::content::STAMP;
use roce_transport::{Payload, SendOp, Wc};

use super::blast::stand_by;
use super::session::Session;
use super::work::{InlineBytes, content, content_with_end, send_wr};
use super::{Op, Row, Side};
use crate::harness::check_length;

/// Slots: messages are sent from `OUT` and arrive in `IN`.
const OUT: u64 = 0;
const IN: u64 = 1;

/// Runs the client, which starts every round trip.
pub(super) fn client(session: &mut Session<'_>, size: usize) -> Result<Row, ToolError> {
    fill(session, size);
    let mut pinger = Pinger::new(session, size);
    pinger.post_receive(session)?;
    // Both sides have posted a receive before the first message is sent.
    session.exchange.barrier()?;
    let mut histogram = new_histogram()?;
    let measurement = session.measure();
    let started = Instant::now();
    let mut before = started;
    for number in 0..session.plan.iterations {
        if session.plan.op == Op::Write && !session.plan.watches_memory() {
            pinger.write_and_read(session, number)?;
        } else {
            pinger.send(session, number)?;
            pinger.receive(session, number)?;
        }
        let now = Instant::now();
        // Values beyond the histogram's range count as its largest.
        histogram.saturating_record(now.duration_since(before).as_nanos() as u64);
        before = now;
    }
    let elapsed_s = before.duration_since(started).as_secs_f64();
    let side = session.side(&measurement);
    pinger.finish(session)?;
    let half = |nanos: u64| nanos as f64 / 2000.0;
    let mut row = Row::new(&session.plan, size, elapsed_s, side);
    row.percentiles_us = Some([
        half(histogram.min()),
        half(histogram.value_at_quantile(0.5)),
        half(histogram.value_at_quantile(0.99)),
        half(histogram.max()),
    ]);
    Ok(row)
}

/// Creates a histogram from one nanosecond to one minute, with three digits.
fn new_histogram() -> Result<Histogram<u64>, ToolError> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .map_err(|error| ToolError::Plan(format!("histogram of round trips: {error}")))
}

/// Prepares the server for a size.
pub(super) fn prepare_server(session: &mut Session<'_>, size: usize) -> Result<(), ToolError> {
    fill(session, size);
    Ok(())
}

/// Fills both buffers of a side.
fn fill(session: &Session<'_>, size: usize) {
    session.fill(2, size);
    if session.plan.watches_memory() {
        session.fill_watched(IN, size);
    }
}

/// Runs the server, which answers every message with its own.
pub(super) fn server(session: &mut Session<'_>, size: usize) -> Result<Side, ToolError> {
    let mut pinger = Pinger::new(session, size);
    pinger.post_receive(session)?;
    session.exchange.barrier()?;
    let measurement = session.measure();
    if session.plan.op == Op::Write && !session.plan.watches_memory() {
        stand_by(session)?;
    } else {
        for number in 0..session.plan.iterations {
            pinger.receive(session, number)?;
            pinger.send(session, number)?;
        }
    }
    let side = session.side(&measurement);
    pinger.finish(session)?;
    Ok(side)
}

/// The state of one side.
struct Pinger {
    inline: Option<InlineBytes>,
    size: usize,
    /// Signaled sends whose completions have not been fetched.
    unfetched: u64,
}

impl Pinger {
    fn new(session: &Session<'_>, size: usize) -> Self {
        Self { inline: InlineBytes::new(session.plan.inline, 1, size), size, unfetched: 0 }
    }

    fn post_receive(&self, session: &mut Session<'_>) -> Result<(), ToolError> {
        if session.plan.op == Op::Write || session.receives_posted > session.receives_taken {
            return Ok(());
        }
        session.post_receive(IN)
    }

    fn send(&mut self, session: &mut Session<'_>, number: u64) -> Result<(), ToolError> {
        let op = session.operation(IN, number);
        let signaled = (number + 1).is_multiple_of(session.plan.signal_every());
        self.post(session, number, op, signaled)?;
        // Unsignaled sends also occupy the queue, until a later completion is fetched or the acknowledgement
        // has arrived.
        if self.unfetched * session.plan.signal_every() >= session.plan.buffers as u64 {
            self.fetch(session)?;
        }
        Ok(())
    }

    fn post(
        &mut self,
        session: &Session<'_>,
        number: u64,
        op: SendOp,
        signaled: bool,
    ) -> Result<(), ToolError> {
        let element = [session.element(OUT, self.size)];
        let payload = match &mut self.inline {
            Some(inline) => {
                inline.stamp(OUT, number);
                if session.plan.watches_memory() {
                    inline.stamp_end(OUT, number);
                }
                inline.payload(OUT)
            }
            None => {
                session.stamp(OUT, number, self.size);
                if session.plan.watches_memory() {
                    session.stamp_end(OUT, number, self.size);
                }
                Payload::Elements(&element)
            }
        };
        self.unfetched += u64::from(signaled);
        Ok(session.resources.qp.post_send(&send_wr(number, op, payload, signaled))?)
    }

    fn fetch(&mut self, session: &mut Session<'_>) -> Result<(), ToolError> {
        let mut completions = [Wc::default(); 64];
        let count = session.sends(&mut completions)?;
        self.unfetched -= count as u64;
        Ok(())
    }

    fn receive(&mut self, session: &mut Session<'_>, number: u64) -> Result<(), ToolError> {
        if session.plan.watches_memory() {
            let size = self.size;
            session
                .spin_on_memory(&mut |session| Ok(session.has_end_stamp(IN, number, size).then_some(())))?;
            return self.check_written(session, number);
        }
        let mut completions = [Wc::default(); 1];
        session.receives(&mut completions)?;
        session.receives_taken += 1;
        check_length(number, self.size, completions[0].byte_len as usize)?;
        session.check_stamp(IN, number, self.size)?;
        if number + 1 < session.plan.iterations {
            self.post_receive(session)?;
        }
        Ok(())
    }

    /// Checks the number at the start of a message whose end has arrived. A short message may have only the
    /// number at its end.
    fn check_written(&self, session: &Session<'_>, number: u64) -> Result<(), ToolError> {
        if self.size < 2 * STAMP {
            return Ok(());
        }
        session.check_stamp(IN, number, self.size)
    }

    /// Posts a WRITE and then a READ of the same bytes, and waits for both.
    fn write_and_read(&mut self, session: &mut Session<'_>, number: u64) -> Result<(), ToolError> {
        let (remote_addr, rkey) = (session.remote(IN), session.remote_rkey);
        self.post(session, number, session.operation(IN, number), false)?;
        let element = [session.element(IN, self.size)];
        let read = SendOp::Read { remote_addr, rkey };
        session.resources.qp.post_send(&send_wr(number, read, Payload::Elements(&element), true))?;
        let mut completions = [Wc::default(); 1];
        session.sends(&mut completions)?;
        session.check_stamp(IN, number, self.size)
    }

    /// Fetches the remaining completions and checks the whole content of the last message.
    fn finish(&mut self, session: &mut Session<'_>) -> Result<(), ToolError> {
        while self.unfetched > 0 {
            self.fetch(session)?;
        }
        let last = session.plan.iterations - 1;
        let build = if session.plan.watches_memory() { content_with_end } else { content };
        session.check_content(IN, &build(OUT, last, self.size), last)
    }
}
