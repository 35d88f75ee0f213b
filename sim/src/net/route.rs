//! Routes: all shortest paths to each host, found by breadth-first search.

use std::collections::HashMap;

use super::place::Place;
use super::settings::RouteOverride;
use super::topology::{NodeId, NodeKind, Topology};

/// Returns the other end of the link of a port. Link `i` has port `2 i` at its end `a` and port `2 i + 1` at
/// its end `b`.
pub(super) const fn other_end(port: u32) -> u32 {
    port ^ 1
}

/// The reason why the routes of a network cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// An override names a node or link that does not exist.
    #[error("route at {at} to {to}: {reason}")]
    Override {
        /// The switch of the override.
        at: String,
        /// The host of the override.
        to: String,
        /// The reason.
        reason: String,
    },
    /// A failure is impossible.
    #[error("failure: {reason}")]
    Failure {
        /// The reason.
        reason: String,
    },
    /// The tables of all switches would be too large in total.
    #[error(
        "routes of {switches} switches to {with_hosts} switches with hosts are too many: their product, times {versions} for changes \
         by failures, may be {most}",
        most = MOST_ROUTES
    )]
    TooMany {
        /// The number of switches.
        switches: usize,
        /// The number of switches with hosts.
        with_hosts: usize,
        /// The number of tables: one, and one for each change by a failure.
        versions: usize,
    },
}

/// The largest number of entries of all tables in total, which take half a gigabyte.
const MOST_ROUTES: usize = 1 << 26;

/// The routes of all switches.
#[derive(Debug)]
pub(super) struct Routes {
    /// For each host: its switch and the port there. The switch is `NONE` if the link leads to another host.
    attached: Vec<(u32, u32)>,
    /// For each switch and each switch with hosts: the position of the ports in `sets`, and their number.
    table: Vec<(u32, u32)>,
    /// For each switch: its column in the table, or `NONE` if it has no host.
    columns: Vec<u32>,
    /// The number of columns.
    width: usize,
    sets: Vec<u32>,
    /// Route overrides, sorted by switch and host.
    overrides: Vec<Override>,
}

/// A switch, a host, and the position of their ports in the sets.
type Override = ((u32, u32), (u32, u32));

/// The position of each set of ports of a switch. The map is used for lookups only, so its order does not
/// matter.
type Sets = HashMap<Box<[u32]>, (u32, u32)>;

const NONE: u32 = u32::MAX;

impl Routes {
    pub(super) fn new(topology: &Topology, overrides: &[RouteOverride]) -> Result<Self, RouteError> {
        Self::without(topology, overrides, |_| true)
    }

    /// Computes the routes over the links for which `works` returns true.
    pub(super) fn without(
        topology: &Topology,
        overrides: &[RouteOverride],
        works: impl Fn(u32) -> bool,
    ) -> Result<Self, RouteError> {
        let mut map = Map::new(topology);
        let attached: Vec<_> = map.hosts.iter().map(|host| map.attachment(*host)).collect();
        let mut needed: Vec<u32> =
            attached.iter().map(|(switch, _)| *switch).filter(|switch| *switch != NONE).collect();
        needed.sort_unstable();
        needed.dedup();
        let (switches, width) = (map.switches.len(), needed.len());
        let entries = switches.saturating_mul(width);
        if entries > MOST_ROUTES {
            return Err(RouteError::TooMany { switches, with_hosts: width, versions: 1 });
        }
        let resolved: Vec<_> =
            overrides.iter().map(|wanted| resolve(topology, &map, wanted)).collect::<Result<_, _>>()?;
        // Hosts stay attached, and their frames are lost at a link that is down.
        for neighbours in &mut map.neighbours {
            neighbours.retain(|(port, _)| works(port / 2));
        }
        let mut columns = vec![NONE; switches];
        for (column, switch) in (0..).zip(&needed) {
            columns[*switch as usize] = column;
        }
        let table = vec![(0, 0); entries];
        let mut routes = Self { attached, table, columns, width, sets: Vec::new(), overrides: Vec::new() };
        // Most routes of a switch have the ports of the route before: all that lead upwards.
        let mut known: Vec<Sets> = vec![Sets::new(); switches];
        let mut before = vec![(0, 0); switches];
        let mut ports = Vec::new();
        for (column, to) in needed.into_iter().enumerate() {
            let distances = map.distances(to);
            for (at, (known, before)) in known.iter_mut().zip(&mut before).enumerate() {
                shortest(&map, &distances, at, &mut ports);
                if routes.set(*before) != &ports[..] {
                    *before = known.get(&ports[..]).copied().unwrap_or_else(|| {
                        let set = (routes.sets.len() as u32, ports.len() as u32);
                        routes.sets.extend_from_slice(&ports);
                        known.insert(ports[..].into(), set);
                        set
                    });
                }
                routes.table[at * width + column] = *before;
            }
        }
        for (key, mut ports) in resolved {
            ports.retain(|port| works(port / 2));
            let first = routes.sets.len() as u32;
            routes.overrides.push((key, (first, ports.len() as u32)));
            routes.sets.extend(ports);
        }
        routes.overrides.sort_unstable_by_key(|(key, _)| *key);
        Ok(routes)
    }

