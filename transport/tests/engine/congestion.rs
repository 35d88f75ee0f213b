//! Congestion control in the engine: marks, notifications and pacing between two engines in virtual time.

use std::time::Duration;

use crate::common::bottleneck::Bottleneck;
use crate::common::{Bench, MTU, address, settings};
use roce_packet::{Cnp, Datagram, Ecn, Envelope, Opcode, Path, PathMtu, Psn, Qpn};
use roce_sim::pair::{Action, Settings, Side, bring_up_attributes};
use roce_transport::congestion::{
    Ack, Algorithm, CnpScope, Congestion, CongestionControl, DcqcnParameters, NotificationPoint, Rate,
};
use roce_transport::{
    DropReason, EngineConfig, Instant, Pacing, QpAttr, QpState, QpType, Recovery, SelectiveRepeat, SendOp,
    SendWr, Verdict,
};

fn fixed(megabits: u64) -> Congestion {
    Congestion::new(Algorithm::Fixed(Rate::megabits_per_second(megabits)))
}

fn dcqcn(name: &str) -> Congestion {
    Congestion::new(Algorithm::Dcqcn(DcqcnParameters::preset(name).expect("the preset exists")))
}

fn config(congestion: Congestion) -> EngineConfig {
    EngineConfig { congestion, ..EngineConfig::from_number(7) }
}

fn rate(bench: &Bench, side: Side) -> f64 {
    let engine = &bench.host(side).engine;
    engine.congestion(bench.now, bench.qpn(side)).expect("there is a congestion control").rate
}

/// Returns the departure times of data packets, with their bytes on the wire.
fn departures(bench: &Bench, from: Side) -> Vec<(u64, u64)> {
    let data = bench.sent.iter().filter(|sent| sent.from == from && sent.bytes.len() > 100);
    data.map(|sent| (sent.at.as_nanos(), sent.bytes.len() as u64 + 66)).collect()
}

/// Returns a notification for the queue pair of `to`, as its peer would send it.
fn notification(bench: &Bench, to: Side) -> Vec<u8> {
    let mut bytes = [0; Cnp::LEN];
    let path = Cnp::path(&bench.path(to), 48, 6);
    Cnp { dest_qp: bench.qpn(to), p_key: 0xffff }.emit(&Envelope::new(&path, 0), &mut bytes);
    bytes.to_vec()
}

fn notify(bench: &mut Bench, to: Side) -> Verdict {
    let bytes = notification(bench, to);
    let path = Cnp::path(&bench.path(to), 48, 6);
    bench.inject(to, path, &bytes)
}

/// Delivers a marked packet with the expected PSN to B.
fn arrive_marked(bench: &mut Bench) -> Verdict {
    let mut forge = bench.forge(Side::B, Opcode::RC_SEND_ONLY, bench.expected(Side::B)).payload(&[1; 8]);
    forge.path = forge.path.with_ecn(Ecn::CongestionExperienced);
    bench.arrive(Side::B, &forge).0
}

#[test]
fn packets_are_spaced_within_one_packet_of_the_rate() {
    for gigabits in [1, 10, 40, 100] {
        for burst in [0, 16_384] {
            let mut config = config(fixed(gigabits * 1000));
            config.max_outstanding_packets = 1 << 20;
            config.pacing = Pacing { burst, preamble: true, after_loss: true };
            let mut bench = Bench::with_config(
                QpType::Rc,
                &Settings { mtu: PathMtu::Mtu1024, ..Settings::default() },
                config,
            );
            bench.link_delay_ns = 500;
            let write = bench.write(0);
            for wr_id in 0..16 {
                bench.post(wr_id, write, 0, 1 << 20);
            }
            let begin = bench.now;
            assert!(
                !bench.drive_until(begin.plus_nanos(1_000_000)),
                "there is more than a millisecond to send"
            );
            let ideal = gigabits * 1_000_000 / 8;
            let sent: u64 = departures(&bench, Side::A).iter().map(|(_, bytes)| bytes).sum();
            assert!(sent.abs_diff(ideal) <= 1_126, "{gigabits} Gb/s: {sent} of {ideal} bytes");
            // No packet leaves before the debt of the earlier packets is paid, to the nanosecond.
            let mut paid_at = 0.0_f64;
            for (at, bytes) in departures(&bench, Side::A) {
                let elapsed = (at - begin.as_nanos()) as f64;
                assert!(elapsed + 1e-6 >= paid_at, "{gigabits} Gb/s: {elapsed} before {paid_at}");
                paid_at += bytes as f64 * 8.0 / gigabits as f64;
            }
            assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 0);
        }
    }
}

