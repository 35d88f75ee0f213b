//! The messages of the peers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce_packet::mad::{
    CmDrep, CmDreq, CmMad, CmMessage, CmMessageKind, CmMra, CmRej, CmRep, CmRtu, CmSidrRep, CmTimeout,
    CommId, IpCm, MAD_LEN, PortSpace, RejReason, ServiceId, SidrStatus, TransportService,
};
use roce_packet::{Encapsulation, Path, PathMtu, Psn, Qpn};
use roce_transport::Instant;
use roce_transport::cm::{
    CmConfig, CmConnect, CmInput, CmOffer, CmResolve, CmState, CmTiming, ConnectionManager,
};

use super::step::{Action, Step};

/// Number of peers; the last one uses IPv6.
pub(super) const PEERS: usize = 3;

/// Response timeout of 17 ms, and packet lifetime of 4 ms.
const TIMING: CmTiming =
    CmTiming { response_timeout: CmTimeout::new(12), packet_lifetime: CmTimeout::new(10), max_retries: 3 };

/// The services for which the application listens. The second one does not use the rdma_cm header.
pub(super) const SERVICES: [ServiceId; 2] =
    [ServiceId::of_port(PortSpace::Tcp, 7174), ServiceId::of_port(PortSpace::Udp, 7175)];

/// Returns the path from the manager to a peer.
pub(super) fn path(peer: usize) -> Path {
    let v4 = |last| IpAddr::V4(Ipv4Addr::new(198, 18, 0, last));
    let v6 = |last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
    let (source, destination) = match peer % PEERS {
        0 => (v4(1), v4(2)),
        1 => (v4(1), v4(3)),
        _ => (v6(1), v6(2)),
    };
    Path {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination,
        source_port: 55410,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

/// Returns a connection request along `path`, from a queue pair with this number.
pub(super) fn connect(path: Path, service_id: ServiceId, number: u32) -> CmConnect<'static> {
    CmConnect {
        path,
        service_id,
        transport: TransportService::Rc,
        offer: offer(number),
        path_mtu: PathMtu::Mtu1024,
        flow_label: number & 1,
        retry_count: 7,
        timing: TIMING,
        ip_cm: Some(ip_cm(&path)),
        private_data: b"hello",
    }
}

/// Returns a service query along `path`.
pub(super) fn resolve(path: Path, service_id: ServiceId) -> CmResolve<'static> {
    CmResolve { path, service_id, timing: TIMING, ip_cm: Some(ip_cm(&path)), private_data: b"where?" }
}

fn ip_cm(path: &Path) -> IpCm {
    IpCm { source_port: 40_000, source: path.source, destination: path.destination }
}

/// Returns the parameters of a queue pair with this number.
pub(super) fn offer(number: u32) -> CmOffer {
    CmOffer {
        qpn: Qpn::new(number),
        starting_psn: Psn::new(number << 4),
        responder_resources: 4,
        initiator_depth: 8,
        rnr_retry_count: 7,
        srq: false,
    }
}

/// A message of a peer: the number of the peer, and the bytes.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) peer: usize,
    pub(super) bytes: Box<[u8; MAD_LEN]>,
}

impl Sent {
    /// Damages the message as `step` says.
    pub(super) fn damaged(mut self, step: &Step) -> Self {
        if let Some(byte) = self.bytes.get_mut(usize::from(step.at)) {
            *byte ^= step.damage;
        }
        self
    }

    fn new(peer: usize, mad: &CmMad) -> Self {
        let mut bytes = Box::new([0; MAD_LEN]);
        mad.emit(&mut bytes);
        Self { peer, bytes }
    }
}

/// Returns the `count`th connection request or service query of a peer.
pub(super) fn beginning(step: &Step, count: u32) -> Option<Sent> {
    let peer = usize::from(step.peer) % PEERS;
    let mut other = ConnectionManager::new(CmConfig::new([9; 32], 9));
    let service_id = SERVICES[usize::from(step.which) % SERVICES.len()];
    let way = path(peer).reply();
    // A peer sometimes reuses a number.
    let number = 16 + (count.wrapping_sub(step.id.into()) & 0xff);
    let begun = match step.action() {
        Action::SidrReq => other.resolve(Instant::ZERO, &resolve(way, service_id)),
        _ => other.connect(Instant::ZERO, &connect(way, service_id, number)),
    };
    begun.expect("nothing is wrong with it");
    let mut mad =
        CmMad::parse(&other.poll_transmit(Instant::ZERO)?.mad[..]).expect("what is sent can be read");
    mad.transaction_id = number.into();
    match &mut mad.message {
        CmMessage::Req(req) => {
            req.local_comm_id = CommId(number);
            req.remote_cm_response_timeout = CmTimeout::new(12 ^ step.time);
            req.primary.local_ack_timeout = CmTimeout::new(12 ^ step.time);
        }
        CmMessage::SidrReq(req) => req.request_id = CommId(number),
        _ => {}
    }
    Some(Sent::new(peer, &mad))
}

