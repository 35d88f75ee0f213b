//! UC and UD, row by row of sections 6.1 and 6.2 of the protocol description.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::common::{Bench, Ended, Forge, MTU, address, pattern, settings};
use roce_packet::{Encapsulation, Opcode, PathMtu, Psn, Qpn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{
    Access, Allowed, DestroyError, DropReason, EngineConfig, GRH_AREA, Identification, LKey, QpState, QpType,
    RKey, Received, RecvWr, SendOp, SendWr, Sge, TxSlot, UdDestination, Verdict, WcFlags, WcStatus,
};

const START: u32 = 0x1000;
const QKEY: u32 = 0x1111_1111;

fn uc() -> Bench {
    Bench::new(QpType::Uc, &settings())
}

fn uc_packet(bench: &Bench, opcode: Opcode, offset: u32, payload: &[u8]) -> Forge {
    bench.forge(Side::B, opcode, Psn::new(START).add(offset)).payload(payload)
}

#[track_caller]
fn arrive(bench: &mut Bench, packet: &Forge) -> Verdict {
    let (verdict, answers) = bench.arrive(Side::B, packet);
    assert_eq!(answers, [], "an unreliable transport never answers");
    verdict
}

const INCOMPLETE: Verdict = Verdict::Dropped(DropReason::IncompleteMessage);

fn dropped(reason: DropReason) -> Verdict {
    Verdict::Dropped(reason)
}

/// Row "any PSN mismatch": a gap in a message loses that message, and the next message takes its receive.
///
/// ```text
/// A  First 0 -> B    takes receive 1
///    Last  2 ->      gap: abandoned
///    Last  3 ->      still skipping
///    Only  4 ->      into receive 1
///    Only  9 ->      another gap, but an Only: accepted into receive 2
///    Only 10 ->      in order again, into receive 3
/// ```
#[test]
fn uc_gap_abandons_the_message_and_reuses_its_receive() {
    let mut bench = uc();
    for wr_id in 1..=3 {
        bench.receive(wr_id, 1024 * wr_id as usize, 1024);
    }
    let packet = |bench: &Bench, opcode, offset| {
        let payload: &[u8] = if opcode == Opcode::UC_SEND_FIRST { &[1; MTU] } else { &[2; 8] };
        uc_packet(bench, opcode, offset, payload)
    };
    let rows = [
        (Opcode::UC_SEND_FIRST, 0, Verdict::Handled),
        (Opcode::UC_SEND_LAST, 2, INCOMPLETE),
        (Opcode::UC_SEND_LAST, 3, INCOMPLETE),
        (Opcode::UC_SEND_ONLY, 4, Verdict::Handled),
        (Opcode::UC_SEND_ONLY, 9, Verdict::Handled),
        (Opcode::UC_SEND_ONLY, 10, Verdict::Handled),
    ];
    for (opcode, offset, expected) in rows {
        let packet = packet(&bench, opcode, offset);
        assert_eq!(arrive(&mut bench, &packet), expected, "{opcode} {offset}");
        assert_eq!(bench.expected(Side::B).get(), START + offset + 1, "resynchronised");
    }
    let success = WcStatus::Success;
    assert_eq!(bench.ended(Side::B), [(1, success), (2, success), (3, success)]);
    assert_eq!(bench.counter(Side::B, "out_of_sequence"), 2);
    assert_eq!(bench.counter(Side::B, "drop_incomplete_message"), 2);
}

/// Row "opcode violation": it loses the message as a gap does, for all families of packets.
#[test]
fn uc_opcode_violations_abandon_the_message() {
    let rkey = uc().host(Side::B).rkey();
    let send = [Opcode::UC_SEND_MIDDLE, Opcode::UC_SEND_LAST];
    let write = [Opcode::UC_RDMA_WRITE_MIDDLE, Opcode::UC_RDMA_WRITE_LAST];
    for (first, wrong) in [(Opcode::UC_SEND_FIRST, write), (Opcode::UC_RDMA_WRITE_FIRST, send)] {
        for second in wrong {
            let mut bench = uc();
            bench.receive(1, 8192, 1024);
            let mut packet = uc_packet(&bench, first, 0, &[1; MTU]);
            if first == Opcode::UC_RDMA_WRITE_FIRST {
                packet = packet.reth(address(0), rkey, 600);
            }
            assert_eq!(arrive(&mut bench, &packet), Verdict::Handled);
            let packet = uc_packet(&bench, second, 1, &[2; MTU]);
            assert_eq!(arrive(&mut bench, &packet), INCOMPLETE, "{first} then {second}");
            let packet = uc_packet(&bench, Opcode::UC_SEND_ONLY, 2, &[3; 8]);
            assert_eq!(arrive(&mut bench, &packet), Verdict::Handled);
            assert_eq!(bench.ended(Side::B), [(1, WcStatus::Success)]);
            assert_eq!(bench.host(Side::B).read_memory(MTU, 600), [0; 600], "nothing of the second packet");
        }
    }
    // A new First ends the previous message; its receive is used for the new message.
    let mut bench = uc();
    bench.receive(1, 8192, 1024);
    for (opcode, offset, payload) in [
        (Opcode::UC_SEND_FIRST, 0, &[1; MTU][..]),
        (Opcode::UC_SEND_FIRST, 1, &[2; MTU]),
        (Opcode::UC_SEND_LAST, 2, &[3; 4]),
    ] {
        let packet = uc_packet(&bench, opcode, offset, payload);
        assert_eq!(arrive(&mut bench, &packet), Verdict::Handled);
    }
    let received = bench.completions(Side::B);
    assert_eq!((received.len(), received[0].byte_len), (1, 260));
    assert_eq!(bench.host(Side::B).read_memory(8192, 260), [[2; MTU].as_slice(), &[3; 4]].concat());
}

/// Rows "no receive WQE", "R_Key error", "length error": the packet is dropped and the queue pair continues.
#[test]
fn uc_drops_silently_and_stays_usable() {
    let bench = uc();
    let rkey = bench.host(Side::B).rkey();
    let make = |opcode, payload: &[u8]| uc_packet(&bench, opcode, 0, payload);
    let write =
        |va, key, len: u32, payload: &[u8]| make(Opcode::UC_RDMA_WRITE_ONLY, payload).reth(va, key, len);
    let bad = RKey(rkey.0 ^ 0x0100_0000);
    let with_imm = make(Opcode::UC_RDMA_WRITE_ONLY_WITH_IMM, &[1; 8]).reth(address(0), rkey, 8).imm([0; 4]);
    let first =
        |len: u32, payload: &[u8]| make(Opcode::UC_RDMA_WRITE_FIRST, payload).reth(address(0), rkey, len);
    let rows = [
        ("SEND without a receive", 0, make(Opcode::UC_SEND_ONLY, &[1; 8]), DropReason::NoReceive),
        ("immediate data without a receive", 0, with_imm, DropReason::NoReceive),
        ("unknown key", 1, write(address(0), bad, 8, &[1; 8]), DropReason::Access),
        ("outside", 1, write(address(1 << 21), rkey, 8, &[1; 8]), DropReason::Access),
        ("around the end", 1, write(u64::MAX - 3, rkey, 8, &[1; 8]), DropReason::Access),
        ("SEND First below the MTU", 1, make(Opcode::UC_SEND_FIRST, &[1; 8]), DropReason::BadLength),
        ("SEND Only above the MTU", 1, make(Opcode::UC_SEND_ONLY, &[1; 257]), DropReason::BadLength),
        ("longer than the receive", 1, make(Opcode::UC_SEND_ONLY, &[1; 65]), DropReason::ReceiveTooSmall),
        ("shorter than announced", 1, write(address(0), rkey, 9, &[1; 8]), DropReason::BadLength),
        ("longer than announced", 1, write(address(0), rkey, 7, &[1; 8]), DropReason::BadLength),
        ("First that is all", 1, first(256, &[1; MTU]), DropReason::BadLength),
        ("beyond 2^31", 1, first(1 << 31 | 1, &[1; MTU]), DropReason::BadLength),
    ];
    for (what, receives, packet, reason) in rows {
        let mut bench = uc();
        for wr_id in 0..receives {
            bench.receive(wr_id, 8192, 64);
        }
        assert_eq!(arrive(&mut bench, &packet), dropped(reason), "{what}");
        assert_eq!(bench.counter(Side::B, reason.counter()), 1, "{what}");
        assert_eq!(bench.host(Side::B).read_memory(0, 16384), [0; 16384], "{what}");
        assert_eq!(bench.state(Side::B), QpState::Rts, "{what}");
        assert_eq!(bench.ended(Side::B), [], "{what}");
        assert_eq!(bench.take_events(Side::B), [], "{what}");
        // The next message arrives in the receive that was posted.
        if receives == 0 {
            bench.receive(0, 8192, 64);
        }
        let good = uc_packet(&bench, Opcode::UC_SEND_ONLY, 1, b"good");
        assert_eq!(arrive(&mut bench, &good), Verdict::Handled, "{what}");
        assert_eq!(bench.ended(Side::B), [(0, WcStatus::Success)], "{what}");
    }
}

/// RC answers an empty First, Middle or Last with a NAK, but UC is silent. The message is lost; the receive
/// is not.
#[test]
fn uc_drops_first_middle_and_last_without_payload() {
    let rkey = uc().host(Side::B).rkey();
    let rows = [
        (None, Opcode::UC_SEND_FIRST),
        (Some(Opcode::UC_SEND_FIRST), Opcode::UC_SEND_MIDDLE),
        (Some(Opcode::UC_SEND_FIRST), Opcode::UC_SEND_LAST),
        (Some(Opcode::UC_SEND_FIRST), Opcode::UC_SEND_LAST_WITH_IMM),
        (None, Opcode::UC_RDMA_WRITE_FIRST),
        (Some(Opcode::UC_RDMA_WRITE_FIRST), Opcode::UC_RDMA_WRITE_MIDDLE),
        (Some(Opcode::UC_RDMA_WRITE_FIRST), Opcode::UC_RDMA_WRITE_LAST),
        (Some(Opcode::UC_RDMA_WRITE_FIRST), Opcode::UC_RDMA_WRITE_LAST_WITH_IMM),
    ];
    for (first, empty) in rows {
        let mut bench = uc();
        bench.receive(1, 8192, 1024);
        let mut offset = 0;
        for (opcode, payload) in
            first.map(|opcode| (opcode, &[1; MTU][..])).into_iter().chain([(empty, &[][..])])
        {
            let mut packet = uc_packet(&bench, opcode, offset, payload);
            if opcode == Opcode::UC_RDMA_WRITE_FIRST {
                packet = packet.reth(address(0), rkey, 600);
            }
            if opcode.info().unwrap().has_immediate() {
                packet = packet.imm([0; 4]);
            }
            let expected = if opcode == empty { dropped(DropReason::BadLength) } else { Verdict::Handled };
            assert_eq!(arrive(&mut bench, &packet), expected, "{empty}");
            offset += 1;
        }
        assert_eq!(bench.counter(Side::B, "drop_bad_length"), 1, "{empty}");
        assert_eq!(bench.state(Side::B), QpState::Rts, "{empty}");
        assert_eq!(bench.ended(Side::B), [], "{empty}");
        let good = uc_packet(&bench, Opcode::UC_SEND_ONLY, offset, b"good");
        assert_eq!(arrive(&mut bench, &good), Verdict::Handled, "{empty}");
        assert_eq!(bench.ended(Side::B), [(1, WcStatus::Success)], "{empty}");
    }
}

#[test]
fn uc_write_needs_the_right_of_the_queue_pair() {
    let access = Access::REMOTE_READ;
    let mut bench = Bench::new(QpType::Uc, &Settings { access, ..settings() });
    let rkey = bench.host(Side::B).rkey();
    let packet = uc_packet(&bench, Opcode::UC_RDMA_WRITE_ONLY, 0, &[1; 8]).reth(address(0), rkey, 8);
    assert_eq!(arrive(&mut bench, &packet), dropped(DropReason::Access));
    assert_eq!(bench.host(Side::B).read_memory(0, 8), [0; 8]);
}

/// A receive with a wrong key of its own is an error of the application. It completes with an error and takes
/// the queue pair to ERR; it must not be retried.
#[test]
fn a_bad_receive_fails_the_queue_pair() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut bench = Bench::new(qp_type, &settings());
        let good = bench.host(Side::B).memory_range(0, 64);
        let bad = Sge { lkey: LKey(0x0bad_0000), ..good };
        let b = bench.b;
        for (wr_id, element) in [(1, bad), (2, good)] {
            let wr = RecvWr { wr_id, elements: &[element] };
            bench.host_mut(Side::B).engine.post_recv(b, &wr).unwrap();
        }
        let packet = match qp_type {
            QpType::Uc => uc_packet(&bench, Opcode::UC_SEND_ONLY, 0, &[1; 8]),
            _ => ud_packet(&bench, &[1; 8]),
        };
        assert_eq!(arrive(&mut bench, &packet), Verdict::Handled, "{qp_type:?}");
        let expected = [(1, WcStatus::LocalProtectionError), (2, WcStatus::WrFlushError)];
        assert_eq!(bench.ended(Side::B), expected, "{qp_type:?}");
        assert_eq!(bench.state(Side::B), QpState::Err, "{qp_type:?}");
    }
}

