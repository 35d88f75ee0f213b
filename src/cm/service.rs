//! The rdma_cm service of one device: queue pair 1, its connection manager, and the queue pairs that it
//! moves.
//!
//! The service borrows the NIC during a call and is served whenever the NIC makes progress. It passes
//! datagrams of queue pair 1 to the manager and posts the manager's messages on queue pair 1. Events of the
//! manager either move a queue pair at once or wait for the application.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::Waker;

use roce_packet::mad::{CommId, GSI_Q_KEY, MAD_LEN, RejReason, ServiceId, SidrStatus};
use roce_packet::{Encapsulation, Gid, Grh, IP_PROTOCOL_UDP, Ipv4Header, Ipv6Header, Path, Qpn, flow};
use roce_transport::cm::{
    CmConfig, CmConnectRequest, CmError, CmEvent, CmListen, CmOffer, CmQpParameters, CmSidrRequest, CmState,
    CmTransmit, ConnectionManager,
};
use roce_transport::{
    Access, CqId, GRH_AREA, Instant, LKey, Memory, ModifyQpError, QpAttr, QpCapabilities, QpInit, QpState,
    QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, UdDestination, Wc, WcOpcode, WcStatus, WordMemory,
};

use super::queue_pairs::{Preparation, Siblings, to_error};
use super::raw_events::RawEvents;
use crate::driver::wake::{drop_each, wake_each};
use crate::driver::{Nic, PortHolder};

/// Maximum number of datagrams that queue pair 1 can receive before it is served.
const RECEIVES: usize = 512;
/// Maximum number of outstanding datagrams that queue pair 1 sends.
const SENDS: usize = 512;
/// Bytes of one receive: the IP header, then the datagram.
const SLOT: usize = GRH_AREA + MAD_LEN;
/// Maximum number of open requests that wait for one listener.
pub(crate) const BACKLOG: usize = 256;
const HOP_LIMIT: u8 = 64;

/// The reason why a request was not accepted.
#[derive(Debug)]
pub(crate) enum AcceptError {
    Manager(CmError),
    QueuePair(ModifyQpError),
}

impl From<CmError> for AcceptError {
    fn from(error: CmError) -> Self {
        Self::Manager(error)
    }
}

impl From<ModifyQpError> for AcceptError {
    fn from(error: ModifyQpError) -> Self {
        Self::QueuePair(error)
    }
}

/// An event of a connection for the application, in order of occurrence.
#[derive(Clone, Debug)]
pub(crate) enum ConnectionNotice {
    Manager(CmEvent),
    /// The peer accepted, but the local queue pair could not be brought up; the peer was refused.
    QueuePair(ModifyQpError),
}

/// Wakers that leave connection management. `wake` and `drop` of a waker are foreign code, so the lock guard
/// takes the wakers out and calls them after it has released the lock.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    pub(super) due: Vec<Waker>,
    /// Wakers that were replaced, or whose object is gone.
    pub(super) released: Vec<Waker>,
}

impl Wakers {
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.released.is_empty()
    }

    pub(crate) fn wake(self) {
        wake_each(self.due);
        drop_each(self.released);
    }
}

