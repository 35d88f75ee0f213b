//! Collective operations and training steps as tasks of hosts, and their results.

mod algorithms;
mod experts;
mod hierarchical;
mod plan;
mod training;

use std::sync::Arc;

use super::{TaskId, WorkloadError};
use crate::net::time::Time;

pub use experts::MixtureOfExperts;
pub use plan::Plan;
pub use training::{DataParallel, Pipeline};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Every host receives the sum of the buffers of all hosts.
    AllReduce,
    /// Every host receives its part of the sum of the buffers of all hosts.
    ReduceScatter,
    /// Every host receives the parts of all hosts.
    AllGather,
    /// Every host receives one part of the buffer of each other host.
    AllToAll,
    /// Every host receives the buffer of the first host.
    Broadcast,
    /// A training step: computation and the data exchange that it requires.
    Step,
}

/// The algorithm that moves the data of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationAlgorithm {
    /// Each host sends to the next host of the list, and the last host to the first. A broadcast ends at the
    /// last host.
    Ring,
    /// A binary tree whose root is the first host of the list.
    Tree,
    /// Two binary trees, each for half of the data. An inner host of one tree is a leaf of the other.
    DoubleTree,
    /// Exchanges with hosts at distances of n/2, n/4, … 1, with halves of the data, and back. Requires that n
    /// is a power of two.
    HalvingDoubling,
    /// n - 1 rounds. In round `r`, host `i` sends to host `i + r` after it has sent and received in the
    /// previous round.
    Pairwise,
    /// Like pairwise, but all transfers begin at once.
    Direct,
    /// Through the scale-up network within domains, and between hosts with the same place in their domains
    /// across them. Requires domains with as many hosts of the operation each, at the same places.
    Hierarchical,
}

impl OperationKind {
    /// Returns the name in scenarios and results.
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

    /// Returns the ratio of bus bandwidth to algorithm bandwidth among `hosts` hosts, as defined by
    /// nccl-tests, or `None` for a training step.
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
    /// Returns the name in scenarios and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::DoubleTree => "double-tree",
            Self::HalvingDoubling => "halving-doubling",
            Self::Pairwise => "pairwise",
            Self::Direct => "direct",
            Self::Hierarchical => "hierarchical",
        }
    }

    /// Returns whether the algorithm can carry out operations of this kind.
    #[must_use]
    pub const fn applies_to(self, kind: OperationKind) -> bool {
        use OperationKind as Kind;
        match self {
            Self::Ring => !matches!(kind, Kind::AllToAll | Kind::Step),
            Self::Tree => matches!(kind, Kind::AllReduce | Kind::Broadcast),
            Self::DoubleTree => matches!(kind, Kind::AllReduce),
            Self::HalvingDoubling => matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather),
            Self::Pairwise | Self::Direct | Self::Hierarchical => {
                !matches!(kind, Kind::Broadcast | Kind::Step)
            }
        }
    }

    /// Returns whether the algorithm can divide an operation of this kind into pieces.
    #[must_use]
    pub const fn has_chunks(self, kind: OperationKind) -> bool {
        match self {
            Self::Ring | Self::Tree | Self::DoubleTree => true,
            Self::HalvingDoubling | Self::Pairwise | Self::Direct => false,
            Self::Hierarchical => !matches!(kind, OperationKind::AllToAll),
        }
    }
}

/// The parameters of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collective<'a> {
    /// The kind of operation.
    pub kind: OperationKind,
    /// The algorithm.
    pub algorithm: OperationAlgorithm,
    /// Bytes of the whole buffer of a host: the input of an all-reduce, reduce-scatter, all-to-all or
    /// broadcast, and the output of an all-gather.
    pub bytes: u64,
    /// The maximum size of a piece. Longer parts are divided into pieces, each of which is forwarded when it
    /// has arrived. Supported by ring, tree, double tree and, except for all-to-all, hierarchical.
    pub chunk: Option<u64>,
    /// The share of each host in the buffers of an all-to-all. `None` uses equal shares.
    pub shares: Option<&'a [f64]>,
    /// Whether each host sends its share to every other host, as experts do that return their results.
    /// Otherwise, each host receives its share from every other host.
    pub combines: bool,
    /// The maximum number of transfers to a host that are under way. Each one begins when a message of the
    /// receiver has cleared it, in the order of the algorithm. `None` lets senders send at any time.
    pub clear_to_send: Option<u32>,
    /// Number of queue pairs from one host to another, at least 1. Their transfers take turns.
    pub queue_pairs: u32,
}

impl Collective<'_> {
    /// Returns an operation with equal shares, whose senders send at any time.
    #[must_use]
    pub const fn of(
        kind: OperationKind,
        algorithm: OperationAlgorithm,
        bytes: u64,
        chunk: Option<u64>,
    ) -> Self {
        Self {
            kind,
            algorithm,
            bytes,
            chunk,
            shares: None,
            combines: false,
            clear_to_send: None,
            queue_pairs: 1,
        }
    }
}

/// An operation among hosts, as tasks of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The name of the operation's table, or another name in results.
    pub name: String,
    /// The number of previous runs of the same operation.
    pub iteration: u32,
    /// The kind of operation.
    pub kind: OperationKind,
    /// The algorithm, or `None` for a training step.
    pub algorithm: Option<OperationAlgorithm>,
    /// Bytes of the whole buffer of a host.
    pub bytes: u64,
    /// The hosts of the operation.
    pub hosts: Arc<[u32]>,
    /// The task of each host whose end is the begin of the operation there.
    pub begins: Vec<TaskId>,
    /// The task of each host whose end is the end of the operation there: all data has arrived, and all sent
    /// data is acknowledged.
    pub ends: Vec<TaskId>,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationResult {
    /// The time at which the first host began, or `None` if no host did.
    pub begin: Option<Time>,
    /// The time from the begin to the end at the last host, or `None` unless the operation ended at all
    /// hosts.
    pub time: Option<Time>,
    /// The host that ended last, and its delay relative to the median of all hosts. `None` unless the
    /// operation ended at all hosts.
    pub straggler: Option<(u32, Time)>,
    /// Bytes of a buffer per time, in bits per second.
    pub algorithm_bps: Option<f64>,
    /// [`Self::algorithm_bps`] times the factor of nccl-tests: without a scale-up network, the minimum rate
    /// that each link must carry.
    pub bus_bps: Option<f64>,
}

impl Operation {
    /// Returns the result from the end of each task: [`Results::task_ends`](crate::net::Results::task_ends).
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

/// Returns the shares of hosts in an uneven all-to-all, as for a mixture of experts. The share of the k-th
/// most popular host is proportional to `k^-skew`. The order of popularity is random.
///
/// # Errors
///
/// Returns an error if the exponent is not a number from 0 to 10.
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
        // A megabyte in 100 µs is 80 Gb/s. The bus bandwidth is 2 × 3 / 4 of that.
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
