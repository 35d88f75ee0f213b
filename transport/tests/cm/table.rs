//! Tests the table of states, row by row, against the behaviour of a manager, and that other inputs have no
//! effect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use roce_packet::Qpn;
use roce_packet::mad::{
    CmDrep, CmDreq, CmMad, CmMessage, CmMessageKind, CmMra, CmRej, CmRep, CmRtu, CmSidrRep, CmTimeout,
    CommId, RejReason, SidrStatus,
};
use roce_transport::Instant;
use roce_transport::cm::{
    CmAccepts, CmError, CmEvent, CmInput, CmListen, CmState, ConnectionManager, TRANSITIONS,
};

use crate::world::{ACTIVE, PASSIVE, SERVICE, bytes, manager, offer, path, question, request};

/// The peer's ID of the connection, and the queue pairs.
const THEIRS: CommId = CommId(0x7777);
const THEIR_QP: Qpn = Qpn::new(0x22);
const OWN_QP: Qpn = Qpn::new(0x11);

/// A manager and a simulated peer.
pub(crate) struct Rig {
    pub(crate) now: Instant,
    pub(crate) manager: ConnectionManager,
    pub(crate) id: CommId,
    active: bool,
    /// The request of the peer, for the passive side.
    req: Option<CmMad>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let mut manager = manager(1);
        manager.listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 1, ip_cm: true }).unwrap();
        Self { now: Instant::from_nanos(1), manager, id: CommId(0), active: true, req: None }
    }

    fn state(&self) -> CmState {
        if self.id == CommId(0) { CmState::Idle } else { self.manager.state(self.id) }
    }

    fn arrive(&mut self, mad: CmMad) {
        let path = path(if self.active { PASSIVE } else { ACTIVE });
        self.manager.handle_mad(self.now, &path, Qpn::GSI, &bytes(&mad));
    }

    fn message(&mut self, message: CmMessage) {
        self.arrive(CmMad::new(5, message));
    }

    /// Delivers the first message of a peer, made by another manager.
    fn first(&mut self, input: CmInput) {
        let again = self.req;
        let mad = again.unwrap_or_else(|| {
            let mut peer = manager(2);
            match input {
                CmInput::Req => peer.connect(self.now, &request(THEIR_QP.get())).unwrap(),
                _ => peer.resolve(self.now, &question()).unwrap(),
            };
            let transmit = peer.poll_transmit(self.now).unwrap();
            let mut mad = CmMad::parse(&transmit.mad[..]).unwrap();
            match &mut mad.message {
                CmMessage::Req(req) => req.local_comm_id = THEIRS,
                CmMessage::SidrReq(req) => req.request_id = THEIRS,
                other => panic!("{other:?}"),
            }
            mad
        });
        self.req = Some(mad);
        self.active = false;
        self.arrive(mad);
        while let Some(event) = self.manager.poll_event() {
            if matches!(event, CmEvent::ConnectRequest(_) | CmEvent::SidrRequest(_)) {
                self.id = event.id();
            }
        }
    }

    pub(crate) fn apply(&mut self, input: CmInput) {
        let (now, id) = (self.now, self.id);
        let (local_comm_id, remote_comm_id) = (THEIRS, self.id);
        match input {
            CmInput::Connect => self.id = self.manager.connect(now, &request(OWN_QP.get())).unwrap(),
            CmInput::Resolve => self.id = self.manager.resolve(now, &question()).unwrap(),
            CmInput::Accept => tried(self.manager.accept(now, id, &offer(OWN_QP.get()), b"")),
            CmInput::Delay => tried(self.manager.delay(now, id, CmTimeout::new(10))),
            CmInput::Ready => tried(self.manager.ready(now, id, b"")),
            CmInput::Refuse => tried(self.manager.reject(now, id, RejReason::CONSUMER, b"")),
            CmInput::Disconnect => tried(self.manager.disconnect(now, id, b"")),
            CmInput::FirstPacket => tried(self.manager.notify_first_packet(now, id)),
            CmInput::Answer => {
                tried(self.manager.answer(now, id, SidrStatus::VALID, (OWN_QP, 1), b""));
            }
            CmInput::Req | CmInput::SidrReq => self.first(input),
            CmInput::Mra => {
                let received = if self.active { CmMessageKind::Req } else { CmMessageKind::Rep };
                let service_timeout = CmTimeout::new(10);
                let private_data = [0; CmMra::PRIVATE_DATA];
                self.message(CmMessage::Mra(CmMra {
                    local_comm_id,
                    remote_comm_id,
                    received,
                    service_timeout,
                    private_data,
                }));
            }
            CmInput::Rej => self.message(CmMessage::Rej(CmRej {
                local_comm_id,
                remote_comm_id,
                rejected: CmMessageKind::Other,
                info_length: 0,
                reason: RejReason::CONSUMER,
                info: [0; CmRej::INFO],
                private_data: [0; CmRej::PRIVATE_DATA],
            })),
            CmInput::Rep => {
                let mut content = [0; 256];
                CmMad::new(5, CmMessage::Rep(rep(local_comm_id, remote_comm_id))).emit(&mut content);
                self.arrive(CmMad::parse(&content).unwrap());
            }
            CmInput::Rtu => {
                let private_data = [0; CmRtu::PRIVATE_DATA];
                self.message(CmMessage::Rtu(CmRtu { local_comm_id, remote_comm_id, private_data }));
            }
            CmInput::Dreq => {
                let (remote_qpn, private_data) = (OWN_QP, [0; CmDreq::PRIVATE_DATA]);
                self.message(CmMessage::Dreq(CmDreq {
                    local_comm_id,
                    remote_comm_id,
                    remote_qpn,
                    private_data,
                }));
            }
            CmInput::Drep => {
                let private_data = [0; CmDrep::PRIVATE_DATA];
                self.message(CmMessage::Drep(CmDrep { local_comm_id, remote_comm_id, private_data }));
            }
            CmInput::SidrRep => self.message(CmMessage::SidrRep(CmSidrRep {
                request_id: id,
                status: SidrStatus::VALID,
                info_length: 0,
                qpn: THEIR_QP,
                service_id: SERVICE,
                q_key: 1,
                info: [0; CmSidrRep::INFO],
                private_data: [0; CmSidrRep::PRIVATE_DATA],
            })),
            CmInput::Expire => self.expire(),
            other => panic!("{other:?} is new"),
        }
    }

    /// Lets all repetitions expire.
    fn expire(&mut self) {
        let before = self.state();
        for _ in 0..20 {
            let Some(deadline) = self.manager.poll_timeout() else { return };
            self.now = deadline;
            self.manager.handle_timeout(self.now);
            if self.state() != before {
                return;
            }
        }
        panic!("{before:?} never ends");
    }
}

