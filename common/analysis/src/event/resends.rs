//! Returns of a requester, and losses that only they show.

use std::cell::OnceCell;
use std::collections::HashMap;

use roce_packet::{Operation, Psn};

use super::finder::{Finder, Side, psn_of};
use super::kinds::{EventKind, Where};
use super::loss::{late_response, responses_by_psn, short};
use crate::record::{Extension, Record};
use crate::replay::{Cause, Resend};
use crate::words::duration;

pub(super) fn find(finder: &mut Finder<'_>, side: &Side<'_>) {
    let responses = OnceCell::new();
    for resend in &side.requester.resends {
        let psn = psn_of(finder, resend.at);
        let number = psn.unwrap_or(0);
        match resend.cause {
            Cause::Nak(nak) => {
                let kind =
                    if is_selective(side, resend) { EventKind::SelectiveResend } else { EventKind::GoBackN };
                let text = format!("{} packets from {number} on were sent again after a NAK", resend.packets);
                finder.push(kind, side.requests(), &[resend.at, nak], psn, text);
            }
            Cause::Rnr(_) => {}
            Cause::ImpliedNak(response) => {
                let text = format!("READ responses from {number} on were requested again");
                finder.push(EventKind::ImpliedNak, side.requests(), &[resend.at, response], psn, text);
                if !missed_response(finder, side, resend, response) {
                    last_response_missing(finder, side, resend, &responses);
                }
            }
            Cause::Timeout { waited_ns, since } => {
                let text =
                    format!("request {number} was sent again {}", waited(finder, resend, waited_ns, since));
                let at: Vec<usize> = std::iter::once(resend.at).chain(since).collect();
                finder.push(EventKind::Timeout, side.requests(), &at, psn, text);
                unanswered(finder, side, resend, waited_ns);
            }
        }
        // The responses of a READ were acknowledged where the tap saw them, and may have been lost behind it.
        let is_asked = matches!(resend.cause, Cause::Nak(_) | Cause::Rnr(_));
        if resend.needless > 0 && is_asked {
            let text = format!("{} acknowledged packets were sent again", resend.needless);
            finder.push(EventKind::NeedlessResend, side.requests(), &[resend.at], psn, text);
        }
    }
}

/// Says how long a requester waited, since which packet, and when it sent the packet first.
fn waited(finder: &Finder<'_>, resend: &Resend, waited_ns: u64, since: Option<usize>) -> String {
    let name = |index: usize| finder.record(index).map(|record| record.place);
    let Some(place) = since.and_then(name) else {
        return format!("after {} without an answer", duration(waited_ns));
    };
    let text = format!("{} after packet {place}", duration(waited_ns));
    let first = resend.first.filter(|first| Some(*first) != since);
    match first
        .and_then(|first| Some((name(first)?, finder.time(resend.at).saturating_sub(finder.time(first)))))
    {
        Some((place, ns)) => format!("{text}, and {} after its first copy, packet {place}", duration(ns)),
        None => text,
    }
}

/// Returns whether packets that had been sent before were left out.
fn is_selective(side: &Side<'_>, resend: &Resend) -> bool {
    let count = usize::try_from(resend.packets).unwrap_or(usize::MAX);
    let mut behind = side.requester.sent.range(resend.psn..).skip(count);
    behind.next().is_some_and(|(_, sent)| sent.first < resend.at)
}

/// Returns the last packet before a place in a view that fulfils a condition.
fn last_before(
    finder: &Finder<'_>,
    indices: &[usize],
    place: usize,
    is_wanted: impl Fn(usize, &Record) -> bool,
) -> Option<usize> {
    let end = indices.partition_point(|index| *index < place);
    let earlier = indices.get(..end).unwrap_or_default();
    earlier
        .iter()
        .copied()
        .rfind(|index| finder.record(*index).is_some_and(|record| is_wanted(*index, record)))
}

/// A response that the tap shows, and that the requester asks for again. The responses up to `shown_by` show
/// that it is missing.
fn missed_response(finder: &mut Finder<'_>, side: &Side<'_>, resend: &Resend, shown_by: usize) -> bool {
    let Some(psn) = psn_of(finder, resend.at).map(Psn::new) else { return false };
    let response = last_before(finder, &side.near.indices, shown_by.saturating_add(1), |index, record| {
        Some(record.stream) == side.streams[1]
            && record.psn == psn
            && record.is_sound()
            && record.info().is_some_and(|info| info.operation == Operation::ReadResponse)
            && !side.requester.dropped_responses.contains(&index)
    });
    let Some(response) = response else { return false };
    // The response may belong to an earlier request. The last one has then brought none.
    let mtu = side.requester.mtu.map_or(256, |mtu| mtu.bytes() as u32);
    let asks = |_, record: &Record| {
        let Extension::Reth(reth) = record.extension else { return false };
        Some(record.stream) == side.streams[0]
            && record.info().is_some_and(|info| info.operation == Operation::ReadRequest)
            && record.psn.distance_to(psn) < reth.dma_len.div_ceil(mtu).max(1)
    };
    if last_before(finder, &side.near.indices, resend.at, asks).is_some_and(|asking| asking > response) {
        return false;
    }
    let text = format!("READ response {psn} was lost behind the tap: the requester asks for it again");
    let kind = EventKind::ResponseLost(Where::BehindTap);
    finder.push(kind, side.answers(), &[response, resend.at], Some(psn.get()), text);
    true
}

