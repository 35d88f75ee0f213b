//! Helpers of the table and scenario tests: packets that a test makes up, and the answers on the link. A
//! `Bench` is a connected pair that checks its packet accounting when it is dropped.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "every test binary uses a part of this")]

pub mod bottleneck;
pub mod place;
pub mod zeros;

use std::ops::{Deref, DerefMut};

use roce_packet::{
    AtomicAckEth, AtomicEth, Bth, Datagram, DatagramWriter, Deth, Envelope, Feth, FlushSelectivity, Ieth,
    ImmDt, Msn, Opcode, Operation, Path, Psn, Qpn, Rdeth, Reth, Syndrome, Xrceth,
};
use roce_sim::pair::{Action, MEMORY_BASE, Pair, Sent, Settings, Side};
use roce_transport::{
    AsyncEvent, CqId, EngineConfig, Event, QpCapabilities, QpInit, QpState, QpType, SendOp, SendWr, SrqId,
    Verdict, WcStatus,
};

/// The identifier and the status of a completion.
pub type Ended = (u64, WcStatus);

/// A pair with one queue pair on each side. Dropping it checks that both engines account for each packet.
pub struct Bench {
    pub pair: Pair,
    pub a: Qpn,
    pub b: Qpn,
}

impl Deref for Bench {
    type Target = Pair;
    fn deref(&self) -> &Pair {
        &self.pair
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.pair
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pair.check_accounting();
        }
    }
}

/// Returns the settings of most tests: packets of 256 bytes, so that few bytes make many packets.
pub fn settings() -> Settings {
    Settings { mtu: roce_packet::PathMtu::Mtu256, ..Settings::default() }
}

pub const MTU: usize = 256;

impl Bench {
    #[track_caller]
    pub fn rc() -> Self {
        Self::new(QpType::Rc, &settings())
    }

    #[track_caller]
    pub fn new(qp_type: QpType, settings: &Settings) -> Self {
        Self::with_config(qp_type, settings, EngineConfig::from_number(7))
    }

    #[track_caller]
    pub fn with_config(qp_type: QpType, settings: &Settings, config: EngineConfig) -> Self {
        let mut pair = Pair::with_config(config, 1 << 21);
        pair.record = true;
        let (a, b) = pair.connect_with(qp_type, settings);
        Self { pair, a, b }
    }

    /// Returns two hosts without queue pairs; numbers 0 stand in for them.
    pub fn empty() -> Self {
        let mut pair = Pair::with_config(EngineConfig::from_number(11), 1 << 21);
        pair.record = true;
        Self { pair, a: Qpn::new(0), b: Qpn::new(0) }
    }

    pub fn qpn(&self, side: Side) -> Qpn {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }

    #[track_caller]
    pub fn state(&self, side: Side) -> QpState {
        self.host(side).engine.query_qp(self.qpn(side)).expect("the queue pair exists").state
    }

    /// Returns the PSN that the responder of `side` expects.
    #[track_caller]
    pub fn expected(&self, side: Side) -> Psn {
        self.host(side).engine.query_qp(self.qpn(side)).expect("the queue pair exists").rq_psn
    }

    /// Returns one counter by name.
    #[track_caller]
    pub fn counter(&self, side: Side, name: &str) -> u64 {
        let mut found = None;
        self.host(side).engine.counters().visit(&mut |candidate, value| {
            if candidate == name {
                found = Some(value);
            }
        });
        found.unwrap_or_else(|| panic!("there is no counter {name}"))
    }

    /// Posts a signaled request of `len` bytes from `offset` of A's region.
    #[track_caller]
    pub fn post(&mut self, wr_id: u64, op: SendOp, offset: usize, len: usize) {
        let element = self.host(Side::A).memory_range(offset, len);
        let a = self.a;
        self.post_send(Side::A, a, &SendWr::new(wr_id, op, &[element])).expect("the request is taken");
    }

    /// Posts a receive at B.
    #[track_caller]
    pub fn receive(&mut self, wr_id: u64, offset: usize, len: usize) {
        let b = self.b;
        self.post_recv(Side::B, b, wr_id, offset, len).expect("the receive is taken");
    }

    /// Returns a WRITE to `offset` of B's region.
    pub fn write(&self, offset: usize) -> SendOp {
        SendOp::Write { remote_addr: address(offset), rkey: self.host(Side::B).rkey() }
    }

    /// Returns a READ from `offset` of B's region.
    pub fn read(&self, offset: usize) -> SendOp {
        SendOp::Read { remote_addr: address(offset), rkey: self.host(Side::B).rkey() }
    }

    /// Returns a FETCH ADD at `offset` of B's region.
    pub fn fetch_add(&self, offset: usize, add: u64) -> SendOp {
        SendOp::FetchAdd { remote_addr: address(offset), rkey: self.host(Side::B).rkey(), add }
    }

