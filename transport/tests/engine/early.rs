//! Early retransmission in virtual time: probes, the minimum of the local ACK timeout, and pauses of this
//! process.

use std::time::Duration;

use crate::common::{Bench, MTU, settings};
use roce_packet::{Opcode, Psn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{EngineConfig, Instant, QpState, QpType, Recovery, Retransmission, SendOp, WcStatus};

/// The minimum time before the first probe.
const FIRST_PROBE: u64 = 4_096 << 10;
/// The minimum local ACK timeout.
const FLOOR: u64 = 4_096 << 17;

fn bench(settings: &Settings) -> Bench {
    bench_with(settings, Recovery::GoBackN)
}

fn bench_with(settings: &Settings, recovery: Recovery) -> Bench {
    let retransmission = Retransmission::ADAPTIVE;
    Bench::with_config(
        QpType::Rc,
        settings,
        EngineConfig { recovery, retransmission, ..EngineConfig::from_number(7) },
    )
}

/// Returns a bench whose side A has measured the round trip.
fn warm(settings: &Settings) -> Bench {
    let mut bench = bench(settings);
    for wr_id in 100..110 {
        let write = bench.write(0);
        bench.post(wr_id, write, 0, 8);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(wr_id, WcStatus::Success)]);
    }
    bench
}

/// Drops the packets of A with these indices, counted from now.
fn lose(bench: &mut Bench, lost: impl Fn(usize) -> bool + 'static) {
    let begin = bench.sent.iter().filter(|sent| sent.from == Side::A).count();
    bench.set_script(move |sent| match sent.from {
        Side::A if sent.index >= begin && lost(sent.index - begin) => Action::Drop,
        _ => Action::Pass,
    });
}

/// Returns the nanoseconds until the last packet arrived. Expired deadlines may come later without any
/// effect.
fn took(bench: &Bench, begin: Instant) -> u64 {
    bench.sent.last().map_or(0, |sent| sent.at.since(begin).as_nanos() as u64 + bench.link_delay_ns)
}

fn times(bench: &Bench, after: Instant) -> Vec<(u64, Psn)> {
    let sent = bench.sent.iter().filter(|sent| sent.from == Side::A && sent.at >= after);
    sent.map(|sent| (sent.at.since(after).as_nanos() as u64, sent.psn)).collect()
}

/// ```text
/// A  WRITE, 10 packets -> the last ones are lost
///    ... the round trip, its variation, 4 ms at least ...
///    the newest packet ->
///         <- NAK: what is missing     (or ACK, if that was the only one)
///    all that is missing ->
///         <- ACK
/// ```
#[test]
fn a_lost_tail_is_repaired_soon_and_uses_up_no_retry_for_the_probe() {
    for lost in 1..=10 {
        let mut bench = warm(&Settings { timeout: 14, retry_cnt: 1, ..settings() });
        lose(&mut bench, move |index| (10 - lost..10).contains(&index));
        let begin = bench.now;
        let write = bench.write(0);
        bench.post(1, write, 0, 10 * MTU);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)], "{lost}");
        let took = took(&bench, begin);
        assert!((FIRST_PROBE..FIRST_PROBE + 1_000_000).contains(&took), "{lost}: {took} ns");
        assert_eq!(bench.counter(Side::A, "roce_adp_retrans"), 1);
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
        // If only the newest packet is missing, its probe suffices.
        let repeated = if lost == 1 { 1 } else { 1 + lost as u64 };
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), repeated, "{lost}");
    }
}

/// Without probes, recovery takes the whole timeout, which is 67 ms with the default of most programs.
#[test]
fn exactly_the_standard_waits_for_the_timeout() {
    let mut bench = Bench::new(QpType::Rc, &Settings { timeout: 14, ..settings() });
    lose(&mut bench, |index| index == 9);
    let begin = bench.now;
    let write = bench.write(0);
    bench.post(1, write, 0, 10 * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    let took = took(&bench, begin);
    assert!((4_096 << 14..(4_096 << 14) + 1_000_000).contains(&took), "{took} ns");
    assert_eq!(bench.counter(Side::A, "roce_adp_retrans"), 0);
}

/// The last packet of a request or of its answer is lost: the requester probes for it, whatever the
/// operation.
#[test]
fn every_kind_of_request_is_probed() {
    let atomic = |bench: &Bench| match bench.write(0) {
        SendOp::Write { remote_addr, rkey } => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        _ => unreachable!("a WRITE"),
    };
    // The operation, its length, and the packets of the request and of the answer.
    type Make = fn(&Bench) -> SendOp;
    let kinds: [(Make, usize, usize, usize); 4] = [
        (|_| SendOp::Send, 5 * MTU, 5, 1),
        (|bench| bench.write(0), 5 * MTU, 5, 1),
        (|bench| bench.read(0), 5 * MTU, 1, 5),
        (atomic, 8, 1, 1),
    ];
    for (number, (op, len, request, answer)) in (0..).zip(kinds) {
        for (side, packets) in [(Side::A, request), (Side::B, answer)] {
            let mut bench = warm(&Settings { timeout: 14, retry_cnt: 0, ..settings() });
            bench.receive(1, 0, 8 * MTU);
            let op = op(&bench);
            let before = bench.sent.iter().filter(|sent| sent.from == side).count();
            let lost = before + packets - 1;
            bench.set_script(move |sent| match sent.from == side && sent.index == lost {
                true => Action::Drop,
                false => Action::Pass,
            });
            bench.post(1, op, 0, len);
            bench.drive();
            let case = format!("operation {number}, lost on the way from {side:?}");
            assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)], "{case}");
            assert_eq!(bench.counter(Side::A, "roce_adp_retrans"), 1, "{case}");
            assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{case}");
        }
    }
}

