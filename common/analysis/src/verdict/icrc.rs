//! Rule 1: whose ICRCs are wrong, and how many.
//!
//! A record says that its ICRC is wrong, but not why: that needs the bytes of the packet, which only
//! [`crate::Collector::add`] sees. It examines them, and keeps the result for each stream.

use std::collections::HashMap;

use roce_packet::{Opcode, Psn};

use super::findings::{Findings, count_of};
use super::judgement::{Scene, Verdict};
use super::packets::{outside_connections, sent_by};
use super::rules::ICRC;
use crate::analysis::Analysis;
use crate::icrc::Conclusion;
use crate::record::{Bits, Record, StreamId};

/// Judges the packets of one connection.
pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    let mut sums = Sums::default();
    for end in [0, 1] {
        sums.add(&sent_by(scene, end));
    }
    let mut verdicts = sums.into_verdict(scene.analysis);
    if let (Some(place), Some(verdict)) = (place_of_damage(scene), verdicts.first_mut()) {
        verdict.summary.push_str(&place);
    }
    verdicts
}

/// Says at which of two places packets were wrong for the first time.
fn place_of_damage(scene: &Scene<'_>) -> Option<String> {
    let between = scene.connection.between.as_ref()?;
    let wrong = |index: &usize| {
        let record = scene.analysis.records.get(*index);
        record.filter(|record| record.is_damaged())
    };
    let (mut before, mut behind) = (0, 0);
    for crossing in &between.crossings {
        // A wrong packet and its right repetition may have the same ICRC field. So packets are counted, not
        // compared one by one.
        let mut known: HashMap<(Opcode, Psn, u32), u64> = HashMap::new();
        let key = |record: &Record| (record.opcode, record.psn, record.icrc);
        let left = crossing.both.iter().map(|(first, _)| first).chain(&crossing.lost);
        for record in left.filter_map(wrong) {
            before += 1;
            *known.entry(key(record)).or_default() += 1;
        }
        let arrived = crossing.both.iter().map(|(_, second)| second).chain(&crossing.only_second);
        for record in arrived.filter_map(wrong) {
            match known.get_mut(&key(record)).filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None => behind += 1,
            }
        }
    }
    match (before, behind) {
        (0, 0) => None,
        (_, 0) => Some(
            " They were wrong already at the place near their sender, so the network between both places is \
             not the cause."
                .to_owned(),
        ),
        (0, _) => Some(
            " They were right at the place near their sender, so the network between both places damages \
             them."
                .to_owned(),
        ),
        _ => Some(format!(
            " {} wrong already at the place near the sender, {} became wrong between both places.",
            count_of(before, "packet"),
            count_of(behind, "packet")
        )),
    }
}

/// Judges packets outside of connections.
pub(super) fn check_others(analysis: &Analysis) -> Vec<Verdict> {
    let mut sums = Sums::default();
    for packets in outside_connections(analysis).values() {
        sums.add(packets);
    }
    sums.into_verdict(analysis)
}

#[derive(Default)]
struct Sums {
    findings: Findings,
    /// Streams with wrong ICRCs.
    streams: Vec<StreamId>,
    good: u64,
    wrong: u64,
    /// Packets whose end is missing or whose headers contradict each other.
    unchecked: u64,
}

impl Sums {
    /// Adds the packets of one stream.
    fn add(&mut self, packets: &[&Record]) {
        let count = |bit| packets.iter().filter(|record| record.bits.contains(bit)).count() as u64;
        let (good, wrong) = (count(Bits::GOOD_ICRC), count(Bits::BAD_ICRC));
        if wrong > 0 {
            self.streams.extend(packets.first().map(|record| record.stream));
        }
        self.good += good;
        self.wrong += wrong;
        self.unchecked += packets.len() as u64 - good - wrong;
        let kind = match good {
            0 => "every ICRC is wrong, so the sender or a device on the way computes it in another way",
            _ => "wrong ICRC",
        };
        for record in packets.iter().filter(|record| record.is_damaged()) {
            let detail = || format!("{wrong} of {}", good + wrong);
            self.findings.fault_with(kind, Some(record.stream), record.place, detail);
        }
    }

