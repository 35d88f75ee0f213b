//! Builds the parts of a simulation from its description.

use std::sync::Arc;

use roce_fault::FaultInjector;

use super::BuildError;
use super::part::Part;
use super::partition::partition;
use crate::net::failure::Changes;
use crate::net::flow::Flow;
use crate::net::frame::Frames;
use crate::net::host::Host;
use crate::net::ideal::{Alone, Network};
use crate::net::journal::Journal;
use crate::net::place::Place;
use crate::net::port::{Owner, Port};
use crate::net::queue::EventQueue;
use crate::net::results::port_name;
use crate::net::scale_up;
use crate::net::settings::{FlowOperation, PauseMode, Settings, SwitchSettings};
use crate::net::switch::Switch;
use crate::net::ties::TieOrder;
use crate::net::time::Time;
use crate::net::topology::{LinkSpec, NodeKind, Topology};
use crate::net::waits::SwitchWaits;
use crate::net::workload::{FlowSpec, Schedule};
use crate::net::world::{SCRATCH, World};

pub(super) fn check_settings(settings: &Settings, hosts: u32, ports: usize) -> Result<(), BuildError> {
    let wrong = |what: &str| Err(BuildError::Setting(what.to_owned()));
    let of_switches = || settings.switch.problem().map(|(_, key, reason)| (key, reason));
    if let Some((key, reason)) = settings.host_problem().or_else(of_switches) {
        return Err(BuildError::Setting(format!("{key}: {reason}")));
    }
    if let Some((_, reason)) = settings.trimming_problem() {
        return Err(BuildError::Setting(format!("trimming: {reason}")));
    }
    if settings.measure.interval == Time::ZERO {
        return wrong("interval: it must be longer than 0");
    }
    if settings.measure.capture.iter().any(|port| *port as usize >= ports) {
        return wrong("capture: the port does not exist");
    }
    if let Some(reason) = settings.applications.iter().find_map(|application| application.problem()) {
        return Err(BuildError::Setting(format!("application: {reason}")));
    }
    if settings.applications.len() > hosts as usize {
        return Err(BuildError::Setting(format!("applications: there are only {hosts} hosts")));
    }
    if let Some(host) = settings.storms.iter().map(|storm| storm.host).find(|host| *host >= hosts) {
        return Err(BuildError::Setting(format!("there is no host {host}; the last is {}", hosts - 1)));
    }
    if settings.storms.iter().any(|storm| storm.priority > 7) {
        return wrong("the priority of a storm must be 0 to 7");
    }
    Ok(())
}

/// Checks that hosts can observe the ends of the transfers that tasks wait for.
pub(super) fn check_operations(settings: &Settings, schedule: &Schedule) -> Result<(), BuildError> {
    let mut flows: Vec<u32> = schedule.flows().collect();
    flows.sort_unstable();
    for (place, flow) in flows.iter().enumerate() {
        let reason = match settings.of_flow(*flow).0.operation {
            FlowOperation::Read => {
                "its sender does not learn when it ends, so it cannot be the READ of a task"
            }
            FlowOperation::Send if flows.get(place + 1) == Some(flow) => {
                "its receiver does not learn where its transfers end, so they cannot be SENDs"
            }
            FlowOperation::Send | FlowOperation::Write => continue,
        };
        return Err(BuildError::Setting(format!("flow {flow}: {reason}")));
    }
    Ok(())
}

/// Builds two ports for each link. Also returns the name of each port, and whether it belongs to a host.
pub(super) fn build_ports(topology: &Topology, settings: &Settings) -> (Vec<Port>, Vec<(String, bool)>) {
    // Ports with the same settings share them.
    let mut shared = vec![Arc::new(SwitchSettings { port_rules: Vec::new(), ..settings.switch.clone() })];
    let mut numbers = Vec::with_capacity(topology.nodes.len());
    let (mut hosts, mut switches) = (0, 0);
    for node in &topology.nodes {
        let counter = if node.kind == NodeKind::Host { &mut hosts } else { &mut switches };
        numbers.push(*counter);
        *counter += 1;
    }
    let mut locals = vec![0; topology.nodes.len()];
    let count = 2 * topology.links.len();
    let (mut ports, mut names) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for link in &topology.links {
        for ((from, to), faults) in [(link.a, link.b), (link.b, link.a)].into_iter().zip(&link.faults) {
            let from = from as usize;
            let is_host = topology.nodes[from].kind == NodeKind::Host;
            let owner = if is_host { Owner::Host(numbers[from]) } else { Owner::Switch(numbers[from]) };
            let number = ports.len() as u32;
            let own = match owner {
                Owner::Switch(switch) if !settings.switch.port_rules.is_empty() => {
                    let own = settings.switch.of_port(switch, to, link.spec.rate_bps);
                    share(&mut shared, own)
                }
                _ => Arc::clone(&shared[0]),
            };
            let seed = settings.seed.wrapping_add(number.into());
            let faults = faults.clone().map(|plan| FaultInjector::new(plan, seed));
            ports.push(Port::new(number, owner, locals[from], link.spec, own, faults));
            locals[from] += 1;
            names.push((port_name(&topology.nodes[from].name, &topology.nodes[to as usize].name), is_host));
        }
    }
    (ports, names)
}

