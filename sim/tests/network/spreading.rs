//! Senders that choose the path of each packet, by its UDP source port.

use roce_sim::net::{Failed, Failure};
use roce_transport::{Recovery, SelectiveRepeat};

use super::*;

fn settings(paths: &str) -> Settings {
    let mut settings = Settings { stop: Time::from_us(20_000), ..Settings::default() };
    (settings.host.congestion, settings.host.notification) = Congestion::parse("dctcp:echo=1").unwrap();
    let recovery = SelectiveRepeat { cap: 512, reorder: 64, ..SelectiveRepeat::default() };
    settings.host.recovery = Recovery::SelectiveRepeat(recovery);
    settings.host.paths = paths.parse().unwrap();
    settings
}

/// With hashes alone, flows collide. Senders that spread their packets share the paths as well as switches
/// that spray them.
#[test]
fn senders_that_spread_share_all_paths() {
    let topology = Topology::leaf_spine(4, 4, 4, LINK, LINK).unwrap();
    let flows = permutation(16, 1_000_000, Time::ZERO, 1).unwrap();
    let time = |paths: &str, balance: Balance| {
        let mut settings = settings(paths);
        settings.switch.balance = balance;
        let results = run(&topology, &flows, settings);
        assert_complete(&results);
        println!(
            "{paths} {balance:?}: {} us, {} resent",
            slowest_us(&results),
            results.flows.iter().map(|flow| flow.counts.retransmitted).sum::<u64>()
        );
        slowest_us(&results)
    };
    let hashed = time("one", Balance::Flow);
    let sprayed = time("one", Balance::Spray);
    for paths in ["round-robin", "penalty", "recycle", "reps"] {
        let spread = time(paths, Balance::Flow);
        assert!(spread < 1.2 * sprayed && spread < 0.8 * hashed, "{paths}: {spread}, {sprayed}, {hashed} us");
    }
}

/// One of four uplinks fails, and no switch ever learns of it. Each sender stops using its paths there within
/// microseconds, and uses them again after the repair.
#[test]
fn senders_avoid_a_failed_link_by_themselves() {
    let topology = Topology::leaf_spine(2, 4, 4, LINK, LINK).unwrap();
    let flows: Vec<_> = (0..4).map(|host| flow(host, host + 4, 10_000_000)).collect();
    let fail = |paths: &str| {
        let mut settings = settings(paths);
        settings.host.congestion = Congestion::parse("nscc:base_rtt=9000,echo=1").unwrap().0;
        settings.failures = vec![Failure {
            what: Failed::Links("leaf0".to_owned(), "spine2".to_owned()),
            at: Time::from_us(100),
            until: Time::from_us(700),
            reroute_after: Time::from_us(1_000_000),
        }];
        let results = run(&topology, &flows, settings);
        assert_complete(&results);
        let lost = results.dropped(DropReason::LinkDown);
        let used = results.port("leaf0", "spine2").unwrap().stats.tx_frames;
        println!("{paths}: {lost} lost, {} us, {used} frames", slowest_us(&results));
        (lost, slowest_us(&results), used)
    };
    // Four links take 866 us, and a quarter of 600 us is missing.
    let ideal = 866.0 + 150.0;
    // Packets that one link carries in a microsecond at 100 Gb/s.
    let per_us = 100_000.0 / (1_106.0 * 8.0);
    let (_, hashed, _) = fail("one");
    assert!(hashed > 2.0 * ideal, "{hashed} us: a flow waits for the repair");
    for paths in ["recycle", "reps"] {
        let (lost, time, used) = fail(paths);
        assert!(time < 1.2 * ideal, "{paths}: {time} us instead of {ideal}");
        // The four senders and their probes together.
        assert!((lost as f64) < 45.0 * per_us, "{paths}: {lost} lost");
        assert!(used as f64 > 1.3 * 100.0 * per_us, "{paths}: {used} frames, so not used after the repair");
    }
    // Without feedback the order is lost more often, and the paths are found nevertheless.
    for paths in ["round-robin", "penalty"] {
        let (_, time, _) = fail(paths);
        assert!(time < 1.6 * ideal, "{paths}: {time} us");
    }
}
