//! Rule 14: the path MTU, padding and fragments.

use std::collections::BTreeMap;

use roce_packet::mad::CmMessage;
use roce_packet::{Layer, OpcodeInfo, PathMtu, PayloadRule, Transport};

use super::findings::{Findings, count_of};
use super::judgement::{Scene, Verdict};
use super::packets::{is_intact, outside_connections, sent_by};
use super::rules::MTU;
use crate::analysis::Analysis;
use crate::connection::End;
use crate::record::{Bits, Record};

/// Smallest path MTU in bytes.
const SMALLEST: u32 = 256;
/// Largest path MTU in bytes.
const LARGEST: u32 = 4096;

/// Judges the packets of one connection.
pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    let mut findings = Findings::default();
    let packets: Vec<&Record> = [0, 1].into_iter().flat_map(|end| sent_by(scene, end)).collect();
    let judged: Vec<&Record> = packets.iter().copied().filter(|record| is_intact(record)).collect();
    if !judged.iter().any(|record| has_payload_rule(record)) {
        return Vec::new();
    }
    let full = most_common_full(&judged);
    // READs without their responses show the path MTU, too.
    let from_reads = || [0, 1].into_iter().find_map(|end| scene.connection.requester(end)?.mtu);
    let mtu = match full {
        Some(bytes) => PathMtu::from_bytes(bytes as usize),
        None => negotiated(scene).or_else(from_reads),
    };
    let mtu_bytes = mtu.map(|mtu| mtu.bytes() as u32);
    for record in &judged {
        single_packet(record, &mut findings);
        if record.info().is_some() && !record.bits.contains(Bits::BROKEN) {
            length(record, full.or(mtu_bytes), &mut findings);
        }
        if full.is_some() && mtu.is_none() && is_full(record) {
            let detail = || format!("{} bytes", record.payload_len);
            findings.fault_with("full payload is not a path MTU", Some(record.stream), record.place, detail);
        }
    }
    too_long_for_the_network(scene, &mut findings);
    let largest = judged.iter().map(|record| record.payload_len).max().unwrap_or(0);
    let number_of_full = judged.iter().filter(|record| is_full(record)).count() as u64;
    let otherwise = || match mtu {
        Some(mtu) => Verdict::pass(
            &MTU,
            format!("the path MTU is {} bytes; {}.", mtu.bytes(), count_of(number_of_full, "full packet")),
        ),
        None => Verdict::unknown(
            &MTU,
            format!(
                "the path MTU is not known, because no packet had to be full; the largest payload has {}.",
                count_of(largest.into(), "byte")
            ),
        ),
    };
    let verdict = findings.into_verdict(&MTU, scene.analysis, otherwise);
    let verdict =
        verdict.with("full_packets", number_of_full as f64).with("largest_payload_bytes", largest.into());
    vec![match mtu_bytes {
        Some(bytes) => verdict.with("path_mtu_bytes", bytes.into()),
        None => verdict,
    }]
}

/// Number of lost packets from which their length explains the loss.
const ENOUGH_LOST: usize = 3;

/// Finds a network that loses every long packet of an end and no short one: its MTU is too small.
fn too_long_for_the_network(scene: &Scene<'_>, findings: &mut Findings) {
    let Some(between) = &scene.connection.between else { return };
    let record = |index: &usize| scene.analysis.records.get(*index);
    for crossing in &between.crossings {
        let lost: Vec<&Record> = crossing.lost.iter().filter_map(record).collect();
        // No path MTU is smaller than 256 bytes.
        let is_long = lost.iter().all(|record| record.payload_len >= SMALLEST);
        let shortest_lost = lost.iter().map(|record| record.wire_len).min();
        let arrived = crossing.both.iter().filter_map(|(first, _)| record(first));
        let (Some(lost_from), Some(arrived_to)) =
            (shortest_lost, arrived.map(|record| record.wire_len).max())
        else {
            continue;
        };
        if lost.len() < ENOUGH_LOST || !is_long || lost_from <= arrived_to {
            continue;
        }
        for record in lost {
            findings.fault_with(
                "no frame of this length arrives, so the MTU of the network is too small for the path MTU",
                Some(record.stream),
                record.place,
                || {
                    format!(
                        "frames from {lost_from} bytes on are lost, and those up to {arrived_to} bytes arrive"
                    )
                },
            );
        }
    }
}

/// Returns the path MTU that connection management agreed on.
fn negotiated(scene: &Scene<'_>) -> Option<PathMtu> {
    scene.analysis.cm.iter().rev().find_map(|record| {
        let CmMessage::Req(req) = &*record.message else { return None };
        let is_end = |end: &End| end.address == record.source && end.qpn == Some(req.local_qpn);
        scene.connection.ends.iter().any(is_end).then(|| req.path_mtu()).flatten()
    })
}

