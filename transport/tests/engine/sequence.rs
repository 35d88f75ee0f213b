//! Gaps, duplicates and missing receives: the responder's answers and the PSN at which it continues (section
//! 5.3 of the protocol description).

use crate::common::{Answer, Bench, Forge, MTU, address, pattern, settings};
use roce_packet::{Opcode, Psn};
use roce_sim::pair::{Settings, Side};
use roce_transport::{DropReason, Identification, QpState, QpType, RKey, Received, Verdict, WcStatus};

const START: u32 = 0x1000;
const DROPPED: Verdict = Verdict::Dropped(DropReason::OutOfSequence);
const UNANSWERABLE: Verdict = Verdict::Dropped(DropReason::DuplicateUnanswerable);

fn send_only(bench: &Bench, offset: u32) -> Forge {
    bench.forge(Side::B, Opcode::RC_SEND_ONLY, Psn::new(START + offset)).payload(b"data")
}

fn write_only(bench: &Bench, offset: u32, at: usize, data: &[u8]) -> Forge {
    bench
        .forge(Side::B, Opcode::RC_RDMA_WRITE_ONLY, Psn::new(START + offset))
        .reth(address(at), bench.host(Side::B).rkey(), data.len() as u32)
        .payload(data)
}

fn read_request(bench: &Bench, psn: u32, at: usize, len: usize) -> Forge {
    bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, Psn::new(psn)).reth(
        address(at),
        bench.host(Side::B).rkey(),
        len as u32,
    )
}

/// ```text
/// A 0 -> B   ACK 0
///   2 ->     NAK 0x60, PSN 1: once
///   3 ->     silence
///   2 ->     silence
///   1 ->     ACK 1: the gap is closed
///   3 ->     NAK 0x60, PSN 2: a new gap, a new NAK
/// ```
#[test]
fn one_nak_per_gap() {
    let mut bench = Bench::rc();
    let step = |bench: &mut Bench, offset| {
        let packet = write_only(bench, offset, 0, b"data");
        bench.arrive(Side::B, &packet)
    };
    let handled = |syndrome, psn, msn| (Verdict::Handled, vec![Answer::acknowledge(syndrome, psn, msn)]);
    assert_eq!(step(&mut bench, 0), handled(0x1f, START, 1));
    assert_eq!(step(&mut bench, 2), handled(0x60, START + 1, 1));
    assert_eq!(step(&mut bench, 3), (DROPPED, vec![]));
    assert_eq!(step(&mut bench, 2), (DROPPED, vec![]));
    assert_eq!(step(&mut bench, 1), handled(0x1f, START + 1, 2));
    assert_eq!(step(&mut bench, 3), handled(0x60, START + 2, 2));
    assert_eq!(bench.counter(Side::B, "out_of_sequence"), 4);
    assert_eq!(bench.state(Side::B), QpState::Rts);
}

/// PSNs in the next half of the circle are a gap; PSNs in the previous half are duplicates.
#[test]
fn psn_circle_is_cut_in_the_middle() {
    for (distance, syndrome) in [(1, 0x60), ((1 << 23) - 1, 0x60), (1 << 23, 0x1f), ((1 << 24) - 1, 0x1f)] {
        for start in [START, 0xff_ffff, 0x80_0000] {
            let mut bench = Bench::new(QpType::Rc, &Settings { psns: [start, 0], ..settings() });
            let psn = Psn::new(start).add(distance);
            let mut packet = write_only(&bench, 0, 0, b"data");
            packet.bth.psn = psn;
            let (verdict, answers) = bench.arrive(Side::B, &packet);
            let expected_psn = if syndrome == 0x60 { Psn::new(start) } else { Psn::new(start).sub(1) };
            assert_eq!(verdict, Verdict::Handled);
            assert_eq!(answers, [Answer::acknowledge(syndrome, expected_psn.get(), 0)], "{distance:#x}");
            assert_eq!(bench.host(Side::B).read_memory(0, 4), [0; 4], "neither is executed");
        }
    }
}

