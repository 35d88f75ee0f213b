//! Published bugs of other stacks, each as a test with the name of its report (section 3.1 of the user
//! documentation). The tests of the packet crate cover those about parsing.

use std::sync::Arc;

use crate::common::{Bench, Ended, Forge, MTU, address, pattern, settings, unlucky};
use roce_packet::{Opcode, PathMtu, Psn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{
    Access, Allowed, DropReason, PostError, QpAttr, QpState, QpType, RKey, RecvWr, SendOp, SendWr, Sge,
    UdDestination, Verdict, WcStatus, WindowBinding, WindowType, WordMemory,
};

const START: u32 = 0x1000;
const SUCCESS: WcStatus = WcStatus::Success;

/// Registers the last page of the address space as a region of B with all rights for peers.
fn last_page(bench: &mut Bench) -> (Arc<WordMemory>, RKey, roce_transport::LKey) {
    let memory = Arc::new(WordMemory::from_bytes(&pattern(4096)));
    let host = bench.host_mut(Side::B);
    let access = Access::REMOTE | Access::LOCAL_WRITE | Access::MW_BIND;
    let region = host.engine.register(host.pd, u64::MAX - 4095, memory.clone(), access).unwrap();
    (memory, region.rkey, region.lkey)
}

fn request(bench: &Bench, opcode: Opcode, offset: u32) -> Forge {
    bench.forge(Side::B, opcode, Psn::new(START + offset))
}

/// rxe, 2026-05-21, 1 of 4: `mr_check_range` added address and length. With the address 0xFFFFFFFFFFFFFC00
/// and the length 0x400 the sum is 0, so the write went out of bounds.
#[test]
fn rxe_2026_05_21_mr_check_range_wrap() {
    let (va, len) = (0xffff_ffff_ffff_fc00_u64, 0x400_u32);
    // The request is refused if the region is elsewhere.
    let mut bench = Bench::new(QpType::Rc, &Settings { mtu: PathMtu::Mtu1024, ..settings() });
    let rkey = bench.host(Side::B).rkey();
    let packet = request(&bench, Opcode::RC_RDMA_WRITE_ONLY, 0).reth(va, rkey, len).payload(&[9; 0x400]);
    assert_eq!(bench.arrive(Side::B, &packet).1[0].syndrome, Some(0x62));
    assert_eq!(bench.host(Side::B).read_memory(0, 1 << 16), vec![0; 1 << 16]);
    // The request is legal in the last page, but not with one more byte.
    let mut bench = Bench::new(QpType::Rc, &Settings { mtu: PathMtu::Mtu1024, ..settings() });
    let (memory, rkey, _) = last_page(&mut bench);
    let packet = request(&bench, Opcode::RC_RDMA_WRITE_ONLY, 0).reth(va, rkey, len).payload(&[9; 0x400]);
    assert_eq!(bench.arrive(Side::B, &packet).1[0].syndrome, Some(0x1f));
    assert_eq!(memory.to_vec()[3072..], [9; 1024]);
    let packet = request(&bench, Opcode::RC_RDMA_WRITE_FIRST, 1).reth(va, rkey, len + 1).payload(&[8; 0x400]);
    assert_eq!(bench.arrive(Side::B, &packet).1[0].syndrome, Some(0x62));
    assert_eq!(memory.to_vec()[3072..], [9; 1024]);
    assert_eq!(memory.to_vec()[..3072], pattern(4096)[..3072]);
}

/// rxe, 2026-05-21, 3 of 4: `mr_check_range`'s sum wrapped when a READ was repeated.
#[test]
fn rxe_2026_05_21_duplicate_request_wrap() {
    let mut bench = Bench::rc();
    let (_, rkey, _) = last_page(&mut bench);
    let read = |bench: &Bench, va, len| request(bench, Opcode::RC_RDMA_READ_REQUEST, 0).reth(va, rkey, len);
    let original = read(&bench, u64::MAX - 1023, 1024);
    assert_eq!(bench.arrive(Side::B, &original).1.len(), 4);
    let mutated = [
        (0xffff_ffff_ffff_fc00, 0x401),
        (0xffff_ffff_ffff_fe00, 0x400),
        (0, 0x400),
        (u64::MAX, 1),
        (u64::MAX - 1023, u32::MAX),
        (u64::MAX - 2047, 1024),
    ];
    for (va, len) in mutated {
        let packet = read(&bench, va, len);
        let expected = (Verdict::Dropped(DropReason::DuplicateUnanswerable), vec![]);
        assert_eq!(bench.arrive(Side::B, &packet), expected, "{va:#x} + {len:#x}");
    }
}

/// rxe, 2026-05-21, 2 of 4: `mr_check_range`'s sum wrapped when a window was bound.
#[test]
fn rxe_2026_05_21_bind_window_wrap() {
    let mut bench = Bench::rc();
    let (_, _, region) = last_page(&mut bench);
    let host = bench.host_mut(Side::B);
    let (pd, engine) = (host.pd, &mut host.engine);
    for (addr, len, fits) in [
        (0xffff_ffff_ffff_fc00, 0x400, true),
        (0xffff_ffff_ffff_fc00, 0x401, false),
        (0xffff_ffff_ffff_fc00, usize::MAX, false),
        (u64::MAX, 1, true),
        (u64::MAX, 2, false),
        (0, 1, false),
    ] {
        let window = engine.allocate_window(pd, WindowType::Type1).unwrap();
        let binding = WindowBinding { region, addr, len, access: Access::REMOTE_READ };
        assert_eq!(engine.bind_window(pd, window, &binding).is_ok(), fits, "{addr:#x} + {len:#x}");
    }
}

/// Returns a pair with all operations in both directions, so that every teardown interrupts one.
#[track_caller]
fn workload() -> Bench {
    let settings = Settings { timeout: 5, retry_cnt: 2, min_rnr_timer: 2, rnr_retry: 3, ..settings() };
    let mut bench = Bench::new(QpType::Rc, &settings);
    bench.packet_time_ns = 100;
    bench.record = false;
    let len = 3 * MTU + 1;
    bench.host_mut(Side::B).write_memory(0, &pattern(len));
    bench.receive(1, 8192, 1024);
    let (a, b) = (bench.a, bench.b);
    bench.post_recv(Side::A, a, 2, 8192, 1024).unwrap();
    let ops = [bench.write(16384), SendOp::Send, bench.read(0), bench.fetch_add(32768, 1), SendOp::Send];
    for (wr_id, op) in ops.into_iter().enumerate() {
        let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { len };
        bench.post(10 + wr_id as u64, op, 16384, len);
    }
    let element = bench.host(Side::B).memory_range(0, len);
    bench.post_send(Side::B, b, &SendWr::new(20, SendOp::Send, &[element])).unwrap();
    let read = SendOp::Read { remote_addr: address(0), rkey: bench.host(Side::A).rkey() };
    let element = bench.host(Side::B).memory_range(65536, len);
    bench.post_send(Side::B, b, &SendWr::new(21, read, &[element])).unwrap();
    bench
}

/// Repeats the workload, up to each of its steps, tears something down there, and completes the rest. Checks
/// that every request completes at most once and in order.
#[track_caller]
fn at_every_step(what: &str, tear: impl Fn(&mut Bench)) {
    let mut steps = 0;
    loop {
        let mut bench = workload();
        let is_over = (0..steps).any(|_| !bench.step());
        tear(&mut bench);
        bench.drive();
        for side in [Side::A, Side::B] {
            let ended: Vec<u64> = bench.ended(side).iter().map(|one| one.0).filter(|id| *id >= 10).collect();
            assert!(
                ended.is_sorted_by(|one, next| one < next),
                "{what} after {steps} steps, {side:?}: {ended:?}"
            );
        }
        bench.check_accounting();
        if is_over {
            break;
        }
        steps += 1;
    }
    assert!(steps > 20, "{steps} steps");
}

fn modify(bench: &mut Bench, side: Side, attr: &QpAttr) {
    let (now, qpn) = (bench.now, bench.qpn(side));
    bench.host_mut(side).engine.modify_qp(now, qpn, attr).unwrap();
}

/// rxe, CVE-2026-45910: a queue pair is destroyed as its retransmission timer fires. This test destroys it at
/// every step of a transfer, on either side, in every way.
#[test]
fn rxe_cve_2026_45910_destroy_as_the_timer_fires() {
    for side in [Side::A, Side::B] {
        at_every_step("destroy", |bench| {
            let qpn = bench.qpn(side);
            bench.host_mut(side).engine.destroy_qp(qpn).unwrap();
        });
        for state in [QpState::Reset, QpState::Err] {
            at_every_step("reset or error", |bench| modify(bench, side, &QpAttr::to_state(state)));
        }
    }
}

/// Memory is deregistered at every step. Neither side accesses it afterwards.
#[test]
fn deregister_at_every_step() {
    for side in [Side::A, Side::B] {
        let mut steps = 0;
        loop {
            let mut bench = workload();
            let is_over = (0..steps).any(|_| !bench.step());
            let lkey = bench.host(side).region.lkey;
            bench.host_mut(side).engine.deregister(lkey).unwrap();
            let before = bench.host(side).read_memory(0, 1 << 18);
            bench.drive();
            crate::common::assert_same(&bench.host(side).read_memory(0, 1 << 18), &before, "revoked memory");
            if is_over {
                break;
            }
            steps += 1;
        }
        assert!(steps > 20);
    }
}

/// rxe, 2026-07-12: `max_dest_rd_atomic` is changed while READs and atomics are served. Here only a queue
/// pair in SQD accepts the change, which may reduce the kept READs and has no other effect.
#[test]
fn rxe_2026_07_12_modify_max_dest_rd_atomic_while_serving() {
    for limit in [0, 1, 128] {
        at_every_step("max_dest_rd_atomic", |bench| {
            let attr = QpAttr { max_dest_rd_atomic: Some(limit), ..QpAttr::default() };
            let (now, b) = (bench.now, bench.b);
            let engine = &mut bench.host_mut(Side::B).engine;
            let state = engine.query_qp(b).unwrap().state;
            assert_eq!(state == QpState::Rts, engine.modify_qp(now, b, &attr).is_err(), "not in {state:?}");
            if state == QpState::Rts {
                engine.modify_qp(now, b, &QpAttr::to_state(QpState::Sqd)).unwrap();
                engine.modify_qp(now, b, &attr).unwrap();
                engine.modify_qp(now, b, &QpAttr::to_state(QpState::Rts)).unwrap();
            }
        });
    }
}

/// rxe, 2026-05-18: a receive in a shared queue was changed between its check and its use. Here the elements
/// are copied when they are posted, so a later change of the list has no effect.
#[test]
fn rxe_2026_05_18_srq_receive_changed_after_posting() {
    let mut bench = Bench::empty();
    let srq = bench.connect_srq(QpType::Rc, &settings());
    let mut elements = [bench.host(Side::B).memory_range(0, 8)];
    bench.host_mut(Side::B).engine.post_srq_recv(srq, &RecvWr { wr_id: 1, elements: &elements }).unwrap();
    elements[0].length = 1 << 30;
    elements[0].addr = 0;
    let _ = elements;
    bench.post(1, SendOp::Send, 0, 9);
    bench.drive();
    assert_eq!(bench.ended(Side::B), [(1, WcStatus::LocalLengthError)]);
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::RemoteInvalidRequestError)]);
    assert_eq!(bench.host(Side::B).read_memory(0, 64), [0; 64]);
}

