//! Workloads: the flows between hosts.

mod bursts;
mod cdf;
mod collective;
mod schedule;
mod trace;

use rand_core::Rng;
use rand_pcg::Pcg32;

use super::payload::MAX_FLOW;
use super::time::Time;
use roce_fault::random::generator;

pub use bursts::{Incasts, incasts};
pub use cdf::{CdfError, FlowSizes};
pub use collective::{
    Collective, DataParallel, MixtureOfExperts, Operation, OperationAlgorithm, OperationKind,
    OperationResult, Pipeline, Plan, uneven_shares,
};
pub use schedule::{After, MAX_TASKS, Schedule, Task, TaskId, Transfer};
pub use trace::{FindHost, parse_flows, parse_flows_of};

/// A flow: the bytes that one queue pair transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// The number of the sender.
    pub source: u32,
    /// The number of the receiver.
    pub destination: u32,
    /// Bytes of payload.
    pub bytes: u64,
    /// The start time.
    pub start: Time,
}

/// The reason why a workload is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub(crate) String);

/// The largest number of flows of a workload.
pub const MAX_FLOWS: usize = 1 << 23;

fn check_hosts(hosts: u32, need: u32, what: &str) -> Result<(), WorkloadError> {
    if hosts < need {
        return Err(WorkloadError(format!("{what} needs at least {need} hosts, there are {hosts}")));
    }
    Ok(())
}

/// Creates a permutation: every host sends to one other host and receives from one, in a ring of random
/// order.
///
/// # Errors
///
/// Returns an error if there are fewer than two hosts.
pub fn permutation(hosts: u32, bytes: u64, start: Time, seed: u64) -> Result<Vec<FlowSpec>, WorkloadError> {
    check_hosts(hosts, 2, "a permutation")?;
    let mut order: Vec<u32> = (0..hosts).collect();
    shuffle(&mut order, seed, 0x9e);
    let next = order.iter().cycle().skip(1);
    Ok(order
        .iter()
        .zip(next)
        .map(|(&source, &destination)| FlowSpec { source, destination, bytes, start })
        .collect())
}

/// Creates an incast: the first `degree` hosts other than `receiver` send to it at the same time.
///
/// # Errors
///
/// Returns an error if there are too few hosts.
pub fn incast(
    hosts: u32,
    degree: u32,
    receiver: u32,
    bytes: u64,
    start: Time,
) -> Result<Vec<FlowSpec>, WorkloadError> {
    check_hosts(hosts, degree.saturating_add(1), &format!("an incast of {degree}"))?;
    check_hosts(hosts, receiver.saturating_add(1), &format!("receiver {receiver}"))?;
    let senders = (0..hosts).filter(|host| *host != receiver).take(degree as usize);
    Ok(senders.map(|source| FlowSpec { source, destination: receiver, bytes, start }).collect())
}

/// Creates a flow from every host to every other.
///
/// # Errors
///
/// Returns an error if there are too many or too few hosts.
pub fn all_to_all(hosts: u32, bytes: u64, start: Time) -> Result<Vec<FlowSpec>, WorkloadError> {
    check_hosts(hosts, 2, "all to all")?;
    if u64::from(hosts) * u64::from(hosts - 1) > MAX_FLOWS as u64 {
        return Err(WorkloadError(format!(
            "all to all among {hosts} hosts would be more than {MAX_FLOWS} flows"
        )));
    }
    let pairs = (0..hosts).flat_map(|source| {
        let others = (1..hosts).map(move |step| (source + step) % hosts);
        others.map(move |destination| (source, destination))
    });
    Ok(pairs.map(|(source, destination)| FlowSpec { source, destination, bytes, start }).collect())
}

/// Creates bursts between one pair of hosts: `bytes` every `period`, `count` times.
///
/// # Errors
///
/// Returns an error if there are too many bursts.
pub fn on_off(
    source: u32,
    destination: u32,
    bytes: u64,
    start: Time,
    period: Time,
    count: u32,
) -> Result<Vec<FlowSpec>, WorkloadError> {
    if count as usize > MAX_FLOWS {
        return Err(WorkloadError(format!("{count} bursts are more than {MAX_FLOWS}")));
    }
    let at = |burst: u32| start + Time::from_ps(period.as_ps().saturating_mul(burst.into()));
    Ok((0..count).map(|burst| FlowSpec { source, destination, bytes, start: at(burst) }).collect())
}

