//! Rule 19: exchanges of connection management.

use std::net::IpAddr;

use roce_packet::mad::{CmMessage, CmRej, CmRep, CmReq, RejReason, SidrStatus};
use roce_packet::{Psn, Qpn};

use super::judgement::{Outcome, Verdict};
use super::rules;
use crate::analysis::Analysis;
use crate::connection::Connection;
use crate::exchange::Exchange;
use crate::record::CmRecord;

/// Maximum number of complete exchanges that have a verdict each. One verdict counts the others.
const MOST_COMPLETE: usize = 20;
/// Time to wait for an answer if no message says it, in nanoseconds: 4.096 µs × 2^20.
pub(crate) const DEFAULT_WAIT_NS: u64 = 4_294_967_296;
/// Number of packets after the starting PSN that a capture may lack without showing a wrong start.
const MOST_BEFORE: u32 = 64;

/// Judges the exchanges of all hosts.
pub(super) fn of_capture(analysis: &Analysis) -> Vec<Verdict> {
    let (mut verdicts, mut complete, mut more) = (Vec::new(), 0, 0);
    for exchange in &analysis.exchanges {
        let verdict = match exchange.is_service {
            true => service(analysis, exchange),
            false => connection(analysis, exchange),
        };
        if verdict.outcome == Outcome::Pass {
            complete += 1;
            if complete > MOST_COMPLETE {
                more += 1;
                continue;
            }
        }
        verdicts.push(verdict);
    }
    if more > 0 {
        verdicts.push(Verdict::pass(&rules::CM, format!("{more} further exchanges are complete")));
    }
    verdicts
}

/// Says how often a message was sent and when, unless it was sent once.
fn repetitions(name: &str, all: &[&CmRecord]) -> Option<String> {
    if all.len() < 2 {
        return None;
    }
    let intervals: Vec<String> = all
        .iter()
        .zip(all.iter().skip(1))
        .take(5)
        .map(|(one, two)| format!("{:.1}", two.time_ns.saturating_sub(one.time_ns) as f64 / 1e6))
        .collect();
    Some(format!("{name} was sent {} times, {} ms apart", all.len(), intervals.join(", ")))
}

/// Returns what to do about a rejection.
const fn advice(reason: RejReason) -> &'static str {
    match reason {
        RejReason::NO_QP | RejReason::NO_EEC | RejReason::NO_RESOURCES => {
            "close connections of that host or raise its limits"
        }
        RejReason::TIMEOUT => "look for lost messages, or raise the CM response timeout",
        RejReason::UNSUPPORTED => "compare the parameters of the request with those that the peer supports",
        RejReason::INVALID_COMM_ID | RejReason::INVALID_COMM_INSTANCE => {
            "the peer has forgotten the connection; connect again"
        }
        RejReason::INVALID_SERVICE_ID => "start the server, or check port and port space",
        RejReason::INVALID_TRANSPORT_TYPE => "use the transport of the listener",
        RejReason::STALE_CONNECTION => {
            "the peer still has a connection with this queue pair; repeat after its time-wait, or end the old one"
        }
        RejReason::INVALID_GID | RejReason::INVALID_ALTERNATE_GID => {
            "check the index of the source GID, its RoCE version and the routes"
        }
        RejReason::INVALID_SL | RejReason::INVALID_TRAFFIC_CLASS | RejReason::INVALID_HOP_LIMIT => {
            "check service level, traffic class and hop limit of the path"
        }
        RejReason::INVALID_PATH_MTU => "use a smaller path MTU",
        RejReason::INSUFFICIENT_RESPONDER_RESOURCES => "ask for fewer READs under way (initiator depth)",
        RejReason::CONSUMER => "see the log of the application that refused",
        RejReason::INVALID_RNR_RETRY => "use another RNR retry count",
        RejReason::DUPLICATE_LOCAL_COMM_ID => "the ID is in use; connect again",
        RejReason::INVALID_CLASS_VERSION => "both hosts need version 2 of connection management",
        _ => "look up the reason in IBTA 12.6.7.2",
    }
}

/// Describes a rejection.
pub(crate) fn refusal(source: IpAddr, rej: &CmRej) -> String {
    format!("{source} rejects with reason {}: {}", rej.reason, advice(rej.reason))
}