/// A requester completes a work request as soon as its last packet was handed to the wire.
#[test]
fn uc_completes_when_the_last_packet_left() {
    let mut bench = uc();
    bench.set_script(|_| Action::Drop);
    bench.post(1, SendOp::Send, 0, 3 * MTU);
    let write = bench.write(0);
    bench.post(2, write, 0, 0);
    bench.collect(Side::A);
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bench.host(Side::A).engine.poll_timeout(), None, "nothing is waited for");
    let opcodes: Vec<u8> = bench.trace(Side::A).iter().map(|(opcode, _)| opcode.0).collect();
    assert_eq!(opcodes, [0x20, 0x21, 0x22, 0x2a]);
}

/// Shared receive queues serve UC and UD as they serve RC.
#[test]
fn uc_and_ud_take_from_a_shared_receive_queue() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut bench = Bench::empty();
        let srq = bench.connect_srq(qp_type, &settings());
        for wr_id in 1..=2 {
            let element = bench.host(Side::B).memory_range(0, 64);
            let wr = RecvWr { wr_id, elements: &[element] };
            bench.host_mut(Side::B).engine.post_srq_recv(srq, &wr).unwrap();
        }
        let (small, large) = match qp_type {
            QpType::Uc => {
                let make = |offset, len| uc_packet(&bench, Opcode::UC_SEND_ONLY, offset, &vec![1; len]);
                (make(1, 8), make(0, 65))
            }
            _ => (ud_packet(&bench, &[1; 8]), ud_packet(&bench, &[1; 25])),
        };
        // With a shared queue, rxe completes this receive with an error; without one, it drops the packet. We
        // drop the packet in both cases: a peer must not use up receives that others share.
        assert_eq!(arrive(&mut bench, &large), dropped(DropReason::ReceiveTooSmall));
        assert_eq!(arrive(&mut bench, &small), Verdict::Handled);
        assert_eq!(bench.ended(Side::B), [(1, WcStatus::Success)], "{qp_type:?}");
        assert_eq!(bench.host(Side::B).engine.query_srq(srq).unwrap().posted, 1);
    }
}

