//! Scenarios from bugs of real stacks, named as in the user documentation.

use crate::common::{Answer, Bench, Ended, MTU, address, pattern, settings, unlucky};
use roce_packet::{Opcode, Psn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{
    Allowed, DropReason, EngineConfig, QpAttr, QpState, QpType, SendOp, SendWr, Verdict, WcStatus, WordMemory,
};

const START: u32 = 0x1000;
const SUCCESS: WcStatus = WcStatus::Success;

fn successes(count: u64) -> Vec<Ended> {
    (0..count).map(|wr_id| (wr_id, SUCCESS)).collect()
}

/// A requester that receives an RNR NAK of 1.28 ms does not retry after 1.27 ms.
#[test]
fn rnr_timer_honoured() {
    let mut bench = Bench::new(QpType::Rc, &Settings { min_rnr_timer: 14, ..settings() });
    bench.post(0, SendOp::Send, 0, 8);
    // Work posted in the meantime also waits, because it is queued after the refused request.
    let soon = bench.now.plus_nanos(1_270_000);
    bench.drive_until(soon);
    let write = bench.write(64);
    bench.post(1, write, 0, 8);
    bench.receive(0, 0, 64);
    bench.collect(Side::A);
    assert_eq!(bench.trace(Side::A).len(), 1, "nothing was sent before the time");
    bench.drive();
    assert_eq!(bench.ended(Side::A), successes(2));
}

#[test]
fn rnr_retry_7_is_infinite() {
    let mut bench = Bench::new(QpType::Rc, &Settings { rnr_retry: 7, retry_cnt: 0, ..settings() });
    bench.post(0, SendOp::Send, 0, 8);
    let later = bench.now.plus_nanos(10_000_000_000);
    assert!(!bench.drive_until(later));
    assert!(bench.counter(Side::A, "rnr_nak_retry_err") > 10_000);
    bench.receive(0, 0, 64);
    bench.drive();
    assert_eq!(bench.ended(Side::A), successes(1));
}

/// ```text
/// A  READ, PSN 0..9 ->  B
///                      <- responses 0..4, 5 is lost, 6..9
///    READ, PSN 5, address and length of what is missing ->
///                      <- responses 5..9, beginning with a First
/// ```
#[test]
fn read_retry_mid_wqe() {
    let len = 10 * MTU - 3;
    for lost in 0..10 {
        let mut bench = Bench::rc();
        bench.host_mut(Side::B).write_memory(64, &pattern(len));
        let mut left = 1;
        bench.set_script(move |sent| {
            if sent.from == Side::B && sent.psn.get() == START + lost && left > 0 {
                left -= 1;
                return Action::Drop;
            }
            Action::Pass
        });
        let read = bench.read(64);
        bench.post(0, read, 0, len);
        bench.drive();
        assert_eq!(bench.ended(Side::A), successes(1));
        crate::common::assert_same(&bench.host(Side::A).read_memory(0, len), &pattern(len), "READ");
        let requests: Vec<_> = bench.sent.iter().filter(|sent| sent.from == Side::A).collect();
        assert_eq!(requests.len(), 2, "response {lost} lost");
        let again = roce_packet::Datagram::parse(&requests[1].bytes, &[]).unwrap();
        let (reth, skipped) = (again.reth().unwrap(), lost as usize * MTU);
        assert_eq!(again.bth().psn.get(), START + lost);
        assert_eq!((reth.va, reth.dma_len as usize), (address(64 + skipped), len - skipped));
        let timeouts = u64::from(lost == 9);
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), timeouts);
        assert_eq!(bench.counter(Side::A, "implied_nak_seq_err"), 1 - timeouts, "response {lost} lost");
    }
}

