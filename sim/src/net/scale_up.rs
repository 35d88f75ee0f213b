//! The port of a host in the scale-up network: transfers leave and arrive one after the other.

use std::sync::Arc;

use super::place::Place;
use super::time::Time;
use super::topology::ScaleUp;
use super::workload::TaskId;

/// When the port of a host is free in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScaleUpPort {
    pub(super) send: Time,
    pub(super) receive: Time,
}

/// The begin of a transfer that another host has sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// The location of the receiver.
    pub(super) to: Place,
    pub(super) arrival: Time,
    /// Its rank among simultaneous arrivals.
    pub(super) rank: u32,
    pub(super) task: TaskId,
}

/// The scale-up network in a part of the simulation.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) spec: Option<ScaleUp>,
    /// The location of each host.
    pub(super) hosts: Arc<[Place]>,
    /// Transfers that have begun since the last exchange between parts.
    pub(super) sent: Vec<Sent>,
}