fn ud() -> Bench {
    Bench::new(QpType::Ud, &settings())
}

fn ud_packet(bench: &Bench, payload: &[u8]) -> Forge {
    let source = bench.a;
    bench.forge(Side::B, Opcode::UD_SEND_ONLY, Psn::new(77)).deth(QKEY, source).payload(payload)
}

fn destination(bench: &Bench, remote_qkey: u32) -> UdDestination {
    UdDestination { path: bench.path(Side::A), remote_qpn: bench.b, remote_qkey }
}

#[track_caller]
fn send_ud(bench: &mut Bench, wr_id: u64, bytes: &[u8], to: UdDestination) {
    bench.host_mut(Side::A).write_memory(0, bytes);
    let element = bench.host(Side::A).memory_range(0, bytes.len());
    let a = bench.a;
    bench.post_send(Side::A, a, &SendWr::new(wr_id, SendOp::Send, &[element]).to(to)).unwrap();
}

#[test]
fn ud_message_with_its_40_bytes_and_its_sender() {
    let mut bench = ud();
    bench.receive(1, 0, GRH_AREA + 100);
    let to = destination(&bench, QKEY);
    send_ud(&mut bench, 1, &pattern(100), to);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    let wc = bench.completions(Side::B)[0];
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, 140));
    assert_eq!(wc.src_qp, bench.a);
    assert!(wc.flags.contains(WcFlags::GRH));
    assert_eq!(bench.host(Side::B).read_memory(GRH_AREA, 100), pattern(100));
}

