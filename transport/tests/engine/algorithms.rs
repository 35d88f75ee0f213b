//! Tests of the algorithms other than DCQCN: their individual steps, and two flows of each through one link.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::bottleneck::{Bottleneck, Outcome};
use crate::common::{Bench, MTU, settings};
use roce_packet::{Opcode, Qpn};
use roce_sim::pair::{Action, Side};
use roce_transport::congestion::{
    Ack, Algorithm, Congestion, CongestionControl, Dctcp, DctcpParameters, Loss, Parameter, Rate, Start,
    Swift, SwiftParameters, Timely, TimelyParameters,
};
use roce_transport::{EngineConfig, Instant, QpType, with_causes};

fn start() -> Start {
    Start {
        now: Instant::ZERO,
        qpn: Qpn::new(0x11),
        mtu: 1_000,
        line_rate: Rate::megabits_per_second(10_000),
    }
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn ack(bytes: u64, in_flight: u64, rtt_us: u64) -> Ack {
    Ack { bytes, in_flight, rtt: Some(Duration::from_micros(rtt_us)), ..Ack::default() }
}

fn config(text: &str) -> EngineConfig {
    let (congestion, notification) = Congestion::parse(text).unwrap();
    let max_outstanding_packets = 1 << 16;
    EngineConfig { congestion, notification, max_outstanding_packets, ..EngineConfig::from_number(7) }
}

#[test]
fn dctcp_cuts_by_the_marked_share() {
    let parameters = DctcpParameters { initial_window: 100, gain: 512, ..DctcpParameters::default() };
    let mut dctcp = Dctcp::new(&parameters, &start());
    let window = |dctcp: &Dctcp| dctcp.window().unwrap();
    // The first acknowledgement ends the initial round. In slow start, the window grows by the acknowledged
    // bytes.
    dctcp.on_ack(at(0), &ack(1_000, 100_000, 10));
    assert_eq!(window(&dctcp), 101_000);
    assert_eq!(dctcp.observe(at(0)).alpha, Some(0.5));
    // A round of 101,000 bytes of which 25,000 are marked. The mark cuts the window at once; the rest of the
    // round does not change it.
    for index in 0..4 {
        let marked = index == 1;
        dctcp.on_ack(at(1), &Ack { marked, ..ack(25_000, 100_000, 10) });
    }
    let before = 101_000.0 + 25_000.0;
    assert_eq!(window(&dctcp), (before * (1.0 - 0.5 / 2.0)) as u64);
    dctcp.on_ack(at(1), &ack(1_000, 100_000, 10));
    let alpha = 0.5 + 0.5 * (25.0 / 101.0 - 0.5);
    assert_eq!(dctcp.observe(at(1)).alpha, Some(alpha));
    // A round without marks, in which the window was used, adds one packet.
    let before = window(&dctcp);
    dctcp.on_ack(at(2), &ack(101_000, 100_000, 10));
    assert_eq!(window(&dctcp), before + 1_000);
    // A round in which the window was not used changes nothing.
    dctcp.on_ack(at(3), &ack(101_000, 100, 10));
    let before = window(&dctcp);
    dctcp.on_ack(at(4), &ack(200, 100, 10));
    assert_eq!(window(&dctcp), before);
    // Losses halve the window once a round; a timeout reduces it to one packet.
    for _ in 0..3 {
        dctcp.on_loss(at(5), Loss::Nak);
    }
    assert!(window(&dctcp).abs_diff(before / 2) <= 1);
    dctcp.on_loss(at(6), Loss::Timeout);
    assert_eq!(window(&dctcp), 1_000);
}

#[test]
fn swift_grows_below_the_target_and_shrinks_above_it() {
    let parameters = SwiftParameters { initial_window: 200, ..SwiftParameters::default() };
    let mut swift = Swift::new(&parameters, &start());
    let window = |swift: &Swift| swift.observe(at(0)).window.unwrap();
    // Beyond 100 packets, the target is 25 us. A round trip below it adds one packet.
    for _ in 0..4 {
        swift.on_ack(at(0), &ack(50_000, 200_000, 20));
    }
    assert!(window(&swift).abs_diff(201_000) <= 10, "{}", window(&swift));
    // Twice the target: cut by beta times the excess over the delay, once in a round trip.
    let before = window(&swift) as f64;
    swift.on_ack(at(100), &ack(1_000, 200_000, 50));
    let cut = before * (1.0 - 819.0 / 1024.0 * 0.5);
    assert!((window(&swift) as f64 - cut).abs() < 2.0);
    swift.on_ack(at(149), &ack(1_000, 200_000, 50));
    assert!((window(&swift) as f64 - cut).abs() < 2.0, "not twice in one round trip");
    swift.on_ack(at(150), &ack(1_000, 200_000, 50));
    assert!((window(&swift) as f64) < cut * 0.7);
    // Far above the target, a cut is at most one half. A window of less than a packet acts as a rate.
    for round in 0..30 {
        swift.on_ack(at(1_000 * round), &ack(1_000, 0, 800));
    }
    assert_eq!(swift.window(), Some(1_000));
    let seen = swift.observe(at(30_000));
    assert!(seen.window.unwrap() < 1_000);
    // A thousandth of a packet in 800 us.
    assert_eq!(swift.rate(), Rate::bits_per_second(10_000));
    swift.on_ack(at(40_000), &ack(1_000, 0, 10));
    assert!(swift.rate().is_unlimited(), "one packet was acknowledged below the target");
}

/// The target of the paper: the base, the hops times the time per hop, and an addition for a small window.
#[test]
fn the_target_of_swift_grows_with_hops_and_with_a_smaller_window() {
    let parameters = SwiftParameters { hop_target: 1_500, initial_window: 100, ..SwiftParameters::default() };
    let target = |window: f64, hops: f64| {
        let slope = 50.0 / (1.0 / 0.1_f64.sqrt() - 1.0 / 100.0_f64.sqrt());
        let flows = slope / window.sqrt() - slope / 100.0_f64.sqrt();
        1_000.0 * (25.0 + flows.clamp(0.0, 50.0)) + hops * 1_500.0
    };
    for (window, hops) in [(100, Some(0)), (100, Some(5)), (25, Some(3)), (1, Some(7)), (400, None)] {
        let wanted = target(f64::from(window), f64::from(hops.unwrap_or(0)));
        for (rtt, grows) in [(wanted - 10.0, true), (wanted + 10.0, false)] {
            let mut swift = Swift::new(&SwiftParameters { initial_window: window, ..parameters }, &start());
            let before = swift.observe(at(0)).window;
            let rtt = Some(Duration::from_nanos(rtt as u64));
            swift.on_ack(at(0), &Ack { bytes: 1_000, in_flight: 1 << 20, rtt, hops, ..Ack::default() });
            assert_eq!(swift.observe(at(0)).window > before, grows, "{window} packets, {hops:?}: {rtt:?}");
        }
        // Missing hop counts are taken to be unchanged.
        let mut swift = Swift::new(&SwiftParameters { initial_window: window, ..parameters }, &start());
        // The first acknowledgement covers no bytes, so the window and its part of the target are unchanged.
        swift.on_ack(at(0), &Ack { hops, ..ack(0, 1 << 20, 1) });
        let before = swift.observe(at(0)).window;
        swift.on_ack(at(0), &ack(1_000, 1 << 20, (wanted / 1_000.0) as u64 - 1));
        assert!(swift.observe(at(0)).window > before, "{window} packets, {hops:?}");
    }
}

#[test]
fn timely_follows_the_gradient() {
    let parameters = TimelyParameters { gain: 1_024, beta: 512, ..TimelyParameters::default() };
    let mut timely = Timely::new(&parameters, &start());
    let mut step = |rtt_us| {
        timely.on_ack(at(0), &ack(1_000, 0, rtt_us));
        (timely.observe(at(0)).rate / 1e6).round()
    };
    assert_eq!(step(100), 10_000.0, "the first one is compared with nothing");
    // 5 us more, which is a quarter of the round trip of an idle network.
    assert_eq!(step(105), (10_000.0_f64 * (1.0 - 0.5 * 0.25)).round());
    assert_eq!(step(145), 4_375.0, "a gradient counts as 1 at most");
    // A constant round trip raises the rate by one step each time, and by five from the fifth time on.
    assert_eq!([(); 6].map(|()| step(145)), [4_385.0, 4_395.0, 4_405.0, 4_415.0, 4_465.0, 4_515.0]);
    // Below t_low up, above t_high down, for every gradient.
    assert_eq!(step(49), 4_525.0);
    assert_eq!(step(40), 4_535.0);
    assert_eq!(step(49), 4_545.0);
    assert_eq!(step(1_000), (4_545.0_f64 * (1.0 - 0.5 * 0.5)).round());
    for _ in 0..40 {
        step(1_000);
    }
    assert_eq!(step(900), 10.0, "the floor");
}

/// The window limits the outstanding packets, with a tolerance of one packet, and it is used.
#[test]
fn windows_bound_what_is_outstanding() {
    #[derive(Debug)]
    struct Fixed(u64);
    impl CongestionControl for Fixed {
        fn window(&self) -> Option<u64> {
            Some(self.0)
        }
    }
    for (packets, name) in [(1, "own"), (7, "own"), (8, "dctcp"), (8, "swift"), (40, "swift")] {
        let mut config = match name {
            "own" => {
                let make =
                    move |_: &Start| -> Box<dyn CongestionControl> { Box::new(Fixed(packets * MTU as u64)) };
                let congestion = Congestion::new(Algorithm::custom("own", make));
                EngineConfig { congestion, ..EngineConfig::from_number(7) }
            }
            // A small window grows to its limit; a large one begins there.
            _ => config(&format!(
                "{name},initial_window={},max_window={packets}",
                if packets > 10 { packets } else { 1 }
            )),
        };
        config.max_outstanding_packets = 1_000;
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
        (bench.link_delay_ns, bench.packet_time_ns) = (2_000, 50);
        // The acknowledged PSNs, and the times at which A receives their acknowledgements.
        let heard: Rc<RefCell<Vec<(u64, u32)>>> = Rc::default();
        let most = Rc::new(RefCell::new(0));
        let (log, highest) = (heard.clone(), most.clone());
        bench.set_script(move |sent| {
            if sent.opcode == Opcode::RC_ACKNOWLEDGE {
                log.borrow_mut().push((sent.at.as_nanos() + 2_050, sent.psn.get()));
            } else if sent.from == Side::A {
                let known = log.borrow();
                let heard = known.iter().filter(|(at, _)| *at <= sent.at.as_nanos()).map(|(_, psn)| *psn);
                let out = sent.psn.get() - heard.max().unwrap_or(0xfff);
                let before = *highest.borrow();
                *highest.borrow_mut() = out.max(before);
            }
            Action::Pass
        });
        let write = bench.write(0);
        for wr_id in 0..40 {
            bench.post(wr_id, write, 0, 10 * MTU - (wr_id as usize * 37) % MTU);
        }
        bench.drive();
        assert_eq!(bench.ended(Side::A).len(), 40);
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{name} {packets}");
        // Short packets at the ends of messages leave room for one more.
        let most = u64::from(*most.borrow());
        assert!(
            most >= packets && most <= packets + packets / 4 + 1,
            "{name} {packets}: {most} packets were out"
        );
    }
}

fn fairness(outcome: &Outcome) -> f64 {
    let [first, second] = outcome.packets.map(|packets| packets as f64);
    first.min(second) / first.max(second)
}

fn use_of(outcome: &Outcome) -> f64 {
    outcome.packets.iter().sum::<u64>() as f64 / outcome.capacity as f64
}

#[test]
fn two_dctcp_flows_with_echo_keep_the_queue_near_the_mark() {
    let step = Bottleneck::new(20, 20, 1 << 16);
    let outcome = step.run(config("dctcp,echo=1"), [5, 40, 50]);
    assert!(use_of(&outcome) > 0.9 && fairness(&outcome) > 0.8, "{outcome:?}");
    assert!(outcome.longest < 60, "{outcome:?}");
}

#[test]
fn two_swift_flows_keep_the_round_trip_near_the_target() {
    let unmarked = Bottleneck::new(1 << 30, 1 << 31, 0);
    let outcome = unmarked.run(config("swift"), [5, 60, 50]);
    assert!(use_of(&outcome) > 0.9 && fairness(&outcome) > 0.8, "{outcome:?}");
    let rtt = outcome.rtt_us.expect("round trips were measured");
    assert!((15.0..80.0).contains(&rtt), "{outcome:?}");
}

/// At rest, the queue is the sum that both flows add in a round trip: 5 packets. That is twice a tenth of the
/// 25 KB that the line holds in 20 us.
#[test]
fn two_theta_powertcp_flows_keep_the_queue_at_what_they_add() {
    let unmarked = Bottleneck::new(1 << 30, 1 << 31, 0);
    let outcome = unmarked.run(config("theta-powertcp:base_rtt=20000"), [5, 60, 50]);
    assert!(use_of(&outcome) > 0.95 && fairness(&outcome) > 0.9, "{outcome:?}");
    assert!((2..=8).contains(&outcome.longest), "{outcome:?}");
}

/// TIMELY has no single equilibrium: the shares of two flows depend on their history. The link is used and
/// the queue is limited.
#[test]
fn two_timely_flows_use_the_link() {
    let unmarked = Bottleneck::new(1 << 30, 1 << 31, 0);
    let mut config = config("timely,additive_increase=100");
    config.pacing.burst = 0;
    // These hosts have no link of their own, so only this setting limits the burst at the start.
    config.max_outstanding_packets = 512;
    let outcome = unmarked.run(config, [1, 60, 50]);
    assert!(use_of(&outcome) > 0.7, "{outcome:?}");
    let rtt = outcome.rtt_us.expect("round trips were measured");
    assert!(rtt < 1_000.0, "{outcome:?}");
}

#[test]
fn algorithms_as_text() {
    for text in [
        "dctcp",
        "swift:base_target=50,hop_target=1500",
        "timely,beta=100",
        "theta-powertcp:flows=4",
        "nscc:base_rtt=8000,quick_adapt=0",
        "fixed:2.5G",
        "none",
    ] {
        let (congestion, _) = Congestion::parse(text).unwrap();
        let written = congestion.algorithm.to_string();
        assert_eq!(Congestion::parse(&written).unwrap().0, congestion, "{text}");
    }
    let error = |text| with_causes(&Congestion::parse(text).unwrap_err()).to_string();
    let expected = "invalid parameter of swift: base_target is \"0\" and must be 1 to 1000000 us";
    assert_eq!(error("swift,base_target=0"), expected);
    let expected = "invalid parameter of timely: \"paper\" is not of the form name=value";
    assert_eq!(error("timely:paper"), expected);
}

#[test]
fn every_parameter_is_listed_with_its_value() {
    for name in Algorithm::NAMES.iter().filter(|name| **name != "fixed") {
        let (congestion, point) = Congestion::parse(name).unwrap();
        let listed = congestion.algorithm.parameters();
        let text = listed.iter().map(|(row, value)| format!(",{}={value}", row.name)).collect::<String>();
        let (again, same_point) = Congestion::parse(&format!("{name}{text}")).unwrap();
        assert_eq!((again, same_point), (congestion, point), "{name}");
        assert_eq!(listed.is_empty(), *name == "none", "{name}");
    }
    let (congestion, point) = Congestion::parse("dcqcn:ns3,rpg_ai_rate=7,cnp_scope=port").unwrap();
    let value = |listed: Vec<(&Parameter, String)>, name: &str| {
        listed.into_iter().find(|(row, _)| row.name == name).map(|(_, value)| value)
    };
    assert_eq!(value(congestion.algorithm.parameters(), "rpg_ai_rate").as_deref(), Some("7"));
    assert_eq!(value(congestion.algorithm.parameters(), "form").as_deref(), Some("ns3"));
    assert_eq!(value(point.parameters(), "cnp_scope").as_deref(), Some("port"));
    assert!(Congestion::parse("fixed:1G").unwrap().0.algorithm.parameters().is_empty());
}
