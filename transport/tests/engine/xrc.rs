//! Extended reliable connections: initiators, targets, and the shared receive queues that messages name
//! (annex A14).

use std::sync::Arc;

use crate::common::{Bench, Forge, MTU, address, assert_same, pattern, settings, unlucky};
use roce_packet::{Datagram, ImmDt, Opcode, Psn};
use roce_sim::pair::{Action, Side};
use roce_transport::{
    Access, AsyncEvent, CqError, CqId, CreateQpError, DropReason, PostError, QpInit, QpState, QpType, RKey,
    RecvWr, SendOp, SendWr, SrqError, SrqId, Verdict, Wc, WcFlags, WcOpcode, WcStatus, WordMemory, XrcdError,
};

const START: u32 = 0x1000;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;

/// A shared receive queue of B's domain, with a completion queue of its own.
#[derive(Clone, Copy)]
struct Queue {
    srq: SrqId,
    number: u32,
    cq: CqId,
}

/// Returns an initiator at A, connected to a target at B.
fn bench() -> Bench {
    let mut bench = Bench::empty();
    bench.a = bench.create_qp(Side::A, QpType::XrcSend, &settings());
    bench.b = bench.create_qp(Side::B, QpType::XrcRecv, &settings());
    let (a, b) = (bench.a, bench.b);
    bench.bring_up(Side::A, a, b, &settings(), QpState::Rts);
    bench.bring_up(Side::B, b, a, &settings(), QpState::Rts);
    bench
}

fn queue(bench: &mut Bench) -> Queue {
    let host = bench.host_mut(Side::B);
    let xrcd = host.xrcd();
    let cq = host.engine.create_cq(64).unwrap();
    let (srq, number) = host.engine.create_xrc_srq(host.pd, xrcd, cq, 16, 2).unwrap();
    Queue { srq, number, cq }
}

/// Posts a receive for `len` bytes of B's region.
fn receive(bench: &mut Bench, queue: Queue, wr_id: u64, offset: usize, len: usize) {
    let element = bench.host(Side::B).memory_range(offset, len);
    let engine = &mut bench.host_mut(Side::B).engine;
    engine.post_srq_recv(queue.srq, &RecvWr { wr_id, elements: &[element] }).unwrap();
}

/// Posts a request of A for a queue of B.
fn post(bench: &mut Bench, wr_id: u64, op: SendOp, offset: usize, len: usize, number: u32) {
    let elements = [bench.host(Side::A).memory_range(offset, len)];
    let a = bench.a;
    let wr = SendWr { remote_srqn: number, ..SendWr::new(wr_id, op, &elements) };
    bench.post_send(Side::A, a, &wr).unwrap();
}

fn completions(bench: &mut Bench, cq: CqId) -> Vec<Wc> {
    let mut out = [Wc::default(); 64];
    let found = bench.host_mut(Side::B).engine.poll_cq(cq, &mut out).unwrap();
    out[..found].to_vec()
}

#[test]
fn messages_go_to_the_queue_that_they_name() {
    let mut bench = bench();
    let (first, second) = (queue(&mut bench), queue(&mut bench));
    assert_ne!(first.number, second.number);
    let data = pattern(5 * MTU);
    bench.host_mut(Side::A).write_memory(0, &data);
    receive(&mut bench, first, 1, 10_000, 5 * MTU);
    receive(&mut bench, second, 2, 20_000, 5 * MTU);
    receive(&mut bench, second, 3, 30_000, 64);
    post(&mut bench, 10, SendOp::Send, 0, 5 * MTU, second.number);
    post(&mut bench, 11, SendOp::SendWithImm(ImmDt([1, 2, 3, 4])), 0, 3, first.number);
    let rkey = bench.host(Side::B).rkey();
    let write = SendOp::WriteWithImm { remote_addr: address(40_000), rkey, imm: ImmDt([9; 4]) };
    post(&mut bench, 12, write, 0, 2 * MTU, second.number);
    let read = bench.read(20_000);
    post(&mut bench, 13, read, 60_000, 3 * MTU, first.number);
    let add = bench.fetch_add(50_000, 7);
    post(&mut bench, 14, add, 70_000, 8, first.number);
    bench.drive();
    let expected: Vec<_> = (10..15).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(bench.ended(Side::A), expected);
    assert_same(&bench.host(Side::B).read_memory(20_000, 5 * MTU), &data, "the message of the second queue");
    assert_same(&bench.host(Side::B).read_memory(40_000, 2 * MTU), &data[..2 * MTU], "the WRITE");
    assert_same(&bench.host(Side::A).read_memory(60_000, 3 * MTU), &data[..3 * MTU], "the READ");
    assert_eq!(bench.host(Side::B).read_memory(50_000, 8), 7_u64.to_ne_bytes());

    let b = bench.b;
    let of_first = completions(&mut bench, first.cq);
    assert_eq!(of_first.len(), 1);
    let wc = of_first[0];
    assert_eq!(
        (wc.wr_id, wc.byte_len, wc.imm, wc.qpn, wc.status),
        (1, 3, ImmDt([1, 2, 3, 4]), b, WcStatus::Success)
    );
    assert!(wc.flags.contains(WcFlags::WITH_IMM));
    let of_second = completions(&mut bench, second.cq);
    let found: Vec<_> = of_second.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    let length = u32::try_from(MTU).unwrap();
    assert_eq!(found, [(2, WcOpcode::Recv, 5 * length), (3, WcOpcode::RecvRdmaWithImm, 2 * length)]);

    // On the wire: XRC opcodes in both directions, and the number in every request.
    let numbers = [first.number, second.number];
    for sent in &bench.sent {
        assert!(sent.opcode.name().unwrap().starts_with("XRC_"), "{:?}", sent.opcode);
        let datagram = Datagram::parse(&sent.bytes, &[]).unwrap();
        let number = datagram.xrceth().map(|header| header.srq);
        assert_eq!(number.is_some(), sent.from == Side::A, "{:?}", sent.opcode);
        assert!(number.is_none_or(|number| numbers.contains(&number)));
    }
}

