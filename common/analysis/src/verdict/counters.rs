//! Rule 20: counters of a NIC beside the packets at its port.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::judgement::Verdict;
use super::rules;
use crate::analysis::Analysis;
use crate::counters::{Agreement, Beside, Comparison, Event, WireCounts, beside};

/// Judges whether counters agree with the packets that were captured at the port of their NIC.
///
/// The capture contains the time between the two readings of the counters, and nothing else. `address` is
/// that of the NIC. Without it, the address of the capture that agrees with most counters of a device is
/// taken.
#[must_use]
pub fn of_counters(analysis: &Analysis, comparisons: &[Comparison], address: Option<IpAddr>) -> Vec<Verdict> {
    if comparisons.is_empty() {
        return Vec::new();
    }
    let addresses = match address {
        Some(address) => BTreeSet::from([address]),
        None => {
            let keys = analysis.streams.iter().map(|(_, stream)| stream.key);
            keys.flat_map(|key| [key.source, key.destination]).collect()
        }
    };
    let counts: Vec<(IpAddr, WireCounts)> =
        addresses.into_iter().map(|address| (address, WireCounts::at(analysis, address))).collect();
    comparisons.iter().map(|comparison| of_device(comparison, &counts)).collect()
}

/// Returns the number of counters that grew and agree.
fn score(found: &[Beside]) -> usize {
    found.iter().filter(|one| one.agreement == Agreement::Equal && one.counted > 0).count()
}

fn of_device(comparison: &Comparison, counts: &[(IpAddr, WireCounts)]) -> Verdict {
    let name = &comparison.name;
    let all: Vec<(IpAddr, Vec<Beside>)> =
        counts.iter().map(|(address, counts)| (*address, beside(comparison, counts))).collect();
    let most = all.iter().map(|(_, found)| score(found)).max().unwrap_or(0);
    let best: Vec<_> = all.iter().filter(|(_, found)| all.len() == 1 || score(found) == most).collect();
    match &best[..] {
        [] => Verdict::unknown(&rules::COUNTERS, "the capture contains no RoCE packet"),
        [(address, found)] if found.is_empty() => {
            let because = format!("no counter of {name} counts what the packets of {address} show");
            Verdict::unknown(&rules::COUNTERS, because)
        }
        [(address, found)] => judge(name, *address, found),
        [(one, _), (other, _), ..] => {
            let because = format!(
                "the counters of {name} fit {one} as well as {other}; --counters-of ADDRESS names the NIC"
            );
            Verdict::unknown(&rules::COUNTERS, because)
        }
    }
}

fn judge(name: &str, address: IpAddr, found: &[Beside]) -> Verdict {
    let texts = |agreement: Agreement| -> Vec<String> {
        found.iter().filter(|one| one.agreement == agreement).map(Beside::text).collect()
    };
    let (stuck, different) = (texts(Agreement::Stuck), texts(Agreement::Different));
    let equal = found.len() - stuck.len() - different.len();
    let is_of_packets = |one: &&Beside| matches!(one.event, Event::PacketsSent | Event::PacketsReceived);
    let is_same_traffic = found.iter().filter(is_of_packets).all(|one| one.agreement == Agreement::Equal);
    let counted = if equal == 1 { "1 counter agrees".to_owned() } else { format!("{equal} counters agree") };
    let wrong = [stuck.as_slice(), different.as_slice()].concat().join("; ");
    let text = format!("{name} beside the packets of {address}: {counted}");
    let verdict = if wrong.is_empty() {
        Verdict::pass(&rules::COUNTERS, text)
    } else if is_same_traffic {
        Verdict::fail(&rules::COUNTERS, format!("{text}; {wrong}"))
    } else {
        let because = "the counters and the capture do not contain the same packets";
        Verdict::unknown(&rules::COUNTERS, format!("{because}; {text}; {wrong}"))
    };
    verdict
        .with("equal", equal as f64)
        .with("stuck", stuck.len() as f64)
        .with("different", different.len() as f64)
}
