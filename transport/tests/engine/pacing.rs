//! READs and WRITEs of engines without congestion control, in virtual time, through a queue that drops
//! packets when it is full.
//!
//! ```text
//!   server --- 25 Gb/s ---> [ queue, tail drop ] --- bottleneck ---> clients
//!          <------------------- 10 us, never lost ------------------
//! ```
//!
//! The clients request every READ at once, as Soft-RoCE does, and request it again from the first missing
//! response.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::common::zeros::Zeros;
use crate::common::{Bench, MTU};
use roce_packet::{Encapsulation, Path, Qpn};
use roce_sim::pair::{Action, Settings, Side, bring_up_attributes};
use roce_transport::{
    Access, Allowed, CqId, Engine, EngineConfig, Identification, Instant, Pending, QpCapabilities, QpInit,
    QpType, Received, RegionAttributes, SendOp, SendWr, Sge, Transmit, TxSlot, Wc, WcStatus,
};

const BASE: u64 = 0x1000_0000;
const MIB: u32 = 1 << 20;
/// The time of a response of path MTU 1024 at 25 Gb/s.
const LINE_NS: u64 = 354;
const DELAY_NS: u64 = 10_000;

fn address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, host as u8 + 1))
}

struct End {
    engine: Engine,
    cq: CqId,
    pd: roce_transport::PdId,
    region: RegionAttributes,
}

impl End {
    fn new(host: usize, change: &dyn Fn(&mut EngineConfig)) -> Self {
        let mut config = EngineConfig::from_number(host as u64);
        change(&mut config);
        let mut engine = Engine::new(config);
        let pd = engine.allocate_pd().unwrap();
        let cq = engine.create_cq(4096).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let region = engine.register(pd, BASE, Arc::new(Zeros(1 << 30)), access).unwrap();
        Self { engine, cq, pd, region }
    }

    fn create_qp(&mut self) -> Qpn {
        let (pd, cq) = (self.pd, self.cq);
        let capabilities = QpCapabilities { max_send_wr: 64, ..Settings::default().capabilities };
        let qp_type = QpType::Rc;
        let init =
            QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, capabilities, signal_all: true };
        self.engine.create_qp(&init).unwrap()
    }

    fn connect(&mut self, own: (usize, Qpn), peer: (usize, Qpn)) {
        let path = Path {
            encapsulation: Encapsulation::RoceV2,
            source: address(own.0),
            destination: address(peer.0),
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        };
        let settings = Settings { psns: [0x1000; 2], ..Settings::default() };
        for (_, attr) in bring_up_attributes(QpType::Rc, Side::A, path, peer.1, &settings) {
            self.engine.modify_qp(Instant::ZERO, own.1, &attr).unwrap();
        }
    }

    fn completions(&mut self) -> usize {
        let mut all = [Wc::default(); 64];
        let count = self.engine.poll_cq(self.cq, &mut all).unwrap();
        for wc in &all[..count] {
            assert_eq!(wc.status, WcStatus::Success);
        }
        count
    }
}

/// The path from the server to its clients.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The capacity of the queue in packets, and the time that the bottleneck takes for each packet.
    queue: usize,
    packet_ns: u64,
    /// Number of packets of 65,536 that are lost at random.
    loss: u64,
}

/// The work of a flow: READs by a client, or WRITEs by the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Read,
    Write,
}

type Datagram = (usize, Path, Vec<u8>);

struct World {
    now: Instant,
    way: Way,
    work: Work,
    ends: Vec<End>,
    /// The queue pairs of the server and of the clients.
    qps: Vec<(Qpn, Qpn)>,
    queue: VecDeque<Datagram>,
    line_free: Instant,
    bottleneck_free: Instant,
    flying: BTreeMap<(Instant, u64), Datagram>,
    launched: u64,
    dropped: u64,
    random: u64,
    /// A hash of all datagrams of the server and their times.
    trace: u64,
    completed: Vec<u64>,
}

