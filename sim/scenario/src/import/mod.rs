//! Workloads and topologies in the formats of other projects. `docs/how-to/import-workloads.md` has a table
//! for each format: what is simulated, refused or ignored.
//!
//! A parser knows no files: it gets texts or bytes, and names the line of an error. Each format ends in
//! flows, tasks and operations of `roce-sim`.

mod chakra;
mod collectives;
mod connections;
mod goal;
mod graph;
mod htsim;
mod json;
mod lines;
mod simai;
mod table;
mod target;
mod wire;

pub(super) use self::htsim::topology;
pub(super) use self::table::WorkloadTable;
pub(super) use self::target::{Imported, Target};
