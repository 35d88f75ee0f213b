//! Connections as in librdmacm: listen, connect, accept, reject, disconnect, and services for datagrams.

mod connection;
mod requests;

use std::net::SocketAddr;
use std::time::Duration;

use roce_packet::mad::{IpCm, PortSpace, RejReason, ServiceId, SidrStatus};
use roce_packet::{PathMtu, Qpn};
use roce_transport::cm::{CmError, CmEvent, CmOffer, CmResolve, CmTiming};
use roce_transport::{Access, ModifyQpError, QpState, QpType};

use super::qp_options::rnr_timer;
use super::{AddressHandle, Context, PathOptions, QueuePair, VerbsError};
use crate::cm::queue_pairs::Preparation;
use crate::cm::service::{AcceptError, CmService, ConnectionNotice};
use crate::driver::Nic;
use crate::runtime::WaitFailure;

pub use connection::Connection;
pub use requests::{CmListener, ConnectRequest, DatagramRequest};

/// Parameters for connecting or accepting: `rdma_conn_param`, and the values that librdmacm takes from the
/// kernel.
///
/// ```
/// use roce::verbs::{ConnectionParameters, PathMtu};
///
/// let parameters = ConnectionParameters::default().path_mtu(PathMtu::Mtu4096).private_data(b"version 1");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConnectionParameters {
    /// Bytes for the peer's application: at most 56 when connecting, 196 when accepting.
    pub private_data: Vec<u8>,
    /// Maximum number of the peer's READs and atomics to hold at once.
    pub responder_resources: u8,
    /// Maximum number of outstanding READs and atomics.
    pub initiator_depth: u8,
    /// Number of retransmissions of a lost packet, 0 to 7. Only the connecting side chooses it.
    pub retry_count: u8,
    /// Number of the peer's retries after an RNR NAK; 7 means infinite.
    pub rnr_retry_count: u8,
    /// Delay in the RNR NAKs of this end, as a code from 0 to 31.
    pub min_rnr_timer: u8,
    /// Path MTU. Only the connecting side chooses it.
    pub path_mtu: PathMtu,
    /// Operations that the peer may perform.
    pub access: Access,
    /// Traffic class, hop limit, GID. Only the connecting side chooses them.
    pub path: PathOptions,
    /// Timing of retransmitted CM messages. Only the connecting side chooses it.
    pub timing: CmTiming,
    /// Port space of the listener. Only the connecting side chooses it.
    pub port_space: PortSpace,
}

impl Default for ConnectionParameters {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            path_mtu: PathMtu::Mtu1024,
            access: Access::REMOTE,
            path: PathOptions::default(),
            timing: CmTiming::default(),
            port_space: PortSpace::Tcp,
        }
    }
}

setters!(ConnectionParameters {
    private_data: impl Into<Vec<u8>>,
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    min_rnr_timer: u8,
    path_mtu: PathMtu,
    access: Access,
    path: PathOptions,
    timing: CmTiming,
    port_space: PortSpace,
});