fn rep(local_comm_id: CommId, remote_comm_id: CommId) -> CmRep {
    CmRep {
        local_comm_id,
        remote_comm_id,
        local_q_key: 0,
        local_qpn: THEIR_QP,
        vendor_id: 0,
        local_eecn: 0,
        starting_psn: Default::default(),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: CmTimeout::new(15),
        failover_accepted: 1,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        local_ca_guid: 2,
        private_data: [0; CmRep::PRIVATE_DATA],
    }
}

/// Accepts an error, because some states refuse the call.
fn tried<T>(_: Result<T, CmError>) {}

/// Returns the shortest paths from [`CmState::Idle`] to every state, one for each first step.
pub(crate) fn ways() -> BTreeMap<CmState, Vec<Vec<CmInput>>> {
    let mut ways: BTreeMap<CmState, Vec<Vec<CmInput>>> = BTreeMap::new();
    let firsts = TRANSITIONS.iter().filter(|(from, _, _)| *from == CmState::Idle);
    for (_, first, state) in firsts {
        let mut seen = BTreeSet::from([*state]);
        let mut open = VecDeque::from([(*state, vec![*first])]);
        while let Some((state, way)) = open.pop_front() {
            for (_, input, to) in TRANSITIONS.iter().filter(|(from, _, _)| *from == state) {
                if seen.insert(*to) {
                    open.push_back((*to, [&way[..], &[*input]].concat()));
                }
            }
            ways.entry(state).or_default().push(way);
        }
    }
    ways.insert(CmState::Idle, vec![Vec::new()]);
    ways
}

