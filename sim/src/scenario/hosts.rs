//! Names of hosts in scenarios: one, a list, a range.

use std::collections::HashMap;

use super::build::Wrong;
use crate::net::{NodeKind, Topology};

/// The number of a host with this name.
pub(super) fn find_host(topology: &Topology, name: &str) -> Result<u32, Wrong> {
    topology.host_named(name).ok_or_else(|| {
        let near = topology.near_names(name, Some(NodeKind::Host));
        if near.is_empty() {
            let last = topology.hosts().saturating_sub(1);
            return format!("there is no host {name}; generated ones are h0 to h{last}");
        }
        format!("there is no host {name}; near names are {}", near.join(", "))
    })
}

/// The number of a switch with this name, in the order of the topology.
pub(super) fn find_switch(topology: &Topology, name: &str) -> Result<u32, Wrong> {
    let switches = topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch);
    (0..).zip(switches).find(|(_, node)| node.name == name).map(|(number, _)| number).ok_or_else(|| {
        let near = topology.near_names(name, Some(NodeKind::Switch));
        let near =
            if near.is_empty() { String::new() } else { format!("; near names are {}", near.join(", ")) };
        format!("there is no switch {name}{near}")
    })
}

/// The hosts of a list of flows: by name, or by number where no node has this name.
pub(super) fn by_name_or_number(topology: &Topology) -> impl Fn(&str) -> Option<u32> {
    let hosts = topology.nodes.iter().filter(|node| node.kind == NodeKind::Host);
    let mut numbers: HashMap<String, Option<u32>> =
        (0..).zip(hosts).map(|(number, node)| (node.name.clone(), Some(number))).collect();
    for node in topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch) {
        numbers.insert(node.name.clone(), None);
    }
    move |word| match numbers.get(word) {
        Some(host) => *host,
        None => word.parse().ok(),
    }
}

/// The hosts of a list of names and ranges, such as `h0..h7` for eight hosts; all hosts without a list.
pub(super) fn select_hosts(topology: &Topology, list: Option<&[String]>) -> Result<Vec<u32>, Wrong> {
    let Some(list) = list else { return Ok((0..topology.hosts() as u32).collect()) };
    let mut hosts = Vec::new();
    for name in list {
        match name.split_once("..") {
            None => hosts.push(find_host(topology, name)?),
            Some((first, last)) => {
                let (from, to) = (find_host(topology, first)?, find_host(topology, last)?);
                if from > to {
                    return Err(format!("hosts: {first} is not before {last} in the topology"));
                }
                hosts.extend(from..=to);
            }
        }
    }
    let mut sorted = hosts.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("hosts: host {} is in the list twice", twice[0]));
    }
    Ok(hosts)
}