#[test]
fn after_a_pause_the_burst_is_bounded() {
    let mut config = config(fixed(1_000));
    config.pacing = Pacing { burst: 3_000, preamble: true, after_loss: true };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.now = bench.now.plus_nanos(1_000_000_000);
    let write = bench.write(0);
    bench.post(0, write, 0, 100 * MTU);
    let begin = bench.now;
    bench.drive();
    let at_once: Vec<_> =
        departures(&bench, Side::A).into_iter().filter(|(at, _)| *at == begin.as_nanos()).collect();
    let bytes: u64 = at_once.iter().map(|(_, bytes)| bytes).sum();
    assert!((3_000..3_000 + 2 * (MTU as u64 + 98)).contains(&bytes), "{bytes} bytes at once");
}

/// A queue pair that must wait is on the timer, and the engine is not called in between.
#[test]
fn a_queue_pair_that_waits_is_parked() {
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(fixed(1)));
    let write = bench.write(0);
    bench.post(0, write, 0, 64 * MTU);
    let mut steps = 0;
    while bench.step() {
        steps += 1;
    }
    // 64 packets leave and arrive, acknowledgements come back, and there is one check after the last packet.
    assert!(steps <= 64 * 2 + 4, "{steps} steps");
    assert_eq!(bench.ended(Side::A).len(), 1);
    assert!(bench.now.since(Instant::ZERO) > Duration::from_millis(100), "at 1 Mb/s it takes its time");
    assert_eq!(
        bench.counter(Side::A, "local_ack_timeout_err"),
        0,
        "waiting for one's own turn is no timeout"
    );
}

#[test]
fn uc_and_read_responses_are_spaced_too() {
    let mut bench = Bench::with_config(QpType::Uc, &settings(), config(fixed(1_000)));
    let write = bench.write(0);
    bench.post(0, write, 0, 400 * MTU);
    let begin = bench.now;
    bench.drive();
    let ideal = 400 * (MTU + 82) as u64 * 8;
    let took = bench.sent.last().expect("packets were sent").at.since(begin).as_nanos() as u64;
    // The packets that may leave at once are free.
    assert!((ideal - 140_000..ideal + 20_000).contains(&took), "{took} ns instead of {ideal}");

    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(fixed(1_000)));
    let read = bench.read(0);
    bench.post(0, read, 0, 400 * MTU);
    let begin = bench.now;
    bench.drive();
    let responses = departures(&bench, Side::B);
    assert_eq!(responses.len(), 400);
    let took = responses[399].0 - begin.as_nanos();
    assert!((ideal - 140_000..ideal + 40_000).contains(&took), "{took} ns instead of {ideal}");
}

#[test]
fn data_is_sent_as_ecn_capable_only_under_control() {
    for (congestion, expected) in [(fixed(1_000), Ecn::Capable0), (Congestion::none(), Ecn::NotCapable)] {
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config(congestion));
        let engine = &bench.host(Side::A).engine;
        let attributes = engine.query_qp(bench.a).expect("it exists");
        let path = bench.path(Side::A).with_ecn(Ecn::NotCapable);
        let mut attr = QpAttr::to_state(QpState::Reset);
        let (now, a) = (bench.now, bench.a);
        let engine = &mut bench.host_mut(Side::A).engine;
        engine.modify_qp(now, a, &attr).unwrap();
        attr = QpAttr::to_state(QpState::Init);
        (attr.port, attr.pkey_index, attr.access) = (Some(1), Some(0), Some(attributes.access));
        engine.modify_qp(now, a, &attr).unwrap();
        attr = QpAttr::to_state(QpState::Rtr);
        attr.path = Some(path);
        attr.path_mtu = Some(attributes.path_mtu);
        attr.dest_qpn = Some(attributes.dest_qpn);
        attr.rq_psn = Some(attributes.rq_psn);
        attr.max_dest_rd_atomic = Some(1);
        attr.min_rnr_timer = Some(attributes.min_rnr_timer);
        engine.modify_qp(now, a, &attr).unwrap();
        let path = engine.query_qp(a).and_then(|attributes| attributes.path).expect("it was set");
        assert_eq!(path.ecn(), expected);
    }
}

