//! Messages of connection management: those that were lost, doubled, sent again or refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use roce_packet::Qpn;
use roce_packet::mad::CmMessage;

use super::finder::Finder;
use super::kinds::{EventKind, Where};
use super::loss::claim_near;
use crate::connection::{Between, Captures, Sight, compare_taps};
use crate::copies::Tap;
use crate::exchange::{Exchange, record_at, tap_of};
use crate::record::{Bits, CmRecord, Place, StreamId};
use crate::verdict::cm::{DEFAULT_WAIT_NS, refusal};
use crate::words::duration;

/// Longest time between a message and its copy that the network made, in nanoseconds.
const COPY_NS: u64 = 250_000;
/// A message that comes again sooner was not sent again by a timer, in nanoseconds.
const SOON_NS: u64 = 1_000_000;
/// All messages that can be sent again.
const NAMES: [&str; 9] = ["REQ", "REP", "RTU", "DREQ", "DREP", "REJ", "MRA", "SIDR_REQ", "SIDR_REP"];

pub(super) fn find(finder: &mut Finder<'_>) {
    let compared = between_taps(finder);
    let analysis = finder.analysis;
    for exchange in &analysis.exchanges {
        if let Some(record) = exchange.first(&analysis.cm, "REJ")
            && let CmMessage::Rej(rej) = &*record.message
        {
            add(finder, EventKind::CmReject, &[record], record, refusal(record.source, rej));
        }
        let hosts = hosts_of(exchange);
        for name in NAMES {
            let all = exchange.all(&analysis.cm, name);
            for (&before, &record) in all.iter().zip(all.iter().skip(1)) {
                // Both ends may disconnect.
                if before.source == record.source {
                    again(finder, exchange, [before, record], compared.contains(&hosts));
                }
            }
        }
        let wait_ns =
            exchange.first(&analysis.cm, "REQ").map_or(DEFAULT_WAIT_NS, |record| match &*record.message {
                CmMessage::Req(req) => req.remote_cm_response_timeout.nanos(),
                _ => DEFAULT_WAIT_NS,
            });
        if let (Some(record), None) =
            (exchange.first(&analysis.cm, "DREQ"), exchange.first(&analysis.cm, "DREP"))
            && analysis.time_left(record).is_some_and(|left| left > wait_ns)
        {
            let text = format!("the DREQ of {} has no DREP", record.source);
            add(finder, EventKind::NoDisconnectAnswer, &[record], record, text);
        }
    }
}

/// Adds an event at some messages, with the PSN of one of them.
fn add(finder: &mut Finder<'_>, kind: EventKind, at: &[&CmRecord], of: &CmRecord, text: String) {
    let indices: Vec<usize> = at.iter().filter_map(|record| index_of(finder, record.place)).collect();
    let psn =
        index_of(finder, of.place).and_then(|index| finder.record(index)).map(|record| record.psn.get());
    finder.push(kind, None, &indices, psn, text);
}

/// Returns the index of the record of a packet.
fn index_of(finder: &Finder<'_>, place: Place) -> Option<usize> {
    record_at(&finder.analysis.records, place).map(|(index, _)| index)
}

/// Returns both hosts of an exchange in an order that does not depend on who began it.
fn hosts_of(exchange: &Exchange) -> [IpAddr; 2] {
    let (one, other) = (exchange.active, exchange.passive);
    [one.min(other), one.max(other)]
}

/// Returns the messages that answer a message.
const fn answers(name: &str) -> &'static [&'static str] {
    match name.as_bytes() {
        b"REQ" => &["REP", "REJ"],
        b"REP" => &["RTU"],
        b"DREQ" => &["DREP"],
        b"SIDR_REQ" => &["SIDR_REP"],
        _ => &[],
    }
}

/// Finds why a message came again.
fn again(finder: &mut Finder<'_>, exchange: &Exchange, [before, record]: [&CmRecord; 2], is_compared: bool) {
    let name = record.message.name();
    let interval = record.time_ns.saturating_sub(before.time_ns);
    if interval < COPY_NS && is_copy(finder, before, record) {
        let text = format!("the {name} of {} was delivered twice", record.source);
        add(finder, EventKind::Doubled, &[record, before], record, text);
        return;
    }
    let mut text = format!("{} sent {name} again after {}", record.source, duration(interval));
    if interval >= SOON_NS && !is_compared && !answers(name).is_empty() {
        // Other taps have other clocks.
        let is_answer = |one: &&CmRecord| {
            answers(name).contains(&one.message.name())
                && one.source != record.source
                && tap_of(one) == tap_of(record)
                && (before.time_ns..=record.time_ns).contains(&one.time_ns)
        };
        let cm = &finder.analysis.cm;
        let mut messages = exchange.messages.iter().filter_map(|index| cm.get(*index));
        match messages.rfind(is_answer) {
            Some(answer) => {
                let lost = format!(
                    "the {} of {} was lost behind the tap: {} sent {name} again",
                    answer.message.name(),
                    answer.source,
                    record.source
                );
                add(finder, EventKind::CmLost(Where::BehindTap), &[answer, record], answer, lost);
            }
            None => text += &format!(": the {name} was lost behind the tap, or its answer before the tap"),
        }
    }
    add(finder, EventKind::CmRepetition, &[record, before], before, text);
}

