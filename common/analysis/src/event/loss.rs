//! Packets that the network lost, and packets that only a capture lacks.

use std::collections::{HashMap, HashSet};

use roce_packet::{Direction, Operation, Psn};

use super::finder::{Finder, Side, psn_of};
use super::kinds::{EventKind, Where};
use crate::copies::Tap;
use crate::record::Record;
use crate::replay::{Replay, Resend, Sent};

/// Largest deviation of the time of a damaged packet from that of the packet that left, in nanoseconds.
const DAMAGED_NS: u64 = 100_000;
/// Maximum number of PSNs that a return of the requester sends again.
const MOST_SENT_AGAIN: u64 = 1 << 16;
/// Maximum number of responses of one READ.
const MOST_RESPONSES: u32 = 1 << 22;

pub(super) fn find(finder: &mut Finder<'_>, side: &Side<'_>) {
    between_taps(finder, side);
    first_request(finder, side);
    before_tap(finder, side);
    responses(finder, side);
    behind_tap(finder, side);
}

/// Packets of the requester that left the first tap and did not come to the second one; and its answers to
/// the other end.
fn between_taps(finder: &mut Finder<'_>, side: &Side<'_>) {
    let Some([crossing, _]) = side.crossings else { return };
    let by_psn: HashMap<Psn, (u64, Sent)> = side
        .requester
        .sent
        .iter()
        .filter_map(|(psn, sent)| Some((finder.record(sent.first)?.psn, (*psn, *sent))))
        .collect();
    for &index in &crossing.lost {
        let Some(record) = finder.record(index) else { continue };
        let delay = crossing.delay_ns.unwrap_or(0);
        let expected = record.time_ns.wrapping_add_signed(delay);
        let is_damaged = !record.is_sound() || claim_near(finder, side.far.tap, record, expected);
        let Some(info) = record.info().filter(|_| !is_damaged) else { continue };
        let psn = Some(record.psn.get());
        let sender = side.requests();
        match info.direction {
            Direction::Request => {
                let sent = by_psn.get(&record.psn);
                let is_acknowledged = sent.is_some_and(|(psn, sent)| {
                    sent.times == 1 && psn.saturating_add(sent.span) <= side.requester.unacknowledged
                });
                if is_acknowledged {
                    let text =
                        format!("the second capture lacks request {}, which was acknowledged", record.psn);
                    finder.push(EventKind::NotCaptured, sender, &[index], psn, text);
                } else {
                    let text =
                        format!("request {} ({}) was lost between the taps", record.psn, record.opcode);
                    finder.push(EventKind::RequestLost(Where::BetweenTaps), sender, &[index], psn, text);
                }
            }
            Direction::Response if info.operation == Operation::ReadResponse => {
                lost_response(finder, side, index, record);
            }
            Direction::Response => {
                let text = format!("answer {} ({}) was lost between the taps", record.psn, record.opcode);
                finder.push(EventKind::AckLost(Where::BetweenTaps), sender, &[index], psn, text);
            }
            Direction::Cnp => {
                let text = "a CNP was lost between the taps".to_owned();
                finder.push(EventKind::CnpLost(Where::BetweenTaps), sender, &[index], None, text);
            }
        }
    }
}

/// A READ response of this end that did not come to the second tap: lost, if the other end asks again.
fn lost_response(finder: &mut Finder<'_>, side: &Side<'_>, index: usize, record: &Record) {
    // The tap near the requester of the READ is the far one, seen from the sender of the response.
    let other = 1 - side.end;
    let Some(replay) = side.far.replays.get(other) else { return };
    let left = finder.time(index);
    let asks = |at: usize| {
        finder.time(at) >= left
            && finder.record(at).is_some_and(|asking| asking.psn.distance_to(record.psn) < MOST_RESPONSES)
    };
    let psn = Some(record.psn.get());
    // Without the end of the READ, nothing is known about later packets.
    if replay.resends.iter().any(|resend| asks(resend.at)) || !is_answered(finder, replay, record) {
        let text = format!("READ response {} was lost between the taps", record.psn);
        finder.push(EventKind::ResponseLost(Where::BetweenTaps), side.requests(), &[index], psn, text);
    } else {
        let text = format!("the second capture lacks READ response {}", record.psn);
        finder.push(EventKind::NotCaptured, side.requests(), &[index], psn, text);
    }
}

/// Returns whether the READ of a response was answered completely.
fn is_answered(finder: &Finder<'_>, replay: &Replay, record: &Record) -> bool {
    let read = replay.sent.iter().find(|(_, sent)| {
        finder.record(sent.first).is_some_and(|read| u64::from(read.psn.distance_to(record.psn)) < sent.span)
    });
    read.is_some_and(|(psn, sent)| psn.saturating_add(sent.span) <= replay.unacknowledged)
}