#[test]
fn marks_are_answered_with_notifications_as_hardware_sends_them() {
    let mut bench = Bench::rc();
    bench.receive(1, 0, 64);
    assert_eq!(arrive_marked(&mut bench), Verdict::Handled);
    let sent = bench.sent.iter().find(|sent| sent.opcode == Opcode::CNP).expect("a notification");
    assert_eq!(sent.index, 0, "it leaves before everything else");
    assert_eq!((sent.dest_qp, sent.psn), (bench.a, Psn::new(0)));
    assert_eq!(sent.bytes.len(), Cnp::LEN);
    let datagram = Datagram::parse(&sent.bytes, &[]).unwrap();
    assert!(roce_packet::CnpDeviations::of(&datagram).is_empty());
    assert_eq!((sent.path.dscp(), sent.path.ecn()), (48, Ecn::Capable0));
    assert_eq!(bench.counter(Side::B, "np_ecn_marked_roce_packets"), 1);
    assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 1);
}

/// The data came over many routers; the hop limit of the notification is that of its own sender.
#[test]
fn notifications_have_the_hop_limit_of_their_sender() {
    for (qp_type, expected) in [(QpType::Rc, 99), (QpType::Uc, 99), (QpType::Ud, 64)] {
        let mut bench = Bench::new(qp_type, &settings());
        if qp_type != QpType::Ud {
            let (a, b) = (bench.a, bench.b);
            let path = Path { hop_limit: 99, ..bench.path(Side::B) };
            let now = bench.now;
            let engine = &mut bench.host_mut(Side::B).engine;
            engine.modify_qp(now, b, &QpAttr::to_state(QpState::Reset)).unwrap();
            for (_, attributes) in bring_up_attributes(qp_type, Side::B, path, a, &settings()) {
                engine.modify_qp(now, b, &attributes).unwrap();
            }
        }
        bench.receive(1, 0, 256);
        let opcode = match qp_type {
            QpType::Rc => Opcode::RC_SEND_ONLY,
            QpType::Uc => Opcode::UC_SEND_ONLY,
            _ => Opcode::UD_SEND_ONLY,
        };
        let mut forge = bench.forge(Side::B, opcode, bench.expected(Side::B)).silent();
        if qp_type == QpType::Ud {
            forge = forge.deth(settings().qkey, bench.a);
        }
        forge = forge.payload(&[1; 8]);
        forge.path = Path { hop_limit: 3, ..forge.path.with_ecn(Ecn::CongestionExperienced) };
        assert_eq!(bench.arrive(Side::B, &forge).0, Verdict::Handled);
        let told: Vec<_> = bench.sent.iter().filter(|sent| sent.opcode == Opcode::CNP).collect();
        assert_eq!(told.len(), 1, "{qp_type:?}");
        assert_eq!(told[0].path.hop_limit, expected, "{qp_type:?}");
    }
}

/// Lets this much time pass, with or without events.
fn wait(bench: &mut Bench, nanos: u64) {
    let next = bench.now.plus_nanos(nanos);
    bench.drive_until(next);
    bench.now = next;
}

/// Returns the times at which notifications left B, in nanoseconds.
fn notifications(bench: &Bench) -> Vec<u64> {
    let all = bench.sent.iter().filter(|sent| sent.opcode == Opcode::CNP && sent.from == Side::B);
    all.map(|sent| sent.at.as_nanos()).collect()
}

