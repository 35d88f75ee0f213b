//! Rule 16: fields of headers that receivers expect to have certain values.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use roce_packet::flow::LOWEST_SOURCE_PORT;
use roce_packet::{Direction, Encapsulation, Layer, ParseErrorKind, Qpn};

use super::findings::{Findings, count_of};
use super::judgement::{Scene, Verdict};
use super::packets::{is_intact, outside_connections, sent_by};
use super::rules::HYGIENE;
use crate::analysis::Analysis;
use crate::record::{Bits, Place, Record, StreamId, StreamKey};

/// First UDP port above those of well-known services.
const FIRST_FREE_PORT: u16 = 1024;
/// The bit of a P_Key that says that its owner is a full member of the partition.
const FULL_MEMBER: u16 = 0x8000;
/// The default partition, without the bit for membership.
const DEFAULT_PARTITION: u16 = 0x7fff;

/// Judges the packets of one connection.
pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    let analysis = scene.analysis;
    let mut findings = Findings::default();
    let packets = [0, 1].map(|end| sent_by(scene, end));
    let keys = packets.each_ref().map(|packets| judge(analysis, packets, &mut findings));
    if let [Some((one, _)), Some((other, place))] = keys {
        let stream = scene.connection.streams.get(1).copied().flatten();
        let detail = || format!("0x{other:04x} and 0x{one:04x}");
        if one & !FULL_MEMBER != other & !FULL_MEMBER {
            findings.fault_with("P_Key is not that of the other end", stream, place, detail);
        } else if (one | other) & FULL_MEMBER == 0 {
            findings.fault_with("both ends are limited members of the partition", stream, place, detail);
        }
    }
    mixed_versions(scene, packets.each_ref().map(|packets| packets.first().copied()), &mut findings);
    conclude(analysis, packets.iter().flatten().copied(), findings)
}

/// Judges packets outside of connections.
pub(super) fn check_others(analysis: &Analysis) -> Vec<Verdict> {
    let mut findings = Findings::default();
    let streams = outside_connections(analysis);
    for packets in streams.values() {
        _ = judge(analysis, packets, &mut findings);
    }
    mixed_hosts(analysis, &mut findings);
    conclude(analysis, streams.values().flatten().copied(), findings)
}

fn conclude<'a>(
    analysis: &Analysis,
    packets: impl Iterator<Item = &'a Record>,
    findings: Findings,
) -> Vec<Verdict> {
    let (mut count, mut intact) = (0_u64, 0_u64);
    for record in packets {
        count += 1;
        intact += u64::from(is_intact(record));
    }
    if count == 0 && !findings.has_remarks() {
        return Vec::new();
    }
    let otherwise = || match intact {
        0 if count > 0 => {
            Verdict::unknown(&HYGIENE, "every packet has a wrong ICRC, so its headers may be damaged.")
        }
        _ => Verdict::pass(&HYGIENE, format!("no violation in {}.", count_of(intact, "packet"))),
    };
    vec![findings.into_verdict(&HYGIENE, analysis, otherwise).with("packets", intact as f64)]
}

/// Judges the packets of one stream. Returns its P_Key and the first packet with it.
fn judge(analysis: &Analysis, packets: &[&Record], findings: &mut Findings) -> Option<(u16, Place)> {
    let stream = packets.first().map(|record| record.stream);
    let key = stream.and_then(|stream| analysis.streams.get(stream)).map(|stream| stream.key);
    let has_port = key.is_some_and(|key| key.encapsulation == Encapsulation::RoceV2);
    let (mut clear, mut set) = (None, None);
    let mut keys: BTreeMap<u16, (u64, Place)> = BTreeMap::new();
    for record in packets.iter().filter(|record| is_intact(record)) {
        single_packet(record, findings);
        if is_cnp(record) {
            continue;
        }
        if has_port {
            source_port(record, findings);
        }
        let mig_req = if record.bits.contains(Bits::MIG_REQ) { &mut set } else { &mut clear };
        let (count, _) = mig_req.get_or_insert((0_u64, *record));
        *count += 1;
        keys.entry(record.p_key).or_insert((0, record.place)).0 += 1;
    }
    match (clear, set) {
        (Some((clear, first_clear)), Some((set, first_set))) => {
            let rarer = if clear < set { first_clear } else { first_set };
            findings.fault_with("MigReq changes", Some(rarer.stream), rarer.place, || {
                format!("{clear} packets without, {set} with it")
            });
        }
        (Some((_, first)), None) => {
            findings.remark("MigReq is 0, with which some NICs do not work", Some(first.stream), first.place);
        }
        (None, _) => {}
    }
    // Queue pair 1 receives messages of every partition.
    if key.is_some_and(|key| key.qpn == Qpn::GSI) {
        return None;
    }
    partition(&keys, stream, findings)
}

