//! Selective repeat: which packets are retransmitted and which are kept. Peers without it are not affected.

use crate::common::{Bench, MTU, assert_same, pattern, settings};
use roce_packet::{Datagram, Opcode, Psn, Syndrome};
use roce_sim::pair::{Action, Side};
use roce_transport::congestion::Congestion;
use roce_transport::{
    DropReason, EngineConfig, QpType, Recovery, SelectiveRepeat, SendOp, Verdict, WcStatus,
};

/// Returns a bench with timeouts far above its round trip, which is 2 us.
fn bench() -> Bench {
    let recovery = Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, ..SelectiveRepeat::default() });
    let mut bench = Bench::with_config(
        QpType::Rc,
        &settings(),
        EngineConfig { recovery, ..EngineConfig::from_number(7) },
    );
    bench.packet_time_ns = 30;
    bench
}

/// Loses these data packets of A, counted from the first, each once.
fn lose(bench: &mut Bench, lost: &'static [u32]) {
    let mut seen = Vec::new();
    bench.set_script(move |sent| {
        let index = sent.psn.get().wrapping_sub(0x1000);
        if sent.from == Side::A && lost.contains(&index) && !seen.contains(&index) {
            seen.push(index);
            return Action::Drop;
        }
        Action::Pass
    });
}

#[test]
fn only_what_is_missing_is_sent_again() {
    for (lost, naks) in
        [(&[3][..], 1), (&[3, 4, 5], 1), (&[0], 1), (&[2, 9, 17, 30], 1), (&[2, 3, 20, 21, 38], 1)]
    {
        let mut bench = bench();
        lose(&mut bench, lost);
        let data = pattern(40 * MTU);
        bench.host_mut(Side::A).write_memory(0, &data);
        let write = bench.write(100_000);
        bench.post(1, write, 0, data.len());
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
        assert_same(&bench.host(Side::B).read_memory(100_000, data.len()), &data, "the message");
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), lost.len() as u64, "{lost:?}");
        assert_eq!(bench.counter(Side::A, "packet_seq_err"), naks, "{lost:?}");
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{lost:?}");
    }
}

/// Messages of several kinds behind the gap complete in order, each once.
#[test]
fn everything_behind_the_gap_happens_in_order() {
    let mut bench = bench();
    lose(&mut bench, &[0, 5]);
    let data = pattern(20 * MTU);
    bench.host_mut(Side::A).write_memory(0, &data);
    let write = bench.write(100_000);
    for wr_id in 0..5 {
        bench.receive(100 + wr_id, 200_000 + wr_id as usize * 4 * MTU, 3 * MTU);
        bench.post(2 * wr_id, SendOp::Send, wr_id as usize * MTU, 2 * MTU + 7);
        bench.post(2 * wr_id + 1, write, 0, MTU);
    }
    let add = bench.fetch_add(8192, 7);
    bench.post(10, add, 4096, 8);
    bench.drive();
    let ended: Vec<u64> = bench.ended(Side::A).into_iter().map(|(wr_id, _)| wr_id).collect();
    assert_eq!(ended, (0..11).collect::<Vec<_>>());
    let received = bench.completions(Side::B);
    assert_eq!(received.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [100, 101, 102, 103, 104]);
    for wr_id in 0..5_usize {
        let found = bench.host(Side::B).read_memory(200_000 + wr_id * 4 * MTU, 2 * MTU + 7);
        assert_same(&found, &data[wr_id * MTU..][..2 * MTU + 7], "a message");
    }
    assert_eq!(bench.host(Side::B).read_memory(8192, 8), 7_u64.to_ne_bytes(), "added once");
}