/// Judges packets outside of connections: datagrams.
pub(super) fn check_others(analysis: &Analysis) -> Vec<Verdict> {
    let mut findings = Findings::default();
    let mut judged = 0;
    for packets in outside_connections(analysis).values() {
        for record in packets.iter().filter(|record| is_intact(record)) {
            single_packet(record, &mut findings);
            let is_datagram = record.info().is_some_and(|info| info.transport == Transport::Ud);
            if is_datagram && !record.bits.contains(Bits::BROKEN) {
                judged += 1;
                length(record, None, &mut findings);
            }
        }
    }
    if judged == 0 && !findings.has_faults() {
        return Vec::new();
    }
    let otherwise = || {
        let text = format!(
            "{} outside of connections, none longer than {LARGEST} bytes.",
            count_of(judged, "datagram")
        );
        Verdict::pass(&MTU, text)
    };
    vec![findings.into_verdict(&MTU, analysis, otherwise)]
}

/// Returns whether the payload of a packet has limits that depend on the path MTU.
fn has_payload_rule(record: &Record) -> bool {
    record.info().is_some_and(|info| {
        matches!(info.payload, PayloadRule::FullMtu | PayloadRule::OneToMtu | PayloadRule::ZeroToMtu)
    })
}

/// Returns whether the payload of a packet must have the length of the path MTU.
fn is_full(record: &Record) -> bool {
    let must_be = |info: &OpcodeInfo| info.payload == PayloadRule::FullMtu;
    record.info().is_some_and(must_be) && !record.bits.contains(Bits::BROKEN)
}

/// Returns the most common payload of First and Middle packets; of equally common ones, the largest.
fn most_common_full(packets: &[&Record]) -> Option<u32> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for record in packets.iter().filter(|record| is_full(record)) {
        *counts.entry(record.payload_len).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(len, count)| (*count, *len)).map(|(len, _)| len)
}

/// Finds faults that do not depend on the path MTU.
fn single_packet(record: &Record, findings: &mut Findings) {
    let (stream, place, bits) = (Some(record.stream), record.place, record.bits);
    if bits.contains(Bits::FRAGMENT) {
        findings.fault("fragment of an IP packet, which NICs do not reassemble", stream, place);
    }
    if bits.contains(Bits::NONZERO_PADDING) {
        findings.fault("padding is not zero", stream, place);
    }
    if let Some((Layer::Payload, _)) = record.problem {
        findings.fault_with("payload or padding contradicts the opcode", stream, place, || {
            format!("{}, {} bytes, pad count {}", record.opcode, record.payload_len, record.pad)
        });
    }
    if bits.contains(Bits::MAY_FRAGMENT) && !bits.contains(Bits::FRAGMENT) {
        findings.remark("DF is clear, so routers may fragment the packet", stream, place);
    }
}

