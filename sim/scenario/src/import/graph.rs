//! Operations of ranks that wait for each other, in any order, and the tasks that they become.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use super::collectives::How;
use roce_sim::net::{After, Operation, OperationKind, Plan, TaskId, Time, WorkloadError};

/// The number of an operation of a graph.
pub(super) type NodeId = u32;

/// The maximum number of operations of all ranks.
const MOST_NODES: usize = 1 << 22;
/// The maximum number of pairs of operations of which one waits for the other.
const MOST_EDGES: usize = 1 << 24;

/// An operation of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A computation. Computations of a rank with the same lane do not overlap.
    Compute { time: Time, lane: Option<u32> },
    /// A message to a rank. It ends with its acknowledgement.
    Send { to: u32, tag: u64, bytes: u64 },
    /// The arrival of a message from a rank.
    Receive { from: u32, tag: u64, bytes: u64 },
    /// The part of this rank in a collective operation.
    Join { collective: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Node {
    rank: u32,
    /// The position in the files, for errors.
    place: u64,
    action: Action,
}

/// Ranks that carry out collective operations together.
#[derive(Debug)]
struct Group {
    ranks: Arc<[u32]>,
    /// The collective operations of the group, in their order.
    collectives: Vec<u32>,
}

/// A collective operation of a group.
#[derive(Debug)]
struct Instance {
    group: u32,
    kind: OperationKind,
    bytes: u64,
    /// The operation of each rank of the group, or `NONE` if the rank has not joined.
    nodes: Vec<NodeId>,
}

const NONE: u32 = u32::MAX;

/// The reason why a graph cannot be carried out, and the position of an operation.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) place: Option<u64>,
    pub(super) reason: String,
}

impl Wrong {
    fn at(place: u64, reason: impl Into<String>) -> Self {
        Self { place: Some(place), reason: reason.into() }
    }
}

impl From<WorkloadError> for Wrong {
    fn from(error: WorkloadError) -> Self {
        Self { place: None, reason: error.to_string() }
    }
}

/// Operations and their order. Sends and receives of equal ranks and tags belong together in the order in
/// which they were added; so do the parts of a collective operation of a group.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
    /// Pairs of an operation and another one that waits for its end.
    edges: Vec<(NodeId, NodeId)>,
    /// Pairs of an operation and another one that waits for its begin.
    begin_edges: Vec<(NodeId, NodeId)>,
    groups: Vec<Group>,
    instances: Vec<Instance>,
    /// The number of collective operations of a group in which a rank takes part.
    joined: HashMap<(u32, u32), u32>,
}

impl Graph {
    pub(super) fn add(&mut self, rank: u32, place: u64, action: Action) -> Result<NodeId, Wrong> {
        if self.nodes.len() >= MOST_NODES {
            return Err(Wrong::at(place, format!("more than {MOST_NODES} operations; import fewer ranks")));
        }
        self.nodes.push(Node { rank, place, action });
        Ok((self.nodes.len() - 1) as NodeId)
    }

    /// Makes an operation wait for the end of another one of its rank.
    pub(super) fn after(&mut self, before: NodeId, node: NodeId) -> Result<(), Wrong> {
        self.check_edges(node)?;
        self.edges.push((before, node));
        Ok(())
    }

    /// Makes an operation wait for the begin of another one of its rank.
    pub(super) fn after_begin(&mut self, before: NodeId, node: NodeId) -> Result<(), Wrong> {
        self.check_edges(node)?;
        self.begin_edges.push((before, node));
        Ok(())
    }

    fn check_edges(&self, node: NodeId) -> Result<(), Wrong> {
        if self.edges.len() + self.begin_edges.len() < MOST_EDGES {
            return Ok(());
        }
        Err(Wrong::at(self.place(node), format!("more than {MOST_EDGES} dependencies; import fewer ranks")))
    }

    fn place(&self, node: NodeId) -> u64 {
        self.nodes[node as usize].place
    }

    /// Adds a group of different ranks.
    pub(super) fn add_group(&mut self, ranks: Arc<[u32]>) -> u32 {
        self.groups.push(Group { ranks, collectives: Vec::new() });
        (self.groups.len() - 1) as u32
    }

