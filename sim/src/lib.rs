//! A network that exists only in memory, for engines of `roce-transport` in virtual time.
//!
//! What is here has no wall clock, no thread and no randomness but that of a seed: the same input gives the
//! same run, on every machine. It does no input or output; parts that a real network can use as well, such
//! as the decisions of [`fault`], are written so that it can.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod direct;
pub mod fault;
pub mod net;
pub mod pair;
pub mod random;
pub mod scenario;
