//! Builds nodes, links and their faults from a topology table.

use std::ops::Range;

use toml::Spanned;

use super::contents::load_text;
use super::file::{self, Shape};
use super::{Load, ScenarioError, Wrong, import};
use roce_fault::FaultPlan;
use roce_sim::net::{Clos, Link, LinkSpec, ScaleUp, Time, Topology};

/// A function that creates an error from a position and a reason.
pub(super) type Blame<'a> = dyn Fn(Range<usize>, Wrong) -> ScenarioError + 'a;

/// The default delay of a scale-up network: about the time of a store and its flag between two GPUs.
const SCALE_UP_DELAY: Time = Time::from_us(1);

/// Builds the topology of the table at `place`. Also returns the parts of its file that have no effect.
pub(super) fn build(
    table: file::Topology,
    load: &Load<'_>,
    blame: &Blame<'_>,
    place: Range<usize>,
) -> Result<(Topology, Vec<String>), ScenarioError> {
    let mut warnings = Vec::new();
    let drawn = refuse_foreign_keys(&table).and_then(|()| draw(&table, load, &mut warnings));
    let mut topology = drawn.map_err(|reason| blame(place.clone(), reason))?;
    topology.scale_up = scale_up(&table).map_err(|reason| blame(place.clone(), reason))?;
    // The plan of a single link takes precedence over the plan of all links, in each direction.
    let (one, all): (Vec<_>, Vec<_>) =
        table.faults.into_iter().partition(|fault| fault.get_ref().link.is_some());
    for fault in one {
        let place = fault.span();
        add_to_one(&mut topology, &fault.into_inner()).map_err(|reason| blame(place, reason))?;
    }
    add_to_all(&mut topology, all, blame)?;
    topology.check().map_err(|error| blame(place, error.to_string()))?;
    Ok((topology, warnings))
}

/// Returns rate and delay of the links of hosts.
fn link(shape: &file::Topology) -> LinkSpec {
    LinkSpec {
        rate_bps: shape.rate.map_or(LinkSpec::DEFAULT.rate_bps, |rate| rate.0),
        delay: shape.delay.map_or(LinkSpec::DEFAULT.delay, |delay| delay.0),
    }
}

/// Returns the scale-up network. The servers of a network with rails are its domains by default.
fn scale_up(table: &file::Topology) -> Result<Option<ScaleUp>, Wrong> {
    let Some(given) = &table.scale_up else { return Ok(None) };
    let of_server = table.rails.and_then(|rails| u32::try_from(rails).ok());
    let Some(hosts) = given.hosts.or(of_server) else {
        return Err("scale_up.hosts is missing: this kind of topology has no servers".to_owned());
    };
    let delay = given.delay.map_or(SCALE_UP_DELAY, |delay| delay.0);
    Ok(Some(ScaleUp { hosts, rate_bps: given.rate.0, delay }))
}

fn draw(table: &file::Topology, load: &Load<'_>, warnings: &mut Vec<String>) -> Result<Topology, Wrong> {
    let host = link(table);
    let fabric = LinkSpec {
        rate_bps: table.fabric_rate.map_or(host.rate_bps, |rate| rate.0),
        delay: table.fabric_delay.map_or(host.delay, |delay| delay.0),
    };
    let need = |name: &str, value: Option<usize>| {
        value.ok_or_else(|| format!("{name} is missing: this kind of topology needs it"))
    };
    let hosts = |default: usize| table.hosts.unwrap_or(default);
    let topology = match table.kind {
        Shape::PointToPoint => Ok(Topology::point_to_point(host)),
        Shape::Star => Topology::star(need("hosts", table.hosts)?, host),
        Shape::Bus => Topology::bus(need("hosts", table.hosts)?, host, fabric),
        Shape::Line => Topology::line(need("switches", table.switches)?, hosts(1), host, fabric),
        Shape::Ring => Topology::ring(need("switches", table.switches)?, hosts(1), host, fabric),
        Shape::FullMesh => Topology::full_mesh(need("switches", table.switches)?, hosts(1), host, fabric),
        Shape::Tree => {
            let depth = need("depth", table.depth.map(|depth| depth as usize))? as u32;
            Topology::tree(depth, need("fanout", table.fanout)?, hosts(1), host, fabric)
        }
        Shape::Dumbbell => {
            Topology::dumbbell(need("left", table.left)?, need("right", table.right)?, host, fabric)
        }
        Shape::LeafSpine => {
            let (leaves, spines) = (need("leaves", table.leaves)?, need("spines", table.spines)?);
            Topology::leaf_spine(leaves, spines, need("hosts", table.hosts)?, host, fabric)
        }
        Shape::RailOptimised => {
            let (servers, rails) = (need("servers", table.servers)?, need("rails", table.rails)?);
            let (pods, spines) = (table.pods.unwrap_or(1), table.spines.unwrap_or(0));
            Topology::pods_of_rails(pods, servers, rails, spines, host, fabric)
        }
        Shape::Clos => {
            let clos = Clos {
                pods: need("pods", table.pods)?,
                tors: need("tors", table.tors)?,
                leaves: need("leaves", table.leaves)?,
                spines: need("spines", table.spines)?,
                hosts: need("hosts", table.hosts)?,
            };
            Topology::clos(clos, host, fabric)
        }
        Shape::FatTree => Topology::fat_tree(need("k", table.k)?, host, fabric),
        Shape::File | Shape::Hpcc | Shape::Htsim => return read(table, load, host, warnings),
    };
    topology.map_err(|error| error.to_string())
}

