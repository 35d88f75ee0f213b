//! Rule 3: the PSN at which the requester starts again.

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::RESTART;
use crate::replay::{Cause, Replay, Resend, SequenceNak};

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if scene.is_reliable() { scene.of_requesters(judge) } else { Vec::new() }
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    if replay.naks.is_empty() && replay.resends.is_empty() {
        return None;
    }
    let asked = |resend: &Resend| match resend.cause {
        Cause::Nak(at) => {
            let index = replay.naks.binary_search_by_key(&at, |nak| nak.at).ok()?;
            replay.naks.get(index).map(|nak| nak.psn)
        }
        Cause::Rnr(at) => {
            let index = replay.rnr.binary_search_by_key(&at, |rnr| rnr.at).ok()?;
            replay.rnr.get(index).map(|rnr| rnr.psn)
        }
        Cause::ImpliedNak(_) | Cause::Timeout { .. } => None,
    };
    let late: Vec<&Resend> =
        replay.resends.iter().filter(|resend| asked(resend).is_some_and(|psn| resend.psn > psn)).collect();
    let early: Vec<&Resend> =
        replay.resends.iter().filter(|resend| asked(resend).is_some_and(|psn| resend.psn < psn)).collect();
    let packets: u64 = replay.resends.iter().map(|resend| resend.packets).sum();
    let needless: u64 = replay.resends.iter().map(|resend| resend.needless).sum();
    let returns = replay.resends.len();
    let places = |wrong: &[&Resend]| -> Vec<_> { wrong.iter().filter_map(|r| scene.place(r.at)).collect() };
    let verdict = if !late.is_empty() {
        Verdict::fail(
            &RESTART,
            format!(
                "the requester starts {} behind the PSN that was asked for",
                count_of(late.len() as u64, "time")
            ),
        )
        .at(places(&late))
    } else if !early.is_empty() {
        Verdict::fail(
            &RESTART,
            format!(
                "the requester starts {} before the PSN that was asked for, and repeats what has arrived",
                count_of(early.len() as u64, "time")
            ),
        )
        .at(places(&early))
    } else if let Some(verdict) = undecided(scene, replay) {
        verdict
    } else {
        Verdict::pass(
            &RESTART,
            format!(
                "{}, each to the right PSN; {} sent again",
                count_of(returns as u64, "return"),
                count_of(packets, "packet")
            ),
        )
    };
    Some(
        verdict
            .with("returns", returns as f64)
            .with("packets_sent_again", packets as f64)
            .with("sent_again_although_acknowledged", needless as f64),
    )
}

/// Returns the verdict if the packets cannot show where the requester starts again.
fn undecided(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    if !replay.unordered.is_empty() {
        let text = format!(
            "{} behind the PSN that a NAK asks for came shortly before the packet with this PSN, and no \
             Identification shows which of them was sent first: a late one, or a start at the wrong PSN",
            count_of(replay.unordered.len() as u64, "packet")
        );
        let places = replay.unordered.iter().filter_map(|at| scene.place(*at));
        return Some(Verdict::unknown(&RESTART, text).at(places));
    }
    let is_ignored = |nak: &&SequenceNak| nak.resend.is_none() && replay.unacknowledged <= nak.psn;
    let ignored: Vec<_> = replay.naks.iter().filter(is_ignored).collect();
    let text = format!(
        "{} NAKs are not followed by a retransmission: they were lost behind this place, or the capture ends",
        ignored.len()
    );
    let places = ignored.iter().filter_map(|nak| scene.place(nak.at));
    (!ignored.is_empty()).then(|| Verdict::unknown(&RESTART, text).at(places))
}
