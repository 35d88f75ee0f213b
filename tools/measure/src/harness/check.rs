//! Checks of completions and messages.

use roce::verbs::{Context, Wc};
use roce_exchange::ToolError;

/// Returns an error if a work request of the context failed.
pub(crate) fn check_completion(context: &Context, wc: &Wc) -> Result<(), ToolError> {
    context.result(wc).map(|_| ()).map_err(|error| ToolError::of_completion(context, error))
}

/// Returns an error if a message has the wrong length.
pub(crate) fn check_length(message: u64, expected: usize, found: usize) -> Result<(), ToolError> {
    if found == expected { Ok(()) } else { Err(ToolError::Length { message, expected, found }) }
}

/// Returns an error if another message arrived than expected.
pub(crate) fn check_order(expected: u64, found: u64) -> Result<(), ToolError> {
    if found == expected { Ok(()) } else { Err(ToolError::Order { expected, found }) }
}
