//! Connection management over queue pair 1.

pub(crate) mod queue_pairs;
mod raw;
pub(crate) mod service;
