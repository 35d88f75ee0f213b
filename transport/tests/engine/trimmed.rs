//! Packets whose payload a switch cut off: each is retransmitted at once, and none does harm.

use crate::common::{Bench, Ended, MTU, assert_same, pattern, settings, unlucky};
use roce_packet::{Ecn, Opcode, Path, Psn, Qpn};
use roce_sim::pair::{Action, Side};
use roce_transport::congestion::{Algorithm, Congestion, CongestionControl, Trim};
use roce_transport::{
    DropReason, EngineConfig, Instant, QpState, QpType, Recovery, SelectiveRepeat, SendOp, Verdict, WcStatus,
};

const FIRST: u32 = 0x1000;

fn bench(recovery: Recovery) -> Bench {
    let config = EngineConfig { recovery, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.packet_time_ns = 30;
    bench
}

fn selective() -> Bench {
    let settings = SelectiveRepeat { cap: 64, reorder: 8, ..SelectiveRepeat::default() };
    bench(Recovery::SelectiveRepeat(settings))
}

/// Trims these data packets of one side, counted from the first one, once for each time that they are listed.
fn trim(bench: &mut Bench, from: Side, trimmed: &[u32]) {
    let mut left = trimmed.to_vec();
    bench.set_script(move |sent| {
        let index = sent.psn.get().wrapping_sub(FIRST);
        let is_data = sent.bytes.len() > 64;
        match left.iter().position(|wanted| *wanted == index) {
            Some(place) if sent.from == from && is_data => {
                left.remove(place);
                Action::Trim
            }
            _ => Action::Pass,
        }
    });
}

/// Runs until both sides are idle. Returns the completions of A, and the time of the last one in nanoseconds.
fn run(bench: &mut Bench) -> (Vec<Ended>, u64) {
    let begin = bench.now;
    let (mut ended, mut last) = (Vec::new(), 0);
    while bench.step() {
        let some = bench.ended(Side::A);
        if !some.is_empty() {
            last = bench.now.since(begin).as_nanos() as u64;
            ended.extend(some);
        }
    }
    (ended, last)
}

/// Writes this many packets from A to B, runs until both are idle, and compares the data. Returns the time of
/// the completion in nanoseconds.
#[track_caller]
fn write(bench: &mut Bench, packets: usize) -> u64 {
    let data = pattern(packets * MTU);
    bench.host_mut(Side::A).write_memory(0, &data);
    let write = bench.write(100_000);
    bench.post(1, write, 0, data.len());
    let (ended, took) = run(bench);
    assert_eq!(ended, [(1, WcStatus::Success)]);
    assert_same(&bench.host(Side::B).read_memory(100_000, data.len()), &data, "the message");
    took
}

#[test]
fn each_trimmed_write_is_sent_again_and_nothing_else() {
    for trimmed in [&[0][..], &[3], &[3, 4, 5], &[39], &[2, 9, 17, 30, 39], &[5, 5, 5, 7, 7], &[38, 39, 39]] {
        let mut bench = selective();
        trim(&mut bench, Side::A, trimmed);
        let took = write(&mut bench, 40);
        let counts = |name: &str| bench.counter(Side::A, name);
        assert_eq!(counts("retransmitted_packets"), trimmed.len() as u64, "{trimmed:?}");
        assert_eq!(counts("packet_trimmed_err"), trimmed.len() as u64, "{trimmed:?}");
        assert_eq!((counts("packet_seq_err"), counts("local_ack_timeout_err")), (0, 0), "{trimmed:?}");
        assert_eq!(bench.counter(Side::B, "rx_trimmed"), trimmed.len() as u64);
        // Forty packets of 30 ns, and a round trip of 2 us for each time that one packet was trimmed.
        assert!(took < 12_000, "{trimmed:?}: {took} ns");
    }
}

/// SENDs and WRITEs with immediate data take one receive each, in order.
#[test]
fn trimmed_sends_take_their_receives_in_order() {
    let mut bench = selective();
    trim(&mut bench, Side::A, &[0, 2, 4, 9]);
    let data = pattern(20 * MTU);
    bench.host_mut(Side::A).write_memory(0, &data);
    for wr_id in 0..5 {
        bench.receive(100 + wr_id, 200_000 + wr_id as usize * 4 * MTU, 3 * MTU);
        bench.post(wr_id, SendOp::Send, wr_id as usize * MTU, 2 * MTU);
    }
    bench.drive();
    assert_eq!(bench.ended(Side::A), [0, 1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::Success)));
    assert_eq!(bench.ended(Side::B), [100, 101, 102, 103, 104].map(|wr_id| (wr_id, WcStatus::Success)));
    for wr_id in 0..5_usize {
        let found = bench.host(Side::B).read_memory(200_000 + wr_id * 4 * MTU, 2 * MTU);
        assert_same(&found, &data[wr_id * MTU..][..2 * MTU], "a message");
    }
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 4);
}

