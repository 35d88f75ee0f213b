//! Switches that trim frames for which they have no room.

use roce_sim::net::{
    Balance, DropReason, FlowOperation, PayloadMode, Results, Settings, Simulation, Time, Topology, Trimming,
    incast, permutation,
};
use roce_transport::congestion::Congestion;
use roce_transport::{Recovery, SelectiveRepeat};

use super::{LINK, assert_complete, flow, run};

fn settings(trimming: Option<Trimming>) -> Settings {
    let mut settings = Settings::default();
    (settings.switch.pfc, settings.switch.buffer_bytes) = (0, 200_000);
    settings.switch.trimming = trimming;
    (settings.host.congestion, _) = Congestion::parse("swift").unwrap();
    let selective = SelectiveRepeat { cap: 256, reorder: 64, ..SelectiveRepeat::default() };
    settings.host.recovery = Recovery::SelectiveRepeat(selective);
    settings
}

fn retransmitted(results: &Results) -> u64 {
    results.flows.iter().map(|flow| flow.counts.retransmitted).sum()
}

fn timeouts(results: &Results) -> u64 {
    results.flows.iter().map(|flow| flow.counts.timeouts).sum()
}

/// Every trimmed packet is sent again once, no other packet is, and no byte is wrong, with either form of
/// payload.
#[test]
fn what_is_trimmed_is_sent_again_and_arrives() {
    let topology = Topology::star(9, LINK).unwrap();
    let flows = incast(9, 8, 8, 300_000, Time::ZERO).unwrap();
    for operation in [FlowOperation::Write, FlowOperation::Send] {
        let outcome = |payload: PayloadMode| {
            let above = Trimming { above_bytes: Some(50_000), ..Trimming::default() };
            let mut settings = Settings { payload, ..settings(Some(above)) };
            settings.host.operation = operation;
            let results = run(&topology, &flows, settings);
            assert_complete(&results);
            let trimmed = results.port("s0", "h8").unwrap().stats.trimmed;
            assert!(trimmed > 100, "{trimmed}");
            assert_eq!(results.sum(|port| port.trimmed), trimmed, "nowhere else is a queue");
            assert_eq!((retransmitted(&results), timeouts(&results)), (trimmed, 0), "{operation:?}");
            assert_eq!(results.sum(|port| port.drops()), 0);
            assert!(results.port("s0", "h8").unwrap().stats.queue_most > 50_000);
            (results.trace_hash, results.checked)
        };
        let (real, implied) = (outcome(PayloadMode::Real), outcome(PayloadMode::Implied));
        assert_eq!(real.0, implied.0, "{operation:?}");
        assert_eq!(real.1.1, 0, "no byte is wrong");
        assert!(real.1.0 >= 8 * 300_000);
    }
}

/// Regression: trimmed packets were sent again at once, whatever the window. With many senders, the
/// headers of trimmed packets filled the link, and hardly a byte arrived.
#[test]
fn an_incast_of_many_ends_although_most_packets_are_trimmed() {
    let topology = Topology::star(128, LINK).unwrap();
    let flows = incast(128, 127, 0, 50_000, Time::ZERO).unwrap();
    for congestion in ["nscc:base_rtt=5000,echo=1", "dctcp:echo=1", "swift"] {
        let above = Trimming { above_bytes: Some(100_000), ..Trimming::default() };
        let mut settings = settings(Some(above));
        settings.switch.buffer_bytes = 50_000_000;
        (settings.host.congestion, settings.host.notification) = Congestion::parse(congestion).unwrap();
        let results = run(&topology, &flows, settings);
        assert_complete(&results);
        let line = Time::from_ps(127 * 49 * 1_106 * 80);
        let slowest = results.completion_quantile(1.0).unwrap();
        assert!(slowest.as_ps() < line.as_ps() * 3 / 2, "{congestion}: {slowest} instead of {line}");
    }
}

#[test]
fn go_back_n_and_reads_get_everything_too() {
    let topology = Topology::star(5, LINK).unwrap();
    let flows = incast(5, 4, 4, 100_000, Time::ZERO).unwrap();
    for operation in [FlowOperation::Write, FlowOperation::Read] {
        for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat(SelectiveRepeat::default())] {
            let above = Trimming { above_bytes: Some(50_000), ..Trimming::default() };
            let mut settings = Settings { payload: PayloadMode::Real, ..settings(Some(above)) };
            (settings.host.operation, settings.host.recovery, settings.host.timeout) =
                (operation, recovery, 8);
            let results = run(&topology, &flows, settings);
            assert_complete(&results);
            assert!(results.sum(|port| port.trimmed) > 0, "{operation:?} {recovery:?}");
            assert_eq!(results.checked.1, 0);
        }
    }
}

