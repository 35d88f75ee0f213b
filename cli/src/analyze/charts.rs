//! Charts of a connection over time.

use roce_analysis::Analysis;
use roce_analysis::connection::Connection;
use roce_analysis::ladder::{Marks, Point, points};
use roce_analysis::summary::{Summary, round_trips};
use roce_packet::Operation;
use roce_plot::{Axes, Axis, Chart, Dots, Line, Mark};

/// Maximum number of intervals in which rates are counted.
const MOST_INTERVALS: u64 = 200;
/// Fewest packets for each interval, on average.
const PACKETS_PER_INTERVAL: u64 = 4;

/// Returns the charts that the packets of a connection fill.
pub(super) fn charts(analysis: &Analysis, connection: &Connection, summary: &Summary) -> Vec<Chart> {
    let Some((first, last)) = summary.times_ns.filter(|(first, last)| last > first) else {
        return Vec::new();
    };
    let mut charts = vec![rates(analysis, connection, summary, (first, last))];
    let all = points(analysis, connection);
    for (end, requests) in summary.requests.iter().enumerate() {
        if requests.messages > 0 {
            charts.push(psns(&all, end, &name(summary, end), first));
        }
    }
    charts.push(answers(analysis, connection, summary, first));
    charts.retain(|chart| {
        let lines = chart.lines.iter().map(|line| line.points.len());
        let dots = chart.dots.iter().map(|dots| dots.points.len());
        lines.chain(dots).sum::<usize>() > 1
    });
    charts
}

/// Returns the name of an end: its address, or its queue pair if both have the same one.
fn name(summary: &Summary, end: usize) -> String {
    let [one, other] = &summary.ends;
    let own = if end == 0 { one } else { other };
    match own.qpn {
        Some(qpn) if one.address == other.address => format!("QP 0x{:x}", qpn.get()),
        _ => own.address.to_string(),
    }
}

fn ms(time_ns: u64, first: u64) -> f64 {
    time_ns.saturating_sub(first) as f64 / 1e6
}

fn over_time(title: String, y_label: &str) -> Chart {
    Chart { title, x_label: "time, ms".to_owned(), y_label: y_label.to_owned(), ..Chart::default() }
}

/// The packets of one end in one interval.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    bytes: u64,
    marks: u64,
    notifications: u64,
}

/// Payload that both ends put on the wire over time, with the intervals that have ECN marks and CNPs.
fn rates(
    analysis: &Analysis,
    connection: &Connection,
    summary: &Summary,
    (first, last): (u64, u64),
) -> Chart {
    let count = (summary.packets / PACKETS_PER_INTERVAL).clamp(1, MOST_INTERVALS);
    let width = (last - first).div_ceil(count).max(1);
    let mut ends =
        [vec![Interval::default(); count as usize + 1], vec![Interval::default(); count as usize + 1]];
    // The tap with the most packets, whose times the summary has.
    let indices = connection.views.first().map_or(&[][..], |view| &view.indices);
    for record in indices.iter().filter_map(|index| analysis.records.get(*index)) {
        let from = usize::from(Some(record.stream) != connection.streams.first().copied().flatten());
        let at = (record.time_ns.saturating_sub(first) / width) as usize;
        let Some(interval) = ends.get_mut(from).and_then(|end| end.get_mut(at)) else { continue };
        interval.bytes += u64::from(record.payload_len);
        interval.marks += u64::from(record.ecn() == 0b11);
        let is_cnp = record.info().is_some_and(|info| info.operation == Operation::Cnp);
        interval.notifications += u64::from(is_cnp);
    }
    let middle = |at: usize| (at as f64 + 0.5) * width as f64 / 1e6;
    let most = ends.iter().flatten().map(|interval| interval.bytes).max().unwrap_or(0);
    let is_fast = most as f64 * 8.0 / width as f64 >= 1.0;
    let scale = if is_fast { 8.0 } else { 8_000.0 };
    let mut chart = over_time(
        "Payload on the wire over time, every copy counted".to_owned(),
        if is_fast { "payload rate, Gb/s" } else { "payload rate, Mb/s" },
    );
    let height = |interval: &Interval| interval.bytes as f64 * scale / width as f64;
    let (mut marks, mut notifications) = (Vec::new(), Vec::new());
    for (end, intervals) in ends.iter().enumerate() {
        let line = intervals.iter().enumerate().map(|(at, interval)| (middle(at), height(interval)));
        let points: Vec<(f64, f64)> = line.take(count as usize).collect();
        if intervals.iter().any(|interval| interval.bytes > 0) {
            chart.lines.push(Line { name: format!("from {}", name(summary, end)), points });
        }
        let other = ends.get(1_usize.saturating_sub(end));
        for (at, interval) in intervals.iter().enumerate() {
            if interval.marks > 0 {
                marks.push((middle(at), height(interval)));
            }
            if interval.notifications > 0 {
                // At the rate of the sender that the CNP slows down.
                let rate = other.and_then(|other| other.get(at)).map_or(0.0, height);
                notifications.push((middle(at), rate));
            }
        }
    }
    for (name, points, mark) in [("ECN marks", marks, Mark::Triangle), ("CNPs", notifications, Mark::Cross)] {
        if !points.is_empty() {
            chart.dots.push(Dots { name: name.to_owned(), points, mark });
        }
    }
    chart
}

