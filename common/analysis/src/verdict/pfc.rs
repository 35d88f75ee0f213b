//! Rule 12: how long ports pause each priority, and what waits for it.
//!
//! A pause frame names its sender and a duration in units of 512 bit times. The rate of the link is not in
//! the capture. Unless the caller knows it, each pause lies between its duration on the fastest link and that
//! on the slowest one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use roce_packet::pause::{PRIORITIES, PauseRequest, pause_duration_ns};
use roce_packet::{Direction, MacAddr};

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::packets::sent_by;
use super::rules::PFC;
use crate::analysis::Analysis;
use crate::copies::Tap;
use crate::record::{PauseRecord, Place};
use crate::words::duration;

/// Rate of the fastest and of the slowest link with PFC, in bits per second.
const FASTEST: u64 = 1_600_000_000_000;
const SLOWEST: u64 = 1_000_000_000;
/// Share of the time in which a port must not pause a priority.
const STORM_SHARE: f64 = 0.5;
/// Shortest time that shows a share, in nanoseconds.
const SHORTEST_SPAN_NS: u64 = 10_000_000;
/// A requester is silent if it sends nothing for this many times its median interval.
const SILENCE_FACTOR: u64 = 10;
/// Least number of requests that have a meaningful median interval.
const LEAST_REQUESTS: usize = 20;

/// Judges all pause frames. Without any, there is no verdict: ports consume these frames, so most captures
/// lack them.
pub(super) fn check_all(analysis: &Analysis) -> Vec<Verdict> {
    let pauses = &analysis.pauses;
    let Some(first) = pauses.first() else { return Vec::new() };
    if pauses.iter().any(|pause| pause.time_ns == 0) || analysis.counts.without_time > 0 {
        let text = format!("{} without times.", count_of(pauses.len() as u64, "pause frame"));
        return vec![Verdict::unknown(&PFC, text).at([first.place]).with("frames", pauses.len() as f64)];
    }
    let ports = ports(analysis);
    let mut verdicts: Vec<Verdict> = ports.iter().map(|(key, port)| storm(analysis, key, port)).collect();
    verdicts.extend(cycles(&ports));
    verdicts.extend(silences(analysis, &ports));
    verdicts
}

/// The traffic that a port pauses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tap: Tap,
    source: [u8; 6],
    /// One priority, or all traffic.
    priority: Option<u8>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pauses ", MacAddr(self.source))?;
        match self.priority {
            Some(priority) => write!(f, "priority {priority}"),
            None => f.write_str("all traffic"),
        }
    }
}

impl Key {
    /// Returns whether two ports pause at least one common priority.
    fn shares_priority(&self, other: &Self) -> bool {
        self.priority.is_none() || other.priority.is_none() || self.priority == other.priority
    }
}

/// A time in which a port pauses traffic, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: u64,
    to: u64,
}

impl Span {
    /// Returns whether the time has a part in common with one of `others`, which are in order and disjoint.
    fn overlaps_any(&self, others: &[Self]) -> bool {
        let first = others.partition_point(|other| other.to <= self.from);
        others.get(first).is_some_and(|other| other.from < self.to)
    }
}

/// What a port asks for.
#[derive(Default)]
struct Port {
    /// Frames that begin or prolong a pause.
    starts: u64,
    /// Frames that end a pause.
    ends: u64,
    /// Pauses on the fastest possible link, and on the slowest one.
    shortest: Vec<Span>,
    longest: Vec<Span>,
    places: Vec<Place>,
}

impl Port {
    fn add(&mut self, pause: &PauseRecord, quanta: u16, rates: [u64; 2]) {
        self.places.push(pause.place);
        let [fastest, slowest] = rates;
        for (spans, rate) in [(&mut self.shortest, fastest), (&mut self.longest, slowest)] {
            // A frame replaces what is left of the pause before.
            if let Some(last) = spans.last_mut() {
                last.to = last.to.min(pause.time_ns);
            }
            if quanta > 0 {
                let to = pause.time_ns.saturating_add(pause_duration_ns(quanta, rate));
                match spans.last_mut() {
                    Some(last) if last.to == pause.time_ns => last.to = to,
                    _ => spans.push(Span { from: pause.time_ns, to }),
                }
            }
        }
        if quanta > 0 {
            self.starts += 1;
        } else {
            self.ends += 1;
        }
    }
}