    /// Adds the part of a rank in the next collective operation of a group. In a group of one rank, nothing
    /// is sent.
    pub(super) fn join(
        &mut self,
        (rank, place): (u32, u64),
        group: u32,
        kind: OperationKind,
        bytes: u64,
    ) -> Result<NodeId, Wrong> {
        let ranks = self.groups[group as usize].ranks.clone();
        let Some(member) = ranks.iter().position(|member| *member == rank) else {
            return Err(Wrong::at(place, format!("rank {rank} is not in the group of this operation")));
        };
        if ranks.len() < 2 {
            return self.add(rank, place, Action::Compute { time: Time::ZERO, lane: None });
        }
        let count = self.joined.entry((group, rank)).or_default();
        let number = *count as usize;
        *count += 1;
        let all = &mut self.groups[group as usize].collectives;
        if number == all.len() {
            all.push(self.instances.len() as u32);
            self.instances.push(Instance { group, kind, bytes, nodes: vec![NONE; ranks.len()] });
        }
        let collective = all[number];
        let node = self.add(rank, place, Action::Join { collective })?;
        let instance = &mut self.instances[collective as usize];
        if (instance.kind, instance.bytes) != (kind, bytes) {
            return Err(Wrong::at(
                place,
                format!(
                    "operation {number} of its group is {} of {bytes} bytes at rank {rank}, and {} of {} bytes at \
                     another rank",
                    kind.name(),
                    instance.kind.name(),
                    instance.bytes
                ),
            ));
        }
        instance.nodes[member] = node;
        Ok(node)
    }

    /// Adds the tasks of all operations to a plan. Rank `r` is the host `how.hosts[r]`, and begins with the
    /// end of the task `begins[r]`. Returns an operation for the whole graph, and one for each collective
    /// operation.
    pub(super) fn emit(
        mut self,
        plan: &mut Plan<'_>,
        how: &How<'_>,
        begins: Vec<TaskId>,
    ) -> Result<Vec<Operation>, Wrong> {
        self.check_collectives()?;
        self.split_begins()?;
        let senders = self.match_messages()?;
        self.edges.sort_unstable();
        self.edges.dedup();
        let mut emission = Emission::new(&self, plan, how, &begins, &senders);
        emission.run()?;
        let Emission { end, mut operations, .. } = emission;
        let ends = self.ends(plan, how, &begins, &end)?;
        operations.insert(0, how.whole(0, begins, ends));
        Ok(operations)
    }

    fn check_collectives(&self) -> Result<(), Wrong> {
        for instance in &self.instances {
            let Some(missing) = instance.nodes.iter().position(|node| *node == NONE) else { continue };
            let rank = self.groups[instance.group as usize].ranks[missing];
            let node = instance.nodes.iter().find(|node| **node != NONE);
            return Err(Wrong {
                place: node.map(|node| self.place(*node)),
                reason: format!(
                    "rank {rank} does not take part in this {}, so it would never end",
                    instance.kind.name()
                ),
            });
        }
        Ok(())
    }

    /// Replaces an operation for whose begin others wait by two: its begin, and the operation after it.
    fn split_begins(&mut self) -> Result<(), Wrong> {
        let mut begins: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        for (before, node) in std::mem::take(&mut self.begin_edges) {
            let begin = match begins.get(&before) {
                Some(begin) => *begin,
                None => {
                    let Node { rank, place, .. } = self.nodes[before as usize];
                    let begin = self.add(rank, place, Action::Compute { time: Time::ZERO, lane: None })?;
                    begins.insert(before, begin);
                    begin
                }
            };
            self.edges.push((begin, node));
        }
        for (_, node) in &mut self.edges {
            *node = begins.get(node).copied().unwrap_or(*node);
        }
        self.edges.extend(begins.into_iter().map(|(node, begin)| (begin, node)));
        Ok(())
    }

    /// Returns the send of each receive, which waits for it.
    fn match_messages(&mut self) -> Result<HashMap<NodeId, NodeId>, Wrong> {
        let mut all: BTreeMap<(u32, u32, u64), [Vec<NodeId>; 2]> = BTreeMap::new();
        for (number, node) in (0..).zip(&self.nodes) {
            match node.action {
                Action::Send { to, tag, .. } => {
                    all.entry((node.rank, to, tag)).or_default()[0].push(number);
                }
                Action::Receive { from, tag, .. } => {
                    all.entry((from, node.rank, tag)).or_default()[1].push(number);
                }
                Action::Compute { .. } | Action::Join { .. } => {}
            }
        }
        let mut senders = HashMap::new();
        for ((from, to, tag), [sends, receives]) in all {
            let common = sends.len().min(receives.len());
            if let Some(send) = sends.get(common) {
                let reason = format!("rank {to} never receives this message from rank {from} with tag {tag}");
                return Err(Wrong::at(self.place(*send), reason));
            }
            if let Some(receive) = receives.get(common) {
                let reason = format!("rank {from} never sends this message to rank {to} with tag {tag}");
                return Err(Wrong::at(self.place(*receive), reason));
            }
            for (send, receive) in sends.into_iter().zip(receives) {
                if let (Action::Send { bytes: sent, .. }, Action::Receive { bytes: room, .. }) =
                    (self.nodes[send as usize].action, self.nodes[receive as usize].action)
                    && sent > room
                {
                    let reason = format!(
                        "a receive of {room} bytes meets a message of {sent} bytes from rank {from} with tag {tag}"
                    );
                    return Err(Wrong::at(self.place(receive), reason));
                }
                self.edges.push((send, receive));
                senders.insert(receive, send);
            }
        }
        Ok(senders)
    }

