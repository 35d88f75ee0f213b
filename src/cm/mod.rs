//! Connection management over queue pair 1.

pub(crate) mod queue_pairs;
pub(crate) mod service;
