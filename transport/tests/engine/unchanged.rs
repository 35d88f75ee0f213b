//! A refused verb changes nothing: the debug text of the whole engine is equal in every field. Random verbs
//! with good and bad arguments are called on queue pairs in every state.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use proptest::prelude::*;
use roce_packet::{Encapsulation, ImmDt, Path, PathMtu, Psn, Qpn, RnrTimer};
use roce_sim::pair::{Settings, Side, bring_up_attributes};
use roce_transport::{
    Access, CqId, Engine, EngineConfig, FlushPlacement, Instant, LKey, Memory, Notify, Payload, PdId, QpAttr,
    QpCapabilities, QpInit, QpOptions, QpState, QpType, RKey, RecvWr, RegionChange, SendFlags, SendOp,
    SendWr, Sge, SrqId, UdDestination, Wc, WindowBinding, WindowType, WordMemory, XrcdId,
};

const BASE: u64 = 0x5000;
const BYTES: usize = 64;
const TYPES: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend];

/// Small queues, because the text of the engine shows each element.
const CAPABILITIES: QpCapabilities =
    QpCapabilities { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline: 8 };

fn path() -> Path {
    let address = |host| IpAddr::V4(Ipv4Addr::new(198, 18, 0, host));
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: address(1),
        destination: address(2),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

/// An engine with low limits, and objects of every kind.
struct Rig {
    engine: Engine,
    now: Instant,
    pds: [PdId; 2],
    cqs: [CqId; 3],
    srq: SrqId,
    xrcd: XrcdId,
    /// A deallocated XRC domain.
    old_xrcd: XrcdId,
    xrc_srq: SrqId,
    qps: Vec<Qpn>,
    keys: Vec<u32>,
}

impl Rig {
    fn new() -> Self {
        let config = EngineConfig {
            // The XRC domain has one of these PDs and CQs.
            max_pd: 4,
            max_cq: 5,
            max_cqe: 8,
            max_srq: 3,
            max_mr: 6,
            max_qp: 36,
            ..EngineConfig::from_number(3)
        };
        let mut engine = Engine::new(config);
        let pds = [engine.allocate_pd().unwrap(), engine.allocate_pd().unwrap()];
        let cqs = [1, 4, 2].map(|capacity| engine.create_cq(capacity).unwrap());
        let srq = engine.create_srq(pds[0], 2, 1).unwrap();
        let [xrcd, old_xrcd] = [(); 2].map(|()| engine.allocate_xrcd().unwrap());
        engine.deallocate_xrcd(old_xrcd).unwrap();
        let (xrc_srq, _) = engine.create_xrc_srq(pds[0], xrcd, cqs[1], 2, 1).unwrap();
        let memory = Arc::new(WordMemory::new(BYTES));
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
        let region = engine.register(pds[0], BASE, memory.clone(), access).unwrap().lkey.0;
        let foreign = engine.register(pds[1], BASE, memory, Access::empty()).unwrap().lkey.0;
        let type_1 = engine.allocate_window(pds[0], WindowType::Type1).unwrap();
        let type_2 = engine.allocate_window(pds[0], WindowType::Type2).unwrap().0;
        let binding = WindowBinding { region: LKey(region), addr: BASE, len: 8, access: Access::REMOTE_READ };
        let type_1 = engine.bind_window(pds[0], type_1, &binding).unwrap().0;
        let keys = vec![region, foreign, type_1, type_2, 0, u32::MAX];
        let (now, qps) = (Instant::from_nanos(1), Vec::new());
        let mut rig = Self { engine, now, pds, cqs, srq, xrcd, old_xrcd, xrc_srq, qps, keys };
        for qp_type in TYPES.into_iter().chain([QpType::XrcRecv]) {
            for (steps, last) in
                [(0, None), (1, None), (2, None), (3, None), (3, Some(QpState::Sqd)), (3, Some(QpState::Err))]
            {
                rig.add_qp(qp_type, steps, last);
            }
        }
        rig.qps.extend([Qpn::new(0), Qpn::MULTICAST]);
        rig
    }

    fn init(&self, qp_type: QpType, srq: Option<SrqId>) -> QpInit {
        QpInit {
            qp_type,
            pd: self.pds[0],
            send_cq: self.cqs[1],
            recv_cq: self.cqs[0],
            srq,
            capabilities: CAPABILITIES,
            signal_all: false,
        }
    }

    fn add_qp(&mut self, qp_type: QpType, steps: usize, last: Option<QpState>) {
        let srq = (steps == 2 && qp_type != QpType::XrcSend).then_some(self.srq);
        let qpn = match qp_type {
            QpType::XrcRecv => self.engine.create_xrc_target(self.xrcd, &QpOptions::default()),
            _ => self.engine.create_qp(&self.init(qp_type, srq)),
        };
        let qpn = qpn.unwrap();
        let settings = Settings::default();
        let attributes = bring_up_attributes(qp_type, Side::A, path(), Qpn::new(7), &settings);
        for (_, attr) in attributes.iter().take(steps) {
            self.engine.modify_qp(self.now, qpn, attr).unwrap();
        }
        if let Some(state) = last {
            self.engine.modify_qp(self.now, qpn, &QpAttr::to_state(state)).unwrap();
        }
        self.qps.push(qpn);
    }

    fn text(&self) -> String {
        format!("{:#?}", self.engine)
    }

    fn qp(&self, number: usize) -> Qpn {
        self.qps[number % self.qps.len()]
    }

    fn key(&self, number: usize) -> u32 {
        self.keys[number % self.keys.len()]
    }

    fn cq(&self, number: usize) -> CqId {
        self.cqs[number % 3]
    }

    fn xrcd(&self, number: usize) -> XrcdId {
        if number.is_multiple_of(4) { self.old_xrcd } else { self.xrcd }
    }
}

#[derive(Clone, Debug)]
enum Verb {
    PostSend { qp: usize, op: usize, key: usize, lengths: Vec<u32>, inline: Option<usize>, to: bool },
    PostRecv { qp: usize, lengths: Vec<u32> },
    PostSrq { lengths: Vec<u32> },
    Modify { qp: usize, given: u32, value: u8, state: usize },
    CreateQp { kind: usize, srq: bool, size: usize, field: usize },
    CreateGsi { kind: usize },
    CreateXrcTarget { xrcd: usize },
    CreateXrcSrq { pd: usize, xrcd: usize, cq: usize, size: usize, elements: usize },
    PostXrcSrq { lengths: Vec<u32> },
    DestroyXrcSrq,
    AllocateXrcd,
    DeallocateXrcd { xrcd: usize },
    DestroyQp { qp: usize },
    CreateCq { size: usize },
    ResizeCq { cq: usize, size: usize },
    DestroyCq { cq: usize },
    PollCq { cq: usize },
    Arm { cq: usize },
    CreateSrq { size: usize, elements: usize },
    ArmSrq { limit: usize },
    ResizeSrq { size: usize },
    DestroySrq,
    AllocatePd,
    DeallocatePd { pd: usize },
    Register { pd: usize, addr: u64, len: usize, access: u32 },
    Change { key: usize, pd: Option<usize>, memory: Option<(u64, usize)>, access: Option<u32> },
    Deregister { key: usize },
    Release { key: usize },
    AllocateWindow { pd: usize, second: bool },
    Bind { pd: usize, window: usize, region: usize, addr: u64, len: usize, access: u32 },
    DeallocateWindow { key: usize },
    Attach { qp: usize },
    Detach { qp: usize },
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0..4_usize, Just(9), Just(70_000), Just(usize::MAX)]
}

