//! The delivery of events to the application, with the actions that the events require.

use std::ffi::c_int;
use std::sync::Arc;

use roce::verbs::{CmConnectRequest, CmEvent, CmQpParameters, CmSidrRequest, Qpn, RejReason, SidrStatus};
use roce_fault::verbs::Verb;

use super::channel::{Channel, Happening, Source, source_of};
use super::event::{Event, NO_CONNECTION, NO_DATAGRAMS, forget_event};
use super::handshake::{ask_again, finish, take_request};
use super::id::{DeviceIndex, Id, id_of};
use super::states::to_error;
use super::{Cm, with};
use crate::abi::{event_type, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param};
use crate::answer::{Errno, pointer};
use crate::live;
use crate::wait::{Sleep, Slept, Wait, wait, wait_on};

/// The queue pair number that represents a multicast group.
const MULTICAST_QPN: u32 = 0x00ff_ffff;

pub(super) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Verb::rdma_create_event_channel, || {
        // Programs detect here that no device exists, as with librdmacm.
        with(Cm::open_devices)?;
        Ok(Channel::new()?.into_abi())
    })
}

/// Returns the next event of a channel, or `None` if the queue is empty.
fn next(source: &Source) -> Option<*mut rdma_cm_event> {
    while let Some(pending) = source.pop() {
        // SAFETY: an identifier with an unacknowledged event is not destroyed.
        let id = unsafe { &*pending.id.0 };
        match describe(id, pending.what) {
            Some(event) => return Some(live::release(event).cast()),
            // The application does not receive this event.
            None => id.events.acknowledge(1),
        }
    }
    None
}

/// The receiver of the event that a thread waits for.
pub(super) trait Receiver: 'static {
    fn receive(&self, event: *mut rdma_cm_event) -> Result<(), Errno>;
}

/// A wait for an event of a channel. It continues when the channel is destroyed.
pub(super) struct EventWait<R> {
    /// `None` if the call has nothing to wait for.
    source: Option<Arc<Source>>,
    receiver: R,
}

impl<R> EventWait<R> {
    pub(super) fn new(channel: *mut rdma_event_channel, receiver: R) -> Result<Self, Errno> {
        Ok(Self { source: Some(source_of(channel)?), receiver })
    }
}

impl<R: Receiver> Wait for EventWait<R> {
    fn turn(&mut self, slept: Slept) -> Result<Option<Sleep>, Errno> {
        let Some(source) = &self.source else { return Ok(None) };
        match next(source) {
            Some(event) => self.receiver.receive(event).map(|()| None),
            None => source.mirror.plan(slept).map(Some),
        }
    }
}

/// The application's room for an event.
struct Room(*mut *mut rdma_cm_event);

impl Receiver for Room {
    fn receive(&self, event: *mut rdma_cm_event) -> Result<(), Errno> {
        // SAFETY: the application gave room for a pointer.
        unsafe { self.0.write(event) };
        Ok(())
    }
}

pub(super) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    wait(Verb::rdma_get_cm_event, (channel, event), |(channel, event)| {
        if event.is_null() {
            return Err(Errno::INVALID);
        }
        EventWait::new(channel, Room(event))
    })
}

/// Returns the parameters of a REQ from the viewpoint of this end: the READs that the peer initiates are
/// those to hold here.
fn requested(request: &CmConnectRequest) -> rdma_conn_param {
    let req = &request.request;
    rdma_conn_param {
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control.into(),
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq.into(),
        qp_num: req.local_qpn.get(),
        ..NO_CONNECTION
    }
}

fn agreed(parameters: &CmQpParameters) -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: parameters.max_dest_rd_atomic,
        initiator_depth: parameters.max_rd_atomic,
        rnr_retry_count: parameters.rnr_retry,
        srq: parameters.peer_srq.into(),
        qp_num: parameters.dest_qpn.get(),
        ..NO_CONNECTION
    }
}

