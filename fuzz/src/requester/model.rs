//! The engine, the posted work requests, and the checks after every step.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use roce_packet::{Datagram, ImmDt, Operation, PathMtu, Psn, Qpn, RnrTimer};
use roce_transport::{
    Access, CqId, Engine, EngineConfig, FlushPlacement, Instant, LKey, PdId, QpAttr, QpCapabilities, QpInit,
    QpState, QpType, RKey, RegionAttributes, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus, WindowBinding,
    WindowType,
};

use super::step::{Action, FLAG_FENCE, FLAG_INLINE, FLAG_REVIVE, FLAG_SOLICITED, Settings, Step};
use crate::memory::{Change, GuardedMemory, Log};
use crate::packet::{OWN_ADDRESS, PEER_ADDRESS, collect, path};

/// The queue pair of the peer.
pub(super) const PEER_QPN: Qpn = Qpn::new(0x00_0abc);
/// The path MTU.
pub(super) const MTU: usize = 256;
/// Bytes of the slot of each request, in both regions.
const SLOT: usize = 1024;
const SLOTS: u64 = 16;
const DEPTH: usize = 12;
const SOURCE: u64 = 0x10_0000;
const LANDING: u64 = 0x20_0000;

/// The operations that can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendWithImm,
    /// SEND with invalidate.
    SendWithInvalidate,
    /// WRITE.
    Write,
    /// WRITE with immediate data.
    WriteWithImm,
    /// READ.
    Read,
    /// COMPARE SWAP.
    CompareSwap,
    /// FETCH ADD.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// Bind of a type 2 window.
    BindWindow,
    /// Local invalidate of that window.
    LocalInvalidate,
}

/// All operations.
pub const OPERATIONS: [Posted; 12] = [
    Posted::Send,
    Posted::SendWithImm,
    Posted::SendWithInvalidate,
    Posted::Write,
    Posted::WriteWithImm,
    Posted::Read,
    Posted::CompareSwap,
    Posted::FetchAdd,
    Posted::AtomicWrite,
    Posted::Flush,
    Posted::BindWindow,
    Posted::LocalInvalidate,
];

impl Posted {
    /// Returns the number of bytes that the operation writes to local memory.
    const fn lands(self, len: usize) -> usize {
        match self {
            Self::Read => len,
            Self::CompareSwap | Self::FetchAdd => 8,
            _ => 0,
        }
    }

    const fn is_local(self) -> bool {
        matches!(self, Self::BindWindow | Self::LocalInvalidate)
    }
}

/// A request that has not completed.
#[derive(Debug)]
pub(super) struct Request {
    id: u64,
    posted: Posted,
    /// The first PSN of a READ or atomic that was sent.
    first_psn: Option<Psn>,
    /// Number of bytes to write to local memory, and number of bytes written.
    lands: usize,
    landed: usize,
}

/// A packet that the peer may answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    pub(super) psn: Psn,
    pub(super) operation: Operation,
    /// For a READ: requested bytes, and number of response packets so far.
    pub(super) dma_len: usize,
    pub(super) given: usize,
}

/// The engine and its environment.
pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) now: Instant,
    pub(super) qpn: Qpn,
    pub(super) log: Log,
    pub(super) requests: VecDeque<Request>,
    pub(super) unanswered: VecDeque<Unanswered>,
    settings: Settings,
    cq: CqId,
    pd: PdId,
    source: (Arc<GuardedMemory>, RegionAttributes),
    landing: (Arc<GuardedMemory>, RegionAttributes),
    landing_alive: bool,
    foreign: LKey,
    window: RKey,
    state: QpState,
    next_id: u64,
}

