//! Events as the application receives them.

use std::ffi::{c_int, c_void};

use roce_fault::verbs::Verb;

use super::id::Id;
use super::sockaddr::NO_ADDRESS;
use crate::abi::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_param, rdma_ud_param};
use crate::answer::{Errno, count};
use crate::context::Pointer;
use crate::live::{self, Kind, Object};

/// Maximum number of bytes of private data in an event.
const PRIVATE_DATA: usize = 256;

/// An `rdma_cm_event` with the state of the library.
#[repr(C)]
pub(super) struct Event {
    pub(super) abi: rdma_cm_event,
    private_data: [u8; PRIVATE_DATA],
    /// The identifier that counts the event.
    counted: Pointer<Id>,
}

impl Object for Event {
    const KIND: Kind = Kind::Event;
}

impl Event {
    pub(super) fn new(id: &Id, event: c_int, status: c_int) -> Box<Self> {
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

    pub(super) fn of_connection(mut self: Box<Self>, parameters: rdma_conn_param, data: &[u8]) -> Box<Self> {
        let (private_data, private_data_len) = self.keep(data);
        self.abi.param.conn = rdma_conn_param { private_data, private_data_len, ..parameters };
        self
    }

    pub(super) fn of_datagrams(mut self: Box<Self>, parameters: rdma_ud_param, data: &[u8]) -> Box<Self> {
        let (private_data, private_data_len) = self.keep(data);
        self.abi.param.ud = rdma_ud_param { private_data, private_data_len, ..parameters };
        self
    }

    /// Converts the event into one of a listener about a new identifier.
    pub(super) fn from_listener(mut self: Box<Self>, new: *mut rdma_cm_id) -> Box<Self> {
        self.abi.listen_id = self.abi.id;
        self.abi.id = new;
        self
    }
}

pub(super) const NO_CONNECTION: rdma_conn_param = rdma_conn_param {
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

pub(super) const NO_DATAGRAMS: rdma_ud_param = rdma_ud_param {
    private_data: std::ptr::null(),
    private_data_len: 0,
    ah_attr: NO_ADDRESS,
    qp_num: 0,
    qkey: 0,
};

pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    count(Verb::rdma_ack_cm_event, || {
        // SAFETY: an `rdma_cm_event` is part of an `Event`; the identifier that counts it waits for this
        // acknowledgement.
        unsafe {
            let event = live::reclaim(event.cast::<Event>()).ok_or(Errno::INVALID)?;
            (*event.counted.0).events.acknowledge(1);
        }
        Ok(0)
    })
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
