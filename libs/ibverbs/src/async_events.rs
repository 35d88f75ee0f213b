//! Asynchronous events of devices, and their acknowledgement.

use std::ffi::c_int;
use std::sync::Arc;

use roce::verbs::AsyncEvent;
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event, ibv_context,
};
use crate::answer::{Errno, value};
use crate::context::{Open, open_of};
use crate::cq::cq_of;
use crate::links::Failed;
use crate::port::PORT;
use crate::qp::qp_of;
use crate::srq::srq_of;
use crate::wait::{Sleep, Slept, Wait, wait};

/// Returns the pointer and the number of an event for the application; `None` if its object is destroyed.
fn element(open: &Open, event: AsyncEvent) -> Option<ibv_async_event> {
    let objects = open.objects();
    let of_qp =
        |qpn, event_type| Some(ibv_async_event { element: objects.qps.get(&qpn)?.deliver(), event_type });
    match event {
        AsyncEvent::QpFatal(qpn) => of_qp(qpn, IBV_EVENT_QP_FATAL),
        AsyncEvent::QpRequestError(qpn) => of_qp(qpn, IBV_EVENT_QP_REQ_ERR),
        AsyncEvent::QpAccessError(qpn) => of_qp(qpn, IBV_EVENT_QP_ACCESS_ERR),
        AsyncEvent::CommunicationEstablished(qpn) => of_qp(qpn, IBV_EVENT_COMM_EST),
        AsyncEvent::SqDrained(qpn) => of_qp(qpn, IBV_EVENT_SQ_DRAINED),
        AsyncEvent::LastWqeReached(qpn) => of_qp(qpn, IBV_EVENT_QP_LAST_WQE_REACHED),
        AsyncEvent::SrqLimitReached(srq) => {
            let element = objects.srqs.get(&srq)?.deliver();
            Some(ibv_async_event { element, event_type: IBV_EVENT_SRQ_LIMIT_REACHED })
        }
        AsyncEvent::CqError(cq) => {
            let element = objects.cqs.get(&cq)?.deliver();
            Some(ibv_async_event { element, event_type: IBV_EVENT_CQ_ERR })
        }
        _ => None,
    }
}

/// Returns the event of a fault for the application; `None` if its queue pair is destroyed.
fn element_of_fault(open: &Open, failed: Failed) -> Option<ibv_async_event> {
    match failed {
        Failed::Port(event_type) => {
            Some(ibv_async_event { element: std::ptr::without_provenance_mut(PORT.into()), event_type })
        }
        Failed::Device => {
            let element = std::ptr::null_mut();
            Some(ibv_async_event { element, event_type: IBV_EVENT_DEVICE_FATAL })
        }
        Failed::QueuePair(qpn) => element(open, AsyncEvent::QpFatal(qpn)),
    }
}

/// A wait for an asynchronous event.
struct AsyncWait {
    open: Arc<Open>,
    event: *mut ibv_async_event,
}

impl Wait for AsyncWait {
    fn turn(&mut self, slept: Slept) -> Result<Option<Sleep>, Errno> {
        let fault = || self.open.link.as_ref()?.pop().map(|failed| element_of_fault(&self.open, failed));
        let event = || self.open.context.async_event().map(|event| element(&self.open, event));
        while let Some(found) = fault().or_else(event) {
            if let Some(found) = found {
                // SAFETY: the application gave room for an event.
                unsafe { self.event.write(found) };
                return Ok(None);
            }
        }
        self.open.async_events.plan(slept).map(Some)
    }
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    wait(Verb::ibv_get_async_event, (context, event), |(context, event)| {
        if event.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's pointer is a context that it has open.
        Ok(AsyncWait { open: Arc::clone(unsafe { open_of(context)? }), event })
    })
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    value(Verb::ibv_ack_async_event, (), || {
        // SAFETY: the application passes a delivered and unacknowledged event, so its object still exists.
        let events = unsafe {
            let Some(event) = event.as_ref() else { return };
            match event.event_type {
                IBV_EVENT_PORT_ERR | IBV_EVENT_PORT_ACTIVE | IBV_EVENT_DEVICE_FATAL => return,
                IBV_EVENT_CQ_ERR => cq_of(event.element.cast()).map(|cq| &cq.async_events),
                IBV_EVENT_SRQ_LIMIT_REACHED => srq_of(event.element.cast()).map(|srq| &srq.async_events),
                _ => qp_of(event.element.cast()).map(|qp| &qp.async_events),
            }
        };
        if let Ok(events) = events {
            events.acknowledge(1);
        }
    });
}
