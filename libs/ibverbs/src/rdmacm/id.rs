//! Identifiers of connections (`rdma_cm_id`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, MutexGuard};

use roce::device::fork::Mutex;
use roce::verbs::{CmEvent, CmQpParameters, CommId, PortSpace, Psn};

use super::channel::{Channel, Happening, channel_of, complete, forget_event, rdma_destroy_event_channel};
use super::multicast::Group;
use super::ports::BoundPort;
use super::{DeviceIndex, addresses, connect, with};
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UD, RDMA_MAX_DEPTH, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP,
    RDMA_UDP_QKEY, ibv_ah_attr, ibv_pd, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel,
};
use crate::answer::{Errno, count};
use crate::context::{Open, Pointer};
use crate::events::Acknowledgements;
use crate::live::{self, Kind, Object};

/// An `rdma_cm_id` with the state of the library.
#[repr(C)]
pub(super) struct Id {
    /// Written by the library and by the application.
    abi: UnsafeCell<rdma_cm_id>,
    state: Mutex<State>,
    /// Events that the application has fetched.
    pub(super) events: Acknowledgements,
}

impl Object for Id {
    const KIND: Kind = Kind::Identifier;
}

/// The state of an identifier that the application does not see.
pub(super) struct State {
    pub(super) port_space: PortSpace,
    pub(super) device: Option<DeviceIndex>,
    pub(super) open: Option<Arc<Open>>,
    /// The address that this end is bound to; it may be the wildcard.
    pub(super) source: Option<SocketAddr>,
    /// Whether the port was chosen here, so that another one may be chosen as well.
    pub(super) is_port_chosen: bool,
    pub(super) port: Option<Arc<BoundPort>>,
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub(super) shares_port: bool,
    /// `RDMA_OPTION_ID_AFONLY`, if it was set.
    pub(super) is_family_only: Option<bool>,
    /// Destination of packets.
    pub(super) peer: Option<SocketAddr>,
    pub(super) listens_on: Vec<DeviceIndex>,
    pub(super) comm: Option<CommId>,
    /// Parameters of the request to the peer.
    pub(super) request: connect::Given,
    /// Whether the identifier is being destroyed.
    pub(super) is_withdrawn: bool,
    pub(super) is_active: bool,
    /// Whether calls with the identifier wait, and store their event in it.
    pub(super) is_synchronous: bool,
    /// The first PSN that the peer will send.
    pub(super) psn: Psn,
    /// Maximum numbers of outstanding READs and atomics, and of those to hold for the peer.
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// The parameters that the peer agreed to.
    pub(super) parameters: Option<CmQpParameters>,
    pub(super) traffic_class: Option<u8>,
    /// The code of the local ACK timeout.
    pub(super) ack_timeout: Option<u8>,
    pub(super) qkey: u32,
    pub(super) groups: Vec<Group>,
    /// Whether the library created the queues of the queue pair.
    pub(super) has_own_queues: bool,
    /// Attributes from `rdma_create_ep` for the queue pairs of requests.
    pub(super) endpoint: Option<(Pointer<ibv_pd>, Pointer<ibv_qp_init_attr>)>,
    /// Private data of `rdma_addrinfo::ai_connect`.
    pub(super) connect_data: Vec<u8>,
    pub(super) path_record: Option<Box<ibv_sa_path_rec>>,
}

impl State {
    fn new(port_space: PortSpace) -> Self {
        Self {
            port_space,
            device: None,
            open: None,
            source: None,
            is_port_chosen: false,
            port: None,
            shares_port: false,
            is_family_only: None,
            peer: None,
            listens_on: Vec::new(),
            comm: None,
            request: connect::Given::default(),
            is_withdrawn: false,
            is_active: true,
            is_synchronous: false,
            psn: Psn::new(random()),
            initiator_depth: RDMA_MAX_DEPTH,
            responder_resources: RDMA_MAX_DEPTH,
            parameters: None,
            traffic_class: None,
            ack_timeout: None,
            qkey: RDMA_UDP_QKEY,
            groups: Vec::new(),
            has_own_queues: false,
            endpoint: None,
            connect_data: Vec::new(),
            path_record: None,
        }
    }