    /// Returns the ports of `switch` that lead to `host`, or an empty slice if the host is unreachable.
    #[inline(always)]
    pub(super) fn ports(&self, switch: u32, host: u32) -> &[u32] {
        if !self.overrides.is_empty()
            && let Ok(found) = self.overrides.binary_search_by_key(&(switch, host), |(key, _)| *key)
        {
            return self.set(self.overrides[found].1);
        }
        let Some((attached, port)) = self.attached.get(host as usize) else { return &[] };
        if *attached == switch {
            return std::slice::from_ref(port);
        }
        if *attached == NONE {
            return &[];
        }
        self.set(self.table[switch as usize * self.width + self.columns[*attached as usize] as usize])
    }

    /// Replaces the number of each port in the whole network by its number in its part. A link between two
    /// hosts keeps its numbers: no switch forwards to it, and [`Self::joins`] compares them.
    pub(super) fn renumber(&mut self, ports: &[Place]) {
        let attached = self.attached.iter_mut().filter(|(switch, _)| *switch != NONE).map(|(_, port)| port);
        for port in attached.chain(&mut self.sets) {
            *port = ports[*port as usize].index;
        }
    }

    /// Returns the switch of a host and its port there, if the routes to all hosts of that switch are equal
    /// up to the switch.
    pub(super) fn switch_of(&self, host: u32) -> Option<(u32, u32)> {
        let (switch, port) = *self.attached.get(host as usize)?;
        (switch != NONE && self.overrides.is_empty()).then_some((switch, port))
    }

    fn set(&self, (first, count): (u32, u32)) -> &[u32] {
        self.sets.get(first as usize..(first + count) as usize).unwrap_or_default()
    }

    /// Returns whether frames from one host can reach another.
    pub(super) fn joins(&self, from: u32, to: u32) -> bool {
        match self.attached.get(from as usize) {
            Some((NONE, port)) => self
                .attached
                .get(to as usize)
                .is_some_and(|(switch, other)| *switch == NONE && other_end(*port) == *other),
            Some((switch, _)) => !self.ports(*switch, to).is_empty(),
            None => false,
        }
    }
}

/// Finds the ports of switch `at` whose other end is closer to the destination.
fn shortest(map: &Map, distances: &[u32], at: usize, ports: &mut Vec<u32>) {
    ports.clear();
    let own = distances[map.switches[at] as usize];
    if own == NONE || own == 0 {
        return;
    }
    let neighbours = map.neighbours[map.switches[at] as usize].iter();
    let closer = neighbours.filter(|(_, neighbour)| distances[*neighbour as usize] == own - 1);
    ports.extend(closer.map(|(port, _)| *port));
}

