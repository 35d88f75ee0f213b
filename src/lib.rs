//! `roce`: a RoCE v2 NIC made of software.
//!
//! It puts real InfiniBand transport packets (BTH, RETH, AETH, …, over UDP port 4791, with the
//! flow-hash source port and the ICRC) on a real wire from user space, by default over a plain UDP socket, without
//! a kernel module and without root.
//!
//! A first program: one side writes into the memory of the other, over UDP on the loopback interface.
//!
#![doc = concat!("```no_run\n", include_str!("../examples/hello.rs"), "```")]
//!
//! [`verbs`] is what applications program against, after libibverbs and librdmacm. [`device`] has the devices, and the trait
//! for one's own. [`tcp`] is TCP from the address of a device, and [`observe`] has the counters.
//!
//! The library decides nothing of the protocol: that is the engine's, [`transport`], which owns no socket, clock or
//! thread. It starts one thread for each [`Context`](verbs::Context), which serves peers while the application does not.

#[macro_use]
mod setters;

mod cm;
mod driver;
pub mod observe;
mod runtime;
pub mod tcp;
pub mod verbs;

pub use roce_device as device;
pub use {roce_packet as packet, roce_transport as transport};