fn ports(analysis: &Analysis) -> BTreeMap<Key, Port> {
    let rates = analysis.line_rate.map_or([FASTEST, SLOWEST], |rate| [rate; 2]);
    let mut ports: BTreeMap<Key, Port> = BTreeMap::new();
    let mut pauses: Vec<&PauseRecord> = analysis.pauses.iter().collect();
    pauses.sort_by_key(|pause| pause.time_ns);
    for pause in pauses {
        let tap = Tap { capture: pause.place.capture, interface: pause.interface };
        let key = |priority| Key { tap, source: pause.source.0, priority };
        match pause.request {
            PauseRequest::All(quanta) => ports.entry(key(None)).or_default().add(pause, quanta, rates),
            PauseRequest::PerPriority(all) => {
                for (priority, quanta) in (0..PRIORITIES as u8).zip(all) {
                    if let Some(quanta) = quanta {
                        ports.entry(key(Some(priority))).or_default().add(pause, quanta, rates);
                    }
                }
            }
        }
    }
    ports
}

/// Returns the first and the last time in a file.
fn span_of(analysis: &Analysis, capture: u16) -> Span {
    let records = analysis.records.iter().map(|record| (record.place, record.time_ns));
    let pauses = analysis.pauses.iter().map(|pause| (pause.place, pause.time_ns));
    let times = records.chain(pauses).filter(|(place, _)| place.capture == capture).map(|(_, time)| time);
    times.fold(Span { from: u64::MAX, to: 0 }, |span, time| Span {
        from: span.from.min(time),
        to: span.to.max(time),
    })
}

/// Judges how long a port pauses one priority.
fn storm(analysis: &Analysis, key: &Key, port: &Port) -> Verdict {
    let whole = span_of(analysis, key.tap.capture);
    let observed = whole.to.saturating_sub(whole.from);
    // The end of the capture ends every pause, because what follows is not known.
    let length = |span: &Span| span.to.min(whole.to).saturating_sub(span.from);
    let total = |spans: &[Span]| spans.iter().map(length).sum::<u64>();
    let (least, most) = (total(&port.shortest), total(&port.longest));
    let share = |time: u64| time as f64 / observed.max(1) as f64;
    let milliseconds = |time: u64| time as f64 / 1e6;
    let is_long_enough = observed >= SHORTEST_SPAN_NS;
    let frames = format!("{} and {}", count_of(port.starts, "request"), count_of(port.ends, "end"));
    let time = match analysis.line_rate {
        Some(_) => format!("for {} of {}", duration(least), duration(observed)),
        None => format!(
            "for {} to {} of {}, depending on the rate of the link",
            duration(least),
            duration(most),
            duration(observed)
        ),
    };
    let text = format!("{key} {time} ({frames}).");
    let verdict = if !is_long_enough {
        Verdict::unknown(&PFC, format!("the capture is too short for a share of time: {text}"))
    } else if share(least) > STORM_SHARE {
        Verdict::fail(&PFC, format!("pause storm: {text}"))
    } else if share(most) <= STORM_SHARE {
        Verdict::pass(&PFC, text)
    } else {
        Verdict::unknown(&PFC, format!("the line rate decides whether this is a pause storm: {text}"))
    };
    let verdict = verdict.at(port.places.iter().copied());
    let verdict = verdict.with("requests", port.starts as f64).with("ends", port.ends as f64);
    let verdict = verdict.with("pauses", port.longest.len() as f64);
    match analysis.line_rate {
        Some(_) => verdict.with("paused_ms", milliseconds(least)).with("paused_share", share(least)),
        None => verdict
            .with("shortest_paused_ms", milliseconds(least))
            .with("longest_paused_ms", milliseconds(most)),
    }
}

/// Judges whether both ends of a link pause each other: a cycle of two, in which neither may send.
fn cycles(ports: &BTreeMap<Key, Port>) -> Option<Verdict> {
    let mut possible = None;
    let mut has_pair = false;
    for (index, (one, port)) in ports.iter().enumerate() {
        for (other, peer) in ports.iter().skip(index + 1) {
            if one.tap != other.tap || one.source == other.source || !one.shares_priority(other) {
                continue;
            }
            has_pair = true;
            let overlap = |a: &[Span], b: &[Span]| a.iter().any(|span| span.overlaps_any(b));
            let places = || port.places.iter().chain(&peer.places).copied();
            if overlap(&port.shortest, &peer.shortest) {
                let text = format!("two ports pause each other: {one} while {other}.");
                return Some(Verdict::fail(&PFC, text).at(places()));
            }
            if overlap(&port.longest, &peer.longest) {
                let text =
                    format!("the line rate decides whether two ports pause each other: {one}, {other}.");
                possible = Some(Verdict::unknown(&PFC, text).at(places()));
            }
        }
    }
    possible.or_else(|| has_pair.then(|| Verdict::pass(&PFC, "no two ports of a link pause each other.")))
}

