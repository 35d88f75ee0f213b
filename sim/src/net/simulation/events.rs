//! The trace events of a run.

use super::Simulation;
use crate::net::journal::{self, TraceEvent};
use crate::net::time::Time;

impl Simulation {
    /// Keeps the events that engines, hosts and switches report through `tracing` from now on. The program
    /// must install a subscriber for all threads that passes events to
    /// [`record_event`](crate::net::record_event). [`Self::take_events`] returns the kept events.
    pub fn keep_events(&mut self) {
        self.journals.kept = true;
        self.parts.iter_mut().for_each(|part| part.world.traced = true);
    }

    /// Removes and returns the kept events before the current time, oldest first. Events at the current time
    /// can still occur.
    pub fn take_events(&mut self) -> Vec<TraceEvent> {
        self.take_before(self.now())
    }

    /// Removes and returns all kept events.
    pub fn take_all_events(&mut self) -> Vec<TraceEvent> {
        self.take_before(Time::NEVER)
    }

    /// Returns the events of all journals before a time. Simultaneous events of a node belong to at most one
    /// part, so their order does not depend on the parts.
    fn take_before(&mut self, time: Time) -> Vec<TraceEvent> {
        let mut taken = self.journals.planned.take_before(time);
        for part in &mut self.parts {
            taken.append(&mut part.journal.take_before(time));
        }
        taken.append(&mut self.journals.ended.take_before(time));
        taken.sort_by_key(|event| (event.time, event.node));
        taken
    }

    /// Returns the name of the host or switch of an event.
    #[must_use]
    pub fn node_name(&self, node: u32) -> &str {
        self.node_names.get(node as usize).map_or("", String::as_str)
    }

    /// Assigns the following trace events to this host at the current time.
    pub(super) fn trace_at(&self, host: u32) {
        if self.journals.kept {
            journal::set_place(self.now, host);
        }
    }

    /// Reports the queue pairs of a flow.
    pub(super) fn trace_begin(&mut self, number: u32) {
        let kept = self.journals.kept;
        let Some(flow) = self.flow(number).copied().filter(|_| kept) else { return };
        self.trace_at(flow.spec.source);
        tracing::info!(
            flow = number,
            qpn = flow.source_qpn.get(),
            peer = self.node_name(flow.spec.destination),
            dest_qpn = flow.destination_qpn.get(),
            "flow begins"
        );
    }

    /// Reports the end of a flow.
    pub(super) fn trace_end(&mut self, number: u32) {
        let kept = self.journals.kept;
        let Some(flow) = self.flow(number).filter(|_| kept) else { return };
        journal::set_place(flow.end, flow.spec.source);
        tracing::info!(flow = number, qpn = flow.source_qpn.get(), outcome = flow.state.name(), "flow ends");
    }
}