/// Checks that this number of versions of the routes is within the limit.
pub(super) fn check_size(topology: &Topology, versions: usize) -> Result<(), RouteError> {
    let map = Map::new(topology);
    let mut attached: Vec<u32> = map.hosts.iter().map(|host| map.attachment(*host).0).collect();
    attached.sort_unstable();
    attached.dedup();
    let (switches, with_hosts) = (map.switches.len(), attached.len());
    if switches.saturating_mul(with_hosts).saturating_mul(versions) > MOST_ROUTES {
        return Err(RouteError::TooMany { switches, with_hosts, versions });
    }
    Ok(())
}

/// Checks routes that replace the shortest paths.
///
/// # Errors
///
/// Returns the number of the first impossible route, and the reason.
pub fn check_routes(topology: &Topology, routes: &[RouteOverride]) -> Result<(), (usize, RouteError)> {
    if routes.is_empty() {
        return Ok(());
    }
    let map = Map::new(topology);
    for (number, route) in routes.iter().enumerate() {
        resolve(topology, &map, route).map_err(|error| (number, error))?;
    }
    Ok(())
}

/// Returns the switch and the host of an override, and the ports that it names.
fn resolve(
    topology: &Topology,
    map: &Map,
    wanted: &RouteOverride,
) -> Result<((u32, u32), Vec<u32>), RouteError> {
    let wrong =
        |reason: String| RouteError::Override { at: wanted.at.clone(), to: wanted.to.clone(), reason };
    let at = topology
        .node_named(&wanted.at)
        .ok_or_else(|| wrong(format!("no node {}{}", wanted.at, topology.hint(&wanted.at, None))))?;
    let switch = map.switches.iter().position(|switch| *switch == at);
    let switch = switch.ok_or_else(|| wrong(format!("{} is not a switch", wanted.at)))? as u32;
    let to = topology.host_named(&wanted.to).ok_or_else(|| {
        wrong(format!("no host {}{}", wanted.to, topology.hint(&wanted.to, Some(NodeKind::Host))))
    })?;
    let mut ports = Vec::with_capacity(wanted.via.len());
    for via in &wanted.via {
        let neighbour = topology
            .node_named(via)
            .ok_or_else(|| wrong(format!("no node {via}{}", topology.hint(via, None))))?;
        let link = map.neighbours[at as usize].iter().find(|(_, node)| *node == neighbour);
        let (port, _) = link.ok_or_else(|| wrong(format!("{} has no link to {via}", wanted.at)))?;
        ports.push(*port);
    }
    if ports.is_empty() {
        return Err(wrong("no neighbour is named".to_owned()));
    }
    Ok(((switch, to), ports))
}

/// The neighbours of each node.
struct Map {
    hosts: Vec<NodeId>,
    switches: Vec<NodeId>,
    /// For each node: its number among the switches.
    numbers: Vec<u32>,
    /// For each node: its ports, and the node at the other end of each port.
    neighbours: Vec<Vec<(u32, NodeId)>>,
}

impl Map {
    fn new(topology: &Topology) -> Self {
        let mut neighbours = vec![Vec::new(); topology.nodes.len()];
        for (number, link) in (0..).zip(&topology.links) {
            neighbours[link.a as usize].push((2 * number, link.b));
            neighbours[link.b as usize].push((2 * number + 1, link.a));
        }
        let of_kind = |kind| {
            let nodes = (0..).zip(&topology.nodes);
            nodes.filter(|(_, node)| node.kind == kind).map(|(id, _)| id).collect::<Vec<NodeId>>()
        };
        let switches = of_kind(NodeKind::Switch);
        let mut numbers = vec![NONE; topology.nodes.len()];
        for (number, switch) in (0..).zip(&switches) {
            numbers[*switch as usize] = number;
        }
        Self { hosts: of_kind(NodeKind::Host), switches, numbers, neighbours }
    }