#[test]
fn duplicate_send_and_write_are_acknowledged_and_not_executed() {
    let mut bench = Bench::rc();
    bench.receive(1, 512, 64);
    bench.receive(2, 600, 64);
    let packets = [write_only(&bench, 0, 0, b"once"), send_only(&bench, 1)];
    for packet in &packets {
        bench.arrive(Side::B, packet);
    }
    bench.host_mut(Side::B).write_memory(0, b"mine");
    bench.host_mut(Side::B).write_memory(512, b"mine");
    for packet in &packets {
        let expected = (Verdict::Handled, vec![Answer::acknowledge(0x1f, START + 1, 2)]);
        assert_eq!(bench.arrive(Side::B, packet), expected);
        assert_eq!(bench.arrive(Side::B, &packet.clone().silent()), (Verdict::Handled, vec![]));
    }
    assert_eq!(bench.host(Side::B).read_memory(0, 4), b"mine");
    assert_eq!(bench.host(Side::B).read_memory(512, 4), b"mine");
    assert_eq!(bench.ended(Side::B), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::B, "duplicate_request"), 4);
}

/// Soft-RoCE forgets to wait for the end of a message if the acknowledgement of that end arrives while it
/// sends the message again. If the rest is lost as well, the message never completes (`ibv_rc_pingpong`
/// hung). Soft-RoCE requests an acknowledgement at the end, and must get it there.
#[test]
fn a_message_that_is_sent_again_is_acknowledged_at_its_end() {
    let mut bench = Bench::rc();
    let at = |offset, opcode| bench.forge(Side::B, opcode, Psn::new(START + offset));
    let rkey = bench.host(Side::B).rkey();
    let reth = |forge: Forge| forge.reth(address(0), rkey, 2 * MTU as u32 + 4);
    let message = [
        reth(at(0, Opcode::RC_RDMA_WRITE_FIRST)).payload(&[1; MTU]).silent(),
        at(1, Opcode::RC_RDMA_WRITE_MIDDLE).payload(&[2; MTU]).silent(),
        at(2, Opcode::RC_RDMA_WRITE_LAST).payload(&[3; 4]),
    ];
    for _ in 0..3 {
        let answers = message.each_ref().map(|packet| bench.arrive(Side::B, packet).1);
        assert_eq!(answers, [vec![], vec![], vec![Answer::acknowledge(0x1f, START + 2, 1)]]);
    }
}

/// Soft-RoCE completes a READ on an acknowledgement with its PSN even if the response was lost: rping got the
/// bytes of the previous ping.
#[test]
fn an_acknowledgement_never_carries_the_psn_of_a_read_or_an_atomic() {
    let mut bench = Bench::rc();
    bench.receive(1, 512, 64);
    let send = send_only(&bench, 0);
    bench.arrive(Side::B, &send);
    bench.arrive(Side::B, &read_request(&bench, START + 1, 0, 2 * MTU));
    let rkey = bench.host(Side::B).rkey();
    let atomic =
        bench.forge(Side::B, Opcode::RC_FETCH_ADD, Psn::new(START + 3)).atomic(address(0), rkey, 1, 0);
    assert_eq!(bench.arrive(Side::B, &atomic).1.len(), 1);
    let expected = (Verdict::Handled, vec![Answer::acknowledge(0x1f, START, 1)]);
    assert_eq!(bench.arrive(Side::B, &send), expected, "neither the READ nor the atomic is acknowledged");
    bench.arrive(Side::B, &write_only(&bench, 4, 0, b"more"));
    let expected = (Verdict::Handled, vec![Answer::acknowledge(0x1f, START + 4, 4)]);
    assert_eq!(bench.arrive(Side::B, &send), expected, "what comes after them is");
}

/// The record of a READ stays until another READ or atomic replaces it, no matter how many packets arrive.
#[test]
fn a_read_that_is_a_whole_circle_ago_keeps_no_acknowledgement_back() {
    let mut bench = Bench::rc();
    bench.arrive(Side::B, &read_request(&bench, START, 0, 4));
    let mut packet = write_only(&bench, 0, 0, b"").silent();
    for _ in 1..1 << 24 {
        packet.bth.psn = packet.bth.psn.next();
        bench.arrive(Side::B, &packet);
    }
    assert_eq!(bench.expected(Side::B).get(), START);
    let expected = (Verdict::Handled, vec![Answer::acknowledge(0x1f, START, 1)]);
    assert_eq!(bench.arrive(Side::B, &write_only(&bench, 0, 0, b"here")), expected);
}