/// An acknowledgement of a request after a READ means that the READ's response was lost; it does not complete
/// the READ.
#[test]
fn ack_skips_read() {
    let mut bench = Bench::rc();
    bench.host_mut(Side::B).write_memory(0, &pattern(64));
    let mut lost = false;
    bench.set_script(move |sent| {
        if sent.from == Side::B && sent.opcode == Opcode::RC_RDMA_READ_RESPONSE_ONLY && !lost {
            lost = true;
            return Action::Drop;
        }
        Action::Pass
    });
    let (before, read, after) = (bench.write(512), bench.read(0), bench.write(600));
    bench.post(0, before, 256, 8);
    bench.post(1, read, 0, 64);
    bench.post(2, after, 256, 8);
    let soon = bench.now.plus_nanos(2_001);
    bench.drive_until(soon);
    assert_eq!(bench.ended(Side::A), [(0, SUCCESS)], "what is before the READ is done, nothing else");
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, SUCCESS), (2, SUCCESS)]);
    assert_eq!(bench.host(Side::A).read_memory(0, 64), pattern(64));
    assert_eq!(bench.counter(Side::A, "implied_nak_seq_err"), 1);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// Every answer of an atomic is lost several times. The atomic is executed once, and every answer carries the
/// value that the first execution found.
#[test]
fn atomic_ack_lost_replay() {
    let mut bench = Bench::rc();
    bench.set_script(|sent| {
        let is_lost = sent.from == Side::B && unlucky(sent.index, 1, 2);
        if is_lost { Action::Drop } else { Action::Pass }
    });
    for index in 0..8 {
        let add = bench.fetch_add(0, 1 << index);
        bench.post(index, add, 4096 + 8 * index as usize, 8);
    }
    bench.drive();
    assert_eq!(bench.ended(Side::A), successes(8));
    assert_eq!(bench.host(Side::B).read_memory(0, 8), 255_u64.to_ne_bytes());
    for index in 0..8 {
        let found = bench.host(Side::A).read_memory(4096 + 8 * index, 8);
        assert_eq!(found, ((1_u64 << index) - 1).to_ne_bytes(), "result {index}");
    }
    assert!(bench.counter(Side::B, "duplicate_request") > 0);
}

/// The memory of a READ is deregistered while its response is in flight. The responder sends no more bytes
/// but a NAK, and the data that arrived before is valid.
#[test]
fn read_response_invalid_after_dereg() {
    let mut bench = Bench::rc();
    bench.packet_time_ns = 1_000;
    let len = 8 * MTU;
    let host = bench.host_mut(Side::B);
    let memory = std::sync::Arc::new(WordMemory::from_bytes(&pattern(len)));
    let access = roce_transport::Access::REMOTE_READ;
    let region = host.engine.register(host.pd, 0x5000, memory, access).unwrap();
    let read = SendOp::Read { remote_addr: 0x5000, rkey: region.rkey };
    bench.post(0, read, 0, len);
    // Stop the responder after three packets.
    bench.blocked = [false, true];
    let soon = bench.now.plus_nanos(10_000);
    bench.drive_until(soon);
    let mut taken = 0;
    let mut buffer = [0; 2048];
    while taken < 3 {
        let now = bench.now;
        let mut slot = roce_transport::TxSlot::new(&mut buffer);
        let transmit =
            bench.host_mut(Side::B).engine.poll_transmit(now, &mut slot, Allowed::All).expect("a response");
        let path = transmit.path;
        let bytes = buffer[..transmit.len].to_vec();
        assert_eq!(bench.inject(Side::A, path, &bytes), Verdict::Handled);
        taken += 1;
    }
    bench.host_mut(Side::B).engine.deregister(region.lkey).unwrap();
    bench.blocked = [false; 2];
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(0, WcStatus::RemoteAccessError)]);
    let answers = bench.answers_since(0, Side::B);
    assert_eq!(answers, [Answer::acknowledge(0x62, START + 3, 1)], "a NAK and no more bytes");
    assert_eq!(bench.host(Side::A).read_memory(3 * MTU, 5 * MTU), [0; 5 * MTU]);
    assert_eq!(bench.state(Side::B), QpState::Err);
}

/// Invalid one-sided requests are answered with a NAK, so the requester does not have to wait for its
/// timeout.
#[test]
fn nak_for_one_sided_error() {
    let bad = roce_transport::RKey(0x0bad_0000);
    let remote_addr = address(0);
    let ops = [
        SendOp::Write { remote_addr, rkey: bad },
        SendOp::WriteWithImm { remote_addr, rkey: bad, imm: roce_packet::ImmDt([0; 4]) },
        SendOp::Read { remote_addr, rkey: bad },
        SendOp::FetchAdd { remote_addr, rkey: bad, add: 1 },
        SendOp::CompareSwap { remote_addr, rkey: bad, compare: 0, swap: 1 },
        SendOp::AtomicWrite { remote_addr, rkey: bad },
    ];
    for op in ops {
        let mut bench = Bench::rc();
        bench.receive(0, 0, 64);
        let begin = bench.now;
        bench.post(0, op, 0, 8);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(0, WcStatus::RemoteAccessError)], "{op:?}");
        assert_eq!(bench.counter(Side::A, "req_remote_access_errors"), 1);
        let nak = bench.sent.iter().find(|sent| sent.from == Side::B).unwrap();
        assert!(nak.at.since(begin).as_micros() <= 1, "{op:?}");
    }
}

