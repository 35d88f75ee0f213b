//! One server engine and two peers in virtual time, one of them hostile. The hostile peer's packets must not
//! determine the duration of a call of the server or the honest peer's share of the server's link.
//!
//! Every link carries one packet per microsecond and has a delay of ten microseconds. The honest peer is an
//! engine that keeps a number of requests outstanding. The hostile peer sends forged packets at the rate of
//! its link.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::common::zeros::Zeros;
use crate::common::{Forge, unlucky};
use roce_packet::{Ecn, Encapsulation, Opcode, Path, Psn, Qpn};
use roce_sim::pair::{Settings, Side, bring_up_attributes};
use roce_transport::{
    Access, Allowed, CqId, Engine, EngineConfig, Identification, Instant, Pending, QpInit, QpType, RKey,
    Received, RecvWr, RegionAttributes, SendOp, SendWr, Sge, TrafficClasses, Transmit, TxSlot, Wc, WcStatus,
};

const TICK_NS: u64 = 1_000;
const DELAY_NS: u64 = 10_000;
const RUN_TICKS: u64 = 4_000;
const BASE: u64 = 0x1000_0000;
const MTU: usize = 1024;
const LONG_READ: u32 = 128 << 20;
const SERVER: u8 = 1;
const HONEST: u8 = 2;
const HOSTILE: u8 = 3;

fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, host))
}

fn path(from: u8, to: u8) -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: address(from),
        destination: address(to),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

fn settings() -> Settings {
    Settings { psns: [0x1000; 2], rnr_retry: 7, ..Settings::default() }
}

struct End {
    host: u8,
    engine: Engine,
    cq: CqId,
    pd: roce_transport::PdId,
    region: RegionAttributes,
}

impl End {
    fn new(host: u8) -> Self {
        let mut engine = Engine::new(EngineConfig::from_number(u64::from(host)));
        let pd = engine.allocate_pd().unwrap();
        let cq = engine.create_cq(4096).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let region = engine.register(pd, BASE, Arc::new(Zeros(1 << 31)), access).unwrap();
        Self { host, engine, cq, pd, region }
    }

    fn create_qp(&mut self) -> Qpn {
        let (pd, cq) = (self.pd, self.cq);
        let capabilities = settings().capabilities;
        let init = QpInit {
            qp_type: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            capabilities,
            signal_all: false,
        };
        self.engine.create_qp(&init).unwrap()
    }

    fn connect(&mut self, own: Qpn, to: u8, peer: Qpn) {
        for (_, attr) in bring_up_attributes(QpType::Rc, Side::A, path(self.host, to), peer, &settings()) {
            self.engine.modify_qp(Instant::ZERO, own, &attr).unwrap();
        }
    }

    fn element(&self, len: usize) -> Sge {
        Sge { addr: BASE, length: len as u32, lkey: self.region.lkey }
    }

    /// Returns the next packet if there is one, as a link does in a tick.
    fn packet(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        self.engine.poll_transmit(now, &mut TxSlot::new(buffer), Allowed::All)
    }

    fn take(&mut self, now: Instant, path: Path, bytes: &[u8]) {
        let identification = Identification::Known { identification: 0, dont_fragment: true };
        self.engine.handle(now, &Received::whole(path, identification, bytes));
    }

    fn completions(&mut self) -> Vec<Wc> {
        let mut all = vec![Wc::default(); 256];
        let count = self.engine.poll_cq(self.cq, &mut all).unwrap();
        all.truncate(count);
        all
    }
}

/// Returns the packet that the hostile peer forges in a tick, from the server's queue pair, its key and the
/// number of the tick.
type Attack = fn(&Target, u64) -> Option<Forge>;

#[derive(Clone, Copy)]
struct Target {
    hostile_qp: Qpn,
    honest_qp: Qpn,
    rkey: RKey,
}

impl Target {
    fn forge(&self, opcode: Opcode, psn: u64) -> Forge {
        let psn = Psn::new(0x1000_u32.wrapping_add(psn as u32));
        Forge::new(path(HOSTILE, SERVER), opcode, self.hostile_qp, psn)
    }

    fn read(&self, psn: u64, len: u32) -> Forge {
        self.forge(Opcode::RC_RDMA_READ_REQUEST, psn).reth(BASE, self.rkey, len)
    }
}

