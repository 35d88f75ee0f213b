//! A packet changes no state before every check has passed. Forged packets reach connections in every state:
//!
//! 1. A dropped packet changes only the counters of arrivals and drops.
//! 2. A congestion notification changes only the congestion control.
//! 3. A duplicate, or a packet behind a gap, reveals nothing: no mark, no telemetry, no Identification.
//!
//! Two worlds run in step. Only the first world receives the forged packets that are dropped. The debug text
//! of its engine is equal before and after such a packet. At the end both worlds have sent the same bytes and
//! completed the same requests, and their engines have equal debug texts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use roce_packet::{
    Bth, Cnp, Datagram, Direction, Ecn, Encapsulation, Envelope, Operation, Path, PathMtu, Psn, Qpn,
    Syndrome, Telemetry, TelemetryHop,
};
use roce_sim::pair::{Settings, Side, bring_up_attributes};
use roce_transport::congestion::Congestion;
use roce_transport::{
    Access, Allowed, CqId, DropReason, Engine, EngineConfig, Event, Identification, Instant, LKey, Payload,
    QpCapabilities, QpInit, QpOptions, QpType, RKey, Received, Recovery, RecvWr, SelectiveRepeat, SendFlags,
    SendOp, SendWr, Sge, SrqId, TxSlot, UdDestination, Verdict, Wc, WordMemory,
};

const BASE: u64 = 0x5000;
const BYTES: usize = 2_048;
const MTU: usize = 256;
const CAP: u32 = 8;
const Q_KEY: u32 = 0x1111_1111;

/// The properties of both ends of a world.
#[derive(Clone, Copy, Debug)]
struct Kind {
    transport: QpType,
    congestion: &'static str,
    echo: bool,
    telemetry: bool,
    selective: bool,
    /// Both ends use a counter as the IPv4 Identification, as Soft-RoCE does.
    counts: bool,
}

fn kind() -> impl Strategy<Value = Kind> {
    let transport = prop_oneof![
        6 => Just(QpType::Rc),
        2 => Just(QpType::Uc),
        1 => Just(QpType::Ud),
        1 => Just(QpType::XrcSend),
    ];
    let congestion = prop_oneof![
        2 => Just("none"), 2 => Just("dcqcn"), 2 => Just("dctcp"), 3 => Just("hpcc"),
        1 => Just("powertcp"), 1 => Just("swift"), 1 => Just("timely"),
    ];
    (transport, congestion, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(transport, congestion, echo, telemetry, selective, counts)| Kind {
            transport,
            congestion,
            echo,
            telemetry,
            selective: selective && transport == QpType::Rc,
            // A peer that counts its Identifications writes no trailers.
            counts: counts && !telemetry,
        },
    )
}

/// A packet on the link.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flying {
    to: usize,
    path: Path,
    bytes: Vec<u8>,
}

struct End {
    engine: Engine,
    cq: CqId,
    qpn: Qpn,
    /// The shared receive queue of an XRC connection, and its number.
    srq: Option<(SrqId, u32)>,
    lkey: LKey,
    rkey: RKey,
    memory: Arc<WordMemory>,
    identification: u16,
}

struct World {
    kind: Kind,
    now: Instant,
    ends: [End; 2],
    link: VecDeque<Flying>,
    /// Every sent packet, and everything reported to the applications.
    sent: Vec<Flying>,
    seen: Vec<String>,
}

fn address(end: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1 + end as u8))
}

fn path(from: usize) -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: address(from),
        destination: address(1 - from),
        source_port: 0xc000,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

fn end(kind: Kind, number: usize) -> End {
    let (congestion, _) = Congestion::parse(kind.congestion).unwrap();
    let recovery = match kind.selective {
        true => Recovery::SelectiveRepeat(SelectiveRepeat { cap: CAP, ..SelectiveRepeat::default() }),
        false => Recovery::GoBackN,
    };
    let mut engine = Engine::new(EngineConfig {
        congestion: Congestion { echo: kind.echo, ..congestion },
        telemetry: kind.telemetry,
        recovery,
        max_read_packets: 4,
        ..EngineConfig::from_number(5 + number as u64)
    });
    let pd = engine.allocate_pd().unwrap();
    let cq = engine.create_cq(32).unwrap();
    let memory = Arc::new(WordMemory::new(BYTES));
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let region = engine.register(pd, BASE, memory.clone(), access).unwrap();
    let capabilities =
        QpCapabilities { max_send_wr: 6, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 8 };
    let qp_type = kind.transport;
    let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, capabilities, signal_all: false };
    let mut srq = None;
    let qpn = if qp_type == QpType::XrcSend && number == 1 {
        let xrcd = engine.allocate_xrcd().unwrap();
        srq = Some(engine.create_xrc_srq(pd, xrcd, cq, 4, 1).unwrap());
        engine.create_xrc_target(xrcd, &QpOptions::default()).unwrap()
    } else {
        engine.create_qp(&init).unwrap()
    };
    let (lkey, rkey) = (region.lkey, region.rkey);
    End { engine, cq, qpn, srq, lkey, rkey, memory, identification: 0xfff0 }
}