/// The device refuses packets at random times, and takes others and loses them. Later packets carry the right
/// bytes: the engine builds each packet anew and does not count those that the device refused.
#[test]
fn send_would_block_rollback() {
    let len = 40 * MTU + 17;
    for seed in 1..20_u64 {
        let mut bench = Bench::rc();
        bench.packet_time_ns = 100;
        bench.host_mut(Side::A).write_memory(0, &pattern(len));
        bench.receive(1, 1 << 17, len);
        let mut state = seed;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut lose = random();
        bench.set_script(move |_| {
            lose = lose.wrapping_mul(48_271) % 0x7fff_ffff;
            if lose % 11 == 0 { Action::Drop } else { Action::Pass }
        });
        let (write, read) = (bench.write(0), bench.read(0));
        bench.post(0, write, 0, len);
        bench.post(1, SendOp::Send, 0, len);
        bench.post(2, read, 1 << 19, len);
        loop {
            bench.blocked = [random() % 3 == 0, random() % 3 == 0];
            if !bench.step() && bench.blocked == [false; 2] {
                break;
            }
        }
        assert_eq!(bench.ended(Side::A), successes(3), "seed {seed}");
        assert_eq!(bench.ended(Side::B), [(1, SUCCESS)], "seed {seed}");
        crate::common::assert_same(&bench.host(Side::B).read_memory(0, len), &pattern(len), "WRITE");
        crate::common::assert_same(&bench.host(Side::B).read_memory(1 << 17, len), &pattern(len), "SEND");
        crate::common::assert_same(&bench.host(Side::A).read_memory(1 << 19, len), &pattern(len), "READ");
    }
}

#[test]
fn read_over_1mib_with_drops() {
    for (one_in, max_read_packets) in [(13, 128), (101, 128), (101, 0), (1009, 0)] {
        let len = (1 << 20) + 4097;
        let config = EngineConfig { max_read_packets, ..EngineConfig::from_number(9) };
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
        bench.record = false;
        bench.host_mut(Side::B).write_memory(0, &pattern(len));
        bench
            .set_script(move |sent| if unlucky(sent.index, 5, one_in) { Action::Drop } else { Action::Pass });
        let read = bench.read(0);
        bench.post(0, read, 0, len);
        bench.drive();
        assert_eq!(bench.ended(Side::A), successes(1), "one in {one_in} lost");
        crate::common::assert_same(&bench.host(Side::A).read_memory(0, len), &pattern(len), "READ");
    }
}

/// A repeated READ whose address would wrap around at the end of the address space.
#[test]
fn dup_read_wrap_va() {
    let mut bench = Bench::rc();
    let memory = std::sync::Arc::new(WordMemory::from_bytes(&pattern(4096)));
    let host = bench.host_mut(Side::B);
    let base = u64::MAX - 4095;
    let access = roce_transport::Access::REMOTE_READ;
    let region = host.engine.register(host.pd, base, memory, access).unwrap();
    let read = |bench: &Bench, psn: u32, va: u64, len: u32| {
        bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, Psn::new(psn)).reth(va, region.rkey, len)
    };
    // The last 1,024 bytes of the address space, in four packets; the next address would be 0.
    let original = read(&bench, START, u64::MAX - 1023, 1024);
    assert_eq!(bench.arrive(Side::B, &original).1.len(), 4);
    let fine = read(&bench, START + 3, u64::MAX - 255, 256);
    assert_eq!(bench.arrive(Side::B, &fine).1.len(), 1);
    let unanswerable = (Verdict::Dropped(DropReason::DuplicateUnanswerable), vec![]);
    for (psn, va, len) in
        [(0, u64::MAX - 1023, 1025), (3, u64::MAX - 255, 512), (3, 0, 256), (0, 0xffff_ffff_ffff_fc00, 0x800)]
    {
        let packet = read(&bench, START + psn, va, len);
        assert_eq!(bench.arrive(Side::B, &packet), unanswerable, "{va:#x} + {len:#x}");
    }
    assert_eq!(bench.state(Side::B), QpState::Rts);
}

