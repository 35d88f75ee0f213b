//! The parameters and results of the connection manager.

use alloc::boxed::Box;
use core::net::IpAddr;

use roce_packet::mad::{
    CmRej, CmRep, CmReq, CmRtu, CmSidrRep, CmSidrReq, CmTimeout, CommId, IpCm, MAD_LEN, PortSpace, RejReason,
    ServiceId, SidrStatus, TransportService,
};
use roce_packet::{Path, PathMtu, Psn, Qpn};

use super::CmState;
use crate::slot::ProcessSlot;

/// The settings of a connection manager. All tables have a limit, so strangers cannot exhaust the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// Seed of communication IDs and transaction IDs.
    pub seed: [u8; 32],
    /// The process slot that communication IDs and SIDR request IDs begin with ([`ProcessSlot::of_id`]).
    /// Without a slot all 32 bits are random. If several processes share an address, these bits select the
    /// process for datagrams of queue pair 1.
    pub process_slot: ProcessSlot,
    /// Globally unique number of this adapter: the EUI-64 of its port.
    pub ca_guid: u64,
    /// Maximum time of this end to acknowledge a packet, for every REP. Soft-RoCE sends 15, which is 134 ms.
    pub ack_delay: CmTimeout,
    /// Maximum number of records, whatever their state.
    pub max_connections: usize,
    /// Maximum number of requests that wait for the application, over all listeners. Further requests are
    /// refused for lack of resources.
    pub max_pending: usize,
    /// Maximum number of accepted requests whose peer has not answered the REP. Further ones are not
    /// accepted.
    pub max_half_open: usize,
    /// Maximum number of records that are only kept for late packets. The oldest is removed first.
    pub max_lingering: usize,
    /// Maximum number of datagrams that wait to be sent. Further ones are dropped, as in a network.
    pub max_queued: usize,
    /// Maximum wait that a peer can request.
    pub longest_wait: CmTimeout,
}

impl CmConfig {
    /// Returns the default settings with this seed and GUID.
    #[must_use]
    pub fn new(seed: [u8; 32], ca_guid: u64) -> Self {
        Self {
            seed,
            process_slot: ProcessSlot::NONE,
            ca_guid,
            ack_delay: CmTimeout::new(15),
            max_connections: 16_384,
            max_pending: 1_024,
            max_half_open: 1_024,
            max_lingering: 4_096,
            max_queued: 4_096,
            longest_wait: CmTimeout::new(24),
        }
    }
}

/// The timing of repeated messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmTiming {
    /// The time within which either end has to answer a message.
    pub response_timeout: CmTimeout,
    /// The packet lifetime: the maximum time that a packet takes to arrive.
    pub packet_lifetime: CmTimeout,
    /// Maximum number of repetitions of a message, 0 to 15.
    pub max_retries: u8,
}

impl CmTiming {
    /// Returns the time after which a message is repeated: the way there, the answer, and the way back.
    #[must_use]
    pub const fn interval_ns(&self) -> u64 {
        self.response_timeout.nanos() + 2 * self.packet_lifetime.nanos()
    }
}

/// The values of recent Linux kernels: response timeout 1.07 s, packet lifetime 268 ms, 15 repetitions.
impl Default for CmTiming {
    fn default() -> Self {
        Self { response_timeout: CmTimeout::new(18), packet_lifetime: CmTimeout::new(16), max_retries: 15 }
    }
}

/// The offer of one end for a connection: `rdma_conn_param` and the properties of its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmOffer {
    /// The queue pair number.
    pub qpn: Qpn,
    /// PSN of the first packet that the queue pair will receive: the peer starts with it (IBTA 12.7.33).
    pub starting_psn: Psn,
    /// Maximum number of READs and atomics of the peer that the queue pair can hold.
    pub responder_resources: u8,
    /// Maximum number of outstanding READs and atomics that the queue pair requests.
    pub initiator_depth: u8,
    /// Number of retries of the peer after RNR NAKs; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub srq: bool,
}

/// The parameters of a connection request.
#[derive(Clone, Copy, Debug)]
pub struct CmConnect<'a> {
    /// The path to queue pair 1 of the peer.
    pub path: Path,
    /// The service ID of the listener.
    pub service_id: ServiceId,
    /// RC or UC.
    pub transport: TransportService,
    /// The offer of this end.
    pub offer: CmOffer,
    /// Path MTU of the connection.
    pub path_mtu: PathMtu,
    /// Flow label of 20 bits, from which both ends compute the UDP source port of the connection. With 0 they
    /// compute it from the queue pair numbers.
    pub flow_label: u32,
    /// Number of retransmissions of a lost packet by both ends, 0 to 7.
    pub retry_count: u8,
    /// Timing of messages.
    pub timing: CmTiming,
    /// The rdma_cm header, which listeners of rdma_cm require.
    pub ip_cm: Option<IpCm>,
    /// Data of the application: at most 92 bytes, or 56 after the header.
    pub private_data: &'a [u8],
}

