//! The calls of the application.

use alloc::boxed::Box;

use roce_packet::mad::{
    CmMad, CmMessage, CmMessageKind, CmPath, CmRep, CmReq, CmRtu, CmTimeout, CommId, IpCm, RejReason,
    ServiceId, TransportService, private_data,
};
use roce_packet::{Gid, Path, Psn, Qpn, flow};

use super::connection::{Connection, Repetition, Route, Terms, local_ack_timeout};
use super::{
    CmConnect, CmError, CmEvent, CmInput, CmListen, CmOffer, CmQpParameters, CmState, ConnectionManager,
    Listener,
};
use crate::Instant;
use crate::qp::DEFAULT_P_KEY;

/// The LID that means "routed" (IBTA 12.7.11).
const PERMISSIVE_LID: u16 = 0xffff;

impl ConnectionManager {
    /// Starts to accept requests for a service.
    ///
    /// # Errors
    ///
    /// Returns an error if the service already has a listener.
    pub fn listen(&mut self, service_id: ServiceId, listen: CmListen) -> Result<(), CmError> {
        if self.listeners.contains_key(&service_id) {
            return Err(CmError::InUse(service_id));
        }
        self.listeners.insert(service_id, Listener { listen, pending: 0 });
        Ok(())
    }

    /// Stops accepting requests for a service. Requests that wait for the application stay.
    ///
    /// # Errors
    ///
    /// Returns an error if the service does not have a listener.
    pub fn unlisten(&mut self, service_id: ServiceId) -> Result<(), CmError> {
        self.listeners.remove(&service_id).map(|_| ()).ok_or(CmError::NotListening(service_id))
    }

    /// Tells whether a service has a listener.
    #[must_use]
    pub fn is_listening(&self, service_id: ServiceId) -> bool {
        self.listeners.contains_key(&service_id)
    }

    /// Requests a connection and returns its ID.
    ///
    /// # Errors
    ///
    /// Returns an error if the transport is not connected, the private data is too long, or no record is
    /// free.
    pub fn connect(&mut self, now: Instant, connect: &CmConnect<'_>) -> Result<CommId, CmError> {
        self.set_now(now);
        if !matches!(connect.transport, TransportService::Rc | TransportService::Uc) {
            return Err(CmError::Transport(connect.transport));
        }
        check_families(&connect.path)?;
        let data = with_header(connect.ip_cm, connect.private_data)?;
        let id = self.draw_id()?;
        let transaction_id = self.draw_transaction_id(id);
        let repetition = Repetition::new(&connect.timing, self.config.longest_wait);
        let route = Route { path: connect.path, qpn: Qpn::GSI };
        let mut connection = Box::new(Connection::new(id, route, connect.service_id, repetition, self.now));
        connection.transaction_id = transaction_id;
        let timeout = local_ack_timeout(connect.timing.packet_lifetime, self.config.ack_delay);
        let parameters = CmQpParameters {
            transport: connect.transport,
            path: connect.path,
            path_mtu: connect.path_mtu,
            dest_qpn: Qpn::default(),
            rq_psn: connect.offer.starting_psn,
            sq_psn: Psn::default(),
            timeout,
            retry_cnt: connect.retry_count & 7,
            rnr_retry: 0,
            max_rd_atomic: connect.offer.initiator_depth,
            max_dest_rd_atomic: connect.offer.responder_resources,
            peer_srq: false,
        };
        let own = connect.offer;
        connection.terms = Some(Terms { own, parameters, peer_resources: 0, peer_depth: 0 });
        let req = request(connect, id, self.config.ca_guid, timeout, data);
        if self.advance(&mut connection, CmInput::Connect).is_some() {
            self.send_repeatedly(&mut connection, CmMad::new(transaction_id, CmMessage::Req(req)));
        }
        self.put(connection);
        Ok(id)
    }