/// Every operation with the PSN wrapping at 2^24 in each of its packets, with and without loss.
#[test]
fn psn_wrap_2_24() {
    for before in 0..24 {
        for lossy in [false, true] {
            let start = (1 << 24) - before;
            let psns = [start & 0xff_ffff, (1 << 24) - 1];
            let mut bench = Bench::new(QpType::Rc, &Settings { psns, ..settings() });
            bench.host_mut(Side::A).write_memory(0, &pattern(5 * MTU));
            bench.host_mut(Side::B).write_memory(0, &pattern(5 * MTU));
            if lossy {
                bench.set_script(|sent| if sent.index % 5 == 4 { Action::Drop } else { Action::Pass });
            }
            bench.receive(1, 8192, 5 * MTU);
            let (write, read, add) = (bench.write(16384), bench.read(0), bench.fetch_add(32768, 3));
            bench.post(0, write, 0, 5 * MTU);
            bench.post(1, read, 8192, 5 * MTU);
            bench.post(2, add, 16384, 8);
            bench.post(3, SendOp::Send, 0, 5 * MTU);
            bench.post(4, read, 32768, 5 * MTU);
            bench.drive();
            assert_eq!(bench.ended(Side::A), successes(5), "{before} before the wrap");
            let all = pattern(5 * MTU);
            crate::common::assert_same(&bench.host(Side::B).read_memory(16384, 5 * MTU), &all, "WRITE");
            crate::common::assert_same(&bench.host(Side::B).read_memory(8192, 5 * MTU), &all, "SEND");
            crate::common::assert_same(&bench.host(Side::A).read_memory(8192, 5 * MTU), &all, "READ");
            crate::common::assert_same(&bench.host(Side::A).read_memory(32768, 5 * MTU), &all, "second READ");
            assert_eq!(bench.host(Side::B).read_memory(32768, 8), 3_u64.to_ne_bytes());
        }
    }
}

/// A second NAK for the same gap, sent by the peer or duplicated by the network, causes only one
/// retransmission.
#[test]
fn two_naks_one_gap() {
    let mut bench = Bench::rc();
    bench.set_script(|sent| match (sent.from, sent.index) {
        (Side::A, 0) => Action::Drop,
        (Side::B, 0) => Action::Duplicate,
        _ => Action::Pass,
    });
    let write = bench.write(0);
    for wr_id in 0..4 {
        bench.post(wr_id, write, 0, 8);
    }
    bench.drive();
    assert_eq!(bench.ended(Side::A), successes(4));
    assert_eq!(bench.counter(Side::A, "packet_seq_err"), 1);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 4);
    assert_eq!(bench.counter(Side::A, "stale_responses"), 1);
    assert_eq!(bench.trace(Side::A).len(), 8);
}

/// A NAK that arrives after a timeout requests packets that are already being retransmitted.
///
/// ```text
/// A 0 lost, 1 -> B
///            <- NAK 0, delayed
///   timeout: 0, 1 ->
///            <- ACK 1 ...
///   the NAK arrives before the ACK: no third round
/// ```
#[test]
fn stale_nak_after_timeout() {
    let interval = 4_096_u64 << 8;
    for late in [interval - 500, interval + 500, interval + 1_500, interval + 2_500] {
        let mut bench = Bench::new(QpType::Rc, &Settings { timeout: 8, retry_cnt: 2, ..settings() });
        bench.set_script(move |sent| match (sent.from, sent.index) {
            (Side::A, 0) => Action::Drop,
            // Without the delay, the NAK arrives two microseconds after the start.
            (Side::B, 0) => Action::Delay(late - 2_000),
            _ => Action::Pass,
        });
        let write = bench.write(0);
        bench.post(0, write, 0, 8);
        bench.post(1, write, 0, 8);
        bench.drive();
        assert_eq!(bench.ended(Side::A), successes(2));
        let rounds = bench.counter(Side::A, "retransmit_rounds");
        assert!(rounds <= 2, "the NAK at {late} ns: {rounds} rounds");
        assert!(bench.counter(Side::A, "local_ack_timeout_err") <= 1);
    }
}

