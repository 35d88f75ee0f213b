//! Names of hosts in scenarios: single names, lists, ranges and patterns.

use std::collections::HashMap;

use super::Wrong;
use roce_sim::net::{NodeId, NodeKind, Topology};

/// Returns the number of the host with this name.
pub(super) fn find_host(topology: &Topology, name: &str) -> Result<u32, Wrong> {
    topology.host_named(name).ok_or_else(|| unknown(topology, name, "host", Some(NodeKind::Host)))
}

/// Returns the number of the switch with this name, in the order of the topology.
pub(super) fn find_switch(topology: &Topology, name: &str) -> Result<u32, Wrong> {
    let switches = topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch);
    let found = (0..).zip(switches).find(|(_, node)| node.name == name).map(|(number, _)| number);
    found.ok_or_else(|| unknown(topology, name, "switch", Some(NodeKind::Switch)))
}

/// Returns the index of the host or switch with this name.
pub(super) fn find_node(topology: &Topology, name: &str) -> Result<NodeId, Wrong> {
    topology.node_named(name).ok_or_else(|| unknown(topology, name, "host or switch", None))
}

fn unknown(topology: &Topology, name: &str, what: &str, kind: Option<NodeKind>) -> Wrong {
    format!("there is no {what} {name}{}", topology.hint(name, kind))
}

/// Returns a function that finds a host by name, or by number if no node has this name.
pub(super) fn by_name_or_number(topology: &Topology) -> impl Fn(&str) -> Result<u32, String> {
    let hosts = topology.nodes.iter().filter(|node| node.kind == NodeKind::Host);
    let mut numbers: HashMap<String, Option<u32>> =
        (0..).zip(hosts).map(|(number, node)| (node.name.clone(), Some(number))).collect();
    for node in topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch) {
        numbers.insert(node.name.clone(), None);
    }
    move |word| {
        let host = match numbers.get(word) {
            Some(host) => *host,
            None => word.parse().ok(),
        };
        host.ok_or_else(|| unknown(topology, word, "host", Some(NodeKind::Host)))
    }
}

/// Returns the hosts of a list, or all hosts without a list. The list contains names, ranges such as `h0..h7`
/// for eight hosts, and patterns in which `*` matches any text.
pub(super) fn select_hosts(topology: &Topology, list: Option<&[String]>) -> Result<Vec<u32>, Wrong> {
    let Some(list) = list else { return Ok((0..topology.hosts() as u32).collect()) };
    let mut hosts = Vec::new();
    for name in list {
        match name.split_once("..") {
            None if name.contains('*') => hosts.extend(matching(topology, name)?),
            None => hosts.push(find_host(topology, name)?),
            Some((first, last)) => {
                let (from, to) = (find_host(topology, first)?, find_host(topology, last)?);
                if from > to {
                    return Err(format!("hosts: {first} must precede {last} in the topology"));
                }
                hosts.extend(from..=to);
            }
        }
    }
    if hosts.is_empty() {
        return Err("hosts: the list is empty".to_owned());
    }
    let mut sorted = hosts.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("hosts: host {} is in the list twice", twice[0]));
    }
    Ok(hosts)
}

/// Returns the hosts whose name matches a pattern.
fn matching(topology: &Topology, pattern: &str) -> Result<Vec<u32>, Wrong> {
    let hosts = (0..).zip(topology.nodes.iter().filter(|node| node.kind == NodeKind::Host));
    let found: Vec<u32> =
        hosts.filter(|(_, node)| matches(pattern, &node.name)).map(|(number, _)| number).collect();
    if found.is_empty() {
        let hint = topology.hint(pattern, Some(NodeKind::Host));
        return Err(format!("hosts: no host has a name like {pattern}{hint}"));
    }
    Ok(found)
}

/// Returns whether a name contains the parts of a pattern in order.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut left) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return left.is_empty() };
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = left.get(at + part.len()..).unwrap_or_default();
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("h*", "h12", true),
            ("h*", "gh", false),
            ("*", "", true),
            ("h*r1", "h3r1", true),
            ("h*r1", "h3r11", false),
            ("h*r1", "hr1", true),
            ("h1*1", "h1", false),
            ("*a*b*", "xaxbx", true),
            ("*b*a*", "xaxbx", false),
            ("h1", "h1", true),
            ("h1", "h12", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
