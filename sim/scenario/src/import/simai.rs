//! Workloads of SimAI: the layers of a transformer with their computations and collective operations.

use std::collections::BTreeSet;

use super::collectives::How;
use super::lines::{Line, at, lines};
use crate::Wrong;
use roce_sim::net::{After, Operation, OperationKind, Plan, TaskId, Time, WorkloadError};

/// The layers of a workload, and how its ranks divide them.
#[derive(Debug)]
pub(super) struct Workload {
    layers: Vec<Layer>,
    groups: Groups,
    /// The layers whose inputs are kept, and those before whose backward pass the layers since the last kept
    /// one are computed again.
    kept: BTreeSet<usize>,
    repeated: BTreeSet<usize>,
    pub(super) warnings: Vec<String>,
}

/// The largest time in nanoseconds, and the largest size in bytes.
const MOST: u64 = 1 << 48;
/// The maximum number of layers.
const MOST_LAYERS: usize = 1 << 20;

#[derive(Debug)]
struct Layer {
    line: usize,
    /// The forward pass, the gradients of the inputs, and those of the weights.
    parts: [Part; 3],
    /// The time after each collective operation.
    update: Time,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    compute: Time,
    /// The collective operation after the computation, and whose ranks take part.
    collective: Option<(OperationKind, u64, Scope)>,
}

/// Ranks that carry out a collective operation together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Tensor,
    Data,
    Expert,
    /// The ranks with the same experts.
    DataOfExperts,
}

/// The numbers of the header.
#[derive(Clone, Copy, Debug)]
struct Groups {
    ranks: u32,
    tensor: u32,
    expert: u32,
    pipeline: u32,
}

impl Groups {
    fn data(self) -> u32 {
        self.ranks / (self.tensor * self.pipeline)
    }

    /// Returns the ranks of each group. Ranks of a tensor group have consecutive numbers, and neighbours in a
    /// data group differ by the number of ranks of a replica.
    fn of(self, scope: Scope) -> Vec<Vec<u32>> {
        let replica = self.tensor * self.pipeline;
        let data = self.data();
        let (size, stride) = match scope {
            Scope::Tensor => (self.tensor, 1),
            Scope::Data => (data, replica),
            Scope::Expert => (self.expert, replica),
            Scope::DataOfExperts => (data / self.expert, replica * self.expert),
        };
        let is_first = |rank: &u32| (rank / stride).is_multiple_of(size);
        let members = |first: u32| (0..size).map(move |member| first + member * stride).collect();
        (0..self.ranks).filter(is_first).map(members).collect()
    }
}

/// Parses a workload for at most this number of ranks.
pub(super) fn parse(text: &str, most_ranks: usize) -> Result<Workload, Wrong> {
    let mut lines = lines(text);
    let mut header = lines.next().ok_or("line 1: the file is empty")?;
    let mut workload = Workload::from_header(&mut header, most_ranks)?;
    let mut second = lines.next().ok_or_else(|| at(header.number, "the number of layers is missing"))?;
    let count = match second.word() {
        Some(word) => super::lines::number(word, MOST_LAYERS)
            .map_err(|reason| second.wrong(format!("the number of layers: {reason}")))?,
        None => 0,
    };
    second.end()?;
    for mut line in lines {
        if workload.layers.len() == count {
            return Err(line.wrong(format!("the file announces {count} layers, and this is another one")));
        }
        let layer = Layer::parse(&mut line)?;
        workload.layers.push(layer);
    }
    if workload.layers.len() < count || count == 0 {
        let have = workload.layers.len();
        return Err(
            second.wrong(format!("the file announces {count} layers, and has {have}; 1 is the least"))
        );
    }
    for layer in &workload.repeated {
        if *layer >= count || !workload.kept.iter().any(|kept| kept <= layer) {
            return Err(header.wrong(format!("checkpoint_initiates: no checkpoint precedes layer {layer}")));
        }
    }
    Ok(workload)
}