impl World {
    fn new(kind: Kind) -> Self {
        let now = Instant::from_nanos(1_000);
        let mut ends = [0, 1].map(|number| end(kind, number));
        for (number, side) in [Side::A, Side::B].into_iter().enumerate() {
            let peer = ends[1 - number].qpn;
            let own = &mut ends[number];
            let settings = Settings { mtu: PathMtu::Mtu256, qkey: Q_KEY, ..Settings::default() };
            let qp_type = own.engine.qp_type(own.qpn).unwrap();
            for (_, attr) in bring_up_attributes(qp_type, side, path(number), peer, &settings) {
                own.engine.modify_qp(now, own.qpn, &attr).unwrap();
            }
        }
        Self { kind, now, ends, link: VecDeque::new(), sent: Vec::new(), seen: Vec::new() }
    }

    /// Posts a request, or does nothing if the queue is full.
    fn post(&mut self, from: usize, op: usize, len: usize) {
        let from = if self.kind.transport == QpType::XrcSend { 0 } else { from };
        let (rkey, peer) = (self.ends[1 - from].rkey, &self.ends[1 - from]);
        let (remote_qpn, remote_srqn) = (peer.qpn, peer.srq.map_or(0, |(_, number)| number));
        let imm = roce_packet::ImmDt([1, 2, 3, 4]);
        let is_reliable = !matches!(self.kind.transport, QpType::Uc | QpType::Ud);
        let op = match (self.kind.transport, op % 7) {
            (QpType::Ud, _) | (_, 0) => SendOp::Send,
            (_, 1) => SendOp::SendWithImm(imm),
            (_, 2) => SendOp::WriteWithImm { remote_addr: BASE, rkey, imm },
            (_, 3) if is_reliable => SendOp::Read { remote_addr: BASE, rkey },
            (_, 4) if is_reliable => SendOp::FetchAdd { remote_addr: BASE, rkey, add: 1 },
            _ => SendOp::Write { remote_addr: BASE + 8, rkey },
        };
        let len = match (op, self.kind.transport) {
            (SendOp::FetchAdd { .. }, _) => 8,
            (_, QpType::Ud) => len % MTU,
            _ => len % (5 * MTU),
        };
        let end = &mut self.ends[from];
        let element = [Sge { addr: BASE, length: len as u32, lkey: end.lkey }];
        let destination = (self.kind.transport == QpType::Ud).then_some(UdDestination {
            path: path(from),
            remote_qpn,
            remote_qkey: Q_KEY,
        });
        let payload = Payload::Elements(&element);
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, destination, remote_srqn };
        let _ = end.engine.post_send(self.now, end.qpn, &wr);
    }

    fn receive(&mut self, at: usize, len: usize) {
        let end = &mut self.ends[at];
        let elements = [Sge { addr: BASE, length: (len % BYTES) as u32, lkey: end.lkey }];
        let wr = RecvWr { wr_id: 2, elements: &elements };
        let _ = match end.srq {
            Some((srq, _)) => end.engine.post_srq_recv(srq, &wr),
            None => end.engine.post_recv(end.qpn, &wr),
        };
    }

    /// Collects the pending packets, events and completions of both engines.
    fn collect(&mut self) {
        let mut buffer = vec![0; 1_024];
        for from in [0, 1] {
            let end = &mut self.ends[from];
            while let Some(transmit) =
                end.engine.poll_transmit(self.now, &mut TxSlot::new(&mut buffer), Allowed::All)
            {
                let mut bytes = buffer[..transmit.len].to_vec();
                pass_switch(&mut bytes, self.now, self.sent.len() as u64);
                if self.kind.counts {
                    end.identification = end.identification.wrapping_add(1);
                    seal(&mut bytes, &transmit.path, end.identification);
                }
                let flying = Flying { to: 1 - from, path: transmit.path, bytes };
                self.sent.push(flying.clone());
                self.link.push_back(flying);
            }
            while let Some(event) = end.engine.poll_event() {
                if !matches!(event, Event::Completion(_)) {
                    self.seen.push(format!("{from} {event:?}"));
                }
            }
            let mut done = [Wc::default(); 8];
            while let Ok(count @ 1..) = end.engine.poll_cq(end.cq, &mut done) {
                self.seen.extend(done[..count].iter().map(|wc| format!("{from} {wc:?}")));
            }
        }
    }

    fn deliver(&mut self, flying: &Flying, trimmed: bool) -> Verdict {
        let received = if trimmed {
            Received::trimmed(flying.path, &flying.bytes)
        } else {
            Received::whole(flying.path, Identification::Unknown { hint: 0 }, &flying.bytes)
        };
        self.ends[flying.to].engine.handle(self.now, &received)
    }

    fn wait(&mut self, nanos: u64) {
        self.now = self.now.plus_nanos(nanos);
        for end in &mut self.ends {
            end.engine.handle_timeout(self.now, Duration::ZERO);
        }
    }

    /// Executes one step; ignores `Step::Forge`.
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Post { from, op, len } => self.post(from, op, len),
            Step::Receive { at, len } => self.receive(at, len),
            Step::Deliver { count, marked } => {
                for _ in 0..count {
                    let Some(mut flying) = self.link.pop_front() else { break };
                    if marked {
                        flying.path = flying.path.with_ecn(Ecn::CongestionExperienced);
                    }
                    self.deliver(&flying, false);
                    self.collect();
                }
            }
            Step::Lose => drop(self.link.pop_front()),
            Step::Swap if self.link.len() > 1 => self.link.swap(0, 1),
            Step::Swap => {}
            Step::Trim => {
                let Some(mut flying) = self.link.pop_front() else { return };
                let header_len =
                    Datagram::parse(&flying.bytes, &[]).map(|datagram| datagram.info().header_len);
                flying.bytes.truncate(header_len.unwrap_or(0));
                self.deliver(&flying, true);
            }
            Step::Wait(nanos) => self.wait(nanos.into()),
            Step::Forge(_) => {}
        }
        self.collect();
    }

    /// Delivers all packets until both ends are quiet.
    fn finish(&mut self) {
        for _ in 0..60 {
            while !self.link.is_empty() {
                self.step(&Step::Deliver { count: 1, marked: false });
            }
            self.wait(70_000_000);
            self.collect();
        }
    }

    /// Returns the number of a new queue pair of an end, which is the next random number of its engine.
    fn draw(&mut self, end: usize) -> Qpn {
        let End { engine, cq, .. } = &mut self.ends[end];
        let pd = engine.allocate_pd().unwrap();
        let capabilities = QpCapabilities {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let (send_cq, recv_cq) = (*cq, *cq);
        let qp_type = QpType::Rc;
        engine
            .create_qp(&QpInit { qp_type, pd, send_cq, recv_cq, srq: None, capabilities, signal_all: false })
            .unwrap()
    }

    /// Returns the debug text of an end's engine, and its memory.
    fn text(&self, end: usize) -> String {
        let end = &self.ends[end];
        // The compact form of a slab prints only its length.
        let text = format!("{:#?}\n{:?}", end.engine, end.memory.to_vec());
        assert!(text.contains(" peer_identification: "), "the queue pair is part of the text");
        text
    }
}

