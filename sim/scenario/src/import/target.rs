//! The flows and tasks to which a workload is added, and the results of that.

use std::collections::BTreeMap;

use crate::{Load, Wrong};
use roce_sim::net::{After, FlowSpec, Operation, OperationKind, Schedule, Topology};

/// The flows, tasks and operations to which a workload is added, and the network with its files.
pub(crate) struct Target<'a> {
    pub(crate) flows: &'a mut Vec<FlowSpec>,
    pub(crate) schedule: &'a mut Schedule,
    pub(crate) topology: &'a Topology,
    pub(crate) load: &'a Load<'a>,
    /// The events that a host waits for before it begins.
    pub(crate) before: &'a dyn Fn(u32) -> Result<Vec<After>, Wrong>,
    /// Whether other tables wait for the workload.
    pub(crate) is_awaited: bool,
}

/// The results of an import in addition to flows and tasks.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    pub(crate) operations: Vec<Operation>,
    /// The events by which each host observes the end of the workload.
    pub(crate) visible: BTreeMap<u32, Vec<After>>,
    /// Parts of the file that have no effect.
    pub(crate) warnings: Vec<String>,
}

impl Imported {
    /// Names the file in warnings.
    pub(super) fn in_file(mut self, name: &str) -> Self {
        for warning in &mut self.warnings {
            *warning = format!("{name}: {warning}");
        }
        self
    }

    /// Each host observes the end of the last repetition by its own end.
    pub(super) fn set_visible(&mut self) {
        let whole = |operation: &&Operation| operation.kind == OperationKind::Step;
        let Some(last) = self.operations.iter().filter(whole).max_by_key(|operation| operation.iteration)
        else {
            return;
        };
        let ends = last.hosts.iter().zip(&last.ends);
        self.visible = ends.map(|(host, end)| (*host, vec![After::Done(*end)])).collect();
    }
}