fn lengths() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![Just(0), Just(8), Just(64), Just(4_097), Just(u32::MAX)], 0..3)
}

fn access() -> impl Strategy<Value = u32> {
    prop_oneof![0..64_u32, Just(Access::all().bits())]
}

fn verb() -> impl Strategy<Value = Verb> {
    let n = 0..32_usize;
    prop_oneof![
        8 => (n.clone(), n.clone(), n.clone(), lengths(), prop::option::of(0..20_usize), any::<bool>()).prop_map(
            |(qp, op, key, lengths, inline, to)| Verb::PostSend { qp, op, key, lengths, inline, to }
        ),
        4 => (n.clone(), lengths()).prop_map(|(qp, lengths)| Verb::PostRecv { qp, lengths }),
        2 => lengths().prop_map(|lengths| Verb::PostSrq { lengths }),
        8 => (n.clone(), any::<u32>(), prop_oneof![0..9_u8, any::<u8>()], n.clone())
            .prop_map(|(qp, given, value, state)| Verb::Modify { qp, given, value, state }),
        3 => (n.clone(), any::<bool>(), size(), n.clone())
            .prop_map(|(kind, srq, size, field)| Verb::CreateQp { kind, srq, size, field }),
        1 => n.clone().prop_map(|kind| Verb::CreateGsi { kind }),
        1 => n.clone().prop_map(|xrcd| Verb::CreateXrcTarget { xrcd }),
        2 => (n.clone(), n.clone(), n.clone(), size(), size())
            .prop_map(|(pd, xrcd, cq, size, elements)| Verb::CreateXrcSrq { pd, xrcd, cq, size, elements }),
        1 => lengths().prop_map(|lengths| Verb::PostXrcSrq { lengths }),
        1 => Just(Verb::DestroyXrcSrq),
        1 => Just(Verb::AllocateXrcd),
        1 => n.clone().prop_map(|xrcd| Verb::DeallocateXrcd { xrcd }),
        1 => n.clone().prop_map(|qp| Verb::DestroyQp { qp }),
        1 => size().prop_map(|size| Verb::CreateCq { size }),
        2 => (n.clone(), size()).prop_map(|(cq, size)| Verb::ResizeCq { cq, size }),
        1 => n.clone().prop_map(|cq| Verb::DestroyCq { cq }),
        1 => n.clone().prop_map(|cq| Verb::PollCq { cq }),
        1 => n.clone().prop_map(|cq| Verb::Arm { cq }),
        1 => (size(), size()).prop_map(|(size, elements)| Verb::CreateSrq { size, elements }),
        1 => size().prop_map(|limit| Verb::ArmSrq { limit }),
        1 => size().prop_map(|size| Verb::ResizeSrq { size }),
        1 => Just(Verb::DestroySrq),
        1 => Just(Verb::AllocatePd),
        1 => n.clone().prop_map(|pd| Verb::DeallocatePd { pd }),
        3 => (n.clone(), prop_oneof![Just(BASE), Just(u64::MAX)], 0..3_usize, access())
            .prop_map(|(pd, addr, len, access)| Verb::Register { pd, addr, len, access }),
        3 => (
            n.clone(),
            prop::option::of(n.clone()),
            prop::option::of((prop_oneof![Just(BASE), Just(u64::MAX)], 0..3_usize)),
            prop::option::of(access()),
        )
            .prop_map(|(key, pd, memory, access)| Verb::Change { key, pd, memory, access }),
        2 => n.clone().prop_map(|key| Verb::Deregister { key }),
        2 => n.clone().prop_map(|key| Verb::Release { key }),
        1 => (n.clone(), any::<bool>()).prop_map(|(pd, second)| Verb::AllocateWindow { pd, second }),
        4 => (n.clone(), n.clone(), n.clone(), prop_oneof![Just(BASE), Just(0), Just(u64::MAX)], size(), access())
            .prop_map(|(pd, window, region, addr, len, access)| Verb::Bind { pd, window, region, addr, len, access }),
        1 => n.clone().prop_map(|key| Verb::DeallocateWindow { key }),
        1 => n.clone().prop_map(|qp| Verb::Attach { qp }),
        1 => n.prop_map(|qp| Verb::Detach { qp }),
    ]
}

