//! `roce`: a RoCE v2 NIC made of software.
//!
//! It puts real InfiniBand transport packets (BTH, RETH, AETH, …, over UDP port 4791, with the
//! flow-hash source port and the ICRC) on a real wire from user space, by default over a plain UDP socket, without
//! a kernel module and without root.
//!
//! [`verbs`] is what applications program against, after libibverbs. Underneath, a `driver` joins one
//! engine of `roce-transport` to one device of [`device`].

#[macro_use]
mod setters;

mod bridge;
#[doc(hidden)]
pub mod cli;
pub mod cm;
pub mod device;
pub mod doctor;
mod driver;
mod host;
pub mod limit;
pub mod observe;
pub mod perf;
pub mod perftest;
pub mod pingpong;
pub mod plot;
mod runtime;
pub mod tcp;
pub mod verbs;
