//! Every operation of every transport, contents verified.

use std::time::Duration;

use roce::observe::with_causes;
use roce::verbs::*;

use crate::common::{own_address, within};
use crate::world::*;

/// Offsets of sent messages, of arriving messages and of the results of READs.
const SOURCE: usize = 0;
const TARGET: usize = 80 << 10;
const RESULT: usize = 160 << 10;

fn lengths(mtu: PathMtu) -> Vec<usize> {
    let mtu = mtu.bytes();
    vec![0, 1, 2, 3, 4, 5, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 3, 50_001]
}

fn each_rc_pair(test: fn(&Side, &Side, PathMtu)) {
    within(120, move || {
        for wire in Wire::ALL {
            for path_mtu in [PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu4096] {
                let options = ConnectOptions::default().path_mtu(path_mtu);
                let Some((near, far)) = connected(wire, QpType::Rc, &options) else { continue };
                test(&near, &far, path_mtu);
            }
        }
    });
}

/// Sends one message and checks it.
#[track_caller]
fn message(near: &Side, far: &Side, op: SendOp, len: usize, seed: u64) -> Wc {
    near.fill(SOURCE, len, seed);
    far.fill(TARGET, len, !seed);
    far.receive(seed, TARGET, len);
    let wc = near.carry_out(seed + 1, op, &[near.region.element(SOURCE..SOURCE + len)]);
    assert_eq!(wc.opcode, WcOpcode::Send);
    let wc = succeed(&far.recv_cq);
    assert_eq!((wc.wr_id, wc.opcode), (seed, WcOpcode::Recv));
    assert_eq!((wc.byte_len as usize, wc.qpn), (len, far.qp.number()));
    far.check(TARGET, len, seed);
    wc
}

#[test]
fn rc_sends_arrive() {
    each_rc_pair(|near, far, mtu| {
        for (number, len) in lengths(mtu).into_iter().enumerate() {
            let seed = 100 * number as u64;
            let wc = message(near, far, SendOp::Send, len, seed);
            assert!(!wc.flags.contains(WcFlags::WITH_IMM));
            let imm = ImmDt([1, 2, 3, number as u8]);
            let wc = message(near, far, SendOp::SendWithImm(imm), len, seed + 1);
            assert!(wc.flags.contains(WcFlags::WITH_IMM));
            assert_eq!(wc.imm, imm);
        }
    });
}

#[test]
fn rc_writes_arrive_and_touch_nothing_else() {
    each_rc_pair(|near, far, mtu| {
        for (number, len) in lengths(mtu).into_iter().enumerate() {
            let seed = 100 * number as u64;
            near.fill(SOURCE, len, seed);
            far.fill(TARGET, len + 16, !seed);
            let elements = [near.region.element(SOURCE..SOURCE + len)];
            let wc = near.carry_out(seed, far.write_op(TARGET + 8), &elements);
            assert_eq!(wc.opcode, WcOpcode::RdmaWrite);
            let mut around = pattern(len + 16, !seed);
            around[8..8 + len].copy_from_slice(&pattern(len, seed));
            let mut found = vec![0; len + 16];
            far.region.read(TARGET, &mut found).unwrap();
            assert_same(&found, &around);

            let SendOp::Write { remote_addr, rkey } = far.write_op(TARGET) else { unreachable!() };
            let imm = ImmDt([number as u8, 9, 8, 7]);
            near.fill(SOURCE, len, seed + 1);
            far.qp.post_recv(&RecvWr { wr_id: seed, elements: &[] }).unwrap();
            near.carry_out(seed, SendOp::WriteWithImm { remote_addr, rkey, imm }, &elements);
            let wc = succeed(&far.recv_cq);
            assert_eq!((wc.opcode, wc.imm), (WcOpcode::RecvRdmaWithImm, imm));
            assert_eq!(wc.byte_len as usize, len);
            far.check(TARGET, len, seed + 1);
        }
    });
}