    pub fn ended(&mut self, side: Side) -> Vec<Ended> {
        self.completions(side).iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Removes and returns the events of one side so far.
    /// Does something to each of these packets once: those from one side with this operation and these
    /// distances from the first PSN of A.
    pub fn once(&mut self, from: Side, operation: Operation, numbers: &'static [u32], does: fn() -> Action) {
        let first = settings().psns[0];
        let mut seen = Vec::new();
        self.set_script(move |sent: &Sent| {
            let number = sent.psn.get().wrapping_sub(first);
            let is_it =
                sent.from == from && sent.opcode.info().is_some_and(|info| info.operation == operation);
            if is_it && numbers.contains(&number) && !seen.contains(&number) {
                seen.push(number);
                return does();
            }
            Action::Pass
        });
    }

    pub fn take_events(&mut self, side: Side) -> Vec<AsyncEvent> {
        self.collect(side);
        std::mem::take(&mut self.host_mut(side).events)
            .into_iter()
            .filter_map(|event| match event {
                Event::Async(event) => Some(event),
                Event::Completion(_) => None,
            })
            .collect()
    }

    /// Returns a packet to `to` as its peer might send it.
    pub fn forge(&self, to: Side, opcode: Opcode, psn: Psn) -> Forge {
        Forge::new(self.path(to.other()), opcode, self.qpn(to), psn)
    }

    /// Delivers a packet and returns the verdict and the answers.
    #[track_caller]
    pub fn arrive(&mut self, to: Side, forge: &Forge) -> (Verdict, Vec<Answer>) {
        let before = self.sent.len();
        let verdict = self.inject(to, forge.path, &forge.build());
        let answers = self.answers_since(before, to);
        (verdict, answers)
    }

    /// Returns the packets that `from` sent after the first `before` packets of the record.
    #[track_caller]
    pub fn answers_since(&self, before: usize, from: Side) -> Vec<Answer> {
        self.sent[before..]
            .iter()
            .filter(|sent| sent.from == from)
            .map(|sent| Answer::of(&sent.bytes))
            .collect()
    }

    /// Returns the opcodes and PSNs that `from` sent so far.
    pub fn trace(&self, from: Side) -> Vec<(Opcode, u32)> {
        let packets = self.sent.iter().filter(|sent| sent.from == from);
        packets.map(|sent| (sent.opcode, sent.psn.get())).collect()
    }

    /// Connects a new queue pair with a shared receive queue at B to a new one at A. Both replace the
    /// bench's.
    #[track_caller]
    pub fn connect_srq(&mut self, qp_type: QpType, settings: &Settings) -> SrqId {
        let host = self.host_mut(Side::B);
        let srq = host.engine.create_srq(host.pd, 64, 4).expect("there is room");
        self.b = self.create_at_b(qp_type, settings, Some(srq), None);
        self.a = self.create_qp(Side::A, qp_type, settings);
        let (a, b) = (self.a, self.b);
        self.bring_up(Side::A, a, b, settings, QpState::Rts);
        self.bring_up(Side::B, b, a, settings, QpState::Rts);
        srq
    }

    /// Creates a queue pair at B in RESET with an unusual receive queue or completion queue.
    #[track_caller]
    pub fn create_at_b(
        &mut self,
        qp_type: QpType,
        settings: &Settings,
        srq: Option<SrqId>,
        cq: Option<CqId>,
    ) -> Qpn {
        let host = self.host_mut(Side::B);
        let cq = cq.unwrap_or(host.cq);
        let capabilities: QpCapabilities = settings.capabilities;
        let pd = host.pd;
        let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq, capabilities, signal_all: false };
        host.engine.create_qp(&init).expect("a queue pair can be made")
    }
}

/// Returns the virtual address of a byte of a host's region.
pub fn address(offset: usize) -> u64 {
    MEMORY_BASE + offset as u64
}

/// Returns bytes that differ from their neighbours and from the bytes one packet later.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251 + 1) as u8).collect()
}

/// The fields of a response packet that tests compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub opcode: Opcode,
    pub psn: u32,
    /// The first byte of the AETH.
    pub syndrome: Option<u8>,
    pub msn: Option<u32>,
}

impl Answer {
    #[track_caller]
    pub fn of(bytes: &[u8]) -> Self {
        let datagram = Datagram::parse(bytes, &[]).expect("the engine sends well-formed packets");
        let bth = datagram.bth();
        let aeth = datagram.aeth();
        Self {
            opcode: bth.opcode,
            psn: bth.psn.get(),
            syndrome: aeth.map(|aeth| aeth.syndrome.to_byte()),
            msn: aeth.map(|aeth| aeth.msn.get()),
        }
    }

    /// Returns an ACKNOWLEDGE packet.
    pub fn acknowledge(syndrome: u8, psn: u32, msn: u32) -> Self {
        Self { opcode: Opcode::RC_ACKNOWLEDGE, psn, syndrome: Some(syndrome), msn: Some(msn) }
    }
}

#[derive(Clone, Debug)]
enum Part {
    Rdeth(Rdeth),
    Deth(Deth),
    Xrceth(Xrceth),
    Feth(Feth),
    Reth(Reth),
    AtomicEth(AtomicEth),
    Aeth(u8, Msn),
    AtomicAckEth(u64),
    ImmDt(ImmDt),
    Ieth(Ieth),
}

