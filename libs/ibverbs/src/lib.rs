//! `libibverbs.so.1` on the engine of `roce`: unmodified RDMA programs run without RDMA hardware, kernel
//! modules or privileges. The crate also contains the functions that `librdmacm.so.1` jumps to.
//!
//! This crate is only the binary interface: layouts, names with their versions, pointers and error numbers.
//! [`roce::verbs::raw`] implements the verbs. The crate has no Rust interface; docs/reference/verbs.md
//! describes it for programs.
//!
//! Until a program calls its first verb, the library has no effect: it has no constructor, prints nothing and
//! does not read the environment. Panics never cross an entry point.

mod abi;
mod address;
mod answer;
mod asleep;
mod async_events;
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
mod errno;
mod events;
mod exit;
mod exports;
mod failing;
mod faults;
mod links;
mod live;
mod memory;
mod modify;
mod multicast;
mod opening;
mod outages;
mod pages;
mod port;
mod port_files;
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