#[test]
fn rc_reads_bring_the_bytes() {
    each_rc_pair(|near, far, mtu| {
        for (number, len) in lengths(mtu).into_iter().enumerate() {
            let seed = 100 * number as u64;
            far.fill(TARGET + 3, len, seed);
            near.fill(RESULT, len, !seed);
            let wc =
                near.carry_out(seed, far.read_op(TARGET + 3), &[near.region.element(RESULT..RESULT + len)]);
            assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaRead, len));
            near.check(RESULT, len, seed);
        }
        // More requests than may be outstanding.
        let count = 40;
        for number in 0..count {
            far.fill(TARGET + number * 1000, 1000, number as u64);
            let at = RESULT + number * 1000;
            near.post(
                number as u64,
                far.read_op(TARGET + number * 1000),
                &[near.region.element(at..at + 1000)],
            );
        }
        for number in 0..count {
            assert_eq!(succeed(&near.send_cq).wr_id, number as u64);
            near.check(RESULT + number * 1000, 1000, number as u64);
        }
    });
}

#[test]
fn rc_atomics_and_flush() {
    each_rc_pair(|near, far, _| {
        let word = |side: &Side, offset| {
            let mut bytes = [0; 8];
            side.region.read(offset, &mut bytes).unwrap();
            u64::from_ne_bytes(bytes)
        };
        let result = [near.region.element(RESULT..RESULT + 8)];
        let (remote_addr, rkey) = (far.region.addr() + TARGET as u64, far.region.rkey());
        let old = 0x0102_0304_0506_0708;
        far.region.write(TARGET, &u64::to_ne_bytes(old)).unwrap();

        let op = SendOp::FetchAdd { remote_addr, rkey, add: u64::MAX - 6 };
        assert_eq!(near.carry_out(1, op, &result).opcode, WcOpcode::FetchAdd);
        assert_eq!((word(near, RESULT), word(far, TARGET)), (old, old - 7));

        let op = SendOp::CompareSwap { remote_addr, rkey, compare: old, swap: 5 };
        assert_eq!(near.carry_out(2, op, &result).opcode, WcOpcode::CompareSwap);
        assert_eq!((word(near, RESULT), word(far, TARGET)), (old - 7, old - 7), "not equal: unchanged");
        let op = SendOp::CompareSwap { remote_addr, rkey, compare: old - 7, swap: 5 };
        near.carry_out(3, op, &result);
        assert_eq!((word(near, RESULT), word(far, TARGET)), (old - 7, 5));

        near.region.write(SOURCE, &u64::to_ne_bytes(77)).unwrap();
        let op = SendOp::AtomicWrite { remote_addr, rkey };
        let wc = near.carry_out(4, op, &[near.region.element(SOURCE..SOURCE + 8)]);
        assert_eq!((wc.opcode, word(far, TARGET)), (WcOpcode::AtomicWrite, 77));

        for (placement, whole_region) in
            [(FlushPlacement::GLOBAL_VISIBILITY, false), (FlushPlacement::all(), true)]
        {
            let op = SendOp::Flush { remote_addr, rkey, length: 100, placement, whole_region };
            assert_eq!(near.carry_out(5, op, &[]).opcode, WcOpcode::Flush);
        }
    });
}

#[test]
fn atomics_of_both_sides_add_up() {
    within(60, || {
        let (near, far) = rc_pair();
        let (remote_addr, rkey) = (far.region.addr(), far.region.rkey());
        let elements = [near.region.element(RESULT..RESULT + 8)];
        let mut seen = Vec::new();
        for number in 0..200 {
            near.carry_out(number, SendOp::FetchAdd { remote_addr, rkey, add: 3 }, &elements);
            let mut bytes = [0; 8];
            near.region.read(RESULT, &mut bytes).unwrap();
            seen.push(u64::from_ne_bytes(bytes));
        }
        assert_eq!(seen, (0..200).map(|number| number * 3).collect::<Vec<_>>());
    });
}