/// A responder reports a gap once. If that NAK is lost, a probe with the newest packet gets no answer, but
/// one with the oldest packet does.
#[test]
fn a_lost_nak_is_made_up_for() {
    let mut bench = warm(&Settings { timeout: 14, retry_cnt: 1, ..settings() });
    let begin = [Side::A, Side::B].map(|side| bench.sent.iter().filter(|sent| sent.from == side).count());
    bench.set_script(move |sent| match sent.from {
        Side::A if sent.index == begin[0] => Action::Drop,
        Side::B if sent.index == begin[1] => Action::Drop,
        _ => Action::Pass,
    });
    let start = bench.now;
    let write = bench.write(0);
    bench.post(1, write, 0, 10 * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    // The newest packet is sent after 4 ms, the oldest 8 ms later, and the newest again 17 ms after its
    // answer.
    let took = took(&bench, start);
    assert!((7 * FIRST_PROBE..8 * FIRST_PROBE).contains(&took), "{took} ns");
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// If a peer is gone, the requester fails after `retry_cnt` + 1 intervals of 537 ms. Each interval has seven
/// probes, which use no retry.
#[test]
fn the_loss_of_a_peer_is_noticed_after_a_known_time() {
    for (timeout, retry_cnt) in [(8, 2), (14, 7), (17, 0), (18, 7)] {
        let mut bench = warm(&Settings { timeout, retry_cnt, ..settings() });
        bench.set_script(|_| Action::Drop);
        let begin = bench.now;
        let write = bench.write(0);
        bench.post(1, write, 0, 8);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::RetryExceededError)]);
        let interval = FLOOR.max(4_096 << timeout);
        let took = bench.now.since(begin).as_nanos() as u64;
        assert_eq!(took, u64::from(retry_cnt + 1) * interval, "timeout {timeout}, retry_cnt {retry_cnt}");
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), u64::from(retry_cnt));
        let sent: Vec<_> =
            times(&bench, begin).iter().map(|(at, _)| *at).take_while(|at| *at < interval).collect();
        // 4, 12, 28, ... ms: each wait is twice as long as the previous one.
        assert_eq!(sent[0], 0);
        let waits: Vec<_> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((FIRST_PROBE..FIRST_PROBE + 100_000).contains(&waits[0]), "{waits:?}");
        assert!(waits.windows(2).all(|pair| pair[1] == 2 * pair[0]), "{waits:?}");
        // The number of probes that fit into 537 ms, or into 1.07 s.
        assert_eq!(waits.len(), if timeout == 18 { 8 } else { 7 }, "{waits:?}");
    }
}

/// Regression: with timeout 14 and 7 retries, a transfer failed if its peer had no processor for half a
/// second.
#[test]
fn a_peer_without_a_processor_for_four_seconds_is_not_lost() {
    let mut bench = warm(&Settings { timeout: 14, retry_cnt: 7, ..settings() });
    let back = bench.now.plus_nanos(4_000_000_000);
    // Packets that arrive in the meantime wait in the queue of the peer's device.
    bench.set_script(move |sent| match sent.from {
        Side::A if sent.at < back => Action::Delay(back.since(sent.at).as_nanos() as u64),
        _ => Action::Pass,
    });
    let write = bench.write(0);
    bench.post(1, write, 0, 200 * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.state(Side::A), QpState::Rts);
}

/// The first probe waits for the measured round trip, here that of a slow peer.
#[test]
fn the_first_probe_waits_for_the_measured_round_trip() {
    let mut bench = bench(&Settings { timeout: 20, ..settings() });
    bench.link_delay_ns = 10_000_000;
    let write = bench.write(0);
    for wr_id in 0..40 {
        bench.post(wr_id, write, 0, 8);
        bench.drive();
    }
    assert_eq!(bench.ended(Side::A).len(), 40);
    let probes = bench.counter(Side::A, "roce_adp_retrans");
    assert!(probes <= 3, "{probes} probes, before the round trip of 20 ms was known");
    bench.set_script(|_| Action::Drop);
    let begin = bench.now;
    bench.post(50, write, 0, 8);
    bench.drive_until(begin.plus_nanos(100_000_000));
    let second = times(&bench, begin)[1].0;
    assert!((20_000_000 + FIRST_PROBE..40_000_000).contains(&second), "{second} ns");
}