/// Returns the shared copy of equal settings, or shares these.
fn share(shared: &mut Vec<Arc<SwitchSettings>>, own: SwitchSettings) -> Arc<SwitchSettings> {
    if let Some(known) = shared.iter().find(|known| ***known == own) {
        return Arc::clone(known);
    }
    let own = Arc::new(own);
    shared.push(Arc::clone(&own));
    own
}

/// Returns the names of hosts, followed by those of switches.
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
    let mut links: Vec<Vec<(Arc<SwitchSettings>, LinkSpec)>> = Vec::new();
    let mut host_ports: Vec<(u32, u32)> = Vec::new();
    for (number, port) in (0..).zip(ports) {
        match port.owner {
            Owner::Host(host) => host_ports.push((host, number)),
            Owner::Switch(switch) => {
                let switch = switch as usize;
                if links.len() <= switch {
                    links.resize(switch + 1, Vec::new());
                }
                links[switch].push((Arc::clone(&port.settings), port.spec));
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

/// A whole network, before its division into parts.
pub(super) struct Whole {
    pub(super) ports: Vec<Port>,
    pub(super) hosts: Vec<Host>,
    pub(super) switches: Vec<Switch>,
    pub(super) changes: Changes,
    /// The name of each port, and whether it belongs to a host.
    pub(super) names: Arc<[(String, bool)]>,
}

/// The parts of a network, and the location of each element by its number in the whole network.
pub(super) struct Divided {
    pub(super) parts: Vec<Part>,
    pub(super) ports: Vec<Place>,
    pub(super) hosts: Vec<Place>,
    pub(super) flows: Arc<Vec<Place>>,
}

impl Whole {
    /// Returns the ideal completion time of each flow.
    pub(super) fn ideal_times(&self, flows: &[FlowSpec], settings: &Settings) -> Vec<Option<Time>> {
        let hosts: Vec<u32> = self.hosts.iter().map(|host| host.nic.port).collect();
        let alone = (0..).zip(flows).map(|(number, spec)| Alone {
            spec: *spec,
            host: settings.of_flow(number).0,
            signals: self.hosts[spec.source as usize].agenda.signals(number),
        });
        let routes = self.changes.routes_of_all();
        let mut times = Network { routes, ports: &self.ports, hosts: &hosts, settings: &settings.host }
            .times(&alone.collect::<Vec<_>>());
        for (number, (time, spec)) in (0..).zip(times.iter_mut().zip(flows)) {
            // The parts of such a flow wait for others, so its ideal time does not describe the network.
            time.take_if(|_| self.hosts[spec.source as usize].agenda.has_parts(number));
        }
        times
    }

    /// Divides the network into at most `settings.threads` parts.
    pub(super) fn divide(self, topology: &Topology, flows: &[FlowSpec], settings: Settings) -> Divided {
        // A pause without delay must not cross to another part.
        let most = if settings.switch.pause == PauseMode::Instant { 1 } else { settings.threads };
        let (of_node, parts) = partition(topology, most);
        let of_kind = |kind: NodeKind| {
            let nodes = topology.nodes.iter().zip(&of_node);
            places(nodes.filter(|(node, _)| node.kind == kind).map(|(_, part)| *part), parts)
        };
        let (hosts, switches) = (of_kind(NodeKind::Host), of_kind(NodeKind::Switch));
        let place_of = |owner: Owner| match owner {
            Owner::Host(host) => hosts[host as usize],
            Owner::Switch(switch) => switches[switch as usize],
        };
        let ports = places(self.ports.iter().map(|port| place_of(port.owner).part), parts);
        let requesters: Vec<Place> = (0..)
            .zip(flows)
            .map(|(number, spec)| {
                let operation = settings.of_flow(number).0.operation;
                hosts[operation.order([spec.source, spec.destination])[0] as usize]
            })
            .collect();
        let flow_places = Arc::new(places(requesters.iter().map(|requester| requester.part), parts));
        let mut changes = self.changes;
        changes.renumber(&ports);
        let settings = Arc::new(settings);
        let host_places: Arc<[Place]> = hosts.as_slice().into();
        let mut divided: Vec<Part> = (0..parts as u32)
            .map(|part| {
                let mut part = empty_part(part, parts, &settings, &changes, &flow_places);
                part.world.names = Arc::clone(&self.names);
                part.world.scale_up.spec = topology.scale_up;
                part.world.scale_up.hosts = Arc::clone(&host_places);
                part
            })
            .collect();
        let mut all_ports = self.ports;
        for port in &mut all_ports {
            let place = place_of(port.owner);
            (port.owner, port.node) = match port.owner {
                Owner::Host(host) => (Owner::Host(place.index), host),
                Owner::Switch(switch) => (Owner::Switch(place.index), hosts.len() as u32 + switch),
            };
            port.peer = ports[port.peer.index as usize];
        }
        let mut all_hosts = self.hosts;
        for host in &mut all_hosts {
            let nic = &mut host.nic;
            nic.index = hosts[nic.number as usize].index;
            nic.port = ports[nic.port as usize].index;
        }
        let of_ports = distribute(all_ports, &ports, parts);
        let of_hosts = distribute(all_hosts, &hosts, parts);
        for ((part, ports), hosts) in divided.iter_mut().zip(of_ports).zip(of_hosts) {
            (part.world.ports, part.hosts) = (ports, hosts);
        }
        for (switch, place) in self.switches.into_iter().zip(&switches) {
            divided[place.part as usize].switches.push(switch);
            divided[place.part as usize].world.waits.push(SwitchWaits::default());
        }
        for (spec, requester) in flows.iter().zip(&requesters) {
            let part = &mut divided[requester.part as usize];
            part.flows.push(Flow { requester: requester.index, ..Flow::new(*spec) });
            part.unfinished += 1;
        }
        for port in &settings.measure.capture {
            let place = ports[*port as usize];
            divided[place.part as usize].world.capture.push(place.index);
        }
        Divided { parts: divided, ports, hosts, flows: flow_places }
    }
}

/// Returns the location of each element, given its part. The elements of each part are numbered from 0.
fn places(of_each: impl Iterator<Item = u32>, parts: usize) -> Vec<Place> {
    let mut counts = vec![0; parts];
    let place = |part: u32| {
        let count = &mut counts[part as usize];
        *count += 1;
        Place { part, index: *count - 1 }
    };
    of_each.map(place).collect()
}

/// Distributes elements among parts. They are most of the memory of a large network, so one part takes
/// them as they are.
fn distribute<T>(all: Vec<T>, places: &[Place], parts: usize) -> Vec<Vec<T>> {
    if parts == 1 {
        return vec![all];
    }
    let mut counts = vec![0; parts];
    for place in places {
        counts[place.part as usize] += 1;
    }
    let mut divided: Vec<Vec<T>> = counts.into_iter().map(Vec::with_capacity).collect();
    for (one, place) in all.into_iter().zip(places) {
        divided[place.part as usize].push(one);
    }
    divided
}

fn empty_part(
    part: u32,
    parts: usize,
    settings: &Arc<Settings>,
    changes: &Changes,
    places: &Arc<Vec<Place>>,
) -> Part {
    let world = World {
        part,
        now: Time::ZERO,
        settings: Arc::clone(settings),
        events: EventQueue::new(),
        ties: TieOrder::new(settings.ties, settings.seed),
        handled: 0,
        frames: Frames::new(settings.largest_mtu() + 80),
        ports: Vec::new(),
        changes: changes.clone(),
        outgoing: (0..parts).map(|_| Vec::new()).collect(),
        scale_up: scale_up::Network::default(),
        captured: Vec::new(),
        capture: Vec::new(),
        names: Arc::new([]),
        pauses: Vec::new(),
        pauses_left_out: 0,
        waits: Vec::new(),
        scratch: Box::new([0; SCRATCH]),
        completions: Box::default(),
        traced: false,
    };
    Part {
        world,
        hosts: Vec::new(),
        switches: Vec::new(),
        flows: Vec::new(),
        places: Arc::clone(places),
        begun: Vec::new(),
        ended: Vec::new(),
        unfinished: 0,
        computations_left: 0,
        news: Vec::new(),
        end: Time::ZERO,
        incoming: (0..parts).map(|_| Vec::new()).collect(),
        next: Time::NEVER,
        journal: Journal::default(),
    }
}
