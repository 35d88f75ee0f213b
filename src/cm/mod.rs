//! Connection management over queue pair 1.

pub(crate) mod service;
