//! Simulated links and networks in virtual time, for engines of `roce-transport`.
//!
//! This crate uses no wall clock and no threads, and every random number follows from a seed: the same input gives the
//! same run on every machine. It does no input or output. Faults are those of `roce-fault`,
//! which real devices use as well, and the port model of [`net`] also serves the bridge.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod direct;
pub mod net;
pub mod pair;
pub mod scenario;
