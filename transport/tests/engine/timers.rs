//! Timers in virtual time: RNR delays, retry counts, and the time until a failure is detected (sections 5.6
//! and 5.7 of the protocol description).

use crate::common::{Bench, settings};
use roce_packet::Opcode;
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{Instant, QpState, QpType, SendOp, WcStatus};

/// The delays of section 5.6 by code, in units of 10 microseconds.
const RNR_DELAYS: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// Returns the times at which packets with this opcode left this side.
fn times(bench: &Bench, from: Side, opcode: Opcode) -> Vec<Instant> {
    let packets = bench.sent.iter().filter(|sent| sent.from == from && sent.opcode == opcode);
    packets.map(|sent| sent.at).collect()
}

/// ```text
/// A  SEND -> B
///         <- RNR NAK, code c
///    ... at least delay(c) ...
///    SEND ->
///         <- ACK
/// ```
#[test]
fn all_32_rnr_timers_are_honoured() {
    for code in 0..32_u8 {
        let delay = RNR_DELAYS[usize::from(code)] * 10_000;
        let mut bench = Bench::new(QpType::Rc, &Settings { min_rnr_timer: code, ..settings() });
        bench.post(1, SendOp::Send, 0, 8);
        // The receive is posted while the requester waits.
        let soon = bench.now.plus_nanos(2_000);
        bench.drive_until(soon);
        bench.receive(1, 0, 64);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
        let sent = times(&bench, Side::A, Opcode::RC_SEND_ONLY);
        let nak = times(&bench, Side::B, Opcode::RC_ACKNOWLEDGE)[0].plus_nanos(bench.link_delay_ns);
        assert_eq!(sent.len(), 2, "code {code}");
        let waited = sent[1].since(nak).as_nanos() as u64;
        assert!(waited >= delay, "code {code}: {waited} ns are earlier than {delay} ns");
        assert!(waited <= delay + delay / 100, "code {code}: {waited} ns are much later than {delay} ns");
        assert_eq!(bench.counter(Side::A, "rnr_nak_retry_err"), 1);
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "the other timer stands still");
    }
}

#[test]
fn rnr_retry_counts_0_to_6() {
    for rnr_retry in 0..=6 {
        let mut bench = Bench::new(QpType::Rc, &Settings { rnr_retry, ..settings() });
        bench.post(1, SendOp::Send, 0, 8);
        bench.post(2, SendOp::Send, 0, 8);
        bench.drive();
        let expected = [(1, WcStatus::RnrRetryExceededError), (2, WcStatus::WrFlushError)];
        assert_eq!(bench.ended(Side::A), expected);
        assert_eq!(bench.state(Side::A), QpState::Err);
        // The requester retries after the first `rnr_retry` NAKs. Both SENDs are sent each time.
        let naks = times(&bench, Side::B, Opcode::RC_ACKNOWLEDGE);
        assert_eq!(naks.len(), usize::from(rnr_retry) + 1);
        assert_eq!(bench.counter(Side::A, "rnr_nak_retry_err"), u64::from(rnr_retry));
        assert_eq!(bench.counter(Side::A, "req_rnr_retries_exceeded"), 1);
        assert_eq!(bench.counter(Side::A, "req_transport_retries_exceeded"), 0);
    }
}

#[test]
fn rnr_retry_7_never_gives_up() {
    let mut bench = Bench::new(QpType::Rc, &Settings { rnr_retry: 7, min_rnr_timer: 1, ..settings() });
    bench.post(1, SendOp::Send, 0, 8);
    let later = bench.now.plus_nanos(1_000_000_000);
    assert!(!bench.drive_until(later), "it goes on for a second");
    assert!(bench.counter(Side::A, "rnr_nak_retry_err") > 50_000);
    bench.receive(1, 0, 64);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
}

/// An RNR NAK that the network duplicates counts once: it uses one retry and starts one delay.
#[test]
fn a_doubled_rnr_nak_counts_once() {
    let mut bench = Bench::new(QpType::Rc, &Settings { rnr_retry: 1, ..settings() });
    bench.set_script(|sent| if sent.from == Side::B { Action::Duplicate } else { Action::Pass });
    bench.post(1, SendOp::Send, 0, 8);
    let soon = bench.now.plus_nanos(5_000);
    bench.drive_until(soon);
    bench.receive(1, 0, 64);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::A, "rnr_nak_retry_err"), 1);
    assert_eq!(times(&bench, Side::A, Opcode::RC_SEND_ONLY).len(), 2);
}

