//! Rule 11: DSCP, ECN and priority of each kind of packet, and what the network makes of them.

use std::collections::{BTreeMap, BTreeSet};

use roce_packet::{DEFAULT_CNP_DSCP, Direction, Ecn, Operation};

use super::findings::{Findings, count_of};
use super::judgement::{Scene, Verdict};
use super::packets::{Restarts, sent_by};
use super::rules::CLASSES;
use crate::record::{Record, StreamId};

/// A kind of packet, which has a class of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Request,
    ReadResponse,
    Acknowledgement,
    Cnp,
}

impl Kind {
    fn of(record: &Record) -> Option<Self> {
        let info = record.info()?;
        Some(match (info.direction, info.operation) {
            (Direction::Request, _) => Self::Request,
            (Direction::Response, Operation::ReadResponse) => Self::ReadResponse,
            (Direction::Response, _) => Self::Acknowledgement,
            (Direction::Cnp, _) => Self::Cnp,
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::ReadResponse => "READ response",
            Self::Acknowledgement => "acknowledgement",
            Self::Cnp => "CNP",
        }
    }
}

/// Judges one connection.
pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    let (mut findings, restarts) = (Findings::default(), Restarts::new(scene));
    let (mut all, mut judged, mut marks) = (0_u64, 0_u64, 0_u64);
    let mut classes = BTreeSet::new();
    for end in [0, 1] {
        let packets = sent_by(scene, end);
        all += packets.len() as u64;
        let sound: Vec<&Record> = packets.into_iter().filter(|record| record.is_sound()).collect();
        let mut kinds: BTreeMap<Kind, Vec<&Record>> = BTreeMap::new();
        for record in sound {
            if let Some(kind) = Kind::of(record) {
                kinds.entry(kind).or_default().push(record);
            }
        }
        for (kind, packets) in &kinds {
            judged += packets.len() as u64;
            marks += packets.iter().filter(|record| is_marked(record)).count() as u64;
            classes.extend(packets.iter().map(|record| record.dscp()));
            changes(*kind, packets, &restarts, &mut findings);
            ecn_of_one_kind(*kind, packets, &mut findings);
        }
        cnp_class(scene, end, &kinds, &mut findings);
    }
    if all == 0 {
        return Vec::new();
    }
    let compared = on_the_way(scene, &mut findings);
    let otherwise = || match judged {
        0 => Verdict::unknown(&CLASSES, "no packet is intact, so no class is certain."),
        _ => {
            let classes: Vec<String> = classes.iter().map(u8::to_string).collect();
            let way = match compared {
                Some(count) => {
                    format!("unchanged in {} at both places of capture", count_of(count, "packet"))
                }
                None => "captured at one place, so changes on the way are not visible".to_owned(),
            };
            let marks = match marks {
                0 => String::new(),
                marks => format!("{} with an ECN mark; ", count_of(marks, "packet")),
            };
            Verdict::pass(&CLASSES, format!("DSCP {}; {marks}{way}.", classes.join(", ")))
        }
    };
    let verdict = findings.into_verdict(&CLASSES, scene.analysis, otherwise);
    vec![
        verdict
            .with("classes", classes.len() as f64)
            .with("marked_packets", marks as f64)
            .with("packets_at_both_places", compared.unwrap_or(0) as f64),
    ]
}

const fn is_marked(record: &Record) -> bool {
    matches!(Ecn::from_bits(record.traffic_class), Ecn::CongestionExperienced)
}

/// Finds changes of DSCP and priority from one packet of a kind to the next. A new connection of the same
/// queue pairs may have another class.
fn changes(kind: Kind, packets: &[&Record], restarts: &Restarts, findings: &mut Findings) {
    for pair in packets.windows(2) {
        let &[before, now] = pair else { continue };
        let (stream, place) = (Some(now.stream), now.place);
        if (before.dscp(), before.pcp) != (now.dscp(), now.pcp) && restarts.is_between(before, now) {
            continue;
        }
        if before.dscp() != now.dscp() {
            findings.fault_with("DSCP changes", stream, place, || {
                format!("{}, {} after {}", kind.name(), now.dscp(), before.dscp())
            });
        }
        if before.pcp != now.pcp {
            findings.fault_with("VLAN priority changes", stream, place, || {
                format!("{}, {} after {}", kind.name(), priority(now.pcp), priority(before.pcp))
            });
        }
    }
}

