//! The parts of a simulation, made from its description.

use roce_fault::FaultInjector;

use super::BuildError;
use crate::net::host::Host;
use crate::net::port::{Owner, Port};
use crate::net::results::port_name;
use crate::net::settings::{FlowOperation, Settings};
use crate::net::switch::Switch;
use crate::net::time::Time;
use crate::net::topology::{LinkSpec, NodeKind, Topology};
use crate::net::workload::Schedule;

pub(super) fn check_settings(settings: &Settings, hosts: u32, ports: usize) -> Result<(), BuildError> {
    let wrong = |what: &str| Err(BuildError::Setting(what.to_owned()));
    if let Some((key, reason)) = settings.host_problem().or(settings.switch.problem()) {
        return Err(BuildError::Setting(format!("{key}: {reason}")));
    }
    if let Some(reason) = settings.trimming_problem() {
        return Err(BuildError::Setting(format!("trimming: {reason}")));
    }
    if settings.measure.interval == Time::ZERO {
        return wrong("interval: it must be longer than 0");
    }
    if settings.measure.capture.iter().any(|port| *port as usize >= ports) {
        return wrong("capture: the port does not exist");
    }
    if let Some(host) = settings.storms.iter().map(|storm| storm.host).find(|host| *host >= hosts) {
        return Err(BuildError::Setting(format!("there is no host {host}; the last is {}", hosts - 1)));
    }
    if settings.storms.iter().any(|storm| storm.priority > 7) {
        return wrong("the priority of a storm must be 0 to 7");
    }
    Ok(())
}

/// Checks that the ends of flows see what tasks wait for.
pub(super) fn check_operations(settings: &Settings, schedule: &Schedule) -> Result<(), BuildError> {
    let mut flows: Vec<u32> =
        schedule.tasks().iter().filter_map(|task| task.transfer).map(|transfer| transfer.flow).collect();
    flows.sort_unstable();
    for (place, flow) in flows.iter().enumerate() {
        let reason = match settings.of_flow(*flow).0.operation {
            FlowOperation::Read => {
                "its sender does not see when it has ended, so it cannot be the READ of a task"
            }
            FlowOperation::Send if flows.get(place + 1) == Some(flow) => {
                "its receiver does not know where its transfers end, so they cannot be SENDs"
            }
            FlowOperation::Send | FlowOperation::Write => continue,
        };
        return Err(BuildError::Setting(format!("flow {flow}: {reason}")));
    }
    Ok(())
}

/// Builds two ports for each link. Returns also the name of each, and whether a host owns it.
pub(super) fn build_ports(topology: &Topology, seed: u64) -> (Vec<Port>, Vec<(String, bool)>) {
    let mut numbers = Vec::with_capacity(topology.nodes.len());
    let (mut hosts, mut switches) = (0, 0);
    for node in &topology.nodes {
        let counter = if node.kind == NodeKind::Host { &mut hosts } else { &mut switches };
        numbers.push(*counter);
        *counter += 1;
    }
    let mut locals = vec![0; topology.nodes.len()];
    let (mut ports, mut names) = (Vec::new(), Vec::new());
    for link in &topology.links {
        for (from, to) in [(link.a, link.b), (link.b, link.a)] {
            let from = from as usize;
            let is_host = topology.nodes[from].kind == NodeKind::Host;
            let owner = if is_host { Owner::Host(numbers[from]) } else { Owner::Switch(numbers[from]) };
            let number = ports.len() as u64;
            let faults = link.faults.clone().map(|plan| FaultInjector::new(plan, seed.wrapping_add(number)));
            ports.push(Port::new(owner, locals[from], link.spec, faults));
            locals[from] += 1;
            names.push((port_name(&topology.nodes[from].name, &topology.nodes[to as usize].name), is_host));
        }
    }
    (ports, names)
}

/// The names of hosts, and behind them those of switches.
pub(super) fn node_names(topology: &Topology) -> Vec<String> {
    let (hosts, switches): (Vec<_>, Vec<_>) =
        topology.nodes.iter().partition(|node| node.kind == NodeKind::Host);
    hosts.into_iter().chain(switches).map(|node| node.name.clone()).collect()
}

pub(super) fn build_nodes(
    topology: &Topology,
    ports: &[Port],
    settings: &Settings,
) -> Result<(Vec<Host>, Vec<Switch>), BuildError> {
    let mut links: Vec<Vec<LinkSpec>> = Vec::new();
    let mut host_ports: Vec<(u32, u32)> = Vec::new();
    for (number, port) in (0..).zip(ports) {
        match port.owner {
            Owner::Host(host) => host_ports.push((host, number)),
            Owner::Switch(switch) => {
                let switch = switch as usize;
                if links.len() <= switch {
                    links.resize(switch + 1, Vec::new());
                }
                links[switch].push(port.spec);
            }
        }
    }
    host_ports.sort_unstable();
    let hosts = host_ports
        .iter()
        .map(|(host, port)| Host::new(*host, *port, ports[*port as usize].spec.rate_bps, settings))
        .collect();
    let named = topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch);
    let none = Vec::new();
    let mut switches = Vec::new();
    for (number, node) in named.enumerate() {
        let links = links.get(number).unwrap_or(&none);
        let switch = Switch::new(number as u32, settings, links);
        switches.push(switch.map_err(|error| BuildError::Buffer { name: node.name.clone(), error })?);
    }
    Ok((hosts, switches))
}
