//! The engine, its regions and queue pairs, and the effects of each step.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use roce_packet::{PathMtu, Psn, Qpn, RnrTimer};
use roce_transport::{
    Access, CqId, Engine, EngineConfig, Instant, PdId, QpAttr, QpCapabilities, QpInit, QpState, QpType, RKey,
    RecvWr, RegionAttributes, Sge, SrqId, WindowBinding, WindowType,
};

use super::step::{Action, Step};
use crate::memory::{GuardedMemory, Log};
use crate::packet::{GROUP, OWN_ADDRESS, PEER_ADDRESS, path};

/// The queue pair of the peer, for all queue pairs of the engine.
pub const PEER_QPN: Qpn = Qpn::new(0x00_0abc);
/// The Q_Key of the UD queue pair.
pub const QKEY: u32 = 0x1234_5678;
/// Length of every region in bytes.
pub const REGION_LEN: usize = 4096;
/// The path MTU.
pub const MTU: PathMtu = PathMtu::Mtu256;
/// The initial range of the type 1 window in its region.
const WINDOW: std::ops::Range<usize> = 256..1024;
/// Length of one posted receive in bytes, in two elements.
const RECEIVE_LEN: usize = 700;
/// Maximum number of receives in one queue.
const RECEIVES: usize = 5;

/// A queue pair under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// RC in RTS.
    Rc,
    /// RC in RTS with a shared receive queue.
    RcShared,
    /// RC in RTR.
    RcReceiving,
    /// UC in RTS.
    Uc,
    /// UD in RTS, a member of a multicast group.
    Ud,
}

/// All queue pairs.
pub const QUEUES: [Queue; 5] = [Queue::Rc, Queue::RcShared, Queue::RcReceiving, Queue::Uc, Queue::Ud];

/// A region: its name, first address and rights, and whether it belongs to another protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    name: &'static str,
    addr: u64,
    access: Access,
    foreign: bool,
}

impl Region {
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }
}

const LOCAL: Access = Access::LOCAL_WRITE;

/// All regions. The fourth one contains the elements of receives.
pub const REGIONS: [Region; 9] = [
    region("open", 0x1_0000, LOCAL.union(Access::REMOTE)),
    region("read only", 0x2_0000, Access::REMOTE_READ),
    region("write only", 0xffff_f800, LOCAL.union(Access::REMOTE_WRITE)),
    region("receives", 0x4_0000, LOCAL),
    region("windowed", 0x5_0000, LOCAL.union(Access::MW_BIND)),
    region("top", u64::MAX - (REGION_LEN as u64 - 1), LOCAL.union(Access::REMOTE)),
    region("middle", (1 << 63) - 2048, LOCAL.union(Access::REMOTE)),
    region("from zero", 0, LOCAL.union(Access::REMOTE).union(Access::ZERO_BASED)),
    Region { name: "foreign", addr: 0x1_0000, access: LOCAL.union(Access::REMOTE), foreign: true },
];
const RECEIVES_AT: usize = 3;
const WINDOWED_AT: usize = 4;

const fn region(name: &'static str, addr: u64, access: Access) -> Region {
    Region { name, addr, access, foreign: false }
}

/// A region that is or was registered.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) memory: Arc<GuardedMemory>,
    pub(super) attributes: RegionAttributes,
    pub(super) alive: bool,
}

/// The expected state of one queue pair.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) queue: Queue,
    pub(super) qpn: Qpn,
    pub(super) state: QpState,
    /// Posted receives that have not completed.
    pub(super) posted: VecDeque<u64>,
    /// Bytes that the current WRITE still announces, so that the next packet can fit.
    pub(super) left: usize,
}

