//! The report of a run: CSV files, plots, and an HTML page.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use roce_plot::{Figure, Width, escape};
use roce_sim::net::{DropReason, Results, Time};

use super::files::{SUMMARY, WriteError, create, create_directory, page_head, save, save_figure};
use crate::data::completed::CompletedRun;
use crate::data::distribution::Distribution;
use crate::data::operations::{self, host_names};
use crate::data::summary::{OfSizes, Summary};
use crate::data::text::{congestion_text, quoted};
use crate::figures::charts::figures;

/// Writes the report of a run to a directory, and creates the directory if it does not exist. `summary_json`
/// is the text of `summary.json`: the JSON of the summary, as the program prints it.
///
/// # Errors
///
/// The directory or a file cannot be written.
pub fn write_run(dir: &Path, completed: &CompletedRun, summary_json: &str) -> Result<(), WriteError> {
    create_directory(dir)?;
    let results = &completed.results;
    write_flows(&dir.join("flows.csv"), completed)?;
    write_slowdown(&dir.join("slowdown.csv"), &completed.summary)?;
    write_total(&dir.join("total.csv"), results)?;
    write_queue_cdf(&dir.join("queue_cdf.csv"), results)?;
    write_ports(&dir.join("ports.csv"), results)?;
    if !results.hosts.is_empty() {
        write_hosts(&dir.join("hosts.csv"), results)?;
    }
    write_series(dir, results)?;
    let operations = &completed.summary.collectives;
    if !operations.is_empty() {
        let mut file = create(&dir.join("collectives.csv"))?;
        operations::write_csv(&mut file, operations)?;
        file.flush()?;
    }
    let figures = figures(results, &completed.scenario.settings.measure, &completed.summary);
    for (name, figure) in &figures {
        save_figure(dir, name, figure)?;
    }
    save(dir, "report.html", &page(completed, &figures))?;
    save(dir, "scenario.toml", &scenario_text(completed))?;
    // This file is written last, because --merge takes it as proof of a complete run.
    save(dir, SUMMARY, summary_json)
}

fn write_flows(path: &Path, completed: &CompletedRun) -> Result<(), WriteError> {
    let (scenario, results) = (&completed.scenario, &completed.results);
    let hosts = host_names(&scenario.topology);
    let name = |host: u32| quoted(hosts.get(host as usize).copied().unwrap_or_default());
    let mut file = create(path)?;
    writeln!(
        file,
        "flow,source,destination,bytes,delivered_bytes,start_us,state,completion_us,ideal_us,slowdown,goodput_gbps,packets,retransmitted,timeouts,marked,\
         cnps_sent,cnps_handled,out_of_sequence,table,collective"
    )?;
    for (number, flow) in results.flows.iter().enumerate() {
        let (spec, counts) = (&flow.spec, &flow.counts);
        let [time, ideal] = [flow.completion_time, flow.ideal].map(|time| optional(time.map(us)));
        let slowdown = optional(flow.slowdown());
        let goodput = optional(flow.completion_time.map(|_| flow.goodput_bps() / 1e9));
        let table = scenario.table_of(number);
        let collective = table.and_then(|table| table.collective.as_deref());
        writeln!(
            file,
            "{number},{},{},{},{},{:.6},{},{time},{ideal},{slowdown},{goodput},{},{},{},{},{},{},{},{},{}",
            name(spec.source),
            name(spec.destination),
            spec.bytes,
            counts.delivered,
            us(spec.start),
            flow.state.name(),
            counts.packets,
            counts.retransmitted,
            counts.timeouts,
            counts.marked,
            counts.cnps_sent,
            counts.cnps_handled,
            counts.out_of_sequence,
            quoted(table.map_or("", |table| &table.name)),
            quoted(collective.unwrap_or_default())
        )?;
    }
    Ok(file.flush()?)
}

/// Formats a value, or returns an empty string without a value.
fn optional(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.6}"))
}

fn write_slowdown(path: &Path, summary: &Summary) -> Result<(), WriteError> {
    let mut file = create(path)?;
    writeln!(file, "above_bytes,to_bytes,flows,mean,p50,p95,p99,p999,max")?;
    for OfSizes { above_bytes, to_bytes, slowdown } in &summary.slowdown_by_size {
        let Distribution { count, mean, p50, p95, p99, p999, max, .. } = slowdown;
        let to = to_bytes.map_or_else(String::new, |to| to.to_string());
        writeln!(file, "{above_bytes},{to},{count},{mean:.6},{p50:.6},{p95:.6},{p99:.6},{p999:.6},{max:.6}")?;
    }
    Ok(file.flush()?)
}

fn write_total(path: &Path, results: &Results) -> Result<(), WriteError> {
    let mut file = create(path)?;
    writeln!(file, "time_us,flows,sent_gbps,jain")?;
    for point in &results.totals {
        let (sent, jain) = (point.goodput_bps / 1e9, optional(point.jain));
        writeln!(file, "{:.3},{},{sent:.6},{jain}", us(point.time), point.flows)?;
    }
    Ok(file.flush()?)
}

/// Writes the distribution of the longest queue of a switch.
fn write_queue_cdf(path: &Path, results: &Results) -> Result<(), WriteError> {
    let mut file = create(path)?;
    writeln!(file, "port,bytes,percent")?;
    if let Some(port) = results.longest_queue() {
        for (bytes, count) in port.queue.steps() {
            let percent = 100.0 * count as f64 / port.queue.count() as f64;
            writeln!(file, "{},{bytes},{percent:.6}", port.name)?;
        }
    }
    Ok(file.flush()?)
}