/// The bytes of the header that the receiver finds before the message.
#[test]
fn ud_grh_area_of_every_encapsulation() {
    let v6 = |last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
    let v4 = |last| IpAddr::V4(Ipv4Addr::new(198, 18, 0, last));
    // 12 BTH + 8 DETH + 8 bytes + 4 ICRC = 32 bytes, 8 more with UDP, 28 more with IPv4.
    let mut ipv4 = vec![0; 20];
    ipv4.extend([0x45, 0x2a, 0, 60, 0x12, 0x34, 0x40, 0, 7, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    let checksum = ipv4[20..].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum::<u32>();
    let checksum = !((checksum & 0xffff) + (checksum >> 16)) as u16;
    ipv4[30..32].copy_from_slice(&checksum.to_be_bytes());
    let one = |last| [&[0x20, 0x01, 0x0d, 0xb8][..], &[0; 11], &[last]].concat();
    let addresses = [one(1), one(2)].concat();
    // Version 6, traffic class 0x2a, flow label 0x54321; payload length; next header 17 or 27; hop limit.
    let ipv6 = [vec![0x62, 0xa5, 0x43, 0x21, 0, 40, 17, 7], addresses.clone()].concat();
    let grh = [vec![0x62, 0xa5, 0x43, 0x21, 0, 32, 27, 7], addresses].concat();
    let rows = [
        (Encapsulation::RoceV2, v4(1), v4(2), ipv4, 10),
        (Encapsulation::RoceV2, v6(1), v6(2), ipv6, 9),
        (Encapsulation::RoceV1, v6(1), v6(2), grh, 0),
    ];
    for (encapsulation, source, destination, expected, service_level) in rows {
        let mut bench = ud();
        bench.receive(1, 0, 64);
        let mut packet = ud_packet(&bench, &[1; 8]);
        packet.path.encapsulation = encapsulation;
        (packet.path.source, packet.path.destination) = (source, destination);
        packet.path.traffic_class = 0x2a;
        packet.path.flow_label = 0x5_4321;
        packet.path.hop_limit = 7;
        let identification = if source.is_ipv4() { 0x1234 } else { 0 };
        let bytes = packet.build_with(identification);
        let known = Identification::Known { identification, dont_fragment: true };
        let received = Received::whole(packet.path, known, &bytes);
        assert_eq!(bench.deliver(Side::B, &received), Verdict::Handled, "{encapsulation:?} {source}");
        assert_eq!(bench.host(Side::B).read_memory(0, GRH_AREA), expected, "{encapsulation:?} {source}");
        let wc = bench.completions(Side::B)[0];
        assert_eq!((wc.byte_len, wc.service_level), (48, service_level));
    }
}

/// A header without the don't-fragment bit is passed on unchanged.
#[test]
fn ud_grh_area_keeps_the_fragment_bit() {
    let mut bench = ud();
    bench.receive(1, 0, 64);
    let packet = ud_packet(&bench, &[1; 8]);
    let mut envelope = roce_packet::Envelope::new(&packet.path, 5);
    envelope.dont_fragment = false;
    let bytes = packet.build_in(&envelope);
    let known = Identification::Known { identification: 5, dont_fragment: false };
    let received = Received::whole(packet.path, known, &bytes);
    assert_eq!(bench.deliver(Side::B, &received), Verdict::Handled);
    assert_eq!(bench.host(Side::B).read_memory(24, 4), [0, 5, 0, 0]);
}

#[test]
fn ud_q_key_must_match_exactly() {
    let mut bench = ud();
    bench.receive(1, 0, 64);
    let source = bench.a;
    for bit in 0..32 {
        let wrong = bench.forge(Side::B, Opcode::UD_SEND_ONLY, Psn::new(0)).deth(QKEY ^ 1 << bit, source);
        assert_eq!(arrive(&mut bench, &wrong), dropped(DropReason::BadQkey));
    }
    assert_eq!(bench.ended(Side::B), []);
    let right = ud_packet(&bench, b"");
    assert_eq!(arrive(&mut bench, &right), Verdict::Handled);
    assert_eq!(bench.ended(Side::B), [(1, WcStatus::Success)]);
}

/// A Q_Key with its top bit set selects the Q_Key of the sender.
#[test]
fn ud_privileged_q_key_stands_for_the_own_one() {
    for (given, on_the_wire) in [(0x7fff_ffff, 0x7fff_ffff), (0x8000_0000, QKEY), (0xffff_ffff, QKEY), (0, 0)]
    {
        let mut bench = ud();
        let to = destination(&bench, given);
        send_ud(&mut bench, 1, b"x", to);
        bench.collect(Side::A);
        let sent = &bench.sent[0].bytes;
        assert_eq!(sent[12..16], u32::to_be_bytes(on_the_wire), "{given:#x}");
    }
}

/// The receiver ignores PSNs: repeated and out-of-order packets all arrive.
#[test]
fn ud_ignores_psns() {
    let mut bench = ud();
    for (wr_id, psn) in [5, 5, 4, 0xff_ffff, 0, 0x80_0000].into_iter().enumerate() {
        bench.receive(wr_id as u64, 0, 64);
        let mut packet = ud_packet(&bench, b"x");
        packet.bth.psn = Psn::new(psn);
        assert_eq!(arrive(&mut bench, &packet), Verdict::Handled);
        assert_eq!(bench.ended(Side::B), [(wr_id as u64, WcStatus::Success)]);
    }
}

#[test]
fn ud_too_small_and_missing_receives() {
    let mut bench = ud();
    let packet = ud_packet(&bench, &[1; 60]);
    assert_eq!(arrive(&mut bench, &packet), dropped(DropReason::NoReceive));
    assert_eq!(bench.counter(Side::B, "out_of_buffer"), 1);
    bench.receive(1, 0, 99);
    assert_eq!(arrive(&mut bench, &packet), dropped(DropReason::ReceiveTooSmall));
    assert_eq!(bench.host(Side::B).read_memory(0, 128), [0; 128]);
    assert_eq!(bench.ended(Side::B), []);
    // The receive is still available for a message that fits.
    let fits = ud_packet(&bench, &[1; 59]);
    assert_eq!(arrive(&mut bench, &fits), Verdict::Handled);
    assert_eq!(bench.ended(Side::B), [(1, WcStatus::Success)]);
    assert_eq!(bench.state(Side::B), QpState::Rts);
}

/// A message is one packet, at most as long as the port's MTU. A longer one is refused when posted and
/// dropped when received.
#[test]
fn ud_messages_fit_one_packet() {
    let config = EngineConfig { port_mtu: PathMtu::Mtu512, ..EngineConfig::from_number(3) };
    let mut bench = Bench::with_config(QpType::Ud, &settings(), config);
    let to = destination(&bench, QKEY);
    let element = bench.host(Side::A).memory_range(0, 513);
    let a = bench.a;
    let result = bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &[element]).to(to));
    assert_eq!(result, Err(roce_transport::PostError::MessageTooLong { have: 513, limit: 512 }));
    bench.receive(1, 0, 2048);
    let packet = ud_packet(&bench, &[1; 513]);
    assert_eq!(arrive(&mut bench, &packet), dropped(DropReason::BadLength));
    assert_eq!(bench.host(Side::B).read_memory(0, 2048), [0; 2048]);
    send_ud(&mut bench, 2, &pattern(512), to);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(2, WcStatus::Success)]);
    assert_eq!(bench.ended(Side::B), [(1, WcStatus::Success)]);
}

