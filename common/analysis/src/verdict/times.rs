//! Rule 22: completion times of messages. Figures with a counterpart in the Open Traffic Generator model have
//! its names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use roce_packet::{Operation, Syndrome, Transport};

use super::judgement::{Role, Scene, Verdict};
use super::rules;
use crate::record::{Bits, Extension, Place, Record};
use crate::replay::{Replay, Resend};
use crate::summary::goodput;

/// Upper limits of the classes of message sizes, in bytes, and their names.
const CLASSES: [(u64, &str); 5] = [
    (256, "up to 256 bytes"),
    (4096, "up to 4 KiB"),
    (64 << 10, "up to 64 KiB"),
    (1 << 20, "up to 1 MiB"),
    (u64::MAX, "of more than 1 MiB"),
];
/// An answer that does not come in this time after a repetition does not come, in nanoseconds.
const GIVEN_UP_NS: u64 = 10_000_000_000;
/// Largest `retry_cnt`.
const MOST_RETRIES: usize = 7;

/// A message of a requester.
#[derive(Clone, Copy, Debug)]
struct Message {
    operation: Operation,
    /// Index of its first packet.
    start: usize,
    /// PSN of its last packet.
    last_psn: u64,
    bytes: u64,
}

/// The messages of one operation and size class.
#[derive(Default)]
struct Class {
    sent: u64,
    bytes: u64,
    times_ns: Vec<u64>,
    longest: Option<(u64, usize)>,
    unanswered: Vec<Message>,
}

/// Measures the messages of both ends of a connection.
pub(super) fn of_connection(scene: &Scene<'_>) -> Vec<Verdict> {
    let all = |end| of_end(scene, end).unwrap_or_default().into_iter().map(move |verdict| (end, verdict));
    let of_end = |(end, verdict): (usize, Verdict)| verdict.of(scene.party(Role::Requester, end));
    (0..2).flat_map(all).map(of_end).collect()
}

fn of_end(scene: &Scene<'_>, end: usize) -> Option<Vec<Verdict>> {
    let connection = scene.connection;
    let replay = connection.requester(end)?;
    let address = connection.ends.get(end)?.address;
    if replay.sent.is_empty() || connection.transport == Transport::Uc {
        return None;
    }
    if !scene.has_times() {
        let because = "the file contains no times, so no message has a completion time";
        return Some(vec![Verdict::unknown(&rules::TIMES, because)]);
    }
    if replay.answers.is_empty() && timeouts_in_vain(replay, u64::MAX) <= MOST_RETRIES {
        let because = format!("no answer to the messages of {address} was captured");
        return Some(vec![Verdict::unknown(&rules::TIMES, because)]);
    }
    let classes = classes(scene, replay);
    let mut verdicts: Vec<Verdict> = classes
        .into_iter()
        .map(|((operation, class), found)| {
            let name = CLASSES.get(class).map_or("", |(_, name)| *name);
            judge(scene, end, address, &format!("{operation} {name}"), found)
        })
        .collect();
    verdicts.push(whole(scene, end, address, replay));
    Some(verdicts)
}

/// Cuts the requests into messages.
fn messages(records: &[Record], replay: &Replay) -> Vec<Message> {
    let (mut found, mut open): (Vec<Message>, Option<(u64, Message)>) = (Vec::new(), None);
    for (psn, sent) in &replay.sent {
        let Some((record, info)) = records.get(sent.first).and_then(|record| Some((record, record.info()?)))
        else {
            continue;
        };
        let announced = match record.extension {
            Extension::Reth(reth) if info.starts_message() => Some(u64::from(reth.dma_len)),
            _ => None,
        };
        let message = match open.take() {
            // A message whose middle was not captured has no known size.
            Some((next, message)) if next == *psn && !info.starts_message() => Message {
                last_psn: psn.saturating_add(sent.span.saturating_sub(1)),
                bytes: message.bytes + if message.operation == Operation::Send { payload(record) } else { 0 },
                ..message
            },
            _ if info.starts_message() => Message {
                operation: info.operation,
                start: sent.first,
                last_psn: psn.saturating_add(sent.span.saturating_sub(1)),
                bytes: announced.unwrap_or_else(|| payload(record)),
            },
            _ => continue,
        };
        if info.ends_message() {
            found.push(message);
        } else {
            open = Some((psn.saturating_add(sent.span), message));
        }
    }
    found
}