/// The engine and its environment.
#[derive(Debug)]
pub struct Rig {
    /// The engine under test.
    pub engine: Engine,
    /// The current time.
    pub now: Instant,
    pub(super) log: Log,
    pub(super) models: Vec<Model>,
    pub(super) regions: Vec<Registered>,
    /// Receives in the shared queue.
    pub(super) shared: VecDeque<u64>,
    /// Receives that a reset may have taken out of the shared queue without a completion.
    pub(super) shared_lost: usize,
    pub(super) window: RKey,
    pub(super) cq: CqId,
    /// The sender of the packet of this step. UD accepts packets from all senders, and sends CNPs to their
    /// sender.
    pub(super) sender: IpAddr,
    numbers: Vec<Qpn>,
    pd: PdId,
    srq: SrqId,
    next_id: u64,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// Registers all regions, brings up all queue pairs, and posts three receives to each queue.
    #[must_use]
    pub fn new() -> Self {
        let mut engine = Engine::new(EngineConfig { max_events: 64, ..EngineConfig::from_number(1) });
        let pd = engine.allocate_pd().expect("there is room");
        let other = engine.allocate_pd().expect("there is room");
        let cq = engine.create_cq(256).expect("there is room");
        let srq = engine.create_srq(pd, RECEIVES, 4).expect("there is room");
        let log = Log::default();
        let regions: Vec<Registered> = REGIONS
            .iter()
            .map(|region| {
                let memory = GuardedMemory::new(region.name, REGION_LEN, &log);
                let domain = if region.foreign { other } else { pd };
                let attributes = engine
                    .register(domain, region.addr, memory.clone(), region.access)
                    .expect("the region is legal");
                Registered { memory, attributes, alive: true }
            })
            .collect();
        let window = engine.allocate_window(pd, WindowType::Type1).expect("there is room");
        let mut rig = Self {
            engine,
            now: Instant::from_nanos(1_000),
            log,
            models: Vec::new(),
            sender: PEER_ADDRESS,
            regions,
            shared: VecDeque::new(),
            shared_lost: 0,
            window,
            cq,
            numbers: Vec::new(),
            pd,
            srq,
            next_id: 1,
        };
        rig.grant_regions();
        rig.bind_window(WINDOW);
        for queue in QUEUES {
            rig.create(queue);
        }
        rig
    }

    /// Returns the numbers of the queue pairs.
    #[must_use]
    pub fn numbers(&self) -> &[Qpn] {
        &self.numbers
    }

    /// Returns the PSN that a queue pair expects, or 0 if the queue pair does not exist.
    #[must_use]
    pub fn expected_psn(&self, qpn: Qpn) -> Psn {
        self.engine.query_qp(qpn).map_or(Psn::new(0), |attributes| attributes.rq_psn)
    }

    /// Disables the checks of memory accesses.
    pub fn grant_everything(&self) {
        for region in &self.regions {
            region.memory.grant_read(0, 0..REGION_LEN);
            region.memory.grant_write(0, 0..REGION_LEN);
        }
    }

    fn grant_regions(&self) {
        for index in 0..self.regions.len() {
            self.grant_region(index);
        }
    }

    /// Grants the rights of a region.
    fn grant_region(&self, index: usize) {
        let (Some(region), Some(rule)) = (self.regions.get(index), REGIONS.get(index)) else { return };
        if rule.foreign {
            return;
        }
        if rule.access.contains(Access::REMOTE_READ) {
            region.memory.grant_read(0, 0..REGION_LEN);
        }
        if rule.access.contains(Access::REMOTE_WRITE) {
            region.memory.grant_write(0, 0..REGION_LEN);
        }
    }

    /// Binds the type 1 window and moves the grant along.
    fn bind_window(&mut self, range: std::ops::Range<usize>) {
        const WINDOW_GRANT: u64 = u64::MAX;
        let Some(region) = self.regions.get(WINDOWED_AT) else { return };
        let binding = WindowBinding {
            region: region.attributes.lkey,
            addr: region.attributes.addr + range.start as u64,
            len: range.len(),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        };
        match self.engine.bind_window(self.pd, self.window, &binding) {
            Ok(key) => {
                self.window = key;
                region.memory.revoke(WINDOW_GRANT);
                region.memory.grant_read(WINDOW_GRANT, range.clone());
                region.memory.grant_write(WINDOW_GRANT, range);
            }
            Err(error) => assert!(!region.alive, "a legal bind was refused: {error}"),
        }
    }

