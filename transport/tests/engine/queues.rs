//! Queues of every kind: elements and inline data, shared receive queues, completion queues and their events,
//! fences and the limits of outstanding READs.

use std::sync::Arc;

use crate::common::{Answer, Bench, Ended, MTU, address, pattern, settings};
use roce_packet::{Opcode, Psn};
use roce_sim::pair::{Pair, Settings, Side};
use roce_transport::{
    Access, AsyncEvent, CqError, CqId, Event, MAX_INLINE, MAX_SGE, Notify, PostError, QpCapabilities,
    QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, SrqError, Verdict, Wc, WcStatus, WordMemory,
};

const START: u32 = 0x1000;
const SUCCESS: WcStatus = WcStatus::Success;

fn wide() -> Settings {
    let capabilities = QpCapabilities {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: MAX_SGE,
        max_recv_sge: MAX_SGE,
        max_inline: MAX_INLINE,
    };
    Settings { capabilities, ..settings() }
}

/// Returns 32 elements of odd lengths, some of them empty, scattered over the region; about 1,000 bytes.
fn elements(bench: &Bench, side: Side, base: usize, stride: usize) -> Vec<Sge> {
    let lengths = (0..MAX_SGE).map(|index| if index % 5 == 4 { 0 } else { 7 + index * 3 % 64 });
    lengths
        .enumerate()
        .map(|(index, len)| bench.host(side).memory_range(base + index * stride, len))
        .collect()
}

/// Returns the bytes in the order of the elements.
fn gathered(bench: &Bench, side: Side, elements: &[Sge]) -> Vec<u8> {
    let offset = |element: &Sge| (element.addr - address(0)) as usize;
    elements
        .iter()
        .flat_map(|element| bench.host(side).read_memory(offset(element), element.length as usize))
        .collect()
}

#[test]
fn thirty_two_elements_on_both_ends() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut bench = Bench::new(qp_type, &wide());
        bench.host_mut(Side::A).write_memory(0, &pattern(8192));
        let from = elements(&bench, Side::A, 0, 101);
        let into = elements(&bench, Side::B, 0, 173);
        let (a, b) = (bench.a, bench.b);
        // The receive lists its elements in another order, so that their boundaries do not coincide.
        let into: Vec<Sge> = into.into_iter().rev().collect();
        bench.host_mut(Side::B).engine.post_recv(b, &RecvWr { wr_id: 1, elements: &into }).unwrap();
        bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &from)).unwrap();
        bench.drive();
        assert_eq!(bench.ended(Side::B), [(1, SUCCESS)]);
        let (sent, received) = (gathered(&bench, Side::A, &from), gathered(&bench, Side::B, &into));
        assert!(sent.len() > 3 * MTU, "several packets");
        assert_eq!(sent, received);
        // Bytes outside the elements are unchanged.
        let touched: usize =
            bench.host(Side::B).read_memory(0, 1 << 20).iter().filter(|byte| **byte != 0).count();
        assert!(touched <= sent.len());
        if qp_type == QpType::Rc {
            let back = elements(&bench, Side::A, 16384, 211);
            let total = sent.len();
            bench.host_mut(Side::B).write_memory(32768, &pattern(total));
            let read = bench.read(32768);
            bench.post_send(Side::A, a, &SendWr::new(2, read, &back)).unwrap();
            bench.drive();
            assert_eq!(bench.ended(Side::A), [(1, SUCCESS), (2, SUCCESS)]);
            assert_eq!(gathered(&bench, Side::A, &back), pattern(total));
        }
        let many = vec![from[0]; MAX_SGE + 1];
        let refused = Err(PostError::TooManyElements { have: MAX_SGE + 1, limit: MAX_SGE });
        assert_eq!(bench.post_send(Side::A, a, &SendWr::new(3, SendOp::Send, &many)), refused);
        let wr = RecvWr { wr_id: 3, elements: &many };
        assert_eq!(bench.host_mut(Side::B).engine.post_recv(b, &wr), refused);
    }
}

