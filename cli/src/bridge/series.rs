//! Time series of a bridge as CSV files, with the columns and units of `roce sim --out`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use roce_bridge::{Bridge, Side};
use roce_sim::net::port_name;

/// The files rates.csv and queues.csv.
pub(super) struct Series {
    dir: PathBuf,
    rates: BufWriter<File>,
    queues: BufWriter<File>,
    interval: Duration,
    next: Duration,
    last: Duration,
    /// For each direction: the payload bytes of each queue pair at the last sample.
    payload: [BTreeMap<u32, u64>; 2],
    /// The first write error; nothing is written after it.
    error: Option<io::Error>,
}

impl Series {
    /// Creates the files, and the directory if it does not exist.
    pub(super) fn create(dir: &Path, interval: Duration) -> anyhow::Result<Self> {
        ensure!(!interval.is_zero(), "--interval must be greater than 0, such as 10ms");
        fs::create_dir_all(dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
        let create = |name: &str, heading: &str| {
            let path = dir.join(name);
            let file = File::create(&path).map(BufWriter::new);
            file.and_then(|mut file| writeln!(file, "{heading}").map(|()| file))
                .with_context(|| format!("cannot write {}", path.display()))
        };
        Ok(Self {
            dir: dir.to_owned(),
            rates: create(
                "rates.csv",
                "time_us,port,queue_pair,qpn,sent_gbps,packets,retransmitted,cnps_sent,naks",
            )?,
            queues: create(
                "queues.csv",
                "time_us,port,bytes,marked,tx_frames,tx_bytes,dropped_buffer,dropped_link,cnps_sent",
            )?,
            interval,
            next: interval,
            last: Duration::ZERO,
            payload: Default::default(),
            error: None,
        })
    }

    /// Returns the time of the next sample.
    pub(super) const fn next(&self) -> Duration {
        self.next
    }

    /// Writes a sample if one is due.
    pub(super) fn sample(&mut self, since_start: Duration, bridge: &Bridge) {
        if since_start < self.next {
            return;
        }
        self.error = Side::BOTH.into_iter().try_for_each(|side| self.write(since_start, bridge, side)).err();
        self.last = since_start;
        self.next = (self.next + self.interval).max(since_start);
        if self.error.is_some() {
            self.next = Duration::MAX;
        }
    }

    fn write(&mut self, since_start: Duration, bridge: &Bridge, side: Side) -> io::Result<()> {
        let time_us = since_start.as_secs_f64() * 1e6;
        let seconds = (since_start - self.last).as_secs_f64().max(1e-9);
        let port = port_name(side.name(), side.other().name());
        for one in bridge.queue_pairs(side) {
            let before = self.payload[side as usize].insert(one.relative_qp, one.payload_bytes);
            let sent_bytes = one.payload_bytes - before.unwrap_or_default();
            writeln!(
                self.rates,
                "{time_us:.3},{port},{},{},{:.6},{},{},{},{}",
                one.relative_qp,
                one.qpn,
                sent_bytes as f64 * 8.0 / seconds / 1e9,
                one.packets,
                one.retransmissions,
                one.cnps,
                one.naks,
            )?;
        }
        let now = bridge.counts(side);
        writeln!(
            self.queues,
            "{time_us:.3},{port},{},{},{},{},{},{},{}",
            now.queue_bytes,
            now.marked(),
            now.forwarded_packets,
            now.forwarded_wire_bytes,
            now.queue_dropped + now.no_room,
            now.fault_dropped,
            now.cnps,
        )
    }

    /// Flushes the files and returns the first error.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let result = self.error.take().map_or(Ok(()), Err);
        let result = result.and_then(|()| self.rates.flush()).and_then(|()| self.queues.flush());
        result.with_context(|| format!("cannot write to {}", self.dir.display()))
    }
}