/// The peer goes back, as for any other loss: one NAK, which names the trimmed packet.
#[test]
fn go_back_n_sends_one_ordinary_nak() {
    for trimmed in [&[0][..], &[3], &[3, 4, 5], &[19]] {
        let mut bench = bench(Recovery::GoBackN);
        trim(&mut bench, Side::A, trimmed);
        let took = write(&mut bench, 20);
        let naks: Vec<_> = bench.answers_since(0, Side::B);
        let naks: Vec<_> = naks.iter().filter(|answer| answer.syndrome == Some(0x60)).collect();
        assert_eq!(naks.len(), 1, "{trimmed:?}");
        assert_eq!(naks[0].psn, FIRST + trimmed[0]);
        assert_eq!(bench.counter(Side::A, "packet_seq_err"), 1);
        assert!(bench.counter(Side::B, "out_of_sequence") >= 1);
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{trimmed:?}");
        assert!(took < 8_000, "{trimmed:?}: {took} ns");
    }
}

/// The header of the last packet overtakes the others, and no packet follows it: the NAK waits for the
/// others.
#[test]
fn a_header_that_comes_early_makes_nobody_go_back_too_far() {
    let mut bench = bench(Recovery::GoBackN);
    let write = bench.write(0);
    bench.set_script(|sent| match (sent.from, sent.psn.get() - FIRST) {
        (Side::A, 9) if sent.bytes[8] & 0x80 != 0 && sent.index == 9 => Action::Trim,
        (Side::A, 0..9) if sent.index < 9 => Action::Delay(5_000),
        _ => Action::Pass,
    });
    bench.post(1, write, 0, 10 * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 1);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// A trimmed READ response is requested again without waiting for the timer, even if no response follows it.
#[test]
fn trimmed_read_responses_are_asked_for_again() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat(SelectiveRepeat::default())] {
        for trimmed in [&[0][..], &[3], &[19], &[3, 3], &[0, 19], &[2, 3, 4]] {
            let mut bench = bench(recovery);
            trim(&mut bench, Side::B, trimmed);
            let data = pattern(20 * MTU);
            bench.host_mut(Side::B).write_memory(100_000, &data);
            let read = bench.read(100_000);
            bench.post(1, read, 0, data.len());
            let (ended, took) = run(&mut bench);
            assert_eq!(ended, [(1, WcStatus::Success)]);
            assert_same(&bench.host(Side::A).read_memory(0, data.len()), &data, "what was read");
            assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{trimmed:?}");
            let asked = bench.counter(Side::A, "packet_trimmed_err");
            assert!((1..=trimmed.len() as u64).contains(&asked), "{trimmed:?}: asked {asked} times");
            assert!(took < 12_000, "{trimmed:?}: {took} ns");
        }
    }
}