/// Inline data is copied when it is posted, so later changes of the buffer have no effect. Keys are ignored.
#[test]
fn inline_up_to_512_bytes() {
    for len in [0, 1, 255, 256, 257, 511, 512] {
        let mut bench = Bench::new(QpType::Rc, &wide());
        bench.receive(1, 0, 1024);
        let a = bench.a;
        let mut data = pattern(len);
        bench.post_send(Side::A, a, &SendWr::inline(1, SendOp::Send, &data)).unwrap();
        data.fill(0);
        drop(data);
        let write = bench.write(2048);
        bench.post_send(Side::A, a, &SendWr::inline(2, write, &pattern(len))).unwrap();
        let lkey = bench.host(Side::A).region.lkey;
        bench.host_mut(Side::A).engine.deregister(lkey).unwrap();
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, SUCCESS), (2, SUCCESS)]);
        assert_eq!(bench.host(Side::B).read_memory(0, len), pattern(len));
        assert_eq!(bench.host(Side::B).read_memory(2048, len), pattern(len));
    }
    let mut bench = Bench::new(QpType::Rc, &wide());
    let a = bench.a;
    let long = pattern(513);
    let refused = Err(PostError::InlineTooLong { have: 513, limit: 512 });
    assert_eq!(bench.post_send(Side::A, a, &SendWr::inline(1, SendOp::Send, &long)), refused);
    let (remote_addr, rkey) = (address(0), bench.host(Side::B).rkey());
    for op in [bench.read(0), SendOp::FetchAdd { remote_addr, rkey, add: 1 }] {
        let refused = Err(PostError::CannotBeInline);
        assert_eq!(bench.post_send(Side::A, a, &SendWr::inline(1, op, &[0; 8])), refused);
    }
}

#[test]
fn posts_that_are_refused() {
    let mut bench = Bench::rc();
    let a = bench.a;
    let (remote_addr, rkey) = (address(0), bench.host(Side::B).rkey());
    let range = |bench: &Bench, len| bench.host(Side::A).memory_range(0, len);
    for op in [
        SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 1 },
        SendOp::AtomicWrite { remote_addr, rkey },
    ] {
        for len in [0, 7, 9] {
            let elements = [range(&bench, len)];
            let refused = Err(PostError::WrongLength { need: 8, have: len as u64 });
            assert_eq!(bench.post_send(Side::A, a, &SendWr::new(1, op, &elements)), refused);
        }
    }
    let huge = Sge { length: 1 << 31, ..range(&bench, 8) };
    let refused = Err(PostError::MessageTooLong { have: (1 << 31) + 8, limit: 1 << 31 });
    let elements = [huge, range(&bench, 8)];
    assert_eq!(bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &elements)), refused);
    // 256 requests fit; the next one does not fit until a request completes.
    bench.blocked = [true; 2];
    for wr_id in 0..256 {
        bench.post(wr_id, SendOp::Send, 0, 1);
        bench.receive(wr_id, 0, 1);
    }
    let full = Err(PostError::QueueFull { capacity: 256 });
    let elements = [range(&bench, 1)];
    assert_eq!(bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &elements)), full);
    let b = bench.b;
    assert_eq!(bench.post_recv(Side::B, b, 1, 0, 1), full);
    bench.blocked = [false; 2];
    bench.drive();
    assert_eq!(bench.ended(Side::A).len(), 256);
    bench.post(256, SendOp::Send, 0, 1);
}

