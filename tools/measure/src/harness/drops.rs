//! The drop counters during a failed exchange, as part of its error.

use roce::observe::{Snapshot, explain_drops};
use roce::verbs::Context;
use roce_exchange::ToolError;

/// The counters of a context at the start of an exchange.
#[derive(Clone, Debug)]
pub(crate) struct DropWatch {
    context: Context,
    before: Snapshot,
}

impl DropWatch {
    /// Takes the counters for an exchange that begins now.
    pub(crate) fn start(context: &Context) -> Self {
        Self { context: context.clone(), before: Snapshot::of(context) }
    }

    /// Adds the packets that this side dropped meanwhile to the error of a failed exchange.
    pub(crate) fn explain<T>(&self, outcome: Result<T, ToolError>) -> Result<T, ToolError> {
        outcome.map_err(|error| {
            if !error.may_follow_from_drops() {
                return error;
            }
            match explain_drops(&Snapshot::of(&self.context).since(&self.before)) {
                Some(drops) => ToolError::Dropped { drops, error: Box::new(error) },
                None => error,
            }
        })
    }
}
