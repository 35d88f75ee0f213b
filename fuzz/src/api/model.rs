//! The engine, all objects ever created on it, and the calls that create and destroy objects.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use roce_packet::{Path, PathMtu, Psn, Qpn, RnrTimer};
use roce_transport::{
    Access, CqId, Engine, EngineConfig, Instant, LKey, PdId, QpAttr, QpCapabilities, QpInit, QpState, QpType,
    RKey, RegionAttributes, SrqId, WindowBinding, WindowType,
};

use super::step::{Action, Step};
use crate::memory::{GuardedMemory, Log};
use crate::packet::{GROUP, OWN_ADDRESS, path};

/// The identifiers that were returned, and whether each object exists. Identifiers are reused, but listed
/// once.
#[derive(Debug)]
pub(super) struct Known<T>(Vec<(T, bool)>);

impl<T: Copy + PartialEq> Known<T> {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn born(&mut self, id: T) {
        match self.0.iter_mut().find(|(known, _)| *known == id) {
            Some((_, alive)) => {
                assert!(!*alive, "the id of a living object was given out again");
                *alive = true;
            }
            None => self.0.push((id, true)),
        }
    }

    fn died(&mut self, id: T) {
        let entry = self.0.iter_mut().find(|(known, alive)| *known == id && *alive);
        entry.expect("only a living object can be removed").1 = false;
    }

    pub(super) fn pick(&self, selector: u8) -> Option<T> {
        let count = self.0.len().max(1);
        self.0.get(usize::from(selector) % count).map(|(id, _)| *id)
    }

    fn living(&self) -> Vec<T> {
        self.0.iter().filter(|(_, alive)| *alive).map(|(id, _)| *id).collect()
    }
}

/// A region that is or was registered.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) memory: Arc<GuardedMemory>,
    pub(super) attributes: RegionAttributes,
    alive: bool,
}

/// A memory window. Its keys have the same number and differ in the variant.
#[derive(Debug)]
pub(super) struct Window {
    /// Previous keys, the current key, and keys that a bind by work request may set.
    keys: Vec<RKey>,
    alive: bool,
}

/// A packet in flight between two queue pairs.
pub(super) struct Flying {
    pub(super) path: Path,
    pub(super) bytes: Vec<u8>,
}

/// The engine and all objects that were ever created on it.
pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) now: Instant,
    pub(super) pds: Known<PdId>,
    pub(super) cqs: Known<CqId>,
    pub(super) srqs: Known<SrqId>,
    pub(super) qps: Known<Qpn>,
    pub(super) windows: Vec<Window>,
    pub(super) regions: Vec<Region>,
    pub(super) flying: VecDeque<Flying>,
    /// Work requests that have not completed: the queue pair, if it is known, and whether the request is a
    /// send.
    pub(super) posted: BTreeMap<u64, (Option<Qpn>, bool)>,
    /// The last request that completed, by queue pair and direction.
    pub(super) completed: BTreeMap<(Qpn, bool), u64>,
    pub(super) next_id: u64,
    log: Log,
}

impl Rig {
    /// Creates an engine with small limits, so that the fuzzer reaches them.
    pub(super) fn new() -> Self {
        let config = EngineConfig {
            max_outstanding_packets: 8,
            max_read_packets: 2,
            quantum: 2,
            max_qp: 6,
            max_cq: 5,
            max_cqe: 256,
            max_srq: 3,
            max_pd: 4,
            max_mr: 10,
            max_events: 16,
            port_mtu: PathMtu::Mtu512,
            ..EngineConfig::from_number(3)
        };
        Self {
            engine: Engine::new(config),
            now: Instant::from_nanos(1_000),
            pds: Known::new(),
            cqs: Known::new(),
            srqs: Known::new(),
            qps: Known::new(),
            windows: Vec::new(),
            regions: Vec::new(),
            flying: VecDeque::new(),
            posted: BTreeMap::new(),
            completed: BTreeMap::new(),
            next_id: 1,
            log: Log::default(),
        }
    }