impl World {
    fn new(way: Way, work: Work, clients: usize, server: &dyn Fn(&mut EngineConfig)) -> Self {
        let mut ends = vec![End::new(0, server)];
        let mut qps = Vec::new();
        for host in 1..=clients {
            let mut end = End::new(host, &requester);
            let (near, far) = (ends[0].create_qp(), end.create_qp());
            ends[0].connect((0, near), (host, far));
            end.connect((host, far), (0, near));
            ends.push(end);
            qps.push((near, far));
        }
        Self {
            now: Instant::from_nanos(1_000_000),
            way,
            work,
            ends,
            qps,
            queue: VecDeque::new(),
            line_free: Instant::ZERO,
            bottleneck_free: Instant::ZERO,
            flying: BTreeMap::new(),
            launched: 0,
            dropped: 0,
            random: 1,
            trace: 0,
            completed: vec![0; clients],
        }
    }

    fn post(&mut self, client: usize) {
        let (near, far) = self.qps[client];
        let (from, to, qpn) =
            if self.work == Work::Read { (client + 1, 0, far) } else { (0, client + 1, near) };
        let (remote_addr, rkey) = (BASE, self.ends[to].region.rkey);
        let op = match self.work {
            Work::Read => SendOp::Read { remote_addr, rkey },
            Work::Write => SendOp::Write { remote_addr, rkey },
        };
        let end = &mut self.ends[from];
        let elements = [Sge { addr: BASE, length: MIB, lkey: end.region.lkey }];
        end.engine.post_send(self.now, qpn, &SendWr::new(client as u64, op, &elements)).unwrap();
    }

    fn is_lost(&mut self) -> bool {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 48 < self.way.loss
    }

    fn fly(&mut self, datagram: Datagram) {
        self.launched += 1;
        self.flying.insert((self.now.plus_nanos(DELAY_NS), self.launched), datagram);
    }

    /// Handles all current events. Returns the time of the next event.
    fn step(&mut self) -> Option<Instant> {
        let now = self.now;
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= now) {
            let (to, path, bytes) = entry.remove();
            let identification = Identification::Known { identification: 0, dont_fragment: true };
            let received = Received::whole(path, identification, &bytes);
            self.ends[to].engine.handle(now, &received);
        }
        if self.bottleneck_free <= now
            && let Some(datagram) = self.queue.pop_front()
        {
            self.bottleneck_free = now.plus_nanos(self.way.packet_ns);
            self.fly(datagram);
        }
        let mut buffer = [0; 2048];
        for host in 0..self.ends.len() {
            self.ends[host].engine.handle_timeout(now, Duration::ZERO);
            while host > 0 || self.line_free <= now {
                let Some(transmit) =
                    self.ends[host].engine.poll_transmit(now, &mut TxSlot::new(&mut buffer), Allowed::All)
                else {
                    break;
                };
                self.launch(host, &transmit, &buffer);
            }
            while self.ends[host].engine.poll_event().is_some() {}
        }
        let timers = self.ends.iter().filter_map(|end| end.engine.poll_timeout());
        let queue = (!self.queue.is_empty()).then_some(self.bottleneck_free);
        let line = (self.ends[0].engine.pending(now) != Pending::Nothing).then_some(self.line_free);
        let flying = self.flying.keys().next().map(|key| key.0);
        timers.chain(queue).chain(line).chain(flying).min()
    }

    fn launch(&mut self, host: usize, transmit: &Transmit, buffer: &[u8]) {
        let to = (0..self.ends.len()).find(|to| address(*to) == transmit.path.destination).unwrap();
        let datagram = (to, transmit.path, buffer[..transmit.len].to_vec());
        if host > 0 {
            return self.fly(datagram);
        }
        for byte in self.now.as_nanos().to_le_bytes().iter().chain(&datagram.2) {
            self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        self.line_free = self.now.plus_nanos(LINE_NS * transmit.len as u64 / 1_040);
        if self.is_lost() || self.queue.len() >= self.way.queue {
            self.dropped += 1;
        } else {
            self.queue.push_back(datagram);
        }
    }

    /// Returns the goodput of each client in megabytes per second over `millis`. Each client has `depth`
    /// requests of 1 MiB outstanding.
    fn run(&mut self, depth: usize, millis: u64) -> Vec<f64> {
        for client in 0..self.qps.len() {
            (0..depth).for_each(|_| self.post(client));
        }
        let (begin, before) = (self.now, self.completed.clone());
        let end = begin.plus_nanos(millis * 1_000_000);
        while self.now < end {
            let mut next = self.step().unwrap_or(end);
            for client in 0..self.qps.len() {
                let done = match self.work {
                    Work::Read => self.ends[client + 1].completions(),
                    // WRITEs have only one client.
                    Work::Write => self.ends[0].completions(),
                };
                self.completed[client] += done as u64;
                (0..done).for_each(|_| self.post(client));
                if done > 0 {
                    // The new request leaves now.
                    next = self.now;
                }
            }
            self.now = next.max(self.now).min(end);
        }
        let bytes = |count: u64| count as f64 * f64::from(MIB) / (millis as f64 * 1e-3) / 1e6;
        self.completed.iter().zip(before).map(|(now, before)| bytes(now - before)).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        let mut found = 0;
        self.ends[0].engine.counters().visit(&mut |known, value| {
            if known == name {
                found = value;
            }
        });
        found
    }
}

