//! Once objects exist and queues have been used, packets cause no allocations.

use std::time::Duration;

use roce_packet::{Ecn, ImmDt, PathMtu};
use roce_sim::direct::Direct;
use roce_sim::pair::{Settings, Side};
use roce_testing::allocations;
use roce_transport::congestion::Congestion;
use roce_transport::{
    Allowed, EngineConfig, FlushPlacement, GRH_AREA, Identification, Instant, QpType, Received, Recovery,
    RecvWr, SelectiveRepeat, SendOp, SendWr, TxSlot, UdDestination, Wc, WcStatus,
};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const ROUNDS: u64 = if cfg!(miri) { 2 } else { 50 };
const LEN: usize = if cfg!(miri) { 600 } else { 3000 };

/// Two hosts with one connected pair of queue pairs.
struct Bench {
    direct: Direct,
    qpns: [roce_packet::Qpn; 2],
    completed: u64,
}

impl Bench {
    fn new(qp_type: QpType) -> Self {
        Self::with_config(qp_type, &EngineConfig::from_number(7), PathMtu::Mtu256)
    }

    fn with_config(qp_type: QpType, config: &EngineConfig, mtu: PathMtu) -> Self {
        let mut direct = Direct::new(config, 1 << 16);
        let settings = Settings { mtu, ..Settings::default() };
        let qpns = direct.connect(qp_type, &settings);
        Self { direct, qpns, completed: 0 }
    }

    /// Posts a receive at B. Returns `false` if the queue is full.
    fn post_receive(&mut self) -> bool {
        let element = self.direct.host(Side::B).element(0, LEN + GRH_AREA);
        let receive = RecvWr { wr_id: 1, elements: &[element] };
        self.direct.host_mut(Side::B).engine.post_recv(self.qpns[1], &receive).is_ok()
    }

    /// Posts a request at A and a receive at B, carries the request out and polls the completions.
    fn round(&mut self, wr: &SendWr<'_>) {
        // The queue is full if the request before took no receive.
        self.post_receive();
        let a = self.qpns[0];
        let now = self.direct.now;
        self.direct.host_mut(Side::A).engine.post_send(now, a, wr).unwrap();
        self.direct.drive();
        self.finish();
    }

    fn finish(&mut self) {
        let mut some = [Wc::default(); 8];
        for side in [Side::A, Side::B] {
            let host = self.direct.host_mut(side);
            while let Ok(count @ 1..) = host.engine.poll_cq(host.cq, &mut some) {
                assert!(some[..count].iter().all(|wc| wc.status == WcStatus::Success));
                self.completed += count as u64;
            }
            while host.engine.poll_event().is_some() {}
        }
        // Past every deadline, so that timers are included.
        self.direct.now = Instant::from_nanos(self.direct.now.as_nanos() + 100_000_000);
        for side in [Side::A, Side::B] {
            let now = self.direct.now;
            self.direct.host_mut(side).engine.handle_timeout(now, Duration::ZERO);
        }
    }
}

fn allocations(work: impl FnOnce()) -> u64 {
    let before = allocations::count();
    work();
    allocations::count() - before
}

#[test]
fn the_counter_counts() {
    assert!(allocations(|| drop(std::hint::black_box(Box::new(5)))) > 0);
    assert_eq!(allocations(|| ()), 0);
}

#[track_caller]
fn assert_steady(qp_type: QpType, ops: &[(SendOp, usize)]) {
    assert_steady_on(Bench::new(qp_type), qp_type, ops);
}

#[track_caller]
fn assert_steady_on(mut bench: Bench, qp_type: QpType, ops: &[(SendOp, usize)]) {
    // The memory of a queue grows with the number of requests that are queued at once.
    while bench.post_receive() {}
    let destination = UdDestination {
        path: Direct::path(Side::A),
        remote_qpn: bench.qpns[1],
        remote_qkey: Settings::default().qkey,
    };
    let mut run = |rounds| {
        for round in 0..rounds {
            for (op, len) in ops {
                // In two pieces, so that gathering and scattering are included.
                let elements = [
                    bench.direct.host(Side::A).element(8, *len / 2),
                    bench.direct.host(Side::A).element(4096, len - len / 2),
                ];
                let mut wr = SendWr::new(round, *op, &elements);
                wr.destination = (qp_type == QpType::Ud).then_some(destination);
                bench.round(&wr);
            }
        }
    };
    run(ROUNDS);
    assert_eq!(allocations(|| run(ROUNDS)), 0, "{qp_type:?} {ops:?}");
    assert!(bench.completed >= 2 * ROUNDS * ops.len() as u64);
    assert_eq!(bench.direct.host(Side::A).engine.counters().retransmitted_packets, 0);
}

