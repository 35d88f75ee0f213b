//! Generated topologies. Hosts come first, so that host and node numbers agree.

use super::{LinkSpec, NodeId, NodeKind, Topology, TopologyError};

/// The maximum number of nodes or links of a generated topology.
const MOST: usize = 1 << 18;

impl Topology {
    fn with_hosts(count: usize) -> Result<Self, TopologyError> {
        if count > MOST {
            return Err(TopologyError::Shape(format!("{count} hosts are too many")));
        }
        let mut topology = Self::default();
        for host in 0..count {
            topology.add(format!("h{host}"), NodeKind::Host);
        }
        Ok(topology)
    }

    fn add_switches(&mut self, prefix: &str, count: usize) -> Vec<NodeId> {
        (0..count).map(|number| self.add(format!("{prefix}{number}"), NodeKind::Switch)).collect()
    }

    /// Links hosts to switches in order, `each` hosts to every switch.
    fn attach(&mut self, switches: &[NodeId], each: usize, spec: LinkSpec) {
        let mut host = 0;
        for switch in switches {
            for _ in 0..each {
                self.link(host, *switch, spec);
                host += 1;
            }
        }
    }

    /// Creates two hosts and a link between them.
    #[must_use]
    pub fn point_to_point(spec: LinkSpec) -> Self {
        let mut topology = Self::default();
        let a = topology.add("h0".into(), NodeKind::Host);
        let b = topology.add("h1".into(), NodeKind::Host);
        topology.link(a, b, spec);
        topology
    }

    /// Creates one switch with `hosts` hosts.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many hosts.
    pub fn star(hosts: usize, spec: LinkSpec) -> Result<Self, TopologyError> {
        let mut topology = Self::with_hosts(hosts)?;
        let switches = topology.add_switches("s", 1);
        topology.attach(&switches, hosts, spec);
        Ok(topology)
    }

    /// Creates a row of switches, each linked to the next.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no switch, or if there are too many nodes.
    pub fn line(
        switches: usize,
        each: usize,
        host: LinkSpec,
        fabric: LinkSpec,
    ) -> Result<Self, TopologyError> {
        at_least("switches", switches, 1)?;
        product(&[switches])?;
        let mut topology = Self::with_hosts(product(&[switches, each])?)?;
        let switches = topology.add_switches("s", switches);
        topology.attach(&switches, each, host);
        for pair in switches.windows(2) {
            topology.link(pair[0], pair[1], fabric);
        }
        Ok(topology)
    }

    /// Creates a bus of switched Ethernet: a row of switches with one host each.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no host, or if there are too many nodes.
    pub fn bus(hosts: usize, host: LinkSpec, fabric: LinkSpec) -> Result<Self, TopologyError> {
        at_least("hosts", hosts, 1)?;
        Self::line(hosts, 1, host, fabric)
    }

    /// Creates a row of switches whose ends are linked.
    ///
    /// # Errors
    ///
    /// Returns an error if there are fewer than three switches, or too many nodes.
    pub fn ring(
        switches: usize,
        each: usize,
        host: LinkSpec,
        fabric: LinkSpec,
    ) -> Result<Self, TopologyError> {
        at_least("switches", switches, 3)?;
        let mut topology = Self::line(switches, each, host, fabric)?;
        let first = (switches * each) as NodeId;
        topology.link(first + switches as NodeId - 1, first, fabric);
        Ok(topology)
    }

    /// Creates a network in which every switch is linked to every other.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no switch, or if there are too many nodes.
    pub fn full_mesh(
        switches: usize,
        each: usize,
        host: LinkSpec,
        fabric: LinkSpec,
    ) -> Result<Self, TopologyError> {
        let mut topology = Self::with_hosts(product(&[switches, each])?)?;
        at_least("switches", switches, 1)?;
        product(&[switches, switches])?;
        let switches = topology.add_switches("s", switches);
        topology.attach(&switches, each, host);
        for (index, a) in switches.iter().enumerate() {
            for b in switches.iter().skip(index + 1) {
                topology.link(*a, *b, fabric);
            }
        }
        Ok(topology)
    }