/// Requests every READ at once.
fn requester(config: &mut EngineConfig) {
    config.max_read_packets = 0;
    config.max_outstanding_packets = 1 << 20;
}

const PACED: fn(&mut EngineConfig) = |_| {};
const UNPACED: fn(&mut EngineConfig) = |config| config.pacing.after_loss = false;

/// Returns the goodput of READs of 1 MiB by one client, in megabytes per second. `--nocapture` shows it.
fn goodput(way: Way, depth: usize, millis: u64, server: &dyn Fn(&mut EngineConfig)) -> f64 {
    goodput_of(Work::Read, way, depth, millis, server)
}

fn goodput_of(work: Work, way: Way, depth: usize, millis: u64, server: &dyn Fn(&mut EngineConfig)) -> f64 {
    let mut world = World::new(way, work, 1, server);
    let found = world.run(depth, millis)[0];
    let (cuts, dropped) = (world.counter("loss_rate_cuts"), world.dropped);
    let is_paced = world.ends[0].engine.config().pacing.after_loss;
    println!(
        "{work:?} {way:?}, depth {depth}, paced {is_paced}: {found:.1} MB/s, {cuts} cuts, {dropped} dropped"
    );
    found
}

/// A queue of 1,000 packets holds less than two of the outstanding READs. Without pacing, a third of the time
/// and most of the packets are lost.
#[test]
fn reads_through_a_short_queue_are_nearly_as_fast_as_through_a_long_one() {
    for packet_ns in [20_000, 2_212] {
        let millis = packet_ns / 10 + 200;
        for depth in [1, 2, 4, 16] {
            let long = goodput(Way { queue: 20_000, packet_ns, loss: 0 }, depth, millis, &PACED);
            let short = goodput(Way { queue: 1_000, packet_ns, loss: 0 }, depth, millis, &PACED);
            // The tolerance covers the trials without a rate limit.
            assert!(short >= 0.75 * long, "{packet_ns} ns, depth {depth}: {short} of {long} MB/s");
        }
        let without = goodput(Way { queue: 1_000, packet_ns, loss: 0 }, 2, millis, &UNPACED);
        let long = goodput(Way { queue: 20_000, packet_ns, loss: 0 }, 2, millis, &UNPACED);
        assert!(without < 0.75 * long, "the test shows nothing: {without} of {long} MB/s");
    }
}

#[test]
fn two_clients_share_a_short_queue() {
    let mut world = World::new(Way { queue: 1_000, packet_ns: 4_000, loss: 0 }, Work::Read, 2, &PACED);
    world.run(4, 200);
    let found = world.run(0, 1_000);
    let sum = found[0] + found[1];
    assert!(sum >= 0.75 * 256.0, "{found:?} of 256 MB/s");
    assert!(found[0].min(found[1]) >= 0.25 * sum, "{found:?}");
}

/// Random loss is not caused by the sender: pacing must not reduce the goodput much, and increases it through
/// a queue.
#[test]
fn random_loss_does_not_collapse() {
    for (work, packet_ns, depth, loss) in [
        (Work::Read, 354, 1, 655),
        (Work::Read, 354, 4, 655),
        (Work::Read, 2_212, 1, 655),
        (Work::Read, 2_212, 4, 655),
        (Work::Write, 354, 4, 131),
        (Work::Write, 2_212, 4, 131),
        (Work::Write, 354, 4, 655),
        (Work::Write, 2_212, 4, 655),
        (Work::Write, 354, 4, 1_311),
    ] {
        let way = Way { queue: 20_000, packet_ns, loss };
        // A slow path needs longer for as many losses.
        let millis = if packet_ns > 1_000 { 1_000 } else { 400 };
        let [before, paced] = [UNPACED, PACED].map(|config| goodput_of(work, way, depth, millis, &config));
        assert!(paced >= 0.7 * before, "{work:?}, {way:?}, depth {depth}: {paced} of {before} MB/s");
    }
}