fn service(analysis: &Analysis, exchange: &Exchange) -> Verdict {
    let requests = exchange.all(&analysis.cm, "SIDR_REQ");
    let reply = exchange.first(&analysis.cm, "SIDR_REP");
    let repeated = repetitions("SIDR_REQ", &requests).map(|text| format!("; {text}")).unwrap_or_default();
    let (active, passive) = (exchange.active, exchange.passive);
    let places = requests.iter().chain(&reply).map(|record| record.place);
    let verdict = match (requests.first(), reply.map(|reply| &*reply.message)) {
        (_, Some(CmMessage::SidrRep(rep))) if rep.status == SidrStatus::VALID => {
            let text = format!("{passive} names queue pair {} to {active}{repeated}", rep.qpn);
            Verdict::pass(&rules::CM, text)
        }
        (_, Some(CmMessage::SidrRep(rep))) => {
            let reason = rep.status.name().unwrap_or("reserved status");
            let text = format!("{passive} refuses the question of {active}: {reason}{repeated}");
            Verdict::fail(&rules::CM, text)
        }
        (Some(request), _) => {
            let text = format!("the question of {active} to {passive} has no answer{repeated}");
            unanswered(analysis, request, DEFAULT_WAIT_NS, text)
        }
        (None, _) => Verdict::unknown(&rules::CM, "the capture has no message of this question"),
    };
    verdict.at(places)
}

/// A message without an answer fails if the capture goes on long enough.
fn unanswered(analysis: &Analysis, record: &CmRecord, wait_ns: u64, text: String) -> Verdict {
    match analysis.time_left(record) {
        Some(left) if left > wait_ns => Verdict::fail(
            &rules::CM,
            format!("{text}, although the capture goes on for {:.1} s", left as f64 / 1e9),
        ),
        Some(left) => Verdict::unknown(
            &rules::CM,
            format!("the capture ends {:.1} ms later: {text}", left as f64 / 1e6),
        ),
        None => Verdict::unknown(&rules::CM, format!("the file contains no times: {text}")),
    }
}

/// The messages of one connection.
struct Setup<'a> {
    analysis: &'a Analysis,
    exchange: &'a Exchange,
    req: Option<(&'a CmRecord, &'a CmReq)>,
    rep: Option<(&'a CmRecord, &'a CmRep)>,
    repeated: String,
}

impl<'a> Setup<'a> {
    fn new(analysis: &'a Analysis, exchange: &'a Exchange) -> Self {
        let names = ["REQ", "REP", "RTU", "DREQ", "DREP", "REJ"];
        let repeated = names
            .iter()
            .filter_map(|name| repetitions(name, &exchange.all(&analysis.cm, name)))
            .map(|text| format!("; {text}"))
            .collect();
        let req = exchange.first(&analysis.cm, "REQ").and_then(|record| match &*record.message {
            CmMessage::Req(req) => Some((record, req)),
            _ => None,
        });
        let rep = exchange.first(&analysis.cm, "REP").and_then(|record| match &*record.message {
            CmMessage::Rep(rep) => Some((record, rep)),
            _ => None,
        });
        Self { analysis, exchange, req, rep, repeated }
    }

    fn has(&self, name: &str) -> bool {
        self.exchange.first(&self.analysis.cm, name).is_some()
    }

    /// Returns the connection of both queue pairs, and the number of the active end.
    fn connection(&self) -> Option<(&'a Connection, usize)> {
        let (req, rep) = (self.req?.1, self.rep?.1);
        let active = (self.exchange.active, Some(req.local_qpn));
        let passive = (self.exchange.passive, Some(rep.local_qpn));
        self.analysis.connections.iter().find_map(|connection| {
            let [one, two] = connection.ends.map(|end| (end.address, end.qpn));
            if (one, two) == (active, passive) {
                Some((connection, 0))
            } else {
                ((two, one) == (active, passive)).then_some((connection, 1))
            }
        })
    }

    /// Returns the first thing that the packets contradict: the starting PSNs, or the path MTU.
    fn contradiction(&self) -> Option<String> {
        let ((_, req), (_, rep)) = self.req.zip(self.rep)?;
        let (connection, active) = self.connection()?;
        // Each message names the PSN that its sender wants to receive first.
        let starts = [(active, rep.starting_psn), (1 - active, req.starting_psn)];
        let wrong = starts.into_iter().find_map(|(end, psn)| {
            let first = first_psn(self.analysis, connection, end, psn)?;
            let address = connection.ends.get(end)?.address;
            Some(format!("the first request of {address} has PSN {first}, and its peer asked for {psn}"))
        });
        let mtu = req.path_mtu()?;
        let used = (0..2).filter_map(|end| connection.requester(end)?.mtu).max_by_key(|mtu| mtu.bytes());
        let too_long = used.filter(|used| used.bytes() > mtu.bytes()).map(|used| {
            format!("packets carry {} bytes, and the REQ says a path MTU of {}", used.bytes(), mtu.bytes())
        });
        wrong.or(too_long)
    }