#[test]
fn notifications_are_never_closer_than_the_interval() {
    for (interval, delay) in [(4, 0), (50, 0), (50, 55_000), (4, 10_000), (0, 0)] {
        for cnp_scope in [CnpScope::QueuePair, CnpScope::AddressPair, CnpScope::Port] {
            let notification = NotificationPoint {
                min_time_between_cnps: interval,
                cnp_delay: delay,
                cnp_scope,
                ..NotificationPoint::default()
            };
            let config = EngineConfig { notification, ..EngineConfig::from_number(7) };
            let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
            for index in 0..300 {
                bench.receive(index, 0, 64);
                arrive_marked(&mut bench);
                wait(&mut bench, 700 + index * 13 % 900);
                // The device is blocked for a while; pending notifications leave afterwards.
                bench.blocked[Side::B as usize] = (100..200).contains(&index);
                bench.completions(Side::B);
            }
            bench.drive();
            let left = notifications(&bench);
            let (sent, coalesced) =
                (bench.counter(Side::B, "np_cnp_sent"), bench.counter(Side::B, "np_cnp_coalesced"));
            assert_eq!(left.len() as u64, sent);
            assert_eq!(sent + coalesced, 300, "each mark is accounted for");
            for pair in left.windows(2) {
                assert!(pair[1] - pair[0] >= u64::from(interval) * 1000, "{interval} us: {pair:?}");
            }
            let most = if interval == 0 { 300 } else { 350 / u64::from(interval) };
            assert!(sent <= most && sent >= most / 3, "{interval} us, {delay} ns: {sent} notifications");
            if delay > 0 {
                assert!(left[0] >= 1_000_000 + u64::from(delay));
            }
        }
    }
}

/// Two queue pairs of one pair of hosts are marked at the same time.
#[test]
fn the_scope_says_who_shares_a_pace() {
    for (cnp_scope, expected) in [(CnpScope::QueuePair, 2), (CnpScope::AddressPair, 1), (CnpScope::Port, 1)] {
        let notification = NotificationPoint { cnp_scope, ..NotificationPoint::default() };
        let config = EngineConfig { notification, ..EngineConfig::from_number(7) };
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
        let (a, b) = (bench.a, bench.b);
        bench.receive(1, 0, 64);
        arrive_marked(&mut bench);
        (bench.a, bench.b) = bench.pair.connect_with(QpType::Rc, &settings());
        bench.receive(1, 0, 64);
        arrive_marked(&mut bench);
        bench.drive();
        let told: Vec<Qpn> =
            bench.sent.iter().filter(|sent| sent.opcode == Opcode::CNP).map(|sent| sent.dest_qp).collect();
        assert_eq!(told.len(), expected, "{cnp_scope}");
        assert_eq!(told[0], a);
        let _ = b;
    }
}

#[test]
fn without_marks_or_without_data_nobody_is_told() {
    let mut bench = Bench::rc();
    let mut ack = bench.forge(Side::B, Opcode::RC_ACKNOWLEDGE, Psn::new(0)).aeth(0, 0);
    ack.path = ack.path.with_ecn(Ecn::CongestionExperienced);
    bench.arrive(Side::B, &ack);
    let bytes = notification(&bench, Side::B);
    let path = Cnp::path(&bench.path(Side::B), 48, 6).with_ecn(Ecn::CongestionExperienced);
    bench.inject(Side::B, path, &bytes);
    // A packet from another host.
    let mut other = bench.forge(Side::B, Opcode::RC_SEND_ONLY, bench.expected(Side::B)).payload(&[1; 8]);
    other.path = other.path.with_ecn(Ecn::CongestionExperienced);
    other.path.source = std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 77));
    assert_eq!(bench.arrive(Side::B, &other).0, Verdict::Dropped(DropReason::BadAddress));
    bench.drive();
    // None of these packets is proven to be from the peer, so their marks do not count.
    assert_eq!(bench.counter(Side::B, "np_ecn_marked_roce_packets"), 0);
    assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 0);
}

