//! Connection management for callers that move their queue pairs themselves, as applications of librdmacm do.
//!
//! These functions never touch a queue pair: the events contain the data for its transitions. All connections
//! of a context share one event queue. A waker is called whenever an event is added to it.

use std::net::SocketAddr;
use std::task::Waker;

use roce_packet::mad::{CommId, IpCm, PortSpace, RejReason, ServiceId, SidrStatus, TransportService};
use roce_packet::{Path, PathMtu, Qpn, flow};
use roce_transport::cm::{
    CmConnect, CmEvent, CmListen, CmOffer, CmQpParameters, CmResolve, CmState, CmTiming,
};

use super::Raw;
use crate::driver::Nic;
use crate::verbs::cm::with_cm;
use crate::verbs::{ConnectionError, PathOptions, VerbsError};

/// The address of a request: its destination, and the port of this end.
#[derive(Clone, Debug)]
pub struct RawRequest<'a> {
    /// Address and port of the listener.
    pub peer: SocketAddr,
    /// Port space of the listener.
    pub port_space: PortSpace,
    /// Port of this end in the header of rdma_cm.
    pub own_port: u16,
    /// Traffic class, hop limit, GID.
    pub path: PathOptions,
    /// Timing of retransmitted CM messages.
    pub timing: CmTiming,
    /// Bytes for the peer's application: at most 56 for a connection, 180 for a SIDR request.
    pub private_data: &'a [u8],
}

/// The parameters of a requested connection.
#[derive(Clone, Copy, Debug)]
pub struct RawConnect {
    /// Transport service: RC or UC.
    pub transport: TransportService,
    /// Offer of this end.
    pub offer: CmOffer,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Number of retransmissions of a lost packet at both ends, 0 to 7.
    pub retry_count: u8,
}