    /// Adds a task of each rank that waits for its operations for which no other one of the rank waits.
    fn ends(
        &self,
        plan: &mut Plan<'_>,
        how: &How<'_>,
        begins: &[TaskId],
        end: &[TaskId],
    ) -> Result<Vec<TaskId>, Wrong> {
        let mut is_last = vec![true; self.nodes.len()];
        for (before, node) in &self.edges {
            let same = self.nodes[*before as usize].rank == self.nodes[*node as usize].rank;
            is_last[*before as usize] &= !same;
        }
        let mut after: Vec<Vec<After>> = begins.iter().map(|begin| vec![After::Done(*begin)]).collect();
        for ((node, is_last), end) in self.nodes.iter().zip(is_last).zip(end) {
            if is_last {
                after[node.rank as usize].push(After::Done(*end));
            }
        }
        let ranks = how.hosts.iter().zip(after);
        ranks.map(|(host, after)| Ok(plan.compute(*host, Time::ZERO, &after)?)).collect()
    }
}

/// Tasks that are being added, each after those that it waits for. Transfers between two ranks share a queue
/// pair and are posted in this order, so operations come in the order of their estimated begins.
struct Emission<'g, 'p, 'a> {
    graph: &'g Graph,
    plan: &'p mut Plan<'a>,
    how: &'g How<'g>,
    begins: &'g [TaskId],
    senders: &'g HashMap<NodeId, NodeId>,
    /// The end of the range of each operation in `waiting`, and for how many others it waits.
    ranges: Vec<u32>,
    waiting: Vec<NodeId>,
    predecessors: Vec<Vec<NodeId>>,
    open: Vec<u32>,
    ready: BinaryHeap<Reverse<(u64, NodeId)>>,
    /// The task at whose end each operation ends, and the estimated time in picoseconds.
    end: Vec<TaskId>,
    times: Vec<u64>,
    /// The last computation of each rank and lane, and its estimated end.
    lanes: HashMap<(u32, u32), (TaskId, u64)>,
    /// The begin of each part of a collective operation, and the number of parts that have not begun.
    parts: HashMap<NodeId, TaskId>,
    missing: Vec<u32>,
    operations: Vec<Operation>,
}

/// The estimated time of a byte at 100 Gb/s, and that of a packet through a small network, in picoseconds.
const PS_OF_A_BYTE: u64 = 80;
const PS_OF_A_PATH: u64 = 4_000_000;

fn estimate(bytes: u64) -> u64 {
    bytes.saturating_mul(PS_OF_A_BYTE).saturating_add(PS_OF_A_PATH)
}