/// The maximum load of Poisson arrivals. At ten times the link rate, nine of ten flows of a host are still
/// waiting when the arrivals end. A larger load gives no further insight, and is usually a percentage by
/// mistake.
pub const MAX_LOAD: f64 = 10.0;

/// The parameters of Poisson arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Poisson {
    /// The number of hosts.
    pub hosts: u32,
    /// The load of each host's link, counting payload only: above 0, and at most [`MAX_LOAD`]. Above 1, flows
    /// arrive faster than links can carry them.
    pub load: f64,
    /// The rate of each host's link.
    pub rate_bps: u64,
    /// The time after which no flow starts.
    pub duration: Time,
    /// The seed of every draw.
    pub seed: u64,
}

/// Creates flows between random pairs of hosts at independent random times, with sizes from a distribution.
///
/// # Errors
///
/// Returns an error if the load is not above 0 and at most [`MAX_LOAD`], or if there are too few hosts or too
/// many flows.
pub fn poisson(what: &Poisson, sizes: &FlowSizes) -> Result<Vec<FlowSpec>, WorkloadError> {
    check_hosts(what.hosts, 2, "Poisson arrivals")?;
    if !(what.load > 0.0 && what.load <= MAX_LOAD) {
        return Err(WorkloadError(format!(
            "a load of {} is not above 0 and at most {MAX_LOAD}; 0.5 is half of the rate of each link",
            what.load
        )));
    }
    let per_second = what.load * what.rate_bps as f64 * f64::from(what.hosts) / (8.0 * sizes.mean());
    let mut random = generator(what.seed, 0x90);
    let (mut flows, mut seconds) = (Vec::new(), 0.0);
    loop {
        // The logarithm of a number above 0 and at most 1.
        seconds -= (1.0 - unit(&mut random)).ln() / per_second;
        let start = Time::from_ps((seconds * 1e12).min(1.8e19) as u64);
        if start >= what.duration {
            return Ok(flows);
        }
        if flows.len() >= MAX_FLOWS {
            return Err(WorkloadError(format!("more than {MAX_FLOWS} flows; shorten the duration")));
        }
        let source = below(&mut random, what.hosts.into()) as u32;
        let step = 1 + below(&mut random, u64::from(what.hosts) - 1) as u32;
        let destination = (source + step) % what.hosts;
        let bytes = sizes.at(unit(&mut random));
        flows.push(FlowSpec { source, destination, bytes, start });
    }
}

/// Checks flows against the number of hosts.
///
/// # Errors
///
/// Returns the first impossible flow.
pub fn check(flows: &[FlowSpec], hosts: u32) -> Result<(), WorkloadError> {
    for (number, flow) in flows.iter().enumerate() {
        let wrong = |reason: String| Err(WorkloadError(format!("flow {number}: {reason}")));
        if flow.source >= hosts || flow.destination >= hosts {
            let host = flow.source.max(flow.destination);
            return wrong(format!("there is no host {host}; the last is {}", hosts.saturating_sub(1)));
        }
        if flow.source == flow.destination {
            return wrong(format!("host {} would send to itself", flow.source));
        }
        if flow.bytes == 0 || flow.bytes > MAX_FLOW {
            return wrong(format!("{} bytes; 1 to {MAX_FLOW} are possible", flow.bytes));
        }
    }
    if flows.len() > MAX_FLOWS {
        return Err(WorkloadError(format!("{} flows are more than {MAX_FLOWS}", flows.len())));
    }
    Ok(())
}

/// Delays the start of each flow by a random time below `most`. Each flow has its own random generator.
pub fn delay_starts(flows: &mut [FlowSpec], most: Time, seed: u64) {
    for (number, flow) in (0..).zip(flows) {
        let mut random = generator(seed, 0x94_0000_0000 + number);
        flow.start = flow.start + Time::from_ps(below(&mut random, most.as_ps()));
    }
}

/// Shuffles a list (Fisher–Yates). Each stream of a seed has its own random numbers.
pub fn shuffle<T>(list: &mut [T], seed: u64, stream: u64) {
    let mut random = generator(seed, stream);
    for last in (1..list.len()).rev() {
        list.swap(last, below(&mut random, last as u64 + 1) as usize);
    }
}