/// If headers and reports are lost as well, the timer recovers, and everything arrives.
#[test]
fn half_of_everything_is_trimmed_and_some_of_it_lost() {
    for recovery in [
        Recovery::GoBackN,
        Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, reorder: 8, ..SelectiveRepeat::default() }),
    ] {
        for seed in 0..40 {
            let mut bench = bench(recovery);
            bench.set_script(move |sent| {
                if unlucky(sent.index, seed + 100, 40) {
                    return Action::Drop;
                }
                let share = if matches!(recovery, Recovery::GoBackN) { 50 } else { 2 };
                if unlucky(sent.index, seed, share) && sent.bytes.len() > 64 {
                    Action::Trim
                } else {
                    Action::Pass
                }
            });
            let data = pattern(60 * MTU);
            for side in [Side::A, Side::B] {
                bench.host_mut(side).write_memory(0, &data);
            }
            let (write, read, add) = (bench.write(100_000), bench.read(0), bench.fetch_add(300_000, 1));
            bench.receive(100, 200_000, 20 * MTU);
            bench.post(1, write, 0, data.len());
            bench.post(2, SendOp::Send, 0, 20 * MTU);
            bench.post(3, read, 500_000, 20 * MTU);
            bench.post(4, add, 600_000, 8);
            bench.post(5, write, 0, data.len());
            bench.drive();
            let expected = [1, 2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::Success));
            assert_eq!(bench.ended(Side::A), expected, "{recovery:?}, seed {seed}");
            assert_eq!(bench.ended(Side::B), [(100, WcStatus::Success)]);
            assert_same(&bench.host(Side::B).read_memory(100_000, data.len()), &data, "written");
            assert_same(&bench.host(Side::B).read_memory(200_000, 20 * MTU), &data[..20 * MTU], "sent");
            assert_same(&bench.host(Side::A).read_memory(500_000, 20 * MTU), &data[..20 * MTU], "read");
            assert_eq!(bench.host(Side::B).read_memory(300_000, 8), 1_u64.to_ne_bytes(), "added once");
        }
    }
}

/// A full window with a trimmed packet opens only after that packet is retransmitted.
#[test]
fn a_full_window_does_not_hold_back_what_was_trimmed() {
    let name = "swift:initial_window=8,max_window=8";
    let (congestion, _) = Congestion::parse(name).expect("the name is right");
    let recovery = Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, ..SelectiveRepeat::default() });
    let config = EngineConfig { recovery, congestion, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.packet_time_ns = 30;
    trim(&mut bench, Side::A, &[0, 20, 21]);
    let write = bench.write(0);
    bench.post(1, write, 0, 40 * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 3);
}

/// A window that loses a packet with each trimmed one.
#[derive(Debug)]
struct Shrinking(u64);

impl CongestionControl for Shrinking {
    fn on_trimmed(&mut self, _now: Instant, trim: Trim) {
        self.0 = self.0.saturating_sub(trim.bytes).max(MTU as u64);
    }

    fn window(&self) -> Option<u64> {
        Some(self.0)
    }
}

/// Regression: trimmed packets were sent again at once, however small the window. With enough senders, all of
/// them were trimmed again, and nothing else arrived.
#[test]
fn trimmed_packets_wait_for_the_window() {
    const WINDOW: u32 = 8;
    let algorithm = Algorithm::custom("shrinking", |_| Box::new(Shrinking(u64::from(WINDOW) * MTU as u64)));
    let recovery = Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, ..SelectiveRepeat::default() });
    let congestion = Congestion::new(algorithm);
    let config = EngineConfig { recovery, congestion, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.packet_time_ns = 30;
    trim(&mut bench, Side::A, &(0..WINDOW).collect::<Vec<_>>());
    let took = write(&mut bench, 40);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), u64::from(WINDOW));
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
    // The window is one packet from then on, so each packet takes a round trip of 2 us.
    assert!((80_000..90_000).contains(&took), "{took} ns");
}

/// Returns the header of a request at this distance from the expected one.
fn header(bench: &Bench, distance: i32) -> (Path, Vec<u8>) {
    let psn = Psn::new(bench.expected(Side::B).get().wrapping_add_signed(distance) & 0xff_ffff);
    let forge = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_MIDDLE, psn);
    (forge.path, forge.build()[..12].to_vec())
}