/// The protection domain of a shared receive queue may differ from that of the queue pair. Receives use
/// memory of the former, the peer's WRITEs use memory of the latter.
#[test]
fn the_receives_of_a_shared_queue_use_memory_of_its_own_domain() {
    for (qp_type, good) in [(QpType::Rc, true), (QpType::Rc, false), (QpType::Uc, true), (QpType::Uc, false)]
    {
        let mut bench = Bench::empty();
        let host = bench.host_mut(Side::B);
        let own = host.memory_range(0, 64);
        let other_pd = host.engine.allocate_pd().unwrap();
        let other =
            host.engine.register(other_pd, 0, Arc::new(WordMemory::new(64)), Access::LOCAL_WRITE).unwrap();
        let srq = host.engine.create_srq(other_pd, 4, 1).unwrap();
        bench.b = bench.create_at_b(qp_type, &settings(), Some(srq), None);
        bench.a = bench.create_qp(Side::A, qp_type, &settings());
        let (a, b) = (bench.a, bench.b);
        bench.bring_up(Side::A, a, b, &settings(), QpState::Rts);
        bench.bring_up(Side::B, b, a, &settings(), QpState::Rts);
        let element = if good { Sge { addr: 0, length: 64, lkey: other.lkey } } else { own };
        let engine = &mut bench.host_mut(Side::B).engine;
        engine.post_srq_recv(srq, &RecvWr { wr_id: 7, elements: &[element] }).unwrap();
        bench.post(1, bench.write(128), 0, 8);
        bench.post(2, SendOp::Send, 0, 8);
        bench.drive();
        let status = if good { WcStatus::Success } else { WcStatus::LocalProtectionError };
        assert_eq!(bench.ended(Side::B), [(7, status)], "{qp_type:?}");
    }
}

/// An armed limit raises one event when fewer receives are left than the limit, and is then disarmed.
#[test]
fn srq_limit_fires_once() {
    let mut bench = Bench::empty();
    let srq = bench.connect_srq(QpType::Rc, &settings());
    let post = |bench: &mut Bench, count: u64| {
        for wr_id in 0..count {
            let element = bench.host(Side::B).memory_range(0, 64);
            bench
                .host_mut(Side::B)
                .engine
                .post_srq_recv(srq, &RecvWr { wr_id, elements: &[element] })
                .unwrap();
        }
    };
    let send = |bench: &mut Bench| {
        bench.post(1, SendOp::Send, 0, 8);
        bench.drive();
        bench.take_events(Side::B)
    };
    let arm = |bench: &mut Bench, limit| bench.host_mut(Side::B).engine.arm_srq_limit(srq, limit);
    let event = vec![AsyncEvent::SrqLimitReached(srq)];
    post(&mut bench, 10);
    assert_eq!(send(&mut bench), [], "not armed");
    arm(&mut bench, 8).unwrap();
    assert_eq!(send(&mut bench), [], "8 are left, that is not below 8");
    assert_eq!(send(&mut bench), event);
    assert_eq!(bench.host(Side::B).engine.query_srq(srq).unwrap().limit, 0);
    assert_eq!(send(&mut bench), [], "disarmed");
    arm(&mut bench, 5).unwrap();
    arm(&mut bench, 0).unwrap();
    for _ in 0..3 {
        assert_eq!(send(&mut bench), [], "disarmed by hand");
    }
    arm(&mut bench, 64).unwrap();
    assert_eq!(send(&mut bench), event, "armed while it was below");
    let refused = Err(SrqError::OutOfRange { name: "limit", have: 65, limit: 64 });
    assert_eq!(arm(&mut bench, 65), refused);
    let b = bench.b;
    let wr = RecvWr { wr_id: 1, elements: &[] };
    assert_eq!(bench.host_mut(Side::B).engine.post_recv(b, &wr), Err(PostError::UsesSrq));
    let in_use = Err(SrqError::InUse { users: 1 });
    assert_eq!(bench.host_mut(Side::B).engine.destroy_srq(srq), in_use);
    bench.host_mut(Side::B).engine.destroy_qp(b).unwrap();
    bench.host_mut(Side::B).engine.destroy_srq(srq).unwrap();
}

