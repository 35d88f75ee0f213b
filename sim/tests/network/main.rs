//! Tests of the results of whole networks, and of their repeatability.

mod applications;
mod balancing;
mod deadlocks;
mod embedding;
mod ideal;
mod limits;
mod links;
mod operations;
mod paths;
mod ports;
mod pulling;
mod rules;
mod scale_up;
mod spreading;
mod tasks;
mod threads;
mod ties;
mod trimming;

use roce_sim::net::{
    Balance, CapturedContent, Class, Clos, DropReason, FlowSpec, FlowState, Headroom, LinkSpec, Marking,
    PauseMode, PauseStorm, PayloadMode, ReceiveLimit, Refusal, Results, RouteOverride, Settings, Simulation,
    Threshold, Time, Topology, Watchdog, all_to_all, incast, permutation,
};

use roce_transport::congestion::Congestion;
use roce_transport::with_causes;

const LINK: LinkSpec = LinkSpec::DEFAULT;

fn run(topology: &Topology, flows: &[FlowSpec], settings: Settings) -> Results {
    let mut simulation = Simulation::new(topology, flows, settings).unwrap();
    simulation.run_to_end();
    simulation.results()
}

fn flow(source: u32, destination: u32, bytes: u64) -> FlowSpec {
    FlowSpec { source, destination, bytes, start: Time::ZERO }
}

/// Returns the most bytes that were in a queue of a switch.
fn longest_queue(results: &Results) -> u64 {
    results.ports.iter().filter(|port| !port.is_host).map(|port| port.stats.queue_most).max().unwrap_or(0)
}

/// Returns the completion time of the slowest flow in microseconds.
fn slowest_us(results: &Results) -> f64 {
    results.completion_quantile(1.0).unwrap().as_secs_f64() * 1e6
}

#[track_caller]
fn assert_complete(results: &Results) {
    for (number, flow) in results.flows.iter().enumerate() {
        assert_eq!(flow.state, FlowState::Complete, "flow {number}: {:?}", flow.counts);
    }
}

/// A single flow takes the time of its bytes on the link, the delay of the link, and the time of the last
/// acknowledgement.
#[test]
fn a_flow_alone_takes_as_long_as_it_must() {
    for payload in [PayloadMode::Real, PayloadMode::Implied] {
        let settings = Settings { payload, ..Settings::default() };
        let results = run(&Topology::point_to_point(LINK), &[flow(0, 1, 1_024_000)], settings);
        assert_complete(&results);
        // The first packet has a RETH of 16 bytes; the acknowledgement is 86 bytes long.
        let bits = (1_000 * 1_106 + 16 + 86) * 8;
        let expected = Time::from_ps(bits * 10) + Time::from_us(2);
        assert_eq!(results.flows[0].completion_time, Some(expected), "{payload:?}");
        assert_eq!(results.flows[0].counts.packets, 1_000);
    }
}

#[test]
fn a_store_and_forward_switch_adds_one_frame_and_one_link() {
    let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 1_024)], Settings::default());
    // One packet with RETH and its acknowledgement, each twice on a link.
    let expected = Time::from_ps(2 * (1_122 + 86) * 80) + Time::from_us(4);
    assert_eq!(results.flows[0].completion_time, Some(expected));
}

fn mixed(payload: PayloadMode, seed: u64) -> Results {
    let topology = Topology::fat_tree(4, LINK, LINK).unwrap();
    let mut flows = permutation(16, 200_000, Time::ZERO, seed).unwrap();
    flows.extend(incast(16, 6, 3, 100_000, Time::from_us(5)).unwrap());
    let mut settings = Settings { payload, seed, ..Settings::default() };
    (settings.host.congestion, settings.host.notification) = Congestion::parse("dcqcn:paper").unwrap();
    settings.switch.buffer_bytes = 1_000_000;
    settings.switch.marking[3] = Marking::Red { kmin: 20_000, kmax: 80_000, pmax: 0.1 };
    run(&topology, &flows, settings)
}

#[test]
fn three_runs_are_equal_and_both_payloads_too() {
    let first = mixed(PayloadMode::Implied, 1);
    assert_complete(&first);
    assert!(first.sum(|port| port.marked) > 0 && first.sum(|port| port.pauses_sent) > 0);
    for _ in 0..2 {
        assert_eq!(mixed(PayloadMode::Implied, 1), first);
    }
    let real = mixed(PayloadMode::Real, 1);
    assert_eq!(real.checked, (16 * 200_000 + 6 * 100_000, 0), "every byte once, none wrong");
    assert_eq!(Results { checked: (0, 0), ..real }, first);
    assert_ne!(mixed(PayloadMode::Implied, 2).trace_hash, first.trace_hash);
}

