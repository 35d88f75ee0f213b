//! Answers that refuse, contradict or come late.

use std::collections::BTreeSet;

use roce_packet::{NakCode, Opcode, Operation, Psn};

use super::finder::{Finder, Side, psn_of};
use super::kinds::EventKind;
use super::loss::short;
use crate::record::Bits;
use crate::window::window;

/// Maximum number of requests that a capture lacks at its end. An answer to a later one is an answer to
/// something that was not sent.
const MOST_LACKING: u32 = 64;
/// A stall is at least this multiple of the usual time of an answer.
const MULTIPLE: u64 = 10;
/// A stall takes at least this time, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

pub(super) fn find(finder: &mut Finder<'_>, side: &Side<'_>) {
    for nak in &side.responder.naks {
        let psn = psn_of(finder, nak.at);
        let text = format!("the responder asks for request {}", psn.unwrap_or(0));
        finder.push(EventKind::SequenceNak, side.answers(), &[nak.at], psn, text);
    }
    for rnr in &side.responder.rnr {
        let psn = psn_of(finder, rnr.at);
        let text = format!("not ready for request {}; asks for {}", psn.unwrap_or(0), rnr.timer);
        finder.push(EventKind::RnrNak, side.answers(), &[rnr.at], psn, text);
    }
    for refusal in &side.responder.refusals {
        let psn = psn_of(finder, refusal.at);
        let kind = match refusal.code {
            NakCode::InvalidRequest => EventKind::InvalidRequestNak,
            NakCode::RemoteAccess => EventKind::RemoteAccessNak,
            NakCode::RemoteOperational => EventKind::OperationalNak,
            _ => EventKind::OtherNak,
        };
        let text = format!("request {} was refused: {}", psn.unwrap_or(0), refusal.code);
        finder.push(kind, side.answers(), &[refusal.at], psn, text);
    }
    for changed in &side.responder.changed {
        let psn = short(finder, side.responder, changed.psn);
        let text = "the answer differs from an earlier one to the same request".to_owned();
        finder.push(EventKind::AnswerChanged, side.answers(), &[changed.now, changed.before], psn, text);
    }
    unsent(finder, side);
    jumps(finder, side);
    stalls(finder, side);
}

/// Answers to PSNs that were not sent, unless the requests were captured later or not at all. Without a later
/// request, an answer to one that nearly follows shows that the capture lacks it.
fn unsent(finder: &mut Finder<'_>, side: &Side<'_>) {
    let known: BTreeSet<Option<u32>> = match side.responder.unsent.is_empty() {
        true => return,
        false => side.responder.sent.values().map(|sent| psn_of(finder, sent.first)).collect(),
    };
    let last = short(finder, side.responder, side.responder.next.saturating_sub(1)).map(Psn::new);
    let mut reported: Option<Psn> = None;
    for &at in &side.responder.unsent {
        let Some(record) = finder.record(at) else { continue };
        let psn = Some(record.psn.get());
        // A request behind it shows that the one in question was sent, and not captured.
        let is_sent = known.contains(&psn) || last.is_some_and(|last| !record.psn.after(last));
        if is_sent {
            continue;
        }
        // One READ has many responses.
        let is_same_read = record.info().is_some_and(|info| info.operation == Operation::ReadResponse)
            && reported.replace(record.psn).is_some_and(|before| before.add(1) == record.psn);
        if is_same_read {
            continue;
        }
        if last.is_some_and(|last| last.distance_to(record.psn) <= MOST_LACKING) {
            let text = format!("the capture lacks request {}, which was answered", record.psn);
            finder.push(EventKind::NotCaptured, side.requests(), &[at], psn, text);
        } else {
            let text = format!("an answer to request {}, which was not sent", record.psn);
            finder.push(EventKind::UnsentAnswer, side.answers(), &[at], psn, text);
        }
    }
}

/// MSNs that go back, or that grow by more than the number of messages.
fn jumps(finder: &mut Finder<'_>, side: &Side<'_>) {
    let replay = side.responder;
    // The last MSN that follows from those before, and the one that jumped, which later ones may confirm.
    let mut good: Option<(u64, u32)> = None;
    let mut jumped: Option<(u64, u32)> = None;
    for answer in &replay.answers {
        let Some((_, msn)) = finder.record(answer.at).and_then(|record| record.answer()) else { continue };
        let is_atomic =
            finder.record(answer.at).is_some_and(|record| record.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE);
        let now = (answer.psn, msn.get());
        // Returns the number of messages between if the MSN does not follow.
        let breaks = |before: Option<(u64, u32)>| {
            let (psn, last) = before.filter(|(psn, _)| *psn <= answer.psn && answer.psn < replay.next)?;
            let ends = replay.sent.range(psn..=answer.psn).filter(|(_, sent)| sent.ends_message).count();
            let grown = msn.get().wrapping_sub(last) & Psn::MASK;
            // One more: a responder may count a READ at its first response or at its last.
            let most = u32::try_from(ends).unwrap_or(u32::MAX).saturating_add(1 + u32::from(is_atomic));
            let has_gap = replay.gaps.iter().any(|gap| gap.first <= answer.psn && gap.first >= psn);
            (grown > most && !has_gap).then_some((last, ends))
        };
        let Some((last, ends)) = breaks(good) else {
            (good, jumped) = (Some(now), None);
            continue;
        };
        if jumped.is_some() && breaks(jumped).is_none() {
            (good, jumped) = (Some(now), None);
            continue;
        }
        let text = format!("the MSN goes from {last} to {} with {ends} messages between", msn.get());
        let psn = psn_of(finder, answer.at);
        finder.push(EventKind::MsnJump, side.answers(), &[answer.at], psn, text);
        jumped = Some(now);
    }
}

/// Answers that come much later than usual.
fn stalls(finder: &mut Finder<'_>, side: &Side<'_>) {
    let analysis = finder.analysis;
    let Some(connection) = analysis.connections.get(side.number) else { return };
    if analysis.counts.without_time > 0 {
        return;
    }
    let Some(window) = window(&analysis.records, connection, side.near, side.end) else { return };
    let time = |index: usize| analysis.records.get(index).map_or(0, |record| record.time_ns);
    let mut times: Vec<u64> = side
        .requester
        .messages
        .iter()
        .map(|(start, answer)| time(*answer).saturating_sub(time(*start)))
        .collect();
    times.sort_unstable();
    // If there are few messages, half of them may have waited.
    let usual = times.get(times.len() / 4).copied().unwrap_or(0);
    let limit = usual.saturating_mul(MULTIPLE).max(SHORTEST_NS);
    for silence in window.silences {
        let is_copy =
            analysis.records.get(silence.after).is_some_and(|record| record.bits.contains(Bits::COPY));
        // A port that paused the responder is an event of its own.
        let is_paused = finder.is_paused(finder.time(silence.before), finder.time(silence.after));
        if silence.under_way > 0 && silence.ends_with_answer && silence.ns > limit && !is_copy && !is_paused {
            let psn = psn_of(finder, silence.after);
            let text = format!(
                "no answer for {:.3} ms with {} PSNs under way",
                silence.ns as f64 / 1e6,
                silence.under_way
            );
            let at = [silence.after, silence.before];
            finder.push(EventKind::Stall, side.answers(), &at, psn, text);
        }
    }
}
