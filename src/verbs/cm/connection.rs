//! A connection.

use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use roce_packet::flow;
use roce_packet::mad::{CommId, IpCm, ServiceId, TransportService};
use roce_transport::QpType;
use roce_transport::cm::CmConnect;

use super::{
    ConnectionError, ConnectionEvent, ConnectionParameters, Context, QueuePair, VerbsError, check_queue_pair,
    check_state, wait_for, with_cm,
};
use crate::cm::queue_pairs::to_error;
use crate::cm::service::CmService;

/// A connection, from its request on. Dropping it disconnects.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, far) = ends()?;
/// # let listener = far.context.listen(PortSpace::Tcp, 7471)?;
/// # let (pd, cq) = (near.context.alloc_pd()?, near.context.create_cq(16, None)?);
/// # let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
/// let mut connection = near.context.start_connect("192.0.2.2:7471".parse()?, &qp, &ConnectionParameters::default())?;
/// # listener.accept(None)?.reject(b"not today")?;
/// match connection.next_event(None)? {
///     ConnectionEvent::Established { .. } => connection.disconnect()?,
///     ConnectionEvent::Rejected { reason, private_data } => {
///         assert_eq!(reason, RejReason::CONSUMER);
///         assert!(private_data.starts_with(b"not today"));
///     }
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Connection {
    context: Context,
    id: CommId,
    qp: QueuePair,
    private_data: Vec<u8>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let id = self.id;
        let released = with_cm(&self.context, |cm, now, nic| {
            if let Some(qpn) = cm.abandon(now, id) {
                cm.siblings.with_nic_of(qpn, nic, |nic| to_error(now, nic, qpn));
            }
            Ok(())
        });
        debug_assert!(released.is_ok(), "connection management is there: {released:?}");
    }
}

fn next_event(cm: &mut CmService, id: CommId) -> Option<ConnectionEvent> {
    let notice = cm.next_notice(id)?;
    ConnectionEvent::from_notice(notice, || cm.take_reply(id))
}

