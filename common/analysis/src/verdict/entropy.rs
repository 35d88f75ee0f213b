//! Rule 17: how source ports spread the queue pairs, and whether packets of a queue pair stay in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use roce_packet::{Direction, Encapsulation, ROCE_UDP_PORT};

use super::findings::{Findings, count_of};
use super::judgement::{Scene, Verdict};
use super::packets::{Restarts, is_intact, sent_by};
use super::rules::ENTROPY;
use crate::analysis::Analysis;
use crate::record::{Bits, Place, Record, StreamId};
use crate::replay::{GapEnd, Replay};

/// Numbers of paths, each with the limit of chi-square that equally likely paths exceed with a probability of
/// 0.001.
const PATHS: [(u32, f64); 2] = [(8, 24.322), (16, 37.697)];
/// Least number of flows for each path. The chi-square test is not valid for fewer.
const LEAST_FLOWS: u64 = 5;
/// Least number of flows for any test.
const LEAST_FLOWS_IN_ALL: u64 = 8 * LEAST_FLOWS;
/// Least number of changes of the port of a sender with several paths, and most packets for each change.
const LEAST_CHANGES: usize = 8;
const MOST_PER_CHANGE: usize = 16;
/// Least number of queue pairs between two hosts that cannot have one port by chance.
const LEAST_EQUAL: usize = 3;

/// Judges the ports and the order of one connection.
pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    let has_ports = scene.connection.encapsulation == Encapsulation::RoceV2;
    let mut findings = Findings::default();
    let (mut ports, mut packets) = (BTreeSet::new(), 0_u64);
    let (mut order, restarts) = (Order::default(), Restarts::new(scene));
    let mut of_kinds = Vec::new();
    for end in [0, 1] {
        let sent: Vec<&Record> =
            sent_by(scene, end).into_iter().filter(|record| is_intact(record) && !is_cnp(record)).collect();
        packets += sent.len() as u64;
        if has_ports {
            ports.extend(sent.iter().map(|record| record.source_port));
            of_kinds.extend(kinds(&sent));
        }
        if let Some(replay) = scene.connection.responder(end) {
            order.add(scene, replay, &mut findings);
        }
    }
    if packets == 0 {
        return Vec::new();
    }
    judge_ports(&of_kinds, &restarts, &mut findings);
    let otherwise = || match order.without_nak {
        0 if has_ports => {
            let ports = count_of(ports.len() as u64, "source port");
            Verdict::pass(&ENTROPY, format!("{ports}; {} in order.", count_of(packets, "packet")))
        }
        0 => {
            let text = format!("RoCE v1 has no ports; {} in order.", count_of(packets, "packet"));
            Verdict::pass(&ENTROPY, text)
        }
        count => Verdict::unknown(
            &ENTROPY,
            format!(
                "{} captured after later ones, but the receiver asked for none of them again: the capture \
                 may have changed the order, or the receiver accepts it.",
                count_of(count, "request")
            ),
        )
        .at(order.places.iter().copied()),
    };
    let verdict = findings.into_verdict(&ENTROPY, scene.analysis, otherwise);
    vec![
        verdict
            .with("source_ports", ports.len() as f64)
            .with("overtaken", order.overtaken as f64)
            .with("largest_displacement_packets", order.largest as f64)
            .with("doubled", order.doubled as f64),
    ]
}

fn is_cnp(record: &Record) -> bool {
    record.info().is_some_and(|info| info.direction == Direction::Cnp)
}

/// The packets of one kind that one end sent.
type Kind<'a> = Vec<&'a Record>;

/// Returns the requests and the answers among the packets of one end.
fn kinds<'a>(packets: &[&'a Record]) -> [Kind<'a>; 2] {
    [Direction::Request, Direction::Response].map(|direction| {
        let is_of = |record: &&&Record| record.info().is_some_and(|info| info.direction == direction);
        packets.iter().filter(is_of).copied().collect()
    })
}