    /// Accepts a request. The queue pair of `own` must be ready to receive. Returns the attributes that it
    /// needs to send.
    ///
    /// # Errors
    ///
    /// Returns an error if the request no longer exists or was answered, or the private data is longer than
    /// 196 bytes. Also returns an error if too many peers have not answered their REP yet.
    pub fn accept(
        &mut self,
        now: Instant,
        id: CommId,
        own: &CmOffer,
        data: &[u8],
    ) -> Result<CmQpParameters, CmError> {
        self.check_accept(id, data)?;
        self.with(now, id, CmInput::Accept, |manager, mut connection| {
            let parameters = agree(&mut connection, own);
            let rep = CmRep {
                local_comm_id: id,
                remote_comm_id: connection.remote_id(),
                local_q_key: 0,
                local_qpn: own.qpn,
                vendor_id: 0,
                local_eecn: 0,
                starting_psn: own.starting_psn,
                responder_resources: parameters.map_or(0, |agreed| agreed.max_dest_rd_atomic),
                initiator_depth: parameters.map_or(0, |agreed| agreed.max_rd_atomic),
                target_ack_delay: manager.config.ack_delay,
                // Only an alternate path can be refused.
                failover_accepted: 0,
                flow_control: false,
                rnr_retry_count: own.rnr_retry_count & 7,
                srq: own.srq,
                local_ca_guid: manager.config.ca_guid,
                private_data: private_data(data),
            };
            let mad = CmMad::new(connection.transaction_id, CmMessage::Rep(rep));
            manager.send_repeatedly(&mut connection, mad);
            manager.put(connection);
            parameters.ok_or(CmError::Unknown(id))
        })
    }

    /// Tells whether [`accept`](Self::accept) would succeed now. Changes nothing.
    ///
    /// # Errors
    ///
    /// Returns the errors of `accept`.
    pub fn check_accept(&self, id: CommId, data: &[u8]) -> Result<(), CmError> {
        check_length(data, CmRep::PRIVATE_DATA)?;
        let state = self.connections.get(&id).ok_or(CmError::Unknown(id))?.state;
        if state.after(CmInput::Accept).is_none() {
            return Err(CmError::WrongState { id, state });
        }
        let limit = self.config.max_half_open;
        if self.half_open >= limit { Err(CmError::TooManyHalfOpen { limit }) } else { Ok(()) }
    }

    /// Returns the attributes that the queue pair of a request needs once it is accepted with this offer.
    /// Sends and changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the request no longer exists.
    pub fn preview(&self, id: CommId, own: &CmOffer) -> Result<CmQpParameters, CmError> {
        let connection = self.connections.get(&id).ok_or(CmError::Unknown(id))?;
        let wrong = CmError::WrongState { id, state: connection.state };
        if connection.active {
            return Err(wrong);
        }
        connection.terms.map(|terms| terms.agreed(own)).ok_or(wrong)
    }

    /// Refuses a request, or aborts a handshake.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection does not exist or is already established, or the private data is
    /// longer than 148 bytes.
    pub fn reject(
        &mut self,
        now: Instant,
        id: CommId,
        reason: RejReason,
        data: &[u8],
    ) -> Result<(), CmError> {
        check_length(data, roce_packet::mad::CmRej::PRIVATE_DATA)?;
        let from = self.state(id);
        self.with(now, id, CmInput::Refuse, |manager, mut connection| {
            match from {
                CmState::ReqSent | CmState::MraReqReceived => {
                    let rej = connection.rej_timeout(CmMessageKind::Req, manager.config.ca_guid);
                    manager.send(&connection.route, &rej);
                    manager.close(connection);
                }
                CmState::SidrReqSent => manager.close(connection),
                _ => {
                    let rejected = match from {
                        CmState::ReqReceived | CmState::MraReqSent => CmMessageKind::Req,
                        CmState::RepReceived | CmState::MraRepSent => CmMessageKind::Rep,
                        _ => CmMessageKind::Other,
                    };
                    let rej = connection.rej(rejected, reason, data);
                    manager.send_of(&mut connection, &rej);
                    connection.last = Some(rej);
                    // Long enough for the peer to repeat the refused message.
                    let interval = connection.repetition.interval_ns.saturating_add(connection.timewait_ns());
                    manager.linger(connection, interval.saturating_mul(2));
                }
            }
            Ok(())
        })
    }

    /// Sends an MRA, which promises the answer within `service_timeout`.
    ///
    /// # Errors
    ///
    /// Returns an error if no message of the peer waits for an answer.
    pub fn delay(&mut self, now: Instant, id: CommId, service_timeout: CmTimeout) -> Result<(), CmError> {
        self.with(now, id, CmInput::Delay, |manager, mut connection| {
            manager.send_mra(&mut connection, service_timeout);
            manager.put(connection);
            Ok(())
        })
    }