/// The current time, which is an input, and the path of the last datagram, which is a cache.
const INPUTS: [&str; 2] = ["now", "arrival"];
/// Everything that is scheduled because a packet was handled, even if there is no work.
const SCHEDULE: [&str; 4] = ["ready", "scheduled", "timers", "quantum_left"];

/// Returns a debug text without the fields of these names.
fn without(text: &str, names: &[&str]) -> String {
    let mut kept = String::with_capacity(text.len());
    // The indentation of a skipped multi-line field, which its last line shares.
    let mut skipped = None;
    for line in text.lines() {
        let content = line.trim_start();
        let indentation = line.len() - content.len();
        if skipped.is_some() {
            skipped = skipped.filter(|begin| *begin != indentation);
            continue;
        }
        let is_named = content.split_once(": ").is_some_and(|(name, _)| names.contains(&name));
        if is_named {
            skipped = content.ends_with(['{', '[', '(']).then_some(indentation);
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Acts as a switch: appends telemetry to a packet whose trailer has room.
fn pass_switch(bytes: &mut Vec<u8>, now: Instant, count: u64) {
    let Some(at) = bytes.len().checked_sub(Telemetry::LEN) else { return };
    if Telemetry::split_off(bytes, &[]).is_some_and(|(rest, ..)| Datagram::parse(rest, &[]).is_ok())
        && let Some(trailer) = bytes[at..].first_chunk()
        && let Some(mut telemetry) = Telemetry::parse(trailer)
    {
        telemetry.push(TelemetryHop::new(1_000_000_000, now.as_nanos(), count * 300, 4_096), 1);
        bytes.truncate(at);
        bytes.extend(telemetry.emit());
    }
}

/// Writes the correct ICRC for this Identification if the datagram can be parsed.
fn seal(bytes: &mut [u8], path: &Path, identification: u16) {
    let computed = Datagram::parse(bytes, &[])
        .map(|datagram| datagram.compute_icrc(&Envelope::new(path, identification)));
    if let Ok(icrc) = computed
        && let Some(place) = bytes.last_chunk_mut::<4>()
    {
        *place = icrc.to_le_bytes();
    }
}

/// The PSN of a forged packet.
#[derive(Clone, Copy, Debug)]
enum ForgedPsn {
    AsItWas,
    /// This far from the next PSN that the responder expects.
    NearExpected(i32),
    /// This far from the oldest PSN that the requester waits for.
    NearUnanswered(i32),
    Any(u32),
}

/// The changes that a forger makes to a packet of the connection or to a congestion notification.
#[derive(Clone, Debug)]
struct Forgery {
    to: usize,
    /// The packet to imitate, counted from the newest; `None` for a notification.
    like: Option<usize>,
    psn: ForgedPsn,
    opcode: Option<u8>,
    qpn: Option<u32>,
    p_key: Option<u16>,
    stranger: bool,
    marked: bool,
    becn: bool,
    hop_limit: u8,
    /// The first byte after the BTH: the syndrome, or the first byte of a Q_Key or of an address.
    syndrome: Option<u8>,
    /// The index of a byte to change, and the bits to flip in it.
    flip: Option<(usize, u8)>,
    cut: Option<usize>,
    /// Writes a correct ICRC for this Identification.
    seal: Option<u16>,
    /// Appends in-band telemetry after the ICRC.
    hops: Option<u8>,
    trimmed: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Post { from: usize, op: usize, len: usize },
    Receive { at: usize, len: usize },
    Deliver { count: usize, marked: bool },
    Lose,
    Swap,
    Trim,
    Wait(u32),
    Forge(Box<Forgery>),
}

fn rarely<T: std::fmt::Debug + Clone + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Option<T>> {
    prop_oneof![9 => Just(None), 1 => value.prop_map(Some)]
}

fn forgery() -> impl Strategy<Value = Forgery> {
    let psn = prop_oneof![
        4 => Just(ForgedPsn::AsItWas),
        2 => (-4..12_i32).prop_map(ForgedPsn::NearExpected),
        2 => (-4..12_i32).prop_map(ForgedPsn::NearUnanswered),
        3 => any::<u32>().prop_map(ForgedPsn::Any),
    ];
    let identification = prop_oneof![4 => Just(0_u16), 1 => 1..100_u16, 1 => any::<u16>()];
    let fields = (
        0..2_usize,
        prop_oneof![1 => Just(None), 8 => (0..24_usize).prop_map(Some)],
        psn,
        rarely(any::<u8>()),
        rarely(prop_oneof![Just(0_u32), Just(1), Just(0xff_ffff), any::<u32>()]),
        rarely(prop_oneof![Just(0x7fff_u16), any::<u16>()]),
        prop::bool::weighted(0.1),
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(64_u8), any::<u8>()],
    );
    let damage = (
        prop_oneof![3 => Just(None), 1 => any::<u8>().prop_map(Some)],
        rarely((0..64_usize, 1..=255_u8)),
        rarely(0..64_usize),
        prop_oneof![1 => Just(None), 8 => identification.prop_map(Some)],
        prop_oneof![2 => Just(None), 2 => (0..6_u8).prop_map(Some)],
        prop::bool::weighted(0.1),
    );
    (fields, damage).prop_map(|(fields, damage)| {
        let (to, like, psn, opcode, qpn, p_key, stranger, marked, becn, hop_limit) = fields;
        let (syndrome, flip, cut, seal, hops, trimmed) = damage;
        Forgery {
            to,
            like,
            psn,
            opcode,
            qpn,
            p_key,
            stranger,
            marked,
            becn,
            hop_limit,
            syndrome,
            flip,
            cut,
            seal,
            hops,
            trimmed,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2_usize, 0..7_usize, any::<usize>()).prop_map(|(from, op, len)| Step::Post { from, op, len }),
        3 => (0..2_usize, any::<usize>()).prop_map(|(at, len)| Step::Receive { at, len }),
        5 => (1..6_usize, any::<bool>()).prop_map(|(count, marked)| Step::Deliver { count, marked }),
        1 => Just(Step::Lose),
        1 => Just(Step::Swap),
        1 => Just(Step::Trim),
        2 => prop_oneof![1..100_000_u32, Just(70_000_000)].prop_map(Step::Wait),
        12 => forgery().prop_map(|forgery| Step::Forge(Box::new(forgery))),
    ]
}

impl World {
    /// Returns the packet that a forger sends now.
    fn forge(&self, forgery: &Forgery) -> Flying {
        let (to, end) = (forgery.to, &self.ends[forgery.to]);
        let like = forgery.like.and_then(|back| {
            self.sent.iter().rev().filter(|flying| flying.to == to).nth(back).map(|flying| &flying.bytes)
        });
        let mut bytes = match like {
            // Remove the trailer; the forger writes a new one.
            Some(bytes) => match Telemetry::split_off(bytes, &[]) {
                Some((rest, ..)) if self.kind.telemetry && Datagram::parse(rest, &[]).is_ok() => {
                    rest.to_vec()
                }
                _ => bytes.clone(),
            },
            None => {
                let mut bytes = [0; Cnp::LEN];
                let cnp = Cnp { dest_qp: end.qpn, p_key: 0xffff };
                cnp.emit(&Envelope::new(&path(1 - to), 0), &mut bytes);
                bytes.to_vec()
            }
        };
        let attributes = end.engine.query_qp(end.qpn).unwrap();
        let shifted = |psn: Psn, by: i32| psn.add(by.rem_euclid(1 << 24) as u32);
        let psn = match forgery.psn {
            ForgedPsn::AsItWas => None,
            ForgedPsn::NearExpected(by) => Some(shifted(attributes.rq_psn, by)),
            ForgedPsn::NearUnanswered(by) => end.engine.unanswered_psn(end.qpn).map(|psn| shifted(psn, by)),
            ForgedPsn::Any(psn) => Some(Psn::new(psn & 0xff_ffff)),
        };
        if let Some(psn) = psn.filter(|_| like.is_some()) {
            bytes[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
        }
        if let Some(opcode) = forgery.opcode {
            bytes[0] = opcode;
        }
        if let Some(qpn) = forgery.qpn {
            bytes[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        }
        if let Some(p_key) = forgery.p_key {
            bytes[2..4].copy_from_slice(&p_key.to_be_bytes());
        }
        if forgery.becn {
            bytes[4] |= 0x40;
        }
        if let Some(syndrome) = forgery.syndrome {
            bytes[12] = syndrome;
        }
        if let Some((at, bits)) = forgery.flip
            && let Some(byte) = bytes.get_mut(at)
        {
            *byte ^= bits;
        }
        if let Some(cut) = forgery.cut {
            bytes.truncate(cut);
        }
        let mut path = Path { hop_limit: forgery.hop_limit, ..path(1 - to) };
        if forgery.stranger {
            path.source = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 9));
        }
        if forgery.marked {
            path = path.with_ecn(Ecn::CongestionExperienced);
        }
        if let Some(identification) = forgery.seal {
            seal(&mut bytes, &path, identification);
        }
        if let Some(hops) = forgery.hops {
            let mut telemetry = Telemetry::default();
            for hop in 0..u64::from(hops) {
                let now = self.now.as_nanos() + 1;
                telemetry.push(TelemetryHop::new(1_000_000_000, now, 1 << 20 | hop, 1 << 14), 1);
            }
            bytes.extend(if to == 0 { telemetry.echo() } else { telemetry }.emit());
        }
        Flying { to, path, bytes }
    }

    /// Returns whether the queue pair waits for the PSN of this packet.
    fn expects(&self, flying: &Flying) -> bool {
        let end = &self.ends[flying.to];
        let rest = Telemetry::split_off(&flying.bytes, &[]).map_or(&flying.bytes[..], |(rest, ..)| rest);
        let datagram = Datagram::parse(rest, &[]).or_else(|_| Datagram::parse(&flying.bytes, &[]));
        // A trimmed packet consists of headers only.
        let Ok((bth, _)) = Bth::parse(&flying.bytes) else { return false };
        let Some(info) = bth.opcode.info() else { return false };
        let psn = bth.psn;
        let (Some(attributes), Some(una)) =
            (end.engine.query_qp(end.qpn), end.engine.unanswered_psn(end.qpn))
        else {
            return true;
        };
        let is_report = datagram.is_ok_and(|datagram| is_trimmed_report(&datagram));
        match info.direction {
            Direction::Cnp => false,
            // An acknowledgement may have overtaken the report of a trimmed packet.
            Direction::Response if self.kind.selective && is_report && psn.before(una) => true,
            Direction::Response => una.distance_to(psn) < una.distance_to(attributes.sq_psn),
            Direction::Request if self.kind.selective => attributes.rq_psn.distance_to(psn) < CAP,
            Direction::Request => psn == attributes.rq_psn,
        }
    }

    /// Returns the fields that this forged packet may change, or `None` if it may be the peer's own.
    fn may_change(&self, flying: &Flying, trimmed: bool, verdict: Verdict) -> Option<Vec<&'static str>> {
        match verdict {
            // UC also drops packets of the peer: those of a message that can no longer be delivered.
            Verdict::Dropped(
                DropReason::NoReceive
                | DropReason::ReceiveTooSmall
                | DropReason::Access
                | DropReason::BadLength
                | DropReason::IncompleteMessage,
            ) if self.kind.transport == QpType::Uc => None,
            Verdict::Dropped(_) => Some(Vec::new()),
            // The ICRC of a trimmed packet is not checked, and the packet may request a retransmission.
            Verdict::Handled if trimmed && self.expects(flying) => None,
            Verdict::Handled if trimmed => Some([&["halves"][..], &SCHEDULE].concat()),
            Verdict::Handled if flying.bytes.first() == Some(&0x81) => {
                Some([&["control"][..], &SCHEDULE].concat())
            }
            Verdict::Handled if self.kind.transport == QpType::Uc => None,
            Verdict::Handled if self.expects(flying) => None,
            Verdict::Handled => Some([&["halves", "control"][..], &SCHEDULE].concat()),
        }
    }
}

/// Tells whether this is the report of a trimmed packet, with the reserved syndrome of selective repeat.
fn is_trimmed_report(datagram: &Datagram<'_>) -> bool {
    let syndrome = datagram.aeth().map(|aeth| aeth.syndrome);
    datagram.info().operation == Operation::Acknowledge && syndrome == Some(Syndrome::Reserved(0x41))
}

fn counters(engine: &Engine) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    engine.counters().visit(&mut |name, value| _ = all.insert(name, value));
    all
}

/// Returns a counter that differs, except the counters of arrivals and drops.
fn difference(
    one: &BTreeMap<&'static str, u64>,
    other: &BTreeMap<&'static str, u64>,
) -> Option<&'static str> {
    one.iter().find(|(name, value)| other[*name] != **value && !tells_of_a_drop(name)).map(|(name, _)| *name)
}

