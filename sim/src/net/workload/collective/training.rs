//! Training steps: computation, and the data exchange that it requires.

use std::sync::Arc;

use super::algorithms::share;
use super::{Collective, Operation, OperationAlgorithm, OperationKind, Plan};
use crate::net::time::Time;
use crate::net::workload::{After, TaskId, WorkloadError};

/// Data-parallel training. Every host computes all layers for its part of the data. An all-reduce adds the
/// gradients of a bucket of layers when they are computed, from the last layer to the first, while other
/// layers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataParallel {
    /// The number of layers.
    pub layers: u32,
    /// The time of the forward computation of a layer.
    pub forward: Time,
    /// The time of the backward computation of a layer.
    pub backward: Time,
    /// Bytes of the gradients of all layers.
    pub bytes: u64,
    /// The number of bytes of a bucket. A bucket contains as many whole layers as fit, and at least one.
    pub bucket: u64,
    /// The algorithm of the all-reduce.
    pub algorithm: OperationAlgorithm,
    /// The maximum size of a piece, as in [`Collective::chunk`].
    pub chunk: Option<u64>,
    /// The number of steps. A step begins at a host when all gradients of the previous step have arrived
    /// there.
    pub steps: u32,
}

/// Pipeline-parallel training. Each host computes a stage for each micro-batch in sequence, and sends the
/// result to the host of the next stage or, backward, of the previous stage. Each stage alternates between
/// forward and backward computations as soon as possible (one forward, one backward).
///
/// With tensor parallelism, several hosts compute a stage together, and add what they have computed twice for
/// each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// The number of stages. More hosts form several pipelines: the first hosts of the list are the first
    /// pipeline.
    pub stages: u32,
    /// The number of hosts of a stage, which are consecutive: 1 without tensor parallelism.
    pub tensor: u32,
    /// The number of layers of a stage. Without tensor parallelism, it has no effect.
    pub layers: u32,
    /// Micro-batches of each pipeline in a step.
    pub microbatches: u32,
    /// The time of the forward computation of a stage for a micro-batch.
    pub forward: Time,
    /// The time of the backward computation of a stage for a micro-batch.
    pub backward: Time,
    /// Bytes between two stages for a micro-batch, in each direction. Each host of a stage sends its
    /// share. Each all-reduce of a layer has as many.
    pub bytes: u64,
    /// Bytes of the gradients of a host, which the pipelines add with an all-reduce at the end of a step.
    pub gradients: u64,
    /// The algorithm of the all-reduce.
    pub algorithm: OperationAlgorithm,
    /// The maximum size of a piece, as in [`Collective::chunk`].
    pub chunk: Option<u64>,
    /// The number of steps.
    pub steps: u32,
}

/// The maximum number of layers, steps, micro-batches or stages. A mistyped number must not fill the memory.
const MOST: u32 = 100_000;