#[test]
fn a_message_waits_for_a_receive_of_its_queue() {
    let mut bench = bench();
    let (wanted, other) = (queue(&mut bench), queue(&mut bench));
    receive(&mut bench, other, 4, 100, 8);
    let send =
        bench.forge(Side::B, Opcode::XRC_SEND_ONLY, Psn::new(START)).srq(wanted.number).payload(&[1; 8]);
    let syndrome = bench.arrive(Side::B, &send).1[0].syndrome.unwrap();
    assert_eq!(syndrome & 0xe0, 0x20, "an RNR NAK: {syndrome:#x}");
    receive(&mut bench, wanted, 5, 0, 8);
    assert_eq!(bench.arrive(Side::B, &send).1[0].syndrome, Some(0x1f));
    assert_eq!(completions(&mut bench, wanted.cq)[0].wr_id, 5);
    assert!(completions(&mut bench, other.cq).is_empty());
}

/// Receives and accesses of peers use the protection domain of the queue.
#[test]
fn the_queue_brings_its_protection_domain() {
    for own in [true, false] {
        let mut bench = bench();
        let host = bench.host_mut(Side::B);
        let xrcd = host.xrcd();
        let pd = host.engine.allocate_pd().unwrap();
        let cq = host.engine.create_cq(8).unwrap();
        let (_, number) = host.engine.create_xrc_srq(pd, xrcd, cq, 8, 1).unwrap();
        let memory = Arc::new(WordMemory::new(64));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = host.engine.register(pd, 0x9000, memory, access).unwrap();
        let foreign = host.rkey();
        let (remote_addr, rkey) = if own { (0x9000, region.rkey) } else { (address(0), foreign) };
        post(&mut bench, 1, SendOp::Write { remote_addr, rkey }, 0, 8, number);
        bench.drive();
        let status = if own { WcStatus::Success } else { WcStatus::RemoteAccessError };
        assert_eq!(bench.ended(Side::A), [(1, status)]);
    }
}

/// A READ and its repetition are answered from the domain of the queue that the READ named, regardless of
/// later requests.
#[test]
fn a_repeated_read_keeps_its_protection_domain() {
    let mut bench = bench();
    let queue = queue(&mut bench);
    let host = bench.host_mut(Side::B);
    let xrcd = host.xrcd();
    let pd = host.engine.allocate_pd().unwrap();
    let (_, other) = host.engine.create_xrc_srq(pd, xrcd, queue.cq, 8, 1).unwrap();
    bench.host_mut(Side::B).write_memory(0, &pattern(64));
    let rkey = bench.host(Side::B).rkey();
    let forge = |bench: &Bench, opcode, index, number| {
        bench.forge(Side::B, opcode, Psn::new(START + index)).srq(number)
    };
    let read = forge(&bench, Opcode::XRC_RDMA_READ_REQUEST, 0, queue.number).reth(address(0), rkey, 64);
    assert_eq!(bench.arrive(Side::B, &read).1[0].opcode, Opcode::XRC_RDMA_READ_RESPONSE_ONLY);
    // An empty WRITE for the other queue.
    let write = forge(&bench, Opcode::XRC_RDMA_WRITE_ONLY, 1, other).reth(0, RKey(0), 0);
    bench.arrive(Side::B, &write);
    assert_eq!(bench.arrive(Side::B, &read).1[0].opcode, Opcode::XRC_RDMA_READ_RESPONSE_ONLY);
}

