//! Connection management over queue pair 1.

pub(crate) mod queue_pairs;
mod raw;
mod raw_events;
pub(crate) mod service;
