//! The table `[[workload]]`, and the tasks of the file that it names.

use serde::Deserialize;

use super::collectives::How;
use super::connections::{self, Connections};
use super::target::{Imported, Target};
use super::{chakra, goal, simai};
use crate::contents::{load_bytes, load_text};
use crate::hosts::select_hosts;
use crate::operations::Algorithm;
use crate::profile::Profile;
use crate::values::{Bytes, Span};
use crate::{Load, Wrong};
use roce_sim::net::{Operation, Plan, TaskId, Time};

/// A workload in the format of another project.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[workload]]")]
pub(crate) struct WorkloadTable {
    kind: Kind,
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) after: Vec<String>,
    pub(crate) host: Option<Profile>,
    /// The name of a file, or the common part of the names of several, or a text.
    file: Option<String>,
    text: Option<String>,
    /// The host of each rank.
    hosts: Option<Vec<String>>,
    start: Option<Span>,
    /// For collective operations.
    algorithm: Option<Algorithm>,
    chunk: Option<Bytes>,
    repeat: Option<u32>,
    /// For execution traces: a file with groups of ranks, and the numbers of ranks in each dimension.
    groups: Option<String>,
    dimensions: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Connections,
    Goal,
    Chakra,
    Simai,
}

/// The maximum number of repetitions. A mistyped number must not fill the memory.
const MOST_REPETITIONS: u32 = 100_000;