/// Each member of a group gets a copy, except members that left or cannot receive it. The packet counts once.
#[test]
fn ud_multicast() {
    let group: IpAddr = "224.1.2.3".parse().unwrap();
    let mut bench = ud();
    let b = bench.b;
    let other = bench.create_qp(Side::B, QpType::Ud, &settings());
    let a = bench.a;
    bench.bring_up(Side::B, other, a, &settings(), QpState::Rts);
    let mut to = destination(&bench, QKEY);
    (to.remote_qpn, to.path.destination) = (Qpn::MULTICAST, group);
    let attach = |bench: &mut Bench, qpn| bench.host_mut(Side::B).engine.attach_multicast(qpn, group);
    let send = |bench: &mut Bench, expected: &[(Qpn, u64)]| {
        send_ud(bench, 1, b"all", to);
        bench.drive();
        let mut received: Vec<(Qpn, u64)> =
            bench.completions(Side::B).iter().map(|wc| (wc.qpn, wc.wr_id)).collect();
        received.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(received, expected);
        bench.check_accounting();
        bench.verdicts.last().unwrap().1
    };
    assert_eq!(send(&mut bench, &[]), dropped(DropReason::NoMulticastMember));
    attach(&mut bench, b).unwrap();
    attach(&mut bench, b).unwrap();
    // No member has posted a receive.
    assert_eq!(send(&mut bench, &[]), dropped(DropReason::NoReceive));
    attach(&mut bench, other).unwrap();
    assert_eq!(send(&mut bench, &[]), dropped(DropReason::NoReceive));
    bench.receive(1, 0, 64);
    // One member receives the packet; the other has no receive.
    assert_eq!(send(&mut bench, &[(b, 1)]), Verdict::Handled);
    bench.receive(2, 0, 64);
    bench.post_recv(Side::B, other, 3, 64, 64).unwrap();
    assert_eq!(send(&mut bench, &[(b, 2), (other, 3)]), Verdict::Handled);
    bench.host_mut(Side::B).engine.detach_multicast(b, group).unwrap();
    bench.receive(4, 0, 64);
    bench.post_recv(Side::B, other, 5, 64, 64).unwrap();
    assert_eq!(send(&mut bench, &[(other, 5)]), Verdict::Handled);
    bench.host_mut(Side::B).engine.destroy_qp(other).unwrap();
    assert_eq!(send(&mut bench, &[]), dropped(DropReason::NoMulticastMember));
}

