//! Simulations: the shipped scenarios, the parameters of congestion control, and runs in pieces.

use std::cell::{OnceCell, RefCell};

use roce_scenario::{SHIPPED, Scenario};
use roce_sim::net::{
    DropReason, FlowResult, FlowState, NodeKind, PortResult, QueuePoint, RatePoint, Results, Settings,
    Simulation, Time,
};
use roce_transport::congestion::{Algorithm, Congestion, DcqcnParameters, Parameter, ParameterRange};
use serde::Serialize;
use serde_json::{Value, json};

/// The largest estimated memory of a run, in bytes. Browsers on phones end a page that takes about 1 GB, and
/// the page needs the other half for its charts and for the points that it has taken.
const MOST_MEMORY: u64 = 512_000_000;
/// The largest estimated number of data packets of a run. One thread handles 150,000 to 450,000 in a second
/// (docs/results/performance.md) and WebAssembly about half as many, so a run ends within a minute.
const MOST_PACKETS: u64 = 4_000_000;

/// Returns the shipped scenarios as a JSON list, from an introduction to the largest network.
///
/// Each has `name` (of the file), `title`, `description`, `expectation`, `open_ended` (whether flows are
/// meant to outlast the run), `fits` (whether a run fits a page), `why_not`, `sweeps` and `text`.
#[must_use]
pub fn scenarios() -> String {
    let described = |(name, text): &(&str, &str)| {
        let scenario = Scenario::parse(text, &no_file).ok()?;
        let why_not = too_large(&scenario);
        let sweep = |(name, values): &(String, Vec<String>)| json!({ "name": name, "values": values });
        Some(json!({
            "name": name, "title": scenario.name, "description": scenario.description,
            "expectation": scenario.expectation, "open_ended": scenario.open_ended,
            "fits": why_not.is_none(), "why_not": why_not,
            "sweeps": scenario.sweeps.iter().map(sweep).collect::<Vec<_>>(), "text": text,
        }))
    };
    SHIPPED.iter().filter_map(described).collect::<Value>().to_string()
}

/// Returns why a run of the scenario does not fit a page, or `None` if it fits.
fn too_large(scenario: &Scenario) -> Option<String> {
    let (memory, packets) = (scenario.memory().most(), scenario.data_packets());
    let reason = if memory > MOST_MEMORY {
        format!("it may need {} MB of memory, and a page has {}", memory / 1_000_000, MOST_MEMORY / 1_000_000)
    } else if packets > MOST_PACKETS {
        format!("it sends about {} million packets, which takes minutes in a page", packets / 1_000_000)
    } else {
        return None;
    };
    Some(format!("{reason}; `roce sim` runs it"))
}

fn no_file(name: &str) -> Result<String, String> {
    Err(format!("a page cannot read {name}; put its text into the table [files] of the scenario"))
}

/// Returns the algorithms of congestion control as a JSON list, with their parameters. `fixed` is not among
/// them, because it has no default: `fixed:10G` sets its rate.
///
/// An algorithm has `name`, `presets` and `parameters`. A parameter has `key`, `alias` (its name in the
/// kernel, or an empty string), `default`, `min` and `max` for numbers, `words` for others, `unit`, `about`,
/// and the `side` that uses it: `sender` or `receiver`. A preset has `name`, the word after the algorithm as
/// in `dcqcn:paper`, and `values`: an object with the value of each parameter by its key.
#[must_use]
pub fn algorithms() -> String {
    let described = |name: &'static str| {
        let parameters = Values::of(name)?.0.into_iter().map(parameter);
        let parameters: Vec<Value> = parameters.collect();
        let preset = |preset: &str| {
            let Values(rows) = Values::of(&format!("{name}:{preset}"))?;
            let values = rows.into_iter().map(|(_, row, value)| (row.name.to_owned(), value));
            let values: serde_json::Map<String, Value> = values.collect();
            Some(json!({ "name": preset, "values": values }))
        };
        let presets: Vec<Value> = DcqcnParameters::PRESETS.into_iter().filter_map(preset).collect();
        Some(json!({ "name": name, "presets": presets, "parameters": parameters }))
    };
    Algorithm::NAMES.into_iter().filter_map(described).collect::<Value>().to_string()
}