/// Posted receives keep their order, wherever they are in the ring. A size too small for them is refused.
#[test]
fn srq_resize_keeps_what_is_posted() {
    let mut bench = Bench::empty();
    let srq = bench.connect_srq(QpType::Rc, &settings());
    let post = |bench: &mut Bench, wr_id| {
        let element = bench.host(Side::B).memory_range(0, 64);
        bench.host_mut(Side::B).engine.post_srq_recv(srq, &RecvWr { wr_id, elements: &[element] })
    };
    let resize = |bench: &mut Bench, to| bench.host_mut(Side::B).engine.resize_srq(srq, to);
    let received = |bench: &mut Bench| {
        bench.post(1, SendOp::Send, 0, 8);
        bench.drive();
        bench.completions(Side::B).first().map(|wc| wc.wr_id)
    };
    (0..64).for_each(|wr_id| post(&mut bench, wr_id).unwrap());
    (0..60).for_each(|wr_id| assert_eq!(received(&mut bench), Some(wr_id)));
    // Four receives at the end of the ring, four at its beginning.
    (64..68).for_each(|wr_id| post(&mut bench, wr_id).unwrap());
    assert_eq!(resize(&mut bench, 7), Err(SrqError::TooSmall { have: 7, posted: 8 }));
    bench.host_mut(Side::B).engine.arm_srq_limit(srq, 40).unwrap();
    resize(&mut bench, 8).unwrap();
    let attributes = bench.host(Side::B).engine.query_srq(srq).unwrap();
    assert_eq!((attributes.max_wr, attributes.max_sge, attributes.limit, attributes.posted), (8, 4, 8, 8));
    assert_eq!(post(&mut bench, 99), Err(PostError::QueueFull { capacity: 8 }));
    (60..66).for_each(|wr_id| assert_eq!(received(&mut bench), Some(wr_id)));
    resize(&mut bench, 1000).unwrap();
    (66..68).for_each(|wr_id| assert_eq!(received(&mut bench), Some(wr_id)));
    assert!(matches!(resize(&mut bench, usize::MAX), Err(SrqError::OutOfRange { name: "max_wr", .. })));
}

/// Returns a pair whose B side completes into a queue of its own with this many entries.
#[track_caller]
fn with_cq(entries: usize) -> (Bench, CqId) {
    let mut bench = Bench::empty();
    let cq = bench.host_mut(Side::B).engine.create_cq(entries).unwrap();
    bench.b = bench.create_at_b(QpType::Rc, &settings(), None, Some(cq));
    bench.a = bench.create_qp(Side::A, QpType::Rc, &settings());
    let (a, b) = (bench.a, bench.b);
    bench.bring_up(Side::A, a, b, &settings(), QpState::Rts);
    bench.bring_up(Side::B, b, a, &settings(), QpState::Rts);
    (bench, cq)
}

fn poll(bench: &mut Bench, cq: CqId, most: usize) -> Result<Vec<u64>, CqError> {
    let mut some = vec![Wc::default(); most];
    let count = bench.host_mut(Side::B).engine.poll_cq(cq, &mut some)?;
    Ok(some[..count].iter().map(|wc| wc.wr_id).collect())
}

#[track_caller]
fn send_one(bench: &mut Bench, wr_id: u64, flags: SendFlags) {
    bench.receive(wr_id, 0, 64);
    let (a, element) = (bench.a, bench.host(Side::A).memory_range(0, 8));
    bench.post_send(Side::A, a, &SendWr::new(wr_id, SendOp::Send, &[element]).with_flags(flags)).unwrap();
    bench.drive();
}

#[test]
fn completion_queue_overflow_fails_the_queue_pair() {
    let (mut bench, cq) = with_cq(3);
    for wr_id in 0..3 {
        send_one(&mut bench, wr_id, SendFlags::empty());
    }
    assert_eq!(bench.take_events(Side::B), []);
    assert_eq!(bench.state(Side::B), QpState::Rts);
    send_one(&mut bench, 3, SendFlags::empty());
    let b = bench.b;
    assert_eq!(bench.take_events(Side::B), [AsyncEvent::CqError(cq), AsyncEvent::QpFatal(b)]);
    assert_eq!(bench.state(Side::B), QpState::Err);
    // The completions in the queue can be polled; then polling reports the overflow.
    assert_eq!(poll(&mut bench, cq, 8), Ok(vec![0, 1, 2]));
    assert_eq!(poll(&mut bench, cq, 8), Err(CqError::Overflowed { capacity: 3 }));
}

