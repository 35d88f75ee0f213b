//! Rule 15: the message sequence numbers of answers.

use roce_packet::Syndrome;

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::MSN;
use crate::replay::{GapEnd, Replay};

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    scene.of_responders(judge)
}

/// MSNs count in 24 bits.
const MASK: u64 = 0xff_ffff;

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let answers = &replay.answers;
    if answers.is_empty() || replay.sent.is_empty() {
        return None;
    }
    let messages = messages(replay);
    let is_whole = replay.gaps.iter().all(|gap| gap.end != GapEnd::NotCaptured);
    let (wrong, backward) = contradictions(scene, replay, &messages);
    let places = |at: &[usize]| -> Vec<_> { at.iter().filter_map(|at| scene.place(*at)).collect() };
    let verdict = if !backward.is_empty() {
        Verdict::fail(
            &MSN,
            format!("{} with a lower MSN than an earlier one", count_of(backward.len() as u64, "answer")),
        )
        .at(places(&backward))
    } else if !is_whole {
        Verdict::unknown(&MSN, "the capture lacks requests, so the messages cannot be counted")
    } else if !wrong.is_empty() {
        Verdict::fail(
            &MSN,
            format!("{} answers have an MSN that is not the number of completed messages", wrong.len()),
        )
        .at(places(&wrong))
    } else {
        Verdict::pass(
            &MSN,
            format!(
                "{} for {}",
                count_of(answers.len() as u64, "answer"),
                count_of(messages.len() as u64, "message")
            ),
        )
    };
    Some(verdict.with("answers", answers.len() as f64).with("messages", messages.len() as f64))
}

/// Returns the answers whose MSN contradicts the messages, and those whose MSN is lower than an earlier one.
fn contradictions(scene: &Scene<'_>, replay: &Replay, messages: &[(u64, usize)]) -> (Vec<usize>, Vec<usize>) {
    let (mut wrong, mut backward) = (Vec::new(), Vec::new());
    let mut first: Option<u64> = None;
    let mut highest = 0;
    // The MSN before the first captured message, relative to the MSN of the first answer.
    let (mut low, mut high) = (i64::MIN, i64::MAX);
    let mut beginnings = replay.beginnings.iter().peekable();
    for answer in &replay.answers {
        while beginnings.next_if(|(_, at)| *at < answer.at).is_some() {
            // Another connection counts from the beginning.
            (first, highest, low, high) = (None, 0, i64::MIN, i64::MAX);
        }
        let record = scene.analysis.records.get(answer.at);
        let Some((syndrome, msn)) = record.and_then(|record| record.answer()) else { continue };
        let found = u64::from(msn.get());
        // Relative to the highest one so far, because a long capture has more messages than MSNs count.
        let newest = first.get_or_insert(found).wrapping_add_signed(highest);
        let found = highest + relative(found, newest);
        if found < highest {
            backward.push(answer.at);
            continue;
        }
        highest = found;
        // A NAK acknowledges the PSNs before its own. Messages that end there are complete. Those whose last
        // packet was captured before the answer may be complete, too.
        let acknowledged = answer.psn + u64::from(matches!(syndrome, Syndrome::Ack { .. }));
        let least = messages.partition_point(|(end, _)| *end <= acknowledged) as i64;
        let most = messages.partition_point(|(_, last)| *last < answer.at) as i64;
        let (new_low, new_high) = (low.max(found - most), high.min(found - least));
        if new_low > new_high {
            wrong.push(answer.at);
        } else {
            (low, high) = (new_low, new_high);
        }
    }
    (wrong, backward)
}

/// Returns the messages in order: the PSN behind the last packet, and the index of the record of that packet.
fn messages(replay: &Replay) -> Vec<(u64, usize)> {
    let ends = replay.sent.iter().filter(|(_, sent)| sent.ends_message);
    ends.map(|(psn, sent)| (psn + sent.span, sent.first)).collect()
}

/// Returns how far an MSN is ahead of another one.
fn relative(msn: u64, first: u64) -> i64 {
    let ahead = msn.wrapping_sub(first) & MASK;
    if ahead <= MASK / 2 { ahead as i64 } else { ahead as i64 - MASK as i64 - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::frames::{Wire, ack, expect, judge, send};
    use crate::verdict::Outcome;

    #[test]
    fn another_connection_counts_from_the_beginning() {
        let mut wire = Wire::new();
        wire.add(send(1, 8)).add(ack(1, 50)).add(send(2, 8)).add(ack(2, 51));
        wire.add(send(5_000_000, 8)).add(ack(5_000_000, 1)).add(send(5_000_001, 8)).add(ack(5_000_001, 2));
        expect(&judge(&wire, &MSN), Outcome::Pass, "4 answers for 4 messages", &[]);
    }

    /// An MSN counts in 24 bits, so it is compared with the answer before, not with the first one.
    #[test]
    fn more_messages_than_half_of_all_msns_pass() {
        let mut wire = Wire::new();
        for number in 0..6_u32 {
            let msn = number * 3_000_000 % (1 << 24);
            wire.add(send(number + 1, 8)).add(ack(number + 1, msn));
        }
        let verdict = judge(&wire, &MSN);
        assert!(!verdict.summary.contains("lower"), "{}", verdict.summary);
        wire.add(send(7, 8)).add(ack(7, 14_000_000));
        expect(&judge(&wire, &MSN), Outcome::Fail, "1 answer with a lower MSN", &[14]);
    }
}
