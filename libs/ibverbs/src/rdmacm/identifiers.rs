//! Creation, migration and destruction of identifiers.

use std::ffi::{c_int, c_void};

use roce_fault::verbs::Verb;

use super::channel::{Channel, Happening, channel_of, rdma_destroy_event_channel};
use super::event::forget_event;
use super::id::{Group, Id, State, id_of, port_space};
use super::{Cm, with};
use crate::abi::{IBV_QPT_RC, IBV_QPT_UD, RDMA_PS_IPOIB, RDMA_PS_UDP, rdma_cm_id, rdma_event_channel};
use crate::answer::{Errno, count};
use crate::live;
use crate::qp::qp_of;

/// Parameters of a new identifier.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) channel: *mut rdma_event_channel,
    pub(super) context: *mut c_void,
    pub(super) port_space: c_int,
    pub(super) qp_type: c_int,
}

/// Creates an identifier. Without a channel, it gets its own channel and its calls wait.
pub(super) fn create(wanted: Wanted) -> Result<*mut rdma_cm_id, Errno> {
    let mut state = State::new(port_space(wanted.port_space)?);
    let channel = if wanted.channel.is_null() {
        state.is_synchronous = true;
        Channel::new()?.into_abi()
    } else {
        // SAFETY: no other thread destroys the application's channel meanwhile.
        unsafe { channel_of(wanted.channel)? };
        wanted.channel
    };
    // SAFETY: numbers, addresses and null pointers.
    let mut abi: rdma_cm_id = unsafe { std::mem::zeroed() };
    abi.channel = channel;
    abi.context = wanted.context;
    abi.ps = wanted.port_space;
    abi.qp_type = wanted.qp_type;
    Ok(live::release(Box::new(Id::new(abi, state))).cast())
}

pub(super) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: c_int,
) -> c_int {
    count(Verb::rdma_create_id, || {
        if id.is_null() {
            return Err(Errno::INVALID);
        }
        with(Cm::open_devices)?;
        let is_datagram = matches!(port_space, RDMA_PS_UDP | RDMA_PS_IPOIB);
        let qp_type = if is_datagram { IBV_QPT_UD } else { IBV_QPT_RC };
        let made = create(Wanted { channel, context, port_space, qp_type })?;
        // SAFETY: the application has room for a pointer.
        unsafe { id.write(made) };
        Ok(0)
    })
}

/// Removes an identifier from the tables, so that it receives no more events.
fn withdraw(id: &Id) {
    let object = std::ptr::from_ref(id).cast_mut();
    with(|cm| {
        let (listens_on, service, device, comm) = {
            let mut state = id.state();
            state.is_withdrawn = true;
            let service = (state.port_space, state.source.map_or(0, |source| source.port()));
            (std::mem::take(&mut state.listens_on), service, state.device, state.comm.take())
        };
        for index in listens_on {
            cm.remove_listener(index, service, id);
        }
        if let (Some(index), Some(comm)) = (device, comm) {
            cm.connections.remove(&(index, comm));
            if let Ok(device) = cm.device(index) {
                device.open.raw().release_connection(comm);
            }
        }
        // SAFETY: the channel outlives its identifiers.
        let Ok(channel) = (unsafe { channel_of((*id.abi()).channel) }) else { return };
        for happening in channel.take(object) {
            if let Happening::Connection { device, event } = happening
                && let Ok(device) = cm.device(device)
            {
                // Requests that the application has not fetched; other connections are already released.
                device.open.raw().release_connection(event.id());
            }
        }
    });
}

/// Detaches the queue pair of an identifier from a group.
pub(super) fn detach(id: &Id, group: Group) {
    // SAFETY: the queue pair of an identifier is alive while the field refers to it.
    let qp = unsafe { qp_of((*id.abi()).qp) };
    if group.is_attached
        && let Ok(qp) = qp
    {
        // `ibv_detach_mcast` may have detached it already.
        let _ = qp.open.raw().detach_multicast(qp.qpn, group.address);
    }
}

/// Leaves all groups of an identifier that is destroyed.
fn leave_all(id: &Id) {
    let groups = std::mem::take(&mut id.state().groups);
    groups.into_iter().for_each(|group| detach(id, group));
}

/// Destroys an identifier.
///
/// # Safety
///
/// `id` is an identifier of the application, which has destroyed its queue pair.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let object = id_of(id)?;
        withdraw(object);
        leave_all(object);
        forget_event(id);
        object.events.wait();
        let channel = object.state().is_synchronous.then_some((*id).channel);
        if let Some(channel) = channel {
            rdma_destroy_event_channel(channel);
        }
        drop(live::reclaim(id.cast::<Id>()));
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    count(Verb::rdma_destroy_id, || {
        // SAFETY: the application's pointer is an identifier that it has not destroyed.
        unsafe { destroy(id)? };
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    count(Verb::rdma_migrate_id, || {
        // SAFETY: the application's pointers are an identifier and a channel, or null for the identifier's
        // own channel.
        unsafe { migrate(id, to)? };
        Ok(0)
    })
}

/// Moves an identifier to another channel, together with the events that were not fetched.
///
/// # Safety
///
/// `id` is an identifier of the application, and `to` is one of its channels or null.
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let object = id_of(id)?;
        let is_synchronous = to.is_null();
        let to = if is_synchronous {
            Channel::new()?.into_abi()
        } else {
            channel_of(to)?;
            to
        };
        let before = with(|_| {
            let before = std::mem::replace(&mut (*id).channel, to);
            if let (Ok(old), Ok(new)) = (channel_of(before), channel_of(to)) {
                for happening in old.take(id.cast()) {
                    new.push(id.cast(), happening);
                }
            }
            before
        });
        let was_synchronous = std::mem::replace(&mut object.state().is_synchronous, is_synchronous);
        if was_synchronous {
            forget_event(id);
            rdma_destroy_event_channel(before);
        }
        // Waits for events of the previous channel.
        object.events.wait();
    }
    Ok(())
}