impl WorkloadTable {
    /// Returns the value of `kind` as in the file.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Connections => "connections",
            Kind::Goal => "goal",
            Kind::Chakra => "chakra",
            Kind::Simai => "simai",
        }
    }

    /// Adds the workload.
    pub(crate) fn add(&self, target: &mut Target<'_>) -> Result<Imported, Wrong> {
        self.refuse_foreign_keys()?;
        let hosts = select_hosts(target.topology, self.hosts.as_deref())?;
        let mut imported = match self.kind {
            Kind::Connections => return self.add_connections(&hosts, target),
            Kind::Goal => self.add_goal(&hosts, target),
            Kind::Chakra => self.add_chakra(&hosts, target),
            Kind::Simai => self.add_simai(&hosts, target),
        }?;
        imported.set_visible();
        Ok(imported)
    }

    fn add_connections(&self, hosts: &[u32], target: &mut Target<'_>) -> Result<Imported, Wrong> {
        let (text, name) = self.text(target.load)?;
        let waits = !self.after.is_empty() || target.is_awaited;
        let what = Connections { hosts, start: self.start(), waits };
        let imported =
            connections::add(&text, &what, target).map_err(|reason| format!("{name}, {reason}"))?;
        Ok(imported.in_file(&name))
    }

    fn add_goal(&self, hosts: &[u32], target: &mut Target<'_>) -> Result<Imported, Wrong> {
        let (text, name) = self.text(target.load)?;
        let goal = goal::parse(&text, hosts.len()).map_err(|reason| format!("{name}, {reason}"))?;
        let (graph, warnings) = (goal.graph, goal.warnings);
        let operations = self.plan(&hosts[..goal.ranks], target, |plan, how, begins| {
            graph.emit(plan, how, begins).map_err(|wrong| match wrong.place {
                Some(line) => format!("{name}, line {line}: {}", wrong.reason),
                None => format!("{name}: {}", wrong.reason),
            })
        })?;
        Ok(Imported { operations, warnings, ..Imported::default() }.in_file(&name))
    }

    fn add_chakra(&self, hosts: &[u32], target: &mut Target<'_>) -> Result<Imported, Wrong> {
        let name = self.file.as_deref().ok_or("execution traces need `file`, the name before .0.et")?;
        let layout = self.layout(target.load, hosts.len())?;
        let load = |name: &str| load_bytes(target.load, name);
        let mut trace = chakra::parse(name, &layout, &load)?;
        let warnings = std::mem::take(&mut trace.warnings);
        let operations = self.plan(hosts, target, |plan, how, begins| trace.emit(plan, how, begins))?;
        Ok(Imported { operations, warnings, ..Imported::default() }.in_file(name))
    }

    fn add_simai(&self, hosts: &[u32], target: &mut Target<'_>) -> Result<Imported, Wrong> {
        let (text, name) = self.text(target.load)?;
        let repeat = self.repeat.unwrap_or(1);
        if !(1..=MOST_REPETITIONS).contains(&repeat) {
            return Err(format!("repeat: it must be 1 to {MOST_REPETITIONS}"));
        }
        let fail = |reason| format!("{name}, {reason}");
        let mut workload = simai::parse(&text, hosts.len()).map_err(fail)?;
        let warnings = std::mem::take(&mut workload.warnings);
        let operations = self.plan(&hosts[..workload.ranks()], target, |plan, how, begins| {
            workload.add(plan, how, begins, repeat).map_err(fail)
        })?;
        Ok(Imported { operations, warnings, ..Imported::default() }.in_file(&name))
    }

    /// Calls `add` with a plan and the task with which each host begins.
    fn plan(
        &self,
        hosts: &[u32],
        target: &mut Target<'_>,
        add: impl FnOnce(&mut Plan<'_>, &How<'_>, Vec<TaskId>) -> Result<Vec<Operation>, Wrong>,
    ) -> Result<Vec<Operation>, Wrong> {
        let mut plan =
            Plan::new(target.flows, target.schedule, self.start()).with_scale_up(target.topology.scale_up);
        let mut begins = Vec::with_capacity(hosts.len());
        for host in hosts {
            let begin = plan.compute(*host, Time::ZERO, &(target.before)(*host)?);
            begins.push(begin.map_err(|error| error.to_string())?);
        }
        let default = match self.kind {
            Kind::Connections => "connections",
            Kind::Goal => "goal",
            Kind::Chakra => "chakra",
            Kind::Simai => "simai",
        };
        let how = How {
            hosts,
            name: self.name.as_deref().unwrap_or(default),
            algorithm: self.algorithm.map(Algorithm::of),
            chunk: self.chunk.map(|chunk| chunk.0),
        };
        add(&mut plan, &how, begins)
    }

    fn start(&self) -> Time {
        self.start.map_or(Time::ZERO, |start| start.0)
    }

    /// Returns the text of the workload, and its name for errors.
    fn text(&self, load: &Load<'_>) -> Result<(String, String), Wrong> {
        match (&self.file, &self.text) {
            (Some(name), None) => Ok((load_text(load, name)?, name.clone())),
            (None, Some(text)) => Ok((text.clone(), "text".to_owned())),
            _ => Err("a workload needs either file or text".to_owned()),
        }
    }

    fn layout(&self, load: &Load<'_>, ranks: usize) -> Result<chakra::Layout, Wrong> {
        let groups = self.groups.as_deref().map(|name| {
            let text = load_text(load, name)?;
            chakra::parse_groups(&text, ranks).map_err(|reason| format!("{name}, {reason}"))
        });
        let groups = groups.transpose()?.unwrap_or_default();
        let dimensions = self.dimensions.clone();
        if let Some(sizes) = &dimensions {
            let product = sizes.iter().try_fold(1_u32, |product, size| product.checked_mul(*size));
            if product != Some(ranks as u32) {
                return Err(format!(
                    "dimensions: the product of {sizes:?} must be the number of ranks, {ranks}"
                ));
            }
        }
        Ok(chakra::Layout { ranks: ranks as u32, groups, dimensions })
    }

    /// Rejects keys of other kinds, because they have no effect.
    fn refuse_foreign_keys(&self) -> Result<(), Wrong> {
        let (chakra, simai) = (self.kind == Kind::Chakra, self.kind == Kind::Simai);
        let keys = [
            ("text", self.text.is_some(), !chakra),
            ("algorithm", self.algorithm.is_some(), chakra || simai),
            ("chunk", self.chunk.is_some(), chakra || simai),
            ("repeat", self.repeat.is_some(), simai),
            ("groups", self.groups.is_some(), chakra),
            ("dimensions", self.dimensions.is_some(), chakra),
        ];
        match keys.into_iter().find(|(_, given, applies)| *given && !applies) {
            Some((key, ..)) => Err(format!("this kind of workload has no `{key}`")),
            None => Ok(()),
        }
    }
}
