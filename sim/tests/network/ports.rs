//! Settings of one switch, and of one port of a switch.
//!
//! Two switches have three hosts each, and equal traffic: two hosts send to the third one, and there is no
//! traffic between the switches. Settings of the second switch or its ports must not affect the first one.

use roce_sim::net::{
    Balance, Class, DropReason, FlowSpec, Headroom, HostSettings, LinkSpec, Marking, PauseStorm, PortChanges,
    PortRule, PortStats, Results, Settings, Threshold, Ties, Time, Topology, Trimming, Watchdog,
};
use roce_transport::congestion::Congestion;

use super::{LINK, assert_complete, flow, run};

fn network() -> (Topology, Vec<FlowSpec>) {
    let topology = Topology::line(2, 3, LINK, LINK).unwrap();
    let bytes = 400_000;
    (topology, vec![flow(1, 0, bytes), flow(2, 0, bytes), flow(4, 3, bytes), flow(5, 3, bytes)])
}

fn lossless() -> Settings {
    // With a random order of simultaneous frames, two equal switches would not have equal traffic.
    let mut settings = Settings { ties: Ties::Port, ..Settings::default() };
    settings.switch.marking[3] = Marking::Off;
    settings.switch.threshold = Threshold::Static { bytes: 50_000 };
    settings.switch.reserve_bytes = 0;
    settings
}

fn lossy() -> Settings {
    let mut settings = lossless();
    settings.switch.pfc = 0;
    settings
}

/// Statistics of a run with these settings and with a rule.
struct Compared {
    /// At the first switch, with the rule: the port to the receiver, and the one from a sender.
    first: [PortStats; 2],
    /// At the second switch, with the rule: the port to the receiver, and the one from a sender.
    second: [PortStats; 2],
    /// The port from the other sender of the second switch.
    beside: PortStats,
    results: Results,
}

/// Runs the network with a rule for switch `s1`, or for one of its ports. The rule must not affect the first
/// switch.
#[track_caller]
fn compare(settings: &Settings, to: Option<&str>, changes: PortChanges) -> Compared {
    let (topology, flows) = network();
    let stats = |results: &Results, ports: [&str; 3], switch: &str| {
        ports.map(|host| results.port(switch, host).unwrap().stats)
    };
    let without = run(&topology, &flows, settings.clone());
    let (expected, same) =
        (stats(&without, ["h0", "h1", "h2"], "s0"), stats(&without, ["h3", "h4", "h5"], "s1"));
    assert_eq!(expected, same, "both switches have the same traffic");
    let mut ruled = settings.clone();
    ruled.switch.port_rules = vec![PortRule {
        switches: Some(vec![1]),
        neighbours: to.map(|name| vec![topology.node_named(name).unwrap()]),
        rate_bps: None,
        changes,
    }];
    let results = run(&topology, &flows, ruled.clone());
    assert_complete(&results);
    let first = stats(&results, ["h0", "h1", "h2"], "s0");
    assert_eq!(first, expected, "the rule is for the other switch");
    ruled.threads = 2;
    assert_eq!(run(&topology, &flows, ruled), results, "with two threads");
    let second = stats(&results, ["h3", "h4", "h5"], "s1");
    assert_ne!(second, same, "the rule changes something");
    Compared { first: [first[0], first[1]], second: [second[0], second[1]], beside: second[2], results }
}

fn dropped(stats: &PortStats, reason: DropReason) -> u64 {
    stats.dropped[DropReason::ALL.iter().position(|other| *other == reason).unwrap()]
}

#[test]
fn one_switch_has_a_smaller_buffer() {
    let changes = PortChanges { buffer_bytes: Some(60_000), ..PortChanges::default() };
    let Compared { first, second, .. } = compare(&lossy(), None, changes);
    assert_eq!((first[0].drops(), second[0].drops() > 50), (0, true), "{:?}", second[0]);
    assert!(second[0].queue_most <= 31_000, "{}", second[0].queue_most);
}

