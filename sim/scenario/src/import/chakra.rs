//! Execution traces of Chakra: for each rank a file of protocol buffers, with nodes that wait for each other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::collectives::How;
use super::graph::{Action, Graph, NodeId, Wrong as GraphError};
use super::json::Json;
use super::wire::{Reader, Value, numbers};
use crate::Wrong;
use roce_sim::net::{Operation, OperationKind, Plan, TaskId, Time};

/// The ranks of a trace.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) ranks: u32,
    /// Groups of ranks by name.
    pub(super) groups: Groups,
    /// The number of ranks in each dimension of the network, for `involved_dim`.
    pub(super) dimensions: Option<Vec<u32>>,
}

/// Groups of ranks by name.
pub(super) type Groups = BTreeMap<String, Arc<[u32]>>;

/// The operations of all ranks.
#[derive(Debug)]
pub(super) struct Trace {
    name: String,
    graph: Graph,
    /// The identifiers of nodes by their places: number in the order of reading.
    ids: Vec<(u32, u64)>,
    pub(super) warnings: Vec<String>,
}

/// The largest size of a message or collective operation in bytes.
const MOST_BYTES: u64 = 1 << 48;
/// The maximum number of dependencies of a rank.
const MOST_DEPENDENCIES: usize = 1 << 22;

/// Parses the files `NAME.0.et`, `NAME.1.et` and so on.
pub(super) fn parse(
    name: &str,
    layout: &Layout,
    load: &dyn Fn(&str) -> Result<Vec<u8>, Wrong>,
) -> Result<Trace, Wrong> {
    let mut builder = Builder {
        layout,
        groups: layout.groups.clone(),
        known: BTreeMap::new(),
        trace: Trace {
            name: name.to_owned(),
            graph: Graph::default(),
            ids: Vec::new(),
            warnings: Vec::new(),
        },
        memory_nodes: 0,
    };
    for rank in 0..layout.ranks {
        let file = format!("{name}.{rank}.et");
        let bytes = load(&file).map_err(|reason| {
            format!("{reason}; `hosts` selects one host for each of the {} ranks", layout.ranks)
        })?;
        builder.add_rank(rank, &bytes).map_err(|reason| format!("{file}, {reason}"))?;
    }
    let Builder { mut trace, memory_nodes, .. } = builder;
    if memory_nodes > 0 {
        trace.warnings.push(format!(
            "{memory_nodes} nodes of memory or storage: they take the time that was recorded, and do not share a \
             resource"
        ));
    }
    Ok(trace)
}

impl Trace {
    /// Adds the tasks of all ranks.
    pub(super) fn emit(
        self,
        plan: &mut Plan<'_>,
        how: &How<'_>,
        begins: Vec<TaskId>,
    ) -> Result<Vec<Operation>, Wrong> {
        let Self { name, graph, ids, .. } = self;
        graph.emit(plan, how, begins).map_err(|GraphError { place, reason }| {
            match place.and_then(|place| ids.get(place as usize)) {
                Some((rank, id)) => format!("{name}.{rank}.et, node {id}: {reason}"),
                None => format!("{name}: {reason}"),
            }
        })
    }
}

/// A node of a file.
#[derive(Debug, Default)]
struct Node {
    id: u64,
    kind: u64,
    waits: Vec<u64>,
    duration_us: u64,
    /// The text of the inputs.
    inputs: String,
    attributes: HashMap<String, Attribute>,
}

#[derive(Debug)]
enum Attribute {
    Number(u64),
    Text(String),
    Flags(Vec<u64>),
    Other,
}

const METADATA_NODE: u64 = 1;
const COMP_NODE: u64 = 4;
const SEND_NODE: u64 = 5;
const RECV_NODE: u64 = 6;
const COLL_NODE: u64 = 7;
const LAST_KIND: u64 = 10;

/// The lanes of computations: a rank computes on its GPU and on its CPU, on each of them one at a time.
const GPU: u32 = 0;
const CPU: u32 = 1;