    /// Adds the parameters of the connection.
    fn with_parameters(&self, verdict: Verdict) -> Verdict {
        let Some((record, req)) = self.req else { return verdict };
        let rtu = self.exchange.first(&self.analysis.cm, "RTU");
        let us = |timeout: roce_packet::mad::CmTimeout| timeout.nanos() as f64 / 1e3;
        let mut verdict = verdict
            .with("cm_response_timeout_us", us(req.remote_cm_response_timeout))
            .with("local_ack_timeout_us", us(req.primary.local_ack_timeout))
            .with("retry_count", f64::from(req.retry_count))
            .with("rnr_retry_count", f64::from(req.rnr_retry_count))
            .with("responder_resources", f64::from(req.responder_resources))
            .with("initiator_depth", f64::from(req.initiator_depth))
            .with("path_mtu_bytes", req.path_mtu().map_or(0.0, |mtu| mtu.bytes() as f64))
            .with("starting_psn_of_passive", f64::from(req.starting_psn.get()));
        if let Some((_, rep)) = self.rep {
            verdict = verdict
                .with("starting_psn_of_active", f64::from(rep.starting_psn.get()))
                .with("rnr_retry_count_of_passive", f64::from(rep.rnr_retry_count))
                .with("responder_resources_of_passive", f64::from(rep.responder_resources))
                .with("initiator_depth_of_passive", f64::from(rep.initiator_depth))
                .with("target_ack_delay_us", us(rep.target_ack_delay));
        }
        match rtu.and_then(|rtu| rtu.time_ns.checked_sub(record.time_ns)) {
            Some(setup) if self.analysis.counts.without_time == 0 => {
                verdict.with("setup_us", setup as f64 / 1e3)
            }
            _ => verdict,
        }
    }
}

/// Returns the PSN of the first captured request, if the requests did not begin with the expected one. A few
/// requests may have been lost before the tap.
fn first_psn(analysis: &Analysis, connection: &Connection, end: usize, expected: Psn) -> Option<Psn> {
    let sent = &connection.requester(end)?.sent;
    let psns = || sent.values().filter_map(|sent| analysis.records.get(sent.first)).map(|record| record.psn);
    let first = psns().next()?;
    let is_right = expected.distance_to(first) <= MOST_BEFORE || psns().any(|psn| psn == expected);
    (!is_right).then_some(first)
}

fn describe(service: roce_packet::mad::ServiceId, qpn: Qpn) -> String {
    format!("service {service}, queue pair {qpn}")
}

fn connection(analysis: &Analysis, exchange: &Exchange) -> Verdict {
    let setup = Setup::new(analysis, exchange);
    let places = exchange.messages.iter().filter_map(|index| analysis.cm.get(*index)).map(|cm| cm.place);
    let verdict = judge(&setup);
    let summary = format!("{}{}", verdict.summary, setup.repeated);
    setup.with_parameters(Verdict { summary, ..verdict }.at(places))
}

fn judge(setup: &Setup<'_>) -> Verdict {
    let Setup { analysis, exchange, req, rep, .. } = *setup;
    let (active, passive) = (exchange.active, exchange.passive);
    if let Some(record) = exchange.first(&analysis.cm, "REJ")
        && let CmMessage::Rej(rej) = &*record.message
    {
        let of = req.map(|(_, req)| format!(" ({})", describe(req.service_id, req.local_qpn)));
        let text = refusal(record.source, rej);
        let text = format!("{active} to {passive}{}: {text}", of.unwrap_or_default());
        return Verdict::fail(&rules::CM, text);
    }
    let wait_ns = req.map_or(DEFAULT_WAIT_NS, |(_, req)| req.remote_cm_response_timeout.nanos());
    let patience = exchange.first(&analysis.cm, "MRA").map(|record| match &*record.message {
        CmMessage::Mra(mra) => mra.service_timeout.nanos(),
        _ => 0,
    });
    match (req, rep) {
        (None, _) => without_req(setup, wait_ns),
        (Some((record, req)), None) => {
            let after = if patience.is_some() { " but an MRA" } else { "" };
            let what = describe(req.service_id, req.local_qpn);
            let text = format!("the REQ of {active} to {passive} ({what}) has no answer{after}");
            unanswered(analysis, record, wait_ns.max(patience.unwrap_or(0)), text)
        }
        (Some((_, req)), Some((record, _))) => {
            let used = setup.connection().and_then(|(connection, end)| connection.requester(end));
            let is_used = used.is_some_and(|replay| !replay.sent.is_empty());
            if !setup.has("RTU") && !is_used {
                let text = format!("the REP of {passive} to {active} has no RTU and no request after it");
                return unanswered(analysis, record, req.local_cm_response_timeout.nanos(), text);
            }
            match setup.contradiction() {
                Some(text) => Verdict::fail(&rules::CM, text),
                None => ending(setup, wait_ns),
            }
        }
    }
}

