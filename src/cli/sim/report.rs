//! What a run leaves behind: CSV files, plots, captures, and one page with all of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use roce_packet::{FrameHeaders, MacAddr, PauseFrame};
use roce_sim::net::{Captured, CapturedContent, DropReason, RatePoint, Results, Time};

use super::run::Done;
use crate::observe::pcap_file::{Direction, PcapWriter};
use crate::plot::{Chart, Line, MOST_LINES, escape};

/// Writes everything about a run into a directory, which is made if it is missing.
pub(super) fn write(dir: &Path, done: &Done) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("making the directory {}", dir.display()))?;
    let results = &done.results;
    save(dir, "summary.json", &(serde_json::to_string_pretty(&done.summary)? + "\n"))?;
    write_flows(&dir.join("flows.csv"), results)?;
    write_ports(&dir.join("ports.csv"), results)?;
    write_series(dir, results)?;
    let charts = charts(results, done.scenario.settings.measure.interval);
    for (name, chart) in &charts {
        save(dir, &format!("{name}.svg"), &chart.to_svg())?;
    }
    save(dir, "report.html", &page(done, &charts))?;
    for (port, name) in &done.capture {
        let file = format!("{}.pcapng", name.replace(':', "-"));
        write_capture(&dir.join(file), name, *port, &done.captured)?;
    }
    Ok(())
}

fn save(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = dir.join(name);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    Ok(BufWriter::new(File::create(path).with_context(|| format!("writing {}", path.display()))?))
}

fn write_flows(path: &Path, results: &Results) -> anyhow::Result<()> {
    let mut file = create(path)?;
    writeln!(
        file,
        "flow,source,destination,bytes,start_us,state,completion_us,goodput_gbps,packets,retransmitted,timeouts,marked,\
         cnps_sent,cnps_handled,out_of_sequence"
    )?;
    for (number, flow) in results.flows.iter().enumerate() {
        let (spec, counts) = (&flow.spec, &flow.counts);
        let time = flow.completion_time.map_or_else(String::new, |time| format!("{:.6}", us(time)));
        writeln!(
            file,
            "{number},{},{},{},{:.6},{},{time},{:.6},{},{},{},{},{},{},{}",
            spec.source,
            spec.destination,
            spec.bytes,
            us(spec.start),
            flow.state.name(),
            flow.goodput_bps() / 1e9,
            counts.packets,
            counts.retransmitted,
            counts.timeouts,
            counts.marked,
            counts.cnps_sent,
            counts.cnps_handled,
            counts.out_of_sequence
        )?;
    }
    Ok(file.flush()?)
}

fn write_ports(path: &Path, results: &Results) -> anyhow::Result<()> {
    let mut file = create(path)?;
    write!(file, "port,tx_frames,tx_bytes,marked,pauses_sent,xoff_sent,pauses_received,paused_us,watchdog")?;
    write!(file, ",queue_p50_bytes,queue_p90_bytes,queue_p99_bytes,queue_most_bytes")?;
    for reason in DropReason::ALL {
        write!(file, ",dropped_{}", reason.name())?;
    }
    writeln!(file)?;
    for port in &results.ports {
        let stats = &port.stats;
        let paused: f64 = stats.paused.iter().map(|time| us(*time)).sum();
        write!(
            file,
            "{},{},{},{},{},{},{},{paused:.6},{}",
            port.name,
            stats.tx_frames,
            stats.tx_bytes,
            stats.marked,
            stats.pauses_sent,
            stats.xoff_sent,
            stats.pauses_received,
            stats.watchdog
        )?;
        let at = |quantile| port.queue.quantile(quantile);
        write!(file, ",{},{},{},{}", at(0.5), at(0.9), at(0.99), stats.queue_most)?;
        for count in stats.dropped {
            write!(file, ",{count}")?;
        }
        writeln!(file)?;
    }
    Ok(file.flush()?)
}

