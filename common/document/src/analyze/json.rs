//! A report as JSON: `roce/analyze/1` in docs/reference/json-captures.md.

use roce_analysis::connection::name;
use roce_analysis::record::Place;
use roce_analysis::stall::Stall;
use roce_analysis::summary::{Distribution, Requests, Summary, operation_name, transport_name};
use roce_analysis::verdict::{Party, Verdict};
use roce_packet::Encapsulation;
use serde_json::{Map, Value, json};

use super::counters::changes;
use super::report::{Part, Report};
use crate::document::{self, Program};

/// Returns the document of a report, with a line break at its end.
///
/// # Errors
///
/// Returns an error if the document cannot be serialized, which does not happen with any report.
pub fn text(report: &Report<'_>, program: Program<'_>) -> serde_json::Result<String> {
    document::text("analyze", &body(report), program)
}

fn body(report: &Report<'_>) -> Value {
    let captures = report.captures;
    let counts = captures.analysis.counts;
    json!({
        "files": captures.files,
        "is_whole": captures.is_whole,
        "outcome": report.outcome().name(),
        "conclusion": report.conclusion(),
        "packets": counts.packets + captures.unread,
        "roce_packets": counts.roce,
        "unreadable_packets": counts.unreadable,
        "pause_frames": counts.pauses,
        "copies": counts.copies,
        "verdicts": verdicts(&report.verdicts),
        "connections": report.parts.iter().map(connection).collect::<Vec<_>>(),
        "devices": report.counters.iter().map(changes).collect::<Vec<_>>(),
    })
}

fn connection(part: &Part<'_>) -> Value {
    let Summary { ends, transport, encapsulation, taps, packets, times_ns, requests, .. } = &part.summary;
    let Summary { notifications, marked, damaged, management, .. } = &part.summary;
    let place = |place: Option<Place>| place.map(|place| place.to_string());
    let epoch = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let sides = ends.iter().zip(requests).zip(notifications.iter().zip(marked).zip(damaged));
    let sides = sides.map(|((end, requests), ((notifications, marked), damaged))| {
        json!({
            "name": name(*end),
            "address": end.address,
            "qpn": end.qpn.map(|qpn| qpn.get()),
            "cnps_sent": notifications,
            "marked_packets": marked,
            "damaged_packets": damaged,
            "requests": requested(requests),
        })
    });
    json!({
        "number": part.number,
        "transport": transport_name(*transport),
        "encapsulation": match encapsulation {
            Encapsulation::RoceV1 => "RoCE v1",
            Encapsulation::RoceV2 => "RoCE v2",
        },
        "places": taps,
        "packets": packets,
        "first_time_epoch": times_ns.map(|(first, _)| epoch(first)),
        "duration_ns": times_ns.map(|(first, last)| last.saturating_sub(first)),
        "management": {
            "req": place(management.request),
            "rep": place(management.reply),
            "rtu": place(management.ready),
            "dreq": place(management.disconnect),
        },
        "ends": sides.collect::<Vec<_>>(),
        "verdicts": verdicts(&part.verdicts),
    })
}

fn requested(requests: &Requests) -> Value {
    let operations = requests.operations.iter().map(|one| {
        json!({
            "operation": operation_name(one.operation),
            "messages": one.count,
            "least_bytes": one.least_bytes,
            "most_bytes": one.most_bytes,
        })
    });
    let distribution = |times: Distribution| {
        let Distribution { count, least_ns, median_ns, p99_ns, most_ns } = times;
        json!({
            "count": count, "least_ns": least_ns, "median_ns": median_ns, "p99_ns": p99_ns, "most_ns": most_ns,
        })
    };
    json!({
        "operations": operations.collect::<Vec<_>>(),
        "path_mtu": requests.mtu.map(|mtu| mtu.bytes()),
        "messages": requests.messages,
        "answered_messages": requests.answered,
        "bytes": requests.bytes,
        "delivered_bytes": requests.delivered_bytes,
        "wire_bytes": requests.wire_bytes,
        "goodput_bits_per_second": requests.goodput_bps,
        "wire_bits_per_second": requests.wire_bps,
        "lost_packets": requests.lost,
        "lost_responses": requests.lost_responses,
        "lost_answers": requests.lost_answers,
        "resent_packets": requests.resent,
        "sequence_naks": requests.naks,
        "rnr_naks": requests.rnr_naks,
        "timeouts": requests.timeouts,
        "refusals": requests.refusals,
        "most_messages_in_flight": requests.most_messages_in_flight,
        "most_psns_in_flight": requests.most_packets_in_flight,
        "round_trips": requests.round_trips.map(distribution),
        "repeated_round_trips": requests.repeated_round_trips.map(distribution),
        "stall": requests.stall.map(stall),
    })
}

fn stall(stall: Stall) -> Value {
    let Stall { ns, from, until, requests, beyond } = stall;
    json!({
        "duration_ns": ns,
        "from": from.to_string(),
        "until": until.to_string(),
        "request_packets": requests,
        "lost_request_packets": beyond.map(|beyond| beyond.lost_requests),
        "lost_packets_back": beyond.map(|beyond| beyond.lost_answers),
    })
}

fn verdicts(verdicts: &[Verdict]) -> Vec<Value> {
    let one = |verdict: &Verdict| {
        let figures: Map<String, Value> =
            verdict.figures.iter().map(|figure| (figure.name.to_owned(), figure.value.into())).collect();
        json!({
            "rule": verdict.rule.number,
            "key": verdict.rule.key,
            "title": verdict.rule.title,
            "source": verdict.rule.source,
            "outcome": verdict.outcome.name(),
            "summary": verdict.summary,
            "packets": verdict.packets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "figures": figures,
            "parties": verdict.parties.iter().map(party).collect::<Vec<_>>(),
        })
    };
    verdicts.iter().map(one).collect()
}

fn party(party: &Party) -> Value {
    let Party { role, end } = party;
    json!({
        "role": role.name(),
        "name": name(*end),
        "address": end.address,
        "qpn": end.qpn.map(|qpn| qpn.get()),
    })
}
