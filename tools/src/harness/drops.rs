//! The drop counters of a failed exchange, in its error.

use roce::observe::{Snapshot, explain_drops};
use roce::verbs::Context;

use super::ToolError;

/// The counters of a context when an exchange began.
#[derive(Clone, Debug)]
pub(crate) struct DropWatch {
    context: Context,
    before: Snapshot,
}

impl DropWatch {
    /// For an exchange that begins now.
    pub(crate) fn start(context: &Context) -> Self {
        Self { context: context.clone(), before: Snapshot::of(context) }
    }

    /// Puts in front of the error of a failed exchange what packets this side dropped meanwhile.
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