/// Regression: a thread that waits for solicited completions slept on, although the queue works no longer.
#[test]
fn an_overflow_notifies_whoever_waits_for_solicited_completions() {
    let (mut bench, cq) = with_cq(2);
    bench.host_mut(Side::B).engine.request_notification(cq, Notify::Solicited).unwrap();
    let notified = |bench: &mut Bench| {
        bench.collect(Side::B);
        let events = std::mem::take(&mut bench.host_mut(Side::B).events);
        events.iter().filter(|event| **event == Event::Completion(cq)).count()
    };
    for wr_id in 0..2 {
        send_one(&mut bench, wr_id, SendFlags::empty());
    }
    assert_eq!(notified(&mut bench), 0);
    send_one(&mut bench, 2, SendFlags::empty());
    assert_eq!(notified(&mut bench), 1);
}

#[test]
fn completion_queue_resize_keeps_order() {
    let (mut bench, cq) = with_cq(4);
    for wr_id in 0..3 {
        send_one(&mut bench, wr_id, SendFlags::empty());
    }
    assert_eq!(poll(&mut bench, cq, 2), Ok(vec![0, 1]));
    for wr_id in 3..6 {
        // The ring wraps here.
        send_one(&mut bench, wr_id, SendFlags::empty());
    }
    let resize = |bench: &mut Bench, entries| bench.host_mut(Side::B).engine.resize_cq(cq, entries);
    let most = bench.host(Side::B).engine.config().max_cqe;
    for entries in [0, 3, most + 1] {
        let refused = Err(CqError::Capacity { have: entries, least: 4, most });
        assert_eq!(resize(&mut bench, entries), refused);
    }
    resize(&mut bench, 10).unwrap();
    for wr_id in 6..12 {
        send_one(&mut bench, wr_id, SendFlags::empty());
    }
    assert_eq!(poll(&mut bench, cq, 7), Ok((2..9).collect()));
    resize(&mut bench, 3).unwrap();
    assert_eq!(poll(&mut bench, cq, 7), Ok((9..12).collect()));
    assert_eq!(bench.take_events(Side::B), []);
    let in_use = Err(CqError::InUse { users: 2 });
    assert_eq!(bench.host_mut(Side::B).engine.destroy_cq(cq), in_use);
}

/// Each request raises one event; existing completions raise none. "next" overrides "solicited".
#[test]
fn notification_semantics() {
    let (mut bench, cq) = with_cq(64);
    let arm =
        |bench: &mut Bench, notify| bench.host_mut(Side::B).engine.request_notification(cq, notify).unwrap();
    let mut wr_id = 0;
    let mut send = |bench: &mut Bench, flags| {
        wr_id += 1;
        send_one(bench, wr_id, flags);
        std::mem::take(&mut bench.host_mut(Side::B).events)
    };
    let event = vec![Event::Completion(cq)];
    let (plain, solicited) = (SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::SOLICITED);
    assert_eq!(send(&mut bench, plain), []);
    arm(&mut bench, Notify::Next);
    bench.drive();
    assert_eq!(bench.host(Side::B).events, [], "what is in the queue raises nothing");
    assert_eq!(send(&mut bench, plain), event);
    assert_eq!(send(&mut bench, plain), [], "once");
    arm(&mut bench, Notify::Solicited);
    assert_eq!(send(&mut bench, plain), []);
    assert_eq!(send(&mut bench, solicited), event);
    assert_eq!(send(&mut bench, solicited), [], "once");
    // A repeated request counts once, and "next" is not narrowed to "solicited".
    arm(&mut bench, Notify::Next);
    arm(&mut bench, Notify::Solicited);
    assert_eq!(send(&mut bench, plain), event);
    assert_eq!(send(&mut bench, solicited), []);
    // "solicited" is widened to "next".
    arm(&mut bench, Notify::Solicited);
    arm(&mut bench, Notify::Next);
    assert_eq!(send(&mut bench, plain), event);
    // A failure counts as solicited.
    arm(&mut bench, Notify::Solicited);
    bench.receive(99, 0, 64);
    let (now, b) = (bench.now, bench.b);
    let error = roce_transport::QpAttr::to_state(QpState::Err);
    bench.host_mut(Side::B).engine.modify_qp(now, b, &error).unwrap();
    bench.collect(Side::B);
    assert_eq!(bench.host(Side::B).events, event);
}

