//! Topologies: nodes, and the links between them.

mod file;
mod generate;
mod hpcc;
mod names;
mod scale_up;

use super::time::Time;
use roce_fault::FaultPlan;

pub use file::TopologyFileError;
pub use generate::Clos;
pub use scale_up::ScaleUp;

/// The largest number of hosts of a network: half of the address range. In a fat tree, an idle host takes
/// 17 KB with its ports and its share of switches and routes, and the maximum number of hosts 1.1 GB.
pub const MAX_HOSTS: usize = 1 << 16;

/// A node of a topology, as an index into [`Topology::nodes`].
pub type NodeId = u32;

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A host, which runs an engine and has one link.
    Host,
    /// A switch, which forwards frames.
    Switch,
}

/// A node of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name in results.
    pub name: String,
    /// The kind.
    pub kind: NodeKind,
}

/// Rate and delay of a link in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Bits per second, including preamble and gap.
    pub rate_bps: u64,
    /// The time from the departure to the arrival of a bit.
    pub delay: Time,
}

impl LinkSpec {
    /// 100 Gb/s and 1 µs.
    pub const DEFAULT: Self = Self { rate_bps: 100_000_000_000, delay: Time::from_us(1) };
}

/// A link between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// One end.
    pub a: NodeId,
    /// The other end.
    pub b: NodeId,
    /// Rate and delay.
    pub spec: LinkSpec,
    /// The fault plans for what `a` sends and for what `b` sends. Each counts and draws for its direction.
    pub faults: [Option<FaultPlan>; 2],
}

impl Link {
    /// Applies a fault plan to each of both directions.
    pub fn set_faults(&mut self, plan: FaultPlan) {
        self.faults = [Some(plan.clone()), Some(plan)];
    }
}

/// The nodes and links of a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// All nodes. Hosts and switches are numbered in this order.
    pub nodes: Vec<Node>,
    /// All links.
    pub links: Vec<Link>,
    /// The scale-up network, if there is one.
    pub scale_up: Option<ScaleUp>,
}

/// The reason why a topology is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A host has no link or several.
    #[error("host {name} has {links} links, but a host has exactly one")]
    HostLinks {
        /// The name of the host.
        name: String,
        /// The number of links.
        links: usize,
    },
    /// A node is linked to itself.
    #[error("node {name} is linked to itself")]
    Loop {
        /// The name of the node.
        name: String,
    },
    /// The rate of a link is 0.
    #[error("the link between {a} and {b} has a rate of 0")]
    NoRate {
        /// One end.
        a: String,
        /// The other end.
        b: String,
    },
    /// There are more than [`MAX_HOSTS`](crate::net::MAX_HOSTS) hosts.
    #[error("{hosts} hosts are too many; {most} are possible", most = MAX_HOSTS)]
    TooManyHosts {
        /// The number of hosts.
        hosts: usize,
    },
    /// The dimensions of a generated topology are impossible.
    #[error("{0}")]
    Shape(String),
}

impl Topology {
    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.nodes.iter().filter(|node| node.kind == NodeKind::Host).count()
    }

    /// Returns the number of the host with this name.
    #[must_use]
    pub fn host_named(&self, name: &str) -> Option<u32> {
        let hosts = self.nodes.iter().filter(|node| node.kind == NodeKind::Host);
        (0..).zip(hosts).find(|(_, node)| node.name == name).map(|(number, _)| number)
    }

    /// Returns the node with this name.
    #[must_use]
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.name == name).and_then(|index| NodeId::try_from(index).ok())
    }

    /// Returns the port of a host (`h1`), or the port of a node towards a neighbour (`s0:h1`), as an index
    /// into [`Results::ports`](crate::net::Results::ports).
    #[must_use]
    pub fn port_named(&self, name: &str) -> Option<u32> {
        let (from, to) = match name.split_once(':') {
            Some((from, to)) => (self.node_named(from)?, Some(self.node_named(to)?)),
            None => (self.node_named(name)?, None),
        };
        let is_host = self.nodes.get(from as usize)?.kind == NodeKind::Host;
        if to.is_none() && !is_host {
            return None;
        }
        let leads = |own: NodeId, other: NodeId| own == from && to.is_none_or(|to| to == other);
        (0..).zip(&self.links).find_map(|(number, link)| {
            match (leads(link.a, link.b), leads(link.b, link.a)) {
                (true, _) => Some(2 * number),
                (_, true) => Some(2 * number + 1),
                _ => None,
            }
        })
    }

    /// Checks that the topology is valid.
    ///
    /// # Errors
    ///
    /// Returns the first violated requirement.
    pub fn check(&self) -> Result<(), TopologyError> {
        let name = |node: NodeId| self.nodes[node as usize].name.clone();
        let mut links = vec![0; self.nodes.len()];
        for link in &self.links {
            links[link.a as usize] += 1;
            links[link.b as usize] += 1;
            if link.a == link.b {
                return Err(TopologyError::Loop { name: name(link.a) });
            }
            if link.spec.rate_bps == 0 {
                return Err(TopologyError::NoRate { a: name(link.a), b: name(link.b) });
            }
        }
        for (node, links) in self.nodes.iter().zip(links) {
            if node.kind == NodeKind::Host && links != 1 {
                return Err(TopologyError::HostLinks { name: node.name.clone(), links });
            }
        }
        let hosts = self.hosts();
        if hosts > MAX_HOSTS {
            return Err(TopologyError::TooManyHosts { hosts });
        }
        match self.scale_up.and_then(|scale_up| scale_up.problem()) {
            Some(reason) => Err(TopologyError::Shape(format!("scale_up: {reason}"))),
            None => Ok(()),
        }
    }

    fn add(&mut self, name: String, kind: NodeKind) -> NodeId {
        self.nodes.push(Node { name, kind });
        (self.nodes.len() - 1) as NodeId
    }

    fn link(&mut self, a: NodeId, b: NodeId, spec: LinkSpec) {
        self.links.push(Link { a, b, spec, faults: [None, None] });
    }
}