    fn into_verdict(self, analysis: &Analysis) -> Vec<Verdict> {
        let Self { findings, streams, good, wrong, unchecked } = self;
        if good + wrong + unchecked == 0 {
            return Vec::new();
        }
        let otherwise = || match good {
            0 => Verdict::unknown(
                &ICRC,
                format!("no packet is complete: {} without its end.", count_of(unchecked, "packet")),
            ),
            good => Verdict::pass(&ICRC, format!("{} with a correct ICRC.", count_of(good, "packet"))),
        };
        let mut verdict = findings.into_verdict(&ICRC, analysis, otherwise);
        let tallies = streams.iter().filter_map(|stream| analysis.mistakes.get(stream));
        if let Some(tally) = tallies.max_by_key(|tally| tally.wrong()) {
            let Conclusion { text, remedy, .. } = tally.conclusion();
            let remedy = remedy.map_or(String::new(), |remedy| format!(" Remedy: {remedy}."));
            verdict.summary.push_str(&format!(" Examined: {text}.{remedy}"));
        }
        let verdict = verdict.with("good", good as f64).with("wrong", wrong as f64);
        vec![verdict.with("unchecked", unchecked as f64)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::frames::{Wire, ack, expect, figure, judge, judge_capture, send};
    use crate::testing::wire::Sketch as Packet;
    use crate::verdict::Outcome;

    #[test]
    fn correct_ones_pass() {
        let mut wire = Wire::new();
        wire.add(send(10, 5)).add(ack(10, 1));
        let verdict = judge(&wire, &ICRC);
        expect(&verdict, Outcome::Pass, "2 packets with a correct ICRC", &[]);
        assert_eq!(figure(&verdict, "good"), 2.0);
    }

    #[test]
    fn wrong_ones_are_counted_for_their_sender() {
        let mut wire = Wire::new();
        wire.add(send(10, 5)).add(ack(10, 1)).add(send(11, 5).wrong_icrc()).add(send(12, 5)).add(ack(12, 3));
        let verdict = judge(&wire, &ICRC);
        let text = "wrong ICRC: packet 3 from 192.0.2.1 to queue pair 0x000022 (1 of 3)";
        expect(&verdict, Outcome::Fail, text, &[3]);
        assert_eq!((figure(&verdict, "good"), figure(&verdict, "wrong")), (4.0, 1.0));
        assert!(verdict.summary.contains("Examined: "), "{}", verdict.summary);
    }

    #[test]
    fn a_sender_without_any_correct_one_is_named() {
        let mut wire = Wire::new();
        wire.add(send(10, 5)).add(ack(10, 1).wrong_icrc()).add(send(11, 5)).add(ack(11, 2).wrong_icrc());
        expect(&judge(&wire, &ICRC), Outcome::Fail, "every ICRC is wrong, so the sender", &[2, 4]);
    }

    #[test]
    fn packets_without_their_end_say_nothing() {
        let mut wire = Wire::new();
        for psn in 10..12 {
            wire.add(crate::testing::frames::Sketch { snap_len: Some(64), ..send(psn, 400) });
        }
        let verdict = judge(&wire, &ICRC);
        expect(&verdict, Outcome::Unknown, "no packet is complete: 2 packets without its end", &[]);
        assert_eq!(figure(&verdict, "unchecked"), 2.0);
    }

    /// A reader looked at cables, although the packets were wrong before they left the host.
    #[test]
    fn two_places_show_where_packets_were_wrong_for_the_first_time() {
        let judged = |wrong_at: &[[bool; 2]]| {
            let mut wire = crate::testing::wire::Wire::default();
            for (psn, wrong) in (0..).zip(wrong_at) {
                let time = 100_000 * u64::from(psn);
                for (place, wrong) in (0..).zip(wrong) {
                    let (time, sketch) = (time + 1_000 * u64::from(place), Packet::send(1, psn));
                    if *wrong {
                        wire.damaged(place, time, sketch);
                    } else {
                        wire.add(place, time, sketch);
                    }
                }
                wire.add(1, time + 5_000, Packet::ack(2, psn, psn + 1));
                wire.add(0, time + 6_000, Packet::ack(2, psn, psn + 1));
            }
            let analysis = wire.analyze();
            let verdicts = crate::verdict::of_connection(&analysis, &analysis.connections[0]);
            verdicts.into_iter().find(|verdict| verdict.rule.number == ICRC.number).unwrap().summary
        };
        let [never, before, between] = [[false, false], [true, true], [false, true]];
        assert!(!judged(&[never, never]).contains("the place"));
        assert!(judged(&[never, before, never]).contains("wrong already at the place near their sender"));
        assert!(
            judged(&[never, between, between]).contains("so the network between both places damages them")
        );
        let both = judged(&[never, before, between, between]);
        assert!(
            both.contains("1 packet wrong already at the place near the sender, 2 packets became"),
            "{both}"
        );
    }

    #[test]
    fn datagrams_are_judged_with_the_capture() {
        let mut wire = Wire::new();
        wire.add(crate::testing::frames::datagram(1, 100))
            .add(crate::testing::frames::datagram(2, 100).wrong_icrc());
        expect(&judge_capture(&wire, &ICRC), Outcome::Fail, "1 of 2", &[2]);
    }
}
