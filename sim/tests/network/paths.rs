//! Tests of how flows share several paths, and of failures of links and switches.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use roce_packet::Telemetry;
use roce_sim::net::{
    Balance, Clos, DropReason, Failed, Failure, FlowSpec, FlowState, LinkSpec, Results, Settings, Ties, Time,
    Topology, permutation,
};
use roce_transport::congestion::{Ack, Algorithm, Congestion, CongestionControl};
use roce_transport::{Instant, Recovery, SelectiveRepeat};

use super::{LINK, assert_complete, flow, run};

/// Returns two leaves with four hosts each, and four spines.
fn fabric() -> Topology {
    Topology::leaf_spine(2, 4, 4, LINK, LINK).unwrap()
}

/// Returns flows from the hosts of one leaf to those of the other.
fn across(bytes: u64) -> Vec<FlowSpec> {
    (0..4).map(|host| flow(host, host + 4, bytes)).collect()
}

fn settings(balance: Balance) -> Settings {
    let mut settings = Settings::default();
    settings.switch.balance = balance;
    settings.host.recovery =
        Recovery::SelectiveRepeat(SelectiveRepeat { cap: 1024, ..SelectiveRepeat::default() });
    settings
}

fn failure(what: Failed, at_us: u64, until_us: Option<u64>, reroute_us: u64) -> Failure {
    let until = until_us.map_or(Time::NEVER, Time::from_us);
    Failure { what, at: Time::from_us(at_us), until, reroute_after: Time::from_us(reroute_us) }
}

fn slowest(results: &Results) -> Time {
    results.completion_quantile(1.0).unwrap()
}

/// Returns the frames that each spine forwarded to the second leaf.
fn shares(results: &Results) -> Vec<u64> {
    (0..4).map(|spine| results.port(&format!("spine{spine}"), "leaf1").unwrap().stats.tx_frames).collect()
}

#[test]
fn sprayed_and_adaptive_frames_use_all_paths_and_flows_do_not_collide() {
    let alone = slowest(&run(&fabric(), &across(4_000_000)[..1], settings(Balance::Flow)));
    let hashed = run(&fabric(), &across(4_000_000), settings(Balance::Flow));
    assert_complete(&hashed);
    assert!(shares(&hashed).contains(&0), "the hash collides: {:?}", shares(&hashed));
    assert!(slowest(&hashed) > Time::from_ps(alone.as_ps() * 3 / 2), "{}", slowest(&hashed));
    for balance in [Balance::Spray, Balance::Adaptive] {
        let results = run(&fabric(), &across(4_000_000), settings(balance));
        assert_complete(&results);
        let shares = shares(&results);
        let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
        assert!(least * 10 > most * 9, "{balance:?}: {shares:?}");
        assert!(slowest(&results) < Time::from_ps(alone.as_ps() * 105 / 100), "{balance:?}");
    }
}

/// Regression: switches on the return path wrote telemetry too, so paths between leaves exceeded the trailer.
/// Acknowledgements tell an algorithm the number of switches; telemetry is only from those in the direction
/// of the data.
#[test]
fn acknowledgements_tell_the_number_of_hops() {
    #[derive(Debug)]
    struct Recorder(Arc<Mutex<BTreeSet<Option<u8>>>>);
    impl CongestionControl for Recorder {
        fn on_ack(&mut self, _now: Instant, ack: &Ack) {
            self.0.lock().unwrap().insert(ack.hops);
        }
        fn wants_telemetry(&self) -> bool {
            true
        }
        fn on_telemetry(&mut self, _now: Instant, telemetry: &Telemetry) {
            let hops = telemetry.is_complete().then_some(telemetry.hops().len() as u8);
            self.0.lock().unwrap().insert(hops);
        }
    }
    for (destination, hops) in [(1, 1), (4, 3)] {
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let recorder = seen.clone();
        let algorithm = Algorithm::custom("recorder", move |_| Box::new(Recorder(recorder.clone())));
        let mut settings = settings(Balance::Flow);
        settings.host.congestion = Congestion::new(algorithm);
        assert_complete(&run(&fabric(), &[flow(0, destination, 400_000)], settings));
        assert_eq!(*seen.lock().unwrap(), BTreeSet::from([Some(hops)]));
    }
}

