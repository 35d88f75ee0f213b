//! `roce`: a RoCE v2 NIC in software.
//!
//! The library sends real InfiniBand transport packets on a real wire from user space. They contain BTH,
//! RETH, AETH etc. over UDP port 4791, with the flow-hash source port and the ICRC. By default the library
//! uses a plain UDP socket, which requires no kernel module and no root privileges.
//!
//! In this first program, one side writes into the memory of the other, over UDP on the loopback interface.
//!
#![doc = concat!("```no_run\n", include_str!("../examples/hello.rs"), "```")]
//!
//! Applications use [`verbs`], whose objects and semantics follow libibverbs and librdmacm. [`device`]
//! contains the devices and the trait for custom ones. [`tcp`] provides TCP from the address of a device, and
//! [`observe`] provides the counters.
//!
//! The engine in [`transport`] makes all protocol decisions; it owns no socket, clock or thread. This library
//! starts one thread for each engine of a [`Context`](verbs::Context) (one by default), which serves peers
//! while the application makes no calls.

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