#[test]
fn one_port_has_shorter_lossy_queues() {
    let changes = PortChanges { lossy_alpha: Some(0.001), ..PortChanges::default() };
    let Compared { first, second, .. } = compare(&lossy(), Some("h3"), changes);
    assert_eq!((first[0].drops(), dropped(&second[0], DropReason::Buffer) > 50), (0, true));
    assert!(second[0].queue_most < 34_000, "a thousandth of 32 MiB: {}", second[0].queue_most);
}

#[test]
fn one_port_pauses_earlier_than_the_one_beside_it() {
    let changes =
        PortChanges { threshold: Some(Threshold::Static { bytes: 10_000 }), ..PortChanges::default() };
    let Compared { second, beside, results, .. } = compare(&lossless(), Some("h4"), changes);
    assert!(second[1].pauses_sent > beside.pauses_sent, "{} {}", second[1].pauses_sent, beside.pauses_sent);
    assert_eq!(results.sum(|port| port.drops()), 0);
    assert!(
        results.flows[2].completion_time > results.flows[3].completion_time,
        "that host waits more often"
    );
}

#[test]
fn one_port_has_a_reserve_that_spares_its_pauses() {
    let changes = PortChanges { reserve_bytes: Some(500_000), ..PortChanges::default() };
    let Compared { first, second, .. } = compare(&lossless(), Some("h4"), changes);
    assert_eq!((first[1].pauses_sent > 0, second[1].pauses_sent), (true, 0));
}

#[test]
fn one_port_has_no_headroom() {
    let changes = PortChanges { headroom: Some(Headroom::Bytes(0)), ..PortChanges::default() };
    let Compared { first, second, beside, .. } = compare(&lossless(), Some("h4"), changes);
    assert_eq!((first[1].drops(), beside.drops()), (0, 0));
    assert!(dropped(&second[1], DropReason::Headroom) > 0);
}

#[test]
fn one_port_ends_its_pauses_later() {
    let changes = PortChanges { xon_offset_bytes: Some(45_000), ..PortChanges::default() };
    let Compared { first, second, .. } = compare(&lossless(), Some("h4"), changes);
    assert!(
        second[1].pauses_sent < first[1].pauses_sent,
        "{} {}",
        second[1].pauses_sent,
        first[1].pauses_sent
    );
}

/// Frames that arrive at a port without PFC have the limit of the queue that they enter.
#[test]
fn one_port_is_lossy() {
    let settings = {
        let mut settings = lossless();
        settings.switch.lossy_alpha = 0.002;
        settings
    };
    let changes = PortChanges { pfc: Some(0), ..PortChanges::default() };
    let Compared { first, second, beside, results } = compare(&settings, Some("h4"), changes);
    assert!(first[1].pauses_sent > 0 && beside.pauses_sent > 0);
    assert_eq!(second[1].pauses_sent, 0, "it pauses nobody");
    assert!(dropped(&second[0], DropReason::Buffer) > 0, "at the queue where there was no room");
    assert_eq!(results.flows[3].counts.retransmitted, 0, "what the other host sends stays lossless");
}

#[test]
fn one_port_has_a_watchdog() {
    let storm = |host| PauseStorm { host, priority: 3, start: Time::from_us(5), end: Time::from_us(105) };
    let settings = Settings { storms: vec![storm(0), storm(3)], ..lossless() };
    let dog = Watchdog { after: Time::from_us(20), restore: Time::from_us(10) };
    let changes = PortChanges { watchdog: Some(Some(dog)), ..PortChanges::default() };
    let Compared { first, second, .. } = compare(&settings, Some("h3"), changes);
    assert_eq!((first[0].watchdog, second[0].watchdog > 0), (0, true));
    assert!(dropped(&second[0], DropReason::Watchdog) > 0);

    let mut watched = settings;
    watched.switch.watchdog = Some(dog);
    let off = PortChanges { watchdog: Some(None), ..PortChanges::default() };
    let Compared { first, second, .. } = compare(&watched, Some("h3"), off);
    assert_eq!((first[0].watchdog > 0, second[0].watchdog), (true, 0), "and the other way round");
}

