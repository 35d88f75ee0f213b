//! Two hosts with the engine of `roce`, a requester and a responder, and the link between them, event by
//! event.
//!
//! A person posts work requests, changes packets on the link, and sees what both ends decide and why. Time is
//! virtual and everything follows from the settings, so equal calls give equal results.

mod completions;
mod packets;
mod rules;
mod settings;
mod state;
mod story;
mod work;

use std::collections::VecDeque;

use roce_analysis::ladder::Ladder;
use roce_packet::{Psn, Qpn};
use roce_sim::pair::{Action, Pair, PairEvent, Side};
use roce_transport::{Access, Instant, Pending, QpType, RKey, RecvWr, SendWr};

use crate::ladder::{ladder_json, to_json};
use packets::{CORRUPT, Packets};
use settings::Settings;
use story::{Again, Change, Kind, Line, Snapshot, name};
use work::{Completion, Free, MEMORY, Order, Progress, Receive, Request, length};

/// Entries that the log keeps.
const MOST_ENTRIES: usize = 2_000;
/// Events that [`Hosts::run`] handles at most, so that a page stays responsive.
const MOST_EVENTS: usize = 100_000;
/// Packets after which nothing more is posted, because all packets are kept for the capture.
const MOST_PACKETS: usize = 20_000;
/// Longest delay of a packet, in microseconds.
const MOST_DELAY_US: f64 = 1e9;

/// Two hosts and the link between them.
#[derive(Debug)]
pub struct Hosts {
    pair: Pair,
    ends: [End; 2],
    packets: Packets,
    log: VecDeque<Entry>,
    start: Instant,
    is_selective: bool,
}

/// The state of one host besides its engine.
#[derive(Debug)]
struct End {
    qpn: Qpn,
    /// The key with which the peer accesses the memory of this host.
    rkey: RKey,
    free: Free,
    next_id: u64,
    next_psn: Psn,
    requests: Vec<Request>,
    /// The receives without a completion, oldest first.
    receives: VecDeque<Receive>,
    /// Number of messages that have arrived in receives.
    arrived: usize,
    completions: Vec<Completion>,
    again: Option<Again>,
}