/// A response that the requester asks for again although no later one of its READ was captured: the last ones
/// of a READ were lost, and the responses of the next READ show it.
fn last_response_missing(
    finder: &mut Finder<'_>,
    side: &Side<'_>,
    resend: &Resend,
    responses: &OnceCell<HashMap<u32, Vec<usize>>>,
) {
    let mut gaps = side.requester.response_gaps.iter();
    let is_known = gaps.any(|gap| (gap.first..gap.first.saturating_add(gap.count)).contains(&resend.psn));
    let psn = psn_of(finder, resend.at);
    let is_damaged = |index: &usize| {
        finder
            .record(*index)
            .is_some_and(|record| Some(record.stream) == side.streams[1] && Some(record.psn.get()) == psn)
    };
    let is_known =
        is_known || finder.damaged.get(&side.near.tap).is_some_and(|all| all.iter().any(is_damaged));
    if is_known || side.crossings.is_some() {
        return;
    }
    let Some(number) = psn else { return };
    let all = responses.get_or_init(|| responses_by_psn(finder, side, &side.near.indices));
    let list = all.get(&number).map(Vec::as_slice).unwrap_or_default();
    // The request itself is the first one that asks for them.
    if let Some(late) = late_response(list, side.requester, resend.psn, resend.at.saturating_sub(1)) {
        let text = format!("READ response {number} came after later ones");
        finder.push(EventKind::Overtaken, side.answers(), &[late], psn, text);
    } else {
        let text = format!("READ response {number} was lost before the tap");
        finder.push(EventKind::ResponseLost(Where::BeforeTap), side.answers(), &[resend.at], psn, text);
    }
}

/// Finds what a timeout was caused by.
fn unanswered(finder: &mut Finder<'_>, side: &Side<'_>, resend: &Resend, waited_ns: u64) {
    let is_read = finder
        .record(resend.at)
        .and_then(Record::info)
        .is_some_and(|info| info.operation == Operation::ReadRequest);
    if is_explained(finder, side, resend, waited_ns)
        || is_read && missed_response(finder, side, resend, resend.at)
    {
        return;
    }
    if let Some(first) = resend.went_on.filter(|_| side.crossings.is_none()) {
        let psn = psn_of(finder, first);
        let text = format!("request {} was lost before the tap", psn.unwrap_or(0));
        finder.push(EventKind::RequestLost(Where::BeforeTap), side.requests(), &[first], psn, text);
        return;
    }
    let psn = short(finder, side.requester, resend.psn);
    let number = psn.unwrap_or(0);
    if resend.was_answered {
        let answer =
            side.requester.answers.iter().rfind(|answer| answer.at < resend.at && answer.psn >= resend.psn);
        let psn = answer.and_then(|answer| psn_of(finder, answer.at)).or(psn);
        let text = format!("answer {} was lost behind the tap", psn.unwrap_or(number));
        let at: Vec<usize> = answer.map(|answer| answer.at).into_iter().chain([resend.at]).collect();
        finder.push(EventKind::AckLost(Where::BehindTap), side.answers(), &at, psn, text);
        return;
    }
    let is_begun = is_read && !side.requester.sent.contains_key(&resend.psn);
    if is_begun && side.crossings.is_none() {
        let text = format!("READ response {number} was lost before the tap");
        let kind = EventKind::ResponseLost(Where::BeforeTap);
        finder.push(kind, side.answers(), &[resend.at], psn, text);
    } else if resend.was_seen() {
        let text = format!("request {number} was lost behind the tap, or its answer before the tap");
        finder.push(EventKind::RequestOrAnswerLost, side.requests(), &[resend.at], psn, text);
    }
}

/// Returns whether a packet that was lost or damaged between the taps, or damaged at one of them, explains a
/// silence.
fn is_explained(finder: &Finder<'_>, side: &Side<'_>, resend: &Resend, waited_ns: u64) -> bool {
    let end = finder.time(resend.at);
    let start = end.saturating_sub(waited_ns.saturating_mul(2).max(10_000_000));
    let is_within = |index: &usize| (start..=end).contains(&finder.time(*index));
    let lost = side.crossings.into_iter().flatten().flat_map(|crossing| &crossing.lost);
    let of_side = |index: &&usize| {
        finder.record(**index).is_some_and(|record| side.streams.contains(&Some(record.stream)))
    };
    let damaged = [side.near.tap, side.far.tap];
    let damaged = damaged.iter().filter_map(|tap| finder.damaged.get(tap)).flatten().filter(of_side);
    let first = side.requester.sent.get(&resend.psn);
    let was_first_lost = first.is_some_and(|sent| finder.lost_first.contains(&sent.first));
    was_first_lost || lost.chain(damaged).any(is_within)
}