#[test]
fn losses_damage_and_disorder_are_made_good() {
    let mut topology = Topology::star(3, LINK).unwrap();
    let plan = "drop=0.5%;corrupt=0.5%;dup=0.5%;reorder=0.5%";
    topology.links[0].set_faults(plan.parse().unwrap());
    let mut hashes = Vec::new();
    for payload in [PayloadMode::Real, PayloadMode::Implied] {
        let settings = Settings { payload, ..Settings::default() };
        let results = run(&topology, &[flow(0, 2, 2_000_000), flow(1, 2, 500_000)], settings);
        assert_complete(&results);
        assert!(results.flows[0].counts.retransmitted > 0);
        assert!(results.dropped(DropReason::Link) > 0 && results.dropped(DropReason::Damaged) > 0);
        assert_eq!(results.checked.1, 0);
        hashes.push(results.trace_hash);
    }
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn pfc_loses_nothing_and_its_absence_does() {
    let topology = Topology::star(17, LINK).unwrap();
    let flows = incast(17, 16, 16, 1_000_000, Time::ZERO).unwrap();
    let mut settings = Settings::default();
    settings.switch.buffer_bytes = 2 << 20;
    settings.switch.marking[3] = Marking::Off;
    let lossless = run(&topology, &flows, settings.clone());
    assert_complete(&lossless);
    assert!(lossless.sum(|port| port.pauses_sent) > 16, "{}", lossless.sum(|port| port.pauses_sent));
    assert_eq!(lossless.sum(|port| port.drops()), 0);
    assert!(lossless.jain() > 0.999, "{}", lossless.jain());
    // 16 MB through one link; pauses cost no time while the switch still holds frames.
    let ideal = 16e6 * 1_106.0 / 1_024.0 * 8.0 / 100e9;
    assert!((lossless.end.as_secs_f64() / ideal - 1.0).abs() < 0.01, "{}", lossless.end);
    settings.switch.pfc = 0;
    let lossy = run(&topology, &flows, settings.clone());
    assert_complete(&lossy);
    assert!(lossy.dropped(DropReason::Buffer) > 0 && lossy.sum(|port| port.pauses_sent) == 0);
    settings.switch.pfc = 1 << 3;
    settings.switch.pause = PauseMode::Instant;
    let instant = run(&topology, &flows, settings);
    assert_eq!((instant.incomplete(), instant.sum(|port| port.drops())), (0, 0));
}

#[test]
fn a_headroom_that_is_too_small_drops() {
    let topology = Topology::star(9, LINK).unwrap();
    let flows = incast(9, 8, 8, 1_000_000, Time::ZERO).unwrap();
    let mut settings = Settings::default();
    settings.switch.threshold = Threshold::Static { bytes: 50_000 };
    settings.switch.headroom = Headroom::Bytes(5_000);
    let results = run(&topology, &flows, settings.clone());
    assert!(results.dropped(DropReason::Headroom) > 0);
    settings.switch.headroom = Headroom::Auto;
    assert_eq!(run(&topology, &flows, settings).sum(|port| port.drops()), 0);
}

/// Spraying uses all paths at once but loses the order; a hash keeps the order, but some paths stay empty.
#[test]
fn spraying_against_hashing() {
    let topology = Topology::leaf_spine(2, 4, 4, LINK, LINK).unwrap();
    let flows: Vec<_> = (0..4).map(|host| flow(host, host + 4, 500_000)).collect();
    let mut settings = Settings::default();
    let hashed = run(&topology, &flows, settings.clone());
    assert_complete(&hashed);
    assert!(hashed.flows.iter().all(|flow| flow.counts.out_of_sequence == 0));
    settings.switch.balance = Balance::Spray;
    let sprayed = run(&topology, &flows, settings);
    let uplinks = |results: &Results| {
        (0..4)
            .filter(|spine| results.port("leaf0", &format!("spine{spine}")).unwrap().stats.tx_frames > 100)
            .count()
    };
    assert!(uplinks(&hashed) < 4, "four flows on four paths by chance");
    assert_eq!(uplinks(&sprayed), 4);
}

#[test]
fn weights_share_a_link() {
    let mut settings = Settings::default();
    settings.switch.scheduling[3] = Class::Weighted(1);
    let topology = Topology::star(3, LINK).unwrap();
    let results = run(&topology, &incast(3, 2, 2, 1_000_000, Time::ZERO).unwrap(), settings);
    assert_complete(&results);
}

/// Frames in a loop are dropped when their hop limit expires, and the flow fails.
#[test]
fn loops_end() {
    let topology = Topology::line(2, 1, LINK, LINK).unwrap();
    let route = |at: &str, via: &str| RouteOverride { at: at.into(), to: "h1".into(), via: vec![via.into()] };
    let mut settings = Settings { routes: vec![route("s1", "s0")], ..Settings::default() };
    (settings.host.timeout, settings.host.retry_cnt) = (8, 1);
    let results = run(&topology, &[flow(0, 1, 10_000)], settings);
    assert!(matches!(results.flows[0].state, FlowState::Failed(_)), "{:?}", results.flows[0].state);
    assert!(results.dropped(DropReason::HopLimit) >= 10);
}

/// Three switches in a ring, each sending its traffic two hops around: the buffers wait for each other
/// forever. A watchdog ends the deadlock.
#[test]
fn a_cycle_of_buffers_deadlocks_and_a_watchdog_frees_it() {
    let topology = Topology::ring(3, 2, LINK, LINK).unwrap();
    let around = |at: usize, to: usize, via: usize| RouteOverride {
        at: format!("s{at}"),
        to: format!("h{to}"),
        via: vec![format!("s{via}")],
    };
    // Hosts 2i and 2i+1 are at switch i; traffic goes from i to i + 2 over i + 1.
    let mut routes = Vec::new();
    let mut flows = Vec::new();
    for switch in 0..3 {
        for host in 0..2 {
            let to = 2 * ((switch + 2) % 3) + host;
            routes.push(around(switch, to, (switch + 1) % 3));
            flows.push(flow((2 * switch + host) as u32, to as u32, 5_000_000));
        }
    }
    let mut settings = Settings { routes, stop: Time::from_us(20_000), ..Settings::default() };
    settings.switch.threshold = Threshold::Static { bytes: 100_000 };
    settings.switch.marking[3] = Marking::Off;
    let stuck = run(&topology, &flows, settings.clone());
    assert_eq!(stuck.incomplete(), 6, "nothing ends");
    let standing = stuck.port("s0", "s1").unwrap().stats.paused[3];
    assert!(standing > Time::from_us(15_000), "{standing}");
    settings.switch.watchdog = Some(Watchdog { after: Time::from_us(500), restore: Time::from_us(200) });
    settings.host.timeout = 8;
    let freed = run(&topology, &flows, settings);
    assert!(freed.dropped(DropReason::Watchdog) > 0);
    let new = |results: &Results| -> u64 {
        results.flows.iter().map(|flow| flow.counts.packets - flow.counts.retransmitted).sum()
    };
    assert!(new(&freed) > 2 * new(&stuck), "{} {}", new(&freed), new(&stuck));
}

/// A NIC that pauses without end also stops hosts that never send to it.
#[test]
fn a_pause_storm_spreads() {
    let shape = Clos { pods: 1, tors: 2, leaves: 1, spines: 1, hosts: 2 };
    let topology = Topology::clos(shape, LINK, LINK).unwrap();
    // Host 0 sends to the broken host 2, host 1 to host 3; both flows share the path to the second ToR.
    let flows = [flow(0, 2, 4_000_000), flow(1, 3, 4_000_000)];
    let mut settings = Settings { stop: Time::from_us(100_000), ..Settings::default() };
    settings.switch.threshold = Threshold::Static { bytes: 100_000 };
    let healthy = run(&topology, &flows, settings.clone());
    assert_complete(&healthy);
    let (start, end) = (Time::from_us(50), Time::from_us(9_000));
    settings.storms = vec![PauseStorm { host: 2, priority: 3, start, end }];
    let stormy = run(&topology, &flows, settings);
    assert_eq!(stormy.deadlocks, [], "hosts that pause wait for nobody");
    let victim = |results: &Results| results.flows[1].completion_time.unwrap();
    assert!(victim(&stormy) > Time::from_us(9_000), "the victim waits for the end: {}", victim(&stormy));
    assert!(victim(&healthy) < Time::from_us(1_000));
}

#[test]
fn a_slow_receiver_pauses_its_switch() {
    let mut settings = Settings::default();
    let limit = ReceiveLimit { host: Some(1), rate_bps: 25_000_000_000, xoff_bytes: 100_000 };
    settings.host.receive_limit = Some(limit);
    let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 5_000_000)], settings);
    assert_complete(&results);
    let bps = results.flows[0].goodput_bps();
    assert!((bps / (25e9 * 1_024.0 / 1_086.0) - 1.0).abs() < 0.02, "{bps}");
    assert!(results.port("h1", "s0").unwrap().stats.pauses_sent > 10);
}

