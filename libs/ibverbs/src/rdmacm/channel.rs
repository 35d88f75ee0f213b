//! Event channels, and the delivery of events to the application.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use roce::device::fork::Mutex;
use roce::verbs::{CmConnectRequest, CmEvent, CmQpParameters, CmSidrRequest, Qpn, RejReason, SidrStatus};

use super::id::{Id, id_of};
use super::{DeviceIndex, connect, multicast, states};
use crate::abi::{
    event_type, ibv_ah_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_event_param, rdma_ud_param,
};
use crate::answer::{Errno, count, pointer, value};
use crate::context::Pointer;
use crate::events::Mirror;
use crate::live::{self, Kind, Object};
use crate::wait::{Sleep, Slept, Wait, wait};

/// An `rdma_event_channel` with the state of the library.
#[repr(C)]
pub(super) struct Channel {
    abi: rdma_event_channel,
    source: Arc<Source>,
}

/// The state that a thread holds while it waits for an event, because another thread may destroy the channel
/// meanwhile, as rping does. With librdmacm the kernel keeps this state.
pub(super) struct Source {
    queue: Mutex<VecDeque<Pending>>,
    /// Readable while the queue is not empty.
    ready: OwnedFd,
    mirror: Mirror,
}

/// An event that the application has not fetched.
struct Pending {
    id: Pointer<Id>,
    what: Happening,
}

/// An event of an identifier, before its conversion for the application.
pub(super) enum Happening {
    /// A step that requires no peer has ended.
    Step {
        event: c_int,
        status: c_int,
    },
    Connection {
        device: DeviceIndex,
        event: CmEvent,
    },
    Group {
        event: c_int,
        status: c_int,
        address: ibv_ah_attr,
        context: *mut c_void,
    },
}

// SAFETY: the context of a group belongs to the application, which fetches events in any thread.
unsafe impl Send for Happening {}

/// Maximum number of bytes of private data in an event.
const PRIVATE_DATA: usize = 256;
/// The queue pair number that represents a multicast group.
const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// An `rdma_cm_event` with the state of the library.
#[repr(C)]
struct Event {
    abi: rdma_cm_event,
    private_data: [u8; PRIVATE_DATA],
    /// The identifier that counts the event.
    counted: Pointer<Id>,
}

impl Object for Channel {
    const KIND: Kind = Kind::EventChannel;
}

impl Object for Event {
    const KIND: Kind = Kind::Event;
}

impl Channel {
    pub(super) fn new() -> Result<Self, Errno> {
        let ready =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let mirror = Mirror::new(ready.as_fd())?;
        let abi = rdma_event_channel { fd: mirror.as_fd().as_raw_fd() };
        Ok(Self { abi, source: Arc::new(Source { queue: Mutex::default(), ready, mirror }) })
    }

    pub(super) fn into_abi(self) -> *mut rdma_event_channel {
        live::release(Box::new(self)).cast()
    }
}

impl Deref for Channel {
    type Target = Source;

    fn deref(&self) -> &Source {
        &self.source
    }
}

impl Source {
    pub(super) fn push(&self, id: *mut Id, what: Happening) {
        let mut queue = self.queue.lock();
        queue.push_back(Pending { id: Pointer(id), what });
        // Writing fails only if the counter has its maximum; then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
    }

    /// Returns the next event and counts it at its identifier, which waits for the acknowledgement from now
    /// on.
    fn pop(&self) -> Option<Pending> {
        let mut queue = self.queue.lock();
        let pending = queue.pop_front();
        if let Some(pending) = &pending {
            // SAFETY: an identifier removes its events before it is destroyed.
            unsafe { (*pending.id.0).events.deliver() };
        }
        self.settle(&queue);
        pending
    }

    fn settle(&self, queue: &VecDeque<Pending>) {
        if queue.is_empty() {
            // Reading fails if the descriptor is already clear.
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
    }

    /// Removes the events of an identifier that is being destroyed or moved.
    pub(super) fn take(&self, id: *mut Id) -> Vec<Happening> {
        let mut queue = self.queue.lock();
        let (taken, left) = std::mem::take(&mut *queue).into_iter().partition(|pending| pending.id.0 == id);
        *queue = left;
        self.settle(&queue);
        let taken: VecDeque<Pending> = taken;
        taken.into_iter().map(|pending| pending.what).collect()
    }
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread destroys the channel.
pub(super) unsafe fn channel_of<'a>(channel: *mut rdma_event_channel) -> Result<&'a Channel, Errno> {
    // SAFETY: the `rdma_event_channel` is the first field of a `Channel`.
    unsafe { live::object(channel.cast::<Channel>()) }
}

pub(super) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| {
        // Programs detect here that no device exists, as with librdmacm.
        super::with(super::Cm::open_devices)?;
        Ok(Channel::new()?.into_abi())
    })
}