#[test]
fn inline_bytes_may_change_at_once_and_pieces_are_joined() {
    within(60, || {
        for wire in Wire::ALL {
            let Some((near, far)) = connected(wire, QpType::Rc, &ConnectOptions::default()) else { continue };
            for len in [0, 1, 7, 64, 128] {
                let mut bytes = pattern(len, 5);
                far.receive(1, TARGET, len);
                near.qp.post_send(&SendWr::inline(2, SendOp::Send, &bytes)).unwrap();
                bytes.fill(0);
                succeed(&near.send_cq);
                assert_eq!(succeed(&far.recv_cq).byte_len as usize, len);
                far.check(TARGET, len, 5);
                near.qp.post_send(&SendWr::inline(3, far.write_op(TARGET), &pattern(len, 6))).unwrap();
                succeed(&near.send_cq);
                far.check(TARGET, len, 6);
            }

            // Gathered from four pieces and scattered over three, none of them aligned.
            near.fill(SOURCE, 5000, 7);
            let pieces = [0..1, 1..1700, 1700..1703, 1703..5000].map(|range| near.region.element(range));
            let places = [(TARGET + 3, 1001), (TARGET + 2000, 1), (TARGET + 3001, 6000)];
            let elements = places.map(|(at, len)| far.region.element(at..at + len));
            far.qp.post_recv(&RecvWr { wr_id: 1, elements: &elements }).unwrap();
            near.carry_out(2, SendOp::Send, &pieces);
            assert_eq!(succeed(&far.recv_cq).byte_len, 5000);
            let mut found = vec![0; 5000];
            far.region.read(places[0].0, &mut found[..1001]).unwrap();
            far.region.read(places[1].0, &mut found[1001..1002]).unwrap();
            far.region.read(places[2].0, &mut found[1002..]).unwrap();
            assert_same(&found, &pattern(5000, 7));
        }
    });
}

#[test]
fn a_chain_completes_in_order_and_only_visibly_where_asked() {
    within(60, || {
        let (near, far) = rc_pair();
        let elements: Vec<[Sge; 1]> =
            (0..40).map(|number| [near.region.element(number * 500..(number + 1) * 500)]).collect();
        near.fill(0, 20_000, 3);
        let list: Vec<SendWr<'_>> = (0..40)
            .map(|number| {
                let wr = SendWr::new(number as u64, far.write_op(TARGET + number * 500), &elements[number]);
                let signaled = number % 10 == 9;
                wr.with_flags(if signaled { SendFlags::SIGNALED } else { SendFlags::empty() })
            })
            .collect();
        near.qp.post_send_list(&list).unwrap();
        for number in [9, 19, 29, 39] {
            assert_eq!(succeed(&near.send_cq).wr_id, number);
        }
        far.check(TARGET, 20_000, 3);

        // The queue has 64 places. The error names the first request that did not fit; the requests before it
        // are carried out.
        let long: Vec<SendWr<'_>> = list.iter().chain(&list).copied().collect();
        let error = with_causes(&near.qp.post_send_list(&long).unwrap_err()).to_string();
        assert!(error.contains("work request 64 of the list") && error.contains("full with 64"), "{error}");
        for number in [9, 19, 29, 39, 9, 19] {
            assert_eq!(succeed(&near.send_cq).wr_id, number);
        }
    });
}