/// Returns whether a counter says that a packet arrived or why it was dropped.
fn tells_of_a_drop(name: &str) -> bool {
    const ALSO: [&str; 9] = [
        "rdma_rx_packets",
        "rdma_rx_bytes",
        "rx_trimmed",
        "rx_icrc_encapsulated",
        "rx_telemetry_refused",
        "rp_cnp_ignored",
        // More drop reasons: ahead of the expected PSN, behind it, already answered, no receive posted.
        "out_of_sequence",
        "duplicate_request",
        "stale_responses",
    ];
    name.starts_with("drop_") || name == "out_of_buffer" || ALSO.contains(&name)
}

/// Sends a forged packet to the first world, and to the second one unless the first dropped it. Returns the
/// reason of a drop, or the kind of a packet that had an effect.
fn attack(worlds: &mut [World; 2], forgery: &Forgery, compares: bool) -> Result<&'static str, TestCaseError> {
    let [attacked, left_alone] = worlds;
    let (flying, to) = (attacked.forge(forgery), forgery.to);
    let text = compares.then(|| attacked.text(to));
    let before = counters(&attacked.ends[to].engine);
    let if_handled = attacked.may_change(&flying, forgery.trimmed, Verdict::Handled);
    let verdict = attacked.deliver(&flying, forgery.trimmed);
    let may_change = match verdict {
        Verdict::Handled => if_handled,
        Verdict::Dropped(_) => attacked.may_change(&flying, forgery.trimmed, verdict),
    };
    if let (Some(fields), Some(text)) = (&may_change, text) {
        let names = [&INPUTS[..], &["counters"], fields].concat();
        let [was, is] = [text, attacked.text(to)].map(|text| without(&text, &names));
        let differing = was.lines().zip(is.lines()).enumerate().find(|(_, (was, is))| was != is);
        prop_assert!(was == is, "{:?} of {:?}: {:?}", verdict, forgery, differing);
    }
    if may_change.as_ref().is_some_and(Vec::is_empty) {
        let wrong = difference(&before, &counters(&attacked.ends[to].engine));
        prop_assert_eq!(wrong, None, "{:?} of {:?}", verdict, forgery);
    } else {
        prop_assert_eq!(left_alone.deliver(&flying, forgery.trimmed), verdict);
    }
    Ok(match (verdict, may_change) {
        (Verdict::Dropped(reason), _) => reason.counter(),
        (Verdict::Handled, None) => "handled: as of the peer",
        (Verdict::Handled, Some(fields)) if fields.contains(&"halves") => "handled: not in order",
        (Verdict::Handled, Some(_)) => "handled: a notification",
    })
}

