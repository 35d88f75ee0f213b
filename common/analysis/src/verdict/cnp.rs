//! Rule 9: congestion notifications for ECN marks.

use std::collections::HashMap;
use std::net::IpAddr;

use roce_packet::{Opcode, Qpn};

use super::judgement::{Role, Scene, Verdict};
use super::rules;
use crate::analysis::Analysis;
use crate::connection::Connection;
use crate::record::{Bits, Place, Record};
use crate::replay::GapEnd;

/// A notification belongs to the marks of this time before it, in nanoseconds. Pacing of NICs is shorter.
const WINDOW_NS: u64 = 1_000_000;
/// A notification that comes later after its mark, and after the notification before it, is late.
const LATE_NS: u64 = 200_000;
/// Number of intervals from which the shortest one of a scope shows the pacing.
const ENOUGH_INTERVALS: usize = 4;

/// A mark, or a notification.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time_ns: u64,
    index: usize,
}

/// Marks that arrive at one end, and notifications that the end sends, as the tap near it shows them.
struct Marks {
    marks: Vec<Moment>,
    notifications: Vec<Moment>,
}

fn is_cnp(record: &Record) -> bool {
    record.opcode == Opcode::CNP && record.is_sound()
}

fn is_marked_data(record: &Record) -> bool {
    record.ecn() == 3 && record.payload_len > 0 && record.is_sound() && record.opcode != Opcode::CNP
}

fn marks(analysis: &Analysis, connection: &Connection, end: usize) -> Option<Marks> {
    let [from0, from1] = connection.streams;
    let (own, other) = if end == 0 { (from0, from1) } else { (from1, from0) };
    let view = connection.view_of(end)?;
    let mut found = Marks { marks: Vec::new(), notifications: Vec::new() };
    for &index in &view.indices {
        let Some(record) = analysis.records.get(index).filter(|record| !record.bits.contains(Bits::COPY))
        else {
            continue;
        };
        let moment = Moment { time_ns: record.time_ns, index };
        if Some(record.stream) == own && is_cnp(record) {
            found.notifications.push(moment);
        } else if Some(record.stream) == other && is_marked_data(record) {
            found.marks.push(moment);
        }
    }
    Some(found)
}

/// Judges the notifications of both ends of a connection.
pub(super) fn of_connection(scene: &Scene<'_>) -> Vec<Verdict> {
    let of_end = |end| Some(of_end(scene, end)?.of(scene.party(Role::Receiver, end)));
    (0..2).filter_map(of_end).collect()
}

fn of_end(scene: &Scene<'_>, end: usize) -> Option<Verdict> {
    let own = marks(scene.analysis, scene.connection, end)?;
    if own.marks.is_empty() && own.notifications.is_empty() {
        return None;
    }
    let address = scene.connection.ends.get(end)?.address;
    let (marks, notifications) = (own.marks.len(), own.notifications.len());
    let figures = |verdict: Verdict| {
        let verdict = verdict.with("ecn_ce_rx", marks as f64).with("cnp_tx", notifications as f64);
        match shortest_interval(&own.notifications) {
            Some(shortest) => verdict.with("shortest_interval_us", shortest as f64 / 1e3),
            None => verdict,
        }
    };
    if !scene.has_times() {
        let because = "the file contains no times, so marks and notifications cannot be compared";
        return Some(figures(Verdict::unknown(&rules::CNP, because)));
    }
    if own.marks.is_empty() {
        let because = format!(
            "no mark was captured before the {notifications} CNPs of {address}: the tap may be in front of \
             the switch that marks"
        );
        let places = own.notifications.iter().filter_map(|cnp| scene.place(cnp.index));
        return Some(figures(Verdict::unknown(&rules::CNP, because).at(places)));
    }
    Some(figures(compare(scene, end, address, &own)))
}

/// What is wrong with the notifications of one end.
#[derive(Default)]
struct Faults {
    missing: Vec<usize>,
    late: Vec<usize>,
    without_mark: Vec<usize>,
    delays_ns: Vec<u64>,
    unjudged: u64,
}

