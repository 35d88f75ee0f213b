//! Regression tests, each named after the correct behaviour.

use std::sync::Arc;

use crate::common::zeros::Zeros;
use crate::common::{Bench, address, settings};
use roce_packet::{Opcode, PathMtu, Psn};
use roce_sim::pair::{Action, Pair, Settings, Side};
use roce_transport::{
    Access, DropReason, EngineConfig, MAX_MESSAGE, QpType, SendOp, SendWr, Sge, Verdict, WcStatus,
};

/// ```text
/// A  SEND ONLY 0 ---> B   receives it
/// A  SEND ONLY 0 ---> B   the link's second copy: dropped
/// A  SEND ONLY 1 ------.
/// A  SEND ONLY 2 ---> B | receives it
///                    <--' late: dropped, or message 1 would come after message 2
/// ```
#[test]
fn a_uc_message_doubled_or_overtaken_on_the_way_is_not_delivered_again_or_late() {
    let mut pair = Pair::new(1);
    let settings = Settings { mtu: PathMtu::Mtu256, psns: [0xff_ffff, 0], ..Settings::default() };
    let (a, b) = pair.connect_with(QpType::Uc, &settings);
    pair.set_script(|sent| match sent.index {
        0 => Action::Duplicate,
        1 => Action::Delay(10_000),
        _ => Action::Pass,
    });
    for index in 0..4 {
        pair.post_recv(Side::B, b, index, 64 * index as usize, 64).unwrap();
    }
    for len in [10, 11, 12] {
        let range = pair.host(Side::A).memory_range(0, len);
        pair.post_send(Side::A, a, &SendWr::new(len as u64, SendOp::Send, &[range])).unwrap();
    }
    pair.drive();
    let arrived: Vec<u32> = pair.completions(Side::B).iter().map(|wc| wc.byte_len).collect();
    assert_eq!(arrived, [10, 12]);
    let late = pair.verdicts.iter().filter(|(_, v)| *v == Verdict::Dropped(DropReason::LatePacket));
    assert_eq!(late.count(), 2);
    assert_eq!(pair.host(Side::B).engine.counters().drop_late_packet, 2);
}

/// Regression: 2^31 bytes are 2^23 packets of 256 bytes, half of all PSNs, so old and new PSNs were confused.
#[test]
fn the_longest_read_does_not_take_half_of_all_psns_at_once() {
    let mut config = EngineConfig::from_number(1);
    config.max_read_packets = 0;
    let mut pair = Pair::with_config(config, 1 << 16);
    let settings = Settings { mtu: PathMtu::Mtu256, ..Settings::default() };
    let (a, _) = pair.connect_with(QpType::Rc, &settings);
    let (remote, rkey) = (pair.host(Side::B).memory_range(0, 0).addr, pair.host(Side::B).rkey());
    let element = pair.host(Side::A).memory_range(0, MAX_MESSAGE as usize);
    let op = SendOp::Read { remote_addr: remote, rkey };
    pair.post_send(Side::A, a, &SendWr::new(1, op, &[element])).unwrap();
    let first = pair.host(Side::A).engine.query_qp(a).unwrap().sq_psn;
    pair.collect(Side::A);
    let next = pair.host(Side::A).engine.query_qp(a).unwrap().sq_psn;
    assert_eq!(first.distance_to(next), 1 << 22);
}

#[test]
fn a_window_of_no_packets_is_one_of_one_packet() {
    let mut config = EngineConfig::from_number(1);
    config.max_outstanding_packets = 0;
    let mut pair = Pair::with_config(config, 1 << 16);
    let (a, _) = pair.connect(QpType::Rc);
    let (remote, rkey) = (pair.host(Side::B).memory_range(0, 5000).addr, pair.host(Side::B).rkey());
    let element = pair.host(Side::A).memory_range(0, 5000);
    let op = SendOp::Write { remote_addr: remote, rkey };
    pair.post_send(Side::A, a, &SendWr::new(1, op, &[element])).unwrap();
    pair.drive();
    let statuses: Vec<WcStatus> = pair.completions(Side::A).iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success]);
}