impl<'g, 'p, 'a> Emission<'g, 'p, 'a> {
    fn new(
        graph: &'g Graph,
        plan: &'p mut Plan<'a>,
        how: &'g How<'g>,
        begins: &'g [TaskId],
        senders: &'g HashMap<NodeId, NodeId>,
    ) -> Self {
        let count = graph.nodes.len();
        let (mut ranges, mut open) = (vec![0; count], vec![0; count]);
        let mut predecessors = vec![Vec::new(); count];
        for (place, (before, node)) in (1..).zip(&graph.edges) {
            ranges[*before as usize] = place;
            open[*node as usize] += 1;
            predecessors[*node as usize].push(*before);
        }
        // An operation for which nothing waits has the empty range after that of the one before.
        let mut last = 0;
        for range in &mut ranges {
            last = last.max(*range);
            *range = last;
        }
        let first = (0..).zip(&open).filter(|(_, open)| **open == 0);
        let ready = first.map(|(node, _)| Reverse((0, node))).collect();
        Self {
            graph,
            plan,
            how,
            begins,
            senders,
            ranges,
            waiting: graph.edges.iter().map(|(_, node)| *node).collect(),
            predecessors,
            open,
            ready,
            end: vec![NONE; count],
            times: vec![0; count],
            lanes: HashMap::new(),
            parts: HashMap::new(),
            missing: graph.instances.iter().map(|instance| instance.nodes.len() as u32).collect(),
            operations: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<(), Wrong> {
        while let Some(Reverse((begin, node))) = self.ready.pop() {
            self.add(node, begin)?;
        }
        let left = self.end.iter().position(|end| *end == NONE);
        match left {
            None => Ok(()),
            Some(node) => {
                let reason = "this operation never begins: it waits for itself through other operations";
                Err(Wrong::at(self.graph.place(node as NodeId), reason))
            }
        }
    }

    fn add(&mut self, number: NodeId, begin: u64) -> Result<(), Wrong> {
        let Node { rank, place, action } = self.graph.nodes[number as usize];
        let fail = |error: WorkloadError| Wrong::at(place, error.to_string());
        let host = self.how.hosts[rank as usize];
        let mut after = self.dependencies(number, rank);
        let (task, time) = match action {
            Action::Compute { time, lane } => {
                let before = lane.and_then(|lane| self.lanes.get(&(rank, lane)).copied());
                let begin = before.map_or(begin, |(task, end)| {
                    after.push(After::Done(task));
                    begin.max(end)
                });
                let task = self.plan.compute(host, time, &after).map_err(fail)?;
                let end = begin.saturating_add(time.as_ps());
                if let Some(lane) = lane {
                    self.lanes.insert((rank, lane), (task, end));
                }
                (task, end)
            }
            Action::Send { to, bytes, .. } => {
                let to = self.how.hosts[to as usize];
                // A transfer has at least one byte.
                let task = self.plan.send(host, to, bytes.max(1), &after).map_err(fail)?;
                (task, begin.saturating_add(estimate(bytes)))
            }
            Action::Receive { .. } => (self.plan.compute(host, Time::ZERO, &after).map_err(fail)?, begin),
            Action::Join { collective } => {
                let task = self.plan.compute(host, Time::ZERO, &after).map_err(fail)?;
                self.parts.insert(number, task);
                let missing = &mut self.missing[collective as usize];
                *missing -= 1;
                // Operations come in the order of their begins, so the last part begins last.
                return if *missing == 0 { self.add_collective(collective, (place, begin)) } else { Ok(()) };
            }
        };
        self.finish(number, task, time);
        Ok(())
    }

    fn dependencies(&self, number: NodeId, rank: u32) -> Vec<After> {
        let sender = self.senders.get(&number).copied();
        let own = self.predecessors[number as usize].iter().filter(|before| Some(**before) != sender);
        let mut after: Vec<After> = own.map(|before| After::Done(self.end[*before as usize])).collect();
        if after.is_empty() {
            after.push(After::Done(self.begins[rank as usize]));
        }
        after.extend(sender.map(|send| After::Arrival(self.end[send as usize])));
        after
    }

    fn add_collective(&mut self, collective: u32, (place, begin): (u64, u64)) -> Result<(), Wrong> {
        let instance = &self.graph.instances[collective as usize];
        let ranks = self.graph.groups[instance.group as usize].ranks.clone();
        let (kind, bytes) = (instance.kind, instance.bytes);
        let begins: Vec<TaskId> = instance.nodes.iter().map(|node| self.parts[node]).collect();
        let operation = self
            .how
            .collective(self.plan, (kind, bytes), &ranks, begins)
            .map_err(|error| Wrong::at(place, error.to_string()))?;
        let time = begin.saturating_add(estimate(bytes.saturating_mul(2)));
        for (node, end) in instance.nodes.iter().zip(&operation.ends) {
            self.finish(*node, *end, time);
        }
        self.operations.push(Operation { iteration: self.operations.len() as u32, ..operation });
        Ok(())
    }

    /// Stores the end of an operation, and makes those ready that wait for nothing else.
    fn finish(&mut self, number: NodeId, task: TaskId, time: u64) {
        let node = number as usize;
        (self.end[node], self.times[node]) = (task, time);
        let first = node.checked_sub(1).map_or(0, |before| self.ranges[before]);
        for place in first..self.ranges[node] {
            let next = self.waiting[place as usize] as usize;
            self.open[next] -= 1;
            if self.open[next] == 0 {
                let times = self.predecessors[next].iter().map(|before| self.times[*before as usize]);
                self.ready.push(Reverse((times.max().unwrap_or_default(), next as NodeId)));
            }
        }
    }
}