#[test]
fn a_notification_slows_the_queue_pair_it_names() {
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(dcqcn("cx-default")));
    let (a, b) = (bench.a, bench.b);
    let other = bench.pair.connect_with(QpType::Rc, &settings());
    assert_eq!(notify(&mut bench, Side::A), Verdict::Handled);
    let slowed = 100e9 * (1.0 - 1023.0 / 1024.0 / 2.0);
    assert_eq!(rate(&bench, Side::A), slowed);
    (bench.a, bench.b) = other;
    assert_eq!(rate(&bench, Side::A), 100e9, "the other queue pair of the same hosts is as fast as before");
    (bench.a, bench.b) = (a, b);
    assert_eq!(bench.counter(Side::A, "rp_cnp_handled"), 1);
    assert_eq!(bench.counter(Side::A, "rp_cnp_ignored"), 0);
}

#[test]
fn forged_notifications_are_counted_and_change_nothing() {
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(dcqcn("cx-default")));
    // A notification from another host.
    let mut bytes = [0; Cnp::LEN];
    let mut path = Cnp::path(&bench.path(Side::A), 48, 6);
    path.source = std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 77));
    Cnp { dest_qp: bench.a, p_key: 0xffff }.emit(&Envelope::new(&path, 0), &mut bytes);
    assert_eq!(bench.inject(Side::A, path, &bytes), Verdict::Dropped(DropReason::BadAddress));
    assert_eq!(bench.counter(Side::A, "rp_cnp_ignored"), 1);
    // A notification for a queue pair that does not exist.
    let path = Cnp::path(&bench.path(Side::A), 48, 6);
    let unknown = Qpn::new(bench.a.get() ^ 0x1234);
    Cnp { dest_qp: unknown, p_key: 0xffff }.emit(&Envelope::new(&path, 0), &mut bytes);
    assert_eq!(bench.inject(Side::A, path, &bytes), Verdict::Dropped(DropReason::UnknownQpn));
    assert_eq!(bench.counter(Side::A, "rp_cnp_ignored"), 2);
    // A damaged notification.
    let mut bytes = notification(&bench, Side::A);
    bytes[20] ^= 1;
    assert_eq!(bench.inject(Side::A, path, &bytes), Verdict::Dropped(DropReason::BadIcrc));
    assert_eq!(bench.counter(Side::A, "rp_cnp_handled"), 0);
    assert_eq!(rate(&bench, Side::A), 100e9);
}

#[test]
fn a_flood_of_notifications_leaves_the_floor_and_the_data_arrives() {
    let parameters = DcqcnParameters { rpg_min_rate: 50, ..DcqcnParameters::default() };
    let congestion = Congestion::new(Algorithm::Dcqcn(parameters));
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(congestion));
    for _ in 0..2_000 {
        notify(&mut bench, Side::A);
        bench.now = bench.now.plus_nanos(1_000);
    }
    assert_eq!(bench.counter(Side::A, "rp_cnp_handled"), 2_000);
    assert_eq!(rate(&bench, Side::A), 50e6);
    let write = bench.write(0);
    bench.post(0, write, 0, 100 * MTU);
    let begin = bench.now;
    bench.drive();
    assert_eq!(bench.ended(Side::A).len(), 1);
    let (first, last) = (bench.sent.first().unwrap().at, bench.sent.last().unwrap().at);
    assert!(first >= begin && last.since(first) < Duration::from_millis(6), "faster than the floor alone");
}

/// If half of all notifications are lost, the rate settles higher, without other effects.
#[test]
fn lost_notifications_only_mean_a_higher_rate() {
    let run = |lose: bool| {
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config(dcqcn("cx-default")));
        let mut seen = 0;
        bench.set_script(move |sent| {
            if sent.opcode == Opcode::CNP {
                seen += 1;
                if lose && seen % 2 == 0 {
                    return Action::Drop;
                }
            }
            Action::Pass
        });
        let mut handled = 0;
        for index in 0..40 {
            bench.receive(index, 0, 64);
            arrive_marked(&mut bench);
            wait(&mut bench, 20_000);
            handled = bench.counter(Side::A, "rp_cnp_handled");
        }
        assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 40);
        assert_eq!(handled, if lose { 20 } else { 40 }, "{:?}", bench.host(Side::A).engine.counters());
        rate(&bench, Side::A)
    };
    let (all, half) = (run(false), run(true));
    assert!(all >= 1e6 && half > 2.0 * all, "{all} with all, {half} with half of them");
}