/// Only UD queue pairs join groups. A connected queue pair in a group would receive requests from strangers.
#[test]
fn only_ud_joins_groups() {
    let group: IpAddr = "224.1.2.3".parse().unwrap();
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut bench = Bench::new(qp_type, &settings());
        let b = bench.b;
        let refused = Err(DestroyError::NotDatagram);
        assert_eq!(bench.host_mut(Side::B).engine.attach_multicast(b, group), refused);
        let unknown = Err(DestroyError::UnknownQp);
        assert_eq!(bench.host_mut(Side::B).engine.attach_multicast(Qpn::new(0), group), unknown);
    }
}

/// Datagrams come from any sender, so an address that differs from earlier ones is not a reason to drop them.
#[test]
fn ud_hears_from_strangers() {
    let mut bench = ud();
    bench.receive(1, 0, 64);
    let mut packet = ud_packet(&bench, b"x");
    packet.path.source = "203.0.113.77".parse().unwrap();
    assert_eq!(arrive(&mut bench, &packet), Verdict::Handled);
    let ended: Vec<Ended> = bench.ended(Side::B);
    assert_eq!(ended, [(1, WcStatus::Success)]);
}

/// Regression: if only requests were allowed, the failure of a request was not carried out at once, and the
/// next one was sent.
#[test]
fn a_request_behind_a_failed_one_is_flushed_whatever_may_leave() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        for allowed in [Allowed::All, Allowed::Requests] {
            let mut bench = Bench::new(qp_type, &settings());
            let (a, b) = (bench.a, bench.b);
            let good = bench.host(Side::A).memory_range(0, 8);
            let bad = Sge { lkey: LKey(good.lkey.0 ^ 0x100), ..good };
            let destination = (qp_type == QpType::Ud).then_some(UdDestination {
                path: bench.path(Side::A),
                remote_qpn: b,
                remote_qkey: settings().qkey,
            });
            for (wr_id, element) in [(1, bad), (2, good)] {
                let elements = [element];
                let wr = SendWr { destination, ..SendWr::new(wr_id, SendOp::Send, &elements) };
                bench.post_send(Side::A, a, &wr).unwrap();
            }
            let now = bench.now;
            let engine = &mut bench.host_mut(Side::A).engine;
            let mut buffer = [0; 1024];
            for _ in 0..3 {
                let sent = engine.poll_transmit(now, &mut TxSlot::new(&mut buffer), allowed);
                assert!(sent.is_none(), "{qp_type:?}, {allowed:?}");
            }
            let ended = [(1, WcStatus::LocalProtectionError), (2, WcStatus::WrFlushError)];
            assert_eq!(bench.ended(Side::A), ended, "{qp_type:?}, {allowed:?}");
        }
    }
}