/// Returns each packet with another port than the one before, and the one before.
fn changes<'a>(kind: &Kind<'a>) -> impl Iterator<Item = [&'a Record; 2]> {
    let pairs = kind.iter().zip(kind.iter().skip(1)).map(|(before, now)| [*before, *now]);
    pairs.filter(|[before, now]| before.source_port != now.source_port)
}

/// Judges the ports of the packets of each kind. A new connection of the same queue pairs may have another
/// port. A sender with several paths changes the port all the time, and its peer answers on as many.
fn judge_ports(kinds: &[Kind<'_>], restarts: &Restarts, findings: &mut Findings) {
    let is_spread = |kind: &Kind<'_>| {
        let changed = changes(kind).count();
        changed >= LEAST_CHANGES && changed * MOST_PER_CHANGE >= kind.len()
    };
    let has_paths = kinds.iter().any(is_spread);
    for kind in kinds {
        if has_paths && let Some([first, _]) = changes(kind).next() {
            let ports: BTreeSet<u16> = kind.iter().map(|record| record.source_port).collect();
            let detail = || count_of(ports.len() as u64, "source port");
            let what = "packets spread over several paths by their source port";
            findings.remark_with(what, Some(first.stream), first.place, detail);
            continue;
        }
        for [before, now] in changes(kind) {
            let (stream, place) = (Some(now.stream), now.place);
            let detail = || format!("{} after {}", now.source_port, before.source_port);
            if restarts.is_between(before, now) {
                findings.remark_with("another source port for a new connection", stream, place, detail);
            } else {
                findings.fault_with("source port changes inside a queue pair", stream, place, detail);
            }
        }
    }
}

/// How far requests are out of order.
#[derive(Default)]
struct Order {
    overtaken: u64,
    doubled: u64,
    /// Overtaken requests without a NAK.
    without_nak: u64,
    /// Largest number of requests that were captured between the first one behind a gap and the one that
    /// fills it.
    largest: u64,
    places: Vec<Place>,
}

impl Order {
    fn add(&mut self, scene: &Scene<'_>, replay: &Replay, findings: &mut Findings) {
        let records = &scene.analysis.records;
        let overtaken: BTreeSet<usize> = replay.overtaken.iter().copied().collect();
        // The last NAK for each PSN.
        let naks: BTreeMap<u64, usize> = replay.naks.iter().map(|nak| (nak.psn, nak.at)).collect();
        for gap in replay.gaps.iter().filter(|gap| gap.end == GapEnd::Overtaken) {
            let range = gap.first..gap.first.saturating_add(gap.count);
            let has_nak = naks.range(range.clone()).any(|(_, at)| *at > gap.after);
            for (_, sent) in replay.sent.range(range) {
                let (Some(behind), Some(late)) = (records.get(gap.after), records.get(sent.first)) else {
                    continue;
                };
                let is_first = late.was_sent_before(behind);
                if !overtaken.contains(&sent.first) || is_first == Some(false) {
                    continue;
                }
                self.overtaken += 1;
                let between = requests_between(scene, late.stream, gap.after, sent.first);
                self.largest = self.largest.max(between);
                // Without numbers, only a packet that came twice was overtaken and not lost.
                if has_nak && (is_first == Some(true) || sent.times > 1) {
                    let detail = || format!("after {} with later PSNs", count_of(between, "request"));
                    findings.fault_with("request out of order", Some(late.stream), late.place, detail);
                } else {
                    self.without_nak += 1;
                    self.places.push(late.place);
                }
            }
        }
        for &(_, again) in &replay.doubled {
            let Some(record) = records.get(again) else { continue };
            self.doubled += 1;
            findings.remark("request captured twice, without a loss", Some(record.stream), record.place);
        }
    }
}

fn requests_between(scene: &Scene<'_>, stream: StreamId, from: usize, to: usize) -> u64 {
    let records = scene.analysis.records.get(from..to).unwrap_or_default();
    let is_one = |record: &&Record| record.stream == stream && !record.bits.contains(Bits::COPY);
    records.iter().filter(is_one).count() as u64
}

