//! Creates flows, tasks and operations from the tables of a scenario. Each table is processed after the
//! tables that it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;

use super::contents::load_text;
use super::flows::{self, FlowTable, Flows, Operation as FlowOperation};
use super::hosts::{by_name_or_number, find_host, select_hosts};
use super::import::{Imported, Target, WorkloadTable};
use super::operations::{CollectiveTable, Operations, TrainingTable};
use super::profile::Profile;
use super::values::Span;
use super::{Load, ScenarioError, Traffic, Wrong};
use roce_sim::net::{
    After, FlowSizes, FlowSpec, Incasts, MAX_FLOWS, NodeKind, Operation, Plan, Poisson, Schedule, Task, Time,
    Topology, Transfer, all_to_all, check_flows, delay_starts, incasts, on_off, parse_flows_of, permutation,
    poisson,
};

/// The traffic of a scenario.
#[derive(Debug, Default)]
pub(super) struct Workload {
    pub(super) flows: Vec<FlowSpec>,
    pub(super) schedule: Schedule,
    pub(super) operations: Vec<Operation>,
    /// The flows of each table.
    pub(super) tables: Vec<FlowsOfTable>,
    /// Parts of imported files that have no effect.
    pub(super) warnings: Vec<String>,
}

/// The flows of a table, and the settings of their queue pairs.
#[derive(Debug)]
pub(super) struct FlowsOfTable {
    pub(super) place: Range<usize>,
    pub(super) traffic: Traffic,
    pub(super) profile: Option<Profile>,
    pub(super) operation: Option<FlowOperation>,
}

/// The tables of a file.
pub(super) struct Tables {
    pub(super) flows: Vec<Spanned<flows::Table>>,
    pub(super) collective: Vec<Spanned<CollectiveTable>>,
    pub(super) training: Vec<Spanned<TrainingTable>>,
    pub(super) workload: Vec<Spanned<WorkloadTable>>,
}

/// The context to which the tables refer.
pub(super) struct Context<'a> {
    pub(super) topology: &'a Topology,
    pub(super) seed: u64,
    pub(super) load: &'a Load<'a>,
    pub(super) text: &'a str,
}

enum Content {
    Flows(FlowTable),
    Operations(Operations),
    Workload(WorkloadTable),
}

struct Table {
    /// The index of the table among the tables of the same key.
    number: u64,
    place: Range<usize>,
    name: Option<String>,
    after: Vec<String>,
    content: Content,
}

/// The events by which hosts observe the end of a named table, by name and host.
type Seen = BTreeMap<String, BTreeMap<u32, Vec<After>>>;

pub(super) fn build(tables: Tables, context: &Context<'_>) -> Result<Workload, ScenarioError> {
    let fail =
        |place: &Range<usize>, reason: Wrong| ScenarioError::at(context.text, Some(place.clone()), reason);
    let mut tables = collect(tables).map_err(|(place, reason)| fail(&place, reason))?;
    let mut names = BTreeSet::new();
    for table in &tables {
        if let Some(name) = &table.name
            && !names.insert(name.clone())
        {
            return Err(fail(&table.place, format!("a table with the name {name} already exists")));
        }
    }
    let mut awaited = BTreeSet::new();
    for table in &tables {
        for name in &table.after {
            if !names.contains(name) {
                return Err(fail(&table.place, format!("after: no table has the name {name}")));
            }
            awaited.insert(name.clone());
        }
    }
    let (mut workload, mut seen) = (Workload::default(), Seen::new());
    while !tables.is_empty() {
        let is_free = |table: &Table| table.after.iter().all(|name| seen.contains_key(name));
        let Some(next) = tables.iter().position(is_free) else {
            let reason = "after: the tables form a cycle".to_owned();
            return Err(fail(&tables[0].place, reason));
        };
        let table = tables.remove(next);
        let is_awaited = table.name.as_ref().is_some_and(|name| awaited.contains(name));
        let first = workload.flows.len();
        workload.add(&table, is_awaited, &mut seen, context).map_err(|reason| fail(&table.place, reason))?;
        let traffic = table.traffic(first..workload.flows.len());
        let (profile, operation) = match table.content {
            Content::Flows(table) => (table.host, table.operation),
            Content::Operations(operations) => (operations.into_profile(), None),
            Content::Workload(table) => (table.host, None),
        };
        workload.tables.push(FlowsOfTable { place: table.place, traffic, profile, operation });
    }
    Ok(workload)
}