    /// Creates a tree of switches with `depth` levels below its root, `fanout` children each, and `each`
    /// hosts at every leaf.
    ///
    /// # Errors
    ///
    /// Returns an error if `fanout` is 0, or if there are too many nodes.
    pub fn tree(
        depth: u32,
        fanout: usize,
        each: usize,
        host: LinkSpec,
        fabric: LinkSpec,
    ) -> Result<Self, TopologyError> {
        at_least("fanout", fanout, 1)?;
        let leaves = fanout.checked_pow(depth).ok_or_else(too_many)?;
        let mut topology = Self::with_hosts(product(&[leaves, each])?)?;
        // The number of switches is below twice the number of leaves if the fanout is at least two.
        product(&[leaves, 2])?;
        product(&[depth as usize, 2])?;
        let mut level = topology.add_switches("root", 1);
        for depth in 1..=depth {
            let children = topology.add_switches(&format!("t{depth}_"), level.len() * fanout);
            for (index, child) in children.iter().enumerate() {
                topology.link(level[index / fanout], *child, fabric);
            }
            level = children;
        }
        topology.attach(&level, each, host);
        Ok(topology)
    }

    /// Creates two switches whose link is the bottleneck. Hosts of the left switch come first.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many hosts.
    pub fn dumbbell(
        left: usize,
        right: usize,
        host: LinkSpec,
        bottleneck: LinkSpec,
    ) -> Result<Self, TopologyError> {
        let mut topology = Self::with_hosts(left.checked_add(right).ok_or_else(too_many)?)?;
        let switches = topology.add_switches("s", 2);
        for number in 0..left + right {
            topology.link(number as NodeId, switches[usize::from(number >= left)], host);
        }
        topology.link(switches[0], switches[1], bottleneck);
        Ok(topology)
    }

    /// Creates leaves with hosts, each linked to every spine.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no leaf or spine, or if there are too many nodes.
    pub fn leaf_spine(
        leaves: usize,
        spines: usize,
        each: usize,
        host: LinkSpec,
        fabric: LinkSpec,
    ) -> Result<Self, TopologyError> {
        at_least("leaves", leaves, 1)?;
        at_least("spines", spines, 1)?;
        product(&[leaves, spines])?;
        let mut topology = Self::with_hosts(product(&[leaves, each])?)?;
        let leaves = topology.add_switches("leaf", leaves);
        let spines = topology.add_switches("spine", spines);
        topology.attach(&leaves, each, host);
        join(&mut topology, &leaves, &spines, fabric);
        Ok(topology)
    }

    /// Creates one pod of [`Self::pods_of_rails`], whose switches are `rail0`, `rail1` and so on.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no server or rail, or if there are too many nodes.
    pub fn rail_optimised(
        servers: usize,
        rails: usize,
        spines: usize,
        host: LinkSpec,
        fabric: LinkSpec,
    ) -> Result<Self, TopologyError> {
        Self::pods_of_rails(1, servers, rails, spines, host, fabric)
    }

