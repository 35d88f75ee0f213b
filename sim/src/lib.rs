//! Simulated links and networks in virtual time, for engines of `roce-transport`.
//!
//! This crate uses no wall clock and does no input or output. Every random number follows from a seed, so the
//! same input gives the same run on every machine, with any number of threads. The fault model is
//! `roce-fault`, which real devices also use. The bridge uses the port model of [`net`], too.
#![forbid(unsafe_code)]

pub mod adversary;
pub mod direct;
pub mod net;
pub mod pair;
