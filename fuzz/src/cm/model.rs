//! The manager under test, and the state of the application and of the peers.

use std::collections::{BTreeMap, BTreeSet};

use roce_packet::Qpn;
use roce_packet::mad::{CmMad, CmTimeout, CommId, RejReason, SidrStatus};
use roce_transport::Instant;
use roce_transport::cm::{
    CmAccepts, CmConfig, CmError, CmEvent, CmInput, CmListen, CmState, ConnectionManager,
};

use super::message::{PEERS, SERVICES, Sent, answer, beginning, connect, leads, offer, path, resolve};
use super::step::{Action, Step};

const BACKLOG: usize = 4;
const MOST_CONNECTIONS: usize = 20;
const MOST_LINGERING: usize = 4;
const MOST_QUEUED: usize = 16;
/// Number of remembered items of each kind to which a record can refer.
const MOST_REMEMBERED: usize = 64;
/// Maximum number of deadlines until the manager is idle. Each record has one per repetition, and a few more.
const MOST_DEADLINES: usize = MOST_CONNECTIONS * 64;

/// The progress of a connection from the application's point of view; it only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// A service query waits for its answer.
    Question,
    Asked,
    Responded,
    Established,
    Over,
    Gone,
}

pub(super) struct Rig {
    manager: ConnectionManager,
    now: Instant,
    phases: BTreeMap<CommId, Phase>,
    /// Known connections in the order in which they started.
    known: Vec<CommId>,
    /// Messages that peers received, with the number of the peer.
    got: Vec<(usize, CmMad)>,
    /// Messages that peers sent.
    sent: Vec<Sent>,
    /// Number of messages delivered to the manager, and number of messages that it sent.
    arrived: u64,
    left: u64,
    begun: u32,
    /// States of connections after steps.
    pub(super) seen: BTreeSet<CmState>,
}

impl Rig {
    pub(super) fn new() -> Self {
        let config = CmConfig {
            max_connections: MOST_CONNECTIONS,
            max_pending: BACKLOG + 2,
            max_lingering: MOST_LINGERING,
            max_queued: MOST_QUEUED,
            ..CmConfig::new([7; 32], 0x0200_00ff_fe00_0001)
        };
        let mut rig = Self {
            manager: ConnectionManager::new(config),
            now: Instant::from_nanos(1),
            phases: BTreeMap::new(),
            known: Vec::new(),
            got: Vec::new(),
            sent: Vec::new(),
            arrived: 0,
            left: 0,
            begun: 0,
            seen: BTreeSet::new(),
        };
        rig.listen(0);
        rig
    }

    pub(super) fn take(&mut self, step: &Step) {
        match step.action() {
            Action::Req | Action::SidrReq => {
                self.begun += 1;
                if let Some(sent) = beginning(step, self.begun) {
                    self.arrive(sent.damaged(step));
                }
            }
            Action::Rep
            | Action::Rtu
            | Action::Rej
            | Action::Mra
            | Action::Dreq
            | Action::Drep
            | Action::SidrRep => {
                if let Some((peer, mad)) = back(&self.got, step.which) {
                    self.arrive(answer(step, *peer, mad).damaged(step));
                }
            }
            Action::Repeat => {
                if let Some(sent) = back(&self.sent, step.which).cloned() {
                    self.arrive(sent.damaged(step));
                }
            }
            Action::Listen => self.listen(step.which.into()),
            Action::Wait => self.wait(step.time),
            Action::Connect | Action::Resolve => self.begin(step),
            _ => {
                if let Some(id) = back(&self.known, step.which).copied() {
                    self.call(step, id);
                }
            }
        }
        self.drain();
        self.check();
        self.seen.extend(self.known.iter().map(|id| self.manager.state(*id)));
    }

    fn listen(&mut self, which: usize) {
        let service = SERVICES[which % SERVICES.len()];
        let ip_cm = which.is_multiple_of(SERVICES.len());
        let listen = |backlog| CmListen { accepts: CmAccepts::Both, backlog, ip_cm };
        if self.manager.is_listening(service) {
            assert!(self.manager.listen(service, listen(1)).is_err());
            self.manager.unlisten(service).expect("there is a listener");
        } else {
            assert!(self.manager.unlisten(service).is_err());
            self.manager.listen(service, listen(BACKLOG)).expect("there is no listener");
        }
    }

