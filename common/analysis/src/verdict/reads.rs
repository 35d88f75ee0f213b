//! Rule 5: the responses of READs.

use super::findings::count_of;
use super::judgement::{Role, Scene, Verdict};
use super::rules::READS;
use crate::replay::Replay;

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if scene.is_reliable() { scene.of_requests(judge, judged) } else { Vec::new() }
}

/// The requester resumes READs, and the responder answers them.
const fn judged(replay: &Replay) -> Role {
    if replay.reads.wrong_resumption.is_empty() { Role::Responder } else { Role::Requester }
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let reads = &replay.reads;
    if reads.requests == 0 {
        return None;
    }
    let open: Vec<_> = replay.response_gaps.iter().filter(|gap| gap.again.is_none()).collect();
    let verdict = if let Some(&(at, _)) = reads.wrong_resumption.first() {
        let count = reads.wrong_resumption.len();
        Verdict::fail(
            &READS,
            format!("{count} READs were resumed with an address or a length that does not fit their PSN"),
        )
        .at(scene.place(at))
    } else if !reads.wrong_length.is_empty() {
        Verdict::fail(
            &READS,
            format!("{} READs got another number of bytes than they asked for", reads.wrong_length.len()),
        )
        .at(reads.wrong_length.iter().filter_map(|at| scene.place(*at)))
    } else if replay.mtu.is_none() && reads.longest > reads.longest_only {
        Verdict::unknown(&READS, "the path MTU is not known, so the PSNs of READs are not known either")
    } else if !open.is_empty() {
        Verdict::unknown(
            &READS,
            format!(
                "{} gaps in responses are not followed by a request for them; the capture lacks packets",
                open.len()
            ),
        )
        .at(open.iter().filter_map(|gap| scene.place(gap.after)))
    } else {
        Verdict::pass(
            &READS,
            format!(
                "{}; {} in their responses, each requested again from the lost PSN on",
                count_of(reads.requests, "READ"),
                count_of(replay.response_gaps.len() as u64, "gap")
            ),
        )
    };
    Some(
        verdict.with("reads", reads.requests as f64).with("response_gaps", replay.response_gaps.len() as f64),
    )
}
