//! The figures of runs and sweeps, without files.

pub(crate) mod completed;
pub(crate) mod deadlocks;
pub(crate) mod distribution;
pub(crate) mod expectations;
pub(crate) mod expected;
pub(crate) mod groups;
pub(crate) mod host_waits;
pub(crate) mod metrics;
pub(crate) mod operations;
pub(crate) mod summary;
pub(crate) mod tables;
pub(crate) mod text;
pub(crate) mod unfinished;
