//! Settings of some switches and ports: `[[switch.port]]`.

use std::ops::Range;

use toml::Spanned;

use super::file;
use super::hosts::{find_node, find_switch, matches};
use super::switches::{balance, headroom, marks, priorities, threshold, trimming, watchdog};
use super::{ScenarioError, Wrong};
use roce_sim::net::{Balance, Class, Node, NodeKind, PortChanges, PortRule, Topology};

/// Returns the rules of these tables, and the position of each table. `data` is the priority of data.
pub(super) fn rules(
    tables: Vec<Spanned<file::Port>>,
    data: u8,
    topology: &Topology,
    text: &str,
) -> Result<(Vec<PortRule>, Vec<Range<usize>>), ScenarioError> {
    let one = |port: Spanned<file::Port>| {
        let place = port.span();
        rule(port.into_inner(), data, topology)
            .map(|rule| (rule, place.clone()))
            .map_err(|reason| ScenarioError::at(text, Some(place), reason))
    };
    tables.into_iter().map(one).collect()
}

fn rule(port: file::Port, data: u8, topology: &Topology) -> Result<PortRule, Wrong> {
    let switches = port.switch.as_deref().map(|name| select_switches(topology, name)).transpose()?;
    let neighbours = port.to.as_deref().map(|name| select_nodes(topology, name)).transpose()?;
    let rate_bps = port.rate.as_ref().map(|rate| rate.0);
    if rate_bps.is_some_and(|rate| topology.links.iter().all(|link| link.spec.rate_bps != rate)) {
        return Err("rate: no link of the topology has this rate".to_owned());
    }
    let rule = PortRule { switches, neighbours, rate_bps, changes: changes(&port, data)? };
    if rule.changes == PortChanges::default() {
        return Err("a [[switch.port]] needs a setting besides switch, to, rate and priority".to_owned());
    }
    if !selects_any(&rule, topology) {
        return Err("no port of a switch matches switch, to and rate".to_owned());
    }
    Ok(rule)
}

fn changes(port: &file::Port, data: u8) -> Result<PortChanges, Wrong> {
    let priority = port.priority.unwrap_or(data);
    if priority > 7 {
        return Err(format!("priority {priority} is not 0 to 7"));
    }
    if port.priority.is_some() && port.marking.is_none() && port.weight.is_none() {
        return Err("priority: only marking and weight can be set for a priority".to_owned());
    }
    let gap = port.flowlet_gap.as_ref().map(|gap| gap.0);
    let balance = port.balance.as_ref().map(|given| balance(given, gap));
    if gap.is_some() && !matches!(balance, Some(Balance::Flowlet { .. })) {
        return Err("flowlet_gap: balance is not \"flowlet\"".to_owned());
    }
    let mut changes = PortChanges {
        buffer_bytes: port.buffer.as_ref().map(|bytes| bytes.0),
        balance,
        reserve_bytes: port.reserve.as_ref().map(|bytes| bytes.0),
        headroom: port.headroom.as_ref().map(headroom),
        threshold: port.threshold.as_ref().map(threshold).transpose()?,
        xon_offset_bytes: port.xon_offset.as_ref().map(|bytes| bytes.0),
        lossy_alpha: port.lossy_alpha,
        pfc: port.pfc.as_deref().map(priorities).transpose()?,
        watchdog: port.watchdog.as_ref().map(watchdog).transpose()?,
        trimming: port.trimming.as_ref().map(trimming).transpose()?,
        ..PortChanges::default()
    };
    let index = usize::from(priority);
    changes.marking[index] = port.marking.as_ref().map(marks).transpose()?;
    let class = |weight: &file::Weight| match weight {
        file::Weight::Strict(_) => Class::Strict,
        file::Weight::Share(weight) => Class::Weighted(*weight),
    };
    changes.scheduling[index] = port.weight.as_ref().map(class);
    Ok(changes)
}

/// Returns the switches with this name, or with names that match a pattern.
fn select_switches(topology: &Topology, name: &str) -> Result<Vec<u32>, Wrong> {
    if !name.contains('*') {
        return find_switch(topology, name).map(|switch| vec![switch]);
    }
    let switches = topology.nodes.iter().filter(|node| node.kind == NodeKind::Switch);
    numbers_like(name, switches).ok_or_else(|| format!("switch: no switch has a name like {name}"))
}

/// Returns the hosts and switches with this name, or with names that match a pattern.
fn select_nodes(topology: &Topology, name: &str) -> Result<Vec<u32>, Wrong> {
    if !name.contains('*') {
        return find_node(topology, name).map(|node| vec![node]);
    }
    numbers_like(name, topology.nodes.iter())
        .ok_or_else(|| format!("to: no host or switch has a name like {name}"))
}

/// Returns the indices of the nodes whose names match a pattern, or `None` if there are none.
fn numbers_like<'a>(pattern: &str, nodes: impl Iterator<Item = &'a Node>) -> Option<Vec<u32>> {
    let like = (0..).zip(nodes).filter(|(_, node)| matches(pattern, &node.name));
    let found: Vec<u32> = like.map(|(number, _)| number).collect();
    (!found.is_empty()).then_some(found)
}

/// Returns whether a rule selects any port of any switch.
fn selects_any(rule: &PortRule, topology: &Topology) -> bool {
    let mut switches = 0;
    let number = |node: &Node| {
        (node.kind == NodeKind::Switch).then(|| {
            switches += 1;
            switches - 1
        })
    };
    let numbers: Vec<Option<u32>> = topology.nodes.iter().map(number).collect();
    topology.links.iter().any(|link| {
        [(link.a, link.b), (link.b, link.a)].into_iter().any(|(own, other)| {
            let switch = numbers.get(own as usize).copied().flatten();
            switch.is_some_and(|switch| rule.has_port(switch, other, link.spec.rate_bps))
        })
    })
}
