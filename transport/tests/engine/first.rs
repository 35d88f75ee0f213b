//! Every operation once, at every path MTU, over a link without faults.

use roce_packet::{ImmDt, PathMtu};
use roce_sim::pair::{Pair, Settings, Side};
use roce_transport::{
    EngineConfig, FlushPlacement, Payload, QpType, SendFlags, SendOp, SendWr, WcFlags, WcOpcode, WcStatus,
};

const MTUS: [PathMtu; 5] = PathMtu::ALL;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251) as u8).collect()
}

fn connected(mtu: PathMtu, qp_type: QpType) -> (Pair, roce_packet::Qpn, roce_packet::Qpn) {
    let mut pair = Pair::with_config(EngineConfig::from_number(3), 1 << 21);
    let settings = Settings { mtu, psns: [0xff_fff0, 0xff_fffe], ..Settings::default() };
    let (a, b) = pair.connect_with(qp_type, &settings);
    (pair, a, b)
}

fn sizes(mtu: PathMtu) -> Vec<usize> {
    let mtu = mtu.bytes();
    vec![0, 1, 3, 4, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5, 64 * mtu, 300 * mtu + 1]
}

#[test]
fn sends_arrive_whole() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for mtu in MTUS {
            let (mut pair, a, b) = connected(mtu, qp_type);
            for (index, len) in sizes(mtu).into_iter().enumerate() {
                let data = pattern(len);
                pair.host_mut(Side::A).write_memory(0, &data);
                pair.post_recv(Side::B, b, index as u64, 0, len.max(1)).unwrap();
                let range = pair.host(Side::A).memory_range(0, len);
                let op = SendOp::SendWithImm(ImmDt([1, 2, 3, index as u8]));
                pair.post_send(Side::A, a, &SendWr::new(index as u64, op, &[range])).unwrap();
                pair.drive();
                let sent = pair.completions(Side::A);
                assert_eq!(sent.len(), 1, "{qp_type:?} {mtu:?} {len}");
                assert_eq!(sent[0].status, WcStatus::Success);
                let received = pair.completions(Side::B);
                assert_eq!(received.len(), 1, "{qp_type:?} {mtu:?} {len}");
                assert_eq!(received[0].status, WcStatus::Success);
                assert_eq!(received[0].byte_len as usize, len);
                assert_eq!(received[0].imm, ImmDt([1, 2, 3, index as u8]));
                assert!(received[0].flags.contains(WcFlags::WITH_IMM));
                assert_eq!(pair.host(Side::B).read_memory(0, len), data);
            }
            let counters = pair.host(Side::A).engine.counters();
            assert_eq!(counters.retransmitted_packets, 0);
            assert_eq!(counters.dropped(), 0, "{counters:?}");
        }
    }
}

#[test]
fn writes_and_reads_move_the_right_bytes() {
    for mtu in MTUS {
        let (mut pair, a, _) = connected(mtu, QpType::Rc);
        for (index, len) in sizes(mtu).into_iter().enumerate() {
            if len > 1 << 20 {
                continue;
            }
            let data = pattern(len);
            pair.host_mut(Side::A).write_memory(0, &data);
            let remote = pair.host(Side::B).memory_range(0, len);
            let rkey = pair.host(Side::B).rkey();
            let source = pair.host(Side::A).memory_range(0, len);
            let back = pair.host(Side::A).memory_range(1 << 20, len);
            let write = SendOp::Write { remote_addr: remote.addr, rkey };
            let read = SendOp::Read { remote_addr: remote.addr, rkey };
            pair.post_send(Side::A, a, &SendWr::new(1, write, &[source])).unwrap();
            pair.post_send(Side::A, a, &SendWr::new(2, read, &[back])).unwrap();
            pair.drive();
            let done = pair.completions(Side::A);
            assert_eq!(
                done.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
                [(1, WcStatus::Success), (2, WcStatus::Success)],
                "{mtu:?} {len} {index}"
            );
            assert_eq!(done[1].byte_len as usize, len);
            assert_eq!(pair.host(Side::B).read_memory(0, len), data);
            assert_eq!(pair.host(Side::A).read_memory(1 << 20, len), data);
        }
        for side in [Side::A, Side::B] {
            let counters = pair.host(side).engine.counters();
            assert_eq!(counters.retransmitted_packets, 0);
            assert_eq!(counters.dropped(), 0, "{counters:?}");
        }
    }
}

