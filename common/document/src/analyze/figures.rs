//! The figures of a connection in words.

use roce_analysis::connection::name;
use roce_analysis::stall::{Beyond, Stall};
use roce_analysis::summary::{Distribution, Management, Operations, Requests, Summary, operation_name};
use roce_analysis::verdict::{Outcome, Verdict};
use roce_analysis::words::{duration, thousands};
use roce_packet::Transport;

/// Returns a number with its noun, which gets an s unless there is one.
pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(count), if count == 1 { "" } else { "s" })
}

/// Returns a rate with three digits or more.
fn rate(bits_per_second: f64) -> String {
    let (value, unit) = match bits_per_second {
        ..1e3 => (bits_per_second, "b/s"),
        ..1e6 => (bits_per_second / 1e3, "kb/s"),
        ..1e9 => (bits_per_second / 1e6, "Mb/s"),
        _ => (bits_per_second / 1e9, "Gb/s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

/// The losses and retransmissions in both directions of some connections, and their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Requests, responses and other answers that were lost.
    lost: u64,
    resent: u64,
    timeouts: u64,
    /// Messages of reliable connections whose answer was not captured.
    unanswered: u64,
    /// Packets of unreliable connections that were lost or damaged, which nobody sends again.
    gone: u64,
    /// Packets that arrived with a wrong ICRC, in both directions.
    damaged: u64,
}

impl Losses {
    /// Adds up the losses of connections.
    pub fn of<'a>(summaries: impl IntoIterator<Item = &'a Summary>) -> Self {
        let mut all = Self::default();
        for summary in summaries {
            let sum = |what: fn(&Requests) -> u64| summary.requests.iter().map(what).sum::<u64>();
            let lost = sum(|one| one.lost + one.lost_responses + one.lost_answers);
            let damaged = summary.damaged.iter().sum::<u64>();
            all.lost += lost;
            all.damaged += damaged;
            all.resent += sum(|one| one.resent);
            all.timeouts += sum(|one| one.timeouts);
            if summary.transport == Transport::Uc {
                all.gone += lost + damaged;
            } else {
                all.unanswered += sum(|one| one.messages.saturating_sub(one.answered));
            }
        }
        all
    }

    /// Returns the number of packets that were lost, damaged or sent again.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.lost + self.damaged + self.resent
    }

    /// Says it in words, or returns `None` if nothing was lost, damaged or sent again.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        if self.packets() + self.timeouts == 0 {
            return None;
        }
        let counts = [
            (self.lost, "packet", " lost"),
            (self.damaged, "packet", " damaged (wrong ICRC)"),
            (self.resent, "packet", " sent again"),
            (self.timeouts, "timeout", ""),
            (self.unanswered, "message", " without an answer"),
        ];
        let is_recovered = self.unanswered + self.gone == 0;
        let recovered = is_recovered.then(|| "all recovered".to_owned());
        let all: Vec<String> = present(&counts).chain(recovered).collect();
        Some(all.join(", "))
    }
}

/// Says in words each count that is not 0: its number, its noun, and the rest.
fn present<'a>(counts: &'a [(u64, &'a str, &'a str)]) -> impl Iterator<Item = String> + 'a {
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    counts.map(|(count, noun, more)| format!("{}{more}", counted(*count, noun)))
}

