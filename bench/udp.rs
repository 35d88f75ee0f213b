//! Can an unprivileged UDP socket carry 20 Gb/s of RC WRITEs, with every byte checked?
//!
//! Two contexts use addresses of 127.64.0.0/10 that belong to this process. Each has its own device, engine
//! and thread, as in two processes. The goal is for 64 KiB messages at path MTU 4096.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce::verbs::Context;
use roce_exchange::Exchange;
use roce_measure::measure::{self as perf, Completion, Op, Plan, Post, Signal, Tool};
use roce_testing::own_address;

/// Returns the number of messages of one measurement of `size`: about 64 MiB, but at least the number of
/// buffers.
fn messages(size: usize) -> u64 {
    ((64_usize << 20) / size).clamp(64, 50_000) as u64
}

/// Runs one measurement; returns the time that the messages took.
fn blast([near, far]: [Ipv4Addr; 2], op: Op, size: usize, rounds: u64) -> Duration {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a TCP port on loopback");
    let address = listener.local_addr().expect("its address");
    let server = std::thread::spawn(move || {
        let context = Context::open(&format!("udp:{far}")).expect("a UDP port on an address of our own");
        let exchange = Exchange::accept_from(&listener).expect("the client connects");
        perf::serve(&context, exchange, &perf::ServerOptions::default())
            .expect("every message arrives right");
    });
    let context = Context::open(&format!("udp:{near}")).expect("a UDP port on an address of our own");
    let plan = Plan {
        tool: Tool::Blast,
        op,
        sizes: vec![size],
        iterations: rounds,
        buffers: 16,
        inline: false,
        completion: Completion::Poll,
        post: Post::List,
        signal: Signal::Full,
        path_mtu: 4096,
        timeout: 12,
    };
    let exchange = Exchange::connect_from(&context, address).expect("the server listens");
    let rows =
        perf::run_client(&context, exchange, &plan, None, &mut |_| {}).expect("every message arrives right");
    server.join().expect("the server ends well");
    Duration::from_secs_f64(rows[0].elapsed_s)
}

fn benches(criterion: &mut Criterion) {
    let addresses = [own_address(), own_address()];
    let mut group = criterion.benchmark_group("blast over udp on loopback");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    for (op, size) in
        [(Op::Write, 64), (Op::Write, 4096), (Op::Write, 65_536), (Op::Send, 65_536), (Op::Read, 65_536)]
    {
        let count = messages(size);
        group.throughput(Throughput::Bytes(size as u64 * count));
        group.bench_function(BenchmarkId::new(format!("{op:?}"), size), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| blast(addresses, op, size, count)).sum());
        });
    }
    group.finish();
}

criterion_group!(udp, benches);
criterion_main!(udp);