/// Records the acknowledgements that it receives.
#[derive(Debug, Default)]
struct Recorder {
    acks: Vec<Ack>,
    log: std::sync::Arc<std::sync::Mutex<Vec<Ack>>>,
}

impl CongestionControl for Recorder {
    fn on_ack(&mut self, _now: Instant, ack: &Ack) {
        self.acks.push(*ack);
        self.log.lock().unwrap().push(*ack);
    }
}

fn recorded(echo: bool) -> (Congestion, std::sync::Arc<std::sync::Mutex<Vec<Ack>>>) {
    let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let own = log.clone();
    let make = move |_: &_| -> Box<dyn CongestionControl> {
        Box::new(Recorder { acks: Vec::new(), log: own.clone() })
    };
    (Congestion { algorithm: Algorithm::custom("recorder", make), echo }, log)
}

#[test]
fn acknowledgements_tell_bytes_and_round_trips() {
    let (congestion, log) = recorded(false);
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(congestion));
    bench.link_delay_ns = 3_000;
    let write = bench.write(0);
    for (wr_id, len) in [(0, 1_000), (1, 0), (2, 5 * MTU), (3, 1)] {
        bench.post(wr_id, write, 0, len);
        bench.drive();
    }
    let read = bench.read(0);
    bench.post(4, read, 0, 3 * MTU);
    bench.drive();
    let all = log.lock().unwrap().clone();
    assert_eq!(all.iter().map(|ack| ack.bytes).sum::<u64>(), 1_001 + 5 * MTU as u64);
    assert!(all.iter().all(|ack| ack.in_flight == 0 && !ack.marked));
    let trips: Vec<_> = all.iter().filter_map(|ack| ack.rtt).collect();
    assert!(trips.len() >= 4 && trips.iter().all(|rtt| *rtt == Duration::from_nanos(6_000)), "{trips:?}");
}

/// Selective repeat does not measure retransmitted packets, nor packets whose acknowledgement waits for a
/// lost one. The lost packet is the first one, an earlier one of the message, or a retransmission.
#[test]
fn round_trips_of_selective_repeat_are_those_of_undisturbed_packets() {
    for (lost, times) in [(0x1000, 1), (0x1000, 2), (0x1001, 1), (0x1002, 1), (0x1002, 2)] {
        let (congestion, log) = recorded(false);
        let recovery = Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, ..SelectiveRepeat::default() });
        let mut bench =
            Bench::with_config(QpType::Rc, &settings(), EngineConfig { recovery, ..config(congestion) });
        let mut left = times;
        bench.set_script(move |sent| {
            let hit = sent.from == Side::A && sent.psn.get() == lost && left > 0;
            left -= u32::from(hit);
            if hit { Action::Drop } else { Action::Pass }
        });
        let write = bench.write(0);
        for wr_id in 0..5 {
            bench.post(wr_id, write, 0, 2 * MTU);
        }
        bench.drive();
        let disturbed = log.lock().unwrap().len();
        bench.post(5, write, 0, 2 * MTU);
        bench.drive();
        assert_eq!(bench.ended(Side::A).len(), 6);
        assert!(bench.counter(Side::A, "retransmitted_packets") > 0);
        let all = log.lock().unwrap().clone();
        assert!(all[disturbed..].iter().any(|ack| ack.rtt.is_some()), "it measures again");
        for rtt in all.iter().filter_map(|ack| ack.rtt) {
            assert_eq!(rtt, Duration::from_nanos(2_000), "packet {lost:#x} lost {times} times");
        }
    }
}

#[test]
fn echoed_marks_come_with_acknowledgements_and_replace_notifications() {
    let (congestion, log) = recorded(true);
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(congestion));
    bench.set_script(|sent| {
        let marked = sent.from == Side::A && sent.index % 3 == 0;
        if marked { Action::Mark } else { Action::Pass }
    });
    let write = bench.write(0);
    bench.packet_time_ns = 100;
    bench.post(0, write, 0, 30 * MTU);
    bench.drive();
    let all = log.lock().unwrap().clone();
    assert_eq!(all.len(), 30, "every packet is acknowledged");
    assert_eq!(all.iter().filter(|ack| ack.marked).count(), 10);
    assert_eq!(bench.counter(Side::B, "np_marks_echoed"), 10);
    assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 0);
}

