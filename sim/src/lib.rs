//! Simulated links and networks in virtual time, for engines of `roce-transport`.
//!
//! This crate uses no wall clock and no threads, and every random number follows from a seed: the same input gives the
//! same run on every machine. It does no input or output. Parts that also serve a real network, such as the
//! decisions of [`fault`] and the port model of [`net`], know nothing of the simulation.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod direct;
pub mod fault;
pub mod net;
pub mod pair;
pub mod random;
pub mod scenario;