/// If the peer is gone, the requester sends `retry_cnt` + 1 times and then fails, after between 1 and 4 times
/// (retry_cnt + 1) T.
#[test]
fn retry_counts_and_detection_time() {
    for timeout in [1_u8, 4, 8, 14, 18] {
        for retry_cnt in 0..=7_u8 {
            let mut bench = Bench::new(QpType::Rc, &Settings { timeout, retry_cnt, ..settings() });
            bench.set_script(|sent| if sent.from == Side::A { Action::Drop } else { Action::Pass });
            let begin = bench.now;
            let write = bench.write(0);
            bench.post(1, write, 0, 8);
            bench.drive();
            assert_eq!(bench.ended(Side::A), [(1, WcStatus::RetryExceededError)]);
            let sent = times(&bench, Side::A, Opcode::RC_RDMA_WRITE_ONLY);
            assert_eq!(sent.len(), usize::from(retry_cnt) + 1, "timeout {timeout}, retry_cnt {retry_cnt}");
            let interval = 4_096_u64 << timeout;
            let least = u64::from(retry_cnt + 1) * interval;
            let took = bench.now.since(begin).as_nanos() as u64;
            assert!((least..=4 * least).contains(&took), "{took} ns, {least} ns are nominal");
            assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), u64::from(retry_cnt));
            assert_eq!(bench.counter(Side::A, "req_transport_retries_exceeded"), 1);
        }
    }
}

#[test]
fn every_timeout_exponent() {
    for timeout in 1..=31 {
        let mut bench = Bench::new(QpType::Rc, &Settings { timeout, ..settings() });
        bench.set_script(|_| Action::Drop);
        let begin = bench.now;
        let write = bench.write(0);
        bench.post(1, write, 0, 8);
        bench.collect(Side::A);
        let interval = 4_096_u64 << timeout;
        let before = begin.plus_nanos(interval - 1);
        bench.drive_until(before);
        assert_eq!(bench.sent.len(), 1, "timeout {timeout}: not earlier");
        let after = begin.plus_nanos(4 * interval);
        bench.drive_until(after);
        assert!(bench.sent.len() >= 2, "timeout {timeout}: not later than 4 T");
    }
}

/// Timeout 0 disables the timer: a lost packet is not repeated, and no error is reported.
#[test]
fn timeout_0_is_no_timer() {
    let mut bench = Bench::new(QpType::Rc, &Settings { timeout: 0, ..settings() });
    bench.set_script(|_| Action::Drop);
    let write = bench.write(0);
    bench.post(1, write, 0, 8);
    bench.drive();
    assert_eq!(bench.host(Side::A).engine.poll_timeout(), None);
    assert_eq!(bench.sent.len(), 1);
    assert_eq!(bench.ended(Side::A), []);
    // A later request recovers the lost one: the NAK for the gap says which packet is missing.
    bench.set_script(|_| Action::Pass);
    bench.post(2, write, 0, 8);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

/// With one retry, ten requests that each lose their first packet all succeed: progress resets the retry
/// count.
#[test]
fn progress_reloads_retry_cnt() {
    let mut bench = Bench::new(QpType::Rc, &Settings { retry_cnt: 1, ..settings() });
    let mut last = None;
    bench.set_script(move |sent| {
        let is_new = sent.from == Side::A && last != Some(sent.psn);
        if is_new {
            last = Some(sent.psn);
            return Action::Drop;
        }
        Action::Pass
    });
    for wr_id in 0..10 {
        let write = bench.write(0);
        bench.post(wr_id, write, 0, 8);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(wr_id, WcStatus::Success)]);
    }
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 10);
}

/// Two losses without progress between them fail: timeouts and NAKs use the same retry count.
#[test]
fn retry_cnt_is_spent_by_timeouts_and_naks_together() {
    let mut bench = Bench::new(QpType::Rc, &Settings { retry_cnt: 1, ..settings() });
    // Packet 0 never arrives. Packet 1 arrives once, so that a NAK is sent; all later packets are lost.
    bench.set_script(|sent| match (sent.from, sent.index) {
        (Side::A, 1) | (Side::B, _) => Action::Pass,
        _ => Action::Drop,
    });
    let write = bench.write(0);
    bench.post(1, write, 0, 8);
    bench.post(2, write, 0, 8);
    bench.drive();
    let expected = [(1, WcStatus::RetryExceededError), (2, WcStatus::WrFlushError)];
    assert_eq!(bench.ended(Side::A), expected);
    assert_eq!(bench.counter(Side::A, "packet_seq_err"), 1);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// RNR NAKs do not use `retry_cnt`, timeouts do not use `rnr_retry`, and progress resets the latter.
#[test]
fn the_two_counts_are_independent_and_rnr_reloads() {
    let settings = Settings { retry_cnt: 0, rnr_retry: 1, min_rnr_timer: 20, ..settings() };
    let mut bench = Bench::new(QpType::Rc, &settings);
    for wr_id in 0..10 {
        bench.post(wr_id, SendOp::Send, 0, 8);
        let soon = bench.now.plus_nanos(5_000);
        bench.drive_until(soon);
        bench.receive(wr_id, 0, 64);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(wr_id, WcStatus::Success)], "{wr_id}");
    }
    assert_eq!(bench.counter(Side::A, "rnr_nak_retry_err"), 10);

    let settings = Settings { retry_cnt: 7, rnr_retry: 0, ..settings };
    let mut bench = Bench::new(QpType::Rc, &settings);
    bench.receive(1, 0, 64);
    bench.set_script(|sent| if sent.from == Side::A && sent.index < 5 { Action::Drop } else { Action::Pass });
    bench.post(1, SendOp::Send, 0, 8);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 5);
}

