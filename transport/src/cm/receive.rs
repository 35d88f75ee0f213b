//! The receive path of queue pair 1.

use alloc::boxed::Box;

use roce_packet::mad::{
    CmDrep, CmDreq, CmMad, CmMessage, CmMessageKind, CmMra, CmRej, CmRep, CmReq, CmRtu, CmTimeout, CommId,
    IpCm, RejReason, TransportService,
};
use roce_packet::{Ecn, Gid, Path, PathMtu, Qpn};

use super::application::set_source_port;
use super::connection::{Connection, Repetition, Route, Terms, local_ack_timeout, rej};
use super::{
    CmConnectRequest, CmEvent, CmInput, CmOffer, CmQpParameters, CmState, CmTiming, ConnectionManager,
};
use crate::Instant;

/// Service timeout of the MRA that answers duplicates until the application decides: 68 s, as in Linux.
const SERVICE_TIMEOUT: CmTimeout = CmTimeout::new(24);

impl ConnectionManager {
    /// Handles one datagram for queue pair 1. `path` is as the sender wrote it (not reversed), and
    /// `source_qpn` comes from the DETH.
    pub fn handle_mad(&mut self, now: Instant, path: &Path, source_qpn: Qpn, bytes: &[u8]) {
        self.set_now(now);
        let mad = match CmMad::parse(bytes) {
            Ok(mad) => mad,
            Err(error) => {
                tracing::debug!(%error, "not a message of connection management");
                self.counters.malformed += 1;
                return;
            }
        };
        self.counters.received += 1;
        let route = Route { path: reply(path), qpn: source_qpn };
        let transaction_id = mad.transaction_id;
        match &mad.message {
            CmMessage::Req(req) => self.on_req(&route, transaction_id, req),
            CmMessage::Mra(mra) => self.on_mra(&route, mra),
            CmMessage::Rej(rej) => self.on_rej(&route, rej),
            CmMessage::Rep(rep) => self.on_rep(&route, transaction_id, rep),
            CmMessage::Rtu(rtu) => self.on_rtu(&route, rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(&route, transaction_id, dreq),
            CmMessage::Drep(drep) => self.on_drep(&route, drep),
            CmMessage::SidrReq(req) => self.on_sidr_req(&route, transaction_id, req),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(&route, rep),
        }
    }

    fn on_req(&mut self, route: &Route, transaction_id: u64, req: &CmReq) {
        let peer = route.path.destination;
        if let Some(id) = self.by_remote.get(&(peer, req.local_comm_id)).copied()
            && !self.on_known_req(id, route, transaction_id, req)
        {
            return;
        }
        if let Some(id) = self.by_peer_qpn.get(&(peer, req.local_qpn)).copied() {
            self.refuse(route, transaction_id, req, RejReason::STALE_CONNECTION);
            self.drop_stale(id);
            return;
        }
        match self.judge(route, req) {
            Ok((ip_cm, path_mtu)) => self.take_req(route, transaction_id, req, ip_cm, path_mtu),
            Err(reason) => self.refuse(route, transaction_id, req, reason),
        }
    }

    /// Handles a REQ whose sender already uses this ID. Returns whether it is to be handled as a new one.
    fn on_known_req(&mut self, id: CommId, route: &Route, transaction_id: u64, req: &CmReq) -> bool {
        let Ok(mut connection) = self.take(id) else { return true };
        let qpn = connection.terms.as_ref().map(|terms| terms.parameters.dest_qpn);
        let same = connection.transaction_id == transaction_id && qpn == Some(req.local_qpn);
        if same && !connection.active {
            connection.earn_credit(self.now);
            match self.advance(&mut connection, CmInput::Req) {
                Some(CmState::MraReqSent) => self.send_mra(&mut connection, SERVICE_TIMEOUT),
                // Repeat the REP or the REJ.
                Some(_) => self.send_again(&mut connection),
                None => {}
            }
            self.put(connection);
            return false;
        }
        if connection.state.lingers() {
            // The peer has started a new connection, so this end does the same.
            let state = connection.state;
            self.finish_lingering(connection, state);
            return true;
        }
        self.put(connection);
        self.refuse(route, transaction_id, req, RejReason::STALE_CONNECTION);
        self.drop_stale(id);
        false
    }

    /// Drops a connection that the peer has forgotten: the peer uses its queue pair for another one.
    fn drop_stale(&mut self, id: CommId) {
        self.counters.stale += 1;
        let Ok(mut connection) = self.take(id) else { return };
        match connection.state {
            CmState::Established => {
                self.advance(&mut connection, CmInput::Disconnect);
                self.send_dreq(&mut connection, &[]);
                self.put(connection);
            }
            CmState::DreqSent => self.put(connection),
            state => {
                self.tell(&connection, CmEvent::Unreachable { id, state });
                self.close(connection);
            }
        }
    }

    /// Checks whether a request can be passed to the application.
    fn judge(&mut self, route: &Route, req: &CmReq) -> Result<(Option<IpCm>, PathMtu), RejReason> {
        let Some(listener) = self.listeners.get(&req.service_id) else {
            self.counters.refused_service += 1;
            return Err(RejReason::INVALID_SERVICE_ID);
        };
        if !listener.listen.accepts.connections() {
            self.counters.refused_service += 1;
            return Err(RejReason::INVALID_TRANSPORT_TYPE);
        }
        if !matches!(req.transport, TransportService::Rc | TransportService::Uc) {
            return Err(RejReason::INVALID_TRANSPORT_TYPE);
        }
        // A peer must not be able to direct the packets of a connection to another host.
        let path = &route.path;
        let ends = (Gid::from_ip(path.destination), Gid::from_ip(path.source));
        if (req.primary.local_gid, req.primary.remote_gid) != ends {
            return Err(RejReason::INVALID_GID);
        }
        let path_mtu = req.path_mtu().ok_or(RejReason::INVALID_PATH_MTU)?;
        let ip_cm = match listener.listen.ip_cm {
            true => Some(IpCm::parse(&req.private_data).map_err(|_| RejReason::CONSUMER)?.0),
            false => None,
        };
        let full = listener.pending >= listener.listen.backlog || self.pending >= self.config.max_pending;
        if full || self.connections.len() >= self.config.max_connections {
            self.counters.refused_full += 1;
            return Err(RejReason::NO_RESOURCES);
        }
        Ok((ip_cm, path_mtu))
    }

    /// Refuses a request without a record: a repeated REQ is checked again.
    fn refuse(&mut self, route: &Route, transaction_id: u64, req: &CmReq, reason: RejReason) {
        let rej = rej((CommId(0), req.local_comm_id), CmMessageKind::Req, reason, &[]);
        self.send(route, &CmMad::new(transaction_id, CmMessage::Rej(rej)));
    }

    fn take_req(
        &mut self,
        route: &Route,
        transaction_id: u64,
        req: &CmReq,
        ip_cm: Option<IpCm>,
        path_mtu: PathMtu,
    ) {
        let Ok(id) = self.draw_id() else {
            self.counters.refused_full += 1;
            return self.refuse(route, transaction_id, req, RejReason::NO_RESOURCES);
        };
        // The packet lifetime of the peer is one step below its ACK timeout.
        let lifetime = CmTimeout::new(req.primary.local_ack_timeout.code().saturating_sub(1));
        let timing = CmTiming {
            response_timeout: req.local_cm_response_timeout,
            packet_lifetime: lifetime,
            max_retries: req.max_cm_retries,
        };
        let repetition = Repetition::new(&timing, self.config.longest_wait);
        let mut connection = Box::new(Connection::new(id, *route, req.service_id, repetition, self.now));
        connection.active = false;
        connection.credit = Some(0);
        connection.earn_credit(self.now);
        connection.transaction_id = transaction_id;
        connection.remote = Some(req.local_comm_id);
        connection.terms = Some(terms(route, req, path_mtu));
        if self.advance(&mut connection, CmInput::Req).is_none() {
            return;
        }
        connection.pending = true;
        self.pending += 1;
        if let Some(listener) = self.listeners.get_mut(&req.service_id) {
            listener.pending += 1;
        }
        let peer = route.path.destination;
        self.by_remote.insert((peer, req.local_comm_id), id);
        self.by_peer_qpn.insert((peer, req.local_qpn), id);
        let patience = repetition.all_ns().min(self.config.longest_wait.nanos());
        self.wake_after(&mut connection, patience);
        let request =
            CmConnectRequest { id, service_id: req.service_id, path: route.path, ip_cm, request: *req };
        self.tell(&connection, CmEvent::ConnectRequest(Box::new(request)));
        self.put(connection);
    }

    /// Returns the record of a message: the message contains this end's ID, comes from the peer of the
    /// connection, and contains the peer's ID.
    fn find(&mut self, route: &Route, own: CommId, theirs: CommId) -> Option<Box<Connection>> {
        let fits = self.connections.get(&own).is_some_and(|connection| {
            connection.route.path.destination == route.path.destination
                && connection.remote.is_none_or(|remote| remote == theirs)
        });
        let found = if fits { self.take(own).ok() } else { None };
        if found.is_none() {
            self.counters.unknown += 1;
        }
        found
    }

    fn on_mra(&mut self, route: &Route, mra: &CmMra) {
        let Some(mut connection) = self.find(route, mra.remote_comm_id, mra.local_comm_id) else { return };
        let expected = if connection.active { CmMessageKind::Req } else { CmMessageKind::Rep };
        if mra.received == expected && self.advance(&mut connection, CmInput::Mra).is_some() {
            connection.has_answered();
            let longest = self.config.longest_wait.nanos();
            let wait = mra.service_timeout.nanos().min(longest);
            let nanos = wait.saturating_add(connection.repetition.round_trip_ns);
            let deadline = self.now.plus_nanos(nanos).min(connection.latest);
            self.set_deadline(&mut connection, Some(deadline));
        }
        self.put(connection);
    }

    fn on_rej(&mut self, route: &Route, rej: &CmRej) {
        let own = match rej.remote_comm_id {
            // The peer gave up before it learned this end's ID.
            CommId(0) => {
                let key = (route.path.destination, rej.local_comm_id);
                let is_early = |id: &&CommId| {
                    self.connections.get(*id).is_some_and(|connection| connection.may_be_unknown_to_peer())
                };
                self.by_remote.get(&key).filter(is_early).copied().unwrap_or_default()
            }
            known => known,
        };
        // A REJ without the sender's ID fits only a connection that does not know that ID yet, see `find`.
        let Some(mut connection) = self.find(route, own, rej.local_comm_id) else { return };
        let from = connection.state;
        match self.advance(&mut connection, CmInput::Rej) {
            Some(CmState::Timewait) => self.end(connection),
            Some(_) => {
                tracing::debug!(id = connection.id.0, ?from, reason = %rej.reason, "rejected");
                let private_data = Box::new(rej.private_data);
                let event = CmEvent::Rejected { id: connection.id, reason: rej.reason, private_data };
                self.tell(&connection, event);
                self.close(connection);
            }
            None => self.put(connection),
        }
    }

    fn on_rep(&mut self, route: &Route, transaction_id: u64, rep: &CmRep) {
        let Some(mut connection) = self.find(route, rep.remote_comm_id, rep.local_comm_id) else {
            return self.refuse_rep(route, transaction_id, rep, RejReason::INVALID_COMM_ID);
        };
        if !connection.active {
            self.counters.unexpected += 1;
            return self.put(connection);
        }
        // Only in a state that accepts the REP: a SIDR request does not have the ID of a peer either.
        if connection.state.after(CmInput::Rep) == Some(CmState::RepReceived) {
            let peer = route.path.destination;
            if let Some(other) = self.by_peer_qpn.get(&(peer, rep.local_qpn)).copied() {
                self.refuse_rep(route, transaction_id, rep, RejReason::STALE_CONNECTION);
                self.drop_stale(other);
                let (id, reason) = (connection.id, RejReason::STALE_CONNECTION);
                let private_data = Box::new([0; CmRej::PRIVATE_DATA]);
                self.tell(&connection, CmEvent::Rejected { id, reason, private_data });
                return self.close(connection);
            }
        }
        match self.advance(&mut connection, CmInput::Rep) {
            Some(CmState::RepReceived) => self.take_rep(&mut connection, route, rep),
            Some(CmState::MraRepSent) => self.send_mra(&mut connection, SERVICE_TIMEOUT),
            // Repeat the RTU or the REJ.
            Some(_) => self.send_again(&mut connection),
            None => {}
        }
        self.put(connection);
    }

    fn take_rep(&mut self, connection: &mut Connection, route: &Route, rep: &CmRep) {
        self.set_deadline(connection, None);
        let peer = route.path.destination;
        connection.remote = Some(rep.local_comm_id);
        connection.route.qpn = route.qpn;
        self.by_remote.insert((peer, rep.local_comm_id), connection.id);
        self.by_peer_qpn.insert((peer, rep.local_qpn), connection.id);
        let Some(terms) = &mut connection.terms else { return };
        let Some(CmMessage::Req(req)) = connection.last.map(|mad| mad.message) else { return };
        let parameters = &mut terms.parameters;
        parameters.dest_qpn = rep.local_qpn;
        parameters.sq_psn = rep.starting_psn;
        parameters.rnr_retry = rep.rnr_retry_count;
        parameters.max_rd_atomic = terms.own.initiator_depth.min(rep.responder_resources);
        parameters.max_dest_rd_atomic = terms.own.responder_resources.min(rep.initiator_depth);
        parameters.peer_srq = rep.srq;
        // The REQ contained the delay of this end; the timeout needs that of the peer.
        parameters.timeout = local_ack_timeout(connection.repetition.lifetime, rep.target_ack_delay);
        parameters.path.flow_label = req.primary.flow_label;
        set_source_port(parameters, terms.own.qpn);
        let event = CmEvent::ConnectResponse {
            id: connection.id,
            parameters: *parameters,
            private_data: Box::new(rep.private_data),
        };
        self.tell(connection, event);
    }

    fn refuse_rep(&mut self, route: &Route, transaction_id: u64, rep: &CmRep, reason: RejReason) {
        let rej = rej((rep.remote_comm_id, rep.local_comm_id), CmMessageKind::Rep, reason, &[]);
        self.send(route, &CmMad::new(transaction_id, CmMessage::Rej(rej)));
    }

    fn on_rtu(&mut self, route: &Route, rtu: &CmRtu) {
        let Some(mut connection) = self.find(route, rtu.remote_comm_id, rtu.local_comm_id) else { return };
        if self.advance(&mut connection, CmInput::Rtu).is_some() {
            self.establish(&mut connection, rtu.private_data);
        }
        self.put(connection);
    }

    fn on_dreq(&mut self, route: &Route, transaction_id: u64, dreq: &CmDreq) {
        let drep = CmDrep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; CmDrep::PRIVATE_DATA],
        };
        let drep = CmMad::new(transaction_id, CmMessage::Drep(drep));
        let Some(mut connection) = self.find(route, dreq.remote_comm_id, dreq.local_comm_id) else {
            // The connection no longer exists here, so the answer is correct.
            return self.send(route, &drep);
        };
        let own_qpn = connection.terms.as_ref().map(|terms| terms.own.qpn);
        if connection.remote.is_none() || own_qpn != Some(dreq.remote_qpn) {
            self.counters.unknown += 1;
            return self.put(connection);
        }
        let from = connection.state;
        match self.advance(&mut connection, CmInput::Dreq) {
            Some(_) => {
                self.send(route, &drep);
                if from.lingers() {
                    self.counters.repeated += u64::from(from == CmState::Timewait);
                    self.put(connection);
                } else {
                    self.end(connection);
                }
            }
            None => self.put(connection),
        }
    }

    fn on_drep(&mut self, route: &Route, drep: &CmDrep) {
        let Some(mut connection) = self.find(route, drep.remote_comm_id, drep.local_comm_id) else { return };
        if self.advance(&mut connection, CmInput::Drep).is_some() {
            self.end(connection);
        } else {
            self.put(connection);
        }
    }
}