/// rxe, 2022-06-04: after the loss of an atomic's acknowledgement, the requester hung or got a wrong value.
#[test]
fn rxe_2022_06_04_atomic_ack_dropped() {
    for lost in 1..=7 {
        let mut bench = Bench::rc();
        bench.set_script(
            move |sent| {
                if sent.from == Side::B && sent.index < lost { Action::Drop } else { Action::Pass }
            },
        );
        bench.host_mut(Side::B).write_memory(0, &41_u64.to_ne_bytes());
        let add = bench.fetch_add(0, 1);
        bench.post(1, add, 64, 8);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, SUCCESS)], "{lost} lost");
        assert_eq!(bench.host(Side::A).read_memory(64, 8), 41_u64.to_ne_bytes());
        assert_eq!(bench.host(Side::B).read_memory(0, 8), 42_u64.to_ne_bytes());
    }
}

/// rxe, 2024-05-23: a UD packet longer than the MTU or the receive took the queue pair to ERR.
#[test]
fn rxe_2024_05_23_oversize_ud() {
    let mut bench = Bench::new(QpType::Ud, &settings());
    bench.receive(1, 0, 64);
    let source = bench.a;
    for (len, reason) in [
        (25, DropReason::ReceiveTooSmall),
        (4096, DropReason::ReceiveTooSmall),
        (4097, DropReason::BadLength),
        (9000, DropReason::BadLength),
    ] {
        let packet = bench.forge(Side::B, Opcode::UD_SEND_ONLY, Psn::new(0));
        let packet = packet.deth(settings().qkey, source).payload(&vec![1; len]);
        assert_eq!(bench.arrive(Side::B, &packet), (Verdict::Dropped(reason), vec![]), "{len}");
    }
    assert_eq!(bench.state(Side::B), QpState::Rts);
    let (a, path) = (bench.a, bench.path(Side::A));
    let to = UdDestination { path, remote_qpn: bench.b, remote_qkey: settings().qkey };
    bench.post_send(Side::A, a, &SendWr::inline(1, SendOp::Send, b"still here").to(to)).unwrap();
    bench.drive();
    assert_eq!(bench.ended(Side::B), [(1, SUCCESS)]);
}

