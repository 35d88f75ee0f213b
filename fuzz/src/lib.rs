//! What the fuzz targets do, as ordinary functions: `<target>::run(input)`.
//!
//! A target finds something when `run` panics. Each module says at its top which oracle it holds the code
//! against. The functions know nothing of libFuzzer, so the committed seeds, and every input that once
//! found something, are replayed by a plain `cargo test --manifest-path fuzz/Cargo.toml`.
//!
//! The targets that drive an engine read their input as a list of records of fixed size, one step each.
//! All-zero records are valid packets in the right order, and every other value of a field moves away from
//! that: a mutation damages one thing and leaves the rest of the sequence alive. `make_seeds` writes the
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