    /// Creates pods of servers with a NIC for each rail. Each NIC is a host: NIC `r` of every server of a
    /// pod is linked to switch `r` of the pod. The hosts are `h0r0`, `h0r1` and so on, by server and
    /// rail; the servers of all pods are numbered through. The switches are `pod0rail0`, `pod0rail1` and
    /// so on. Each is linked to every spine. Without spines, each is a separate network.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no pod, server or rail, or if there are too many nodes.
    pub fn pods_of_rails(
        pods: usize,
        servers: usize,
        rails: usize,
        spines: usize,
        host: LinkSpec,
        fabric: LinkSpec,
    ) -> Result<Self, TopologyError> {
        at_least("pods", pods, 1)?;
        at_least("servers", servers, 1)?;
        at_least("rails", rails, 1)?;
        product(&[pods, servers, rails])?;
        product(&[pods, rails, spines])?;
        let mut topology = Self::default();
        for server in 0..pods * servers {
            for rail in 0..rails {
                topology.add(format!("h{server}r{rail}"), NodeKind::Host);
            }
        }
        let mut switches = Vec::new();
        for pod in 0..pods {
            let name = if pods == 1 { "rail".to_owned() } else { format!("pod{pod}rail") };
            switches.extend(topology.add_switches(&name, rails));
        }
        let spines = topology.add_switches("spine", spines);
        for host_number in 0..pods * servers * rails {
            let (server, rail) = (host_number / rails, host_number % rails);
            topology.link(host_number as NodeId, switches[server / servers * rails + rail], host);
        }
        join(&mut topology, &switches, &spines, fabric);
        Ok(topology)
    }

    /// Creates three tiers: pods of ToRs and leaves, with every ToR linked to the leaves of its pod and every
    /// leaf to every spine. The testbed of the DCQCN paper has 2 pods of 2 ToRs and 2 leaves, and 2 spines.
    ///
    /// # Errors
    ///
    /// Returns an error if a tier has no switches, or if there are too many nodes.
    pub fn clos(shape: Clos, host: LinkSpec, fabric: LinkSpec) -> Result<Self, TopologyError> {
        at_least("pods", shape.pods, 1)?;
        at_least("tors", shape.tors, 1)?;
        at_least("leaves", shape.leaves, 1)?;
        at_least("spines", shape.spines, 1)?;
        product(&[shape.pods, shape.leaves, shape.spines])?;
        product(&[shape.pods, shape.leaves, shape.tors])?;
        let mut topology = Self::with_hosts(product(&[shape.pods, shape.tors, shape.hosts])?)?;
        let tors = topology.add_switches("tor", shape.pods * shape.tors);
        let leaves = topology.add_switches("leaf", shape.pods * shape.leaves);
        let spines = topology.add_switches("spine", shape.spines);
        topology.attach(&tors, shape.hosts, host);
        for (tors, leaves) in tors.chunks(shape.tors).zip(leaves.chunks(shape.leaves)) {
            join(&mut topology, tors, leaves, fabric);
        }
        join(&mut topology, &leaves, &spines, fabric);
        Ok(topology)
    }

    /// Creates the fat tree of `k`-port switches: k³/4 hosts, k pods of k/2 edge and k/2 aggregation
    /// switches, k²/4 core switches, full bisection bandwidth.
    ///
    /// # Errors
    ///
    /// Returns an error if `k` is odd, zero, or too large.
    pub fn fat_tree(k: usize, host: LinkSpec, fabric: LinkSpec) -> Result<Self, TopologyError> {
        if k == 0 || !k.is_multiple_of(2) {
            return Err(TopologyError::Shape(format!("a fat tree needs an even k above zero, not {k}")));
        }
        let half = k / 2;
        let mut topology = Self::with_hosts(product(&[k, half, half])?)?;
        let edges = topology.add_switches("edge", k * half);
        let aggregations = topology.add_switches("agg", k * half);
        let cores = topology.add_switches("core", half * half);
        topology.attach(&edges, half, host);
        for (edges, aggregations) in edges.chunks(half).zip(aggregations.chunks(half)) {
            join(&mut topology, edges, aggregations, fabric);
            for (aggregation, cores) in aggregations.iter().zip(cores.chunks(half)) {
                join(&mut topology, &[*aggregation], cores, fabric);
            }
        }
        Ok(topology)
    }
}

/// The dimensions of a three-tier Clos network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clos {
    /// The number of pods.
    pub pods: usize,
    /// ToRs per pod.
    pub tors: usize,
    /// Leaves per pod.
    pub leaves: usize,
    /// The number of spines.
    pub spines: usize,
    /// Hosts per ToR.
    pub hosts: usize,
}

