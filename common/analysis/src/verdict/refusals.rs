//! Rule 18: requests that a responder refuses.

use roce_packet::NakCode;

use super::judgement::{Role, Scene, Verdict};
use super::rules::REFUSALS;
use crate::replay::{Refusal, Replay};

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    scene.of_requests(judge, |_| Role::Responder)
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let first = replay.refusals.first()?;
    let at = replay.refusals.iter().filter_map(|refusal| scene.place(refusal.at));
    let request = replay.sent.get(&first.psn).and_then(|sent| scene.place(sent.first));
    let which = request.map_or(String::new(), |request| format!(" packet {request} with"));
    let reason = reason(first);
    let reserved = replay.refusals.iter().any(|refusal| matches!(refusal.code, NakCode::Reserved(_)));
    let after = replay
        .refusals
        .iter()
        .filter(|refusal| refusal.later_requests > 0)
        .filter_map(|refusal| scene.place(refusal.at));
    let after: Vec<_> = after.collect();
    let verdict = if reserved {
        Verdict::fail(&REFUSALS, "a NAK has a reserved code").at(at)
    } else if !after.is_empty() {
        Verdict::unknown(
            &REFUSALS,
            format!(
                "the responder refused{which} PSN {} ({reason}), and new requests were captured later: they were on their way, or the requester did not notice",
                psn(first)
            ),
        )
        .at(after)
    } else {
        Verdict::pass(
            &REFUSALS,
            format!("the responder refused{which} PSN {} ({reason}), and the connection ended", psn(first)),
        )
        .at(at)
    };
    Some(verdict.with("refusals", replay.refusals.len() as f64))
}

/// Returns the PSN relative to the first one.
fn psn(refusal: &Refusal) -> u64 {
    refusal.psn.saturating_sub(crate::replay::ORIGIN)
}

fn reason(refusal: &Refusal) -> &'static str {
    match refusal.code {
        NakCode::PsnSequence => "sequence error",
        NakCode::InvalidRequest => {
            "invalid request: an operation that is not enabled, a wrong length, or a wrong order of packets"
        }
        NakCode::RemoteAccess => {
            "remote access error: the rkey is unknown, or does not allow this access, address or length"
        }
        NakCode::RemoteOperational => "the responder could not complete it",
        NakCode::InvalidRdRequest => "invalid RD request",
        NakCode::Reserved(_) => "reserved code",
    }
}
