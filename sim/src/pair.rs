//! Two engines and the link between them in virtual time, for protocol tests.
//!
//! ```
//! use roce_sim::pair::{Pair, Side};
//! use roce_transport::{QpType, SendOp, SendWr, WcStatus};
//!
//! let mut pair = Pair::new(1);
//! let (a, b) = pair.connect(QpType::Rc);
//! let target = pair.host(Side::B).memory_range(0, 5);
//! pair.host_mut(Side::A).write_memory(0, b"hello");
//! let source = pair.host(Side::A).memory_range(0, 5);
//! let op = SendOp::Write { remote_addr: target.addr, rkey: pair.host(Side::B).rkey() };
//! pair.post_send(Side::A, a, &SendWr::new(7, op, &[source]))?;
//! pair.drive();
//! assert_eq!(pair.completions(Side::A)[0].status, WcStatus::Success);
//! assert_eq!(pair.host(Side::B).read_memory(0, 5), b"hello");
//! # let _ = b;
//! # Ok::<(), roce_transport::PostError>(())
//! ```

mod events;
mod host;
mod packet;
mod settings;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use roce_packet::{Datagram, Encapsulation, Opcode, Path, Psn, Qpn};
use roce_transport::{
    Allowed, EngineConfig, Identification, Instant, PostError, QpInit, QpOptions, QpState, QpType, Received,
    RecvWr, SendWr, Transmit, TxSlot, Verdict, Wc,
};

pub use events::PairEvent;
pub use host::{Host, MEMORY_BASE, MEMORY_LEN, Side};
use packet::InFlight;
pub use packet::{Action, OnLink};
pub use settings::{Settings, bring_up_attributes};

/// A packet on the link, as a script sees it.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The time at which the packet left its sender.
    pub at: Instant,
    /// The sender.
    pub from: Side,
    /// The opcode of the packet.
    pub opcode: Opcode,
    /// The PSN of the packet.
    pub psn: Psn,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// The addresses and the traffic class.
    pub path: Path,
    /// The number of packets that the sender sent before this one.
    pub index: usize,
    /// The bytes of the packet from BTH to ICRC.
    pub bytes: Vec<u8>,
    /// The action that the script chose for the packet.
    pub action: Action,
}

/// A function that chooses the action for each packet.
pub type Script = Box<dyn FnMut(&Sent) -> Action>;

/// Two hosts and the link between them.
pub struct Pair {
    /// The current time.
    pub now: Instant,
    /// One-way delay of the link in nanoseconds.
    pub link_delay_ns: u64,
    /// The time in nanoseconds that each packet occupies the link. With 0, the default, packets sent at the
    /// same time arrive at the same time.
    pub packet_time_ns: u64,
    /// The sides whose device accepts no packet at present ("would block"), so that the engine is not polled.
    pub blocked: [bool; 2],
    /// Every packet that was put on the link, if [`Self::record`] is set.
    pub sent: Vec<Sent>,
    /// Whether [`Self::sent`] is recorded.
    pub record: bool,
    hosts: [Host; 2],
    /// The packets on the link, by the time of their arrival and their number.
    in_flight: BTreeMap<(Instant, u64), InFlight>,
    /// The number of the newest packet; the first one has number 1.
    sequence: u64,
    sent_by: [usize; 2],
    /// The time at which the link becomes free, by sender.
    free_at: [Instant; 2],
    script: Option<Script>,
    /// The verdicts of the engines on received packets.
    pub verdicts: Vec<(Side, Verdict)>,
    slot: Vec<u8>,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Pair")
            .field("now", &self.now)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}