/// Judges messages whose REQ is missing.
fn without_req(setup: &Setup<'_>, wait_ns: u64) -> Verdict {
    let Setup { analysis, exchange, .. } = *setup;
    if setup.has("DREQ") || setup.has("DREP") {
        return ending(setup, wait_ns);
    }
    let names: Vec<&str> = exchange
        .messages
        .iter()
        .filter_map(|index| analysis.cm.get(*index))
        .map(|record| record.message.name())
        .collect();
    let text = format!(
        "the capture has no REQ for the messages between {} and {} ({})",
        exchange.active,
        exchange.passive,
        names.join(", ")
    );
    Verdict::unknown(&rules::CM, text)
}

/// Judges the end of a connection that was set up.
fn ending(setup: &Setup<'_>, wait_ns: u64) -> Verdict {
    let Setup { analysis, exchange, .. } = *setup;
    let (active, passive) = (exchange.active, exchange.passive);
    let begun = match setup.req {
        Some((_, req)) => {
            let what = describe(req.service_id, req.local_qpn);
            let mra = if setup.has("MRA") { " after an MRA" } else { "" };
            format!("{active} is connected to {passive} ({what}){mra}")
        }
        None => format!("{active} and {passive} were connected before the capture"),
    };
    let (dreq, drep) = (exchange.first(&analysis.cm, "DREQ"), setup.has("DREP"));
    match dreq {
        Some(record) if !drep => {
            let text = format!("{begun}; the DREQ of {} has no DREP", record.source);
            unanswered(analysis, record, wait_ns, text)
        }
        None if drep => Verdict::pass(&rules::CM, format!("{begun}; the capture has only the DREP")),
        Some(_) => Verdict::pass(&rules::CM, format!("{begun}, and disconnected")),
        None => Verdict::pass(&rules::CM, format!("{begun}; the capture has no DREQ")),
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::mad::{CmMessageKind, CmMra, CmRtu, CmSidrRep, CmSidrReq, CmTimeout, CommId};

    use super::*;
    use crate::testing::management::{PORT, drep, dreq, rej, rep, req, rtu};
    use crate::testing::wire::{Sketch, Wire};

    /// Returns the only verdict of some messages: time in milliseconds, sender and message.
    fn verdict(messages: &[(u64, u8, CmMessage)], first_psn: Option<u32>) -> Verdict {
        let mut wire = Wire::default();
        for (ms, from, message) in messages {
            wire.cm(ms * 1000, *from, 1, *message);
        }
        if let Some(psn) = first_psn {
            wire.at_us(50_000, Sketch::send(1, psn));
            wire.at_us(50_010, Sketch::ack(2, psn, 1));
        }
        let verdicts = of_capture(&wire.analyze());
        let [verdict] = &verdicts[..] else { panic!("one exchange: {verdicts:?}") };
        verdict.clone()
    }

    #[test]
    fn a_complete_exchange_passes() {
        let all = [(0, 1, req()), (1, 2, rep()), (2, 1, rtu()), (100, 2, dreq()), (101, 1, drep())];
        let verdict = verdict(&all, Some(100));
        assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.summary);
        assert!(verdict.summary.ends_with("and disconnected"), "{}", verdict.summary);
        assert_eq!(verdict.packets.len(), 5);
        assert!(verdict.figures.iter().any(|figure| figure.name == "setup_us" && figure.value == 2000.0));
    }

    #[test]
    fn a_rejection_fails_with_advice() {
        let verdict = verdict(&[(0, 1, req()), (1, 2, rej(RejReason::INVALID_SERVICE_ID))], None);
        assert_eq!(verdict.outcome, Outcome::Fail);
        assert!(verdict.summary.contains("no listener") && verdict.summary.contains("start the server"));
    }

    #[test]
    fn a_request_without_answer_fails_only_if_the_capture_goes_on() {
        let silent = verdict(&[(0, 1, req()), (200, 1, req()), (400, 1, req())], None);
        assert_eq!(silent.outcome, Outcome::Fail, "{}", silent.summary);
        assert!(silent.summary.contains("REQ was sent 3 times, 200.0, 200.0 ms apart"), "{}", silent.summary);
        let short = verdict(&[(0, 1, req()), (100, 1, req())], None);
        assert_eq!(short.outcome, Outcome::Unknown, "{}", short.summary);
        let patient = CmMessage::Mra(CmMra {
            local_comm_id: CommId(9),
            remote_comm_id: CommId(7),
            received: CmMessageKind::Req,
            service_timeout: CmTimeout::new(20),
            private_data: [0; CmMra::PRIVATE_DATA],
        });
        let patient = verdict(&[(0, 1, req()), (10, 2, patient), (400, 1, req())], None);
        assert_eq!(patient.outcome, Outcome::Unknown, "{}", patient.summary);
    }

    #[test]
    fn a_reply_without_rtu_fails_unless_requests_follow() {
        let lost = verdict(&[(0, 1, req()), (1, 2, rep()), (200, 2, rep())], None);
        assert_eq!(lost.outcome, Outcome::Fail, "{}", lost.summary);
        let used = verdict(&[(0, 1, req()), (1, 2, rep())], Some(100));
        assert_eq!(used.outcome, Outcome::Pass, "{}", used.summary);
    }

    #[test]
    fn a_wrong_starting_psn_fails() {
        let wrong = verdict(&[(0, 1, req()), (1, 2, rep()), (2, 1, rtu())], Some(99));
        assert_eq!(wrong.outcome, Outcome::Fail, "{}", wrong.summary);
        assert!(
            wrong.summary.contains("has PSN 99") || wrong.summary.contains("0x000063"),
            "{}",
            wrong.summary
        );
    }

    #[test]
    fn a_disconnect_without_answer_fails() {
        let all = [(0, 1, req()), (1, 2, rep()), (2, 1, rtu()), (100, 2, dreq()), (400, 2, dreq())];
        let verdict = verdict(&all, None);
        assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.summary);
        assert!(verdict.summary.contains("has no DREP"), "{}", verdict.summary);
    }

    #[test]
    fn a_capture_that_begins_late_is_unknown() {
        let verdict = verdict(&[(1, 2, rep()), (2, 1, rtu())], None);
        assert_eq!(verdict.outcome, Outcome::Unknown, "{}", verdict.summary);
    }

    #[test]
    fn questions_for_a_service_are_judged() {
        let request = CmMessage::SidrReq(CmSidrReq {
            request_id: CommId(3),
            p_key: 0xffff,
            service_id: PORT,
            private_data: [0; CmSidrReq::PRIVATE_DATA],
        });
        let reply = |status| {
            CmMessage::SidrRep(CmSidrRep {
                request_id: CommId(3),
                status,
                info_length: 0,
                qpn: Qpn::new(5),
                service_id: PORT,
                q_key: 1,
                info: [0; CmSidrRep::INFO],
                private_data: [0; CmSidrRep::PRIVATE_DATA],
            })
        };
        assert_eq!(
            verdict(&[(0, 1, request), (1, 2, reply(SidrStatus::VALID))], None).outcome,
            Outcome::Pass
        );
        let refused = verdict(&[(0, 1, request), (1, 2, reply(SidrStatus::NO_QP))], None);
        assert_eq!(refused.outcome, Outcome::Fail);
        assert!(refused.summary.contains("no queue pair available"), "{}", refused.summary);
        let silent = verdict(&[(0, 1, request), (6000, 1, request)], None);
        assert_eq!(silent.outcome, Outcome::Fail, "{}", silent.summary);
    }

    #[test]
    fn many_complete_exchanges_share_one_verdict() {
        let mut wire = Wire::default();
        for number in 0..30_u32 {
            let with = |message| match message {
                CmMessage::Req(req) => CmMessage::Req(CmReq { local_comm_id: CommId(100 + number), ..req }),
                CmMessage::Rep(rep) => CmMessage::Rep(CmRep {
                    remote_comm_id: CommId(100 + number),
                    local_comm_id: CommId(900 + number),
                    ..rep
                }),
                CmMessage::Rtu(rtu) => CmMessage::Rtu(CmRtu {
                    local_comm_id: CommId(100 + number),
                    remote_comm_id: CommId(900 + number),
                    ..rtu
                }),
                other => other,
            };
            for (from, message) in [(1, req()), (2, rep()), (1, rtu())] {
                wire.cm(u64::from(number) * 10, from, u64::from(number), with(message));
            }
        }
        let verdicts = of_capture(&wire.analyze());
        assert_eq!(verdicts.len(), MOST_COMPLETE + 1);
        assert!(verdicts.last().unwrap().summary.starts_with("10 further"), "{verdicts:?}");
    }
}
