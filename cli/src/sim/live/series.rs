//! The data of the live view: a line for each flow and each port, thinned as it grows.

use std::collections::BTreeMap;

use roce_scenario::Scenario;
use roce_sim::net::{QueuePoint, RatePoint, Simulation, Time};

/// Number of points of a line after thinning, more than a terminal has columns. A line is thinned at twice
/// this number.
const MAX_POINTS: usize = 1_000;

/// Points in ascending order of time.
#[derive(Debug, Default)]
pub(super) struct Points(Vec<(f64, f64)>);

impl Points {
    pub(super) fn all(&self) -> &[(f64, f64)] {
        &self.0
    }

    pub(super) fn last(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, value)| *value)
    }

    fn push(&mut self, at: f64, value: f64) {
        self.0.push((at, value));
        if self.0.len() >= 2 * MAX_POINTS {
            // The newest point is kept.
            let mut keep = self.0.len().is_multiple_of(2);
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }
}

/// The line of a flow.
#[derive(Debug)]
pub(super) struct FlowLine {
    pub(super) ends: String,
    /// Goodput in Gb/s over time in ms.
    pub(super) goodput: Points,
    pub(super) last: RatePoint,
}

impl FlowLine {
    /// Returns whether the flow was running at the last sample.
    pub(super) fn is_running(&self, series: &Series) -> bool {
        self.last.time == series.sampled
    }
}

/// The line of a port of a switch or a host whose queue was not empty at some sample.
#[derive(Debug)]
pub(super) struct PortLine {
    pub(super) name: String,
    /// Queue in kilobytes over time in ms.
    pub(super) queue: Points,
    pub(super) max_kb: f64,
    pub(super) marked: u64,
    pub(super) paused: Time,
    seen: Time,
}

/// The lines of all flows and ports.
#[derive(Debug, Default)]
pub(super) struct Series {
    pub(super) flows: BTreeMap<u32, FlowLine>,
    pub(super) ports: BTreeMap<u32, PortLine>,
    interval: Time,
    sampled: Time,
    /// Number of rate points and queue points taken from the simulation.
    taken: (usize, usize),
}

impl Series {
    /// Takes the points that were sampled since the last call.
    pub(super) fn take(&mut self, scenario: &Scenario, simulation: &Simulation) {
        self.interval = scenario.settings.measure.interval;
        for point in simulation.rates().get(self.taken.0..).unwrap_or_default() {
            self.take_rate(scenario, point);
        }
        for point in simulation.queues().get(self.taken.1..).unwrap_or_default() {
            self.take_queue(point, simulation);
        }
        self.taken = (simulation.rates().len(), simulation.queues().len());
        // Empty queues are not sampled.
        for port in self.ports.values_mut().filter(|port| port.seen < self.sampled) {
            if port.queue.last() > 0.0 {
                port.queue.push(ms(port.seen) + ms(self.interval), 0.0);
            }
        }
    }

    fn take_rate(&mut self, scenario: &Scenario, point: &RatePoint) {
        self.sampled = self.sampled.max(point.time);
        let line = self.flows.entry(point.flow).or_insert_with(|| {
            let spec = scenario.flows.get(point.flow as usize);
            FlowLine {
                ends: spec
                    .map_or_else(String::new, |spec| format!("{} to {}", spec.source, spec.destination)),
                goodput: Points::default(),
                last: *point,
            }
        });
        line.goodput.push(ms(point.time), point.goodput_bps / 1e9);
        line.last = *point;
    }

    fn take_queue(&mut self, point: &QueuePoint, simulation: &Simulation) {
        self.sampled = self.sampled.max(point.time);
        let line = self.ports.entry(point.port).or_insert_with(|| PortLine {
            name: simulation.port_name(point.port).to_owned(),
            queue: Points::default(),
            max_kb: 0.0,
            marked: 0,
            paused: Time::ZERO,
            seen: point.time,
        });
        let (before, step) = (ms(line.seen), ms(self.interval));
        if ms(point.time) - before > 1.5 * step && line.queue.last() > 0.0 {
            line.queue.push(before + step, 0.0);
        }
        if line.queue.last() == 0.0 {
            line.queue.push(ms(point.time) - step, 0.0);
        }
        let kilobytes = point.bytes as f64 / 1e3;
        line.queue.push(ms(point.time), kilobytes);
        line.max_kb = line.max_kb.max(kilobytes);
        (line.marked, line.paused, line.seen) = (point.marked, point.paused, point.time);
    }

    /// Returns the time of the last sample.
    pub(super) fn now_ms(&self) -> f64 {
        ms(self.sampled)
    }

    /// Returns the ports with the longest queues, longest first.
    pub(super) fn longest_queues(&self, most: usize) -> Vec<&PortLine> {
        let mut ports: Vec<&PortLine> = self.ports.values().collect();
        ports.sort_by(|one, other| other.max_kb.total_cmp(&one.max_kb));
        ports.truncate(most);
        ports
    }
}

pub(super) fn ms(time: Time) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_thinned_and_keeps_its_end() {
        let mut points = Points::default();
        for number in 0..10_000 {
            points.push(f64::from(number), f64::from(number));
            assert!(points.all().len() < 2 * MAX_POINTS);
            assert_eq!(points.last(), f64::from(number));
        }
        assert!(points.all().len() >= MAX_POINTS / 2);
        assert!(points.all().windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