/// The parameters of a SIDR request.
#[derive(Clone, Copy, Debug)]
pub struct CmResolve<'a> {
    /// The path to queue pair 1 of the peer.
    pub path: Path,
    /// The service ID.
    pub service_id: ServiceId,
    /// Timing of messages.
    pub timing: CmTiming,
    /// The rdma_cm header, which listeners of rdma_cm require.
    pub ip_cm: Option<IpCm>,
    /// Data of the application: at most 216 bytes, or 180 after the header.
    pub private_data: &'a [u8],
}

/// The kinds of requests that a listener accepts. Others are refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmAccepts {
    /// Requests for connections.
    Connections,
    /// SIDR requests for the queue pair of a datagram service.
    Datagrams,
    /// Both kinds.
    Both,
}

impl CmAccepts {
    pub(super) const fn connections(self) -> bool {
        matches!(self, Self::Connections | Self::Both)
    }

    pub(super) const fn datagrams(self) -> bool {
        matches!(self, Self::Datagrams | Self::Both)
    }
}

/// The kinds of requests that the services of a port space accept.
impl From<PortSpace> for CmAccepts {
    fn from(port_space: PortSpace) -> Self {
        match port_space {
            PortSpace::Tcp => Self::Connections,
            PortSpace::Udp | PortSpace::Ipoib => Self::Datagrams,
            PortSpace::Ib => Self::Both,
        }
    }
}

/// The settings of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmListen {
    /// The accepted kinds of requests.
    pub accepts: CmAccepts,
    /// Maximum number of requests that wait for the application.
    pub backlog: usize,
    /// Whether private data must begin with the header of rdma_cm.
    pub ip_cm: bool,
}

/// The attributes that a queue pair needs for RTR and RTS, all agreed with the peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CmQpParameters {
    /// Transport.
    pub transport: TransportService,
    /// The path to the peer, with the UDP source port of the connection.
    pub path: Path,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// The queue pair number of the peer.
    pub dest_qpn: Qpn,
    /// First PSN that the peer sends.
    pub rq_psn: Psn,
    /// First PSN to be sent.
    pub sq_psn: Psn,
    /// Local ACK timeout.
    pub timeout: CmTimeout,
    /// Retries after timeouts and sequence errors.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Whether the peer uses a shared receive queue.
    pub peer_srq: bool,
}

/// A connection request that waits for the application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CmConnectRequest {
    /// The ID for calls such as [`accept`](super::ConnectionManager::accept).
    pub id: CommId,
    /// The requested service.
    pub service_id: ServiceId,
    /// The path to the peer.
    pub path: Path,
    /// The rdma_cm header of the peer, unchecked.
    pub ip_cm: Option<IpCm>,
    /// The whole request.
    pub request: CmReq,
}

impl CmConnectRequest {
    /// Returns the data of the peer's application.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        let skip = if self.ip_cm.is_some() { IpCm::LEN } else { 0 };
        self.request.private_data.get(skip..).unwrap_or_default()
    }
}

/// A SIDR request that waits for the application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CmSidrRequest {
    /// The ID for [`answer`](super::ConnectionManager::answer).
    pub id: CommId,
    /// The path to the peer.
    pub path: Path,
    /// The rdma_cm header of the peer, unchecked.
    pub ip_cm: Option<IpCm>,
    /// The whole request.
    pub request: CmSidrReq,
}

impl CmSidrRequest {
    /// Returns the data of the peer's application.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        let skip = if self.ip_cm.is_some() { IpCm::LEN } else { 0 };
        self.request.private_data.get(skip..).unwrap_or_default()
    }
}

