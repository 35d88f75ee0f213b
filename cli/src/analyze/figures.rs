//! The figures of a connection in words.

use roce_analysis::summary::{Distribution, Management, Operations, Requests, Summary, operation_name};
use roce_analysis::words::{duration, thousands};

/// Returns a number with its noun, which gets an s unless there is one.
pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(count), if count == 1 { "" } else { "s" })
}

/// Returns a rate with three digits or more.
pub(super) fn rate(bits_per_second: f64) -> String {
    let (value, unit) = match bits_per_second {
        ..1e3 => (bits_per_second, "b/s"),
        ..1e6 => (bits_per_second / 1e3, "kb/s"),
        ..1e9 => (bits_per_second / 1e6, "Mb/s"),
        _ => (bits_per_second / 1e9, "Gb/s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

/// Returns what was lost and sent again in both directions, or `None` if nothing was.
pub(super) fn losses(summary: &Summary) -> Option<String> {
    let sum = |what: fn(&Requests) -> u64| summary.requests.iter().map(what).sum::<u64>();
    let lost = sum(|one| one.lost + one.lost_responses + one.lost_answers);
    let (resent, timeouts) = (sum(|one| one.resent), sum(|one| one.timeouts));
    let counts = [(lost, "packet", " lost"), (resent, "packet", " sent again"), (timeouts, "timeout", "")];
    let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
    let texts: Vec<String> =
        counts.map(|(count, noun, more)| format!("{}{more}", counted(count, noun))).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Returns the lines about what one end requested; none if it requested nothing.
pub(super) fn of_requests(requests: &Requests) -> Vec<String> {
    if requests.messages == 0 {
        return Vec::new();
    }
    let operations: Vec<String> = requests.operations.iter().map(operation).collect();
    let mut first = operations.join(", ");
    if let Some(mtu) = requests.mtu {
        first += &format!("; path MTU {}", thousands(mtu.bytes() as u64));
    }
    if let Some(bits) = requests.rate_bps {
        first += &format!("; {}", rate(bits));
    }
    let mut lines = vec![first];
    let counts = [
        (requests.lost, "request", " lost"),
        (requests.lost_responses, "response", " lost"),
        (requests.lost_answers, "answer", " lost"),
        (requests.resent, "packet", " sent again"),
        (requests.naks, "NAK", " for a sequence error"),
        (requests.rnr_naks, "RNR NAK", ""),
        (requests.timeouts, "timeout", ""),
        (requests.refusals, "refusal", ""),
    ];
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    let counts: Vec<String> =
        counts.map(|(count, noun, more)| format!("{}{more}", counted(*count, noun))).collect();
    if !counts.is_empty() {
        lines.push(counts.join(", "));
    }
    let in_flight = format!(
        "at most {} and {} in flight",
        counted(requests.most_messages_in_flight, "message"),
        counted(requests.most_packets_in_flight, "PSN")
    );
    lines.push(match requests.round_trips {
        Some(times) => format!("{}; {in_flight}", round_trips(&times)),
        None => in_flight,
    });
    lines
}

pub(super) fn round_trips(times: &Distribution) -> String {
    let Distribution { count, least_ns, median_ns, p99_ns, most_ns } = *times;
    if count == 1 {
        return format!("one answer, after {}", duration(most_ns));
    }
    let [least, median, p99, most] = [least_ns, median_ns, p99_ns, most_ns].map(duration);
    format!(
        "answers after {least} to {most}, median {median}, 99 % within {p99} ({} answers)",
        thousands(count as u64)
    )
}

fn operation(one: &Operations) -> String {
    let Operations { operation, count, least_bytes, most_bytes } = one;
    let (count, name) = (thousands(*count), operation_name(*operation));
    match (least_bytes, most_bytes) {
        (least, most) if least == most => format!("{count} {name} ({} bytes)", thousands(*most)),
        (least, most) => format!("{count} {name} ({} to {} bytes)", thousands(*least), thousands(*most)),
    }
}

/// Returns which messages of connection management were captured.
pub(super) fn of_management(management: &Management) -> String {
    let Management { request, reply, ready, disconnect } = management;
    let all = [(request, "REQ"), (reply, "REP"), (ready, "RTU"), (disconnect, "DREQ")];
    let found = all.iter().filter_map(|(place, name)| place.map(|place| format!("{name} in packet {place}")));
    let found: Vec<String> = found.collect();
    match found.is_empty() {
        true => "no connection management captured".to_owned(),
        false => format!("connection management: {}", found.join(", ")),
    }
}

/// Returns the lines about a connection as a whole.
pub(super) fn of_connection(summary: &Summary) -> String {
    let mut text = counted(summary.packets, "packet");
    if let Some((first, last)) = summary.times_ns {
        text += &format!(" in {}", duration(last.saturating_sub(first)));
    }
    if summary.taps > 1 {
        text += &format!(", captured at {} places", summary.taps);
    }
    for (counts, what) in [(summary.marked, "ECN marks"), (summary.notifications, "CNPs")] {
        let count = counts.iter().sum::<u64>();
        if count > 0 {
            text += &format!(", {} {what}", thousands(count));
        }
    }
    format!("{text}; {}", of_management(&summary.management))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_counts() {
        let rates = [0.0, 999.0, 12_345.0, 953_384.0, 99.95e9, 400e9].map(rate);
        assert_eq!(rates, ["0.00 b/s", "999 b/s", "12.3 kb/s", "953 kb/s", "100.0 Gb/s", "400 Gb/s"]);
        assert_eq!([counted(1, "packet"), counted(1_200, "packet")], ["1 packet", "1,200 packets"]);
    }
}