#[derive(Debug, Default)]
struct Entry {
    preparation: Option<Preparation>,
    /// Private data of the REP, until the connection is established.
    reply: Option<Vec<u8>>,
    notices: VecDeque<ConnectionNotice>,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
pub(super) struct Listener {
    pub(super) requests: VecDeque<CmConnectRequest>,
    pub(super) questions: VecDeque<CmSidrRequest>,
    wakers: Vec<Waker>,
}

/// The service: see the module documentation.
#[derive(Debug)]
pub(crate) struct CmService {
    pub(crate) manager: ConnectionManager,
    /// The other engines, which may have queue pairs of connections.
    pub(crate) siblings: Siblings,
    cq: CqId,
    memory: Arc<WordMemory>,
    lkey: LKey,
    entries: HashMap<CommId, Entry>,
    /// The latest connection of each queue pair. The end of an earlier one does not concern the queue pair.
    owners: HashMap<Qpn, CommId>,
    listeners: HashMap<ServiceId, Listener>,
    /// State of callers that move their queue pairs themselves.
    pub(super) raw: RawEvents,
    /// Accepted connections that wait for the RTU.
    pub(super) awaited: Vec<(Qpn, CommId)>,
    done: Vec<Wc>,
    /// Wakers to call and to drop after the lock is released.
    pub(crate) wakers: Wakers,
    /// Number of datagrams that queue pair 1 could not accept; their retransmissions replace them.
    not_posted: u64,
}

impl CmService {
    /// Creates queue pair 1 and brings it to RTS.
    pub(crate) fn new(nic: &mut Nic, siblings: Siblings) -> io::Result<Self> {
        let engine = &mut nic.engine;
        let pd = engine.allocate_pd().map_err(io::Error::other)?;
        let cq = engine.create_cq(RECEIVES + SENDS).map_err(io::Error::other)?;
        let memory = Arc::new(WordMemory::new(RECEIVES * SLOT));
        let region = engine.register(pd, 0, memory.clone(), Access::LOCAL_WRITE).map_err(io::Error::other)?;
        let capabilities = QpCapabilities {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAD_LEN,
        };
        let init = QpInit {
            qp_type: QpType::Ud,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            capabilities,
            signal_all: false,
        };
        engine.create_gsi_qp(&init).map_err(io::Error::other)?;
        // Same secret as for queue pair numbers and keys, but different random numbers.
        let seed = engine.config().seed.map(|byte| byte ^ 0xc3);
        let mut guid = [0; 8];
        guid.copy_from_slice(&seed[..8]);
        // A locally administered address, not a group address.
        guid[0] = guid[0] & 0xfc | 0x02;
        let mut service = Self {
            manager: ConnectionManager::new(CmConfig {
                process_slot: engine.config().process_slot,
                ..CmConfig::new(seed, u64::from_be_bytes(guid))
            }),
            siblings,
            cq,
            memory,
            lkey: region.lkey,
            entries: HashMap::new(),
            owners: HashMap::new(),
            listeners: HashMap::new(),
            raw: RawEvents::default(),
            awaited: Vec::new(),
            done: vec![Wc::default(); 32],
            wakers: Wakers::default(),
            not_posted: 0,
        };
        service.open(nic).map_err(io::Error::other)?;
        Ok(service)
    }

    fn open(&mut self, nic: &mut Nic) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let now = nic.now();
        let steps = [
            QpAttr {
                pkey_index: Some(0),
                port: Some(1),
                qkey: Some(GSI_Q_KEY),
                ..QpAttr::to_state(QpState::Init)
            },
            QpAttr::to_state(QpState::Rtr),
            QpAttr { sq_psn: Some(Default::default()), ..QpAttr::to_state(QpState::Rts) },
        ];
        for step in &steps {
            nic.engine.modify_qp(now, Qpn::GSI, step)?;
        }
        for slot in 0..RECEIVES {
            self.post_receive(nic, slot)?;
        }
        Ok(())
    }

    fn post_receive(&self, nic: &mut Nic, slot: usize) -> Result<(), roce_transport::PostError> {
        let element = Sge { addr: (slot * SLOT) as u64, length: SLOT as u32, lkey: self.lkey };
        nic.engine.post_recv(Qpn::GSI, &RecvWr { wr_id: slot as u64, elements: &[element] })
    }