fn write_series(dir: &Path, results: &Results) -> anyhow::Result<()> {
    let mut file = create(&dir.join("rates.csv"))?;
    writeln!(file, "time_us,flow,sent_gbps,rate_gbps,target_gbps,alpha")?;
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.6}"));
    for point in &results.rates {
        let rate = Some(point.rate_bps / 1e9).filter(|rate| rate.is_finite());
        let target = optional(point.target_bps.map(|bps| bps / 1e9));
        let (sent, rate, alpha) = (point.goodput_bps / 1e9, optional(rate), optional(point.alpha));
        writeln!(file, "{:.3},{},{sent:.6},{rate},{target},{alpha}", us(point.time), point.flow)?;
    }
    file.flush()?;
    let mut file = create(&dir.join("queues.csv"))?;
    writeln!(file, "time_us,port,bytes,marked,paused_us")?;
    for point in &results.queues {
        let name = results.ports.get(point.port as usize).map_or("", |port| port.name.as_str());
        writeln!(
            file,
            "{:.3},{name},{},{},{:.3}",
            us(point.time),
            point.bytes,
            point.marked,
            us(point.paused)
        )?;
    }
    Ok(file.flush()?)
}

fn us(time: Time) -> f64 {
    time.as_secs_f64() * 1e6
}

fn ms(time: Time) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The plots by the names of their files, without those that would be empty.
fn charts(results: &Results, interval: Time) -> Vec<(&'static str, Chart)> {
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

fn page(done: &Done, charts: &[(&'static str, Chart)]) -> String {
    let scenario = &done.scenario;
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>\
         body{{font:15px/1.45 Helvetica,Arial,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}}\
         table{{border-collapse:collapse;margin:1em 0}}td{{padding:.2em .8em;border-bottom:1px solid #ddd}}\
         svg{{max-width:100%;height:auto;margin:.6em 0}}</style></head><body>\n<h1>{0}</h1>\n<p>{1}</p>\n",
        escape(&scenario.name),
        escape(&scenario.description)
    );
    // Writing to a string cannot fail.
    if !scenario.expectation.is_empty() {
        let _ = writeln!(html, "<p><b>Expected:</b> {}</p>", escape(&scenario.expectation));
    }
    let _ = writeln!(html, "<table>");
    for (name, value) in done.summary.rows() {
        let _ = writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(&value));
    }
    let congestion = format!("{:?}", scenario.settings.host.congestion);
    let _ = writeln!(html, "<tr><td>congestion control</td><td>{}</td></tr></table>", escape(&congestion));
    for (_, chart) in charts {
        let _ = writeln!(html, "{}", chart.to_svg());
    }
    if done.results.points_left_out > 0 {
        let left_out = done.results.points_left_out;
        let _ = writeln!(
            html,
            "<p>{left_out} points of series were left out; measure.points raises the limit.</p>"
        );
    }
    let _ = writeln!(html, "<p>All figures are in the CSV files beside this page.</p></body></html>");
    html
}

/// Frames of one port as pcapng: what left it and what arrived, pause frames included.
fn write_capture(path: &Path, name: &str, port: u32, captured: &[Captured]) -> anyhow::Result<()> {
    let mut writer = PcapWriter::create(path, &[name])?;
    for frame in captured.iter().filter(|frame| frame.port == port) {
        let direction = if frame.outbound { Direction::Outbound } else { Direction::Inbound };
        if let Some(bytes) = frame_bytes(&frame.content) {
            writer.write(0, frame.time.as_ns(), direction, None, &bytes)?;
        }
    }
    Ok(writer.flush()?)
}

/// The whole frame from its Ethernet header on. Ethernet addresses are made from those of IP.
fn frame_bytes(content: &CapturedContent) -> Option<Vec<u8>> {
    match content {
        CapturedContent::Pause { priority, quanta } => {
            let mut request = [None; roce_packet::pause::PRIORITIES];
            *request.get_mut(usize::from(*priority))? = Some(*quanta);
            let request = roce_packet::pause::PauseRequest::PerPriority(request);
            let mut bytes = [0; PauseFrame::LEN];
            PauseFrame { source: MacAddr([2, 0, 0, 0, 0, 1]), request }.emit(&mut bytes);
            Some(bytes.to_vec())
        }
        CapturedContent::Datagram { path, bytes: datagram, .. } => {
            let mac = |address: std::net::IpAddr| match address {
                std::net::IpAddr::V4(address) => {
                    let [a, b, c, d] = address.octets();
                    MacAddr([2, 0, a, b, c, d])
                }
                std::net::IpAddr::V6(_) => MacAddr([2, 0, 0, 0, 0, 0]),
            };
            let headers =
                FrameHeaders::new(path, 0, mac(path.destination), mac(path.source), datagram.len()).ok()?;
            let mut bytes = vec![0; headers.len_bytes()];
            headers.emit(&mut bytes).ok()?;
            bytes.extend_from_slice(datagram);
            Some(bytes)
        }
    }
}