/// Old, repeated and far headers are dropped or only cause retransmissions.
#[test]
fn headers_that_say_nothing_new_change_nothing() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat(SelectiveRepeat::default())] {
        let mut bench = bench(recovery);
        let data = pattern(30 * MTU);
        bench.host_mut(Side::A).write_memory(0, &data);
        let write = bench.write(100_000);
        for round in 0..10 {
            bench.post(round, write, 0, data.len());
            for distance in [-1, -20, -8_000_000, 0, 0, 1, 5, 5, 127, 128, 4_096, 8_000_000] {
                let (path, bytes) = header(&bench, distance);
                bench.deliver_trimmed(Side::B, path, &bytes);
                let soon = bench.now.plus_nanos(1_000);
                bench.drive_until(soon);
            }
            bench.drive();
            assert_eq!(bench.ended(Side::A), [(round, WcStatus::Success)], "{recovery:?}");
            assert_same(&bench.host(Side::B).read_memory(100_000, data.len()), &data, "written");
        }
        assert_eq!((bench.state(Side::A), bench.state(Side::B)), (QpState::Rts, QpState::Rts));
    }
}

#[test]
fn everything_but_the_icrc_is_checked() {
    let mut bench = selective();
    let (path, bytes) = header(&bench, 0);
    let mut arrive = |path: Path, bytes: &[u8]| bench.deliver_trimmed(Side::B, path, bytes);
    let changed = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(arrive(path, &[]), Verdict::Dropped(DropReason::Short));
    assert_eq!(arrive(path, &bytes[..11]), Verdict::Dropped(DropReason::Short));
    // A WRITE First requires a RETH.
    assert_eq!(arrive(path, &changed(0, 0x06)), Verdict::Dropped(DropReason::Short));
    assert_eq!(arrive(path, &changed(1, 0x0f)), Verdict::Dropped(DropReason::BadVersion));
    assert_eq!(arrive(path, &changed(0, 0x1f)), Verdict::Dropped(DropReason::UnknownOpcode));
    assert_eq!(arrive(path, &changed(0, 0x27)), Verdict::Dropped(DropReason::BadOpcodeForQp));
    assert_eq!(arrive(path, &changed(2, 0x12)), Verdict::Dropped(DropReason::BadPkey));
    assert_eq!(arrive(path, &changed(7, bytes[7] ^ 1)), Verdict::Dropped(DropReason::UnknownQpn));
    let elsewhere = Path { source: path.destination, ..path };
    assert_eq!(arrive(elsewhere, &bytes), Verdict::Dropped(DropReason::BadAddress));
    // An acknowledgement, and a READ response that was not requested.
    let aeth = |opcode: u8| [&changed(0, opcode)[..], &[0; 4]].concat();
    assert_eq!(arrive(path, &aeth(0x11)), Verdict::Dropped(DropReason::Trimmed));
    assert_eq!(arrive(path, &aeth(0x0d)), Verdict::Dropped(DropReason::Trimmed));
    assert_eq!(arrive(path, &bytes), Verdict::Handled);
    assert_eq!(arrive(path, &bytes), Verdict::Handled, "the report of the first one has left");
    let multicast = Qpn::MULTICAST.get().to_be_bytes();
    let to_group = [&bytes[..5], &multicast[1..], &bytes[8..]].concat();
    assert_eq!(arrive(path, &to_group), Verdict::Dropped(DropReason::Trimmed));
    bench.drive();
    assert_eq!((bench.state(Side::A), bench.state(Side::B)), (QpState::Rts, QpState::Rts));
}