/// A ConnectX-4 Lx sent this (test data of scapy), for queue pair 0x118 at 17.1.0.18, from 17.1.0.26.
#[test]
fn a_notification_of_hardware_slows_the_right_queue_pair() {
    let frame = hex(
        "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000011800\
         0000000000000000000000000000000000000082fd002a",
    );
    let datagram = &frame[14 + 28..];
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(dcqcn("cx-default")));
    // The capture has its own addresses and number, so the ICRC is computed again for ours.
    let parsed = Datagram::parse(datagram, &[]).unwrap();
    assert_eq!((parsed.bth().opcode, parsed.bth().dest_qp.get()), (Opcode::CNP, 0x118));
    let mut bytes = datagram.to_vec();
    bytes[5..8].copy_from_slice(&bench.a.to_be_bytes());
    let mut path = bench.path(Side::B).with_dscp(48).with_ecn(Ecn::Capable0);
    path.source_port = 0;
    let covered = bytes.len() - 4;
    let icrc = Datagram::parse(&bytes, &[]).unwrap().compute_icrc(&Envelope::new(&path, 0));
    bytes[covered..].copy_from_slice(&icrc.to_le_bytes());
    assert_eq!(bench.inject(Side::A, path, &bytes), Verdict::Handled);
    assert_eq!(bench.counter(Side::A, "rp_cnp_handled"), 1);
    assert!(rate(&bench, Side::A) < 51e9);
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Marks and notifications over UD go to the sending queue pair.
#[test]
fn ud_marks_are_answered_to_the_sender() {
    let mut bench = Bench::new(QpType::Ud, &settings());
    bench.receive(1, 0, 256);
    let sender = bench.a;
    let qkey = settings().qkey;
    for (key, expected) in [(qkey ^ 1, 0), (qkey, 1)] {
        let mut forge =
            bench.forge(Side::B, Opcode::UD_SEND_ONLY, Psn::new(0)).deth(key, sender).payload(&[1; 8]);
        forge.path = forge.path.with_ecn(Ecn::CongestionExperienced);
        bench.arrive(Side::B, &forge);
        bench.drive();
        let told: Vec<_> = bench.sent.iter().filter(|sent| sent.opcode == Opcode::CNP).collect();
        assert_eq!(told.len(), expected);
        assert!(told.iter().all(|sent| sent.dest_qp == sender));
    }
}

/// A notification must not have a group address as its source.
#[test]
fn marks_on_multicast_are_not_answered() {
    let mut bench = Bench::new(QpType::Ud, &settings());
    let group = std::net::IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));
    let (a, b) = (bench.a, bench.b);
    bench.host_mut(Side::B).engine.attach_multicast(b, group).unwrap();
    bench.receive(1, 0, 256);
    let mut forge =
        bench.forge(Side::B, Opcode::UD_SEND_ONLY, Psn::new(0)).deth(settings().qkey, a).payload(&[1; 8]);
    forge.bth.dest_qp = Qpn::MULTICAST;
    forge.path = forge.path.with_ecn(Ecn::CongestionExperienced);
    forge.path.destination = group;
    assert_eq!(bench.arrive(Side::B, &forge).0, Verdict::Handled);
    bench.drive();
    assert_eq!(bench.counter(Side::B, "np_ecn_marked_roce_packets"), 1);
    assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 0);
}

