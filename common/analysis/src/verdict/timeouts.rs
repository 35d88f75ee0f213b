//! Rule 7: the retransmission timer.

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::TIMEOUTS;
use crate::replay::{Cause, Replay};
use crate::words::duration;

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if scene.is_reliable() { scene.of_requesters(judge) } else { Vec::new() }
}

/// Largest relative deviation of a timeout from a timer value that still fits.
const TOLERANCE: f64 = 0.25;
/// Unit of the timer in nanoseconds.
const UNIT_NS: f64 = 4096.0;

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let timeouts: Vec<(usize, u64, u64)> = replay
        .resends
        .iter()
        .filter_map(|resend| match resend.cause {
            Cause::Timeout { waited_ns } => Some((resend.at, resend.psn, waited_ns)),
            _ => None,
        })
        .collect();
    if timeouts.is_empty() {
        return None;
    }
    let at = timeouts.iter().filter_map(|(at, ..)| scene.place(*at));
    if !scene.has_times() {
        return Some(Verdict::unknown(&TIMEOUTS, "the capture has no times").at(at));
    }
    let mut waits: Vec<f64> = timeouts.iter().map(|(.., waited)| *waited as f64).collect();
    waits.sort_by(f64::total_cmp);
    let (shortest, longest) = (waits.first().copied()?, waits.last().copied()?);
    let median = waits.get(waits.len() / 2).copied()?;
    let in_a_row = most_in_a_row(&timeouts);
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
    let summary = format!(
        "{} after {} in the median, {law}; at most {in_a_row} in a row for one PSN",
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
            .with("most_in_a_row", in_a_row as f64),
    )
}

/// Returns the exponent of the timer that fits best, and whether a NIC waits once or twice as long. Both are
/// allowed; twice is tried only if once does not fit, because 2 × 2^T is also 2^(T + 1).
fn fit(waited_ns: f64) -> (f64, f64) {
    let exponent = (waited_ns.max(UNIT_NS) / UNIT_NS).log2().round();
    (exponent.clamp(0.0, 31.0), 1.0)
}

/// Returns how many timeouts in a row were for the same PSN.
fn most_in_a_row(timeouts: &[(usize, u64, u64)]) -> usize {
    timeouts.chunk_by(|one, two| one.1 == two.1).map(<[_]>::len).max().unwrap_or(0)
}