/// Random bytes, and a good header with random bytes in it, in the middle of transfers.
#[test]
fn garbage_does_no_harm() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat(SelectiveRepeat::default())] {
        let mut bench = bench(recovery);
        let data = pattern(30 * MTU);
        bench.host_mut(Side::A).write_memory(0, &data);
        bench.host_mut(Side::B).write_memory(500_000, &data);
        let (write, read) = (bench.write(100_000), bench.read(500_000));
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for round in 0..60 {
            bench.post(2 * round, write, 0, data.len());
            bench.post(2 * round + 1, read, 300_000, data.len());
            for number in 0..40 {
                let side = if number % 2 == 0 { Side::A } else { Side::B };
                let psn = Psn::new((FIRST + 60 * round as u32 + random() as u32 % 80) & 0xff_ffff);
                let opcode = Opcode([0x00, 0x02, 0x07, 0x08, 0x0d, 0x0e, 0x0f, 0x10, 0x11][random() % 9]);
                let forge = bench.forge(side, opcode, psn);
                let mut bytes = forge.build()[..12].to_vec();
                bytes.extend((0..4).map(|_| random() as u8));
                if number % 5 == 0 {
                    let at = random() % bytes.len();
                    bytes[at] = random() as u8;
                }
                bytes.truncate(random() % 40);
                bench.deliver_trimmed(side, forge.path, &bytes);
                let soon = bench.now.plus_nanos(random() as u64 % 400);
                bench.drive_until(soon);
            }
            bench.drive();
            let ended = [2 * round, 2 * round + 1].map(|wr_id| (wr_id, WcStatus::Success));
            assert_eq!(bench.ended(Side::A), ended, "{recovery:?}, round {round}");
            assert_same(&bench.host(Side::B).read_memory(100_000, data.len()), &data, "written");
            assert_same(&bench.host(Side::A).read_memory(300_000, data.len()), &data, "read");
        }
    }
}

/// Reports to a peer with standard go-back-N are dropped, and so are reports of PSNs that are not in flight.
#[test]
fn forged_reports_change_nothing() {
    let report = |bench: &Bench, expected: u32, trimmed: u32| {
        bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, Psn::new(FIRST + expected)).aeth(0x41, FIRST + trimmed)
    };
    let mut plain = bench(Recovery::GoBackN);
    let write = plain.write(0);
    plain.post(1, write, 0, 10 * MTU);
    plain.collect(Side::A);
    let forged = report(&plain, 0, 3);
    assert_eq!(plain.arrive(Side::A, &forged).0, Verdict::Dropped(DropReason::ReservedSyndrome));
    plain.drive();
    let mut own = selective();
    let write = own.write(0);
    own.post(1, write, 0, 10 * MTU);
    own.collect(Side::A);
    for (expected, trimmed) in [(0, 10), (0, 11), (0, 0xff_0000), (3, 2)] {
        let forged = report(&own, expected, trimmed & 0xff_ffff);
        let before = own.counter(Side::A, "retransmitted_packets");
        own.arrive(Side::A, &forged);
        assert_eq!(own.counter(Side::A, "retransmitted_packets"), before, "{expected} {trimmed}");
    }
    let forged = report(&own, 3, 7);
    assert_eq!(own.arrive(Side::A, &forged).0, Verdict::Handled);
    assert_eq!(own.counter(Side::A, "retransmitted_packets"), 1);
    own.drive();
    assert_eq!(own.ended(Side::A), [(1, WcStatus::Success)]);
}

/// Regression: on several paths, an acknowledgement can overtake a report. The report then counted as
/// stale, and the trimmed packet was sent again only after a timeout.
#[test]
fn a_report_that_an_acknowledgement_overtook_counts() {
    let mut bench = selective();
    let write = bench.write(0);
    bench.post(1, write, 0, 10 * MTU);
    bench.collect(Side::A);
    let forge = |bench: &Bench, psn| bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, Psn::new(FIRST + psn));
    let acknowledgement = forge(&bench, 4).aeth(0x1f, 5);
    assert_eq!(bench.arrive(Side::A, &acknowledgement).0, Verdict::Handled);
    let about_old = forge(&bench, 2).aeth(0x41, FIRST + 3);
    assert_eq!(bench.arrive(Side::A, &about_old).0, Verdict::Dropped(DropReason::StaleResponse));
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 0);
    let report = forge(&bench, 2).aeth(0x41, FIRST + 7);
    assert_eq!(bench.arrive(Side::A, &report).0, Verdict::Handled);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 1);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
}