struct World {
    now: Instant,
    server: End,
    honest: End,
    /// The queue pair of the honest peer; `target` has those of the server towards each peer.
    own: Qpn,
    target: Target,
    flying: BTreeMap<(Instant, u64), (u8, Path, Vec<u8>)>,
    launched: u64,
    to_hostile: u64,
    from_hostile: u64,
    completed: u64,
}

impl World {
    fn new() -> Self {
        let (mut server, mut honest) = (End::new(SERVER), End::new(HONEST));
        let own = honest.create_qp();
        let (honest_qp, hostile_qp) = (server.create_qp(), server.create_qp());
        honest.connect(own, SERVER, honest_qp);
        server.connect(honest_qp, HONEST, own);
        server.connect(hostile_qp, HOSTILE, Qpn::new(0x66));
        let target = Target { hostile_qp, honest_qp, rkey: server.region.rkey };
        Self {
            now: Instant::from_nanos(1_000_000),
            server,
            honest,
            own,
            target,
            flying: BTreeMap::new(),
            launched: 0,
            to_hostile: 0,
            from_hostile: 0,
            completed: 0,
        }
    }

    /// Posts a request of the honest peer, and the receive for it at the server.
    fn post(&mut self, work: Work) {
        let (remote_addr, rkey) = (BASE, self.server.region.rkey);
        let (op, len) = match work {
            Work::Read => (SendOp::Read { remote_addr, rkey }, 4 * MTU),
            Work::Write => (SendOp::Write { remote_addr, rkey }, 4 * MTU),
            Work::Send => (SendOp::Send, MTU),
            Work::Atomic => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
        };
        if work == Work::Send {
            let elements = [self.server.element(MTU)];
            self.server
                .engine
                .post_recv(self.target.honest_qp, &RecvWr { wr_id: 0, elements: &elements })
                .unwrap();
        }
        let elements = [self.honest.element(len)];
        let wr = SendWr::new(1, op, &elements);
        self.honest.engine.post_send(self.now, self.own, &wr).unwrap();
    }

    fn launch(&mut self, transmit: &Transmit, bytes: &[u8]) {
        if transmit.path.destination == address(HOSTILE) {
            self.to_hostile += 1;
            return;
        }
        let to = if transmit.path.destination == address(SERVER) { SERVER } else { HONEST };
        self.launched += 1;
        let at = self.now.plus_nanos(DELAY_NS);
        self.flying.insert((at, self.launched), (to, transmit.path, bytes[..transmit.len].to_vec()));
    }

    fn tick(&mut self, number: u64, attack: Option<Attack>) {
        self.now = self.now.plus_nanos(TICK_NS);
        let now = self.now;
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to, path, bytes) = entry.remove();
            let end = if to == SERVER { &mut self.server } else { &mut self.honest };
            end.take(now, path, &bytes);
        }
        if let Some(forge) = attack.and_then(|attack| attack(&self.target, number)) {
            let bytes = forge.build();
            self.server.take(now, forge.path, &bytes);
            self.from_hostile += 1;
        }
        self.server.engine.handle_timeout(now, Duration::ZERO);
        self.honest.engine.handle_timeout(now, Duration::ZERO);
        let mut buffer = [0; 2048];
        if let Some(transmit) = self.server.packet(now, &mut buffer) {
            self.launch(&transmit, &buffer);
        }
        if let Some(transmit) = self.honest.packet(now, &mut buffer) {
            self.launch(&transmit, &buffer);
        }
        while self.server.engine.poll_event().is_some() {}
        self.server.completions();
    }

    /// Returns the completions of the honest peer in a run with `depth` requests outstanding.
    #[track_caller]
    fn run(&mut self, work: Work, depth: usize, attack: Option<Attack>) -> u64 {
        for _ in 0..depth {
            self.post(work);
        }
        for number in 0..RUN_TICKS {
            self.tick(number, attack);
            for wc in self.honest.completions() {
                assert_eq!(wc.status, WcStatus::Success, "the honest peer");
                self.completed += 1;
                self.post(work);
            }
        }
        self.completed
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Read,
    Write,
    Send,
    Atomic,
}