fn priority(pcp: Option<u8>) -> String {
    pcp.map_or_else(|| "no tag".to_owned(), |pcp| pcp.to_string())
}

/// Judges the ECN fields of one kind of packet of one sender. Routers may replace ECT with a mark.
fn ecn_of_one_kind(kind: Kind, packets: &[&Record], findings: &mut Findings) {
    let mut counts: BTreeMap<u8, (u64, &Record)> = BTreeMap::new();
    for record in packets {
        counts.entry(record.ecn()).or_insert((0, record)).0 += 1;
    }
    let of = |ecn: Ecn| counts.get(&ecn.bits()).copied();
    let (not, zero) = (of(Ecn::NotCapable), of(Ecn::Capable0));
    let (one, marked) = (of(Ecn::Capable1), of(Ecn::CongestionExperienced));
    if let (Some((count, _)), Some((marks, first))) = (not, marked)
        && zero.or(one).is_none()
    {
        findings.fault_with(
            "mark on a packet that is not ECN-capable",
            Some(first.stream),
            first.place,
            || format!("{}, {marks} marked, {count} Not-ECT", kind.name()),
        );
    }
    let capable = zero.or(one);
    if let (Some((count, rarer)), Some((others, other))) = (not, capable) {
        let rarer = if count <= others { rarer } else { other };
        findings.fault_with("ECN field changes", Some(rarer.stream), rarer.place, || {
            format!("{}, {count} packets Not-ECT, {others} ECT", kind.name())
        });
    }
    if let (Some((_, _)), Some((_, first))) = (zero, one) {
        findings
            .fault_with("both ECT(0) and ECT(1)", Some(first.stream), first.place, || kind.name().to_owned());
    } else if let Some((_, first)) = one {
        findings.remark_with("ECT(1) instead of ECT(0)", Some(first.stream), first.place, || {
            kind.name().to_owned()
        });
    }
    if let (Some((_, first)), Kind::Request | Kind::ReadResponse, None) = (not, kind, capable) {
        findings.remark_with(
            "not ECN-capable, so switches drop it instead of marking it",
            Some(first.stream),
            first.place,
            || kind.name().to_owned(),
        );
    }
}

/// Compares the class of the CNPs of an end with the default and with the data that they may overtake.
fn cnp_class(scene: &Scene<'_>, end: usize, kinds: &BTreeMap<Kind, Vec<&Record>>, findings: &mut Findings) {
    let first = |kind: Kind| kinds.get(&kind).and_then(|packets| packets.first().copied());
    let Some(cnp) = first(Kind::Cnp) else { return };
    let (stream, place) = (Some(cnp.stream), cnp.place);
    if cnp.dscp() != DEFAULT_CNP_DSCP {
        findings.remark_with("CNP with another DSCP than 48, the default", stream, place, || {
            cnp.dscp().to_string()
        });
    }
    // The data of either end shares queues with the CNP at some switch.
    let is_data = |record: &&Record| {
        record.is_sound() && matches!(Kind::of(record), Some(Kind::Request | Kind::ReadResponse))
    };
    let of_other_end = || sent_by(scene, 1_usize.saturating_sub(end)).into_iter().find(is_data);
    let data = first(Kind::Request).or_else(|| first(Kind::ReadResponse)).or_else(of_other_end);
    let Some(data) = data else { return };
    if data.dscp() == cnp.dscp() {
        findings.remark("CNP in the class of the data, so it waits in the same queues", stream, place);
    } else if data.pcp.is_some() && data.pcp == cnp.pcp {
        findings.remark(
            "CNP with the VLAN priority of the data, so it waits in the same queues",
            stream,
            place,
        );
    }
}