/// Executes the steps in both worlds and returns the outcomes of the forged packets. `compares` enables the
/// comparison of the engine's text before and after each forged packet, which takes most of the time.
fn run(kind: Kind, steps: &[Step], compares: bool) -> Result<BTreeSet<&'static str>, TestCaseError> {
    let mut outcomes = BTreeSet::new();
    let mut worlds = [World::new(kind), World::new(kind)];
    for step in steps {
        if let Step::Forge(forgery) = step {
            outcomes.insert(attack(&mut worlds, forgery, compares)?);
        }
        worlds.iter_mut().for_each(|world| world.step(step));
    }
    worlds.iter_mut().for_each(World::finish);
    let [attacked, left_alone] = &mut worlds;
    prop_assert_eq!(&attacked.seen, &left_alone.seen);
    prop_assert!(attacked.sent == left_alone.sent, "the ends sent other packets");
    for end in [0, 1] {
        let names = [&INPUTS[..], &["counters"]].concat();
        let worlds = [&mut *attacked, &mut *left_alone];
        let [one, other] = [&worlds[0], &worlds[1]].map(|world| without(&world.text(end), &names));
        prop_assert!(one == other, "the ends differ");
        let [one, other] = [&worlds[0], &worlds[1]].map(|world| counters(&world.ends[end].engine));
        prop_assert_eq!(difference(&one, &other), None);
        // No random number was drawn either.
        let [one, other] = worlds.map(|world| world.draw(end));
        prop_assert_eq!(one, other);
    }
    Ok(outcomes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn an_unproven_packet_has_changed_nothing(kind in kind(), steps in prop::collection::vec(step(), 1..60)) {
        run(kind, &steps, true)?;
    }
}

/// Checks that the forged packets reach every check of the receive path.
#[test]
fn forged_packets_are_dropped_for_every_reason() {
    let mut runner = TestRunner::deterministic();
    let strategy = (kind(), prop::collection::vec(step(), 30..60));
    let mut outcomes = BTreeSet::new();
    for _ in 0..500 {
        let (kind, steps) = strategy.new_tree(&mut runner).unwrap().current();
        outcomes.extend(run(kind, &steps, false).unwrap());
    }
    let mut missing = Vec::new();
    roce_transport::Counters::default().visit(&mut |name, _| {
        if (name.starts_with("drop_") || name == "rx_icrc_encapsulated") && !outcomes.contains(name) {
            missing.push(name);
        }
    });
    assert!(missing.is_empty(), "{missing:?}");
    for handled in ["handled: as of the peer", "handled: not in order", "handled: a notification"] {
        assert!(outcomes.contains(handled), "{outcomes:?}");
    }
}
