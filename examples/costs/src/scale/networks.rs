//! Simulated networks of many hosts or flows, with real payload, of which receivers check every byte.

use std::fmt::Write as _;

use roce_scenario::Scenario;
use roce_sim::net::Simulation;
use serde_json::{Value, json};

use crate::outcome::Outcome;
use crate::usage::{most_resident_bytes, processor_time, resident_bytes};

/// Bytes of a packet.
const PACKET: usize = 1024;
/// Data packets of a small network; a large one has at least [`LEAST`] for each host.
const PACKETS: usize = 200_000;
const LEAST: usize = 16;
/// The port count of the switches of the network in which the number of flows grows, and its hosts.
const PORTS_OF_FLOWS: usize = 8;
const HOSTS_OF_FLOWS: usize = hosts_of(PORTS_OF_FLOWS);

/// Returns the hosts of a fat tree of switches with `k` ports.
const fn hosts_of(k: usize) -> usize {
    k * k * k / 4
}

/// Measures a packet and a host in a fat tree of `count` hosts, each of which sends to another one.
pub(crate) fn hosts(count: usize) -> Outcome<Value> {
    let ports = (4..=64).step_by(2).find(|k| hosts_of(*k) == count);
    let ports = ports.ok_or("no fat tree of up to 65536 hosts has so few or so many")?;
    let packets = (PACKETS / count).max(LEAST);
    let mut result = run(ports, 1, packets)?;
    result["x"] = count.into();
    Ok(result)
}

/// Measures a packet and a flow in a fat tree of 128 hosts.
pub(crate) fn flows(count: usize) -> Outcome<Value> {
    if !count.is_multiple_of(HOSTS_OF_FLOWS) {
        return Err(format!("each of {HOSTS_OF_FLOWS} hosts has the same number of flows").into());
    }
    let mut result = run(PORTS_OF_FLOWS, count / HOSTS_OF_FLOWS, (PACKETS / count).max(4))?;
    result["x"] = count.into();
    Ok(result)
}

/// Runs a network in which each host sends `flows` flows of `packets` packets.
fn run(ports: usize, flows: usize, packets: usize) -> Outcome<Value> {
    let bytes = packets * PACKET;
    let mut text = format!(
        "name = \"scale\"\npayload = \"real\"\n[topology]\nkind = \"fat-tree\"\nk = {ports}\n\
         [host]\ncongestion = \"dcqcn:hpcc\"\n[measure]\ninterval = \"1ms\"\npoints = 1000\n"
    );
    for seed in 1..=flows {
        write!(text, "[[flows]]\nkind = \"permutation\"\nbytes = {bytes}\nseed = {seed}\n")?;
    }
    let (before, begun) = (resident_bytes()?, processor_time());
    let scenario = Scenario::parse(&text, &|file| Err(file.to_owned()))?;
    let mut simulation = Simulation::new(&scenario.topology, &scenario.flows, scenario.settings.clone())?;
    simulation.run_to_end();
    let took = (processor_time() - begun).as_secs_f64();
    let results = simulation.results();
    let (all, (checked, wrong)) = (scenario.flows.len() * bytes, results.checked);
    if results.incomplete() != 0 || wrong != 0 || checked < all as u64 {
        return Err(format!(
            "{} flows are incomplete; of {all} bytes, {checked} were checked and {wrong} are wrong",
            results.incomplete()
        )
        .into());
    }
    let grown = most_resident_bytes()?.saturating_sub(before) as f64;
    Ok(json!({
        "seconds": took / results.data_packets as f64, "packets": results.data_packets,
        "object_bytes": grown / hosts_of(ports).max(scenario.flows.len()) as f64, "memory_bytes": grown,
    }))
}