/// Only the last packet of a message has the solicited bit set.
#[test]
fn solicited_bit_is_on_the_last_packet() {
    let mut bench = Bench::rc();
    bench.receive(1, 0, 1024);
    let (a, element) = (bench.a, bench.host(Side::A).memory_range(0, 3 * MTU));
    let elements = [element];
    let wr = SendWr::new(1, SendOp::Send, &elements).with_flags(SendFlags::SOLICITED);
    bench.post_send(Side::A, a, &wr).unwrap();
    bench.collect(Side::A);
    let bits: Vec<bool> = bench.sent.iter().map(|sent| sent.bytes[1] & 0x80 != 0).collect();
    assert_eq!(bits, [false, false, true]);
}

/// Unsignaled requests complete silently; `signal_all` makes all completions visible.
#[test]
fn signaling() {
    let mut bench = Bench::rc();
    for wr_id in 0..6 {
        let flags = if wr_id % 3 == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
        send_one(&mut bench, wr_id, flags);
    }
    assert_eq!(bench.ended(Side::A), [(2, SUCCESS), (5, SUCCESS)]);
    let host = bench.host_mut(Side::A);
    let init = roce_transport::QpInit {
        qp_type: QpType::Rc,
        pd: host.pd,
        send_cq: host.cq,
        recv_cq: host.cq,
        srq: None,
        capabilities: settings().capabilities,
        signal_all: true,
    };
    bench.a = bench.host_mut(Side::A).engine.create_qp(&init).unwrap();
    bench.b = bench.create_qp(Side::B, QpType::Rc, &settings());
    let (a, b) = (bench.a, bench.b);
    bench.bring_up(Side::A, a, b, &settings(), QpState::Rts);
    bench.bring_up(Side::B, b, a, &settings(), QpState::Rts);
    for wr_id in 0..3 {
        send_one(&mut bench, wr_id, SendFlags::empty());
    }
    assert_eq!(bench.ended(Side::A), [(0, SUCCESS), (1, SUCCESS), (2, SUCCESS)]);
}

/// Returns the opcodes that A sent before B's first answer could arrive.
fn first_burst(pair: &Pair) -> Vec<u8> {
    let start = pair.sent[0].at;
    pair.sent
        .iter()
        .filter(|sent| sent.from == Side::A && sent.at == start)
        .map(|sent| sent.opcode.0)
        .collect()
}