/// A host whose data priority is paused by its switch still acknowledges received packets.
#[test]
fn a_paused_host_still_acknowledges() {
    let mut settings = Settings::default();
    // Host 1 takes frames in slowly, so that its switch has to pause host 0, which sends to it and receives
    // from host 2.
    settings.switch.threshold = Threshold::Static { bytes: 50_000 };
    settings.switch.marking[3] = Marking::Off;
    let limit = ReceiveLimit { host: Some(1), rate_bps: 1_000_000_000, xoff_bytes: 20_000 };
    settings.host.receive_limit = Some(limit);
    settings.stop = Time::from_us(20_000);
    let flows = [flow(0, 1, 1_000_000), flow(2, 0, 5_000_000)];
    let results = run(&Topology::star(3, LINK).unwrap(), &flows, settings);
    assert_complete(&results);
    let paused = results.port("h0", "s0").unwrap().stats.paused[3];
    assert!(paused > Time::from_us(5_000), "host 0 stands still for most of the time: {paused}");
    // 5 MB in one direction, as without pauses.
    let alone = 5e6 * 1_106.0 / 1_024.0 * 8.0 / 100e9;
    let time = results.flows[1].completion_time.unwrap();
    assert!(time.as_secs_f64() < 1.1 * alone, "{time} for what takes {:.0} us", alone * 1e6);
}