/// A flow as switches see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Flow {
    source: IpAddr,
    destination: IpAddr,
    port: u16,
}

impl Flow {
    /// Returns a hash of addresses and ports, of the kind that switches use.
    fn hash(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for address in [self.source, self.destination] {
            match address {
                IpAddr::V4(address) => hasher.update(&address.octets()),
                IpAddr::V6(address) => hasher.update(&address.octets()),
            }
        }
        hasher.update(&self.port.to_be_bytes());
        hasher.update(&ROCE_UDP_PORT.to_be_bytes());
        hasher.finalize()
    }
}

/// Judges how the ports of all connections spread over paths. Both directions of a connection have related
/// ports, so each direction is judged alone.
pub(super) fn check_all(analysis: &Analysis) -> Vec<Verdict> {
    let ports = first_ports(analysis);
    let [forward, backward] = [0, 1].map(|end| flows(analysis, &ports, end));
    let longer = if forward.len() >= backward.len() { &forward } else { &backward };
    if longer.len() < 2 {
        return Vec::new();
    }
    if let Some(text) = [&forward, &backward].into_iter().find_map(|flows| equal_ports(flows)) {
        return vec![Verdict::fail(&ENTROPY, text).with("flows", longer.len() as f64)];
    }
    let distinct: BTreeSet<u16> = longer.iter().map(|flow| flow.port).collect();
    if (longer.len() as u64) < LEAST_FLOWS_IN_ALL {
        let verdict = Verdict::unknown(
            &ENTROPY,
            format!(
                "too few queue pairs for a test of their spread: {} with {}, {LEAST_FLOWS_IN_ALL} needed.",
                longer.len(),
                count_of(distinct.len() as u64, "source port")
            ),
        );
        return vec![verdict.with("flows", longer.len() as f64).with("source_ports", distinct.len() as f64)];
    }
    let tests = [&forward, &backward].into_iter().flat_map(|flows| {
        PATHS.iter().filter_map(|(paths, limit)| Some((*paths, *limit, chi_square(flows, *paths)?)))
    });
    let tests: Vec<(u32, f64, f64)> = tests.collect();
    let text = |(paths, limit, sum): &(u32, f64, f64)| {
        format!("chi-square over {paths} paths is {sum:.1}, the limit for p = 0.001 is {limit:.1}")
    };
    let worst = tests.iter().max_by(|(_, one, a), (_, other, b)| (a / one).total_cmp(&(b / other)));
    let verdict = match worst {
        Some(test @ (_, limit, sum)) if sum > limit => Verdict::fail(
            &ENTROPY,
            format!("{} do not spread evenly: {}.", count_of(longer.len() as u64, "queue pair"), text(test)),
        ),
        _ => Verdict::pass(
            &ENTROPY,
            format!(
                "{} spread evenly: {}.",
                count_of(longer.len() as u64, "queue pair"),
                worst.map(text).unwrap_or_default()
            ),
        ),
    };
    let largest = |wanted: u32| {
        tests.iter().filter(|(paths, ..)| *paths == wanted).map(|(.., sum)| *sum).fold(0.0, f64::max)
    };
    vec![
        verdict
            .with("flows", longer.len() as f64)
            .with("source_ports", distinct.len() as f64)
            .with("chi_square_8", largest(8))
            .with("chi_square_16", largest(16)),
    ]
}

/// Returns the port of each stream: that of its first intact packet other than a CNP.
fn first_ports(analysis: &Analysis) -> HashMap<StreamId, u16> {
    let mut ports = HashMap::new();
    for record in analysis.records.iter().filter(|record| is_intact(record) && !is_cnp(record)) {
        ports.entry(record.stream).or_insert(record.source_port);
    }
    ports
}

fn flows(analysis: &Analysis, ports: &HashMap<StreamId, u16>, end: usize) -> Vec<Flow> {
    let streams = analysis.connections.iter().filter_map(|connection| *connection.streams.get(end)?);
    streams
        .filter_map(|id| {
            let key = analysis.streams.get(id)?.key;
            let port = *ports.get(&id)?;
            let flow = Flow { source: key.source, destination: key.destination, port };
            (key.encapsulation == Encapsulation::RoceV2).then_some(flow)
        })
        .collect()
}

