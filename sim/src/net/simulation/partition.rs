//! The division of a network into parts.

use crate::net::time::Time;
use crate::net::topology::{NodeKind, Topology};
use crate::net::workload::Schedule;
use crate::net::world::least_time;

/// Distributes the nodes of a network among at most `most` parts. A host belongs to the part of its switch,
/// so only links between switches connect parts. Returns the part of each node, and the number of parts.
pub(super) fn partition(topology: &Topology, most: usize) -> (Vec<u32>, usize) {
    let neighbours = neighbours(topology);
    let is_host = |node: usize| topology.nodes[node].kind == NodeKind::Host;
    let hosts_of = |node: usize| neighbours[node].iter().filter(|other| is_host(**other)).count();
    let switches = || (0..topology.nodes.len()).filter(|node| !is_host(*node));
    let leaves = switches().filter(|node| hosts_of(*node) > 0).count();
    let parts = most.min(leaves).max(1);
    if parts == 1 {
        return (vec![0; topology.nodes.len()], 1);
    }
    let mut of_node: Vec<Option<usize>> = vec![None; topology.nodes.len()];
    let mut loads = vec![0; parts];
    // Switches with hosts: each part gets about the same number of hosts. Switches with adjacent numbers are
    // close to each other.
    let all: usize = switches().map(hosts_of).sum();
    let mut before = 0;
    for node in switches().filter(|node| hosts_of(*node) > 0) {
        let own = hosts_of(node);
        let part = ((2 * before + own) * parts / (2 * all)).min(parts - 1);
        before += own;
        of_node[node] = Some(part);
        loads[part] += neighbours[node].len();
    }
    // The other switches, outwards: with their neighbours if all are in one part, otherwise in the part with
    // the lowest load.
    loop {
        let open: Vec<usize> = switches().filter(|node| of_node[*node].is_none()).collect();
        let next: Vec<(usize, Vec<usize>)> = open
            .into_iter()
            .map(|node| (node, neighbours[node].iter().filter_map(|other| of_node[*other]).collect()))
            .filter(|(_, near): &(usize, Vec<usize>)| !near.is_empty())
            .collect();
        if next.is_empty() {
            break;
        }
        for (node, near) in next {
            let first = near[0];
            let least = (0..parts).min_by_key(|part| loads[*part]).unwrap_or(0);
            let part = if near.iter().all(|part| *part == first) { first } else { least };
            of_node[node] = Some(part);
            loads[part] += neighbours[node].len();
        }
    }
    let of_host = |node: usize| neighbours[node].first().and_then(|switch| of_node[*switch]);
    let part = |node: usize| if is_host(node) { of_host(node) } else { of_node[node] };
    ((0..of_node.len()).map(|node| part(node).unwrap_or(0) as u32).collect(), parts)
}

/// Returns the neighbours of each node, with one entry for each link.
fn neighbours(topology: &Topology) -> Vec<Vec<usize>> {
    let mut neighbours = vec![Vec::new(); topology.nodes.len()];
    for link in &topology.links {
        neighbours[link.a as usize].push(link.b as usize);
        neighbours[link.b as usize].push(link.a as usize);
    }
    neighbours
}

/// Returns the minimum time that a frame, or a transfer of the scale-up network, takes from one part to
/// another, for any division into parts. For frames, the minimum is over the links between switches, or over
/// all links if there are none.
pub(super) fn lookahead(topology: &Topology, schedule: &Schedule) -> Time {
    let is_switch = |node: u32| topology.nodes[node as usize].kind == NodeKind::Switch;
    let between = topology.links.iter().filter(|link| is_switch(link.a) && is_switch(link.b));
    let least = between.map(|link| least_time(&link.spec)).min();
    let of_all = || topology.links.iter().map(|link| least_time(&link.spec)).min();
    let of_frames = least.or_else(of_all).unwrap_or(Time::NEVER);
    let used = topology.scale_up.filter(|_| schedule.scale_up_transfers() > 0);
    used.map_or(of_frames, |scale_up| of_frames.min(scale_up.delay)).max(Time::from_ps(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::topology::LinkSpec;

    #[test]
    fn hosts_stay_with_their_switch_and_parts_are_of_a_size() {
        let topology = Topology::fat_tree(4, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        for most in [1, 2, 3, 4, 100] {
            let (of_node, parts) = partition(&topology, most);
            assert_eq!(parts, most.min(8), "there are eight switches with hosts");
            let kinds = topology.nodes.iter().map(|node| node.kind);
            let mut hosts = vec![0; parts];
            for (kind, part) in kinds.zip(&of_node) {
                hosts[*part as usize] += usize::from(kind == NodeKind::Host);
            }
            let (least, most) = (hosts.iter().min().unwrap(), hosts.iter().max().unwrap());
            assert!(most - least <= 2, "{hosts:?}");
            for link in &topology.links {
                let ends = [link.a, link.b];
                let has_host = ends.iter().any(|node| topology.nodes[*node as usize].kind == NodeKind::Host);
                assert!(!has_host || of_node[link.a as usize] == of_node[link.b as usize]);
            }
        }
        // Half of the pods with their own switches: only links to the core switches cross.
        let (of_node, _) = partition(&topology, 2);
        let crossing =
            topology.links.iter().filter(|link| of_node[link.a as usize] != of_node[link.b as usize]);
        assert_eq!(crossing.count(), 8);
    }

    #[test]
    fn the_lookahead_is_that_of_links_between_switches() {
        let near = LinkSpec { delay: Time::from_ns(10), ..LinkSpec::DEFAULT };
        let topology = Topology::fat_tree(4, near, LinkSpec::DEFAULT).unwrap();
        // The shortest frame takes 84 bytes on the wire.
        assert_eq!(lookahead(&topology, &Schedule::new()), Time::from_us(1) + Time::from_ps(84 * 80));
        let star = Topology::star(3, near).unwrap();
        assert_eq!(lookahead(&star, &Schedule::new()), Time::from_ns(10) + Time::from_ps(84 * 80));
        assert_eq!(partition(&star, 4).1, 1, "one switch cannot be divided");
        assert_eq!(partition(&Topology::point_to_point(near), 4).1, 1);
    }
}
