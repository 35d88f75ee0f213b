//! Flows of messages that a program adds during a run, for [`Network`](crate::net::Network).
//!
//! Such a flow is held open: its size is [`MAX_FLOW`] until [`Simulation::close_flow`], so no completion ends
//! it. Each message is a part of the flow, as the transfer of a task is. The network has one part, because
//! the program acts between two events, and other parts would already be ahead.

use std::sync::Arc;

use super::Simulation;
use crate::net::dependencies::News;
use crate::net::flow::{Flow, FlowState, Refusal};
use crate::net::payload::MAX_FLOW;
use crate::net::place::Place;
use crate::net::time::Time;
use crate::net::workload::FlowSpec;

/// The reason why [`Simulation::run_to_news`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) enum Reached {
    /// There are news, or a flow has failed.
    News,
    /// All events before the limit have been handled.
    Limit,
    /// The next event would be after the stop time, or no event is left.
    Stop,
}

impl Simulation {
    /// Returns the hash over all events so far: [`Results::trace_hash`](crate::net::Results::trace_hash).
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        let mut trace = self.trace;
        for number in 0..self.ports.len() {
            trace.note(number as u64, self.port(number).trace.hash());
        }
        trace.hash()
    }

    /// Adds a flow of messages, and creates and connects its queue pairs now. Returns the number of the flow.
    pub(in crate::net) fn open_flow(&mut self, source: u32, destination: u32) -> Result<u32, Refusal> {
        self.now = self.now();
        let number = self.flows.len() as u32;
        let spec = FlowSpec { source, destination, bytes: MAX_FLOW, start: self.now };
        let requester = self.hosts[source as usize].index;
        let part = &mut self.parts[0];
        let place = Place { part: 0, index: part.flows.len() as u32 };
        part.flows.push(Flow { requester, scheduled: true, ..Flow::new(spec) });
        part.unfinished += 1;
        // Without the copy of the part, the list has one owner and grows in place.
        part.places = Arc::default();
        Arc::make_mut(&mut self.flows).push(place);
        part.places = Arc::clone(&self.flows);
        self.ideal.push(None);
        self.host(source).agenda.add_outgoing(number);
        self.host(destination).agenda.add_incoming(number);
        self.start(number);
        self.parts[0].find_next();
        match self.flow(number).map(|flow| flow.state) {
            Some(FlowState::Refused(refusal)) => {
                self.end_flows();
                Err(refusal)
            }
            _ => Ok(number),
        }
    }

    /// Adds a message at the end of a flow of [`Self::open_flow`] and posts what can be posted now. Returns
    /// the number of the message in its flow, or `None` if there is no such flow.
    pub(in crate::net) fn add_message(&mut self, number: u32, bytes: u64) -> Option<u32> {
        let (source, host) = self.flow(number).map(|flow| (flow.spec.source, flow.requester))?;
        let message = self.host(source).agenda.add_message(number, bytes)?;
        let part = &mut self.parts[0];
        part.post(number);
        part.hosts[host as usize].settle(&mut part.world);
        part.look_at(host);
        part.find_next();
        Some(message)
    }

    /// Handles events before `limit` until there are news.
    pub(in crate::net) fn run_to_news(&mut self, limit: Time) -> Reached {
        let stop = self.settings.stop;
        while self.parts[0].news.is_empty() && self.parts[0].ended.is_empty() {
            self.exchange();
            let next = self.parts[0].next;
            let action = self.plan.get(self.done).map(|(time, _)| *time);
            let planned = action.unwrap_or(Time::NEVER).min(self.next_sample);
            let first = next.min(planned);
            // Samples alone change nothing.
            let is_idle = next == Time::NEVER && action.is_none();
            if first > stop || limit > stop && is_idle || limit == Time::NEVER && is_idle {
                return Reached::Stop;
            }
            if first >= limit {
                return Reached::Limit;
            }
            if planned <= next {
                self.do_planned(planned);
                continue;
            }
            let instant = Time::from_ps(1);
            let last = (next + self.lookahead).min(planned).min(limit).min(stop + instant) - instant;
            self.parts[0].run(last);
        }
        Reached::News
    }

    /// Moves the time forward to `time`, before the events of that time.
    pub(in crate::net) fn advance_to(&mut self, time: Time) {
        self.now = self.now.max(time);
        for part in &mut self.parts {
            part.world.now = part.world.now.max(time);
        }
    }

    /// Removes and returns the news, oldest first.
    pub(in crate::net) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.parts[0].news)
    }

    /// Returns the first flow that has failed since the last call, with its state and the time.
    pub(in crate::net) fn take_failure(&mut self) -> Option<(u32, FlowState, Time)> {
        let ended = self.parts[0].ended.clone();
        let failures = ended.into_iter().filter_map(|number| {
            let flow = self.flow(number)?;
            Some((number, flow.state, flow.end))
        });
        let first = failures.min_by_key(|(number, _, end)| (*end, *number));
        self.end_flows();
        first
    }

    /// Ends a flow of [`Self::open_flow`] at the end of the run. `bytes` is the sum of its messages, and
    /// `last` the time of the last acknowledgement.
    pub(in crate::net) fn close_flow(&mut self, number: u32, bytes: u64, last: Time) {
        let Some(flow) = self.flow(number) else { return };
        flow.spec.bytes = bytes;
        if flow.state == FlowState::Running && flow.completed >= bytes {
            self.parts[0].finish(number, FlowState::Complete);
            self.flow(number).into_iter().for_each(|flow| flow.end = last);
        }
    }

    /// Ends the run now.
    pub(in crate::net) fn close(&mut self) {
        self.end_flows();
        (self.is_over, self.end) = (true, self.now());
    }
}