impl Plan<'_> {
    /// Adds steps of data-parallel training. The steps begin at each host at the end of the host's task in
    /// `begins`. Returns the operations: each step, and the all-reduce of each bucket.
    ///
    /// # Errors
    ///
    /// Returns an error if a number is out of range, or the error of [`Self::collective`].
    pub fn data_parallel(
        &mut self,
        name: &str,
        what: &DataParallel,
        hosts: &[u32],
        begins: &[TaskId],
    ) -> Result<Vec<Operation>, WorkloadError> {
        in_range(&[("layers", what.layers), ("repeat", what.steps)])?;
        let shared: Arc<[u32]> = hosts.into();
        let mut operations = Vec::new();
        let mut begins = begins.to_vec();
        for step in 0..what.steps {
            let forward = times(what.forward, what.layers);
            let mut computed = self.compute_each(hosts, &begins, |_| forward)?;
            let mut buckets = Vec::new();
            for (number, (layers, bytes)) in (0..).zip(buckets_of(what)) {
                let backward = times(what.backward, layers);
                computed = self.compute_each(hosts, &computed, |_| backward)?;
                let sum = Collective::of(OperationKind::AllReduce, what.algorithm, bytes, what.chunk);
                let name = (format!("{name} bucket {number}"), step);
                buckets.push(self.operation(name, &sum, shared.clone(), computed.clone())?);
            }
            let ends = self.join(hosts, &computed, &buckets)?;
            let begins = std::mem::replace(&mut begins, ends.clone());
            operations.push(whole_step(name, step, what.bytes, &shared, begins, ends));
            operations.append(&mut buckets);
        }
        Ok(operations)
    }

    /// Adds a computation of each rank after a task there.
    pub(super) fn compute_each(
        &mut self,
        hosts: &[u32],
        before: &[TaskId],
        time: impl Fn(usize) -> Time,
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let ranks = hosts.iter().zip(before).enumerate();
        ranks.map(|(rank, (host, before))| self.compute(*host, time(rank), &[After::Done(*before)])).collect()
    }

    /// Adds a task of each host that waits for its last computation and for its end of each operation.
    fn join(
        &mut self,
        hosts: &[u32],
        computed: &[TaskId],
        operations: &[Operation],
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let ranks = hosts.iter().zip(computed).enumerate();
        ranks
            .map(|(rank, (host, computed))| {
                let mut after = vec![After::Done(*computed)];
                after.extend(operations.iter().map(|operation| After::Done(operation.ends[rank])));
                self.compute(*host, Time::ZERO, &after)
            })
            .collect()
    }

    /// Adds steps of pipeline-parallel training, like [`Self::data_parallel`].
    ///
    /// # Errors
    ///
    /// Returns an error if a number is out of range, or if the hosts are not whole pipelines, or the error of
    /// [`Self::collective`].
    pub fn pipeline(
        &mut self,
        name: &str,
        what: &Pipeline,
        hosts: &[u32],
        begins: &[TaskId],
    ) -> Result<Vec<Operation>, WorkloadError> {
        let (stages, tensor) = (what.stages as usize, what.tensor as usize);
        in_range(&[
            ("stages", what.stages),
            ("tensor", what.tensor),
            ("layers", what.layers),
            ("microbatches", what.microbatches),
            ("repeat", what.steps),
        ])?;
        let width = stages.saturating_mul(tensor);
        if width < 2 || !hosts.len().is_multiple_of(width) {
            let of_hosts = if tensor > 1 { format!(" of {tensor} hosts") } else { String::new() };
            let reason = format!(
                "{} hosts are not whole pipelines of {stages} stages{of_hosts}; 2 stages are the least",
                hosts.len()
            );
            return Err(WorkloadError(reason));
        }
        if what.bytes == 0 {
            return Err(WorkloadError("at least 1 byte goes from a stage to the next one".to_owned()));
        }
        let shared: Arc<[u32]> = hosts.into();
        let mut operations = Vec::new();
        let mut begins = begins.to_vec();
        for step in 0..what.steps {
            let mut computed = Vec::new();
            for (hosts, begins) in hosts.chunks(width).zip(begins.chunks(width)) {
                computed.extend(self.one_pipeline(what, hosts, begins)?);
            }
            let gradients =
                Collective::of(OperationKind::AllReduce, what.algorithm, what.gradients, what.chunk);
            let mut sums = Vec::new();
            for place in (0..width).filter(|_| hosts.len() > width && what.gradients > 0) {
                let of_place =
                    |all: &[u32]| -> Vec<u32> { all.iter().skip(place).step_by(width).copied().collect() };
                let of_tensor = if tensor > 1 { format!(" rank {}", place % tensor) } else { String::new() };
                let name = (format!("{name} stage {}{of_tensor}", place / tensor), step);
                sums.push(self.operation(name, &gradients, of_place(hosts).into(), of_place(&computed))?);
            }
            let mut ends = Vec::with_capacity(hosts.len());
            for (rank, host) in hosts.iter().enumerate() {
                let mut after = vec![After::Done(computed[rank])];
                after.extend(sums.get(rank % width).map(|sum| After::Done(sum.ends[rank / width])));
                ends.push(self.compute(*host, Time::ZERO, &after)?);
            }
            let begins = std::mem::replace(&mut begins, ends.clone());
            operations.push(whole_step(name, step, what.bytes, &shared, begins, ends));
            operations.append(&mut sums);
        }
        Ok(operations)
    }

    /// Adds one step of one pipeline. Returns the last computation of each host.
    fn one_pipeline(
        &mut self,
        what: &Pipeline,
        hosts: &[u32],
        begins: &[TaskId],
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let tensor = what.tensor as usize;
        let hosts: Vec<&[u32]> = hosts.chunks(tensor).collect();
        let stages = hosts.len();
        let batches = what.microbatches as usize;
        let orders: Vec<Vec<Turn>> = (0..stages).map(|stage| turns(stages - stage, batches)).collect();
        // The transfers that brought each micro-batch to a stage, forward and backward.
        let mut forward: Vec<Vec<Option<Vec<TaskId>>>> = vec![vec![None; batches]; stages];
        let mut backward = forward.clone();
        let mut last: Vec<Vec<TaskId>> = begins.chunks(tensor).map(<[TaskId]>::to_vec).collect();
        let mut next = vec![0; stages];
        // Tasks wait for earlier tasks only, so a turn is added after its dependencies. One stage can always
        // continue.
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for stage in 0..stages {
                let Some(turn) = orders[stage].get(next[stage]) else { continue };
                let (batch, is_forward) = (turn.batch, turn.is_forward);
                let source = if is_forward { stage > 0 } else { stage + 1 < stages };
                let arrived = if is_forward { &forward[stage][batch] } else { &backward[stage][batch] };
                if source && arrived.is_none() {
                    continue;
                }
                let mut after: Vec<Vec<After>> =
                    last[stage].iter().map(|last| vec![After::Done(*last)]).collect();
                for (after, arrived) in after.iter_mut().zip(arrived.iter().flatten()) {
                    after.push(After::Arrival(*arrived));
                }
                let time = if is_forward { what.forward } else { what.backward };
                last[stage] = self.stage(what, hosts[stage], time, &after)?;
                if is_forward && stage + 1 < stages {
                    let sent = self.pass_on(what, hosts[stage], hosts[stage + 1], &last[stage])?;
                    forward[stage + 1][batch] = Some(sent);
                } else if !is_forward && stage > 0 {
                    let sent = self.pass_on(what, hosts[stage], hosts[stage - 1], &last[stage])?;
                    backward[stage - 1][batch] = Some(sent);
                }
                next[stage] += 1;
                is_moving = true;
            }
        }
        Ok(last.concat())
    }

    /// Adds the computation of a stage for a micro-batch. With several hosts, each layer has two parts, after
    /// which they add their results. Returns the end at each host.
    fn stage(
        &mut self,
        what: &Pipeline,
        hosts: &[u32],
        time: Time,
        after: &[Vec<After>],
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let is_alone = hosts.len() == 1;
        let parts = if is_alone { 1 } else { 2 * u64::from(what.layers) };
        let each = Time::from_ps(time.as_ps() / parts);
        let is_joined = hosts.iter().all(|host| self.scale_up(hosts[0], *host).is_some());
        let algorithm = if is_joined { OperationAlgorithm::Hierarchical } else { OperationAlgorithm::Ring };
        let sum = Collective::of(OperationKind::AllReduce, algorithm, what.bytes, None);
        let mut after = after.to_vec();
        let mut ends = Vec::new();
        for _ in 0..parts {
            let ranks = hosts.iter().zip(&after);
            ends = ranks.map(|(host, after)| self.compute(*host, each, after)).collect::<Result<_, _>>()?;
            if !is_alone {
                ends = self.collective(&sum, hosts, &ends)?;
            }
            after = ends.iter().map(|end| vec![After::Done(*end)]).collect();
        }
        Ok(ends)
    }

    /// Adds the transfers of a micro-batch to another stage: each host sends its share to the host with
    /// the same place there.
    fn pass_on(
        &mut self,
        what: &Pipeline,
        from: &[u32],
        to: &[u32],
        computed: &[TaskId],
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let ranks = (0..).zip(from.iter().zip(to).zip(computed));
        ranks
            .map(|(rank, ((from, to), computed))| {
                let bytes = share(what.bytes, u64::from(what.tensor), rank);
                self.send(*from, *to, bytes, &[After::Done(*computed)])
            })
            .collect()
    }
}