/// Without `above`, the buffer decides. Headers have a limit like any other queue.
#[test]
fn headers_without_room_are_dropped() {
    let topology = Topology::star(33, LINK).unwrap();
    let flows = incast(33, 32, 32, 200_000, Time::ZERO).unwrap();
    let mut settings = settings(Some(Trimming { frame_bytes: 512, ..Trimming::default() }));
    settings.switch.buffer_bytes = 20_000;
    (settings.host.congestion, _) = Congestion::parse("none").unwrap();
    settings.stop = Time::from_us(200);
    let results = run(&topology, &flows, settings);
    let port = results.port("s0", "h32").unwrap();
    assert!(port.stats.trimmed > 0 && results.dropped(DropReason::Buffer) > 0, "{:?}", port.stats);
}

/// A lossless priority is trimmed if it would exceed its headroom, which happens only if the headroom is
/// wrong.
#[test]
fn lossless_frames_beyond_the_headroom_are_trimmed() {
    let topology = Topology::star(9, LINK).unwrap();
    let flows = incast(9, 8, 8, 300_000, Time::ZERO).unwrap();
    let outcome = |trimming: Option<Trimming>| {
        let mut settings = settings(trimming);
        (settings.switch.pfc, settings.switch.buffer_bytes) = (1 << 3, 400_000);
        settings.switch.headroom = roce_sim::net::Headroom::Bytes(2_000);
        (settings.host.congestion, _) = Congestion::parse("none").unwrap();
        let results = run(&topology, &flows, settings);
        assert_complete(&results);
        (results.dropped(DropReason::Headroom), results.sum(|port| port.trimmed))
    };
    let (dropped, trimmed) = outcome(None);
    assert!(dropped > 0 && trimmed == 0, "{dropped}");
    let (dropped, trimmed) = outcome(Some(Trimming::default()));
    assert!(trimmed > 0 && dropped == 0, "{trimmed} {dropped}");
}

/// A sprayed permutation over too few spines: with trimming hardly any timer expires (acknowledgements are
/// dropped, not trimmed), and the lines are better utilized.
#[test]
fn a_sprayed_permutation_loses_less_time() {
    let topology = Topology::leaf_spine(4, 2, 4, LINK, LINK).unwrap();
    // With few flows, the slowest one depends on a single packet, so these are sums over several
    // permutations.
    let outcome = |trimming: Option<Trimming>| {
        let mut sums = (Time::ZERO, 0, 0);
        for seed in 1..=8 {
            let flows = permutation(16, 1_000_000, Time::ZERO, seed).unwrap();
            let mut settings = settings(trimming);
            settings.switch.balance = Balance::Spray;
            settings.switch.buffer_bytes = 100_000;
            let results = run(&topology, &flows, settings);
            assert_complete(&results);
            let slowest = results.completion_quantile(1.0).unwrap();
            println!("{seed}: {slowest} {} {}", timeouts(&results), results.sum(|port| port.trimmed));
            sums = (sums.0 + slowest, sums.1 + timeouts(&results), sums.2 + results.sum(|port| port.trimmed));
        }
        sums
    };
    let (without, with) = (outcome(None), outcome(Some(Trimming::default())));
    assert!(without.1 > 2 * with.1 && with.2 > 0, "{without:?} {with:?}");
    assert!(with.0 < without.0, "{without:?} {with:?}");
}

/// Faults of links apply to trimmed frames as to others.
#[test]
fn trimmed_frames_can_be_lost_doubled_and_damaged() {
    let mut topology = Topology::star(9, LINK).unwrap();
    for link in &mut topology.links {
        link.set_faults("drop=1%,dup=1%,corrupt=1%".parse().unwrap());
    }
    let flows = incast(9, 8, 8, 200_000, Time::ZERO).unwrap();
    let above = Trimming { above_bytes: Some(50_000), ..Trimming::default() };
    let settings = Settings { payload: PayloadMode::Real, ..settings(Some(above)) };
    let results = run(&topology, &flows, settings);
    assert_complete(&results);
    assert_eq!(results.checked.1, 0);
    assert!(results.dropped(DropReason::Damaged) > 0 && results.sum(|port| port.trimmed) > 0);
}

#[test]
fn impossible_settings_are_refused() {
    let topology = Topology::star(2, LINK).unwrap();
    let refused = |trimming: Trimming, pfc: u8| {
        let mut settings = settings(Some(trimming));
        settings.switch.pfc = pfc;
        Simulation::new(&topology, &[flow(0, 1, 1)], settings).err().unwrap().to_string()
    };
    let with_dscp = |dscp: u8| Trimming { dscp, ..Trimming::default() };
    assert_eq!(refused(with_dscp(64), 0), "trimming: dscp must be 0 to 63");
    assert_eq!(refused(with_dscp(26), 0), "trimming: the priority of its dscp is also the priority of data");
    assert_eq!(refused(with_dscp(44), 1 << 5), "trimming: the priority of its dscp is lossless");
    for frame_bytes in [0, 63, 513] {
        let reason = refused(Trimming { frame_bytes, ..Trimming::default() }, 0);
        assert_eq!(reason, "trimming: to must be 64 to 512 bytes");
    }
}
