//! The tasks of hosts during a run, and the WRITEs that they let a flow post.

use super::Simulation;
use crate::net::dependencies::{Agenda, Open};
use crate::net::flow::FlowState;
use crate::net::workload::{FlowSpec, Schedule};

impl Simulation {
    /// Distributes the tasks among the hosts and begins those that wait for nothing.
    pub(super) fn plan_tasks(&mut self, schedule: &Schedule, flows: &[FlowSpec]) {
        for transfer in schedule.tasks().iter().filter_map(|task| task.transfer) {
            self.flows[transfer.flow as usize].scheduled = true;
        }
        let agendas = Agenda::distribute(schedule, flows, self.hosts.len());
        for (host, agenda) in self.hosts.iter_mut().zip(agendas) {
            host.agenda = agenda;
            // No flow is connected yet; its start posts what is open by then.
            host.begin_tasks(&mut self.world);
            self.computations_left += host.agenda.computations_left();
        }
    }

    pub(super) fn end_computation(&mut self, host: u32, task: u32) {
        let now = self.world.now;
        let agenda = &mut self.hosts[host as usize].agenda;
        let before = agenda.computations_left();
        let open = agenda.computed(now, task);
        self.computations_left -= before - agenda.computations_left();
        self.end = self.end.max(now);
        self.proceed(host, open);
    }

    /// Begins the tasks of a host that can begin, and posts what can be posted, also of the flow `open`.
    pub(super) fn proceed(&mut self, host: u32, open: Option<u32>) {
        let one = &mut self.hosts[host as usize];
        let before = one.agenda.computations_left();
        let mut flows = one.begin_tasks(&mut self.world);
        self.computations_left -= before - one.agenda.computations_left();
        flows.extend(open);
        for flow in &flows {
            self.post(*flow);
        }
        if !flows.is_empty() {
            self.hosts[host as usize].settle(&mut self.world);
        }
    }

    /// Posts WRITEs of a flow: as many as may be outstanding, while bytes are left that need not wait.
    pub(super) fn post(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let settings = self.world.settings.of_flow(number).0;
        while flow.connected && flow.outstanding < settings.depth {
            let host = &mut self.hosts[flow.spec.source as usize];
            let open = if flow.scheduled {
                host.agenda.open(number, flow.posted)
            } else {
                Some(Open { left: flow.spec.bytes - flow.posted, signal: None }).filter(|open| open.left > 0)
            };
            let Some(open) = open else { return };
            let len = open.left.min(settings.message_bytes);
            let signal = open.signal.filter(|_| len == open.left);
            if flow.state == FlowState::Waiting {
                flow.state = FlowState::Running;
                flow.spec.start = self.world.now;
                self.running.push(number);
            }
            let [(requester, own), (responder, _)] = flow.ends(settings.operation);
            let rkey = self.hosts[responder as usize].rkey();
            let host = &mut self.hosts[requester as usize];
            let range = (flow.posted, len as u32);
            if !host.post(&self.world, (own, number), settings.operation, rkey, range, signal) {
                return self.finish(number, FlowState::Refused);
            }
            flow.posted += len;
            flow.outstanding += 1;
        }
    }
}
