//! Measures how many operations one core can carry out, both ends together and without I/O.
//!
//! Each iteration posts requests at A, delivers every datagram (with its ICRC computed and checked), and
//! polls the completions. Run `cargo bench -p roce-transport`; `docs/results/performance.md` has measured
//! figures.

use std::time::Duration;

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use roce_packet::{PathMtu, Qpn};
use roce_sim::direct::Direct;
use roce_sim::pair::{Settings, Side};
use roce_transport::{EngineConfig, QpType, RecvWr, SendOp, SendWr, Sge, Wc, WcStatus};

/// The number of requests posted before any is sent.
const BATCH: usize = 64;
const MEMORY: usize = 1 << 20;
/// The offset of the target at B.
const TARGET: usize = 1 << 19;

struct Bench {
    direct: Direct,
    qpns: [Qpn; 2],
    wcs: [Wc; BATCH],
}

impl Bench {
    fn new() -> Self {
        let mut config = EngineConfig::from_number(11);
        config.max_read_packets = 0;
        let mut direct = Direct::new(&config, MEMORY);
        let settings = Settings { mtu: PathMtu::Mtu4096, ..Settings::default() };
        let qpns = direct.connect(QpType::Rc, &settings);
        for side in [Side::A, Side::B] {
            let bytes: Vec<u8> = (0..MEMORY).map(|i| (i * 31 + i / 253 + side as usize) as u8).collect();
            direct.write(side, 0, &bytes);
        }
        Self { direct, qpns, wcs: [Wc::default(); BATCH] }
    }

    fn target(&self) -> (u64, roce_transport::RKey) {
        (self.direct.host(Side::B).element(TARGET, 0).addr, self.direct.host(Side::B).region.rkey)
    }

    #[inline]
    fn post(&mut self, count: usize, op: SendOp, element: Sge) {
        let now = self.direct.now;
        let engine = &mut self.direct.host_mut(Side::A).engine;
        for number in 0..count {
            let elements = [element];
            engine
                .post_send(now, self.qpns[0], &SendWr::new(number as u64, op, &elements))
                .expect("there is room");
        }
    }

    #[inline]
    fn receives(&mut self, count: usize, element: Sge) {
        let engine = &mut self.direct.host_mut(Side::B).engine;
        for number in 0..count {
            let wr = RecvWr { wr_id: number as u64, elements: &[element] };
            engine.post_recv(self.qpns[1], &wr).expect("there is room");
        }
    }

    #[inline]
    fn finish(&mut self, side: Side, count: usize) {
        let host = self.direct.host_mut(side);
        let polled = host.engine.poll_cq(host.cq, &mut self.wcs).expect("the queue exists");
        assert!(polled == count && self.wcs[..count].iter().all(|wc| wc.status == WcStatus::Success));
    }

    /// Advances the time, so that deadlines are included.
    #[inline]
    fn advance(&mut self) {
        self.direct.now = self.direct.now.plus_nanos(10_000);
        let now = self.direct.now;
        for side in [Side::A, Side::B] {
            self.direct.host_mut(side).engine.handle_timeout(now, Duration::ZERO);
        }
    }

    /// Carries out `count` requests of `len` bytes, from posting to completion.
    fn round(&mut self, count: usize, op: SendOp, len: usize) {
        let element = self.direct.host(Side::A).element(0, len);
        if op == SendOp::Send {
            let landing = self.direct.host(Side::B).element(TARGET, len);
            self.receives(count, landing);
        }
        self.post(count, op, element);
        self.direct.drive();
        self.finish(Side::A, count);
        if op == SendOp::Send {
            self.finish(Side::B, count);
        }
        self.advance();
    }

    /// Checks that the last round moved the right bytes, outside the measured time.
    fn check(&self, op: SendOp, len: usize) {
        let [a, b] = [(Side::A, 0), (Side::B, TARGET)].map(|(side, at)| self.direct.read(side, at, len));
        match op {
            SendOp::FetchAdd { .. } => {
                let value = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
                assert_eq!(value(&a) + 1, value(&b));
            }
            _ => assert_eq!(a, b),
        }
        let counters = self.direct.host(Side::A).engine.counters();
        assert_eq!(counters.retransmitted_packets + counters.dropped(), 0);
    }
}

fn operations(c: &mut Criterion) {
    let mut group = c.benchmark_group("operations");
    group.throughput(Throughput::Elements(BATCH as u64));
    let (remote_addr, rkey) = Bench::new().target();
    measure(&mut group, "write/64", BATCH, SendOp::Write { remote_addr, rkey }, 64);
    measure(&mut group, "send/64", BATCH, SendOp::Send, 64);
    measure(&mut group, "read/8", BATCH, SendOp::Read { remote_addr, rkey }, 8);
    measure(&mut group, "fetch_add", BATCH, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8);
    group.finish();
}

fn bytes(c: &mut Criterion) {
    let mut group = c.benchmark_group("bytes");
    let (remote_addr, rkey) = Bench::new().target();
    for (name, count, len) in [("4096", 32, 4096), ("65536", 8, 65_536)] {
        group.throughput(Throughput::Bytes((count * len) as u64));
        measure(&mut group, &format!("write/{name}"), count, SendOp::Write { remote_addr, rkey }, len);
        measure(&mut group, &format!("send/{name}"), count, SendOp::Send, len);
        measure(&mut group, &format!("read/{name}"), count, SendOp::Read { remote_addr, rkey }, len);
    }
    group.finish();
}

fn measure(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, count: usize, op: SendOp, len: usize) {
    let mut bench = Bench::new();
    let mut ran = false;
    group.bench_function(name, |bencher| {
        ran = true;
        bencher.iter(|| bench.round(count, op, len));
    });
    if ran {
        bench.check(op, len);
    }
}

criterion_group!(benches, operations, bytes);
criterion_main!(benches);
