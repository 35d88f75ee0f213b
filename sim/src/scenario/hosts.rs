//! Names of hosts in scenarios: one, a list, a range.

use super::build::Wrong;
use crate::net::Topology;

/// The number of a host with this name.
pub(super) fn find_host(topology: &Topology, name: &str) -> Result<u32, Wrong> {
    topology.host_named(name).ok_or_else(|| {
        let last = topology.hosts().saturating_sub(1);
        format!("there is no host {name}; generated ones are h0 to h{last}")
    })
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