impl Workload {
    fn from_header(line: &mut Line<'_>, most_ranks: usize) -> Result<Self, Wrong> {
        let known = ["HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER"];
        let kind = line.word().unwrap_or_default();
        if !known.contains(&kind) {
            return Err(line.wrong(format!("\"{kind}\" is not simulated; there are {}", known.join(" and "))));
        }
        let mut groups = Groups { ranks: 0, tensor: 0, expert: 1, pipeline: 1 };
        let (mut kept, mut repeated) = (BTreeSet::new(), BTreeSet::new());
        let mut warnings = Vec::new();
        while let Some(word) = line.word() {
            let key = word.trim_end_matches(':');
            match key {
                "model_parallel_NPU_group" => groups.tensor = line.number(key, u32::MAX)?,
                "ep" => groups.expert = line.number(key, u32::MAX)?,
                "pp" => groups.pipeline = line.number(key, u32::MAX)?,
                "all_gpus" => groups.ranks = line.number(key, u32::MAX)?,
                // The file already contains the layers of each micro-batch and of each virtual stage.
                "vpp" | "ga" => _ = line.number(key, u32::MAX)?,
                "checkpoints" => kept = layers_of(line, key)?,
                "checkpoint_initiates" => repeated = layers_of(line, key)?,
                "pp_comm" => {
                    if line.number(key, u64::MAX)? > 0 {
                        warnings.push("pp_comm: messages between stages are not simulated".to_owned());
                    }
                }
                other => {
                    line.word();
                    warnings.push(format!("{other}: this key of the header has no effect"));
                }
            }
        }
        let Groups { ranks, tensor, expert, pipeline } = groups;
        let replica = u64::from(tensor) * u64::from(pipeline);
        if replica == 0 || ranks == 0 || u64::from(ranks) % replica != 0 {
            return Err(line.wrong(format!(
                "all_gpus is {ranks}, which must be a multiple of model_parallel_NPU_group times pp, {replica}"
            )));
        }
        if expert == 0 || !groups.data().is_multiple_of(expert) {
            return Err(line.wrong(format!(
                "ep is {expert}, which must divide the {} replicas (all_gpus over model_parallel_NPU_group and pp)",
                groups.data()
            )));
        }
        if ranks as usize > most_ranks {
            return Err(line.wrong(format!(
                "all_gpus: {ranks} ranks need as many hosts, and there are {most_ranks}; use a larger topology"
            )));
        }
        Ok(Self { layers: Vec::new(), groups, kept, repeated, warnings })
    }

    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.groups.ranks as usize
    }

    /// Adds a number of passes. Returns each pass as an operation, then the collective operations.
    pub(super) fn add(
        &self,
        plan: &mut Plan<'_>,
        how: &How<'_>,
        begins: Vec<TaskId>,
        passes: u32,
    ) -> Result<Vec<Operation>, Wrong> {
        let mut tasks = Tasks {
            workload: self,
            plan,
            how,
            last: begins,
            updates: vec![None; self.layers.len()],
            operations: Vec::new(),
        };
        let mut wholes = Vec::new();
        for pass in 0..passes {
            let begins = tasks.last.clone();
            let ends = tasks.pass(pass)?;
            wholes.push(how.whole(pass, begins, ends));
        }
        wholes.append(&mut tasks.operations);
        Ok(wholes)
    }
}

fn layers_of(line: &mut Line<'_>, key: &str) -> Result<BTreeSet<usize>, Wrong> {
    let count = line.number(key, MOST_LAYERS)?;
    (0..count).map(|_| line.number(key, MOST_LAYERS)).collect()
}

impl Layer {
    fn parse(line: &mut Line<'_>) -> Result<Self, Wrong> {
        if line.rest().len() != 12 {
            return Err(line.wrong(format!(
                "{} fields; a layer has 12: name, dependency, and for the forward pass, input gradients and weight \
                 gradients the computation time in ns, the collective operation and its bytes, then the update time",
                line.rest().len()
            )));
        }
        // The dependency has no effect in SimAI either: layers follow each other.
        line.word();
        line.word();
        let part = |line: &mut Line<'_>, scope| {
            let compute = Time::from_ns(line.number("the computation time", MOST)?);
            let kind = line.word().unwrap_or_default();
            let bytes = line.number("the bytes of a collective operation", MOST)?;
            let collective = collective(kind, scope).map_err(|reason| line.wrong(reason))?;
            let collective = collective.filter(|_| bytes > 0).map(|(kind, scope)| (kind, bytes, scope));
            Ok::<_, Wrong>(Part { compute, collective })
        };
        let parts = [part(line, Scope::Tensor)?, part(line, Scope::Tensor)?, part(line, Scope::Data)?];
        let update = Time::from_ns(line.number("the update time", MOST)?);
        Ok(Self { line: line.number, parts, update })
    }
}