/// Returns the target of the operations below.
fn target() -> (u64, roce_transport::RKey) {
    let direct = Direct::new(&EngineConfig::from_number(7), 1 << 16);
    let region = direct.host(Side::B).region;
    (region.addr + 8192, region.rkey)
}

#[test]
fn rc_send_and_write() {
    let (remote_addr, rkey) = target();
    let imm = ImmDt([1, 2, 3, 4]);
    assert_steady(
        QpType::Rc,
        &[
            (SendOp::Send, LEN),
            (SendOp::SendWithImm(imm), 5),
            (SendOp::Write { remote_addr, rkey }, LEN),
            (SendOp::WriteWithImm { remote_addr, rkey, imm }, LEN),
        ],
    );
}

#[test]
fn rc_read_atomics_and_flush() {
    let (remote_addr, rkey) = target();
    let placement = FlushPlacement::GLOBAL_VISIBILITY;
    assert_steady(
        QpType::Rc,
        &[
            (SendOp::Read { remote_addr, rkey }, LEN),
            (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
            (SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 }, 8),
            (SendOp::AtomicWrite { remote_addr, rkey }, 8),
            (SendOp::Flush { remote_addr, rkey, length: 64, placement, whole_region: false }, 0),
        ],
    );
}

fn selective_repeat() -> EngineConfig {
    let recovery = Recovery::SelectiveRepeat(SelectiveRepeat { cap: 4_096, ..SelectiveRepeat::default() });
    EngineConfig { recovery, ..EngineConfig::from_number(7) }
}

#[test]
fn selective_repeat_in_order() {
    let (remote_addr, rkey) = target();
    let bench = Bench::with_config(QpType::Rc, &selective_repeat(), PathMtu::Mtu256);
    let write = SendOp::Write { remote_addr, rkey };
    assert_steady_on(bench, QpType::Rc, &[(SendOp::Send, LEN), (write, LEN)]);
}

/// Regression: both queue pairs of a connection reserved room for `cap` packets of the path MTU, here 32 MiB,
/// before any packet was lost.
#[test]
fn selective_repeat_takes_memory_for_early_packets_only() {
    let held = |config: &EngineConfig| {
        let before = allocations::held();
        let bench = Bench::with_config(QpType::Rc, config, PathMtu::Mtu4096);
        let held = allocations::held() - before;
        drop(bench);
        held
    };
    let (plain, selective) = (held(&EngineConfig::from_number(7)), held(&selective_repeat()));
    assert!(selective < plain + 1_024, "{selective} bytes instead of {plain}");

    let mut bench = Bench::with_config(QpType::Rc, &selective_repeat(), PathMtu::Mtu256);
    let (remote_addr, rkey) = target();
    let mut sent = vec![(Direct::path(Side::A), 0, [0; 512]); 16];
    let start = allocations::held();
    for round in 0..ROUNDS {
        let elements = [bench.direct.host(Side::A).element(0, 10 * 256)];
        let write = SendWr::new(1, SendOp::Write { remote_addr, rkey }, &elements);
        let (now, a) = (bench.direct.now, bench.qpns[0]);
        let host = bench.direct.host_mut(Side::A);
        host.engine.post_send(now, a, &write).unwrap();
        let before = allocations::held();
        let mut count = 0;
        for (path, len, buffer) in &mut sent {
            let Some(transmit) = host.engine.poll_transmit(now, &mut TxSlot::new(buffer), Allowed::All)
            else {
                break;
            };
            (*path, *len, count) = (transmit.path, transmit.len, count + 1);
        }
        assert_eq!(count, 10);
        // The first packet is the last to arrive.
        for (path, len, buffer) in sent[1..count].iter().chain(&sent[..1]) {
            let identification = Identification::Known { identification: 0, dont_fragment: true };
            let received = Received::whole(*path, identification, &buffer[..*len]);
            bench.direct.host_mut(Side::B).engine.handle(now, &received);
            if allocations::held() == before {
                continue;
            }
            let early = allocations::held() - before;
            assert!(early > 256 && early < 10 * (256 + 128) + 1_024, "{early} bytes of early packets");
        }
        // The first gap also allocates the rare counters of its queue pair.
        assert!(round == 0 || allocations::held() == before, "of a gap that is closed");
        bench.direct.drive();
        bench.finish();
    }
    // The requester's record of its packets takes a byte for each.
    assert!(allocations::held() <= start + 4_096, "{}", allocations::held() - start);
    assert_eq!(bench.completed, ROUNDS);
}