/// Returns the lines about what one end requested; none if it requested nothing.
#[must_use]
pub fn of_requests(requests: &Requests) -> Vec<String> {
    if requests.messages == 0 {
        return Vec::new();
    }
    let operations: Vec<String> = requests.operations.iter().map(operation).collect();
    let mut first = operations.join(", ");
    if let Some(mtu) = requests.mtu {
        first += &format!("; path MTU {}", thousands(mtu.bytes() as u64));
    }
    let rates = [(requests.goodput_bps, "goodput ", ""), (requests.wire_bps, "", " on the wire")];
    let rates = rates.iter().filter_map(|(bits, name, more)| Some(format!("{name}{}{more}", rate((*bits)?))));
    let rates: Vec<String> = rates.collect();
    if !rates.is_empty() {
        first += &format!("; {}", rates.join(", "));
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
    let counts: Vec<String> = present(&counts).collect();
    if !counts.is_empty() {
        lines.push(counts.join(", "));
    }
    let in_flight = format!(
        "at most {} and {} in flight",
        counted(requests.most_messages_in_flight, "message"),
        counted(requests.most_packets_in_flight, "PSN")
    );
    if let Some(stall) = &requests.stall {
        lines.push(of_stall(stall));
    }
    lines.extend(requests.repeated_round_trips.map(|times| repeated_round_trips(&times)));
    lines.push(match requests.round_trips {
        Some(times) => format!("{}; {in_flight}", round_trips(&times)),
        None => in_flight,
    });
    lines
}

/// Says how long nothing came back, and what the other place shows.
pub(super) fn of_stall(stall: &Stall) -> String {
    let Stall { ns, from, until, requests, beyond } = stall;
    let requests = counted(*requests, "request packet");
    let text =
        format!("nothing came back for {} from packet {from} to {until}, after {requests}", duration(*ns));
    let Some(Beyond { lost_requests, lost_answers }) = beyond else { return text };
    let there = match lost_requests {
        0 => "all arrived at the other place".to_owned(),
        lost => format!("{} lost on the way", thousands(*lost)),
    };
    let back = match lost_answers {
        0 => "no packet back was lost, so the other end sent none".to_owned(),
        lost => format!("{} on the way back lost", counted(*lost, "packet")),
    };
    format!("{text}: {there}, {back}")
}

/// Says how long answers took.
fn round_trips(times: &Distribution) -> String {
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

/// Says how long requests waited that were sent again. They are not among the other answers.
fn repeated_round_trips(times: &Distribution) -> String {
    let Distribution { count, least_ns, median_ns, most_ns, .. } = *times;
    let [least, median, most] = [least_ns, median_ns, most_ns].map(duration);
    match count {
        1 => format!("one answer to a request that was sent again, {most} after its first copy"),
        count => format!(
            "{} answers to requests that were sent again, {least} to {most} after the first copy, median {median}",
            thousands(count as u64)
        ),
    }
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
fn of_management(management: &Management) -> String {
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
    for (end, count) in summary.ends.iter().zip(summary.damaged) {
        if count > 0 {
            text += &format!(", {} of {} damaged (wrong ICRC)", thousands(count), name(*end));
        }
    }
    for (counts, what) in [(summary.marked, "ECN marks"), (summary.notifications, "CNPs")] {
        let count = counts.iter().sum::<u64>();
        if count > 0 {
            text += &format!(", {} {what}", thousands(count));
        }
    }
    format!("{text}; {}", of_management(&summary.management))
}

/// Returns the ends that a failed verdict concerns, if it is about a connection.
#[must_use]
pub fn parties(verdict: &Verdict) -> Option<String> {
    let names: Vec<String> = verdict.parties.iter().map(ToString::to_string).collect();
    (verdict.outcome == Outcome::Fail && !names.is_empty()).then(|| names.join(" and "))
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

    #[test]
    fn losses_are_recovered_if_every_message_was_answered() {
        assert_eq!(Losses::default().text(), None);
        let losses = Losses { lost: 6, ..Losses::default() };
        assert_eq!(losses.text().unwrap(), "6 packets lost, all recovered");
        let losses = Losses { lost: 1, resent: 3, timeouts: 2, unanswered: 1, ..Losses::default() };
        let text = "1 packet lost, 3 packets sent again, 2 timeouts, 1 message without an answer";
        assert_eq!(losses.text().unwrap(), text);
        let losses = Losses { lost: 2, gone: 2, ..Losses::default() };
        assert_eq!(losses.text().unwrap(), "2 packets lost", "nobody sends them again");
        let losses = Losses { damaged: 1, resent: 2, ..Losses::default() };
        let text = "1 packet damaged (wrong ICRC), 2 packets sent again, all recovered";
        assert_eq!(losses.text().unwrap(), text);
    }
}