    /// Executes a record and checks all invariants.
    pub(super) fn take(&mut self, step: &Step) {
        match step.action() {
            Action::PostSend
            | Action::PostReceive
            | Action::PostSharedReceive
            | Action::Poll
            | Action::Notify
            | Action::Wait
            | Action::Drive
            | Action::Query => self.work(step),
            Action::AllocateWindow
            | Action::BindWindow
            | Action::DeallocateWindow
            | Action::Register
            | Action::Deregister => _ = self.memory(step),
            Action::CreateQp
            | Action::DestroyQp
            | Action::ModifyQp
            | Action::Connect
            | Action::MoveQp
            | Action::Group => _ = self.queue_pair(step),
            _ => _ = self.queue(step),
        }
        self.log.take();
        self.check();
    }

    /// Executes calls about protection domains, completion queues and shared receive queues.
    fn queue(&mut self, step: &Step) -> Option<()> {
        let size = size(step);
        let (pd, cq, srq) = (self.pds.pick(step.pd), self.cqs.pick(step.cq), self.srqs.pick(step.srq));
        let engine = &mut self.engine;
        match step.action() {
            Action::AllocatePd => self.pds.born(done(engine.allocate_pd())?),
            Action::DeallocatePd => {
                done(engine.deallocate_pd(pd?))?;
                self.pds.died(pd?);
            }
            Action::CreateCq => self.cqs.born(done(engine.create_cq(size))?),
            Action::ResizeCq => done(engine.resize_cq(cq?, size))?,
            Action::DestroyCq => {
                done(engine.destroy_cq(cq?))?;
                self.cqs.died(cq?);
            }
            Action::CreateSrq => self.srqs.born(done(engine.create_srq(pd?, size, 2))?),
            Action::ArmSrq => done(engine.arm_srq_limit(srq?, size))?,
            Action::DestroySrq => {
                done(engine.destroy_srq(srq?))?;
                self.srqs.died(srq?);
            }
            other => panic!("{other:?} is no call about queues"),
        }
        Some(())
    }

    /// Executes calls about regions and windows.
    fn memory(&mut self, step: &Step) -> Option<()> {
        let pd = self.pds.pick(step.pd);
        match step.action() {
            Action::Register => self.register(step, pd?),
            Action::Deregister => {
                let lkey = self.lkey(step.region)?;
                done(self.engine.deregister(lkey))?;
                let region = self.regions.iter_mut().find(|region| region.attributes.lkey == lkey);
                let region = region.expect("only a known key can be removed");
                assert!(std::mem::replace(&mut region.alive, false), "a region was removed twice");
                region.memory.revoke_all();
            }
            Action::AllocateWindow => {
                let kind = if step.kind & 1 == 0 { WindowType::Type1 } else { WindowType::Type2 };
                let key = done(self.engine.allocate_window(pd?, kind))?;
                assert!(self.window_of(key).is_none(), "the number of a living window was given out again");
                self.windows.push(Window { keys: vec![key], alive: true });
            }
            Action::BindWindow => {
                let (window, binding) = (self.window_key(step.window)?, self.binding(step)?);
                let key = done(self.engine.bind_window(pd?, window, &binding))?;
                assert_eq!(key.0 >> 8, window.0 >> 8, "only the variant changes");
                self.may_be_keyed(key);
            }
            Action::DeallocateWindow => {
                let window = self.window_key(step.window)?;
                done(self.engine.deallocate_window(window))?;
                self.window_of(window).expect("only a living window can be removed").alive = false;
            }
            other => panic!("{other:?} is no call about memory"),
        }
        Some(())
    }

