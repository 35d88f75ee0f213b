//! Training steps of a mixture of experts.

use std::sync::Arc;

use super::training::{in_range, whole_step};
use super::{Collective, Operation, OperationAlgorithm, OperationKind, Plan};
use crate::net::time::Time;
use crate::net::workload::{MAX_TASKS, TaskId, WorkloadError, uneven_shares};

/// Training of a mixture of experts. The hosts of a group have different experts. In each layer, every host
/// computes, sends its tokens to the hosts of their experts (the dispatch), computes its own experts for the
/// tokens that it has received, and sends the results back (the combine): two all-to-alls in the forward pass
/// and two in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixtureOfExperts {
    /// The number of layers.
    pub layers: u32,
    /// The time of the forward computation of a layer: half of it before the dispatch, and half of it at the
    /// experts.
    pub forward: Time,
    /// The time of the backward computation of a layer, divided in the same way.
    pub backward: Time,
    /// Bytes of the tokens that a host dispatches in a layer, its own experts included.
    pub bytes: u64,
    /// The number of hosts of a group. More hosts form several groups: the first hosts of the list are the
    /// first group.
    pub group: u32,
    /// If set, experts are not equally popular: the exponent and the seed of [`uneven_shares`]. Each
    /// layer has another order of popularity. An expert computes in proportion to its tokens.
    pub skew: Option<(f64, u64)>,
    /// Bytes of the gradients that all hosts add with an all-reduce at the end of a step, or 0.
    pub gradients: u64,
    /// The algorithm of the all-to-alls. If it is hierarchical, so is the all-reduce; otherwise it is a ring.
    pub algorithm: OperationAlgorithm,
    /// The maximum size of a piece of the all-reduce, as in [`Collective::chunk`].
    pub chunk: Option<u64>,
    /// The number of steps.
    pub steps: u32,
}

/// One layer of a group of hosts.
struct Layer<'a> {
    what: &'a MixtureOfExperts,
    hosts: &'a [u32],
    shares: Option<Vec<f64>>,
    /// The prefix of the names of its operations.
    name: String,
    step: u32,
}

