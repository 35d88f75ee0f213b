//! Topologies of htsim (`.topo`): fat trees of two or three tiers.

use super::lines::{Line, at, lines};
use crate::Wrong;
use roce_sim::net::{Link, LinkSpec, Node, NodeId, NodeKind, Time, Topology};

/// The maximum number of nodes or links.
const MOST: usize = 1 << 18;
/// The names of switches, by tier.
const NAMES: [&str; 3] = ["tor", "agg", "core"];

/// A tier of switches, from the lines below `Tier N`.
#[derive(Clone, Copy, Debug, Default)]
struct Tier {
    /// The line of `Tier N`.
    line: usize,
    speed_gbps: Option<u64>,
    radix_up: Option<usize>,
    radix_down: Option<usize>,
    oversubscribed: Option<u64>,
    bundle: Option<usize>,
    switch_latency_ns: Option<u64>,
    link_latency_ns: Option<u64>,
    has_queues: bool,
}

#[derive(Debug, Default)]
struct File {
    nodes: Option<usize>,
    tiers: Option<usize>,
    pod: Option<usize>,
    tier: [Tier; 3],
}

/// Parses a topology. Returns it, and the parts of the file that have no effect.
pub(crate) fn topology(text: &str) -> Result<(Topology, Vec<String>), Wrong> {
    let file = File::parse(text)?;
    let topology = file.build()?;
    let mut warnings = Vec::new();
    if file.tier.iter().any(|tier| tier.has_queues) {
        warnings.push(
            "Queue_Up and Queue_Down: the ports of a switch share one buffer; set it with [switch] buffer"
                .to_owned(),
        );
    }
    Ok((topology, warnings))
}

/// Stores a value, unless there already is one.
fn set<T>(place: &mut Option<T>, value: T, (key, line): (&str, usize)) -> Result<(), Wrong> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(at(line, format!("{key} has a value above"))),
    }
}

impl File {
    fn parse(text: &str) -> Result<Self, Wrong> {
        let mut file = Self::default();
        let mut current = None;
        for mut line in lines(text) {
            let Some(key) = line.word() else { continue };
            let name = key.to_ascii_lowercase();
            let place = (key, line.number);
            match (name.as_str(), current) {
                ("nodes", None) => set(&mut file.nodes, line.number(key, MOST)?, place)?,
                ("tiers", None) => set(&mut file.tiers, line.number(key, 3)?, place)?,
                ("podsize", None) => set(&mut file.pod, line.number(key, MOST)?, place)?,
                ("tier", _) => {
                    let number: usize = line.number(key, 2)?;
                    if file.tier[number].line > 0 {
                        return Err(line.wrong(format!("tier {number} is described above")));
                    }
                    file.tier[number].line = line.number;
                    current = Some(number);
                }
                (name, Some(number)) => file.tier[number].set(name, place, &mut line)?,
                _ => {
                    return Err(line.wrong(format!("\"{key}\" is not one of Nodes, Tiers, Podsize and Tier")));
                }
            }
            line.end()?;
        }
        Ok(file)
    }

    fn build(&self) -> Result<Topology, Wrong> {
        let need = |value: Option<usize>, key: &str| {
            value.filter(|value| *value > 0).ok_or_else(|| at(1, format!("{key} is missing or 0")))
        };
        let (nodes, pod) = (need(self.nodes, "Nodes")?, need(self.pod, "Podsize")?);
        let count = need(self.tiers, "Tiers")?;
        if count < 2 {
            return Err(at(1, "Tiers must be 2 or 3; use [topology] kind = \"star\" for one switch"));
        }
        let tiers = self.tier[..count].iter().enumerate();
        let tiers: Vec<Sizes> =
            tiers.map(|(number, tier)| tier.sizes(number, count)).collect::<Result<_, Wrong>>()?;
        let shape = Shape::new(nodes, pod, &tiers)?;
        Ok(shape.draw(&tiers))
    }
}