    fn create(&mut self, queue: Queue) {
        let qp_type = match queue {
            Queue::Rc | Queue::RcShared | Queue::RcReceiving => QpType::Rc,
            Queue::Uc => QpType::Uc,
            Queue::Ud => QpType::Ud,
        };
        let init = QpInit {
            qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: (queue == Queue::RcShared).then_some(self.srq),
            capabilities: QpCapabilities {
                max_send_wr: 1,
                max_recv_wr: RECEIVES,
                max_send_sge: 1,
                max_recv_sge: 2,
                max_inline: 0,
            },
            signal_all: true,
        };
        let qpn = self.engine.create_qp(&init).expect("a legal queue pair");
        if queue == Queue::Ud {
            self.engine.attach_multicast(qpn, GROUP).expect("it exists");
        }
        self.numbers.push(qpn);
        let (state, posted) = (QpState::Reset, VecDeque::new());
        self.models.push(Model { queue, qpn, state, posted, left: 0 });
        let index = self.models.len() - 1;
        self.bring_up(index);
        for _ in 0..3 {
            self.post_receive(index);
        }
    }

    /// Moves a queue pair from RESET to its intended state.
    fn bring_up(&mut self, index: usize) {
        let Some(model) = self.models.get_mut(index) else { return };
        let (queue, qpn) = (model.queue, model.qpn);
        let mut init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to_state(QpState::Init) };
        let mut rtr = QpAttr::to_state(QpState::Rtr);
        let mut rts = QpAttr { sq_psn: Some(Psn::new(0x500)), ..QpAttr::to_state(QpState::Rts) };
        if queue == Queue::Ud {
            init.qkey = Some(QKEY);
        } else {
            init.access = Some(Access::REMOTE);
            rtr.path = Some(path(OWN_ADDRESS, PEER_ADDRESS));
            rtr.path_mtu = Some(MTU);
            rtr.dest_qpn = Some(PEER_QPN);
            rtr.rq_psn = Some(Psn::new(0xff_fff8));
        }
        if !matches!(queue, Queue::Uc | Queue::Ud) {
            rtr.max_dest_rd_atomic = Some(4);
            rtr.min_rnr_timer = RnrTimer::new(12);
            (rts.timeout, rts.retry_cnt, rts.rnr_retry) = (Some(14), Some(7), Some(7));
            rts.max_rd_atomic = Some(4);
        }
        let steps = if queue == Queue::RcReceiving { vec![init, rtr] } else { vec![init, rtr, rts] };
        for attr in steps {
            self.engine.modify_qp(self.now, qpn, &attr).expect("the attributes are right");
            model.state = attr.state.expect("every step has a state");
        }
        model.left = 0;
    }

    /// Executes a record and checks all invariants.
    pub fn take(&mut self, step: &Step) {
        let index = usize::from(step.queue) % self.models.len();
        let region = usize::from(step.key) % self.regions.len();
        match step.action() {
            Action::Packet => self.packet(step),
            Action::Revive => self.revive(index),
            Action::PostReceive => self.post_receive(index),
            Action::Wait => {
                self.now = self.now.plus_nanos(u64::from(step.length) << (step.fill & 31));
                self.engine.handle_timeout(self.now, Duration::ZERO);
            }
            Action::Deregister => self.deregister(region),
            Action::Register => self.register(region),
            Action::Restrict => self.restrict(index, step.fill),
            Action::Fail => {
                let (now, qpn) = (self.now, self.models[index].qpn);
                let attr = QpAttr::to_state(QpState::Err);
                self.engine.modify_qp(now, qpn, &attr).expect("always possible");
            }
            Action::Rebind => {
                let start = usize::from(step.offset.unsigned_abs()) % REGION_LEN;
                let end = (start + usize::from(step.length)).min(REGION_LEN);
                if end > start {
                    self.bind_window(start..end);
                }
            }
        }
        self.settle();
    }

    /// Resets a queue pair and brings it up again. Its receives are forgotten without completions.
    pub(super) fn revive(&mut self, index: usize) {
        let Some(model) = self.models.get_mut(index) else { return };
        let attr = QpAttr::to_state(QpState::Reset);
        self.engine.modify_qp(self.now, model.qpn, &attr).expect("always possible");
        model.state = QpState::Reset;
        self.shared_lost += usize::from(model.queue == Queue::RcShared);
        let forgotten = std::mem::take(&mut model.posted);
        for id in forgotten {
            self.revoke_receive(id);
        }
        self.bring_up(index);
        self.post_receive(index);
    }

    fn post_receive(&mut self, index: usize) {
        let Some(model) = self.models.get_mut(index) else { return };
        let Some(region) = self.regions.get(RECEIVES_AT) else { return };
        let id = self.next_id;
        let slot = usize::try_from(id % 5).unwrap_or(0) * 800;
        let (first, second) = (slot..slot + 123, slot + 130..slot + 130 + RECEIVE_LEN - 123);
        let element = |range: &std::ops::Range<usize>| Sge {
            addr: region.attributes.addr + range.start as u64,
            length: u32::try_from(range.len()).unwrap_or(0),
            lkey: region.attributes.lkey,
        };
        let wr = RecvWr { wr_id: id, elements: &[element(&first), element(&second)] };
        if region.alive {
            region.memory.grant_write(id, first.clone());
            region.memory.grant_write(id, second.clone());
        }
        let posted = match model.queue {
            Queue::RcShared => self.engine.post_srq_recv(self.srq, &wr),
            _ => self.engine.post_recv(model.qpn, &wr),
        };
        match (posted, model.queue) {
            (Ok(()), Queue::RcShared) => self.shared.push_back(id),
            (Ok(()), _) => model.posted.push_back(id),
            (Err(_), _) => region.memory.revoke(id),
        }
        self.next_id += 1;
    }

    pub(super) fn revoke_receive(&self, id: u64) {
        if let Some(region) = self.regions.get(RECEIVES_AT) {
            region.memory.revoke(id);
        }
    }

    fn deregister(&mut self, index: usize) {
        let Some(region) = self.regions.get_mut(index) else { return };
        match self.engine.deregister(region.attributes.lkey) {
            Ok(()) => {
                assert!(region.alive, "a region was deregistered twice");
                region.alive = false;
                region.memory.revoke_all();
            }
            Err(error) => assert!(!region.alive || index == WINDOWED_AT, "refused: {error}"),
        }
    }

    fn register(&mut self, index: usize) {
        let (Some(region), Some(rule)) = (self.regions.get_mut(index), REGIONS.get(index)) else { return };
        if region.alive || rule.foreign {
            return;
        }
        let memory = region.memory.clone();
        region.attributes = self.engine.register(self.pd, rule.addr, memory, rule.access).expect("legal");
        region.alive = true;
        self.grant_region(index);
    }

    /// Changes the rights of peers through a queue pair.
    fn restrict(&mut self, index: usize, bits: u8) {
        let Some(model) = self.models.get(index) else { return };
        let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::FLUSH_GLOBAL];
        let access = rights
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| bits & 1 << bit != 0)
            .fold(Access::empty(), |sum, (_, right)| sum | right);
        // Some states refuse the call, which then changes nothing.
        let attr = QpAttr { access: Some(access), ..QpAttr::default() };
        let _ = self.engine.modify_qp(self.now, model.qpn, &attr);
    }
}
