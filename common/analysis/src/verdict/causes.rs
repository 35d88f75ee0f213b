//! Rule 6: why packets were sent again, and how long it took.

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::CAUSES;
use crate::replay::{Cause, Replay, Resend};
use crate::words::duration;

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if !scene.is_reliable() {
        return Vec::new();
    }
    let of_end = |end| {
        judge(scene, &Ends { near: scene.connection.requester(end)?, far: scene.connection.responder(end)? })
    };
    (0..2).filter_map(of_end).collect()
}

/// The requests of one end.
struct Ends<'a> {
    /// As the tap near the requester shows them.
    near: &'a Replay,
    /// As the tap near the responder shows them.
    far: &'a Replay,
}

/// Numbers of returns by cause.
#[derive(Default)]
struct Counts {
    nak: usize,
    rnr: usize,
    implied: usize,
    timeout: usize,
}

fn judge(scene: &Scene<'_>, ends: &Ends<'_>) -> Option<Verdict> {
    let replay = ends.near;
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
    let mut summary = format!(
        "{}: {nak} after a NAK, {implied} after missing responses, {rnr} after RNR NAKs, {timeout} after a timeout",
        count_of(replay.resends.len() as u64, "return")
    );
    let delays = if scene.has_times() { delays(scene, ends) } else { Vec::new() };
    for (median, delay) in &delays {
        summary += &format!("; {} {}", delay.words, duration(*median));
    }
    let mut verdict = Verdict::pass(&CAUSES, summary)
        .at(replay.resends.iter().filter_map(|resend| scene.place(resend.at)))
        .with("after_nak", nak as f64)
        .with("after_missing_responses", implied as f64)
        .with("after_rnr_nak", rnr as f64)
        .with("after_timeout", timeout as f64);
    for (median, delay) in delays {
        verdict = verdict.with(delay.figure, median as f64 / 1000.0);
    }
    Some(verdict)
}

/// A step between a loss and its repetition.
struct Delay {
    figure: &'static str,
    /// The step, before its median.
    words: &'static str,
    times: fn(&Scene<'_>, &Ends<'_>) -> Vec<u64>,
}

const DELAYS: [Delay; 4] = [
    Delay { figure: "loss_to_nak_us", words: "from the packet behind a gap to the NAK", times: detections },
    Delay { figure: "nak_to_repetition_us", words: "from the NAK to the repetition", times: reactions },
    Delay {
        figure: "missing_response_to_request_us",
        words: "from the response behind missing ones to the next request for them",
        times: second_requests,
    },
    Delay {
        figure: "timeout_us",
        words: "from the last copy of a packet or a later answer to a timeout",
        times: |_, ends| timeouts(ends.near),
    },
];

/// Returns the median of each step that happened, in nanoseconds.
fn delays(scene: &Scene<'_>, ends: &Ends<'_>) -> Vec<(u64, &'static Delay)> {
    let median = |delay: &'static Delay| {
        let mut times = (delay.times)(scene, ends);
        times.sort_unstable();
        Some((*times.get(times.len() / 2)?, delay))
    };
    DELAYS.iter().filter_map(median).collect()
}

/// Times from the response behind missing ones to the request for them, in nanoseconds.
fn second_requests(scene: &Scene<'_>, ends: &Ends<'_>) -> Vec<u64> {
    let time = |resend: &Resend| match resend.cause {
        Cause::ImpliedNak(at) => scene.time(resend.at).checked_sub(scene.time(at)),
        _ => None,
    };
    ends.near.resends.iter().filter_map(time).collect()
}

/// Times from a NAK to the first packet that is sent again, in nanoseconds.
fn reactions(scene: &Scene<'_>, ends: &Ends<'_>) -> Vec<u64> {
    let time = |resend: &Resend| match resend.cause {
        Cause::Nak(at) => scene.time(resend.at).checked_sub(scene.time(at)),
        _ => None,
    };
    ends.near.resends.iter().filter_map(time).collect()
}

/// Times from the packet behind a gap to the NAK, in nanoseconds.
fn detections(scene: &Scene<'_>, ends: &Ends<'_>) -> Vec<u64> {
    let time = |nak: &crate::replay::SequenceNak| {
        let gap = ends.far.gaps.iter().find(|gap| gap.first == nak.psn)?;
        scene.time(nak.at).checked_sub(scene.time(gap.after))
    };
    ends.far.naks.iter().filter_map(time).collect()
}

fn timeouts(replay: &Replay) -> Vec<u64> {
    let waited = |resend: &Resend| match resend.cause {
        Cause::Timeout { waited_ns, .. } => Some(waited_ns),
        _ => None,
    };
    replay.resends.iter().filter_map(waited).collect()
}
