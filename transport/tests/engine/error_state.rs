//! The packets that a queue pair still sends in ERR: pending responses and the NAK, in the order of their
//! PSNs. It sends none after its owner has moved it to ERR.

use crate::common::{Bench, MTU, address, settings};
use roce_packet::{Opcode, Psn};
use roce_sim::pair::Side;
use roce_transport::{
    Allowed, EngineConfig, QpAttr, QpState, QpType, RKey, SendOp, SendWr, TxSlot, Verdict, WcStatus,
};

const START: u32 = 0x1000;
const PACKETS: usize = 1024;

fn bench() -> Bench {
    let mut config = EngineConfig::from_number(7);
    // One READ request for all packets, and room for the request behind it.
    config.max_read_packets = 0;
    config.max_outstanding_packets = 1 << 14;
    Bench::with_config(QpType::Rc, &settings(), config)
}

/// A requester completes every request before a NAK, so the earlier responses are sent first. The READ
/// succeeds, and the request behind it ends with the reason of its refusal instead of exhausted retries.
#[test]
fn responses_precede_the_nak_and_the_requester_learns_the_reason() {
    let mut bench = bench();
    let (read, a) = (bench.read(0), bench.a);
    bench.post(1, read, 0, PACKETS * MTU);
    let element = bench.host(Side::A).memory_range(0, 8);
    let write = SendOp::Write { remote_addr: address(0), rkey: RKey(0x1234_5678) };
    bench.post_send(Side::A, a, &SendWr::new(2, write, &[element])).unwrap();
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success), (2, WcStatus::RemoteAccessError)]);
    assert_eq!(bench.state(Side::B), QpState::Err);
    let answers = bench.answers_since(0, Side::B);
    assert_eq!(answers.len(), PACKETS + 1);
    let psns: Vec<u32> = answers.iter().map(|answer| answer.psn).collect();
    let expected: Vec<u32> = (START..=START + PACKETS as u32).collect();
    assert_eq!(psns, expected, "in the order of the PSNs");
    assert_eq!(answers[PACKETS].syndrome, Some(0x62));
}

/// A queue pair that its owner moved to ERR sends nothing (IBTA 10.3.1).
#[test]
fn an_owner_that_moves_the_queue_pair_to_err_ends_its_responses() {
    for refused in [false, true] {
        let mut bench = bench();
        bench.blocked[Side::B as usize] = true;
        let rkey = bench.host(Side::B).rkey();
        let len = (PACKETS * MTU) as u32;
        let read =
            bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, Psn::new(START)).reth(address(0), rkey, len);
        assert_eq!(bench.arrive(Side::B, &read).0, Verdict::Handled);
        if refused {
            let psn = Psn::new(START + PACKETS as u32);
            let write = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_ONLY, psn);
            let write = write.reth(address(0), RKey(0x1234_5678), 8).payload(&[1; 8]);
            assert_eq!(bench.arrive(Side::B, &write).0, Verdict::Handled);
            assert_eq!(bench.state(Side::B), QpState::Err, "the refusal moved it");
        }
        // A part of the response has left.
        let (now, b) = (bench.now, bench.b);
        let mut buffer = [0; 2048];
        for _ in 0..10 {
            let engine = &mut bench.host_mut(Side::B).engine;
            assert!(engine.poll_transmit(now, &mut TxSlot::new(&mut buffer), Allowed::All).is_some());
        }
        bench.host_mut(Side::B).engine.modify_qp(now, b, &QpAttr::to_state(QpState::Err)).unwrap();
        bench.blocked[Side::B as usize] = false;
        let before = bench.sent.len();
        bench.collect(Side::B);
        assert_eq!(bench.answers_since(before, Side::B), [], "refused: {refused}");
    }
}