/// Performs the actions of an event and returns it for the application; `None` if the application does not
/// receive it.
fn describe(id: &Id, what: Happening) -> Option<Box<Event>> {
    match what {
        Happening::Step { event, status } => Some(Event::new(id, event, status)),
        Happening::Group { event, status, address, context } => {
            let parameters = rdma_ud_param {
                ah_attr: address,
                qp_num: MULTICAST_QPN,
                qkey: id.state().qkey,
                ..NO_DATAGRAMS
            };
            let mut event = Event::new(id, event, status).of_datagrams(parameters, &[]);
            event.abi.param.ud.private_data = context;
            Some(event)
        }
        Happening::Connection { device, event } => of_connection(id, device, event),
    }
}

fn of_connection(id: &Id, device: DeviceIndex, event: CmEvent) -> Option<Box<Event>> {
    match event {
        CmEvent::ConnectRequest(request) => request_event(id, device, &request),
        CmEvent::SidrRequest(question) => question_event(id, device, &question),
        CmEvent::ConnectResponse { parameters, private_data, .. } => {
            let (event, status) = match finish(id, &parameters) {
                Ok(true) => (event_type::ESTABLISHED, 0),
                // The application moves its queue pair itself, and then calls `rdma_establish`.
                Ok(false) => (event_type::CONNECT_RESPONSE, 0),
                Err(errno) => (event_type::CONNECT_ERROR, -errno.0),
            };
            Some(Event::new(id, event, status).of_connection(agreed(&parameters), &private_data[..]))
        }
        CmEvent::Established { .. } => Some(Event::new(id, event_type::ESTABLISHED, 0)),
        CmEvent::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. } if ask_again(id, device) => None,
        CmEvent::Unresolved { status: SidrStatus::UNSUPPORTED, .. } if ask_again(id, device) => None,
        CmEvent::Rejected { reason, private_data, .. } => {
            to_error(id);
            let event = Event::new(id, event_type::REJECTED, c_int::from(reason.0));
            Some(event.of_connection(NO_CONNECTION, &private_data[..]))
        }
        CmEvent::Unreachable { .. } => {
            to_error(id);
            Some(Event::new(id, event_type::UNREACHABLE, -libc::ETIMEDOUT))
        }
        CmEvent::Disconnected { .. } => Some(Event::new(id, event_type::DISCONNECTED, 0)),
        CmEvent::TimewaitExit { .. } => Some(Event::new(id, event_type::TIMEWAIT_EXIT, 0)),
        CmEvent::Resolved { qpn, q_key, private_data, .. } => {
            Some(resolved_event(id, qpn, q_key, &private_data[..]))
        }
        CmEvent::Unresolved { status, private_data, .. } => {
            let event = Event::new(id, event_type::UNREACHABLE, c_int::from(status.0));
            Some(event.of_datagrams(NO_DATAGRAMS, &private_data[..]))
        }
        _ => None,
    }
}

fn request_event(listener: &Id, device: DeviceIndex, request: &CmConnectRequest) -> Option<Box<Event>> {
    let new = take_request(listener, device, request.id, &request.path, request.ip_cm)?;
    // SAFETY: the identifier was created just now.
    let id = unsafe { id_of(new) }.ok()?;
    let parameters = requested(request);
    {
        let mut state = id.state();
        state.responder_resources = parameters.responder_resources;
        state.initiator_depth = parameters.initiator_depth;
    }
    let event = Event::new(listener, event_type::CONNECT_REQUEST, 0);
    Some(event.of_connection(parameters, request.private_data()).from_listener(new))
}

fn question_event(listener: &Id, device: DeviceIndex, question: &CmSidrRequest) -> Option<Box<Event>> {
    let new = take_request(listener, device, question.id, &question.path, question.ip_cm)?;
    let event = Event::new(listener, event_type::CONNECT_REQUEST, 0);
    Some(event.of_datagrams(NO_DATAGRAMS, question.private_data()).from_listener(new))
}