/// Prints the tables of docs/reference/loss-recovery.md, with
/// `cargo test -p roce-transport --test engine pacing::tables -- --ignored --nocapture`.
#[test]
#[ignore = "it only prints"]
fn tables() {
    for (packet_ns, queue, window) in
        [(20_000, 100, 256), (2_212, 100, 256), (2_212, 1_000, 4_096), (500, 100, 256), (500, 1_000, 4_096)]
    {
        let way = Way { queue, packet_ns, loss: 0 };
        println!("window {window}");
        for config in [UNPACED, PACED] {
            let change = move |it: &mut EngineConfig| {
                config(it);
                it.max_outstanding_packets = window;
            };
            goodput_of(Work::Write, way, 16, packet_ns / 10 + 200, &change);
        }
    }
    for (work, depth) in [(Work::Write, 16), (Work::Read, 4)] {
        for (packet_ns, loss) in
            [354, 2_212].into_iter().flat_map(|ns| [66, 131, 328, 655, 1_311].map(|loss| (ns, loss)))
        {
            for config in [UNPACED, PACED] {
                goodput_of(work, Way { queue: 20_000, packet_ns, loss }, depth, 1_000, &config);
            }
        }
    }
}

/// Without pacing, most of a window that is longer than the queue is sent only to be dropped.
#[test]
fn writes_through_a_short_queue_are_nearly_as_fast_as_through_a_long_one() {
    for (packet_ns, queue, window) in
        [(2_212, 100, 256), (2_212, 100, 1_024), (500, 100, 256), (500, 1_000, 4_096)]
    {
        let through = |queue, config: fn(&mut EngineConfig)| {
            let change = move |it: &mut EngineConfig| {
                config(it);
                it.max_outstanding_packets = window;
            };
            goodput_of(Work::Write, Way { queue, packet_ns, loss: 0 }, 16, 200, &change)
        };
        let (long, short, before) = (through(20_000, PACED), through(queue, PACED), through(queue, UNPACED));
        assert!(short >= 0.75 * long, "{packet_ns} ns, window {window}: {short} of {long} MB/s");
        assert!(before < 0.6 * long, "the test shows nothing: {before} of {long} MB/s");
    }
}

#[test]
fn without_loss_every_packet_leaves_as_before() {
    for work in [Work::Read, Work::Write] {
        let way = Way { queue: 20_000, packet_ns: 2_212, loss: 0 };
        let [paced, before] = [PACED, UNPACED].map(|config| {
            let mut world = World::new(way, work, 1, &config);
            world.run(4, 50);
            assert_eq!((world.dropped, world.counter("loss_rate_cuts")), (0, 0));
            (world.launched, world.trace)
        });
        assert_eq!(paced, before);
    }
}

/// ```text
/// A  READ   ---> B
///          x---  B   the response, or one of its packets, is lost
/// A  READ   ---> B   asks again
///         <---   B
/// ```
#[test]
fn lost_read_responses_of_which_few_were_under_way_do_not_reduce_the_rate() {
    for (reads, packets, reduces) in [(1, 1, 0), (1, 7, 0), (7, 1, 0), (1, 8, 1), (8, 1, 1), (2, 4, 1)] {
        let mut bench = Bench::rc();
        let mut lost = false;
        bench.set_script(move |sent| match sent.from == Side::B && !std::mem::replace(&mut lost, true) {
            true => Action::Drop,
            false => Action::Pass,
        });
        for wr_id in 0..reads {
            let op = bench.read(0);
            bench.post(wr_id, op, wr_id as usize * 8 * MTU, packets * MTU);
        }
        bench.drive();
        assert_eq!(bench.ended(Side::A).len() as u64, reads);
        let cuts = bench.counter(Side::B, "loss_rate_cuts");
        assert_eq!(cuts, reduces, "{reads} READs of {packets} packets each");
    }
}
