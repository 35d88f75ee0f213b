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

/// The settings of a connection manager. All tables have a limit, so that strangers cannot fill the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// Seed of communication IDs and transaction IDs.
    pub seed: [u8; 32],
    /// Communication IDs and request IDs of SIDR begin with it ([`ProcessSlot::of_id`]). Without a slot all 32 bits are random. Where several
    /// processes share an address, what arrives for queue pair 1 is given to a process by these bits.
    pub process_slot: ProcessSlot,
    /// World-wide number of this adapter: the EUI-64 of its port.
    pub ca_guid: u64,
    /// How long this end may take to acknowledge a packet, for every REP. Soft-RoCE sends 15, 134 ms.
    pub ack_delay: CmTimeout,
    /// The most records at once, whatever state they are in.
    pub max_connections: usize,
    /// The most requests that wait for the application, over all listeners. Further ones are refused for lack
    /// of resources.
    pub max_pending: usize,
    /// The most accepted requests whose peer has not answered the REP yet. Further ones are not accepted.
    pub max_half_open: usize,
    /// The most records that are kept for late packets only. The oldest goes first.
    pub max_lingering: usize,
    /// The most datagrams that wait to be sent. Further ones are dropped, as a network would drop them.
    pub max_queued: usize,
    /// The longest wait that a peer can request.
    pub longest_wait: CmTimeout,
}

impl CmConfig {
    /// The default settings with this seed and number.
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

/// How an exchange of messages is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmTiming {
    /// Within this time either end is to answer a message.
    pub response_timeout: CmTimeout,
    /// The packet lifetime: how long a packet may take to arrive.
    pub packet_lifetime: CmTimeout,
    /// How often a message is repeated, 0 to 15.
    pub max_retries: u8,
}

impl CmTiming {
    /// After this time a message is repeated: there, the answer, and back.
    #[must_use]
    pub const fn interval_ns(&self) -> u64 {
        self.response_timeout.nanos() + 2 * self.packet_lifetime.nanos()
    }
}

/// The values of recent kernels: response timeout 1.07 s, packet lifetime 268 ms, 15 repetitions.
impl Default for CmTiming {
    fn default() -> Self {
        Self { response_timeout: CmTimeout::new(18), packet_lifetime: CmTimeout::new(16), max_retries: 15 }
    }
}

/// What an end offers for a connection: `rdma_conn_param` and the facts of its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmOffer {
    /// The queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that it will receive: the peer starts with it (IBTA 12.7.33).
    pub starting_psn: Psn,
    /// READs and atomics of the peer that it can hold.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have outstanding.
    pub initiator_depth: u8,
    /// How often the peer retries after an RNR NAK; 7 is no limit.
    pub rnr_retry_count: u8,
    /// It receives from a shared queue.
    pub srq: bool,
}

/// The parameters of a connection request.
#[derive(Clone, Copy, Debug)]
pub struct CmConnect<'a> {
    /// The way to queue pair 1 of the peer.
    pub path: Path,
    /// The service of the listener.
    pub service_id: ServiceId,
    /// RC or UC.
    pub transport: TransportService,
    /// This end.
    pub offer: CmOffer,
    /// Path MTU of the connection.
    pub path_mtu: PathMtu,
    /// Both ends make the UDP source port of the connection from it, 20 bits; 0 leaves it to the queue pair
    /// numbers.
    pub flow_label: u32,
    /// How often both ends send a lost packet again, 0 to 7.
    pub retry_count: u8,
    /// Repetition of messages.
    pub timing: CmTiming,
    /// The header of rdma_cm, which listeners of rdma_cm insist on.
    pub ip_cm: Option<IpCm>,
    /// Bytes of the application: at most 92, or 56 behind the header.
    pub private_data: &'a [u8],
}

/// The parameters of a service request.
#[derive(Clone, Copy, Debug)]
pub struct CmResolve<'a> {
    /// The way to queue pair 1 of the peer.
    pub path: Path,
    /// The service.
    pub service_id: ServiceId,
    /// Repetition of messages.
    pub timing: CmTiming,
    /// The header of rdma_cm, which listeners of rdma_cm insist on.
    pub ip_cm: Option<IpCm>,
    /// Bytes of the application: at most 216, or 180 behind the header.
    pub private_data: &'a [u8],
}

/// Which requests a listener accepts. Others are refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmAccepts {
    /// Requests for connections.
    Connections,
    /// Requests for the queue pair of a datagram service.
    Datagrams,
    /// Both.
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

/// The requests that the services of a port space accept.
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
    /// Which of them.
    pub accepts: CmAccepts,
    /// Requests that may wait for the application.
    pub backlog: usize,
    /// Whether private data must begin with the header of rdma_cm.
    pub ip_cm: bool,
}