/// The queue pair is destroyed before its notification is due. The notification is sent and leaves no state.
#[test]
fn a_notification_outlives_its_queue_pair() {
    let notification = NotificationPoint { cnp_delay: 10_000, ..NotificationPoint::default() };
    let config = EngineConfig { notification, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.receive(1, 0, 64);
    arrive_marked(&mut bench);
    let b = bench.b;
    bench.host_mut(Side::B).engine.destroy_qp(b).unwrap();
    bench.drive();
    assert_eq!(notifications(&bench).len(), 1);
    assert_eq!(bench.host(Side::B).engine.poll_timeout(), None);
}

#[test]
fn one_operation_of_each_kind_works_under_control() {
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config(fixed(100)));
    let (write, read, add) = (bench.write(0), bench.read(4096), bench.fetch_add(8192, 5));
    bench.receive(9, 65_536, 4096);
    for (wr_id, op, len) in [(0, write, 1000), (1, read, 1000), (2, add, 8), (3, SendOp::Send, 1000)] {
        bench.post(wr_id, op, 0, len);
    }
    bench.drive();
    let ended = bench.ended(Side::A);
    assert_eq!(ended.iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(ended.iter().all(|(_, status)| *status == roce_transport::WcStatus::Success));
}

/// A paced queue pair that answers a long READ and writes alternates packet by packet, whichever began.
#[test]
fn requests_and_read_responses_take_turns_when_they_are_spaced() {
    for short_ones in 0..4 {
        for read_first in [false, true] {
            let mut config = config(fixed(1_000));
            config.pacing = Pacing { burst: 0, preamble: true, after_loss: true };
            let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
            let write = bench.write(0);
            for wr_id in 0..short_ones {
                bench.post(wr_id, write, 0, 8);
                bench.drive();
            }
            let before = bench.sent.len();
            let read = SendOp::Read { remote_addr: address(0), rkey: bench.host(Side::A).rkey() };
            let element = bench.host(Side::B).memory_range(0, 60 * MTU);
            let b = bench.b;
            let read = SendWr::new(100, read, std::slice::from_ref(&element));
            if read_first {
                bench.post_send(Side::B, b, &read).unwrap();
                bench.post(100, write, 0, 60 * MTU);
            } else {
                bench.post(100, write, 0, 60 * MTU);
                bench.post_send(Side::B, b, &read).unwrap();
            }
            bench.drive();
            let data =
                bench.sent[before..].iter().filter(|sent| sent.from == Side::A && sent.bytes.len() > MTU);
            let responds: Vec<bool> = data.map(|sent| is_read_response(sent.opcode)).collect();
            assert_eq!(responds.len(), 120);
            let places = |kind| responds.iter().enumerate().filter(move |(_, found)| **found == kind);
            // From the first response on, both have packets to send until one of them is done.
            let begin = places(true).map(|(place, _)| place).min().unwrap();
            let last = |kind| places(kind).map(|(place, _)| place).max().unwrap();
            let both = &responds[begin..=last(true).min(last(false))];
            let longest = both.chunk_by(|one, next| one == next).map(<[bool]>::len).max();
            assert_eq!(longest, Some(1), "{short_ones} before, READ first: {read_first}: {responds:?}");
            assert!(both.len() > 60, "they met for {} packets only", both.len());
        }
    }
}

fn is_read_response(opcode: Opcode) -> bool {
    (Opcode::RC_RDMA_READ_RESPONSE_FIRST.0..=Opcode::RC_RDMA_READ_RESPONSE_ONLY.0).contains(&opcode.0)
}

/// Two flows share a link: the second joins late, and each ends up with half of it, within 5 %.
#[test]
fn two_flows_share_a_bottleneck_fairly() {
    // Only the cap keeps a single flow from filling the queue, because these hosts have no link of their own.
    let parameters = DcqcnParameters { rpg_max_rate: 10_000, ..DcqcnParameters::preset("paper").unwrap() };
    let mut config = config(Congestion::new(Algorithm::Dcqcn(parameters)));
    config.notification = NotificationPoint::preset("paper").expect("the preset exists");
    config.max_outstanding_packets = 1 << 16;
    let outcome = Bottleneck::new(5, 200, 655).run(config, [10, 150, 100]);
    let [first, second] = outcome.packets;
    assert!(first + second > outcome.capacity * 85 / 100, "{outcome:?}");
    assert!(first.abs_diff(second) * 20 <= first + second, "{outcome:?}");
    assert!(outcome.longest < 300, "{outcome:?}");
    assert!(outcome.marks > 100, "{outcome:?}");
}
