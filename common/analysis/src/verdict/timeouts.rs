//! Rule 7: the retransmission timer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::TIMEOUTS;
use crate::replay::{Cause, Replay, Resend};
use crate::words::duration;

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if scene.is_reliable() { scene.of_requesters(judge) } else { Vec::new() }
}

/// Largest relative deviation of a timeout from a timer value that still fits.
const TOLERANCE: f64 = 0.25;
/// Unit of the timer in nanoseconds.
const UNIT_NS: f64 = 4096.0;

/// A return of the requester after a timeout.
struct Timeout<'a> {
    resend: &'a Resend,
    waited_ns: u64,
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let timeouts: Vec<Timeout<'_>> = replay
        .resends
        .iter()
        .filter_map(|resend| match resend.cause {
            Cause::Timeout { waited_ns, .. } => Some(Timeout { resend, waited_ns }),
            _ => None,
        })
        .collect();
    if timeouts.is_empty() {
        return None;
    }
    let at = timeouts.iter().filter_map(|timeout| scene.place(timeout.resend.at));
    if !scene.has_times() {
        return Some(Verdict::unknown(&TIMEOUTS, "the capture has no times").at(at));
    }
    let mut waits: Vec<f64> = timeouts.iter().map(|timeout| timeout.waited_ns as f64).collect();
    waits.sort_by(f64::total_cmp);
    let (shortest, longest) = (waits.first().copied()?, waits.last().copied()?);
    let median = waits.get(waits.len() / 2).copied()?;
    let (most, of_most) = most_for_one_packet(&timeouts);
    let (nominal, factor) = fit(median);
    let deviation = median / (UNIT_NS * nominal.exp2() * factor) - 1.0;
    let spread = longest / shortest.max(1.0);
    let is_constant = spread <= (1.0 + TOLERANCE) * (1.0 + TOLERANCE);
    let law = if is_constant && deviation.abs() <= TOLERANCE {
        format!("fits {factor:.0} × 4.096 µs × 2^{nominal:.0}")
    } else if is_constant {
        format!("fits no timer value; the next is {factor:.0} × 4.096 µs × 2^{nominal:.0}")
    } else {
        format!("an adaptive timer, from {} to {}", duration(shortest as u64), duration(longest as u64))
    };
    let place = of_most.and_then(|resend| scene.place(resend.first.unwrap_or(resend.at)));
    let share = match place {
        Some(place) if most == timeouts.len() && most > 1 => format!("; all of packet {place}"),
        Some(place) if most > 1 => format!("; at most {most} of one packet, {place}"),
        _ => String::new(),
    };
    let summary = format!(
        "{}, in the median {} after the last copy of the packet or a later answer; {law}{share}",
        count_of(waits.len() as u64, "timeout"),
        duration(median as u64)
    );
    Some(
        Verdict::pass(&TIMEOUTS, summary)
            .at(at)
            .with("timeouts", waits.len() as f64)
            .with("shortest_us", shortest / 1000.0)
            .with("median_us", median / 1000.0)
            .with("longest_us", longest / 1000.0)
            .with("exponent", nominal)
            .with("factor", factor)
            .with("most_for_one_packet", most as f64),
    )
}

/// Returns the exponent of the timer that fits best, and whether a NIC waits once or twice as long. Both are
/// allowed; twice is tried only if once does not fit, because 2 × 2^T is also 2^(T + 1).
fn fit(waited_ns: f64) -> (f64, f64) {
    let exponent = (waited_ns.max(UNIT_NS) / UNIT_NS).log2().round();
    (exponent.clamp(0.0, 31.0), 1.0)
}

/// Returns the largest number of timeouts that one packet had, and the first return to that packet. Timeouts
/// of other packets may come in between: a requester that probes sends two packets by turns.
fn most_for_one_packet<'a>(timeouts: &[Timeout<'a>]) -> (usize, Option<&'a Resend>) {
    let mut counts: BTreeMap<u64, (usize, &Resend)> = BTreeMap::new();
    for Timeout { resend, .. } in timeouts {
        counts.entry(resend.psn).or_insert((0, resend)).0 += 1;
    }
    let most = counts.into_values().max_by_key(|(count, resend)| (*count, Reverse(resend.at)));
    most.map_or((0, None), |(count, resend)| (count, Some(resend)))
}

#[cfg(test)]
mod tests {
    use super::super::of_connection;
    use super::*;
    use crate::testing::wire::{Sketch, Wire};

    /// Sends three packets, and then some of them again, one every 50 ms. Returns the text of the verdict.
    fn summary(again: &[u32]) -> String {
        let mut wire = Wire::default();
        for psn in 0..3 {
            wire.at_us(psn.into(), Sketch::send(1, psn));
        }
        for (number, psn) in (1..).zip(again) {
            wire.at_us(50_000 * number, Sketch::send(1, *psn));
        }
        let analysis = wire.analyze();
        let found = of_connection(&analysis, &analysis.connections[0]);
        let verdict = found.into_iter().find(|verdict| verdict.rule == &TIMEOUTS).unwrap();
        verdict.summary
    }

    /// Regression: of probes that alternate between two packets, the verdict said "at most 1 in a row for one
    /// PSN", whatever their number.
    #[test]
    fn timeouts_of_packets_that_alternate_are_counted_for_each_packet() {
        let text = summary(&[2, 0, 2, 0, 2]);
        let start = "5 timeouts, in the median 100 ms after the last copy of the packet or a later answer; ";
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("; at most 3 of one packet, 3") && !text.contains("in a row"), "{text}");
        assert!(summary(&[0, 0, 0]).ends_with("; all of packet 1"), "{}", summary(&[0, 0, 0]));
        let single = summary(&[1]);
        assert!(single.starts_with("1 timeout, ") && single.ends_with("2^14"), "{single}");
    }
}