    /// Returns the switch of a host and the port there, or `NONE` and the host's own port if it has no
    /// switch.
    fn attachment(&self, host: NodeId) -> (u32, u32) {
        match self.neighbours[host as usize].first() {
            Some((port, neighbour)) if self.numbers[*neighbour as usize] == NONE => (NONE, *port),
            Some((port, neighbour)) => (self.numbers[*neighbour as usize], other_end(*port)),
            None => (NONE, NONE),
        }
    }

    /// Returns the number of hops from each node to switch `to`, without paths through hosts.
    fn distances(&self, to: u32) -> Vec<u32> {
        let mut distances = vec![NONE; self.neighbours.len()];
        let mut queue = std::collections::VecDeque::from([self.switches[to as usize]]);
        distances[self.switches[to as usize] as usize] = 0;
        while let Some(node) = queue.pop_front() {
            let next = distances[node as usize] + 1;
            for (_, neighbour) in &self.neighbours[node as usize] {
                let distance = &mut distances[*neighbour as usize];
                if *distance == NONE && self.numbers[*neighbour as usize] != NONE {
                    *distance = next;
                    queue.push_back(*neighbour);
                }
            }
        }
        distances
    }
}

/// Distributes flows over paths: returns a hash of the fields that routers use, different in each switch. The
/// trace hash depends on this function, so it must not change.
#[inline]
pub(super) fn flow_hash(source: u32, destination: u32, source_port: u16, switch: u32) -> u32 {
    let addresses = u64::from(source) << 32 | u64::from(destination);
    let rest = u64::from(source_port) << 32 | u64::from(switch);
    let mut hash = addresses.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ rest.wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::topology::LinkSpec;

    #[test]
    fn a_fat_tree_has_all_its_paths() {
        let topology = Topology::fat_tree(4, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        let routes = Routes::new(&topology, &[]).unwrap();
        // Switches 0..8 are edges, 8..16 aggregation, 16..20 cores. Host 0 is at edge 0, host 15 at edge 7.
        assert_eq!(routes.ports(0, 0).len(), 1);
        assert_eq!(routes.ports(0, 15).len(), 2, "both aggregation switches of the pod");
        assert_eq!(routes.ports(8, 15).len(), 2, "both of its cores");
        assert_eq!(routes.ports(16, 15).len(), 1);
        assert_eq!(routes.ports(15, 15).len(), 1);
        for (from, to) in [(0, 1), (0, 15), (7, 3)] {
            assert!(routes.joins(from, to));
        }
    }

    #[test]
    fn what_is_not_joined() {
        let topology =
            Topology::parse("host a b c\nswitch s t\nlink a s\nlink b s\nlink c t", LinkSpec::DEFAULT);
        let routes = Routes::new(&topology.unwrap(), &[]).unwrap();
        assert!(routes.joins(0, 1) && !routes.joins(0, 2) && !routes.joins(0, 9));
        let cable = Routes::new(&Topology::point_to_point(LinkSpec::DEFAULT), &[]).unwrap();
        assert!(cable.joins(0, 1) && cable.joins(1, 0));
    }

    #[test]
    fn overrides() {
        let topology = Topology::ring(3, 1, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        let route = |at: &str, to: &str, via: &str| RouteOverride {
            at: at.into(),
            to: to.into(),
            via: vec![via.into()],
        };
        let plain = Routes::new(&topology, &[]).unwrap();
        let long = Routes::new(&topology, &[route("s0", "h1", "s2")]).unwrap();
        assert_ne!(plain.ports(0, 1), long.ports(0, 1));
        assert_eq!(plain.ports(0, 2), long.ports(0, 1));
        let error = Routes::new(&topology, &[route("s0", "h1", "h2")]).unwrap_err();
        assert_eq!(error.to_string(), "route at s0 to h1: s0 has no link to h2");
    }

    #[test]
    fn hashes_spread() {
        let mut counts = [0; 4];
        for port in 0..4_000 {
            counts[flow_hash(1, 2, port, 3) as usize % 4] += 1;
        }
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
}
