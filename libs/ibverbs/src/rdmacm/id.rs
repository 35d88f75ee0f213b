//! Identifiers of connections (`rdma_cm_id`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, MutexGuard};

use roce::device::fork::Mutex;
use roce::verbs::{CmQpParameters, CommId, PortSpace, Psn, Qpn};

use super::ports::{BoundPort, random};
use super::sockaddr::{storage, vector};
use crate::abi::{
    IBV_QPT_UC, IBV_QPT_UD, RDMA_MAX_DEPTH, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP,
    RDMA_UDP_QKEY, ibv_ah_attr, ibv_pd, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id,
};
use crate::answer::Errno;
use crate::context::{Open, Pointer};
use crate::events::Acknowledgements;
use crate::live::{self, Kind, Object};
use crate::qp::qp_of;

/// The index of a device in `Cm::devices`.
pub(super) type DeviceIndex = usize;

/// The application's parameters for a connection.
#[derive(Clone, Default)]
pub(super) struct Given {
    pub(super) private_data: Vec<u8>,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) qpn: Qpn,
    pub(super) srq: bool,
}

/// A group that an identifier has joined.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) address: IpAddr,
    /// Whether its queue pair receives the datagrams of the group.
    pub(super) is_attached: bool,
}

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
    pub(super) request: Given,
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
    pub(super) fn new(port_space: PortSpace) -> Self {
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
            request: Given::default(),
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
        vector(self.open.as_deref(), self.source.map(|source| source.ip()), to, self.traffic_class)
    }
}

impl Id {
    pub(super) fn new(abi: rdma_cm_id, state: State) -> Self {
        Self { abi: UnsafeCell::new(abi), state: Mutex::new(state), events: Acknowledgements::default() }
    }

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

    /// Returns whether this listener accepts requests for this address of a device.
    pub(super) fn takes(&self, own: IpAddr) -> bool {
        self.state().port.as_ref().is_some_and(|port| port.takes(own))
    }

    /// Writes the addresses of this end and its peer into the application's structure.
    pub(super) fn show_addresses(&self, source: Option<SocketAddr>, destination: Option<SocketAddr>) {
        let gid = |address: IpAddr| crate::abi::ibv_gid { raw: roce::verbs::Gid::from_ip(address).0 };
        // SAFETY: the library may write these fields.
        unsafe {
            let shown = &mut (*self.abi()).route.addr;
            if let Some(source) = source {
                shown.src = storage(source);
                shown.ibaddr.sgid = gid(source.ip());
            }
            if let Some(destination) = destination {
                shown.dst = storage(destination);
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

pub(super) fn is_datagram(id: &Id) -> bool {
    // SAFETY: the field is written once, when the identifier is created.
    unsafe { (*id.abi()).qp_type == IBV_QPT_UD }
}

pub(super) fn is_uc(id: &Id) -> bool {
    // SAFETY: as above.
    unsafe { (*id.abi()).qp_type == IBV_QPT_UC }
}

/// Returns the queue pair number of an identifier, and whether the queue pair has a shared receive queue.
pub(super) fn queue_pair(id: &Id) -> Option<(Qpn, bool)> {
    // SAFETY: the queue pair of an identifier is alive while the field refers to it.
    unsafe { qp_of((*id.abi()).qp) }.ok().map(|qp| (qp.qpn, !qp.abi.base.srq.is_null()))
}
