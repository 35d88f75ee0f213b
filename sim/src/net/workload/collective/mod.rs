//! Collective operations and training steps as tasks of hosts, and their results.

mod algorithms;
mod plan;
mod training;

use std::sync::Arc;

use super::{TaskId, WorkloadError};
use crate::net::time::Time;

pub use plan::Plan;
pub use training::{DataParallel, Pipeline};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Every host gets the sum of the buffers of all hosts.
    AllReduce,
    /// Every host gets its part of the sum of the buffers of all hosts.
    ReduceScatter,
    /// Every host gets the parts of all hosts.
    AllGather,
    /// Every host gets one part of the buffer of each other host.
    AllToAll,
    /// Every host gets the buffer of the first host.
    Broadcast,
    /// A step of training: computation and what has to be exchanged for it.
    Step,
}

/// How a collective operation moves its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationAlgorithm {
    /// Each host sends to the next one of the list and the last one to the first; a broadcast ends at the last one.
    Ring,
    /// A binary tree whose root is the first host of the list.
    Tree,
    /// Two binary trees, each for half of the data: an inner host of one is a leaf of the other.
    DoubleTree,
    /// Exchanges with hosts at distances of n/2, n/4, … 1, with halves of the data, and back; n is a power of two.
    HalvingDoubling,
    /// n - 1 rounds; in round `r` host `i` sends to host `i + r`, after it has sent and received in the round before.
    Pairwise,
    /// As pairwise, but all transfers begin at once.
    Direct,
}

impl OperationKind {
    /// The name in scenarios and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllToAll => "all-to-all",
            Self::Broadcast => "broadcast",
            Self::Step => "step",
        }
    }

    /// The ratio of bus bandwidth to algorithm bandwidth among `hosts` hosts, as nccl-tests defines it; `None` for a step of
    /// training.
    #[must_use]
    pub fn bus_factor(self, hosts: usize) -> Option<f64> {
        let n = hosts.max(1) as f64;
        match self {
            Self::AllReduce => Some(2.0 * (n - 1.0) / n),
            Self::ReduceScatter | Self::AllGather | Self::AllToAll => Some((n - 1.0) / n),
            Self::Broadcast => Some(1.0),
            Self::Step => None,
        }
    }
}

impl OperationAlgorithm {
    /// The name in scenarios and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::DoubleTree => "double-tree",
            Self::HalvingDoubling => "halving-doubling",
            Self::Pairwise => "pairwise",
            Self::Direct => "direct",
        }
    }
}

/// The parameters of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collective<'a> {
    /// What it does.
    pub kind: OperationKind,
    /// How it does it.
    pub algorithm: OperationAlgorithm,
    /// Bytes of the whole buffer of a host: the input of an all-reduce, reduce-scatter, all-to-all or broadcast, and the
    /// output of an all-gather.
    pub bytes: u64,
    /// Longer parts are cut into pieces of at most this size, each of which goes on as soon as it has arrived. Ring, tree and
    /// double tree only.
    pub chunk: Option<u64>,
    /// The share of each host in the buffers of an all-to-all; equal without it.
    pub shares: Option<&'a [f64]>,
}

/// An operation among hosts, as tasks of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The name of the table, or what else it is called in results.
    pub name: String,
    /// How often the same operation ran before.
    pub iteration: u32,
    /// What it does.
    pub kind: OperationKind,
    /// How; `None` for a step of training.
    pub algorithm: Option<OperationAlgorithm>,
    /// Bytes of the whole buffer of a host.
    pub bytes: u64,
    /// Its hosts.
    pub hosts: Arc<[u32]>,
    /// The task of each host with whose end the operation begins there.
    pub begins: Vec<TaskId>,
    /// The task of each host with whose end the operation has ended there: all has arrived, and all that it sent is
    /// acknowledged.
    pub ends: Vec<TaskId>,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationResult {
    /// The time at which the first host began; `None` if none did.
    pub begin: Option<Time>,
    /// From then to the end at the last host; `None` unless it ended at all hosts.
    pub time: Option<Time>,
    /// The host that ended last, and how long after the median of all hosts; `None` as for the time.
    pub straggler: Option<(u32, Time)>,
    /// Bytes of a buffer per time, in bits per second.
    pub algorithm_bps: Option<f64>,
    /// The same times the factor of nccl-tests, which makes it the rate that each link has to carry at least.
    pub bus_bps: Option<f64>,
}