fn write_ports(path: &Path, results: &Results) -> Result<(), WriteError> {
    let mut file = create(path)?;
    write!(
        file,
        "port,tx_frames,tx_bytes,marked,trimmed,pauses_sent,xoff_sent,pauses_received,paused_us,watchdog"
    )?;
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
            "{},{},{},{},{},{},{},{},{paused:.6},{}",
            port.name,
            stats.tx_frames,
            stats.tx_bytes,
            stats.marked,
            stats.trimmed,
            stats.pauses_sent,
            stats.xoff_sent,
            stats.pauses_received,
            stats.watchdog
        )?;
        for quantile in [0.5, 0.9, 0.99] {
            let measured = Some(port.queue.quantile(quantile)).filter(|_| port.queue.count() > 0);
            write!(file, ",{}", measured.map_or_else(String::new, |bytes| bytes.to_string()))?;
        }
        write!(file, ",{}", stats.queue_most)?;
        for count in stats.dropped {
            write!(file, ",{count}")?;
        }
        writeln!(file)?;
    }
    Ok(file.flush()?)
}

fn write_hosts(path: &Path, results: &Results) -> Result<(), WriteError> {
    let mut file = create(path)?;
    writeln!(file, "host,application,packets,wait_p50_us,wait_p99_us,wait_max_us,polls,wake_ups")?;
    for host in &results.hosts {
        let wait = |quantile| host.waits.quantile(quantile) as f64 / 1e3;
        writeln!(
            file,
            "{},{},{},{:.3},{:.3},{:.3},{},{}",
            host.name,
            host.application,
            host.waits.count(),
            wait(0.5),
            wait(0.99),
            wait(1.0),
            host.polls,
            host.wake_ups
        )?;
    }
    Ok(file.flush()?)
}

fn write_series(dir: &Path, results: &Results) -> Result<(), WriteError> {
    let mut file = create(&dir.join("rates.csv"))?;
    writeln!(file, "time_us,flow,sent_gbps,rate_gbps,target_gbps,alpha")?;
    for point in &results.rates {
        let rate = Some(point.rate_bps / 1e9).filter(|rate| rate.is_finite());
        let target = optional(point.target_bps.map(|bps| bps / 1e9));
        let (sent, rate, alpha) = (point.goodput_bps / 1e9, optional(rate), optional(point.alpha));
        writeln!(file, "{:.3},{},{sent:.6},{rate},{target},{alpha}", us(point.time), point.flow)?;
    }
    file.flush()?;
    let name = |port: u32| results.ports.get(port as usize).map_or("", |port| port.name.as_str());
    let mut file = create(&dir.join("pauses.csv"))?;
    writeln!(file, "time_us,port,priority,step")?;
    for point in &results.pauses {
        let (time, step) = (us(point.time), point.step.name());
        writeln!(file, "{time:.6},{},{},{step}", name(point.port), point.priority)?;
    }
    file.flush()?;
    let mut file = create(&dir.join("queues.csv"))?;
    writeln!(file, "time_us,port,bytes,marked,paused_us")?;
    for point in &results.queues {
        writeln!(
            file,
            "{:.3},{},{},{},{:.3}",
            us(point.time),
            name(point.port),
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

/// Returns the scenario with set values and files, which repeats the run, after a header that identifies the
/// run.
fn scenario_text(completed: &CompletedRun) -> String {
    let summary = &completed.summary;
    let mut text = format!(
        "# The run of this directory: roce sim scenario.toml repeats it.\n# version {}, seed {}, configuration hash {}, trace hash {}\n\
         # congestion control: {}\n",
        summary.version, summary.seed, summary.configuration_hash, summary.trace_hash, summary.congestion
    );
    for algorithm in &completed.added_algorithms {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# The program added this; another program may not have it. Name, hash of its behavior, new instance:\n# {algorithm}"
        );
    }
    text + "\n" + &completed.whole
}

fn page(completed: &CompletedRun, figures: &[(&'static str, Figure)]) -> String {
    let scenario = &completed.scenario;
    let mut html = page_head(&scenario.name);
    // Writing to a string cannot fail.
    let _ = writeln!(html, "<p>{}</p>", escape(&scenario.description));
    match completed.why_not_evaluated() {
        Some(reason) => {
            let _ = writeln!(html, "<p><b>Expected:</b> {}</p>", escape(reason));
        }
        None if !scenario.expectation.is_empty() => {
            let _ = writeln!(html, "<p><b>Expected:</b> {}</p>", escape(&scenario.expectation));
        }
        None => {}
    }
    for one in completed.summary.expected.iter().flatten() {
        let _ = writeln!(html, "<p><b>{}</b>: {}</p>", one.verdict(), escape(&one.text()));
    }
    let _ = writeln!(html, "<table>");
    for (name, value) in completed.summary.rows() {
        let _ = writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(&value));
    }
    let congestion = congestion_text(&scenario.settings.host.congestion);
    // The list of parameters has no spaces, so lines may break after its commas.
    let congestion = escape(&congestion).replace(',', ",<wbr>");
    let _ = writeln!(html, "<tr><td>congestion control</td><td>{congestion}</td></tr></table>");
    for (_, figure) in figures {
        let _ = writeln!(html, "{}", figure.to_svg(Width::Screen));
    }
    let left_out = completed.results.points_left_out + completed.results.pauses_left_out;
    if left_out > 0 {
        let _ = writeln!(
            html,
            "<p>{left_out} points of series were left out; measure.points raises the limit.</p>"
        );
    }
    let _ = writeln!(
        html,
        "<p>All numbers are in the CSV files in the directory of this page; each plot has its points in a TSV file.</p></body></html>"
    );
    html
}