/// What a queue pair needs for RTR and RTS; everything is agreed with the peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CmQpParameters {
    /// Transport.
    pub transport: TransportService,
    /// The way to the peer, with the UDP source port that the rules give.
    pub path: Path,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that the peer sends.
    pub rq_psn: Psn,
    /// First PSN to send.
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
    /// The peer receives from a shared queue.
    pub peer_srq: bool,
}

/// A request for a connection that waits for the application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CmConnectRequest {
    /// What to call it in [`accept`](super::ConnectionManager::accept) and its like.
    pub id: CommId,
    /// The requested service.
    pub service_id: ServiceId,
    /// The way to the peer.
    pub path: Path,
    /// The rdma_cm header of the peer, unchecked.
    pub ip_cm: Option<IpCm>,
    /// The whole request.
    pub request: CmReq,
}

impl CmConnectRequest {
    /// The bytes of the peer's application.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        let skip = if self.ip_cm.is_some() { IpCm::LEN } else { 0 };
        self.request.private_data.get(skip..).unwrap_or_default()
    }
}

/// A question for a service that waits for the application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CmSidrRequest {
    /// What to call it in [`answer`](super::ConnectionManager::answer).
    pub id: CommId,
    /// The way to the peer.
    pub path: Path,
    /// The rdma_cm header of the peer, unchecked.
    pub ip_cm: Option<IpCm>,
    /// The whole question.
    pub request: CmSidrReq,
}

impl CmSidrRequest {
    /// The bytes of the peer's application.
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
    /// A peer requests a service: answer.
    SidrRequest(Box<CmSidrRequest>),
    /// The peer accepted: make the queue pair ready to send, then call [`ready`](super::ConnectionManager::ready).
    ConnectResponse {
        /// The connection.
        id: CommId,
        /// What the queue pair needs.
        parameters: CmQpParameters,
        /// Bytes of the peer's application.
        private_data: Box<[u8; CmRep::PRIVATE_DATA]>,
    },
    /// Both ends are ready.
    Established {
        /// The connection.
        id: CommId,
        /// Bytes that the peer's application put into the RTU; zeros where there was none.
        private_data: Box<[u8; CmRtu::PRIVATE_DATA]>,
    },
    /// The peer refused, or gave up.
    Rejected {
        /// The connection, which exists no more.
        id: CommId,
        /// Why.
        reason: RejReason,
        /// Bytes of the peer's application.
        private_data: Box<[u8; CmRej::PRIVATE_DATA]>,
    },
    /// The peer does not answer.
    Unreachable {
        /// The connection or the question, which exists no more.
        id: CommId,
        /// Where it stood.
        state: CmState,
    },
    /// The connection is over.
    Disconnected {
        /// The connection.
        id: CommId,
    },
    /// No packet of the connection can be on its way any more.
    TimewaitExit {
        /// The connection, which exists no more.
        id: CommId,
    },
    /// A service was found. librdmacm calls this event ESTABLISHED, too.
    Resolved {
        /// The question, which exists no more.
        id: CommId,
        /// Where datagrams go.
        qpn: Qpn,
        /// The key that they must carry.
        q_key: u32,
        /// Bytes of the peer's application.
        private_data: Box<[u8; CmSidrRep::PRIVATE_DATA]>,
    },
    /// A service was not found.
    Unresolved {
        /// The question, which exists no more.
        id: CommId,
        /// Why.
        status: SidrStatus,
        /// Bytes of the peer's application.
        private_data: Box<[u8; CmSidrRep::PRIVATE_DATA]>,
    },
}

impl CmEvent {
    /// The connection or question that it is about.
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

    /// The name in librdmacm.
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
    /// The way there. Its source port is whatever the peer used, or the application gave.
    pub path: Path,
    /// The queue pair, normally 1.
    pub remote_qpn: Qpn,
    /// The management datagram.
    pub mad: Box<[u8; MAD_LEN]>,
}

/// Why a call of the connection manager failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The service has a listener.
    #[error("{0} has a listener already; choose another port")]
    InUse(ServiceId),
    /// The service has no listener.
    #[error("{0} has no listener")]
    NotListening(ServiceId),
    /// The connection never was, or is over.
    #[error("connection {0} does not exist: it has ended, or its peer did not answer")]
    Unknown(CommId),
    /// The call does not fit the state.
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
    #[error("{limit} accepted peers have not answered yet; wait until some have, or have been given up")]
    TooManyHalfOpen {
        /// [`CmConfig::max_half_open`].
        limit: usize,
    },
    /// The message has no room for so much.
    #[error("{have} bytes of private data where the message has room for {limit}")]
    PrivateDataTooLong {
        /// Bytes given.
        have: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// Connections are RC or UC.
    #[error("connections are RC or UC, not {0:?}")]
    Transport(TransportService),
    /// RoCE v2 addresses have to be of one family.
    #[error("{source_address} and {destination} are of different families")]
    Addresses {
        /// The own one.
        source_address: IpAddr,
        /// The peer's.
        destination: IpAddr,
    },
}