/// rxe, 2021-03-29: invalid one-sided requests were dropped without a NAK. Here each gets a NAK with its
/// code.
#[test]
fn rxe_2021_03_29_no_nak_for_one_sided_requests() {
    let own = Bench::rc().host(Side::B).rkey();
    let bad = RKey(0x0bad_0000);
    type Make = fn(Forge, RKey) -> Forge;
    let rows: [(Opcode, RKey, u8, Make); 6] = [
        (Opcode::RC_RDMA_WRITE_ONLY, bad, 0x62, |forge, key| forge.reth(address(0), key, 8).payload(&[1; 8])),
        (Opcode::RC_RDMA_READ_REQUEST, bad, 0x62, |forge, key| forge.reth(address(0), key, 8)),
        (Opcode::RC_FETCH_ADD, bad, 0x62, |forge, key| forge.atomic(address(0), key, 1, 0)),
        (Opcode::RC_FETCH_ADD, own, 0x61, |forge, key| forge.atomic(address(1), key, 1, 0)),
        (Opcode::RC_RDMA_WRITE_ONLY, own, 0x61, |forge, key| forge.reth(address(0), key, 9).payload(&[1; 8])),
        (Opcode::RC_RDMA_READ_REQUEST, own, 0x61, |forge, key| forge.reth(address(0), key, u32::MAX)),
    ];
    for (opcode, key, syndrome, make) in rows {
        let mut bench = Bench::rc();
        let packet = make(request(&bench, opcode, 0), key);
        assert_eq!(bench.arrive(Side::B, &packet).1[0].syndrome, Some(syndrome), "{opcode}");
    }
}

