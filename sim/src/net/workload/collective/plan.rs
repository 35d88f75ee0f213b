//! Adds tasks and the flows that they require.

use std::collections::HashMap;

use crate::net::time::Time;
use crate::net::topology::ScaleUp;
use crate::net::workload::{After, FlowSpec, MAX_FLOWS, Schedule, Task, TaskId, Transfer, WorkloadError};

/// The queue pair of messages that clear a transfer, so that they do not wait behind data.
const CONTROL: u32 = u32::MAX;
/// Bytes of such a message: an entry of NCCL's queue for them.
const CLEAR_TO_SEND_BYTES: u64 = 64;

/// Flows and tasks to which operations are added. Transfers between two hosts share one flow, and so one
/// queue pair, unless an operation has several.
#[derive(Debug)]
pub struct Plan<'a> {
    flows: &'a mut Vec<FlowSpec>,
    schedule: &'a mut Schedule,
    /// The flow from one host to another on a queue pair. The map is used for lookups only, so its order does
    /// not matter.
    connections: HashMap<(u32, u32, u32), u32>,
    start: Time,
    scale_up: Option<ScaleUp>,
}

impl<'a> Plan<'a> {
    /// Creates a plan that adds to flows and tasks. No task begins before `start`.
    pub fn new(flows: &'a mut Vec<FlowSpec>, schedule: &'a mut Schedule, start: Time) -> Self {
        Self { flows, schedule, connections: HashMap::new(), start, scale_up: None }
    }

    /// Sends through this scale-up network what it can carry.
    #[must_use]
    pub fn with_scale_up(mut self, scale_up: Option<ScaleUp>) -> Self {
        self.scale_up = scale_up;
        self
    }

    /// Returns the scale-up network if it joins two hosts.
    pub(super) fn scale_up(&self, one: u32, other: u32) -> Option<ScaleUp> {
        self.scale_up.filter(|scale_up| scale_up.joins(one, other))
    }

    /// Returns the place of a host in the scale-up network: its domain, and its number there.
    pub(super) fn place(&self, host: u32) -> Option<(u32, u32)> {
        self.scale_up.map(|scale_up| (scale_up.domain(host), host % scale_up.hosts.max(1)))
    }

    /// Adds a task that computes for a time, or only waits.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many tasks.
    pub fn compute(&mut self, host: u32, compute: Time, after: &[After]) -> Result<TaskId, WorkloadError> {
        self.schedule.add(Task { host, earliest: self.start, compute, transfer: None }, after)
    }

    /// Adds a transfer through the scale-up network, or on queue pair 0 of the two hosts.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many tasks or flows, or if a host would send to itself.
    pub fn send(&mut self, from: u32, to: u32, bytes: u64, after: &[After]) -> Result<TaskId, WorkloadError> {
        self.send_on(0, from, to, bytes, after)
    }

    /// Adds a message of `from` that tells `to` that it may send.
    pub(super) fn clear_to_send(
        &mut self,
        from: u32,
        to: u32,
        after: &[After],
    ) -> Result<TaskId, WorkloadError> {
        self.send_on(CONTROL, from, to, CLEAR_TO_SEND_BYTES, after)
    }

    /// Adds a transfer through the scale-up network, or on a queue pair.
    pub(super) fn send_on(
        &mut self,
        queue_pair: u32,
        from: u32,
        to: u32,
        bytes: u64,
        after: &[After],
    ) -> Result<TaskId, WorkloadError> {
        if from == to {
            return Err(WorkloadError(format!("host {from} would send to itself")));
        }
        if self.scale_up(from, to).is_some() {
            let transfer = Some(Transfer::ScaleUp { to, bytes });
            return self
                .schedule
                .add(Task { host: from, earliest: self.start, compute: Time::ZERO, transfer }, after);
        }
        let flow = match self.connections.get(&(from, to, queue_pair)) {
            Some(flow) => *flow,
            None if self.flows.len() >= MAX_FLOWS => {
                return Err(WorkloadError(format!("more than {MAX_FLOWS} flows")));
            }
            None => {
                let flow = self.flows.len() as u32;
                self.flows.push(FlowSpec { source: from, destination: to, bytes: 0, start: self.start });
                self.connections.insert((from, to, queue_pair), flow);
                flow
            }
        };
        let total = &mut self.flows[flow as usize].bytes;
        *total = total.saturating_add(bytes);
        let transfer = Some(Transfer::Flow { flow, bytes });
        self.schedule.add(Task { host: from, earliest: self.start, compute: Time::ZERO, transfer }, after)
    }
}