/// Regression: a queue pair was destroyed with its retransmission timer still queued. The next one in its
/// slot, with a later deadline, had no timer once the old entry expired.
///
/// ```text
/// A  SEND 0 ---> B      <- ACK; destroyed
/// A  SEND 0 ---x        on the next queue pair in the same place
///    ... the old deadline passes, then the new one ...
///    SEND 0 ---> B      <- ACK
/// ```
#[test]
fn a_queue_pair_in_the_place_of_another_keeps_its_retransmission_timer() {
    let mut pair = Pair::new(1);
    for round in 0..2 {
        let (a, b) = pair.connect(QpType::Rc);
        let mut drops = round;
        pair.set_script(move |_| {
            let drop = drops > 0;
            drops -= u64::from(drop);
            if drop { Action::Drop } else { Action::Pass }
        });
        pair.post_recv(Side::B, b, round, 0, 64).unwrap();
        let range = pair.host(Side::A).memory_range(0, 8);
        pair.post_send(Side::A, a, &SendWr::new(round, SendOp::Send, &[range])).unwrap();
        // Long enough for an answer, too short for any timer.
        let soon = pair.now.plus_nanos(if round == 0 { 20_000 } else { 10_000_000_000 });
        pair.drive_until(soon);
        let ended: Vec<_> = pair.completions(Side::A).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ended, [(round, WcStatus::Success)]);
        pair.host_mut(Side::A).engine.destroy_qp(a).unwrap();
        pair.host_mut(Side::B).engine.destroy_qp(b).unwrap();
    }
    assert_eq!(pair.host(Side::A).engine.counters().local_ack_timeout_err, 1);
}

/// Regression: the first PSN of a request of 2^23 packets seemed to be after those of its last packets and of
/// the next request, so an acknowledgement of both counted for neither. The window ends in the next request.
#[test]
fn an_acknowledgement_behind_the_longest_write_counts() {
    let config = EngineConfig { max_outstanding_packets: 60_000, ..EngineConfig::from_number(1) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.record = false;
    bench.set_script(|_| Action::Drop);
    let host = bench.host_mut(Side::A);
    let memory = Arc::new(Zeros(MAX_MESSAGE as usize));
    let region = host.engine.register(host.pd, 0x5000, memory, Access::LOCAL_WRITE).unwrap();
    let (a, write) = (bench.a, bench.write(0));
    for (wr_id, length) in [(1, MAX_MESSAGE), (2, 512)] {
        let element = Sge { addr: 0x5000, length, lkey: region.lkey };
        bench.post_send(Side::A, a, &SendWr::new(wr_id, write, &[element])).unwrap();
    }
    let next = |bench: &Bench| bench.host(Side::A).engine.query_qp(a).unwrap().sq_psn;
    let first = next(&bench);
    loop {
        bench.collect(Side::A);
        let newest = next(&bench).sub(1);
        let acknowledgement = bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, newest).aeth(0x1f, 0);
        assert_eq!(bench.inject(Side::A, acknowledgement.path, &acknowledgement.build()), Verdict::Handled);
        if first.distance_to(newest) == (1 << 23) + 1 {
            break;
        }
    }
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

/// Regression: after READs of half of all PSNs, the PSN of the last WRITE seemed to be one that the peer was
/// about to send. An acknowledgement with this PSN acknowledged packets that had not arrived.
#[test]
fn a_psn_that_is_half_of_all_psns_old_is_not_acknowledged() {
    let mut bench = Bench::rc();
    bench.record = false;
    bench.set_script(|_| Action::Drop);
    let host = bench.host_mut(Side::B);
    let memory = Arc::new(Zeros(MAX_MESSAGE as usize));
    let region = host.engine.register(host.pd, 0x5000, memory, Access::REMOTE_READ).unwrap();
    let first = bench.expected(Side::B);
    let write = |bench: &Bench, psn: Psn| {
        let forge = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_ONLY, psn);
        forge.reth(address(0), bench.host(Side::B).rkey(), 8).payload(&[1; 8])
    };
    let expected = write(&bench, first);
    assert_eq!(bench.inject(Side::B, expected.path, &expected.build()), Verdict::Handled);
    let read = bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, first.next());
    let read = read.reth(0x5000, region.rkey, MAX_MESSAGE);
    assert_eq!(bench.inject(Side::B, read.path, &read.build()), Verdict::Handled);
    assert_eq!(first.distance_to(bench.expected(Side::B)), (1 << 23) + 1);
    bench.record = true;
    let old = write(&bench, first.add(5));
    let (verdict, answers) = bench.arrive(Side::B, &old);
    assert_eq!((verdict, answers.len()), (Verdict::Handled, 0), "{answers:?}");
}