impl ConnectionParameters {
    fn offer(&self, qp: &QueuePair) -> CmOffer {
        CmOffer {
            qpn: qp.number(),
            starting_psn: qp.first_psn(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            rnr_retry_count: self.rnr_retry_count,
            srq: qp.uses_srq(),
        }
    }

    fn preparation(&self, qp: &QueuePair) -> Result<Preparation, ModifyQpError> {
        let min_rnr_timer = rnr_timer(self.min_rnr_timer)?;
        Ok(Preparation { qpn: qp.number(), access: self.access, min_rnr_timer })
    }
}

/// The reason why a connection does not exist.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The connection manager refused the call.
    #[error(transparent)]
    Manager(#[from] CmError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The peer refused the connection.
    #[error("the peer refused the connection, reason {reason}")]
    Rejected {
        /// The reason.
        reason: RejReason,
        /// Private data of the peer's application.
        private_data: Vec<u8>,
    },
    /// The peer does not have the service.
    #[error("the peer has no such service, status {} ({})", .status.0, .status.name().unwrap_or("reserved"))]
    Unresolved {
        /// The reason.
        status: SidrStatus,
    },
    /// The peer does not answer.
    #[error("the peer does not answer; check that it is running and that UDP port 4791 is open")]
    Unreachable,
    /// The connection ended before it was used.
    #[error("the connection has ended")]
    Disconnected,
    /// The timeout passed.
    #[error("the time limit expired")]
    TimedOut,
    /// The queue pair is neither in RESET nor in INIT.
    #[error("the queue pair is in state {}, but connection management requires RESET or INIT", .0.name())]
    QueuePairState(QpState),
    /// The queue pair has the wrong transport.
    #[error("a {0:?} queue pair cannot be used here: connections need RC or UC, datagram services need UD")]
    QueuePairType(QpType),
}

impl From<ModifyQpError> for ConnectionError {
    fn from(error: ModifyQpError) -> Self {
        Self::Verbs(error.into())
    }
}

impl From<AcceptError> for ConnectionError {
    fn from(error: AcceptError) -> Self {
        match error {
            AcceptError::Manager(error) => error.into(),
            AcceptError::QueuePair(error) => error.into(),
        }
    }
}

/// An event of a connection, named as in librdmacm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// Both ends may send. The connecting side receives the private data of the accepting side.
    Established {
        /// 196 bytes, including the peer's padding; empty at the accepting side.
        private_data: Vec<u8>,
    },
    /// The peer refused, or gave up.
    Rejected {
        /// The reason.
        reason: RejReason,
        /// 148 bytes, including the peer's padding.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    Unreachable,
    /// The peer accepted, but the local queue pair could not be brought up; the peer has been refused.
    ConnectError {
        /// Error of the queue pair.
        error: ModifyQpError,
    },
    /// The connection has ended; the queue pair is in ERR.
    Disconnected,
    /// No packets of the connection are in flight any more.
    TimewaitExit,
}

impl ConnectionEvent {
    fn from_notice(notice: ConnectionNotice, reply: impl FnOnce() -> Vec<u8>) -> Option<Self> {
        Some(match notice {
            ConnectionNotice::QueuePair(error) => Self::ConnectError { error },
            ConnectionNotice::Manager(event) => match event {
                CmEvent::Established { .. } => Self::Established { private_data: reply() },
                CmEvent::Rejected { reason, private_data, .. } => {
                    Self::Rejected { reason, private_data: private_data.to_vec() }
                }
                CmEvent::Unreachable { .. } => Self::Unreachable,
                CmEvent::Disconnected { .. } => Self::Disconnected,
                CmEvent::TimewaitExit { .. } => Self::TimewaitExit,
                _ => return None,
            },
        })
    }