/// The parameters of a congestion control: the side that uses each, its row, and its value.
struct Values(Vec<(&'static str, &'static Parameter, Value)>);

impl Values {
    /// Reads text such as `dcqcn:paper`. Returns `None` if there is no such algorithm or preset.
    fn of(text: &str) -> Option<Self> {
        let (congestion, point) = Congestion::parse(text).ok()?;
        let own = congestion.algorithm.parameters();
        // Receivers notify senders with any algorithm, but `none` ignores the notifications.
        let of_receiver = if own.is_empty() { Vec::new() } else { point.parameters() };
        let value = |text: String| match text.parse::<u32>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::from(text),
        };
        let own = own.into_iter().map(|(row, text)| ("sender", row, value(text)));
        let of_receiver = of_receiver.into_iter().map(|(row, text)| ("receiver", row, value(text)));
        Some(Self(own.chain(of_receiver).collect()))
    }
}

fn parameter((side, row, default): (&str, &Parameter, Value)) -> Value {
    let Parameter { name, alias, unit, range, meaning } = row;
    let (min, max, words) = match range {
        ParameterRange::Number(min, max) => (Some(min), Some(max), None),
        ParameterRange::Words(words) => (None, None, Some(words)),
    };
    json!({
        "key": name, "alias": alias, "default": default, "min": min, "max": max, "words": words, "unit": unit,
        "about": meaning, "side": side,
    })
}

/// A simulation that runs in pieces, on one thread.
pub struct Run {
    /// The running simulation, until its results are taken.
    simulation: RefCell<Option<Simulation>>,
    results: OnceCell<Results>,
    /// Names of sender and receiver, and bytes of each flow.
    flows: Vec<(String, String, u64)>,
    ports: Vec<String>,
    /// The stop time, if the scenario has one.
    stop: Option<Time>,
    expectation: String,
    /// The command that does the same run.
    command: String,
    /// The numbers of points of rates and of queues that [`take`](Self::take) has returned.
    taken: (usize, usize),
}

/// Time in microseconds, flow, goodput, rate, target rate and alpha. An infinite rate becomes `null`.
type RateRow = (f64, u32, f64, f64, Option<f64>, Option<f64>);
/// Time in microseconds, port, bytes, and microseconds paused so far.
type QueueRow = (f64, u32, u64, f64);

/// The points since an earlier call.
#[derive(Serialize)]
struct Points {
    rates: Vec<RateRow>,
    queues: Vec<QueueRow>,
}

impl Run {
    /// Builds the network of a scenario. `sets` is a JSON list of pairs: the path of a key and its value, as
    /// for `roce sim --set`.
    ///
    /// # Errors
    ///
    /// Returns a sentence that names the line of the scenario, or the set value.
    pub fn new(text: &str, sets: &str) -> Result<Self, String> {
        let sets: Vec<(String, String)> = serde_json::from_str(sets).map_err(|error| {
            format!("set values are a JSON list of pairs, such as [[\"host.congestion\",\"dcqcn\"]]: {error}")
        })?;
        let scenario = Scenario::parse_with(text, &sets, &no_file).map_err(|error| error.to_string())?;
        let least = scenario.memory().least();
        if least > MOST_MEMORY {
            return Err(format!(
                "the run needs at least {} MB of memory, and a page has {}: make the network smaller, or run \
                 the scenario with `roce sim`",
                least / 1_000_000,
                MOST_MEMORY / 1_000_000
            ));
        }
        Self::build(scenario, command(text, &sets))
    }

    fn build(mut scenario: Scenario, command: String) -> Result<Self, String> {
        // WebAssembly has no threads.
        scenario.settings.threads = 1;
        let simulation = scenario.simulation().map_err(|error| error.to_string())?;
        let Scenario { topology, flows, settings, expectation, .. } = scenario;
        let hosts = topology.nodes.iter().filter(|node| node.kind == NodeKind::Host);
        let hosts: Vec<&str> = hosts.map(|node| node.name.as_str()).collect();
        let name = |host: u32| hosts.get(host as usize).copied().unwrap_or_default().to_owned();
        let flows = flows.iter().map(|flow| (name(flow.source), name(flow.destination), flow.bytes));
        let ports = (0..).take(2 * topology.links.len());
        Ok(Self {
            flows: flows.collect(),
            ports: ports.map(|port| simulation.port_name(port).to_owned()).collect(),
            stop: Some(settings.stop).filter(|stop| *stop != Settings::default().stop),
            expectation,
            command,
            taken: (0, 0),
            results: OnceCell::new(),
            simulation: RefCell::new(Some(simulation)),
        })
    }