/// Takes a damaged packet of the sender of `record` that came to a tap at about a time.
pub(super) fn claim_near(finder: &mut Finder<'_>, tap: Tap, record: &Record, expected: u64) -> bool {
    let sender = finder.analysis.streams.get(record.stream).map(|stream| stream.key.source);
    let Some(damaged) = finder.damaged.get(&tap) else { return false };
    let found = damaged.iter().copied().find(|index| {
        let Some(other) = finder.analysis.records.get(*index) else { return false };
        let source = finder.analysis.streams.get(other.stream).map(|stream| stream.key.source);
        source == sender
            && !finder.claimed.contains(index)
            && other.wire_len == record.wire_len
            && other.time_ns.abs_diff(expected) <= DAMAGED_NS
    });
    found.is_some_and(|index| finder.claimed.insert(index))
}

/// The first request of all: if it is lost, no earlier packet shows that the second capture had begun.
fn first_request(finder: &mut Finder<'_>, side: &Side<'_>) {
    let Some([crossing, _]) = side.crossings else { return };
    let Some((_, first)) = side.requester.sent.first_key_value() else { return };
    let (index, again) = (first.first, first.last);
    let has_arrived = |index: usize| crossing.both.binary_search_by_key(&index, |(here, _)| *here).is_ok();
    let is_lost = crossing.lost.binary_search(&index).is_ok();
    let at_start = side.near.indices.first() == Some(&index);
    if at_start && first.times > 1 && !has_arrived(index) && !is_lost && has_arrived(again) {
        let Some(record) = finder.record(index) else { return };
        let expected = record.time_ns.wrapping_add_signed(crossing.delay_ns.unwrap_or(0));
        if !record.is_sound() || claim_near(finder, side.far.tap, record, expected) {
            return;
        }
        let text = format!("request {} ({}) was lost between the taps", record.psn, record.opcode);
        let kind = EventKind::RequestLost(Where::BetweenTaps);
        finder.push(kind, side.requests(), &[index], Some(record.psn.get()), text);
        finder.lost_first.insert(index);
    }
}

/// Returns the 24-bit form of an unwrapped PSN.
pub(super) fn short(finder: &Finder<'_>, replay: &Replay, psn: u64) -> Option<u32> {
    let (known, sent) = replay.sent.first_key_value()?;
    let record = finder.record(sent.first)?;
    let distance = psn.wrapping_sub(*known) & u64::from(Psn::MASK);
    Some(record.psn.add(u32::try_from(distance).ok()?).get())
}

/// Requests that are missing at the tap near the requester.
fn before_tap(finder: &mut Finder<'_>, side: &Side<'_>) {
    let replay = side.requester;
    let overtaken: HashSet<usize> = replay.overtaken.iter().copied().collect();
    let Some(stream) = side.streams[0] else { return };
    for gap in &replay.gaps {
        let before = gap.first.checked_sub(1).and_then(|psn| replay.sent.range(..=psn).next_back());
        let start = before.map_or(0, |(_, sent)| sent.first.min(gap.after));
        let (mut psn, end) = (gap.first, gap.first.saturating_add(gap.count));
        let mut lacking: Option<(u64, u64)> = None;
        while psn < end {
            let sent = replay.sent.get(&psn).copied();
            let next = psn.saturating_add(sent.map_or(1, |sent| sent.span.max(1)));
            match sent {
                Some(sent) if [sent.first, sent.last].iter().any(|at| overtaken.contains(at)) => {}
                _ if finder.claim(side.near.tap, stream, start..gap.after).is_some() => {}
                Some(sent) => {
                    let number = psn_of(finder, sent.first);
                    let text = format!("request {} was lost before the tap", number.unwrap_or(0));
                    let kind = EventKind::RequestLost(Where::BeforeTap);
                    finder.push(kind, side.requests(), &[gap.after, sent.first], number, text);
                }
                None if psn < replay.unacknowledged => {
                    lacking = Some((lacking.map_or(psn, |(first, _)| first), next));
                }
                None => {}
            }
            psn = next;
        }
        if let Some((first, end)) = lacking {
            let number = short(finder, replay, first);
            let text = format!("the capture lacks {} requests that were acknowledged", end - first);
            finder.push(EventKind::NotCaptured, side.requests(), &[gap.after], number, text);
        }
    }
}