#[test]
fn atomics_atomic_write_and_flush() {
    let (mut pair, a, _) = connected(PathMtu::Mtu256, QpType::Rc);
    pair.host_mut(Side::B).write_memory(64, &5_u64.to_ne_bytes());
    let remote_addr = pair.host(Side::B).memory_range(64, 8).addr;
    let rkey = pair.host(Side::B).rkey();
    let result = |pair: &Pair, at| pair.host(Side::A).memory_range(at, 8);
    let posts = [
        (SendOp::FetchAdd { remote_addr, rkey, add: 3 }, 0),
        (SendOp::CompareSwap { remote_addr, rkey, compare: 8, swap: 100 }, 8),
        (SendOp::CompareSwap { remote_addr, rkey, compare: 8, swap: 1 }, 16),
        (SendOp::FetchAdd { remote_addr, rkey, add: u64::MAX }, 24),
    ];
    for (index, (op, at)) in posts.into_iter().enumerate() {
        let element = result(&pair, at);
        pair.post_send(Side::A, a, &SendWr::new(index as u64, op, &[element])).unwrap();
    }
    pair.host_mut(Side::A).write_memory(128, &[9; 8]);
    let word = pair.host(Side::A).memory_range(128, 8);
    let atomic_write = SendOp::AtomicWrite { remote_addr: remote_addr + 8, rkey };
    pair.post_send(Side::A, a, &SendWr::new(4, atomic_write, &[word])).unwrap();
    let inline = SendWr {
        payload: Payload::Inline(&[7; 8]),
        ..SendWr::new(5, SendOp::AtomicWrite { remote_addr: remote_addr + 16, rkey }, &[])
    };
    pair.post_send(Side::A, a, &inline).unwrap();
    let placement = FlushPlacement::GLOBAL_VISIBILITY;
    let flush = SendOp::Flush { remote_addr, rkey, length: 24, placement, whole_region: false };
    pair.post_send(
        Side::A,
        a,
        &SendWr::new(6, flush, &[]).with_flags(SendFlags::SIGNALED | SendFlags::FENCE),
    )
    .unwrap();
    pair.drive();
    let done = pair.completions(Side::A);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
    assert_eq!(done.len(), 7);
    assert_eq!(done[6].opcode, WcOpcode::Flush);
    let value =
        |pair: &Pair, at| u64::from_ne_bytes(pair.host(Side::A).read_memory(at, 8).try_into().unwrap());
    assert_eq!([0, 8, 16, 24].map(|at| value(&pair, at)), [5, 8, 100, 100]);
    assert_eq!(pair.host(Side::B).read_memory(64, 8), 99_u64.to_ne_bytes());
    assert_eq!(pair.host(Side::B).read_memory(72, 16), [[9; 8], [7; 8]].concat());
}

#[test]
fn a_lost_packet_of_a_write_is_sent_again() {
    let (mut pair, a, _) = connected(PathMtu::Mtu256, QpType::Rc);
    let mut dropped = false;
    pair.set_script(move |sent| {
        if sent.from == Side::A && sent.index == 3 && !dropped {
            dropped = true;
            return roce_sim::pair::Action::Drop;
        }
        roce_sim::pair::Action::Pass
    });
    let data = pattern(5000);
    pair.host_mut(Side::A).write_memory(0, &data);
    let source = pair.host(Side::A).memory_range(0, 5000);
    let remote = pair.host(Side::B).memory_range(0, 5000);
    let op = SendOp::Write { remote_addr: remote.addr, rkey: pair.host(Side::B).rkey() };
    pair.post_send(Side::A, a, &SendWr::new(1, op, &[source])).unwrap();
    pair.drive();
    assert_eq!(pair.completions(Side::A)[0].status, WcStatus::Success);
    assert_eq!(pair.host(Side::B).read_memory(0, 5000), data);
    let (a, b) = (pair.host(Side::A).engine.counters(), pair.host(Side::B).engine.counters());
    assert_eq!(a.packet_seq_err, 1);
    assert_eq!(a.local_ack_timeout_err, 0);
    assert!(b.out_of_sequence > 0);
}
