//! The figures of runs and sweeps: what they show, without files.

pub(crate) mod charts;
pub(crate) mod kinds;
mod means;
mod names;
pub(crate) mod samples;
pub(crate) mod sweeps;