/// An event for the application. The names are those of librdmacm.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CmEvent {
    /// A peer requests a connection: accept or reject it.
    ConnectRequest(Box<CmConnectRequest>),
    /// A peer sent a SIDR request: answer it.
    SidrRequest(Box<CmSidrRequest>),
    /// The peer accepted. Make the queue pair ready to send, then call
    /// [`ready`](super::ConnectionManager::ready).
    ConnectResponse {
        /// The connection.
        id: CommId,
        /// The attributes for the queue pair.
        parameters: CmQpParameters,
        /// Data of the peer's application.
        private_data: Box<[u8; CmRep::PRIVATE_DATA]>,
    },
    /// Both ends are ready.
    Established {
        /// The connection.
        id: CommId,
        /// Data of the peer's application in the RTU, or zeros if there was no RTU.
        private_data: Box<[u8; CmRtu::PRIVATE_DATA]>,
    },
    /// The peer refused, or gave up.
    Rejected {
        /// The connection, which no longer exists.
        id: CommId,
        /// The reason.
        reason: RejReason,
        /// Data of the peer's application.
        private_data: Box<[u8; CmRej::PRIVATE_DATA]>,
    },
    /// The peer does not answer.
    Unreachable {
        /// The connection or SIDR request, which no longer exists.
        id: CommId,
        /// The last state.
        state: CmState,
    },
    /// The connection has ended.
    Disconnected {
        /// The connection.
        id: CommId,
    },
    /// Packets of the connection can no longer arrive.
    TimewaitExit {
        /// The connection, which no longer exists.
        id: CommId,
    },
    /// The SIDR request succeeded. librdmacm also calls this event ESTABLISHED.
    Resolved {
        /// The SIDR request, which no longer exists.
        id: CommId,
        /// The queue pair number for datagrams.
        qpn: Qpn,
        /// The Q_Key of these datagrams.
        q_key: u32,
        /// Data of the peer's application.
        private_data: Box<[u8; CmSidrRep::PRIVATE_DATA]>,
    },
    /// The SIDR request failed.
    Unresolved {
        /// The SIDR request, which no longer exists.
        id: CommId,
        /// The reason.
        status: SidrStatus,
        /// Data of the peer's application.
        private_data: Box<[u8; CmSidrRep::PRIVATE_DATA]>,
    },
}

impl CmEvent {
    /// Returns the connection or SIDR request of the event.
    #[must_use]
    pub fn id(&self) -> CommId {
        match self {
            Self::ConnectRequest(request) => request.id,
            Self::SidrRequest(request) => request.id,
            Self::ConnectResponse { id, .. }
            | Self::Established { id, .. }
            | Self::Rejected { id, .. }
            | Self::Unreachable { id, .. }
            | Self::Disconnected { id }
            | Self::TimewaitExit { id }
            | Self::Resolved { id, .. }
            | Self::Unresolved { id, .. } => *id,
        }
    }

    /// Returns the name in librdmacm.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ConnectRequest(_) | Self::SidrRequest(_) => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse { .. } => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::Established { .. } | Self::Resolved { .. } => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Rejected { .. } => "RDMA_CM_EVENT_REJECTED",
            Self::Unreachable { .. } | Self::Unresolved { .. } => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Disconnected { .. } => "RDMA_CM_EVENT_DISCONNECTED",
            Self::TimewaitExit { .. } => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        }
    }
}

/// A datagram for queue pair 1 of a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct CmTransmit {
    /// The path to the peer. Its source port is the one that the peer used or the application chose.
    pub path: Path,
    /// The destination queue pair number, normally 1.
    pub remote_qpn: Qpn,
    /// The management datagram.
    pub mad: Box<[u8; MAD_LEN]>,
}

/// An error of a call of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The service already has a listener.
    #[error("{0} already has a listener; choose another port")]
    InUse(ServiceId),
    /// The service does not have a listener.
    #[error("{0} has no listener")]
    NotListening(ServiceId),
    /// The connection never existed, or has ended.
    #[error("connection {0} does not exist: it has ended, or its peer did not answer")]
    Unknown(CommId),
    /// The state of the connection does not allow the call.
    #[error("connection {id} is in state {state:?}, which does not allow this")]
    WrongState {
        /// The connection.
        id: CommId,
        /// Its state.
        state: CmState,
    },
    /// All records are in use.
    #[error("all {limit} connections are in use; close some")]
    TooManyConnections {
        /// [`CmConfig::max_connections`].
        limit: usize,
    },
    /// Too many peers have not answered the REP.
    #[error("{limit} accepted peers have not answered yet; wait until some of them answer or time out")]
    TooManyHalfOpen {
        /// [`CmConfig::max_half_open`].
        limit: usize,
    },
    /// The private data is too long for the message.
    #[error("{have} bytes of private data, but the message has room for {limit}")]
    PrivateDataTooLong {
        /// Number of bytes given.
        have: usize,
        /// Maximum number of bytes.
        limit: usize,
    },
    /// The transport is neither RC nor UC.
    #[error("connections are RC or UC, not {0:?}")]
    Transport(TransportService),
    /// The addresses belong to different families.
    #[error("{source_address} and {destination} are of different families")]
    Addresses {
        /// The own address.
        source_address: IpAddr,
        /// The address of the peer.
        destination: IpAddr,
    },
}