fn collect(tables: Tables) -> Result<Vec<Table>, (Range<usize>, Wrong)> {
    let mut all = Vec::new();
    for (number, table) in (0..).zip(tables.flows) {
        let place = table.span();
        let table = FlowTable::try_from(table.into_inner()).map_err(|reason| (place.clone(), reason))?;
        let (name, after) = (table.name.clone(), table.after.clone());
        all.push(Table { number, place, name, after, content: Content::Flows(table) });
    }
    let collective =
        tables.collective.into_iter().map(|table| (table.span(), Operations::Collective(table.into_inner())));
    let training =
        tables.training.into_iter().map(|table| (table.span(), Operations::Training(table.into_inner())));
    for (number, (place, operations)) in (0..).zip(collective).chain((0..).zip(training)) {
        let common = operations.common();
        let content = Content::Operations(operations);
        all.push(Table { number, place, name: common.name, after: common.after, content });
    }
    for (number, table) in (0..).zip(tables.workload) {
        let (place, table) = (table.span(), table.into_inner());
        let (name, after) = (table.name.clone(), table.after.clone());
        all.push(Table { number, place, name, after, content: Content::Workload(table) });
    }
    Ok(all)
}

impl Table {
    /// Describes the table and its flows for results.
    fn traffic(&self, flows: Range<usize>) -> Traffic {
        let (key, kind, collective) = match &self.content {
            Content::Flows(table) => ("flows", table.kind, None),
            Content::Operations(operations) => {
                let (key, kind) = operations.key_and_kind();
                (key, kind, Some(self.name.clone().unwrap_or_else(|| kind.to_owned())))
            }
            Content::Workload(table) => ("workload", table.kind(), None),
        };
        let name = self.name.clone().unwrap_or_else(|| format!("{key}.{}", self.number));
        Traffic { name, kind, collective, flows }
    }
}

impl Workload {
    fn add(
        &mut self,
        table: &Table,
        is_awaited: bool,
        seen: &mut Seen,
        context: &Context<'_>,
    ) -> Result<(), Wrong> {
        let first = self.flows.len();
        let visible = match &table.content {
            Content::Flows(flows) => self.add_flows((flows, table.number), is_awaited, seen, context)?,
            Content::Operations(operations) => self.add_operations(operations, seen, context)?,
            Content::Workload(table) => self.import(table, is_awaited, seen, context)?,
        };
        check_flows(&self.flows[first..], context.topology.hosts() as u32)
            .map_err(|error| error.to_string())?;
        if self.flows.len() > MAX_FLOWS {
            return Err(format!("the sum of all flows exceeds {MAX_FLOWS}"));
        }
        if let Some(name) = &table.name {
            seen.insert(name.clone(), visible);
        }
        Ok(())
    }