#[test]
fn duplicate_read_is_answered_inside_its_range_only() {
    let len = 5 * MTU + 10;
    let mut bench = Bench::rc();
    bench.host_mut(Side::B).write_memory(0, &pattern(2 * len));
    let first = read_request(&bench, START, MTU, len);
    assert_eq!(bench.arrive(Side::B, &first).1.len(), 6);
    let opcodes = |bench: &mut Bench, packet: &Forge| {
        let (verdict, answers) = bench.arrive(Side::B, packet);
        (verdict, answers.iter().map(|answer| (answer.opcode.0, answer.psn - START)).collect::<Vec<_>>())
    };
    let handled = |list: &[(u8, u32)]| (Verdict::Handled, list.to_vec());
    let whole = [(0x0d, 0), (0x0e, 1), (0x0e, 2), (0x0e, 3), (0x0e, 4), (0x0f, 5)];
    assert_eq!(opcodes(&mut bench, &first), handled(&whole));
    let from = |bench: &Bench, index: usize, len: usize| {
        read_request(bench, START + index as u32, MTU + index * MTU, len)
    };
    let again = [
        (from(&bench, 3, len - 3 * MTU), vec![(0x0d, 3), (0x0e, 4), (0x0f, 5)]),
        (from(&bench, 5, 10), vec![(0x10, 5)]),
        (from(&bench, 1, MTU), vec![(0x10, 1)]),
        (from(&bench, 0, MTU + 1), vec![(0x0d, 0), (0x0f, 1)]),
    ];
    for (packet, expected) in &again {
        assert_eq!(opcodes(&mut bench, packet), handled(expected));
    }
    let rkey = bench.host(Side::B).rkey();
    let at = |psn: u32| bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, Psn::new(psn));
    let refused = [
        from(&bench, 0, len + 1),
        from(&bench, 3, len - 3 * MTU + 1),
        from(&bench, 5, 11),
        read_request(&bench, START, MTU - 1, 8),
        read_request(&bench, START, MTU + 1, 8),
        read_request(&bench, START + 1, MTU, 8),
        read_request(&bench, START - 1, 0, 8),
        at(START).reth(address(MTU), RKey(rkey.0 ^ 1), 8),
        at(START).reth(u64::MAX - 7, rkey, 8),
        bench.forge(Side::B, Opcode::RC_FETCH_ADD, Psn::new(START)).atomic(address(0), rkey, 1, 0),
    ];
    for packet in &refused {
        assert_eq!(bench.arrive(Side::B, packet), (UNANSWERABLE, vec![]), "{packet:?}");
    }
    assert_eq!(bench.state(Side::B), QpState::Rts);
    assert_eq!(bench.expected(Side::B).get(), START + 6);
}

#[test]
fn duplicate_atomics_replay_their_result() {
    let mut bench = Bench::rc();
    let rkey = bench.host(Side::B).rkey();
    bench.host_mut(Side::B).write_memory(0, &40_u64.to_ne_bytes());
    let at = |offset: u32, opcode| bench.forge(Side::B, opcode, Psn::new(START + offset));
    let packets = [
        at(0, Opcode::RC_FETCH_ADD).atomic(address(0), rkey, 2, 0),
        at(1, Opcode::RC_COMPARE_SWAP).atomic(address(0), rkey, 7, 42),
        at(2, Opcode::RC_ATOMIC_WRITE).reth(address(8), rkey, 8).payload(&[3; 8]),
        at(3, Opcode::RC_FLUSH).feth().reth(address(0), rkey, 16),
    ];
    let expected = [(0x12, 1), (0x12, 2), (0x10, 3), (0x10, 4)];
    let mut originals = Vec::new();
    for round in 0..3 {
        for (index, (packet, (opcode, msn))) in packets.iter().zip(expected).enumerate() {
            let answer = Answer {
                opcode: Opcode(opcode),
                psn: START + index as u32,
                syndrome: Some(0x1f),
                msn: Some(msn),
            };
            assert_eq!(bench.arrive(Side::B, packet), (Verdict::Handled, vec![answer]), "round {round}");
            let last = bench.sent.last().unwrap().bytes.clone();
            let datagram = roce_packet::Datagram::parse(&last, &[]).unwrap();
            if let Some(ack) = datagram.atomic_ack_eth() {
                originals.push(ack.original);
            }
        }
        if round == 0 {
            // A replay must not undo what the owner writes afterwards.
            bench.host_mut(Side::B).write_memory(8, &[5; 8]);
        }
    }
    assert_eq!(originals, [40, 42, 40, 42, 40, 42]);
    assert_eq!(bench.host(Side::B).read_memory(0, 8), 7_u64.to_ne_bytes());
    assert_eq!(bench.host(Side::B).read_memory(8, 8), [5; 8]);
    let unknown =
        bench.forge(Side::B, Opcode::RC_FETCH_ADD, Psn::new(START - 1)).atomic(address(0), rkey, 1, 0);
    assert_eq!(bench.arrive(Side::B, &unknown), (UNANSWERABLE, vec![]));
}