    /// Handles at least this number of events. Returns `false` when all flows have ended or the stop time is
    /// reached.
    pub fn run(&mut self, events: u64) -> bool {
        let goes_on = self.simulation.get_mut().as_mut().is_some_and(|simulation| simulation.run(events));
        if !goes_on {
            self.end();
        }
        goes_on
    }

    /// Ends the run and returns its results.
    fn end(&self) -> Option<&Results> {
        if let Some(simulation) = self.simulation.take() {
            // No results exist while there is a simulation.
            let _ = self.results.set(simulation.results());
        }
        self.results.get()
    }

    /// Returns how far the run is, as JSON: `time_us` in virtual time, `until_us` (or `null` if the scenario
    /// has no stop time), handled `events`, the completed `share` of the work, and how many of the `flows`
    /// have `ended`.
    #[must_use]
    pub fn progress(&self) -> String {
        let simulation = self.simulation.borrow();
        let (time, events, share, ended) = match (&*simulation, self.results.get()) {
            (Some(simulation), _) => {
                let (sent, bytes) = simulation.sent_bytes();
                let of_time = self.stop.map_or(0.0, |stop| micros(simulation.now()) / micros(stop));
                let share = (sent as f64 / bytes.max(1) as f64).max(of_time).min(1.0);
                (simulation.now(), simulation.handled_events(), share, simulation.progress().0)
            }
            (None, Some(results)) => {
                let is_open =
                    |flow: &&FlowResult| matches!(flow.state, FlowState::Waiting | FlowState::Running);
                let open = results.flows.iter().filter(is_open).count();
                (results.end, results.events, 1.0, results.flows.len() - open)
            }
            (None, None) => (Time::ZERO, 0, 0.0, 0),
        };
        json!({
            "time_us": micros(time), "until_us": self.stop.map(micros), "events": events, "share": share,
            "flows": self.flows.len(), "ended": ended,
        })
        .to_string()
    }

    /// Returns the points that were sampled since the last call, as JSON: `rates` with time in microseconds,
    /// number of the flow, goodput, rate, target rate and alpha, and `queues` with time, number of the port,
    /// bytes, and microseconds paused so far. Rates are bits per second, and `null` without a limit; a point
    /// of a queue exists only if the queue was not empty.
    pub fn take(&mut self) -> String {
        let (rates, queues) = match (self.results.get(), self.simulation.get_mut()) {
            (Some(results), _) => (results.rates.as_slice(), results.queues.as_slice()),
            (None, Some(simulation)) => (simulation.rates(), simulation.queues()),
            (None, None) => Default::default(),
        };
        let (from_rate, from_queue) = self.taken;
        let points = Points {
            rates: rates.get(from_rate..).unwrap_or_default().iter().map(rate_point).collect(),
            queues: queues.get(from_queue..).unwrap_or_default().iter().map(queue_point).collect(),
        };
        self.taken = (rates.len(), queues.len());
        // Lists of numbers always have a form in JSON.
        serde_json::to_string(&points).unwrap_or_default()
    }

    /// Returns the names of flows and ports as JSON: `flows` with `number`, `source`, `destination` and
    /// `bytes`, and `ports`.
    #[must_use]
    pub fn names(&self) -> String {
        let mut flows = Vec::with_capacity(self.flows.len());
        for (number, (source, destination, bytes)) in self.flows.iter().enumerate() {
            flows.push(json!({
                "number": number, "source": source, "destination": destination, "bytes": bytes,
            }));
        }
        json!({ "flows": flows, "ports": self.ports }).to_string()
    }

