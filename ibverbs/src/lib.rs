//! `libibverbs.so.1` on the engine of `roce`: unmodified RDMA programs run without RDMA hardware, kernel module or privilege. What
//! `librdmacm.so.1` jumps to is here too.
//!
//! This crate is the binary interface only: layouts, names with their versions, pointers and error numbers. What a verb does is
//! in [`roce::verbs::raw`]. It has no Rust interface; docs/verbs.md describes what programs see.
//!
//! Until a program calls its first verb, nothing happens: no constructor, no output, no look at the environment. No panic crosses
//! an entry point.

mod abi;
mod address;
mod answer;
mod buffer;
mod channel;
mod context;
mod counter_files;
mod cq;
mod cq_ex;
mod device;
mod device_memory;
mod domain;
mod environment;
mod events;
mod exports;
mod live;
mod memory;
mod modify;
mod posting;
mod process;
mod qp;
mod qp_ex;
mod query;
mod rdmacm;
mod report;
mod srq;
mod strings;
#[cfg(test)]
#[expect(dead_code, reason = "the linker and the tests of the library use the rest")]
mod table;
mod wait;
mod window;
mod xrc;
