//! Faults of links, with real and with implied payload.

use roce_fault::FaultPlan;

use super::*;

/// Runs one flow over a cable with this plan twice: with real payload and with implied.
fn both(plan: &str, settings: &Settings) -> [Results; 2] {
    let mut topology = Topology::star(2, LINK).unwrap();
    topology.links[0].set_faults(plan.parse().unwrap());
    [PayloadMode::Real, PayloadMode::Implied]
        .map(|payload| run(&topology, &[flow(0, 1, 200_000)], Settings { payload, ..settings.clone() }))
}

/// The length of a frame includes implied payload.
#[test]
fn a_rule_by_length_knows_the_whole_datagram() {
    let [real, implied] = both("rule:len=1000-2000,times=3,action=drop", &Settings::default());
    assert_complete(&real);
    assert_eq!(real.dropped(DropReason::Link), 3);
    assert_eq!(implied.dropped(DropReason::Link), 3);
    assert_eq!(real.trace_hash, implied.trace_hash);
}

/// A rule counts for its direction: with a plan for both, one packet is lost on the way there and one on the
/// way back, and with a plan for one direction, none is lost in the other.
#[test]
fn a_plan_acts_in_each_direction_that_has_it() {
    let lost = |directions: [bool; 2]| {
        let mut topology = Topology::star(2, LINK).unwrap();
        let plan: FaultPlan = "rule:pass=1,times=1,action=drop".parse().unwrap();
        let [of_host, of_switch] = directions.map(|has_plan| has_plan.then(|| plan.clone()));
        let host = topology.node_named("h0");
        let link = &mut topology.links[0];
        link.faults = if Some(link.a) == host { [of_host, of_switch] } else { [of_switch, of_host] };
        let results = run(&topology, &[flow(0, 1, 200_000)], Settings::default());
        assert_complete(&results);
        let drops = |from: &str, to: &str| results.port(from, to).unwrap().stats.drops();
        assert_eq!(results.sum(|port| port.drops()), drops("h0", "s0") + drops("s0", "h0"));
        [drops("h0", "s0"), drops("s0", "h0")]
    };
    for directions in [[true, true], [true, false], [false, true], [false, false]] {
        assert_eq!(lost(directions), directions.map(u64::from));
    }
}

/// Damaged bits are drawn from the whole datagram, so the next draws are also equal.
#[test]
fn damage_over_two_links_is_the_same_with_both_payloads() {
    let mut topology = Topology::star(2, LINK).unwrap();
    topology.links[0].set_faults("corrupt=5%;delay=100ns-200ns@20%".parse().unwrap());
    topology.links[1]
        .set_faults("rule:psn=3,pass=1,action=drop;rule:psn=9,action=delay:1us".parse().unwrap());
    let [real, implied] = [PayloadMode::Real, PayloadMode::Implied]
        .map(|payload| run(&topology, &[flow(0, 1, 200_000)], Settings { payload, ..Settings::default() }));
    assert_complete(&real);
    assert!(real.dropped(DropReason::Damaged) > 0);
    assert_eq!(real.trace_hash, implied.trace_hash);
}

/// A router clears ECN: the queue after it does not mark, and the sender gets no notification.
#[test]
fn bleached_ecn_is_not_marked() {
    let mut settings = Settings::default();
    (settings.host.congestion, settings.host.notification) = Congestion::parse("dcqcn:paper").unwrap();
    settings.switch.marking[3] = Marking::Step { bytes: 1 };
    let mut topology = Topology::star(3, LINK).unwrap();
    let flows = [flow(0, 2, 500_000), flow(1, 2, 500_000)];
    let marked = |topology: &Topology| run(topology, &flows, settings.clone()).sum(|port| port.marked);
    let before = marked(&topology);
    assert!(before > 100, "{before}");
    for link in &mut topology.links[..2] {
        link.set_faults("rule:action=clear-ecn".parse().unwrap());
    }
    assert_eq!(marked(&topology), 0);
}

/// Without its code point, data has another priority, which is not lossless.
#[test]
fn a_cleared_code_point_takes_the_priority_with_it() {
    let mut topology = Topology::star(3, LINK).unwrap();
    for link in &mut topology.links[..2] {
        link.set_faults("rule:action=clear-dscp".parse().unwrap());
    }
    let mut settings = Settings::default();
    settings.switch.threshold = Threshold::Static { bytes: 20_000 };
    settings.switch.marking[3] = Marking::Off;
    let results = run(&topology, &[flow(0, 2, 500_000), flow(1, 2, 500_000)], settings);
    assert_complete(&results);
    assert_eq!(results.sum(|port| port.pauses_sent), 0);
}

/// Lost frames do not overtake a held packet: if all frames after it are lost, it waits for its maximum time.
#[test]
fn lost_frames_overtake_nobody() {
    let arrival_of_the_third = |plan: &str| {
        let mut topology = Topology::point_to_point(LINK);
        topology.links[0].set_faults(plan.parse().unwrap());
        let mut settings = Settings { payload: PayloadMode::Real, ..Settings::default() };
        settings.measure.capture = vec![topology.port_named("h1").unwrap()];
        let mut simulation = Simulation::new(&topology, &[flow(0, 1, 5 * 1_024)], settings).unwrap();
        simulation.run_to_end();
        let is_third = |content: &CapturedContent| match content {
            CapturedContent::Datagram { bytes, .. } => bytes[9..12] == [0, 0, 2],
            CapturedContent::Pause { .. } => false,
        };
        let captured = simulation.take_captured();
        assert_complete(&simulation.results());
        captured.iter().find(|frame| !frame.outbound && is_third(&frame.content)).unwrap().time
    };
    let held = "reorder-hold=1ms;rule:psn=2,pass=1,action=reorder:1";
    assert!(arrival_of_the_third(held) < Time::from_us(2));
    let alone = arrival_of_the_third(&format!("{held};rule:psn=3-4,pass=1,action=drop"));
    assert!(alone > Time::from_us(1_000) && alone < Time::from_us(1_010), "{alone}");
}
