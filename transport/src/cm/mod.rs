//! Connection management: establishes connections and exchanges their attributes (IBTA 12, Annex A11).
//!
//! A [`ConnectionManager`] exchanges the connection management messages of one device. Like the engine it
//! owns no clock, socket or random source. It does not access queue pairs: its events contain the attributes
//! for a queue pair, and its caller passes the datagrams of queue pair 1.
//!
//! ```text
//!   active                                    passive
//!   connect    ──────── REQ ───────▶  ConnectRequest
//!   ConnectResponse ◀── REP ────────  accept            (or REJ: reject)
//!   ready      ──────── RTU ───────▶  Established
//!   ...                                        ...
//!   disconnect ──────── DREQ ──────▶  Disconnected
//!   Disconnected ◀───── DREP ───────
//!   TimewaitExit                      TimewaitExit
//! ```
//!
//! A message that expects an answer is repeated until an answer arrives, and each duplicate is answered
//! again, so any message may be lost. The table [`TRANSITIONS`] contains all state transitions.
//!
//! This manager differs from the kernel's in three ways. It answers a DREQ at once, without asking the
//! application. It remembers a refusal for a while, so that a repeated REQ is not a new request. Until a peer
//! has answered a message, at most three messages are sent to its address for each REQ from that address. A
//! REQ with the forged address of another host therefore cannot make this end flood that host.

mod application;
mod connection;
mod counters;
mod datagrams;
mod parameters;
mod receive;
mod state;
mod timers;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::IpAddr;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use roce_packet::Qpn;
use roce_packet::mad::{CmMad, CommId, ServiceId};

pub use counters::CmCounters;
pub use parameters::{
    CmAccepts, CmConfig, CmConnect, CmConnectRequest, CmError, CmEvent, CmListen, CmOffer, CmQpParameters,
    CmResolve, CmSidrRequest, CmTiming, CmTransmit,
};
pub use state::{CmInput, CmState, TRANSITIONS};

use crate::Instant;
use crate::slot::ProcessSlot;
use connection::{Connection, Route, bytes_of};

/// The connections of one device. See the [module documentation](self).
///
/// The contract is that of the engine: make one input ([`handle_mad`](Self::handle_mad),
/// [`handle_timeout`](Self::handle_timeout), or a call such as [`connect`](Self::connect)), then drain
/// [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event), then read
/// [`poll_timeout`](Self::poll_timeout). No call panics, whatever a peer sends. [`CmConfig`] limits the size
/// of all tables.
#[derive(Debug)]
pub struct ConnectionManager {
    config: CmConfig,
    now: Instant,
    rng: ChaCha12Rng,
    listeners: BTreeMap<ServiceId, Listener>,
    connections: BTreeMap<CommId, Box<Connection>>,
    /// Connections by the peer's ID, and by the peer's queue pair while the connection holds that queue pair.
    by_remote: BTreeMap<(IpAddr, CommId), CommId>,
    by_peer_qpn: BTreeMap<(IpAddr, Qpn), CommId>,
    /// SIDR requests have a separate number space.
    sidr_by_remote: BTreeMap<(IpAddr, CommId), CommId>,
    deadlines: BTreeSet<(Instant, CommId)>,
    /// Records that only linger, oldest first. Some of them may have been removed already.
    lingering: VecDeque<CommId>,
    /// Number of requests that wait for the application.
    pending: usize,
    /// Number of accepted requests whose peer has not answered the REP.
    half_open: usize,
    transmits: VecDeque<CmTransmit>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
}

#[derive(Debug)]
struct Listener {
    listen: CmListen,
    pending: usize,
}

