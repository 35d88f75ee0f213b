//! What happened and why, in sentences.
//!
//! The counters of the engine and its state before and after an event tell what it decided. Nothing here
//! decides anything about the protocol.

use roce_analysis::words::{duration, thousands};
use roce_packet::{Datagram, Direction, Operation, Psn, Syndrome};
use roce_sim::pair::{Pair, Side};
use roce_transport::{Counters, DropReason, Instant, QpAttributes, QpState, RcState, Rule, Verdict};

use super::packets::Packet;
use super::rules;

/// The kind of an entry in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Post,
    Send,
    Arrive,
    Drop,
    Timeout,
    Complete,
    Nak,
    Rnr,
}

impl Kind {
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Send => "send",
            Self::Arrive => "arrive",
            Self::Drop => "drop",
            Self::Timeout => "timeout",
            Self::Complete => "complete",
            Self::Nak => "nak",
            Self::Rnr => "rnr",
        }
    }
}

/// A sentence for the log.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) kind: Kind,
    pub(super) text: String,
    pub(super) rule: &'static str,
}

impl Line {
    pub(super) fn new(kind: Kind, rule: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), rule }
    }
}

/// Returns the name of a host.
pub(super) const fn name(side: Side) -> &'static str {
    match side {
        Side::A => "requester",
        Side::B => "responder",
    }
}

/// Why a host sends packets again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again {
    Nak(Psn),
    /// The response with this PSN is missing.
    Response(Psn),
    Timeout,
    Rnr,
}

/// The state of a queue pair at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    counters: Counters,
    pub(super) attributes: QpAttributes,
    pub(super) rc: RcState,
    /// The oldest PSN without an answer.
    pub(super) unacked: Psn,
}

impl Snapshot {
    /// Returns the state of the queue pair with this number, if there is one.
    pub(super) fn take(pair: &Pair, side: Side, qpn: roce_packet::Qpn) -> Option<Self> {
        let engine = &pair.host(side).engine;
        Some(Self {
            counters: *engine.counters(),
            attributes: engine.query_qp(qpn)?,
            rc: engine.rc_state(qpn)?,
            unacked: engine.unanswered_psn(qpn)?,
        })
    }
}

/// The changes of an event at one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) side: Side,
    /// The time after the event.
    pub(super) now: Instant,
    pub(super) before: Snapshot,
    pub(super) after: Snapshot,
    /// Why the queue pair has failed, if it has.
    pub(super) failure: Option<Rule>,
    /// Whether lost packets are repeated one by one.
    pub(super) is_selective: bool,
}

impl Change {
    fn gained(&self, counter: impl Fn(&Counters) -> u64) -> bool {
        counter(&self.after.counters) > counter(&self.before.counters)
    }

    /// Returns why the queue pair failed during the event, if it did.
    fn failed(&self) -> Option<Rule> {
        let has_failed =
            self.before.attributes.state != QpState::Err && self.after.attributes.state == QpState::Err;
        self.failure.filter(|_| has_failed)
    }

    /// Returns the number of retries that are left, in words.
    fn retries_left(&self) -> String {
        let [left, _] = self.after.rc.retries;
        format!("{left} of {} retries are left", self.after.attributes.retry_cnt)
    }

    /// Returns why the host sends packets again after the event, if that is new.
    pub(super) fn again(&self) -> Option<Again> {
        let psn = self.after.unacked;
        if self.gained(|counters| counters.packet_seq_err) {
            Some(Again::Nak(psn))
        } else if self.gained(|counters| counters.implied_nak_seq_err) {
            Some(Again::Response(psn))
        } else if self.gained(|counters| counters.local_ack_timeout_err) {
            Some(Again::Timeout)
        } else if self.gained(|counters| counters.rnr_nak_retry_err) {
            Some(Again::Rnr)
        } else {
            None
        }
    }

