//! What is plotted of a run.

use std::collections::BTreeMap;

use roce_sim::net::{RatePoint, Results, Time};

use crate::plot::{Chart, Line, MOST_LINES};

/// The plots by the names of their files, without those that would be empty.
pub(super) fn charts(results: &Results, interval: Time) -> Vec<(&'static str, Chart)> {
    let chart = |title: &str, y: &str, lines| Chart {
        title: title.to_owned(),
        x_label: "time, ms".to_owned(),
        y_label: y.to_owned(),
        lines,
    };
    let mut all = vec![
        (
            "rates",
            chart(
                "Payload sent, by flow",
                "Gb/s",
                flow_lines(results, |point| Some(point.goodput_bps / 1e9)),
            ),
        ),
        (
            "allowed",
            chart(
                "Rate that congestion control allows",
                "Gb/s",
                flow_lines(results, |point| Some(point.rate_bps / 1e9).filter(|rate| rate.is_finite())),
            ),
        ),
        ("alpha", chart("alpha: estimate of congestion", "", flow_lines(results, |point| point.alpha))),
        ("queues", chart("Longest queues", "KB", queue_lines(results, interval))),
    ];
    let times = results.completion_times();
    if times.len() > 2 {
        let count = times.len() as f64;
        let points =
            (1..).zip(&times).map(|(number, time)| (ms(*time), 100.0 * f64::from(number) / count)).collect();
        let lines = vec![Line { name: "flows".to_owned(), points }];
        let (x_label, y_label) = ("completion time, ms".to_owned(), "per cent of flows".to_owned());
        all.push(("completion", Chart { title: "Completion times".to_owned(), x_label, y_label, lines }));
    }
    all.retain(|(_, chart)| !chart.lines.is_empty());
    all
}

fn flow_lines(results: &Results, value: impl Fn(&RatePoint) -> Option<f64>) -> Vec<Line> {
    let mut lines: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for point in &results.rates {
        if let Some(value) = value(point) {
            lines.entry(point.flow).or_default().push((ms(point.time), value));
        }
    }
    lines.into_iter().map(|(flow, points)| Line { name: format!("flow {flow}"), points }).collect()
}

/// Of the ports with the longest queues. Samples at which a queue was empty are not kept; the line goes down to zero there.
fn queue_lines(results: &Results, interval: Time) -> Vec<Line> {
    let mut ports: Vec<usize> =
        (0..results.ports.len()).filter(|port| results.ports[*port].queue.count() > 0).collect();
    ports.sort_by_key(|port| std::cmp::Reverse(results.ports[*port].stats.queue_most));
    ports.truncate(MOST_LINES);
    let step = ms(interval);
    let line = |port: &usize| {
        let mut points: Vec<(f64, f64)> = vec![(0.0, 0.0)];
        for point in results.queues.iter().filter(|point| point.port as usize == *port) {
            let (at, before) = (ms(point.time), points.last().map_or(0.0, |(at, _)| *at));
            if at - before > 1.5 * step {
                points.extend([(before + step, 0.0), (at - step, 0.0)]);
            }
            points.push((at, point.bytes as f64 / 1e3));
        }
        let (last, end) = (points.last().map_or(0.0, |(at, _)| *at), ms(results.end));
        if end - last > 1.5 * step {
            points.extend([(last + step, 0.0), (end, 0.0)]);
        }
        Line { name: results.ports[*port].name.clone(), points }
    };
    ports.iter().map(line).collect()
}

fn ms(time: Time) -> f64 {
    time.as_secs_f64() * 1e3
}