/// Returns the collective operation with this name, and the ranks that take part.
fn collective(name: &str, scope: Scope) -> Result<Option<(OperationKind, Scope)>, Wrong> {
    let suffixes = [("_DP_EP", Scope::DataOfExperts), ("_EP", Scope::Expert), ("", scope)];
    let found = suffixes.iter().find_map(|(suffix, scope)| Some((name.strip_suffix(suffix)?, *scope)));
    let (kind, scope) = found.unwrap_or((name, scope));
    let kind = match kind {
        "NONE" => return Ok(None),
        "ALLREDUCE" => OperationKind::AllReduce,
        "ALLGATHER" => OperationKind::AllGather,
        "REDUCESCATTER" => OperationKind::ReduceScatter,
        "ALLTOALL" => OperationKind::AllToAll,
        _ => {
            return Err(format!(
                "\"{name}\" is not simulated; there are NONE, ALLREDUCE, ALLGATHER, REDUCESCATTER and ALLTOALL, also \
                 with _EP and _DP_EP"
            ));
        }
    };
    Ok(Some((kind, scope)))
}

/// The parts of a layer.
const FORWARD: usize = 0;
const INPUTS: usize = 1;
const WEIGHTS: usize = 2;

/// Tasks of all ranks that are being added.
struct Tasks<'w, 'p, 'a> {
    workload: &'w Workload,
    plan: &'p mut Plan<'a>,
    how: &'w How<'w>,
    /// The last task of each rank.
    last: Vec<TaskId>,
    /// The end of the weight gradients of each layer at each rank, for which the next pass waits.
    updates: Vec<Option<Vec<TaskId>>>,
    operations: Vec<Operation>,
}

impl Tasks<'_, '_, '_> {
    /// Adds a forward and a backward pass. Returns the end of all gradients at each rank.
    fn pass(&mut self, pass: u32) -> Result<Vec<TaskId>, Wrong> {
        let count = self.workload.layers.len();
        for layer in 0..count {
            self.part(layer, FORWARD, pass)?;
        }
        for layer in (0..count).rev() {
            if self.workload.repeated.contains(&layer) {
                let first = self.workload.kept.range(..=layer).next_back().copied().unwrap_or(layer);
                for again in first..layer {
                    self.part(again, FORWARD, pass)?;
                }
            }
            self.part(layer, INPUTS, pass)?;
            self.part(layer, WEIGHTS, pass)?;
        }
        let mut ends = Vec::with_capacity(self.last.len());
        for (rank, host) in self.how.hosts.iter().enumerate() {
            let mut after = vec![After::Done(self.last[rank])];
            after.extend(self.updates.iter().flatten().map(|tasks| After::Done(tasks[rank])));
            let end = self.plan.compute(*host, Time::ZERO, &after);
            ends.push(end.map_err(|error| at(1, error))?);
        }
        Ok(ends)
    }

    /// Adds the computation of a part of a layer at each rank, and its collective operation. The next part
    /// waits for the operation, except for that of weight gradients, for which the forward pass of the layer
    /// in the next pass waits.
    fn part(&mut self, layer: usize, part: usize, pass: u32) -> Result<(), Wrong> {
        let Layer { line, parts, update } = &self.workload.layers[layer];
        let Part { compute, collective } = parts[part];
        let fail = |error: WorkloadError| at(*line, error);
        let waits = if part == FORWARD { self.updates[layer].take() } else { None };
        let mut computed = self.last.clone();
        if waits.is_some() || compute > Time::ZERO {
            for (rank, task) in computed.iter_mut().enumerate() {
                let mut after = vec![After::Done(*task)];
                after.extend(waits.as_ref().map(|tasks| After::Done(tasks[rank])));
                *task = self.plan.compute(self.how.hosts[rank], compute, &after).map_err(fail)?;
            }
        }
        let mut ends = computed.clone();
        let Some((kind, bytes, scope)) = collective else {
            self.last = computed;
            return Ok(());
        };
        for ranks in self.workload.groups.of(scope) {
            if ranks.len() < 2 {
                continue;
            }
            let begins: Vec<TaskId> = ranks.iter().map(|rank| computed[*rank as usize]).collect();
            let operation = self.how.collective(self.plan, (kind, bytes), &ranks, begins).map_err(fail)?;
            for (rank, end) in ranks.iter().zip(&operation.ends) {
                let host = self.how.hosts[*rank as usize];
                ends[*rank as usize] =
                    self.plan.compute(host, *update, &[After::Done(*end)]).map_err(fail)?;
            }
            self.operations.push(Operation { iteration: pass, ..operation });
        }
        if part == WEIGHTS {
            self.updates[layer] = Some(ends);
            self.last = computed;
        } else {
            self.last = ends;
        }
        Ok(())
    }
}