pub(super) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    value((), || {
        // SAFETY: an `rdma_event_channel` is part of a `Channel`, whose identifiers are destroyed.
        drop(unsafe { live::reclaim(channel.cast::<Channel>()) });
    });
}

fn source_of(channel: *mut rdma_event_channel) -> Result<Arc<Source>, Errno> {
    live::read(channel.cast::<Channel>(), |channel| Arc::clone(&channel.source))
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
    wait((channel, event), |(channel, event)| {
        if event.is_null() {
            return Err(Errno::INVALID);
        }
        EventWait::new(channel, Room(event))
    })
}

pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    count(|| {
        // SAFETY: an `rdma_cm_event` is part of an `Event`; the identifier that counts it waits for this
        // acknowledgement.
        unsafe {
            let event = live::reclaim(event.cast::<Event>()).ok_or(Errno::INVALID)?;
            (*event.counted.0).events.acknowledge(1);
        }
        Ok(0)
    })
}

impl Event {
    fn new(id: &Id, event: c_int, status: c_int) -> Box<Self> {
        let param = rdma_event_param { ud: NO_DATAGRAMS };
        let abi = rdma_cm_event { id: id.abi(), listen_id: std::ptr::null_mut(), event, status, param };
        Box::new(Self { abi, private_data: [0; PRIVATE_DATA], counted: id.pointer() })
    }

    /// Stores the private data of the peer's application.
    fn keep(&mut self, data: &[u8]) -> (*const c_void, u8) {
        let len = data.len().min(PRIVATE_DATA - 1);
        self.private_data[..len].copy_from_slice(&data[..len]);
        (self.private_data.as_ptr().cast(), u8::try_from(len).unwrap_or(u8::MAX))
    }

    fn of_connection(mut self: Box<Self>, parameters: rdma_conn_param, data: &[u8]) -> Box<Self> {
        let (private_data, private_data_len) = self.keep(data);
        self.abi.param.conn = rdma_conn_param { private_data, private_data_len, ..parameters };
        self
    }

    fn of_datagrams(mut self: Box<Self>, parameters: rdma_ud_param, data: &[u8]) -> Box<Self> {
        let (private_data, private_data_len) = self.keep(data);
        self.abi.param.ud = rdma_ud_param { private_data, private_data_len, ..parameters };
        self
    }

    /// Converts the event into one of a listener about a new identifier.
    fn from_listener(mut self: Box<Self>, new: *mut rdma_cm_id) -> Box<Self> {
        self.abi.listen_id = self.abi.id;
        self.abi.id = new;
        self
    }
}

const NO_CONNECTION: rdma_conn_param = rdma_conn_param {
    private_data: std::ptr::null(),
    private_data_len: 0,
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: 0,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: 0,
    qp_num: 0,
};

const NO_DATAGRAMS: rdma_ud_param = rdma_ud_param {
    private_data: std::ptr::null(),
    private_data_len: 0,
    ah_attr: multicast::NO_ADDRESS,
    qp_num: 0,
    qkey: 0,
};

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
            let (event, status) = match connect::finish(id, &parameters) {
                Ok(true) => (event_type::ESTABLISHED, 0),
                // The application moves its queue pair itself, and then calls `rdma_establish`.
                Ok(false) => (event_type::CONNECT_RESPONSE, 0),
                Err(errno) => (event_type::CONNECT_ERROR, -errno.0),
            };
            Some(Event::new(id, event, status).of_connection(agreed(&parameters), &private_data[..]))
        }
        CmEvent::Established { .. } => Some(Event::new(id, event_type::ESTABLISHED, 0)),
        CmEvent::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. } if connect::ask_again(id, device) => {
            None
        }
        CmEvent::Unresolved { status: SidrStatus::UNSUPPORTED, .. } if connect::ask_again(id, device) => None,
        CmEvent::Rejected { reason, private_data, .. } => {
            states::to_error(id);
            let event = Event::new(id, event_type::REJECTED, c_int::from(reason.0));
            Some(event.of_connection(NO_CONNECTION, &private_data[..]))
        }
        CmEvent::Unreachable { .. } => {
            states::to_error(id);
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
    let new = connect::take_request(listener, device, request.id, &request.path, request.ip_cm)?;
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
    let new = connect::take_request(listener, device, question.id, &question.path, question.ip_cm)?;
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
    wait(id, |id| unsafe { end_of_step(id) })
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

/// Acknowledges the event that an identifier keeps.
///
/// # Safety
///
/// `id` is an identifier of the application.
pub(super) unsafe fn forget_event(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; `complete` stored the event.
    unsafe {
        let event = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
        if !event.is_null() {
            rdma_ack_cm_event(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

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
