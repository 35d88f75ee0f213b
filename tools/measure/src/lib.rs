//! Measurements over RoCE, and peers of the programs that measure elsewhere.
//!
//! | module | what it does |
//! |---|---|
//! | [`measure`] | latency and throughput of verbs between two of our own: `roce ping`, `roce blast`, `roce demo` |
//! | [`limit`] | packets and round trips of a device without any protocol |
//! | [`study`] | a grid of measurements, stored row by row, with figures and conclusions |
//! | [`perf`] | the bandwidth and latency tests of perftest, also against the originals |
//! | [`pingpong`], [`rping`] | the ping-pongs of libibverbs and librdmacm, also against the originals |
//!
//! Each measurement is a module with a plan (the request of the user) and functions that carry it out over a
//! [`Context`](roce::verbs::Context). The two ends talk through `roce-exchange`.
//!
//! The crate may use the library `roce`, the devices and all crates below them, and `roce-plot` for figures.
//! Nothing here reads a command line or writes to a terminal.
#![forbid(unsafe_code)]

mod harness;
pub mod limit;
pub mod measure;
pub mod perf;
pub mod pingpong;
pub mod rping;
pub mod study;

pub use harness::Role;