#[test]
fn uc_send_and_write() {
    let (remote_addr, rkey) = target();
    assert_steady(QpType::Uc, &[(SendOp::Send, LEN), (SendOp::Write { remote_addr, rkey }, LEN)]);
}

#[test]
fn ud_send() {
    assert_steady(QpType::Ud, &[(SendOp::Send, 200), (SendOp::SendWithImm(ImmDt([0; 4])), 200)]);
}

/// The receiver is slow: each message first gets an RNR NAK, whose delay is much shorter than the
/// retransmission timer.
#[test]
fn rnr_pauses() {
    let mut bench = Bench::new(QpType::Rc);
    let [a, b] = bench.qpns;
    let mut run = |rounds: u64| {
        for round in 0..rounds {
            let elements = [bench.direct.host(Side::A).element(0, 64)];
            let now = bench.direct.now;
            let wr = SendWr::new(round, SendOp::Send, &elements);
            bench.direct.host_mut(Side::A).engine.post_send(now, a, &wr).unwrap();
            bench.direct.drive();
            let element = bench.direct.host(Side::B).element(0, 64);
            let receive = RecvWr { wr_id: 1, elements: &[element] };
            bench.direct.host_mut(Side::B).engine.post_recv(b, &receive).unwrap();
            // The RNR delay of code 12 is 0.64 ms, the retransmission timer 67 ms.
            bench.direct.now = bench.direct.now.plus_nanos(700_000);
            let now = bench.direct.now;
            bench.direct.host_mut(Side::A).engine.handle_timeout(now, Duration::ZERO);
            bench.direct.drive();
            let mut some = [Wc::default(); 8];
            for side in [Side::A, Side::B] {
                let host = bench.direct.host_mut(side);
                assert_eq!(host.engine.poll_cq(host.cq, &mut some), Ok(1));
            }
        }
    };
    run(20);
    assert_eq!(allocations(|| run(1000)), 0);
    assert_eq!(bench.direct.host(Side::A).engine.counters().rnr_nak_retry_err, 1020);
}

/// Every packet of A arrives marked at B, which answers with notifications. A paces its packets and waits on
/// its timer between them.
#[test]
fn rc_under_congestion_control() {
    for text in ["dcqcn:cx-default,rpg_max_rate=1000", "dcqcn:paper,rpg_max_rate=1000,cnp_scope=address-pair"]
    {
        let mut config = EngineConfig::from_number(7);
        (config.congestion, config.notification) = Congestion::parse(text).unwrap();
        config.notification.min_time_between_cnps = 1;
        config.pacing.burst = 0;
        let mut direct = Direct::new(&config, 1 << 16);
        let [a, _] = direct.connect(QpType::Rc, &Settings { mtu: PathMtu::Mtu256, ..Settings::default() });
        let (remote_addr, rkey) = target();
        let mut buffer = [0; 512];
        let mut waits = 0;
        let mut run = |rounds: u64| {
            for round in 0..rounds {
                let elements = [direct.host(Side::A).element(0, LEN)];
                let wr = SendWr::new(round, SendOp::Write { remote_addr, rkey }, &elements);
                let now = direct.now;
                direct.host_mut(Side::A).engine.post_send(now, a, &wr).unwrap();
                let mut some = [Wc::default(); 8];
                loop {
                    let now = direct.now;
                    for (from, to) in [(Side::A, Side::B), (Side::B, Side::A)] {
                        while let Some(transmit) = direct.host_mut(from).engine.poll_transmit(
                            now,
                            &mut TxSlot::new(&mut buffer),
                            Allowed::All,
                        ) {
                            let marked = transmit.path.with_ecn(Ecn::CongestionExperienced);
                            let path = if from == Side::A { marked } else { transmit.path };
                            let identification = transmit.identification;
                            let identification =
                                Identification::Known { identification, dont_fragment: true };
                            let received = Received::whole(path, identification, &buffer[..transmit.len]);
                            direct.host_mut(to).engine.handle(now, &received);
                        }
                    }
                    let host = direct.host_mut(Side::A);
                    if host.engine.poll_cq(host.cq, &mut some) == Ok(1) {
                        break;
                    }
                    direct.now = host.engine.poll_timeout().expect("it waits for its turn");
                    waits += 1;
                    let now = direct.now;
                    direct.host_mut(Side::A).engine.handle_timeout(now, Duration::ZERO);
                }
            }
        };
        run(20);
        assert_eq!(allocations(|| run(200)), 0, "{text}");
        assert!(waits > 220 * 5, "{text}: packets were spaced");
        let counters = direct.host(Side::A).engine.counters();
        assert!(counters.rp_cnp_handled > 200, "{text}: {counters:?}");
        assert_eq!(counters.retransmitted_packets, 0, "{text}");
    }
}
