//! The paths of a queue pair: which UDP source port each of its packets takes.
//!
//! Switches that balance load by hash send packets with different source ports over different links, so a
//! sender that varies the port of its packets sprays them over the network. [`Paths`] selects the policy, for
//! all queue pairs of an engine (`EngineConfig::paths` of `roce-transport`) or for one (`QpOptions`). The
//! engine knows the path of each packet in flight, and reports what became of it ([`PathFeedback`]).
//!
//! A policy is a struct that implements [`PathPolicy`]. Around each policy, [`PathSet`] excludes paths that
//! lose everything, and probes them.

mod choice;
mod penalty;
mod policy;
mod recycle;
mod reps;
mod round_robin;
mod set;

pub use choice::{PathParameters, Paths, PathsError, Policy};
pub use penalty::Penalty;
pub use policy::{PathFeedback, PathPolicy, PathStart};
pub use recycle::Recycle;
pub use reps::{Reps, RepsParameters};
pub use round_robin::RoundRobin;
pub use set::PathSet;

#[cfg(test)]
mod tests;
