//! Rule 4: what a responder does with requests that it has executed before.

use roce_packet::Operation;

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::DUPLICATES;
use crate::record::Extension;
use crate::replay::{Changed, Replay, Resend};

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if scene.is_reliable() { scene.of_responders(judge) } else { Vec::new() }
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let records = &scene.analysis.records;
    let duplicates: Vec<&Resend> = replay.resends.iter().filter(|resend| resend.was_answered).collect();
    let is_atomic = |changed: &&Changed| {
        records.get(changed.now).is_some_and(|record| matches!(record.extension, Extension::AtomicAck(..)))
    };
    let executed: Vec<&Changed> = replay.changed.iter().filter(is_atomic).collect();
    let other_data = replay.changed.len() - executed.len();
    if duplicates.is_empty() && replay.changed.is_empty() {
        return None;
    }
    let silent: Vec<&&Resend> =
        duplicates.iter().filter(|resend| !is_answered_again(scene, replay, resend)).collect();
    let verdict = if !executed.is_empty() {
        let places = executed.iter().flat_map(|changed| [changed.before, changed.now]);
        Verdict::fail(
            &DUPLICATES,
            format!(
                "{} executed twice: a repeated request was answered with another value than before",
                count_of(executed.len() as u64, "atomic operation")
            ),
        )
        .at(places.filter_map(|index| scene.place(index)))
    } else if !silent.is_empty() {
        Verdict::unknown(
            &DUPLICATES,
            format!(
                "{} of {} requests that were repeated after their answer have no captured answer afterwards",
                silent.len(),
                duplicates.len()
            ),
        )
        .at(silent.iter().filter_map(|resend| scene.place(resend.at)))
    } else {
        let remark = match other_data {
            0 => String::new(),
            count => format!(
                "; {} with other data than before, so the memory was written in between or the answer is wrong",
                count_of(count as u64, "READ response")
            ),
        };
        Verdict::pass(
            &DUPLICATES,
            format!("{} answered again{remark}", count_of(duplicates.len() as u64, "repeated request")),
        )
    };
    Some(verdict.with("duplicates", duplicates.len() as f64).with("unanswered", silent.len() as f64))
}

/// Returns whether an answer for the PSN or a later one was captured after a request was repeated.
fn is_answered_again(scene: &Scene<'_>, replay: &Replay, resend: &Resend) -> bool {
    let is_read = scene
        .analysis
        .records
        .get(resend.at)
        .and_then(|record| record.info())
        .is_some_and(|info| info.operation == Operation::ReadRequest);
    let position = replay.answers.partition_point(|answer| answer.at < resend.at);
    let mut later = replay.answers.get(position..).unwrap_or_default().iter();
    // The answer of a READ has its own PSNs.
    later.any(|answer| answer.psn >= resend.psn) || is_read && replay.repeated_responses > 0
}
