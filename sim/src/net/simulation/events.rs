//! The trace events of a run.

use super::Simulation;
use crate::net::flow::FlowState;
use crate::net::journal::{self, TraceEvent};
use crate::net::port::Owner;
use crate::net::time::Time;

impl Simulation {
    /// Keeps the events that engines, hosts and switches report through `tracing` from now on. The program has a subscriber that
    /// hands them to [`record_event`](crate::net::record_event), and fetches them with [`Self::take_events`].
    pub fn keep_events(&mut self) {
        self.world.traced = true;
    }

    /// Removes and returns the events kept so far that are before the current time, oldest first. At the current time others may
    /// still happen.
    pub fn take_events(&mut self) -> Vec<TraceEvent> {
        self.journal.take_before(self.world.now)
    }

    /// Removes and returns all events kept so far.
    pub fn take_all_events(&mut self) -> Vec<TraceEvent> {
        self.journal.take_before(Time::NEVER)
    }

    /// The name of the host or switch of an event.
    #[must_use]
    pub fn node_name(&self, node: u32) -> &str {
        self.node_names.get(node as usize).map_or("", String::as_str)
    }

    /// Handles up to `most` events as [`Self::run`] does, and records their trace events.
    #[cold]
    pub(super) fn run_traced(&mut self, most: u64) -> bool {
        std::mem::take(&mut self.journal).enter();
        let goes_on = self.run_untraced(most);
        self.journal = journal::leave();
        goes_on
    }

    /// Reports the queue pairs of a flow.
    pub(super) fn trace_begin(&self, number: u32) {
        let flow = &self.flows[number as usize];
        self.world.trace_at(Owner::Host(flow.spec.source));
        tracing::info!(
            flow = number,
            qpn = flow.source_qpn.get(),
            peer = self.node_name(flow.spec.destination),
            dest_qpn = flow.destination_qpn.get(),
            "flow begins"
        );
    }

    pub(super) fn trace_end(&self, number: u32, state: FlowState) {
        let flow = &self.flows[number as usize];
        self.world.trace_at(Owner::Host(flow.spec.source));
        tracing::info!(flow = number, qpn = flow.source_qpn.get(), outcome = state.name(), "flow ends");
    }
}