/// rxe, 2023-07-21: a send failed midway, and its retransmission was damaged. Here a buffer of the device is
/// temporarily too small; the failed attempts leave no trace.
#[test]
fn rxe_2023_07_21_send_rollback() {
    let mut bench = Bench::rc();
    let len = 3 * MTU + 7;
    bench.host_mut(Side::A).write_memory(0, &pattern(len));
    bench.receive(1, 0, len);
    let read = bench.read(0);
    bench.post(1, SendOp::Send, 0, len);
    bench.post(2, read, 8192, len);
    for room in [0, 4, 12, 15, 16, 100, 271] {
        let now = bench.now;
        let mut buffer = vec![0; room];
        let mut slot = roce_transport::TxSlot::new(&mut buffer);
        let engine = &mut bench.host_mut(Side::A).engine;
        assert_eq!(engine.poll_transmit(now, &mut slot, Allowed::All), None, "{room} bytes are not enough");
        // Another event wakes the queue pair, here a request of no bytes behind the others.
        bench.post(100 + room as u64, SendOp::Write { remote_addr: 0, rkey: RKey(0) }, 0, 0);
    }
    bench.drive();
    let ended: Vec<Ended> = bench.ended(Side::A);
    assert_eq!(ended[..2], [(1, SUCCESS), (2, SUCCESS)]);
    assert!(ended.iter().all(|one| one.1 == SUCCESS));
    crate::common::assert_same(&bench.host(Side::B).read_memory(0, len), &pattern(len), "SEND");
    crate::common::assert_same(&bench.host(Side::A).read_memory(8192, len), &pattern(len), "READ");
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 0);
    let psns: Vec<u32> = bench.trace(Side::A).iter().take(5).map(|(_, psn)| psn - START).collect();
    assert_eq!(psns, [0, 1, 2, 3, 4], "no PSN was skipped");
}