fn compare(scene: &Scene<'_>, end: usize, address: IpAddr, own: &Marks) -> Verdict {
    let host = notifications_of_host(scene.analysis, address);
    let lacks_packets = lacks_packets(scene.connection, end);
    let indices = scene.connection.view_of(end).map(|view| view.indices.as_slice()).unwrap_or_default();
    let last_ns = indices.last().map_or(0, |index| scene.time(*index));
    // Before its first packet, the capture lacks marks. Records are in the order of their captures.
    let records = &scene.analysis.records;
    let capture = indices.first().and_then(|index| records.get(*index)).map(|record| record.place.capture);
    let begin = records.partition_point(|record| Some(record.place.capture) < capture);
    let first_ns = records.get(begin).map_or(0, |record| record.time_ns);
    let faults = faults(own, &host, (first_ns, last_ns));
    let name = |list: &[usize]| list.iter().filter_map(|index| scene.place(*index)).collect::<Vec<Place>>();
    let mut parts = Vec::new();
    let lost = scene.connection.lost(&scene.analysis.records, end).filter(|record| is_cnp(record)).count();
    if lost > 0 {
        parts.push(format!(
            "{lost} of its {} CNPs were lost between the places of capture",
            own.notifications.len()
        ));
    }
    if !faults.missing.is_empty() {
        parts.push(format!("{} marks without a CNP within 1 ms", faults.missing.len()));
    }
    if !faults.late.is_empty() {
        parts.push(format!("{} CNPs later than 200 us after the mark", faults.late.len()));
    }
    if !faults.without_mark.is_empty() {
        parts.push(format!("{} CNPs without a mark in the millisecond before", faults.without_mark.len()));
    }
    let verdict = if parts.is_empty() {
        Verdict::pass(
            &rules::CNP,
            format!("{address} answers {} marks with {} CNPs", own.marks.len(), own.notifications.len()),
        )
    } else if lacks_packets && lost == 0 && faults.missing.is_empty() && faults.late.is_empty() {
        Verdict::unknown(&rules::CNP, format!("the capture lacks packets; {}", parts.join(", ")))
    } else {
        Verdict::fail(&rules::CNP, format!("{address}: {}", parts.join(", ")))
    };
    let verdict = verdict
        .at(name(&faults.missing))
        .at(name(&faults.late))
        .at(name(&faults.without_mark))
        .with("missing", faults.missing.len() as f64)
        .with("late", faults.late.len() as f64)
        .with("without_mark", faults.without_mark.len() as f64)
        .with("lost", lost as f64)
        .with("not_judged", faults.unjudged as f64);
    let mut delays = faults.delays_ns;
    delays.sort_unstable();
    match (delays.get(delays.len() / 2), delays.last()) {
        (Some(&median), Some(&longest)) => verdict
            .with("median_delay_us", median as f64 / 1e3)
            .with("longest_delay_us", longest as f64 / 1e3),
        _ => verdict,
    }
}

fn faults(own: &Marks, host: &[u64], (first_ns, last_ns): (u64, u64)) -> Faults {
    let mut faults = Faults::default();
    // The first mark after the notification before is the one that a notification answers.
    let mut before = None;
    let mut marks = own.marks.iter().peekable();
    for cnp in &own.notifications {
        let mut oldest = None;
        while let Some(mark) = marks.next_if(|mark| mark.time_ns <= cnp.time_ns) {
            oldest = oldest.or(Some(*mark));
        }
        match oldest {
            Some(mark) => {
                let delay = cnp.time_ns.saturating_sub(mark.time_ns);
                let earlier = host.partition_point(|time| *time < cnp.time_ns);
                let paced_by = earlier.checked_sub(1).and_then(|at| host.get(at)).copied();
                let is_paced = paced_by.is_some_and(|time| cnp.time_ns - time <= LATE_NS);
                if delay <= WINDOW_NS {
                    faults.delays_ns.push(delay);
                    if delay > LATE_NS && !is_paced {
                        faults.late.push(cnp.index);
                    }
                }
                before = Some(mark);
            }
            None => {
                // Several notifications may follow a burst of marks.
                let is_recent =
                    before.is_some_and(|mark: Moment| cnp.time_ns.saturating_sub(mark.time_ns) <= WINDOW_NS);
                if is_recent {
                    continue;
                }
                if cnp.time_ns < first_ns.saturating_add(WINDOW_NS) {
                    faults.unjudged += 1;
                } else {
                    faults.without_mark.push(cnp.index);
                }
            }
        }
    }
    for mark in &own.marks {
        let next = host.partition_point(|time| *time < mark.time_ns);
        let is_answered = host.get(next).is_some_and(|time| time - mark.time_ns <= WINDOW_NS);
        let earlier = next.checked_sub(1).and_then(|at| host.get(at));
        let is_paced = earlier.is_some_and(|time| mark.time_ns - time <= LATE_NS);
        if is_answered || is_paced {
            continue;
        }
        // A host that sends notifications may have sent one just before the capture began.
        let is_early = mark.time_ns < first_ns.saturating_add(LATE_NS);
        let may_be_paced = is_early && earlier.is_none() && !host.is_empty();
        if may_be_paced || mark.time_ns.saturating_add(WINDOW_NS) > last_ns {
            faults.unjudged += 1;
        } else {
            faults.missing.push(mark.index);
        }
    }
    faults
}