/// Returns a description of two hosts whose queue pairs all have one port.
fn equal_ports(flows: &[Flow]) -> Option<String> {
    let mut hosts: BTreeMap<(IpAddr, IpAddr), Vec<u16>> = BTreeMap::new();
    for flow in flows {
        hosts.entry((flow.source, flow.destination)).or_default().push(flow.port);
    }
    hosts.iter().find_map(|((source, destination), ports)| {
        let first = *ports.first()?;
        let are_equal = ports.len() >= LEAST_EQUAL && ports.iter().all(|port| *port == first);
        are_equal.then(|| {
            let count = ports.len();
            format!(
                "all {count} queue pairs from {source} to {destination} have source port {first}, so all take \
                 one path."
            )
        })
    })
}

/// Returns the deviation of flows from an even spread over paths; `None` for too few flows.
fn chi_square(flows: &[Flow], paths: u32) -> Option<f64> {
    if (flows.len() as u64) < u64::from(paths) * LEAST_FLOWS {
        return None;
    }
    let mut buckets: BTreeMap<u32, u32> = (0..paths).map(|path| (path, 0)).collect();
    for flow in flows {
        *buckets.entry(flow.hash() % paths).or_default() += 1;
    }
    let expected = flows.len() as f64 / f64::from(paths);
    Some(buckets.values().map(|found| (f64::from(*found) - expected).powi(2) / expected).sum())
}

#[cfg(test)]
mod tests {
    use roce_packet::{NakCode, Opcode, PathMtu, Syndrome};

    use super::*;
    use crate::testing::frames::{
        Sketch, Wire, ack, cnp, expect, figure, from_b, judge, judge_capture, request, send,
    };
    use crate::verdict::Outcome;

    /// Describes a SEND whose sender counts its packets.
    fn numbered(psn: u32, identification: u16) -> Sketch {
        Sketch { identification: Some(identification), ..send(psn, 5) }
    }

    #[test]
    fn one_port_for_each_direction_passes() {
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(send(2, 5)).add(ack(2, 2).port(0xd000)).add(cnp());
        let verdict = judge(&wire, &ENTROPY);
        expect(&verdict, Outcome::Pass, "2 source ports; 3 packets in order", &[]);
        assert_eq!(figure(&verdict, "overtaken"), 0.0);
    }

    #[test]
    fn a_port_that_changes_fails_unless_the_connection_is_new() {
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(send(2, 5).port(0xd000)).add(send(3, 5)).add(ack(3, 3));
        let text = "source port changes inside a queue pair: packets 2, 3";
        expect(&judge(&wire, &ENTROPY), Outcome::Fail, text, &[2, 3]);
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(send(0x50_0000, 5).port(0xd000)).add(ack(0x50_0000, 1));
        expect(&judge(&wire, &ENTROPY), Outcome::Pass, "for a new connection", &[2]);
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(ack(1, 1)).add(request(PathMtu::Mtu1024));
        wire.add(send(2, 5).port(0xd000)).add(ack(2, 1));
        expect(&judge(&wire, &ENTROPY), Outcome::Pass, "for a new connection", &[4]);
    }

    /// A sender with several paths chooses a port for each packet, and its peer for each answer. A few other
    /// ports are still wrong.
    #[test]
    fn packets_spread_over_several_paths_pass() {
        let sent = |port: fn(u32) -> u16| {
            let mut wire = Wire::new();
            for psn in 0..60 {
                wire.add(send(psn, 5).port(port(psn)));
                if psn % 20 == 19 {
                    wire.add(ack(psn, psn + 1).port(0xd000 + port(psn) % 4));
                }
            }
            judge(&wire, &ENTROPY)
        };
        expect(&sent(|psn| 0xc000 + (psn % 4) as u16), Outcome::Pass, "(4 source ports)", &[1]);
        // A policy that stays on a path for a while.
        expect(&sent(|psn| 0xc000 + (psn / 6 % 4) as u16), Outcome::Pass, "(4 source ports)", &[6, 21]);
        let text = "source port changes inside a queue pair: 6 packets, such as 9, 10, 15";
        let few = sent(|psn| 0xc000 + 4 * u16::from(psn % 6 == 2 && psn > 2 && psn < 24));
        expect(&few, Outcome::Fail, text, &[9, 10, 15, 16, 22, 23]);
    }