impl Plan<'_> {
    /// Adds steps of training of a mixture of experts, like [`Self::data_parallel`]. Returns the operations:
    /// each step, its all-reduce, and the all-to-alls of each group and layer.
    ///
    /// # Errors
    ///
    /// Returns an error if a number is out of range, or if the hosts are not whole groups, or the error of
    /// [`Self::collective`].
    pub fn mixture_of_experts(
        &mut self,
        name: &str,
        what: &MixtureOfExperts,
        hosts: &[u32],
        begins: &[TaskId],
    ) -> Result<Vec<Operation>, WorkloadError> {
        in_range(&[("layers", what.layers), ("group", what.group), ("repeat", what.steps)])?;
        let group = what.group as usize;
        if group < 2 || !hosts.len().is_multiple_of(group) {
            let reason =
                format!("{} hosts are not whole groups of {group}; 2 hosts are the least", hosts.len());
            return Err(WorkloadError(reason));
        }
        // Each layer has at least four computations of each host.
        if u64::from(what.layers).saturating_mul(4 * hosts.len() as u64) > MAX_TASKS as u64 {
            return Err(WorkloadError(format!("{} layers need more than {MAX_TASKS} tasks", what.layers)));
        }
        if what.chunk.is_some() && what.gradients == 0 {
            return Err(WorkloadError("chunk: it divides the gradients, which are 0".to_owned()));
        }
        let shared: Arc<[u32]> = hosts.into();
        let mut operations = Vec::new();
        let mut begins = begins.to_vec();
        for step in 0..what.steps {
            let mut exchanges = Vec::new();
            let mut computed = Vec::with_capacity(hosts.len());
            let groups = hosts.chunks(group).zip(begins.chunks(group)).enumerate();
            for (number, (hosts, begins)) in groups {
                let name = if hosts.len() == shared.len() {
                    name.to_owned()
                } else {
                    format!("{name} group {number}")
                };
                computed.extend(self.step_of_group(what, &name, step, (hosts, begins), &mut exchanges)?);
            }
            let mut ends = computed.clone();
            let mut sum = Vec::new();
            if what.gradients > 0 {
                let algorithm = match what.algorithm {
                    OperationAlgorithm::Hierarchical => OperationAlgorithm::Hierarchical,
                    _ => OperationAlgorithm::Ring,
                };
                let gradients =
                    Collective::of(OperationKind::AllReduce, algorithm, what.gradients, what.chunk);
                let name = (format!("{name} gradients"), step);
                let added = self.operation(name, &gradients, shared.clone(), computed)?;
                ends = added.ends.clone();
                sum.push(added);
            }
            let begins = std::mem::replace(&mut begins, ends.clone());
            operations.push(whole_step(name, step, what.bytes, &shared, begins, ends));
            operations.append(&mut sum);
            operations.append(&mut exchanges);
        }
        Ok(operations)
    }

    /// Adds one step of a group. Returns the last computation of each host.
    fn step_of_group(
        &mut self,
        what: &MixtureOfExperts,
        name: &str,
        step: u32,
        (hosts, begins): (&[u32], &[TaskId]),
        operations: &mut Vec<Operation>,
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let mut layers = Vec::new();
        for number in 0..what.layers {
            let shares = what.skew.map(|(skew, seed)| {
                // The first hosts of the groups have different numbers.
                let seed = seed.wrapping_add(u64::from(hosts[0]) << 32 | u64::from(number));
                uneven_shares(hosts.len(), skew, seed)
            });
            let (shares, name) = (shares.transpose()?, format!("{name} layer {number}"));
            layers.push(Layer { what, hosts, shares, name, step });
        }
        let mut last = begins.to_vec();
        for layer in &layers {
            last = self.pass(layer, what.forward, "", &last, operations)?;
        }
        for layer in layers.iter().rev() {
            last = self.pass(layer, what.backward, " backward", &last, operations)?;
        }
        Ok(last)
    }

    /// Adds the forward or backward pass of a layer: computation, dispatch, experts, combine.
    fn pass(
        &mut self,
        layer: &Layer<'_>,
        time: Time,
        direction: &str,
        before: &[TaskId],
        operations: &mut Vec<Operation>,
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let half = Time::from_ps(time.as_ps() / 2);
        let computed = self.compute_each(layer.hosts, before, |_| half)?;
        let dispatched =
            self.exchange(layer, &format!("{direction} dispatch"), false, computed, operations)?;
        let of_experts = |rank: usize| match &layer.shares {
            None => half,
            Some(shares) => Time::from_ps((half.as_ps() as f64 * shares[rank] * shares.len() as f64) as u64),
        };
        let computed = self.compute_each(layer.hosts, &dispatched, of_experts)?;
        self.exchange(layer, &format!("{direction} combine"), true, computed, operations)
    }

    /// Adds an all-to-all of a layer.
    fn exchange(
        &mut self,
        layer: &Layer<'_>,
        direction: &str,
        combines: bool,
        begins: Vec<TaskId>,
        operations: &mut Vec<Operation>,
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let MixtureOfExperts { algorithm, bytes, .. } = *layer.what;
        let shares = layer.shares.as_deref();
        let what = Collective {
            shares,
            combines: combines && shares.is_some(),
            ..Collective::of(OperationKind::AllToAll, algorithm, bytes, None)
        };
        let name = (format!("{}{direction}", layer.name), layer.step);
        let added = self.operation(name, &what, layer.hosts.into(), begins)?;
        let ends = added.ends.clone();
        operations.push(added);
        Ok(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::workload::{Schedule, check};

    const WHAT: MixtureOfExperts = MixtureOfExperts {
        layers: 2,
        forward: Time::from_us(2),
        backward: Time::from_us(4),
        bytes: 4_000,
        group: 4,
        skew: None,
        gradients: 8_000,
        algorithm: OperationAlgorithm::Pairwise,
        chunk: None,
        steps: 2,
    };

    fn built(what: &MixtureOfExperts, hosts: u32) -> Result<Vec<Operation>, WorkloadError> {
        let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
        let hosts: Vec<u32> = (0..hosts).collect();
        let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO);
        let begins: Vec<TaskId> =
            hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
        let operations = plan.mixture_of_experts("m", what, &hosts, &begins)?;
        check(&flows, 8).unwrap();
        schedule.check(&flows, 8, None).unwrap();
        Ok(operations)
    }

    #[test]
    fn a_step_has_four_exchanges_for_each_layer_and_group() {
        let operations = built(&WHAT, 8).unwrap();
        let names: Vec<_> = operations.iter().map(|operation| &*operation.name).collect();
        assert_eq!(names.len(), 2 * (2 + 2 * 2 * 4));
        assert_eq!(names[..3], ["m", "m gradients", "m group 0 layer 0 dispatch"]);
        assert_eq!(
            names[7..9],
            ["m group 0 layer 1 backward combine", "m group 0 layer 0 backward dispatch"]
        );
        assert_eq!(&*operations[17].hosts, [4, 5, 6, 7]);
        let one = built(&MixtureOfExperts { group: 8, gradients: 0, steps: 1, ..WHAT }, 8).unwrap();
        assert_eq!((one.len(), &*one[1].name), (1 + 2 * 4, "m layer 0 dispatch"));
        assert!(built(&MixtureOfExperts { skew: Some((1.0, 3)), ..WHAT }, 8).is_ok());
    }

    #[test]
    fn hosts_are_whole_groups() {
        let message =
            |group, hosts| built(&MixtureOfExperts { group, ..WHAT }, hosts).unwrap_err().to_string();
        assert_eq!(message(3, 8), "8 hosts are not whole groups of 3; 2 hosts are the least");
        assert_eq!(message(1, 8), "8 hosts are not whole groups of 1; 2 hosts are the least");
    }
}
