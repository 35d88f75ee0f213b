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

mod cm;
mod driver;
pub mod observe;
mod runtime;
pub mod tcp;
pub mod verbs;

pub use roce_device as device;