#[test]
fn uc_messages_and_writes_arrive() {
    within(60, || {
        for wire in Wire::ALL {
            let path_mtu = PathMtu::Mtu1024;
            let options = ConnectOptions::default().path_mtu(path_mtu);
            let Some((near, far)) = connected(wire, QpType::Uc, &options) else { continue };
            for (number, len) in lengths(path_mtu).into_iter().enumerate() {
                let seed = 10 * number as u64;
                message(&near, &far, SendOp::Send, len, seed);
                let imm = ImmDt([7; 4]);
                assert_eq!(message(&near, &far, SendOp::SendWithImm(imm), len, seed + 1).imm, imm);

                near.fill(SOURCE, len, seed + 2);
                let elements = [near.region.element(SOURCE..SOURCE + len)];
                near.carry_out(seed, far.write_op(TARGET), &elements);
                // The arrival of a UC WRITE is not acknowledged, but the message after it arrives later.
                message(&near, &far, SendOp::Send, 4, seed + 3);
                let SendOp::Write { remote_addr, rkey } = far.write_op(RESULT) else { unreachable!() };
                far.qp.post_recv(&RecvWr { wr_id: 1, elements: &[] }).unwrap();
                near.fill(SOURCE, len, seed + 4);
                near.carry_out(seed, SendOp::WriteWithImm { remote_addr, rkey, imm }, &elements);
                assert_eq!(succeed(&far.recv_cq).opcode, WcOpcode::RecvRdmaWithImm);
                far.check(RESULT, len, seed + 4);
            }
            let refused = near.qp.post_send(&SendWr::new(1, far.read_op(0), &[near.region.element(0..8)]));
            let refused = with_causes(&refused.unwrap_err()).to_string();
            assert!(refused.contains("no such operation"), "{refused}");
        }
    });
}

#[test]
fn ud_messages_arrive_with_the_address_of_their_sender() {
    within(60, || {
        for wire in Wire::ALL {
            let Some((near, far)) = wire.open() else { continue };
            let (near, far) = (Side::new(near, QpType::Ud), Side::new(far, QpType::Ud));
            near.qp.activate_datagram(1).unwrap();
            far.qp.activate_datagram(QKEY).unwrap();
            let target = far.context.address().unwrap();
            let path = PathOptions::default();
            let destination =
                near.context.create_address_handle(target, far.qp.number(), QKEY, &path).unwrap();
            for (number, len) in [0, 1, 5, 1024, 4096].into_iter().enumerate() {
                near.fill(SOURCE, len, number as u64);
                far.receive(1, TARGET, len + 40);
                let op = if number % 2 == 0 { SendOp::Send } else { SendOp::SendWithImm(ImmDt([5; 4])) };
                let elements = [near.region.element(SOURCE..SOURCE + len)];
                near.qp.post_send(&SendWr::new(2, op, &elements).to(&destination)).unwrap();
                succeed(&near.send_cq);
                let wc = succeed(&far.recv_cq);
                assert_eq!((wc.byte_len as usize, wc.src_qp), (len + 40, near.qp.number()));
                assert!(wc.flags.contains(WcFlags::GRH));
                assert_eq!(wc.flags.contains(WcFlags::WITH_IMM), number % 2 == 1);
                far.check(TARGET + 40, len, number as u64);
                check_grh(&far, near.context.address().unwrap());
            }
            let elements = [near.region.element(0..4097)];
            let error = near.qp.post_send(&SendWr::new(2, SendOp::Send, &elements).to(&destination));
            let error = with_causes(&error.unwrap_err()).to_string();
            assert!(error.contains("4097 bytes is too long; the maximum is 4096"), "{error}");

            // A datagram with a wrong Q_Key is dropped and counted.
            let wrong = UdDestination { remote_qkey: 0x77, ..*destination };
            far.receive(1, TARGET, 100);
            near.qp.post_send(&SendWr::new(2, SendOp::Send, &[near.region.element(0..4)]).to(wrong)).unwrap();
            until("a dropped datagram", || far.counter("drop_bad_qkey") == 1);
            assert_eq!(far.recv_cq.poll(&mut [Wc::default()]).unwrap(), 0);
        }
    });
}

/// Checks the area before a UD message, whose last 20 bytes contain the IPv4 header.
#[track_caller]
fn check_grh(far: &Side, sender: std::net::IpAddr) {
    let mut area = [0; 40];
    far.region.read(TARGET, &mut area).unwrap();
    match sender {
        std::net::IpAddr::V4(sender) => {
            assert_eq!(area[20], 0x45);
            assert_eq!(area[32..36], sender.octets());
        }
        std::net::IpAddr::V6(sender) => {
            assert_eq!(area[0] >> 4, 6);
            assert_eq!(area[8..24], sender.octets());
        }
    }
}