/// Parses a topology file.
fn read(
    table: &file::Topology,
    load: &Load<'_>,
    host: LinkSpec,
    warnings: &mut Vec<String>,
) -> Result<Topology, Wrong> {
    let text = match (&table.file, &table.text) {
        (Some(name), None) => load_text(load, name)?,
        (None, Some(text)) => text.clone(),
        _ => return Err("this kind of topology needs either file or text".to_owned()),
    };
    let parsed = match table.kind {
        Shape::Htsim => import::topology(&text).map(|(topology, more)| {
            warnings.extend(more.iter().map(|warning| format!("in the topology: {warning}")));
            topology
        }),
        Shape::Hpcc => Topology::parse_hpcc(&text).map_err(|error| error.to_string()),
        _ => Topology::parse(&text, host).map_err(|error| error.to_string()),
    };
    parsed.map_err(|error| format!("in the topology, {error}"))
}

/// Rejects keys that do not apply to the kind of the topology.
fn refuse_foreign_keys(table: &file::Topology) -> Result<(), Wrong> {
    let fabric = ["fabric_rate", "fabric_delay"];
    let (own, has_fabric): (&[&str], bool) = match table.kind {
        Shape::PointToPoint => (&[], false),
        Shape::Star => (&["hosts"], false),
        Shape::Bus => (&["hosts"], true),
        Shape::Line | Shape::Ring | Shape::FullMesh => (&["switches", "hosts"], true),
        Shape::Tree => (&["depth", "fanout", "hosts"], true),
        Shape::Dumbbell => (&["left", "right"], true),
        Shape::LeafSpine => (&["leaves", "spines", "hosts"], true),
        Shape::RailOptimised => (&["pods", "servers", "rails", "spines"], true),
        Shape::Clos => (&["pods", "tors", "leaves", "spines", "hosts"], true),
        Shape::FatTree => (&["k"], true),
        Shape::File | Shape::Hpcc | Shape::Htsim => (&["file", "text"], false),
    };
    let given = [
        ("hosts", table.hosts.is_some()),
        ("switches", table.switches.is_some()),
        ("left", table.left.is_some()),
        ("right", table.right.is_some()),
        ("leaves", table.leaves.is_some()),
        ("spines", table.spines.is_some()),
        ("servers", table.servers.is_some()),
        ("rails", table.rails.is_some()),
        ("pods", table.pods.is_some()),
        ("tors", table.tors.is_some()),
        ("depth", table.depth.is_some()),
        ("fanout", table.fanout.is_some()),
        ("k", table.k.is_some()),
        ("file", table.file.is_some()),
        ("text", table.text.is_some()),
        ("fabric_rate", table.fabric_rate.is_some()),
        ("fabric_delay", table.fabric_delay.is_some()),
    ];
    let is_foreign = |key: &str| !(own.contains(&key) || has_fabric && fabric.contains(&key));
    match given.into_iter().find(|(key, given)| *given && is_foreign(key)) {
        Some((key, _)) => Err(format!("this kind of topology has no `{key}`")),
        None => Ok(()),
    }
}

fn add_to_one(topology: &mut Topology, fault: &file::Fault) -> Result<(), Wrong> {
    let plan: FaultPlan = fault.plan.parse().map_err(|error| format!("{error}"))?;
    let Some([a, b]) = &fault.link else { return Ok(()) };
    let node = |name: &str| {
        topology
            .node_named(name)
            .ok_or_else(|| format!("there is no node {name}{}", topology.hint(name, None)))
    };
    let (a_id, b_id) = (node(a)?, node(b)?);
    let senders = match &fault.from {
        None => vec![a_id, b_id],
        Some(from) if from == a => vec![a_id],
        Some(from) if from == b => vec![b_id],
        Some(from) => {
            return Err(format!("`from` is {from}, which is no end of the link: write {a} or {b}"));
        }
    };
    let joins = |link: &&mut Link| (link.a, link.b) == (a_id, b_id) || (link.a, link.b) == (b_id, a_id);
    let links: Vec<&mut Link> = topology.links.iter_mut().filter(joins).collect();
    if links.is_empty() {
        return Err(format!("there is no link between {a} and {b}"));
    }
    for link in links {
        for (sender, faults) in [link.a, link.b].into_iter().zip(&mut link.faults) {
            if !senders.contains(&sender) {
                continue;
            }
            if faults.is_some() {
                let sent = fault.from.as_ref().map(|from| format!(" for what {from} sends"));
                return Err(format!(
                    "the link between {a} and {b} already has a fault plan{}: write one plan for each link, or \
                     one with `from` for each direction",
                    sent.unwrap_or_default()
                ));
            }
            *faults = Some(plan.clone());
        }
    }
    Ok(())
}

fn add_to_all(
    topology: &mut Topology,
    faults: Vec<Spanned<file::Fault>>,
    blame: &Blame<'_>,
) -> Result<(), ScenarioError> {
    for (number, fault) in faults.into_iter().enumerate() {
        let place = fault.span();
        if number > 0 {
            let reason = "a fault plan for all links already exists: write one plan for them";
            return Err(blame(place, reason.to_owned()));
        }
        let fault = fault.into_inner();
        if let Some(from) = &fault.from {
            let reason = format!("`from = \"{from}\"` needs the `link` of which it is one end");
            return Err(blame(place, reason));
        }
        let plan: FaultPlan = fault.plan.parse().map_err(|error| blame(place, format!("{error}")))?;
        for faults in topology.links.iter_mut().flat_map(|link| &mut link.faults) {
            faults.get_or_insert_with(|| plan.clone());
        }
    }
    Ok(())
}