/// Reports which silences of requesters lie in pauses.
fn silences(analysis: &Analysis, ports: &BTreeMap<Key, Port>) -> Option<Verdict> {
    let (mut all, mut paused) = (0_u64, 0_u64);
    let (mut places, mut causes) = (Vec::new(), BTreeSet::new());
    let mut has_requesters = false;
    for connection in &analysis.connections {
        let scene = Scene { analysis, connection };
        for end in [0, 1] {
            let Some(silences) = silences_of(&scene, end) else { continue };
            has_requesters = true;
            for (silence, place) in silences {
                all += 1;
                let cause = ports.iter().find(|(key, port)| {
                    key.tap.capture == place.capture && silence.overlaps_any(&port.longest)
                });
                if let Some((key, _)) = cause {
                    paused += 1;
                    places.push(place);
                    causes.insert(*key);
                }
            }
        }
    }
    if !has_requesters {
        return None;
    }
    let text = match causes.first() {
        Some(cause) => {
            format!("{paused} of {} of requesters overlap pauses, such as {cause}.", count_of(all, "silence"))
        }
        None => format!("{} of requesters, none of them during a pause.", count_of(all, "silence")),
    };
    let verdict = Verdict::pass(&PFC, text).at(places);
    Some(verdict.with("silences", all as f64).with("silences_in_pauses", paused as f64))
}