/// Returns the answer of a peer to a message.
pub(super) fn answer(step: &Step, peer: usize, got: &CmMad) -> Sent {
    let (ours, theirs) = ids(&got.message);
    // The peer chooses its number if it has not chosen one yet.
    let named = if theirs.0 == 0 { 0x1000 | ours.0 & 0xff } else { theirs.0 };
    let (local_comm_id, remote_comm_id) = (CommId(named ^ u32::from(step.id)), ours);
    let kinds = [CmMessageKind::Req, CmMessageKind::Rep, CmMessageKind::Other, CmMessageKind::Reserved];
    let kind = kinds[usize::from(step.kind) % kinds.len()];
    let message = match step.action() {
        Action::Rtu => {
            CmMessage::Rtu(CmRtu { local_comm_id, remote_comm_id, private_data: [1; CmRtu::PRIVATE_DATA] })
        }
        Action::Rej => CmMessage::Rej(CmRej {
            local_comm_id: if step.kind & 0x80 == 0 { local_comm_id } else { CommId(0) },
            remote_comm_id: if step.kind & 0x40 == 0 { remote_comm_id } else { CommId(0) },
            rejected: kind,
            info_length: 0,
            reason: RejReason(u16::from(step.kind & 0x3f)),
            info: [0; CmRej::INFO],
            private_data: [2; CmRej::PRIVATE_DATA],
        }),
        Action::Mra => CmMessage::Mra(CmMra {
            local_comm_id,
            remote_comm_id,
            received: kind,
            service_timeout: CmTimeout::new(step.time),
            private_data: [3; CmMra::PRIVATE_DATA],
        }),
        Action::Dreq => CmMessage::Dreq(CmDreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: qpn(&got.message).unwrap_or(Qpn::new(step.kind.into())),
            private_data: [4; CmDreq::PRIVATE_DATA],
        }),
        Action::Drep => {
            CmMessage::Drep(CmDrep { local_comm_id, remote_comm_id, private_data: [5; CmDrep::PRIVATE_DATA] })
        }
        Action::SidrRep => CmMessage::SidrRep(CmSidrRep {
            request_id: remote_comm_id,
            status: SidrStatus(step.kind),
            info_length: 0,
            qpn: Qpn::new(77),
            service_id: SERVICES[0],
            q_key: 78,
            info: [0; CmSidrRep::INFO],
            private_data: [6; CmSidrRep::PRIVATE_DATA],
        }),
        _ => CmMessage::Rep(CmRep {
            local_comm_id,
            remote_comm_id,
            local_q_key: 0,
            local_qpn: Qpn::new(local_comm_id.0),
            vendor_id: 0,
            local_eecn: 0,
            starting_psn: Psn::new(local_comm_id.0),
            responder_resources: step.kind,
            initiator_depth: step.kind.rotate_left(4),
            target_ack_delay: CmTimeout::new(step.time),
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: step.kind & 7,
            srq: step.kind & 8 != 0,
            local_ca_guid: 1,
            private_data: [7; CmRep::PRIVATE_DATA],
        }),
    };
    Sent::new((peer + usize::from(step.peer)) % PEERS, &CmMad::new(got.transaction_id, message))
}

/// Returns the communication IDs of a message: of its sender and of its receiver, or 0 if it does not contain
/// one.
fn ids(message: &CmMessage) -> (CommId, CommId) {
    match message {
        CmMessage::Req(req) => (req.local_comm_id, CommId(0)),
        CmMessage::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id),
        CmMessage::Rej(rej) => (rej.local_comm_id, rej.remote_comm_id),
        CmMessage::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id),
        CmMessage::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id),
        CmMessage::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_comm_id),
        CmMessage::Drep(drep) => (drep.local_comm_id, drep.remote_comm_id),
        CmMessage::SidrReq(req) => (req.request_id, CommId(0)),
        CmMessage::SidrRep(rep) => (CommId(0), rep.request_id),
    }
}

/// Returns the queue pair of a message's sender, if the message contains it.
fn qpn(message: &CmMessage) -> Option<Qpn> {
    match message {
        CmMessage::Req(req) => Some(req.local_qpn),
        CmMessage::Rep(rep) => Some(rep.local_qpn),
        _ => None,
    }
}

/// Returns whether a message may move a connection from one state to another. It may follow the table, show
/// that the peer has forgotten the connection, or take the record of the connection for a new one.
pub(super) fn leads(message: &CmMessage, before: CmState, after: CmState) -> bool {
    let input = match message {
        CmMessage::Req(_) => CmInput::Req,
        CmMessage::Rep(_) => CmInput::Rep,
        CmMessage::Rtu(_) => CmInput::Rtu,
        CmMessage::Mra(_) => CmInput::Mra,
        CmMessage::Rej(_) => CmInput::Rej,
        CmMessage::Dreq(_) => CmInput::Dreq,
        CmMessage::Drep(_) => CmInput::Drep,
        CmMessage::SidrReq(_) => CmInput::SidrReq,
        CmMessage::SidrRep(_) => CmInput::SidrRep,
    };
    let question = matches!(before, CmState::SidrReqSent | CmState::SidrReqReceived | CmState::SidrAnswered);
    let forgotten = match (input, after) {
        (CmInput::Req | CmInput::Rep, CmState::Closed) => !question,
        (CmInput::Req | CmInput::Rep, CmState::DreqSent) => before == CmState::Established,
        (CmInput::SidrReq, CmState::Closed) => before == CmState::SidrReqReceived,
        _ => false,
    };
    // Starting connections take records, and so do ended ones in time-wait.
    let takes_room =
        matches!(input, CmInput::Req | CmInput::SidrReq | CmInput::Dreq | CmInput::Drep | CmInput::Rej);
    let makes_room = takes_room && before.lingers() && after == CmState::Closed;
    before.after(input) == Some(after) || forgotten || makes_room
}