fn join(topology: &mut Topology, lower: &[NodeId], upper: &[NodeId], spec: LinkSpec) {
    for a in lower {
        for b in upper {
            topology.link(*a, *b, spec);
        }
    }
}

fn at_least(what: &str, have: usize, need: usize) -> Result<(), TopologyError> {
    if have >= need {
        return Ok(());
    }
    Err(TopologyError::Shape(format!("{what} is {have}, but at least {need} is needed")))
}

fn product(factors: &[usize]) -> Result<usize, TopologyError> {
    let product = factors.iter().try_fold(1_usize, |product, factor| product.checked_mul(*factor));
    product.filter(|product| *product <= MOST).ok_or_else(too_many)
}

fn too_many() -> TopologyError {
    TopologyError::Shape(format!("that would be more than {MOST} nodes or links"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: LinkSpec = LinkSpec::DEFAULT;

    #[test]
    fn counts() {
        let tree = Topology::tree(2, 3, 4, SPEC, SPEC).unwrap();
        let clos = Clos { pods: 2, tors: 2, leaves: 2, spines: 2, hosts: 5 };
        let shapes = [
            (Topology::point_to_point(SPEC), 2, 2, 1),
            (Topology::star(5, SPEC).unwrap(), 5, 6, 5),
            (Topology::line(3, 2, SPEC, SPEC).unwrap(), 6, 9, 8),
            (Topology::bus(3, SPEC, SPEC).unwrap(), 3, 6, 5),
            (Topology::ring(4, 1, SPEC, SPEC).unwrap(), 4, 8, 8),
            (Topology::full_mesh(4, 2, SPEC, SPEC).unwrap(), 8, 12, 14),
            (tree, 36, 36 + 13, 36 + 12),
            (Topology::dumbbell(3, 2, SPEC, SPEC).unwrap(), 5, 7, 6),
            (Topology::leaf_spine(4, 2, 8, SPEC, SPEC).unwrap(), 32, 38, 40),
            (Topology::rail_optimised(4, 2, 0, SPEC, SPEC).unwrap(), 8, 10, 8),
            (Topology::rail_optimised(4, 3, 2, SPEC, SPEC).unwrap(), 12, 17, 12 + 6),
            (Topology::clos(clos, SPEC, SPEC).unwrap(), 20, 30, 20 + 8 + 8),
            (Topology::fat_tree(4, SPEC, SPEC).unwrap(), 16, 36, 48),
            (Topology::fat_tree(8, SPEC, SPEC).unwrap(), 128, 208, 384),
        ];
        for (topology, hosts, nodes, links) in shapes {
            topology.check().unwrap();
            assert_eq!((topology.hosts(), topology.nodes.len(), topology.links.len()), (hosts, nodes, links));
        }
    }

    #[test]
    fn impossible_shapes() {
        for wrong in [
            Topology::fat_tree(5, SPEC, SPEC),
            Topology::fat_tree(0, SPEC, SPEC),
            Topology::fat_tree(usize::MAX - 1, SPEC, SPEC),
            Topology::ring(2, 1, SPEC, SPEC),
            Topology::leaf_spine(1, 0, 1, SPEC, SPEC),
            Topology::tree(64, 3, 1, SPEC, SPEC),
            Topology::rail_optimised(0, 1, 0, SPEC, SPEC),
            Topology::rail_optimised(1, 0, 0, SPEC, SPEC),
            Topology::rail_optimised(1 << 40, 1 << 40, 0, SPEC, SPEC),
            Topology::rail_optimised(1, 2, usize::MAX, SPEC, SPEC),
            Topology::star(usize::MAX, SPEC),
            Topology::line(1 << 30, 0, SPEC, SPEC),
            Topology::tree(u32::MAX, 1, 1, SPEC, SPEC),
        ] {
            assert!(matches!(wrong, Err(TopologyError::Shape(_))), "{wrong:?}");
        }
    }
}
