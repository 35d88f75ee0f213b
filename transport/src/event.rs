//! Events that an engine raises for its application.

use alloc::collections::VecDeque;

use roce_packet::Qpn;

use crate::ids::{CqId, SrqId};

/// A notification for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An armed completion queue received a completion that it was armed for.
    Completion(CqId),
    /// An event that does not belong to a work request.
    Async(AsyncEvent),
}

/// An asynchronous event, named as in libibverbs (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The queue pair failed, and no completion reports the failure.
    QpFatal(Qpn),
    /// A request of the peer was invalid while no receive was in use. The queue pair is in the error state.
    QpRequestError(Qpn),
    /// An access of the peer was refused while no receive was in use. The queue pair is in the error state.
    QpAccessError(Qpn),
    /// The first packet arrived on a queue pair in RTR.
    CommunicationEstablished(Qpn),
    /// All requests started before SQD have completed.
    SqDrained(Qpn),
    /// A queue pair with a shared receive queue failed and has taken its last receive.
    LastWqeReached(Qpn),
    /// A shared receive queue fell below its limit. The limit is disarmed.
    SrqLimitReached(SrqId),
    /// A completion queue overflowed. Completions were lost, and its queue pairs fail.
    CqError(CqId),
}

/// A bounded queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    queue: VecDeque<Event>,
    capacity: usize,
    /// Number of events lost because the queue was full.
    pub(crate) lost: u64,
}

impl EventQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { queue: VecDeque::with_capacity(capacity.min(64)), capacity, lost: 0 }
    }

    pub(crate) fn push(&mut self, event: Event) {
        if self.queue.len() < self.capacity {
            self.queue.push_back(event);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn push_async(&mut self, event: AsyncEvent) {
        self.push(Event::Async(event));
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }
}
