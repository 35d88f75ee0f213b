//! The tables of collective operations and of training, and the operations that they create.

use serde::Deserialize;

use super::Wrong;
use super::hosts::select_hosts;
use super::profile::Profile;
use super::values::{Bytes, Span};
use roce_sim::net::{
    After, Collective, DataParallel, MixtureOfExperts, Operation, OperationAlgorithm, OperationKind,
    Pipeline, Plan, TaskId, Time, Topology, WorkloadError, shuffle, uneven_shares,
};

/// Keys that both kinds of tables have.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) name: Option<String>,
    pub(super) after: Vec<String>,
    pub(super) hosts: Option<Vec<String>>,
    /// The seed of a random order of the hosts.
    pub(super) shuffle: Option<u64>,
    pub(super) start: Time,
    /// The computation before the first operation.
    pub(super) compute: Time,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[collective]]")]
pub(super) struct CollectiveTable {
    kind: Kind,
    name: Option<String>,
    algorithm: Option<Algorithm>,
    bytes: Bytes,
    chunk: Option<Bytes>,
    hosts: Option<Vec<String>>,
    shuffle: Option<u64>,
    start: Option<Span>,
    compute: Option<Span>,
    repeat: Option<u32>,
    #[serde(default)]
    after: Vec<String>,
    host: Option<Profile>,
    skew: Option<f64>,
    seed: Option<u64>,
    clear_to_send: Option<u32>,
    queue_pairs: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Algorithm {
    Ring,
    Tree,
    DoubleTree,
    HalvingDoubling,
    Pairwise,
    Direct,
    Hierarchical,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[training]]")]
pub(super) struct TrainingTable {
    kind: Training,
    name: Option<String>,
    algorithm: Option<Algorithm>,
    bytes: Bytes,
    chunk: Option<Bytes>,
    hosts: Option<Vec<String>>,
    shuffle: Option<u64>,
    start: Option<Span>,
    repeat: Option<u32>,
    #[serde(default)]
    after: Vec<String>,
    host: Option<Profile>,
    forward: Span,
    backward: Span,
    /// For data-parallel training and mixtures of experts, and for stages of several hosts.
    layers: Option<u32>,
    /// For data-parallel training.
    bucket: Option<Bytes>,
    /// For a pipeline.
    stages: Option<u32>,
    tensor: Option<u32>,
    microbatches: Option<u32>,
    /// For a pipeline and mixtures of experts.
    gradients: Option<Bytes>,
    /// For mixtures of experts.
    group: Option<u32>,
    skew: Option<f64>,
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Training {
    DataParallel,
    Pipeline,
    MixtureOfExperts,
}

impl Kind {
    const fn of(self) -> OperationKind {
        match self {
            Self::AllReduce => OperationKind::AllReduce,
            Self::ReduceScatter => OperationKind::ReduceScatter,
            Self::AllGather => OperationKind::AllGather,
            Self::AllToAll => OperationKind::AllToAll,
            Self::Broadcast => OperationKind::Broadcast,
        }
    }
}

impl Training {
    const fn name(self) -> &'static str {
        match self {
            Self::DataParallel => "data-parallel",
            Self::Pipeline => "pipeline",
            Self::MixtureOfExperts => "mixture-of-experts",
        }
    }
}

impl Algorithm {
    pub(super) const fn of(self) -> OperationAlgorithm {
        match self {
            Self::Ring => OperationAlgorithm::Ring,
            Self::Tree => OperationAlgorithm::Tree,
            Self::DoubleTree => OperationAlgorithm::DoubleTree,
            Self::HalvingDoubling => OperationAlgorithm::HalvingDoubling,
            Self::Pairwise => OperationAlgorithm::Pairwise,
            Self::Direct => OperationAlgorithm::Direct,
            Self::Hierarchical => OperationAlgorithm::Hierarchical,
        }
    }
}

const SEED_WITHOUT_SKEW: &str = "seed: it requires `skew`, which is missing";

/// The maximum number of repetitions. A mistyped number must not fill the memory.
const MOST_REPETITIONS: u32 = 100_000;

/// A table of operations.
#[derive(Debug)]
pub(super) enum Operations {
    Collective(CollectiveTable),
    Training(TrainingTable),
}

impl Operations {
    /// Settings of the queue pairs.
    pub(super) fn into_profile(self) -> Option<Profile> {
        match self {
            Self::Collective(table) => table.host,
            Self::Training(table) => table.host,
        }
    }