/// Returns the times of all CNPs that a host sends, in order. Those at several taps are counted several
/// times.
fn notifications_of_host(analysis: &Analysis, address: IpAddr) -> Vec<u64> {
    let is_own = |record: &&Record| {
        is_cnp(record)
            && !record.bits.contains(Bits::COPY)
            && analysis.streams.get(record.stream).is_some_and(|stream| stream.key.source == address)
    };
    let mut times: Vec<u64> = analysis.records.iter().filter(is_own).map(|record| record.time_ns).collect();
    times.sort_unstable();
    times
}

/// Returns whether the capture lacks packets towards an end, so that a mark may have been one of them.
fn lacks_packets(connection: &Connection, end: usize) -> bool {
    let replays = connection.view_of(end).into_iter().flat_map(|view| &view.replays);
    replays.flat_map(|replay| &replay.gaps).any(|gap| gap.end == GapEnd::NotCaptured)
}

fn shortest_interval(moments: &[Moment]) -> Option<u64> {
    moments.iter().zip(moments.iter().skip(1)).map(|(one, two)| two.time_ns.saturating_sub(one.time_ns)).min()
}

/// The notifications of one host, by the queue pair that they name.
#[derive(Default)]
struct Host {
    by_queue_pair: HashMap<(IpAddr, Qpn), Vec<u64>>,
    places: Vec<Place>,
}

/// Finds the scope in which each host paces its notifications.
pub(super) fn of_capture(analysis: &Analysis) -> Vec<Verdict> {
    if analysis.counts.without_time > 0 {
        return Vec::new();
    }
    let mut hosts: HashMap<IpAddr, Host> = HashMap::new();
    for connection in &analysis.connections {
        for end in 0..2 {
            let other = connection.ends.get(1 - end).zip(connection.ends.get(end));
            let Some(((peer, own), found)) = other.zip(marks(analysis, connection, end)) else { continue };
            let Some(qpn) = peer.qpn.filter(|_| !found.notifications.is_empty()) else { continue };
            let host = hosts.entry(own.address).or_default();
            let times = host.by_queue_pair.entry((peer.address, qpn)).or_default();
            times.extend(found.notifications.iter().map(|cnp| cnp.time_ns));
            host.places.extend(found.notifications.iter().filter_map(|cnp| analysis.place(cnp.index)));
        }
    }
    let mut hosts: Vec<_> = hosts.into_iter().collect();
    hosts.sort_unstable_by_key(|(address, _)| *address);
    hosts.into_iter().map(|(address, host)| scope(address, &host)).collect()
}

/// Intervals between the notifications of one scope.
struct Intervals {
    shortest_ns: u64,
    /// A quarter of the intervals is longer.
    upper_ns: u64,
    count: usize,
}

impl Intervals {
    fn of(lists: impl Iterator<Item = Vec<u64>>) -> Option<Self> {
        let mut all = Vec::new();
        for mut list in lists {
            list.sort_unstable();
            all.extend(list.iter().zip(list.iter().skip(1)).map(|(one, two)| two - one));
        }
        all.sort_unstable();
        let (&shortest_ns, &upper_ns) = all.first().zip(all.get(all.len() * 3 / 4))?;
        Some(Self { shortest_ns, upper_ns, count: all.len() })
    }

    /// Returns whether something keeps the intervals apart: marks alone come at any time.
    const fn is_paced(&self) -> bool {
        self.count >= ENOUGH_INTERVALS && self.shortest_ns > 0 && self.shortest_ns * 2 >= self.upper_ns
    }
}