impl Operation {
    /// The result, from the end of each task: [`Results::task_ends`](crate::net::Results::task_ends).
    #[must_use]
    pub fn result(&self, task_ends: &[Option<Time>]) -> OperationResult {
        let at = |task: &TaskId| task_ends.get(*task as usize).copied().flatten();
        let begin = self.begins.iter().filter_map(at).min();
        let ends: Option<Vec<Time>> = self.ends.iter().map(at).collect();
        let straggler = ends.and_then(|ends| {
            let (last, host) =
                ends.iter().copied().zip(self.hosts.iter().copied()).max_by_key(|end| end.0)?;
            let mut sorted = ends;
            sorted.sort_unstable();
            let median = *sorted.get((sorted.len() - 1) / 2)?;
            Some((host, last, median))
        });
        let time = begin.and_then(|begin| straggler.map(|(_, last, _)| last.since(begin)));
        let rate = |time: Time| self.bytes as f64 * 8.0 / time.as_secs_f64();
        let factor = self.kind.bus_factor(self.hosts.len());
        let algorithm_bps = time.filter(|time| *time > Time::ZERO && factor.is_some()).map(rate);
        OperationResult {
            begin,
            time,
            straggler: straggler.map(|(host, last, median)| (host, last.since(median))),
            algorithm_bps,
            bus_bps: algorithm_bps.zip(factor).map(|(rate, factor)| rate * factor),
        }
    }
}

/// Shares of hosts in an uneven all-to-all, as the experts of a mixture of experts have them: the k-th most popular host has a
/// share that is proportional to `k^-skew`, and a draw decides which host that is.
///
/// # Errors
///
/// The exponent is not a number from 0 to 10.
pub fn uneven_shares(hosts: usize, skew: f64, seed: u64) -> Result<Vec<f64>, WorkloadError> {
    if !(0.0..=10.0).contains(&skew) {
        return Err(WorkloadError(format!("a skew of {skew} is not a number from 0 to 10")));
    }
    let mut shares: Vec<f64> = (1..=hosts).map(|place| (place as f64).powf(-skew)).collect();
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
    super::shuffle(&mut shares, seed, 0x91);
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_the_bandwidths_of_nccl_tests_and_the_straggler() {
        let operation = Operation {
            name: "x".to_owned(),
            iteration: 0,
            kind: OperationKind::AllReduce,
            algorithm: Some(OperationAlgorithm::Ring),
            bytes: 1_000_000,
            hosts: [7, 5, 6, 4].into(),
            begins: vec![0, 1, 2, 3],
            ends: vec![4, 5, 6, 7],
        };
        let mut ends: Vec<Option<Time>> =
            [2, 1, 3, 4, 90, 101, 80, 85].map(|us| Some(Time::from_us(us))).into();
        let result = operation.result(&ends);
        assert_eq!((result.begin, result.time), (Some(Time::from_us(1)), Some(Time::from_us(100))));
        assert_eq!(result.straggler, Some((5, Time::from_us(16))), "the median of four is the second");
        // A megabyte in 100 µs is 80 Gb/s; 2 × 3 / 4 of that.
        assert!((result.algorithm_bps.unwrap() - 80e9).abs() < 1.0);
        assert!((result.bus_bps.unwrap() - 120e9).abs() < 1.0);
        ends[6] = None;
        let result = operation.result(&ends);
        assert_eq!((result.begin, result.time, result.bus_bps), (Some(Time::from_us(1)), None, None));
        assert_eq!(operation.result(&[]).begin, None);
    }

    #[test]
    fn uneven_shares_are_shares() {
        let shares = uneven_shares(16, 1.0, 3).unwrap();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let mut sorted = shares.clone();
        sorted.sort_by(f64::total_cmp);
        assert!((sorted[15] / sorted[0] - 16.0).abs() < 1e-9);
        assert_ne!(shares, sorted);
        assert_ne!(shares, uneven_shares(16, 1.0, 4).unwrap());
        assert!(uneven_shares(4, 0.0, 1).unwrap().iter().all(|share| (share - 0.25).abs() < 1e-9));
        assert!(uneven_shares(4, f64::NAN, 1).is_err() && uneven_shares(4, -1.0, 1).is_err());
    }
}