    fn register(&mut self, step: &Step, pd: PdId) {
        let len = usize::from(step.size) % 2049;
        let addr = match step.kind & 3 {
            0 => 0x1_0000,
            1 => u64::MAX - u64::from(step.number),
            2 => (1 << 32) - 512,
            _ => step.number.into(),
        };
        let memory = GuardedMemory::new("registered", len, &self.log);
        memory.grant_read(0, 0..len);
        memory.grant_write(0, 0..len);
        if let Some(attributes) = done(self.engine.register(pd, addr, memory.clone(), access(step.rights))) {
            assert!(
                self.regions.iter().all(|region| region.attributes.lkey != attributes.lkey || !region.alive)
            );
            self.regions.retain(|region| region.attributes.lkey != attributes.lkey);
            self.regions.push(Region { memory, attributes, alive: true });
        }
    }

    /// Returns a key that was returned before, or a similar one.
    pub(super) fn lkey(&self, selector: u8) -> Option<LKey> {
        let region = self.region(selector)?;
        let key = region.attributes.lkey;
        Some(if selector < 0xc0 { key } else { LKey(key.0 ^ 1) })
    }

    pub(super) fn region(&self, selector: u8) -> Option<&Region> {
        self.regions.get(usize::from(selector & 0x3f) % self.regions.len().max(1))
    }

    /// Returns the newest key of a window, an older one, or a key that never existed.
    pub(super) fn window_key(&self, selector: u8) -> Option<RKey> {
        let window = self.windows.get(usize::from(selector & 0x3f) % self.windows.len().max(1))?;
        let (newest, oldest) = (*window.keys.last()?, *window.keys.first()?);
        Some(match selector >> 6 {
            0 | 1 => newest,
            2 => oldest,
            _ => RKey(newest.0 ^ 0x100),
        })
    }

    fn window_of(&mut self, key: RKey) -> Option<&mut Window> {
        let same =
            |window: &&mut Window| window.alive && window.keys.iter().any(|own| own.0 >> 8 == key.0 >> 8);
        self.windows.iter_mut().find(same)
    }

    /// Records that a window was or will be bound under this key.
    pub(super) fn may_be_keyed(&mut self, key: RKey) {
        if let Some(window) = self.window_of(key) {
            window.keys.push(key);
        }
    }

    fn living_windows(&self) -> usize {
        self.windows.iter().filter(|window| window.alive).count()
    }

    pub(super) fn binding(&self, step: &Step) -> Option<WindowBinding> {
        let region = self.region(step.region)?.attributes;
        let addr = region.addr.wrapping_add(u64::from(step.number) % 600);
        let len = usize::from(step.size) % 2100;
        Some(WindowBinding { region: region.lkey, addr, len, access: access(step.rights) })
    }

    /// Executes calls about queue pairs.
    fn queue_pair(&mut self, step: &Step) -> Option<()> {
        let (qpn, other) = (self.qps.pick(step.qp), self.qps.pick(step.other));
        match step.action() {
            Action::CreateQp => self.create_qp(step)?,
            Action::DestroyQp => {
                done(self.engine.destroy_qp(qpn?))?;
                self.forget(qpn?);
                self.qps.died(qpn?);
            }
            Action::ModifyQp => self.modify(step, qpn?, other?)?,
            Action::Connect => self.connect(step, qpn?, other?)?,
            Action::MoveQp => {
                let state = [QpState::Err, QpState::Reset, QpState::Sqd, QpState::Rts, QpState::Sqe];
                let state = state[usize::from(step.kind) % state.len()];
                done(self.engine.modify_qp(self.now, qpn?, &QpAttr::to_state(state)))?;
                if state == QpState::Reset {
                    self.forget(qpn?);
                }
            }
            Action::Group if step.flags & 1 == 0 => done(self.engine.attach_multicast(qpn?, GROUP))?,
            Action::Group => done(self.engine.detach_multicast(qpn?, GROUP))?,
            other => panic!("{other:?} is no call about queue pairs"),
        }
        Some(())
    }

