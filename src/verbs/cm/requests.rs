//! The listening side: connection requests, and service ID resolution requests (SIDR) for datagrams.

use std::net::SocketAddr;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use roce_packet::Qpn;
use roce_packet::mad::{PortSpace, RejReason, ServiceId, SidrStatus, TransportService};
use roce_transport::QpType;
use roce_transport::cm::{CmConnectRequest, CmError, CmListen, CmSidrRequest};

use super::{
    Connection, ConnectionError, ConnectionParameters, Context, QueuePair, check_queue_pair, check_state,
    wait_for, with_cm,
};
use crate::cm::service::{BACKLOG, CmService};

/// A port that accepts connection requests. Dropping it refuses the requests that were not fetched.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// use std::net::SocketAddr;
///
/// let listener = far.context.listen(PortSpace::Tcp, 7471)?;
/// let server = std::thread::spawn(move || -> Result<Connection, ConnectionError> {
///     let request = listener.accept(None)?;
///     let context = &far.context;
///     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
///     let qp = pd.create_qp(&QueuePairOptions::new(request.qp_type(), &cq))?;
///     let mut connection = request.accept(&qp, &ConnectionParameters::default().private_data(b"welcome"))?;
///     connection.established(None)?;
///     Ok(connection)
/// });
///
/// let (pd, cq) = (near.context.alloc_pd()?, near.context.create_cq(16, None)?);
/// let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
/// let peer: SocketAddr = "192.0.2.2:7471".parse()?;
/// let connection = near.context.connect(peer, &qp, &ConnectionParameters::default())?;
/// assert!(connection.private_data().starts_with(b"welcome"));
/// # server.join().expect("no panic")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CmListener {
    context: Context,
    port_space: PortSpace,
    port: u16,
}

impl Drop for CmListener {
    fn drop(&mut self) {
        let service_id = self.service_id();
        let closed = with_cm(&self.context, |cm, now, nic| {
            cm.close_listener(now, nic, service_id);
            Ok(())
        });
        debug_assert!(closed.is_ok(), "connection management is there: {closed:?}");
    }
}

impl Context {
    /// Accepts connection requests for a port, or service ID resolution requests for the port spaces of
    /// datagrams, and refuses the other kind. [`PortSpace::Ib`] accepts both kinds, which share one backlog:
    /// an application that listens there must fetch both. Port 0 selects a free port. The first use of
    /// connection management creates queue pair 1 of this device.
    ///
    /// # Errors
    ///
    /// Fails if the port already has a listener, in this process or in another one that shares the address.
    pub fn listen(&self, port_space: PortSpace, port: u16) -> Result<CmListener, ConnectionError> {
        let ports = match port {
            0 => 32_768..=u16::MAX,
            port => port..=port,
        };
        let port = with_cm(self, |cm, _, nic| {
            let listen = CmListen { accepts: port_space.into(), backlog: BACKLOG, ip_cm: true };
            let mut outcome = Err(CmError::InUse(ServiceId::of_port(port_space, port)));
            for port in ports {
                let service_id = ServiceId::of_port(port_space, port);
                outcome = cm.open_listener(nic, service_id, listen).map(|()| port);
                if outcome.is_ok() {
                    break;
                }
            }
            Ok(outcome?)
        })?;
        Ok(CmListener { context: self.clone(), port_space, port })
    }
}

impl CmListener {
    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn service_id(&self) -> ServiceId {
        ServiceId::of_port(self.port_space, self.port)
    }

    /// Waits for the next connection request.
    ///
    /// # Errors
    ///
    /// Fails if the timeout passes or the device failed.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<ConnectRequest, ConnectionError> {
        let service_id = self.service_id();
        let request = wait_for(&self.context, timeout, |cm| cm.next_request(service_id))?;
        Ok(ConnectRequest { context: self.context.clone(), request, open: true })
    }

    /// Waits like [`accept`](Self::accept), for tasks. It requires the context's background thread.
    ///
    /// # Errors
    ///
    /// Never fails; a failed device delivers no requests.
    pub async fn accept_async(&self) -> Result<ConnectRequest, ConnectionError> {
        let service_id = self.service_id();
        let request =
            std::future::poll_fn(|task| self.poll_listener(task, |cm| cm.next_request(service_id))).await;
        Ok(ConnectRequest { context: self.context.clone(), request, open: true })
    }

    /// Waits for the next request for a queue pair that receives datagrams.
    ///
    /// # Errors
    ///
    /// Fails if the timeout passes or the device failed.
    pub fn accept_datagrams(&self, timeout: Option<Duration>) -> Result<DatagramRequest, ConnectionError> {
        let service_id = self.service_id();
        let request = wait_for(&self.context, timeout, |cm| cm.next_question(service_id))?;
        Ok(DatagramRequest { context: self.context.clone(), request, open: true })
    }

    fn poll_listener<T>(
        &self,
        task: &TaskContext<'_>,
        look: impl FnOnce(&mut CmService) -> Option<T>,
    ) -> Poll<T> {
        // Cloned before the lock is taken, because `clone` runs foreign code.
        let waker = task.waker().clone();
        let mut state = self.context.runtime().lock();
        let Some(cm) = state.cm() else { return Poll::Pending };
        let found = look(cm);
        if found.is_none() {
            cm.wake_at_request(self.service_id(), waker);
        }
        found.map_or(Poll::Pending, Poll::Ready)
    }
}