impl Raw<'_> {
    /// Sets the waker that is called whenever [`next_connection_event`](Self::next_connection_event) may
    /// return more events; it replaces the previous one. Any thread that uses the context may call it,
    /// without holding the context's lock.
    ///
    /// # Errors
    ///
    /// Fails if connection management cannot be started.
    pub fn watch_connections(self, waker: Waker) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, _, _| {
            cm.watch_raw_events(waker);
            Ok(())
        })
    }

    /// Returns the next event of a connection, SIDR request or listener that was created here.
    #[must_use]
    pub fn next_connection_event(self) -> Option<CmEvent> {
        self.runtime().lock().cm()?.next_raw_event()
    }

    /// Accepts connection requests for a port from now on, and SIDR requests if the port space has them. At
    /// most `backlog` requests may wait for [`accept_connection`](Self::accept_connection) or a similar call.
    ///
    /// # Errors
    ///
    /// Fails if the port already has a listener, in this process or in another one that shares the address.
    pub fn listen(self, port_space: PortSpace, port: u16, backlog: usize) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, _, nic| {
            let listen = CmListen { accepts: port_space.into(), backlog, ip_cm: true };
            Ok(cm.open_raw_listener(nic, ServiceId::of_port(port_space, port), listen)?)
        })
    }

    /// Stops accepting requests. Requests that were not fetched are refused.
    pub fn stop_listening(self, port_space: PortSpace, port: u16) {
        let closed = with_cm(self.context, |cm, now, nic| {
            cm.close_listener(now, nic, ServiceId::of_port(port_space, port));
            Ok(())
        });
        debug_assert!(closed.is_ok(), "connection management is there: {closed:?}");
    }

    /// Requests a connection. [`CmEvent::ConnectResponse`] or an event for its failure follows.
    ///
    /// # Errors
    ///
    /// Fails if the peer cannot be reached from here, or the link does not carry the path MTU.
    pub fn request_connection(
        self,
        request: &RawRequest<'_>,
        connect: &RawConnect,
    ) -> Result<CommId, ConnectionError> {
        self.context.check_path_mtu(connect.path_mtu)?;
        with_cm(self.context, |cm, now, nic| {
            let (path, service_id, header) = request.address(nic)?;
            let id = cm.manager.connect(
                now,
                &CmConnect {
                    path,
                    service_id,
                    transport: connect.transport,
                    offer: connect.offer,
                    path_mtu: connect.path_mtu,
                    flow_label: flow::rdma_cm_flow_label(request.own_port, request.peer.port()),
                    retry_count: connect.retry_count,
                    timing: request.timing,
                    ip_cm: Some(header),
                    private_data: request.private_data,
                },
            )?;
            cm.adopt_raw(id);
            Ok(id)
        })
    }

    /// Asks which queue pair receives datagrams for a port. [`CmEvent::Resolved`] or an event for its failure
    /// follows.
    ///
    /// # Errors
    ///
    /// Fails if the peer cannot be reached from here.
    pub fn request_datagrams(self, request: &RawRequest<'_>) -> Result<CommId, ConnectionError> {
        with_cm(self.context, |cm, now, nic| {
            let (path, service_id, header) = request.address(nic)?;
            let id = cm.manager.resolve(
                now,
                &CmResolve {
                    path,
                    service_id,
                    timing: request.timing,
                    ip_cm: Some(header),
                    private_data: request.private_data,
                },
            )?;
            cm.adopt_raw(id);
            Ok(id)
        })
    }

    /// Returns the parameters that the queue pair of a request will need if it is accepted with this offer.
    ///
    /// # Errors
    ///
    /// Fails if the request is gone.
    pub fn preview_connection(self, id: CommId, offer: &CmOffer) -> Result<CmQpParameters, ConnectionError> {
        with_cm(self.context, |cm, _, _| Ok(cm.manager.preview(id, offer)?))
    }

    /// Accepts a request. The queue pair must already accept packets. [`CmEvent::Established`] follows.
    ///
    /// # Errors
    ///
    /// Fails if the request is gone or answered, the private data exceed 196 bytes, or too many peers have
    /// not answered yet.
    pub fn accept_connection(
        self,
        id: CommId,
        offer: &CmOffer,
        private_data: &[u8],
    ) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.accept_raw(now, id, offer, private_data)?))
    }

    /// Reports that the queue pair of an accepted connection is ready. [`CmEvent::Established`] follows.
    ///
    /// # Errors
    ///
    /// Fails if the peer has not accepted such a connection, or the private data exceed 224 bytes.
    pub fn establish_connection(self, id: CommId, private_data: &[u8]) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.manager.ready(now, id, private_data)?))
    }

    /// Reports that the application has seen a packet of the connection before the RTU, which that packet
    /// replaces.
    ///
    /// # Errors
    ///
    /// Fails if the connection does not wait for an RTU.
    pub fn notify_first_packet(self, id: CommId) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.manager.notify_first_packet(now, id)?))
    }

    /// Answers a SIDR request for a port with a queue pair and the Q_Key that datagrams must carry.
    ///
    /// # Errors
    ///
    /// Fails if the request is gone, or the private data exceed 136 bytes.
    pub fn answer_question(
        self,
        id: CommId,
        status: SidrStatus,
        (qpn, q_key): (Qpn, u32),
        private_data: &[u8],
    ) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| {
            Ok(cm.manager.answer(now, id, status, (qpn, q_key), private_data)?)
        })
    }

    /// Refuses a request or the peer's answer.
    ///
    /// # Errors
    ///
    /// Fails if it is gone, or the private data exceed 148 bytes.
    pub fn reject_connection(
        self,
        id: CommId,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.manager.reject(now, id, reason, private_data)?))
    }

    /// Sends the DREQ. [`CmEvent::Disconnected`] follows.
    ///
    /// # Errors
    ///
    /// Fails if the connection is not established.
    pub fn disconnect(self, id: CommId, private_data: &[u8]) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.manager.disconnect(now, id, private_data)?))
    }

    /// Releases a connection, SIDR request or connection request in any state; it raises no more events.
    pub fn release_connection(self, id: CommId) {
        let released = with_cm(self.context, |cm, now, _| {
            cm.release_raw(now, id);
            Ok(())
        });
        debug_assert!(released.is_ok(), "connection management is there: {released:?}");
    }

    /// Returns the state of a connection, SIDR request or connection request.
    #[must_use]
    pub fn connection_state(self, id: CommId) -> CmState {
        self.runtime().lock().cm().map_or(CmState::Closed, |cm| cm.manager.state(id))
    }
}

impl RawRequest<'_> {
    /// Returns the destination of the request: the path, the service, and the header of rdma_cm.
    fn address(&self, nic: &Nic) -> Result<(Path, ServiceId, IpCm), VerbsError> {
        let path = nic.route_to(self.peer.ip(), &self.path);
        let path = path.map_err(VerbsError::io("cannot create a path to the peer"))?;
        let header = IpCm { source_port: self.own_port, source: path.source, destination: path.destination };
        Ok((path, ServiceId::of_port(self.port_space, self.peer.port()), header))
    }
}