    /// Handles received datagrams of queue pair 1 and expired deadlines, and posts pending messages.
    pub(crate) fn serve(&mut self, now: Instant, nic: &mut Nic) {
        self.receive(now, nic);
        self.notice_first_packets(now, nic);
        if self.manager.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.manager.handle_timeout(now);
        }
        self.settle(now, nic);
    }

    /// Treats a packet from the peer like the RTU. The event that IBTA defines for this is raised in RTR
    /// only, but an accepted queue pair is already in RTS or SQD.
    fn notice_first_packets(&mut self, now: Instant, nic: &mut Nic) {
        let (manager, siblings) = (&mut self.manager, &self.siblings);
        self.awaited.retain(|(qpn, id)| {
            if !matches!(manager.state(*id), CmState::RepSent | CmState::MraRepReceived) {
                return false;
            }
            let has_heard = |nic: &mut Nic| nic.engine.has_heard_peer(*qpn);
            let heard = siblings.with_nic_of(*qpn, nic, has_heard);
            !heard || manager.notify_first_packet(now, *id).is_err()
        });
    }

    /// Handles the events of the manager and posts its messages. Must run after every call of the manager.
    pub(crate) fn settle(&mut self, now: Instant, nic: &mut Nic) {
        while let Some(event) = self.manager.poll_event() {
            self.handle_event(now, nic, event);
        }
        while let Some(transmit) = self.manager.poll_transmit(now) {
            self.post(now, nic, &transmit);
        }
    }

    fn receive(&mut self, now: Instant, nic: &mut Nic) {
        let mut done = std::mem::take(&mut self.done);
        loop {
            let count = nic.engine.poll_cq(self.cq, &mut done).unwrap_or(0);
            // Sends are unsignaled; a failed send is covered by the retransmission of its message.
            for wc in done[..count].iter().filter(|wc| wc.opcode == WcOpcode::Recv) {
                let slot = wc.wr_id as usize;
                if wc.status == WcStatus::Success {
                    self.take_datagram(now, slot, wc);
                }
                if let Err(error) = self.post_receive(nic, slot) {
                    tracing::error!(%error, "queue pair 1 cannot take a receive");
                }
            }
            if count < done.len() {
                break;
            }
        }
        self.done = done;
    }

    fn take_datagram(&mut self, now: Instant, slot: usize, wc: &Wc) {
        let mut bytes = [0; SLOT];
        if self.memory.read(slot * SLOT, &mut bytes).is_err() {
            return;
        }
        let received = bytes.get(..wc.byte_len as usize).unwrap_or(&bytes);
        let Some((area, mad)) = received.split_at_checked(GRH_AREA) else { return };
        if let Some(path) = path_of(area) {
            self.manager.handle_mad(now, &path, wc.src_qp, mad);
        }
    }

    fn post(&mut self, now: Instant, nic: &mut Nic, transmit: &CmTransmit) {
        let mut path = Path { hop_limit: HOP_LIMIT, ..transmit.path };
        path.vlan = nic.device_mut().vlan(path.traffic_class);
        // All CM messages come from one source port, like those of queue pair 1 in kernels.
        match nic.bind_source_port(PortHolder::QueuePair(Qpn::GSI), &path, flow::rxe_qpn_port(Qpn::GSI)) {
            Ok(port) => path.source_port = port,
            Err(error) => {
                tracing::debug!(%error, "a message of connection management cannot be sent");
                self.not_posted += 1;
                return;
            }
        }
        let to = UdDestination { path, remote_qpn: transmit.remote_qpn, remote_qkey: GSI_Q_KEY };
        let wr = SendWr::inline(0, SendOp::Send, &transmit.mad[..]).with_flags(SendFlags::empty()).to(to);
        if let Err(error) = nic.engine.post_send(now, Qpn::GSI, &wr) {
            tracing::debug!(%error, "queue pair 1 cannot take a send");
            self.not_posted += 1;
        }
    }

    fn handle_event(&mut self, now: Instant, nic: &mut Nic, event: CmEvent) {
        tracing::debug!(id = event.id().0, kind = event.name(), "connection event");
        if self.raw.takes(&event) {
            return self.push_raw_event(event);
        }
        match event {
            CmEvent::ConnectRequest(request) => match self.listeners.get_mut(&request.service_id) {
                Some(listener) => {
                    let manager = &self.manager;
                    enqueue(&mut listener.requests, *request, |request| is_open(manager, request.id));
                    self.wakers.due.append(&mut listener.wakers);
                }
                // The listener was closed before this event was handled.
                None => self.manager.release(now, request.id),
            },
            CmEvent::SidrRequest(request) => match self.listeners.get_mut(&request.request.service_id) {
                Some(listener) => {
                    let manager = &self.manager;
                    enqueue(&mut listener.questions, *request, |question| is_open(manager, question.id));
                    self.wakers.due.append(&mut listener.wakers);
                }
                None => self.manager.release(now, request.id),
            },
            CmEvent::ConnectResponse { id, parameters, private_data } => {
                self.make_ready(now, nic, id, &parameters, &private_data[..]);
            }
            event => {
                if let CmEvent::Disconnected { id }
                | CmEvent::Unreachable { id, .. }
                | CmEvent::Rejected { id, .. } = &event
                {
                    self.fail_queue_pair(now, nic, *id);
                }
                if let CmEvent::Established { id, .. } = &event
                    && let Some(preparation) = self.entries.get(id).and_then(|entry| entry.preparation)
                {
                    self.siblings.with_nic_of(preparation.qpn, nic, |nic| preparation.release(now, nic));
                }
                self.notify(event.id(), ConnectionNotice::Manager(event));
            }
        }
    }

    /// Brings the queue pair up and sends the RTU, because the peer accepted (active side).
    fn make_ready(
        &mut self,
        now: Instant,
        nic: &mut Nic,
        id: CommId,
        parameters: &CmQpParameters,
        reply: &[u8],
    ) {
        let Some(entry) = self.entries.get_mut(&id) else { return self.manager.release(now, id) };
        entry.reply = Some(reply.to_vec());
        let Some(preparation) = entry.preparation else { return self.manager.release(now, id) };
        let bring_up = |nic: &mut Nic| preparation.bring_up(now, nic, parameters, false);
        match self.siblings.with_nic_of(preparation.qpn, nic, bring_up) {
            Ok(()) => {
                // The first attempt that succeeds owns the queue pair.
                self.owners.insert(preparation.qpn, id);
                // The peer may be gone by now; the next event says so.
                let _ = self.manager.ready(now, id, &[]);
            }
            Err(error) => {
                let _ = self.manager.reject(now, id, RejReason::NO_RESOURCES, &[]);
                self.notify(id, ConnectionNotice::QueuePair(error));
            }
        }
    }

    /// Flushes the work requests of the queue pair, because the connection has ended.
    fn fail_queue_pair(&mut self, now: Instant, nic: &mut Nic, id: CommId) {
        let Some(preparation) = self.entries.get(&id).and_then(|entry| entry.preparation) else { return };
        if !self.owns(id, preparation.qpn) {
            return;
        }
        self.siblings.with_nic_of(preparation.qpn, nic, |nic| to_error(now, nic, preparation.qpn));
    }

    fn notify(&mut self, id: CommId, notice: ConnectionNotice) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.notices.push_back(notice);
            self.wakers.due.extend(entry.waker.take());
        }
    }

    /// Adds a connection or SIDR request that the application holds from now on.
    pub(crate) fn adopt(&mut self, id: CommId, preparation: Option<Preparation>) {
        if let Some(preparation) = &preparation {
            self.owners.insert(preparation.qpn, id);
        }
        self.entries.insert(id, Entry { preparation, ..Entry::default() });
    }

    /// Tells whether this is the latest connection of the queue pair.
    fn owns(&self, id: CommId, qpn: Qpn) -> bool {
        self.owners.get(&qpn) == Some(&id)
    }

    /// Removes a connection or SIDR request that the application no longer holds. Returns its queue pair, if
    /// no other connection has that by now.
    pub(crate) fn abandon(&mut self, now: Instant, id: CommId) -> Option<Qpn> {
        let Entry { preparation, waker, .. } = self.entries.remove(&id).unwrap_or_default();
        self.wakers.released.extend(waker);
        self.manager.release(now, id);
        let qpn = preparation?.qpn;
        self.owns(id, qpn).then(|| self.owners.remove(&qpn))?;
        Some(qpn)
    }

    /// Returns the next event of a connection.
    pub(crate) fn next_notice(&mut self, id: CommId) -> Option<ConnectionNotice> {
        self.entries.get_mut(&id)?.notices.pop_front()
    }

    /// Takes the private data of the REP.
    pub(crate) fn take_reply(&mut self, id: CommId) -> Vec<u8> {
        self.entries.get_mut(&id).and_then(|entry| entry.reply.take()).unwrap_or_default()
    }

    /// Registers a task to wake at the next event of a connection; it replaces the previous task.
    pub(crate) fn wake_at_notice(&mut self, id: CommId, waker: Waker) {
        let replaced = match self.entries.get_mut(&id) {
            Some(entry) => entry.waker.replace(waker),
            None => Some(waker),
        };
        self.wakers.released.extend(replaced);
    }

    /// Listens, unless this process or another one with this address already listens.
    pub(crate) fn open_listener(
        &mut self,
        nic: &mut Nic,
        service_id: ServiceId,
        listen: CmListen,
    ) -> Result<(), CmError> {
        self.manager.listen(service_id, listen)?;
        if let Err(error) = nic.device_mut().claim_service(service_id.0) {
            if error.kind() == io::ErrorKind::AddrInUse {
                let _ = self.manager.unlisten(service_id);
                return Err(CmError::InUse(service_id));
            }
            tracing::warn!(%error, ?service_id, "requests that another process of the address receives do not get here");
        }
        self.listeners.insert(service_id, Listener::default());
        Ok(())
    }

    /// Stops listening, and refuses the requests that the application has not fetched.
    pub(crate) fn close_listener(&mut self, now: Instant, nic: &mut Nic, service_id: ServiceId) {
        let Some(mut listener) = self.listeners.remove(&service_id) else { return };
        nic.device_mut().release_service(service_id.0);
        self.close_raw_listener(service_id, &mut listener);
        self.wakers.released.append(&mut listener.wakers);
        // The manager knows every listener of this table.
        let _ = self.manager.unlisten(service_id);
        for request in listener.requests {
            let _ = self.manager.reject(now, request.id, RejReason::INVALID_SERVICE_ID, &[]);
        }
        for question in listener.questions {
            let nothing = (Qpn::default(), 0);
            let _ = self.manager.answer(now, question.id, SidrStatus::UNSUPPORTED, nothing, &[]);
        }
    }

    /// Returns the next request whose peer still waits for an answer.
    pub(crate) fn next_request(&mut self, service_id: ServiceId) -> Option<CmConnectRequest> {
        let listener = self.listeners.get_mut(&service_id)?;
        let manager = &self.manager;
        std::iter::from_fn(|| listener.requests.pop_front()).find(|request| is_open(manager, request.id))
    }

    pub(crate) fn next_question(&mut self, service_id: ServiceId) -> Option<CmSidrRequest> {
        let listener = self.listeners.get_mut(&service_id)?;
        let manager = &self.manager;
        std::iter::from_fn(|| listener.questions.pop_front()).find(|question| is_open(manager, question.id))
    }

    /// Registers a task to wake at the next connection or SIDR request.
    pub(crate) fn wake_at_request(&mut self, service_id: ServiceId, waker: Waker) {
        match self.listeners.get_mut(&service_id) {
            Some(listener) if !listener.wakers.iter().any(|known| known.will_wake(&waker)) => {
                listener.wakers.push(waker);
            }
            _ => self.wakers.released.push(waker),
        }
    }

    /// Accepts a request with a queue pair, or changes nothing. Until the peer answers the REP with an RTU or
    /// a packet of the connection, the queue pair only answers: the source address of the REQ may be forged.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        nic: &mut Nic,
        id: CommId,
        (preparation, offer): (&Preparation, &CmOffer),
        private_data: &[u8],
    ) -> Result<(), AcceptError> {
        self.manager.check_accept(id, private_data)?;
        let agreed = self.manager.preview(id, offer)?;
        // Bring the queue pair up before the REP is sent, because the peer's first packet may follow at once.
        let bring_up = |nic: &mut Nic| preparation.bring_up(now, nic, &agreed, true);
        self.siblings.with_nic_of(preparation.qpn, nic, bring_up)?;
        self.adopt(id, Some(*preparation));
        self.manager.accept(now, id, offer, private_data)?;
        self.awaited.push((preparation.qpn, id));
        Ok(())
    }

    pub(crate) fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.manager.counters().visit(visit);
        visit("cm_connections", self.manager.len() as u64);
        visit("cm_half_open", self.manager.half_open() as u64);
        visit("cm_not_posted", self.not_posted);
    }
}