/// Compares a payload with the path MTU.
fn length(record: &Record, mtu: Option<u32>, findings: &mut Findings) {
    let Some(info) = record.info() else { return };
    let (stream, place, len) = (Some(record.stream), record.place, record.payload_len);
    let detail = |mtu: u32| format!("{}, {len} bytes instead of {mtu}", record.opcode);
    let limit = mtu.unwrap_or(LARGEST);
    match info.payload {
        PayloadRule::FullMtu => {
            if let Some(mtu) = mtu.filter(|mtu| *mtu != len) {
                findings.fault_with("First or Middle packet without a full payload", stream, place, || {
                    detail(mtu)
                });
            }
        }
        PayloadRule::OneToMtu if len == 0 => {
            findings.fault("Last packet without payload", stream, place);
        }
        PayloadRule::OneToMtu | PayloadRule::ZeroToMtu if len > limit => {
            findings.fault_with("payload larger than the path MTU", stream, place, || {
                format!("{}, {len} bytes, path MTU {limit}", record.opcode)
            });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::Opcode;

    use super::*;
    use crate::testing::frames::{
        Sketch, Wire, ack, datagram, expect, figure, from_a, from_b, judge, judge_capture, request, send,
        write,
    };
    use crate::verdict::Outcome;

    #[test]
    fn full_packets_pass() {
        let mut wire = Wire::new();
        wire.add_all(write(1, &[1024, 1024, 1024])).add(send(4, 0)).add(ack(4, 2));
        let verdict = judge(&wire, &MTU);
        expect(&verdict, Outcome::Pass, "the path MTU is 1024 bytes; 2 full packets", &[]);
        assert_eq!(figure(&verdict, "path_mtu_bytes"), 1024.0);
    }

    #[test]
    fn a_short_middle_packet_fails() {
        let mut wire = Wire::new();
        wire.add_all(write(1, &[1024, 1000, 1024, 5])).add(ack(4, 1));
        let text = "RC_RDMA_WRITE_MIDDLE, 1000 bytes instead of 1024";
        expect(&judge(&wire, &MTU), Outcome::Fail, text, &[2]);
    }

    #[test]
    fn full_packets_of_another_size_than_a_path_mtu_fail() {
        let mut wire = Wire::new();
        wire.add_all(write(1, &[1000, 1000, 5])).add(ack(3, 1));
        expect(&judge(&wire, &MTU), Outcome::Fail, "full payload is not a path MTU: packets 1, 2", &[1, 2]);
    }

    #[test]
    fn an_empty_last_packet_and_a_long_only_packet_fail() {
        let mut wire = Wire::new();
        wire.add_all(write(1, &[256, 256, 0])).add(send(4, 257)).add(ack(4, 2));
        let verdict = judge(&wire, &MTU);
        expect(&verdict, Outcome::Fail, "Last packet without payload: packet 3", &[3, 4]);
        assert!(verdict.summary.contains("RC_SEND_ONLY, 257 bytes, path MTU 256"), "{}", verdict.summary);
    }

    #[test]
    fn responses_are_judged_too() {
        let mut wire = Wire::new();
        let response =
            |opcode, psn, len| from_b(opcode, psn).aeth(roce_packet::Syndrome::ACK_UNLIMITED, 1).payload(len);
        wire.add(from_a(Opcode::RC_RDMA_READ_REQUEST, 1).reth(600));
        wire.add(response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 1, 512));
        wire.add(response(Opcode::RC_RDMA_READ_RESPONSE_LAST, 2, 1088));
        expect(&judge(&wire, &MTU), Outcome::Fail, "1088 bytes, path MTU 512", &[3]);
    }

    #[test]
    fn padding_must_be_zero_and_fit() {
        let mut wire = Wire::new();
        // 5 bytes of payload after 12 of the BTH, then 3 of padding.
        wire.add(send(1, 5).byte(18, 1)).add(ack(1, 1));
        expect(&judge(&wire, &MTU), Outcome::Fail, "padding is not zero: packet 1", &[1]);
        // An ACK with four bytes that its opcode does not allow.
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(send(2, 7)).add(ack(2, 2).payload(4));
        let text = "payload or padding contradicts the opcode: packet 3";
        expect(&judge(&wire, &MTU), Outcome::Fail, text, &[3]);
    }

    #[test]
    fn fragments_fail_and_packets_without_df_do_not() {
        let mut wire = Wire::new();
        wire.add_all(write(1, &[256, 256]));
        wire.add(Sketch { fragment_len: Some(200), may_fragment: true, ..send(3, 256) }).add(ack(3, 2));
        expect(&judge(&wire, &MTU), Outcome::Fail, "fragment of an IP packet", &[3]);
        let mut wire = Wire::new();
        wire.add_all(write(1, &[256, 256])).add(Sketch { may_fragment: true, ..send(3, 20) });
        expect(&judge(&wire, &MTU), Outcome::Pass, "Remark: DF is clear", &[3]);
    }

    #[test]
    fn single_packets_do_not_show_the_path_mtu() {
        let mut wire = Wire::new();
        wire.add(send(1, 900)).add(ack(1, 1));
        let verdict = judge(&wire, &MTU);
        expect(
            &verdict,
            Outcome::Unknown,
            "no packet had to be full; the largest payload has 900 bytes",
            &[],
        );
    }

    #[test]
    fn connection_management_tells_the_path_mtu() {
        let mut wire = Wire::new();
        wire.add(request(PathMtu::Mtu512)).add(send(1, 500)).add(ack(1, 1));
        expect(&judge(&wire, &MTU), Outcome::Pass, "512 bytes; 0 full packets", &[]);
        wire.add(send(2, 600)).add(ack(2, 2));
        expect(&judge(&wire, &MTU), Outcome::Fail, "600 bytes, path MTU 512", &[4]);
    }

    #[test]
    fn wrong_icrcs_are_not_blamed() {
        let mut wire = Wire::new();
        let mut message = write(1, &[256, 256, 256, 9]);
        message[1] = message[1].clone().payload(200).wrong_icrc();
        wire.add_all(message).add(ack(4, 1));
        expect(&judge(&wire, &MTU), Outcome::Pass, "256 bytes; 2 full packets", &[]);
    }

    #[test]
    fn datagrams_are_at_most_4096_bytes_long() {
        let mut wire = Wire::new();
        wire.add(datagram(1, 4096));
        expect(&judge_capture(&wire, &MTU), Outcome::Pass, "1 datagram outside of connections", &[]);
        wire.add(datagram(2, 4100));
        expect(&judge_capture(&wire, &MTU), Outcome::Fail, "4100 bytes, path MTU 4096", &[2]);
    }
}