    /// Tells that a packet left the host. `again` says why the host sends packets again.
    pub(super) fn left(&self, packet: &Packet, again: Option<Again>) -> Line {
        let (label, who) = (&packet.label, name(self.side));
        let Some(datagram) = packet.datagram() else {
            return Line::new(Kind::Send, rules::HEADERS, format!("{label} leaves the {who}."));
        };
        match datagram.info().direction {
            Direction::Request if packet.psn.before(self.before.attributes.sq_psn) => {
                let (why, rule) = why_again(again);
                Line::new(Kind::Send, rule, format!("{label} leaves the {who} again, {why}."))
            }
            Direction::Request => {
                Line::new(Kind::Send, rules::PSN, format!("{label} leaves the {who}{}.", request(&datagram)))
            }
            Direction::Response => self.answered(packet, &datagram),
            Direction::Cnp => Line::new(
                Kind::Send,
                rules::CNP,
                format!("A congestion notification leaves the {who}, because a marked packet has arrived."),
            ),
        }
    }

    /// Tells that an answer left.
    fn answered(&self, packet: &Packet, datagram: &Datagram<'_>) -> Line {
        let (label, psn) = (&packet.label, packet.psn.get());
        let msn = datagram.aeth().map_or(0, |aeth| aeth.msn.get());
        match (datagram.info().operation, datagram.aeth().map(|aeth| aeth.syndrome)) {
            (_, Some(Syndrome::RnrNak { timer })) => {
                let wait = duration(timer.delay_ns());
                let text = format!(
                    "{label} leaves: no receive is posted, so the sender has to wait at least {wait}."
                );
                Line::new(Kind::Rnr, rules::RNR, text)
            }
            (_, Some(Syndrome::Nak(roce_packet::NakCode::PsnSequence))) => {
                let text =
                    format!("{label} leaves: PSN {psn} is missing, and there is one NAK for each gap.");
                Line::new(Kind::Nak, rules::GAP, text)
            }
            (_, Some(Syndrome::Nak(_))) => {
                let (why, rule) = self.refusal();
                Line::new(Kind::Nak, rule, format!("{label} leaves, because the request was refused: {why}."))
            }
            (Operation::Acknowledge, Some(Syndrome::Reserved(_))) => {
                let text = format!("A report leaves: PSN {msn} has arrived, and PSN {psn} is missing.");
                Line::new(Kind::Nak, rules::EXTENSION, text)
            }
            (Operation::Acknowledge, _) => {
                let text = format!("{label} leaves: all PSNs up to {psn} have arrived, {}.", complete(msn));
                Line::new(Kind::Send, rules::ACK, text)
            }
            (Operation::AtomicAcknowledge, _) => {
                Line::new(Kind::Send, rules::ATOMIC, format!("{label} leaves with the value before."))
            }
            _ => {
                let bytes = super::work::bytes(datagram.payload_len());
                Line::new(Kind::Send, rules::RESPONSE, format!("{label} leaves with {bytes}."))
            }
        }
    }

    /// Returns why the queue pair has failed, and the rule.
    fn refusal(&self) -> (String, &'static str) {
        match &self.failure {
            Some(rule) => (rule.to_string(), rules::of(rule)),
            None => ("the request is not valid".to_owned(), rules::REFUSAL),
        }
    }

    /// Tells that a packet arrived at the host.
    pub(super) fn arrived(&self, packet: &Packet, verdict: Verdict) -> Line {
        if let Verdict::Dropped(reason) = verdict {
            return self.dropped(packet, reason);
        }
        let direction = packet.opcode.info().map(|info| info.direction);
        match direction {
            Some(Direction::Request) => self.request_arrived(packet),
            Some(Direction::Response) => self.answer_arrived(packet),
            Some(Direction::Cnp) | None => Line::new(
                Kind::Arrive,
                rules::CNP,
                format!("{} arrives. Without congestion control, the rate stays as it is.", packet.label),
            ),
        }
    }

