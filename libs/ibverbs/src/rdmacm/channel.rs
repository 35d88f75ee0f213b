//! Event channels: the events of identifiers that the application has not fetched.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use roce::device::fork::Mutex;
use roce::verbs::CmEvent;
use roce_fault::verbs::Verb;

use super::id::{DeviceIndex, Id};
use crate::abi::{ibv_ah_attr, rdma_event_channel};
use crate::answer::{Errno, value};
use crate::context::Pointer;
use crate::events::Mirror;
use crate::live::{self, Kind, Object};

/// An `rdma_event_channel` with the state of the library.
#[repr(C)]
pub(super) struct Channel {
    abi: rdma_event_channel,
    pub(super) source: Arc<Source>,
}

/// The state that a thread holds while it waits for an event, because another thread may destroy the channel
/// meanwhile, as rping does. With librdmacm the kernel keeps this state.
pub(super) struct Source {
    queue: Mutex<VecDeque<Pending>>,
    /// Readable while the queue is not empty.
    ready: OwnedFd,
    pub(super) mirror: Mirror,
}

/// An event that the application has not fetched.
pub(super) struct Pending {
    pub(super) id: Pointer<Id>,
    pub(super) what: Happening,
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

impl Object for Channel {
    const KIND: Kind = Kind::EventChannel;
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
    pub(super) fn pop(&self) -> Option<Pending> {
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

impl Id {
    /// Appends an event to the channel of the identifier. Skips events that the application does not receive:
    /// they would make the descriptor readable although `rdma_get_cm_event` would wait.
    pub(super) fn push(&self, what: Happening) {
        let is_established = matches!(what, Happening::Connection { event: CmEvent::Established { .. }, .. });
        if is_established && self.state().is_active {
            // The application already knows from the response of the peer.
            return;
        }
        // SAFETY: the channel outlives its identifiers; it is changed only under the lock of `with`.
        if let Ok(channel) = unsafe { channel_of((*self.abi()).channel) } {
            channel.push(std::ptr::from_ref(self).cast_mut(), what);
        }
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

pub(super) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    value(Verb::rdma_destroy_event_channel, (), || {
        // SAFETY: an `rdma_event_channel` is part of a `Channel`, whose identifiers are destroyed.
        drop(unsafe { live::reclaim(channel.cast::<Channel>()) });
    });
}

pub(super) fn source_of(channel: *mut rdma_event_channel) -> Result<Arc<Source>, Errno> {
    live::read(channel.cast::<Channel>(), |channel| Arc::clone(&channel.source))
}