/// Returns the silences of a requester, each with the packet after it; `None` for too few requests.
fn silences_of(scene: &Scene<'_>, end: usize) -> Option<Vec<(Span, Place)>> {
    let requests: Vec<(u64, Place)> = sent_by(scene, end)
        .into_iter()
        .filter(|record| record.info().is_some_and(|info| info.direction == Direction::Request))
        .map(|record| (record.time_ns, record.place))
        .collect();
    if requests.len() < LEAST_REQUESTS {
        return None;
    }
    let pairs = || requests.windows(2).filter_map(|pair| pair.first().zip(pair.get(1)));
    let mut intervals: Vec<u64> = pairs().map(|((from, _), (to, _))| to.saturating_sub(*from)).collect();
    intervals.sort_unstable();
    let limit = intervals.get(intervals.len() / 2)?.max(&1).saturating_mul(SILENCE_FACTOR);
    let silences = pairs().filter(|((from, _), (to, _))| to.saturating_sub(*from) > limit);
    Some(silences.map(|((from, _), (to, place))| (Span { from: *from, to: *to }, *place)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::frames::{Wire, expect, figure, pause_of, send};
    use crate::verdict::{self, Outcome};

    const LINE_RATE: u64 = 100_000_000_000;

    fn verdicts(wire: &Wire) -> Vec<Verdict> {
        let mut verdicts = verdict::of_capture(&wire.analyze());
        verdicts.retain(|verdict| verdict.rule == &PFC);
        verdicts
    }

    /// Captures `count` frames of the longest pause, one every `every_us`, and a packet 20 ms later.
    fn pauses(wire: Wire, count: u32, every_us: u64) -> Wire {
        let mut wire = wire;
        for _ in 0..count {
            wire.pause(1, pause_of(3, u16::MAX), every_us);
        }
        wire.add(send(1, 5).after_us(20_000));
        wire
    }

    #[test]
    fn captures_without_pauses_have_no_verdict() {
        let mut wire = Wire::new();
        wire.add(send(1, 5));
        assert_eq!(verdicts(&wire), []);
    }

    #[test]
    fn short_pauses_pass_with_their_duration() {
        let mut wire = Wire::new().line_rate(LINE_RATE);
        // 65535 quanta are 335.54 µs. The frame with 0 ends the second pause after 100 µs.
        wire.pause(1, pause_of(3, u16::MAX), 10).pause(1, pause_of(3, u16::MAX), 1_000);
        wire.pause(1, pause_of(3, 0), 100).add(send(1, 5).after_us(20_000));
        let [verdict] = &verdicts(&wire)[..] else { panic!() };
        let text = "02:00:00:00:01:01 pauses priority 3 for 436 us of 21.1 ms (2 requests and 1 end)";
        expect(verdict, Outcome::Pass, text, &[1, 2, 3]);
        assert_eq!(figure(verdict, "pauses"), 2.0);
        assert!((figure(verdict, "paused_ms") - 0.4355).abs() < 0.001);
    }

    #[test]
    fn a_priority_that_is_paused_most_of_the_time_is_a_storm() {
        let wire = pauses(Wire::new().line_rate(LINE_RATE), 100, 300);
        let [verdict] = &verdicts(&wire)[..] else { panic!() };
        assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.summary);
        assert!(verdict.summary.starts_with("pause storm: 02:00:00:00:01:01 pauses priority 3"));
        assert_eq!(figure(verdict, "pauses"), 1.0);
        assert!((figure(verdict, "paused_share") - 0.602).abs() < 0.01);
    }

    /// On a link of 1.6 Tbit/s the pauses would be short, and on one of 1 Gbit/s they would be long.
    #[test]
    fn without_a_line_rate_the_duration_has_limits() {
        let [verdict] = &verdicts(&pauses(Wire::new(), 100, 300))[..] else { panic!() };
        assert_eq!(verdict.outcome, Outcome::Unknown, "{}", verdict.summary);
        assert!(verdict.summary.starts_with("the line rate decides"), "{}", verdict.summary);
        assert!(figure(verdict, "shortest_paused_ms") < 3.0 && figure(verdict, "longest_paused_ms") > 29.0);
        // Every rate gives a storm.
        let [verdict] = &verdicts(&pauses(Wire::new(), 2_000, 20))[..] else { panic!() };
        assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.summary);
    }

    #[test]
    fn frames_without_times_and_short_captures_say_nothing() {
        let mut wire = Wire::new().without_times();
        wire.pause(1, pause_of(3, 5), 10);
        expect(&verdicts(&wire)[0], Outcome::Unknown, "1 pause frame without times", &[1]);
        let mut wire = Wire::new();
        wire.pause(1, pause_of(3, 5), 10).pause(1, pause_of(3, 5), 10);
        expect(&verdicts(&wire)[0], Outcome::Unknown, "too short for a share of time", &[1, 2]);
    }

    #[test]
    fn two_ports_that_pause_each_other_are_a_cycle() {
        let both = |first: usize, second: PauseRequest, wire: Wire| {
            let mut wire = wire;
            wire.pause(1, pause_of(first, u16::MAX), 10).pause(2, second, 100);
            wire.add(send(1, 5).after_us(20_000));
            let last = verdicts(&wire).pop().unwrap();
            (last.outcome, last.summary)
        };
        let rated = || Wire::new().line_rate(LINE_RATE);
        let (outcome, text) = both(3, pause_of(3, 9), rated());
        assert!(outcome == Outcome::Fail && text.starts_with("two ports pause each other"), "{text}");
        assert_eq!(both(3, PauseRequest::All(9), rated()).0, Outcome::Fail);
        let (outcome, text) = both(3, pause_of(3, 9), Wire::new());
        assert!(outcome == Outcome::Unknown && text.starts_with("the line rate decides"), "{text}");
        // Other priorities are no cycle; the last verdict is that of the port.
        assert!(both(3, pause_of(4, 9), rated()).1.contains("02:00:00:00:01:02 pauses priority 4"));
    }

    #[test]
    fn silences_of_requesters_in_pauses_are_counted() {
        let mut wire = Wire::new().line_rate(LINE_RATE);
        for psn in 0..30 {
            if psn == 10 {
                wire.pause(1, pause_of(3, u16::MAX), 1);
            }
            // Two silences, of which the first one is in the pause.
            wire.add(send(psn, 5).after_us(if psn == 10 || psn == 20 { 500 } else { 2 }));
        }
        wire.add(send(30, 5).after_us(20_000));
        let all = verdicts(&wire);
        let verdict = all.last().unwrap();
        let text =
            "1 of 3 silences of requesters overlap pauses, such as 02:00:00:00:01:01 pauses priority 3";
        expect(verdict, Outcome::Pass, text, &[12]);
        assert_eq!(figure(verdict, "silences"), 3.0);
    }
}