#[test]
fn numbers_that_name_no_queue_of_the_domain_are_refused() {
    for case in 0..4 {
        let mut bench = bench();
        let queue = queue(&mut bench);
        receive(&mut bench, queue, 1, 0, 4 * MTU);
        let host = bench.host_mut(Side::B);
        let other = host.engine.allocate_xrcd().unwrap();
        let (_, foreign_number) = host.engine.create_xrc_srq(host.pd, other, host.cq, 8, 1).unwrap();
        host.engine.create_srq(host.pd, 8, 1).unwrap();
        let first = |bench: &Bench, number| -> Forge {
            bench.forge(Side::B, Opcode::XRC_SEND_FIRST, Psn::new(START)).srq(number).payload(&[1; MTU])
        };
        let answer = match case {
            0 => {
                let free = (1..).find(|number| ![queue.number, foreign_number].contains(number)).unwrap();
                let packet = first(&bench, free);
                bench.arrive(Side::B, &packet).1
            }
            1 => {
                let packet = first(&bench, foreign_number);
                bench.arrive(Side::B, &packet).1
            }
            // The rest of a message names another queue, or its queue is gone.
            _ => {
                let second = self::queue(&mut bench);
                let packet = first(&bench, queue.number);
                bench.arrive(Side::B, &packet);
                let number = if case == 2 { second.number } else { queue.number };
                if case == 3 {
                    let engine = &mut bench.host_mut(Side::B).engine;
                    engine.destroy_srq(queue.srq).unwrap();
                    engine.destroy_cq(queue.cq).unwrap();
                }
                let opcode = Opcode::XRC_SEND_LAST;
                let last = bench.forge(Side::B, opcode, Psn::new(START + 1)).srq(number).payload(&[2; 8]);
                bench.arrive(Side::B, &last).1
            }
        };
        assert_eq!(answer.last().unwrap().syndrome, Some(NAK_INVALID), "{case}");
        assert_eq!(answer.last().unwrap().opcode, Opcode::XRC_ACKNOWLEDGE);
        assert_eq!(bench.state(Side::B), QpState::Err, "{case}");
        let b = bench.b;
        let events = bench.take_events(Side::B);
        if case == 2 {
            let found = completions(&mut bench, queue.cq);
            assert_eq!((found.len(), found[0].status), (1, WcStatus::RemoteInvalidRequestError));
        } else {
            assert!(events.contains(&AsyncEvent::QpRequestError(b)), "{case}: {events:?}");
        }
    }
}

#[test]
fn each_end_has_one_direction() {
    let mut bench = bench();
    let queue = queue(&mut bench);
    let rejected = Verdict::Dropped(DropReason::BadOpcodeForQp);
    let request =
        bench.forge(Side::A, Opcode::XRC_SEND_ONLY, Psn::new(START)).srq(queue.number).payload(&[1; 8]);
    assert_eq!(bench.arrive(Side::A, &request).0, rejected);
    let response = bench.forge(Side::B, Opcode::XRC_ACKNOWLEDGE, Psn::new(START)).aeth(0x1f, 1);
    assert_eq!(bench.arrive(Side::B, &response).0, rejected);
    let usual = bench.forge(Side::B, Opcode::RC_SEND_ONLY, Psn::new(START)).payload(&[1; 8]);
    assert_eq!(bench.arrive(Side::B, &usual).0, rejected);
    let (a, b) = (bench.a, bench.b);
    let send = SendWr::new(1, SendOp::Send, &[]);
    assert_eq!(bench.post_send(Side::B, b, &send), Err(PostError::UnsupportedOperation));
    let flush = SendOp::AtomicWrite { remote_addr: 0, rkey: RKey(0) };
    assert_eq!(
        bench.post_send(Side::A, a, &SendWr::inline(1, flush, &[0; 8])),
        Err(PostError::UnsupportedOperation)
    );
    let recv = RecvWr { wr_id: 1, elements: &[] };
    assert_eq!(bench.host_mut(Side::B).engine.post_recv(b, &recv), Err(PostError::QueueFull { capacity: 0 }));
}

