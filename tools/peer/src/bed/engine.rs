//! The engine of `roce_transport` as the NIC under test.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use roce_packet::{Encapsulation, ImmDt, Path, Psn, Qpn, RnrTimer};
use roce_transport::congestion::Congestion;
use roce_transport::{
    Access, Allowed, AsyncEvent, CqId, Engine, EngineConfig, Event, FlushPlacement, Identification, Instant,
    Memory, PdId, QpAttr, QpCapabilities, QpInit, QpOptions, QpState, QpType, RKey, Received, RecvWr,
    RegionAttributes, SendFlags, SendOp, SendWr, Sge, TxSlot, Wc, WcFlags, WindowBinding, WindowType,
    WordMemory,
};

use super::virtual_time::VirtualNic;
use crate::run::{
    Answer, Completion, Connected, MemoryArea, Operation, Refusal, Request, Settings, WorkRequest,
};

/// The addresses of the script and of the NIC.
const IPV4: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2))];
const IPV6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)),
];
/// First virtual address of the first memory, and the distance to the next one.
const FIRST_VA: u64 = 0x1000_0000;
const VA_STEP: u64 = 0x1000_0000;
/// The queue pair number of the script.
const OWN_QPN: Qpn = Qpn::new(0x00be_ef01);
/// Bytes of the largest datagram of the engine.
const SLOT: usize = 8192;

/// A registered memory.
#[derive(Debug)]
struct Region {
    memory: Arc<WordMemory>,
    attributes: RegionAttributes,
}

/// The engine with one queue pair.
#[derive(Debug)]
pub struct EngineNic {
    engine: Engine,
    pd: PdId,
    cq: CqId,
    qpn: Option<Qpn>,
    /// The addresses of the script and of the NIC.
    addresses: [IpAddr; 2],
    regions: BTreeMap<String, Region>,
    next_va: u64,
    slot: Vec<u8>,
}

type Answered = Result<Answer, Refusal>;

/// Turns an error of the engine into a refusal.
fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

fn no_connection() -> Refusal {
    Refusal::Failed("there is no queue pair; write `connect` before".to_owned())
}

