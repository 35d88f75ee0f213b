//! Counters of both engines beside captures at their ports: what the capture says that a NIC should have
//! counted is what the engine counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use roce_analysis::counters::{Agreement, Comparison, Snapshot, WireCounts, beside, compare};
use roce_analysis::verdict::{Outcome, of_counters};
use roce_sim::pair::{Pair, Side};
use roce_testing::encapsulated::Tunnel;

use crate::scene::{Class, Ending, Fault, Numbers, Style, Taps, analyze, exchange, run, tapped};

/// Returns the counters of a side as `roce stat` prints them; all are zero before the exchange.
fn comparison(pair: &mut Pair, side: Side, change: impl Fn(&str, u64) -> u64) -> Comparison {
    let (mut before, mut after) = ("1 roce ping: udp 198.18.0.1, for 3 s\n".to_owned(), String::new());
    after.push_str(&before);
    pair.host(side).engine.counters().visit(&mut |name, value| {
        writeln!(before, "{name}  0").unwrap();
        writeln!(after, "{name}  {}", change(name, value)).unwrap();
    });
    let [before, after] = [before, after].map(|text| Snapshot::parse(&text).unwrap());
    compare(&before, &after).remove(0)
}

/// Returns a fault of a seed: the class, the fault, and the PSN of a packet that exists.
fn fault(seed: u64, class: Class, fault: Fault) -> Option<(Class, Fault, u32)> {
    let plain = run(seed, &[], Ending::Good);
    let psns: Vec<u32> = plain
        .iter()
        .filter(|sent| Class::of(sent.opcode) == Some(class))
        .map(|sent| sent.psn.get())
        .collect();
    let at = Numbers(seed).below(psns.len().max(1) as u64) as usize;
    Some((class, fault, *psns.get(at)?))
}

const FAULTS: [Fault; 5] = [Fault::Drop, Fault::Corrupt, Fault::Duplicate, Fault::Delay, Fault::Mark];
const CLASSES: [Class; 3] = [Class::Request, Class::ReadResponse, Class::Acknowledgement];

#[test]
fn engines_count_what_the_capture_at_their_port_shows() {
    // For each counter: how often it grew and agreed.
    let mut agreed: BTreeMap<String, u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for ending in [Ending::Good, Ending::NoReceive] {
        for (class, what) in CLASSES.into_iter().flat_map(|class| FAULTS.map(|fault| (class, fault))) {
            for seed in 1..=20 {
                let faults: Vec<_> = fault(seed, class, what).into_iter().collect();
                let mut pair = exchange(seed, &faults, ending);
                let taps = tapped(&pair.sent);
                for (side, near) in [(Side::A, Taps::A), (Side::B, Taps::B)] {
                    let comparison = comparison(&mut pair, side, |_, value| value);
                    let address = pair.host(side).address;
                    for taken in [near, Taps::Both] {
                        let style = Style { taps: taken, tunnel: Tunnel::ALL[0], is_truncated: false };
                        let analysis = analyze(&taps, style);
                        for one in beside(&comparison, &WireCounts::at(&analysis, address)) {
                            if one.agreement == Agreement::Equal {
                                *agreed.entry(one.counter.clone()).or_default() += u64::from(one.counted > 0);
                            } else {
                                let about = (seed, class, what, ending, side, taken);
                                wrong.push(format!("{about:?}: {}", one.text()));
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    for counter in [
        "out_of_sequence",
        "packet_seq_err",
        "implied_nak_seq_err",
        "duplicate_request",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
        "out_of_buffer",
        "rx_icrc_encapsulated",
        "np_cnp_sent",
        "rp_cnp_handled + rp_cnp_ignored",
        "np_ecn_marked_roce_packets",
        "rx_write_requests",
        "rx_read_requests",
    ] {
        assert!(agreed.get(counter).is_some_and(|count| *count >= 10), "{counter} never grew: {agreed:?}");
    }
}

/// The two defects of counters that Lumina reported: one stays at zero, another one misses events.
#[test]
fn counters_that_are_stuck_or_wrong_are_named() {
    let lost = fault(1, Class::ReadResponse, Fault::Drop).expect("a READ response");
    let marked = fault(1, Class::Request, Fault::Mark).expect("a request");
    let mut pair = exchange(1, &[lost, marked], Ending::Good);
    let taps = tapped(&pair.sent);
    let addresses = [Side::A, Side::B].map(|side| pair.host(side).address);
    let style = Style { taps: Taps::Both, tunnel: Tunnel::ALL[0], is_truncated: false };
    let analysis = analyze(&taps, style);
    for (side, address, counter, is_named) in [
        (Side::A, addresses[0], "implied_nak_seq_err", true),
        (Side::B, addresses[1], "np_cnp_sent", true),
        (Side::A, addresses[0], "no such counter", false),
    ] {
        let changed = comparison(&mut pair, side, |name, value| if name == counter { 0 } else { value });
        let verdicts = of_counters(&analysis, &[changed], Some(address));
        let [verdict] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!(verdict.outcome == Outcome::Fail, is_named, "{verdict:?}");
        assert_eq!(verdict.summary.contains(&format!("{counter} is stuck")), is_named, "{verdict:?}");
        assert!(verdict.summary.contains(&format!("packets of {address}")), "{verdict:?}");
    }
    // The NIC is found by its counters, unless none of them grew.
    for (side, address) in [Side::A, Side::B].into_iter().zip(addresses) {
        let found = of_counters(&analysis, &[comparison(&mut pair, side, |_, value| value)], None);
        assert_eq!(found[0].outcome, Outcome::Pass, "{found:?}");
        assert!(found[0].summary.contains(&format!("packets of {address}")), "{found:?}");
        let still = of_counters(&analysis, &[comparison(&mut pair, side, |_, _| 0)], None);
        assert!(still[0].summary.contains("--counters-of ADDRESS names the NIC"), "{still:?}");
    }
    // Without the end of a NIC in the capture, nothing is said about it.
    let elsewhere = of_counters(
        &analysis,
        &[comparison(&mut pair, Side::A, |_, value| value)],
        Some([198, 18, 99, 99].into()),
    );
    assert_eq!(elsewhere[0].outcome, Outcome::Unknown, "{elsewhere:?}");
}