#[test]
fn objects_of_a_domain_hold_each_other() {
    let mut bench = bench();
    let queue = queue(&mut bench);
    let b = bench.b;
    let host = bench.host_mut(Side::B);
    let xrcd = host.xrcd();
    let engine = &mut host.engine;
    assert_eq!(engine.deallocate_xrcd(xrcd), Err(XrcdError::InUse { members: 2 }));
    assert_eq!(engine.destroy_cq(queue.cq), Err(CqError::InUse { users: 1 }));
    let init = QpInit {
        qp_type: QpType::XrcRecv,
        pd: host.pd,
        send_cq: host.cq,
        recv_cq: host.cq,
        srq: None,
        capabilities: settings().capabilities,
        signal_all: false,
    };
    assert_eq!(engine.create_qp(&init), Err(CreateQpError::XrcTarget));
    engine.destroy_srq(queue.srq).unwrap();
    engine.destroy_cq(queue.cq).unwrap();
    assert_eq!(engine.deallocate_xrcd(xrcd), Err(XrcdError::InUse { members: 1 }));
    engine.destroy_qp(b).unwrap();
    engine.deallocate_xrcd(xrcd).unwrap();
    assert_eq!(engine.deallocate_xrcd(xrcd), Err(XrcdError::Unknown));
    assert_eq!(engine.create_xrc_target(xrcd, &Default::default()), Err(CreateQpError::UnknownXrcDomain));
    let refused = engine.create_xrc_srq(host.pd, xrcd, host.cq, 1, 1);
    assert_eq!(refused, Err(SrqError::UnknownXrcDomainOrCq));
}

/// A queue pair that received for a shared queue frees only its own resources.
#[test]
fn a_target_that_was_used_leaves_nothing_behind() {
    let mut bench = bench();
    let queue = queue(&mut bench);
    receive(&mut bench, queue, 1, 0, 8);
    post(&mut bench, 1, SendOp::Send, 0, 8, queue.number);
    bench.drive();
    let b = bench.b;
    let host = bench.host_mut(Side::B);
    let xrcd = host.xrcd();
    host.engine.destroy_qp(b).unwrap();
    host.engine.destroy_srq(queue.srq).unwrap();
    host.engine.destroy_cq(queue.cq).unwrap();
    host.engine.deallocate_xrcd(xrcd).unwrap();
    host.engine.deregister(host.region.lkey).unwrap();
    host.engine.deallocate_pd(host.pd).unwrap();
}

/// Lost packets in either direction are retransmitted, and no message arrives twice or at the wrong queue.
#[test]
fn messages_survive_loss() {
    for seed in 0..20 {
        let mut bench = bench();
        let queues = [queue(&mut bench), queue(&mut bench), queue(&mut bench)];
        bench.host_mut(Side::A).write_memory(0, &pattern(3 * MTU));
        let mut index = 0;
        bench.set_script(move |_| {
            index += 1;
            if unlucky(index, seed, 8) { Action::Drop } else { Action::Pass }
        });
        for (place, queue) in queues.iter().enumerate() {
            for wr_id in 0..10 {
                receive(&mut bench, *queue, wr_id, 10_000 * (place + 1), 3 * MTU);
            }
        }
        for number in 0..30 {
            let len = 1 + number * 25;
            post(&mut bench, number as u64, SendOp::Send, 0, len, queues[number % 3].number);
            if number % 5 == 0 {
                let read = bench.read(0);
                post(&mut bench, 100, read, 500_000, 2 * MTU, queues[(number + 1) % 3].number);
            }
        }
        bench.drive();
        let ended = bench.ended(Side::A);
        assert!(
            ended.len() == 36 && ended.iter().all(|(_, status)| *status == WcStatus::Success),
            "{seed}: {ended:?}"
        );
        for (place, queue) in queues.iter().enumerate() {
            let lengths: Vec<_> =
                completions(&mut bench, queue.cq).iter().map(|wc| wc.byte_len as usize).collect();
            let expected: Vec<_> = (0..10).map(|turn| 1 + (3 * turn + place) * 25).collect();
            assert_eq!(lengths, expected, "seed {seed}, queue {place}");
        }
        assert_eq!(bench.host(Side::B).read_memory(10_000, 3 * MTU)[..676], pattern(3 * MTU)[..676]);
    }
}

#[test]
fn a_revoked_region_refuses_in_the_domain_of_the_queue() {
    let mut bench = bench();
    let queue = queue(&mut bench);
    let rkey = bench.host(Side::B).rkey();
    let engine = &mut bench.host_mut(Side::B).engine;
    engine.deregister(roce_transport::LKey(rkey.0)).unwrap();
    let opcode = Opcode::XRC_RDMA_READ_REQUEST;
    let read = bench.forge(Side::B, opcode, Psn::new(START)).srq(queue.number).reth(address(0), rkey, 8);
    assert_eq!(bench.arrive(Side::B, &read).1[0].syndrome, Some(NAK_ACCESS));
}