/// PSNs of the requests of one end over time, and of the answers to them.
fn psns(points: &[Point], end: usize, name: &str, first: u64) -> Chart {
    let mut chart = over_time(format!("PSNs of the requests of {name}"), "PSN since the first");
    let of = |what: &dyn Fn(&Point) -> bool| -> Vec<(f64, f64)> {
        let own = points.iter().filter(|point| point.requester == end && what(point));
        own.map(|point| (ms(point.time_ns, first), point.psn as f64)).collect()
    };
    let is_bad =
        |point: &Point| point.marks.intersects(Marks::LOST | Marks::NAK | Marks::RNR | Marks::REFUSED);
    let is_resent = |point: &Point| point.marks.contains(Marks::RESENT);
    let dots = |name: &str, mark, points| Dots { name: name.to_owned(), points, mark };
    let is_lost = |point: &Point| point.marks.contains(Marks::LOST);
    // An empty list keeps its color.
    chart.dots = vec![
        dots("request", Mark::Circle, of(&|point| !point.is_answer && !is_bad(point) && !is_resent(point))),
        dots("lost", Mark::Cross, of(&is_lost)),
        dots("answer", Mark::Square, of(&|point| point.is_answer && !is_bad(point))),
        dots("sent again", Mark::Triangle, of(&|point| !point.is_answer && is_resent(point))),
        dots("NAK", Mark::Plus, of(&|point| point.is_answer && is_bad(point) && !is_lost(point))),
    ];
    chart
}

/// Time from each request to its answer.
fn answers(analysis: &Analysis, connection: &Connection, summary: &Summary, first: u64) -> Chart {
    let mut chart = over_time("Time from a request to its answer".to_owned(), "time, \u{b5}s");
    chart.axes = Axes { x: Axis::Linear, y: Axis::Log };
    // Times of another tap have another clock, so only differences to its own first packet are known.
    for end in [0, 1] {
        let (Some(replay), Some(view)) = (connection.requester(end), connection.view_of(end)) else {
            continue;
        };
        let begin = view.indices.first().and_then(|index| analysis.records.get(*index));
        let begin = begin.map_or(first, |record| record.time_ns);
        let points: Vec<(f64, f64)> = round_trips(&analysis.records, replay)
            .map(|(time, answer)| (ms(time, begin), answer as f64 / 1e3))
            .collect();
        if !points.is_empty() {
            let name = format!("requests of {}", name(summary, end));
            let mark = if end == 0 { Mark::Circle } else { Mark::Square };
            chart.dots.push(Dots { name, points, mark });
        }
    }
    chart
}