/// A connection request of a peer. Dropping it refuses the connection.
#[derive(Debug)]
pub struct ConnectRequest {
    context: Context,
    request: CmConnectRequest,
    open: bool,
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if self.open {
            // The peer may have given up already.
            let _ = self.refuse(RejReason::CONSUMER, &[]);
        }
    }
}

impl ConnectRequest {
    /// Returns the peer's address and its claimed source port.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        let port = self.request.ip_cm.map_or(0, |header| header.source_port);
        SocketAddr::new(self.request.path.destination, port)
    }

    /// Returns the private data of the peer's application: 56 bytes, including the peer's padding.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Returns the transport type that the peer requests.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        match self.request.request.transport {
            TransportService::Uc => QpType::Uc,
            _ => QpType::Rc,
        }
    }

    /// Returns the peer's REQ, which contains everything else that the peer offers.
    #[must_use]
    pub fn request(&self) -> &roce_packet::mad::CmReq {
        &self.request.request
    }

    /// Accepts the connection: prepares the queue pair and sends the REP. The queue pair enters RTS with the
    /// event ESTABLISHED. Until then it is in SQD, where it answers the peer but keeps posted requests,
    /// because the source address of the connection request is still unverified.
    ///
    /// # Errors
    ///
    /// Fails if the peer has given up, an option is out of range, or the private data exceed 196 bytes. Also
    /// fails if the queue pair is not in RESET or INIT or has the wrong transport. The queue pair is
    /// unchanged then, and the peer is refused.
    pub fn accept(
        mut self,
        qp: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<Connection, ConnectionError> {
        if qp.qp_type() != self.qp_type() {
            return Err(ConnectionError::QueuePairType(qp.qp_type()));
        }
        if let Some(mtu) = self.request.request.path_mtu()
            && let Err(error) = self.context.check_path_mtu(mtu)
        {
            self.refuse(RejReason::INVALID_PATH_MTU, &[])?;
            return Err(error.into());
        }
        check_queue_pair(&self.context, qp)?;
        let preparation = parameters.preparation(qp)?;
        let (id, offer) = (self.request.id, parameters.offer(qp));
        with_cm(&self.context, |cm, now, nic| {
            cm.siblings.with_nic_of(preparation.qpn, nic, |nic| check_state(nic, preparation.qpn))?;
            Ok(cm.accept(now, nic, id, (&preparation, &offer), &parameters.private_data)?)
        })?;
        self.open = false;
        Ok(Connection::new(&self.context, id, qp))
    }

    /// Refuses the connection, with up to 148 bytes for the peer's application.
    ///
    /// # Errors
    ///
    /// Fails if the peer has already given up, or the data are too long: then it is refused without data.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectionError> {
        self.refuse(RejReason::CONSUMER, private_data)
    }

    /// Refuses the connection with a reason other than the application's.
    ///
    /// # Errors
    ///
    /// Fails like [`reject`](Self::reject).
    pub fn reject_with(mut self, reason: RejReason, private_data: &[u8]) -> Result<(), ConnectionError> {
        self.refuse(reason, private_data)
    }

    fn refuse(&mut self, reason: RejReason, private_data: &[u8]) -> Result<(), ConnectionError> {
        let id = self.request.id;
        with_cm(&self.context, |cm, now, _| Ok(cm.manager.reject(now, id, reason, private_data)?))?;
        self.open = false;
        Ok(())
    }
}

/// A peer's request for a queue pair that receives its datagrams. Dropping it refuses the request.
#[derive(Debug)]
pub struct DatagramRequest {
    context: Context,
    request: CmSidrRequest,
    open: bool,
}

impl Drop for DatagramRequest {
    fn drop(&mut self) {
        if self.open {
            // The peer may have given up already.
            let _ = self.reply(SidrStatus::REJECTED, (Qpn::default(), 0), &[]);
        }
    }
}

impl DatagramRequest {
    /// Returns the peer's address and its claimed source port.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        let port = self.request.ip_cm.map_or(0, |header| header.source_port);
        SocketAddr::new(self.request.path.destination, port)
    }

    /// Returns the private data of the peer's application: 180 bytes, including the peer's padding.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Answers with a UD queue pair that is ready to receive, and with its Q_Key.
    ///
    /// # Errors
    ///
    /// Fails if the peer has given up, the queue pair is not UD, or the private data exceed 136 bytes.
    pub fn accept(mut self, qp: &QueuePair, private_data: &[u8]) -> Result<(), ConnectionError> {
        if qp.qp_type() != QpType::Ud {
            return Err(ConnectionError::QueuePairType(qp.qp_type()));
        }
        let q_key = qp.query().map_or(0, |attributes| attributes.qkey);
        self.reply(SidrStatus::VALID, (qp.number(), q_key), private_data)
    }

    /// Refuses the request.
    ///
    /// # Errors
    ///
    /// Fails if the peer has already given up or the private data exceed 136 bytes.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectionError> {
        self.reply(SidrStatus::REJECTED, (Qpn::default(), 0), private_data)
    }

    fn reply(&mut self, status: SidrStatus, there: (Qpn, u32), data: &[u8]) -> Result<(), ConnectionError> {
        let id = self.request.id;
        with_cm(&self.context, |cm, now, _| Ok(cm.manager.answer(now, id, status, there, data)?))?;
        self.open = false;
        Ok(())
    }
}