impl EngineNic {
    /// Creates a NIC with numbers that follow from the seed.
    ///
    /// # Panics
    ///
    /// Never: a new engine has room for its first objects.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_config(EngineConfig::from_number(seed))
    }

    /// Creates a NIC with other settings.
    ///
    /// # Panics
    ///
    /// Panics if the settings allow no protection domain or no completion queue.
    #[must_use]
    #[allow(clippy::expect_used, reason = "only settings of the caller can make it fail")]
    pub fn with_config(config: EngineConfig) -> Self {
        let mut engine = Engine::new(config);
        let pd = engine.allocate_pd().expect("room for a protection domain");
        let cq = engine.create_cq(1 << 12).expect("room for a completion queue");
        Self {
            engine,
            pd,
            cq,
            qpn: None,
            addresses: IPV4,
            regions: BTreeMap::new(),
            next_va: FIRST_VA,
            slot: vec![0; SLOT],
        }
    }

    /// Uses IPv6 instead of IPv4.
    #[must_use]
    pub const fn over_ipv6(mut self) -> Self {
        self.addresses = IPV6;
        self
    }

    fn qpn(&self) -> Result<Qpn, Refusal> {
        self.qpn.ok_or_else(no_connection)
    }

    fn connect(&mut self, now: Instant, settings: &Settings) -> Answered {
        let init = QpInit {
            qp_type: settings.qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            capabilities: QpCapabilities::default(),
            signal_all: false,
        };
        let congestion = settings.congestion.as_deref().map(Congestion::parse).transpose().map_err(failed)?;
        let options =
            QpOptions { congestion: congestion.map(|(congestion, _)| congestion), ..QpOptions::default() };
        let qpn = self.engine.create_qp_with(&init, &options).map_err(failed)?;
        for (state, attributes) in bring_up(settings, self.addresses) {
            if settings.state == QpState::Reset {
                break;
            }
            self.engine.modify_qp(now, qpn, &attributes).map_err(failed)?;
            if state == settings.state {
                break;
            }
        }
        self.qpn = Some(qpn);
        let [own_address, address] = self.addresses;
        Ok(Answer::Connected(Connected {
            qpn,
            own_qpn: OWN_QPN,
            own_psn: settings.psn,
            nic_psn: settings.nic_psn,
            address,
            own_address,
            source_port: 0xc000,
        }))
    }

    fn register(&mut self, name: &str, len: usize, rights: Access, is_foreign: bool) -> Answered {
        let pd = if is_foreign { self.engine.allocate_pd().map_err(failed)? } else { self.pd };
        let memory = Arc::new(WordMemory::try_new(len).map_err(failed)?);
        let access = rights | Access::LOCAL_WRITE | Access::MW_BIND;
        let va = self.next_va;
        let attributes = self.engine.register(pd, va, memory.clone(), access).map_err(failed)?;
        self.next_va += VA_STEP;
        let rkey = attributes.rkey.0;
        self.regions.insert(name.to_owned(), Region { memory, attributes });
        Ok(Answer::Memory { va, rkey })
    }

    fn bind(&mut self, now: Instant, area: &MemoryArea, rights: Access) -> Answered {
        let window = self.engine.allocate_window(self.pd, WindowType::Type2).map_err(failed)?;
        let new_rkey = window.next_variant();
        let element = self.element(area)?;
        let binding =
            WindowBinding { region: element.lkey, addr: element.addr, len: area.len, access: rights };
        let op = SendOp::BindWindow { window, new_rkey, binding };
        let wr = SendWr::new(0, op, &[]).with_flags(SendFlags::empty());
        let qpn = self.qpn()?;
        self.engine.post_send(now, qpn, &wr).map_err(failed)?;
        Ok(Answer::Memory { va: element.addr, rkey: new_rkey.0 })
    }

    fn region(&self, name: &str) -> Result<&Region, Refusal> {
        self.regions.get(name).ok_or_else(|| Refusal::Failed(format!("there is no memory `{name}`")))
    }

    fn element(&self, area: &MemoryArea) -> Result<Sge, Refusal> {
        let attributes = self.region(&area.memory)?.attributes;
        let length = u32::try_from(area.len).map_err(failed)?;
        Ok(Sge { addr: attributes.addr + area.at as u64, length, lkey: attributes.lkey })
    }

    fn post(&mut self, now: Instant, request: &WorkRequest) -> Answered {
        let element = request.area.as_ref().map(|area| self.element(area)).transpose()?;
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::FENCE, request.has_fence);
        flags.set(SendFlags::SOLICITED, request.is_solicited);
        let wr = SendWr::new(request.id, send_op(request.operation), element.as_slice()).with_flags(flags);
        let qpn = self.qpn()?;
        self.engine.post_send(now, qpn, &wr).map_err(failed)?;
        Ok(Answer::Done)
    }

    fn post_receive(&mut self, id: u64, area: Option<&MemoryArea>) -> Answered {
        let element = area.map(|area| self.element(area)).transpose()?;
        let qpn = self.qpn()?;
        self.engine.post_recv(qpn, &RecvWr { wr_id: id, elements: element.as_slice() }).map_err(failed)?;
        Ok(Answer::Done)
    }

    fn completions(&mut self) -> Answered {
        let mut all = Vec::new();
        let mut some = [Wc::default(); 32];
        while let Ok(count @ 1..) = self.engine.poll_cq(self.cq, &mut some) {
            all.extend(some.iter().take(count).map(completion));
        }
        Ok(Answer::Completions(all))
    }

    fn events(&mut self) -> Answered {
        let mut all = Vec::new();
        while let Some(event) = self.engine.poll_event() {
            if let Event::Async(event) = event {
                all.extend(event_name(event));
            }
        }
        Ok(Answer::Events(all))
    }

    fn counter(&self, name: &str) -> Answered {
        let mut found = None;
        self.engine.counters().visit(&mut |known, value| {
            if known == name {
                found = Some(value);
            }
        });
        found.map(Answer::Count).ok_or_else(|| Refusal::Failed(format!("there is no counter `{name}`")))
    }
}

impl VirtualNic for EngineNic {
    fn answer(&mut self, now: Instant, request: &Request) -> Answered {
        match request {
            Request::Connect(settings) => self.connect(now, settings),
            Request::Memory { name, len, rights, is_foreign } => {
                self.register(name, *len, *rights, *is_foreign)
            }
            Request::Window { area, rights, .. } => self.bind(now, area, *rights),
            Request::Write(area, bytes) => {
                let written = self.region(&area.memory)?.memory.write(area.at, bytes);
                written.map_err(failed).map(|()| Answer::Done)
            }
            Request::Read(area) => {
                let mut bytes = vec![0; area.len];
                let read = self.region(&area.memory)?.memory.read(area.at, &mut bytes);
                read.map_err(failed).map(|()| Answer::Bytes(bytes))
            }
            Request::Revoke(name) => {
                let lkey = self.region(name)?.attributes.lkey;
                self.engine.deregister(lkey).map_err(failed).map(|()| Answer::Done)
            }
            Request::Receive(id, area) => self.post_receive(*id, area.as_ref()),
            Request::Post(request) => self.post(now, request),
            Request::Modify(state) => {
                let qpn = self.qpn()?;
                let modified = self.engine.modify_qp(now, qpn, &QpAttr::to_state(*state));
                modified.map_err(failed).map(|()| Answer::Done)
            }
            Request::State => {
                let found = self.engine.query_qp(self.qpn()?).ok_or_else(no_connection)?;
                Ok(Answer::State(found.state))
            }
            Request::Counter(name) => self.counter(name),
            Request::Completions => self.completions(),
            Request::Events => self.events(),
        }
    }