#[test]
fn resources_are_recycled_oldest_first() {
    let mut bench = Bench::new(QpType::Rc, &Settings { rd_atomic: 4, ..settings() });
    for index in 0..6 {
        let packet = read_request(&bench, START + index, 0, 8);
        assert_eq!(bench.arrive(Side::B, &packet).1.len(), 1);
    }
    for index in 0..6 {
        let packet = read_request(&bench, START + index, 0, 8);
        let expected = if index < 2 { UNANSWERABLE } else { Verdict::Handled };
        assert_eq!(bench.arrive(Side::B, &packet).0, expected, "READ {index}");
    }
}

/// ```text
/// A  SEND 0 -> B   no receive: RNR NAK 0
///    SEND 1 ->     silence, as in a gap
///                  receives are posted
///    SEND 1 ->     silence: 0 is still expected
///    SEND 0 ->     ACK
/// ```
#[test]
fn rnr_nak_asks_for_the_offending_packet() {
    let mut bench = Bench::rc();
    let packets = [send_only(&bench, 0), send_only(&bench, 1)];
    let rnr = Answer::acknowledge(0x20 | settings().min_rnr_timer, START, 0);
    assert_eq!(bench.arrive(Side::B, &packets[0]), (Verdict::Handled, vec![rnr]));
    assert_eq!(bench.arrive(Side::B, &packets[1]), (DROPPED, vec![]));
    bench.receive(1, 0, 64);
    bench.receive(2, 64, 64);
    assert_eq!(bench.arrive(Side::B, &packets[1]), (DROPPED, vec![]));
    let ack = |index: u32| (Verdict::Handled, vec![Answer::acknowledge(0x1f, START + index, index + 1)]);
    assert_eq!(bench.arrive(Side::B, &packets[0]), ack(0));
    assert_eq!(bench.arrive(Side::B, &packets[1]), ack(1));
    assert_eq!(bench.counter(Side::B, "out_of_buffer"), 1);
}

/// Only the packet of a WRITE that carries the immediate data gets an RNR NAK.
#[test]
fn rnr_nak_for_immediate_data() {
    let mut bench = Bench::rc();
    let rkey = bench.host(Side::B).rkey();
    let at = |offset: u32, opcode| bench.forge(Side::B, opcode, Psn::new(START + offset));
    let only =
        at(0, Opcode::RC_RDMA_WRITE_ONLY_WITH_IMM).reth(address(0), rkey, 4).imm([9; 4]).payload(b"only");
    let first = at(1, Opcode::RC_RDMA_WRITE_FIRST).reth(address(MTU), rkey, 260).payload(&[1; 256]);
    let last = at(2, Opcode::RC_RDMA_WRITE_LAST_WITH_IMM).imm([9; 4]).payload(b"last");
    let rnr = |psn, msn| (Verdict::Handled, vec![Answer::acknowledge(0x20 | 12, psn, msn)]);
    assert_eq!(bench.arrive(Side::B, &only), rnr(START, 0));
    assert_eq!(bench.host(Side::B).read_memory(0, 4), [0; 4], "not executed");
    bench.receive(1, 4096, 0);
    assert_eq!(bench.arrive(Side::B, &only).1, [Answer::acknowledge(0x1f, START, 1)]);
    assert_eq!(bench.arrive(Side::B, &first).1, [Answer::acknowledge(0x1f, START + 1, 1)]);
    assert_eq!(bench.arrive(Side::B, &last), rnr(START + 2, 1));
    assert_eq!(bench.host(Side::B).read_memory(2 * MTU, 4), [0; 4], "not executed");
    bench.receive(2, 4096, 0);
    assert_eq!(bench.arrive(Side::B, &last).1, [Answer::acknowledge(0x1f, START + 2, 2)]);
    assert_eq!(bench.host(Side::B).read_memory(2 * MTU, 4), b"last");
    let received = bench.completions(Side::B);
    assert_eq!(received.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(), [(1, 4), (2, 260)]);
}