    /// Returns the private data of an established connection, or the reason why the connection failed.
    fn established(self) -> Result<Vec<u8>, ConnectionError> {
        match self {
            Self::Established { private_data } => Ok(private_data),
            Self::Rejected { reason, private_data } => {
                Err(ConnectionError::Rejected { reason, private_data })
            }
            Self::Unreachable => Err(ConnectionError::Unreachable),
            Self::ConnectError { error } => Err(error.into()),
            Self::Disconnected | Self::TimewaitExit => Err(ConnectionError::Disconnected),
        }
    }
}

impl From<WaitFailure> for ConnectionError {
    fn from(failure: WaitFailure) -> Self {
        match failure {
            WaitFailure::TimedOut => Self::TimedOut,
            failure @ WaitFailure::Io(_) => {
                Self::Verbs(VerbsError::io("cannot wait for the device")(failure.into()))
            }
            WaitFailure::Device(_, text) => Self::Verbs(VerbsError::DeviceFailed(text)),
        }
    }
}

/// Waits until `look` returns a value from connection management.
fn wait_for<T>(
    context: &Context,
    timeout: Option<Duration>,
    mut look: impl FnMut(&mut CmService) -> Option<T>,
) -> Result<T, ConnectionError> {
    let runtime = context.runtime();
    runtime.wait(timeout, None, || Ok(runtime.lock().cm().and_then(&mut look)))
}

/// Calls connection management, and sends the resulting messages.
pub(super) fn with_cm<T>(
    context: &Context,
    work: impl FnOnce(&mut CmService, roce_transport::Instant, &mut Nic) -> Result<T, ConnectionError>,
) -> Result<T, ConnectionError> {
    let outcome = context.runtime().lock().with_cm(work);
    outcome.map_err(VerbsError::io("cannot start connection management"))?
}

/// Refuses a queue pair of another context or of UD.
fn check_queue_pair(context: &Context, qp: &QueuePair) -> Result<(), ConnectionError> {
    if !qp.context().is_same(context) {
        return Err(VerbsError::OtherContext("the queue pair").into());
    }
    match qp.qp_type() {
        other @ (QpType::Ud | QpType::XrcSend | QpType::XrcRecv) => {
            Err(ConnectionError::QueuePairType(other))
        }
        QpType::Rc | QpType::Uc => Ok(()),
    }
}

/// Refuses a queue pair that is neither in RESET nor in INIT.
fn check_state(nic: &Nic, qpn: Qpn) -> Result<(), ConnectionError> {
    match nic.engine.query_qp(qpn).map_or(QpState::Reset, |attributes| attributes.state) {
        QpState::Reset | QpState::Init => Ok(()),
        other => Err(ConnectionError::QueuePairState(other)),
    }
}

impl Context {
    /// Asks a peer which queue pair receives datagrams for a port, and waits for the answer.
    ///
    /// # Errors
    ///
    /// Fails if the peer refuses, does not answer, or cannot be reached from here.
    pub fn resolve(
        &self,
        peer: SocketAddr,
        parameters: &ConnectionParameters,
        timeout: Option<Duration>,
    ) -> Result<DatagramService, ConnectionError> {
        let source_port = self.ephemeral_port();
        let id = with_cm(self, |cm, now, nic| {
            let path = nic
                .route_to(peer.ip(), &parameters.path)
                .map_err(VerbsError::io("cannot create a path to the peer"))?;
            let service_id = ServiceId::of_port(parameters.port_space, peer.port());
            let ip_cm = IpCm { source_port, source: path.source, destination: path.destination };
            let question = CmResolve {
                path,
                service_id,
                timing: parameters.timing,
                ip_cm: Some(ip_cm),
                private_data: &parameters.private_data,
            };
            let id = cm.manager.resolve(now, &question)?;
            cm.adopt(id, None);
            Ok(id)
        })?;
        let notice = wait_for(self, timeout, |cm| cm.next_notice(id));
        with_cm(self, |cm, now, _| {
            cm.abandon(now, id);
            Ok(())
        })?;
        let (qpn, q_key, private_data) = match notice? {
            ConnectionNotice::Manager(CmEvent::Resolved { qpn, q_key, private_data, .. }) => {
                (qpn, q_key, private_data)
            }
            ConnectionNotice::Manager(CmEvent::Unresolved { status, .. }) => {
                return Err(ConnectionError::Unresolved { status });
            }
            _ => return Err(ConnectionError::Unreachable),
        };
        let destination = self.create_address_handle(peer.ip(), qpn, q_key, &parameters.path)?;
        Ok(DatagramService { destination, private_data: private_data.to_vec() })
    }

    /// Returns a random port from the range of ephemeral ports.
    fn ephemeral_port(&self) -> u16 {
        0xc000 | self.runtime().random_u64() as u16
    }
}

/// A resolved service for datagrams.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// const Q_KEY: u32 = 0x1234;
/// let listener = far.context.listen(PortSpace::Udp, 7471)?;
/// let server = std::thread::spawn(move || -> Result<QueuePair, ConnectionError> {
///     let request = listener.accept_datagrams(None)?;
///     let (pd, cq) = (far.context.alloc_pd()?, far.context.create_cq(16, None)?);
///     let qp = pd.create_qp(&QueuePairOptions::new(QpType::Ud, &cq))?;
///     qp.activate_datagram(Q_KEY)?;
///     request.accept(&qp, b"here")?;
///     Ok(qp)
/// });
///
/// let parameters = ConnectionParameters::default().port_space(PortSpace::Udp);
/// let service = near.context.resolve("192.0.2.2:7471".parse()?, &parameters, None)?;
/// let (pd, cq) = (near.context.alloc_pd()?, near.context.create_cq(16, None)?);
/// let qp = pd.create_qp(&QueuePairOptions::new(QpType::Ud, &cq))?;
/// qp.activate_datagram(Q_KEY)?;
/// qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello").to(&service.destination))?;
/// # server.join().expect("no panic")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DatagramService {
    /// Destination for the datagrams.
    pub destination: AddressHandle,
    /// Private data of the peer's application: 136 bytes, including the peer's padding.
    pub private_data: Vec<u8>,
}