const INPUTS: [CmInput; 19] = [
    CmInput::Connect,
    CmInput::Resolve,
    CmInput::Accept,
    CmInput::Delay,
    CmInput::Ready,
    CmInput::Refuse,
    CmInput::Disconnect,
    CmInput::FirstPacket,
    CmInput::Answer,
    CmInput::Req,
    CmInput::Mra,
    CmInput::Rej,
    CmInput::Rep,
    CmInput::Rtu,
    CmInput::Dreq,
    CmInput::Drep,
    CmInput::SidrReq,
    CmInput::SidrRep,
    CmInput::Expire,
];

/// Returns whether an input begins another exchange, which the state of this connection does not determine.
fn begins_something_else(rig: &Rig, input: CmInput) -> bool {
    let same_kind = match (input, rig.req.map(|mad| mad.message)) {
        (CmInput::Req, Some(CmMessage::Req(_))) | (CmInput::SidrReq, Some(CmMessage::SidrReq(_))) => true,
        (CmInput::Req | CmInput::SidrReq | CmInput::Connect | CmInput::Resolve, _) => false,
        _ => true,
    };
    !same_kind && rig.state() != CmState::Idle
}

#[test]
fn every_input_in_every_state() {
    let mut rows = BTreeSet::new();
    let mut silent = 0;
    for (state, ways) in ways() {
        for (way, input) in ways.iter().flat_map(|way| INPUTS.map(|input| (way, input))) {
            let mut rig = Rig::new();
            for step in way {
                rig.apply(*step);
            }
            assert_eq!(rig.state(), state, "after {way:?}");
            // Before the first message, an input cannot refer to a connection.
            if begins_something_else(&rig, input) || state == CmState::Closed {
                continue;
            }
            rig.apply(input);
            match state.after(input) {
                Some(to) => {
                    // The passive side never gets a REP, though it may have refused as the active side may.
                    let misplaced = !rig.active && input == CmInput::Rep;
                    let to = if misplaced { state } else { to };
                    assert_eq!(rig.state(), to, "after {way:?} and {input:?}");
                    rows.insert((state, input));
                }
                None => {
                    assert_eq!(rig.state(), state, "after {way:?}, {input:?} should change nothing");
                    silent += 1;
                }
            }
        }
    }
    let table: BTreeSet<_> = TRANSITIONS.iter().map(|(from, input, _)| (*from, *input)).collect();
    assert_eq!(table.len(), TRANSITIONS.len(), "a row stands twice");
    assert_eq!(rows, table, "rows that nothing here exercises");
    println!("{} rows, {silent} combinations that change nothing", rows.len());
}

/// Messages from another host, or with the wrong IDs, change nothing.
#[test]
fn messages_of_strangers() {
    let inputs = [
        CmInput::Mra,
        CmInput::Rej,
        CmInput::Rep,
        CmInput::Rtu,
        CmInput::Dreq,
        CmInput::Drep,
        CmInput::SidrRep,
    ];
    for (state, ways) in ways() {
        for (way, input) in ways.iter().flat_map(|way| inputs.map(|input| (way, input))) {
            let mut rig = Rig::new();
            way.iter().for_each(|step| rig.apply(*step));
            // The right message to the wrong end comes from another address.
            rig.active = !rig.active;
            rig.apply(input);
            assert_eq!(rig.state(), state, "after {way:?}, {input:?} from elsewhere");
        }
    }
}