fn operation(number: usize, key: u32) -> SendOp {
    let (remote_addr, rkey) = (BASE, RKey(key));
    match number % 12 {
        0 => SendOp::Send,
        1 => SendOp::SendWithImm(ImmDt([1; 4])),
        2 => SendOp::SendWithInvalidate(rkey),
        3 => SendOp::Write { remote_addr, rkey },
        4 => SendOp::WriteWithImm { remote_addr, rkey, imm: ImmDt([1; 4]) },
        5 => SendOp::Read { remote_addr, rkey },
        6 => SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
        7 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        8 => SendOp::AtomicWrite { remote_addr, rkey },
        9 => SendOp::Flush {
            remote_addr,
            rkey,
            length: 8,
            placement: FlushPlacement::PERSISTENCE,
            whole_region: false,
        },
        10 => SendOp::BindWindow {
            window: rkey,
            new_rkey: rkey.next_variant(),
            binding: WindowBinding { region: LKey(key), addr: BASE, len: 8, access: Access::REMOTE_READ },
        },
        _ => SendOp::LocalInvalidate { rkey },
    }
}

/// Returns attributes, of which the bits of `given` select those that are present.
fn attributes(given: u32, value: u8, state: usize) -> QpAttr {
    let has = |bit: u32| given >> bit & 1 == 1;
    let number = has(0).then_some(value);
    QpAttr {
        state: has(1).then(|| QpState::ALL[state % 7]),
        cur_state: (has(2) && has(3) && has(4)).then(|| QpState::ALL[state % 5]),
        en_sqd_async_notify: (has(5) && has(6)).then_some(true),
        access: has(7).then_some(Access::REMOTE),
        pkey_index: has(8).then_some(u16::from(value) % 2),
        port: has(9).then_some(value % 3),
        qkey: has(10).then_some(1),
        path: has(11).then(path),
        path_mtu: has(12).then_some(PathMtu::Mtu256),
        timeout: number.filter(|_| has(13)),
        retry_cnt: number.filter(|_| has(14)),
        rnr_retry: number.filter(|_| has(15)),
        rq_psn: has(16).then(|| Psn::new(5)),
        max_rd_atomic: number.filter(|_| has(17)),
        min_rnr_timer: RnrTimer::new(value % 32).filter(|_| has(18)),
        sq_psn: has(19).then(|| Psn::new(6)),
        max_dest_rd_atomic: number.filter(|_| has(20)),
        dest_qpn: has(21).then(|| Qpn::new(9)),
    }
}