/// rxe sends MigReq 0. The engine accepts both values and sends 1 unless configured otherwise.
#[test]
fn migreq_0_peer() {
    let mut bench = Bench::rc();
    let rkey = bench.host(Side::B).rkey();
    for (index, mig_req) in [false, true].into_iter().enumerate() {
        let psn = Psn::new(START + index as u32);
        let mut packet = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_ONLY, psn).reth(address(0), rkey, 4);
        packet.bth.mig_req = mig_req;
        assert_eq!(bench.arrive(Side::B, &packet.payload(b"data")).0, Verdict::Handled);
    }
    assert!(bench.sent.iter().all(|sent| sent.bytes[1] & 0x40 != 0), "answers say 1");
    for mig_req in [false, true] {
        let config = EngineConfig { mig_req, ..EngineConfig::from_number(2) };
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
        bench.receive(0, 0, 600);
        let read = bench.read(0);
        bench.post(0, SendOp::Send, 0, 600);
        bench.post(1, read, 0, 600);
        bench.drive();
        assert_eq!(bench.ended(Side::A), successes(2));
        assert!(bench.sent.iter().all(|sent| (sent.bytes[1] & 0x40 != 0) == mig_req));
    }
}

/// A ConnectX retransmits several times, long before the agreed timeout. All copies are answered, and no
/// request is executed twice or fails.
#[test]
fn adaptive_peer_early_resend() {
    let mut bench = Bench::new(QpType::Rc, &Settings { rd_atomic: 1, ..settings() });
    bench.receive(7, 8192, 64);
    let rkey = bench.host(Side::B).rkey();
    let at = |offset: u32, opcode| bench.forge(Side::B, opcode, Psn::new(START + offset));
    let packets = [
        at(0, Opcode::RC_FETCH_ADD).atomic(address(0), rkey, 1, 0),
        at(1, Opcode::RC_SEND_ONLY).payload(b"once"),
        at(2, Opcode::RC_RDMA_READ_REQUEST).reth(address(0), rkey, 8),
    ];
    for packet in &packets {
        for _ in 0..11 {
            let (verdict, answers) = bench.arrive(Side::B, packet);
            assert_eq!((verdict, answers.len()), (Verdict::Handled, 1), "each copy is answered");
        }
    }
    // A burst of copies and the next request arrive before any answer is sent.
    bench.blocked = [false, true];
    for _ in 0..4 {
        bench.arrive(Side::B, &packets[2]);
    }
    let next = bench.forge(Side::B, Opcode::RC_FETCH_ADD, Psn::new(START + 3)).atomic(address(0), rkey, 1, 0);
    bench.arrive(Side::B, &next);
    bench.blocked = [false; 2];
    bench.drive();
    assert_eq!(bench.state(Side::B), QpState::Rts);
    assert_eq!(bench.host(Side::B).read_memory(0, 8), 2_u64.to_ne_bytes());
    assert_eq!(bench.ended(Side::B), [(7, SUCCESS)]);
}

/// A peer with a timer twice as long as ours (some hardware has such minimums) receives our duplicates; its
/// answers are late.
#[test]
fn peer_timeout_2x() {
    let interval = 4_096_u64 << 8;
    let mut bench = Bench::new(QpType::Rc, &Settings { timeout: 8, ..settings() });
    // Every answer takes one and a half of our intervals: the requester retransmits, and then both answers
    // arrive.
    bench.set_script(move |sent| match sent.from {
        Side::B => Action::Delay(interval * 3 / 2),
        Side::A => Action::Pass,
    });
    for wr_id in 0..20 {
        let op = match wr_id % 3 {
            0 => bench.write(64),
            1 => bench.read(64),
            _ => bench.fetch_add(0, 1),
        };
        bench.post(wr_id, op, 4096, 8);
    }
    bench.drive();
    assert_eq!(bench.ended(Side::A), successes(20));
    assert_eq!(bench.host(Side::B).read_memory(0, 8), 6_u64.to_ne_bytes());
    assert!(bench.counter(Side::A, "local_ack_timeout_err") > 0);
    assert!(bench.counter(Side::B, "duplicate_request") > 0);
}

