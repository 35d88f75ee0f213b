//! Connection management for callers that move their queue pairs themselves, as the applications of librdmacm do.
//!
//! Nothing here touches a queue pair: an event carries what it needs. The events of a context are in one queue, whatever connection
//! they belong to; a waker is called whenever something was added to it.

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

/// The address of a request: to whom, and what this end calls itself.
#[derive(Clone, Debug)]
pub struct RawRequest<'a> {
    /// The listener.
    pub peer: SocketAddr,
    /// The port space of the listener.
    pub port_space: PortSpace,
    /// The port of this end, in the header of rdma_cm.
    pub own_port: u16,
    /// Traffic class, hop limit, GID.
    pub path: PathOptions,
    /// Repetition of messages.
    pub timing: CmTiming,
    /// Bytes for the peer's application: 56 for a connection, 180 for a question.
    pub private_data: &'a [u8],
}

/// What a connection is asked for.
#[derive(Clone, Copy, Debug)]
pub struct RawConnect {
    /// RC or UC.
    pub transport: TransportService,
    /// This end.
    pub offer: CmOffer,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// How often both ends send a lost packet again, 0 to 7.
    pub retry_count: u8,
}

impl Raw<'_> {
    /// Has a waker called whenever [`next_connection_event`](Self::next_connection_event) may have more to give, in place of
    /// the one before. It is called in any thread that uses the context, without the lock of the context.
    ///
    /// # Errors
    ///
    /// When connection management cannot be started.
    pub fn watch_connections(self, waker: Waker) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, _, _| {
            cm.watch_raw_events(waker);
            Ok(())
        })
    }

    /// The next event of a connection, a question or a listener that was made here.
    #[must_use]
    pub fn next_connection_event(self) -> Option<CmEvent> {
        self.runtime().lock().cm()?.next_raw_event()
    }

    /// Takes requests for a port from now on, and questions where the port space has them; at most `backlog` may wait for
    /// [`accept_connection`](Self::accept_connection) or its like.
    ///
    /// # Errors
    ///
    /// When the port has a listener, also one of another process that shares the address.
    pub fn listen(self, port_space: PortSpace, port: u16, backlog: usize) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, _, nic| {
            let listen = CmListen { accepts: port_space.into(), backlog, ip_cm: true };
            Ok(cm.open_raw_listener(nic, ServiceId::of_port(port_space, port), listen)?)
        })
    }

    /// Stops taking requests. Those that were not fetched are refused.
    pub fn stop_listening(self, port_space: PortSpace, port: u16) {
        let closed = with_cm(self.context, |cm, now, nic| {
            cm.close_listener(now, nic, ServiceId::of_port(port_space, port));
            Ok(())
        });
        debug_assert!(closed.is_ok(), "connection management is there: {closed:?}");
    }

    /// Requests a connection. [`CmEvent::ConnectResponse`] follows, or that there is none.
    ///
    /// # Errors
    ///
    /// When the peer cannot be reached from here, or the link does not carry the path MTU.
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

    /// Asks which queue pair answers datagrams for a port. [`CmEvent::Resolved`] follows, or that there is none.
    ///
    /// # Errors
    ///
    /// When the peer cannot be reached from here.
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

    /// What the queue pair of a request will need once it is accepted with this offer.
    ///
    /// # Errors
    ///
    /// When the request is gone.
    pub fn preview_connection(self, id: CommId, offer: &CmOffer) -> Result<CmQpParameters, ConnectionError> {
        with_cm(self.context, |cm, _, _| Ok(cm.manager.preview(id, offer)?))
    }

    /// Accepts a request: the queue pair takes packets already. [`CmEvent::Established`] follows.
    ///
    /// # Errors
    ///
    /// When the request is gone or was answered, the private data are longer than 196 bytes, or too many peers have not answered
    /// yet.
    pub fn accept_connection(
        self,
        id: CommId,
        offer: &CmOffer,
        private_data: &[u8],
    ) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.accept_raw(now, id, offer, private_data)?))
    }

    /// The queue pair of an accepted connection is ready. [`CmEvent::Established`] follows.
    ///
    /// # Errors
    ///
    /// When the peer has accepted no such connection, or the private data are longer than 224 bytes.
    pub fn establish_connection(self, id: CommId, private_data: &[u8]) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.manager.ready(now, id, private_data)?))
    }

    /// The application has seen a packet of the connection before the RTU, which it replaces.
    ///
    /// # Errors
    ///
    /// When no RTU is awaited.
    pub fn notify_first_packet(self, id: CommId) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.manager.notify_first_packet(now, id)?))
    }

    /// Answers a question for a port with a queue pair and the key that datagrams must carry.
    ///
    /// # Errors
    ///
    /// When the question is gone, or the private data are longer than 136 bytes.
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

    /// Refuses a request, or what the peer answered.
    ///
    /// # Errors
    ///
    /// When it is gone, or the private data are longer than 148 bytes.
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
    /// When the connection is not established (any more).
    pub fn disconnect(self, id: CommId, private_data: &[u8]) -> Result<(), ConnectionError> {
        with_cm(self.context, |cm, now, _| Ok(cm.manager.disconnect(now, id, private_data)?))
    }

    /// Lets go of a connection, a question or a request in any state; it raises no more events.
    pub fn release_connection(self, id: CommId) {
        let released = with_cm(self.context, |cm, now, _| {
            cm.release_raw(now, id);
            Ok(())
        });
        debug_assert!(released.is_ok(), "connection management is there: {released:?}");
    }

    /// Where a connection, a question or a request stands.
    #[must_use]
    pub fn connection_state(self, id: CommId) -> CmState {
        self.runtime().lock().cm().map_or(CmState::Closed, |cm| cm.manager.state(id))
    }
}

impl RawRequest<'_> {
    /// Where the request goes: the path, the service, and the header of rdma_cm.
    fn address(&self, nic: &Nic) -> Result<(Path, ServiceId, IpCm), VerbsError> {
        let path = nic.route_to(self.peer.ip(), &self.path);
        let path = path.map_err(VerbsError::io("making a path to the peer"))?;
        let header = IpCm { source_port: self.own_port, source: path.source, destination: path.destination };
        Ok((path, ServiceId::of_port(self.port_space, self.peer.port()), header))
    }
}