/// A queue pair without a timeout waits forever.
#[test]
fn timeout_0_is_no_timer() {
    let mut bench = bench(&Settings { timeout: 0, ..settings() });
    bench.set_script(|_| Action::Drop);
    let write = bench.write(0);
    bench.post(1, write, 0, 8);
    bench.drive();
    assert_eq!(bench.host(Side::A).engine.poll_timeout(), None);
    assert_eq!(bench.sent.len(), 1);
}

/// The delay that an RNR NAK requests causes no probe.
#[test]
fn a_receiver_that_is_not_ready_is_not_probed() {
    let mut bench = warm(&Settings { timeout: 14, min_rnr_timer: 0, ..settings() });
    bench.post(1, SendOp::Send, 0, 8);
    let soon = bench.now.plus_nanos(100_000_000);
    bench.drive_until(soon);
    bench.receive(1, 0, 64);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::A, "roce_adp_retrans"), 0);
    let sends = bench.sent.iter().filter(|sent| sent.opcode == Opcode::RC_SEND_ONLY).count();
    assert_eq!(sends, 2);
}

/// Regression: selective repeat counted its 100 µs timeouts as retries, so a peer had to answer within 1 ms.
#[test]
fn selective_repeat_times_out_early_and_often_without_using_up_retries() {
    let recovery = Recovery::SelectiveRepeat(roce_transport::SelectiveRepeat::default());
    let mut bench = bench_with(&Settings { timeout: 14, retry_cnt: 7, ..settings() }, recovery);
    let back = bench.now.plus_nanos(1_000_000_000);
    bench.set_script(move |sent| match sent.from {
        Side::A if sent.at < back => Action::Drop,
        _ => Action::Pass,
    });
    let begin = bench.now;
    let write = bench.write(0);
    bench.post(1, write, 0, 10 * MTU);
    bench.drive_until(begin.plus_nanos(50_000_000));
    let second = times(&bench, begin).iter().map(|(at, _)| *at).find(|at| *at > 0);
    assert_eq!(second, Some(320_000), "the longer timeout, for more than a few packets");
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
}

/// The process is stopped for ten minutes just after the request leaves. When the process runs again, the
/// peer gets the whole timeout.
#[test]
fn time_in_which_this_process_did_not_run_does_not_count() {
    for reported in [false, true] {
        let mut bench = warm(&Settings { timeout: 17, retry_cnt: 0, ..settings() });
        bench.set_script(|_| Action::Drop);
        let write = bench.write(0);
        bench.post(1, write, 0, 8);
        bench.collect(Side::A);
        let now = bench.now.plus_nanos(600_000_000_000);
        bench.now = now;
        let engine = &mut bench.host_mut(Side::A).engine;
        if reported {
            engine.handle_timeout(now, Duration::from_secs(600));
        }
        engine.handle_timeout(now, Duration::ZERO);
        assert_eq!(bench.counter(Side::A, "timer_pauses"), u64::from(reported));
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::RetryExceededError)]);
        let took = bench.now.since(now).as_nanos() as u64;
        assert_eq!(took, if reported { FLOOR } else { 0 });
    }
}

/// A process runs only 1 ms in 200 ms. Its peer still gets the whole timeout in time in which the process can
/// see the answer.
#[test]
fn a_process_that_hardly_runs_gives_its_peer_time() {
    let run = |reports: bool| {
        let mut bench = warm(&Settings { timeout: 17, retry_cnt: 0, ..settings() });
        bench.set_script(|_| Action::Drop);
        let begin = bench.now;
        let write = bench.write(0);
        bench.post(1, write, 0, 8);
        loop {
            let wake = bench.now.plus_nanos(200_000_000);
            bench.now = wake;
            let engine = &mut bench.host_mut(Side::A).engine;
            if reports {
                engine.handle_timeout(wake, Duration::from_millis(199));
            }
            engine.handle_timeout(wake, Duration::ZERO);
            let run_until = bench.now.plus_nanos(1_000_000);
            bench.drive_until(run_until);
            if !bench.ended(Side::A).is_empty() {
                return bench.now.since(begin).as_millis();
            }
        }
    };
    let (without, with) = (run(false), run(true));
    assert!(without < 1_000, "{without} ms");
    // At least an eighth of the time counts, so that the loss of a peer is detected at all.
    assert!((3_800..5_000).contains(&with), "{with} ms");
}
