//! Faults of verbs: which calls of a program fail or take longer, which work requests complete with an
//! error, and when ports and devices fail.
//!
//! A [`VerbsPlan`] describes the faults, and [`VerbsFaults`] decides about each call and completion of one
//! process. It has no clock and performs no input or output. The same plan and the same sequence of calls
//! always give the same faults.

mod decide;
mod errno;
mod link;
mod names;
mod parse;
mod plan;

#[cfg(test)]
mod tests;

pub use decide::{CompletionFate, Fault, VerbsFaults};
pub use errno::Errno;
pub use link::LinkFaults;
pub use names::Verb;
pub use parse::{VerbsPlanError, VerbsPlanErrorKind};
pub use plan::{
    CallFault, CompletionFault, LinkFlap, Occurrence, Outage, Timed, VerbsItem, VerbsPlan, Which, Window,
    WorkQueue,
};