impl Rig {
    pub(super) fn new(settings: Settings) -> Self {
        let config = EngineConfig {
            max_outstanding_packets: settings.window,
            max_read_packets: settings.read_packets,
            max_events: 64,
            ..EngineConfig::from_number(2)
        };
        let mut engine = Engine::new(config);
        let pd = engine.allocate_pd().expect("there is room");
        let other = engine.allocate_pd().expect("there is room");
        let cq = engine.create_cq(64).expect("there is room");
        let log = Log::default();
        let len = SLOT * usize::try_from(SLOTS).expect("small");
        let mut register = |name, pd, addr, access| {
            let memory = GuardedMemory::new(name, len, &log);
            let region = engine.register(pd, addr, memory.clone(), access).expect("legal");
            (memory, region)
        };
        let source = register("source", pd, SOURCE, Access::MW_BIND);
        let landing = register("landing", pd, LANDING, Access::LOCAL_WRITE);
        let foreign = register("foreign", other, LANDING, Access::LOCAL_WRITE).1.lkey;
        source.0.grant_read(0, 0..len);
        let window = engine.allocate_window(pd, WindowType::Type2).expect("there is room");
        let capabilities = QpCapabilities {
            max_send_wr: DEPTH,
            max_recv_wr: 0,
            max_send_sge: 2,
            max_recv_sge: 0,
            max_inline: 300,
        };
        let (qp_type, srq, signal_all) = (QpType::Rc, None, true);
        let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq, capabilities, signal_all };
        let qpn = engine.create_qp(&init).expect("legal");
        let mut rig = Self {
            engine,
            now: Instant::from_nanos(1_000),
            qpn,
            log,
            requests: VecDeque::new(),
            unanswered: VecDeque::new(),
            settings,
            cq,
            pd,
            source,
            landing,
            landing_alive: true,
            foreign,
            window,
            state: QpState::Reset,
            next_id: 1,
        };
        rig.bring_up();
        rig
    }

    fn modify(&mut self, attr: &QpAttr) -> bool {
        let done = self.engine.modify_qp(self.now, self.qpn, attr).is_ok();
        if let (true, Some(state)) = (done, attr.state) {
            self.state = state;
        }
        done
    }

    fn bring_up(&mut self) {
        let init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpAttr::to_state(QpState::Init)
        };
        let rtr = QpAttr {
            path: Some(path(OWN_ADDRESS, PEER_ADDRESS)),
            path_mtu: PathMtu::from_bytes(MTU),
            dest_qpn: Some(PEER_QPN),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: RnrTimer::new(12),
            ..QpAttr::to_state(QpState::Rtr)
        };
        let rts = QpAttr {
            sq_psn: Some(Psn::new(0xff_fff8)),
            timeout: Some(14),
            retry_cnt: Some(self.settings.retries),
            rnr_retry: Some(self.settings.retries),
            max_rd_atomic: Some(self.settings.rd_atomic),
            ..QpAttr::to_state(QpState::Rts)
        };
        for attr in [init, rtr, rts] {
            assert!(self.modify(&attr), "the attributes are right: {attr:?}");
        }
    }

    /// Executes a record and checks all invariants.
    pub(super) fn take(&mut self, step: &Step) {
        if step.flags & FLAG_REVIVE != 0 && self.state == QpState::Err {
            self.revive();
        }
        match step.action() {
            Action::Post => self.post(step),
            Action::Answer => self.answer(step),
            Action::Wait => self.wait(step),
            Action::Revive => self.revive(),
            Action::Drain => _ = self.modify(&QpAttr::to_state(QpState::Sqd)),
            Action::Resume => _ = self.modify(&QpAttr::to_state(QpState::Rts)),
            Action::Fail => _ = self.modify(&QpAttr::to_state(QpState::Err)),
            Action::Deregister => {
                if self.engine.deregister(self.landing.1.lkey).is_ok() {
                    self.landing_alive = false;
                    self.landing.0.revoke_all();
                }
            }
            Action::Register => self.register(),
        }
        self.settle(step.action() == Action::Answer);
    }

    fn register(&mut self) {
        if !self.landing_alive {
            let memory = self.landing.0.clone();
            let region = self.engine.register(self.pd, LANDING, memory, Access::LOCAL_WRITE);
            self.landing.1 = region.expect("legal");
            self.landing_alive = true;
        }
    }

    fn revive(&mut self) {
        assert!(self.modify(&QpAttr::to_state(QpState::Reset)), "always possible");
        for request in std::mem::take(&mut self.requests) {
            self.landing.0.revoke(request.id);
        }
        self.unanswered.clear();
        self.bring_up();
    }

    fn wait(&mut self, step: &Step) {
        self.now = match (step.length, self.engine.poll_timeout()) {
            (0, Some(next)) => self.now.max(next),
            (nanos, _) => self.now.plus_nanos(u64::from(nanos) << (step.fill & 31)),
        };
        self.engine.handle_timeout(self.now, Duration::ZERO);
    }

    fn post(&mut self, step: &Step) {
        let posted = OPERATIONS[usize::from(step.operation) % OPERATIONS.len()];
        let id = self.next_id;
        self.next_id += 1;
        let len = match posted {
            Posted::CompareSwap | Posted::FetchAdd | Posted::AtomicWrite => 8,
            Posted::Flush | Posted::BindWindow | Posted::LocalInvalidate => 0,
            _ => usize::from(step.length) % (SLOT + 1),
        };
        let start = usize::try_from(id % SLOTS).expect("small") * SLOT;
        let lands = posted.lands(len);
        self.source.0.fill(start..start + len);
        let (base, key) = if lands > 0 {
            (self.landing.1.addr, self.landing.1.lkey)
        } else {
            (self.source.1.addr, self.source.1.lkey)
        };
        let lkey = match step.key {
            1 => key.next_variant(),
            2 => self.foreign,
            3 => self.source.1.lkey,
            _ => key,
        };
        let elements = elements(base + start as u64, len, usize::from(step.cut) * 4, lkey);
        let inline = self.source.0.peek(start, len.min(300));
        let mut wr = SendWr::new(id, self.operation(posted, id, step), &elements);
        if step.flags & FLAG_INLINE != 0 {
            wr = SendWr::inline(id, wr.op, &inline);
        }
        if step.flags & FLAG_FENCE != 0 {
            wr.flags |= SendFlags::FENCE;
        }
        if step.flags & FLAG_SOLICITED != 0 {
            wr.flags |= SendFlags::SOLICITED;
        }
        if lands > 0 && self.landing_alive {
            self.landing.0.grant_write(id, start..start + lands);
        }
        match self.engine.post_send(self.now, self.qpn, &wr) {
            Ok(()) => {
                self.requests.push_back(Request { id, posted, first_psn: None, lands, landed: 0 });
            }
            Err(_) => self.landing.0.revoke(id),
        }
    }

    /// Returns the operation. Its remote address contains the number of the request, which identifies the
    /// packets.
    fn operation(&self, posted: Posted, id: u64, step: &Step) -> SendOp {
        let (remote_addr, rkey) = (id << 16, RKey(0x1234_5678));
        let imm = ImmDt([step.fill; 4]);
        match posted {
            Posted::Send => SendOp::Send,
            Posted::SendWithImm => SendOp::SendWithImm(imm),
            Posted::SendWithInvalidate => SendOp::SendWithInvalidate(rkey),
            Posted::Write => SendOp::Write { remote_addr, rkey },
            Posted::WriteWithImm => SendOp::WriteWithImm { remote_addr, rkey, imm },
            Posted::Read => SendOp::Read { remote_addr, rkey },
            Posted::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 },
            Posted::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 3 },
            Posted::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
            Posted::Flush => SendOp::Flush {
                remote_addr,
                rkey,
                length: 64,
                placement: FlushPlacement::GLOBAL_VISIBILITY,
                whole_region: step.fill & 1 != 0,
            },
            Posted::BindWindow => SendOp::BindWindow {
                window: self.window,
                new_rkey: RKey(self.window.0 ^ u32::from(step.fill)),
                binding: WindowBinding {
                    region: self.source.1.lkey,
                    addr: SOURCE,
                    len: 64,
                    access: Access::REMOTE_READ,
                },
            },
            Posted::LocalInvalidate => {
                SendOp::LocalInvalidate { rkey: RKey(self.window.0 ^ u32::from(step.fill)) }
            }
        }
    }

    /// Checks the changes of memory by an answer with this PSN.
    pub(super) fn check_changes(&mut self, psn: Psn, carried: &[u8], changes: &[Change]) {
        let Some(first) = changes.first() else { return };
        let written: Vec<u8> = changes.iter().flat_map(|change| change.bytes.clone()).collect();
        assert_eq!(written, carried, "what lands is what the packet carried");
        let request = self.requests.iter_mut().find(|request| {
            let packets = u32::try_from(request.lands.div_ceil(MTU)).expect("small");
            request.first_psn.is_some_and(|first| first.distance_to(psn) < packets)
        });
        let request = request.expect("the PSN belongs to a READ or atomic that was sent");
        let first_psn = request.first_psn.expect("found by it");
        let slot = usize::try_from(request.id % SLOTS).expect("small") * SLOT;
        let at = first_psn.distance_to(psn) as usize * MTU;
        assert_eq!(first.offset, slot + at, "bytes land where the PSN says");
        assert_eq!(request.landed, at, "bytes land in order, each once");
        request.landed += written.len();
    }

    /// Checks sent packets, completions and states after a step.
    fn settle(&mut self, answered: bool) {
        let peer = path(OWN_ADDRESS, PEER_ADDRESS);
        let mut sent = Vec::new();
        collect(&mut self.engine, self.now, |transmit, datagram| {
            assert_eq!(transmit.path, peer);
            assert_eq!(datagram.bth().dest_qp, PEER_QPN);
            sent.push(Self::describe(&self.source.0, datagram));
        });
        assert_eq!(self.log.take(), [], "sending changes nothing");
        for (packet, named) in sent {
            if let Some((id, offset)) = named {
                self.note_first_psn(id, packet.psn, offset);
            }
            self.unanswered.retain(|known| known.psn != packet.psn);
            self.unanswered.push_back(packet);
        }
        self.poll(answered);
        while self.engine.poll_event().is_some() {}
        let state = self.engine.query_qp(self.qpn).expect("it exists").state;
        assert!(state == self.state || state == QpState::Err, "{:?} became {state:?}", self.state);
        self.state = state;
        let (depth, _) = self.engine.queue_depths(self.qpn).expect("it exists");
        assert_eq!(depth, self.requests.len(), "the queue holds what has not completed");
        assert!(depth == 0 || state != QpState::Err, "everything is flushed in the error state");
    }

    /// Returns the data of a request packet that the peer needs. Checks the payload of WRITEs.
    fn describe(source: &GuardedMemory, datagram: &Datagram<'_>) -> (Unanswered, Option<(u64, usize)>) {
        let (info, reth) = (datagram.info(), datagram.reth());
        let va = reth.map(|reth| reth.va).or_else(|| datagram.atomic_eth().map(|eth| eth.va));
        let named = va.map(|va| (va >> 16, usize::try_from(va & 0xffff).expect("16 bits")));
        if let (Operation::Write, Some((id, offset))) = (info.operation, named) {
            let at = usize::try_from(id % SLOTS).expect("small") * SLOT + offset;
            assert_eq!(datagram.payload().0, source.peek(at, datagram.payload_len()), "WRITE {id}");
        }
        let dma_len = reth.map_or(0, |reth| reth.dma_len as usize);
        let (psn, operation) = (datagram.bth().psn, info.operation);
        (Unanswered { psn, operation, dma_len, given: 0 }, named)
    }

    fn note_first_psn(&mut self, id: u64, psn: Psn, offset: usize) {
        let Some(request) = self.requests.iter_mut().find(|request| request.id == id) else { return };
        let first = psn.sub(u32::try_from(offset / MTU).expect("small"));
        assert!(request.first_psn.is_none_or(|known| known == first), "a retransmission has the same PSN");
        request.first_psn = Some(first);
    }

    fn poll(&mut self, answered: bool) {
        let mut some = [Wc::default(); 16];
        loop {
            let count = self.engine.poll_cq(self.cq, &mut some).expect("the queue is large enough");
            if count == 0 {
                return;
            }
            for wc in &some[..count] {
                let request = self.requests.pop_front().expect("nothing completes twice");
                assert_eq!(request.id, wc.wr_id, "requests complete in order");
                self.landing.0.revoke(wc.wr_id);
                if wc.status == WcStatus::Success {
                    assert_eq!(
                        request.landed, request.lands,
                        "{:?} succeeded without its bytes",
                        request.posted
                    );
                    assert!(answered || request.posted.is_local(), "success without any packet");
                }
            }
        }
    }

    /// Stops all answers of the peer. Every request must complete, and only with errors.
    pub(super) fn fall_silent(&mut self) {
        // A few timeouts per retry, and some that are no longer due.
        const MOST: usize = 500;
        self.modify(&QpAttr::to_state(QpState::Rts));
        self.settle(false);
        for _ in 0..MOST {
            let Some(next) = self.engine.poll_timeout() else { break };
            self.now = self.now.max(next);
            self.engine.handle_timeout(self.now, Duration::ZERO);
            self.settle(false);
        }
        assert!(self.requests.is_empty(), "in {:?} these never complete: {:?}", self.state, self.requests);
    }
}

/// Returns one or two elements with `len` bytes in total, starting at `addr`.
fn elements(addr: u64, len: usize, cut: usize, lkey: LKey) -> Vec<Sge> {
    let piece = |range: Range<usize>| Sge {
        addr: addr + range.start as u64,
        length: u32::try_from(range.len()).expect("small"),
        lkey,
    };
    if cut == 0 || cut >= len { vec![piece(0..len)] } else { vec![piece(0..cut), piece(cut..len)] }
}