    fn request_arrived(&self, packet: &Packet) -> Line {
        let (label, who) = (&packet.label, name(self.side));
        let expected = self.after.attributes.rq_psn.get();
        let arrive = |rule, text: String| Line::new(Kind::Arrive, rule, text);
        if let Some(rule) = self.failed() {
            let text = format!("{label} arrives and is refused: {rule}; the queue pair goes to ERR.");
            return arrive(rules::of(&rule), text);
        }
        if self.gained(|counters| counters.out_of_buffer) {
            let text = format!("{label} arrives, but the {who} has no receive for it: an RNR NAK follows.");
            return arrive(rules::RNR, text);
        }
        if self.gained(|counters| counters.duplicate_request) {
            let text =
                format!("{label} arrives, but its PSN was executed before, so the {who} only answers again.");
            return arrive(rules::DUPLICATE, text);
        }
        if self.gained(|counters| counters.out_of_sequence) {
            let (rest, rule) = match self.is_selective {
                true => ("the packet is kept until the gap is closed", rules::EXTENSION),
                false => ("a packet is missing and a NAK follows", rules::GAP),
            };
            return arrive(rule, format!("{label} arrives, but PSN {expected} is expected: {rest}."));
        }
        if self.after.rc.msn != self.before.rc.msn {
            let msn = complete(self.after.rc.msn.get());
            let text =
                format!("{label} arrives and is executed: {msn}, and PSN {expected} is expected next.");
            return arrive(rules::MSN, text);
        }
        arrive(rules::EXECUTE, format!("{label} arrives and is executed: PSN {expected} is expected next."))
    }

    fn answer_arrived(&self, packet: &Packet) -> Line {
        let (label, who) = (&packet.label, name(self.side));
        let (unacked, before) = (self.after.unacked, self.before.unacked);
        let syndrome = packet.datagram().and_then(|datagram| datagram.aeth()).map(|aeth| aeth.syndrome);
        let kind = match syndrome {
            Some(Syndrome::RnrNak { .. }) => Kind::Rnr,
            Some(Syndrome::Nak(_) | Syndrome::Reserved(_)) => Kind::Nak,
            Some(Syndrome::Ack { .. }) | None => Kind::Arrive,
        };
        if let Some(rule) = self.failed() {
            let text = format!("{label} arrives, and the request fails: {rule}; the queue pair goes to ERR.");
            return Line::new(kind, rules::of(&rule), text);
        }
        let psn = unacked.get();
        if self.gained(|counters| counters.packet_seq_err) {
            let (what, rule) = match self.is_selective {
                true => ("sends the missing packet again", rules::EXTENSION),
                false => ("sends everything again from there", rules::RESEND),
            };
            let left = self.retries_left();
            let text = format!("{label} arrives: PSN {psn} is missing, so the {who} {what}; {left}.");
            return Line::new(kind, rule, text);
        }
        if self.gained(|counters| counters.rnr_nak_retry_err) {
            return Line::new(kind, rules::RNR, format!("{label} arrives: {}.", self.pause()));
        }
        if self.gained(|counters| counters.implied_nak_seq_err) {
            let left = self.retries_left();
            let text = format!(
                "{label} arrives without the response PSN {psn}, so the {who} asks for that again; {left}."
            );
            return Line::new(kind, rules::IMPLIED, text);
        }
        if unacked == before {
            return Line::new(kind, rules::ANSWER, format!("{label} arrives and tells nothing new."));
        }
        let last = unacked.sub(1);
        let range = match before == last {
            true => format!("PSN {}", last.get()),
            false => format!("PSNs {} to {}", before.get(), last.get()),
        };
        let (what, rule) = match packet.opcode.info().map(|info| info.operation) {
            Some(Operation::ReadResponse) => ("is placed in memory, which answers", rules::RESPONSE),
            Some(Operation::AtomicAcknowledge) => ("is placed in memory, which answers", rules::ATOMIC),
            _ => ("acknowledges", rules::ACK),
        };
        Line::new(kind, rule, format!("{label} arrives and {what} {range}."))
    }

    /// Returns what the host does after an RNR NAK.
    fn pause(&self) -> String {
        let [_, until] = self.after.rc.timers;
        let [_, left] = self.after.rc.retries;
        let nanos = until.map_or(0, |until| until.as_nanos().saturating_sub(self.now.as_nanos()));
        let (who, psn, wait) = (name(self.side), self.after.unacked.get(), duration(nanos));
        let left = match self.after.attributes.rnr_retry {
            7 => "the number of RNR retries is not limited".to_owned(),
            all => format!("{left} of {all} RNR retries are left"),
        };
        format!("the {who} waits {wait} and then sends PSN {psn} again; {left}")
    }