impl Tier {
    fn set(&mut self, name: &str, place: (&str, usize), line: &mut Line<'_>) -> Result<(), Wrong> {
        let key = place.0;
        match name {
            "downlink_speed_gbps" => set(&mut self.speed_gbps, line.number(key, 1_000_000)?, place),
            "radix_up" => set(&mut self.radix_up, line.number(key, MOST)?, place),
            "radix_down" => set(&mut self.radix_down, line.number(key, MOST)?, place),
            "oversubscribed" => set(&mut self.oversubscribed, line.number(key, MOST as u64)?, place),
            "bundle" => set(&mut self.bundle, line.number(key, MOST)?, place),
            "switch_latency_ns" => set(&mut self.switch_latency_ns, line.number(key, 1_000_000_000)?, place),
            "downlink_latency_ns" => set(&mut self.link_latency_ns, line.number(key, 1_000_000_000)?, place),
            "queue_up" | "queue_down" => {
                line.number(key, u64::MAX)?;
                self.has_queues = true;
                Ok(())
            }
            _ => Err(line.wrong(format!(
                "\"{key}\" is not one of Downlink_speed_Gbps, Radix_Up, Radix_Down, Queue_Up, Queue_Down, Oversubscribed, \
                 Bundle, Switch_Latency_ns and Downlink_Latency_ns"
            ))),
        }
    }

    /// Returns the values of a tier, all of which are above 0 except for latencies.
    fn sizes(&self, number: usize, count: usize) -> Result<Sizes, Wrong> {
        if self.line == 0 {
            return Err(at(1, format!("Tier {number} is missing, but Tiers is {count}")));
        }
        let wrong = |key: &str| at(self.line, format!("Tier {number} needs {key} above 0"));
        let is_last = number + 1 == count;
        if is_last && self.radix_up.is_some() {
            return Err(at(self.line, format!("Tier {number} is the last one, which has no Radix_Up")));
        }
        let above_0 =
            |value: Option<usize>, key: &str| value.filter(|value| *value > 0).ok_or_else(|| wrong(key));
        let speed = self.speed_gbps.filter(|speed| *speed > 0).ok_or_else(|| wrong("Downlink_speed_Gbps"))?;
        Ok(Sizes {
            line: self.line,
            up: if is_last { 1 } else { above_0(self.radix_up, "Radix_Up")? },
            down: above_0(self.radix_down, "Radix_Down")?,
            bundle: above_0(self.bundle.or(Some(1)), "Bundle")?,
            oversubscribed: above_0(
                self.oversubscribed.map_or(Some(1), |ratio| Some(ratio as usize)),
                "Oversubscribed",
            )?,
            rate_bps: speed * 1_000_000_000,
            switch: Time::from_ns(self.switch_latency_ns.unwrap_or_default()),
            link: Time::from_ns(self.link_latency_ns.ok_or_else(|| wrong("Downlink_Latency_ns"))?),
        })
    }
}

/// The values of a tier.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    line: usize,
    /// Ports of a switch to the tier above and below.
    up: usize,
    down: usize,
    /// Links between a switch and each switch below.
    bundle: usize,
    oversubscribed: usize,
    /// The links below.
    rate_bps: u64,
    link: Time,
    switch: Time,
}

/// The numbers of nodes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    hosts: usize,
    pods: usize,
    /// Switches of a pod.
    tors: usize,
    aggs: usize,
    cores: usize,
}