    fn receive(&mut self, now: Instant, path: &Path, packet: &[u8]) {
        let identification = Identification::Known { identification: 0, dont_fragment: true };
        // The verdict shows in counters and answers.
        let _ = self.engine.handle(now, &Received::whole(*path, identification, packet));
    }

    fn transmit(&mut self, now: Instant) -> Option<(Path, u16, Vec<u8>)> {
        let sent = self.engine.poll_transmit(now, &mut TxSlot::new(&mut self.slot), Allowed::All)?;
        Some((sent.path, sent.identification, self.slot.get(..sent.len)?.to_vec()))
    }

    fn deadline(&self) -> Option<Instant> {
        self.engine.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.engine.handle_timeout(now, Duration::ZERO);
    }
}

/// Returns the attributes of the steps from RESET to RTS.
fn bring_up(settings: &Settings, [script, nic]: [IpAddr; 2]) -> [(QpState, QpAttr); 3] {
    let is_connected = settings.qp_type != QpType::Ud;
    let is_rc = settings.qp_type == QpType::Rc;
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: nic,
        destination: script,
        source_port: 0xc000,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: is_connected.then_some(settings.rights),
        qkey: (!is_connected).then_some(settings.qkey),
        ..QpAttr::to_state(QpState::Init)
    };
    let rtr = QpAttr {
        path: is_connected.then_some(path),
        path_mtu: is_connected.then_some(settings.mtu),
        dest_qpn: is_connected.then_some(OWN_QPN),
        rq_psn: is_connected.then_some(Psn::new(settings.psn)),
        max_dest_rd_atomic: is_rc.then_some(settings.reads),
        min_rnr_timer: RnrTimer::new(settings.rnr_timer).filter(|_| is_rc),
        ..QpAttr::to_state(QpState::Rtr)
    };
    let rts = QpAttr {
        sq_psn: Some(Psn::new(settings.nic_psn)),
        timeout: is_rc.then_some(settings.timeout),
        retry_cnt: is_rc.then_some(settings.retry),
        rnr_retry: is_rc.then_some(settings.rnr_retry),
        max_rd_atomic: is_rc.then_some(settings.reads),
        ..QpAttr::to_state(QpState::Rts)
    };
    [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)]
}

fn send_op(operation: Operation) -> SendOp {
    let imm = |value: u32| ImmDt(value.to_be_bytes());
    match operation {
        Operation::Send { invalidate: Some(rkey), .. } => SendOp::SendWithInvalidate(RKey(rkey)),
        Operation::Send { imm: Some(value), .. } => SendOp::SendWithImm(imm(value)),
        Operation::Send { .. } => SendOp::Send,
        Operation::Write { va, rkey, imm: Some(value) } => {
            SendOp::WriteWithImm { remote_addr: va, rkey: RKey(rkey), imm: imm(value) }
        }
        Operation::Write { va, rkey, imm: None } => SendOp::Write { remote_addr: va, rkey: RKey(rkey) },
        Operation::Read { va, rkey } => SendOp::Read { remote_addr: va, rkey: RKey(rkey) },
        Operation::FetchAdd { va, rkey, add } => SendOp::FetchAdd { remote_addr: va, rkey: RKey(rkey), add },
        Operation::CompareSwap { va, rkey, compare, swap } => {
            SendOp::CompareSwap { remote_addr: va, rkey: RKey(rkey), compare, swap }
        }
        Operation::AtomicWrite { va, rkey } => SendOp::AtomicWrite { remote_addr: va, rkey: RKey(rkey) },
        Operation::Flush { va, rkey, len } => SendOp::Flush {
            remote_addr: va,
            rkey: RKey(rkey),
            length: len,
            placement: FlushPlacement::GLOBAL_VISIBILITY,
            whole_region: false,
        },
        Operation::LocalInvalidate { rkey } => SendOp::LocalInvalidate { rkey: RKey(rkey) },
    }
}

fn completion(wc: &Wc) -> Completion {
    Completion {
        id: wc.wr_id,
        status: wc.status.name(),
        bytes: wc.byte_len,
        imm: wc.flags.contains(WcFlags::WITH_IMM).then_some(u32::from_be_bytes(wc.imm.0)),
        invalidated: wc.flags.contains(WcFlags::WITH_INV).then_some(wc.invalidated.0),
    }
}

/// Returns the name of an event in scripts. The others are not of a queue pair.
const fn event_name(event: AsyncEvent) -> Option<&'static str> {
    Some(match event {
        AsyncEvent::QpFatal(_) => "qp_fatal",
        AsyncEvent::QpRequestError(_) => "qp_request_error",
        AsyncEvent::QpAccessError(_) => "qp_access_error",
        AsyncEvent::CommunicationEstablished(_) => "communication_established",
        AsyncEvent::SqDrained(_) => "sq_drained",
        AsyncEvent::LastWqeReached(_) => "last_wqe_reached",
        _ => return None,
    })
}