impl End {
    fn new(qpn: Qpn, rkey: RKey) -> Self {
        Self {
            qpn,
            rkey,
            free: Free::default(),
            next_id: 1,
            next_psn: Psn::new(0),
            requests: Vec::new(),
            receives: VecDeque::new(),
            arrived: 0,
            completions: Vec::new(),
            again: None,
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

/// An entry of the log.
#[derive(Debug)]
struct Entry {
    at: Instant,
    side: Side,
    line: Line,
    packet: Option<u64>,
}

impl Hosts {
    /// Creates two connected hosts. `json` contains the settings that differ from the defaults.
    ///
    /// # Errors
    ///
    /// Returns a sentence that names the wrong setting.
    pub fn new(json: &str) -> Result<Self, String> {
        let settings = Settings::read(json)?;
        let is_selective = settings.engine.recovery != roce_transport::Recovery::GoBackN;
        let mut pair = Pair::with_config(settings.engine, MEMORY);
        pair.link_delay_ns = settings.link_ns;
        pair.packet_time_ns = settings.packet_ns;
        let (a, b) = pair.connect_with(QpType::Rc, &settings.pair);
        let [of_a, of_b] = [Side::A, Side::B].map(|side| key_of(&mut pair, side, settings.write_key_ok));
        let ends = [End::new(a, of_a?), End::new(b, of_b?)];
        let start = pair.now;
        Ok(Self { pair, ends, packets: Packets::default(), log: VecDeque::new(), start, is_selective })
    }

    /// Posts a send request, which `json` describes.
    ///
    /// # Errors
    ///
    /// Returns a sentence if the request is wrong or there is no room for it.
    pub fn post(&mut self, json: &str) -> Result<(), String> {
        let order = Order::read(json)?;
        let (side, len) = (side_of(order.side)?, order.len()?);
        self.check_room()?;
        let local = self.reserve(side, len)?;
        // A SEND arrives in a receive, which has its own memory.
        let remote = if order.op.is_remote() { self.reserve(side.other(), len)? } else { 0 };
        let psns = if order.op.is_atomic() { 1 } else { self.packets_of(side, len) };
        let end = self.end_mut(side);
        let (wr_id, first_psn) = (end.next_id, end.next_psn);
        let seed = wr_id << 24 | (side as u64) << 60;
        let progress = Progress::Open;
        let request = Request { wr_id, op: order.op, len, first_psn, psns, progress, local, remote, seed };
        request.fill(&mut self.pair, side);
        let RKey(key) = self.end(side.other()).rkey;
        // The number of the key is right, and its variant is wrong, as that of a revoked key.
        let rkey = RKey(if order.bad_key { key ^ 0xff } else { key });
        let op = request.send_op(order.remote_addr(remote, len), rkey);
        let elements = [self.pair.host(side).memory_range(local, len)];
        let qpn = self.end(side).qpn;
        let posted = self.pair.post_send(side, qpn, &SendWr::new(wr_id, op, &elements));
        posted.map_err(|error| error.to_string())?;
        let wrong = match (order.bad_key, order.past_end) {
            (true, true) => ", with a wrong key and a range past the end of the memory",
            (true, false) => ", with a wrong key",
            (false, true) => ", with a range past the end of the memory",
            (false, false) => "",
        };
        let (first, last) = (first_psn.get(), request.last_psn().get());
        let psns = if first == last { format!("PSN {first}") } else { format!("PSNs {first} to {last}") };
        let text = format!("A {} is posted as request {wr_id}, for {psns}{wrong}.", request.words());
        let end = self.end_mut(side);
        end.next_psn = request.last_psn().next();
        end.take_id();
        end.requests.push(request);
        self.note(side, Line::new(Kind::Post, rules::POST, text), None);
        self.take_completions();
        Ok(())
    }

    /// Posts a receive of this number of bytes.
    ///
    /// # Errors
    ///
    /// Returns a sentence if there is no such host or no room for the receive.
    pub fn post_recv(&mut self, side: usize, bytes: usize) -> Result<(), String> {
        let (side, len) = (side_of(side)?, length(bytes as u64)?);
        self.check_room()?;
        let at = self.reserve(side, len)?;
        let element = self.pair.host(side).memory_range(at, len);
        let (wr_id, qpn) = (self.end(side).next_id, self.end(side).qpn);
        let posted = self.pair.host_mut(side).engine.post_recv(qpn, &RecvWr { wr_id, elements: &[element] });
        posted.map_err(|error| error.to_string())?;
        let end = self.end_mut(side);
        end.take_id();
        end.receives.push_back(Receive { wr_id, at, len });
        let text = format!("A receive of {} is posted as request {wr_id}.", work::bytes(len));
        self.note(side, Line::new(Kind::Post, rules::POST, text), None);
        self.take_completions();
        Ok(())
    }

    /// Handles the next event: one departure, one arrival, or the end of one timer. Returns `false` if no
    /// event is left.
    pub fn step(&mut self) -> bool {
        // A timer that was moved may come up early, without any effect.
        while let Some(before) = self.snapshots() {
            let Some(event) = self.pair.step_event() else { return false };
            if self.tell(event, before) {
                return true;
            }
        }
        false
    }

    /// Handles events until none is left, or until only a receive that a person posts can end the retries
    /// after RNR NAKs.
    pub fn run(&mut self) {
        for _ in 0..MOST_EVENTS {
            if !self.step() {
                return;
            }
            if let Some(side) = self.blocked() {
                let (who, peer) = (name(side), name(side.other()));
                let text = format!(
                    "The run stops: with rnr_retry 7, the {who} tries again until the {peer} posts a receive."
                );
                return self.note(side, Line::new(Kind::Rnr, rules::RNR, text), None);
            }
        }
    }

    /// Returns the state of both hosts, the packets on the link, and the log, as JSON.
    #[must_use]
    pub fn state(&self) -> String {
        self.to_json().to_string()
    }

    /// Changes a packet on the link: `drop`, `delay` by `value` microseconds, `duplicate`, `mark`, `corrupt`,
    /// or `deliver now`.
    ///
    /// # Errors
    ///
    /// Returns a sentence if the packet is not on the link, or the action or its value is wrong.
    pub fn act(&mut self, id: usize, action: &str, value: f64) -> Result<(), String> {
        let number = id as u64;
        if !self.pair.on_link().any(|packet| packet.number == number) {
            return Err(format!(
                "packet {id} is not on the link; it has arrived, was dropped, or never left"
            ));
        }
        match action {
            "drop" => self.drop_packet(number),
            "delay" => {
                if !(value > 0.0 && value <= MOST_DELAY_US) {
                    return Err(format!(
                        "the delay is {value} µs; use a time above 0, up to {MOST_DELAY_US} µs"
                    ));
                }
                let nanos = (value * 1e3).ceil() as u64;
                self.pair.act(number, Action::Delay(nanos));
                if let Some(packet) = self.packets.get_mut(number) {
                    packet.delay(nanos);
                }
            }
            "duplicate" => self.duplicate(number),
            "mark" => self.change(number, "mark", Action::Mark),
            "corrupt" => {
                // A second change would undo the first one.
                let packet = self.packets.get(number).filter(|packet| !packet.is_corrupt);
                let bit = packet.ok_or_else(|| format!("packet {id} is corrupted already"))?.last_bit();
                self.change(number, CORRUPT, Action::FlipBit(bit));
            }
            "deliver now" => self.deliver_now(number),
            _ => {
                return Err(format!(
                    "there is no action {action:?}; use drop, delay, duplicate, mark, corrupt or deliver now"
                ));
            }
        }
        Ok(())
    }

    /// Returns a packet as an Ethernet frame in hexadecimal digits, whether or not it is still on the link.
    ///
    /// # Errors
    ///
    /// Returns a sentence if there is no packet with this number.
    pub fn frame(&self, id: usize) -> Result<String, String> {
        let packet = self.packets.get(id as u64).ok_or_else(|| format!("there is no packet {id}"))?;
        Ok(packet.frame().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the ladder that `roce ladder` draws of all packets, as JSON.
    #[must_use]
    pub fn ladder(&self, most_rows: usize) -> String {
        let analysis = self.packets.analyze();
        let ladder = match analysis.connections.first() {
            Some(connection) => ladder_json(&analysis, connection, most_rows),
            None => {
                let end =
                    |side| format!("{} QP {:#x}", self.pair.host(side).address, self.end(side).qpn.get());
                to_json(&Ladder { ends: [end(Side::A), end(Side::B)], rows: Vec::new() })
            }
        };
        ladder.to_string()
    }

    /// Returns all packets as a pcapng file.
    #[must_use]
    pub fn pcap(&self) -> Vec<u8> {
        // Writing to memory cannot fail.
        self.packets.pcap().unwrap_or_default()
    }

    /// Tells whether nothing is left to do.
    fn is_idle(&self) -> bool {
        let is_quiet = |side| {
            let end = self.end(side);
            let engine = &self.pair.host(side).engine;
            let has_timer = engine.rc_state(end.qpn).is_some_and(|state| state.timers != [None, None]);
            !has_timer && self.is_silent(side)
        };
        self.pair.in_flight() == 0 && is_quiet(Side::A) && is_quiet(Side::B)
    }

    /// Tells whether an engine has no packet to send now.
    fn is_silent(&self, side: Side) -> bool {
        match self.pair.host(side).engine.pending(self.pair.now) {
            Pending::Nothing => true,
            Pending::Turns => !self.end(side).is_busy(),
            Pending::Acknowledgements | Pending::More => false,
        }
    }

    /// Returns the host whose retries after RNR NAKs never end, if nothing else is going on.
    fn blocked(&self) -> Option<Side> {
        let waits = |side: Side| {
            let end = self.end(side);
            let engine = &self.pair.host(side).engine;
            let is_endless = engine.query_qp(end.qpn).is_some_and(|attributes| attributes.rnr_retry == 7);
            let is_paused = engine.rc_state(end.qpn).is_some_and(|state| state.timers[1].is_some());
            is_endless && is_paused && self.end(side.other()).receives.is_empty()
        };
        let sides = [Side::A, Side::B];
        let is_stuck = |side: &Side| waits(*side) || !self.end(*side).is_busy();
        let is_empty = self.pair.in_flight() == 0 && sides.iter().all(|side| self.owes_nothing(*side));
        if is_empty && sides.iter().all(is_stuck) {
            sides.into_iter().find(|side| waits(*side))
        } else {
            None
        }
    }

    /// Tells whether a host owes its peer no answer.
    fn owes_nothing(&self, side: Side) -> bool {
        // A paused requester is counted as a host with more packets.
        self.is_silent(side) || self.end(side).is_busy()
    }

    fn check_room(&self) -> Result<(), String> {
        if self.packets.len() < MOST_PACKETS {
            return Ok(());
        }
        Err(format!("this run already has {} packets, which are all kept; start again", self.packets.len()))
    }

    /// Takes memory of a host. Memory that no request uses any more is taken again.
    fn reserve(&mut self, side: Side, len: usize) -> Result<usize, String> {
        if let Some(at) = self.end_mut(side).free.take(len) {
            return Ok(at);
        }
        let is_used = self.ends.iter().any(End::is_busy) || !self.end(side).receives.is_empty();
        if !is_used {
            self.end_mut(side).free = Free::default();
        }
        self.end_mut(side).free.take(len).ok_or_else(|| {
            format!("the memory of the {} is in use; step until its requests are complete", name(side))
        })
    }

    /// Returns the number of packets of a message.
    fn packets_of(&self, side: Side, len: usize) -> u32 {
        let attributes = self.pair.host(side).engine.query_qp(self.end(side).qpn);
        let mtu = attributes.map_or(1024, |attributes| attributes.path_mtu.bytes());
        u32::try_from(len.div_ceil(mtu).max(1)).unwrap_or(u32::MAX)
    }

    fn end(&self, side: Side) -> &End {
        let [a, b] = &self.ends;
        match side {
            Side::A => a,
            Side::B => b,
        }
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        let [a, b] = &mut self.ends;
        match side {
            Side::A => a,
            Side::B => b,
        }
    }

    fn snapshot(&self, side: Side) -> Option<Snapshot> {
        Snapshot::take(&self.pair, side, self.end(side).qpn)
    }

    fn snapshots(&self) -> Option<[Snapshot; 2]> {
        Some([self.snapshot(Side::A)?, self.snapshot(Side::B)?])
    }

    /// Returns what changed at a host since both had these states.
    fn change_of(&self, side: Side, [a, b]: [Snapshot; 2]) -> Option<Change> {
        let before = if side == Side::A { a } else { b };
        let after = self.snapshot(side)?;
        let failure = self.pair.host(side).engine.reason(self.end(side).qpn).map(|reason| reason.rule);
        let is_selective = self.is_selective;
        Some(Change { side, now: self.pair.now, before, after, failure, is_selective })
    }

    /// Adds an event to the log. Returns `false` if it had no effect.
    fn tell(&mut self, event: PairEvent, before: [Snapshot; 2]) -> bool {
        let told = match event {
            PairEvent::Departure(number) => self.departed(number, before),
            PairEvent::Arrival(number, verdict) => self.arrived(number, verdict, before),
            PairEvent::Timers(side) => self.change_of(side, before).and_then(|change| {
                self.end_mut(side).again = change.again().or(self.end(side).again);
                let line = change.expired()?;
                Some((side, line, None))
            }),
        };
        let is_told = told.is_some();
        if let Some((side, line, packet)) = told {
            self.note(side, line, packet);
        }
        self.take_completions() || is_told
    }

    fn departed(&mut self, number: u64, before: [Snapshot; 2]) -> Option<(Side, Line, Option<u64>)> {
        let on_link = self.pair.on_link().find(|packet| packet.number == number)?;
        self.packets.record(&on_link);
        let packet = self.packets.get(number)?;
        let change = self.change_of(packet.from, before)?;
        Some((packet.from, change.left(packet, self.end(packet.from).again), Some(number)))
    }

    fn arrived(
        &mut self,
        number: u64,
        verdict: roce_transport::Verdict,
        before: [Snapshot; 2],
    ) -> Option<(Side, Line, Option<u64>)> {
        let packet = self.packets.get(number)?;
        let side = packet.from.other();
        let change = self.change_of(side, before)?;
        let line = change.arrived(packet, verdict);
        if let Some(again) = change.again() {
            self.end_mut(side).again = Some(again);
        }
        Some((side, line, Some(number)))
    }

    fn drop_packet(&mut self, number: u64) {
        self.pair.act(number, Action::Drop);
        let Some(packet) = self.packets.get_mut(number) else { return };
        packet.drop_it();
        let text = format!("{} is lost on the link, and neither end is told.", packet.label);
        let side = packet.from;
        self.note(side, Line::new(Kind::Drop, rules::RESEND, text), Some(number));
    }

    fn duplicate(&mut self, number: u64) {
        let Some(copy) = self.pair.act(number, Action::Duplicate) else { return };
        self.packets.copy(number, copy, self.pair.packet_time_ns);
        let Some(packet) = self.packets.get_mut(number) else { return };
        packet.action = Some("duplicate");
        let text = format!("{} is on the link twice from now on.", packet.label);
        let side = packet.from;
        self.note(side, Line::new(Kind::Send, rules::DUPLICATE, text), Some(copy));
    }

    fn change(&mut self, number: u64, word: &'static str, action: Action) {
        self.pair.act(number, action);
        let changed = self.pair.on_link().find(|packet| packet.number == number);
        if let (Some(packet), Some(changed)) = (self.packets.get_mut(number), changed) {
            packet.change(word, &changed);
        }
    }

    fn deliver_now(&mut self, number: u64) {
        let Some(before) = self.snapshots() else { return };
        if let Some(packet) = self.packets.get_mut(number) {
            packet.hasten(self.pair.now);
        }
        if let Some(verdict) = self.pair.deliver_now(number) {
            self.tell(PairEvent::Arrival(number, verdict), before);
        }
    }

    fn note(&mut self, side: Side, line: Line, packet: Option<u64>) {
        if self.log.len() >= MOST_ENTRIES {
            self.log.pop_front();
        }
        self.log.push_back(Entry { at: self.pair.now, side, line, packet });
    }
}

/// Returns the key with which the peer accesses the memory of a host, with or without the right to write.
fn key_of(pair: &mut Pair, side: Side, allows_writes: bool) -> Result<RKey, String> {
    if allows_writes {
        return Ok(pair.host(side).rkey());
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let region = pair.host_mut(side).register(access);
    region.map(|region| region.rkey).map_err(|error| error.to_string())
}

fn side_of(index: usize) -> Result<Side, String> {
    match index {
        0 => Ok(Side::A),
        1 => Ok(Side::B),
        _ => Err(format!("there is no host {index}; use 0 for the requester and 1 for the responder")),
    }
}