impl Shape {
    fn new(hosts: usize, pod: usize, tiers: &[Sizes]) -> Result<Self, Wrong> {
        let (tor, agg) = (tiers[0], tiers[1]);
        let divide = |whole: usize, part: usize, (line, what): (usize, &str)| {
            if whole.is_multiple_of(part) {
                return Ok(whole / part);
            }
            Err(at(line, format!("{what}: {whole} is not a multiple of {part}")))
        };
        let pods = divide(hosts, pod, (1, "Nodes over Podsize"))?;
        let tors = divide(pod, tor.down, (tor.line, "Podsize over Radix_Down of tier 0"))?;
        if tor.bundle != 1 {
            return Err(at(tor.line, "Bundle of tier 0 must be 1, because a host has one link"));
        }
        let aggs = divide(tor.up, agg.bundle, (agg.line, "Radix_Up of tier 0 over Bundle of tier 1"))?;
        let expect = |line: usize, key: &str, said: usize, needed: usize| {
            if said == needed {
                return Ok(());
            }
            Err(at(line, format!("{key} is {said}, but the other numbers need {needed}")))
        };
        let mut cores = 0;
        match tiers.get(2) {
            None => {
                expect(1, "Podsize of two tiers", pod, hosts)?;
                expect(agg.line, "Radix_Down of tier 1", agg.down, tors.saturating_mul(agg.bundle))?;
            }
            Some(core) => {
                expect(agg.line, "Radix_Down of tier 1", agg.down, tors.saturating_mul(agg.bundle))?;
                let each =
                    divide(agg.up, core.bundle, (core.line, "Radix_Up of tier 1 over Bundle of tier 2"))?;
                cores = aggs.saturating_mul(each);
                expect(core.line, "Radix_Down of tier 2", core.down, pods.saturating_mul(core.bundle))?;
            }
        }
        for (lower, upper) in tiers.iter().zip(&tiers[1..]) {
            let down = lower.down as u128 * u128::from(lower.rate_bps);
            let up = lower.up as u128 * u128::from(upper.rate_bps) * lower.oversubscribed as u128;
            if down != up {
                return Err(at(
                    lower.line,
                    format!(
                        "Oversubscribed is {}, but ports and speeds of the links down and up give {:.3}",
                        lower.oversubscribed,
                        down as f64 / up as f64 * lower.oversubscribed as f64
                    ),
                ));
            }
        }
        let shape = Self { hosts, pods, tors, aggs, cores };
        match shape.links(tiers).filter(|links| *links <= MOST) {
            Some(_) => Ok(shape),
            None => Err(at(1, format!("that would be more than {MOST} links"))),
        }
    }

    /// Returns the number of links, if it is small.
    fn links(&self, tiers: &[Sizes]) -> Option<usize> {
        let product = |factors: &[usize]| {
            factors.iter().try_fold(1_usize, |product, factor| product.checked_mul(*factor))
        };
        let lower = product(&[self.pods, self.tors, self.aggs, tiers[1].bundle])?;
        let upper = match tiers.get(2) {
            Some(core) => product(&[self.cores, self.pods, core.bundle])?,
            None => 0,
        };
        self.hosts.checked_add(lower)?.checked_add(upper)
    }

    /// Builds the network. The latency of a switch is divided between the links at both sides of a path
    /// through it.
    fn draw(&self, tiers: &[Sizes]) -> Topology {
        let mut topology = Topology::default();
        let mut add = |name: &str, kind, count: usize| {
            let first = topology.nodes.len();
            let nodes = (0..count).map(|number| Node { name: format!("{name}{number}"), kind });
            topology.nodes.extend(nodes);
            first
        };
        add("h", NodeKind::Host, self.hosts);
        let tors = add(NAMES[0], NodeKind::Switch, self.pods * self.tors);
        let aggs = add(NAMES[1], NodeKind::Switch, self.pods * self.aggs);
        let cores = add(NAMES[2], NodeKind::Switch, self.cores);
        let half =
            |tier: usize| tiers.get(tier).map_or(Time::ZERO, |tier| Time::from_ps(tier.switch.as_ps() / 2));
        let spec = |tier: usize| LinkSpec {
            rate_bps: tiers[tier].rate_bps,
            delay: tiers[tier].link + half(tier) + tier.checked_sub(1).map_or(Time::ZERO, half),
        };
        let mut link = |a: usize, b: usize, tier: usize| {
            let (a, b) = (a as NodeId, b as NodeId);
            let one = Link { a, b, spec: spec(tier), faults: [None, None] };
            topology.links.extend(std::iter::repeat_n(one, tiers[tier].bundle));
        };
        for host in 0..self.hosts {
            link(host, tors + host / tiers[0].down, 0);
        }
        for tor in 0..self.pods * self.tors {
            for agg in 0..self.aggs {
                link(tors + tor, aggs + tor / self.tors * self.aggs + agg, 1);
            }
        }
        for agg in 0..self.pods * self.aggs {
            // The switches at one place of all pods share the cores that are as many apart.
            for core in (agg % self.aggs..self.cores).step_by(self.aggs) {
                link(aggs + agg, cores + core, 2);
            }
        }
        topology
    }
}