/// A computation of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    batch: usize,
    is_forward: bool,
}

/// Returns the order of computations of a stage that has `to_end` stages from itself to the last stage. The
/// order starts with `to_end` forward computations, alternates between backward and forward, and ends with
/// the remaining backward computations.
fn turns(to_end: usize, batches: usize) -> Vec<Turn> {
    let ahead = to_end.min(batches);
    let mut order: Vec<Turn> = (0..ahead).map(|batch| Turn { batch, is_forward: true }).collect();
    for batch in 0..batches {
        order.push(Turn { batch, is_forward: false });
        if batch + ahead < batches {
            order.push(Turn { batch: batch + ahead, is_forward: true });
        }
    }
    order
}

fn times(time: Time, count: u32) -> Time {
    Time::from_ps(time.as_ps().saturating_mul(count.into()))
}

/// Returns the number of layers and bytes of each bucket.
fn buckets_of(what: &DataParallel) -> Vec<(u32, u64)> {
    let layers = u64::from(what.layers);
    let each = what.bytes.div_ceil(layers).max(1);
    let in_one = (what.bucket / each).clamp(1, layers);
    let mut buckets = Vec::new();
    let (mut left, mut bytes_left) = (layers, what.bytes);
    while left > 0 {
        let count = in_one.min(left);
        let bytes = if count == left { bytes_left } else { (each * count).min(bytes_left) };
        buckets.push((count as u32, bytes));
        left -= count;
        bytes_left -= bytes;
    }
    buckets
}