/// The fence column of section 5.9: with the flag, a request waits only for earlier READs and atomics.
/// Without the flag, no request waits.
#[test]
fn fences() {
    let (remote_addr, rkey) = (address(0), Bench::rc().host(Side::B).rkey());
    let write = SendOp::Write { remote_addr: address(64), rkey };
    let read = SendOp::Read { remote_addr, rkey };
    let atomic = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
    let kinds = [(SendOp::Send, 0x04), (write, 0x0a), (read, 0x0c), (atomic, 0x14)];
    for (first, first_opcode) in kinds {
        for (second, second_opcode) in kinds {
            for fenced in [false, true] {
                let mut bench = Bench::rc();
                bench.receive(1, 8192, 64);
                bench.receive(2, 8192, 64);
                bench.post(1, first, 4096, 8);
                let (a, element) = (bench.a, bench.host(Side::A).memory_range(4200, 8));
                let mut flags = SendFlags::SIGNALED;
                flags.set(SendFlags::FENCE, fenced);
                let elements = [element];
                let wr = SendWr::new(2, second, &elements).with_flags(flags);
                bench.post_send(Side::A, a, &wr).unwrap();
                bench.drive();
                let waits = fenced && matches!(first_opcode, 0x0c | 0x14);
                let expected = if waits { vec![first_opcode] } else { vec![first_opcode, second_opcode] };
                assert_eq!(first_burst(&bench), expected, "{first_opcode:#x} {second_opcode:#x} {fenced}");
                assert_eq!(bench.ended(Side::A), [(1, SUCCESS), (2, SUCCESS)]);
                if waits {
                    // The second request was not sent before the last packet of the answer arrived.
                    let answer = bench.sent.iter().find(|sent| sent.from == Side::B).unwrap().at;
                    let second = bench.sent.iter().filter(|sent| sent.from == Side::A).nth(1).unwrap().at;
                    assert!(second >= answer.plus_nanos(bench.link_delay_ns));
                }
            }
        }
    }
}

/// A fence waits for a whole READ that is requested in pieces, even if a part of it is lost.
#[test]
fn a_fence_waits_for_the_last_byte() {
    let len = 300 * MTU;
    let mut bench = Bench::rc();
    bench.host_mut(Side::B).write_memory(0, &pattern(len));
    let mut lost = 0;
    bench.set_script(move |sent| {
        let is_unlucky = sent.from == Side::B && sent.index % 97 == 50 && lost < 4;
        if is_unlucky {
            lost += 1;
            return roce_sim::pair::Action::Drop;
        }
        roce_sim::pair::Action::Pass
    });
    let read = bench.read(0);
    bench.post(1, read, 0, len);
    // The WRITE returns the bytes that the READ fetched, so it must not be gathered too early.
    let (a, element) = (bench.a, bench.host(Side::A).memory_range(0, len));
    let write = bench.write(1 << 20);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    bench.post_send(Side::A, a, &SendWr::new(2, write, &[element]).with_flags(flags)).unwrap();
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, SUCCESS), (2, SUCCESS)]);
    crate::common::assert_same(&bench.host(Side::B).read_memory(1 << 20, len), &pattern(len), "echo");
}

/// At most `max_rd_atomic` READs and atomics are outstanding, with and without loss.
#[test]
fn outstanding_reads_stay_within_the_limit() {
    for limit in [1, 2, 3, 16] {
        for lossy in [false, true] {
            let settings = Settings { rd_atomic: limit, ..settings() };
            let mut bench = Bench::new(QpType::Rc, &settings);
            bench.packet_time_ns = 100;
            if lossy {
                bench.set_script(|sent| {
                    let lost = sent.index % 7 == 3;
                    if lost { roce_sim::pair::Action::Drop } else { roce_sim::pair::Action::Pass }
                });
            }
            for index in 0..40_u64 {
                let op = if index % 3 == 0 { bench.fetch_add(0, 1) } else { bench.read(64) };
                bench.post(index, op, 4096, 8);
            }
            bench.drive();
            let expected: Vec<Ended> = (0..40).map(|wr_id| (wr_id, SUCCESS)).collect();
            assert_eq!(bench.ended(Side::A), expected, "limit {limit}");
            assert_eq!(bench.host(Side::B).read_memory(0, 8), 14_u64.to_ne_bytes(), "each atomic once");
            if lossy {
                continue;
            }
            let (mut outstanding, mut most) = (0_u32, 0);
            for sent in &bench.sent {
                match sent.from {
                    Side::A => outstanding += 1,
                    Side::B => outstanding -= 1,
                }
                most = most.max(outstanding);
            }
            assert!(most <= u32::from(limit), "{most} at once, {limit} may be");
            assert!(most >= u32::from(limit).min(2), "the limit is made use of");
        }
    }
    let mut bench = Bench::new(QpType::Rc, &Settings { rd_atomic: 0, ..settings() });
    let (a, element, read) = (bench.a, bench.host(Side::A).memory_range(0, 8), bench.read(0));
    let refused = Err(PostError::NoReadAtomicResources);
    assert_eq!(bench.post_send(Side::A, a, &SendWr::new(1, read, &[element])), refused);
}

