//! Simulations, with results as Arrow tables.

use std::borrow::Cow;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use roce_scenario::{Own, SHIPPED, Scenario, contents};
use roce_sim::net::{DropReason, FlowResult, FlowSpec, NodeKind, Results, Simulation, Time};

use crate::algorithm::{Failure, algorithm};
use crate::cells::{Rows, rows};
use crate::errors::exception;
use crate::table::Table;

/// Events between two looks whether the user has interrupted the program or an algorithm has failed.
const STRIDE: u64 = 100_000;

/// The results of a simulation.
#[pyclass(frozen, get_all, module = "roce.sim")]
pub(crate) struct Simulated {
    /// The name of the scenario.
    name: String,
    /// The virtual time at the end, in seconds.
    end_s: f64,
    /// The number of handled events.
    events: u64,
    /// The number of data packets that hosts sent.
    data_packets: u64,
    /// A hash over all events, which is equal for equal runs.
    trace_hash: u64,
    /// One row for each flow.
    flows: Py<Table>,
    /// One row for each end of each link.
    ports: Py<Table>,
    /// Rates of flows over time.
    rates: Py<Table>,
    /// Sums over all flows over time.
    totals: Py<Table>,
    /// Queues of ports over time, without times at which a queue was empty.
    queues: Py<Table>,
    /// Steps of pauses.
    pauses: Py<Table>,
}

rows! {
    struct FlowRow {
        flow: u32,
        source: Cow<'static, str>,
        destination: Cow<'static, str>,
        bytes: u64,
        start_s: f64,
        state: Cow<'static, str>,
        completion_s: f64,
        ideal_s: f64,
        slowdown: f64,
        goodput_bps: f64,
        packets: u64,
        retransmitted: u64,
        timeouts: u64,
        marked: u64,
        cnps_sent: u64,
        cnps_handled: u64,
        out_of_sequence: u64,
        delivered: u64,
        table: Cow<'static, str>,
        collective: Cow<'static, str>,
    }
}

rows! {
    struct PortRow {
        port: u32,
        name: Cow<'static, str>,
        is_host: bool,
        tx_frames: u64,
        tx_bytes: u64,
        marked: u64,
        trimmed: u64,
        dropped: u64,
        dropped_buffer: u64,
        dropped_headroom: u64,
        dropped_link: u64,
        pauses_sent: u64,
        pauses_received: u64,
        paused_s: f64,
        queue_most_bytes: u64,
    }
}

rows! {
    struct RateRow {
        time_s: f64,
        flow: u32,
        goodput_bps: f64,
        rate_bps: f64,
        target_bps: f64,
        alpha: f64,
    }
}

rows! {
    struct TotalRow {
        time_s: f64,
        flows: u64,
        goodput_bps: f64,
        jain: f64,
    }
}

rows! {
    struct QueueRow {
        time_s: f64,
        port: u32,
        bytes: u64,
        marked: u64,
        paused_s: f64,
    }
}

rows! {
    struct PauseRow {
        time_s: f64,
        port: u32,
        priority: u8,
        step: Cow<'static, str>,
    }
}