/// READ responses that are missing at the tap near the responder.
fn responses(finder: &mut Finder<'_>, side: &Side<'_>) {
    let replay = side.responder;
    let Some(stream) = side.streams[1] else { return };
    let by_psn = if replay.response_gaps.is_empty() {
        HashMap::new()
    } else {
        responses_by_psn(finder, side, &side.far.indices)
    };
    for gap in &replay.response_gaps {
        let end = gap.first.saturating_add(gap.count);
        let again = replay
            .resends
            .iter()
            .find(|resend| resend.at > gap.after && reaches(resend, gap.first))
            .map(|resend| resend.at);
        let is_stale =
            replay.resends.iter().any(|resend| resend.at < gap.after && reaches(resend, gap.first));
        let mut lacking = 0;
        for psn in gap.first..end {
            let Some(number) = short(finder, replay, psn) else { continue };
            let before = number.wrapping_sub(1) & Psn::MASK;
            let close = |list: &Vec<usize>| list.iter().copied().rfind(|index| *index < gap.after);
            let start = by_psn.get(&before).and_then(close).unwrap_or(0);
            let late = by_psn.get(&number).and_then(|list| late_response(list, replay, gap.first, gap.after));
            if late.is_some() && is_stale {
                // Responses of the time before the repetition, which the requester drops.
            } else if let Some(late) = late {
                // Two taps show the order by themselves.
                if side.crossings.is_none() {
                    let text = format!("READ response {number} came after later ones");
                    finder.push(EventKind::Overtaken, side.answers(), &[late], Some(number), text);
                }
            } else if finder.claim(side.far.tap, stream, start..gap.after).is_some() {
            } else if again.is_none() {
                // The requester asks again at once for what it lacks.
                lacking += 1;
            } else {
                let text = format!("READ response {number} was lost before the tap");
                let kind = EventKind::ResponseLost(Where::BeforeTap);
                finder.push(kind, side.answers(), &[gap.after], Some(number), text);
            }
        }
        if lacking > 0 {
            let number = short(finder, replay, gap.first);
            let text = format!("the capture lacks {lacking} READ responses");
            finder.push(EventKind::NotCaptured, side.answers(), &[gap.after], number, text);
        }
    }
}

/// Returns whether a return of the requester begins shortly before a PSN, so that it asks for it again.
fn reaches(resend: &Resend, psn: u64) -> bool {
    resend.psn <= psn && psn - resend.psn < MOST_SENT_AGAIN
}

/// Returns the READ responses in a view by their PSN.
pub(super) fn responses_by_psn(
    finder: &Finder<'_>,
    side: &Side<'_>,
    indices: &[usize],
) -> HashMap<u32, Vec<usize>> {
    let mut by_psn: HashMap<u32, Vec<usize>> = HashMap::new();
    for &index in indices {
        let record = finder.record(index).filter(|record| {
            Some(record.stream) == side.streams[1]
                && record.is_sound()
                && record.info().is_some_and(|info| info.operation == Operation::ReadResponse)
        });
        if let Some(record) = record {
            by_psn.entry(record.psn.get()).or_default().push(index);
        }
    }
    by_psn
}

/// Returns the response with a PSN that came late: after a place where it was missing, and either before it
/// was requested again or besides the responses to that. `list` has all responses with the PSN.
pub(super) fn late_response(list: &[usize], replay: &Replay, psn: u64, missing_at: usize) -> Option<usize> {
    let later = list.get(list.partition_point(|index| *index <= missing_at)..).unwrap_or_default();
    let (&first, &last) = (later.first()?, later.last()?);
    let start = replay.resends.partition_point(|resend| resend.at <= missing_at);
    let resends = replay.resends.get(start..).unwrap_or_default().iter();
    let requests = resends.take_while(|resend| resend.at < last).filter(|resend| reaches(resend, psn));
    let again = requests.clone().next().map(|resend| resend.at);
    (again.is_none_or(|again| first < again) || later.len() > requests.count()).then_some(first)
}

/// Requests that the tap near the responder shows, and that the responder asks for.
fn behind_tap(finder: &mut Finder<'_>, side: &Side<'_>) {
    for nak in &side.responder.naks {
        if !nak.shows_loss_behind() || nak.was_acknowledged {
            continue;
        }
        let Some(sent) = side.responder.sent.get(&nak.psn) else { continue };
        let number = psn_of(finder, nak.at);
        let text =
            format!("request {} was lost behind the tap: the responder asks for it", number.unwrap_or(0));
        let kind = EventKind::RequestLost(Where::BehindTap);
        // The copy that was lost is the last one before the NAK.
        let lost = if sent.last < nak.at { sent.last } else { sent.first };
        finder.push(kind, side.requests(), &[lost, nak.at], number, text);
    }
}