/// Compares each packet at both places of capture. Returns the number of packets.
fn on_the_way(scene: &Scene<'_>, findings: &mut Findings) -> Option<u64> {
    let between = scene.connection.between.as_ref()?;
    let records = &scene.analysis.records;
    let mut compared = 0;
    for &(near, far) in between.crossings.iter().flat_map(|crossing| &crossing.both) {
        let (Some(near), Some(far)) = (records.get(near), records.get(far)) else { continue };
        compared += 1;
        let stream = Some(near.stream);
        if near.dscp() != far.dscp() {
            let detail = || format!("{} became {}", near.dscp(), far.dscp());
            findings.fault_with("DSCP changed on the way", stream, far.place, detail);
        }
        match (near.pcp, far.pcp) {
            (Some(before), Some(after)) if before != after => {
                let detail = || format!("{before} became {after}");
                findings.fault_with("VLAN priority changed on the way", stream, far.place, detail);
            }
            (Some(_), None) | (None, Some(_)) => {
                let detail = || format!("{} became {}", priority(near.pcp), priority(far.pcp));
                findings.remark_with("VLAN tag added or removed on the way", stream, far.place, detail);
            }
            _ => {}
        }
        ecn_on_the_way(near, far, stream, findings);
    }
    (compared > 0).then_some(compared)
}

fn ecn_on_the_way(near: &Record, far: &Record, stream: Option<StreamId>, findings: &mut Findings) {
    let kind = match (Ecn::from_bits(near.traffic_class), Ecn::from_bits(far.traffic_class)) {
        (before, after) if before == after => return,
        (Ecn::Capable0 | Ecn::Capable1, Ecn::CongestionExperienced) => {
            return findings.remark("marked on the way", stream, far.place);
        }
        (Ecn::NotCapable, Ecn::CongestionExperienced) => "marked on the way although it is not ECN-capable",
        (Ecn::CongestionExperienced, _) => "ECN mark removed on the way",
        (_, Ecn::NotCapable) => "ECT removed on the way, so later switches drop instead of marking",
        _ => "ECN field changed on the way",
    };
    let detail = || format!("{} became {}", near.ecn(), far.ecn());
    findings.fault_with(kind, stream, far.place, detail);
}

#[cfg(test)]
mod tests {
    use roce_packet::Opcode;

    use super::*;
    use crate::testing::frames::{Sketch, Wire, ack, cnp, expect, figure, from_b, judge, request, send};
    use crate::verdict::Outcome;

    #[test]
    fn steady_classes_pass() {
        let mut wire = Wire::new();
        wire.add(send(1, 5).class(26, 2)).add(send(2, 5).class(26, 3)).add(ack(2, 2).class(26, 2)).add(cnp());
        let verdict = judge(&wire, &CLASSES);
        expect(&verdict, Outcome::Pass, "DSCP 26, 48; 1 packet with an ECN mark; captured at one place", &[]);
        assert_eq!(figure(&verdict, "marked_packets"), 1.0);
    }

    #[test]
    fn a_class_that_changes_within_a_kind_fails() {
        let mut wire = Wire::new();
        wire.add(send(1, 5).class(26, 2)).add(send(2, 5).class(0, 2)).add(ack(2, 2));
        let text = "DSCP changes: packet 2 from 192.0.2.1 to queue pair 0x000022 (request, 0 after 26)";
        expect(&judge(&wire, &CLASSES), Outcome::Fail, text, &[2]);
        let mut wire = Wire::new();
        wire.add(send(1, 5).pcp(3)).add(send(2, 5).pcp(4)).add(send(3, 5)).add(ack(3, 3));
        let text = "VLAN priority changes: packets 2, 3";
        expect(&judge(&wire, &CLASSES), Outcome::Fail, text, &[2, 3]);
    }

    #[test]
    fn a_new_connection_may_have_another_class() {
        let mut wire = Wire::new();
        wire.add(send(1, 5).class(26, 2)).add(ack(1, 1)).add(request(roce_packet::PathMtu::Mtu1024));
        wire.add(send(2, 5).class(0, 2)).add(ack(2, 1));
        expect(&judge(&wire, &CLASSES), Outcome::Pass, "DSCP 0, 26", &[]);
    }

    #[test]
    fn another_kind_may_have_another_class() {
        let mut wire = Wire::new();
        let read =
            from_b(Opcode::RC_RDMA_READ_RESPONSE_ONLY, 2).aeth(roce_packet::Syndrome::ACK_UNLIMITED, 2);
        wire.add(send(1, 5).class(26, 2)).add(ack(1, 1).class(0, 0)).add(read.class(10, 2)).add(cnp());
        expect(&judge(&wire, &CLASSES), Outcome::Pass, "DSCP 0, 10, 26, 48", &[]);
    }