    /// Returns the device that `rdma_bind_addr` or `rdma_resolve_addr` has found.
    pub(super) fn open(&self) -> Result<Arc<Open>, Errno> {
        self.open.clone().ok_or(Errno::INVALID)
    }

    /// Returns the connection, SIDR request or connection request, and its device.
    pub(super) fn connection(&self) -> Result<(Arc<Open>, CommId), Errno> {
        Ok((self.open()?, self.comm.ok_or(Errno::INVALID)?))
    }

    /// Returns the address vector to the peer.
    pub(super) fn address_vector(&self) -> ibv_ah_attr {
        let to = self.peer.map(|peer| peer.ip());
        addresses::vector(self.open.as_deref(), self.source.map(|source| source.ip()), to, self.traffic_class)
    }
}

/// Returns an unpredictable number.
pub(super) fn random() -> u32 {
    RandomState::new().hash_one(0_u8) as u32
}

impl Id {
    pub(super) fn abi(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    /// Returns its pointer for the tables.
    pub(super) fn pointer(&self) -> Pointer<Self> {
        Pointer(std::ptr::from_ref(self).cast_mut())
    }

    /// Returns the connection and its device: see [`State::connection`].
    pub(super) fn connection(&self) -> Result<(Arc<Open>, CommId), Errno> {
        self.state().connection()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

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

    /// Returns whether this listener accepts requests for this address of a device.
    pub(super) fn takes(&self, own: IpAddr) -> bool {
        self.state().port.as_ref().is_some_and(|port| port.takes(own))
    }

    /// Binds the identifier to a device and to an address of it.
    pub(super) fn bind_device(&self, cm: &mut super::Cm, index: DeviceIndex) -> Result<(), Errno> {
        let pd = cm.pd(index)?;
        let device = cm.device(index)?;
        {
            let mut state = self.state();
            state.device = Some(index);
            state.open = Some(Arc::clone(&device.open));
        }
        let abi = self.abi();
        // SAFETY: the library may write these fields.
        unsafe {
            (*abi).verbs = device.context.0;
            (*abi).port_num = crate::query::PORT;
            if (*abi).pd.is_null() {
                (*abi).pd = pd;
            }
        }
        Ok(())
    }

    /// Writes the addresses of this end and its peer into the application's structure.
    pub(super) fn show_addresses(&self, source: Option<SocketAddr>, destination: Option<SocketAddr>) {
        let gid = |address: IpAddr| crate::abi::ibv_gid { raw: roce::verbs::Gid::from_ip(address).0 };
        // SAFETY: the library may write these fields.
        unsafe {
            let shown = &mut (*self.abi()).route.addr;
            if let Some(source) = source {
                shown.src = addresses::storage(source);
                shown.ibaddr.sgid = gid(source.ip());
            }
            if let Some(destination) = destination {
                shown.dst = addresses::storage(destination);
                shown.ibaddr.dgid = gid(destination.ip());
            }
            shown.ibaddr.pkey = roce::transport::DEFAULT_P_KEY.to_be();
        }
    }
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread destroys the identifier.
pub(super) unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> Result<&'a Id, Errno> {
    // SAFETY: the `rdma_cm_id` is the first field of an `Id`.
    unsafe { live::object(id.cast::<Id>()) }
}

pub(super) fn port_space(number: c_int) -> Result<PortSpace, Errno> {
    match number {
        RDMA_PS_TCP => Ok(PortSpace::Tcp),
        RDMA_PS_UDP => Ok(PortSpace::Udp),
        RDMA_PS_IPOIB => Ok(PortSpace::Ipoib),
        RDMA_PS_IB => Ok(PortSpace::Ib),
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

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
    let object =
        Id { abi: UnsafeCell::new(abi), state: Mutex::new(state), events: Acknowledgements::default() };
    Ok(live::release(Box::new(object)).cast())
}

pub(super) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: c_int,
) -> c_int {
    count(|| {
        if id.is_null() {
            return Err(Errno::INVALID);
        }
        with(super::Cm::open_devices)?;
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
        super::multicast::leave_all(object);
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
    count(|| {
        // SAFETY: the application's pointer is an identifier that it has not destroyed.
        unsafe { destroy(id)? };
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    count(|| {
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