/// Returns whether the network made one packet of another: a sender numbers each message anew.
fn is_copy(finder: &Finder<'_>, before: &CmRecord, record: &CmRecord) -> bool {
    let packet = |one: &CmRecord| {
        let record = index_of(finder, one.place).and_then(|index| finder.record(index))?;
        Some((record.psn, record.icrc, record.identification))
    };
    packet(before).is_some_and(|one| packet(record) == Some(one))
}

/// Finds the messages that left one of two taps and did not come to the other one. Returns the pairs of hosts
/// that two taps show.
fn between_taps(finder: &mut Finder<'_>) -> BTreeSet<[IpAddr; 2]> {
    let analysis = finder.analysis;
    if analysis.exchanges.is_empty() {
        return BTreeSet::new();
    }
    let captures = Captures { count: analysis.captures, spans: &analysis.spans };
    let messages: HashMap<Place, &CmRecord> =
        analysis.cm.iter().map(|record| (record.place, record)).collect();
    let mut compared = BTreeSet::new();
    for (hosts, Datagrams { ids, taps }) in datagrams(finder) {
        let mut sights: Vec<Sight<'_>> =
            taps.iter().map(|(tap, indices)| Sight { tap: *tap, indices }).collect();
        sights.sort_by_key(|sight| std::cmp::Reverse(sight.indices.len()));
        let (near, Some(between)) = compare_taps(&analysis.records, &sights, ids, &captures) else {
            continue;
        };
        compared.insert(hosts);
        for end in 0..2 {
            lost_of(finder, &messages, &sights, (near, &between), (ids, end));
        }
    }
    compared
}

/// Finds the lost messages of one of two hosts.
fn lost_of(
    finder: &mut Finder<'_>,
    messages: &HashMap<Place, &CmRecord>,
    sights: &[Sight<'_>],
    (near, between): ([usize; 2], &Between),
    (ids, end): ([Option<StreamId>; 2], usize),
) {
    let sight = |end: usize| near.get(end).and_then(|index| sights.get(*index)).copied();
    let (Some(own), Some(far), Some(crossing)) = (sight(end), sight(1 - end), between.crossings.get(end))
    else {
        return;
    };
    let message = |index: usize| messages.get(&finder.record(index)?.place).copied();
    let has_arrived = |index: usize| crossing.both.binary_search_by_key(&index, |(here, _)| *here).is_ok();
    let is_own = |index: &usize| {
        finder.record(*index).is_some_and(|record| {
            Some(record.stream) == ids.get(end).copied().flatten() && !record.bits.contains(Bits::COPY)
        })
    };
    let sent: Vec<(usize, &CmRecord)> = own
        .indices
        .iter()
        .copied()
        .filter(is_own)
        .filter_map(|index| Some((index, message(index)?)))
        .collect();
    for (number, (index, one)) in sent.iter().enumerate() {
        // No packet before the first one shows that the other capture had begun. Its repetition arrives.
        let is_like = |other: &CmRecord| {
            (other.message.name(), other.transaction_id) == (one.message.name(), one.transaction_id)
        };
        let comes_again =
            || sent.iter().skip(number + 1).any(|(later, other)| is_like(other) && has_arrived(*later));
        let is_lost = crossing.lost.binary_search(index).is_ok() || !has_arrived(*index) && comes_again();
        let Some(record) = finder.record(*index).filter(|_| is_lost) else { continue };
        let expected = record.time_ns.wrapping_add_signed(crossing.delay_ns.unwrap_or(0));
        if !record.is_sound() || claim_near(finder, far.tap, record, expected) {
            continue;
        }
        let text = format!("the {} of {} was lost between the taps", one.message.name(), one.source);
        let psn = Some(record.psn.get());
        finder.push(EventKind::CmLost(Where::BetweenTaps), None, &[*index], psn, text);
    }
}

/// The management datagrams between two hosts.
#[derive(Default)]
struct Datagrams {
    /// The streams from the first host, and from the second one.
    ids: [Option<StreamId>; 2],
    /// The packets of both streams at each tap.
    taps: BTreeMap<Tap, Vec<usize>>,
}

/// Returns the management datagrams between each two hosts with an exchange.
fn datagrams(finder: &Finder<'_>) -> BTreeMap<[IpAddr; 2], Datagrams> {
    let analysis = finder.analysis;
    let hosts: BTreeSet<[IpAddr; 2]> = analysis.exchanges.iter().map(hosts_of).collect();
    let mut found: BTreeMap<[IpAddr; 2], Datagrams> = BTreeMap::new();
    for (index, record) in analysis.records.iter().enumerate() {
        let key = analysis.streams.get(record.stream).map(|stream| stream.key);
        let Some(key) = key.filter(|key| key.qpn == Qpn::GSI) else { continue };
        let (source, destination) = (key.source, key.destination);
        let pair = [source.min(destination), source.max(destination)];
        if !hosts.contains(&pair) {
            continue;
        }
        let all = found.entry(pair).or_default();
        let end = usize::from(source != pair[0]);
        if let Some(id) = all.ids.get_mut(end) {
            *id = id.or(Some(record.stream));
        }
        all.taps.entry(Tap::of(record)).or_default().push(index);
    }
    found
}
