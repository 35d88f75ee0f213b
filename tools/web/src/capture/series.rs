//! What both ends of a connection put on the wire over time.

use roce_analysis::Analysis;
use roce_analysis::connection::Connection;
use roce_analysis::ladder::{Marks, points};
use roce_analysis::record::Record;
use roce_packet::Operation;
use serde::Serialize;

/// Maximum number of intervals.
pub(super) const MOST_INTERVALS: usize = 10_000;

/// Counts of equal intervals, from the first packet of a connection to the last.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    /// Beginning of each interval, in microseconds since the first packet.
    t_us: Vec<f64>,
    /// Bytes of payload from each end, every copy counted.
    bytes: [Vec<u64>; 2],
    /// Packets with an ECN mark.
    marks: Vec<u64>,
    /// Congestion notifications.
    cnps: Vec<u64>,
    /// Packets that were sent again.
    again: Vec<u64>,
}

impl Series {
    /// Counts the packets of a connection, as the tap near end 0 shows them. Without packets, no interval
    /// exists.
    pub(super) fn of(analysis: &Analysis, connection: &Connection, intervals: usize) -> Self {
        let indices = connection.view_of(0).map_or(&[][..], |view| &view.indices);
        let records: Vec<&Record> = indices.iter().filter_map(|index| analysis.records.get(*index)).collect();
        let times = || records.iter().map(|record| record.time_ns);
        let (Some(first), Some(last)) = (times().min(), times().max()) else { return Self::empty(0) };
        let width = ((last - first) / intervals.max(1) as u64).saturating_add(1);
        let at = |time_ns: u64| {
            let interval = time_ns.saturating_sub(first) / width;
            usize::try_from(interval).unwrap_or(usize::MAX).min(intervals.saturating_sub(1))
        };
        let mut series = Self::empty(intervals);
        series.t_us = (0..intervals).map(|interval| interval as f64 * width as f64 / 1e3).collect();
        let stream = connection.streams.first().copied().flatten();
        for record in &records {
            let interval = at(record.time_ns);
            let from = usize::from(Some(record.stream) != stream);
            if let Some(bytes) = series.bytes.get_mut(from).and_then(|bytes| bytes.get_mut(interval)) {
                *bytes += u64::from(record.payload_len);
            }
            let is_cnp = record.info().is_some_and(|info| info.operation == Operation::Cnp);
            add(&mut series.marks, interval, record.ecn() == 0b11);
            add(&mut series.cnps, interval, is_cnp);
        }
        for point in points(analysis, connection) {
            let is_again = !point.is_answer && point.marks.contains(Marks::RESENT);
            add(&mut series.again, at(point.time_ns), is_again);
        }
        series
    }

    fn empty(intervals: usize) -> Self {
        let zeros = || vec![0; intervals];
        Self { t_us: Vec::new(), bytes: [zeros(), zeros()], marks: zeros(), cnps: zeros(), again: zeros() }
    }
}

fn add(counts: &mut [u64], interval: usize, is_one: bool) {
    if let Some(count) = counts.get_mut(interval) {
        *count += u64::from(is_one);
    }
}