fn below(random: &mut Pcg32, limit: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(limit)) >> 64) as u64
}

/// Returns a uniformly distributed number from 0 to below 1.
fn unit(random: &mut Pcg32) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_is_one() {
        let flows = permutation(16, 100, Time::ZERO, 3).unwrap();
        for of in [|flow: &FlowSpec| flow.source, |flow: &FlowSpec| flow.destination] {
            let mut hosts: Vec<u32> = flows.iter().map(of).collect();
            hosts.sort_unstable();
            assert_eq!(hosts, (0..16).collect::<Vec<_>>());
        }
        check(&flows, 16).unwrap();
        assert_ne!(flows, permutation(16, 100, Time::ZERO, 4).unwrap());
        assert_eq!(flows, permutation(16, 100, Time::ZERO, 3).unwrap());
    }

    #[test]
    fn counts() {
        assert_eq!(incast(9, 8, 8, 1, Time::ZERO).unwrap().len(), 8);
        assert!(incast(9, 9, 8, 1, Time::ZERO).is_err());
        assert_eq!(all_to_all(5, 1, Time::ZERO).unwrap().len(), 20);
        check(&all_to_all(5, 1, Time::ZERO).unwrap(), 5).unwrap();
        assert!(all_to_all(1 << 17, 1, Time::ZERO).is_err());
        let bursts = on_off(0, 1, 10, Time::from_us(1), Time::from_us(5), 3).unwrap();
        assert_eq!(bursts.last().map(|flow| flow.start), Some(Time::from_us(11)));
        assert!(on_off(0, 1, 10, Time::ZERO, Time::from_us(5), u32::MAX).is_err());
    }

    #[test]
    fn poisson_asks_for_its_load() {
        let sizes = FlowSizes::web_search();
        let what = Poisson {
            hosts: 32,
            load: 0.5,
            rate_bps: 100_000_000_000,
            duration: Time::from_us(200_000),
            seed: 1,
        };
        let flows = poisson(&what, &sizes).unwrap();
        check(&flows, 32).unwrap();
        let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
        let load = bytes as f64 * 8.0 / (0.2 * 100e9 * 32.0);
        assert!((load - 0.5).abs() < 0.05, "{load}");
        // Overload is a valid experiment.
        let twice = poisson(&Poisson { load: 2.0, ..what }, &sizes).unwrap();
        let bytes: u64 = twice.iter().map(|flow| flow.bytes).sum();
        let load = bytes as f64 * 8.0 / (0.2 * 100e9 * 32.0);
        assert!((load - 2.0).abs() < 0.2, "{load}");
        for load in [0.0, -1.0, 10.1, 50.0, f64::NAN, f64::INFINITY] {
            let error = poisson(&Poisson { load, ..what }, &sizes).unwrap_err().to_string();
            assert!(error.starts_with(&format!("a load of {load} is not above 0 and at most 10")), "{error}");
        }
    }

    #[test]
    fn starts_are_spread_evenly_and_by_flow() {
        let most = Time::from_us(10);
        let mut flows = all_to_all(40, 1, Time::from_us(3)).unwrap();
        delay_starts(&mut flows, most, 5);
        let delays: Vec<f64> =
            flows.iter().map(|flow| flow.start.since(Time::from_us(3)).as_ps() as f64 / 1e7).collect();
        assert!(delays.iter().all(|delay| (0.0..1.0).contains(delay)));
        for tenth in 0..10 {
            let inside = delays.iter().filter(|delay| (**delay * 10.0) as u32 == tenth).count();
            assert!((100..220).contains(&inside), "{inside} of 1560");
        }
        // The delay of a flow does not depend on later flows.
        let mut few = all_to_all(40, 1, Time::from_us(3)).unwrap();
        few.truncate(9);
        delay_starts(&mut few, most, 5);
        assert_eq!(few, flows[..9]);
        delay_starts(&mut few, Time::ZERO, 5);
        assert_eq!(few, flows[..9]);
    }

    #[test]
    fn a_flow_to_itself() {
        let to_itself = [FlowSpec { source: 1, destination: 1, bytes: 1, start: Time::ZERO }];
        assert_eq!(check(&to_itself, 2).unwrap_err().to_string(), "flow 0: host 1 would send to itself");
    }
}