/// Runs a scenario. `set` replaces values of it, and `algorithms` are names with classes.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    text: &str,
    folder: PathBuf,
    set: Vec<(String, String)>,
    algorithms: Vec<(String, Py<PyAny>)>,
    threads: usize,
) -> PyResult<Simulated> {
    let failure = Failure::default();
    let make = |(name, class): (String, Py<PyAny>)| algorithm(&name, class, failure.clone());
    let own = Own::from(algorithms.into_iter().map(make).collect::<Vec<_>>());
    let load = |file: &str| {
        let path = folder.join(file);
        let bytes = std::fs::read(&path);
        bytes.map(contents).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let mut scenario = Scenario::parse_among(text, &set, &load, &own).map_err(|error| exception(&error))?;
    scenario.settings.threads = threads;
    let mut simulation = scenario.simulation().map_err(|error| exception(&error))?;
    loop {
        // Other threads of Python run meanwhile. A simulation is not `Sync`, so it is lent as a whole.
        let (back, goes_on) = py.detach(move || {
            let goes_on = simulation.run(STRIDE);
            (simulation, goes_on)
        });
        simulation = back;
        failure.check()?;
        py.check_signals()?;
        if !goes_on {
            break;
        }
    }
    results(py, &scenario, simulation)
}

fn results(py: Python<'_>, scenario: &Scenario, simulation: Simulation) -> PyResult<Simulated> {
    let results = simulation.results();
    let table = |table: PyResult<Table>| Py::new(py, table?);
    Ok(Simulated {
        name: scenario.name.clone(),
        end_s: results.end.as_secs_f64(),
        events: results.events,
        data_packets: results.data_packets,
        trace_hash: results.trace_hash,
        flows: table(flows(scenario, &results.flows))?,
        ports: table(ports(&results))?,
        rates: table(rates(&results))?,
        totals: table(totals(&results))?,
        queues: table(queues(&results))?,
        pauses: table(pauses(&results))?,
    })
}

fn seconds(time: Time) -> Option<f64> {
    Some(time.as_secs_f64())
}

fn flows(scenario: &Scenario, flows: &[FlowResult]) -> PyResult<Table> {
    let hosts: Vec<&str> = scenario
        .topology
        .nodes
        .iter()
        .filter(|node| node.kind == NodeKind::Host)
        .map(|node| node.name.as_str())
        .collect();
    let name = |host: u32| hosts.get(host as usize).map(|name| Cow::Owned((*name).to_owned()));
    let mut columns = Rows::<FlowRow>::new();
    for (number, flow) in flows.iter().enumerate() {
        let table = scenario.table_of(number);
        let collective = table.and_then(|table| table.collective.clone());
        let (FlowSpec { source, destination, bytes, start, .. }, counts) = (flow.spec, flow.counts);
        columns.push(FlowRow {
            flow: u32::try_from(number).ok(),
            source: name(source),
            destination: name(destination),
            bytes: Some(bytes),
            start_s: seconds(start),
            state: Some(flow.state.name().into()),
            completion_s: flow.completion_time.and_then(seconds),
            ideal_s: flow.ideal.and_then(seconds),
            slowdown: flow.slowdown(),
            goodput_bps: flow.completion_time.map(|_| flow.goodput_bps()),
            packets: Some(counts.packets),
            retransmitted: Some(counts.retransmitted),
            timeouts: Some(counts.timeouts),
            marked: Some(counts.marked),
            cnps_sent: Some(counts.cnps_sent),
            cnps_handled: Some(counts.cnps_handled),
            out_of_sequence: Some(counts.out_of_sequence),
            delivered: Some(counts.delivered),
            table: table.map(|table| table.name.clone().into()),
            collective: collective.map(Cow::Owned),
        });
    }
    columns.finish()
}

fn ports(results: &Results) -> PyResult<Table> {
    let mut columns = Rows::<PortRow>::new();
    for (number, port) in results.ports.iter().enumerate() {
        let stats = &port.stats;
        let dropped = |reason: DropReason| stats.dropped.get(reason as usize).copied();
        columns.push(PortRow {
            port: u32::try_from(number).ok(),
            name: Some(Cow::Owned(port.name.clone())),
            is_host: Some(port.is_host),
            tx_frames: Some(stats.tx_frames),
            tx_bytes: Some(stats.tx_bytes),
            marked: Some(stats.marked),
            trimmed: Some(stats.trimmed),
            dropped: Some(stats.drops()),
            dropped_buffer: dropped(DropReason::Buffer),
            dropped_headroom: dropped(DropReason::Headroom),
            dropped_link: dropped(DropReason::Link),
            pauses_sent: Some(stats.pauses_sent),
            pauses_received: Some(stats.pauses_received),
            paused_s: Some(stats.paused.iter().map(|time| time.as_secs_f64()).sum()),
            queue_most_bytes: Some(stats.queue_most),
        });
    }
    columns.finish()
}

fn rates(results: &Results) -> PyResult<Table> {
    let mut columns = Rows::<RateRow>::new();
    for point in &results.rates {
        columns.push(RateRow {
            time_s: seconds(point.time),
            flow: Some(point.flow),
            goodput_bps: Some(point.goodput_bps),
            rate_bps: Some(point.rate_bps),
            target_bps: point.target_bps,
            alpha: point.alpha,
        });
    }
    columns.finish()
}

fn totals(results: &Results) -> PyResult<Table> {
    let mut columns = Rows::<TotalRow>::new();
    for point in &results.totals {
        columns.push(TotalRow {
            time_s: seconds(point.time),
            flows: u64::try_from(point.flows).ok(),
            goodput_bps: Some(point.goodput_bps),
            jain: point.jain,
        });
    }
    columns.finish()
}

fn queues(results: &Results) -> PyResult<Table> {
    let mut columns = Rows::<QueueRow>::new();
    for point in &results.queues {
        columns.push(QueueRow {
            time_s: seconds(point.time),
            port: Some(point.port),
            bytes: Some(point.bytes),
            marked: Some(point.marked),
            paused_s: seconds(point.paused),
        });
    }
    columns.finish()
}

fn pauses(results: &Results) -> PyResult<Table> {
    let mut columns = Rows::<PauseRow>::new();
    for point in &results.pauses {
        columns.push(PauseRow {
            time_s: seconds(point.time),
            port: Some(point.port),
            priority: Some(point.priority),
            step: Some(point.step.name().into()),
        });
    }
    columns.finish()
}

/// Returns the names of the scenarios of the package, with their descriptions.
#[pyfunction]
pub(crate) fn scenarios() -> PyResult<Vec<(&'static str, String)>> {
    let described = |(name, text): &(&'static str, &'static str)| {
        let scenario = Scenario::parse(text, &|file| Err(format!("{file} is not shipped")));
        scenario.map(|scenario| (*name, scenario.description)).map_err(|error| exception(&error))
    };
    SHIPPED.iter().map(described).collect()
}

/// Returns the text of a scenario of the package.
#[pyfunction]
pub(crate) fn scenario_text(name: &str) -> PyResult<&'static str> {
    let known = || SHIPPED.iter().map(|(name, _)| *name);
    roce_scenario::shipped(name).ok_or_else(|| {
        let suggestion = roce_fault::closest(name, known()).map(|name| format!("; did you mean {name}?"));
        PyValueError::new_err(format!("there is no scenario {name}{}", suggestion.unwrap_or_default()))
    })
}