    /// Records that the posted requests of this queue pair may never complete.
    fn forget(&mut self, qpn: Qpn) {
        // Completions that are already in a queue may follow after a destroy, so only their order is
        // forgotten.
        self.completed.retain(|(known, _), _| *known != qpn);
    }

    fn create_qp(&mut self, step: &Step) -> Option<()> {
        const SIZES: [usize; 8] = [8, 1, 2, 0, 5, 8, 3, 65_537];
        let pick = |shift: u8| SIZES[usize::from(step.size >> shift) % SIZES.len()];
        let init = QpInit {
            qp_type: [QpType::Rc, QpType::Uc, QpType::Ud][usize::from(step.kind) % 3],
            pd: self.pds.pick(step.pd)?,
            send_cq: self.cqs.pick(step.cq & 0x0f)?,
            recv_cq: self.cqs.pick(step.cq >> 4)?,
            srq: if step.srq < 0x80 { self.srqs.pick(step.srq) } else { None },
            capabilities: QpCapabilities {
                max_send_wr: pick(0),
                max_recv_wr: pick(3),
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline: usize::from(step.number) % 514,
            },
            signal_all: step.flags & 1 != 0,
        };
        self.qps.born(done(self.engine.create_qp(&init))?);
        Some(())
    }

    /// Modifies a queue pair with the attributes that the state requires, some of which are missing, added or
    /// wrong.
    fn modify(&mut self, step: &Step, qpn: Qpn, other: Qpn) -> Option<()> {
        let qp_type = self.engine.qp_type(qpn).unwrap_or(QpType::Rc);
        let state = QpState::ALL[usize::from(step.kind) % QpState::ALL.len()];
        let mut attr = attributes(qp_type, state, other, step.number.into());
        if step.flags & 1 != 0 {
            attr.access = Some(access(step.rights));
        }
        if step.flags & 2 != 0 {
            attr.max_dest_rd_atomic = Some(step.fill);
        }
        if step.flags & 4 != 0 {
            attr.timeout = Some(step.fill);
            attr.max_rd_atomic = Some(step.fill >> 4);
        }
        if step.flags & 8 != 0 {
            attr.cur_state = Some(QpState::ALL[usize::from(step.fill) % QpState::ALL.len()]);
        }
        if step.flags & 16 != 0 {
            attr.path = None;
        }
        if step.flags & 32 != 0 {
            attr.state = None;
        }
        if step.flags & 64 != 0 {
            attr.en_sqd_async_notify = Some(true);
        }
        let before = self.engine.query_qp(qpn);
        if let Err(error) = self.engine.modify_qp(self.now, qpn, &attr) {
            let _ = error.to_string();
            assert_eq!(self.engine.query_qp(qpn), before, "a refused call changes nothing: {error}");
            return None;
        }
        if attr.state == Some(QpState::Reset) {
            self.forget(qpn);
        }
        Some(())
    }

