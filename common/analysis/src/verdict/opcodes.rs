//! Rule 13: the order of opcodes in messages.
//!
//! The check follows the PSNs of each requester, each once. A message with a PSN that was not captured, or
//! that was captured with different contents, is not judged.

use roce_packet::{Operation, Position, Transport};

use super::findings::{Findings, count_of};
use super::judgement::{Scene, Verdict};
use super::packets::{is_intact, outside_connections, sent_by};
use super::rules::OPCODES;
use crate::analysis::Analysis;
use crate::record::{Bits, Extension, Record};
use crate::replay::{Replay, Sent};

/// Longest message in bytes.
const LONGEST_MESSAGE: u32 = 1 << 31;

/// Judges the messages of one connection.
pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    let mut findings = Findings::default();
    let mut counts = Counts::default();
    for end in [0, 1] {
        let packets = sent_by(scene, end);
        counts.packets += packets.len() as u64;
        single_packets(&packets, &mut findings);
        other_transports(&packets, scene.connection.transport, &mut findings);
        if let Some(replay) = scene.connection.requester(end) {
            Messages::new(scene.analysis, replay, &mut findings, &mut counts).follow();
        }
    }
    if counts.requests == 0 && !findings.has_faults() {
        return Vec::new();
    }
    let otherwise = || match counts.messages {
        0 => Verdict::unknown(
            &OPCODES,
            format!("no message was captured whole ({}).", count_of(counts.requests, "request packet")),
        ),
        messages => {
            let lengths = match counts.lengths {
                0 => String::new(),
                count => format!(", {count} of them with a RETH that agrees with the payload"),
            };
            Verdict::pass(&OPCODES, format!("{} in order{lengths}.", count_of(messages, "message")))
        }
    };
    let verdict = findings.into_verdict(&OPCODES, scene.analysis, otherwise);
    vec![
        verdict
            .with("messages", counts.messages as f64)
            .with("messages_with_gaps", counts.with_gaps as f64)
            .with("write_lengths", counts.lengths as f64),
    ]
}

/// Judges the opcodes outside of connections. Only single packets show a fault there.
pub(super) fn check_others(analysis: &Analysis) -> Vec<Verdict> {
    let mut findings = Findings::default();
    for packets in outside_connections(analysis).values() {
        single_packets(packets, &mut findings);
    }
    if !findings.has_faults() {
        return Vec::new();
    }
    vec![findings.into_verdict(&OPCODES, analysis, || Verdict::pass(&OPCODES, ""))]
}

#[derive(Default)]
struct Counts {
    packets: u64,
    requests: u64,
    /// Messages captured whole.
    messages: u64,
    with_gaps: u64,
    /// Lengths of WRITEs that agree with their payload.
    lengths: u64,
}

/// Finds opcodes without a meaning.
fn single_packets(packets: &[&Record], findings: &mut Findings) {
    for record in packets.iter().filter(|record| record.info().is_none() && is_intact(record)) {
        let (stream, place) = (Some(record.stream), record.place);
        let opcode = || format!("0x{:02x}", record.opcode.0);
        if record.opcode.is_vendor_specific() {
            findings.remark_with("opcode of a manufacturer", stream, place, opcode);
        } else {
            findings.fault_with("opcode that is not assigned", stream, place, opcode);
        }
    }
}

/// Finds opcodes of another transport. A queue pair number that another queue pair uses later is legal, so
/// the transports must take turns.
fn other_transports(packets: &[&Record], transport: Transport, findings: &mut Findings) {
    let kinds: Vec<(Transport, &Record)> = packets
        .iter()
        .filter(|record| is_intact(record))
        .filter_map(|record| record.info().map(|info| (info.transport, *record)))
        .filter(|(kind, _)| *kind != Transport::Cnp)
        .collect();
    let changes = kinds.windows(2).filter(|pair| matches!(pair, [(a, _), (b, _)] if a != b)).count();
    for (kind, record) in kinds.iter().filter(|(kind, _)| *kind != transport) {
        let (stream, place) = (Some(record.stream), record.place);
        let detail = || format!("{kind:?} after {transport:?}");
        if changes > 1 {
            findings.fault_with("opcode of another transport", stream, place, detail);
        } else {
            findings.remark_with("another transport, perhaps of a new queue pair", stream, place, detail);
        }
    }
}

/// A message whose packets so far were all captured.
struct Message<'a> {
    first: &'a Record,
    operation: Operation,
    bytes: u64,
}

/// Follows the messages of one requester.
struct Messages<'a, 'b> {
    analysis: &'a Analysis,
    replay: &'a Replay,
    findings: &'b mut Findings,
    counts: &'b mut Counts,
    open: Option<Message<'a>>,
    /// Whether the packet before was captured and ended a message, or belongs to `open`.
    is_known: bool,
}

