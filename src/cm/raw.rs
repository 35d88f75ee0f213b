//! Connections whose callers move the queue pairs themselves. Their events go into one queue: see
//! [`verbs::raw`](crate::verbs::raw).

use std::task::Waker;

use roce_packet::mad::{CommId, ServiceId};
use roce_transport::Instant;
use roce_transport::cm::{CmError, CmEvent, CmListen, CmOffer};

use super::service::{CmService, Listener, enqueue, is_open};
use crate::driver::Nic;

impl CmService {
    pub(crate) fn watch_raw_events(&mut self, waker: Waker) {
        if !self.raw.events.is_empty() {
            self.wakers.due.push(waker.clone());
        }
        self.wakers.released.extend(self.raw.waker.replace(waker));
    }

    /// Returns the next event. Skips requests that their peers have withdrawn.
    pub(crate) fn next_raw_event(&mut self) -> Option<CmEvent> {
        let manager = &self.manager;
        let events = &mut self.raw.events;
        std::iter::from_fn(|| events.pop_front())
            .find(|event| !is_request(event) || is_open(manager, event.id()))
    }

    pub(super) fn push_raw_event(&mut self, event: CmEvent) {
        let manager = &self.manager;
        if matches!(event, CmEvent::ConnectRequest(_) | CmEvent::SidrRequest(_)) {
            self.raw.connections.insert(event.id());
            enqueue(&mut self.raw.events, event, |event| !is_request(event) || is_open(manager, event.id()));
        } else {
            self.raw.events.push_back(event);
        }
        self.wakers.due.extend(self.raw.waker.clone());
    }

    pub(crate) fn open_raw_listener(
        &mut self,
        nic: &mut Nic,
        service_id: ServiceId,
        listen: CmListen,
    ) -> Result<(), CmError> {
        self.open_listener(nic, service_id, listen)?;
        self.raw.listeners.insert(service_id);
        Ok(())
    }

    /// Moves the requests of a closing listener from the queue of events back into the listener.
    pub(super) fn close_raw_listener(&mut self, service_id: ServiceId, listener: &mut Listener) {
        if !self.raw.listeners.remove(&service_id) {
            return;
        }
        for event in std::mem::take(&mut self.raw.events) {
            match event {
                CmEvent::ConnectRequest(request) if request.service_id == service_id => {
                    self.raw.connections.remove(&request.id);
                    listener.requests.push_back(*request);
                }
                CmEvent::SidrRequest(question) if question.request.service_id == service_id => {
                    self.raw.connections.remove(&question.id);
                    listener.questions.push_back(*question);
                }
                other => self.raw.events.push_back(other),
            }
        }
    }

    pub(crate) fn adopt_raw(&mut self, id: CommId) {
        self.raw.connections.insert(id);
    }

    /// Accepts a request whose queue pair already accepts packets.
    pub(crate) fn accept_raw(
        &mut self,
        now: Instant,
        id: CommId,
        offer: &CmOffer,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        self.manager.accept(now, id, offer, private_data)?;
        self.awaited.push((offer.qpn, id));
        Ok(())
    }

    pub(crate) fn release_raw(&mut self, now: Instant, id: CommId) {
        self.raw.connections.remove(&id);
        self.raw.events.retain(|event| event.id() != id);
        self.manager.release(now, id);
    }
}

fn is_request(event: &CmEvent) -> bool {
    matches!(event, CmEvent::ConnectRequest(_) | CmEvent::SidrRequest(_))
}
