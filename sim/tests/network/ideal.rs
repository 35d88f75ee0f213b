//! The closed form of the time of a single flow, compared with the simulation.

use roce_packet::PathMtu;
use roce_sim::net::{
    Balance, Clos, FlowSpec, FlowState, LinkSpec, ReceiveLimit, Settings, Simulation, Time, Topology,
};

use super::{LINK, flow, run};

const SLOW: LinkSpec = LinkSpec { rate_bps: 24_999_999_999, delay: Time::from_ns(1_700) };
const FAST: LinkSpec = LinkSpec { rate_bps: 400_000_000_000, delay: Time::from_ns(333) };

/// Checks that flows of these sizes, each alone in the network, complete in the time of the closed form.
#[track_caller]
fn assert_exact(topology: &Topology, (source, destination): (u32, u32), settings: &Settings) {
    for bytes in [1, 3, 1_023, 1_024, 1_025, 2_048, 3_000, 10_240, 100_001, 5_000_000] {
        let results = run(topology, &[flow(source, destination, bytes)], settings.clone());
        let flow = &results.flows[0];
        assert_eq!(flow.completion_time, flow.ideal, "{bytes} bytes");
        assert_eq!((flow.slowdown(), flow.counts.delivered), (Some(1.0), bytes));
    }
}

#[test]
fn a_flow_alone_has_a_slowdown_of_exactly_one() {
    let settings = Settings::default();
    assert_exact(&Topology::point_to_point(LINK), (0, 1), &settings);
    assert_exact(&Topology::star(3, SLOW).unwrap(), (2, 0), &settings);
    assert_exact(&Topology::fat_tree(4, LINK, LINK).unwrap(), (0, 15), &settings);
    assert_exact(&Topology::fat_tree(4, LINK, LINK).unwrap(), (0, 1), &settings);
    // The slow link is the first and the last, or the middle one.
    assert_exact(&Topology::leaf_spine(2, 2, 2, SLOW, FAST).unwrap(), (0, 3), &settings);
    assert_exact(&Topology::leaf_spine(2, 2, 2, FAST, SLOW).unwrap(), (3, 0), &settings);
    let clos = Clos { pods: 2, tors: 2, leaves: 2, spines: 2, hosts: 2 };
    assert_exact(&Topology::clos(clos, FAST, LINK).unwrap(), (0, 7), &settings);
}

#[test]
fn settings_of_hosts_are_part_of_it() {
    let topology = Topology::leaf_spine(2, 2, 2, LINK, SLOW).unwrap();
    for mtu in [PathMtu::Mtu256, PathMtu::Mtu4096] {
        let mut settings = Settings::default();
        (settings.host.path_mtu, settings.host.delay) = (mtu, Time::from_ns(777));
        assert_exact(&topology, (0, 2), &settings);
        settings.switch.balance = Balance::Spray;
        assert_exact(&Topology::star(2, SLOW).unwrap(), (0, 1), &settings);
    }
    let mut settings = Settings::default();
    settings.host.receive_limit =
        Some(ReceiveLimit { host: Some(2), rate_bps: 9_000_000_001, xoff_bytes: 1 << 30 });
    assert_exact(&topology, (0, 2), &settings);
    assert_exact(&topology, (2, 0), &settings);
    // Several WRITEs in sequence, with a short one at the end.
    settings.host = Settings::default().host;
    (settings.host.message_bytes, settings.host.depth) = (3_000, 4_000);
    assert_exact(&topology, (0, 2), &settings);
}

/// Limits of the sender are not part of the closed form.
#[test]
fn a_window_shorter_than_the_round_trip_is_a_slowdown() {
    let mut settings = Settings::default();
    settings.host.window_packets = 16;
    let topology = Topology::star(2, LINK).unwrap();
    let results = run(&topology, &[flow(0, 1, 1_000_000)], settings);
    // 16 packets take 1.4 us; the round trip takes more than 4 us.
    assert!(results.flows[0].slowdown().unwrap() > 2.0, "{:?}", results.flows[0]);
}

/// The faster of two paths of equal length counts, and a flow without a path has no ideal time.
#[test]
fn the_fastest_path_counts() {
    let text = "host a b c\nswitch s t u v\nlink a s\nlink b v\nlink s t 10G\nlink t v 10G\nlink s u 50G\nlink u v 50G";
    let topology = Topology::parse(text, LINK).unwrap();
    assert!(Simulation::new(&topology, &[], Settings::default()).is_err(), "c has no link");
    let topology = Topology::parse(&text.replace(" b c", " b"), LINK).unwrap();
    let flows: Vec<FlowSpec> = (0..16)
        .map(|number| FlowSpec { start: Time::from_us(1_000 * number), ..flow(0, 1, 100_000) })
        .collect();
    let results = run(&topology, &flows, Settings::default());
    let slowdowns: Vec<f64> = results.flows.iter().map(|flow| flow.slowdown().unwrap()).collect();
    let (fast, slow): (Vec<f64>, Vec<f64>) = slowdowns.iter().partition(|slowdown| **slowdown < 1.5);
    assert!(!fast.is_empty() && !slow.is_empty(), "both paths are used: {slowdowns:?}");
    // The acknowledgement also takes one of the paths.
    assert!(fast.contains(&1.0) && fast.iter().all(|slowdown| (1.0..1.01).contains(slowdown)), "{fast:?}");
    assert!(slow.iter().all(|slowdown| *slowdown > 3.5), "{slow:?}");
}

#[test]
fn a_flow_that_ends_early_has_delivered_a_part() {
    let settings = Settings { stop: Time::from_us(100), ..Settings::default() };
    let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 100_000_000)], settings);
    let flow = &results.flows[0];
    assert_eq!((flow.state, flow.slowdown()), (FlowState::Running, None));
    // Two links of 1 us and two transmissions before the first arrival; then a packet each 88.48 ns.
    let packets = (100_000_000_u64 - 2_000_000 - 2 * 88_480) / 88_480;
    let delivered = flow.counts.delivered / 1_024;
    assert!(
        delivered.abs_diff(packets) <= 1 && flow.counts.delivered.is_multiple_of(1_024),
        "{delivered} {packets}"
    );
}