/// Delivers a WRITE of four bytes to an unused address, through a socket that hides the Identification.
fn arrive_unseen(bench: &mut Bench, offset: u32, identification: u16, hint: u16) -> Verdict {
    let packet = write_only(bench, offset, 0, b"data");
    let bytes = packet.build_with(identification);
    let unknown = Identification::Unknown { hint };
    bench.deliver(Side::B, &Received::whole(packet.path, unknown, &bytes))
}

/// Regression: a superpacket that the network split arrived one datagram at a time, through a socket that
/// hides the Identification. After four exact datagrams, all but its first datagram were dropped as damaged.
#[test]
fn datagrams_of_a_split_superpacket_are_no_damage_to_who_cannot_see_their_identification() {
    let mut bench = Bench::rc();
    // Single datagrams, then the whole of the longest superpacket, then an Identification that no superpacket
    // of this implementation reaches.
    for offset in 0..5 {
        assert_eq!(arrive_unseen(&mut bench, offset, 0, 0), Verdict::Handled);
    }
    for index in 0..64 {
        assert_eq!(arrive_unseen(&mut bench, 5 + u32::from(index), index, 0), Verdict::Handled, "{index}");
    }
    assert_eq!(arrive_unseen(&mut bench, 69, 0x1234, 0), Verdict::Dropped(DropReason::BadIcrc));
}

/// Regression: a Soft-RoCE peer whose counter had just passed zero was taken for this implementation, and all
/// its packets were dropped.
#[test]
fn a_peer_whose_identification_counts_past_zero_is_not_taken_for_one_of_ours() {
    for joined in [1, 2, 16] {
        let mut bench = Bench::rc();
        for offset in 0..400_u32 {
            let identification = (offset as u16).wrapping_sub(64);
            // Datagrams that the kernel joined have hints, which may equal the true values by accident.
            let hint = offset as u16 % joined;
            let verdict = arrive_unseen(&mut bench, offset, identification, hint);
            assert_eq!(verdict, Verdict::Handled, "{identification:#x}, {joined} joined");
        }
    }
}

/// Delivers a packet that anyone can forge who knows the addresses and the queue pair number.
fn forge_unseen(bench: &mut Bench, forged: &Forge) -> Verdict {
    let bytes = forged.build_with(0);
    let identification = Identification::Unknown { hint: 0 };
    bench.deliver(Side::B, &Received::whole(forged.path, identification, &bytes))
}

/// Regression: after four forged congestion notifications with Identification zero, the engine dropped all
/// packets of a peer that counts its Identifications as damaged.
#[test]
fn forged_packets_do_not_decide_which_identification_the_peer_sends() {
    for before in [0, 3] {
        let mut bench = Bench::rc();
        for offset in 0..before {
            assert_eq!(arrive_unseen(&mut bench, offset, 5_000 + offset as u16, 0), Verdict::Handled);
        }
        for _ in 0..8 {
            let notification = bench.forge(Side::B, Opcode::CNP, Psn::new(0)).payload(&[0; 16]);
            assert_eq!(forge_unseen(&mut bench, &notification), Verdict::Handled);
            // A duplicate, and a packet behind a gap.
            for offset in [1 << 23, 1 << 22] {
                let forged = write_only(&bench, offset, 0, b"data");
                forge_unseen(&mut bench, &forged);
            }
        }
        assert_eq!(bench.host(Side::B).engine.has_heard_peer(bench.b), before > 0);
        for offset in before..before + 4 {
            assert_eq!(arrive_unseen(&mut bench, offset, 6_000 + offset as u16, 0), Verdict::Handled);
        }
        assert!(bench.host(Side::B).engine.has_heard_peer(bench.b));
    }
}

/// If a peer has been seen to count its Identifications, zeros do not change that.
#[test]
fn a_peer_that_counts_is_never_taken_for_one_that_sends_zero() {
    let mut bench = Bench::rc();
    for (offset, identification) in [7_000, 0, 0, 0, 0, 0, 7_006].into_iter().enumerate() {
        assert_eq!(arrive_unseen(&mut bench, offset as u32, identification, 0), Verdict::Handled);
    }
}