/// The responder refuses the first READ beyond its limit. B's device takes no packets, so all READs are
/// unanswered.
#[test]
fn too_many_reads_are_refused() {
    for limit in [0_u8, 1, 2, 16] {
        let mut bench = Bench::new(QpType::Rc, &Settings { rd_atomic: limit, ..settings() });
        bench.blocked = [false, true];
        let rkey = bench.host(Side::B).rkey();
        for index in 0..=u32::from(limit) {
            let packet = bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, Psn::new(START + index));
            assert_eq!(bench.arrive(Side::B, &packet.reth(address(0), rkey, 8)).0, Verdict::Handled);
        }
        bench.blocked = [false; 2];
        bench.collect(Side::B);
        let answers = bench.answers_since(0, Side::B);
        assert_eq!(answers.len(), usize::from(limit) + 1);
        let nak = Answer::acknowledge(0x61, START + u32::from(limit), u32::from(limit));
        assert_eq!(answers.last(), Some(&nak), "IRD {limit}");
        assert_eq!(bench.state(Side::B), QpState::Err);
    }
}

/// A repeated READ does not count as an additional READ. The peer has its answer and continues, while the
/// repetition here is still waiting to be sent.
///
/// ```text
/// A  READ 0 ->  B   answered
///    READ 0 ->      again, early; not sent yet
///    READ 1 ->      must be accepted: only one is outstanding at A
/// ```
#[test]
fn a_repeated_read_does_not_count_against_the_limit() {
    for atomic in [false, true] {
        let mut bench = Bench::new(QpType::Rc, &Settings { rd_atomic: 1, ..settings() });
        let rkey = bench.host(Side::B).rkey();
        let packet = |bench: &Bench, index: u32| {
            let psn = Psn::new(START + index);
            if atomic {
                bench.forge(Side::B, Opcode::RC_FETCH_ADD, psn).atomic(address(0), rkey, 1, 0)
            } else {
                bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, psn).reth(address(0), rkey, 8)
            }
        };
        let (first, second) = (packet(&bench, 0), packet(&bench, 1));
        assert_eq!(bench.arrive(Side::B, &first).1.len(), 1);
        bench.blocked = [false, true];
        bench.arrive(Side::B, &first);
        bench.arrive(Side::B, &second);
        bench.blocked = [false; 2];
        let before = bench.sent.len();
        bench.collect(Side::B);
        let answers = bench.answers_since(before, Side::B);
        assert_eq!(bench.state(Side::B), QpState::Rts);
        assert_eq!(answers.last().unwrap().psn, START + 1);
        assert!(answers.iter().all(|answer| answer.syndrome == Some(0x1f)), "{answers:?}");
    }
}

/// The elements of a request may belong to different regions.
#[test]
fn elements_from_several_regions() {
    let mut bench = Bench::rc();
    let host = bench.host_mut(Side::A);
    let other = Arc::new(WordMemory::from_bytes(&[0xbb; 16]));
    let region = host.engine.register(host.pd, 0x5000, other, Access::empty()).unwrap();
    bench.host_mut(Side::A).write_memory(0, &[0xaa; 16]);
    let own = bench.host(Side::A).memory_range(0, 5);
    let elements = [own, Sge { addr: 0x5003, length: 6, lkey: region.lkey }, own];
    let (a, write) = (bench.a, bench.write(0));
    bench.post_send(Side::A, a, &SendWr::new(1, write, &elements)).unwrap();
    bench.drive();
    let expected = [&[0xaa; 5][..], &[0xbb; 6], &[0xaa; 5]].concat();
    assert_eq!(bench.host(Side::B).read_memory(0, 16), expected);
}
