//! The series and distributions of a run that figures of several runs show.

use std::path::Path;

use roce_machine::text_file;
use roce_sim::net::Results;

use crate::data::summary::Summary;

/// What a figure shows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// Time in milliseconds, and the payload that all flows sent in Gb/s.
    Total,
    /// Bytes in the longest queue of a switch in KB, and the percentage of samples with at most these.
    Queue,
    /// Completion time in milliseconds, and the percentage of flows that took at most this time.
    Times,
}

impl Series {
    /// Returns the points of a run.
    #[must_use]
    pub fn of(self, results: &Results) -> Vec<(f64, f64)> {
        match self {
            Self::Total => {
                let points = results.totals.iter();
                points.map(|point| (point.time.as_secs_f64() * 1e3, point.goodput_bps / 1e9)).collect()
            }
            Self::Queue => {
                let Some(port) = results.longest_queue() else { return Vec::new() };
                let all = port.queue.count() as f64;
                let steps = port.queue.steps();
                steps.map(|(bytes, count)| (bytes as f64 / 1e3, 100.0 * count as f64 / all)).collect()
            }
            Self::Times => {
                let times = results.completion_times().into_iter().map(|time| time.as_secs_f64() * 1e3);
                shares(times.collect(), results.flows.len())
            }
        }
    }

    /// Reads the points of a run from the directory of its report. Returns no points if a file is missing.
    #[must_use]
    pub fn read(self, dir: &Path, run: &Summary) -> Vec<(f64, f64)> {
        let read = |file: &str, x: &str, y: &str| columns(&dir.join(file), x, y).unwrap_or_default();
        let thousandth = |(x, y): (f64, f64)| (x / 1e3, y);
        match self {
            Self::Total => read("total.csv", "time_us", "sent_gbps").into_iter().map(thousandth).collect(),
            Self::Queue => read("queue_cdf.csv", "bytes", "percent").into_iter().map(thousandth).collect(),
            Self::Times => {
                let times = read("flows.csv", "completion_us", "bytes");
                let mut times: Vec<f64> = times.into_iter().map(|(us, _)| us / 1e3).collect();
                times.sort_by(f64::total_cmp);
                shares(times, run.flows)
            }
        }
    }
}

/// Returns the percentage of all flows that took at most each of these times, in ascending order.
fn shares(times: Vec<f64>, flows: usize) -> Vec<(f64, f64)> {
    (1..).zip(times).map(|(rank, time)| (time, 100.0 * f64::from(rank) / flows as f64)).collect()
}

/// Reads two columns of a table that this program wrote. Lines where one of them is empty are left out.
fn columns(path: &Path, x: &str, y: &str) -> Option<Vec<(f64, f64)>> {
    let text = text_file::read_text(path).ok()?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next()?.split(',').collect();
    let place = |name: &str| head.iter().position(|column| *column == name);
    let (x, y) = (place(x)?, place(y)?);
    let point = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        Some((cells.get(x)?.parse().ok()?, cells.get(y)?.parse().ok()?))
    };
    Some(lines.filter_map(point).collect())
}
