//! The fuzz targets as ordinary functions: `<target>::run(input)`.
//!
//! A target fails if `run` panics. The documentation of each module lists the properties that it checks. The
//! functions do not depend on libFuzzer, so `cargo test --manifest-path fuzz/Cargo.toml` replays the
//! committed seeds and earlier failing inputs.
//!
//! The targets that drive an engine read their input as a list of records of fixed size, one step each.
//! All-zero records are valid packets in order, and every other value of a field deviates from that: a
//! mutation damages one field and keeps the rest of the sequence valid. `make_seeds` writes the
//! records of its scripts with the same types.

pub mod api;
pub mod cm;
pub mod memory;
pub mod packet;
pub mod parse;
pub mod parse_repaired;
pub mod pcap;
pub mod records;
pub mod requester;
pub mod responder;
pub mod scenario;
pub mod seeds;