impl ConnectionManager {
    /// Creates a manager without connections and listeners.
    #[must_use]
    pub fn new(config: CmConfig) -> Self {
        Self {
            rng: ChaCha12Rng::from_seed(config.seed),
            config,
            now: Instant::ZERO,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            by_peer_qpn: BTreeMap::new(),
            sidr_by_remote: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            lingering: VecDeque::new(),
            pending: 0,
            half_open: 0,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &CmConfig {
        &self.config
    }

    /// Returns the next datagram to be sent from queue pair 1.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<CmTransmit> {
        self.set_now(now);
        self.transmits.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Returns the state of a connection, or [`CmState::Closed`] if it does not exist.
    #[must_use]
    pub fn state(&self, id: CommId) -> CmState {
        self.connections.get(&id).map_or(CmState::Closed, |connection| connection.state)
    }

    /// Returns the number of records, including those that only linger.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Tells whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn set_now(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Draws a random unused ID, within the process slot if there is one. 0 means "unknown" in rejections.
    fn draw_id(&mut self) -> Result<CommId, CmError> {
        let limit = self.config.max_connections.min(1 << 20);
        let slot = self.config.process_slot;
        // Without a slot all bits are random, so that others cannot guess an ID.
        let (first, drawn) = match slot {
            ProcessSlot::NONE => (0, u32::MAX),
            slot => (slot.first_qpn() << 8, u32::MAX >> (24 - slot.bits_below())),
        };
        if self.connections.len() >= limit {
            return Err(CmError::TooManyConnections { limit });
        }
        loop {
            let id = CommId(first | self.rng.next_u32() & drawn);
            if id.0 != 0 && !self.connections.contains_key(&id) {
                return Ok(id);
            }
        }
    }

    fn draw_transaction_id(&mut self, id: CommId) -> u64 {
        u64::from(self.rng.next_u32()) << 32 | u64::from(id.0)
    }

    /// Moves a connection to its next state. Returns `None` if the input has no effect in the current state.
    fn advance(&mut self, connection: &mut Connection, input: CmInput) -> Option<CmState> {
        let Some(to) = connection.state.after(input) else {
            self.counters.unexpected += 1;
            return None;
        };
        tracing::debug!(id = connection.id.0, from = ?connection.state, ?input, ?to, "connection");
        let held = connection.peer_qpn();
        self.count_half_open(connection.state, to);
        connection.state = to;
        if let Some(qpn) = held
            && connection.peer_qpn().is_none()
        {
            self.forget_peer_qpn(connection, qpn);
        }
        let waits = matches!(to, CmState::ReqReceived | CmState::MraReqSent | CmState::SidrReqReceived);
        if connection.pending && !waits {
            self.leave_backlog(connection);
        }
        Some(to)
    }

    fn count_half_open(&mut self, from: CmState, to: CmState) {
        if from == CmState::RepSent {
            self.half_open = self.half_open.saturating_sub(1);
        }
        if to == CmState::RepSent {
            self.half_open += 1;
        }
    }

    /// Returns the number of accepted requests whose peer has not answered the REP.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.half_open
    }

    fn leave_backlog(&mut self, connection: &mut Connection) {
        connection.pending = false;
        self.pending = self.pending.saturating_sub(1);
        if let Some(listener) = self.listeners.get_mut(&connection.service_id) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }

    fn forget_peer_qpn(&mut self, connection: &Connection, qpn: Qpn) {
        let key = (connection.route.path.destination, qpn);
        if self.by_peer_qpn.get(&key) == Some(&connection.id) {
            self.by_peer_qpn.remove(&key);
        }
    }

    /// Removes a record to change it. The caller must then [`put`](Self::put) it back or
    /// [`close`](Self::close) it.
    fn take(&mut self, id: CommId) -> Result<Box<Connection>, CmError> {
        self.connections.remove(&id).ok_or(CmError::Unknown(id))
    }

    fn put(&mut self, connection: Box<Connection>) {
        self.connections.insert(connection.id, connection);
    }

    /// Removes all references to a record that was taken out.
    fn close(&mut self, mut connection: Box<Connection>) {
        self.set_deadline(&mut connection, None);
        self.count_half_open(connection.state, CmState::Closed);
        if connection.pending {
            self.leave_backlog(&mut connection);
        }
        if let Some(terms) = &connection.terms {
            self.forget_peer_qpn(&connection, terms.parameters.dest_qpn);
        }
        if let Some(remote) = connection.remote {
            let key = (connection.route.path.destination, remote);
            for map in [&mut self.by_remote, &mut self.sidr_by_remote] {
                if map.get(&key) == Some(&connection.id) {
                    map.remove(&key);
                }
            }
        }
    }

    fn set_deadline(&mut self, connection: &mut Connection, deadline: Option<Instant>) {
        if let Some(old) = connection.deadline.take() {
            self.deadlines.remove(&(old, connection.id));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, connection.id));
            connection.deadline = Some(new);
        }
    }

    fn wake_after(&mut self, connection: &mut Connection, nanos: u64) {
        let deadline = self.now.plus_nanos(nanos);
        self.set_deadline(connection, Some(deadline));
    }

    /// Sends a message and repeats it until its answer arrives.
    fn send_repeatedly(&mut self, connection: &mut Connection, mad: CmMad) {
        connection.retries_left = connection.repetition.retries;
        connection.last = Some(mad);
        self.send_of(connection, &mad);
        self.wake_after(connection, connection.repetition.interval_ns);
    }

    /// Sends the last message again.
    fn send_again(&mut self, connection: &mut Connection) {
        if let Some(mad) = connection.last {
            let sent = self.send_of(connection, &mad);
            self.counters.repeated += u64::from(sent);
        }
    }

    /// Sends a message of a connection, unless the credit of an unanswered address is used up: the address
    /// may belong to a host that never made a request. Returns whether the message was sent.
    fn send_of(&mut self, connection: &mut Connection, mad: &CmMad) -> bool {
        if let Some(credit) = &mut connection.credit {
            let Some(left) = credit.checked_sub(1) else {
                self.counters.withheld += 1;
                return false;
            };
            *credit = left;
        }
        self.send(&connection.route, mad);
        true
    }

    fn send(&mut self, route: &Route, mad: &CmMad) {
        if self.transmits.len() >= self.config.max_queued {
            self.counters.dropped_queue_full += 1;
            return;
        }
        self.counters.sent += 1;
        let mad = Box::new(bytes_of(mad));
        self.transmits.push_back(CmTransmit { path: route.path, remote_qpn: route.qpn, mad });
    }

    fn tell(&mut self, connection: &Connection, event: CmEvent) {
        if !connection.silent {
            self.events.push_back(event);
        }
    }

    /// Keeps a record for late packets. Removes the oldest such record if there are too many.
    fn linger(&mut self, mut connection: Box<Connection>, nanos: u64) {
        let nanos = nanos.min(self.config.longest_wait.nanos());
        self.wake_after(&mut connection, nanos);
        self.lingering.push_back(connection.id);
        self.put(connection);
        while self.lingering.len() > self.config.max_lingering {
            let Some(oldest) = self.lingering.pop_front() else { break };
            if self.state(oldest).lingers()
                && let Ok(connection) = self.take(oldest)
            {
                let state = connection.state;
                self.finish_lingering(connection, state);
            }
        }
    }

    /// Removes a record that lingered in `state`.
    fn finish_lingering(&mut self, connection: Box<Connection>, state: CmState) {
        if state == CmState::Timewait {
            self.tell(&connection, CmEvent::TimewaitExit { id: connection.id });
        }
        self.close(connection);
        while self.lingering.front().is_some_and(|id| !self.connections.contains_key(id)) {
            self.lingering.pop_front();
        }
    }
}