fn is_cnp(record: &Record) -> bool {
    record.info().is_some_and(|info| info.direction == Direction::Cnp)
}

/// Judges the P_Keys of a stream. Returns the most common one.
fn partition(
    keys: &BTreeMap<u16, (u64, Place)>,
    stream: Option<StreamId>,
    findings: &mut Findings,
) -> Option<(u16, Place)> {
    let (&most, &(_, first)) = keys.iter().max_by_key(|(_, (count, _))| *count)?;
    for (&key, &(_, place)) in keys {
        let text = || format!("0x{key:04x}");
        if key & !FULL_MEMBER == 0 {
            findings.fault_with("P_Key without a partition", stream, place, text);
        } else if key != most {
            findings.fault_with("P_Key changes", stream, place, || format!("0x{key:04x} after 0x{most:04x}"));
        } else if key & !FULL_MEMBER != DEFAULT_PARTITION {
            findings.remark_with("P_Key of another partition than the default one", stream, place, text);
        } else if key & FULL_MEMBER == 0 {
            findings.remark_with("P_Key of a limited member", stream, place, text);
        }
    }
    Some((most, first))
}

/// Finds faults of single packets.
fn single_packet(record: &Record, findings: &mut Findings) {
    let (stream, place, bits) = (Some(record.stream), record.place, record.bits);
    if record.version != 0 {
        let text = || record.version.to_string();
        findings.fault_with("transport version is not 0", stream, place, text);
    }
    if bits.contains(Bits::RESERVED) {
        findings.fault("reserved bits of the BTH are set", stream, place);
    }
    if !is_cnp(record) {
        if bits.contains(Bits::FECN) {
            findings.fault("FECN is set outside of a CNP", stream, place);
        }
        if bits.contains(Bits::BECN) {
            findings.fault("BECN is set outside of a CNP", stream, place);
        }
    }
    if bits.contains(Bits::UDP_CHECKSUM) {
        findings.remark("UDP checksum is not 0, with which some NICs do not work", stream, place);
    }
    match record.problem {
        // Other rules judge opcodes and payloads; the version is judged above.
        None
        | Some(
            (Layer::Payload, _) | (Layer::Bth, ParseErrorKind::UnknownOpcode | ParseErrorKind::BadVersion),
        ) => {}
        Some((layer, kind)) => {
            findings.fault_with("headers contradict each other", stream, place, || {
                format!("{}: {}", layer.name(), kind.description())
            });
        }
    }
}

/// Judges the UDP source port of a packet other than a CNP. CNPs of several NICs have port 0.
fn source_port(record: &Record, findings: &mut Findings) {
    let (stream, place, port) = (Some(record.stream), record.place, record.source_port);
    let text = || port.to_string();
    match port {
        LOWEST_SOURCE_PORT.. => {}
        0 => findings.fault("UDP source port is 0", stream, place),
        1..FIRST_FREE_PORT => {
            findings.fault_with("UDP source port of a well-known service", stream, place, text);
        }
        _ => findings.remark_with("UDP source port below 49152", stream, place, text),
    }
}

