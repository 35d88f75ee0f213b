//! Collective operations of imported workloads.

use roce_sim::net::{
    Collective, Operation, OperationAlgorithm as Algorithm, OperationKind as Kind, Plan, TaskId,
    WorkloadError,
};

/// The ranks of a workload, and the settings of its collective operations.
#[derive(Debug)]
pub(super) struct How<'a> {
    /// The host of each rank.
    pub(super) hosts: &'a [u32],
    /// The name in results.
    pub(super) name: &'a str,
    /// The algorithm of the collective operations for which it exists.
    pub(super) algorithm: Option<Algorithm>,
    /// The maximum size of a piece, as in [`Collective::chunk`].
    pub(super) chunk: Option<u64>,
}

impl How<'_> {
    /// Adds a collective operation among ranks. A buffer has at least one byte for each rank.
    pub(super) fn collective(
        &self,
        plan: &mut Plan<'_>,
        (kind, bytes): (Kind, u64),
        ranks: &[u32],
        begins: Vec<TaskId>,
    ) -> Result<Operation, WorkloadError> {
        let hosts: Vec<u32> = ranks.iter().map(|rank| self.hosts[*rank as usize]).collect();
        let algorithm = self.algorithm_of(kind);
        let bytes = bytes.max(hosts.len() as u64);
        let chunk = self.chunk.filter(|_| algorithm.has_chunks(kind));
        let what = Collective::of(kind, algorithm, bytes, chunk);
        let name = (format!("{} {}", self.name, kind.name()), 0);
        plan.operation(name, &what, hosts.into(), begins)
    }

    fn algorithm_of(&self, kind: Kind) -> Algorithm {
        let default = if kind == Kind::AllToAll { Algorithm::Pairwise } else { Algorithm::Ring };
        let exists = |algorithm: &Algorithm| algorithm.applies_to(kind);
        self.algorithm.filter(exists).unwrap_or(default)
    }

    /// Returns the whole workload, or one repetition of it, as an operation of all ranks.
    pub(super) fn whole(&self, iteration: u32, begins: Vec<TaskId>, ends: Vec<TaskId>) -> Operation {
        Operation {
            name: self.name.to_owned(),
            iteration,
            kind: Kind::Step,
            algorithm: None,
            bytes: 0,
            hosts: self.hosts.into(),
            begins,
            ends,
        }
    }
}