    #[test]
    fn requests_out_of_order_fail_if_the_receiver_asks_for_them() {
        let nak = from_b(Opcode::RC_ACKNOWLEDGE, 2).aeth(Syndrome::Nak(NakCode::PsnSequence), 1);
        let mut wire = Wire::new();
        wire.add(numbered(1, 101))
            .add(numbered(3, 103))
            .add(numbered(4, 104))
            .add(numbered(2, 102).after_us(2));
        let order = judge(&wire, &ENTROPY);
        expect(&order, Outcome::Unknown, "1 request captured after later ones", &[4]);
        assert_eq!(figure(&order, "largest_displacement_packets"), 2.0);
        wire.add(nak);
        expect(&judge(&wire, &ENTROPY), Outcome::Fail, "after 2 requests with later PSNs", &[4]);
    }

    /// The Identification shows that the packet was sent again, and not overtaken.
    #[test]
    fn a_loss_is_not_reordering() {
        let mut wire = Wire::new();
        wire.add(numbered(1, 101)).add(numbered(3, 103)).add(numbered(2, 104).after_us(2)).add(ack(3, 3));
        let verdict = judge(&wire, &ENTROPY);
        expect(&verdict, Outcome::Pass, "in order", &[]);
        assert_eq!(figure(&verdict, "overtaken"), 0.0);
    }

    /// Captures a packet of each of many connections.
    fn many(count: u32, port: impl Fn(u32) -> u16) -> Wire {
        let mut wire = Wire::new();
        for index in 0..count {
            let (to_b, to_a) = (0x1000 + index, 0x2000 + index);
            wire.add(send(index * 1000, 5).for_qpn(to_b).port(port(index)));
            wire.add(ack(index * 1000, 1).for_qpn(to_a).port(port(index)));
        }
        wire
    }

    #[test]
    fn ports_of_a_hash_spread_evenly() {
        let label = |index: u32| {
            let (one, other) = (roce_packet::Qpn::new(0x1000 + index), roce_packet::Qpn::new(0x2000 + index));
            roce_packet::flow::flow_label_to_port(roce_packet::flow::qp_pair_flow_label(one, other))
        };
        let verdict = judge_capture(&many(160, label), &ENTROPY);
        expect(&verdict, Outcome::Pass, "160 queue pairs spread evenly: chi-square over", &[]);
        assert_eq!(figure(&verdict, "flows"), 160.0);
        assert!(figure(&verdict, "chi_square_8") < 24.3);
    }

    #[test]
    fn ports_on_few_paths_fail() {
        // Two ports have at most two paths.
        let verdict = judge_capture(&many(60, |index| 0xc000 + (index % 2) as u16), &ENTROPY);
        expect(&verdict, Outcome::Fail, "60 queue pairs do not spread evenly: chi-square over 8 paths", &[]);
    }

    #[test]
    fn one_port_for_all_queue_pairs_fails() {
        let verdict = judge_capture(&many(3, |_| 0xc000), &ENTROPY);
        let text = "all 3 queue pairs from 192.0.2.1 to 192.0.2.2 have source port 49152";
        expect(&verdict, Outcome::Fail, text, &[]);
    }

    #[test]
    fn few_queue_pairs_say_nothing() {
        let verdict = judge_capture(&many(5, |index| 0xc000 + index as u16), &ENTROPY);
        expect(&verdict, Outcome::Unknown, "too few queue pairs for a test of their spread: 5 with 5", &[]);
    }
}
