//! The text of an error with the errors that caused it.

use core::error::Error;
use core::fmt::{self, Display};

/// Returns the text of an error and of its sources, separated by `": "`.
///
/// The text of an error does not contain the text of its [source](Error::source), so a program that prints
/// only the error omits the reason. `{:#}` of the crate `anyhow` prints the same text.
///
/// ```
/// use roce_transport::congestion::Congestion;
/// use roce_transport::with_causes;
///
/// let error = Congestion::parse("fixed:fast").unwrap_err();
/// assert_eq!(error.to_string(), "invalid rate of fixed");
/// assert!(with_causes(&error).to_string().starts_with("invalid rate of fixed: \"fast\" is not a rate"));
/// ```
#[must_use]
pub fn with_causes<'a>(error: &'a (dyn Error + 'a)) -> impl Display + 'a {
    fmt::from_fn(move |formatter| {
        write!(formatter, "{error}")?;
        let mut source = error.source();
        while let Some(cause) = source {
            write!(formatter, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    })
}