    /// Adds the flows of a table. Flows that wait, or that others wait for, have one task each.
    fn add_flows(
        &mut self,
        (table, number): (&FlowTable, u64),
        is_awaited: bool,
        seen: &Seen,
        context: &Context<'_>,
    ) -> Result<BTreeMap<u32, Vec<After>>, Wrong> {
        let mut visible: BTreeMap<u32, Vec<After>> = BTreeMap::new();
        let mut flows = generate(table, context)?;
        if let Some(jitter) = table.jitter {
            let seed = jitter.seed.unwrap_or(context.seed).wrapping_add(number << 32);
            delay_starts(&mut flows, jitter.most.0, seed);
        }
        check_flows(&flows, context.topology.hosts() as u32).map_err(|error| error.to_string())?;
        if table.after.is_empty() && table.compute.is_some() {
            return Err("compute: it requires `after`, whose end begins the computation".to_owned());
        }
        if table.after.is_empty() && !is_awaited {
            self.flows.extend(flows);
            return Ok(visible);
        }
        if table.operation == Some(FlowOperation::Read) {
            return Err(
                "operation: the sender of a READ does not learn when it ends, so a READ cannot wait for \
                 other flows, and other flows cannot wait for it"
                    .to_owned(),
            );
        }
        let compute = table.compute.map_or(Time::ZERO, |compute| compute.0);
        // One task of a host waits for all dependencies, so that each flow waits for one task.
        let mut joined: BTreeMap<u32, Vec<After>> = BTreeMap::new();
        for flow in flows {
            let after = match joined.get(&flow.source) {
                Some(after) => after.clone(),
                None => {
                    let all = visible_at(flow.source, &table.after, seen, context.topology)?;
                    let after = self.join(flow.source, &all)?;
                    joined.insert(flow.source, after.clone());
                    after
                }
            };
            let transfer = Some(Transfer::Flow { flow: self.flows.len() as u32, bytes: flow.bytes });
            let task = Task { host: flow.source, earliest: flow.start, compute, transfer };
            let task = self.schedule.add(task, &after).map_err(|error| error.to_string())?;
            visible.entry(flow.source).or_default().push(After::Done(task));
            visible.entry(flow.destination).or_default().push(After::Arrival(task));
            self.flows.push(flow);
        }
        Ok(visible)
    }

    /// Returns one dependency of a host that replaces several.
    fn join(&mut self, host: u32, all: &[After]) -> Result<Vec<After>, Wrong> {
        if all.len() < 2 {
            return Ok(all.to_vec());
        }
        let task = Task { host, earliest: Time::ZERO, compute: Time::ZERO, transfer: None };
        let task = self.schedule.add(task, all).map_err(|error| error.to_string())?;
        Ok(vec![After::Done(task)])
    }

    fn import(
        &mut self,
        table: &WorkloadTable,
        is_awaited: bool,
        seen: &Seen,
        context: &Context<'_>,
    ) -> Result<BTreeMap<u32, Vec<After>>, Wrong> {
        let Context { topology, load, .. } = *context;
        let before = |host: u32| visible_at(host, &table.after, seen, topology);
        let (flows, schedule) = (&mut self.flows, &mut self.schedule);
        let mut target = Target { flows, schedule, topology, load, before: &before, is_awaited };
        let Imported { operations, visible, warnings } = table.add(&mut target)?;
        self.operations.extend(operations);
        self.warnings.extend(warnings);
        Ok(visible)
    }

    fn add_operations(
        &mut self,
        operations: &Operations,
        seen: &Seen,
        context: &Context<'_>,
    ) -> Result<BTreeMap<u32, Vec<After>>, Wrong> {
        let common = operations.common();
        let before = |host: u32| visible_at(host, &common.after, seen, context.topology);
        let mut plan = Plan::new(&mut self.flows, &mut self.schedule, common.start)
            .with_scale_up(context.topology.scale_up);
        let added = operations.add(&mut plan, context.topology, context.seed, &before)?;
        // A step ends together with the buckets of the same iteration, so the ends of all operations of the
        // last iteration count.
        let last = added.iter().map(|operation| operation.iteration).max();
        let mut visible: BTreeMap<u32, Vec<After>> = BTreeMap::new();
        for operation in added.iter().filter(|operation| Some(operation.iteration) == last) {
            for (host, end) in operation.hosts.iter().zip(&operation.ends) {
                visible.entry(*host).or_default().push(After::Done(*end));
            }
        }
        self.operations.extend(added);
        Ok(visible)
    }
}

/// Returns the dependencies of a host that waits for these tables.
fn visible_at(host: u32, names: &[String], seen: &Seen, topology: &Topology) -> Result<Vec<After>, Wrong> {
    let mut all = Vec::new();
    for name in names {
        let Some(after) = seen.get(name).and_then(|hosts| hosts.get(&host)) else {
            let mut hosts = topology.nodes.iter().filter(|node| node.kind == NodeKind::Host);
            let host = hosts.nth(host as usize).map_or("", |node| node.name.as_str());
            return Err(format!(
                "after: no flow of {name} begins or ends at {host}, so {host} cannot detect its end"
            ));
        };
        all.extend_from_slice(after);
    }
    Ok(all)
}

