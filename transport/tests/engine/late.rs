//! Selective repeat with `reorder` above 0: packets that others overtook, but too few for them to count as
//! lost. Near the end of a transfer, no others follow.

use crate::common::{Bench, MTU, assert_same, pattern, settings};
use roce_packet::Operation;
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{EngineConfig, QpType, Recovery, Retransmission, SelectiveRepeat, WcStatus};

/// Packets of a message.
const PACKETS: usize = 40;
/// Where the data arrives.
const PLACE: usize = 200_000;

/// Returns a bench whose packets may be overtaken by 20 others, with the default timeouts: 100 us for few
/// packets or late ones, and 320 us. Its round trip is 2 us.
fn bench() -> Bench {
    bench_with(&settings(), EngineConfig::from_number(7).retransmission)
}

fn bench_with(settings: &Settings, retransmission: Retransmission) -> Bench {
    let selective = SelectiveRepeat { cap: 64, reorder: 20, ..SelectiveRepeat::default() };
    let recovery = Recovery::SelectiveRepeat(selective);
    let config = EngineConfig { recovery, retransmission, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, settings, config);
    bench.packet_time_ns = 30;
    for side in [Side::A, Side::B] {
        bench.host_mut(side).write_memory(0, &pattern(PACKETS * MTU));
    }
    bench
}

/// Returns the operation of data packets from this side.
fn data_from(from: Side) -> Operation {
    if from == Side::A { Operation::Write } else { Operation::ReadResponse }
}

/// Transfers the message by a WRITE if `from` is [`Side::A`], otherwise by a READ. Returns the time until the
/// last packet left, in microseconds.
fn transfer(bench: &mut Bench, from: Side) -> u64 {
    let (op, offset) = match from {
        Side::A => (bench.write(PLACE), 0),
        Side::B => (bench.read(0), PLACE),
    };
    let start = bench.now;
    bench.record = true;
    bench.post(1, op, offset, PACKETS * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    let to = if from == Side::A { Side::B } else { Side::A };
    assert_same(&bench.host(to).read_memory(PLACE, PACKETS * MTU), &pattern(PACKETS * MTU), "the message");
    let last = bench.sent.last().expect("packets were sent");
    last.at.since(start).as_nanos() as u64 / 1_000
}

#[test]
fn a_loss_near_the_end_is_found_after_the_short_timeout() {
    let cases: [(&[u32], u64); 4] = [(&[30], 1), (&[36], 1), (&[21, 22, 25, 30, 35, 37], 6), (&[5, 36], 2)];
    for from in [Side::A, Side::B] {
        for (lost, packets) in cases {
            let mut bench = bench();
            bench.once(from, data_from(from), lost, || Action::Drop);
            let took = transfer(&mut bench, from);
            assert!((100..110).contains(&took), "{from:?} {lost:?}: {took} us");
            assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{from:?} {lost:?}");
            let again = bench.counter(Side::A, "retransmitted_packets");
            assert!(again <= packets, "{from:?} {lost:?}: {again} packets");
        }
    }
}

/// Devices have early retransmission, with which neither timeouts nor late packets use up a retry.
#[test]
fn a_loss_near_the_end_uses_up_no_retry_with_early_retransmission() {
    let mut bench = bench_with(&Settings { retry_cnt: 0, ..settings() }, Retransmission::ADAPTIVE);
    bench.once(Side::A, data_from(Side::A), &[21, 30], || Action::Drop);
    let took = transfer(&mut bench, Side::A);
    assert!((100..110).contains(&took), "{took} us");
}

/// Two losses in one episode, of which the second one is late before it counts as lost by number. Its copy
/// has the long timeout, not what was left of the short one.
#[test]
fn the_timer_of_a_late_packet_ends_when_it_is_sent_again() {
    let mut bench = bench();
    // 24 packets overtake the first lost one, and 21 the second one, 90 us after the first did.
    bench.packet_time_ns = 4_300;
    let mut copies = [0; 2];
    bench.set_script(move |sent| {
        let lost = [0, 12].iter().position(|lost| sent.psn.get() == 0x1000 + lost && sent.from == Side::A);
        let Some(lost) = lost else { return Action::Pass };
        copies[lost] += 1;
        match copies[lost] {
            1 => Action::Drop,
            _ => Action::Delay(if lost == 1 { 50_000 } else { 0 }),
        }
    });
    transfer(&mut bench, Side::A);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// Nothing overtakes the last packet. For a WRITE, the 24 packets after the last acknowledgement are in
/// flight when the timer starts; for a READ, only this one.
#[test]
fn a_loss_at_the_very_end_needs_a_timeout() {
    for (from, least) in [(Side::A, 320), (Side::B, 100)] {
        let mut bench = bench();
        bench.once(from, data_from(from), &[39], || Action::Drop);
        let took = transfer(&mut bench, from);
        assert!((least..least + 20).contains(&took), "{from:?}: {took} us");
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 1, "{from:?}");
    }
}

#[test]
fn what_is_late_for_less_than_the_timeout_is_not_sent_again() {
    for from in [Side::A, Side::B] {
        let mut bench = bench();
        bench.once(from, data_from(from), &[25, 38], || Action::Delay(90_000));
        let took = transfer(&mut bench, from);
        assert!(took < 100, "{from:?}: {took} us");
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 0, "{from:?}");
    }
}

/// The packet that is sent again has the long timeout: it may wait in the queue in which others were lost.
#[test]
fn what_is_lost_twice_needs_the_long_timeout() {
    let mut bench = bench();
    let mut copies = 0;
    bench.set_script(move |sent| {
        let is_it = sent.from == Side::A && sent.psn.get() == 0x1000 + 30;
        copies += u32::from(is_it);
        if is_it && copies <= 2 { Action::Drop } else { Action::Pass }
    });
    let took = transfer(&mut bench, Side::A);
    assert!((420..430).contains(&took), "{took} us");
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 1);
}