    /// Moves two queue pairs from any state to RTS.
    fn connect(&mut self, step: &Step, a: Qpn, b: Qpn) -> Option<()> {
        for (own, peer) in [(a, b), (b, a)] {
            let qp_type = self.engine.qp_type(own)?;
            for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
                let attr = attributes(qp_type, state, peer, step.number.into());
                self.engine.modify_qp(self.now, own, &attr).expect("these attributes are right");
            }
            self.forget(own);
        }
        Some(())
    }

    /// Destroys all objects in an order in which none is in use.
    pub(super) fn tear_down(&mut self) {
        crate::packet::check_identity(&self.engine);
        for qpn in self.qps.living() {
            self.engine.destroy_qp(qpn).expect("it lives");
        }
        for window in self.windows.iter().filter(|window| window.alive) {
            let removed = window.keys.iter().any(|key| self.engine.deallocate_window(*key).is_ok());
            assert!(removed, "a living window has one of its keys: {window:?}");
        }
        for region in self.regions.drain(..) {
            if region.alive {
                self.engine.deregister(region.attributes.lkey).expect("no window is left");
                region.memory.revoke_all();
            }
            assert_eq!(Arc::strong_count(&region.memory), 1, "the engine keeps no memory");
        }
        for srq in self.srqs.living() {
            self.engine.destroy_srq(srq).expect("no queue pair is left");
        }
        for cq in self.cqs.living() {
            self.engine.destroy_cq(cq).expect("no queue pair is left");
        }
        for pd in self.pds.living() {
            self.engine.deallocate_pd(pd).expect("nothing is left in it");
        }
        assert_eq!((self.engine.keys_in_use(), self.engine.qp_numbers().count()), (0, 0));
        self.engine.handle_timeout(Instant::FAR_FUTURE, Duration::ZERO);
        assert_eq!(self.engine.poll_timeout(), None, "nothing is left to wait for");
        crate::packet::collect(&mut self.engine, Instant::FAR_FUTURE, |_, _| {
            panic!("nobody is left to send")
        });
    }

    /// Checks the invariants after every call.
    fn check(&mut self) {
        let living = self.regions.iter().filter(|region| region.alive).count() + self.living_windows();
        assert_eq!(self.engine.keys_in_use(), living, "keys in use");
        assert_eq!(self.engine.qp_numbers().count(), self.qps.living().len(), "queue pairs");
        for qpn in self.qps.living() {
            let (sends, receives) = self.engine.queue_depths(qpn).expect("it lives");
            assert!(sends <= 8 && receives <= 8, "{sends} and {receives} posted");
            let state = self.engine.query_qp(qpn).expect("it lives").state;
            assert!(state != QpState::Err || (sends, receives) == (0, 0), "left in the error state");
            assert!(state != QpState::Reset || (sends, receives) == (0, 0), "left after a reset");
        }
    }
}

/// Returns the attributes that the transition to `state` requires.
fn attributes(qp_type: QpType, state: QpState, peer: Qpn, psn: u32) -> QpAttr {
    let connected = qp_type != QpType::Ud;
    let rc = qp_type == QpType::Rc;
    let psn = Psn::new(0xff_fff0 + psn % 32);
    let mut attr = QpAttr::to_state(state);
    match state {
        QpState::Init => {
            (attr.pkey_index, attr.port) = (Some(0), Some(1));
            attr.access = connected.then_some(Access::REMOTE);
            attr.qkey = (!connected).then_some(0x11);
        }
        QpState::Rtr if connected => {
            attr.path = Some(path(OWN_ADDRESS, OWN_ADDRESS));
            (attr.path_mtu, attr.dest_qpn, attr.rq_psn) = (Some(PathMtu::Mtu256), Some(peer), Some(psn));
            attr.max_dest_rd_atomic = rc.then_some(2);
            attr.min_rnr_timer = RnrTimer::new(1).filter(|_| rc);
        }
        QpState::Rts => {
            attr.sq_psn = Some(psn);
            if rc {
                (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (Some(10), Some(2), Some(2));
                attr.max_rd_atomic = Some(2);
            }
        }
        _ => {}
    }
    attr
}

/// Returns access rights from eight bits.
fn access(bits: u8) -> Access {
    let all = [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::MW_BIND,
        Access::ZERO_BASED,
        Access::FLUSH_GLOBAL,
        Access::FLUSH_PERSISTENT,
    ];
    all.into_iter()
        .enumerate()
        .filter(|(bit, _)| bits & 1 << bit != 0)
        .fold(Access::empty(), |sum, (_, right)| sum | right)
}

/// Returns a size for a queue, which is usually valid.
fn size(step: &Step) -> usize {
    [16, 64, 2, 1, 0, 8, 257, 70_000][usize::from(step.size) % 8]
}

/// Returns the value of a result, if it has one. Prints an error, which must not panic either.
pub(super) fn done<T>(result: Result<T, impl Display>) -> Option<T> {
    result.map_err(|error| assert!(!error.to_string().is_empty())).ok()
}
