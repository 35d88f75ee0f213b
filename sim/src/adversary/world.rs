//! The two hosts and the clock of a run: handles posts, packets and completions until no event is left.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use roce_packet::{Encapsulation, Path, Psn, Qpn, RnrTimer};
use roce_transport::{
    Access, Allowed, Batch, CqId, DropReason, Engine, EngineConfig, Identification, Instant, Memory, PdId,
    Received, RegionAttributes, TxSlot, Verdict, Wc, WcStatus, WordMemory,
};

use super::link::Link;
use super::plan::{Mode, Plan};
use super::report::Report;
use super::trace::{Pause, Trace};
use super::work::{Flow, SHARED_WORDS};
use crate::pair::Side;

/// The result of a check.
pub(super) type Checked = Result<(), String>;

/// A registered memory region.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) memory: Arc<WordMemory>,
    pub(super) attributes: RegionAttributes,
}

/// One of the two hosts.
#[derive(Debug)]
pub(super) struct End {
    pub(super) engine: Engine,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    /// The words to which all flows towards this host add.
    pub(super) shared: Region,
    pub(super) shared_start: Vec<u8>,
    batch: Batch,
}

/// The state of a flow.
#[derive(Debug)]
pub(super) struct FlowState {
    pub(super) from: Side,
    pub(super) pair: usize,
    /// The memory at the requester.
    pub(super) source: Region,
    pub(super) local: Region,
    /// The memory at the responder.
    pub(super) target: Region,
    pub(super) receive: Region,
    /// The number of requests and receives posted so far, and the earliest time of the next post.
    pub(super) posted: usize,
    pub(super) next_post: Instant,
    pub(super) receives_posted: usize,
    pub(super) next_receive: Instant,
    /// The number of requests known to be complete: one past the last successful completion.
    pub(super) completed: usize,
    /// The first failed request and its status.
    pub(super) failed: Option<(usize, WcStatus)>,
    /// One past the last request with a failed completion.
    pub(super) flushed: usize,
    /// The number of completed receives, and one past the last flushed receive.
    pub(super) received: usize,
    pub(super) receives_flushed: usize,
    /// One past the request whose message arrived last.
    pub(super) arrived: usize,
    /// For UD, the number of arrivals of each message.
    pub(super) copies: Vec<u32>,
    pub(super) last_progress: Instant,
    /// The first PSN without an acknowledgement.
    pub(super) unacknowledged: Psn,
    /// The first PSN after all responses that were requested.
    pub(super) requested: Psn,
    /// The PSN in the responder's last NAK for a gap, or RNR NAK.
    pub(super) last_nak: Option<Psn>,
    /// The pause that the last RNR NAK requested.
    pub(super) pause: Option<Pause>,
    /// The arrival times of RNR NAKs.
    pub(super) rnr_naks: Vec<Instant>,
    /// The first PSN from which the requester retransmits although a later request was acknowledged, because
    /// a READ or atomic response is missing.
    pub(super) goes_back: Option<Psn>,
    /// The PSNs and times of the last arrived requests.
    pub(super) arrivals: VecDeque<(Psn, Instant)>,
    /// The last time at which a receive was posted to an empty receive queue.
    pub(super) empty_until: Option<Instant>,
}

/// A pair of queue pairs.
#[derive(Debug)]
pub(super) struct PairState {
    pub(super) qpns: [Qpn; 2],
    /// The times at which faults of its packets took effect, in both directions.
    pub(super) disturbed: Vec<Instant>,
    pub(super) doubled: u32,
}

#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) plan: &'a Plan,
    pub(super) now: Instant,
    pub(super) ends: [End; 2],
    pub(super) pairs: Vec<PairState>,
    pub(super) flows: Vec<FlowState>,
    pub(super) trace: Trace,
    link: Link,
    packets: usize,
    pub(super) stopped_at: Option<Instant>,
    buffer: Vec<u8>,
}