/// The attacks, and whether the server may send more packets than it receives, which only READs request.
const ATTACKS: &[(&str, bool, Attack)] = &[
    ("sixteen READs of 128 MiB", true, |target, tick| {
        let psns = u64::from(LONG_READ) / MTU as u64;
        (tick < 16).then(|| target.read(tick * psns, LONG_READ))
    }),
    ("the same READ of 128 MiB again and again", true, |target, _| Some(target.read(0, LONG_READ))),
    ("fifteen READs of 128 MiB, then an invalid request", true, |target, tick| {
        let psns = u64::from(LONG_READ) / MTU as u64;
        match tick {
            0..15 => Some(target.read(tick * psns, LONG_READ)),
            15 => Some(target.forge(Opcode::RC_SEND_LAST, 15 * psns).payload(&[1])),
            _ => None,
        }
    }),
    ("READs of one byte", false, |target, tick| Some(target.read(tick, 1))),
    ("duplicates of an old READ of one byte", false, |target, tick| Some(target.read(tick.min(1), 1))),
    ("WRITEs", false, |target, tick| {
        let forge = target.forge(Opcode::RC_RDMA_WRITE_ONLY, tick);
        Some(forge.reth(BASE, target.rkey, MTU as u32).payload(&[1; MTU]))
    }),
    ("SENDs without a receive", false, |target, _| Some(target.forge(Opcode::RC_SEND_ONLY, 0))),
    ("SENDs ahead of a gap", false, |target, tick| Some(target.forge(Opcode::RC_SEND_ONLY, tick + 1))),
    ("duplicates of a WRITE", false, |target, _| {
        Some(target.forge(Opcode::RC_RDMA_WRITE_ONLY, 0).reth(BASE, target.rkey, 0))
    }),
    ("FETCH ADDs", false, |target, tick| {
        Some(target.forge(Opcode::RC_FETCH_ADD, tick).atomic(BASE, target.rkey, 1, 0))
    }),
    ("duplicates of a FETCH ADD", false, |target, _| {
        Some(target.forge(Opcode::RC_FETCH_ADD, 0).atomic(BASE, target.rkey, 1, 0))
    }),
    ("COMPARE SWAPs", false, |target, tick| {
        Some(target.forge(Opcode::RC_COMPARE_SWAP, tick).atomic(BASE, target.rkey, 1, 0))
    }),
    ("ATOMIC WRITEs", false, |target, tick| {
        Some(target.forge(Opcode::RC_ATOMIC_WRITE, tick).reth(BASE, target.rkey, 8).payload(&[1; 8]))
    }),
    ("FLUSHes", false, |target, tick| {
        Some(target.forge(Opcode::RC_FLUSH, tick).feth().reth(BASE, target.rkey, 64))
    }),
    ("an invalid request, then anything", false, |target, tick| {
        Some(target.forge(Opcode::RC_SEND_LAST, tick).payload(&[1]))
    }),
    ("packets with a wrong ICRC", false, |target, tick| {
        // The ICRC was computed for another path than that of the arrival.
        let mut forge = target.forge(Opcode::RC_SEND_ONLY, tick);
        forge.path.source_port ^= (tick as u16) | 1;
        Some(forge)
    }),
    ("garbage", false, |target, tick| {
        let byte = |index: usize| if unlucky(index + tick as usize * 64, 5, 2) { 0xa5 } else { index as u8 };
        let payload: Vec<u8> = (0..48).map(byte).collect();
        let mut forge = target.forge(Opcode(tick as u8), tick).payload(&payload);
        forge.bth.pad_count = tick as u8 & 3;
        Some(forge)
    }),
    ("notifications of congestion", false, |target, tick| {
        Some(target.forge(Opcode::CNP, tick).payload(&[0; 16]))
    }),
    ("marked data", false, |target, tick| {
        let forge = target.forge(Opcode::RC_RDMA_WRITE_ONLY, tick);
        let mut forge = forge.reth(BASE, target.rkey, 1).payload(&[1]).silent();
        forge.path = forge.path.with_ecn(Ecn::CongestionExperienced);
        Some(forge)
    }),
    ("acknowledgements", false, |target, tick| {
        Some(target.forge(Opcode::RC_ACKNOWLEDGE, tick).aeth(0x1f, tick as u32))
    }),
    ("NAKs", false, |target, tick| Some(target.forge(Opcode::RC_ACKNOWLEDGE, tick).aeth(0x60, tick as u32))),
    ("RNR NAKs", false, |target, tick| Some(target.forge(Opcode::RC_ACKNOWLEDGE, tick).aeth(0x21, 0))),
    ("packets for queue pairs that do not exist", false, |target, tick| {
        let mut forge = target.forge(Opcode::RC_SEND_ONLY, tick);
        forge.bth.dest_qp = Qpn::new(tick as u32 | 0x80_0000);
        Some(forge)
    }),
    ("packets for the queue pair of the honest peer", false, |target, tick| {
        let mut forge = target.forge(Opcode::RC_RDMA_READ_REQUEST, tick).reth(BASE, target.rkey, LONG_READ);
        forge.bth.dest_qp = target.honest_qp;
        Some(forge)
    }),
];