impl Context {
    /// Connects a queue pair to the listener at this address and port, and waits until both ends may send.
    ///
    /// # Errors
    ///
    /// Fails if the peer refuses or does not answer, or if the queue pair is not an RC or UC queue pair in
    /// RESET or INIT.
    pub fn connect(
        &self,
        peer: SocketAddr,
        qp: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<Connection, ConnectionError> {
        let mut connection = self.start_connect(peer, qp, parameters)?;
        connection.established(None)?;
        Ok(connection)
    }

    /// Connects like [`connect`](Self::connect), for tasks. It requires the context's background thread.
    ///
    /// # Errors
    ///
    /// Fails like [`connect`](Self::connect).
    pub async fn connect_async(
        &self,
        peer: SocketAddr,
        qp: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<Connection, ConnectionError> {
        let mut connection = self.start_connect(peer, qp, parameters)?;
        connection.established_async().await?;
        Ok(connection)
    }

    /// Requests a connection without waiting for it. The next event of the connection is the outcome.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair is not an RC or UC queue pair in RESET or INIT, or if the peer cannot be
    /// reached from here.
    pub fn start_connect(
        &self,
        peer: SocketAddr,
        qp: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<Connection, ConnectionError> {
        self.check_path_mtu(parameters.path_mtu)?;
        let preparation = parameters.preparation(qp)?;
        check_queue_pair(self, qp)?;
        let source_port = self.ephemeral_port();
        let transport = if qp.qp_type() == QpType::Uc { TransportService::Uc } else { TransportService::Rc };
        let id = with_cm(self, |cm, now, nic| {
            let siblings = cm.siblings.clone();
            let first_step = siblings.with_nic_of(preparation.qpn, nic, |nic| {
                check_state(nic, preparation.qpn)?;
                let first_step = preparation.first_step(nic);
                nic.engine.check_modify_qp(preparation.qpn, first_step.as_slice())?;
                Ok::<_, ConnectionError>(first_step)
            })?;
            let path = nic
                .route_to(peer.ip(), &parameters.path)
                .map_err(VerbsError::io("cannot create a path to the peer"))?;
            let id = cm.manager.connect(
                now,
                &CmConnect {
                    path,
                    service_id: ServiceId::of_port(parameters.port_space, peer.port()),
                    transport,
                    offer: parameters.offer(qp),
                    path_mtu: parameters.path_mtu,
                    flow_label: flow::rdma_cm_flow_label(source_port, peer.port()),
                    retry_count: parameters.retry_count,
                    timing: parameters.timing,
                    ip_cm: Some(IpCm { source_port, source: path.source, destination: path.destination }),
                    private_data: &parameters.private_data,
                },
            )?;
            cm.adopt(id, Some(preparation));
            siblings.with_nic_of(preparation.qpn, nic, |nic| {
                nic.modify_qp(now, preparation.qpn, first_step.as_slice())
            })?;
            Ok(id)
        })?;
        Ok(Connection::new(self, id, qp))
    }
}

impl Connection {
    pub(super) fn new(context: &Context, id: CommId, qp: &QueuePair) -> Self {
        Self { context: context.clone(), id, qp: qp.clone(), private_data: Vec::new() }
    }

    /// Returns its queue pair.
    #[must_use]
    pub fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Returns the private data of the accepting application once the connection is established: 196 bytes,
    /// including the peer's padding. Empty at the accepting side.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// Fails if the timeout passes or the device failed.
    pub fn next_event(&mut self, timeout: Option<Duration>) -> Result<ConnectionEvent, ConnectionError> {
        let id = self.id;
        wait_for(&self.context, timeout, |cm| next_event(cm, id))
    }

    /// Returns the next event, or `None` if no event has arrived yet.
    #[must_use]
    pub fn try_event(&mut self) -> Option<ConnectionEvent> {
        let mut state = self.context.runtime().lock();
        state.progress();
        next_event(state.cm()?, self.id)
    }

    /// Waits like [`next_event`](Self::next_event), for tasks. It requires the context's background thread.
    pub async fn next_event_async(&mut self) -> ConnectionEvent {
        std::future::poll_fn(|task| {
            // Cloned before the lock is taken, because `clone` runs foreign code.
            let waker = task.waker().clone();
            let mut state = self.context.runtime().lock();
            let Some(cm) = state.cm() else { return Poll::Pending };
            let event = next_event(cm, self.id);
            if event.is_none() {
                cm.wake_at_notice(self.id, waker);
            }
            event.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits until both ends may send.
    ///
    /// # Errors
    ///
    /// Fails if the peer refuses, does not answer, or has already disconnected.
    pub fn established(&mut self, timeout: Option<Duration>) -> Result<(), ConnectionError> {
        self.private_data = self.next_event(timeout)?.established()?;
        Ok(())
    }

    /// Waits like [`established`](Self::established), for tasks. It requires the context's background thread.
    ///
    /// # Errors
    ///
    /// Fails like [`established`](Self::established).
    pub async fn established_async(&mut self) -> Result<(), ConnectionError> {
        self.private_data = self.next_event_async().await.established()?;
        Ok(())
    }

    /// Moves the queue pair to ERR and sends the DREQ. The event DISCONNECTED follows when the peer has
    /// confirmed it, or after all retransmissions.
    ///
    /// # Errors
    ///
    /// Fails if the connection is not established.
    pub fn disconnect(&mut self) -> Result<(), ConnectionError> {
        let (id, qpn) = (self.id, self.qp.number());
        with_cm(&self.context, |cm, now, nic| {
            cm.manager.disconnect(now, id, &[])?;
            cm.siblings.with_nic_of(qpn, nic, |nic| to_error(now, nic, qpn));
            Ok(())
        })
    }
}