    /// Returns the key of the table in the file, and its kind, which is also the name of its operations if
    /// the table has none.
    pub(super) fn key_and_kind(&self) -> (&'static str, &'static str) {
        match self {
            Self::Collective(table) => ("collective", table.kind.of().name()),
            Self::Training(table) => ("training", table.kind.name()),
        }
    }

    pub(super) fn common(&self) -> Common {
        let start = |start: Option<Span>| start.map_or(Time::ZERO, |start| start.0);
        match self {
            Self::Collective(table) => Common {
                name: table.name.clone(),
                after: table.after.clone(),
                hosts: table.hosts.clone(),
                shuffle: table.shuffle,
                start: start(table.start),
                compute: start(table.compute),
            },
            Self::Training(table) => Common {
                name: table.name.clone(),
                after: table.after.clone(),
                hosts: table.hosts.clone(),
                shuffle: table.shuffle,
                start: start(table.start),
                compute: Time::ZERO,
            },
        }
    }

    /// Adds the operations to a plan. `before` returns the dependencies of a host before its first operation.
    pub(super) fn add(
        &self,
        plan: &mut Plan<'_>,
        topology: &Topology,
        scenario_seed: u64,
        before: &dyn Fn(u32) -> Result<Vec<After>, Wrong>,
    ) -> Result<Vec<Operation>, Wrong> {
        let common = self.common();
        let mut hosts = select_hosts(topology, common.hosts.as_deref())?;
        if let Some(seed) = common.shuffle {
            shuffle(&mut hosts, seed, 0x92);
        }
        let mut begins = Vec::with_capacity(hosts.len());
        for host in &hosts {
            let begin = plan.compute(*host, common.compute, &before(*host)?);
            begins.push(begin.map_err(text)?);
        }
        match self {
            Self::Collective(table) => table.add(plan, &hosts, begins, scenario_seed),
            Self::Training(table) => table.add(plan, &hosts, &begins, scenario_seed),
        }
    }
}

fn text(error: WorkloadError) -> Wrong {
    error.to_string()
}

impl CollectiveTable {
    fn add(
        &self,
        plan: &mut Plan<'_>,
        hosts: &[u32],
        mut begins: Vec<TaskId>,
        scenario_seed: u64,
    ) -> Result<Vec<Operation>, Wrong> {
        let kind = self.kind.of();
        let default = if kind == OperationKind::AllToAll { Algorithm::Pairwise } else { Algorithm::Ring };
        let algorithm = self.algorithm.unwrap_or(default).of();
        let seed = self.seed.unwrap_or(scenario_seed);
        let shares =
            self.skew.map(|skew| uneven_shares(hosts.len(), skew, seed)).transpose().map_err(text)?;
        if self.seed.is_some() && self.skew.is_none() {
            return Err(SEED_WITHOUT_SKEW.to_owned());
        }
        let what = Collective {
            kind,
            algorithm,
            bytes: self.bytes.0,
            chunk: self.chunk.map(|chunk| chunk.0),
            shares: shares.as_deref(),
            combines: false,
            clear_to_send: self.clear_to_send,
            queue_pairs: self.queue_pairs.unwrap_or(1),
        };
        let repeat = self.repeat.unwrap_or(1);
        if !(1..=MOST_REPETITIONS).contains(&repeat) {
            return Err(format!("repeat: it must be 1 to {MOST_REPETITIONS}"));
        }
        let mut operations = Vec::new();
        for iteration in 0..repeat {
            let name = self.name.clone().unwrap_or_else(|| kind.name().to_owned());
            let added = plan.operation((name, iteration), &what, hosts.into(), begins).map_err(text)?;
            let compute = self.compute.map_or(Time::ZERO, |compute| compute.0);
            begins = if iteration + 1 == repeat {
                Vec::new()
            } else {
                let ranks = hosts.iter().zip(&added.ends);
                let next = ranks.map(|(host, end)| plan.compute(*host, compute, &[After::Done(*end)]));
                next.collect::<Result<_, _>>().map_err(text)?
            };
            operations.push(added);
        }
        Ok(operations)
    }
}

impl TrainingTable {
    fn add(
        &self,
        plan: &mut Plan<'_>,
        hosts: &[u32],
        begins: &[TaskId],
        scenario_seed: u64,
    ) -> Result<Vec<Operation>, Wrong> {
        let missing = |key: &str| format!("this kind of training needs `{key}`");
        let algorithm = self.algorithm.map(Algorithm::of);
        let chunk = self.chunk.map(|chunk| chunk.0);
        let (forward, backward) = (self.forward.0, self.backward.0);
        let (bytes, gradients) = (self.bytes.0, self.gradients.map_or(0, |gradients| gradients.0));
        let steps = self.repeat.unwrap_or(1);
        let name = self.name.as_deref().unwrap_or(self.kind.name());
        self.refuse_foreign_keys()?;
        let added = match self.kind {
            Training::DataParallel => {
                let what = DataParallel {
                    layers: self.layers.ok_or_else(|| missing("layers"))?,
                    forward,
                    backward,
                    bytes,
                    bucket: self.bucket.map_or(25_000_000, |bucket| bucket.0),
                    algorithm: algorithm.unwrap_or(OperationAlgorithm::Ring),
                    chunk,
                    steps,
                };
                plan.data_parallel(name, &what, hosts, begins)
            }
            Training::Pipeline => {
                let tensor = self.tensor.unwrap_or(1);
                if tensor == 1 && self.layers.is_some() {
                    return Err("layers: they matter for hosts of a stage; set `tensor` above 1".to_owned());
                }
                let what = Pipeline {
                    stages: self.stages.unwrap_or(hosts.len() as u32 / tensor.max(1)),
                    tensor,
                    layers: self.layers.unwrap_or(1),
                    microbatches: self.microbatches.ok_or_else(|| missing("microbatches"))?,
                    forward,
                    backward,
                    bytes,
                    gradients,
                    algorithm: algorithm.unwrap_or(OperationAlgorithm::Ring),
                    chunk,
                    steps,
                };
                plan.pipeline(name, &what, hosts, begins)
            }
            Training::MixtureOfExperts => {
                let what = MixtureOfExperts {
                    layers: self.layers.ok_or_else(|| missing("layers"))?,
                    forward,
                    backward,
                    bytes,
                    group: self.group.unwrap_or(hosts.len() as u32),
                    skew: self.skew.map(|skew| (skew, self.seed.unwrap_or(scenario_seed))),
                    gradients,
                    algorithm: algorithm.unwrap_or(OperationAlgorithm::Pairwise),
                    chunk,
                    steps,
                };
                plan.mixture_of_experts(name, &what, hosts, begins)
            }
        };
        added.map_err(text)
    }

    /// Rejects keys of the other kinds, because they have no effect.
    fn refuse_foreign_keys(&self) -> Result<(), Wrong> {
        let own: &[&str] = match self.kind {
            Training::DataParallel => &["layers", "bucket"],
            Training::Pipeline => &["stages", "tensor", "layers", "microbatches", "gradients"],
            Training::MixtureOfExperts => &["layers", "group", "skew", "seed", "gradients"],
        };
        let given = [
            ("layers", self.layers.is_some()),
            ("bucket", self.bucket.is_some()),
            ("stages", self.stages.is_some()),
            ("tensor", self.tensor.is_some()),
            ("microbatches", self.microbatches.is_some()),
            ("gradients", self.gradients.is_some()),
            ("group", self.group.is_some()),
            ("skew", self.skew.is_some()),
            ("seed", self.seed.is_some()),
        ];
        match given.into_iter().find(|(key, given)| *given && !own.contains(key)) {
            Some((key, _)) => Err(format!("this kind of training has no `{key}`")),
            None if self.seed.is_some() && self.skew.is_none() => Err(SEED_WITHOUT_SKEW.to_owned()),
            None => Ok(()),
        }
    }
}