/// Checks that the honest peer gets at least a third of its rate without attack, whatever the hostile peer
/// sends. A flood must not cause more than one answer for each packet received.
#[track_caller]
fn honest_peer_keeps_its_share(depth: usize) {
    for work in [Work::Read, Work::Write, Work::Send, Work::Atomic] {
        let alone = World::new().run(work, depth, None);
        assert!(alone > 50, "{work:?} alone: {alone}");
        for (what, many_answers, attack) in ATTACKS {
            let mut world = World::new();
            let shared = world.run(work, depth, Some(*attack));
            assert!(3 * shared >= alone, "{what}, {work:?} at depth {depth}: {shared} of {alone}");
            let (sent, received) = (world.to_hostile, world.from_hostile);
            assert!(*many_answers || sent <= received, "{what}: {sent} packets for {received}");
        }
    }
}

#[test]
fn a_peer_with_many_requests_keeps_a_third_of_its_rate_beside_any_flood() {
    honest_peer_keeps_its_share(8);
}

#[test]
fn a_peer_with_one_request_at_a_time_keeps_a_third_of_its_rate_beside_any_flood() {
    honest_peer_keeps_its_share(1);
}

/// The turns also limit the packets that the server itself sends to a peer that refuses everything.
#[test]
fn a_peer_that_is_written_to_and_answers_with_naks_takes_no_more_than_its_turns() {
    let attacks: [Attack; 3] = [
        |target, tick| Some(target.forge(Opcode::RC_ACKNOWLEDGE, tick).aeth(0x60, 0)),
        |target, _| Some(target.forge(Opcode::RC_ACKNOWLEDGE, 0).aeth(0x21, 0)),
        |target, tick| Some(target.forge(Opcode::RC_ACKNOWLEDGE, tick).aeth(0x1f, 0)),
    ];
    let alone = World::new().run(Work::Read, 8, None);
    for (number, attack) in attacks.into_iter().enumerate() {
        let mut world = World::new();
        let elements = [world.server.element(1 << 30)];
        let wr = SendWr::new(9, SendOp::Write { remote_addr: 0, rkey: RKey(1) }, &elements);
        world.server.engine.post_send(world.now, world.target.hostile_qp, &wr).unwrap();
        let shared = world.run(Work::Read, 8, Some(attack));
        assert!(3 * shared >= alone, "attack {number}: {shared} of {alone}");
    }
}

/// Returns the destinations of the next `count` packets, in turns.
fn turns(server: &mut Engine, now: Instant, count: usize, answers_only: bool) -> Vec<(u8, usize)> {
    let mut turns: Vec<(u8, usize)> = Vec::new();
    let mut buffer = [0; 2048];
    for _ in 0..count {
        let slot = &mut TxSlot::new(&mut buffer);
        let allowed = if answers_only { Allowed::Answers } else { Allowed::All };
        let Some(transmit) = server.poll_transmit(now, slot, allowed) else { break };
        let host = if transmit.path.destination == address(HONEST) { HONEST } else { HOSTILE };
        match turns.last_mut() {
            Some((last, packets)) if *last == host => *packets += 1,
            _ => turns.push((host, 1)),
        }
    }
    turns
}