#[test]
fn ud_multicast_reaches_every_member() {
    within(60, || {
        let group: std::net::IpAddr = {
            let [_, b, c, d] = own_address().octets();
            std::net::Ipv4Addr::new(239, b, c, d).into()
        };
        let sides: Vec<Side> = (0..3)
            .map(|_| {
                let context = Context::open(&format!("udp:{}", own_address())).unwrap();
                let side = Side::new(context, QpType::Ud);
                side.qp.activate_datagram(QKEY).unwrap();
                side
            })
            .collect();
        let (sender, members) = sides.split_first().unwrap();
        for member in members {
            member.qp.attach_multicast(group).unwrap();
            member.receive(1, TARGET, 240);
            member.receive(2, RESULT, 240);
        }
        let path = PathOptions::default();
        let handle = sender.context.create_address_handle(group, Qpn::MULTICAST, QKEY, &path).unwrap();
        let send = |seed| {
            sender.fill(SOURCE, 200, seed);
            let elements = [sender.region.element(SOURCE..SOURCE + 200)];
            sender.qp.post_send(&SendWr::new(9, SendOp::Send, &elements).to(&handle)).unwrap();
            succeed(&sender.send_cq);
        };
        send(4);
        for member in members {
            let wc = succeed(&member.recv_cq);
            assert_eq!((wc.byte_len, wc.src_qp), (240, sender.qp.number()));
            member.check(TARGET + 40, 200, 4);
        }
        // One member leaves.
        members[0].qp.detach_multicast(group).unwrap();
        send(5);
        succeed(&members[1].recv_cq);
        members[1].check(RESULT + 40, 200, 5);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(members[0].recv_cq.poll(&mut [Wc::default()]).unwrap(), 0);
    });
}

#[test]
fn counters_count_what_happened() {
    within(60, || {
        // Prevents retransmission, even on a busy machine.
        let builder = || Context::builder().retransmission(Retransmission::IBTA);
        let contexts = Wire::UdpV4.open_with(builder(), builder()).unwrap();
        let (near, far) = connect(contexts, QpType::Rc, &ConnectOptions::default().timeout(20));
        let before = near.context.counters();
        assert_eq!((before.rdma_tx_packets, before.rdma_rx_packets), (0, 0));
        let len = 10 * 1024;
        let elements = [near.region.element(0..len)];
        near.carry_out(1, far.write_op(0), &elements);
        near.carry_out(2, far.read_op(0), &elements);
        let (remote_addr, rkey) = (far.region.addr(), far.region.rkey());
        near.carry_out(3, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, &[near.region.element(0..8)]);
        let (own, theirs) = (near.context.counters(), far.context.counters());
        assert_eq!((theirs.rx_write_requests, theirs.rx_read_requests, theirs.rx_atomic_requests), (1, 1, 1));
        // Ten packets of the WRITE, the READ request and the atomic.
        assert_eq!(theirs.rdma_rx_packets, own.rdma_tx_packets);
        assert_eq!(own.rdma_tx_packets, 12 + own.retransmitted_packets);
        assert_eq!(theirs.rdma_tx_packets, own.rdma_rx_packets);
        assert_eq!(theirs.rdma_tx_bytes, own.rdma_rx_bytes);
        assert!(own.rdma_tx_bytes > len as u64 && own.rdma_rx_bytes > len as u64);
        assert_eq!((own.dropped(), theirs.dropped()), (0, 0));
        assert_eq!(near.qp.counters().unwrap().rdma_tx_packets, own.rdma_tx_packets);
        assert_eq!(near.counter("udp_tx_datagrams"), own.rdma_tx_packets);
        assert_eq!(far.counter("udp_rx_datagrams"), theirs.rdma_rx_packets);
    });
}