/// Returns the reverse path, without a congestion mark of the received packet.
fn reply(path: &Path) -> Path {
    let reply = path.reply();
    match reply.ecn() {
        Ecn::CongestionExperienced => reply.with_ecn(Ecn::Capable0),
        _ => reply,
    }
}

/// Returns the attributes of a REQ for the queue pair of the passive side.
fn terms(route: &Route, req: &CmReq, path_mtu: PathMtu) -> Terms {
    let path = Path {
        traffic_class: req.primary.traffic_class,
        hop_limit: req.primary.hop_limit,
        flow_label: req.primary.flow_label,
        ..route.path
    };
    let parameters = CmQpParameters {
        transport: req.transport,
        path,
        path_mtu,
        dest_qpn: req.local_qpn,
        rq_psn: Default::default(),
        sq_psn: req.starting_psn,
        timeout: req.primary.local_ack_timeout,
        retry_cnt: req.retry_count,
        rnr_retry: req.rnr_retry_count,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        peer_srq: req.srq,
    };
    let own = CmOffer {
        qpn: Qpn::default(),
        starting_psn: Default::default(),
        responder_resources: 0,
        initiator_depth: 0,
        rnr_retry_count: 0,
        srq: false,
    };
    Terms { own, parameters, peer_resources: req.responder_resources, peer_depth: req.initiator_depth }
}
