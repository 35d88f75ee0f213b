//! Packets that the network doubled, or delivered in another order.

use std::collections::{HashMap, HashSet};

use roce_packet::{Direction, Opcode, Psn};

use super::finder::{Finder, Side, psn_of};
use super::kinds::EventKind;
use crate::record::{Bits, Record};

/// Longest time between a packet and its copy, in nanoseconds.
const COPY_NS: u64 = 250_000;

pub(super) fn find(finder: &mut Finder<'_>, side: &Side<'_>) {
    for &(first, second) in &side.requester.doubled {
        doubled(finder, side.requests(), first, second);
    }
    for &index in &side.requester.overtaken {
        overtaken(finder, side.requests(), index);
    }
    match side.crossings {
        Some(_) => between_taps(finder, side),
        None => doubled_answers(finder, side),
    }
}

fn doubled(finder: &mut Finder<'_>, side: Option<(usize, usize)>, first: usize, second: usize) {
    let Some(record) = finder.record(second) else { return };
    let text = format!("{} {} was delivered twice", record.opcode, record.psn);
    finder.push(EventKind::Doubled, side, &[second, first], Some(record.psn.get()), text);
}

fn overtaken(finder: &mut Finder<'_>, side: Option<(usize, usize)>, index: usize) {
    let Some(record) = finder.record(index) else { return };
    let text = format!("{} {} came after later packets", record.opcode, record.psn);
    finder.push(EventKind::Overtaken, side, &[index], Some(record.psn.get()), text);
}

/// Compares both taps on the stream from the requester.
fn between_taps(finder: &mut Finder<'_>, side: &Side<'_>) {
    let Some([crossing, _]) = side.crossings else { return };
    let mut earliest = usize::MAX;
    for &(here, there) in crossing.both.iter().rev() {
        if there > earliest {
            if let Some(record) = finder.record(here) {
                let text = format!("{} {} came after later packets", record.opcode, record.psn);
                let psn = Some(record.psn.get());
                finder.push(EventKind::Overtaken, side.requests(), &[there, here], psn, text);
            }
        } else {
            earliest = there;
        }
    }
    let mut arrived: HashMap<(Opcode, Psn, u32, u16), Vec<usize>> = HashMap::new();
    let content = |record: &Record| (record.opcode, record.psn, record.icrc, record.identification);
    for &(_, there) in &crossing.both {
        if let Some(record) = finder.record(there) {
            arrived.entry(content(record)).or_default().push(there);
        }
    }
    for &index in &crossing.only_second {
        let Some(record) = finder.record(index).filter(|record| record.is_sound()) else { continue };
        let original = arrived.get(&content(record)).and_then(|list| {
            let time = |at: &usize| finder.record(*at).map_or(u64::MAX, |other| other.time_ns);
            list.iter().copied().find(|at| time(at).abs_diff(record.time_ns) < 20 * COPY_NS)
        });
        if let Some(original) = original {
            doubled(finder, side.requests(), original, index);
        }
    }
}

/// Answers that came twice although no request did. With one tap, this is all that shows it.
fn doubled_answers(finder: &mut Finder<'_>, side: &Side<'_>) {
    let replay = side.requester;
    // After such a packet, a responder may answer again.
    let mut reasons: Vec<usize> = replay.resends.iter().map(|resend| resend.at).collect();
    reasons.extend(replay.doubled.iter().map(|(_, second)| *second));
    reasons.extend(replay.overtaken.iter().copied());
    reasons.sort_unstable();
    let mut last: HashMap<(Opcode, Psn, u32, u16), usize> = HashMap::new();
    let mut repeated: HashSet<u32> = HashSet::new();
    for &index in &side.near.indices {
        let Some(record) = finder.record(index).filter(|record| !record.bits.contains(Bits::COPY)) else {
            continue;
        };
        let is_answer = Some(record.stream) == side.streams[1]
            && record.is_sound()
            && record.info().is_some_and(|info| info.direction == Direction::Response);
        if !is_answer {
            continue;
        }
        let content = (record.opcode, record.psn, record.icrc, record.identification);
        let Some(before) = last.insert(content, index) else { continue };
        let earlier = finder.record(before).map_or(0, |record| record.time_ns);
        let is_close = record.time_ns.saturating_sub(earlier) < COPY_NS;
        let recent = reasons.get(..reasons.partition_point(|at| *at < index)).and_then(<[usize]>::last);
        let has_reason = recent.is_some_and(|at| {
            finder.record(*at).is_some_and(|reason| reason.time_ns.saturating_add(COPY_NS) > earlier)
        });
        if is_close && !has_reason {
            let number = psn_of(finder, index).unwrap_or(0);
            // A request that came twice has all its responses twice.
            let is_first = !repeated.contains(&(number.wrapping_sub(1) & Psn::MASK));
            repeated.insert(number);
            if is_first {
                doubled(finder, side.answers(), before, index);
            }
        }
    }
}