/// siw, CVE-2026-23242 and related bugs, in RoCE terms: READ responses that are too long, too short, out of
/// order, or late.
#[test]
fn siw_cve_2026_23242_read_responses_longer_shorter_misplaced() {
    let len = 2 * MTU + 10;
    let response = |bench: &Bench, opcode: Opcode, offset: u32, len: usize| {
        let forge = bench.forge(Side::A, opcode, Psn::new(START + offset)).silent();
        let forge = if opcode == Opcode::RC_RDMA_READ_RESPONSE_MIDDLE { forge } else { forge.aeth(0x1f, 1) };
        forge.payload(&vec![7; len])
    };
    let (first, middle, last, only) = (Opcode(0x0d), Opcode(0x0e), Opcode(0x0f), Opcode(0x10));
    let good: [(Opcode, u32, usize); 3] = [(first, 0, MTU), (middle, 1, MTU), (last, 2, 10)];
    let bad_ends: &[(Opcode, u32, usize)] =
        &[(last, 2, 11), (last, 2, 9), (last, 2, MTU), (middle, 2, MTU), (only, 2, 12)];
    for bad in bad_ends {
        let mut bench = Bench::rc();
        bench.set_script(|sent| if sent.from == Side::A { Action::Drop } else { Action::Pass });
        let read = bench.read(0);
        bench.post(1, read, 0, len);
        bench.collect(Side::A);
        for (opcode, offset, len) in good[..2].iter().chain([bad]) {
            let packet = response(&bench, *opcode, *offset, *len);
            assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Handled);
        }
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::BadResponseError)], "{bad:?}");
        assert_eq!(bench.host(Side::A).read_memory(2 * MTU, 1024), [0; 1024], "{bad:?}");
    }
    // Out of order: the packet behind the gap is not placed. Then all packets arrive, twice.
    let mut bench = Bench::rc();
    bench.set_script(|sent| if sent.from == Side::A { Action::Drop } else { Action::Pass });
    let read = bench.read(0);
    bench.post(1, read, 0, len);
    bench.collect(Side::A);
    let packet = response(&bench, last, 2, 10);
    bench.arrive(Side::A, &packet);
    assert_eq!(bench.host(Side::A).read_memory(0, 1024), [0; 1024]);
    assert_eq!(bench.counter(Side::A, "implied_nak_seq_err"), 1);
    for (opcode, offset, len) in good {
        let packet = response(&bench, opcode, offset, len);
        assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Handled);
    }
    assert_eq!(bench.ended(Side::A), [(1, SUCCESS)]);
    bench.host_mut(Side::A).write_memory(0, &[0; 1024]);
    for (opcode, offset, len) in good {
        let packet = response(&bench, opcode, offset, len);
        let stale = Verdict::Dropped(DropReason::StaleResponse);
        assert_eq!(bench.arrive(Side::A, &packet).0, stale, "after completion");
    }
    assert_eq!(bench.host(Side::A).read_memory(0, 1024), [0; 1024]);
}