/// Returns whether the peer still waits for an answer.
pub(super) fn is_open(manager: &ConnectionManager, id: CommId) -> bool {
    manager.state(id) != CmState::Closed
}

/// Appends a request that waits for the application. The manager limits open requests to the backlog, but
/// reports no withdrawn ones. Those stay until the queue has twice the length of the backlog.
pub(super) fn enqueue<T>(queue: &mut VecDeque<T>, new: T, is_open: impl Fn(&T) -> bool) {
    if queue.len() >= 2 * BACKLOG {
        queue.retain(is_open);
    }
    queue.push_back(new);
}

/// Decodes the path from the 40 bytes before a datagram, which contain the sender's IP header.
fn path_of(area: &[u8]) -> Option<Path> {
    let path = |encapsulation, source, destination, traffic_class, hop_limit| Path {
        encapsulation,
        source,
        destination,
        source_port: 0,
        traffic_class,
        hop_limit,
        flow_label: 0,
        vlan: None,
    };
    if area.first().is_some_and(|byte| byte >> 4 == 6) {
        let (ip, _) = Ipv6Header::parse(area).ok()?;
        let version_2 = (Encapsulation::RoceV2, ip.source.into(), ip.destination.into());
        let (encapsulation, source, destination) = match ip.next_header {
            IP_PROTOCOL_UDP => version_2,
            _ => {
                let (grh, _) = Grh::parse(area).ok()?;
                (Encapsulation::RoceV1, Gid::to_ip(grh.source), Gid::to_ip(grh.destination))
            }
        };
        return Some(path(encapsulation, source, destination, ip.traffic_class, ip.hop_limit));
    }
    let (ip, _) = Ipv4Header::parse(area.get(GRH_AREA - Ipv4Header::LEN..)?).ok()?;
    let (source, destination) = (ip.source.into(), ip.destination.into());
    Some(path(Encapsulation::RoceV2, source, destination, ip.traffic_class, ip.ttl))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use roce_packet::mad::{CmMad, CmMessage, CmMessageKind, CmRej, IpCm, PortSpace, TransportService};
    use roce_packet::{PathMtu, Psn};
    use roce_transport::cm::{CmAccepts, CmConnect, CmResolve, CmTiming};
    use roce_transport::{Engine, EngineConfig};

    use super::*;
    use crate::device::Clock;
    use crate::device::memory::MemoryDevice;

    const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Ib, 7174);
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
    const FLOOD: u32 = 100_000;

    const IP_CM: IpCm = IpCm { source_port: 40_000, source: PEER, destination: OWN };

    /// Returns the path from the peer to this end.
    fn path() -> Path {
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: PEER,
            destination: OWN,
            source_port: 55_410,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }

    /// Returns the first message that another manager sends.
    fn first_message(begin: impl FnOnce(&mut ConnectionManager) -> Result<CommId, CmError>) -> CmMad {
        let mut peer = ConnectionManager::new(CmConfig::new([3; 32], 3));
        begin(&mut peer).unwrap();
        CmMad::parse(&peer.poll_transmit(Instant::ZERO).unwrap().mad[..]).unwrap()
    }

    fn req() -> CmMad {
        let offer = CmOffer {
            qpn: Qpn::new(0x11),
            starting_psn: Psn::new(0),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            srq: false,
        };
        let connect = CmConnect {
            path: path(),
            service_id: SERVICE,
            transport: TransportService::Rc,
            offer,
            path_mtu: PathMtu::Mtu1024,
            flow_label: 0,
            retry_count: 7,
            timing: CmTiming::default(),
            ip_cm: Some(IP_CM),
            private_data: &[],
        };
        first_message(|peer| peer.connect(Instant::ZERO, &connect))
    }

    fn sidr_req() -> CmMad {
        let question = CmResolve {
            path: path(),
            service_id: SERVICE,
            timing: CmTiming::default(),
            ip_cm: Some(IP_CM),
            private_data: &[],
        };
        first_message(|peer| peer.resolve(Instant::ZERO, &question))
    }

    /// Returns the REJ with which the peer withdraws the request of `local_comm_id`.
    fn rej(local_comm_id: CommId) -> CmMad {
        let rej = CmRej {
            local_comm_id,
            remote_comm_id: CommId(0),
            rejected: CmMessageKind::Req,
            info_length: 0,
            reason: RejReason::TIMEOUT,
            info: [0; CmRej::INFO],
            private_data: [0; CmRej::PRIVATE_DATA],
        };
        CmMad::new(1, CmMessage::Rej(rej))
    }

    fn arrive(cm: &mut CmService, now: Instant, nic: &mut Nic, mad: &CmMad) {
        let mut bytes = [0; MAD_LEN];
        mad.emit(&mut bytes);
        cm.manager.handle_mad(now, &path(), Qpn::GSI, &bytes);
        cm.settle(now, nic);
    }

    fn numbered(mut mad: CmMad, number: u32) -> CmMad {
        mad.transaction_id = number.into();
        if let CmMessage::Req(req) = &mut mad.message {
            (req.local_comm_id, req.local_qpn) = (CommId(number), Qpn::new(number));
        }
        mad
    }

    /// Runs `work` with a listener and a connection management that only the test serves.
    fn with_listener(work: impl FnOnce(&mut CmService, Instant, &mut Nic)) {
        let (device, _peer) = MemoryDevice::pair(OWN, PEER).unwrap();
        let mut nic = Nic::new(Engine::new(EngineConfig::from_number(7)), Box::new(device), Clock::start());
        let mut cm = CmService::new(&mut nic, Siblings::default()).unwrap();
        let listen = CmListen { accepts: CmAccepts::Both, backlog: BACKLOG, ip_cm: true };
        cm.open_listener(&mut nic, SERVICE, listen).unwrap();
        let now = nic.now();
        work(&mut cm, now, &mut nic);
    }

    /// Each SIDR request withdraws the previous one: it has the same number but another transaction.
    #[test]
    fn questions_taken_back_fill_no_memory() {
        with_listener(|cm, now, nic| {
            let question = sidr_req();
            for number in 1..=FLOOD {
                arrive(cm, now, nic, &numbered(question, number));
                assert!(cm.listeners[&SERVICE].questions.len() <= 2 * BACKLOG);
            }
            let newest = cm.next_question(SERVICE).expect("the last one was not taken back");
            assert_eq!(cm.manager.state(newest.id), CmState::SidrReqReceived);
            assert!(cm.next_question(SERVICE).is_none());
        });
    }

    #[test]
    fn requests_taken_back_fill_no_memory() {
        with_listener(|cm, now, nic| {
            let request = req();
            arrive(cm, now, nic, &numbered(request, 1));
            for number in 2..=FLOOD {
                arrive(cm, now, nic, &numbered(request, number));
                arrive(cm, now, nic, &rej(CommId(number)));
                assert!(cm.listeners[&SERVICE].requests.len() <= 2 * BACKLOG);
            }
            let oldest = cm.next_request(SERVICE).expect("the first one was not taken back");
            assert_eq!(oldest.request.local_comm_id, CommId(1));
            assert!(cm.next_request(SERVICE).is_none());
        });
    }
}