/// A mark on a trimmed packet counts as a mark on data: its sender is notified.
#[test]
fn marks_of_trimmed_packets_count() {
    let (congestion, notification) = Congestion::parse("dcqcn").expect("the name is right");
    let config = EngineConfig { congestion, notification, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    let (path, bytes) = header(&bench, 0);
    bench.deliver_trimmed(Side::B, path.with_ecn(Ecn::CongestionExperienced), &bytes);
    bench.drive();
    assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 1);
    assert_eq!(bench.counter(Side::A, "rp_cnp_handled"), 1);
}

/// The header that names the sender of a datagram is not parsed in a trimmed packet, so its mark causes no
/// notification.
#[test]
fn a_marked_header_of_a_datagram_notifies_nobody() {
    let (congestion, notification) = Congestion::parse("dcqcn").expect("the name is right");
    let config = EngineConfig { congestion, notification, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Ud, &settings(), config);
    let forge = bench.forge(Side::B, Opcode::UD_SEND_ONLY, Psn::new(0)).deth(0x1111_1111, bench.a);
    let path = forge.path.with_ecn(Ecn::CongestionExperienced);
    let verdict = bench.deliver_trimmed(Side::B, path, &forge.build()[..20]);
    assert_eq!(verdict, Verdict::Dropped(DropReason::Trimmed));
    bench.drive();
    assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 0);
}

/// Regression: anyone can send a trimmed header of a packet that is not expected, and each of them with a
/// mark slowed the peer down.
#[test]
fn a_mark_on_a_trimmed_packet_that_is_not_expected_notifies_nobody() {
    let (congestion, notification) = Congestion::parse("dcqcn").expect("the name is right");
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat(SelectiveRepeat::default())] {
        let config = EngineConfig {
            congestion: congestion.clone(),
            notification,
            recovery,
            ..EngineConfig::from_number(7)
        };
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
        for distance in [-1, -1000, 5_000, 1_000_000] {
            let (path, mut bytes) = header(&bench, distance);
            bytes[8] |= 0x80;
            bench.deliver_trimmed(Side::B, path.with_ecn(Ecn::CongestionExperienced), &bytes);
        }
        bench.drive();
        assert_eq!(bench.counter(Side::B, "np_cnp_sent"), 0, "{recovery:?}");
        assert!(bench.counter(Side::B, "rx_handled") > 0, "{recovery:?}");
    }
}

/// A window that closes with the first trimmed packet.
#[derive(Debug)]
struct Closing(u64);

impl CongestionControl for Closing {
    fn on_trimmed(&mut self, _now: Instant, _trim: Trim) {
        self.0 = MTU as u64;
    }

    fn window(&self) -> Option<u64> {
        Some(self.0)
    }
}

/// Regression: a trimmed packet that waited for the window kept back lost packets, which have left the
/// network and so need no room. The lost packets filled the window, and only the timer went on.
#[test]
fn a_trimmed_packet_that_waits_does_not_hold_back_lost_ones() {
    let algorithm = Algorithm::custom("closing", |_| Box::new(Closing(16 * MTU as u64)));
    let recovery = SelectiveRepeat { cap: 64, reorder: 3, ..SelectiveRepeat::default() };
    let recovery = Recovery::SelectiveRepeat(recovery);
    let congestion = Congestion::new(algorithm);
    let config = EngineConfig { recovery, congestion, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.packet_time_ns = 30;
    bench.set_script(|sent| match (sent.from, sent.index) {
        (Side::A, 0..=3) => Action::Drop,
        (Side::A, 4) => Action::Trim,
        _ => Action::Pass,
    });
    write(&mut bench, 16);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 5);
}