/// The result of a run of a mixed network is the same in every build: debug and release, real and implied
/// payload.
#[test]
fn the_trace_hash_is_the_recorded_one() {
    const RECORDED: u64 = 0x95cb_2650_2e73_1d34;
    for payload in [PayloadMode::Implied, PayloadMode::Real] {
        for run in 1..=3 {
            let hash = mixed(payload, 7).trace_hash;
            assert_eq!(
                hash, RECORDED,
                "run {run} with {payload:?} payload: {hash:#018x}. If the engine or the network was changed on purpose, record it"
            );
        }
    }
}

#[test]
fn everybody_to_everybody_and_back() {
    let topology = Topology::full_mesh(3, 2, LINK, LINK).unwrap();
    let results = run(&topology, &all_to_all(6, 50_000, Time::ZERO).unwrap(), Settings::default());
    assert_complete(&results);
    assert_eq!(results.sum(|port| port.drops()), 0);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let star = Topology::star(2, LINK).unwrap();
    let message = |topology: &Topology, flows: &[FlowSpec], settings: Settings| {
        let error = Simulation::new(topology, flows, settings).err();
        error.map(|error| with_causes(&error).to_string()).unwrap_or_default()
    };
    let far = message(&star, &[flow(0, 5, 1)], Settings::default());
    assert_eq!(far, "invalid workload: flow 0: there is no host 5; the last is 1");
    let mut small = Settings::default();
    small.switch.buffer_bytes = 1_000;
    let small = message(&star, &[], small);
    assert!(small.starts_with("cannot build switch s0: a buffer of 1000 bytes is too small"), "{small}");
    let apart = Topology::parse("host a b\nswitch s t\nlink a s\nlink b t", LINK).unwrap();
    let results = run(&apart, &[flow(0, 1, 1)], Settings::default());
    assert_eq!(results.flows[0].state, FlowState::Refused(Refusal::NoPath));
}

/// Regression: the sent bytes were those of the last sample, so a run that ended before its first sample
/// showed no progress.
#[test]
fn progress_does_not_wait_for_samples() {
    let mut settings = Settings::default();
    settings.measure.interval = Time::from_us(1_000_000);
    let mut simulation =
        Simulation::new(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 10_000_000)], settings).unwrap();
    let mut before = 0;
    while simulation.run(5_000) {
        let (sent, all) = simulation.sent_bytes();
        assert!(sent > before && sent < all && all == 10_000_000, "{before} {sent} {all}");
        before = sent;
    }
    assert!(before > 5_000_000, "{before}");
    assert_eq!(simulation.sent_bytes(), (10_000_000, 10_000_000));
}
