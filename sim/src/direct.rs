//! Two engines that exchange their datagrams directly, without a link, faults or allocations.
//!
//! This is the shortest path between two engines, for benchmarks and allocation tests. Datagrams are
//! exchanged in bursts, like those of a device that receives several datagrams at once.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use roce_packet::{Encapsulation, Path, Qpn};
use roce_transport::{
    Access, Allowed, CqId, Engine, EngineConfig, Identification, Instant, Memory, PdId, QpInit, QpType,
    Received, RegionAttributes, Sge, Transmit, TxSlot, Verdict, WordMemory,
};

use crate::pair::{MEMORY_BASE, Settings, Side, bring_up_attributes};

/// The maximum number of datagrams in one burst.
pub const BURST: usize = 32;
/// The size of the largest datagram: 4096 bytes of payload and all headers.
const SLOT: usize = 4096 + 128;

/// One of the two hosts: an engine with one region at [`MEMORY_BASE`] that grants all access rights.
#[derive(Debug)]
pub struct Host {
    /// The engine.
    pub engine: Engine,
    /// The protection domain.
    pub pd: PdId,
    /// The completion queue of all queue pairs.
    pub cq: CqId,
    /// The memory region.
    pub region: RegionAttributes,
    /// The contents of the region.
    pub memory: Arc<WordMemory>,
}

impl Host {
    /// Returns a range of the region as a scatter/gather element of a work request.
    #[must_use]
    pub fn element(&self, offset: usize, len: usize) -> Sge {
        let length = u32::try_from(len).expect("messages are below 4 GiB");
        Sge { addr: MEMORY_BASE + offset as u64, length, lkey: self.region.lkey }
    }
}

/// Two directly joined hosts.
#[derive(Debug)]
pub struct Direct {
    /// The current time, which only the caller changes.
    pub now: Instant,
    hosts: [Host; 2],
    buffers: Vec<[u8; SLOT]>,
    /// The description of the datagram in each buffer.
    pending: Vec<Transmit>,
}

impl Direct {
    /// Creates two hosts with `memory_len` bytes of memory each.
    #[must_use]
    pub fn new(config: &EngineConfig, memory_len: usize) -> Self {
        let host = || {
            let mut engine = Engine::new(config.clone());
            let pd = engine.allocate_pd().expect("a new engine has room");
            let cq = engine.create_cq(1 << 12).expect("a new engine has room");
            let memory = Arc::new(WordMemory::new(memory_len));
            let access = Access::LOCAL_WRITE | Access::REMOTE;
            let region = engine.register(pd, MEMORY_BASE, memory.clone(), access).expect("it has room");
            Host { engine, pd, cq, region, memory }
        };
        let path = Self::path(Side::A);
        let nothing = Transmit::new(path, Qpn::default(), 0, 0);
        Self {
            now: Instant::from_nanos(1),
            hosts: [host(), host()],
            buffers: vec![[0; SLOT]; BURST],
            pending: vec![nothing; BURST],
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

    /// Returns the path from one side to the other.
    #[must_use]
    pub fn path(from: Side) -> Path {
        let address = |side: Side| IpAddr::V4(Ipv4Addr::new(198, 18, 0, side as u8 + 1));
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: address(from),
            destination: address(from.other()),
            source_port: 0xc000,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }

    /// Creates two connected queue pairs in RTS. Two UD queue pairs can exchange datagrams.
    #[track_caller]
    pub fn connect(&mut self, qp_type: QpType, settings: &Settings) -> [Qpn; 2] {
        let qpns = [Side::A, Side::B].map(|side| {
            let host = self.host_mut(side);
            let (pd, send_cq, recv_cq) = (host.pd, host.cq, host.cq);
            let capabilities = settings.capabilities;
            let init = QpInit { qp_type, pd, send_cq, recv_cq, srq: None, capabilities, signal_all: false };
            host.engine.create_qp(&init).expect("a queue pair can be made")
        });
        for side in [Side::A, Side::B] {
            let (own, peer) = (qpns[side as usize], qpns[side.other() as usize]);
            let steps = bring_up_attributes(qp_type, side, Self::path(side), peer, settings);
            let now = self.now;
            for (_, attr) in steps {
                self.host_mut(side).engine.modify_qp(now, own, &attr).expect("the attributes are right");
            }
        }
        qpns
    }

    /// Hands over one burst and returns its number of datagrams.
    pub fn hand_over(&mut self, from: Side) -> usize {
        let now = self.now;
        let [a, b] = &mut self.hosts;
        let (sender, receiver) = if from == Side::A { (a, b) } else { (b, a) };
        let mut count = 0;
        for (buffer, pending) in self.buffers.iter_mut().zip(&mut self.pending) {
            let transmit = sender.engine.poll_transmit(now, &mut TxSlot::new(buffer), Allowed::All);
            let Some(transmit) = &transmit else { break };
            // Assigns each field separately: copying a struct whose parts were just written stalls until all
            // writes are done.
            pending.path = transmit.path;
            pending.len = transmit.len;
            pending.identification = transmit.identification;
            count += 1;
        }
        for (transmit, buffer) in self.pending.iter().zip(&self.buffers).take(count) {
            let identification =
                Identification::Known { identification: transmit.identification, dont_fragment: true };
            let head = buffer.get(..transmit.len).unwrap_or_default();
            let received = Received::whole(transmit.path, identification, head);
            let verdict = receiver.engine.handle(now, &received);
            assert_eq!(verdict, Verdict::Handled, "nothing is lost or doubled here");
        }
        count
    }

    /// Hands datagrams over until neither side has any, and returns their number.
    ///
    /// # Panics
    ///
    /// Panics if the engines exchange 2^20 datagrams or more.
    #[track_caller]
    pub fn drive(&mut self) -> usize {
        let mut sum = 0;
        loop {
            let count = self.hand_over(Side::A) + self.hand_over(Side::B);
            if count == 0 {
                return sum;
            }
            sum += count;
            assert!(sum < 1 << 20, "the engines answer each other without end");
        }
    }

    /// Reads a range of a host's memory.
    #[must_use]
    pub fn read(&self, side: Side, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.host(side).memory.read(offset, &mut bytes).expect("inside the region");
        bytes
    }

    /// Writes into a host's memory.
    pub fn write(&self, side: Side, offset: usize, bytes: &[u8]) {
        self.host(side).memory.write(offset, bytes).expect("inside the region");
    }
}
