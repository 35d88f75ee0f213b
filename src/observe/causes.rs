//! The text of an error with the errors that caused it.

/// ```
/// use roce::observe::with_causes;
/// use roce::verbs::{PdError, VerbsError};
///
/// let error = VerbsError::from(PdError::TooMany { limit: 2 });
/// assert_eq!(error.to_string(), "operation failed on the protection domain");
/// let text = "operation failed on the protection domain: all 2 protection domains are in use";
/// assert_eq!(with_causes(&error).to_string(), text);
/// ```
pub use roce_transport::with_causes;