fn payload(record: &Record) -> u64 {
    u64::from(record.payload_len)
}

const fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Send => "SENDs",
        Operation::Write => "WRITEs",
        Operation::ReadRequest => "READs",
        Operation::CompareSwap | Operation::FetchAdd => "atomics",
        Operation::Flush => "FLUSHes",
        Operation::AtomicWrite => "atomic WRITEs",
        _ => "other messages",
    }
}

fn classes(scene: &Scene<'_>, replay: &Replay) -> BTreeMap<(&'static str, usize), Class> {
    let mut classes: BTreeMap<(&'static str, usize), Class> = BTreeMap::new();
    let answered: BTreeMap<usize, usize> = replay.messages.iter().copied().collect();
    for message in messages(&scene.analysis.records, replay) {
        let number = CLASSES.iter().position(|(limit, _)| message.bytes <= *limit).unwrap_or(0);
        let class = classes.entry((name(message.operation), number)).or_default();
        class.sent += 1;
        match answered.get(&message.start) {
            Some(answer) => {
                let time = scene.time(*answer).saturating_sub(scene.time(message.start));
                class.bytes += message.bytes;
                class.times_ns.push(time);
                if class.longest.is_none_or(|(longest, _)| time > longest) {
                    class.longest = Some((time, message.start));
                }
            }
            None => class.unanswered.push(message),
        }
    }
    classes
}

/// Returns the returns after timeouts to this PSN or an earlier one.
fn timeouts(replay: &Replay, last_psn: u64) -> impl Iterator<Item = &Resend> {
    replay.timeouts().filter(move |resend| resend.psn <= last_psn)
}

/// Returns how many of them brought no progress.
fn timeouts_in_vain(replay: &Replay, last_psn: u64) -> usize {
    timeouts(replay, last_psn).filter(|resend| resend.psn >= replay.unacknowledged).count()
}

/// Returns the messages that were sent again and have no answer although the capture goes on, or although
/// more timeouts came than any `retry_cnt` allows.
fn given_up(scene: &Scene<'_>, end: usize, class: &Class) -> Vec<Place> {
    let connection = scene.connection;
    let Some((replay, view)) = connection.requester(end).zip(connection.view_of(end)) else {
        return Vec::new();
    };
    let of_tap =
        |record: &&Record| (record.place.capture, record.interface) == (view.tap.capture, view.tap.interface);
    let last_ns = scene.analysis.records.iter().rev().find(of_tap).map_or(0, |record| record.time_ns);
    let is_given_up = |message: &&Message| {
        let is_long_ago = timeouts(replay, message.last_psn)
            .any(|resend| scene.time(resend.at).saturating_add(GIVEN_UP_NS) < last_ns);
        is_long_ago || timeouts_in_vain(replay, message.last_psn) > MOST_RETRIES
    };
    let given_up = class.unanswered.iter().filter(is_given_up);
    given_up.filter_map(|message| scene.place(message.start)).collect()
}

fn judge(scene: &Scene<'_>, end: usize, address: IpAddr, what: &str, mut class: Class) -> Verdict {
    let failed = given_up(scene, end, &class);
    class.times_ns.sort_unstable();
    let times = &class.times_ns;
    let at =
        |hundredths: usize| times.get((times.len().saturating_sub(1) * hundredths).div_ceil(100)).copied();
    let (Some(least), Some(median), Some(p99), Some(most)) = (at(0), at(50), at(99), at(100)) else {
        let verdict = match failed.is_empty() {
            true => Verdict::unknown(
                &rules::TIMES,
                format!("the capture has no answer to the {} {what} of {address}", class.sent),
            ),
            false => Verdict::fail(
                &rules::TIMES,
                format!("no answer to {} of the {what} of {address}", failed.len()),
            ),
        };
        return verdict.at(failed).with("message_tx", class.sent as f64);
    };
    let us = |ns: u64| ns as f64 / 1e3;
    let text = format!(
        "{what} of {address}: {} answered after {:.1} us (median), {:.1} us (99 %), at most {:.1} us",
        times.len(),
        us(median),
        us(p99),
        us(most)
    );
    let verdict = match failed.len() {
        0 => Verdict::pass(&rules::TIMES, text),
        count => Verdict::fail(&rules::TIMES, format!("no answer to {count} of them; {text}")),
    };
    let mean = times.iter().map(|time| *time as f64).sum::<f64>() / times.len() as f64;
    verdict
        .at(failed.iter().copied())
        .at(class.longest.and_then(|(_, start)| scene.place(start)))
        .with("message_tx", class.sent as f64)
        .with("message_complete_rx", times.len() as f64)
        .with("message_fail", failed.len() as f64)
        .with("message_bytes", class.bytes as f64)
        .with("min_latency", least as f64)
        .with("avg_latency", mean)
        .with("max_latency", most as f64)
        .with("median_latency_us", us(median))
        .with("p99_latency_us", us(p99))
}

/// Figures of all messages of one end: goodput, bytes, and the round trip time.
fn whole(scene: &Scene<'_>, end: usize, address: IpAddr, replay: &Replay) -> Verdict {
    let records = &scene.analysis.records;
    let answered: BTreeMap<usize, usize> = replay.messages.iter().copied().collect();
    let all = messages(records, replay);
    let complete: Vec<(&Message, usize)> =
        all.iter().filter_map(|message| Some((message, *answered.get(&message.start)?))).collect();
    let first = complete.iter().map(|(message, _)| scene.time(message.start)).min();
    let last = complete.iter().map(|(_, answer)| scene.time(*answer)).max();
    let Some(elapsed) =
        last.zip(first).and_then(|(last, first)| last.checked_sub(first)).filter(|ns| *ns > 0)
    else {
        return Verdict::unknown(
            &rules::TIMES,
            format!("no message of {address} was captured with its answer"),
        );
    };
    let sent_again: u64 = replay.sent.values().map(|sent| u64::from(sent.times.saturating_sub(1))).sum();
    let goodput = goodput(scene.analysis, scene.connection, end).unwrap_or(0.0) / 1e9;
    let mut round_trips = round_trips(scene, replay);
    round_trips.sort_unstable();
    let is_near = scene.connection.between.is_some();
    let median = round_trips.get(round_trips.len() / 2).copied();
    let text = match median {
        Some(ns) if is_near => format!("; the round trip takes {:.1} us (median)", ns as f64 / 1e3),
        Some(_) => "; the round trip time is unknown, because the place of the only tap is".to_owned(),
        None => "; no request that asks for an ACK has one of its own".to_owned(),
    };
    let tx_bytes: u64 = replay.sent.values().filter_map(|sent| records.get(sent.first)).map(payload).sum();
    let verdict = Verdict::pass(&rules::TIMES, format!("goodput of {address}: {goodput:.3} Gbit/s{text}"))
        .with("goodput_gbps", goodput)
        .with("flow_completion_time", elapsed as f64 / 1e6)
        .with("message_complete_rx", complete.len() as f64)
        .with("data_frames_retransmitted", sent_again as f64)
        .with("tx_bytes", tx_bytes as f64);
    match median {
        Some(ns) if is_near => verdict.with("rtt_us", ns as f64 / 1e3),
        Some(ns) => verdict.with("tap_to_responder_and_back_us", ns as f64 / 1e3),
        None => verdict,
    }
}

/// Returns the times between requests that ask for an ACK and their ACKs, without repeated ones.
fn round_trips(scene: &Scene<'_>, replay: &Replay) -> Vec<u64> {
    let records = &scene.analysis.records;
    let mut found = Vec::new();
    for answer in &replay.answers {
        let Some(sent) = replay.sent.get(&answer.psn).filter(|sent| sent.times == 1 && sent.span == 1) else {
            continue;
        };
        let asks = records.get(sent.first).is_some_and(|record| {
            record.bits.contains(Bits::ACK_REQ)
                && record
                    .info()
                    .is_some_and(|info| matches!(info.operation, Operation::Send | Operation::Write))
        });
        let is_ack = records
            .get(answer.at)
            .and_then(Record::answer)
            .is_some_and(|(syndrome, _)| matches!(syndrome, Syndrome::Ack { .. }));
        if asks && is_ack {
            found.extend(scene.time(answer.at).checked_sub(scene.time(sent.first)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, of_connection as judge_all};
    use super::*;
    use crate::testing::wire::{Sketch, Wire};

    fn verdicts(wire: &Wire) -> Vec<Verdict> {
        let analysis = wire.analyze();
        let mut found = judge_all(&analysis, &analysis.connections[0]);
        found.retain(|verdict| verdict.rule.number == 22);
        found
    }

    fn figure(verdict: &Verdict, name: &str) -> f64 {
        let found = verdict.figures.iter().find(|figure| figure.name == name);
        found.map(|figure| figure.value).unwrap_or_else(|| panic!("{name} is missing: {verdict:?}"))
    }

    fn sends(capture: u16, offset_ns: u64, delay_us: impl Fn(u32) -> u64, wire: &mut Wire) {
        for psn in 0..100 {
            let time = 10_000 * u64::from(psn) + offset_ns;
            wire.add(capture, time, Sketch::send(1, psn));
            wire.add(capture, time + 1000 * delay_us(psn), Sketch::ack(2, psn, psn + 1));
        }
    }

    #[test]
    fn completion_times_have_the_names_of_the_model() {
        let mut wire = Wire::default();
        sends(0, 0, |psn| if psn == 50 { 8 } else { 2 }, &mut wire);
        let found = verdicts(&wire);
        let [sends, whole] = &found[..] else { panic!("{found:?}") };
        assert_eq!(sends.outcome, Outcome::Pass, "{}", sends.summary);
        assert!(sends.summary.starts_with("SENDs up to 4 KiB"), "{}", sends.summary);
        assert_eq!(figure(sends, "min_latency"), 2000.0);
        assert_eq!(figure(sends, "max_latency"), 8000.0);
        assert_eq!(figure(sends, "median_latency_us"), 2.0);
        assert_eq!(figure(sends, "message_complete_rx"), 100.0);
        let goodput = 100.0 * 1024.0 * 8.0 / 992_000.0;
        assert!((figure(whole, "goodput_gbps") - goodput).abs() < 1e-9);
        assert!(!whole.figures.iter().any(|figure| figure.name == "rtt_us"), "one tap may be anywhere");
    }

    #[test]
    fn the_round_trip_is_that_at_the_requester() {
        let mut wire = Wire::default();
        sends(0, 0, |_| 5, &mut wire);
        sends(1, 2000, |_| 1, &mut wire);
        let found = verdicts(&wire);
        assert_eq!(figure(&found[1], "rtt_us"), 5.0);
    }

    /// The capture of a program that gave up ends with it.
    #[test]
    fn more_timeouts_than_any_retry_count_are_a_failure() {
        for (timeouts, outcome) in [(7, Outcome::Pass), (8, Outcome::Fail)] {
            let mut wire = Wire::default();
            sends(0, 0, |_| 2, &mut wire);
            for number in 0..=timeouts {
                wire.at_us(10_000 + number * 67_000, Sketch::send(1, 100));
            }
            let found = verdicts(&wire);
            assert_eq!(found[0].outcome, outcome, "{timeouts} timeouts: {}", found[0].summary);
        }
    }

    #[test]
    fn messages_that_were_given_up_fail() {
        let mut wire = Wire::default();
        sends(0, 0, |_| 2, &mut wire);
        for second in 2..5 {
            wire.at_us(second * 1_000_000, Sketch::send(1, 100));
        }
        assert_eq!(verdicts(&wire)[0].outcome, Outcome::Pass, "the capture ends too early");
        wire.at_us(20_000_000, Sketch { qpn: 0x99, ..Sketch::send(1, 7) });
        let found = verdicts(&wire);
        assert_eq!(found[0].outcome, Outcome::Fail, "{}", found[0].summary);
        assert_eq!(figure(&found[0], "message_fail"), 1.0);
    }

    #[test]
    fn answers_that_were_not_captured_are_unknown() {
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 0));
        assert_eq!(verdicts(&wire)[0].outcome, Outcome::Unknown);
    }
}