/// uverbs, 2026-01: the size of a work request was not checked. Here counts and sizes of a request are
/// compared with the limits of the queue pair, even if their sums would overflow.
#[test]
fn uverbs_2026_01_unchecked_sizes() {
    let mut bench = Bench::rc();
    let (a, b) = (bench.a, bench.b);
    let one = Sge { addr: 0, length: u32::MAX, lkey: bench.host(Side::A).region.lkey };
    let many = vec![one; 4096];
    for count in [9, 32, 33, 255, 256, 257, 4096] {
        let refused = Err(PostError::TooManyElements { have: count, limit: 8 });
        assert_eq!(bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &many[..count])), refused);
        let wr = RecvWr { wr_id: 1, elements: &many[..count] };
        assert_eq!(bench.host_mut(Side::B).engine.post_recv(b, &wr), refused);
    }
    let have = 8 * u64::from(u32::MAX);
    let refused = Err(PostError::MessageTooLong { have, limit: 1 << 31 });
    assert_eq!(bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &many[..8])), refused);
    let long = vec![0; 1 << 20];
    let refused = Err(PostError::InlineTooLong { have: 1 << 20, limit: 256 });
    assert_eq!(bench.post_send(Side::A, a, &SendWr::inline(1, SendOp::Send, &long)), refused);
}

/// QEMU pvrdma, CVE-2023-1544: a ring index came from outside. Rings here have no external indices. This test
/// moves those of a small queue pair around some hundred times, with full and empty rings.
#[test]
fn qemu_cve_2023_1544_ring_indices() {
    for depth in [1_usize, 2, 3, 7] {
        let mut settings = settings();
        (settings.capabilities.max_send_wr, settings.capabilities.max_recv_wr) = (depth, depth);
        let mut bench = Bench::new(QpType::Rc, &settings);
        bench.record = false;
        let mut next = 0_u64;
        for round in 0..300 {
            let count = 1 + round % depth;
            let mut expected: Vec<Ended> = Vec::new();
            for _ in 0..count {
                bench.receive(next, 1024 + 8 * (next as usize % 8), 8);
                let a = bench.a;
                let text = next.to_le_bytes();
                bench.post_send(Side::A, a, &SendWr::inline(next, SendOp::Send, &text)).unwrap();
                expected.push((next, SUCCESS));
                next += 1;
            }
            bench.drive();
            assert_eq!(bench.ended(Side::A), expected);
            assert_eq!(bench.ended(Side::B), expected);
            let at = 1024 + 8 * ((next - 1) as usize % 8);
            assert_eq!(bench.host(Side::B).read_memory(at, 8), (next - 1).to_le_bytes());
        }
    }
}

/// Coyote, issue 86: a WRITE of 8 KB or more stalled if it needed a retransmission.
#[test]
fn coyote_86_long_writes_with_retransmission() {
    let near = |len: usize| [len - 1, len, len + 1];
    let mut lengths: Vec<usize> = (1..=4).flat_map(|count| near(count * MTU)).collect();
    lengths.extend((13..=20).flat_map(|bits| near(1 << bits)));
    for (index, len) in lengths.into_iter().enumerate() {
        for one_in in [8, 64] {
            let mut bench = Bench::rc();
            bench.record = false;
            bench.host_mut(Side::A).write_memory(0, &pattern(len));
            let seed = index as u64;
            bench.set_script(
                move |sent| if unlucky(sent.index, seed, one_in) { Action::Drop } else { Action::Pass },
            );
            let write = bench.write(64);
            bench.post(1, write, 0, len);
            bench.drive();
            assert_eq!(bench.ended(Side::A), [(1, SUCCESS)], "{len} bytes, one in {one_in} lost");
            crate::common::assert_same(&bench.host(Side::B).read_memory(64, len), &pattern(len), "WRITE");
            assert_eq!(bench.host(Side::B).read_memory(64 + len, 64), [0; 64], "nothing behind");
        }
    }
}