    pub(super) fn send_mra(&mut self, connection: &mut Connection, service_timeout: CmTimeout) {
        let received = if connection.active { CmMessageKind::Rep } else { CmMessageKind::Req };
        let mra = connection.mra(received, service_timeout);
        self.send_of(connection, &mra);
        if !connection.active {
            let nanos = service_timeout.nanos().saturating_add(connection.repetition.all_ns());
            self.wake_after(connection, nanos.min(self.config.longest_wait.nanos().saturating_mul(2)));
        }
    }

    /// Sends the RTU of an accepted connection, whose queue pair is ready.
    ///
    /// # Errors
    ///
    /// Returns an error if the peer has not accepted this connection, or the private data exceeds 224 bytes.
    pub fn ready(&mut self, now: Instant, id: CommId, data: &[u8]) -> Result<(), CmError> {
        check_length(data, CmRtu::PRIVATE_DATA)?;
        self.with(now, id, CmInput::Ready, |manager, mut connection| {
            let remote_comm_id = connection.remote_id();
            let rtu = CmRtu { local_comm_id: id, remote_comm_id, private_data: private_data(data) };
            let mad = CmMad::new(connection.transaction_id, CmMessage::Rtu(rtu));
            connection.last = Some(mad);
            manager.send(&connection.route, &mad);
            manager.establish(&mut connection, [0; CmRtu::PRIVATE_DATA]);
            manager.put(connection);
            Ok(())
        })
    }

    /// Establishes a connection because a packet of the peer arrived on the queue pair before the RTU.
    ///
    /// # Errors
    ///
    /// Returns an error if no RTU is awaited.
    pub fn notify_first_packet(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        self.with(now, id, CmInput::FirstPacket, |manager, mut connection| {
            manager.establish(&mut connection, [0; CmRtu::PRIVATE_DATA]);
            manager.put(connection);
            Ok(())
        })
    }

    pub(super) fn establish(&mut self, connection: &mut Connection, data: [u8; CmRtu::PRIVATE_DATA]) {
        connection.has_answered();
        self.set_deadline(connection, None);
        self.counters.established += 1;
        self.tell(connection, CmEvent::Established { id: connection.id, private_data: Box::new(data) });
    }

    /// Ends a connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection is not established, or the private data is longer than 220 bytes.
    pub fn disconnect(&mut self, now: Instant, id: CommId, data: &[u8]) -> Result<(), CmError> {
        check_length(data, roce_packet::mad::CmDreq::PRIVATE_DATA)?;
        self.with(now, id, CmInput::Disconnect, |manager, mut connection| {
            manager.send_dreq(&mut connection, data);
            manager.put(connection);
            Ok(())
        })
    }

    pub(super) fn send_dreq(&mut self, connection: &mut Connection, data: &[u8]) {
        let transaction_id = self.draw_transaction_id(connection.id);
        let mad = connection.dreq(transaction_id, data);
        self.send_repeatedly(connection, mad);
    }

    /// Releases a connection in any state: refuses, aborts or disconnects it, and raises no more events for
    /// it.
    pub fn release(&mut self, now: Instant, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.silent = true;
        let ended = match connection.state {
            CmState::Established => self.disconnect(now, id, &[]),
            CmState::SidrReqReceived => self.refuse_question(now, id),
            CmState::DreqSent | CmState::Timewait | CmState::Refused | CmState::SidrAnswered => Ok(()),
            _ => self.reject(now, id, RejReason::CONSUMER, &[]),
        };
        debug_assert!(ended.is_ok(), "every state has its way to let go: {ended:?}");
    }

    /// Calls `work` with a record that accepts `input`. Puts the record back if its state does not allow
    /// that.
    pub(super) fn with<T>(
        &mut self,
        now: Instant,
        id: CommId,
        input: CmInput,
        work: impl FnOnce(&mut Self, Box<Connection>) -> Result<T, CmError>,
    ) -> Result<T, CmError> {
        self.set_now(now);
        let mut connection = self.take(id)?;
        let state = connection.state;
        if self.advance(&mut connection, input).is_some() {
            work(self, connection)
        } else {
            self.put(connection);
            Err(CmError::WrongState { id, state })
        }
    }
}

