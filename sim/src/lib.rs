//! A network that exists only in memory, for engines of `roce-transport` in virtual time.
//!
//! What is here has no wall clock, no thread and no randomness but that of a seed: the same input gives the
//! same run, on every machine. It does no input or output. Faults are those of
//! `roce-fault`, which a wrapper around a real device uses as well.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod direct;
pub mod net;
pub mod pair;
pub mod scenario;
