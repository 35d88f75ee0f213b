//! Every algorithm with every way to share several paths.

use roce_sim::net::{Balance, FlowOperation, Marking, Results, Settings, Time, Topology, permutation};
use roce_transport::congestion::Congestion;
use roce_transport::{Recovery, SelectiveRepeat};

use super::{LINK, run};

const BYTES: u64 = 1_000_000;

const BALANCES: [Balance; 4] =
    [Balance::Flow, Balance::Spray, Balance::Adaptive, Balance::Flowlet { gap: Time::from_us(5) }];

/// The first entry has no algorithm; the others are compared with it. The base round trip is that of six
/// links of 1 us, and of one packet on each of them.
const ALGORITHMS: [&str; 11] = [
    "none",
    "dcqcn:paper",
    "dcqcn:cx-default",
    "dcqcn:hpcc",
    "dctcp:echo=1",
    "swift",
    "timely",
    "hpcc:base_rtt=9000",
    "powertcp:base_rtt=9000",
    "theta-powertcp:base_rtt=9000",
    "nscc:base_rtt=9000,echo=1",
];

/// Runs eight leaves with eight hosts each, and eight spines: each host sends to one other.
fn permutation_of_64(congestion: &str, balance: Balance) -> Results {
    let topology = Topology::leaf_spine(8, 8, 8, LINK, LINK).unwrap();
    let mut settings = Settings { stop: Time::from_us(50_000), ..Settings::default() };
    settings.switch.balance = balance;
    settings.switch.marking[3] = Marking::Red { kmin: 100_000, kmax: 400_000, pmax: 0.2 };
    // Sprayed packets overtake each other.
    settings.host.recovery =
        Recovery::SelectiveRepeat(SelectiveRepeat { cap: 512, reorder: 256, ..SelectiveRepeat::default() });
    (settings.host.congestion, settings.host.notification) = Congestion::parse(congestion).unwrap();
    run(&topology, &permutation(64, BYTES, Time::ZERO, 3).unwrap(), settings)
}

/// The maximum ratio of the mean time to the one without any algorithm. DCQCN with the defaults of ConnectX
/// needs milliseconds to recover from its first cuts, with all paths.
const MOST_LONGER: f64 = 3.0;

/// Returns the mean completion time in milliseconds.
fn mean(results: &Results) -> f64 {
    let times = results.completion_times();
    times.iter().map(|time| time.as_secs_f64() * 1e3).sum::<f64>() / times.len() as f64
}

/// Regression: HPCC and PowerTCP subtracted the counters of different paths, and most sprayed flows fell to
/// 0.1 Gb/s.
///
/// An algorithm has collapsed if a flow is incomplete, or if the mean time is more than `MOST_LONGER` times
/// that without any algorithm.
#[test]
fn no_algorithm_collapses_with_any_balance() {
    let mut collapsed = Vec::new();
    for balance in BALANCES {
        let mut without = None;
        for congestion in ALGORITHMS {
            let results = permutation_of_64(congestion, balance);
            let (mean, slowest) = (mean(&results), results.completion_quantile(1.0).unwrap_or(Time::NEVER));
            println!(
                "{balance:?}, {congestion}: {} incomplete, mean {mean:.3} ms, slowest {slowest}",
                results.incomplete()
            );
            let without = *without.get_or_insert(mean);
            if results.incomplete() > 0 || mean > MOST_LONGER * without {
                collapsed.push(format!("{balance:?}, {congestion}: {mean:.3} ms, and {without:.3} without"));
            }
        }
    }
    assert!(collapsed.is_empty(), "{collapsed:#?}");
}

/// Regression: every response that overtook another one made the requester go back. Sprayed READs of 4 MB
/// took 22 instead of 0.5 ms, and 20 times as many packets were sent again as carried data.
#[test]
fn sprayed_reads_take_no_longer_than_writes() {
    let topology = Topology::leaf_spine(4, 4, 4, LINK, LINK).unwrap();
    let outcome = |operation, balance, seed| {
        let mut settings = Settings { stop: Time::from_us(50_000), seed, ..Settings::default() };
        settings.switch.balance = balance;
        settings.host.recovery = Recovery::SelectiveRepeat(SelectiveRepeat {
            cap: 512,
            reorder: 128,
            ..SelectiveRepeat::default()
        });
        settings.host.operation = operation;
        let results = run(&topology, &permutation(16, BYTES, Time::ZERO, seed).unwrap(), settings);
        assert_eq!(results.incomplete(), 0, "{operation:?} {balance:?}");
        let again: u64 = results.flows.iter().map(|flow| flow.counts.retransmitted).sum();
        (mean(&results), again)
    };
    for balance in [Balance::Spray, Balance::Adaptive] {
        for seed in 1..4 {
            let (writes, _) = outcome(FlowOperation::Write, balance, seed);
            let (reads, again) = outcome(FlowOperation::Read, balance, seed);
            println!("{balance:?}, seed {seed}: WRITE {writes:.3} ms, READ {reads:.3} ms, {again} again");
            assert!(reads < 1.2 * writes, "{balance:?}, seed {seed}: {reads} instead of {writes}");
        }
    }
}