impl<'a> World<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        let ends = [End::new(plan, 1), End::new(plan, 2)];
        let mut world = Self {
            plan,
            now: Instant::from_nanos(1),
            ends,
            pairs: Vec::new(),
            flows: Vec::new(),
            trace: Trace::new(plan.seed),
            link: Link::new(plan),
            packets: 0,
            stopped_at: None,
            buffer: vec![0; 4096 + 128],
        };
        for pair in 0..plan.pairs.len() {
            world.connect(pair);
        }
        for flow in 0..plan.flows.len() {
            let state = world.prepare(flow);
            world.flows.push(state);
        }
        world
    }

    pub(super) fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    fn prepare(&mut self, index: usize) -> FlowState {
        let (pair, from) = (index / 2, if index.is_multiple_of(2) { Side::A } else { Side::B });
        let plan = &self.plan.flows[index];
        let base = (index as u64 + 1) << 32 | (self.plan.seed << 3 & 0xfff8);
        let remote = Access::LOCAL_WRITE | Access::REMOTE;
        FlowState {
            from,
            pair,
            source: self.end(from).register(base, &plan.source, Access::empty()),
            local: self.end(from).register(base + (1 << 28), &plan.local, Access::LOCAL_WRITE),
            target: self.end(from.other()).register(base + (2 << 28), &plan.target, remote),
            receive: self.end(from.other()).register(base + (3 << 28), &plan.receive, Access::LOCAL_WRITE),
            posted: 0,
            next_post: self.now,
            receives_posted: 0,
            next_receive: self.now,
            completed: 0,
            failed: None,
            flushed: 0,
            received: 0,
            receives_flushed: 0,
            arrived: 0,
            copies: vec![0; plan.ops.len()],
            last_progress: self.now,
            unacknowledged: self.plan.pairs[pair].psns[from as usize],
            requested: self.plan.pairs[pair].psns[from as usize],
            last_nak: None,
            pause: None,
            rnr_naks: Vec::new(),
            goes_back: None,
            arrivals: VecDeque::new(),
            empty_until: None,
        }
    }

    /// Runs the plan and the checks at its end.
    pub(super) fn run(&mut self) -> Checked {
        let mut ended = false;
        while !ended {
            self.settle()?;
            let Some(next) = self.next_time() else { break };
            ended = self.is_over(next)?;
            if !ended {
                self.now = self.now.max(next);
                self.arrivals()?;
                for end in &mut self.ends {
                    end.engine.handle_timeout(self.now, Duration::ZERO);
                }
            }
        }
        self.check_end(!ended)
    }

    /// Returns whether the run ends although events are left.
    fn is_over(&mut self, next: Instant) -> Result<bool, String> {
        match (self.plan.mode, self.stopped_at) {
            (Mode::Safety { packets }, _) => return Ok(self.packets >= packets),
            (Mode::Liveness { packets }, None) if self.packets >= packets => {
                self.stopped_at = Some(self.now);
                for flow in &mut self.flows {
                    (flow.next_post, flow.next_receive) = (self.now, self.now);
                }
                self.trace.note(self.now, "the faults stop");
            }
            _ => {}
        }
        let limit = self.stopped_at.map_or(Instant::from_nanos(1_000_000_000_000), |at| self.bound(at));
        if next > limit {
            return Err(format!("still busy at {next}; the faults stopped at {:?}", self.stopped_at));
        }
        Ok(false)
    }

    /// Returns the time by which all requests must have ended: the bound of the timeouts, twice the RNR
    /// pause, and the time on the link if every packet waits for the answer to the previous one.
    fn bound(&self, stopped_at: Instant) -> Instant {
        let tries = u64::from(self.plan.retry_cnt) + 1;
        let pause = RnrTimer::new(self.plan.min_rnr_timer).unwrap_or_default().delay_ns();
        let round_trip = 2 * (self.plan.link_delay_ns + self.plan.gap_ns + self.plan.poll_ns);
        let packets = |flow: &Flow| -> usize {
            flow.ops.iter().map(|op| Flow::packets(op.data.len(), self.plan.mtu.bytes()).count() + 1).sum()
        };
        let packets: usize = self.plan.flows.iter().map(packets).sum();
        let link = round_trip * packets as u64;
        stopped_at.plus_nanos(tries * 4 * self.plan.timeout_ns() + 2 * pause + link)
    }

    fn next_time(&self) -> Option<Instant> {
        let timeouts = self.ends.iter().filter_map(|end| end.engine.poll_timeout());
        let posts = self.flows.iter().zip(&self.plan.flows).flat_map(|(flow, plan)| {
            let send = (flow.posted < plan.ops.len()).then_some(flow.next_post);
            let receive = (flow.receives_posted < plan.receives.len()).then_some(flow.next_receive);
            // A post that is already due was tried, but its queue was full.
            [send, receive].into_iter().flatten().filter(|at| *at > self.now)
        });
        timeouts.chain(posts).chain(self.link.next_arrival()).min()
    }

    /// Handles completions, posts and packets until none is left.
    fn settle(&mut self) -> Checked {
        loop {
            let before = self.trace.events;
            // Answers to an arrival leave before the applications react to it.
            self.completions()?;
            for side in [Side::A, Side::B] {
                self.transmit(side)?;
                while self.end(side).engine.poll_event().is_some() {}
            }
            self.post();
            if self.trace.events == before {
                return Ok(());
            }
        }
    }

    /// Sends all packets that an engine has to send now.
    fn transmit(&mut self, side: Side) -> Checked {
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = loop {
            let now = self.now;
            let (batches, end) = (self.plan.batches, &mut self.ends[side as usize]);
            let mut slot = TxSlot { buffer: &mut buffer, batch: &end.batch };
            let Some(transmit) = end.engine.poll_transmit(now, &mut slot, Allowed::All) else { break Ok(()) };
            if end.batch.accepts(&transmit) {
                end.batch.push(&transmit);
            } else if batches {
                end.batch = Batch::start(&transmit, 8, 1 << 15);
            }
            let bytes = &buffer[..transmit.len];
            let faults = self.stopped_at.is_none();
            let fate = self.link.send(now, side, &transmit, bytes, faults);
            self.packets += 1;
            if let Err(message) = self.observe_sent(side, bytes, fate) {
                break Err(message);
            }
        };
        self.ends[side as usize].batch = Batch::NONE;
        self.buffer = buffer;
        outcome
    }

    /// Handles the packets that have arrived by now.
    fn arrivals(&mut self) -> Checked {
        while let Some(packet) = self.link.arrived(self.now) {
            let identification = if self.plan.hidden_identification {
                Identification::Unknown { hint: packet.identification }
            } else {
                Identification::Known { identification: packet.identification, dont_fragment: true }
            };
            let len = packet.bytes.len();
            let (head, tail) = packet.bytes.split_at(self.plan.head_len.unwrap_or(len).min(len));
            let received = match packet.trimmed {
                true => Received::trimmed(packet.path, &packet.bytes),
                false => Received::in_pieces(packet.path, identification, [head, tail]),
            };
            let verdict = self.ends[packet.to as usize].engine.handle(self.now, &received);
            if packet.damaged && verdict == Verdict::Handled {
                return Err(format!("a damaged packet was worked on: {:02x?}", packet.bytes));
            }
            if verdict == Verdict::Dropped(DropReason::OutOfSequence) {
                self.check_silence(packet.to, &packet.bytes)?;
            }
            if !packet.damaged && !packet.trimmed {
                self.observe_arrived(packet.to, &packet.bytes);
            }
            self.link.recycle(packet);
            if !self.plan.bursts {
                self.settle()?;
            }
        }
        Ok(())
    }

    fn completions(&mut self) -> Checked {
        for side in [Side::A, Side::B] {
            let mut some = [Wc::default(); 16];
            loop {
                let end = self.end(side);
                let count = end.engine.poll_cq(end.cq, &mut some).map_err(|error| error.to_string())?;
                if count == 0 {
                    break;
                }
                for wc in &some[..count] {
                    self.completion(side, wc)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn report(&self) -> Report {
        Report {
            hash: self.trace.hash,
            packets: self.packets,
            completed: self.flows.iter().map(|flow| flow.completed).sum(),
            failed: self.flows.iter().filter(|flow| flow.failed.is_some()).count(),
            counters: [0, 1].map(|side| *self.ends[side].engine.counters()),
        }
    }

    pub(super) fn ladder(&self) -> Vec<String> {
        self.trace.ladder()
    }

    /// Returns the path from one side to the other.
    pub(super) fn path(from: Side) -> Path {
        let address = |side: Side| IpAddr::V4(Ipv4Addr::new(198, 18, 0, side as u8 + 1));
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: address(from),
            destination: address(from.other()),
            source_port: 0xd00d,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }
}

impl End {
    fn new(plan: &Plan, number: u64) -> Self {
        let mut config = EngineConfig::from_number(plan.seed.wrapping_mul(2).wrapping_add(number));
        config.max_outstanding_packets = plan.window;
        config.max_read_packets = plan.max_read_packets;
        config.read_rate = plan.read_rate;
        config.quantum = plan.quantum;
        config.recovery = plan.recovery;
        config.paths = plan.paths.clone();
        config.congestion = plan.congestion.clone();
        config.pacing.after_loss = plan.after_loss;
        let mut engine = Engine::new(config);
        let pd = engine.allocate_pd().expect("a new engine has room");
        // Every request and every receive completes at most once.
        let entries: usize = plan.flows.iter().map(|flow| flow.ops.len() + flow.receives.len()).sum();
        let cq = engine.create_cq(entries + 1).expect("a new engine has room");
        let start = roce_fault::random::SplitMix64::new(plan.seed ^ number).bytes(8 * SHARED_WORDS);
        let (memory, access) =
            (Arc::new(WordMemory::from_bytes(&start)), Access::LOCAL_WRITE | Access::REMOTE);
        let attributes = engine.register(pd, 0x1000, memory.clone(), access).expect("a new engine has room");
        let shared = Region { memory, attributes };
        Self { engine, pd, cq, shared, shared_start: start, batch: Batch::NONE }
    }

    fn register(&mut self, addr: u64, content: &[u8], access: Access) -> Region {
        let memory = Arc::new(WordMemory::from_bytes(content));
        let attributes = self.engine.register(self.pd, addr, memory.clone(), access).expect("there is room");
        Region { memory, attributes }
    }
}

impl Region {
    pub(super) fn content(&self) -> Vec<u8> {
        self.memory.to_vec()
    }

    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        self.memory.read(offset, out).expect("inside the region");
    }
}
