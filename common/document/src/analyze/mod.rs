//! The connections of captures with their figures and verdicts: what `roce analyze` prints.

mod captures;
mod counters;
mod figures;
mod json;
mod report;

pub use captures::{Captures, NoSuchConnection};
pub use counters::changes;
pub use figures::{Losses, of_requests, parties};
pub use json::text;
pub use report::{Counters, Part, Report};