/// Finds packets of the other version of RoCE to the queue pairs of a connection.
fn mixed_versions(scene: &Scene<'_>, firsts: [Option<&Record>; 2], findings: &mut Findings) {
    let streams = &scene.analysis.streams;
    for first in firsts.into_iter().flatten() {
        let Some(own) = streams.get(first.stream) else { continue };
        let encapsulation = other_version(own.key.encapsulation);
        if let Some(other) = streams.find(&StreamKey { encapsulation, ..own.key }) {
            let detail = || format!("this is {}", own.key.encapsulation.name());
            findings.fault_with("both versions of RoCE for one queue pair", Some(other), first.place, detail);
        }
    }
}

const fn other_version(encapsulation: Encapsulation) -> Encapsulation {
    match encapsulation {
        Encapsulation::RoceV1 => Encapsulation::RoceV2,
        Encapsulation::RoceV2 => Encapsulation::RoceV1,
    }
}

/// Finds hosts that use both versions of RoCE.
fn mixed_hosts(analysis: &Analysis, findings: &mut Findings) {
    let mut versions: HashMap<(IpAddr, IpAddr), Encapsulation> = HashMap::new();
    for record in &analysis.records {
        let Some(stream) = analysis.streams.get(record.stream) else { continue };
        let key = stream.key;
        let first = *versions.entry((key.source, key.destination)).or_insert(key.encapsulation);
        if first != key.encapsulation {
            findings.remark("both versions of RoCE between two hosts", Some(record.stream), record.place);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::frames::{
        Sketch, Wire, ack, cnp, datagram, expect, from_a, judge, judge_capture, request, send,
    };
    use crate::verdict::Outcome;

    /// Captures packets between an ordinary SEND and its ACK.
    fn with(sketches: impl IntoIterator<Item = Sketch>) -> Wire {
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add_all(sketches).add(ack(1, 1));
        wire
    }

    /// Describes a SEND whose BTH has a byte changed.
    fn bth(offset: usize, value: u8) -> Sketch {
        send(2, 4).byte(offset, value)
    }

    #[test]
    fn usual_headers_pass() {
        expect(&judge(&with([cnp()]), &HYGIENE), Outcome::Pass, "no violation in 3 packets.", &[]);
    }

    #[test]
    fn one_value_of_mig_req_passes_and_a_change_fails() {
        let without = |mut sketch: Sketch| {
            sketch.bth.mig_req = false;
            sketch
        };
        let mut wire = Wire::new();
        wire.add(without(send(1, 5))).add(without(send(2, 5))).add(ack(2, 2));
        expect(&judge(&wire, &HYGIENE), Outcome::Pass, "Remark: MigReq is 0", &[1]);
        let verdict = judge(&with([send(2, 5), without(send(3, 5))]), &HYGIENE);
        expect(&verdict, Outcome::Fail, "MigReq changes: packet 3", &[3]);
    }

    #[test]
    fn bits_that_must_be_zero_fail() {
        let rows = [
            (bth(1, 0x41), "transport version is not 0"),
            (bth(4, 0x01), "reserved bits of the BTH are set"),
            (bth(8, 0x01), "reserved bits of the BTH are set"),
            (bth(4, 0x80), "FECN is set outside of a CNP"),
            (bth(4, 0x40), "BECN is set outside of a CNP"),
        ];
        for (sketch, text) in rows {
            expect(&judge(&with([sketch]), &HYGIENE), Outcome::Fail, text, &[2]);
        }
    }

    #[test]
    fn a_damaged_packet_is_not_blamed() {
        expect(&judge(&with([bth(8, 0x01).wrong_icrc()]), &HYGIENE), Outcome::Pass, "2 packets", &[]);
    }

    #[test]
    fn partition_keys_must_be_those_of_one_partition() {
        let keyed = |psn, key| {
            let mut sketch = send(psn, 5);
            sketch.bth.p_key = key;
            sketch
        };
        let answer = |key| {
            let mut sketch = ack(3, 2);
            sketch.bth.p_key = key;
            sketch
        };
        type Row<'a> = (&'a [u16], u16, Outcome, &'a str, &'a [u64]);
        let rows: [Row<'_>; 7] = [
            (&[0x7fff; 2], 0xffff, Outcome::Pass, "P_Key of a limited member", &[1]),
            (&[0x8001; 2], 0x8001, Outcome::Pass, "P_Key of another partition", &[1, 3]),
            (&[0x7fff; 2], 0x7fff, Outcome::Fail, "both ends are limited members", &[3]),
            (&[0xffff; 2], 0x8001, Outcome::Fail, "not that of the other end", &[3]),
            (&[0x8000; 2], 0x8000, Outcome::Fail, "P_Key without a partition", &[1, 3]),
            (&[0xffff, 0xffff, 0x8001], 0xffff, Outcome::Fail, "0x8001 after 0xffff", &[3]),
            (&[0xffff, 0xffff, 0x7fff], 0xffff, Outcome::Fail, "P_Key changes", &[3]),
        ];
        for (keys, other, outcome, text, packets) in rows {
            let mut wire = Wire::new();
            wire.add_all((1..).zip(keys).map(|(psn, key)| keyed(psn, *key))).add(answer(other));
            expect(&judge(&wire, &HYGIENE), outcome, text, packets);
        }
    }

    #[test]
    fn queue_pair_1_receives_every_partition() {
        let mut wire = Wire::new();
        let mut other = request(roce_packet::PathMtu::Mtu512);
        other.bth.p_key = 0x8001;
        wire.add(request(roce_packet::PathMtu::Mtu512)).add(other);
        expect(&judge_capture(&wire, &HYGIENE), Outcome::Pass, "no violation in 2 packets", &[]);
    }

    #[test]
    fn ports_and_checksums_are_remarks_unless_a_service_has_the_port() {
        let rows = [
            (send(2, 5).port(4791), Outcome::Pass, "UDP source port below 49152"),
            (send(2, 5).port(0), Outcome::Fail, "UDP source port is 0"),
            (send(2, 5).port(69), Outcome::Fail, "UDP source port of a well-known service"),
            (Sketch { udp_checksum: 7, ..send(2, 5) }, Outcome::Pass, "UDP checksum is not 0"),
            (cnp().port(69), Outcome::Pass, "no violation"),
        ];
        for (sketch, outcome, text) in rows {
            let packets: &[u64] = if text == "no violation" { &[] } else { &[2] };
            expect(&judge(&with([sketch]), &HYGIENE), outcome, text, packets);
        }
    }

    #[test]
    fn headers_that_contradict_each_other_fail() {
        // The datagram ends in its RETH.
        let short = from_a(roce_packet::Opcode::RC_RDMA_WRITE_ONLY, 2).payload(8);
        expect(&judge(&with([short]), &HYGIENE), Outcome::Fail, "RETH: too short", &[2]);
    }

    #[test]
    fn one_queue_pair_has_one_version_of_roce() {
        let mut other = send(2, 5);
        other.path.encapsulation = Encapsulation::RoceV1;
        let analysis = with([other]).analyze();
        let verdicts: Vec<Verdict> = analysis
            .connections
            .iter()
            .flat_map(|connection| check(&Scene { analysis: &analysis, connection }))
            .collect();
        let text = "both versions of RoCE for one queue pair";
        assert!(
            verdicts.iter().any(|verdict| verdict.outcome == Outcome::Fail && verdict.summary.contains(text))
        );
    }

    #[test]
    fn two_hosts_with_both_versions_are_a_remark() {
        let mut other = send(2, 5).for_qpn(0x44);
        other.path.encapsulation = Encapsulation::RoceV1;
        let verdict = judge_capture(&with([other]), &HYGIENE);
        expect(&verdict, Outcome::Pass, "both versions of RoCE between two hosts: packet 2", &[2]);
    }

    #[test]
    fn damaged_packets_alone_say_nothing() {
        let mut wire = Wire::new();
        wire.add(send(1, 5).wrong_icrc()).add(send(2, 5).wrong_icrc());
        expect(&judge(&wire, &HYGIENE), Outcome::Unknown, "every packet has a wrong ICRC", &[]);
    }

    #[test]
    fn datagrams_are_judged_with_the_capture() {
        let mut wire = Wire::new();
        wire.add(datagram(1, 8)).add(datagram(2, 8).byte(8, 1));
        expect(&judge_capture(&wire, &HYGIENE), Outcome::Fail, "reserved bits", &[2]);
    }
}
