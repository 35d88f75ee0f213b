//! What goes through a bridge over time, as CSV in the manner of `roce sim --out`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use roce_tools::bridge::{Bridge, Counts, QueuePairCounts, Side};

/// Two files that grow.
pub(super) struct Series {
    dir: PathBuf,
    rates: BufWriter<File>,
    queues: BufWriter<File>,
    interval: Duration,
    next: Duration,
    last: Duration,
    before: [BTreeMap<u32, QueuePairCounts>; 2],
    counts: [Counts; 2],
    /// The first error, after which nothing is written.
    failed: Option<io::Error>,
}

impl Series {
    /// Makes the directory, if it is missing, and the files.
    pub(super) fn create(dir: &Path, interval: Duration) -> anyhow::Result<Self> {
        ensure!(!interval.is_zero(), "--interval takes a time above 0, such as 10ms");
        fs::create_dir_all(dir).with_context(|| format!("making the directory {}", dir.display()))?;
        let create = |name: &str, heading: &str| {
            let path = dir.join(name);
            let file = File::create(&path).map(BufWriter::new);
            file.and_then(|mut file| writeln!(file, "{heading}").map(|()| file))
                .with_context(|| format!("writing {}", path.display()))
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
            failed: None,
        })
    }

    /// When [`look`](Self::look) has something to do.
    pub(super) const fn next(&self) -> Duration {
        self.next
    }

    /// Writes lines if it is time to.
    pub(super) fn look(&mut self, since_start: Duration, bridge: &Bridge) {
        if since_start < self.next {
            return;
        }
        self.failed = Side::BOTH.into_iter().try_for_each(|side| self.write(since_start, bridge, side)).err();
        self.last = since_start;
        self.next = (self.next + self.interval).max(since_start);
        if self.failed.is_some() {
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

    /// Says whether everything is in the files.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let result = self.failed.take().map_or(Ok(()), Err);
        let result = result.and_then(|()| self.rates.flush()).and_then(|()| self.queues.flush());
        result.with_context(|| format!("writing into {}", self.dir.display()))
    }
}