    /// Tells that a packet arrived and was dropped.
    fn dropped(&self, packet: &Packet, reason: DropReason) -> Line {
        let (label, who, counter) = (&packet.label, name(self.side), reason.counter());
        let (rule, why) = match reason {
            DropReason::BadIcrc => (rules::ICRC, "its ICRC is wrong, so a bit has changed".to_owned()),
            DropReason::OutOfSequence => {
                let expected = self.after.attributes.rq_psn.get();
                (rules::GAP, format!("PSN {expected} is expected, and a NAK for it has left before"))
            }
            DropReason::StaleResponse => {
                (rules::ANSWER, "it answers what was answered before or is being sent again".to_owned())
            }
            DropReason::ResponseGap => {
                (rules::IMPLIED, "a response before it is missing and was asked for again".to_owned())
            }
            DropReason::DuplicateUnanswerable => {
                (rules::DUPLICATE, "it was executed before, and its answer is no longer stored".to_owned())
            }
            DropReason::BadState => {
                let state = self.after.attributes.state.name();
                (rules::FLUSH, format!("the queue pair is in state {state}"))
            }
            DropReason::UnsentPsn => (rules::ANSWER, "it answers a PSN that was never sent".to_owned()),
            _ => (rules::HEADERS, format!("the check behind counter {counter} fails")),
        };
        let text = format!("{label} arrives, but the {who} drops it and counts {counter}: {why}.");
        Line::new(Kind::Drop, rule, text)
    }

    /// Tells which timer has expired, if one has.
    pub(super) fn expired(&self) -> Option<Line> {
        let who = name(self.side);
        let psn = self.after.unacked.get();
        if let Some(rule) = self.failed() {
            let text = format!("No answer came, and no retry is left: {rule}; the queue pair goes to ERR.");
            return Some(Line::new(Kind::Timeout, rules::of(&rule), text));
        }
        if self.gained(|counters| counters.local_ack_timeout_err) {
            let left = self.retries_left();
            let text = format!("No answer came in time, so the {who} sends again from PSN {psn}; {left}.");
            return Some(Line::new(Kind::Timeout, rules::TIMEOUT, text));
        }
        let [_, was_paused] = self.before.rc.timers;
        let [_, is_paused] = self.after.rc.timers;
        if was_paused.is_some() && is_paused.is_none() {
            let text =
                format!("The pause that the RNR NAK asked for is over: the {who} sends PSN {psn} again.");
            return Some(Line::new(Kind::Rnr, rules::RNR, text));
        }
        None
    }
}

/// Returns what a new request packet contains, behind "leaves".
fn request(datagram: &Datagram<'_>) -> String {
    let asks = if datagram.bth().ack_req { ", and asks for an acknowledgement" } else { "" };
    if let Some(eth) = datagram.atomic_eth() {
        return format!(" for 8 bytes at {:#x}", eth.va);
    }
    if let Some(reth) = datagram.reth() {
        let bytes = super::work::bytes(reth.dma_len as usize);
        return match datagram.info().operation {
            Operation::ReadRequest => format!(" and asks for {bytes} at {:#x}", reth.va),
            _ => format!(" with the address and the key for {bytes}{asks}"),
        };
    }
    format!(" with {}{asks}", super::work::bytes(datagram.payload_len()))
}

/// Returns why a packet is sent again, and the rule.
fn why_again(again: Option<Again>) -> (String, &'static str) {
    match again {
        Some(Again::Nak(psn)) => (format!("because PSN {} was missing", psn.get()), rules::RESEND),
        Some(Again::Response(psn)) => {
            (format!("because the response with PSN {} is missing", psn.get()), rules::IMPLIED)
        }
        Some(Again::Timeout) => ("because no answer came in time".to_owned(), rules::TIMEOUT),
        Some(Again::Rnr) => ("after the pause of the RNR NAK".to_owned(), rules::RNR),
        None => ("because it is unanswered".to_owned(), rules::RESEND),
    }
}

/// Returns how many messages are complete.
fn complete(msn: u32) -> String {
    match msn {
        1 => "1 message is complete".to_owned(),
        _ => format!("{} messages are complete", thousands(msn.into())),
    }
}