    fn begin(&mut self, step: &Step) {
        let path = path(step.peer.into());
        let service = SERVICES[usize::from(step.which) % SERVICES.len()];
        self.begun += 1;
        let (begun, phase) = match step.action() {
            Action::Resolve => {
                let begun = self.manager.resolve(self.now, &resolve(path, service));
                (begun, Phase::Question)
            }
            _ => {
                let number = 16 + (self.begun & 0xff);
                (self.manager.connect(self.now, &connect(path, service, number)), Phase::Asked)
            }
        };
        match begun {
            Ok(id) => self.learn(id, phase),
            Err(error) => {
                assert_eq!(error, CmError::TooManyConnections { limit: MOST_CONNECTIONS }, "{error}")
            }
        }
    }

    fn learn(&mut self, id: CommId, phase: Phase) {
        assert_eq!(self.phases.insert(id, phase), None, "{id} comes up twice");
        self.known.push(id);
    }

    /// Makes a call about a connection, and compares the result with the table.
    fn call(&mut self, step: &Step, id: CommId) {
        let (now, time) = (self.now, CmTimeout::new(step.time));
        let before = self.manager.state(id);
        let manager = &mut self.manager;
        let (input, result) = match step.action() {
            Action::Accept => {
                let own = offer(step.kind.into());
                let preview = manager.preview(id, &own);
                let accepted = manager.accept(now, id, &own, b"yes");
                if let Ok(accepted) = accepted {
                    assert_eq!(preview, Ok(accepted), "what was shown before");
                }
                (CmInput::Accept, accepted.map(|_| ()))
            }
            Action::Reject => (CmInput::Refuse, manager.reject(now, id, RejReason(step.kind.into()), b"no")),
            Action::Ready => (CmInput::Ready, manager.ready(now, id, b"go")),
            Action::Delay => (CmInput::Delay, manager.delay(now, id, time)),
            Action::FirstPacket => (CmInput::FirstPacket, manager.notify_first_packet(now, id)),
            Action::Disconnect => (CmInput::Disconnect, manager.disconnect(now, id, b"bye")),
            Action::Answer => {
                let status = SidrStatus(step.kind);
                (CmInput::Answer, manager.answer(now, id, status, (Qpn::new(5), 6), b"here"))
            }
            _ => {
                manager.release(now, id);
                self.phases.insert(id, Phase::Gone);
                return;
            }
        };
        let expected = before.after(input);
        assert_eq!(result.is_ok(), expected.is_some(), "{input:?} in {before:?}: {result:?}");
        match (expected, result) {
            (Some(to), _) => {
                assert_eq!(self.manager.state(id), to, "{input:?} in {before:?}");
                self.note(id, input);
            }
            (None, Err(error)) => {
                let _ = error.to_string();
                assert_eq!(self.manager.state(id), before, "a call that fails changes nothing");
            }
            (None, Ok(())) => {}
        }
    }

    /// Updates the expected events after a call of the application.
    fn note(&mut self, id: CommId, input: CmInput) {
        match input {
            CmInput::Accept => self.proceed(id, Phase::Responded),
            CmInput::Refuse | CmInput::Answer => {
                self.phases.insert(id, Phase::Gone);
            }
            _ => {}
        }
    }

    /// Delivers a message to the manager.
    fn arrive(&mut self, sent: Sent) {
        let states: Vec<_> = self.known.iter().map(|id| (*id, self.manager.state(*id))).collect();
        let message = CmMad::parse(&sent.bytes[..]).ok().map(|mad| mad.message);
        self.manager.handle_mad(self.now, &path(sent.peer).reply(), Qpn::GSI, &sent.bytes[..]);
        self.arrived += 1;
        remember(&mut self.sent, sent);
        for (id, before) in states {
            let after = self.manager.state(id);
            let led = message.as_ref().is_some_and(|message| leads(message, before, after));
            assert!(before == after || led, "{message:?} led {id} from {before:?} to {after:?}");
        }
    }

    fn wait(&mut self, time: u8) {
        let next = self.manager.poll_timeout();
        self.now = match (time & 0x1f, next) {
            (0, Some(next)) => next.max(self.now),
            (code, _) => self.now.plus_nanos(CmTimeout::new(code).nanos()),
        };
        self.manager.handle_timeout(self.now);
        if let Some(next) = self.manager.poll_timeout() {
            assert!(next > self.now, "a deadline that has passed is left");
        }
    }

    fn drain(&mut self) {
        let mut queued = 0;
        while let Some(transmit) = self.manager.poll_transmit(self.now) {
            queued += 1;
            let to = (0..PEERS).find(|peer| path(*peer).destination == transmit.path.destination);
            let to = to.expect("it goes to a peer");
            assert_eq!(transmit.path.source, path(to).source, "and comes from here");
            assert_eq!(transmit.remote_qpn, Qpn::GSI);
            let mad = CmMad::parse(&transmit.mad[..]).expect("what is sent can be read");
            remember(&mut self.got, (to, mad));
        }
        assert!(queued <= MOST_QUEUED, "{queued} datagrams waited");
        self.left += queued as u64;
        while let Some(event) = self.manager.poll_event() {
            self.hear(&event);
        }
    }