/// Two queue pairs that answer READs of 128 MiB take turns of one quantum, both with requests allowed and
/// while only answers may leave.
#[test]
fn long_read_responses_take_turns_of_a_quantum() {
    for answers_only in [false, true] {
        let mut world = World::new();
        let now = world.now;
        let rkey = world.server.region.rkey;
        for (host, qp) in [(HOSTILE, world.target.hostile_qp), (HONEST, world.target.honest_qp)] {
            let path = path(host, SERVER);
            let forge = Forge::new(path, Opcode::RC_RDMA_READ_REQUEST, qp, Psn::new(0x1000));
            let bytes = forge.reth(BASE, rkey, LONG_READ).build();
            world.server.take(now, path, &bytes);
        }
        let quantum = world.server.engine.config().quantum as usize;
        let turns = turns(&mut world.server.engine, now, 20 * quantum, answers_only);
        // The first turn may be the rest of another one.
        assert!((20..=21).contains(&turns.len()), "answers only: {answers_only}: {turns:?}");
        for (turn, (_, packets)) in turns.iter().enumerate() {
            assert!(*packets <= quantum, "answers only: {answers_only}, turn {turn}: {turns:?}");
        }
    }
}

/// Regression: READ responses, which are data of their path, were answers, so a caller that held back data
/// got them.
#[test]
fn read_responses_wait_where_their_path_may_not_send() {
    let mut world = World::new();
    let now = world.now;
    let read = world.target.read(0, 2 * MTU as u32).build();
    world.server.take(now, path(HOSTILE, SERVER), &read);
    let engine = &mut world.server.engine;
    let mut buffer = [0; 2048];
    let mut sends =
        |classes| engine.poll_transmit(now, &mut TxSlot::new(&mut buffer), Allowed::Data(classes)).is_some();
    let dscp = path(HOSTILE, SERVER).dscp();
    assert!(!sends(TrafficClasses::NONE) && !sends(TrafficClasses::from_bits(!(1 << dscp))));
    assert!(sends(TrafficClasses::from_bits(1 << dscp)) && sends(TrafficClasses::ALL));
    assert!(!sends(TrafficClasses::ALL));
}

/// A caller may stop after any number of packets: the engine reports that more wait, and continues at that
/// point.
#[test]
fn a_caller_can_stop_early_and_is_told_that_more_waits() {
    let mut world = World::new();
    let now = world.now;
    let mut buffer = [0; 2048];
    assert!(world.server.packet(now, &mut buffer).is_none());
    assert_eq!(world.server.engine.pending(now), Pending::Nothing, "nothing was asked for");
    let path = path(HOSTILE, SERVER);
    let bytes = world.target.read(0, 10 * MTU as u32).build();
    world.server.take(now, path, &bytes);
    for packet in 0..10 {
        assert_ne!(world.server.engine.pending(now), Pending::Nothing, "packet {packet}");
        assert!(world.server.packet(now, &mut buffer).is_some(), "packet {packet}");
    }
    assert!(world.server.packet(now, &mut buffer).is_none());
    assert_eq!(world.server.engine.pending(now), Pending::Nothing, "everything was sent");
}

/// A paced packet is not ready until its time, so the engine does not report it to a caller before.
#[test]
fn a_notification_that_waits_for_its_time_does_not_count_as_waiting_for_a_call() {
    let mut config = EngineConfig::from_number(1);
    config.notification.cnp_delay = 5_000;
    let mut world = World::new();
    world.server.engine = Engine::new(config);
    let pd = world.server.engine.allocate_pd().unwrap();
    world.server.pd = pd;
    world.server.cq = world.server.engine.create_cq(64).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    world.server.region = world.server.engine.register(pd, BASE, Arc::new(Zeros(4096)), access).unwrap();
    let qp = world.server.create_qp();
    world.server.connect(qp, HOSTILE, Qpn::new(0x66));
    let path = path(HOSTILE, SERVER).with_ecn(Ecn::CongestionExperienced);
    let forge = Forge::new(path, Opcode::RC_RDMA_WRITE_ONLY, qp, Psn::new(0x1000)).silent();
    let bytes = forge.reth(BASE, world.server.region.rkey, 1).payload(&[1]).build();
    let now = world.now;
    world.server.take(now, path, &bytes);
    let mut buffer = [0; 2048];
    assert!(world.server.packet(now, &mut buffer).is_none());
    assert_eq!(world.server.engine.pending(now), Pending::Nothing);
    let later = now.plus_nanos(5_000);
    assert_ne!(world.server.engine.pending(later), Pending::Nothing);
    assert!(world.server.packet(later, &mut buffer).is_some());
    assert_eq!(world.server.engine.pending(later), Pending::Nothing);
}