/// A spine with slower links gets less traffic if the balancing takes account of the rate.
#[test]
fn weights_and_queues_take_account_of_slow_links() {
    let mut topology = fabric();
    let slow = topology.node_named("spine3").unwrap();
    for link in topology.links.iter_mut().filter(|link| [link.a, link.b].contains(&slow)) {
        link.spec.rate_bps /= 10;
    }
    let flows = permutation(8, 20_000, Time::ZERO, 3).unwrap();
    let many: Vec<FlowSpec> = (0..200_u64)
        .flat_map(|round| flows.iter().map(move |flow| FlowSpec { start: Time::from_us(2 * round), ..*flow }))
        .collect();
    let slow_share = |balance| {
        let shares = shares(&run(&topology, &many, settings(balance)));
        shares[3] as f64 / shares.iter().sum::<u64>() as f64
    };
    let (equal, weighted, adaptive) =
        (slow_share(Balance::Flow), slow_share(Balance::Weighted), slow_share(Balance::Adaptive));
    assert!((0.15..0.35).contains(&equal), "a quarter: {equal}");
    assert!((0.01..0.07).contains(&weighted), "a tenth beside three: 3.2 %, not {weighted}");
    assert!(adaptive < 0.15, "{adaptive}");
}

#[test]
fn flowlets_move_between_paths_only_in_gaps() {
    let gap = Balance::Flowlet { gap: Time::from_us(20) };
    let steady = run(&fabric(), &across(1_000_000)[..1], settings(gap));
    assert_complete(&steady);
    assert_eq!(steady.flows[0].counts.out_of_sequence, 0);
    let paths = shares(&steady).iter().filter(|frames| **frames > 100).count();
    assert_eq!(paths, 1, "no gap, no other path: {:?}", shares(&steady));
    // One queue pair cannot pause by itself here. A window of one packet makes a gap of a round trip after
    // each packet.
    let mut settings = settings(Balance::Flowlet { gap: Time::from_us(5) });
    settings.host.window_packets = 1;
    let paced = run(&fabric(), &across(100_000)[..1], settings);
    assert_complete(&paced);
    assert!(shares(&paced).iter().all(|frames| *frames > 10), "{:?}", shares(&paced));
    assert_eq!(paced.flows[0].counts.out_of_sequence, 0);
}

#[test]
fn a_failed_spine_is_avoided_after_a_time_and_used_again_later() {
    let whole = run(&fabric(), &across(8_000_000), settings(Balance::Spray));
    assert_complete(&whole);
    assert_eq!(whole.dropped(DropReason::LinkDown), 0);
    let mut failing = settings(Balance::Spray);
    failing.failures = vec![failure(Failed::Switch("spine2".to_owned()), 100, Some(400), 20)];
    let results = run(&fabric(), &across(8_000_000), failing);
    assert_complete(&results);
    let lost = results.dropped(DropReason::LinkDown);
    // A quarter of 400 Gb/s for 20 us is 226 frames, and up to one acknowledgement for each of them.
    assert!((200..480).contains(&lost), "{lost}");
    let retransmitted: u64 = results.flows.iter().map(|flow| flow.counts.retransmitted).sum();
    assert!(retransmitted >= 200, "what was lost is sent again: {retransmitted}");
    let (before, after) = (shares(&whole)[2], shares(&results)[2]);
    assert!(
        after > before / 4 && after < before * 9 / 10,
        "{before} frames without the failure, {after} with it"
    );
}

#[test]
fn without_other_routes_frames_are_lost_until_the_link_works_again() {
    let mut failing = settings(Balance::Flow);
    failing.failures = vec![failure(Failed::Links("h0".to_owned(), "leaf0".to_owned()), 50, Some(500), 10)];
    let results = run(&fabric(), &across(2_000_000)[..2], failing);
    assert_complete(&results);
    assert!(results.flows[0].completion_time.unwrap() > Time::from_us(500), "waits for its link");
    assert!(results.flows[0].counts.timeouts > 0 && results.flows[1].counts.timeouts == 0);
    assert!(results.flows[1].completion_time.unwrap() < Time::from_us(400));
}