/// A peer that sends a CNP with every NAK. The CNP is counted and does not affect the retransmission.
#[test]
fn cnp_with_nack_peer() {
    let mut bench = Bench::rc();
    bench
        .set_script(|sent| if sent.from == Side::A && sent.index == 1 { Action::Drop } else { Action::Pass });
    let write = bench.write(0);
    for wr_id in 0..4 {
        bench.post(wr_id, write, 0, 8);
    }
    let soon = bench.now.plus_nanos(1_500);
    bench.drive_until(soon);
    let mut cnp = bench.forge(Side::A, Opcode::CNP, Psn::new(0)).silent().payload(&[0; 16]);
    cnp.bth.becn = true;
    for _ in 0..2 {
        assert_eq!(bench.arrive(Side::A, &cnp).0, Verdict::Handled);
    }
    bench.drive();
    assert_eq!(bench.arrive(Side::A, &cnp).0, Verdict::Handled);
    assert_eq!(bench.ended(Side::A), successes(4));
    let counters = bench.host(Side::A).engine.counters();
    assert_eq!(counters.rp_cnp_ignored + counters.rp_cnp_handled, 3);
    assert_eq!(counters.packet_seq_err, 1);
}

/// The queue pair goes away in each possible way while its timers are armed. The expired timers have no
/// effect.
#[test]
fn teardown_with_timer_armed() {
    for rnr in [false, true] {
        for way in ["destroy", "reset", "error", "reset and reuse"] {
            let mut bench = Bench::rc();
            if !rnr {
                bench.set_script(|_| Action::Drop);
            }
            bench.post(0, SendOp::Send, 0, 8);
            let soon = bench.now.plus_nanos(3_000);
            bench.drive_until(soon);
            assert!(bench.host(Side::A).engine.poll_timeout().is_some(), "a timer is armed");
            let (now, a, b) = (bench.now, bench.a, bench.b);
            let engine = &mut bench.host_mut(Side::A).engine;
            match way {
                "destroy" => engine.destroy_qp(a).unwrap(),
                "error" => engine.modify_qp(now, a, &QpAttr::to_state(QpState::Err)).unwrap(),
                _ => engine.modify_qp(now, a, &QpAttr::to_state(QpState::Reset)).unwrap(),
            }
            let before = bench.sent.len();
            if way == "reset and reuse" {
                bench.bring_up(Side::A, a, b, &settings(), QpState::Rts);
            }
            // Another queue pair may reuse the slot in the tables.
            let other = bench.create_qp(Side::A, QpType::Rc, &settings());
            bench.drive();
            assert_eq!(bench.sent.len(), before, "{way}: nothing is sent");
            let expected = if way == "error" { vec![(0, WcStatus::WrFlushError)] } else { vec![] };
            assert_eq!(bench.ended(Side::A), expected, "{way}");
            assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{way}");
            assert_eq!(bench.host(Side::A).engine.query_qp(other).unwrap().state, QpState::Reset);
        }
    }
}

/// A responder that posts a receive only rarely: every message arrives once and in order, and the requester
/// respects the RNR delays.
#[test]
fn slow_responder_rnr_storm() {
    let mut bench = Bench::new(QpType::Rc, &Settings { min_rnr_timer: 6, ..settings() });
    let total = 50_u64;
    for wr_id in 0..total {
        let (a, text) = (bench.a, wr_id.to_le_bytes());
        bench.post_send(Side::A, a, &SendWr::inline(wr_id, SendOp::Send, &text)).unwrap();
    }
    for wr_id in 0..total {
        let later = bench.now.plus_nanos(1_000_000);
        bench.drive_until(later);
        bench.receive(wr_id, 8 * wr_id as usize, 8);
    }
    bench.drive();
    assert_eq!(bench.ended(Side::A), successes(total));
    assert_eq!(bench.ended(Side::B), successes(total));
    for wr_id in 0..total {
        assert_eq!(bench.host(Side::B).read_memory(8 * wr_id as usize, 8), wr_id.to_le_bytes());
    }
    // At most one retry in 80 microseconds.
    let naks = bench.counter(Side::A, "rnr_nak_retry_err");
    assert!((total..=total * 1_000 / 80 + total).contains(&naks), "{naks} RNR NAKs");
}