    fn hear(&mut self, event: &CmEvent) {
        let id = event.id();
        match event {
            CmEvent::ConnectRequest(request) => {
                let _ = request.private_data();
                self.learn(id, Phase::Asked);
            }
            CmEvent::SidrRequest(request) => {
                let _ = request.private_data();
                self.learn(id, Phase::Question);
            }
            CmEvent::ConnectResponse { parameters, .. } => {
                self.proceed(id, Phase::Responded);
                assert!(parameters.max_rd_atomic <= 8 && parameters.max_dest_rd_atomic <= 4);
            }
            CmEvent::Established { .. } => {
                assert_eq!(self.phases.get(&id), Some(&Phase::Responded), "{event:?}");
                self.proceed(id, Phase::Established);
            }
            CmEvent::Disconnected { .. } => {
                assert!(self.phases.get(&id) >= Some(&Phase::Responded), "{event:?}");
                self.proceed(id, Phase::Over);
            }
            CmEvent::TimewaitExit { .. } => {
                assert_eq!(self.phases.get(&id), Some(&Phase::Over), "{event:?}");
                self.proceed(id, Phase::Gone);
            }
            CmEvent::Rejected { .. } => {
                let before = self.phases.get(&id).copied();
                assert!(
                    matches!(before, Some(Phase::Asked | Phase::Responded)),
                    "{event:?} after {before:?}"
                );
                self.proceed(id, Phase::Gone);
            }
            CmEvent::Unreachable { .. } => {
                assert!(self.phases.get(&id) < Some(&Phase::Established), "{event:?}");
                self.proceed(id, Phase::Gone);
            }
            CmEvent::Resolved { .. } | CmEvent::Unresolved { .. } => {
                assert_eq!(self.phases.get(&id), Some(&Phase::Question), "{event:?}");
                self.proceed(id, Phase::Gone);
            }
            other => panic!("{other:?} is new"),
        }
    }

    #[track_caller]
    fn proceed(&mut self, id: CommId, phase: Phase) {
        let before = self.phases.insert(id, phase);
        assert!(before.is_some() && before < Some(phase), "{id}: {phase:?} after {before:?}");
    }

    fn check(&self) {
        assert!(self.manager.len() <= MOST_CONNECTIONS, "{} records", self.manager.len());
        let counters = self.manager.counters();
        assert_eq!(counters.received + counters.malformed, self.arrived, "each message is counted once");
        assert_eq!(counters.sent, self.left, "what was sent came out");
    }

    /// Runs the manager without further input until it is idle.
    fn rest(&mut self) {
        for _ in 0..MOST_DEADLINES {
            if self.manager.poll_timeout().is_none() {
                return;
            }
            self.wait(0);
            self.drain();
            self.check();
        }
        panic!("the manager does not come to rest");
    }

    /// Releases all connections and checks the end state, see the [module](super).
    pub(super) fn tear_down(&mut self) {
        self.rest();
        for id in &self.known {
            let state = self.manager.state(*id);
            // Connections in these states wait for the application without a limit.
            let waits = matches!(state, CmState::Established | CmState::RepReceived | CmState::MraRepSent);
            assert!(waits || state == CmState::Closed, "{id} rests in {state:?}");
        }
        for id in std::mem::take(&mut self.known) {
            self.manager.release(self.now, id);
            self.phases.insert(id, Phase::Gone);
            self.drain();
        }
        self.rest();
        assert!(self.manager.is_empty(), "{} records are left", self.manager.len());
        self.whole_backlog();
    }

    /// Checks that as many requests can wait as at the start, so that no ended request still counts.
    fn whole_backlog(&mut self) {
        for service in SERVICES {
            if self.manager.is_listening(service) {
                self.manager.unlisten(service).expect("there is a listener");
            }
        }
        self.listen(0);
        for _ in 0..BACKLOG {
            self.take(&Step::of(Action::Req));
        }
        assert_eq!(self.known.len(), BACKLOG, "requests that can wait");
    }
}

/// Returns the item at position `which` from the end, modulo the length.
fn back<T>(list: &[T], which: u8) -> Option<&T> {
    let from_end = usize::from(which).checked_rem(list.len())?;
    list.iter().rev().nth(from_end)
}

/// Appends an item, and removes the oldest one if the list is full.
fn remember<T>(list: &mut Vec<T>, new: T) {
    if list.len() >= MOST_REMEMBERED {
        list.remove(0);
    }
    list.push(new);
}
