//! The limit of the link, in virtual time, for the traffic of all queue pairs of an engine together.

use crate::common::{Bench, address};
use roce_packet::PathMtu;
use roce_sim::pair::{Settings, Side};
use roce_transport::congestion::{Congestion, Rate};
use roce_transport::{EngineConfig, Pacing, QpType, SendOp};

/// The rate of the link in bits per second.
const RATE: u64 = 1_000_000_000;
/// The largest packet on the wire: path MTU 1024, RETH, headers, preamble and gap.
const PACKET: u64 = 1_126;

fn config(congestion: &str, burst: u32) -> EngineConfig {
    EngineConfig {
        congestion: Congestion::parse(congestion).expect("it is known").0,
        line_rate: Rate::bits_per_second(RATE),
        limit_to_line_rate: true,
        pacing: Pacing { burst, preamble: true, after_loss: true },
        ..EngineConfig::from_number(7)
    }
}

fn bench(qp_type: QpType, congestion: &str, burst: u32) -> Bench {
    let settings = Settings { mtu: PathMtu::Mtu1024, ..Settings::default() };
    Bench::with_config(qp_type, &settings, config(congestion, burst))
}

/// Returns the bytes on the wire that a side has sent, including acknowledgements. The tests send no frame
/// below 64 bytes of payload and only IPv4 and UDP headers.
fn sent_bytes(bench: &Bench, side: Side) -> u64 {
    let sent = bench.sent.iter().filter(|sent| sent.from == side);
    sent.map(|sent| (sent.bytes.len() as u64 + 66).max(84)).sum()
}

#[test]
fn every_algorithm_and_no_algorithm_send_at_the_line_rate() {
    for congestion in ["none", "dcqcn", "dcqcn:paper", "dctcp", "swift", "timely", "fixed:40G"] {
        let mut bench = bench(QpType::Rc, congestion, 0);
        let write = bench.write(0);
        for wr_id in 0..4 {
            bench.post(wr_id, write, 0, 1 << 20);
        }
        let begin = bench.now;
        assert!(!bench.drive_until(begin.plus_nanos(10_000_000)), "{congestion}: more than 10 ms of data");
        let (sent, ideal) = (sent_bytes(&bench, Side::A), RATE / 8 / 100);
        assert!(sent <= ideal + PACKET, "{congestion}: {sent} of {ideal} bytes");
        // A window may be smaller than the capacity of the link.
        assert!(sent >= ideal / 2, "{congestion}: {sent} of {ideal} bytes");
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 0, "{congestion}");
    }
}

#[test]
fn queue_pairs_share_the_link() {
    let mut bench = bench(QpType::Rc, "dcqcn", 0);
    let settings = Settings { mtu: PathMtu::Mtu1024, ..Settings::default() };
    let mut queue_pairs = vec![bench.a];
    for _ in 0..3 {
        queue_pairs.push(bench.pair.connect_with(QpType::Rc, &settings).0);
    }
    let write = bench.write(0);
    for (wr_id, &a) in (0..).zip(&queue_pairs) {
        bench.a = a;
        bench.post(wr_id, write, 0, 1 << 20);
    }
    let begin = bench.now;
    bench.drive();
    let last = bench.sent.iter().rfind(|sent| sent.from == Side::A).expect("packets").at;
    let elapsed = last.as_nanos() - begin.as_nanos();
    let sent = sent_bytes(&bench, Side::A);
    assert!(sent > 4 << 20, "{sent} bytes");
    // One packet may leave at once.
    let ideal = (sent - 2 * PACKET) * 8;
    assert!((ideal..ideal + 100_000).contains(&elapsed), "{elapsed} ns for {sent} bytes");
    for &a in &queue_pairs {
        let counters = bench.host(Side::A).engine.qp_counters(a).expect("the queue pair exists");
        assert_eq!(counters.rdma_tx_packets, 1024, "every queue pair has its turns");
    }
}

#[test]
fn read_responses_and_uc_are_limited_too() {
    for (qp_type, sender) in [(QpType::Rc, Side::B), (QpType::Uc, Side::A)] {
        let mut bench = bench(qp_type, "none", 0);
        let op = if qp_type == QpType::Rc { bench.read(0) } else { bench.write(0) };
        bench.post(1, op, 0, 1 << 20);
        let begin = bench.now;
        assert!(!bench.drive_until(begin.plus_nanos(1_000_000)), "more than 1 ms of data");
        let (sent, ideal) = (sent_bytes(&bench, sender), RATE / 8 / 1000);
        assert!(sent.abs_diff(ideal) <= 2 * PACKET, "{qp_type:?}: {sent} of {ideal} bytes");
    }
}

#[test]
fn after_a_pause_no_more_than_the_burst_leaves_at_once() {
    let mut bench = bench(QpType::Rc, "none", 8_000);
    bench.now = bench.now.plus_nanos(1_000_000_000);
    let write = bench.write(0);
    bench.post(0, write, 0, 1 << 20);
    bench.collect(Side::A);
    let sent = sent_bytes(&bench, Side::A);
    assert!((8_000..8_000 + 2 * PACKET).contains(&sent), "{sent} bytes at once");
}

/// The engine asks to be called again when the link is free, but only while it has packets to send.
#[test]
fn the_deadline_is_that_of_the_link_while_something_waits() {
    let mut bench = bench(QpType::Uc, "none", 0);
    assert_eq!(bench.host(Side::A).engine.poll_timeout(), None);
    let write = SendOp::Write { remote_addr: address(0), rkey: bench.host(Side::B).rkey() };
    bench.post(0, write, 0, 2048);
    bench.collect(Side::A);
    let begin = bench.now;
    let next = bench.host(Side::A).engine.poll_timeout().expect("the second packet waits");
    let waits = next.as_nanos() - begin.as_nanos();
    // First packets have a RETH of 16 bytes.
    assert!((8 * 1_106..=8 * PACKET).contains(&waits), "{waits} ns");
    bench.drive();
    assert_eq!(bench.host(Side::A).engine.poll_timeout(), None);
    assert_eq!(bench.sent.len(), 2);
}

#[test]
fn extreme_rates_neither_overflow_nor_hang() {
    for rate in [Rate::bits_per_second(0), Rate::bits_per_second(u64::MAX - 1), Rate::UNLIMITED] {
        let config = EngineConfig { line_rate: rate, ..config("dcqcn", u32::MAX) };
        let settings = Settings { mtu: PathMtu::Mtu1024, ..Settings::default() };
        let mut bench = Bench::with_config(QpType::Uc, &settings, config);
        let write = bench.write(0);
        bench.post(0, write, 0, 4096);
        let limit = bench.now.plus_nanos(1_000_000_000);
        bench.drive_until(limit);
        assert!(!bench.sent.is_empty(), "{rate}: the first packet may always leave");
    }
}
