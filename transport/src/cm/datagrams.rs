//! Service ID resolution, for datagrams (IBTA 12.11).

use alloc::boxed::Box;

use roce_packet::Qpn;
use roce_packet::mad::{
    CmMad, CmMessage, CmSidrRep, CmSidrReq, CmTimeout, CommId, IpCm, SidrStatus, private_data,
};

use super::application::{check_families, check_length, with_header};
use super::connection::{Connection, Repetition, Route};
use super::{CmError, CmEvent, CmInput, CmResolve, CmSidrRequest, CmState, CmTiming, ConnectionManager};
use crate::Instant;
use crate::qp::DEFAULT_P_KEY;

impl ConnectionManager {
    /// Sends a SIDR request for the queue pair that receives the datagrams of a service.
    ///
    /// # Errors
    ///
    /// Returns an error if the private data is too long or all records are in use.
    pub fn resolve(&mut self, now: Instant, resolve: &CmResolve<'_>) -> Result<CommId, CmError> {
        self.set_now(now);
        check_families(&resolve.path)?;
        let private_data = with_header(resolve.ip_cm, resolve.private_data)?;
        let id = self.draw_id()?;
        let repetition = Repetition::new(&resolve.timing, self.config.longest_wait);
        let route = Route { path: resolve.path, qpn: Qpn::GSI };
        let mut connection = Box::new(Connection::new(id, route, resolve.service_id, repetition, self.now));
        connection.transaction_id = self.draw_transaction_id(id);
        let service_id = resolve.service_id;
        let req = CmSidrReq { request_id: id, p_key: DEFAULT_P_KEY, service_id, private_data };
        if self.advance(&mut connection, CmInput::Resolve).is_some() {
            let mad = CmMad::new(connection.transaction_id, CmMessage::SidrReq(req));
            self.send_repeatedly(&mut connection, mad);
        }
        self.put(connection);
        Ok(id)
    }

    /// Answers a SIDR request. The queue pair number and the Q_Key only matter with [`SidrStatus::VALID`].
    ///
    /// # Errors
    ///
    /// Returns an error if the request is gone or was answered, or the private data is longer than 136 bytes.
    pub fn answer(
        &mut self,
        now: Instant,
        id: CommId,
        status: SidrStatus,
        (qpn, q_key): (Qpn, u32),
        data: &[u8],
    ) -> Result<(), CmError> {
        check_length(data, CmSidrRep::PRIVATE_DATA)?;
        self.with(now, id, CmInput::Answer, |manager, mut connection| {
            let rep = CmSidrRep {
                qpn,
                q_key,
                private_data: private_data(data),
                ..sidr_rep(connection.remote_id(), status, &connection)
            };
            let mad = CmMad::new(connection.transaction_id, CmMessage::SidrRep(rep));
            manager.send(&connection.route, &mad);
            connection.last = Some(mad);
            let nanos = connection.repetition.interval_ns.saturating_mul(2);
            manager.linger(connection, nanos);
            Ok(())
        })
    }

    pub(super) fn refuse_question(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        self.answer(now, id, SidrStatus::REJECTED, (Qpn::default(), 0), &[])
    }

    pub(super) fn on_sidr_req(&mut self, route: &Route, transaction_id: u64, req: &CmSidrReq) {
        let key = (route.path.destination, req.request_id);
        if let Some(id) = self.sidr_by_remote.get(&key).copied()
            && let Ok(mut connection) = self.take(id)
        {
            if connection.transaction_id == transaction_id {
                if self.advance(&mut connection, CmInput::SidrReq) == Some(CmState::SidrAnswered) {
                    self.send_again(&mut connection);
                }
                return self.put(connection);
            }
            // The peer has sent a new request, so this end starts anew.
            self.close(connection);
        }
        // The specification does not define this value; rdma_cm sends the same value.
        let timing = CmTiming { response_timeout: CmTimeout::new(20), ..CmTiming::default() };
        let repetition = Repetition::new(&timing, self.config.longest_wait);
        let mut connection = Connection::new(CommId(0), *route, req.service_id, repetition, self.now);
        connection.transaction_id = transaction_id;
        connection.remote = Some(req.request_id);
        connection.active = false;
        match self.judge_question(req).and_then(|ip_cm| {
            let id = self.draw_id().map_err(|_| SidrStatus::NO_QP)?;
            Ok((id, ip_cm))
        }) {
            Ok((id, ip_cm)) => {
                connection.id = id;
                self.take_question(connection, req, ip_cm);
            }
            Err(status) => {
                let rep = sidr_rep(req.request_id, status, &connection);
                self.send(route, &CmMad::new(transaction_id, CmMessage::SidrRep(rep)));
            }
        }
    }

    fn judge_question(&mut self, req: &CmSidrReq) -> Result<Option<IpCm>, SidrStatus> {
        let listener = self.listeners.get(&req.service_id);
        let Some(listener) = listener.filter(|listener| listener.listen.accepts.datagrams()) else {
            self.counters.refused_service += 1;
            return Err(SidrStatus::UNSUPPORTED);
        };
        let ip_cm = match listener.listen.ip_cm {
            true => Some(IpCm::parse(&req.private_data).map_err(|_| SidrStatus::REJECTED)?.0),
            false => None,
        };
        if listener.pending >= listener.listen.backlog || self.pending >= self.config.max_pending {
            self.counters.refused_full += 1;
            return Err(SidrStatus::NO_QP);
        }
        Ok(ip_cm)
    }

    fn take_question(&mut self, connection: Connection, req: &CmSidrReq, ip_cm: Option<IpCm>) {
        let mut connection = Box::new(connection);
        if self.advance(&mut connection, CmInput::SidrReq).is_none() {
            return;
        }
        connection.pending = true;
        self.pending += 1;
        if let Some(listener) = self.listeners.get_mut(&connection.service_id) {
            listener.pending += 1;
        }
        let (id, path) = (connection.id, connection.route.path);
        self.sidr_by_remote.insert((path.destination, req.request_id), id);
        let nanos = connection.repetition.all_ns();
        self.wake_after(&mut connection, nanos);
        let request = CmSidrRequest { id, path, ip_cm, request: *req };
        self.tell(&connection, CmEvent::SidrRequest(Box::new(request)));
        self.put(connection);
    }

    pub(super) fn on_sidr_rep(&mut self, route: &Route, rep: &CmSidrRep) {
        let known = self.connections.get(&rep.request_id).is_some_and(|connection| {
            connection.route.path.destination == route.path.destination && connection.active
        });
        let Some(mut connection) = known.then(|| self.take(rep.request_id).ok()).flatten() else {
            self.counters.unknown += 1;
            return;
        };
        if self.advance(&mut connection, CmInput::SidrRep).is_none() {
            return self.put(connection);
        }
        let (id, private_data) = (connection.id, Box::new(rep.private_data));
        let event = match rep.status {
            SidrStatus::VALID => CmEvent::Resolved { id, qpn: rep.qpn, q_key: rep.q_key, private_data },
            status => CmEvent::Unresolved { id, status, private_data },
        };
        self.tell(&connection, event);
        self.close(connection);
    }
}

fn sidr_rep(request_id: CommId, status: SidrStatus, connection: &Connection) -> CmSidrRep {
    CmSidrRep {
        request_id,
        status,
        info_length: 0,
        qpn: Qpn::default(),
        service_id: connection.service_id,
        q_key: 0,
        info: [0; CmSidrRep::INFO],
        private_data: [0; CmSidrRep::PRIVATE_DATA],
    }
}
