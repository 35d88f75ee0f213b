//! An external scheduler: it drives a ring all-reduce over a simulated network and compares the time with
//! that of the same collective operation of the simulator.
//!
//! ```sh
//! cargo run -p roce-scenario --example ring_all_reduce
//! cargo run -p roce-scenario --example ring_all_reduce -- all-reduce-collisions 10000000
//! ```
//!
//! The arguments are the name of a shipped scenario, whose topology and settings apply, and the bytes of the
//! buffer of each rank. `libs/sim/examples/ring_all_reduce.c` is the same program in C.

use std::error::Error;

use roce_scenario::{Scenario, shipped};
use roce_sim::net::{
    Collective, Network, NetworkEvent, OperationAlgorithm, OperationKind, Plan, Schedule, Simulation, Time,
};

/// Adds the buffers of all ranks with a ring. Each rank sends a part of its buffer to the next rank, adds
/// what arrives from the previous one, and sends that on: `n - 1` rounds to add, and as many to distribute
/// the sums.
///
/// Returns the time at which every rank has all sums and the acknowledgements of its messages.
pub(crate) fn all_reduce(network: &mut Network, bytes: u64) -> Result<Time, Box<dyn Error>> {
    let ranks = network.ranks();
    let rounds = 2 * (u64::from(ranks) - 1);
    // The part that a rank sends in a round; sizes differ by at most one byte.
    let size = |rank: u32, round: u64| {
        let n = u64::from(ranks);
        let part = (u64::from(rank) + rounds * n - round) % n;
        bytes / n + u64::from(part < bytes % n)
    };
    let next = |rank: u32| (rank + 1) % ranks;
    // The tag of a message is its round.
    for rank in 0..ranks {
        for round in 0..rounds {
            network.receive(rank, next(rank), round, size(rank, round))?;
        }
    }
    for rank in 0..ranks {
        network.send(rank, next(rank), 0, size(rank, 0))?;
    }
    while let Some(event) = network.next_event()? {
        if let NetworkEvent::Received(message) = event
            && message.tag + 1 < rounds
        {
            let round = message.tag + 1;
            network.send(message.to, next(message.to), round, size(message.to, round))?;
        }
    }
    Ok(network.now())
}

/// Returns the time of the collective operation of the simulator on the network of a scenario.
pub(crate) fn built_in(scenario: &Scenario, bytes: u64) -> Result<Time, Box<dyn Error>> {
    let hosts: Vec<u32> = (0..scenario.topology.hosts() as u32).collect();
    let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
    let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO);
    let begins: Result<Vec<_>, _> = hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[])).collect();
    let what = Collective::of(OperationKind::AllReduce, OperationAlgorithm::Ring, bytes, None);
    let ends = plan.collective(&what, &hosts, &begins?)?;
    let mut simulation =
        Simulation::with_schedule(&scenario.topology, &flows, &schedule, scenario.settings.clone())?;
    simulation.run_to_end();
    let results = simulation.results();
    let end = |task: &u32| results.task_ends.get(*task as usize).copied().flatten();
    let ends: Option<Vec<Time>> = ends.iter().map(end).collect();
    ends.and_then(|ends| ends.into_iter().max()).ok_or_else(|| "the operation did not end".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "ring-all-reduce".to_owned());
    let bytes: u64 = arguments.next().map_or(Ok(8_000_000), |bytes| bytes.parse())?;
    let text = shipped(&name).ok_or_else(|| format!("there is no shipped scenario {name}"))?;
    let scenario = Scenario::parse_network(text, &|file| Err(format!("{file} is not shipped")))?;
    let mut network = scenario.network()?;
    let time = all_reduce(&mut network, bytes)?;
    println!("ranks: {}", network.ranks());
    println!("time: {} ps", time.as_ps());
    println!("trace hash: {:016x}", network.trace_hash());
    println!("built in: {} ps", built_in(&scenario, bytes)?.as_ps());
    Ok(())
}