/// Progress restarts the timer: the second request has a whole interval of its own.
#[test]
fn progress_restarts_the_timer() {
    let mut bench = Bench::new(QpType::Rc, &Settings { timeout: 10, ..settings() });
    let interval = 4_096_u64 << 10;
    // The first acknowledgement takes nine tenths of an interval; the second request is lost once.
    bench.set_script(move |sent| match (sent.from, sent.index) {
        (Side::B, 0) => Action::Delay(interval / 10 * 9),
        (Side::A, 1) => Action::Drop,
        _ => Action::Pass,
    });
    let begin = bench.now;
    let write = bench.write(0);
    bench.post(1, write, 0, 8);
    bench.post(2, write, 0, 8);
    bench.drive();
    let sent = times(&bench, Side::A, Opcode::RC_RDMA_WRITE_ONLY);
    assert_eq!(sent.len(), 3);
    let waited = sent[2].since(begin).as_nanos() as u64;
    assert!(waited >= interval / 10 * 19, "{waited} ns, an interval is {interval} ns");
    assert!(waited <= interval * 2);
}

/// Each round delivers a little more of a message of ten packets. An acknowledgement in the middle of the
/// message is progress, so two retries suffice for all rounds.
///
/// ```text
/// round 0: 0 arrives, nobody asked for an answer        timeout
/// round 1: 0 again asks for one, 1 arrives: ACK 1       timeout
/// round 2: 2 comes first now and asks for one: ACK 2    timeout
/// round 3: 3 comes first now and asks for one: ACK 3    ...
/// ```
#[test]
fn partial_acknowledgement_is_progress() {
    let mut bench = Bench::new(QpType::Rc, &Settings { retry_cnt: 2, ..settings() });
    let (mut round, mut last) = (0, None);
    bench.set_script(move |sent| {
        if sent.from == Side::B {
            return Action::Pass;
        }
        let index = sent.psn.get() - 0x1000;
        if last.is_some_and(|last| index <= last) {
            round += 1;
        }
        last = Some(index);
        if index <= round { Action::Pass } else { Action::Drop }
    });
    let write = bench.write(0);
    bench.post(1, write, 0, 10 * crate::common::MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert!(bench.counter(Side::A, "local_ack_timeout_err") > 4, "more rounds than retries");
}

/// Each timeout uses up a retry, and the pause of an RNR NAK replaces the local ACK timeout.
#[test]
fn retries_and_deadlines_can_be_read() {
    let with = Settings { timeout: 8, retry_cnt: 3, rnr_retry: 2, ..settings() };
    let mut bench = Bench::new(QpType::Rc, &with);
    let of = |bench: &Bench| {
        let state = bench.host(Side::A).engine.rc_state(bench.a).expect("it is RC");
        (state.retries, state.timers)
    };
    assert_eq!(of(&bench), ([3, 2], [None, None]));
    bench.set_script(|_| Action::Drop);
    bench.post(1, SendOp::Send, 0, 8);
    bench.step_event();
    let deadline = bench.now.plus_nanos(4_096 << 8);
    assert_eq!(of(&bench), ([3, 2], [Some(deadline), None]));
    bench.set_script(|_| Action::Pass);
    while of(&bench).0 == [3, 2] {
        bench.step_event().expect("the timer runs");
    }
    assert_eq!((bench.now, of(&bench).0), (deadline, [2, 2]));
    while of(&bench).1[1].is_none() {
        bench.step_event().expect("the RNR NAK is on its way");
    }
    assert_eq!(of(&bench).0, [2, 1]);
    assert_eq!(of(&bench).1[0], None, "the peer has answered");
    bench.receive(1, 0, 64);
    while bench.step_event().is_some() {}
    assert_eq!(of(&bench), ([3, 2], [None, None]), "progress reloads both");
    let msn = |side, qpn| bench.host(side).engine.rc_state(qpn).map(|state| state.msn.get());
    assert_eq!([msn(Side::A, bench.a), msn(Side::B, bench.b)], [Some(0), Some(1)]);
}
