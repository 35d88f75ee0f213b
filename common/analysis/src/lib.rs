//! What captured RoCE packets say about the connections and NICs that sent them.
//!
//! [`Collector`] takes the packets of one or more captures, [`Collector::analyze`] finds the connections and
//! replays them, and [`verdict`] judges each rule: *pass*, *fail*, or *unknown* with the reason. The crate
//! reads no files and no clock.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod connection;
pub mod copies;
pub mod event;
pub mod exchange;
pub mod pairing;
pub mod record;
pub mod replay;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod verdict;
pub mod window;

pub use analysis::{Analysis, Collector, Counts};
pub use record::{Packet, Place};
