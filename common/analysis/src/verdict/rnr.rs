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
    let waited = |nak: &RnrNak| Some(scene.time(nak.again?).saturating_sub(scene.time(nak.at)));
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
                "{} RNR NAKs are not followed by another try: the capture or the retries end",
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