pub(super) fn in_range(numbers: &[(&str, u32)]) -> Result<(), WorkloadError> {
    match numbers.iter().find(|(_, number)| !(1..=MOST).contains(number)) {
        Some((name, number)) => Err(WorkloadError(format!("{name} is {number}; 1 to {MOST} are possible"))),
        None => Ok(()),
    }
}

/// Returns a training step as an operation.
pub(super) fn whole_step(
    name: &str,
    iteration: u32,
    bytes: u64,
    hosts: &Arc<[u32]>,
    begins: Vec<TaskId>,
    ends: Vec<TaskId>,
) -> Operation {
    let (name, hosts, kind) = (name.to_owned(), hosts.clone(), OperationKind::Step);
    Operation { name, iteration, kind, algorithm: None, bytes, hosts, begins, ends }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::workload::{Schedule, check};

    #[test]
    fn one_forward_one_backward() {
        let text = |to_end, batches| -> String {
            let one = |turn: &Turn| format!("{}{}", if turn.is_forward { 'F' } else { 'B' }, turn.batch);
            turns(to_end, batches).iter().map(one).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text(1, 3), "F0 B0 F1 B1 F2 B2");
        assert_eq!(text(3, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(text(4, 2), "F0 F1 B0 B1");
    }

    #[test]
    fn buckets_have_whole_layers_and_all_bytes() {
        let what = DataParallel {
            layers: 10,
            forward: Time::from_us(1),
            backward: Time::from_us(2),
            bytes: 1_001,
            bucket: 310,
            algorithm: OperationAlgorithm::Ring,
            chunk: None,
            steps: 1,
        };
        assert_eq!(buckets_of(&what), [(3, 303), (3, 303), (3, 303), (1, 92)]);
        assert_eq!(buckets_of(&DataParallel { bucket: 1, ..what }).len(), 10);
        assert_eq!(buckets_of(&DataParallel { bucket: u64::MAX, ..what }), [(10, 1_001)]);
    }

    #[test]
    fn steps_are_schedules_that_hosts_can_carry_out() {
        let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
        let hosts: Vec<u32> = (0..8).collect();
        let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO);
        let begins: Vec<TaskId> =
            hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
        let data = DataParallel {
            layers: 4,
            forward: Time::from_us(1),
            backward: Time::from_us(2),
            bytes: 4_000,
            bucket: 2_000,
            algorithm: OperationAlgorithm::Ring,
            chunk: None,
            steps: 2,
        };
        let operations = plan.data_parallel("d", &data, &hosts, &begins).unwrap();
        let names: Vec<_> =
            operations.iter().map(|operation| (&*operation.name, operation.iteration)).collect();
        assert_eq!(
            names,
            [("d", 0), ("d bucket 0", 0), ("d bucket 1", 0), ("d", 1), ("d bucket 0", 1), ("d bucket 1", 1)]
        );
        let pipeline = Pipeline {
            stages: 4,
            tensor: 1,
            layers: 1,
            microbatches: 6,
            forward: Time::from_us(1),
            backward: Time::from_us(2),
            bytes: 100,
            gradients: 1_000,
            algorithm: OperationAlgorithm::Ring,
            chunk: None,
            steps: 1,
        };
        let operations = plan.pipeline("p", &pipeline, &hosts, &begins).unwrap();
        assert_eq!(operations.len(), 1 + 4);
        assert_eq!(&*operations[2].hosts, [1, 5]);
        let short = plan.pipeline("p", &Pipeline { stages: 3, ..pipeline }, &hosts, &begins).unwrap_err();
        assert_eq!(short.to_string(), "8 hosts are not whole pipelines of 3 stages; 2 stages are the least");
        // Two pipelines of two stages of two hosts.
        let tensor = Pipeline { stages: 2, tensor: 2, layers: 3, ..pipeline };
        let operations = plan.pipeline("t", &tensor, &hosts, &begins).unwrap();
        let names: Vec<_> = operations.iter().map(|operation| &*operation.name).collect();
        assert_eq!(
            names,
            ["t", "t stage 0 rank 0", "t stage 0 rank 1", "t stage 1 rank 0", "t stage 1 rank 1"]
        );
        assert_eq!(&*operations[2].hosts, [1, 5]);
        let short = plan.pipeline("p", &Pipeline { stages: 3, ..tensor }, &hosts, &begins).unwrap_err();
        let expected = "8 hosts are not whole pipelines of 3 stages of 2 hosts; 2 stages are the least";
        assert_eq!(short.to_string(), expected);
        check(&flows, 8).unwrap();
        schedule.check(&flows, 8, None).unwrap();
    }
}