/// A packet that a test makes up. Headers appear in the order of the calls, valid or not.
#[derive(Clone, Debug)]
pub struct Forge {
    pub path: Path,
    pub bth: Bth,
    parts: Vec<Part>,
    payload: Vec<u8>,
}

impl Forge {
    pub fn new(path: Path, opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        let mut bth = Bth::new(opcode, dest_qp, psn);
        bth.ack_req = true;
        Self { path, bth, parts: Vec::new(), payload: Vec::new() }
    }

    fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    pub fn reth(self, va: u64, rkey: roce_transport::RKey, dma_len: u32) -> Self {
        self.part(Part::Reth(Reth { va, rkey: rkey.0, dma_len }))
    }

    pub fn atomic(self, va: u64, rkey: roce_transport::RKey, swap_or_add: u64, compare: u64) -> Self {
        self.part(Part::AtomicEth(AtomicEth { va, rkey: rkey.0, swap_or_add, compare }))
    }

    pub fn aeth(self, syndrome: u8, msn: u32) -> Self {
        self.part(Part::Aeth(syndrome, Msn::new(msn)))
    }

    pub fn atomic_ack(self, original: u64) -> Self {
        self.part(Part::AtomicAckEth(original))
    }

    pub fn deth(self, q_key: u32, source_qp: Qpn) -> Self {
        self.part(Part::Deth(Deth { q_key, source_qp }))
    }

    pub fn rdeth(self) -> Self {
        self.part(Part::Rdeth(Rdeth { ee_context: 1 }))
    }

    pub fn xrceth(self) -> Self {
        self.srq(1)
    }

    /// Adds the shared receive queue that the packet is for.
    pub fn srq(self, number: u32) -> Self {
        self.part(Part::Xrceth(Xrceth { srq: number }))
    }

    /// Adds a request for global visibility of the range in the RETH.
    pub fn feth(self) -> Self {
        self.flush(true, FlushSelectivity::Range)
    }

    pub fn flush(self, global_visibility: bool, selectivity: FlushSelectivity) -> Self {
        self.part(Part::Feth(Feth { global_visibility, persistence: false, selectivity }))
    }

    pub fn imm(self, bytes: [u8; 4]) -> Self {
        self.part(Part::ImmDt(ImmDt(bytes)))
    }

    pub fn ieth(self, rkey: roce_transport::RKey) -> Self {
        self.part(Part::Ieth(Ieth { rkey: rkey.0 }))
    }

    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    pub fn silent(mut self) -> Self {
        self.bth.ack_req = false;
        self
    }

    /// Returns the bytes from the BTH to the ICRC.
    #[track_caller]
    pub fn build(&self) -> Vec<u8> {
        self.build_with(0)
    }

    /// Returns the bytes from the BTH to the ICRC, with an IPv4 Identification.
    #[track_caller]
    pub fn build_with(&self, identification: u16) -> Vec<u8> {
        self.build_in(&Envelope::new(&self.path, identification))
    }

    #[track_caller]
    pub fn build_in(&self, envelope: &Envelope) -> Vec<u8> {
        let mut buffer = vec![0; 16384];
        let len = self.write_into(&mut buffer, envelope).expect("the buffer is large");
        buffer.truncate(len);
        buffer
    }

    fn write_into(
        &self,
        buffer: &mut [u8],
        envelope: &Envelope,
    ) -> Result<usize, roce_packet::BufferTooSmall> {
        let mut writer = DatagramWriter::new(buffer, &self.bth)?;
        for part in &self.parts {
            match part {
                Part::Rdeth(header) => writer.rdeth(header)?,
                Part::Deth(header) => writer.deth(header)?,
                Part::Xrceth(header) => writer.xrceth(header)?,
                Part::Feth(header) => writer.feth(header)?,
                Part::Reth(header) => writer.reth(header)?,
                Part::AtomicEth(header) => writer.atomic_eth(header)?,
                Part::Aeth(byte, msn) => {
                    let syndrome = Syndrome::from_byte(*byte);
                    writer.aeth(&roce_packet::Aeth { syndrome, msn: *msn })?;
                }
                Part::AtomicAckEth(original) => {
                    writer.atomic_ack_eth(&AtomicAckEth { original: *original })?;
                }
                Part::ImmDt(header) => writer.imm_dt(header)?,
                Part::Ieth(header) => writer.ieth(header)?,
            }
        }
        writer.payload_slot(self.payload.len())?.copy_from_slice(&self.payload);
        writer.finish(envelope)
    }
}

/// Returns whether the packet with this index is hit, on average one in `one_in`. The choice has no period,
/// so a retransmission is not always hit in the same place.
pub fn unlucky(index: usize, seed: u64, one_in: u64) -> bool {
    let mixed =
        (index as u64 ^ seed << 32).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33 & 0xffff < 0x1_0000 / one_in
}

/// Compares two memories and panics with the first difference instead of printing megabytes.
#[track_caller]
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(at) = (0..found.len()).find(|at| found[*at] != expected[*at]) {
        panic!("{what}: byte {at} is {:#04x} and should be {:#04x}", found[at], expected[at]);
    }
}