impl Rig {
    fn sges(&self, lengths: &[u32]) -> Vec<Sge> {
        lengths.iter().map(|length| Sge { addr: BASE, length: *length, lkey: LKey(self.keys[0]) }).collect()
    }

    /// Carries out a verb. `Err` holds the text of the refusal.
    fn carry_out(&mut self, verb: &Verb) -> Result<(), String> {
        fn done<T, E: ToString>(result: Result<T, E>) -> Result<(), String> {
            result.map(|_| ()).map_err(|error| error.to_string())
        }
        let now = self.now;
        match *verb {
            Verb::PostSend { qp, op, key, ref lengths, inline, to } => {
                let (qpn, op) = (self.qp(qp), operation(op, self.key(key)));
                let (elements, bytes) = (self.sges(lengths), vec![1; inline.unwrap_or(0)]);
                let payload = match inline {
                    Some(_) => Payload::Inline(&bytes),
                    None => Payload::Elements(&elements),
                };
                let destination = UdDestination { path: path(), remote_qpn: Qpn::new(9), remote_qkey: 1 };
                let destination = to.then_some(destination);
                let wr =
                    SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, destination, remote_srqn: 0 };
                done(self.engine.post_send(now, qpn, &wr))
            }
            Verb::PostRecv { qp, ref lengths } => {
                let (qpn, elements) = (self.qp(qp), self.sges(lengths));
                done(self.engine.post_recv(qpn, &RecvWr { wr_id: 2, elements: &elements }))
            }
            Verb::PostSrq { ref lengths } => {
                let elements = self.sges(lengths);
                done(self.engine.post_srq_recv(self.srq, &RecvWr { wr_id: 2, elements: &elements }))
            }
            Verb::Modify { qp, given, value, state } => {
                done(self.engine.modify_qp(now, self.qp(qp), &attributes(given, value, state)))
            }
            Verb::CreateQp { kind, srq, size, field } => {
                let mut init = self.init(TYPES[kind % TYPES.len()], srq.then_some(self.srq));
                let capabilities = &mut init.capabilities;
                match field % 8 {
                    0 => capabilities.max_send_wr = size,
                    1 => capabilities.max_recv_wr = size,
                    2 => capabilities.max_send_sge = size,
                    3 => capabilities.max_recv_sge = size,
                    4 => capabilities.max_inline = size,
                    5 => init.pd = self.pds[1],
                    _ => {}
                }
                done(self.engine.create_qp(&init))
            }
            Verb::CreateGsi { kind } => {
                done(self.engine.create_gsi_qp(&self.init(TYPES[kind % TYPES.len()], None)))
            }
            Verb::CreateXrcTarget { xrcd } => {
                done(self.engine.create_xrc_target(self.xrcd(xrcd), &QpOptions::default()))
            }
            Verb::CreateXrcSrq { pd, xrcd, cq, size, elements } => {
                let (pd, xrcd, cq) = (self.pds[pd % 2], self.xrcd(xrcd), self.cq(cq));
                done(self.engine.create_xrc_srq(pd, xrcd, cq, size, elements))
            }
            Verb::PostXrcSrq { ref lengths } => {
                let elements = self.sges(lengths);
                done(self.engine.post_srq_recv(self.xrc_srq, &RecvWr { wr_id: 2, elements: &elements }))
            }
            Verb::DestroyXrcSrq => done(self.engine.destroy_srq(self.xrc_srq)),
            Verb::AllocateXrcd => done(self.engine.allocate_xrcd()),
            Verb::DeallocateXrcd { xrcd } => done(self.engine.deallocate_xrcd(self.xrcd(xrcd))),
            Verb::DestroyQp { qp } => done(self.engine.destroy_qp(self.qp(qp))),
            Verb::CreateCq { size } => done(self.engine.create_cq(size)),
            Verb::ResizeCq { cq, size } => done(self.engine.resize_cq(self.cq(cq), size)),
            Verb::DestroyCq { cq } => done(self.engine.destroy_cq(self.cq(cq))),
            Verb::PollCq { cq } => done(self.engine.poll_cq(self.cq(cq), &mut [Wc::default()])),
            Verb::Arm { cq } => done(self.engine.request_notification(self.cq(cq), Notify::Next)),
            Verb::CreateSrq { size, elements } => done(self.engine.create_srq(self.pds[0], size, elements)),
            Verb::ArmSrq { limit } => done(self.engine.arm_srq_limit(self.srq, limit)),
            Verb::ResizeSrq { size } => done(self.engine.resize_srq(self.srq, size)),
            Verb::DestroySrq => done(self.engine.destroy_srq(self.srq)),
            Verb::AllocatePd => done(self.engine.allocate_pd()),
            Verb::DeallocatePd { pd } => done(self.engine.deallocate_pd(self.pds[pd % 2])),
            Verb::Register { pd, addr, len, access } => {
                let memory = Arc::new(WordMemory::new(len * 8));
                let access = Access::from_bits_truncate(access);
                done(self.engine.register(self.pds[pd % 2], addr, memory, access))
            }
            Verb::Change { key, pd, memory, access } => {
                let words = |(addr, len): (u64, usize)| {
                    let memory: Arc<dyn Memory> = Arc::new(WordMemory::new(len * 8));
                    (addr, memory)
                };
                let change = RegionChange {
                    pd: pd.map(|pd| self.pds[pd % 2]),
                    memory: memory.map(words),
                    access: access.map(Access::from_bits_truncate),
                };
                done(self.engine.change_region(LKey(self.key(key)), change))
            }
            Verb::Deregister { key } => done(self.engine.deregister(LKey(self.key(key)))),
            Verb::Release { key } => done(self.engine.release_region(LKey(self.key(key)))),
            Verb::AllocateWindow { pd, second } => {
                let window_type = if second { WindowType::Type2 } else { WindowType::Type1 };
                done(self.engine.allocate_window(self.pds[pd % 2], window_type))
            }
            Verb::Bind { pd, window, region, addr, len, access } => {
                let access = Access::from_bits_truncate(access);
                let binding = WindowBinding { region: LKey(self.key(region)), addr, len, access };
                done(self.engine.bind_window(self.pds[pd % 2], RKey(self.key(window)), &binding))
            }
            Verb::DeallocateWindow { key } => done(self.engine.deallocate_window(RKey(self.key(key)))),
            Verb::Attach { qp } => done(self.engine.attach_multicast(self.qp(qp), path().destination)),
            Verb::Detach { qp } => done(self.engine.detach_multicast(self.qp(qp), path().destination)),
        }
    }
}

