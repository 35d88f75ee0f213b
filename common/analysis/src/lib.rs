//! What captured RoCE packets say about the connections and NICs that sent them.
//!
//! [`Collector`] takes the packets of one or more captures, [`Collector::analyze`] finds the connections and
//! replays them, and [`verdict`] judges each rule: *pass*, *fail*, or *unknown* with the reason. The crate
//! reads no files and no clock. [`icrc`] names the mistake behind a wrong ICRC, and
//! [`counters`] explains what counters of NICs say.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod connection;
pub mod copies;
mod counted;
pub mod counters;
mod damage;
pub mod event;
pub mod exchange;
pub mod icrc;
pub mod ladder;
pub mod pairing;
mod places;
pub mod record;
pub mod replay;
pub mod stall;
mod strays;
pub mod stream;
pub mod summary;
#[cfg(test)]
mod testing;
pub mod verdict;
pub mod walk;
pub mod window;
pub mod words;

pub use analysis::{Analysis, Collector, Counts};
pub use record::{Packet, Place};