fn resolved_event(id: &Id, qpn: Qpn, qkey: u32, data: &[u8]) -> Box<Event> {
    let ah_attr = id.state().address_vector();
    let parameters = rdma_ud_param { ah_attr, qp_num: qpn.get(), qkey, ..NO_DATAGRAMS };
    Event::new(id, event_type::ESTABLISHED, 0).of_datagrams(parameters, data)
}

/// An identifier that keeps the event which ends a step.
struct Step(*mut rdma_cm_id);

impl Receiver for Step {
    fn receive(&self, event: *mut rdma_cm_event) -> Result<(), Errno> {
        // SAFETY: the application keeps its identifier during a call with it; the library may write these
        // fields.
        unsafe {
            (*self.0).event = event;
            match ((*event).status, (*event).event) {
                (0, _) => Ok(()),
                (_, event_type::REJECTED) => Err(Errno(libc::ECONNREFUSED)),
                (status, _) => Err(Errno(status.abs())),
            }
        }
    }
}

/// Returns the wait for the end of a step.
///
/// # Safety
///
/// `id` is an identifier of the application.
unsafe fn end_of_step(id: *mut rdma_cm_id) -> Result<EventWait<Step>, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if !id_of(id)?.state().is_synchronous {
            return Ok(EventWait { source: None, receiver: Step(id) });
        }
        forget_event(id);
        EventWait::new((*id).channel, Step(id))
    }
}

/// Waits for the event that ends a step and stores it in the identifier, if that has no channel of the
/// application. Such calls end with this function: `answer` is the result of the step.
///
/// # Safety
///
/// If the answer is 0, `id` is an identifier of the application.
pub(super) unsafe fn completed(id: *mut rdma_cm_id, answer: c_int) -> c_int {
    if answer != 0 {
        return answer;
    }
    // SAFETY: the caller's promise.
    wait_on(id, |id| unsafe { end_of_step(id) })
}

/// Takes the event that ends a step without waiting; fails with `EAGAIN` if it has not arrived.
///
/// # Safety
///
/// `id` is an identifier of the application.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let mut wait = unsafe { end_of_step(id)? };
    if wait.turn(Slept::NotYet)?.is_some() { Err(Errno::AGAIN) } else { Ok(()) }
}

/// Ends a step: reports it in the channel, and waits for the event if the identifier has no channel of the
/// application.
///
/// # Safety
///
/// `id` is an identifier of the application.
pub(super) unsafe fn end_step(id: *mut rdma_cm_id, event: c_int, status: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let object = id_of(id)?;
        with(|_| object.push(Happening::Step { event, status }));
        complete(id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::context::Pointer;
    use crate::rdmacm::channel::rdma_destroy_event_channel;

    /// Regression: a waiting thread read the channel after it was destroyed (memcheck showed this under
    /// rping).
    #[test]
    fn a_thread_that_waits_for_an_event_keeps_what_it_waits_for() {
        let channel = Channel::new().unwrap().into_abi();
        let source =
            live::read(channel.cast::<Channel>(), |channel| Arc::downgrade(&channel.source)).unwrap();
        let waits = Pointer(channel);
        // The thread waits forever.
        std::thread::spawn(move || {
            let waits = waits;
            let mut event = std::ptr::null_mut();
            // SAFETY: the channel exists when the thread begins to wait, and there is room for a pointer.
            unsafe { rdma_get_cm_event(waits.0, &raw mut event) }
        });
        let end = Instant::now() + Duration::from_secs(20);
        while source.strong_count() < 2 {
            assert!(Instant::now() < end, "it does not wait");
            std::thread::yield_now();
        }
        // SAFETY: the channel has no identifiers.
        unsafe { rdma_destroy_event_channel(channel) };
        assert_eq!(source.strong_count(), 1);
        assert_eq!(source_of(channel).err(), Some(Errno::INVALID), "for those that come later");
    }
}