#[test]
fn a_flow_whose_only_link_is_gone_fails_after_its_retries() {
    let mut failing = settings(Balance::Flow);
    failing.host.timeout = 4;
    failing.failures = vec![failure(Failed::Switch("leaf1".to_owned()), 50, None, 10)];
    let results = run(&fabric(), &across(2_000_000)[..1], failing);
    assert!(matches!(results.flows[0].state, FlowState::Failed(_)), "{:?}", results.flows[0].state);
    assert!(results.dropped(DropReason::NoRoute) > 0, "the leaf has no spine that knows a way");
}

/// Two overlapping failures of one link act as one long failure.
#[test]
fn failures_that_overlap() {
    let run_with = |failures| {
        let mut settings = settings(Balance::Flow);
        settings.failures = failures;
        run(&Topology::star(2, LinkSpec::DEFAULT).unwrap(), &[flow(0, 1, 1_000_000)], settings)
    };
    let link = || Failed::Links("s0".to_owned(), "h1".to_owned());
    let two = run_with(vec![
        failure(link(), 10, Some(100), 0),
        failure(Failed::Switch("s0".to_owned()), 50, Some(70), 0),
    ]);
    let one = run_with(vec![failure(link(), 10, Some(100), 0)]);
    assert_complete(&two);
    let frames = |results: &Results| results.port("s0", "h1").unwrap().stats.tx_frames;
    assert!(two.dropped(DropReason::LinkDown) >= one.dropped(DropReason::LinkDown));
    assert!(one.flows[0].completion_time.unwrap() > Time::from_us(100) && frames(&one) > 0);
}

/// The hosts of a leaf could send more than its links to the spines carry. Each flow gets its share of those
/// links, whether one tier is oversubscribed or two.
#[test]
fn oversubscription_divides_what_the_fabric_carries() {
    let clos = |leaves, spines| Clos { pods: 2, tors: 2, leaves, spines, hosts: 4 };
    let half = LinkSpec { rate_bps: LINK.rate_bps / 2, ..LINK };
    // Each topology with the oversubscription that the flows see, all of which cross the highest tier.
    let topologies = [
        (Topology::leaf_spine(2, 8, 8, LINK, LINK).unwrap(), 1.0),
        (Topology::leaf_spine(2, 4, 8, LINK, LINK).unwrap(), 2.0),
        (Topology::leaf_spine(2, 2, 8, LINK, LINK).unwrap(), 4.0),
        (Topology::leaf_spine(2, 8, 8, LINK, half).unwrap(), 2.0),
        (Topology::clos(clos(4, 2), LINK, LINK).unwrap(), 1.0),
        (Topology::clos(clos(2, 2), LINK, LINK).unwrap(), 2.0),
        (Topology::clos(clos(2, 1), LINK, LINK).unwrap(), 4.0),
    ];
    for (topology, ratio) in topologies {
        let hosts = topology.hosts() as u32;
        let flows: Vec<FlowSpec> =
            (0..hosts).map(|host| flow(host, (host + hosts / 2) % hosts, 4_000_000)).collect();
        let mut settings = Settings::default();
        settings.switch.balance = Balance::Spray;
        // Frames overtake each other, and wait in queues longer than the timers of the paper.
        let (rto_low, rto_high) = (50_000, 50_000);
        let selective = SelectiveRepeat { cap: 4_096, reorder: 4_095, rto_low, rto_high, few: 0 };
        settings.host.recovery = Recovery::SelectiveRepeat(selective);
        let expected = LINK.rate_bps as f64 * 1_024.0 / 1_106.0 / ratio;
        // In the order of ports, no two frames of hosts without oversubscription meet. In a random order,
        // frames overtake each other, and their acknowledgements take a part of the rate.
        for (ties, least) in [(Ties::Port, 0.95), (Ties::Seed, 0.75)] {
            let results = run(&topology, &flows, Settings { ties, ..settings.clone() });
            assert_complete(&results);
            let slowest = results.flows.iter().map(|flow| flow.goodput_bps()).fold(f64::INFINITY, f64::min);
            println!("{ratio}, {ties:?}: {:.3} of the expected rate", slowest / expected);
            assert!((least..=1.001).contains(&(slowest / expected)), "{ratio}: {slowest} {expected}");
        }
    }
}