#[test]
fn one_port_trims() {
    let mut settings = lossy();
    settings.switch.lossy_alpha = 0.001;
    let changes = PortChanges { trimming: Some(Some(Trimming::default())), ..PortChanges::default() };
    let Compared { first, second, .. } = compare(&settings, Some("h3"), changes);
    assert_eq!((first[0].trimmed, first[0].drops() > 0), (0, true));
    assert_eq!((second[0].trimmed > 50, second[0].drops()), (true, 0));
}

#[test]
fn one_port_marks_from_another_threshold_on() {
    let mut settings = lossless();
    (settings.host.congestion, settings.host.notification) = Congestion::parse("dctcp").unwrap();
    settings.switch.marking[3] = Marking::Step { bytes: 30_000 };
    let mut changes = PortChanges::default();
    changes.marking[3] = Some(Marking::Step { bytes: 10_000 });
    let Compared { first, second, .. } = compare(&settings, Some("h3"), changes);
    assert!(
        second[0].marked > first[0].marked && first[0].marked > 0,
        "{} {}",
        second[0].marked,
        first[0].marked
    );
}

/// At the first switch, priority 4 goes first; at the second, it gets one third of the share of priority 3.
#[test]
fn one_port_has_weights() {
    let mut settings = lossless();
    settings.switch.pfc = 1 << 3 | 1 << 4;
    settings.profiles = vec![HostSettings { dscp: 32, ..settings.host.clone() }];
    settings.flow_profiles = vec![0, 1, 0, 1];
    let mut changes = PortChanges::default();
    (changes.scheduling[3], changes.scheduling[4]) = (Some(Class::Weighted(3)), Some(Class::Weighted(1)));
    let Compared { results, .. } = compare(&settings, Some("h3"), changes);
    let time = |flow: usize| results.flows[flow].completion_time.unwrap();
    assert!(time(1) < time(0), "strict: {} {}", time(1), time(0));
    assert!(time(2) < time(3), "by weight: {} {}", time(2), time(3));
}

#[test]
fn one_switch_sprays() {
    let topology = Topology::leaf_spine(2, 2, 2, LINK, LINK).unwrap();
    let mut settings = Settings::default();
    settings.switch.port_rules = vec![PortRule {
        switches: Some(vec![0]),
        changes: PortChanges { balance: Some(Balance::Spray), ..PortChanges::default() },
        ..PortRule::default()
    }];
    let results = run(&topology, &[flow(0, 2, 100_000), flow(3, 1, 100_000)], settings);
    assert_complete(&results);
    let frames =
        |leaf: &str| ["spine0", "spine1"].map(|spine| results.port(leaf, spine).unwrap().stats.tx_frames);
    let (sprayed, hashed) = (frames("leaf0"), frames("leaf1"));
    assert!(sprayed[0] >= 49 && sprayed[1] >= 49, "{sprayed:?}");
    assert!(hashed.iter().any(|frames| *frames < 5), "{hashed:?}");
}

/// Ports of one rate, on any switch: the KMIN_MAP of HPCC's simulator.
#[test]
fn ports_of_a_rate_have_settings_of_their_own() {
    let fast = LinkSpec { rate_bps: 400_000_000_000, ..LINK };
    let topology = Topology::line(2, 3, LINK, fast).unwrap();
    let flows = [flow(0, 3, 400_000), flow(1, 3, 400_000), flow(2, 4, 400_000)];
    let mut settings = lossless();
    settings.switch.threshold = Threshold::Static { bytes: 10_000_000 };
    let usual = run(&topology, &flows, settings.clone());
    assert_eq!(usual.sum(|port| port.pauses_sent), 0);
    let threshold = Some(Threshold::Static { bytes: 5_000 });
    settings.switch.port_rules = vec![PortRule {
        rate_bps: Some(fast.rate_bps),
        changes: PortChanges { threshold, ..PortChanges::default() },
        ..PortRule::default()
    }];
    let results = run(&topology, &flows, settings);
    assert_complete(&results);
    let pauses = results.port("s1", "s0").unwrap().stats.pauses_sent;
    assert!(pauses > 0, "two flows go from the fast link to one host");
    assert_eq!(results.sum(|port| port.pauses_sent), pauses, "no other port pauses anybody");
}
