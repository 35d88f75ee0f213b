//! The bandwidth test: one or both sides post messages until all messages or all seconds are over.

use std::time::{Duration, Instant};

use roce_exchange::ToolError;

use super::Verb;
use super::buffers::Geometry;
use super::end::End;
use super::receiver::Receiver;
use super::sender::Sender;
use super::statistics::{Bandwidth, MOST_FOR_PEAK, Rate, Times};
use super::traffic::{Look, Traffic};
use crate::harness::Role;

/// Prepares the messages of one size; posts receives where SENDs are expected.
pub(super) fn prepare(end: &End, geometry: Geometry) -> Result<Traffic, ToolError> {
    let plan = &end.plan;
    let is_sender = end.role == Role::Client || plan.bidirectional;
    let is_receiver = plan.verb == Verb::Send && (end.role == Role::Server || plan.bidirectional);
    let messages = plan.iterations().map(|iterations| iterations.saturating_mul(plan.num_qp as u64));
    let wants_peak = plan.peak && is_sender && messages.is_some_and(|messages| messages <= MOST_FOR_PEAK);
    let sender = is_sender.then(|| Sender::new(end, geometry));
    let receiver = if is_receiver { Some(Receiver::new(end, geometry)?) } else { None };
    let mut traffic = Traffic::new(geometry, sender, receiver);
    traffic.times = wants_peak.then(Times::default);
    Ok(traffic)
}

/// Sends, receives, or both.
pub(super) fn run(traffic: &mut Traffic, end: &End, look: Look<'_>) -> Result<Bandwidth, ToolError> {
    // A server that also sends waits for the first message. The client's clock runs by then.
    let waits = traffic.receiver.is_some() && end.role == Role::Server;
    if !waits {
        traffic.begun = Some(Instant::now());
    }
    // Set once time is up and only outstanding requests are awaited.
    let mut is_closed = false;
    while !traffic.is_done() {
        if !is_closed && traffic.is_over(end) {
            if traffic.receiver.is_some() || end.plan.verb == Verb::Send {
                // Outstanding requests are abandoned: the other side accepts no more messages.
                break;
            }
            if let Some(sender) = &mut traffic.sender {
                sender.close();
            }
            is_closed = true;
        }
        if traffic.begun.is_some() {
            traffic.post(end)?;
        }
        if traffic.is_done() {
            break;
        }
        let patience = if is_closed { end.plan.patience } else { traffic.patience(end) };
        match traffic.wait(end, patience, &mut *look)? {
            Some(messages) => traffic.count(end, messages),
            None if traffic.is_over(end) && !is_closed => {}
            None => return Err(traffic.ended(end)),
        }
    }
    Ok(result(traffic, end))
}

/// Sends or receives for `time`, in a test without end. Returns `None` once the other side has left.
pub(super) fn stretch(
    traffic: &mut Traffic,
    end: &End,
    time: Duration,
    look: Look<'_>,
) -> Result<Option<Bandwidth>, ToolError> {
    let begun = Instant::now();
    traffic.begun.get_or_insert(begun);
    let mut messages = 0;
    while begun.elapsed() < time {
        traffic.post(end)?;
        let left = time.saturating_sub(begun.elapsed());
        messages += traffic.wait(end, left, &mut *look)?.unwrap_or(0);
        if traffic.has_peer_left {
            return Ok(None);
        }
    }
    let average = Rate::new(traffic.geometry.size, messages as f64, begun.elapsed().as_secs_f64());
    Ok(Some(Bandwidth { messages, peak: None, average }))
}

fn result(traffic: &Traffic, end: &End) -> Bandwidth {
    let size = traffic.geometry.size;
    if let Some([from, to, _]) = traffic.window(end) {
        let average = Rate::new(size, traffic.counted as f64, (to - from).as_secs_f64());
        return Bandwidth { messages: traffic.counted, peak: None, average };
    }
    let sender = traffic.sender.as_ref().map(Sender::completed);
    let messages = sender.unwrap_or_else(|| traffic.receiver.as_ref().map_or(0, Receiver::taken));
    let average = Rate::new(size, messages as f64, traffic.elapsed_ns() as f64 / 1e9);
    let peak = traffic.times.as_ref().and_then(Times::least).map(|least| Rate::new(size, 1.0, least));
    Bandwidth { messages, peak, average }
}