    #[test]
    fn ecn_fields_of_one_kind_must_agree() {
        let rows: [(&[u8], Outcome, &str); 6] = [
            (&[2, 2, 3], Outcome::Pass, "1 packet with an ECN mark"),
            (&[1, 1], Outcome::Pass, "ECT(1) instead of ECT(0)"),
            (&[0, 0], Outcome::Pass, "not ECN-capable"),
            (&[2, 2, 0], Outcome::Fail, "ECN field changes: packet 3"),
            (&[0, 0, 3], Outcome::Fail, "mark on a packet that is not ECN-capable: packet 3"),
            (&[1, 2], Outcome::Fail, "both ECT(0) and ECT(1)"),
        ];
        for (fields, outcome, text) in rows {
            let mut wire = Wire::new();
            wire.add_all((1..).zip(fields).map(|(psn, ecn)| send(psn, 5).class(0, *ecn)));
            let verdict = judge(&wire, &CLASSES);
            assert_eq!(verdict.outcome, outcome, "{}", verdict.summary);
            assert!(verdict.summary.contains(text), "{}", verdict.summary);
        }
    }

    #[test]
    fn cnps_in_the_class_of_the_data_are_remarks() {
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(cnp().class(0, 2)).add(ack(1, 1));
        let verdict = judge(&wire, &CLASSES);
        expect(&verdict, Outcome::Pass, "CNP in the class of the data", &[2]);
        assert!(verdict.summary.contains("CNP with another DSCP than 48"), "{}", verdict.summary);
        let mut wire = Wire::new();
        wire.add(send(1, 5).pcp(3)).add(cnp().pcp(3)).add(ack(1, 1));
        expect(&judge(&wire, &CLASSES), Outcome::Pass, "CNP with the VLAN priority of the data", &[2]);
    }

    /// Captures three SENDs with DSCP 26 and priority 3 at two places, and changes the second one in between.
    fn two_places(ecn: u8, change: impl FnOnce(Sketch) -> Sketch) -> Verdict {
        let sketch = |psn| send(psn, 5).class(26, ecn).pcp(3);
        let mut wire = Wire::new();
        wire.add_twice(sketch(1), |sketch| sketch).add_twice(sketch(2), change);
        wire.add_twice(sketch(3), |sketch| sketch);
        judge(&wire, &CLASSES)
    }

    #[test]
    fn what_the_network_does_is_seen_with_two_places() {
        let verdict = two_places(2, |sketch| sketch);
        expect(&verdict, Outcome::Pass, "unchanged in 3 packets at both places of capture", &[]);
        assert_eq!(figure(&verdict, "packets_at_both_places"), 3.0);
        expect(&two_places(2, |sketch| sketch.class(26, 3)), Outcome::Pass, "marked on the way", &[4]);
        let rows = [
            (2, 26, 0, 3, "ECT removed on the way"),
            (3, 26, 2, 3, "ECN mark removed on the way"),
            (0, 26, 3, 3, "marked on the way although it is not ECN-capable"),
            (2, 26, 1, 3, "ECN field changed on the way"),
            (
                2,
                0,
                2,
                3,
                "DSCP changed on the way: packet 4 from 192.0.2.1 to queue pair 0x000022 (26 became 0)",
            ),
            (2, 26, 2, 0, "VLAN priority changed on the way"),
        ];
        for (before, dscp, after, pcp, text) in rows {
            let verdict = two_places(before, |sketch| sketch.class(dscp, after).pcp(pcp));
            expect(&verdict, Outcome::Fail, text, &[4]);
        }
        let untagged = two_places(2, |mut sketch| {
            sketch.path.vlan = None;
            sketch
        });
        expect(&untagged, Outcome::Pass, "VLAN tag added or removed on the way", &[4]);
    }

    #[test]
    fn damaged_packets_say_nothing() {
        let mut wire = Wire::new();
        wire.add(send(1, 5).wrong_icrc()).add(send(2, 5).class(9, 0).wrong_icrc());
        expect(&judge(&wire, &CLASSES), Outcome::Unknown, "no packet is intact", &[]);
    }
}
