//! Rule 6: why packets were sent again, and how long it took.

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::CAUSES;
use crate::replay::{Cause, Replay, Resend};

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if scene.is_reliable() { scene.of_requesters(judge) } else { Vec::new() }
}

/// Numbers of returns by cause.
#[derive(Default)]
struct Counts {
    nak: usize,
    rnr: usize,
    implied: usize,
    timeout: usize,
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    if replay.resends.is_empty() {
        return None;
    }
    let mut counts = Counts::default();
    for resend in &replay.resends {
        match resend.cause {
            Cause::Nak(_) => counts.nak += 1,
            Cause::Rnr(_) => counts.rnr += 1,
            Cause::ImpliedNak(_) => counts.implied += 1,
            Cause::Timeout { .. } => counts.timeout += 1,
        }
    }
    let Counts { nak, rnr, implied, timeout } = counts;
    let summary = format!(
        "{}: {nak} after a NAK, {implied} after missing responses, {rnr} after RNR NAKs, {timeout} after a timeout",
        count_of(replay.resends.len() as u64, "return")
    );
    let mut verdict = Verdict::pass(&CAUSES, summary)
        .at(replay.resends.iter().filter_map(|resend| scene.place(resend.at)))
        .with("after_nak", nak as f64)
        .with("after_missing_responses", implied as f64)
        .with("after_rnr_nak", rnr as f64)
        .with("after_timeout", timeout as f64);
    if scene.has_times() {
        for (name, mut times) in [
            ("nak_to_repetition_us", reactions(scene, replay)),
            ("loss_to_nak_us", detections(scene, replay)),
            ("timeout_us", timeouts(replay)),
        ] {
            times.sort_unstable();
            if let Some(median) = times.get(times.len() / 2) {
                verdict = verdict.with(name, *median as f64 / 1000.0);
            }
        }
    }
    Some(verdict)
}

/// Times from a NAK to the first packet that is sent again, in nanoseconds.
fn reactions(scene: &Scene<'_>, replay: &Replay) -> Vec<u64> {
    let time = |resend: &Resend| match resend.cause {
        Cause::Nak(at) => Some(scene.time(resend.at).saturating_sub(scene.time(at))),
        _ => None,
    };
    replay.resends.iter().filter_map(time).collect()
}

/// Times from the packet behind a gap to the NAK, in nanoseconds.
fn detections(scene: &Scene<'_>, replay: &Replay) -> Vec<u64> {
    let time = |nak: &crate::replay::SequenceNak| {
        let gap = replay.gaps.iter().find(|gap| gap.first == nak.psn)?;
        Some(scene.time(nak.at).saturating_sub(scene.time(gap.after)))
    };
    replay.naks.iter().filter_map(time).collect()
}

fn timeouts(replay: &Replay) -> Vec<u64> {
    let waited = |resend: &Resend| match resend.cause {
        Cause::Timeout { waited_ns } => Some(waited_ns),
        _ => None,
    };
    replay.resends.iter().filter_map(waited).collect()
}