/// The message behind the gap finds no receive in its turn: the RNR delay is respected, and the message is
/// retransmitted.
#[test]
fn a_kept_packet_can_meet_an_empty_queue() {
    let mut bench = bench();
    lose(&mut bench, &[0]);
    bench.receive(1, 0, MTU);
    for wr_id in 0..3 {
        bench.post(wr_id, SendOp::Send, 0, 100);
    }
    let soon = bench.now.plus_nanos(50_000);
    bench.drive_until(soon);
    assert_eq!(bench.counter(Side::A, "rnr_nak_retry_err"), 1);
    bench.receive(2, 4096, MTU);
    bench.receive(3, 8192, MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A).len(), 3);
    let received: Vec<_> = bench.ended(Side::B);
    assert_eq!(received, [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
}

/// The responder reported that it has a packet, but then could not execute it, and the RNR NAK is lost. The
/// packet is still retransmitted when it is the oldest.
#[test]
fn a_kept_packet_is_sent_again_when_the_rnr_nak_for_it_is_lost() {
    let mut bench = bench();
    let mut lost = [false; 2];
    bench.set_script(move |sent| {
        let syndrome = Datagram::parse(&sent.bytes, &[]).unwrap().aeth().map(|aeth| aeth.syndrome);
        let is_first = sent.from == Side::A && sent.psn.get() == 0x1000;
        let is_rnr = matches!(syndrome, Some(Syndrome::RnrNak { .. }));
        for (hit, lost) in [is_first, is_rnr].into_iter().zip(&mut lost) {
            if hit && !*lost {
                *lost = true;
                return Action::Drop;
            }
        }
        Action::Pass
    });
    bench.receive(1, 0, MTU);
    for wr_id in 0..3 {
        bench.post(wr_id, SendOp::Send, 0, 100);
    }
    let soon = bench.now.plus_nanos(50_000);
    bench.drive_until(soon);
    assert_eq!(bench.counter(Side::B, "out_of_buffer"), 1);
    assert_eq!(bench.counter(Side::A, "rnr_nak_retry_err"), 0);
    bench.receive(2, 4096, MTU);
    bench.receive(3, 8192, MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [0, 1, 2].map(|wr_id| (wr_id, WcStatus::Success)));
    assert_eq!(bench.ended(Side::B), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
}

/// A full window in which some packets were lost opens only after these are retransmitted.
#[test]
fn a_full_window_does_not_hold_back_what_was_lost() {
    for (initial, most) in [(8, 8), (8, 64), (2, 2)] {
        let name = format!("swift:initial_window={initial},max_window={most}");
        let (congestion, _) = Congestion::parse(&name).expect("the name is right");
        let recovery = Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, ..SelectiveRepeat::default() });
        let config = EngineConfig { recovery, congestion, ..EngineConfig::from_number(7) };
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
        bench.packet_time_ns = 30;
        lose(&mut bench, &[0, 20, 21]);
        let write = bench.write(0);
        bench.post(1, write, 0, 40 * MTU);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)], "{name}");
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 3, "{name}");
        assert!(bench.counter(Side::A, "local_ack_timeout_err") <= u64::from(initial == 2), "{name}");
    }
}

#[test]
fn a_lost_retransmission_is_sent_again_after_the_timeout() {
    let mut bench = bench();
    let mut lost = 0;
    bench.set_script(move |sent| {
        if sent.from == Side::A && sent.psn.get() == 0x1005 && lost < 2 {
            lost += 1;
            return Action::Drop;
        }
        Action::Pass
    });
    let write = bench.write(0);
    let begin = bench.now;
    bench.post(1, write, 0, 40 * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 1);
    // Once after the NAK, once after the timeout; a packet that was never reported is retransmitted with it.
    let again = bench.counter(Side::A, "retransmitted_packets");
    assert!((2..=3).contains(&again), "{again} packets again");
    let took = bench.now.since(begin).as_nanos() as u64;
    assert!((320_000..700_000).contains(&took), "{took} ns: the long timeout, of many packets in flight");
}

/// A peer with standard go-back-N never receives the reserved syndrome, and drops it if it does.
#[test]
fn others_see_nothing_of_it() {
    let mut bench = Bench::rc();
    lose(&mut bench, &[3]);
    let write = bench.write(0);
    bench.post(1, write, 0, 10 * MTU);
    bench.drive();
    let reserved = |bench: &Bench| {
        let answers = bench.answers_since(0, Side::B);
        answers.iter().filter(|answer| answer.syndrome == Some(0x40)).count()
    };
    assert_eq!(reserved(&bench), 0);
    bench.post(2, write, 0, 10 * MTU);
    bench.collect(Side::A);
    let forged = bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, Psn::new(0x1000 + 10)).aeth(0x40, 0x1000 + 12);
    assert_eq!(bench.arrive(Side::A, &forged).0, Verdict::Dropped(DropReason::ReservedSyndrome));
    bench.drive();
    let mut own = self::bench();
    lose(&mut own, &[3]);
    let write = own.write(0);
    own.post(1, write, 0, 10 * MTU);
    own.drive();
    assert!(reserved(&own) > 0);
}

/// READs that are lost with the requests around them: kept packets are executed only once.
#[test]
fn reads_are_lost_with_the_requests_around_them() {
    let mut bench = bench();
    lose(&mut bench, &[1, 2]);
    let (write, read, add) = (bench.write(100_000), bench.read(100_000), bench.fetch_add(8192, 1));
    let data = pattern(4 * MTU);
    bench.host_mut(Side::A).write_memory(0, &data);
    for (wr_id, op, offset, len) in [
        (0, write, 0, 4 * MTU),
        (1, read, 50_000, 4 * MTU),
        (2, add, 4096, 8),
        (3, write, 0, 4 * MTU),
        (4, add, 4096, 8),
    ] {
        bench.post(wr_id, op, offset, len);
    }
    bench.drive();
    assert_eq!(bench.ended(Side::A).len(), 5);
    assert_same(&bench.host(Side::A).read_memory(50_000, data.len()), &data, "what was read");
    assert_eq!(bench.host(Side::B).read_memory(8192, 8), 2_u64.to_ne_bytes());
}

/// At most `cap` packets are outstanding, for which the responder has memory.
#[test]
fn the_cap_bounds_what_is_out() {
    let mut bench = bench();
    bench.set_script(|sent| if sent.from == Side::A { Action::Drop } else { Action::Pass });
    let write = bench.write(0);
    bench.post(1, write, 0, 200 * MTU);
    bench.collect(Side::A);
    assert_eq!(bench.trace(Side::A).len(), 64);
}