struct Builder<'a> {
    layout: &'a Layout,
    /// Groups by name: those of the layout, and those of metadata.
    groups: Groups,
    /// The number in the graph of each group in use, by name and ranks.
    known: BTreeMap<(String, Arc<[u32]>), u32>,
    trace: Trace,
    memory_nodes: u64,
}

impl Builder<'_> {
    fn add_rank(&mut self, rank: u32, bytes: &[u8]) -> Result<(), Wrong> {
        if bytes.starts_with(&[0x1f, 0x8b]) {
            return Err("the file is compressed; decompress it with gunzip".to_owned());
        }
        let mut reader = Reader::new(bytes);
        // The first message has the version and attributes of the whole trace.
        reader.message()?;
        let mut nodes: HashMap<u64, NodeId> = HashMap::new();
        let mut waits: Vec<(NodeId, u64, Vec<u64>)> = Vec::new();
        let mut dependencies = 0;
        while !reader.is_empty() {
            let position = reader.position();
            let node = Node::parse(reader.message()?).map_err(|reason| {
                if reason.starts_with("byte") { reason } else { format!("byte {position}: {reason}") }
            })?;
            let id = node.id;
            let fail = |reason| format!("node {id}: {reason}");
            let number = self.add_node(rank, &node).map_err(fail)?;
            if nodes.insert(id, number).is_some() {
                return Err(fail("another node has the same id".to_owned()));
            }
            dependencies += node.waits.len();
            if dependencies > MOST_DEPENDENCIES {
                return Err(fail(format!("more than {MOST_DEPENDENCIES} dependencies in a file")));
            }
            waits.push((number, id, node.waits));
        }
        for (number, id, all) in waits {
            for before in all {
                let Some(before) = nodes.get(&before) else {
                    return Err(format!("node {id}: it waits for node {before}, which is not in the file"));
                };
                self.trace
                    .graph
                    .after(*before, number)
                    .map_err(|error| format!("node {id}: {}", error.reason))?;
            }
        }
        Ok(())
    }

    fn add_node(&mut self, rank: u32, node: &Node) -> Result<NodeId, Wrong> {
        let place = self.trace.ids.len() as u64;
        self.trace.ids.push((rank, node.id));
        let time = Time::from_us(node.duration_us);
        let action = match node.kind {
            COLL_NODE => {
                let (group, kind, bytes) = self.collective(rank, node)?;
                let joined = self.trace.graph.join((rank, place), group, kind, bytes);
                return joined.map_err(|error| error.reason);
            }
            COMP_NODE => {
                let is_cpu = node.number("is_cpu_op")?.unwrap_or_default() > 0;
                Action::Compute { time, lane: Some(if is_cpu { CPU } else { GPU }) }
            }
            SEND_NODE => {
                let to = self.peer(rank, node, "comm_dst")?;
                Action::Send { to, tag: node.number("comm_tag")?.unwrap_or_default(), bytes: node.size()? }
            }
            RECV_NODE => {
                let from = self.peer(rank, node, "comm_src")?;
                Action::Receive {
                    from,
                    tag: node.number("comm_tag")?.unwrap_or_default(),
                    bytes: node.size()?,
                }
            }
            0 | METADATA_NODE => {
                self.add_process_groups(&node.inputs)?;
                Action::Compute { time: Time::ZERO, lane: None }
            }
            2..=LAST_KIND => {
                self.memory_nodes += 1;
                Action::Compute { time, lane: None }
            }
            other => {
                return Err(format!(
                    "the type {other} is not known; the types of schema 0.0.4 are 0 to {LAST_KIND}"
                ));
            }
        };
        self.trace.graph.add(rank, place, action).map_err(|error| error.reason)
    }

    /// Returns the rank at the other end of a message.
    fn peer(&self, rank: u32, node: &Node, key: &str) -> Result<u32, Wrong> {
        let peer = node.number(key)?.ok_or_else(|| format!("{key} is missing"))?;
        if peer >= u64::from(self.layout.ranks) {
            return Err(format!("{key} is {peer}, but there are {} ranks", self.layout.ranks));
        }
        if peer == u64::from(rank) {
            return Err(format!("{key} is the rank itself, which sends nothing over the network"));
        }
        Ok(peer as u32)
    }

    fn collective(&mut self, rank: u32, node: &Node) -> Result<(u32, OperationKind, u64), Wrong> {
        let (name, group) = self.group(rank, node)?;
        let ranks = group.len() as u64;
        let size = node.size()?;
        let kind = node.number("comm_type")?.ok_or("comm_type is missing")?;
        let (kind, bytes) = match kind {
            0 => (OperationKind::AllReduce, size),
            // The size is that of the part of one rank.
            2 => (OperationKind::AllGather, size.saturating_mul(ranks)),
            5 => (OperationKind::Broadcast, size),
            6 => (OperationKind::AllToAll, size),
            7 | 8 => (OperationKind::ReduceScatter, size),
            // Every rank waits until one byte of every other rank has arrived.
            9 => (OperationKind::AllReduce, ranks),
            other => {
                let name = match other {
                    1 => "REDUCE",
                    3 => "GATHER",
                    4 => "SCATTER",
                    _ => "unknown",
                };
                return Err(format!(
                    "comm_type {other} ({name}) is not simulated; there are ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, \
                     REDUCE_SCATTER and BARRIER"
                ));
            }
        };
        let graph = &mut self.trace.graph;
        let number = *self.known.entry((name, group.clone())).or_insert_with(|| graph.add_group(group));
        Ok((number, kind, bytes))
    }

    /// Returns the name and the ranks of the group of a collective operation.
    fn group(&self, rank: u32, node: &Node) -> Result<(String, Arc<[u32]>), Wrong> {
        let all = || Ok((String::new(), (0..self.layout.ranks).collect::<Arc<[u32]>>()));
        let name = match node.attributes.get("pg_name") {
            Some(Attribute::Text(name)) => name.clone(),
            Some(Attribute::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        if let Some(group) = self.groups.get(&name) {
            return Ok((name, group.clone()));
        }
        if !name.is_empty() && name != "0" {
            return Err(format!(
                "the group {name} is unknown; name the file of communicator groups with `groups`"
            ));
        }
        let Some(Attribute::Flags(involved)) = node.attributes.get("involved_dim") else { return all() };
        match &self.layout.dimensions {
            Some(sizes) => Ok((String::new(), ranks_along(rank, sizes, involved))),
            None if involved.iter().all(|flag| *flag > 0) => all(),
            None => Err(
                "involved_dim selects some dimensions of a network, which are unknown; add `dimensions` with their \
                 sizes, such as [8, 4]"
                    .to_owned(),
            ),
        }
    }

    /// Adds the process groups that PyTorch records in a metadata node: a list of `pg_name` and `ranks`.
    fn add_process_groups(&mut self, inputs: &str) -> Result<(), Wrong> {
        let (Some(first), Some(last)) = (inputs.find("[{"), inputs.rfind("}]")) else { return Ok(()) };
        let Some(Ok(Json::List(groups))) = inputs.get(first..last + 2).map(Json::parse) else {
            return Ok(());
        };
        for group in groups {
            let name = match group.get("pg_name") {
                Some(Json::Text(name)) => name.clone(),
                Some(Json::Number(number)) => number.to_string(),
                _ => continue,
            };
            let ranks = group.get("ranks").and_then(Json::numbers).unwrap_or_default();
            let ranks = if ranks.is_empty() { (0..u64::from(self.layout.ranks)).collect() } else { ranks };
            let ranks = group_of(&name, ranks, self.layout.ranks)?;
            match self.groups.insert(name.clone(), ranks.clone()) {
                Some(other) if other != ranks => {
                    return Err(format!("the group {name} has other ranks than before"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the ranks that differ from a rank only in some dimensions. The first dimension varies fastest.
fn ranks_along(rank: u32, sizes: &[u32], involved: &[u64]) -> Arc<[u32]> {
    let mut ranks = vec![0];
    let mut stride = 1;
    for (number, size) in sizes.iter().enumerate() {
        let own = rank / stride % (*size).max(1);
        let places = if involved.get(number).is_some_and(|flag| *flag > 0) { 0..*size } else { own..own + 1 };
        ranks = places.flat_map(|place| ranks.iter().map(move |rank| rank + place * stride)).collect();
        stride *= size;
    }
    ranks.into()
}

/// Checks the ranks of a group.
fn group_of(name: &str, ranks: Vec<u64>, count: u32) -> Result<Arc<[u32]>, Wrong> {
    let mut sorted = ranks.clone();
    sorted.sort_unstable();
    if ranks.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(format!("the group {name} has no ranks, or one of them twice"));
    }
    match sorted.last().filter(|last| **last >= u64::from(count)) {
        Some(last) => Err(format!("the group {name} has rank {last}, but there are {count} ranks")),
        None => Ok(ranks.into_iter().map(|rank| rank as u32).collect()),
    }
}

/// Parses a file of communicator groups, as ASTRA-sim reads it: lists of ranks by name.
pub(super) fn parse_groups(text: &str, ranks: usize) -> Result<Groups, Wrong> {
    let shape = "the file has the form {\"1\": [0, 1], \"2\": [2, 3]}";
    let json = Json::parse(text).map_err(|line| format!("line {line}: {shape}"))?;
    let Json::Map(entries) = json else { return Err(format!("line 1: {shape}")) };
    let group = |(name, list): (String, Json)| {
        let list = list.numbers().ok_or_else(|| format!("the group {name} is no list of ranks; {shape}"))?;
        Ok((name.clone(), group_of(&name, list, ranks as u32)?))
    };
    entries.into_iter().map(group).collect()
}

impl Node {
    fn parse(mut message: Reader<'_>) -> Result<Self, Wrong> {
        let mut node = Self::default();
        while let Some((number, value)) = message.field()? {
            match number {
                1 => node.id = value.number(),
                3 => node.kind = value.number(),
                4 | 5 => numbers(value, &mut node.waits)?,
                7 => node.duration_us = value.number(),
                8 => {
                    let mut inputs = Reader::new(value.bytes());
                    while let Some((number, value)) = inputs.field().map_err(within)? {
                        if number == 1 {
                            node.inputs = value.text();
                        }
                    }
                }
                10 => {
                    let (name, attribute) = attribute(value).map_err(within)?;
                    node.attributes.insert(name, attribute);
                }
                _ => {}
            }
        }
        Ok(node)
    }

    fn number(&self, key: &str) -> Result<Option<u64>, Wrong> {
        match self.attributes.get(key) {
            None => Ok(None),
            Some(Attribute::Number(number)) => Ok(Some(*number)),
            Some(_) => Err(format!("{key} is not a number")),
        }
    }

    fn size(&self) -> Result<u64, Wrong> {
        let size = self.number("comm_size")?.ok_or("comm_size is missing")?;
        if size > MOST_BYTES {
            return Err(format!("comm_size is {size}; at most {MOST_BYTES} bytes are possible"));
        }
        Ok(size)
    }
}

/// Returns an error in a part of a node, whose position in the file is that of the node.
fn within(reason: Wrong) -> Wrong {
    let reason = reason.split_once(": ").map_or(reason.as_str(), |(_, reason)| reason);
    format!("in an attribute: {reason}")
}

/// Parses an attribute: its name and its value.
fn attribute(value: Value<'_>) -> Result<(String, Attribute), Wrong> {
    let mut message = Reader::new(value.bytes());
    let (mut name, mut attribute) = (String::new(), Attribute::Other);
    while let Some((number, value)) = message.field()? {
        match number {
            1 => name = value.text(),
            // int32, int64, uint32, uint64, fixed32, fixed64, sfixed32, sfixed64 and bool.
            7 | 9 | 11 | 13 | 19 | 21 | 23 | 25 | 27 => attribute = Attribute::Number(value.number()),
            // sint32 and sint64 have the sign in the lowest bit.
            15 | 17 => attribute = Attribute::Number(value.number() >> 1),
            28 => {
                let mut list = Reader::new(value.bytes());
                let mut flags = Vec::new();
                while let Some((_, value)) = list.field()? {
                    numbers(value, &mut flags)?;
                }
                attribute = Attribute::Flags(flags);
            }
            29 => attribute = Attribute::Text(value.text()),
            _ => {}
        }
    }
    Ok((name, attribute))
}
