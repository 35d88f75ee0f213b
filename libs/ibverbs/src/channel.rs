//! Completion channels, which receive the events of completion queues.

use std::ffi::c_int;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use roce::verbs::CompletionChannel;
use roce_fault::verbs::Verb;

use crate::abi::{ibv_comp_channel, ibv_context};
use crate::answer::{Errno, pointer, status};
use crate::context::{Open, open_of};
use crate::events::Mirror;
use crate::live::{self, Kind, Object};

/// An `ibv_comp_channel` with the state of the library.
#[repr(C)]
pub(crate) struct Channel {
    abi: ibv_comp_channel,
    source: Arc<Source>,
}

/// The state that a thread holds while it waits for an event, because another thread may destroy the channel
/// meanwhile. With rdma-core the kernel keeps this state.
pub(crate) struct Source {
    pub(crate) open: Arc<Open>,
    pub(crate) events: CompletionChannel,
    pub(crate) descriptor: Mirror,
    /// Number of completion queues that report here.
    users: AtomicUsize,
}

impl Deref for Channel {
    type Target = Source;

    fn deref(&self) -> &Source {
        &self.source
    }
}

/// Returns the event source of a channel, for a call that may wait.
pub(crate) fn source_of(channel: *mut ibv_comp_channel) -> Result<Arc<Source>, Errno> {
    live::read(channel.cast::<Channel>(), |channel| Arc::clone(&channel.source))
}

impl Source {
    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Object for Channel {
    const KIND: Kind = Kind::CompletionChannel;
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread destroys the channel.
pub(crate) unsafe fn channel_of<'a>(channel: *mut ibv_comp_channel) -> Result<&'a Channel, Errno> {
    // SAFETY: the `ibv_comp_channel` is the first field of a `Channel`.
    unsafe { live::object(channel.cast::<Channel>()) }
}

pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(Verb::ibv_create_comp_channel, || {
        // SAFETY: the application's pointer is an open context.
        let open = Arc::clone(unsafe { open_of(context)? });
        let events = open.context.create_channel()?;
        let descriptor = Mirror::new(events.as_fd())?;
        let abi = ibv_comp_channel { context, fd: descriptor.as_fd().as_raw_fd(), refcnt: 0 };
        let source = Arc::new(Source { open, events, descriptor, users: AtomicUsize::new(0) });
        Ok(live::release(Box::new(Channel { abi, source })).cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status(Verb::ibv_destroy_comp_channel, || {
        // SAFETY: the application's pointer is a channel that it has not destroyed.
        let object = unsafe { channel_of(channel)? };
        if object.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::BUSY);
        }
        // SAFETY: no queue reports here any more.
        drop(unsafe { live::reclaim(channel.cast::<Channel>()) });
        Ok(())
    })
}