fn scope(address: IpAddr, host: &Host) -> Verdict {
    let by_queue_pair = &host.by_queue_pair;
    let mut pairs: HashMap<IpAddr, Vec<u64>> = HashMap::new();
    for ((peer, _), times) in by_queue_pair {
        pairs.entry(*peer).or_default().extend(times);
    }
    let (count_of_pairs, whole) = (pairs.len(), by_queue_pair.values().flatten().copied().collect());
    let of_queue_pair = Intervals::of(by_queue_pair.values().cloned());
    let of_pair = Intervals::of(pairs.into_values());
    let of_port = Intervals::of(std::iter::once(whole));
    let (Some(of_queue_pair), Some(of_pair), Some(of_port)) = (of_queue_pair, of_pair, of_port) else {
        return Verdict::unknown(&rules::CNP, format!("{address} sends too few CNPs to see their pacing"))
            .at(host.places.iter().copied());
    };
    let us = |intervals: &Intervals| intervals.shortest_ns as f64 / 1e3;
    let is_paced = [&of_port, &of_pair, &of_queue_pair].map(Intervals::is_paced);
    let several = (by_queue_pair.len() > count_of_pairs, count_of_pairs > 1);
    let fits = match (is_paced, several) {
        _ if by_queue_pair.len() < 2 => None,
        ([true, ..], (_, true)) => Some("port"),
        ([true, ..], (_, false)) => Some("address pair or port"),
        ([_, true, _], (true, _)) => Some("address pair"),
        ([_, true, _], (false, _)) => Some("queue pair or address pair"),
        ([.., true], _) => Some("queue pair"),
        _ => None,
    };
    let intervals = format!(
        "the shortest interval is {:.1} us per queue pair, {:.1} us per address pair and {:.1} us per port",
        us(&of_queue_pair),
        us(&of_pair),
        us(&of_port)
    );
    let verdict = match fits {
        Some(fits) => Verdict::pass(&rules::CNP, format!("{address} paces its CNPs per {fits}: {intervals}")),
        None if by_queue_pair.len() < 2 => {
            let because =
                format!("all CNPs of {address} are for one queue pair, so the scope cannot be seen");
            Verdict::unknown(&rules::CNP, format!("{because}; {intervals}"))
        }
        None => {
            let because = format!("the CNPs of {address} show no pacing, or too few of them were captured");
            Verdict::unknown(&rules::CNP, format!("{because}; {intervals}"))
        }
    };
    verdict
        .at(host.places.iter().copied())
        .with("shortest_interval_of_queue_pair_us", us(&of_queue_pair))
        .with("shortest_interval_of_address_pair_us", us(&of_pair))
        .with("shortest_interval_of_port_us", us(&of_port))
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, of_connection as judge};
    use super::*;
    use crate::testing::wire::{Sketch, Wire};

    fn verdicts(wire: &Wire) -> Vec<Verdict> {
        let analysis = wire.analyze();
        let connection = &analysis.connections[0];
        judge(&analysis, connection).into_iter().filter(|verdict| verdict.rule.number == 9).collect()
    }

    /// Twenty marked SENDs at 100 us; `answer` gives the time after the mark at which a CNP follows.
    fn marked(answer: impl Fn(u32) -> Option<u64>) -> Wire {
        let mut wire = Wire::default();
        for psn in 0..20 {
            let time = 10_000 * u64::from(psn);
            wire.at_us(time, Sketch::send(1, psn).marked());
            if let Some(delay) = answer(psn) {
                wire.at_us(time + delay, Sketch::cnp(2));
            }
            wire.at_us(time + 2000, Sketch::ack(2, psn, psn + 1));
        }
        wire
    }

    #[test]
    fn marks_that_are_answered_pass() {
        let [verdict] = &verdicts(&marked(|_| Some(4)))[..] else { panic!("one end sends CNPs") };
        assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.summary);
        assert!(verdict.figures.iter().any(|figure| figure.name == "cnp_tx" && figure.value == 20.0));
        assert!(verdict.figures.iter().any(|figure| figure.name == "shortest_interval_us"));
    }

    #[test]
    fn a_missing_notification_fails_at_its_mark() {
        let [verdict] = &verdicts(&marked(|psn| (psn != 7).then_some(4)))[..] else { panic!("one end") };
        assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.summary);
        assert_eq!(verdict.packets, [Place { capture: 0, number: 22 }]);
    }

    #[test]
    fn a_late_notification_fails() {
        let [verdict] = &verdicts(&marked(|psn| Some(if psn == 7 { 700 } else { 4 })))[..] else {
            panic!("one")
        };
        assert_eq!(verdict.outcome, Outcome::Fail);
        assert!(verdict.summary.contains("1 CNPs later"), "{}", verdict.summary);
    }

    #[test]
    fn a_notification_without_a_mark_fails_only_where_marks_are_seen() {
        let mut wire = marked(|_| Some(4));
        wire.at_us(500_000, Sketch::send(1, 20));
        wire.at_us(500_004, Sketch::cnp(2));
        let [verdict] = &verdicts(&wire)[..] else { panic!("one end") };
        assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.summary);
        assert!(verdict.summary.contains("1 CNPs without a mark"), "{}", verdict.summary);

        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 20));
        wire.at_us(4, Sketch::cnp(2));
        wire.at_us(5, Sketch::ack(2, 20, 1));
        let [verdict] = &verdicts(&wire)[..] else { panic!("one end") };
        assert_eq!(verdict.outcome, Outcome::Unknown, "{}", verdict.summary);
    }

    #[test]
    fn the_beginning_of_the_capture_is_not_blamed() {
        // The CNP answers an earlier mark, or the mark is not answered because of an earlier CNP.
        for is_answer in [true, false] {
            let [verdict] = &verdicts(&beginning(is_answer))[..] else { panic!("one end") };
            assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.summary);
            assert!(verdict.figures.iter().any(|figure| figure.name == "not_judged" && figure.value == 1.0));
        }
    }

    fn beginning(is_answer: bool) -> Wire {
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 0));
        if is_answer {
            wire.at_us(10, Sketch::cnp(2));
        } else {
            wire.at_us(10, Sketch::send(1, 0).marked());
        }
        for psn in 1..5 {
            let time = 10_000 * u64::from(psn);
            wire.at_us(time, Sketch::send(1, psn).marked());
            wire.at_us(time + 4, Sketch::cnp(2));
            wire.at_us(time + 50, Sketch::ack(2, psn, psn + 1));
        }
        wire
    }

    #[test]
    fn the_end_of_the_capture_is_not_blamed() {
        let mut wire = marked(|_| Some(4));
        wire.at_us(400_000, Sketch::send(1, 20).marked());
        let [verdict] = &verdicts(&wire)[..] else { panic!("one end") };
        assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.summary);
        assert!(verdict.figures.iter().any(|figure| figure.name == "not_judged" && figure.value == 1.0));
    }

    #[test]
    fn a_file_without_times_says_so() {
        let mut wire = Wire::default();
        wire.without_time(Sketch::send(1, 1).marked());
        wire.without_time(Sketch::cnp(2));
        let [verdict] = &verdicts(&wire)[..] else { panic!("one end") };
        assert_eq!(verdict.outcome, Outcome::Unknown);
    }

    /// Twelve rounds of CNPs for two queue pairs of host 1 and one of host 3. `time` gives the time of a
    /// CNP in a round for a queue pair, 0 to 2.
    fn paced(time: impl Fn(u64, u64) -> Option<u64>) -> String {
        let mut wire = Wire::default();
        let mut packets = Vec::new();
        for round in 0..12 {
            for (number, host) in [(0, 1), (1, 1), (2, 3)] {
                let Some(time) = time(round, number) else { continue };
                let qpn = 0x11 + number as u32;
                let psn = 1000 * qpn + round as u32;
                let peer = Sketch { from: host, to: 2, qpn: qpn + 0x100, psn, ..Sketch::send(1, 0) };
                let back = Sketch { from: 2, to: host, qpn, psn, ..Sketch::ack(2, 0, 1) };
                let cnp = Sketch { from: 2, to: host, qpn, ..Sketch::cnp(2) };
                packets.extend([(time, peer.marked()), (time + 1, cnp), (time + 2, back)]);
            }
        }
        packets.sort_by_key(|(time, _)| *time);
        for (time, packet) in packets {
            wire.at_us(time, packet);
        }
        let verdicts = of_capture(&wire.analyze());
        let [verdict] = &verdicts[..] else { panic!("one host sends CNPs: {verdicts:?}") };
        verdict.summary.clone()
    }

    #[test]
    fn the_scope_of_the_pacing_is_found() {
        let queue_pair = paced(|round, number| Some(100 * round + 3 * number));
        assert!(queue_pair.contains("per queue pair:"), "{queue_pair}");
        let pair = paced(|round, number| match number {
            2 => Some(100 * round + 3),
            _ => (round % 2 == number).then_some(100 * round),
        });
        assert!(pair.contains("per address pair:"), "{pair}");
        let port = paced(|round, number| (round % 3 == number).then_some(100 * round));
        assert!(port.contains("per port:"), "{port}");
        let unpaced = paced(|round, number| Some(round * round * 40 + 7 * number));
        assert!(unpaced.contains("no pacing"), "{unpaced}");
    }
}