/// Computes and stores the attributes that both sides support, on the passive side.
fn agree(connection: &mut Connection, own: &CmOffer) -> Option<CmQpParameters> {
    let terms = connection.terms.as_mut()?;
    let parameters = terms.agreed(own);
    *terms = Terms { own: *own, parameters, ..*terms };
    Some(parameters)
}

impl Terms {
    /// Returns the attributes of the passive side: each end has at most as many READs as the other can hold.
    pub(super) fn agreed(&self, own: &CmOffer) -> CmQpParameters {
        let mut parameters = CmQpParameters {
            rq_psn: own.starting_psn,
            max_rd_atomic: own.initiator_depth.min(self.peer_resources),
            max_dest_rd_atomic: own.responder_resources.min(self.peer_depth),
            ..self.parameters
        };
        set_source_port(&mut parameters, own.qpn);
        parameters
    }
}

/// Converts the flow label into the UDP source port. While a connection is being established, the path of its
/// queue pair contains the flow label of the REQ; the packets themselves have no label.
pub(super) fn set_source_port(parameters: &mut CmQpParameters, own: Qpn) {
    let label = match parameters.path.flow_label & 0xf_ffff {
        0 => flow::qp_pair_flow_label(own, parameters.dest_qpn),
        label => label,
    };
    parameters.path.source_port = flow::flow_label_to_port(label);
    parameters.path.flow_label = 0;
}

fn request(
    connect: &CmConnect<'_>,
    id: CommId,
    ca_guid: u64,
    timeout: CmTimeout,
    data: [u8; CmReq::PRIVATE_DATA],
) -> CmReq {
    let primary = CmPath {
        local_lid: PERMISSIVE_LID,
        remote_lid: PERMISSIVE_LID,
        local_gid: Gid::from_ip(connect.path.source),
        remote_gid: Gid::from_ip(connect.path.destination),
        flow_label: connect.flow_label & 0xf_ffff,
        packet_rate: 0,
        traffic_class: connect.path.traffic_class,
        hop_limit: connect.path.hop_limit,
        sl: connect.path.vlan.map_or(0, |vlan| vlan.pcp),
        subnet_local: false,
        local_ack_timeout: timeout,
    };
    CmReq {
        local_comm_id: id,
        vendor_id: 0,
        service_id: connect.service_id,
        local_ca_guid: ca_guid,
        local_q_key: 0,
        local_qpn: connect.offer.qpn,
        responder_resources: connect.offer.responder_resources,
        local_eecn: 0,
        initiator_depth: connect.offer.initiator_depth,
        remote_eecn: 0,
        remote_cm_response_timeout: connect.timing.response_timeout,
        transport: connect.transport,
        flow_control: false,
        starting_psn: connect.offer.starting_psn,
        local_cm_response_timeout: connect.timing.response_timeout,
        retry_count: connect.retry_count & 7,
        p_key: DEFAULT_P_KEY,
        path_mtu_code: connect.path_mtu.code(),
        rdc_exists: false,
        rnr_retry_count: connect.offer.rnr_retry_count & 7,
        max_cm_retries: connect.timing.max_retries.min(15),
        srq: connect.offer.srq,
        extended_transport: 0,
        primary,
        alternate: CmPath::default(),
        private_data: data,
    }
}

pub(super) fn check_families(path: &Path) -> Result<(), CmError> {
    if path.source.is_ipv4() == path.destination.is_ipv4() {
        return Ok(());
    }
    Err(CmError::Addresses { source_address: path.source, destination: path.destination })
}

pub(super) fn check_length(data: &[u8], limit: usize) -> Result<(), CmError> {
    if data.len() <= limit { Ok(()) } else { Err(CmError::PrivateDataTooLong { have: data.len(), limit }) }
}

/// Returns private data of `N` bytes: the rdma_cm header, if there is one, and the data of the application.
pub(super) fn with_header<const N: usize>(ip_cm: Option<IpCm>, data: &[u8]) -> Result<[u8; N], CmError> {
    let skip = if ip_cm.is_some() { IpCm::LEN } else { 0 };
    check_length(data, N - skip)?;
    let mut all = [0; N];
    if let Some((header, ip_cm)) = all.first_chunk_mut().zip(ip_cm) {
        ip_cm.emit(header);
    }
    for (to, from) in all.iter_mut().skip(skip).zip(data) {
        *to = *from;
    }
    Ok(all)
}