    /// Returns the results as JSON. Ends the run if it has not ended, so that later calls of
    /// [`run`](Self::run) return `false`.
    ///
    /// `trace_hash` is the hash that `roce sim` prints, and `command` the command with the same run.
    #[must_use]
    pub fn results(&self) -> String {
        let Some(results) = self.end() else { return Value::Null.to_string() };
        let flows = self.flows.iter().zip(&results.flows).enumerate();
        let flows = flows.map(|(number, (names, flow))| flow_result(number, names, flow));
        let flows: Vec<Value> = flows.collect();
        let jain = Some(results.jain()).filter(|jain| *jain > 0.0);
        json!({
            "trace_hash": format!("{:016x}", results.trace_hash), "end_us": micros(results.end),
            "events": results.events, "data_packets": results.data_packets, "incomplete": results.incomplete(),
            "jain": jain, "deadlocks": results.deadlocks.len(), "points_left_out": results.points_left_out,
            "flows": flows, "ports": results.ports.iter().map(port_result).collect::<Vec<_>>(),
            "expectation": self.expectation, "command": self.command,
        })
        .to_string()
    }
}

fn micros(time: Time) -> f64 {
    time.as_ps() as f64 / 1e6
}

fn rate_point(point: &RatePoint) -> RateRow {
    let RatePoint { time, flow, goodput_bps, rate_bps, target_bps, alpha } = *point;
    (micros(time), flow, goodput_bps, rate_bps, target_bps, alpha)
}

fn queue_point(point: &QueuePoint) -> QueueRow {
    (micros(point.time), point.port, point.bytes, micros(point.paused))
}

fn flow_result(number: usize, names: &(String, String, u64), flow: &FlowResult) -> Value {
    let ((source, destination, _), counts) = (names, flow.counts);
    json!({
        "number": number, "source": source, "destination": destination, "bytes": flow.spec.bytes,
        "start_us": micros(flow.spec.start), "state": flow.state.name(), "failure": flow.state.failure(),
        "completion_us": flow.completion_time.map(micros), "ideal_us": flow.ideal.map(micros),
        "slowdown": flow.slowdown(), "goodput_bps": flow.completion_time.map(|_| flow.goodput_bps()),
        "packets": counts.packets, "retransmitted": counts.retransmitted, "timeouts": counts.timeouts,
        "marked": counts.marked, "cnps_sent": counts.cnps_sent, "cnps_handled": counts.cnps_handled,
        "out_of_sequence": counts.out_of_sequence, "delivered": counts.delivered,
    })
}

fn port_result(port: &PortResult) -> Value {
    let stats = &port.stats;
    let dropped = DropReason::ALL.into_iter().zip(stats.dropped).filter(|(_, count)| *count > 0);
    let dropped: serde_json::Map<String, Value> =
        dropped.map(|(reason, count)| (reason.name().to_owned(), count.into())).collect();
    json!({
        "name": port.name, "is_host": port.is_host, "tx_frames": stats.tx_frames, "tx_bytes": stats.tx_bytes,
        "marked": stats.marked, "trimmed": stats.trimmed, "dropped": dropped,
        "pauses_sent": stats.pauses_sent, "pauses_received": stats.pauses_received,
        "paused_us": stats.paused.iter().map(|time| micros(*time)).sum::<f64>(),
        "queue_most_bytes": stats.queue_most,
    })
}

/// Returns the command with the same run.
fn command(text: &str, sets: &[(String, String)]) -> String {
    let shipped = SHIPPED.iter().find(|(_, shipped)| *shipped == text).map(|(name, _)| *name);
    let mut command = format!("roce sim {}", shipped.unwrap_or("scenario.toml"));
    for (name, value) in sets {
        command.push_str(" --set ");
        command.push_str(&quoted(&format!("{name}={value}")));
    }
    command
}

/// Returns a word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "=.,:_/%+-".contains(sign);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_does_the_same_run() {
        let sets = [("seed", "3"), ("switch.marking", "{ kmin = \"5KB\" }"), ("name", "it's")];
        let sets = sets.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let expected = "roce sim two-to-one --set seed=3 --set 'switch.marking={ kmin = \"5KB\" }' \
                        --set 'name=it'\\''s'";
        let text = roce_scenario::shipped("two-to-one").unwrap();
        assert_eq!(command(text, &sets), expected);
        assert_eq!(command("name = \"own\"", &[]), "roce sim scenario.toml");
    }
}