impl Pair {
    /// Creates two hosts, 198.18.0.1 and 198.18.0.2, with a link delay of one microsecond.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_config(EngineConfig::from_number(seed), MEMORY_LEN)
    }

    /// Like [`new`](Self::new), with other engine settings and memory size. The two sides use different
    /// seeds.
    #[must_use]
    pub fn with_config(config: EngineConfig, memory_len: usize) -> Self {
        let mut other = config.clone();
        for byte in &mut other.seed {
            *byte ^= 0x5a;
        }
        let host = |config, last| Host::new(config, IpAddr::V4(Ipv4Addr::new(198, 18, 0, last)), memory_len);
        Self {
            now: Instant::from_nanos(1_000_000),
            link_delay_ns: 1_000,
            packet_time_ns: 0,
            blocked: [false; 2],
            sent: Vec::new(),
            record: false,
            hosts: [host(config, 1), host(other, 2)],
            in_flight: BTreeMap::new(),
            sequence: 0,
            sent_by: [0; 2],
            free_at: [Instant::ZERO; 2],
            script: None,
            verdicts: Vec::new(),
            slot: vec![0; 8192],
        }
    }

    /// Returns one of the hosts.
    #[must_use]
    pub fn host(&self, side: Side) -> &Host {
        &self.hosts[side as usize]
    }

    /// Returns a mutable reference to one of the hosts.
    pub fn host_mut(&mut self, side: Side) -> &mut Host {
        &mut self.hosts[side as usize]
    }

    /// Calls `script` for every packet from now on.
    pub fn set_script(&mut self, script: impl FnMut(&Sent) -> Action + 'static) {
        self.script = Some(Box::new(script));
    }

    /// Returns the path from one side to the other.
    #[must_use]
    pub fn path(&self, from: Side) -> Path {
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: self.host(from).address,
            destination: self.host(from.other()).address,
            source_port: 0xc000,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }

    /// Creates a queue pair in RESET on one side.
    #[track_caller]
    pub fn create_qp(&mut self, side: Side, qp_type: QpType, settings: &Settings) -> Qpn {
        let host = self.host_mut(side);
        if qp_type == QpType::XrcRecv {
            let xrcd = host.xrcd();
            return host.engine.create_xrc_target(xrcd, &QpOptions::default()).expect("a target can be made");
        }
        let init = QpInit {
            qp_type,
            pd: host.pd,
            send_cq: host.cq,
            recv_cq: host.cq,
            srq: None,
            capabilities: settings.capabilities,
            signal_all: false,
        };
        host.engine.create_qp(&init).expect("a queue pair can be made")
    }

    /// Creates two connected queue pairs in RTS. Two UD queue pairs can exchange datagrams.
    #[track_caller]
    pub fn connect(&mut self, qp_type: QpType) -> (Qpn, Qpn) {
        self.connect_with(qp_type, &Settings::default())
    }

    /// Like [`connect`](Self::connect), with other settings.
    #[track_caller]
    pub fn connect_with(&mut self, qp_type: QpType, settings: &Settings) -> (Qpn, Qpn) {
        let a = self.create_qp(Side::A, qp_type, settings);
        let b = self.create_qp(Side::B, qp_type, settings);
        self.bring_up(Side::A, a, b, settings, QpState::Rts);
        self.bring_up(Side::B, b, a, settings, QpState::Rts);
        (a, b)
    }

    /// Moves a queue pair from RESET up to `state` (INIT, RTR or RTS).
    #[track_caller]
    pub fn bring_up(&mut self, side: Side, own: Qpn, peer: Qpn, settings: &Settings, state: QpState) {
        let host = self.host(side);
        let qp_type = host.engine.qp_type(own).expect("the queue pair exists");
        let (path, now) = (self.path(side), self.now);
        let host = self.host_mut(side);
        for (step, attr) in bring_up_attributes(qp_type, side, path, peer, settings) {
            host.engine.modify_qp(now, own, &attr).expect("the attributes are right");
            if step == state {
                return;
            }
        }
    }

    /// Posts a send request at the current time.
    ///
    /// # Errors
    ///
    /// Returns the error of the engine.
    pub fn post_send(&mut self, side: Side, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        let now = self.now;
        self.host_mut(side).engine.post_send(now, qpn, wr)
    }

    /// Posts a receive request for a range of the host's region.
    ///
    /// # Errors
    ///
    /// Returns the error of the engine.
    pub fn post_recv(
        &mut self,
        side: Side,
        qpn: Qpn,
        wr_id: u64,
        offset: usize,
        len: usize,
    ) -> Result<(), PostError> {
        let element = self.host(side).memory_range(offset, len);
        self.host_mut(side).engine.post_recv(qpn, &RecvWr { wr_id, elements: &[element] })
    }

    /// Removes and returns all completions of one side.
    pub fn completions(&mut self, side: Side) -> Vec<Wc> {
        let mut all = Vec::new();
        let mut some = [Wc::default(); 32];
        let host = self.host_mut(side);
        while let Ok(count @ 1..) = host.engine.poll_cq(host.cq, &mut some) {
            all.extend_from_slice(&some[..count]);
        }
        all
    }

    /// Delivers a packet that the test built to `to` now, as if its peer had sent it.
    pub fn inject(&mut self, to: Side, path: Path, bytes: &[u8]) -> Verdict {
        let identification = Identification::Known { identification: 0, dont_fragment: true };
        self.deliver(to, &Received::whole(path, identification, bytes))
    }

    /// Like [`inject`](Self::inject), with all fields that a device reports for a packet.
    pub fn deliver(&mut self, to: Side, received: &Received<'_>) -> Verdict {
        let now = self.now;
        let verdict = self.host_mut(to).engine.handle(now, received);
        self.verdicts.push((to, verdict));
        self.collect(to);
        verdict
    }

    /// Delivers a packet whose payload was removed by a switch.
    pub fn deliver_trimmed(&mut self, to: Side, path: Path, headers: &[u8]) -> Verdict {
        self.deliver(to, &Received::trimmed(path, headers))
    }

    /// Runs until both engines are idle. Panics after one virtual minute.
    #[track_caller]
    pub fn drive(&mut self) {
        let limit = self.now.plus_nanos(60_000_000_000);
        assert!(self.drive_until(limit), "the pair is still busy after a virtual minute");
    }

    /// Runs until both engines are idle (`true`) or the time reaches `limit` (`false`).
    pub fn drive_until(&mut self, limit: Instant) -> bool {
        loop {
            self.collect(Side::A);
            self.collect(Side::B);
            match self.next_time() {
                None => return true,
                Some(next) if next > limit => {
                    self.now = limit;
                    return false;
                }
                Some(next) => self.advance_to(next),
            }
        }
    }

    /// Returns the time of the next event.
    #[must_use]
    pub fn next_time(&self) -> Option<Instant> {
        let arrival = self.in_flight.keys().next().map(|(at, _)| *at);
        let timeouts = self.hosts.iter().filter_map(|host| host.engine.poll_timeout());
        timeouts.chain(arrival).min()
    }

    /// Moves the time to `next` and handles the arrivals and timers that are due. Simultaneous arrivals at
    /// one host form a burst: the packets that answer them are collected after the burst.
    fn advance_to(&mut self, next: Instant) {
        self.now = self.now.max(next);
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let packet = entry.remove();
            self.arrive(&packet);
        }
        for host in &mut self.hosts {
            host.engine.handle_timeout(self.now, Duration::ZERO);
        }
    }

    /// Collects all packets and events of an engine.
    pub fn collect(&mut self, from: Side) {
        while self.send_next(from).is_some() {}
        let host = self.host_mut(from);
        while let Some(event) = host.engine.poll_event() {
            host.events.push(event);
        }
    }

    /// Puts the next packet of an engine on the link, if it has one, and returns the number of the packet.
    fn send_next(&mut self, from: Side) -> Option<u64> {
        if self.blocked[from as usize] {
            return None;
        }
        let mut buffer = std::mem::take(&mut self.slot);
        let (now, mut slot) = (self.now, TxSlot::new(&mut buffer));
        let transmit = self.host_mut(from).engine.poll_transmit(now, &mut slot, Allowed::All);
        let number = transmit.map(|transmit| self.put_on_link(from, &transmit, &buffer[..transmit.len]));
        self.slot = buffer;
        number
    }

    /// Puts a packet on the link, unless the script drops it. Returns the number of the packet.
    fn put_on_link(&mut self, from: Side, transmit: &Transmit, bytes: &[u8]) -> u64 {
        let datagram = Datagram::parse(bytes, &[]).expect("the engine sends well-formed packets");
        let bth = datagram.bth();
        let mut sent = Sent {
            at: self.now,
            from,
            opcode: bth.opcode,
            psn: bth.psn,
            dest_qp: bth.dest_qp,
            path: transmit.path,
            index: self.sent_by[from as usize],
            bytes: bytes.to_vec(),
            action: Action::Pass,
        };
        self.sent_by[from as usize] += 1;
        if let Some(script) = &mut self.script {
            sent.action = script(&sent);
        }
        let mut packet = InFlight {
            to: from.other(),
            sent: self.now,
            path: transmit.path,
            identification: transmit.identification,
            bytes: bytes.to_vec(),
            trimmed: false,
        };
        packet.change(sent.action);
        let number = match sent.action {
            Action::Drop => {
                self.sequence += 1;
                self.sequence
            }
            Action::Duplicate => {
                let number = self.launch(packet.clone(), 0);
                self.launch(packet, 0);
                number
            }
            Action::Delay(nanos) => self.launch(packet, nanos),
            Action::Pass | Action::FlipBit(_) | Action::Trim | Action::Mark => self.launch(packet, 0),
        };
        if self.record {
            self.sent.push(sent);
        }
        number
    }

    fn launch(&mut self, packet: InFlight, extra_ns: u64) -> u64 {
        self.sequence += 1;
        let free_at = &mut self.free_at[packet.to.other() as usize];
        *free_at = self.now.max(*free_at).plus_nanos(self.packet_time_ns);
        let at = free_at.plus_nanos(self.link_delay_ns + extra_ns);
        self.in_flight.insert((at, self.sequence), packet);
        self.sequence
    }

    /// Handles the next event. Returns `false` if no event is left.
    pub fn step(&mut self) -> bool {
        self.collect(Side::A);
        self.collect(Side::B);
        let Some(next) = self.next_time() else { return false };
        self.advance_to(next);
        true
    }

    /// Checks that both engines count every received packet exactly once and according to its verdict. The
    /// total and the counters of each existing queue pair are checked. Also checks that exactly the queue
    /// pairs that have failed have a reason.
    #[track_caller]
    pub fn check_accounting(&self) {
        for side in [Side::A, Side::B] {
            let engine = &self.host(side).engine;
            let counters = engine.counters();
            let said = |wanted: fn(&Verdict) -> bool| {
                self.verdicts.iter().filter(|(at, verdict)| *at == side && wanted(verdict)).count() as u64
            };
            assert_eq!(
                counters.rdma_rx_packets,
                counters.rx_handled + counters.dropped(),
                "{side:?}: every packet is handled or dropped, and only once: {counters:?}"
            );
            assert_eq!(
                counters.rx_handled,
                said(|verdict| *verdict == Verdict::Handled),
                "{side:?}: handled"
            );
            assert_eq!(
                counters.dropped(),
                said(|verdict| matches!(verdict, Verdict::Dropped(_))),
                "{side:?}: dropped"
            );
            for qpn in engine.qp_numbers() {
                let own = engine.qp_counters(qpn).expect("the queue pair was listed");
                assert_eq!(own.rdma_rx_packets, own.rx_handled + own.dropped(), "{side:?} {qpn:?}: {own:?}");
                let state = engine.query_qp(qpn).expect("the queue pair was listed").state;
                let failed = matches!(state, QpState::Err | QpState::Sqe);
                assert_eq!(failed, engine.reason(qpn).is_some(), "{side:?} {qpn:?}: a failure has a reason");
            }
        }
    }

    /// Returns the number of packets on the link.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}