fn generate(table: &FlowTable, context: &Context<'_>) -> Result<Vec<FlowSpec>, Wrong> {
    let Context { topology, seed: scenario_seed, load, .. } = *context;
    let list = select_hosts(topology, table.hosts.as_deref())?;
    let hosts = list.len() as u32;
    let begin = |start: Option<Span>| start.map_or(Time::ZERO, |start| start.0);
    let flows = match &table.flows {
        Flows::Pair { from, to, bytes, start } => {
            let (source, destination) = (find_host(topology, from)?, find_host(topology, to)?);
            Ok(vec![FlowSpec { source, destination, bytes: bytes.0, start: begin(*start) }])
        }
        Flows::Permutation { bytes, start, seed } => {
            permutation(hosts, bytes.0, begin(*start), seed.unwrap_or(scenario_seed))
        }
        Flows::Incast { degree, to, bytes, start, repeated, shuffle } => {
            let receiver = to.as_deref().map(|to| find_host(topology, to)).transpose()?;
            let (period, count) = repeated.map_or((Time::ZERO, 1), |it| (it.period.0, it.count));
            let (degree, bytes, start, shuffle) = (*degree, bytes.0, begin(*start), *shuffle);
            let what = Incasts { hosts: &list, degree, receiver, bytes, start, period, count, shuffle };
            return incasts(&what).map_err(|error| error.to_string());
        }
        Flows::AllToAll { bytes, start } => all_to_all(hosts, bytes.0, begin(*start)),
        Flows::OnOff { from, to, bytes, period, count, start } => {
            let (source, destination) = (find_host(topology, from)?, find_host(topology, to)?);
            on_off(source, destination, bytes.0, begin(*start), period.0, *count)
        }
        Flows::Poisson { load: part, duration, sizes, seed } => {
            let sizes = match sizes.as_str() {
                "websearch" => FlowSizes::web_search(),
                "hadoop" => FlowSizes::hadoop(),
                name => {
                    FlowSizes::parse(&load_text(load, name)?).map_err(|error| format!("{name}, {error}"))?
                }
            };
            let seed = seed.unwrap_or(scenario_seed);
            let rate_bps = host_rate(topology)?;
            let what = Poisson { hosts, load: *part, rate_bps, duration: duration.0, seed };
            poisson(&what, &sizes)
        }
        Flows::Trace { file, text } => match (file, text) {
            (Some(name), None) => {
                return parse_flows_of(&load_text(load, name)?, &by_name_or_number(topology))
                    .map_err(|error| format!("{name}, {error}"));
            }
            (None, Some(text)) => parse_flows_of(text, &by_name_or_number(topology)),
            _ => return Err("a trace needs either file or text".to_owned()),
        },
    };
    let mut flows = flows.map_err(|error| error.to_string())?;
    if table.hosts.is_some() {
        // Generators with a list number the hosts by their position in the list.
        for flow in &mut flows {
            (flow.source, flow.destination) = (list[flow.source as usize], list[flow.destination as usize]);
        }
    }
    Ok(flows)
}

/// Returns the rate of the links of hosts, to which the load of Poisson arrivals refers.
fn host_rate(topology: &Topology) -> Result<u64, Wrong> {
    let is_host =
        |node: u32| topology.nodes.get(node as usize).is_some_and(|node| node.kind == NodeKind::Host);
    let links = topology.links.iter().filter(|link| is_host(link.a) || is_host(link.b));
    let mut rates = links.map(|link| link.spec.rate_bps);
    let first = rates.next().ok_or("there are no hosts")?;
    if rates.any(|rate| rate != first) {
        return Err("the links of hosts have different rates, so a common load is undefined".to_owned());
    }
    Ok(first)
}