/// Returns the name of a verb, for the count of refusals.
fn name(verb: &Verb) -> String {
    let text = format!("{verb:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_refused_verb_has_changed_nothing(verbs in prop::collection::vec(verb(), 1..24)) {
        let mut rig = Rig::new();
        let mut before = rig.text();
        for verb in &verbs {
            let outcome = rig.carry_out(verb);
            let after = rig.text();
            if let Err(error) = outcome {
                let at = before.bytes().zip(after.bytes()).position(|(a, b)| a != b);
                let at = at.unwrap_or(before.len().min(after.len()));
                let near = |text: &str| text.get(at.saturating_sub(80)..(at + 80).min(text.len())).unwrap_or_default().to_owned();
                prop_assert!(before == after, "{verb:?}: {error}\nbefore: {}\nafter:  {}", near(&before), near(&after));
            }
            before = after;
        }
    }
}

/// Checks that the random verbs above are refused often enough: each kind of verb that can be refused is.
#[test]
fn every_verb_is_refused_at_least_once() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut refused, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..40 {
        let mut rig = Rig::new();
        for _ in 0..100 {
            let verb = verb().new_tree(&mut runner).unwrap().current();
            seen.insert(name(&verb));
            if rig.carry_out(&verb).is_err() {
                refused.insert(name(&verb));
            }
        }
    }
    let missing: Vec<_> = seen.difference(&refused).collect();
    assert!(missing.is_empty(), "never refused: {missing:?}");
    assert_eq!(seen.len(), 33, "{seen:?}");
}
