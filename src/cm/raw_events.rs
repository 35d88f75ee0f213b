//! The events of connections whose callers move the queue pairs themselves.

use std::collections::{HashSet, VecDeque};
use std::task::Waker;

use roce_packet::mad::{CommId, ServiceId};
use roce_transport::cm::CmEvent;

/// Connections, listeners and events of callers that move the queue pairs themselves.
#[derive(Debug, Default)]
pub(super) struct RawEvents {
    pub(super) connections: HashSet<CommId>,
    pub(super) listeners: HashSet<ServiceId>,
    pub(super) events: VecDeque<CmEvent>,
    pub(super) waker: Option<Waker>,
}

impl RawEvents {
    /// Returns whether an event belongs into the queue.
    pub(super) fn takes(&self, event: &CmEvent) -> bool {
        match event {
            CmEvent::ConnectRequest(request) => self.listeners.contains(&request.service_id),
            CmEvent::SidrRequest(question) => self.listeners.contains(&question.request.service_id),
            other => self.connections.contains(&other.id()),
        }
    }
}
