//! Rule 8: the time that a requester waits after an RNR NAK.

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::RNR;
use crate::replay::{Replay, RnrNak};

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    scene.of_requesters(judge)
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let naks = &replay.rnr;
    if naks.is_empty() {
        return None;
    }
    let at = naks.iter().filter_map(|nak| scene.place(nak.at));
    if !scene.has_times() {
        return Some(Verdict::unknown(&RNR, "the capture has no times").at(at));
    }
    // If the clock of the capture was set back, the time is not known.
    let waited = |nak: &RnrNak| scene.time(nak.again?).checked_sub(scene.time(nak.at));
    let asked_ns = |nak: &RnrNak| nak.timer.delay_ns();
    let early: Vec<&RnrNak> =
        naks.iter().filter(|nak| waited(nak).is_some_and(|waited| waited < asked_ns(nak))).collect();
    let answered: Vec<u64> = naks.iter().filter_map(waited).collect();
    let longest = answered.iter().max().copied().unwrap_or(0) as f64 / 1000.0;
    let asked = naks.iter().map(asked_ns).max().unwrap_or(0) as f64 / 1000.0;
    let verdict = if !early.is_empty() {
        Verdict::fail(
            &RNR,
            format!(
                "the requester tried again {} earlier than the responder asked",
                count_of(early.len() as u64, "time")
            ),
        )
        .at(early.iter().filter_map(|nak| scene.place(nak.again?)))
    } else if answered.is_empty() {
        Verdict::unknown(
            &RNR,
            format!(
                "{} not followed by another try: the capture or the retries end, or its clock was set back",
                count_of(naks.len() as u64, "RNR NAK")
            ),
        )
        .at(at)
    } else {
        Verdict::pass(
            &RNR,
            format!(
                "{} asked for up to {asked:.0} µs; the requester waited at least that long each time",
                naks.len()
            ),
        )
        .at(at)
    };
    let in_a_row = naks.chunk_by(|one, two| one.psn == two.psn).map(<[_]>::len).max().unwrap_or(0);
    Some(
        verdict
            .with("rnr_naks", naks.len() as f64)
            .with("asked_us", asked)
            .with("longest_wait_us", longest)
            .with("most_in_a_row", in_a_row as f64),
    )
}

#[cfg(test)]
mod tests {
    use roce_packet::Syndrome;

    use super::super::{Outcome, of_connection};
    use super::*;
    use crate::testing::wire::{Sketch, Wire};

    fn verdict(retry_us: u64) -> Verdict {
        let mut wire = Wire::default();
        wire.at_us(1_000_000, Sketch::send(1, 1));
        let timer = roce_packet::RnrTimer::new(14).expect("a code");
        wire.at_us(1_000_010, Sketch::answer(2, 1, Syndrome::RnrNak { timer }, 0));
        wire.at_us(retry_us, Sketch::send(1, 1));
        wire.at_us(retry_us + 5, Sketch::ack(2, 1, 1));
        let analysis = wire.analyze();
        let mut found = of_connection(&analysis, &analysis.connections[0]);
        found.retain(|verdict| verdict.rule.number == RNR.number);
        found.remove(0)
    }

    #[test]
    fn a_clock_that_is_set_back_is_not_an_early_try() {
        assert_eq!(verdict(1_002_000).outcome, Outcome::Pass);
        assert_eq!(verdict(1_000_200).outcome, Outcome::Fail);
        assert_eq!(verdict(500_000).outcome, Outcome::Unknown);
    }
}