impl<'a, 'b> Messages<'a, 'b> {
    const fn new(
        analysis: &'a Analysis,
        replay: &'a Replay,
        findings: &'b mut Findings,
        counts: &'b mut Counts,
    ) -> Self {
        Self { analysis, replay, findings, counts, open: None, is_known: false }
    }

    fn follow(mut self) {
        let mut next = None;
        for (psn, sent) in &self.replay.sent {
            let Some(record) = self.record(sent) else {
                self.lose();
                next = None;
                continue;
            };
            if next != Some(*psn) {
                self.lose();
            }
            next = Some(psn.saturating_add(sent.span));
            self.packet(record);
        }
    }

    /// Returns the record of a PSN, unless it was captured with different contents: those are of another
    /// connection.
    fn record(&mut self, sent: &Sent) -> Option<&'a Record> {
        let first = self.analysis.records.get(sent.first)?;
        let last = self.analysis.records.get(sent.last)?;
        (first.opcode == last.opcode && first.payload_len == last.payload_len).then_some(first)
    }

    /// Notes that the state is not known, because packets are missing.
    fn lose(&mut self) {
        self.counts.with_gaps += u64::from(self.open.take().is_some());
        self.is_known = false;
    }

    fn packet(&mut self, record: &'a Record) {
        let Some(info) = record.info() else { return self.lose() };
        self.counts.requests += 1;
        let stream = Some(record.stream);
        if record.bits.contains(Bits::SOLICITED) && !info.ends_message() {
            self.findings.remark("solicited event before the end of a message", stream, record.place);
        }
        let open = self.open.take();
        match (info.position, open) {
            (Position::First | Position::Only, open) => {
                if let Some(open) = open {
                    self.unfinished(&open, record);
                }
                let message = Message { first: record, operation: info.operation, bytes: 0 };
                self.is_known = true;
                self.continue_with(message, record);
            }
            (Position::Middle | Position::Last, Some(open)) => {
                if open.operation != info.operation {
                    self.findings.fault_with(
                        "message continued with another operation",
                        stream,
                        record.place,
                        || format!("{} after {}", record.opcode, open.first.opcode),
                    );
                    self.is_known = info.ends_message();
                    return;
                }
                self.continue_with(open, record);
            }
            (Position::Middle | Position::Last, None) => {
                if self.is_known {
                    self.findings.fault_with(
                        "message without its First packet",
                        stream,
                        record.place,
                        || record.opcode.to_string(),
                    );
                }
                self.is_known = info.ends_message();
            }
        }
    }

    fn unfinished(&mut self, open: &Message<'_>, record: &Record) {
        self.findings.fault_with(
            "message before the last one ended",
            Some(record.stream),
            record.place,
            || format!("{} after {}", record.opcode, open.first.opcode),
        );
    }

    /// Adds a packet to its message, which may end.
    fn continue_with(&mut self, mut message: Message<'a>, record: &Record) {
        message.bytes = message.bytes.saturating_add(record.payload_len.into());
        if record.info().is_some_and(|info| info.ends_message()) {
            self.counts.messages += 1;
            self.length(&message, record);
        } else {
            self.open = Some(message);
        }
    }

    /// Compares the length in the RETH with the payload.
    fn length(&mut self, message: &Message<'_>, last: &Record) {
        let Extension::Reth(reth) = message.first.extension else { return };
        let stream = Some(last.stream);
        if reth.dma_len > LONGEST_MESSAGE {
            self.findings.fault_with("message longer than 2 GiB", stream, message.first.place, || {
                format!("{} bytes", reth.dma_len)
            });
        }
        if message.operation != Operation::Write {
            return;
        }
        if message.bytes == u64::from(reth.dma_len) {
            self.counts.lengths += 1;
            return;
        }
        let is_longer_by_immediate = message.bytes == u64::from(reth.dma_len) + 4;
        self.findings.fault_with(
            "length in the RETH is not that of the payload",
            stream,
            message.first.place,
            || {
                let hint = match is_longer_by_immediate {
                    true => ", as if immediate data followed without the opcode for it",
                    false => "",
                };
                format!("{} bytes in the RETH, {} bytes of payload{hint}", reth.dma_len, message.bytes)
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::Opcode;

    use super::*;
    use crate::testing::frames::{Wire, ack, expect, figure, from_a, judge, judge_capture, send, write};
    use crate::verdict::Outcome;

    #[test]
    fn whole_messages_pass() {
        let mut wire = Wire::new();
        wire.add_all(write(0xff_fffe, &[1024, 1024, 1024, 7])).add(send(2, 5)).add(ack(2, 2));
        let verdict = judge(&wire, &OPCODES);
        expect(&verdict, Outcome::Pass, "2 messages in order, 1 of them with a RETH", &[]);
        assert_eq!(figure(&verdict, "write_lengths"), 1.0);
    }

    #[test]
    fn a_message_without_its_first_packet_fails() {
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(from_a(Opcode::RC_SEND_LAST, 2).payload(9)).add(send(3, 5)).add(ack(3, 3));
        expect(&judge(&wire, &OPCODES), Outcome::Fail, "message without its First packet: packet 2", &[2]);
    }

    #[test]
    fn a_message_that_does_not_end_fails() {
        let mut wire = Wire::new();
        wire.add(from_a(Opcode::RC_SEND_FIRST, 1).payload(256)).add(send(2, 5)).add(ack(2, 2));
        let text = "message before the last one ended: packet 2";
        expect(&judge(&wire, &OPCODES), Outcome::Fail, text, &[2]);
    }

    #[test]
    fn another_operation_in_a_message_fails() {
        let mut wire = Wire::new();
        wire.add(from_a(Opcode::RC_SEND_FIRST, 1).payload(256));
        wire.add(from_a(Opcode::RC_RDMA_WRITE_LAST, 2).payload(9)).add(ack(2, 1));
        let text = "RC_RDMA_WRITE_LAST after RC_SEND_FIRST";
        expect(&judge(&wire, &OPCODES), Outcome::Fail, text, &[2]);
    }

    #[test]
    fn the_reth_must_have_the_length_of_the_payload() {
        let mut wire = Wire::new();
        let mut message = write(1, &[256, 256, 100]);
        message[0] = message[0].clone().reth(600);
        wire.add_all(message).add(ack(3, 1));
        let text = "600 bytes in the RETH, 612 bytes of payload";
        expect(&judge(&wire, &OPCODES), Outcome::Fail, text, &[1]);
    }

    #[test]
    fn four_bytes_too_many_may_be_immediate_data() {
        let mut wire = Wire::new();
        wire.add(from_a(Opcode::RC_RDMA_WRITE_ONLY, 1).reth(8).payload(12)).add(ack(1, 1));
        expect(&judge(&wire, &OPCODES), Outcome::Fail, "as if immediate data", &[1]);
    }

    /// A gap of the capture, and a packet that comes twice, hide no other fault and cause none.
    #[test]
    fn gaps_and_retransmissions_are_not_blamed() {
        let mut wire = Wire::new();
        let message = write(1, &[256, 256, 256, 100]);
        wire.add_all(message.iter().cloned()).add_all(message[2..].iter().cloned()).add(ack(4, 1));
        // The packets with PSN 7 and 8 are missing.
        let mut cut = write(6, &[256, 256, 256, 256, 100]);
        cut.drain(1..3);
        wire.add(send(5, 1)).add_all(cut).add(send(11, 5)).add(ack(11, 4));
        let verdict = judge(&wire, &OPCODES);
        expect(&verdict, Outcome::Pass, "3 messages in order", &[]);
        assert_eq!(figure(&verdict, "messages_with_gaps"), 1.0);
    }

    #[test]
    fn a_capture_without_a_whole_message_is_unknown() {
        let mut wire = Wire::new();
        wire.add_all(write(1, &[256, 256, 256, 100]).into_iter().skip(1)).add(ack(4, 1));
        let verdict = judge(&wire, &OPCODES);
        expect(&verdict, Outcome::Unknown, "no message was captured whole (3 request packets)", &[]);
    }

    #[test]
    fn opcodes_without_a_meaning_fail_and_those_of_manufacturers_do_not() {
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(from_a(Opcode(0x1f), 2)).add(from_a(Opcode(0xc4), 3)).add(ack(1, 1));
        let verdict = judge(&wire, &OPCODES);
        expect(&verdict, Outcome::Fail, "opcode that is not assigned: packet 2", &[2]);
        assert!(
            verdict.summary.contains("Remark: opcode of a manufacturer: packet 3"),
            "{}",
            verdict.summary
        );
    }

    #[test]
    fn opcodes_outside_of_connections_are_judged_with_the_capture() {
        let mut wire = Wire::new();
        wire.add(from_a(Opcode(0x1f), 2).for_qpn(0x99));
        expect(&judge_capture(&wire, &OPCODES), Outcome::Fail, "(0x1f)", &[1]);
    }

    #[test]
    fn transports_that_take_turns_fail() {
        let mut wire = Wire::new();
        let uc = |psn| from_a(Opcode::UC_SEND_ONLY, psn).payload(5);
        wire.add(send(1, 5)).add(ack(1, 1)).add(uc(2)).add(send(2, 5)).add(ack(2, 2));
        expect(&judge(&wire, &OPCODES), Outcome::Fail, "Uc after Rc", &[3]);
        // A later queue pair may have the number of an earlier one.
        let mut wire = Wire::new();
        wire.add(send(1, 5)).add(ack(1, 1)).add(uc(2)).add(uc(3));
        expect(&judge(&wire, &OPCODES), Outcome::Pass, "perhaps of a new queue pair", &[3, 4]);
    }
}
