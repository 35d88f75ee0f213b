//! Time series of a bridge as CSV files, in the format of `roce sim --out`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use roce_bridge::{Bridge, Counts, QueuePairCounts, Side};

/// The files rates.csv and queues.csv.
pub(super) struct Series {
    dir: PathBuf,
    rates: BufWriter<File>,
    queues: BufWriter<File>,
    interval: Duration,
    next: Duration,
    last: Duration,
    before: [BTreeMap<u32, QueuePairCounts>; 2],
    counts: [Counts; 2],
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
                "time_us,from,queue_pair,qpn,packets,sent_gbps,cnps,naks,retransmissions",
            )?,
            queues: create("queues.csv", "time_us,from,bytes,marked,dropped,cnps,forwarded_gbps")?,
            interval,
            next: interval,
            last: Duration::ZERO,
            before: Default::default(),
            counts: Default::default(),
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
        let gigabits = |bytes: u64| bytes as f64 * 8.0 / seconds / 1e9;
        let from = side.name();
        for one in bridge.queue_pairs(side) {
            let before = self.before[side as usize].insert(one.relative_qp, *one).unwrap_or_default();
            writeln!(
                self.rates,
                "{time_us:.3},{from},{},{},{},{:.6},{},{},{}",
                one.relative_qp,
                one.qpn,
                one.packets - before.packets,
                gigabits(one.payload_bytes - before.payload_bytes),
                one.cnps - before.cnps,
                one.naks - before.naks,
                one.retransmissions - before.retransmissions,
            )?;
        }
        let (now, before) = (bridge.counts(side), &self.counts[side as usize]);
        writeln!(
            self.queues,
            "{time_us:.3},{from},{},{},{},{},{:.6}",
            now.queue_bytes,
            now.marked() - before.marked(),
            now.dropped() - before.dropped(),
            now.cnps - before.cnps,
            gigabits(now.forwarded_bytes - before.forwarded_bytes),
        )?;
        self.counts[side as usize] = now;
        Ok(())
    }

    /// Flushes the files and returns the first error.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let result = self.error.take().map_or(Ok(()), Err);
        let result = result.and_then(|()| self.rates.flush()).and_then(|()| self.queues.flush());
        result.with_context(|| format!("cannot write to {}", self.dir.display()))
    }
}
